//! Contract files, JSON or TOML: everything that is wrong with one, with its place.

use std::fmt;

use invigil_schema::{Check, Contract};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use toml_edit::{Document, Item, Table, TableLike, Value};

use super::validate::validate;

/// Something that is wrong with a contract file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// Reads a contract. What begins with `{` is JSON, everything else TOML. An error is everything that is wrong.
pub fn parse(text: &str) -> Result<Contract, Vec<Flaw>> {
    let mut read = match text.trim_start().starts_with('{') {
        true => json(text),
        false => toml(text),
    }?;
    if !read.flaws.is_empty() {
        read.flaws.sort_by_key(|flaw| (flaw.line, flaw.column));
        return Err(read.flaws);
    }
    let problems = validate(&read.contract);
    if problems.is_empty() {
        return Ok(read.contract);
    }
    let at = |check: Option<usize>, field: Option<&str>| match check {
        Some(check) => read.places[check].of(field),
        None => read.all,
    };
    let flaws = problems
        .into_iter()
        .map(|problem| flaw(text, at(problem.check, problem.field), problem.message));
    Err(flaws.collect())
}

/// A contract as it stands in a file.
struct Read {
    contract: Contract,
    /// Where the checks as a whole stand.
    all: usize,
    places: Vec<Places>,
    flaws: Vec<Flaw>,
}

/// Where a check and its fields stand.
#[derive(Default)]
struct Places {
    check: usize,
    name: Option<usize>,
    command: Option<usize>,
}

impl Places {
    fn of(&self, field: Option<&str>) -> usize {
        let place = match field {
            Some("name") => self.name,
            Some("command") => self.command,
            _ => None,
        };
        place.unwrap_or(self.check)
    }
}

fn flaw(text: &str, offset: usize, message: impl Into<String>) -> Flaw {
    let before = &text[..text.floor_char_boundary(offset)];
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    Flaw {
        line: before.matches('\n').count() + 1,
        column: before[begin..].chars().count() + 1,
        message: message.into(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonContract<'a> {
    #[serde(default)]
    description: String,
    #[serde(borrow, default)]
    checks: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct JsonPlaces<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    command: Option<&'a RawValue>,
}

fn json(text: &str) -> Result<Read, Vec<Flaw>> {
    let offset = |raw: &RawValue| raw.get().as_ptr() as usize - text.as_ptr() as usize;
    let top: JsonContract<'_> = in_json(text, text, 0).map_err(|flaw| vec![flaw])?;
    let all = top.checks.map_or(0, offset);
    let checks: Vec<&RawValue> = match top.checks {
        Some(raw) => in_json(text, raw.get(), all).map_err(|flaw| vec![flaw])?,
        None => Vec::new(),
    };
    let mut read = Read {
        contract: Contract {
            description: top.description,
            checks: Vec::new(),
        },
        all,
        places: Vec::new(),
        flaws: Vec::new(),
    };
    for raw in checks {
        let begin = offset(raw);
        let places: Option<JsonPlaces<'_>> = serde_json::from_str(raw.get()).ok();
        read.places.push(Places {
            check: begin,
            name: places.as_ref().and_then(|places| places.name).map(offset),
            command: places
                .as_ref()
                .and_then(|places| places.command)
                .map(offset),
        });
        match in_json(text, raw.get(), begin) {
            Ok(check) => read.contract.checks.push(check),
            Err(flaw) => read.flaws.push(flaw),
        }
    }
    Ok(read)
}

/// Reads a part of the file that begins at an offset.
fn in_json<'a, T: Deserialize<'a>>(text: &str, part: &'a str, begin: usize) -> Result<T, Flaw> {
    serde_json::from_str(part).map_err(|error| {
        // Line and column of the error are those of the part.
        let mut lines = part.split_inclusive('\n');
        let before: usize = lines
            .by_ref()
            .take(error.line().saturating_sub(1))
            .map(str::len)
            .sum();
        let offset = begin + before + error.column().saturating_sub(1);
        let message = error.to_string();
        let message = match message.rfind(" at line ") {
            Some(end) => &message[..end],
            None => &message,
        };
        let what = match error.is_data() {
            true => "it does not fit",
            false => "this is not JSON",
        };
        flaw(text, offset.min(text.len()), format!("{what}: {message}"))
    })
}

fn toml(text: &str) -> Result<Read, Vec<Flaw>> {
    let document = Document::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let message = error.message().trim().replace('\n', "; ");
        vec![flaw(text, offset, format!("this is not TOML: {message}"))]
    })?;
    let top = document.as_table();
    let mut read = Read {
        contract: Contract {
            description: String::new(),
            checks: Vec::new(),
        },
        all: top.get("checks").and_then(start).unwrap_or(0),
        places: Vec::new(),
        flaws: Vec::new(),
    };
    for (key, item) in top.iter() {
        let at = key_start(top, key).or_else(|| start(item)).unwrap_or(0);
        match key {
            "description" => match item.as_str() {
                Some(description) => description.clone_into(&mut read.contract.description),
                None => {
                    let message = "it does not fit: `description` is a text";
                    read.flaws.push(flaw(text, at, message));
                }
            },
            "checks" => {}
            key => {
                let message = format!(
                    "it does not fit: unknown field `{key}`, expected `description` or `checks`"
                );
                read.flaws.push(flaw(text, at, message));
            }
        }
    }
    for (begin, check) in tables(top, text, &mut read.flaws) {
        let place = |key: &str| check.get(key).and_then(start);
        read.places.push(Places {
            check: begin,
            name: place("name"),
            command: place("command"),
        });
        match from_toml::<Check>(check) {
            Ok(check) => read.contract.checks.push(check),
            Err((key, message)) => {
                let at = key.and_then(|key| place(&key)).unwrap_or(begin);
                let message = format!("it does not fit: {message}");
                read.flaws.push(flaw(text, at, message));
            }
        }
    }
    Ok(read)
}

fn start(item: &Item) -> Option<usize> {
    item.span().map(|span| span.start)
}

fn key_start(table: &Table, key: &str) -> Option<usize> {
    table.key(key)?.span().map(|span| span.start)
}

/// The checks: tables of their own, or in a list.
fn tables<'t>(
    top: &'t Table,
    text: &str,
    flaws: &mut Vec<Flaw>,
) -> Vec<(usize, &'t dyn TableLike)> {
    let mut found: Vec<(usize, &dyn TableLike)> = Vec::new();
    match top.get("checks") {
        None => {}
        Some(Item::ArrayOfTables(tables)) => {
            for table in tables {
                let begin = table.span().map_or(0, |span| span.start);
                found.push((begin, table));
            }
        }
        Some(Item::Value(Value::Array(values))) => {
            for value in values {
                let begin = value.span().map_or(0, |span| span.start);
                match value.as_inline_table() {
                    Some(table) => found.push((begin, table)),
                    None => flaws.push(flaw(text, begin, "it does not fit: a check is a table")),
                }
            }
        }
        Some(other) => {
            let at = start(other).unwrap_or(0);
            let message = "it does not fit: write [[checks]] for each check";
            flaws.push(flaw(text, at, message));
        }
    }
    found
}

/// By way of JSON, so that both forms are read by the same rules. An error names the key, if it is about one.
fn from_toml<T: DeserializeOwned>(table: &dyn TableLike) -> Result<T, (Option<String>, String)> {
    let mut object = serde_json::Map::new();
    for (key, item) in table.iter() {
        let value = match item.as_value() {
            Some(Value::String(text)) => text.value().as_str().into(),
            Some(Value::Integer(number)) => (*number.value()).into(),
            Some(Value::Boolean(flag)) => (*flag.value()).into(),
            Some(Value::Float(number)) => (*number.value()).into(),
            _ => {
                let message = format!("`{key}` is a text, a number, true or false");
                return Err((Some(key.to_owned()), message));
            }
        };
        object.insert(key.to_owned(), value);
    }
    let read = serde_path_to_error::deserialize(serde_json::Value::Object(object));
    read.map_err(|error| {
        let path = error.path().to_string();
        let key = (path != ".").then_some(path);
        (key, error.inner().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flaws(text: &str) -> Vec<String> {
        let flaws = parse(text).unwrap_err();
        flaws.iter().map(ToString::to_string).collect()
    }

    const TOML: &str = r#"description = "d"
[[checks]]
name = "a"
command = "true"
timeout_secs = 7

[[checks]]
name = "b"
command = "echo ok"
output_contains = "ok"
expect_exit_zero = false
"#;

    #[test]
    fn both_forms_say_the_same() {
        let json = r#"{"description": "d", "checks": [
            {"name": "a", "command": "true", "timeout_secs": 7},
            {"name": "b", "command": "echo ok", "output_contains": "ok", "expect_exit_zero": false}]}"#;
        let contract = parse(TOML).unwrap();
        assert_eq!(contract, parse(json).unwrap());
        assert_eq!(contract.checks[1].timeout_secs, 120);
        let list = "checks = [{ name = \"a\", command = \"true\" }]";
        assert_eq!(parse(list).unwrap().checks.len(), 1);
        let written = serde_json::to_string(&contract).unwrap();
        assert_eq!(parse(&written).unwrap(), contract);
    }

    #[test]
    fn every_problem_has_its_place() {
        let toml = TOML
            .replace("name = \"b\"", "name = \"a\"")
            .replace("\"echo ok\"", "\"cargo -V\"");
        let said = flaws(&toml);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].starts_with("8:8: ") && said[0].contains("duplicate"),
            "{said:?}"
        );
        assert!(
            said[1].starts_with("9:11: ") && said[1].contains("no-op"),
            "{said:?}"
        );
        let json = "{\"checks\": [\n  {\"name\": \"\", \"command\": \"true\"},\n  {\"name\": \"é\", \"command\": \"\"}]}";
        let said = flaws(json);
        assert!(
            said[0].starts_with("2:12: ") && said[0].contains("empty name"),
            "{said:?}"
        );
        assert!(
            said[1].starts_with("3:28: ") && said[1].contains("empty command"),
            "{said:?}"
        );
        assert_eq!(
            flaws("{\"checks\": []}"),
            ["1:12: no checks: a contract needs at least one"]
        );
        assert_eq!(flaws(""), ["1:1: no checks: a contract needs at least one"]);
    }

    #[test]
    fn all_that_does_not_fit_is_told() {
        let json = "{\"checks\": [\n{\"name\": 1, \"command\": \"x\"},\n{\"name\": \"b\"},\n{\"name\": \"c\", \"command\": \"x\", \"timeout\": 1}]}";
        let said = flaws(json);
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(
            said[0].starts_with("2:") && said[0].contains("invalid type"),
            "{said:?}"
        );
        assert!(
            said[1].starts_with("3:") && said[1].contains("missing field `command`"),
            "{said:?}"
        );
        assert!(
            said[2].starts_with("4:") && said[2].contains("unknown field `timeout`"),
            "{said:?}"
        );
        let toml = "x = 1\n[[checks]]\nname = \"a\"\ncommand = [\"x\"]\n[[checks]]\nname = \"b\"\ncommand = \"x\"\ntimeout_secs = -1\n";
        let said = flaws(toml);
        assert!(
            said[0].starts_with("1:1: ") && said[0].contains("unknown field `x`"),
            "{said:?}"
        );
        assert!(said[1].starts_with("4:11: "), "{said:?}");
        assert!(said[2].starts_with("8:16: "), "{said:?}");
        for (text, words) in [
            ("{\"checks\": [", "this is not JSON"),
            ("{\"checks\": 3}", "it does not fit"),
            ("{\"check\": []}", "unknown field"),
            ("checks = 3", "[[checks]]"),
            ("checks = [3]", "a check is a table"),
            ("description = 3", "`description` is a text"),
            ("a b", "this is not TOML"),
        ] {
            assert!(flaws(text)[0].contains(words), "{text}: {:?}", flaws(text));
        }
    }
}
