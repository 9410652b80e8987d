//! `rpc.discover`: an OpenRPC document, made from the types of all methods.

use std::sync::Arc;

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{METHODS, Nothing};
use crate::rpc::Answer;
use crate::session::Session;

pub(crate) async fn discover(_: Arc<Session>, _: Nothing) -> Answer<Value> {
    Ok(document())
}

/// The document.
pub(crate) fn document() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = settings.into_generator();
    let methods: Vec<Value> = METHODS
        .iter()
        .map(|method| {
            let params = (method.params)(&mut generator);
            let result = (method.result)(&mut generator);
            json!({
                "name": method.name,
                "summary": method.summary,
                "paramStructure": "by-name",
                "params": [{ "name": "params", "schema": params, "required": true }],
                "result": { "name": "result", "schema": result },
            })
        })
        .collect();
    json!({
        "openrpc": "1.3.2",
        "info": { "title": "Invigil daemon", "version": env!("CARGO_PKG_VERSION") },
        "methods": methods,
        "components": { "schemas": generator.take_definitions(true) },
        "x-requests-to-clients": ["tools.execute"],
        "x-notifications-to-clients": [
            "tools.cancel", "runs.trace.event", "runs.trace.lagged", "coder.event", "coder.lagged",
            "daemon.shutdown",
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Run with `INVIGIL_BLESS=1` to write the file anew.
    #[test]
    fn the_checked_in_document_is_the_generated_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema/openrpc.json");
        let generated = format!("{:#}\n", document());
        if std::env::var_os("INVIGIL_BLESS").is_some() {
            std::fs::write(&path, &generated).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            checked_in == generated,
            "schema/openrpc.json is stale: INVIGIL_BLESS=1 cargo test -p invigil-server"
        );
    }
}
