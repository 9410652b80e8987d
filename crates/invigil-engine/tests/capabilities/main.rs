//! Capabilities with real files, real repositories and real processes; only the supervisor is played, in memory.

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
