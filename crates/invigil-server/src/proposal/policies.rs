//! What is let through: the files of the daemon, and what a session has added. A session only tightens.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use invigil_policy::{Action, Layer, Policy, Source, Verdict};
use invigil_schema::PolicyRejected;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::rate::{Rate, RateLimit};
use crate::daemon::Daemon;
use crate::rpc::{Answer, RpcError};
use crate::session::lock;

/// A policy as it is registered.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyParams {
    /// Names it; another of the same name is replaced.
    pub(crate) name: String,
    /// `deny_tool`, `deny_tool_param`, `require_state`, `rate_limit_tool`, `ask_tool` or `policy_file`.
    pub(crate) rule: String,
    /// The tool: its name, or the beginning of it and `*`. All, if there is none.
    #[serde(default)]
    pub(crate) target: Option<String>,
    /// The parameter, or the key of the state.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// What it must equal, or not; the rate; the text of the file.
    #[serde(default)]
    pub(crate) value: Option<Value>,
    /// What the parameter must not contain.
    #[serde(default)]
    pub(crate) pattern: Option<String>,
    /// The session; one's own.
    #[serde(default)]
    pub(crate) session_id: Option<String>,
}

/// All that a session's actions are judged by.
pub(crate) struct Policies {
    files: Arc<Policy>,
    rules: BTreeMap<String, Rule>,
    sources: BTreeMap<String, Source>,
}

struct Rule {
    target: Option<String>,
    kind: Kind,
}

enum Kind {
    Deny,
    DenyParam { key: String, test: Test },
    RequireState { key: String, value: Option<Value> },
    Rate(Mutex<Rate>),
    Ask { test: Option<(String, Test)> },
}

enum Test {
    Contains(String),
    Equals(Value),
    Given,
}

/// What is decided, and by which rule.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Judgement {
    Allow,
    Ask(PolicyRejected),
    Deny(PolicyRejected),
}

impl Policies {
    /// Those of the daemon.
    pub(crate) fn new(daemon: &Daemon) -> Policies {
        Policies {
            files: Arc::clone(&daemon.policy),
            rules: BTreeMap::new(),
            sources: BTreeMap::new(),
        }
    }

    /// How many a session has added.
    pub(crate) fn len(&self) -> usize {
        self.rules.len() + self.sources.len()
    }

    /// The names of what a session has added.
    pub(crate) fn names(&self) -> Vec<String> {
        self.rules
            .keys()
            .chain(self.sources.keys())
            .cloned()
            .collect()
    }

    /// Adds one.
    pub(crate) fn register(&mut self, params: PolicyParams, daemon: &Daemon) -> Answer<()> {
        if params.name.trim().is_empty() {
            return Err(RpcError::params("name", "it is empty"));
        }
        let name = params.name.clone();
        if params.rule == "policy_file" {
            return self.add_file(params, daemon);
        }
        let rule = Rule {
            target: params.target.clone(),
            kind: kind(params)?,
        };
        self.sources.remove(&name);
        self.rules.insert(name, rule);
        self.reload(daemon)
    }

    fn add_file(&mut self, params: PolicyParams, daemon: &Daemon) -> Answer<()> {
        let Some(Value::String(text)) = params.value else {
            return Err(RpcError::params(
                "value",
                "it must be the text of a policy file",
            ));
        };
        let source = Source {
            name: params.name.clone(),
            text,
            layer: Layer::Project,
        };
        let before = self.sources.insert(params.name.clone(), source);
        if let Err(error) = self.reload(daemon) {
            self.sources.remove(&params.name);
            self.sources
                .extend(before.map(|source| (params.name, source)));
            return Err(error);
        }
        self.rules.remove(&params.name);
        Ok(())
    }

    fn reload(&mut self, daemon: &Daemon) -> Answer<()> {
        if self.sources.is_empty() {
            self.files = Arc::clone(&daemon.policy);
            return Ok(());
        }
        let mut stack = daemon.config.policies.clone();
        stack.extend(self.sources.values().cloned());
        let policy = Policy::load(&stack, &daemon.config.places);
        let policy = policy.map_err(|error| RpcError::params("value", error.report()))?;
        self.files = Arc::new(policy);
        Ok(())
    }

    /// Judges a call. A rate is counted only where nothing else denies.
    pub(crate) fn judge(
        &self,
        tool: &str,
        parameters: &Map<String, Value>,
        state: &BTreeMap<String, Value>,
        now: Instant,
    ) -> Judgement {
        let whole = Value::Object(parameters.clone());
        let decision = self.files.decide(&Action::Tool {
            name: tool,
            params: &whole,
        });
        let cited = || PolicyRejected {
            rule: decision.cite(),
            param: None,
        };
        let mut judgement = match decision.verdict {
            Verdict::Allow => Judgement::Allow,
            Verdict::Ask => Judgement::Ask(cited()),
            Verdict::Deny => return Judgement::Deny(cited()),
        };
        let rules = self.rules.iter().filter(|(_, rule)| rule.is_about(tool));
        let (rates, others): (Vec<_>, Vec<_>) =
            rules.partition(|(_, rule)| matches!(rule.kind, Kind::Rate(_)));
        for (name, rule) in others.into_iter().chain(rates) {
            let by = |param: Option<&String>| PolicyRejected {
                rule: name.clone(),
                param: param.cloned(),
            };
            match &rule.kind {
                Kind::Deny => return Judgement::Deny(by(None)),
                Kind::DenyParam { key, test } if test.holds(&whole, key) => {
                    return Judgement::Deny(by(Some(key)));
                }
                Kind::RequireState { key, value } => {
                    let found = state.get(key);
                    let wanted = match value {
                        Some(value) => found == Some(value),
                        None => found.is_some(),
                    };
                    if !wanted {
                        return Judgement::Deny(by(Some(key)));
                    }
                }
                Kind::Rate(rate) if lock(rate).take(now).is_err() => {
                    return Judgement::Deny(by(None));
                }
                Kind::Ask { test: None } if judgement == Judgement::Allow => {
                    judgement = Judgement::Ask(by(None));
                }
                Kind::Ask {
                    test: Some((key, test)),
                } if judgement == Judgement::Allow && test.holds(&whole, key) => {
                    judgement = Judgement::Ask(by(Some(key)));
                }
                Kind::DenyParam { .. } | Kind::Rate(_) | Kind::Ask { .. } => {}
            }
        }
        judgement
    }
}

impl Rule {
    fn is_about(&self, tool: &str) -> bool {
        match self.target.as_deref() {
            None => true,
            Some(target) => match target.strip_suffix('*') {
                Some(begin) => tool.starts_with(begin),
                None => tool == target,
            },
        }
    }
}

impl Test {
    fn holds(&self, parameters: &Value, key: &str) -> bool {
        let found = match key.starts_with('/') {
            true => parameters.pointer(key),
            false => parameters.get(key),
        };
        let Some(found) = found else { return false };
        match (self, found) {
            (Test::Given, _) => true,
            (Test::Equals(value), found) => value == found,
            (Test::Contains(part), Value::String(text)) => text.contains(part.as_str()),
            // What is no text is judged as it is written, so that a list around a text hides nothing.
            (Test::Contains(part), found) => text_of(found).contains(part.as_str()),
        }
    }
}

/// The text of a value, with what is escaped in JSON as it is.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text_of).collect::<Vec<_>>().join("\n"),
        Value::Object(members) => {
            let members = members.iter();
            let lines = members.map(|(name, value)| format!("{name}\n{}", text_of(value)));
            lines.collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

fn kind(params: PolicyParams) -> Answer<Kind> {
    let key = |key: Option<String>| {
        let key = key.filter(|key| !key.is_empty());
        key.ok_or_else(|| RpcError::params("key", "this rule needs one"))
    };
    let test = match (params.pattern, &params.value) {
        (Some(pattern), _) if pattern.is_empty() => {
            return Err(RpcError::params("pattern", "everything contains nothing"));
        }
        (Some(pattern), _) => Test::Contains(pattern),
        (None, Some(value)) => Test::Equals(value.clone()),
        (None, None) => Test::Given,
    };
    let target = || {
        let target = params.target.as_ref().filter(|target| !target.is_empty());
        let missing = || RpcError::params("target", "this rule needs the name of a tool");
        target.ok_or_else(missing)
    };
    match params.rule.as_str() {
        "deny_tool" => target().map(|_| Kind::Deny),
        "deny_tool_param" => {
            let key = key(params.key)?;
            Ok(Kind::DenyParam { key, test })
        }
        "require_state" => Ok(Kind::RequireState {
            key: key(params.key)?,
            value: params.value,
        }),
        "rate_limit_tool" => {
            let limit: RateLimit = serde_json::from_value(params.value.unwrap_or_default())
                .map_err(|error| RpcError::params("value", error))?;
            if !limit.is_sound() {
                let why = "max_calls is from 1 to 100000, interval_secs above 0 and up to a day";
                return Err(RpcError::params("value", why));
            }
            Ok(Kind::Rate(Mutex::new(Rate::new(limit))))
        }
        "ask_tool" => {
            target()?;
            let test = params.key.map(|key| (key, test));
            Ok(Kind::Ask { test })
        }
        other => {
            let known =
                "deny_tool, deny_tool_param, require_state, rate_limit_tool, ask_tool, policy_file";
            let why = format!("there is no rule {other:?}; there are {known}");
            Err(RpcError::params("rule", why))
        }
    }
}
