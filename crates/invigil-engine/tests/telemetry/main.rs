//! Telemetry of recorded machines and of the real one, and the guard over both.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and one that skips says so"
)]

mod guard;
mod machine;
mod real;
mod recorded;
