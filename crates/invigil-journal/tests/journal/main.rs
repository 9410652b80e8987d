//! The journal against crashes, damage, other processes and bad disks. One binary, so that it links once.
//!
//! Other processes are this binary again: see `child`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking, and children speak on stdout"
)]

mod blobs;
mod child;
mod conformance;
mod damage;
mod environment;
mod follow;
mod index;
mod memory;
mod model;
mod processes;
mod python;
mod store;
mod support;
