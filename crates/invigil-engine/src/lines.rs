//! Lines that others write while a run goes on: cut out of a stream, whole, with a limit, and numbered.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// The longest line that is taken. A record of the journal holds it with room to spare.
pub(crate) const MAX_LINE: usize = 256 * 1024;

/// Cuts a stream into lines.
#[derive(Default)]
pub(crate) struct Splitter {
    pending: Vec<u8>,
    /// The line that is being skipped because it is too long.
    skipping: bool,
    number: u64,
}

/// A line, or the beginning of one that is too long.
pub(crate) struct Line<'a> {
    /// Counted from 1.
    pub(crate) number: u64,
    pub(crate) bytes: &'a [u8],
    pub(crate) too_long: bool,
}

impl Splitter {
    /// Takes what was read and hands out every line that it completes.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut take: impl FnMut(Line<'_>)) {
        while let Some(at) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..at]);
            self.hand_out(&mut take);
            bytes = &bytes[at + 1..];
        }
        self.extend(bytes);
    }

    /// Hands out a last line that has no newline.
    pub(crate) fn finish(&mut self, mut take: impl FnMut(Line<'_>)) {
        if !self.pending.is_empty() {
            self.hand_out(&mut take);
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = MAX_LINE - self.pending.len();
        self.skipping |= bytes.len() > room;
        self.pending
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn hand_out(&mut self, take: &mut impl FnMut(Line<'_>)) {
        self.number += 1;
        let bytes = self.pending.strip_suffix(b"\r").unwrap_or(&self.pending);
        let too_long = self.skipping;
        if !bytes.is_empty() {
            take(Line {
                number: self.number,
                bytes,
                too_long,
            });
        }
        self.pending.clear();
        self.skipping = false;
    }
}

/// A file that grows while a run goes on. What is in it when the run begins is not of this run.
pub(crate) struct GrowingFile {
    path: PathBuf,
    file: Option<File>,
    splitter: Splitter,
    skip: u64,
}

impl GrowingFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        let skip = path.metadata().map_or(0, |metadata| metadata.len());
        GrowingFile {
            path,
            file: None,
            splitter: Splitter::default(),
            skip,
        }
    }

    /// Reads what is new. A file that is not there yet has nothing new.
    pub(crate) fn read(&mut self, mut take: impl FnMut(Line<'_>)) -> io::Result<()> {
        if self.file.is_none() {
            self.file = match File::open(&self.path) {
                Ok(mut file) if file.metadata()?.is_file() => {
                    io::Seek::seek(&mut file, io::SeekFrom::Start(self.skip))?;
                    Some(file)
                }
                Ok(_) => return Err(io::Error::other("it is not a plain file")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let mut chunk = [0; 16 * 1024];
        loop {
            match file.read(&mut chunk)? {
                0 => return Ok(()),
                read => self.splitter.feed(&chunk[..read], &mut take),
            }
        }
    }

    pub(crate) fn finish(&mut self, take: impl FnMut(Line<'_>)) {
        self.splitter.finish(take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(chunks: &[&[u8]]) -> Vec<(u64, Vec<u8>, bool)> {
        let (mut splitter, mut lines) = (Splitter::default(), Vec::new());
        let mut take =
            |line: Line<'_>| lines.push((line.number, line.bytes.to_vec(), line.too_long));
        for chunk in chunks {
            splitter.feed(chunk, &mut take);
        }
        splitter.finish(&mut take);
        lines
    }

    #[test]
    fn lines_however_they_arrive() {
        let expected = vec![
            (1, b"ab".to_vec(), false),
            (3, b"c".to_vec(), false),
            (4, b"d".to_vec(), false),
        ];
        assert_eq!(split(&[b"ab\n\nc\r\nd"]), expected);
        assert_eq!(split(&[b"a", b"b\n", b"\nc\r", b"\n", b"d"]), expected);
    }

    #[test]
    fn a_line_without_end_is_cut_and_the_next_is_whole() {
        let long = vec![b'x'; MAX_LINE + 1];
        let lines = split(&[&long, b"yyy\nnext\n"]);
        assert_eq!((lines[0].1.len(), lines[0].2), (MAX_LINE, true));
        assert_eq!(lines[1], (2, b"next".to_vec(), false));
        assert!(
            !split(&[&long[1..], b"\n"])[0].2,
            "exactly the limit is fine"
        );
    }
}
