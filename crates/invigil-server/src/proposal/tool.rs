//! A tool that can be called: a client's, or one of the daemon's own.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use jsonschema::{PatternOptions, Validator};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::rate::{Rate, RateLimit};
use crate::rpc::{Answer, RpcError};
use crate::session::lock;

/// A tool as it is registered and listed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolInfo {
    /// Its name.
    pub(crate) name: String,
    /// What it does.
    #[serde(default)]
    pub(crate) description: String,
    /// The JSON Schema of its parameters. Empty: they are not checked.
    #[serde(default)]
    pub(crate) parameters: Value,
    /// Calling it twice is as good as calling it once.
    #[serde(default)]
    pub(crate) idempotent: bool,
    /// How long a result may be given again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache_ttl_secs: Option<f64>,
    /// How often it may be called; what is more waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate_limit: Option<RateLimit>,
    /// Who carries it out. Whatever a client says here, its tools are its own.
    #[serde(default)]
    pub(crate) built_in: bool,
}

/// A tool that can be called.
pub(crate) struct Tool {
    pub(crate) info: ToolInfo,
    validator: Option<Validator>,
    rate: Option<Mutex<Rate>>,
}

impl Tool {
    /// Checks a registration; `field` is where it stands.
    pub(crate) fn new(info: ToolInfo, field: &str) -> Answer<Tool> {
        let at = |part: &str| format!("{field}.{part}");
        if info.name.trim().is_empty() || info.name.len() > 256 {
            return Err(RpcError::params(&at("name"), "it must have 1 to 256 bytes"));
        }
        if info
            .cache_ttl_secs
            .is_some_and(|ttl| !(0.0..=1e9).contains(&ttl))
        {
            return Err(RpcError::params(
                &at("cache_ttl_secs"),
                "it must be from 0 to 1e9",
            ));
        }
        if info.rate_limit.is_some_and(|limit| !limit.is_sound()) {
            let why = "max_calls is from 1 to 100000, interval_secs above 0 and up to a day";
            return Err(RpcError::params(&at("rate_limit"), why));
        }
        let unchecked = match &info.parameters {
            Value::Null => true,
            Value::Object(schema) => schema.is_empty(),
            _ => false,
        };
        let validator = match unchecked {
            true => None,
            // Patterns that take time without bounds are not for others' schemas.
            false => Some(
                jsonschema::options()
                    .with_pattern_options(PatternOptions::regex())
                    .build(&info.parameters)
                    .map_err(|error| RpcError::params(&at("parameters"), error))?,
            ),
        };
        Ok(Tool {
            validator,
            rate: info.rate_limit.map(|limit| Mutex::new(Rate::new(limit))),
            info,
        })
    }

    /// What is wrong with parameters, and where.
    pub(crate) fn check(&self, parameters: &Map<String, Value>) -> Result<(), String> {
        let Some(validator) = &self.validator else {
            return Ok(());
        };
        let parameters = Value::Object(parameters.clone());
        validator.validate(&parameters).map_err(|error| {
            let place = error.instance_path().to_string();
            let text: String = error.to_string().chars().take(500).collect();
            match place.is_empty() {
                true => text,
                false => format!("{place}: {text}"),
            }
        })
    }

    /// How long a result may be given again.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        let ttl = self.info.cache_ttl_secs.filter(|ttl| *ttl > 0.0);
        ttl.map(Duration::from_secs_f64)
    }

    /// Returns when it may be called.
    pub(crate) async fn turn(&self) {
        let Some(rate) = &self.rate else { return };
        loop {
            let wait = match lock(rate).take(Instant::now()) {
                Ok(()) => return,
                Err(wait) => wait,
            };
            tokio::time::sleep(wait).await;
        }
    }
}
