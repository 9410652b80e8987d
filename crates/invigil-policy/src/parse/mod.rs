//! A policy file, from its text to a [`Stratum`]. Nothing is passed over: what is not understood is an error.

mod exec;
mod limits;
mod tool;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Flaw, place};
use crate::glob::PathGlob;
use crate::net::NetPattern;
use crate::stratum::{FileRule, Part, Stratum};
use crate::syntax::{Table, Text, Value, nearest, parse as parse_toml};
use crate::{Places, Rule, Section, Source, Verdict};

/// The only version of the language.
const VERSION: &str = "1";

pub(crate) fn parse(source: &Source, places: &Places) -> Result<Stratum, Flaw> {
    let document = parse_toml(&source.text)?;
    let file = File {
        source,
        places,
        name: Arc::from(source.name.as_str()),
    };
    file.stratum(Table::new("", document.get_ref()))
}

struct File<'s> {
    source: &'s Source,
    places: &'s Places,
    name: Arc<str>,
}

/// An entry of a list: the rule itself and its reason.
struct Entry<'t> {
    rule: Text<'t>,
    reason: Option<String>,
}

impl File<'_> {
    fn stratum(&self, top: Table<'_>) -> Result<Stratum, Flaw> {
        // The version comes first: what it does not know may be right in another one.
        version(top)?;
        let top = top.only(&[
            "version", "default", "files", "programs", "exec", "network", "tools", "tool", "env",
            "budget",
        ])?;
        let (mut read, mut write) = (Part::empty(), Part::empty());
        if let Some(files) = top.get("files") {
            let table = files.table("[files]")?.only(&["read", "write"])?;
            not_empty(
                table,
                "[files]",
                &files,
                "[files.read]\ndeny = [\"~/.ssh/**\"]",
            )?;
            if let Some(value) = table.get("read") {
                read = self.files(Section::Read, value, "[files.read]")?;
            }
            if let Some(value) = table.get("write") {
                write = self.files(Section::Write, value, "[files.write]")?;
            }
        }
        let network = match top.get("network") {
            Some(value) => self.network(value)?,
            None => Part::empty(),
        };
        Ok(Stratum {
            layer: self.source.layer,
            default: self.default(top, None)?,
            read,
            write,
            programs: self.programs(top)?,
            network,
            tools: self.tools(top)?,
            env: limits::env(top)?,
            budget: limits::budget(top)?,
        })
    }

    fn rule(
        &self,
        section: Option<Section>,
        verdict: Verdict,
        span: &Range<usize>,
        text: String,
    ) -> Rule {
        let (line, column) = place(&self.source.text, span.start);
        Rule {
            file: self.name.clone(),
            layer: self.source.layer,
            line,
            column,
            section,
            verdict,
            text,
            reason: None,
        }
    }

    fn default(
        &self,
        table: Table<'_>,
        section: Option<Section>,
    ) -> Result<Option<Arc<Rule>>, Flaw> {
        let Some(value) = table.get("default") else {
            return Ok(None);
        };
        let word = value.text("default = \"allow\", \"ask\" or \"deny\"")?;
        let text = match section {
            Some(section) => format!("by default in [{}]", section.as_str()),
            None => "by default".to_owned(),
        };
        Ok(Some(Arc::new(self.rule(
            section,
            verdict(&word)?,
            &word.span,
            text,
        ))))
    }

    /// The lists `allow`, `ask` and `deny` of a table, each entry with the verdict of its list.
    fn lists<'t>(
        &self,
        table: Table<'t>,
        example: &str,
    ) -> Result<Vec<(Entry<'t>, Verdict)>, Flaw> {
        let mut entries = Vec::new();
        let mut seen: HashMap<&str, Range<usize>> = HashMap::new();
        for verdict in Verdict::ALL {
            let Some(list) = table.get(verdict.as_str()) else {
                continue;
            };
            let example = format!("{} = [{example}]", verdict.as_str());
            let values = list.list(&example)?;
            if values.is_empty() {
                let message = format!("`{}` has no rules", verdict.as_str());
                let help = format!("write {example}, or remove the line");
                return Err(Flaw::new(list.span(), message, "an empty list", help));
            }
            for value in values {
                let entry = entry(value, &example)?;
                if let Some(first) = seen.insert(entry.rule.text, entry.rule.span.clone()) {
                    return Err(self.twice(entry.rule.text, entry.rule.span, first));
                }
                entries.push((entry, verdict));
            }
        }
        Ok(entries)
    }

    fn twice(&self, text: &str, span: Range<usize>, first: Range<usize>) -> Flaw {
        let (span, first) = if span.start < first.start {
            (first, span)
        } else {
            (span, first)
        };
        let (line, column) = place(&self.source.text, first.start);
        let message = format!("`{text}` is there twice");
        let help = format!("keep one; the other is in line {line}, column {column}");
        Flaw::new(span, message, "the second time", help)
    }

    fn section<'t>(
        &self,
        value: Value<'t>,
        name: &'t str,
        example: &str,
    ) -> Result<Table<'t>, Flaw> {
        let table = value
            .table(name)?
            .only(&["allow", "ask", "deny", "default"])?;
        let help = format!("{name}\ndeny = [{example}]");
        not_empty(table, name, &value, &help)?;
        Ok(table)
    }

    fn listed(&self, section: Section, entry: &Entry<'_>, verdict: Verdict) -> Rule {
        let rule = self.rule(
            Some(section),
            verdict,
            &entry.rule.span,
            entry.rule.text.to_owned(),
        );
        Rule {
            reason: entry.reason.clone(),
            ..rule
        }
    }

    fn files(
        &self,
        section: Section,
        value: Value<'_>,
        name: &str,
    ) -> Result<Part<FileRule>, Flaw> {
        let example = "\"~/.ssh/**\"";
        let table = self.section(value, name, example)?;
        let mut part = Part::empty();
        for (entry, verdict) in self.lists(table, example)? {
            part.patterns
                .push((PathGlob::parse(&entry.rule, self.places)?, verdict));
            part.rules
                .push(Arc::new(self.listed(section, &entry, verdict)));
        }
        part.default = self.default(table, Some(section))?;
        Ok(part)
    }

    fn network(&self, value: Value<'_>) -> Result<Part<(NetPattern, Verdict)>, Flaw> {
        let example = "\"api.example.com:443\"";
        let table = self.section(value, "[network]", example)?;
        let mut part = Part::empty();
        for (entry, verdict) in self.lists(table, example)? {
            part.patterns
                .push((NetPattern::parse(&entry.rule, self.places)?, verdict));
            part.rules
                .push(Arc::new(self.listed(Section::Network, &entry, verdict)));
        }
        part.default = self.default(table, Some(Section::Network))?;
        Ok(part)
    }
}

pub(crate) fn too_big(span: &Range<usize>, error: &globset::Error) -> Flaw {
    let message = format!(
        "the globs of this file cannot be compiled: {}",
        error.kind()
    );
    Flaw::new(
        span.clone(),
        message,
        "too much",
        "write fewer or simpler globs",
    )
}

fn unlike_example(example: &Text<'_>, rule: &str, wanted: bool) -> Flaw {
    let (message, label, key) = match wanted {
        true => (
            format!(
                "the rule `{rule}` does not match its example `{}`",
                example.text
            ),
            "is not matched",
            "misses",
        ),
        false => (
            format!(
                "the rule `{rule}` matches `{}`, which it should miss",
                example.text
            ),
            "is matched",
            "matches",
        ),
    };
    let help = format!("correct the rule, or move the example to `{key}` if that is what you mean");
    Flaw::new(example.span.clone(), message, label, help)
}

fn version(top: Table<'_>) -> Result<(), Flaw> {
    let help = format!("write `version = {VERSION}` at the top of the file");
    let Some(value) = top.get("version") else {
        return Err(Flaw::new(
            0..0,
            "the file does not say its version",
            "here",
            help,
        ));
    };
    let number = value.get().as_integer();
    let Some(number) = number.map(|number| number.as_str()) else {
        return Err(value.unlike("a number", &help));
    };
    match number {
        VERSION => Ok(()),
        other => {
            let message = format!("version {other} of the policy language is not known");
            Err(Flaw::new(value.span(), message, "not known", help))
        }
    }
}

fn not_empty(table: Table<'_>, name: &str, value: &Value<'_>, example: &str) -> Result<(), Flaw> {
    if !table.entries().is_empty() {
        return Ok(());
    }
    let message = format!("{name} says nothing");
    Err(Flaw::new(
        value.span(),
        message,
        "empty",
        format!("remove it, or write for example\n{example}"),
    ))
}

fn verdict(word: &Text<'_>) -> Result<Verdict, Flaw> {
    let words = Verdict::ALL.map(Verdict::as_str);
    if let Some(verdict) = Verdict::ALL
        .into_iter()
        .find(|verdict| verdict.as_str() == word.text)
    {
        return Ok(verdict);
    }
    let guess = nearest(word.text, &words)
        .map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
    let message = format!("unknown decision `{}`", word.text);
    let help = format!("{guess}decisions are \"allow\", \"ask\" and \"deny\"");
    Err(Flaw::new(
        word.span.clone(),
        message,
        "not a decision",
        help,
    ))
}

fn required<'t>(
    table: Table<'t>,
    key: &'t str,
    whole: &Value<'_>,
    example: &str,
) -> Result<Text<'t>, Flaw> {
    match table.get(key) {
        Some(value) => value.text(example),
        None => {
            let message = format!("this rule has no `{key}`");
            Err(Flaw::new(
                whole.span(),
                message,
                "this rule",
                format!("add {example}"),
            ))
        }
    }
}

fn decision(table: Table<'_>, whole: &Value<'_>) -> Result<Verdict, Flaw> {
    verdict(&required(table, "decision", whole, "decision = \"ask\"")?)
}

fn reason(table: Table<'_>) -> Result<Option<String>, Flaw> {
    let Some(value) = table.get("reason") else {
        return Ok(None);
    };
    let text = value.text("reason = \"pushing leaves this machine\"")?;
    if text.text.trim().is_empty() {
        let help = "say in a few words why, or remove the line";
        return Err(Flaw::new(
            text.span,
            "an empty reason",
            "says nothing",
            help,
        ));
    }
    Ok(Some(text.text.to_owned()))
}

/// A text, or `{ rule = "…", reason = "…" }`.
fn entry<'t>(value: Value<'t>, example: &str) -> Result<Entry<'t>, Flaw> {
    let Some(entries) = value.get().as_table() else {
        let help = format!("{example}, or {{ rule = \"…\", reason = \"…\" }} in the list");
        return Ok(Entry {
            rule: value.text(&help)?,
            reason: None,
        });
    };
    let table = Table::new("a rule", entries).only(&["rule", "reason"])?;
    Ok(Entry {
        rule: required(table, "rule", &value, "rule = \"…\"")?,
        reason: reason(table)?,
    })
}

fn tables<'t>(top: Table<'t>, key: &'t str, header: &'t str) -> Result<Vec<Value<'t>>, Flaw> {
    match top.get(key) {
        None => Ok(Vec::new()),
        Some(value) if value.get().is_table() => {
            let list = if key == "exec" {
                "[programs]"
            } else {
                "[tools]"
            };
            let help = format!(
                "write {header} with two brackets for one rule; lists and the default stand in {list}"
            );
            Err(Flaw::new(
                value.span(),
                format!("`{key}` is a list of rules"),
                "one bracket too few",
                help,
            ))
        }
        Some(value) => value.list(&format!(
            "{header} on a line of its own, and the rule below"
        )),
    }
}
