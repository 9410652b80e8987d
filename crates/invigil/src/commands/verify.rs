//! `invigil verify`: whether a journal is what was written. It never repairs.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use invigil_engine::{EvidenceError, Redecided, redecide, verify_archive};
use invigil_journal::archive::{self, ArchiveError};
use invigil_journal::{Expected, Index, Report, RunRef, Store, StoreError, VerifyError, verify};
use invigil_schema::{Digest, ExitCode, RunId};
use serde_json::json;

use super::{find, is_archive, tell};
use crate::error::CliError;
use crate::ui::{self, BAD, DIM, GOOD};

/// Check a run's journal or an archive in every respect, and change nothing
///
/// Exit code 0: every record is what was written. 1: something is wrong; the first bad record is named. 125: it could
/// not be checked.
#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// A run's id, the beginning of one, `last`, a path to a copy of a run directory, or an archive
    run: String,

    /// A head that you kept: the journal must contain the record with this hash
    #[arg(long, value_name = "HEX")]
    head: Option<Digest>,

    /// The digest that the archive must have
    #[arg(long, value_name = "HEX")]
    sha256: Option<Digest>,

    /// The run that it must be of
    #[arg(long, value_name = "ID")]
    run_id: Option<RunId>,

    /// Make every decision again, too, from what was recorded, and name the first that comes out differently
    #[arg(long)]
    decisions: bool,

    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        if is_archive(&self.run) {
            if self.decisions {
                return Err(CliError::OnlyRuns);
            }
            return self.archive();
        }
        if self.sha256.is_some() {
            return Err(CliError::OnlyArchives);
        }
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
            run_id: self.run_id.clone().or_else(|| Some(run.run_id().clone())),
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
            Ok(report) if self.decisions => self.decide(store, &run, &report),
            Ok(report) => self.accept(&report, live),
            Err(VerifyError::Damaged(damage)) => self.refuse(&damage.to_string()),
            Err(VerifyError::Unreadable(error)) => Err(run.error(error).into()),
        }
    }

    /// The journal is what was written; whether what it says follows from what it says.
    fn decide(&self, store: &Store, run: &RunRef, report: &Report) -> Result<u8, CliError> {
        let decided = redecide(store, run)?;
        let Redecided {
            same,
            in_part,
            differs,
        } = &decided;
        let code = match differs {
            None => 0,
            Some(_) => ExitCode::No.into(),
        };
        let mut out = anstream::stdout().lock();
        if self.json {
            let line = json!({
                "ok": differs.is_none(),
                "run_id": report.run_id,
                "records": report.head.seq + 1,
                "head": { "seq": report.head.seq, "hash": report.head.hash },
                "decisions": decided,
            });
            writeln!(out, "{line}")?;
            return Ok(code);
        }
        let Some(differs) = differs else {
            let all = same + in_part;
            writeln!(
                out,
                "{GOOD}ok{GOOD:#} {}: every hash fits, and {all} decisions come out the same",
                report.run_id
            )?;
            if *in_part > 0 {
                writeln!(
                    out,
                    "{DIM}note{DIM:#} of {in_part} the journal has a part of the input only, and that fits"
                )?;
            }
            return Ok(code);
        };
        let seq = differs.seq;
        writeln!(
            out,
            "{BAD}not reproducible{BAD:#} at seq {seq}: {}",
            ui::harmless(&differs.what)
        )?;
        writeln!(
            out,
            "{DIM}recorded{DIM:#} {}",
            ui::harmless(&differs.recorded)
        )?;
        writeln!(
            out,
            "{DIM}derived{DIM:#}  {}",
            ui::harmless(&differs.derived)
        )?;
        Ok(code)
    }

    fn archive(&self) -> Result<u8, CliError> {
        let expected = archive::Expected {
            sha256: self.sha256,
            run_id: self.run_id.clone(),
            ..archive::Expected::default()
        };
        let verified = match verify_archive(Path::new(&self.run), &expected) {
            Ok(verified) => verified,
            Err(error @ ArchiveError::Io { .. }) => return Err(EvidenceError::from(error).into()),
            Err(error) => return self.refuse(&error.to_string()),
        };
        let (manifest, sha256) = (verified.manifest, verified.sha256);
        if self.head.is_some_and(|head| head != manifest.head.hash) {
            return self.refuse(&format!(
                "its head is {}, not the one that you kept",
                manifest.head.hash
            ));
        }
        if self.json {
            let line = json!({
                "ok": true,
                "run_id": manifest.run_id,
                "records": manifest.head.seq + 1,
                "bytes": verified.bytes,
                "sha256": sha256,
                "head": manifest.head,
            });
            writeln!(std::io::stdout(), "{line}")?;
            return Ok(0);
        }
        let mut out = anstream::stdout().lock();
        let (run_id, records) = (manifest.run_id, manifest.head.seq + 1);
        writeln!(
            out,
            "{GOOD}ok{GOOD:#} {run_id}: {records} records, every hash and every view fits"
        )?;
        writeln!(out, "{DIM}head{DIM:#}   {}", manifest.head.hash)?;
        writeln!(out, "{DIM}sha256{DIM:#} {sha256}")?;
        Ok(0)
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
