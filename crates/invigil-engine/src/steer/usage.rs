//! What the agent's framework says that the run has used: calls of tools, tokens, cost.

use std::sync::atomic::{AtomicU64, Ordering};

use invigil_policy::Budget;
use invigil_schema::{BudgetExceeded, BudgetKind, SdkEvent, SdkEventType};
use serde_json::Value;

/// Counts what is reported.
#[derive(Debug, Default)]
pub(super) struct Usage {
    calls: Gauge,
    tokens: Gauge,
    cost: Gauge,
}

/// How much was used, and how much may be.
#[derive(Debug, Default)]
struct Gauge {
    most: Option<u64>,
    used: AtomicU64,
}

impl Gauge {
    fn of(most: Option<u64>) -> Gauge {
        let used = AtomicU64::new(0);
        Gauge { most, used }
    }

    /// Adds to it; how much it is now, if that is too much.
    fn add(&self, amount: u64) -> Option<(u64, u64)> {
        let add = |used: u64| Some(used.saturating_add(amount));
        let before = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let used = before.unwrap_or_else(|used| used).saturating_add(amount);
        self.most
            .filter(|most| used > *most)
            .map(|most| (most, used))
    }
}

impl Usage {
    pub(super) fn new(budget: &Budget) -> Usage {
        Usage {
            calls: Gauge::of(budget.tool_calls),
            tokens: Gauge::of(budget.tokens),
            cost: Gauge::of(budget.cost),
        }
    }

    /// How much was used up to now.
    pub(super) fn used(&self, budget: BudgetKind) -> u64 {
        let gauge = match budget {
            BudgetKind::ToolCalls => &self.calls,
            BudgetKind::Tokens => &self.tokens,
            BudgetKind::Cost => &self.cost,
            _ => return 0,
        };
        gauge.used.load(Ordering::Relaxed)
    }

    /// Takes a report; which budgets it exceeds, and what that means.
    pub(super) fn count(&self, said: &SdkEvent) -> Vec<(BudgetExceeded, String)> {
        let mut exceeded = Vec::new();
        let mut add = |budget, gauge: &Gauge, amount, what: &str| {
            if let Some((limit, used)) = gauge.add(amount) {
                let why = format!("it {what}: its budget is {limit}, and it used {used}");
                let exceeds = BudgetExceeded {
                    budget,
                    limit,
                    used,
                };
                exceeded.push((exceeds, why));
            }
        };
        match said.event_type {
            SdkEventType::ToolCallStarted => {
                add(
                    BudgetKind::ToolCalls,
                    &self.calls,
                    1,
                    "called too many tools",
                );
            }
            SdkEventType::ModelCall => {
                let usage = said.body.get("usage").unwrap_or(&Value::Null);
                add(
                    BudgetKind::Tokens,
                    &self.tokens,
                    tokens(usage),
                    "used too many tokens",
                );
                add(BudgetKind::Cost, &self.cost, cost(usage), "cost too much");
            }
            _ => {}
        }
        exceeded
    }
}

/// The sum that is said, or that of its parts.
fn tokens(usage: &Value) -> u64 {
    let number = |name: &str| usage.get(name).and_then(Value::as_u64);
    let parts = ["input_tokens", "output_tokens"].map(|name| number(name).unwrap_or(0));
    number("total_tokens").unwrap_or_else(|| parts[0].saturating_add(parts[1]))
}

/// In millionths, rounded up. What is no number is nothing.
fn cost(usage: &Value) -> u64 {
    let cost = usage.get("cost").and_then(Value::as_f64).unwrap_or(0.0);
    // Negative and endless ones become the least and the most there is.
    (cost * 1e6).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(event_type: SdkEventType, usage: Value) -> SdkEvent {
        SdkEvent {
            connection: None,
            line: 1,
            process: None,
            event_type,
            source: "t".into(),
            tool_call_id: None,
            tool: None,
            body: json!({ "usage": usage }),
        }
    }

    #[test]
    fn what_is_reported_adds_up_to_the_limit_and_not_beyond() {
        let usage = Usage::new(&Budget {
            tool_calls: Some(1),
            tokens: Some(100),
            cost: Some(1_000_000),
            ..Budget::default()
        });
        let kinds = |said: &SdkEvent| {
            let exceeded = usage.count(said).into_iter();
            exceeded.map(|(over, _)| over.budget).collect::<Vec<_>>()
        };
        let call = said(SdkEventType::ToolCallStarted, json!({}));
        assert_eq!(kinds(&call), []);
        assert_eq!(kinds(&call), [BudgetKind::ToolCalls]);
        let model = |usage| said(SdkEventType::ModelCall, usage);
        assert_eq!(
            kinds(&model(json!({"input_tokens": 60, "output_tokens": 40}))),
            []
        );
        assert_eq!(kinds(&model(json!({"cost": 1.0}))), []);
        assert_eq!(
            kinds(&model(json!({"cost": -5, "total_tokens": "many"}))),
            []
        );
        assert_eq!(
            kinds(&model(json!({"total_tokens": 1}))),
            [BudgetKind::Tokens]
        );
        assert_eq!(
            kinds(&model(json!({"cost": 0.0000001}))),
            [BudgetKind::Tokens, BudgetKind::Cost],
            "what is exceeded stays so"
        );
    }
}
