//! Questions that the policy leaves to a person: asked, shown, answered, recorded. See `docs/approvals.md`.
//!
//! The desk is the supervisor's side. It never waits for a person: a question is put down, and whoever answers it, a
//! terminal, a file from the command line or the clock, closes it. Nothing here touches a terminal; an [`Audience`] does.

mod client;
mod desk;
mod folder;
mod grant;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use invigil_schema::{ApprovalAnswered, ApprovalDecision, ApprovalScope, QuestionFile};

pub use client::{ApprovalError, OpenQuestion, answer, find, open_questions};
pub use desk::Desk;
pub(crate) use desk::{Place, Put};
pub(crate) use folder::hash;
pub use grant::{GrantError, UserPolicy};

/// How a run asks.
#[derive(Debug, Clone)]
pub struct Asking {
    /// After this time a question is a deny.
    pub timeout: Duration,
    /// Whether anybody may be asked at all.
    pub somebody: bool,
    /// Who is shown the questions of the run as they come, besides everybody who looks into the store.
    pub audience: Option<Arc<dyn Audience>>,
    /// Where a rule goes that is wanted for always.
    pub policy: Option<UserPolicy>,
}

impl Default for Asking {
    fn default() -> Self {
        Asking {
            timeout: Duration::from_secs(600),
            somebody: true,
            audience: None,
            policy: None,
        }
    }
}

/// Somebody who is shown the questions of a run, such as a terminal. Both calls must return at once.
pub trait Audience: fmt::Debug + Send + Sync {
    /// A question was asked. It can be answered with [`Desk::answer`].
    fn asked(&self, question: &QuestionFile, desk: &Desk);

    /// A question is closed, by whomever.
    fn closed(&self, answered: &ApprovalAnswered);
}

/// What a person says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// What is decided.
    pub decision: ApprovalDecision,
    /// For how long, if it is allowed.
    pub scope: ApprovalScope,
    /// Why, if it was said.
    pub reason: Option<String>,
}

impl Reply {
    /// It may happen.
    pub fn allow(scope: ApprovalScope) -> Reply {
        Reply {
            decision: ApprovalDecision::Allow,
            scope,
            reason: None,
        }
    }

    /// It may not.
    pub fn deny(reason: Option<String>) -> Reply {
        Reply {
            decision: ApprovalDecision::Deny,
            scope: ApprovalScope::Once,
            reason,
        }
    }
}
