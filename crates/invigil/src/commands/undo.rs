//! `invigil undo`: takes back what a job has changed.

use invigil_journal::{Jobs, Store};
use serde_json::json;

use crate::error::CliError;
use crate::executor::{JobOptions, cancel_on_signals, find, show};

/// Take back what a job has changed
///
/// What was changed since is a conflict: then nothing is touched, unless --force is given.
#[derive(Debug, clap::Args)]
pub(crate) struct Undo {
    /// The job: its id, the beginning of it, or `last`
    #[arg(value_name = "JOB")]
    job: String,

    /// Only this file or directory
    #[arg(value_name = "PATH")]
    path: Option<String>,

    /// Also where something was changed since
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    options: JobOptions,

    /// The whole result as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Undo {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let row = find(&Jobs::refreshed(store)?, &self.job)?;
        let executor = self.options.executor(store)?;
        let mut spec = self.options.spec(row.session);
        spec.capability = "undo".to_owned();
        spec.arguments = json!({ "job_id": row.job_id, "force": self.force });
        if let Some(path) = self.path {
            spec.arguments["path"] = path.into();
        }
        let result = executor.exec(&spec, &cancel_on_signals()?)?;
        show(&result, self.json)
    }
}
