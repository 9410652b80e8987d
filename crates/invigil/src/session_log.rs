//! Session logs of other runtimes: read, folded, and their categories checked.

use std::io::Write as _;
use std::path::Path;

use invigil_audit::OsView;
use invigil_schema::{ExitCode, SessionRecord, category_flaw, session_log_has_required_categories};
use serde_json::value::RawValue;

use crate::error::CliError;
use crate::executor::text_of;
use crate::snapshot;
use crate::ui::{self, DIM, WARN};

/// As many flaws are listed.
const FLAWS: usize = 20;

/// Shows how a session stood. The exit code says whether every event carries the category that it must.
pub(crate) fn show(path: &Path, at: Option<u64>, json: bool) -> Result<u8, CliError> {
    let text = text_of(path)?;
    let mut log = read(&text).map_err(|why| CliError::SessionLog {
        path: path.to_owned(),
        why,
    })?;
    if let Some(at) = at {
        let end = (log.len() as u64).saturating_sub(1);
        if at >= log.len() as u64 {
            return Err(CliError::NotThatFar { at, end });
        }
        log.truncate(at as usize + 1);
    }
    let mut view = OsView::default();
    log.iter().for_each(|record| view.take_session(record));
    let carried = session_log_has_required_categories(&log);
    let flaws = log.iter().enumerate();
    let flaws = flaws.filter_map(|(at, record)| category_flaw(record).map(|flaw| (at, flaw)));
    let flaws: Vec<_> = flaws.collect();
    let snapshot = view.snapshot();
    let mut out = anstream::stdout().lock();
    if json {
        let flaws = flaws
            .iter()
            .map(|(seq, flaw)| serde_json::json!({ "seq": seq, "flaw": flaw.to_string() }));
        let line = serde_json::json!({
            "snapshot": snapshot,
            "has_required_categories": carried,
            "category_flaws": flaws.collect::<Vec<_>>(),
        });
        writeln!(out, "{line}")?;
    } else {
        snapshot::print(&mut out, &snapshot)?;
        for (seq, flaw) in flaws.iter().take(FLAWS) {
            let flaw = ui::harmless(&flaw.to_string());
            writeln!(
                out,
                "{DIM}category{DIM:#}   {WARN}{flaw}{WARN:#} {DIM}({seq}){DIM:#}"
            )?;
        }
    }
    Ok(match flaws.is_empty() {
        true => 0,
        false => ExitCode::No.into(),
    })
}

/// An array of events, or one a line.
fn read(text: &str) -> Result<Vec<SessionRecord>, String> {
    if text.trim_start().starts_with('[') {
        let events: Vec<Box<RawValue>> =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        let events = (0..).zip(events);
        return events
            .map(|(at, event): (u64, _)| {
                SessionRecord::of(event).map_err(|error| format!("event {at}: {error}"))
            })
            .collect();
    }
    let lines = (1u64..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| SessionRecord::parse(line).map_err(|error| format!("line {at}: {error}")))
        .collect()
}
