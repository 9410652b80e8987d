//! Capabilities with real files, real repositories and real processes; only the supervisor is played, in memory.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod arguments;
mod files;
mod git;
mod kill;
mod nobody;
mod paths;
mod props;
mod races;
mod support;
mod undo;
