//! Jobs through the real binary, as an agent host uses them: real processes, real files, as root and as nobody in
//! particular.
//!
//! After every test the store must be well: the journal verifies, its numbers have no gaps, and each job that was started
//! has exactly one end. `INVIGIL_JOBS_SOAK` says how many jobs each of eight processes carries out, and how often one is
//! killed.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and one that skips says so"
)]

mod crowd;
mod deadlines;
mod files;
mod guard;
mod hostile;
mod looks;
mod programs;
mod results;
mod sessions;
mod undo;
mod world;
