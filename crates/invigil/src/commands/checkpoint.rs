//! `invigil checkpoint` and `invigil rollback`: the files of a run's workspace, kept and put back.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use invigil_engine::{Checkpoints, SteerError, ended, give};
use invigil_journal::{Store, SystemClock};
use invigil_schema::Order;
use serde_json::json;

use super::steer::tell;
use crate::error::CliError;
use crate::steered;

/// Keep the files of a run's workspace as they are now
///
/// A run that goes on is stopped meanwhile. Files that a .gitignore leaves out, repositories (.git) and files of more than
/// 64 MiB are not kept.
#[derive(Debug, clap::Args)]
pub(crate) struct Checkpoint {
    /// The run: an id, the beginning of one, or `last`
    run: String,

    /// What it is for
    #[arg(long, value_name = "TEXT", conflicts_with = "list")]
    label: Option<String>,

    /// List the checkpoints of the run, and take none
    #[arg(long)]
    list: bool,

    /// The result as one JSON object on stdout; with --list, one a line
    #[arg(long)]
    json: bool,
}

/// Make the files of a run's workspace what they were at a checkpoint
///
/// A checkpoint of how they are is taken first, so that it can be taken back. What cannot be put back is listed, and the
/// exit code is 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Rollback {
    /// The run: an id, the beginning of one, or `last`
    run: String,

    /// The checkpoint [default: the newest that was not taken for a rollback]
    checkpoint: Option<String>,

    /// The result as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Checkpoint {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        match self.list {
            true => list(store, &self.run, self.json),
            false => order(
                store,
                &self.run,
                Order::Checkpoint { label: self.label },
                self.json,
            ),
        }
    }
}

impl Rollback {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let checkpoint = self.checkpoint;
        order(store, &self.run, Order::Rollback { checkpoint }, self.json)
    }
}

fn list(store: &Store, run: &str, json: bool) -> Result<u8, CliError> {
    let run = store.find(run)?;
    // Nothing is read below it.
    let checkpoints = Checkpoints::new(store, run.run_id(), PathBuf::new(), None).list()?;
    let mut out = anstream::stdout().lock();
    for taken in &checkpoints {
        match json {
            true => writeln!(out, "{}", json!(taken))?,
            false => writeln!(out, "{}", steered::checkpoint(taken))?,
        }
    }
    Ok(0)
}

/// The supervisor obeys as long as there is one. It may end while we ask.
fn order(store: &Store, run: &str, order: Order, json: bool) -> Result<u8, CliError> {
    let run = store.find(run)?;
    let given = match give(store, &run, order.clone()) {
        Err(SteerError::Over(_)) if !run.is_live() => {
            ended(store, &run, Arc::new(SystemClock), order)
        }
        given => given,
    };
    tell(&given?, json)
}
