//! The envelope of an event: its place in the journal, its times, who vouches for it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{Digest, Event, Origin, Timestamp};

/// When something was recorded, on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// The wall clock.
    pub time: Timestamp,
    /// Nanoseconds of the monotonic clock of this boot.
    pub mono: u64,
}

/// One record as it stands in a journal, with its data still in the writer's own words.
#[derive(Debug, Clone, Deserialize)]
pub struct Envelope<'a> {
    /// Position in the journal.
    pub seq: u64,
    /// The wall clock.
    pub time: Timestamp,
    /// Nanoseconds of the monotonic clock of that boot.
    pub mono: u64,
    /// Who vouches.
    pub origin: Origin,
    /// The kind's name, known or not.
    #[serde(borrow)]
    pub kind: Cow<'a, str>,
    /// The facts.
    #[serde(borrow)]
    pub data: &'a RawValue,
    /// The chain's hash up to and including this record.
    pub hash: Digest,
}

impl<'a> Envelope<'a> {
    /// Reads a line of a journal, with or without its newline.
    pub fn parse(line: &'a [u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(line)
    }

    /// The event inside. One that this version does not know, or cannot read, is [`Event::Unknown`].
    pub fn event(&self) -> Event {
        Event::from_parts(&self.kind, self.data)
    }
}

/// Appends the body of a record to `line`: everything in front of the hash. `line` is as it was if this fails.
pub fn encode_body(
    line: &mut Vec<u8>,
    seq: u64,
    stamp: Stamp,
    origin: Origin,
    event: &Event,
) -> serde_json::Result<()> {
    let start = line.len();
    line.extend_from_slice(br#"{"seq":"#);
    push_number(line, seq);
    line.extend_from_slice(br#","time":""#);
    line.extend_from_slice(&stamp.time.to_text());
    line.extend_from_slice(br#"","mono":"#);
    push_number(line, stamp.mono);
    line.extend_from_slice(br#","origin":""#);
    line.extend_from_slice(origin.as_str().as_bytes());
    line.extend_from_slice(br#"","kind":"#);
    let encoded = serde_json::to_writer(&mut *line, event.kind()).and_then(|()| {
        line.extend_from_slice(br#","data":"#);
        event.encode_data(line)
    });
    if encoded.is_err() {
        line.truncate(start);
    }
    encoded
}

/// In decimal. `write!` does the same and takes much longer, in the path of every record.
fn push_number(line: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    line.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_decimal() {
        for number in [0, 7, 10, 99, 100, 1_234_567_890, u64::MAX] {
            let mut line = b">".to_vec();
            push_number(&mut line, number);
            assert_eq!(line, format!(">{number}").as_bytes());
        }
    }
}
