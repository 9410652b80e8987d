//! Joins the parts: starts a run, lets the sandbox observe it, records every fact, and packs the evidence.

mod again;
mod approvals;
pub mod capabilities;
mod channel;
pub mod contracts;
mod control;
mod evidence;
mod forking;
mod guard;
mod held;
mod jobs;
mod lines;
mod looking;
mod names;
mod output;
mod processes;
mod record;
pub mod redact;
mod reported;
mod reports;
mod run;
mod spec;
mod tasks;
mod telemetry;
mod watchdog;
mod written;

pub use again::{Difference, RedecideError, Redecided, redecide};
pub use approvals::{
    ApprovalError, Asking, Audience, Desk, GrantError, OpenQuestion, Reply, UserPolicy, answer,
    find, open_questions,
};
pub use capabilities::Registry;
pub use control::Control;
pub use evidence::{Comparable, EvidenceError, export, summary, verify_archive};
pub use forking::{ForkError, fork};
pub use guard::{KeepError, LearnError, Rules, learn};
pub use jobs::{
    Cancel, ExecError, Executor, GivenOutput, JobLimits, JobOutcome, JobResult, JobSpec, OnError,
    SessionError, Setup, Steps, StepsError, StepsSpec, UndoError, Worker, is_abandoned, recover,
    worker,
};
pub use looking::{claims, os_view, summary_at};
pub use names::{MayLookUp, Named, Names, Resolve};
pub use run::{End, Engine, RunError, RunOutcome, redactor};
pub use spec::{Input, Leftovers, Output, RunSpec, SHIMS, SpecError};
pub use tasks::{Attended, TaskError, TaskSpec, TaskView, Tasks, Voice, shell_agent};
pub use telemetry::{ManyZombies, Refused, ResourceGuard, Sampler, TelemetryError, Thresholds};
