//! Lines that others write while a run goes on: cut out of a stream, whole, with a limit, and numbered.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

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
    /// A directory whose files it must not be.
    store: PathBuf,
    file: Option<File>,
    splitter: Splitter,
    skip: u64,
    broken: bool,
}

impl GrowingFile {
    /// Asked for before a run begins. Something that is there and is not a plain file is refused.
    pub(crate) fn new(path: PathBuf, store: &Path) -> io::Result<Self> {
        let store = store.canonicalize().unwrap_or_else(|_| store.to_owned());
        let skip = match path.symlink_metadata() {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => return Err(not_plain()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(GrowingFile {
            path,
            store,
            file: None,
            splitter: Splitter::default(),
            skip,
            broken: false,
        })
    }

    /// Reads what is new. A file that is not there yet has nothing new. An error is told once.
    pub(crate) fn read(&mut self, take: impl FnMut(Line<'_>)) -> Result<(), String> {
        if self.broken {
            return Ok(());
        }
        self.try_read(take).map_err(|error| {
            self.broken = true;
            format!("{} cannot be read: {error}", self.path.display())
        })
    }

    fn try_read(&mut self, mut take: impl FnMut(Line<'_>)) -> io::Result<()> {
        if self.file.is_none() {
            self.file = self.open()?;
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

    /// The run may have put anything there meanwhile: a link, a FIFO, a way into the store.
    fn open(&self) -> io::Result<Option<File>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&self.path);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !file.metadata()?.is_file() {
            return Err(not_plain());
        }
        let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if real.starts_with(&self.store) {
            return Err(io::Error::other("it leads into the store"));
        }
        file.seek(SeekFrom::Start(self.skip))?;
        Ok(Some(file))
    }

    pub(crate) fn finish(&mut self, take: impl FnMut(Line<'_>)) {
        self.splitter.finish(take);
    }
}

fn not_plain() -> io::Error {
    io::Error::other("it is not a plain file")
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
