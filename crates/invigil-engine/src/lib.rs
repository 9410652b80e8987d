//! Joins journal, policy, audit and sandbox into runs.

pub mod redact;
