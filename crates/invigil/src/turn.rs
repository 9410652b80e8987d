//! One line about what a client of the daemon did.

use invigil_schema::{
    AnsweredBy, ApprovalDecision, ClientRunEnded, Termination, ToolAnswered, Turn, TurnStatus,
};
use serde_json::Value;

use crate::ui::{self, BAD, GOOD, WARN};

/// Parameters at a glance.
pub(crate) fn brief(parameters: &Value) -> String {
    ui::shorten(&ui::harmless(&parameters.to_string()), 80)
}

pub(crate) fn line(turn: &Turn) -> String {
    let tool = turn.tool.as_deref().unwrap_or("–");
    let status = match turn.status {
        None => "reported".to_owned(),
        Some(TurnStatus::Succeeded) => format!("{GOOD}succeeded{GOOD:#}"),
        Some(TurnStatus::Failed) => format!("{BAD}failed{BAD:#}"),
        Some(TurnStatus::Rejected) => format!("{BAD}rejected{BAD:#}"),
        Some(TurnStatus::Skipped) => format!("{WARN}skipped{WARN:#}"),
        Some(TurnStatus::Cancelled) => format!("{WARN}cancelled{WARN:#}"),
        Some(TurnStatus::TimedOut) => format!("{BAD}time-out{BAD:#}"),
        Some(TurnStatus::Interrupted) => format!("{BAD}interrupted{BAD:#}"),
    };
    let what = turn.prompt.as_deref().map_or_else(
        || brief(&turn.parameters),
        |prompt| ui::shorten(&ui::harmless(prompt), 80),
    );
    let why = turn.error.as_deref().map_or_else(String::new, |error| {
        format!(": {}", ui::shorten(&ui::harmless(error), 120))
    });
    format!(
        "#{} {} {what} {status}{why}",
        turn.index,
        ui::harmless(tool)
    )
}

/// How a run of a client ended.
pub(crate) fn ended(ended: &ClientRunEnded) -> String {
    match &ended.termination {
        Termination::Outcome { status, outcome } => {
            let status = status.as_str().replace('_', " ");
            match &outcome.summary {
                Some(summary) => {
                    format!("{status}: {}", ui::shorten(&ui::harmless(summary), 120))
                }
                None => status,
            }
        }
        Termination::Incomplete => format!("{WARN}incomplete{WARN:#}"),
        Termination::Cancelled => format!("{WARN}cancelled{WARN:#}"),
    }
}

pub(crate) fn answered(answered: &ToolAnswered) -> String {
    let decision = match answered.decision {
        ApprovalDecision::Allow => format!("{GOOD}allowed{GOOD:#}"),
        ApprovalDecision::Deny => format!("{BAD}denied{BAD:#}"),
    };
    let by = match &answered.by {
        AnsweredBy::Person { pid: Some(pid), .. } => format!("by a person (process {pid})"),
        AnsweredBy::Person { pid: None, .. } => "by a person".to_owned(),
        AnsweredBy::Timeout => "nobody answered in time".to_owned(),
        AnsweredBy::Withdrawn => "nobody waits for it any more".to_owned(),
    };
    format!("{} {decision} {by}", ui::harmless(&answered.id))
}
