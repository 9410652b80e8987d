//! Questions of the daemon's hosts, as a person sees and answers them.

use std::fs;
use std::io::{self, Write};

use invigil_journal::Store;
use invigil_schema::{ApprovalDecision, RunId, ToolAsked};
use invigil_server::{Client, Endpoint, Places};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::CliError;
use crate::question;
use crate::ui::{self, BAD, BOLD, DIM, GOOD};

/// A question that the daemon of this store has for a person.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hosted {
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
    #[serde(flatten)]
    question: ToolAsked,
}

#[derive(Deserialize)]
struct Listed {
    approvals: Vec<Hosted>,
}

/// The daemon of a store, spoken to as the one who operates it.
pub(crate) struct Daemon(Client);

impl Daemon {
    /// None if there is none.
    pub(crate) fn find(store: &Store) -> Result<Option<Daemon>, CliError> {
        let places = Places::of(store.home());
        let Ok(mut client) = Client::connect(&Endpoint::Unix(places.socket())) else {
            return Ok(None);
        };
        let path = places.operator_token();
        let token = fs::read_to_string(&path).map_err(|source| CliError::Token { path, source })?;
        client.call("session.auth", &json!({ "token": token }))?;
        Ok(Some(Daemon(client)))
    }

    /// Its open questions.
    pub(crate) fn questions(&mut self) -> Result<Vec<Hosted>, CliError> {
        let listed = self.0.call("approvals.list", &json!({}))?;
        let listed: Listed = serde_json::from_value(listed).map_err(CliError::NotJson)?;
        Ok(listed.approvals)
    }

    /// Answers one of them.
    pub(crate) fn answer(
        &mut self,
        hosted: &Hosted,
        decision: ApprovalDecision,
        remember: bool,
    ) -> Result<(), CliError> {
        let answer = json!({ "id": hosted.id(), "decision": decision, "remember": remember });
        self.0.call("approvals.resolve", &answer)?;
        Ok(())
    }
}

impl Hosted {
    pub(crate) fn id(&self) -> &str {
        &self.question.id
    }

    pub(crate) fn is_of(&self, run: &RunId) -> bool {
        self.run_id.as_ref() == Some(run)
    }

    pub(crate) fn run(&self) -> &str {
        self.run_id.as_ref().map_or("-", RunId::as_str)
    }

    pub(crate) fn left(&self) -> String {
        ui::duration(question::left(self.question.deadline))
    }

    /// What would happen, in one line.
    pub(crate) fn brief(&self) -> String {
        let (tool, parameters) = (&self.question.tool, &self.question.parameters);
        ui::harmless(&format!("{tool} {parameters}"))
    }

    pub(crate) fn rule(&self) -> String {
        ui::harmless(&self.question.rule)
    }

    /// The whole of it, line by line.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let asked = &self.question;
        let mut line = |label: &str, text: &str| {
            writeln!(out, "  {DIM}{label:5}{DIM:#} {}", ui::harmless(text))
        };
        line("tool", &asked.tool)?;
        line("with", &asked.parameters.to_string())?;
        line("rule", &asked.rule)?;
        let agent = self
            .agent_id
            .as_deref()
            .unwrap_or("an agent without a name");
        let (action, proposal) = (&asked.action_id, &asked.proposal_id);
        line(
            "by",
            &format!("{agent}, action {action} of {proposal}, run {}", self.run()),
        )?;
        line("left", &format!("{}, then no", self.left()))
    }
}

/// How it was closed, in one line.
pub(crate) fn closed(hosted: &Hosted, decision: ApprovalDecision, remember: bool) -> String {
    let how = match (decision, remember) {
        (ApprovalDecision::Deny, _) => format!("{BAD}denied{BAD:#}"),
        (ApprovalDecision::Allow, false) => format!("{GOOD}allowed{GOOD:#} once"),
        (ApprovalDecision::Allow, true) => format!("{GOOD}allowed{GOOD:#} for this run"),
    };
    format!("question {BOLD}{}{BOLD:#} {how}", hosted.id())
}
