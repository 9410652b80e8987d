//! The journal, shown on real files, real processes and a medium that fails on demand.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod blobs;
mod index;
mod store;
