//! Joins the parts: starts a run, lets the sandbox observe it, records every fact, and packs the evidence.

mod channel;
mod lines;
mod processes;
mod reports;
mod spec;
mod written;

pub use spec::{Output, RunSpec, SHIMS, SpecError};
