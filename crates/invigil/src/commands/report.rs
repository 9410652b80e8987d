//! `invigil report`: a run as one HTML page.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use invigil_journal::Store;
use invigil_schema::ExitCode;
use serde_json::json;

use super::find;
use crate::error::CliError;
use crate::report::report;
use crate::ui::{self, DIM, GOOD};

/// Write what a run did into one HTML file that needs nothing to be read
///
/// No script, no network. The same run gives the same bytes. Exit code 1: the journal is damaged, and the page says where
/// and shows what stands before.
#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// A run's id, the beginning of one, `last`, or a path to a copy of a run directory
    run: String,

    /// The file to write [default: the run's id and .html, here]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace the file if there is one
    #[arg(long)]
    force: bool,

    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Report {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let run = find(store, &self.run)?;
        let output = self
            .output
            .unwrap_or_else(|| format!("{}.html", run.run_id()).into());
        if store.holds(&output) {
            return Err(CliError::InStore(output));
        }
        if !self.force && output.symlink_metadata().is_ok() {
            return Err(CliError::ReportExists(output));
        }
        let report = report(&run).map_err(|error| run.error(error))?;
        write(&output, report.html.as_bytes(), self.force)?;
        let bytes = report.html.len();
        if self.json {
            let head = report
                .head
                .map(|head| json!({ "seq": head.seq, "hash": head.hash }));
            let line = json!({
                "run_id": run.run_id(),
                "file": output,
                "bytes": bytes,
                "head": head,
                "damage": report.damage,
            });
            writeln!(io::stdout(), "{line}")?;
        } else {
            let mut out = anstream::stdout().lock();
            writeln!(out, "{GOOD}ok{GOOD:#} {} ({bytes} bytes)", output.display())?;
            if let Some(head) = report.head {
                writeln!(out, "{DIM}head{DIM:#} {}", head.hash)?;
            }
        }
        let Some(damage) = report.damage else {
            return Ok(0);
        };
        ui::warning(&format!(
            "the journal is damaged: {}",
            ui::harmless(&damage)
        ));
        Ok(ExitCode::No.into())
    }
}

/// The file appears whole or not at all, and never in place of another unless that is wanted.
fn write(target: &Path, bytes: &[u8], replace: bool) -> Result<(), CliError> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let draft = target.with_file_name(format!(".{name}.{}.new", std::process::id()));
    // Left over by a process of the same number that was killed.
    drop(fs::remove_file(&draft));
    let written = put(&draft, bytes).and_then(|()| match replace {
        true => fs::rename(&draft, target),
        // A second name is refused where there is a file; a rename is not.
        false => match fs::hard_link(&draft, target) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists && !target.exists() => {
                // A file system without hard links.
                fs::rename(&draft, target)
            }
            linked => linked,
        },
    });
    // After a rename there is nothing of this name.
    drop(fs::remove_file(&draft));
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => CliError::ReportExists(target.to_owned()),
        _ => CliError::ReportOut {
            path: target.to_owned(),
            source,
        },
    })
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
