//! Hostile programs, each trying one way around a policy, as root and as nobody in particular.
//!
//! A case is a way, what the journal must say about it, and whether the way works where nobody forbids it. After every run
//! the whole world is looked at: what must not change has not changed, nobody outside was reached or harmed, nothing said
//! `ESCAPED`, and nothing is left. `INVIGIL_TRIES` says how often a race is tried,
//! and `INVIGIL_WAYS` which ways are, where that would take hours.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and one that skips says so"
)]

mod budgets;
mod files;
mod kernel;
mod network;
mod processes;
mod programs;
mod servers;
mod store;
mod victim;
mod world;
