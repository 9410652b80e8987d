//! Results that may be given again. What the policy denies is never looked up.

use std::collections::HashMap;
use std::time::Instant;

use invigil_schema::Digest;
use serde_json::Value;

/// More than so many results are not kept.
const MOST: usize = 4_096;
/// Nor larger ones.
const LARGEST: usize = 64 * 1024;

/// What a session remembers of its calls.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    results: HashMap<Digest, Remembered>,
}

#[derive(Debug)]
struct Remembered {
    output: Value,
    /// Until then; for as long as the session lasts if there is none.
    until: Option<Instant>,
}

impl Memory {
    /// What a call gave back, if that still holds.
    pub(crate) fn find(&mut self, call: &Digest, now: Instant) -> Option<Value> {
        let found = self.results.get(call)?;
        if found.until.is_some_and(|until| now >= until) {
            self.results.remove(call);
            return None;
        }
        Some(found.output.clone())
    }

    /// Keeps what a call gave back.
    pub(crate) fn keep(&mut self, call: Digest, output: &Value, until: Option<Instant>) {
        if self.results.len() >= MOST {
            let now = Instant::now();
            self.results
                .retain(|_, kept| kept.until.is_some_and(|until| now < until));
        }
        if self.results.len() < MOST && size(output) <= LARGEST {
            let output = output.clone();
            self.results.insert(call, Remembered { output, until });
        }
    }
}

/// About how much memory a value takes.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 32 + size(item)).sum(),
        Value::Object(members) => {
            let members = members.iter();
            members
                .map(|(name, value)| 64 + name.len() + size(value))
                .sum()
        }
        _ => 0,
    }
}
