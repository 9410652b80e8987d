//! The arithmetic of the chain: how a record is sealed, and how one is checked. Pure; see `docs/journal-format.md`.

use std::fmt;

use invigil_schema::{Digest, Event, Origin, Stamp, encode_body};
use sha2::block_api::compress256;
use sha2::{Digest as _, Sha256};

use crate::Error;

/// The largest record, newline included. What is larger belongs into a blob.
pub const MAX_RECORD: usize = 1024 * 1024;

const SEAL: &[u8; 9] = br#","hash":""#;
const END: &[u8; 3] = b"\"}\n";
/// What every record ends in: the seal, 64 digits, the end.
pub(crate) const TAIL: usize = SEAL.len() + 64 + END.len();

/// The state in which SHA-256 begins.
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

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
        buffer.extend_from_slice(&tail(&hash));
        Ok(Position {
            count: self.count + 1,
            hash,
        })
    }

    /// Checks that `line` is the record that follows, and returns the place behind it.
    pub(crate) fn check(self, line: &[u8]) -> Result<Position, Flaw> {
        let (body, end) = line.split_at(line.len().saturating_sub(TAIL));
        let hash = link(&self.hash, body);
        // Compared as text: to write 64 digits is much cheaper than to read them.
        if end == tail(&hash) && sequence_of(line) == Some(self.count) {
            return Ok(Position {
                count: self.count + 1,
                hash,
            });
        }
        Err(match sequence_of(line) {
            _ if line.last() != Some(&b'\n') => Flaw::Unterminated,
            _ if tail_of(line).is_none() => Flaw::Unsealed,
            Some(found) if found != self.count => Flaw::Sequence { found },
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

/// SHA-256 of the previous hash and a body.
///
/// The blocks go to the compression function as they lie; the buffer that `Sha256` keeps for bytes that come in pieces
/// takes a noticeable part of the time of a short record.
fn link(previous: &Digest, body: &[u8]) -> Digest {
    let Some((head, rest)) = body.split_first_chunk::<32>() else {
        return digest(&[previous.as_bytes(), body].concat());
    };
    let first = [*previous.as_bytes(), *head];
    let (whole, rest) = rest.as_chunks::<64>();
    // The padding of SHA-256: a one, zeros, the length in bits.
    let mut last = [0; 128];
    let end = if rest.len() < 56 { 64 } else { 128 };
    let bits = (32 + body.len() as u64) * 8;
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    last[end - 8..end].copy_from_slice(&bits.to_be_bytes());
    let mut state = INITIAL;
    for blocks in [
        first.as_flattened().as_chunks().0,
        whole,
        last[..end].as_chunks().0,
    ] {
        compress256(&mut state, blocks);
    }
    let mut hash = [0; 32];
    for (bytes, word) in hash.as_chunks_mut().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    Digest::from_bytes(hash)
}

/// SHA-256 of some bytes.
pub(crate) fn digest(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

/// What a line with this hash ends in.
fn tail(hash: &Digest) -> [u8; TAIL] {
    let mut tail = [0; TAIL];
    let (seal, rest) = tail.split_at_mut(SEAL.len());
    let (digits, end) = rest.split_at_mut(64);
    seal.copy_from_slice(SEAL);
    digits.copy_from_slice(&hash.to_hex());
    end.copy_from_slice(END);
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
    let mut number = 0u64;
    for (at, &byte) in rest.iter().enumerate() {
        match byte {
            // `00` and `01` are other spellings of a number.
            b'0'..=b'9' if at == 0 || number > 0 => {
                number = number
                    .checked_mul(10)?
                    .checked_add(u64::from(byte - b'0'))?;
            }
            b',' if at > 0 => return Some(number),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_plain_sha_256() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let previous = digest(b"before");
        for length in 0..bytes.len() {
            let body = &bytes[..length];
            let plain = digest(&[previous.as_bytes(), body].concat());
            assert_eq!(link(&previous, body), plain, "{length} bytes");
        }
    }

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
