//! A run in a few lines, and its parts in full: what `run` prints at its end and `show` at any time.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Duration;

use invigil_audit::{
    Coverage, DenialSummary, DirectoryChanges, FileChange, FileEntry, MilestoneState, PhaseSummary,
    ProcessNode, SummaryDoc,
};
use invigil_journal::RunRef;
use invigil_schema::NetOpKind;

use crate::describe::{ended, name, text};
use crate::steered;
use crate::ui::{self, BAD, BOLD, DIM, GOOD, WARN, plural};

/// How many lines a part may take where one look must be enough.
const FEW: usize = 6;

/// One look: the verdict, and what matters of each part.
pub(crate) fn print(out: &mut impl Write, run: &RunRef, summary: &SummaryDoc) -> io::Result<()> {
    writeln!(out, "{BOLD}invigil{BOLD:#}  {}", verdict(run, summary))?;
    let counts = &summary.counts;
    if counts.processes > 0 {
        let cpu = ui::duration(Duration::from_micros(summary.cpu_us));
        label(out, "ran")?;
        writeln!(
            out,
            "{}, {}, {cpu} of CPU, {} at most",
            plural(counts.processes, "process", "processes"),
            plural(counts.execs, "program", "programs"),
            bytes(summary.peak_rss_kib * 1024),
        )?;
        tree(out, &summary.processes, FEW)?;
    }
    let changed: usize = summary
        .files
        .iter()
        .map(|directory| directory.files.len())
        .sum();
    if changed > 0 {
        label(out, "changed")?;
        writeln!(out, "{}", plural(changed as u64, "file", "files"))?;
        for directory in summary.files.iter().take(FEW) {
            writeln!(out, "           {}", grouped(directory))?;
        }
        more(out, summary.files.len(), "directories", "--files")?;
    }
    if !summary.endpoints.is_empty() {
        label(out, "network")?;
        writeln!(
            out,
            "{}",
            plural(summary.endpoints.len() as u64, "address", "addresses")
        )?;
        network_lines(out, summary, FEW)?;
        more(out, summary.endpoints.len(), "addresses", "--network")?;
    }
    if counts.denials > 0 {
        label(out, "refused")?;
        writeln!(
            out,
            "{BAD}{}{BAD:#}",
            plural(counts.denials, "time", "times")
        )?;
        denial_lines(out, summary, FEW)?;
        more(out, summary.denials.len(), "refusals", "--denials")?;
    }
    if counts.approvals > 0 {
        label(out, "asked")?;
        writeln!(
            out,
            "{}, {} allowed, {} not answered",
            plural(counts.approvals, "time", "times"),
            counts.approved,
            counts.unanswered,
        )?;
    }
    for (at, circle) in summary.circles.iter().take(FEW).enumerate() {
        label(out, if at == 0 { "alert" } else { "" })?;
        writeln!(out, "{}", steered::fuse(circle))?;
    }
    more(out, summary.circles.len(), "alerts", "--events")?;
    if !summary.phases.is_empty() {
        label(out, "phases")?;
        writeln!(out, "{}", phases(summary))?;
    }
    // Of what was not started there was nothing to see.
    let not_seen = match summary.failed {
        Some(_) => &[][..],
        None => {
            label(out, "seen")?;
            writeln!(out, "{}", seen(summary))?;
            &summary.not_seen[..]
        }
    };
    for missing in not_seen {
        // That reads are off is said in words already.
        if missing != "hook_not_attached: reads" {
            let words = missing
                .split_once(": ")
                .map_or(&**missing, |(_, words)| words);
            let words = ui::harmless(words);
            writeln!(out, "           {DIM}but {words}{DIM:#}")?;
        }
    }
    for note in summary.notes.iter().take(FEW) {
        let times = if note.count > 1 {
            format!(" ({}×)", note.count)
        } else {
            String::new()
        };
        writeln!(
            out,
            "           {WARN}note:{WARN:#} {}{times}",
            ui::harmless(&note.detail)
        )?;
    }
    label(out, "evidence")?;
    writeln!(out, "{}", run.directory().display())?;
    label(out, "look")?;
    writeln!(out, "invigil show {}", run.run_id())
}

/// How many phases are reached, and which are not.
pub(crate) fn phases(summary: &SummaryDoc) -> String {
    let reached = |phase: &&PhaseSummary| phase.state == MilestoneState::Advanced;
    let all = summary.phases.len();
    let missing: Vec<String> = summary
        .phases
        .iter()
        .filter(|phase| !reached(phase))
        .map(|phase| format!("{} ({})", ui::harmless(&phase.phase), name(&phase.state)))
        .collect();
    match missing.len() {
        0 => format!("{GOOD}all {all} reached{GOOD:#}"),
        open => format!(
            "{WARN}{} of {all} reached{WARN:#}; not {}",
            all - open,
            missing.join(", ")
        ),
    }
}

fn label(out: &mut impl Write, label: &str) -> io::Result<()> {
    write!(out, "  {DIM}{label:8}{DIM:#} ")
}

fn verdict(run: &RunRef, summary: &SummaryDoc) -> String {
    match (&summary.finished, &summary.failed) {
        (Some(finished), _) => ended(finished),
        (None, Some(failed)) => {
            format!("{BAD}not started{BAD:#}: {}", ui::harmless(&failed.reason))
        }
        (None, None) if run.is_live() => format!("{BOLD}running{BOLD:#}"),
        (None, None) => format!("{BAD}interrupted{BAD:#}: no end is recorded"),
    }
}

fn seen(summary: &SummaryDoc) -> String {
    let tier = summary.tier.map_or("contract_only", |tier| tier.as_str());
    match summary.kernel_layer {
        Coverage::Complete => {
            format!("{GOOD}everything{GOOD:#} that this tier watches (tier {tier})")
        }
        Coverage::Partial => format!("{WARN}not everything{WARN:#} (tier {tier})"),
        Coverage::Absent => {
            format!("{WARN}lifecycle only{WARN:#} (tier {tier}): no processes, files or network")
        }
    }
}

/// The process tree.
pub(crate) fn processes(out: &mut impl Write, summary: &SummaryDoc) -> io::Result<()> {
    tree(out, &summary.processes, usize::MAX)
}

fn tree(out: &mut impl Write, nodes: &[ProcessNode], limit: usize) -> io::Result<()> {
    let (mut lines, mut hidden) = (Vec::new(), 0);
    for node in nodes {
        branch(&mut lines, node, "", "");
    }
    if lines.len() > limit {
        hidden = lines.len() - limit;
        lines.truncate(limit);
    }
    for line in lines {
        writeln!(out, "           {line}")?;
    }
    if hidden > 0 {
        writeln!(
            out,
            "           {DIM}… {hidden} more lines: --processes{DIM:#}"
        )?;
    }
    Ok(())
}

fn branch(lines: &mut Vec<String>, node: &ProcessNode, own: &str, below: &str) {
    let command = match (&node.argv, &node.executable) {
        (Some(argv), _) => ui::shorten(&ui::command(argv), 70),
        (None, Some(executable)) => text(executable),
        (None, None) => "(fork)".to_owned(),
    };
    let times = if node.count > 1 {
        format!("{}× ", node.count)
    } else {
        String::new()
    };
    let end = match (node.exit_code, node.signal) {
        (Some(0), _) => String::new(),
        (Some(code), _) => format!(" {WARN}exit {code}{WARN:#}"),
        (None, Some(signal)) => format!(" {BAD}signal {signal}{BAD:#}"),
        (None, None) => String::new(),
    };
    lines.push(format!("{DIM}{own}{DIM:#}{times}{command}{end}"));
    let last = node.children.len().saturating_sub(1);
    for (at, child) in node.children.iter().enumerate() {
        let (own, further) = if at == last {
            ("└ ", "  ")
        } else {
            ("├ ", "│ ")
        };
        branch(
            lines,
            child,
            &format!("{below}{own}"),
            &format!("{below}{further}"),
        );
    }
}

/// Every file that was changed.
pub(crate) fn files(out: &mut impl Write, summary: &SummaryDoc) -> io::Result<()> {
    for file in summary.files.iter().flat_map(|directory| &directory.files) {
        let (mark, style) = mark(file.change);
        write!(out, "{style}{mark}{style:#} {}", text(&file.path))?;
        writeln!(out, "{DIM}{}{DIM:#}", at_the_end(file))?;
    }
    Ok(())
}

fn mark(change: FileChange) -> (char, anstyle::Style) {
    match change {
        FileChange::Created => ('+', GOOD),
        FileChange::Modified => ('~', WARN),
        FileChange::Moved => ('>', WARN),
        FileChange::Deleted => ('-', BAD),
        FileChange::Attributes => ('@', DIM),
    }
}

fn at_the_end(file: &FileEntry) -> String {
    match (file.size, &file.sha256, &file.why_not) {
        (Some(size), Some(sha256), _) => format!("  {size} bytes  sha256 {sha256}"),
        (_, _, Some(why)) => format!("  {}", ui::harmless(why)),
        _ => String::new(),
    }
}

/// A directory and what was changed in it, in one line.
fn grouped(directory: &DirectoryChanges) -> String {
    const NAMES: usize = 4;
    let names: Vec<String> = directory
        .files
        .iter()
        .take(NAMES)
        .map(|file| {
            let (mark, style) = mark(file.change);
            let path = text(&file.path);
            let name = path.rsplit('/').next().unwrap_or(&path);
            format!("{style}{mark}{style:#}{name}")
        })
        .collect();
    let rest = directory.files.len().saturating_sub(NAMES);
    let rest = if rest > 0 {
        format!(" {DIM}and {rest} more{DIM:#}")
    } else {
        String::new()
    };
    format!(
        "{}/ {}{rest}",
        text(&directory.directory).trim_end_matches('/'),
        names.join(" ")
    )
}

/// Every address.
pub(crate) fn network(out: &mut impl Write, summary: &SummaryDoc) -> io::Result<()> {
    network_lines(out, summary, usize::MAX)
}

fn network_lines(out: &mut impl Write, summary: &SummaryDoc, limit: usize) -> io::Result<()> {
    for endpoint in summary.endpoints.iter().take(limit) {
        let operations: Vec<String> = endpoint
            .operations
            .keys()
            .map(|op: &NetOpKind| name(op))
            .collect();
        let ended: Vec<String> = endpoint.operations.values().map(name).collect();
        writeln!(
            out,
            "           {} {DIM}{} {}× {}{DIM:#}",
            named(&endpoint.hosts, text(&endpoint.endpoint)),
            operations.join(", "),
            endpoint.count,
            ended.join(", "),
        )?;
    }
    Ok(())
}

/// An address behind the names that it was found under.
fn named(hosts: &BTreeSet<String>, endpoint: String) -> String {
    if hosts.is_empty() {
        return endpoint;
    }
    let hosts: Vec<String> = hosts.iter().map(|host| ui::harmless(host)).collect();
    format!("{} ({endpoint})", hosts.join(", "))
}

/// Everything that was refused.
pub(crate) fn denials(out: &mut impl Write, summary: &SummaryDoc) -> io::Result<()> {
    denial_lines(out, summary, usize::MAX)
}

/// By the line that refused, with what would have been allowed.
fn denial_lines(out: &mut impl Write, summary: &SummaryDoc, limit: usize) -> io::Result<()> {
    let mut rules: Vec<(String, Vec<&DenialSummary>)> = Vec::new();
    for entry in summary.denials.iter().take(limit) {
        let rule = match &entry.place {
            Some(place) => format!(
                "{}:{}: {} {}",
                place.file, place.line, place.decision, place.text
            ),
            None => entry.denial.rule.clone(),
        };
        match rules.iter_mut().find(|(known, _)| *known == rule) {
            Some((_, entries)) => entries.push(entry),
            None => rules.push((rule, vec![entry])),
        }
    }
    for (rule, entries) in rules {
        for entry in &entries {
            let what = ui::harmless(&entry.denial.what);
            let (target, count) = (text(&entry.denial.target), entry.count);
            writeln!(out, "           {what} {target} {DIM}{count}×{DIM:#}")?;
        }
        writeln!(out, "             {DIM}by {}{DIM:#}", ui::harmless(&rule))?;
        let place = entries.iter().find_map(|entry| entry.place.as_ref());
        if let Some(reason) = place.and_then(|place| place.reason.as_ref()) {
            writeln!(
                out,
                "             {DIM}because: {}{DIM:#}",
                ui::harmless(reason)
            )?;
        }
        if let Some(instead) = place.and_then(|place| place.instead.as_ref()) {
            writeln!(out, "             {DIM}{}{DIM:#}", ui::harmless(instead))?;
        }
    }
    Ok(())
}

fn more(out: &mut impl Write, all: usize, what: &str, flag: &str) -> io::Result<()> {
    match all.checked_sub(FEW) {
        None | Some(0) => Ok(()),
        Some(hidden) => writeln!(out, "           {DIM}… {hidden} more {what}: {flag}{DIM:#}"),
    }
}

pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
