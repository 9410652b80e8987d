//! `invigil export`: a run's evidence in one file.

use std::io::Write as _;
use std::path::PathBuf;

use invigil_engine::export;
use invigil_journal::Store;
use serde_json::json;

use super::find;
use crate::error::CliError;
use crate::ui::{DIM, GOOD};

/// Pack a run's evidence into one file that anybody can check
///
/// The same run gives the same bytes. `invigil verify FILE` checks it.
#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    /// A run's id, the beginning of one, `last`, or a path to a copy of a run directory
    run: String,

    /// The file to write [default: the run's id and .tar.gz, here]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace the file if there is one
    #[arg(long)]
    force: bool,

    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Export {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let run = find(store, &self.run)?;
        let output = self
            .output
            .unwrap_or_else(|| format!("{}.tar.gz", run.run_id()).into());
        if store.holds(&output) {
            return Err(CliError::InStore(output));
        }
        let packed = export(&run, &output, self.force)?;
        if self.json {
            let line = json!({
                "run_id": run.run_id(),
                "file": output,
                "sha256": packed.sha256,
                "bytes": packed.bytes,
                "head": packed.manifest.head,
            });
            writeln!(std::io::stdout(), "{line}")?;
            return Ok(0);
        }
        let mut out = anstream::stdout().lock();
        writeln!(
            out,
            "{GOOD}ok{GOOD:#} {} ({} bytes)",
            output.display(),
            packed.bytes
        )?;
        writeln!(out, "{DIM}sha256{DIM:#} {}", packed.sha256)?;
        Ok(0)
    }
}
