//! `invigil exec`: one well-defined action, bounded, on record, and undoable.

use invigil_journal::Store;
use invigil_schema::SessionId;

use crate::error::CliError;
use crate::executor::{Ahead, JobOptions, arguments, cancel_on_signals, show};

/// Carry out one capability in the current directory: bounded, on record, undoable
///
/// `invigil capabilities` lists what there is. 0: it was done; 1: it failed; 121: the policy denied it; 124: its time was
/// up; 125: the arguments are wrong, or the machine is too busy.
#[derive(Debug, clap::Args)]
pub(crate) struct Exec {
    /// The name of a capability
    #[arg(value_name = "NAME")]
    capability: String,

    /// Its arguments as a JSON object; `-` reads them from stdin
    #[arg(value_name = "JSON", default_value = "{}")]
    arguments: String,

    /// The session that the job belongs to
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,

    #[command(flatten)]
    options: JobOptions,

    /// The whole result as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Exec {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let arguments = arguments(&self.arguments)?;
        let ahead = Ahead::Job(&self.capability, &arguments);
        let executor = self.options.executor(store, ahead)?;
        let mut spec = self.options.spec(self.session);
        (spec.capability, spec.arguments) = (self.capability, arguments);
        let cancel = cancel_on_signals()?;
        let result = executor.exec(&spec, &cancel)?;
        show(&result, self.json)
    }
}
