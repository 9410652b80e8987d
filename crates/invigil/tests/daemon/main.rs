//! The daemon as hosts use it: the real binary, real connections, real kills.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and one that skips says so"
)]

mod approvals;
mod approvers;
mod coder;
mod hostile;
mod isolation;
mod kill;
mod life;
mod load;
mod proposals;
mod python;
mod runs;
mod seeds;
mod subscribe;
mod world;
