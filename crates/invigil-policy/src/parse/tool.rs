//! `[tools]` and `[[tool]]`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use globset::Glob;
use regex::Regex;
use serde_json::Value as Json;
use toml::de::DeValue;

use super::{File, decision, not_empty, reason, required, tables, too_big, unlike_example};
use crate::error::Flaw;
use crate::glob::name_globs;
use crate::stratum::Part;
use crate::syntax::{Table, Text, Value};
use crate::tool::{ParamTest, Test, ToolIndex, ToolRule};
use crate::{Rule, Section};

impl File<'_> {
    pub(super) fn tools(&self, top: Table<'_>) -> Result<Part<ToolRule>, Flaw> {
        let mut part = Part::empty();
        if let Some(value) = top.get("tools") {
            let table = self.section(value, "[tools]", "\"shell_*\"")?;
            for (entry, verdict) in self.lists(table, "\"shell_*\"")? {
                let names = tool_names(&entry.rule)?;
                part.patterns.push(ToolRule {
                    verdict,
                    names,
                    tests: Vec::new(),
                });
                part.rules
                    .push(Arc::new(self.listed(Section::Tools, &entry, verdict)));
            }
            part.default = self.default(table, Some(Section::Tools))?;
        }
        let mut seen = HashMap::new();
        for value in tables(top, "tool", "[[tool]]")? {
            let (tool, rule, span) = self.tool(value)?;
            if let Some(first) = seen.insert(rule.text.clone(), span.clone()) {
                return Err(self.twice(&rule.text, span, first));
            }
            part.patterns.push(tool);
            part.rules.push(Arc::new(rule));
        }
        Ok(part)
    }

    fn tool(&self, value: Value<'_>) -> Result<(ToolRule, Rule, Range<usize>), Flaw> {
        let table = value.table("[[tool]]")?;
        let table = table.only(&["name", "param", "decision", "reason", "matches", "misses"])?;
        let name = required(table, "name", &value, "name = \"shell\"")?;
        let names = tool_names(&name)?;
        let verdict = decision(table, &value)?;
        let mut text = name.text.to_owned();
        let mut tests = Vec::new();
        if let Some(params) = table.get("param") {
            let example = "param = { prompt = { contains = \"rm -rf\" } }";
            let tested = params.table("param")?;
            not_empty(tested, "param", &params, example)?;
            for (param, value) in tested.entries() {
                for (test, said) in param_tests(value, example)? {
                    text = format!("{text} {} {said}", param.text);
                    tests.push(ParamTest {
                        param: param.text.to_owned(),
                        test,
                    });
                }
            }
        }
        let tool = ToolRule {
            verdict,
            names,
            tests,
        };
        let rule = Rule {
            reason: reason(table)?,
            ..self.rule(Some(Section::Tools), verdict, &name.span, text)
        };
        self.check_calls(table, &tool, &name, &rule.text)?;
        Ok((tool, rule, name.span))
    }

    fn check_calls(
        &self,
        table: Table<'_>,
        rule: &ToolRule,
        name: &Text<'_>,
        text: &str,
    ) -> Result<(), Flaw> {
        // The examples are about the parameters; any name that the rule matches will do.
        let rule = ToolRule {
            names: name_globs(&Text {
                text: "example",
                span: name.span.clone(),
            })?,
            ..rule.clone()
        };
        for (key, wanted) in [("matches", true), ("misses", false)] {
            let Some(value) = table.get(key) else {
                continue;
            };
            let example = format!("{key} = [{{ prompt = \"rm -rf /\" }}]");
            for call in value.list(&example)? {
                if !call.get().is_table() {
                    return Err(call.unlike(
                        "a list of tables of parameters",
                        &format!("write {example}"),
                    ));
                }
                let params = json(call.get())
                    .ok_or_else(|| call.unlike("JSON", "write no dates and no infinite numbers"))?;
                let index = ToolIndex::new(vec![rule.clone()])
                    .map_err(|error| too_big(&name.span, &error))?;
                let mut found = false;
                index.each_match("example", &params, |_, _| found = true);
                if found != wanted {
                    let shown = params.to_string();
                    return Err(unlike_example(
                        &Text {
                            text: &shown,
                            span: call.span(),
                        },
                        text,
                        wanted,
                    ));
                }
            }
        }
        Ok(())
    }
}

fn tool_names(text: &Text<'_>) -> Result<Vec<Glob>, Flaw> {
    if text.text.is_empty() {
        let help = "write the name of a tool, or a glob like \"shell_*\"";
        return Err(Flaw::new(
            text.span.clone(),
            "an empty name matches nothing",
            "here",
            help,
        ));
    }
    name_globs(text)
}

/// The tests of one parameter, each with how it is said.
fn param_tests(value: Value<'_>, example: &str) -> Result<Vec<(Test, String)>, Flaw> {
    if !value.get().is_table() {
        return Err(value.unlike("a table with a test", &format!("write {example}")));
    }
    let table = value
        .table("a test")?
        .only(&["contains", "equals", "matches", "glob"])?;
    not_empty(table, "this test", &value, example)?;
    let mut tests = Vec::new();
    for (kind, value) in table.entries() {
        let test = match kind.text {
            "equals" => {
                let wanted = json(value.get());
                Test::Equals(
                    wanted.ok_or_else(|| {
                        value.unlike("JSON", "write a text, a number, true or false")
                    })?,
                )
            }
            "contains" => {
                let part = value.text("contains = \"rm -rf\"")?;
                if part.text.is_empty() {
                    let help = "write what must be there, or leave the test out";
                    return Err(Flaw::new(
                        part.span,
                        "everything contains an empty text",
                        "empty",
                        help,
                    ));
                }
                Test::Contains(part.text.to_owned())
            }
            "matches" => {
                let regex = value.text("matches = \"^rm\\\\b\"")?;
                Test::Matches(Regex::new(regex.text).map_err(|error| bad_regex(&regex, &error))?)
            }
            _ => {
                let glob = value.text("glob = \"/etc/*\"")?;
                match &name_globs(&glob)?[..] {
                    [glob] => Test::Glob(glob.compile_matcher()),
                    _ => {
                        let help = "write `matches` with a regular expression: \"^(a|b)$\"";
                        return Err(Flaw::new(
                            glob.span,
                            "braces in the glob of a parameter",
                            "more than one glob",
                            help,
                        ));
                    }
                }
            }
        };
        let said = json(value.get())
            .map(|json| json.to_string())
            .unwrap_or_default();
        tests.push((test, format!("{} {said}", kind.text)));
    }
    Ok(tests)
}

fn bad_regex(regex: &Text<'_>, error: &regex::Error) -> Flaw {
    let shown = error.to_string();
    let why = shown
        .lines()
        .last()
        .unwrap_or_default()
        .trim_start_matches("error: ")
        .to_owned();
    let message = format!("`{}` is not a regular expression: {why}", regex.text);
    let help = "write a regular expression in 'single quotes', and \\ before a character that stands for itself";
    Flaw::new(
        regex.span.clone(),
        message,
        "not a regular expression",
        help,
    )
}

/// JSON has no dates and no infinite numbers.
fn json(value: &DeValue<'_>) -> Option<Json> {
    Some(match value {
        DeValue::String(text) => Json::String(text.to_string()),
        DeValue::Integer(number) => {
            i64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
                .ok()?
                .into()
        }
        DeValue::Float(number) => {
            let number: f64 = number.as_str().replace('_', "").parse().ok()?;
            Json::Number(serde_json::Number::from_f64(number)?)
        }
        DeValue::Boolean(value) => Json::Bool(*value),
        DeValue::Array(values) => {
            let values: Option<_> = values.iter().map(|value| json(value.get_ref())).collect();
            Json::Array(values?)
        }
        DeValue::Table(table) => {
            let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<_>)| {
                let key: &std::borrow::Cow<'_, str> = key.get_ref();
                Some((key.to_string(), json(value.get_ref())?))
            };
            Json::Object(table.iter().map(entry).collect::<Option<_>>()?)
        }
        DeValue::Datetime(_) => return None,
    })
}
