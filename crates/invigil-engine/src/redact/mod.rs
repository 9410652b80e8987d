//! Secrets are taken out before anything is written: what never enters the journal cannot leak from it.
//!
//! A secret is found by its shape (`tokens`), by the name that it is given to (`names`), or by where it stands on a
//! command line (`command`). Every rule hangs on a marker, a short text that must be there, so that one scan for all
//! markers is all that ordinary text costs.
//!
//! What is put in its place is `<redacted:RULE:H8>`. H8 are the first eight digits of an HMAC-SHA-256 of the secret
//! with a key of the store: equal secrets look equal, and nobody without the key can try guesses. Redacting what is
//! redacted changes nothing.

mod command;
mod event;
mod markers;
mod names;
mod span;
#[cfg(test)]
mod tests;
mod tokens;

use std::borrow::Cow;

use hmac::{Hmac, KeyInit as _, Mac as _};
use invigil_schema::{Event, OsText, Snapshot};
use serde_json::Value;
use sha2::Sha256;

use markers::{Found, MARKERS};
use span::Spans;

/// More rounds than this do not happen outside of text that was made for it.
const ROUNDS: usize = 16;

/// Replaces secrets.
#[derive(Clone)]
pub struct Redactor {
    key: [u8; 32],
}

impl Redactor {
    /// With the key of a store. It must be secret and stay the same for as long as placeholders are to be compared.
    pub fn new(key: [u8; 32]) -> Self {
        Redactor { key }
    }

    /// Text: a message, a URL, a script.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.bytes(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            // Only whole characters are replaced, so this keeps every byte.
            Cow::Owned(bytes) => Cow::Owned(match String::from_utf8(bytes) {
                Ok(text) => text,
                Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
            }),
        }
    }

    /// Bytes that are usually text: a path, an argument.
    pub fn bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if !MARKERS.any(bytes) {
            return Cow::Borrowed(bytes);
        }
        let mut bytes = Cow::Borrowed(bytes);
        // A placeholder can bring together what was apart before. Each round leaves less that is not one.
        for _ in 0..ROUNDS {
            let mut spans = Spans::new(&bytes);
            find(&bytes, &mut spans);
            match self.replace(&bytes, spans) {
                Some(redacted) => bytes = Cow::Owned(redacted),
                None => break,
            }
        }
        bytes
    }

    /// The arguments of a command, its name first.
    pub fn argv(&self, argv: &[OsText]) -> Vec<OsText> {
        let words: Vec<&[u8]> = argv.iter().map(OsText::as_bytes).collect();
        let redacted = self.words(&words);
        redacted.into_iter().map(OsText::from).collect()
    }

    /// An event, before it is appended. Digests, ids and names of variables are not touched.
    pub fn event<'a>(&self, event: &'a Event) -> Cow<'a, Event> {
        event::redact(self, event)
    }

    /// A look at the machine, with the commands of other processes.
    pub(crate) fn snapshot(&self, snapshot: &mut Snapshot) {
        event::redact_snapshot(self, snapshot);
    }

    /// A value, of which names and texts are looked at, and not their spelling in JSON.
    pub fn value(&self, value: Value) -> Value {
        event::redact_value(self, value)
    }

    /// The words of a command: each for itself, and those that are values of what stands in front of them.
    fn words(&self, words: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut redacted: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        if !words.iter().any(|word| MARKERS.any(word)) {
            return redacted;
        }
        let mut spans: Vec<Spans<'_>> = words.iter().map(|word| Spans::new(word)).collect();
        for (index, range, rule) in command::values(words) {
            spans[index].add(range.start, range.end, rule);
        }
        for (index, spans) in spans.into_iter().enumerate() {
            if let Some(replaced) = self.replace(words[index], spans) {
                redacted[index] = replaced;
            }
        }
        for word in &mut redacted {
            if let Cow::Owned(replaced) = self.bytes(word) {
                *word = replaced;
            }
        }
        redacted
    }

    /// The bytes with every span replaced; nothing if there is none.
    fn replace(&self, bytes: &[u8], spans: Spans<'_>) -> Option<Vec<u8>> {
        let spans = spans.merged();
        if spans.is_empty() {
            return None;
        }
        let mut out = Vec::with_capacity(bytes.len() + 32 * spans.len());
        let mut done = 0;
        for span in spans {
            out.extend_from_slice(&bytes[done..span.start]);
            out.extend_from_slice(
                self.placeholder(span.rule, &bytes[span.start..span.end])
                    .as_bytes(),
            );
            done = span.end;
        }
        out.extend_from_slice(&bytes[done..]);
        Some(out)
    }

    fn placeholder(&self, rule: &str, secret: &[u8]) -> String {
        let sum = match Hmac::<Sha256>::new_from_slice(&self.key) {
            Ok(mut mac) => {
                mac.update(secret);
                mac.finalize().into_bytes()
            }
            // HMAC takes a key of any length.
            Err(_) => Default::default(),
        };
        format!(
            "<redacted:{rule}:{:02x}{:02x}{:02x}{:02x}>",
            sum[0], sum[1], sum[2], sum[3]
        )
    }
}

/// Everything in `bytes` that some rule holds for a secret.
fn find(bytes: &[u8], spans: &mut Spans<'_>) {
    for (found, start, end) in MARKERS.all(bytes) {
        // What reaches out of it is found in the next round.
        if spans.cover(start) {
            continue;
        }
        match found {
            Found::Token(token) => tokens::token_found(bytes, start, token, spans),
            Found::Shape(shape) => shape(bytes, start, end, spans),
            Found::Name => names::assigned(bytes, start, end, spans),
            Found::Program => command::in_text(bytes, start, end, spans),
        }
    }
}
