//! `invigil recover`: after a crash, every job and every task gets its one end.

use std::io::Write as _;
use std::sync::Arc;

use invigil_engine::recover;
use invigil_journal::{Store, SystemClock};
use serde_json::json;

use super::task::tasks;
use crate::error::CliError;
use crate::executor::WRITER;
use crate::ui;

/// Give each job and each task whose process is gone the end that it lacks
///
/// Those of living processes are never touched.
#[derive(Debug, clap::Args)]
pub(crate) struct Recover {
    /// The jobs as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Recover {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let recovered = recover(store, Arc::new(SystemClock), WRITER, &std::env::temp_dir())?;
        let tasks = tasks(store)?.recover()?;
        if self.json {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", json!({ "recovered": recovered, "tasks": tasks }))?;
            return Ok(0);
        }
        for job in &recovered {
            ui::say(format_args!("{job} has failed: its process is gone"));
        }
        for task in &tasks {
            ui::say(format_args!("{task} has failed: its process is gone"));
        }
        if recovered.is_empty() && tasks.is_empty() {
            ui::say(format_args!("nothing to recover"));
        }
        Ok(0)
    }
}
