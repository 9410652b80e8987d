//! What a check prints: searched, kept, and its end shown.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read};
use std::time::Duration;

use invigil_journal::Blobs;
use invigil_schema::Digest;
use memchr::memmem::Finder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::held::Bell;
use crate::redact::Redactor;

/// How much of the end is shown.
pub(super) const TAIL: usize = 4 * 1024;
const CHUNK: usize = 64 * 1024;
/// A line that is longer than this is redacted in parts.
const LONGEST_LINE: usize = 1 << 20;

/// What a check has printed.
#[derive(Debug, Default)]
pub(super) struct Printed {
    pub(super) tail: String,
    /// Whether the text that was looked for is there; so it is if none was.
    pub(super) found: bool,
    pub(super) blob: Option<Digest>,
}

/// Reads to the end, or until the command is over and nothing more is there: somebody whom it left behind may keep the
/// pipe open for ever.
pub(super) fn read(
    pipe: PipeReader,
    over: &Bell,
    text: Option<&str>,
    blobs: Option<&Blobs>,
    redactor: &Redactor,
) -> Printed {
    let mut output = Output {
        pipe,
        over,
        search: Search::new(text),
        tail: VecDeque::new(),
    };
    let mut redacted = Redacted {
        from: &mut output,
        redactor,
        line: Vec::new(),
        ready: VecDeque::new(),
        ended: false,
    };
    let put = blobs.and_then(|blobs| blobs.put_from(&mut redacted).ok());
    // A blob that cannot be written must not stop the check.
    drop(io::copy(&mut output, &mut io::sink()));
    let tail: Vec<u8> = output.tail.into();
    Printed {
        tail: last(&tail),
        found: output.search.found,
        blob: put.map(|(digest, _)| digest),
    }
}

/// The end as text, without the rest of a character that was cut.
fn last(bytes: &[u8]) -> String {
    let full = bytes.len() == TAIL;
    let rest = bytes
        .iter()
        .take_while(|byte| full && **byte & 0xC0 == 0x80)
        .count();
    String::from_utf8_lossy(&bytes[rest.min(3)..]).into_owned()
}

struct Output<'a> {
    pipe: PipeReader,
    over: &'a Bell,
    search: Search,
    tail: VecDeque<u8>,
}

impl Read for Output<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        const LOOK: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        loop {
            // Asked before the pipe is: what was printed before the end is there by then.
            let over = self.over.wait(Duration::ZERO);
            let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
            if poll(&mut fds, Some(&LOOK))? > 0 {
                break;
            }
            if over {
                return Ok(0);
            }
        }
        let length = self.pipe.read(into)?;
        let bytes = &into[..length];
        self.search.take(bytes);
        self.tail.extend(&bytes[length.saturating_sub(TAIL)..]);
        let excess = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..excess);
        Ok(length)
    }
}

/// Looks for a text in pieces of output.
struct Search {
    text: Vec<u8>,
    /// What the text may have begun in.
    before: Vec<u8>,
    found: bool,
}

impl Search {
    fn new(text: Option<&str>) -> Search {
        let text = text.unwrap_or_default().as_bytes().to_vec();
        Search {
            found: text.is_empty(),
            before: Vec::new(),
            text,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.found {
            return;
        }
        self.before.extend_from_slice(bytes);
        self.found = Finder::new(&self.text).find(&self.before).is_some();
        let keep = self.before.len().min(self.text.len() - 1);
        self.before.drain(..self.before.len() - keep);
    }
}

/// The same without secrets, line by line.
struct Redacted<'a, R> {
    from: R,
    redactor: &'a Redactor,
    line: Vec<u8>,
    ready: VecDeque<u8>,
    ended: bool,
}

impl<R: Read> Read for Redacted<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.ready.is_empty() && !self.ended {
            let begin = self.line.len();
            self.line.resize(begin + CHUNK, 0);
            let length = self.from.read(&mut self.line[begin..])?;
            self.line.truncate(begin + length);
            self.ended = length == 0;
            let whole = match memchr::memrchr(b'\n', &self.line) {
                _ if self.ended || self.line.len() > LONGEST_LINE => self.line.len(),
                Some(newline) => newline + 1,
                None => 0,
            };
            self.ready
                .extend(self.redactor.bytes(&self.line[..whole]).iter());
            self.line.drain(..whole);
        }
        self.ready.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn printed(pieces: &[&[u8]], text: Option<&str>) -> Printed {
        let (pipe, mut end) = io::pipe().unwrap();
        let over = Bell::default();
        std::thread::scope(|scope| {
            let redactor = Redactor::new([0; 32]);
            let over = &over;
            let reader = scope.spawn(move || read(pipe, over, text, None, &redactor));
            for piece in pieces {
                end.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            // The end stays open: somebody was left behind.
            over.ring();
            let printed = reader.join().unwrap();
            drop(end);
            printed
        })
    }

    #[test]
    fn a_text_is_found_across_pieces_and_far_from_the_end() {
        assert!(printed(&[b"all o", b"k"], Some("ok")).found);
        assert!(!printed(&[b"all o", b" k"], Some("ok")).found);
        assert!(printed(&[b"x"], None).found);
        let mut long = b"ok\n".to_vec();
        long.resize(60_000, b'.');
        let printed = printed(&[&long], Some("ok"));
        assert!(printed.found);
        assert_eq!(printed.tail.len(), TAIL);
    }

    #[test]
    fn the_end_begins_with_a_whole_character() {
        let text = "é".repeat(3_000) + "x";
        let tail = printed(&[text.as_bytes()], None).tail;
        assert!(tail.starts_with('é') && tail.ends_with("éx"), "{tail}");
    }
}
