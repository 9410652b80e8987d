//! Steering runs from another terminal: the real binary, real processes, as root and as nobody in particular.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and one that skips says so"
)]

mod budgets;
mod children;
mod family;
mod files;
mod fuse;
mod milestones;
mod pause;
mod signals;
mod voice;
mod world;
