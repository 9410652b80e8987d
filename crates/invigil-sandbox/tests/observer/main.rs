//! The observer against real programs, hostile ones included: as root and as somebody else, in both tiers.
//! Run with `cargo test -p invigil-sandbox`, which also builds the example that is used here.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "these are tests")]

mod asking;
mod confined;
mod exact;
mod exact_network;
mod facts;
mod fidelity;
mod harness;
mod lifecycle;
mod limits;
mod protection;
mod terminal;
