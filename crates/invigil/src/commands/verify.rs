//! `invigil verify`: whether a journal is what was written. It never repairs.

use std::io::Write as _;
use std::sync::Arc;

use invigil_journal::{Expected, Index, Report, Store, StoreError, VerifyError, verify};
use invigil_schema::{Digest, ExitCode};
use serde_json::json;

use super::{find, tell};
use crate::error::CliError;
use crate::ui::{self, BAD, DIM, GOOD};

/// Check the whole chain of a run's journal, and change nothing
///
/// Exit code 0: every record is what was written. 1: something is wrong; the first bad record is named. 125: it could
/// not be checked.
#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// A run's id, the beginning of one, `last`, or a path to a copy of a run directory
    run: String,

    /// A head that you kept: the journal must contain the record with this hash
    #[arg(long, value_name = "HEX")]
    head: Option<Digest>,

    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let is_path = self.run.contains('/');
        let run = match find(store, &self.run) {
            // A copy whose first record is damaged: that is the answer, not a failure to look.
            Err(StoreError::Foreign { path, source }) => match VerifyError::from(source) {
                damaged @ VerifyError::Damaged(_) => return self.refuse(&damaged.to_string()),
                VerifyError::Unreadable(source) => {
                    return Err(StoreError::Foreign { path, source }.into());
                }
            },
            found => found?,
        };
        let live = run.is_live();
        let mut expected = Expected {
            run_id: Some(run.run_id().clone()),
            head_hash: self.head,
            live,
            ..Expected::default()
        };
        // Only runs of this store are remembered by its index.
        if !is_path {
            let (index, refreshed) = Index::refreshed(store)?;
            tell(&refreshed);
            expected.head = index
                .run(run.run_id())?
                .map(|row| row.head)
                .filter(|_| self.head.is_none());
        }
        let storage = run.storage();
        match verify(Arc::clone(&storage) as _, &expected) {
            Ok(report) => self.accept(&report, live),
            Err(VerifyError::Damaged(damage)) => self.refuse(&damage.to_string()),
            Err(VerifyError::Unreadable(error)) => Err(run.error(error).into()),
        }
    }

    fn accept(&self, report: &Report, live: bool) -> Result<u8, CliError> {
        let (head, records) = (report.head, report.head.seq + 1);
        if self.json {
            let line = json!({
                "ok": true,
                "run_id": report.run_id,
                "records": records,
                "segments": report.segments,
                "bytes": report.bytes,
                "torn_tails": report.torn,
                "live": live,
                "head": { "seq": head.seq, "hash": head.hash },
            });
            writeln!(std::io::stdout(), "{line}")?;
            return Ok(0);
        }
        let mut out = anstream::stdout().lock();
        writeln!(
            out,
            "{GOOD}ok{GOOD:#} {}: {records} records, every hash fits",
            report.run_id
        )?;
        writeln!(out, "{DIM}head{DIM:#} {}", head.hash)?;
        if live {
            writeln!(
                out,
                "{DIM}note{DIM:#} the run goes on: this is its state a moment ago"
            )?;
        }
        if report.torn > 0 {
            writeln!(
                out,
                "{DIM}note{DIM:#} a crash has torn it {} time(s); what was cut off is kept beside it",
                report.torn
            )?;
        }
        Ok(0)
    }

    fn refuse(&self, what: &str) -> Result<u8, CliError> {
        if self.json {
            writeln!(
                std::io::stdout(),
                "{}",
                json!({ "ok": false, "problem": what })
            )?;
        } else {
            let what = ui::harmless(what);
            writeln!(
                anstream::stdout(),
                "{BAD}damaged{BAD:#} {}: {what}",
                self.run
            )?;
        }
        Ok(ExitCode::No.into())
    }
}
