//! The arithmetic of the chain: how a record is sealed, and how one is checked. Pure; see `docs/journal-format.md`.

use std::fmt;

use invigil_schema::{Digest, Event, Origin, Stamp, encode_body};
use sha2::{Digest as _, Sha256};

use crate::Error;

/// The largest record, newline included. What is larger belongs into a blob.
pub const MAX_RECORD: usize = 1024 * 1024;

const SEAL: &[u8; 9] = br#","hash":""#;
const END: &[u8; 3] = b"\"}\n";
/// What every record ends in: the seal, 64 digits, the end.
pub(crate) const TAIL: usize = SEAL.len() + 64 + END.len();

/// The last record of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Its sequence number.
    pub seq: u64,
    /// Its hash, which covers every record before it.
    pub hash: Digest,
}

/// A place between two records: how many there are before it, and the hash up to there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    pub(crate) count: u64,
    pub(crate) hash: Digest,
}

impl Position {
    pub(crate) fn head(self) -> Option<Head> {
        let seq = self.count.checked_sub(1)?;
        Some(Head {
            seq,
            hash: self.hash,
        })
    }

    /// Appends a record to `buffer` and returns the place behind it. `buffer` is as it was if this fails.
    pub(crate) fn seal(
        self,
        buffer: &mut Vec<u8>,
        stamp: Stamp,
        origin: Origin,
        event: &Event,
    ) -> Result<Position, Error> {
        let start = buffer.len();
        encode_body(buffer, self.count, stamp, origin, event).map_err(Error::Encode)?;
        let size = buffer.len() - start + TAIL;
        if size > MAX_RECORD {
            buffer.truncate(start);
            return Err(Error::TooLarge(size));
        }
        let hash = link(&self.hash, &buffer[start..]);
        buffer.extend_from_slice(&tail_for(&hash));
        Ok(Position {
            count: self.count + 1,
            hash,
        })
    }

    /// Checks that `line` is the record that follows, and returns the place behind it.
    pub(crate) fn check(self, line: &[u8]) -> Result<Position, Flaw> {
        let (body, tail) = line.split_at(line.len().saturating_sub(TAIL));
        let hash = link(&self.hash, body);
        if *tail == tail_for(&hash) && sequence_of(line) == Some(self.count) {
            return Ok(Position {
                count: self.count + 1,
                hash,
            });
        }
        Err(match sequence_of(line) {
            Some(found) if found != self.count => Flaw::Sequence { found },
            _ if line.last() != Some(&b'\n') => Flaw::Unterminated,
            _ if tail_of(line).is_none() => Flaw::Unsealed,
            _ => Flaw::Hash,
        })
    }
}

/// Why a line is not the record that should be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// There is a record, but of another number: some are missing, repeated or exchanged.
    Sequence {
        /// The number that it has.
        found: u64,
    },
    /// It is not what was written: the hash does not fit to it and to the record before.
    Hash,
    /// It does not end in a hash.
    Unsealed,
    /// It has no end: the writer stopped in the middle.
    Unterminated,
    /// It is longer than any record may be.
    TooLong,
    /// It should be there and is not.
    Absent,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Sequence { found } => write!(f, "record {found} is in its place"),
            Flaw::Hash => f.write_str("its bytes do not fit the chain"),
            Flaw::Unsealed => f.write_str("it does not end in a hash"),
            Flaw::Unterminated => f.write_str("it is cut off in the middle"),
            Flaw::TooLong => write!(f, "it is longer than {MAX_RECORD} bytes"),
            Flaw::Absent => f.write_str("it is missing"),
        }
    }
}

fn link(previous: &Digest, body: &[u8]) -> Digest {
    let hash = Sha256::new()
        .chain_update(previous.as_bytes())
        .chain_update(body);
    Digest::from_bytes(hash.finalize().into())
}

/// SHA-256 of some bytes.
pub(crate) fn digest(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

/// What a line of this hash ends in. Comparing it is cheaper than reading the digits of the line.
fn tail_for(hash: &Digest) -> [u8; TAIL] {
    let mut tail = [0; TAIL];
    tail[..SEAL.len()].copy_from_slice(SEAL);
    tail[SEAL.len()..TAIL - END.len()].copy_from_slice(&hash.to_hex());
    tail[TAIL - END.len()..].copy_from_slice(END);
    tail
}

/// The hash that a whole line ends in.
pub(crate) fn tail_of(line: &[u8]) -> Option<Digest> {
    let (_, tail) = line.split_at_checked(line.len().checked_sub(TAIL)?)?;
    let digits = tail.strip_prefix(SEAL)?.strip_suffix(END)?;
    Digest::from_hex(digits).ok()
}

/// The number that a line begins with.
pub(crate) fn sequence_of(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(br#"{"seq":"#)?;
    let end = rest
        .iter()
        .take(21)
        .position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = rest.split_at(end);
    let padded = digits.len() > 1 && digits[0] == b'0';
    if padded || rest.first() != Some(&b',') {
        return None;
    }
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_have_one_spelling() {
        assert_eq!(sequence_of(br#"{"seq":0,"#), Some(0));
        assert_eq!(
            sequence_of(br#"{"seq":18446744073709551615,"x"#),
            Some(u64::MAX)
        );
        for bad in [
            &br#"{"seq":00,"#[..],
            br#"{"seq":,"#,
            br#"{"seq":1"#,
            br#"{"seq":18446744073709551616,"#,
            br#"{"seq":-1,"#,
            br#" {"seq":1,"#,
            b"",
        ] {
            assert_eq!(sequence_of(bad), None, "{}", bad.escape_ascii());
        }
    }
}
