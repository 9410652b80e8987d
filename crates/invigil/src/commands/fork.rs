//! `invigil fork`: a new run that begins where another one stood.

use std::io::Write as _;
use std::sync::Arc;

use invigil_engine::fork;
use invigil_journal::{Store, SystemClock};
use invigil_schema::RunId;
use serde_json::json;
use uuid::Uuid;

use super::find;
use crate::error::CliError;
use crate::executor::WRITER;
use crate::ui::{BOLD, DIM};

/// Begin a new run where another one stood
///
/// The new run names its parent, the record and its hash, so that anybody can see where it comes from. Nothing is
/// started and no file is touched: it is a place to go on from. If the parent had kept its files by then, the newest
/// checkpoint is named.
#[derive(Debug, clap::Args)]
pub(crate) struct Fork {
    /// A run's id, the beginning of one, `last`, or a path to a copy of a run directory
    run: String,

    /// The last record of the parent that belongs to the new run's past
    #[arg(long, value_name = "SEQ")]
    at: u64,

    /// The id of the new run
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Fork {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let parent = find(store, &self.run)?;
        let id = self
            .run_id
            .unwrap_or_else(|| format!("run_{}", Uuid::now_v7().simple()));
        let clock = Arc::new(SystemClock);
        let (run, forked) = fork(store, &parent, self.at, &RunId::new(id)?, clock, WRITER)?;
        let mut out = anstream::stdout().lock();
        if self.json {
            let line = json!({ "run_id": run.run_id(), "parent": forked });
            writeln!(out, "{line}")?;
            return Ok(0);
        }
        writeln!(out, "{BOLD}run{BOLD:#} {}", run.run_id())?;
        writeln!(
            out,
            "{DIM}of{DIM:#}  {} after record {}",
            forked.parent, forked.at_seq
        )?;
        writeln!(out, "{DIM}     {}{DIM:#}", forked.hash)?;
        if let Some(checkpoint) = &forked.checkpoint {
            let (parent, id) = (&forked.parent, &checkpoint.id);
            writeln!(
                out,
                "{DIM}files as they were: {DIM:#}invigil rollback {parent} {id}"
            )?;
        }
        Ok(0)
    }
}
