//! The runs that clients lead: one journal each, in the store of all runs.
//!
//! `run` is one of them, `line` its way into the journal, `registry` all of them, `recover` what a dead daemon left,
//! `trace` what is read from a journal.

mod line;
mod recover;
mod registry;
mod run;
mod trace;

pub(crate) use line::RecordError;
pub(crate) use registry::{Registry, Start};
pub(crate) use run::{Row, Run, Status, UnderWay};
pub(crate) use trace::{Page, Span, page};
