//! Claims against observations: what the agent said of its work, beside what was seen of it.
//!
//! It reads sentences by rules, without a model, and understands few of them. A claim is contradicted only by something
//! that was seen, or by its absence where nothing can have been missed; what cannot be judged is unsupported, and what
//! is not understood is passed over. `docs/audit.md` has the rules.

mod claim;
mod grammar;
mod judge;
mod names;
mod passed;
mod passing;
mod places;
mod program;
mod seen;
mod sentence;
mod suites;
mod tools;

use invigil_schema::{Event, SdkEvent};

pub use claim::{Claimed, ClaimsDoc, Finding, JudgedClaim, Said, ToolDid};
use judge::{Judge, Judgement};
use seen::Seen;
use tools::Calls;

use crate::{Fact, Health, HealthDoc, View};

/// As many claims are listed, and as many again if they are contradicted.
const CLAIMS_MAX: usize = 1000;
/// As many are judged.
const JUDGED_MAX: u64 = 4_000;
/// As many records are named for each.
const EVENTS_MAX: usize = 20;
/// As much of a sentence is shown.
const SAID_MAX: usize = 240;

/// Folds facts into a [`ClaimsDoc`].
#[derive(Debug, Clone, Default)]
pub struct Claims {
    health: Health,
    seen: Seen,
    calls: Calls,
    made: Vec<Made>,
    heard: u64,
    left_out: u64,
}

/// A claim, and what was to be held of it when it was made.
#[derive(Debug, Clone)]
struct Made {
    said: Said,
    claim: Claimed,
    /// Absent if it was made outside of the journal: then it is about the whole run.
    judged: Option<Judgement>,
    /// The newest change of the project by then.
    worked: u64,
}

impl Claims {
    /// Takes in something that was said outside of the journal: a final message in a file, for instance. It is judged by
    /// the whole run.
    pub fn said(&mut self, file: &str, text: &str) {
        self.text(None, Some(file), text);
    }

    fn text(&mut self, seq: Option<u64>, file: Option<&str>, text: &str) {
        for sentence in sentence::sentences(text) {
            for claim in grammar::claims(&sentence) {
                let said = Said {
                    seq,
                    file: file.map(str::to_owned),
                    line: sentence.line,
                    text: short(sentence.text),
                };
                self.make(said, claim, 0);
            }
        }
    }

    /// Each time that something is said it is judged by what was seen until then.
    fn make(&mut self, said: Said, claim: Claimed, from: u64) {
        self.heard += 1;
        if self.heard > JUDGED_MAX {
            self.left_out += 1;
            return;
        }
        let judged = said.seq.map(|_| Judge::new(&self.seen).on(&claim, from));
        // The same words in the last message and in the report of the end, with nothing between, are one claim.
        let again = |other: &Made| {
            let words = other.said.file == said.file && other.said.text == said.text;
            words && other.claim == claim && other.judged == judged
        };
        if self.made.iter().rev().take(32).any(again) {
            return;
        }
        // However much is said, what is contradicted is not hidden by it.
        let found = judged.as_ref().map(|judged| judged.finding);
        let room = match found {
            Some(Finding::Contradicted) => 2 * CLAIMS_MAX,
            _ => CLAIMS_MAX,
        };
        if self.made.len() >= room {
            self.left_out += 1;
            return;
        }
        self.made.push(Made {
            said,
            claim,
            judged,
            worked: self.seen.worked(),
        });
    }

    fn reported(&mut self, seq: u64, event: &SdkEvent) {
        if let Some(text) = tools::spoken(event) {
            self.text(Some(seq), None, &text);
        }
        if let Some(call) = self.calls.take(seq, event) {
            let what = match &call.did {
                ToolDid::Command { command, .. } => command,
                ToolDid::Write { path, .. } => path,
            };
            let said = Said {
                seq: Some(seq),
                file: None,
                line: 1,
                text: short(&format!("{}: {what}", call.tool)),
            };
            let claim = Claimed::ToolResult {
                tool: call.tool,
                tool_call_id: call.id,
                did: call.did,
            };
            self.make(said, claim, call.from);
        }
    }

    /// What is to be held of a claim now that more is known: how much was seen, and what the checks said.
    fn judgement(&self, made: &Made, health: &HealthDoc) -> Judgement {
        let judged = match &made.judged {
            Some(judged) => judged.clone(),
            None => Judge::new(&self.seen).on(&made.claim, 0),
        };
        if made.claim != Claimed::TestsPass {
            return judged.by(health);
        }
        let (said, worked) = match made.said.seq {
            Some(seq) => (seq, made.worked),
            None => (u64::MAX, self.seen.worked()),
        };
        passed::by_checks(judged, &self.seen.checks, said, worked).by(health)
    }
}

impl View for Claims {
    type Document = ClaimsDoc;

    fn take(&mut self, fact: &Fact<'_>) {
        self.health.take(fact);
        match fact.vouched() {
            Some(Event::SdkEvent(event)) => self.reported(fact.seq, event),
            Some(event) => self.seen.take(fact.seq, event),
            None => {}
        }
    }

    fn document(&self) -> ClaimsDoc {
        let health = self.health.document();
        let judged = self.made.iter().map(|made| {
            let judged = self.judgement(made, &health);
            JudgedClaim {
                said: made.said.clone(),
                claim: made.claim.clone(),
                finding: judged.finding,
                because: judged.because,
                events: judged.events,
                more_events: judged.more_events,
            }
        });
        let claims: Vec<JudgedClaim> = judged.collect();
        let count = |finding| {
            claims
                .iter()
                .filter(|claim| claim.finding == finding)
                .count() as u64
        };
        ClaimsDoc {
            schema: ClaimsDoc::SCHEMA.to_owned(),
            supported: count(Finding::Supported),
            contradicted: count(Finding::Contradicted),
            unsupported: count(Finding::Unsupported),
            left_out: self.left_out,
            claims,
        }
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(SAID_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
