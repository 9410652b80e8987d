//! `${id.output.path}` in the parameters of an action: what another action gave back.

use serde_json::{Map, Value};

/// A reference inside of a text: where it stands, whose output it means, and which part.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reference<'t> {
    start: usize,
    end: usize,
    id: &'t str,
    path: Vec<&'t str>,
}

/// All references of a text. `${HOME}` is none: only what names an `output` is.
fn references(text: &str) -> Vec<Reference<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find("${").map(|start| at + start) {
        let Some(end) = text[start..].find('}').map(|end| start + end + 1) else {
            break;
        };
        // The one that is nearest to its end.
        let start = text[..end].rfind("${").unwrap_or(start);
        let inner = &text[start + 2..end - 1];
        at = end;
        let Some((id, rest)) = inner.split_once(".output") else {
            continue;
        };
        let path = match rest.strip_prefix('.') {
            Some(path) => path.split('.').collect(),
            None if rest.is_empty() => Vec::new(),
            None => continue,
        };
        found.push(Reference {
            start,
            end,
            id,
            path,
        });
    }
    found
}

/// Calls with the id of every action that is referred to.
pub(crate) fn each_id<'v>(value: &'v Value, found: &mut impl FnMut(&'v str)) {
    match value {
        Value::String(text) => references(text)
            .iter()
            .for_each(|reference| found(reference.id)),
        Value::Array(items) => items.iter().for_each(|item| each_id(item, found)),
        Value::Object(members) => members.values().for_each(|value| each_id(value, found)),
        _ => {}
    }
}

/// The parameters with every reference replaced. A text that is nothing but one becomes the value.
pub(crate) fn resolve<'o>(
    parameters: &Map<String, Value>,
    output: &impl Fn(&str) -> Option<&'o Value>,
) -> Result<Map<String, Value>, String> {
    let resolved = parameters
        .iter()
        .map(|(name, value)| Ok((name.clone(), resolve_value(value, output)?)));
    resolved.collect()
}

fn resolve_value<'o>(
    value: &Value,
    output: &impl Fn(&str) -> Option<&'o Value>,
) -> Result<Value, String> {
    match value {
        Value::String(text) => resolve_text(text, output),
        Value::Array(items) => {
            let items = items.iter().map(|item| resolve_value(item, output));
            items.collect::<Result<_, _>>().map(Value::Array)
        }
        Value::Object(members) => resolve(members, output).map(Value::Object),
        other => Ok(other.clone()),
    }
}

fn resolve_text<'o>(
    text: &str,
    output: &impl Fn(&str) -> Option<&'o Value>,
) -> Result<Value, String> {
    let references = references(text);
    let find = |reference: &Reference<'_>| {
        let mut value = output(reference.id);
        for step in &reference.path {
            value = value.and_then(|value| match value {
                Value::Array(items) => items.get(step.parse::<usize>().ok()?),
                other => other.get(step),
            });
        }
        let words = &text[reference.start..reference.end];
        value.ok_or_else(|| format!("{words} leads to nothing"))
    };
    match &references[..] {
        [] => Ok(Value::String(text.to_owned())),
        [only] if only.start == 0 && only.end == text.len() => find(only).cloned(),
        several => {
            let (mut out, mut at) = (String::new(), 0);
            for reference in several {
                out.push_str(&text[at..reference.start]);
                match find(reference)? {
                    Value::String(text) => out.push_str(text),
                    other => out.push_str(&other.to_string()),
                }
                at = reference.end;
            }
            out.push_str(&text[at..]);
            Ok(Value::String(out))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_become_values() {
        let outputs = json!({ "a": { "n": 7, "list": [{ "x": "y" }] }, "b.c": "text" });
        let output = |id: &str| outputs.get(id);
        let resolved = |value: Value| resolve_value(&value, &output);
        assert_eq!(resolved(json!("${a.output.n}")), Ok(json!(7)));
        assert_eq!(resolved(json!("${a.output}")), Ok(outputs["a"].clone()));
        assert_eq!(resolved(json!("n=${a.output.n}!")), Ok(json!("n=7!")));
        assert_eq!(
            resolved(json!(["${a.output.list.0.x}", { "k": "${b.c.output}${a.output.n}" }])),
            Ok(json!(["y", { "k": "text7" }]))
        );
        for plain in ["${HOME}", "$a.output", "${a.outputs}", "${", "a}"] {
            assert_eq!(resolved(json!(plain)), Ok(json!(plain)));
        }
        assert_eq!(resolved(json!("${${a.output.n}")), Ok(json!("${7")));
        assert!(
            resolved(json!("${a.output.m}"))
                .unwrap_err()
                .contains("${a.output.m}")
        );
        assert!(resolved(json!("${z.output}")).is_err());
    }
}
