//! `invigil capabilities`: what can be asked for.

use std::io::Write as _;

use invigil_engine::Registry;
use serde_json::{Value, json};

use crate::error::CliError;
use crate::ui::{self, BOLD, DIM};

/// List what `invigil exec` can do, with the arguments of each
#[derive(Debug, clap::Args)]
pub(crate) struct Capabilities {
    /// Only this one
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// With their JSON Schemas, one JSON object a line on stdout
    #[arg(long)]
    json: bool,
}

impl Capabilities {
    pub(crate) fn execute(self) -> Result<u8, CliError> {
        let registry = Registry::standard();
        let chosen = match &self.name {
            Some(name) => vec![
                registry
                    .get(name)
                    .map_err(invigil_engine::ExecError::from)?,
            ],
            None => registry.iter().collect(),
        };
        let mut out = anstream::stdout().lock();
        for capability in chosen {
            let schema = capability.schema();
            if self.json {
                let line = json!({
                    "name": capability.name(),
                    "description": capability.description(),
                    "arguments": schema,
                });
                writeln!(out, "{line}")?;
                continue;
            }
            writeln!(
                out,
                "{BOLD}{}{BOLD:#}  {}",
                capability.name(),
                capability.description()
            )?;
            for (name, about) in members(&schema) {
                let needed = match is_required(&schema, name) {
                    true => "*",
                    false => " ",
                };
                let about = about["description"].as_str().unwrap_or_default();
                let about = about.lines().next().unwrap_or_default();
                writeln!(
                    out,
                    "  {needed}{name:15} {DIM}{}{DIM:#}",
                    ui::shorten(about, 90)
                )?;
            }
        }
        if !self.json {
            writeln!(out, "{DIM}* is needed{DIM:#}")?;
        }
        Ok(0)
    }
}

fn members(schema: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let properties = schema["properties"].as_object();
    let members = properties.into_iter().flatten();
    members.map(|(name, about)| (name.as_str(), about))
}

fn is_required(schema: &Value, name: &str) -> bool {
    let required = schema["required"].as_array();
    required.is_some_and(|names| names.iter().any(|known| known == name))
}
