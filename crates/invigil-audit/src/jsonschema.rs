//! The JSON Schemas of the view documents, generated from the types; the checked-in copies are `schema/*.schema.json`.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

use crate::{ClaimsDoc, CorrelationDoc, DiffDoc, HealthDoc, OsSnapshot, SurfaceDoc};

/// The schema of each view document, with the name of its file.
pub fn view_schemas() -> Vec<(&'static str, Value)> {
    vec![
        (
            "surface.schema.json",
            schema::<SurfaceDoc>(SurfaceDoc::SCHEMA),
        ),
        ("health.schema.json", schema::<HealthDoc>(HealthDoc::SCHEMA)),
        (
            "correlation.schema.json",
            schema::<CorrelationDoc>(CorrelationDoc::SCHEMA),
        ),
        ("diff.schema.json", schema::<DiffDoc>(DiffDoc::SCHEMA)),
        ("claims.schema.json", schema::<ClaimsDoc>(ClaimsDoc::SCHEMA)),
        (
            "os_snapshot.schema.json",
            plain::<OsSnapshot>("invigil.view.os_snapshot.v1"),
        ),
    ]
}

fn schema<T: JsonSchema>(name: &str) -> Value {
    let mut schema = plain::<T>(name);
    schema["properties"]["schema"] = json!({ "const": name });
    schema
}

/// The schema of a document that does not name it.
fn plain<T: JsonSchema>(name: &str) -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    schema["title"] = json!(name);
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Run with `INVIGIL_BLESS=1` to write the files anew.
    #[test]
    fn the_checked_in_schemas_are_the_generated_ones() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema");
        for (name, schema) in view_schemas() {
            let path = directory.join(name);
            let generated = format!("{schema:#}\n");
            if std::env::var_os("INVIGIL_BLESS").is_some() {
                std::fs::write(&path, &generated).unwrap();
            }
            let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                checked_in == generated,
                "schema/{name} is stale: INVIGIL_BLESS=1 cargo test -p invigil-audit"
            );
        }
    }
}
