//! Claims against observations: what the agent said of its work, beside what was seen of it.
//!
//! It reads sentences by rules, without a model, and understands few of them. A claim is contradicted only by something
//! that was seen, or by its absence where nothing can have been missed; what cannot be judged is unsupported, and what
//! is not understood is passed over. `docs/audit.md` has the rules.

mod claim;
mod grammar;
mod judge;
mod places;
mod seen;
mod sentence;
mod suites;
mod tools;

use invigil_schema::{Event, SdkEvent};

pub use claim::{Claimed, ClaimsDoc, Finding, JudgedClaim, Said, ToolDid};
use judge::Judge;
use seen::Seen;
use tools::Calls;

use crate::{Fact, Health, View};

/// As many claims are listed.
const CLAIMS_MAX: usize = 1000;
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
    left_out: u64,
}

/// A claim, and between which records it is to be judged.
#[derive(Debug, Clone)]
struct Made {
    said: Said,
    claim: Claimed,
    from: u64,
    until: u64,
}

impl Claims {
    /// Takes in something that was said outside of the journal: a final message in a file, for instance. It is judged by
    /// the whole run.
    pub fn said(&mut self, file: &str, text: &str) {
        self.text(None, Some(file), text, u64::MAX);
    }

    fn text(&mut self, seq: Option<u64>, file: Option<&str>, text: &str, until: u64) {
        for sentence in sentence::sentences(text) {
            for claim in grammar::claims(&sentence) {
                let said = Said {
                    seq,
                    file: file.map(str::to_owned),
                    line: sentence.line,
                    text: short(sentence.text),
                };
                let from = 0;
                self.make(Made {
                    said,
                    claim,
                    from,
                    until,
                });
            }
        }
    }

    fn make(&mut self, made: Made) {
        // The same words in the last message and in the report of the end are one claim.
        let words = |made: &Made| (made.said.file.clone(), made.said.text.clone());
        let again = |other: &Made| other.claim == made.claim && words(other) == words(&made);
        if let Some(known) = self
            .made
            .iter_mut()
            .rev()
            .take(32)
            .find(|other| again(other))
        {
            known.until = made.until;
            return;
        }
        match self.made.len() < CLAIMS_MAX {
            true => self.made.push(made),
            false => self.left_out += 1,
        }
    }

    fn reported(&mut self, seq: u64, event: &SdkEvent) {
        if let Some(text) = tools::spoken(event) {
            self.text(Some(seq), None, &text, seq);
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
            let (from, until) = (call.from, seq);
            self.make(Made {
                said,
                claim,
                from,
                until,
            });
        }
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
        let judge = Judge::new(&self.seen, &health);
        let judged = self.made.iter().map(|made| {
            let judged = judge.on(&made.claim, made.from, made.until);
            let mut events = judged.events;
            let more_events = events.len().saturating_sub(EVENTS_MAX) as u64;
            events.truncate(EVENTS_MAX);
            JudgedClaim {
                said: made.said.clone(),
                claim: made.claim.clone(),
                finding: judged.finding,
                because: judged.because,
                events,
                more_events,
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
