//! `[env]` and `[budget]`.

use globset::Glob;

use super::not_empty;
use crate::Budget;
use crate::error::Flaw;
use crate::glob::name_globs;
use crate::syntax::{Table, Value};
use crate::units::{amount, duration, size};

pub(super) fn env(top: Table<'_>) -> Result<Option<Vec<Glob>>, Flaw> {
    let Some(value) = top.get("env") else {
        return Ok(None);
    };
    let example = "allow = [\"PATH\", \"LANG\", \"LC_*\"]";
    let table = value.table("[env]")?.only(&["allow"])?;
    not_empty(table, "[env]", &value, &format!("[env]\n{example}"))?;
    let mut globs = Vec::new();
    if let Some(list) = table.get("allow") {
        for name in list.texts(example)? {
            if name.text.is_empty() || name.text.contains(['=', '$', ' ', '/']) {
                let message = format!("`{}` is not the name of a variable", name.text);
                let help = format!("write names without values: {example}");
                return Err(Flaw::new(name.span, message, "not a name", help));
            }
            globs.extend(name_globs(&name)?);
        }
    }
    Ok(Some(globs))
}

pub(super) fn budget(top: Table<'_>) -> Result<Budget, Flaw> {
    let Some(value) = top.get("budget") else {
        return Ok(Budget::default());
    };
    let keys = [
        "wall",
        "cpu",
        "memory",
        "processes",
        "output",
        "file_size",
        "disk",
        "tool_calls",
        "tokens",
        "cost",
    ];
    let table = value.table("[budget]")?.only(&keys)?;
    not_empty(table, "[budget]", &value, "[budget]\nwall = \"30m\"")?;
    let time = |key| {
        table
            .get(key)
            .map(|value| duration(&value.text(&format!("{key} = \"30m\""))?))
            .transpose()
    };
    let bytes = |key| {
        table
            .get(key)
            .map(|value| size(&value.text(&format!("{key} = \"64MiB\""))?))
            .transpose()
    };
    let count = |key| table.get(key).map(Value::count).transpose();
    Ok(Budget {
        wall: time("wall")?,
        cpu: time("cpu")?,
        memory: bytes("memory")?,
        processes: count("processes")?,
        output: bytes("output")?,
        file_size: bytes("file_size")?,
        disk: bytes("disk")?,
        tool_calls: count("tool_calls")?,
        tokens: count("tokens")?,
        cost: table
            .get("cost")
            .map(|value| amount(&value.text("cost = \"2.50\"")?))
            .transpose()?,
    })
}
