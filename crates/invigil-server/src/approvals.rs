//! Questions that a policy leaves to a person, while they are open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use invigil_schema::{AnsweredBy, ApprovalDecision, Origin, ToolAnswered, ToolAsked};
use tokio::sync::oneshot;

use crate::metrics::Metrics;
use crate::rpc::{Answer, RpcError};
use crate::runs::Run;
use crate::session::lock;

/// All open questions.
#[derive(Default)]
pub(crate) struct Approvals {
    open: Mutex<BTreeMap<String, (Asked, oneshot::Sender<Verdict>)>>,
}

/// A question, and whose it is.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) question: ToolAsked,
    pub(crate) agent_id: Option<String>,
    pub(crate) run: Option<Arc<Run>>,
}

/// What was decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) decision: ApprovalDecision,
}

impl Approvals {
    /// Puts a question. None if there are too many.
    pub(crate) fn ask(
        &self,
        asked: Asked,
        most: usize,
        metrics: &Metrics,
    ) -> Option<oneshot::Receiver<Verdict>> {
        let mut open = lock(&self.open);
        if open.len() >= most {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        open.insert(asked.question.id.clone(), (asked, sender));
        metrics.questions_open.add(1);
        Some(receiver)
    }

    /// Nobody waits for an answer any more. Whether it was still open.
    pub(crate) fn withdraw(&self, id: &str, metrics: &Metrics) -> bool {
        let open = lock(&self.open).remove(id).is_some();
        if open {
            metrics.questions_open.less();
        }
        open
    }

    /// All that are open.
    pub(crate) fn list(&self) -> Vec<Asked> {
        let open = lock(&self.open);
        open.values().map(|(asked, _)| asked.clone()).collect()
    }

    /// Closes a question; the answer is written before it takes effect.
    pub(crate) fn resolve(
        &self,
        id: &str,
        decision: ApprovalDecision,
        remember: bool,
        by: AnsweredBy,
        metrics: &Metrics,
    ) -> Answer<Asked> {
        let mut open = lock(&self.open);
        let taken = open.remove(id);
        let (asked, waiting) = taken.ok_or_else(|| RpcError::not_found("question"))?;
        metrics.questions_open.less();
        drop(open);
        let remembered = remember && decision == ApprovalDecision::Allow;
        if let Some(run) = &asked.run {
            let answered = ToolAnswered {
                id: id.to_owned(),
                action: asked.question.action,
                decision,
                remembered,
                by,
            };
            run.note(Origin::User, answered)?;
            if remembered {
                run.allow(asked.question.action);
            }
        }
        match waiting.send(Verdict { decision }) {
            Ok(()) => Ok(asked),
            Err(_) => Err(RpcError::not_found("question")),
        }
    }
}
