//! The JSON Schema of a journal line, generated from the types; the checked-in copy is `schema/journal.schema.json`.

use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

use crate::{Digest, Event, Origin, Timestamp};

/// The schema of one line of a journal. Lines of unknown kinds are valid as long as their envelope is.
pub fn journal_schema() -> Value {
    let mut generator = SchemaGenerator::new(SchemaSettings::draft2020_12());
    let envelope = json!({
        "seq": { "type": "integer", "minimum": 0 },
        "time": generator.subschema_for::<Timestamp>(),
        "mono": { "type": "integer", "minimum": 0 },
        "origin": generator.subschema_for::<Origin>(),
        "kind": { "type": "string" },
        "data": true,
        "hash": generator.subschema_for::<Digest>(),
    });
    let kinds: Vec<Value> = Event::schemas(&mut generator)
        .into_iter()
        .map(|(kind, category, data)| {
            json!({
                "if": { "properties": { "kind": { "const": kind } } },
                "then": { "properties": { "data": data } },
                "$comment": category,
            })
        })
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A record of an Invigil journal",
        "type": "object",
        "properties": envelope,
        "required": ["seq", "time", "mono", "origin", "kind", "data", "hash"],
        "allOf": kinds,
        "$defs": generator.take_definitions(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Run with `INVIGIL_BLESS=1` to write the file anew.
    #[test]
    fn the_checked_in_schema_is_the_generated_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema/journal.schema.json");
        let generated = format!("{:#}\n", journal_schema());
        if std::env::var_os("INVIGIL_BLESS").is_some() {
            std::fs::write(&path, &generated).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            checked_in == generated,
            "schema/journal.schema.json is stale: INVIGIL_BLESS=1 cargo test -p invigil-schema"
        );
    }
}
