//! `invigil undo`: takes back what a job has changed.

use invigil_journal::{Jobs, Store};
use invigil_schema::SessionState;
use serde_json::json;

use crate::error::CliError;
use crate::executor::{Ahead, JobOptions, cancel_on_signals, find, show};

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
        let index = Jobs::refreshed(store)?;
        let row = find(&index, &self.job)?;
        let executor = self.options.executor(store, Ahead::Nothing)?;
        // What a session did can be taken back when it takes no jobs any more.
        let session = match &row.session {
            Some(session) => index.session(session)?,
            None => None,
        };
        let open = session.filter(|session| session.state == SessionState::Open);
        let mut spec = self.options.spec(open.map(|session| session.session));
        spec.capability = "undo".to_owned();
        spec.arguments = json!({ "job_id": row.job_id, "force": self.force });
        if let Some(path) = self.path {
            spec.arguments["path"] = path.into();
        }
        let result = executor.exec(&spec, &cancel_on_signals()?)?;
        show(&result, self.json)
    }
}
