//! The sections of the page, one function each.

use std::time::Duration;

use anstream::adapter::strip_str;
use invigil_audit::{ClaimsDoc, Coverage, FileChange, Finding, HealthDoc, ProcessNode, SummaryDoc};

use super::gather::{Entry, Gathered, Kept};
use super::html::Html;
use super::{Frame, picture};
use crate::commands::claims::claimed;
use crate::describe::{ended, name, text};
use crate::{steered, ui};

/// The page of the journal's format, which has the program that checks one.
const FORMAT: &str = include_str!("../../../../docs/journal-format.md");

/// How many bytes a section takes at most. All of them together stay far below what a browser or a mail can take.
const PROCESSES: usize = 500_000;
const FILES: usize = 1_000_000;
const NETWORK: usize = 300_000;
const LIST: usize = 300_000;

/// What a page has, in its order: where it is, and its name.
const CONTENTS: [(&str, &str); 10] = [
    ("summary", "Summary"),
    ("timeline", "Timeline"),
    ("processes", "Processes"),
    ("files", "Files"),
    ("network", "Network"),
    ("decisions", "Decisions"),
    ("checks", "Checks"),
    ("claims", "Claims"),
    ("health", "Health"),
    ("verify", "How to verify"),
];

pub(super) fn all(html: &mut Html, gathered: &Gathered, frame: &Frame<'_>) {
    let (summary, health, timeline) = gathered.documents();
    let said = gathered.claims();
    html.raw("<header><p class=\"soft\">Invigil: what a run did, seen from outside</p><h1>");
    html.text(frame.run_id).raw("</h1>\n");
    if let Some(damage) = frame.damage {
        html.raw("<p class=\"damage\">The journal is damaged: ")
            .text(damage);
        html.raw(". This page shows what stands before the damage, and nothing else.</p>\n");
    }
    html.raw("<nav>");
    for (id, title) in CONTENTS {
        html.raw("<a href=\"#")
            .raw(id)
            .raw("\">")
            .raw(title)
            .raw("</a> ");
    }
    html.raw("</nav></header>\n<main>\n");
    for (id, title) in CONTENTS {
        html.raw("<section id=\"").raw(id).raw("\"><h2>").raw(title);
        html.raw("</h2>\n");
        match id {
            "summary" => overview(html, &summary, &said, gathered, frame),
            "timeline" => {
                html.raw("<p class=\"soft\">").number(timeline.records());
                html.raw(" records by time and by who vouches for them. Heights go by orders of magnitude.</p>\n");
                picture::timeline(html, &timeline);
            }
            "processes" => processes(html, &summary, frame),
            "files" => files(html, &summary, frame),
            "network" => network(html, &summary, frame),
            "decisions" => decisions(html, gathered, frame),
            "checks" => checks(html, gathered, frame),
            "claims" => claims(html, &said, &health, frame),
            "health" => health_of(html, &health, gathered, frame),
            _ => verify(html, frame),
        }
        html.raw("</section>\n");
    }
    html.raw("</main>\n");
}

fn overview(
    html: &mut Html,
    summary: &SummaryDoc,
    said: &ClaimsDoc,
    gathered: &Gathered,
    frame: &Frame<'_>,
) {
    let (verdict, class) = match (&summary.finished, &summary.failed) {
        (Some(finished), _) => (
            strip_str(&ended(finished)).to_string(),
            if finished.success { "good" } else { "bad" },
        ),
        (None, Some(failed)) => (format!("not started: {}", failed.reason), "bad"),
        (None, None) if frame.live => ("it goes on: this is its state so far".to_owned(), "warn"),
        (None, None) => ("no end is recorded".to_owned(), "bad"),
    };
    html.raw("<p class=\"verdict ").raw(class).raw("\">");
    html.text(&verdict).raw("</p>\n<dl>");
    let mut say = |label: &'static str, value: &str| {
        html.raw("<dt>").raw(label).raw("</dt><dd>");
        html.text(value).raw("</dd>");
    };
    if let Some(started) = &summary.started {
        say("command", &ui::command(&started.command));
        say("in", &text(&started.cwd));
    }
    if let Some(at) = summary.started_at {
        say("started", &at.to_string());
    }
    say(
        "took",
        &ui::duration(Duration::from_millis(summary.duration_ms)),
    );
    let counts = &summary.counts;
    say("records", &counts.facts.to_string());
    let processes = ui::plural(counts.processes, "process", "processes");
    let programs = ui::plural(counts.execs, "program", "programs");
    say("ran", &format!("{processes}, {programs}"));
    let changed: usize = summary
        .files
        .iter()
        .map(|directory| directory.files.len())
        .sum();
    say("changed", &ui::plural(changed as u64, "file", "files"));
    let addresses = summary.endpoints.len() as u64;
    say("network", &ui::plural(addresses, "address", "addresses"));
    say("refused", &ui::plural(counts.denials, "time", "times"));
    let asked = ui::plural(counts.approvals, "time", "times");
    say("asked", &format!("{asked}, {} allowed", counts.approved));
    let checks = gathered.checks.all.iter();
    let passed = checks.filter(|check| check.result.passed).count();
    if !gathered.checks.all.is_empty() {
        let all = ui::plural(gathered.checks.all.len() as u64, "check", "checks");
        say("checked", &format!("{all}, {passed} passed"));
    }
    if !said.claims.is_empty() {
        say("said", &findings(said));
    }
    for circle in &summary.circles {
        say("alert", &strip_str(&steered::fuse(circle)).to_string());
    }
    if !summary.phases.is_empty() {
        let phases = crate::summary::phases(summary);
        say("phases", &strip_str(&phases).to_string());
    }
    say(
        "processor",
        &ui::duration(Duration::from_micros(summary.cpu_us)),
    );
    say(
        "memory",
        &format!(
            "{} at most",
            crate::summary::bytes(summary.peak_rss_kib * 1024)
        ),
    );
    let tier = summary.tier.map_or("contract_only", |tier| tier.as_str());
    let seen = match summary.kernel_layer {
        Coverage::Complete => "everything that this tier watches",
        Coverage::Partial => "not everything: see Health",
        Coverage::Absent => "how it began and how it ended, nothing between",
    };
    say("seen", &format!("{seen} (tier {tier})"));
    html.raw("</dl>\n");
}

fn nothing(html: &mut Html, what: &'static str) {
    html.raw("<p class=\"soft\">").raw(what).raw("</p>\n");
}

/// What was left out, and how to see it.
fn more(html: &mut Html, left: u64, what: &'static str, flag: &'static str, frame: &Frame<'_>) {
    if left > 0 {
        html.raw("<p class=\"warn left-out\">")
            .number(left)
            .raw(" more ")
            .raw(what);
        html.raw(" are not on this page: <code>invigil show ")
            .text(frame.run_id);
        html.raw(" ").raw(flag).raw("</code></p>\n");
    }
}

fn processes(html: &mut Html, summary: &SummaryDoc, frame: &Frame<'_>) {
    if summary.processes.is_empty() {
        return nothing(html, "None was seen.");
    }
    let (mut left, start) = (0, html.size());
    branch(html, &summary.processes, start, &mut left);
    more(html, left, "lines", "--processes", frame);
}

fn branch(html: &mut Html, nodes: &[ProcessNode], start: usize, left: &mut u64) {
    html.raw("<ul class=\"tree\">\n");
    for node in nodes {
        if html.size() - start > PROCESSES {
            *left += lines_of(node);
            continue;
        }
        html.raw("<li class=\"process\">");
        if node.count > 1 {
            html.number(node.count).raw("× ");
        }
        match (&node.argv, &node.executable) {
            (Some(argv), _) => html.foldable(&ui::command(argv)),
            (None, Some(executable)) => html.text(&text(executable)),
            (None, None) => html.raw("(fork)"),
        };
        match (node.exit_code, node.signal) {
            (Some(0), _) => {}
            (Some(code), _) => {
                _ = html
                    .raw(" <span class=\"warn\">exit ")
                    .text(&code.to_string())
                    .raw("</span>")
            }
            (None, Some(signal)) => {
                html.raw(" <span class=\"bad\">signal ")
                    .text(&signal.to_string())
                    .raw("</span>");
            }
            (None, None) => _ = html.raw(" <span class=\"soft\">no end seen</span>"),
        }
        let cpu = ui::duration(Duration::from_micros(node.cpu_us));
        html.raw(" <span class=\"soft\">pid ")
            .number(node.process.pid.into());
        html.raw(", ").text(&cpu).raw("</span>");
        if !node.children.is_empty() {
            branch(html, &node.children, start, left);
        }
        html.raw("</li>\n");
    }
    html.raw("</ul>\n");
}

fn lines_of(node: &ProcessNode) -> u64 {
    1 + node.children.iter().map(lines_of).sum::<u64>()
}

fn files(html: &mut Html, summary: &SummaryDoc, frame: &Frame<'_>) {
    let all = summary.files.iter().flat_map(|directory| &directory.files);
    if all.clone().next().is_none() {
        return nothing(html, "No change was seen.");
    }
    let headings = ["change", "file", "bytes", "SHA-256 at the end"];
    let left = html.table(&headings, FILES, all, |html, file| {
        let change = match file.change {
            FileChange::Created => "created",
            FileChange::Modified => "changed",
            FileChange::Moved => "moved here",
            FileChange::Deleted => "deleted",
            FileChange::Attributes => "attributes",
        };
        html.cell("change", change).cell("file", &text(&file.path));
        html.cell(
            "bytes",
            &file.size.map(|size| size.to_string()).unwrap_or_default(),
        );
        let digest = file.sha256.map(|digest| digest.to_string());
        html.cell(
            "SHA-256",
            &digest.or_else(|| file.why_not.clone()).unwrap_or_default(),
        );
    });
    more(html, left, "files", "--files", frame);
}

fn network(html: &mut Html, summary: &SummaryDoc, frame: &Frame<'_>) {
    if summary.endpoints.is_empty() {
        return nothing(html, "No address was seen.");
    }
    let headings = ["address", "names", "what", "times"];
    let left = html.table(
        &headings,
        NETWORK,
        summary.endpoints.iter(),
        |html, endpoint| {
            let hosts: Vec<&str> = endpoint.hosts.iter().map(String::as_str).collect();
            let done = endpoint.operations.iter();
            let done: Vec<String> = done
                .map(|(op, how)| format!("{} {}", name(op), name(how)))
                .collect();
            html.cell("address", &text(&endpoint.endpoint))
                .cell("names", &hosts.join(", "));
            html.cell("what", &done.join(", "))
                .cell("times", &endpoint.count.to_string());
        },
    );
    more(html, left, "addresses", "--network", frame);
}

fn decisions(html: &mut Html, gathered: &Gathered, frame: &Frame<'_>) {
    if gathered.refusals.all.is_empty() && gathered.decisions.all.is_empty() {
        return nothing(html, "Nothing was refused, asked or decided.");
    }
    if !gathered.refusals.all.is_empty() {
        html.raw("<h3>Refused</h3>\n");
        list(html, &gathered.refusals, "--denials", frame);
    }
    if !gathered.decisions.all.is_empty() {
        html.raw("<h3>Laid down, asked and answered</h3>\n");
        list(html, &gathered.decisions, "--events", frame);
    }
}

fn list(html: &mut Html, entries: &Kept<Entry>, flag: &'static str, frame: &Frame<'_>) {
    let headings = ["record", "time", "vouched for by", "what"];
    let left = html.table(&headings, LIST, entries.all.iter(), |html, entry| {
        html.cell("record", &entry.seq.to_string());
        html.cell("time", &entry.time.to_string()[11..23]);
        html.cell("by", entry.origin.as_str());
        html.cell("what", &format!("{} {}", entry.kind, entry.what));
    });
    more(html, left + entries.more, "records", flag, frame);
}

fn checks(html: &mut Html, gathered: &Gathered, frame: &Frame<'_>) {
    let checks = &gathered.checks;
    if checks.all.is_empty() {
        return nothing(html, "None was run as a part of this run.");
    }
    let headings = [
        "record",
        "check",
        "result",
        "took",
        "what it printed at last",
    ];
    let left = html.table(&headings, LIST, checks.all.iter(), |html, check| {
        let result = &check.result;
        let said = match (result.passed, result.exit_code, result.timed_out) {
            (true, ..) => "passed".to_owned(),
            (false, _, true) => "failed: its time was up".to_owned(),
            (false, Some(code), _) => format!("failed: exit {code}"),
            (false, None, _) => "failed: no exit code".to_owned(),
        };
        html.cell("record", &check.seq.to_string());
        html.cell(
            "check",
            &format!(
                "{} ({}, round {})",
                result.name,
                name(&check.stage),
                check.round
            ),
        );
        let class = if result.passed { "good" } else { "bad" };
        html.coloured("result", class, &said);
        html.cell(
            "took",
            &ui::duration(Duration::from_millis(result.duration_ms)),
        );
        html.raw("<td data-label=\"printed\"><pre>");
        html.lines(&result.tail).raw("</pre></td>");
    });
    more(html, left + checks.more, "checks", "--events", frame);
}

fn findings(said: &ClaimsDoc) -> String {
    format!(
        "{} supported, {} contradicted, {} unsupported",
        said.supported, said.contradicted, said.unsupported
    )
}

fn claims(html: &mut Html, said: &ClaimsDoc, health: &HealthDoc, frame: &Frame<'_>) {
    html.raw("<h3>What the agent said, beside what was seen</h3>\n");
    if said.claims.is_empty() {
        nothing(html, "Nothing was said that could be compared.");
    } else {
        html.raw("<p>").text(&findings(said)).raw(".</p>\n");
        let headings = ["finding", "said in", "words", "means", "because", "records"];
        let left = html.table(&headings, LIST, said.claims.iter(), |html, claim| {
            let class = match claim.finding {
                Finding::Supported => "good",
                Finding::Contradicted => "bad",
                Finding::Unsupported => "warn",
            };
            html.coloured("finding", class, claim.finding.as_str());
            let place = claim.said.seq.map(|seq| seq.to_string());
            html.cell("said in", &place.unwrap_or_default());
            html.cell("words", &claim.said.text);
            html.cell("means", &claimed(&claim.claim));
            html.cell("because", &claim.because);
            let mut records: Vec<String> = claim.events.iter().map(u64::to_string).collect();
            if claim.more_events > 0 {
                records.push(format!("and {} more", claim.more_events));
            }
            html.cell("records", &records.join(", "));
        });
        let left = left + said.left_out;
        if left > 0 {
            html.raw("<p class=\"warn left-out\">").number(left);
            html.raw(" more are not on this page: <code>invigil claims ");
            html.text(frame.run_id).raw("</code></p>\n");
        }
    }
    html.raw("<h3>What may be said of what is not here</h3>\n");
    let headings = ["claim", "allowed", "why not"];
    html.table(&headings, LIST, health.claims.iter(), |html, claim| {
        let reasons: Vec<&str> = claim.reasons.iter().map(String::as_str).collect();
        html.cell("claim", &name(&claim.claim).replace('_', " "));
        html.cell("allowed", if claim.allowed { "yes" } else { "no" });
        html.cell("why not", &reasons.join("; "));
    });
}

fn health_of(html: &mut Html, health: &HealthDoc, gathered: &Gathered, frame: &Frame<'_>) {
    html.raw("<dl>");
    for (label, value) in [
        ("seen from outside", name(&health.kernel_layer)),
        ("network", name(&health.network_coverage)),
        ("tool gate", name(&health.policy_layer)),
        ("reports of the agent", name(&health.sdk_layer)),
        ("bound to processes", name(&health.cgroup_correlation)),
    ] {
        html.raw("<dt>")
            .raw(label)
            .raw("</dt><dd>")
            .text(&value.replace('_', " "))
            .raw("</dd>");
    }
    html.raw("</dl>\n");
    let missing = health.kernel.missing.iter().map(|text| ("missing", text));
    let notes = health.notes.iter().map(|text| ("note", text));
    let all: Vec<(&str, &String)> = missing.chain(notes).collect();
    if !all.is_empty() {
        let left = html.table(
            &["what", "in words"],
            LIST,
            all.into_iter(),
            |html, (what, text)| {
                html.cell("what", what).cell("words", text);
            },
        );
        more(html, left, "notes", "--json", frame);
    }
    if !gathered.unknown.all.is_empty() {
        html.raw("<h3>Records that this version does not know, word for word</h3>\n");
        list(html, &gathered.unknown, "--events", frame);
    }
}

fn verify(html: &mut Html, frame: &Frame<'_>) {
    html.raw("<p>This page is a view. The facts are in the journal, each bound to all before it by SHA-256. ");
    html.raw("Who has the journal and the head below can check that nothing was changed, added or taken away.</p>\n<dl>");
    if let Some(head) = frame.head {
        html.raw("<dt>records</dt><dd>")
            .number(head.seq + 1)
            .raw("</dd>");
        html.raw("<dt>head</dt><dd><code id=\"head\">")
            .text(&head.hash.to_string());
        html.raw("</code></dd>");
    }
    html.raw("</dl>\n<p>With Invigil:</p>\n<pre>invigil verify ")
        .text(frame.run_id);
    if let Some(head) = frame.head {
        html.raw(" --head ").text(&head.hash.to_string());
    }
    html.raw("\ninvigil export ")
        .text(frame.run_id)
        .raw(" -o evidence.tar.gz\n");
    html.raw("invigil verify evidence.tar.gz</pre>\n");
    html.raw("<p>Without it, on the directory of the run; it must print the head above:</p>\n<pre id=\"python\">");
    html.lines(program()).raw("</pre>\n");
}

/// The twenty lines of Python in the page of the format.
fn program() -> &'static str {
    let block = FORMAT.split_once("```python\n");
    let block = block.and_then(|(_, rest)| rest.split_once("```"));
    block.map_or("", |(program, _)| program.trim_end())
}
