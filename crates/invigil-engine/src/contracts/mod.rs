//! Outcome contracts: "done" is what a set of checks says, run by Invigil itself.
//!
//! `docs/contracts.md` says what is promised. Nothing here knows of tasks.

mod derive;
mod evaluate;
mod generate;
mod output;
mod parse;
mod repository;
mod touched;
mod validate;

pub use derive::{DeriveError, Derived, derive};
pub use evaluate::{CANNOT_RUN, Evaluation, all_green};
pub use generate::{Api, GenerateError, Generator};
pub use parse::{Flaw, parse};
pub use repository::summary;
pub use touched::{Changed, edited_checks};
pub use validate::{Problem, render, validate};
