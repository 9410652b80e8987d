//! Telemetry of recorded machines and of the real one, and the guard over both.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod guard;
mod machine;
mod real;
mod recorded;
