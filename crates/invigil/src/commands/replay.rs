//! `invigil replay`: a run on a screen, step by step.

use std::env;
use std::io::{IsTerminal as _, stdin, stdout};

use invigil_journal::Store;

use super::find;
use crate::error::CliError;
use crate::replay::{Start, replay};

/// Go through a run on a screen, record by record, forward and back
///
/// Timeline, event, processes and snapshot stand side by side. `?` lists the keys. A run that goes on is followed.
#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    /// A run's id, the beginning of one, `last`, or a path to a copy of a run directory
    run: String,

    /// Begin at this record
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    at: u64,

    /// Begin at the end and follow
    #[arg(long, short, conflicts_with = "at")]
    follow: bool,
}

impl Replay {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let run = find(store, &self.run)?;
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return Err(CliError::NoTerminal(run.run_id().clone()));
        }
        let colour = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let start = match self.follow {
            true => Start::Follow,
            false => Start::At(self.at),
        };
        replay(run, start, colour)
    }
}
