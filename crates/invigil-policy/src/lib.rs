//! Policy files to decisions with reasons. Text in, decision out.
//!
//! [`Policy::load`] reads files strictly and compiles them; [`Policy::verdict`] judges one [`Action`] in less than a
//! microsecond, [`Policy::decide`] says why too, [`Policy::bounds`] is what a sandbox must enforce, and [`learn`] writes
//! a policy under which what was observed would have passed. There is no I/O, no clock and no thread here. The language
//! is described in `docs/policy.md`.

mod action;
mod bounds;
mod command;
mod decision;
mod error;
mod exec;
mod glob;
mod learn;
mod narrow;
mod net;
mod parse;
mod policy;
mod source;
mod stacking;
mod stratum;
mod syntax;
mod tool;
mod units;
mod words;

pub use action::{Action, Endpoint, Exec, UnixSocket};
pub use bounds::{Bounds, Budget, EnvFilter, ExecRoots, ProgramPattern};
pub use decision::{By, Decision, Rule, Section, Verdict};
pub use error::PolicyError;
pub use learn::{Observations, learn};
pub use narrow::{Narrow, fence};
pub use policy::Policy;
pub use source::{Layer, PROFILES, Places, Source, profile};
