//! `invigil diff`: what one run did that another did not.

use std::io::Write as _;
use std::path::Path;

use invigil_audit::{ChangeKind, DiffDoc, Ignore, Verdict, sarif};
use invigil_engine::Comparable;
use invigil_journal::Store;

use super::{find, is_archive};
use crate::describe::{name, text};
use crate::error::CliError;
use crate::ui::{self, BAD, BOLD, DIM, GOOD, WARN};

/// Compare what two runs did
///
/// Exit code 0: the same. 1: different. 2: they cannot be compared, because one of them was not seen well enough.
#[derive(Debug, clap::Args)]
pub(crate) struct Diff {
    /// A run, or an archive
    before: String,

    /// Another one
    after: String,

    /// Leave out what this pattern matches: a path or an address with `*`, `**` and `?`; may be repeated
    #[arg(long, value_name = "PATTERN")]
    ignore: Vec<String>,

    /// One JSON object on stdout
    #[arg(long, conflicts_with = "sarif")]
    json: bool,

    /// SARIF 2.1.0 on stdout
    #[arg(long)]
    sarif: bool,
}

impl Diff {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let ignore = Ignore::new(&self.ignore)?;
        let (before, after) = (load(store, &self.before)?, load(store, &self.after)?);
        let diff = before.diff(&after, &ignore);
        match (self.json, self.sarif) {
            (true, _) => writeln!(std::io::stdout(), "{}", serde_json::json!(diff))?,
            (_, true) => writeln!(std::io::stdout(), "{:#}", sarif(&diff))?,
            _ => print(&diff)?,
        }
        Ok(match diff.verdict {
            Verdict::Same => 0,
            Verdict::Different => 1,
            Verdict::NotComparable => 2,
        })
    }
}

fn load(store: &Store, name: &str) -> Result<Comparable, CliError> {
    if is_archive(name) {
        return Ok(Comparable::of_archive(Path::new(name))?);
    }
    Ok(Comparable::of_run(&find(store, name)?)?)
}

fn print(diff: &DiffDoc) -> Result<(), CliError> {
    let mut out = anstream::stdout().lock();
    match diff.verdict {
        Verdict::Same => writeln!(out, "{GOOD}same{GOOD:#}")?,
        Verdict::Different => writeln!(out, "{WARN}different{WARN:#}")?,
        Verdict::NotComparable => writeln!(out, "{BAD}not comparable{BAD:#}")?,
    }
    let mut section = None;
    for row in diff.rows() {
        if section != Some(row.section) {
            section = Some(row.section);
            writeln!(out, "{BOLD}{}{BOLD:#}", name(&row.section))?;
        }
        let (mark, style) = match row.change {
            ChangeKind::Added => ('+', GOOD),
            ChangeKind::Removed => ('-', BAD),
            ChangeKind::Changed => ('~', WARN),
        };
        let doubt = if row.sure { "" } else { " (not sure)" };
        let detail = ui::harmless(&row.detail);
        writeln!(
            out,
            "  {style}{mark}{style:#} {} {DIM}{detail}{doubt}{DIM:#}",
            text(row.name)
        )?;
    }
    for section in &diff.sections {
        for reason in &section.reasons {
            writeln!(
                out,
                "{DIM}note{DIM:#} {}: {}",
                name(&section.section),
                ui::harmless(reason)
            )?;
        }
    }
    for change in &diff.health {
        let (before, after) = (ui::harmless(&change.before), ui::harmless(&change.after));
        writeln!(
            out,
            "{DIM}seen{DIM:#} {}: {before} → {after}",
            ui::harmless(&change.member)
        )?;
    }
    if diff.ignored > 0 {
        writeln!(out, "{DIM}{} ignored{DIM:#}", diff.ignored)?;
    }
    Ok(())
}
