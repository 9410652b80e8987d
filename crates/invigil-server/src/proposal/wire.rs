//! Proposals and their results, as they are sent.

use invigil_schema::TurnStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Actions that somebody wants to have done.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Proposal {
    /// Names it; unique among those under way.
    pub(crate) id: String,
    /// Who made it: a model, a script.
    #[serde(default)]
    pub(crate) source: Option<String>,
    /// What is to be done.
    pub(crate) actions: Vec<Action>,
    /// Whatever the client wants to go with it.
    #[serde(default)]
    pub(crate) context: Option<Value>,
}

/// One thing to be done.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Action {
    /// Names it in its proposal.
    pub(crate) id: String,
    /// What kind of thing.
    #[serde(rename = "type", default)]
    pub(crate) kind: ActionKind,
    /// The tool of a `tool_call`.
    #[serde(default)]
    pub(crate) tool: Option<String>,
    /// With what.
    #[serde(default)]
    pub(crate) parameters: Map<String, Value>,
    /// Actions that must have succeeded before.
    #[serde(default)]
    pub(crate) depends_on: Vec<String>,
    /// What must hold of the state.
    #[serde(default)]
    pub(crate) preconditions: Vec<Precondition>,
    /// Doing it twice is as good as doing it once.
    #[serde(default)]
    pub(crate) idempotent: bool,
    /// How often it is tried again.
    #[serde(default)]
    pub(crate) max_retries: Option<u32>,
    /// What a failure means for the rest.
    #[serde(default)]
    pub(crate) failure_behavior: FailureBehavior,
    /// How long one try may take.
    #[serde(default)]
    pub(crate) timeout_ms: Option<u64>,
}

/// What kind of thing an action is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ActionKind {
    /// Calls a tool.
    #[default]
    ToolCall,
    /// Sets `key` to `value`.
    StateWrite,
    /// Gives the value of `key`.
    StateRead,
    /// Fails unless `key` stands in `operator` to `value`.
    Assertion,
}

/// Something that must hold of the state.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Precondition {
    /// The key.
    pub(crate) key: String,
    /// How it is compared.
    pub(crate) operator: Operator,
    /// With what.
    #[serde(default)]
    pub(crate) value: Value,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Operator {
    /// Equal.
    Eq,
    /// Not equal, or not there.
    Neq,
    /// There.
    Exists,
    /// Not there.
    NotExists,
    /// Greater; numbers or texts.
    Gt,
    /// Less.
    Lt,
    /// Not less.
    Gte,
    /// Not greater.
    Lte,
    /// A text with this part, a list with this item, an object with this key.
    Contains,
}

impl Precondition {
    /// Whether it holds of this value.
    pub(crate) fn holds(&self, found: Option<&Value>) -> bool {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let ordered = |wanted: &[std::cmp::Ordering]| {
            let order = match (found, &self.value) {
                (Some(Value::Number(a)), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
                    (Some(a), Some(b)) => Some(a.cmp(&b)),
                    _ => a
                        .as_f64()
                        .zip(b.as_f64())
                        .and_then(|(a, b)| a.partial_cmp(&b)),
                },
                (Some(Value::String(a)), Value::String(b)) => Some(a.cmp(b)),
                _ => None,
            };
            order.is_some_and(|order| wanted.contains(&order))
        };
        match self.operator {
            Operator::Eq => found == Some(&self.value),
            Operator::Neq => found != Some(&self.value),
            Operator::Exists => found.is_some(),
            Operator::NotExists => found.is_none(),
            Operator::Gt => ordered(&[Greater]),
            Operator::Lt => ordered(&[Less]),
            Operator::Gte => ordered(&[Greater, Equal]),
            Operator::Lte => ordered(&[Less, Equal]),
            Operator::Contains => match (found, &self.value) {
                (Some(Value::String(text)), Value::String(part)) => text.contains(part.as_str()),
                (Some(Value::Array(items)), item) => items.contains(item),
                (Some(Value::Object(members)), Value::String(key)) => members.contains_key(key),
                _ => false,
            },
        }
    }
}

/// What a failure means for the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureBehavior {
    /// Nothing more is begun.
    #[default]
    Abort,
    /// It is tried again, and then nothing more is begun.
    Retry,
    /// Only what depends on it is not begun.
    Skip,
}

/// What became of an action.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ActionResult {
    /// Which.
    pub(crate) action_id: String,
    /// In one word.
    pub(crate) status: TurnStatus,
    /// What the tool gave back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<Value>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Which gate did not let it through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rejected_by: Option<RejectedBy>,
    /// The policy that did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy_rejected: Option<invigil_schema::PolicyRejected>,
    /// How long it took.
    pub(crate) duration_ms: u64,
}

/// Which gate did not let an action through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RejectedBy {
    /// A precondition does not hold.
    Precondition,
    /// A policy denies it.
    Policy,
    /// A person did not allow it.
    Approval,
    /// There is no such tool.
    UnregisteredTool,
    /// Its parameters do not fit the schema of the tool.
    Parameters,
}

/// What a proposal took.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(crate) struct Cost {
    /// Calls of tools, tries counted.
    pub(crate) tool_calls: u64,
    /// Actions that were carried out, well or not.
    pub(crate) actions_executed: u64,
    /// Actions that were not.
    pub(crate) actions_skipped: u64,
    /// From the beginning to the end.
    pub(crate) total_duration_ms: u64,
}

/// The answer to a proposal.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Submitted {
    /// Which.
    pub(crate) proposal_id: String,
    /// One for each action, in their order.
    pub(crate) results: Vec<ActionResult>,
    /// What it took.
    pub(crate) cost: Cost,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn comparisons() {
        let holds = |operator: &str, value: Value, found: Option<Value>| {
            let condition = json!({ "key": "k", "operator": operator, "value": value });
            let condition: Precondition = serde_json::from_value(condition).unwrap();
            condition.holds(found.as_ref())
        };
        assert!(holds("eq", json!(1), Some(json!(1))) && !holds("eq", json!(1), None));
        assert!(holds("neq", json!(1), None) && !holds("neq", json!(1), Some(json!(1))));
        assert!(holds("exists", json!(null), Some(json!(null))));
        assert!(holds("not_exists", json!(null), None));
        assert!(holds("gt", json!(1.5), Some(json!(2))) && !holds("gt", json!(2), Some(json!(2))));
        assert!(holds("gte", json!("a"), Some(json!("a"))) && !holds("lt", json!(1), None));
        assert!(
            holds("lte", json!(-3), Some(json!(-4))) && !holds("gt", json!(1), Some(json!("2")))
        );
        assert!(holds("contains", json!("b"), Some(json!("abc"))));
        assert!(holds("contains", json!(7), Some(json!([1, 7]))));
        assert!(holds("contains", json!("a"), Some(json!({ "a": 1 }))));
        assert!(!holds("contains", json!("a"), Some(json!(7))));
    }
}
