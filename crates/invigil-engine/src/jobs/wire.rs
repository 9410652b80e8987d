//! What a supervisor and its worker say to each other, over the worker's stdin and stdout.
//!
//! A message is a line of JSON. Contents follow their line as pieces, each with its length in front, up to an empty one.
//! The worker speaks; the supervisor answers each message but the last.

use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;

use invigil_schema::{Digest, JobId, Kept};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The first thing that a worker is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) job_id: JobId,
    pub(super) capability: String,
    pub(super) arguments: Value,
    pub(super) dry_run: bool,
    pub(super) working_dir: PathBuf,
    /// Further trees that it may use.
    pub(super) allowed: Vec<PathBuf>,
    pub(super) undo: Vec<Kept>,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum Said {
    /// This is about to change. If there is a content, it follows.
    Keep { kept: Kept, content: bool },
    /// Tell when all of it is durable.
    Settle,
    /// Give the content of this blob. It follows the answer.
    Fetch { sha256: Digest },
    /// It is done.
    Done {
        data: Value,
        message: Option<String>,
    },
    /// It is not.
    Failed {
        error: String,
        denied: bool,
        data: Option<Value>,
    },
}

/// What it is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(super) enum Answered {
    Ok,
    /// It cannot be; whether the content was not what was announced.
    No {
        error: String,
        invalid: bool,
    },
}

/// The longest line that is taken.
const LONGEST: u64 = 64 << 20;
const PIECE: usize = 64 * 1024;

pub(super) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// The next message; nothing at the end.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(LONGEST).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Sends a content in pieces.
pub(super) fn send_content(to: &mut impl Write, content: &mut dyn Read) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = match content.read(&mut piece) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&(length as u32).to_le_bytes())?;
        to.write_all(&piece[..length])?;
        if length == 0 {
            return to.flush();
        }
    }
}

/// A content as it comes in.
pub(super) struct Content<'a, R> {
    from: &'a mut R,
    left: usize,
    over: bool,
}

impl<'a, R: Read> Content<'a, R> {
    pub(super) fn new(from: &'a mut R) -> Self {
        Content {
            from,
            left: 0,
            over: false,
        }
    }

    /// Reads over what nobody wants, so that the next message can be understood.
    pub(super) fn skip(mut self) -> io::Result<()> {
        io::copy(&mut self, &mut io::sink()).map(drop)
    }
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.over {
            let mut length = [0; 4];
            self.from.read_exact(&mut length)?;
            self.left = u32::from_le_bytes(length) as usize;
            self.over = self.left == 0;
            if self.left > PIECE {
                return Err(io::Error::other("a piece is longer than any can be"));
            }
        }
        let length = self.left.min(into.len());
        self.from.read_exact(&mut into[..length])?;
        self.left -= length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_contents_come_through() {
        let content: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
        let mut bytes = Vec::new();
        send(&mut bytes, &Said::Settle).unwrap();
        send_content(&mut bytes, &mut &content[..]).unwrap();
        send_content(&mut bytes, &mut &b""[..]).unwrap();
        send_content(&mut bytes, &mut &b"skipped"[..]).unwrap();
        send(&mut bytes, &Said::Settle).unwrap();
        let mut from = &bytes[..];
        assert!(matches!(receive(&mut from).unwrap(), Some(Said::Settle)));
        let mut back = Vec::new();
        Content::new(&mut from).read_to_end(&mut back).unwrap();
        assert!(back == content);
        Content::new(&mut from).read_to_end(&mut back).unwrap();
        assert!(back == content);
        Content::new(&mut from).skip().unwrap();
        assert!(matches!(receive(&mut from).unwrap(), Some(Said::Settle)));
        assert!(receive::<Said>(&mut from).unwrap().is_none());
        assert!(receive::<Said>(&mut &b"{\"say\""[..]).is_err());
        assert!(receive::<Said>(&mut &b"{\"say\":\"sing\"}\n"[..]).is_err());
    }
}
