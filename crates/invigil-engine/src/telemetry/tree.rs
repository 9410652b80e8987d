//! Small files below one directory, read with one call each into one buffer; and the numbers in them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, RawDir, SeekFrom, accessat, openat, seek};
use rustix::path::Arg;
use rustix::process::{Resource, getrlimit};

/// Enough for all that is read often.
const ROOM: usize = 16 * 1024;

/// So many files are kept open at most, and no more than an eighth of what this process may open.
const HELD: u64 = 256;

/// A mounted `/proc` or `/sys`, or a copy of one.
#[derive(Debug)]
pub(super) struct Tree {
    path: PathBuf,
    root: OwnedFd,
    buffer: Vec<u8>,
    held: Held,
}

/// Files that stay open: to find one again takes longer than to read it. What was read of a process is of no use when that
/// has ended, also if another has its number.
#[derive(Debug, Default)]
struct Held {
    files: HashMap<Vec<u8>, File>,
    most: usize,
}

impl Tree {
    pub(super) fn open(path: &Path) -> io::Result<Tree> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Tree {
            path: path.to_owned(),
            root: openat(CWD, path, flags, Mode::empty())?,
            buffer: vec![0; ROOM],
            held: Held::default(),
        })
    }

    /// From now on files are kept open when they were read once. For trees that the kernel makes.
    pub(super) fn keep_open(&mut self) {
        let limit = getrlimit(Resource::Nofile).current;
        let most = limit.map_or(HELD, |limit| HELD.min(limit / 8));
        self.held.most = most as usize;
    }

    /// Closes what was kept open of processes, but of these, which are in order.
    pub(super) fn forget_others(&mut self, pids: &[u32]) {
        self.held.files.retain(|name, _| {
            let digits = name.split(|&byte| byte == b'/').next().and_then(number);
            let pid = digits.and_then(|pid| u32::try_from(pid).ok());
            pid.is_none_or(|pid| pids.binary_search(&pid).is_ok())
        });
    }

    /// The full path of a file, for errors.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    pub(super) fn has(&self, name: &str) -> bool {
        accessat(&self.root, name, Access::EXISTS, AtFlags::empty()).is_ok()
    }

    fn file(&self, name: impl Arg) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.root, name, flags, Mode::empty())?))
    }

    /// The whole of a file that the kernel writes in one piece, so that a read that does not fill the buffer has had
    /// all of it.
    pub(super) fn read(&mut self, name: impl Arg) -> io::Result<&[u8]> {
        let name = name.as_cow_c_str()?;
        let held = self.held.files.get(name.to_bytes());
        let again = held.map(|file| whole(file, &mut self.buffer));
        let filled = match again {
            Some(Ok(filled)) => filled,
            // It was of a process or a group that is gone.
            Some(Err(_)) | None => {
                let file = self.file(&*name)?;
                let filled = whole(&file, &mut self.buffer)?;
                if again.is_some() || self.held.files.len() < self.held.most {
                    self.held.files.insert(name.to_bytes().to_vec(), file);
                }
                filled
            }
        };
        Ok(&self.buffer[..filled])
    }

    /// What one read of a file gives, at most `most` bytes.
    pub(super) fn beginning(&mut self, name: impl Arg, most: usize) -> io::Result<&[u8]> {
        let mut file = self.file(name)?;
        let most = most.min(self.buffer.len());
        let read = file.read(&mut self.buffer[..most])?;
        Ok(&self.buffer[..read])
    }

    /// The lines of a table, as far as `more` wants to go on.
    pub(super) fn lines(
        &mut self,
        name: impl Arg,
        mut more: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<()> {
        let mut file = self.file(name)?;
        let mut kept = 0;
        loop {
            let filled = kept + file.read(&mut self.buffer[kept..])?;
            let mut begin = 0;
            while let Some(length) = memchr::memchr(b'\n', &self.buffer[begin..filled]) {
                if !more(&self.buffer[begin..begin + length]) {
                    return Ok(());
                }
                begin += length + 1;
            }
            // Nothing was read, or a line is longer than any of a table is.
            if filled == kept || filled - begin == self.buffer.len() {
                return Ok(());
            }
            self.buffer.copy_within(begin..filled, 0);
            kept = filled - begin;
        }
    }

    /// The names in a directory; none if there is no such directory.
    pub(super) fn names(&mut self, name: &str) -> Vec<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(directory) = openat(&self.root, name, flags, Mode::empty()) else {
            return Vec::new();
        };
        let mut names = Vec::new();
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(directory, &mut space);
        while let Some(Ok(entry)) = entries.next() {
            if let Ok(name) = entry.file_name().to_str()
                && !name.starts_with('.')
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        names
    }

    /// The names at the root that are numbers: processes.
    pub(super) fn numbers(&mut self, into: &mut Vec<u32>) -> io::Result<()> {
        into.clear();
        seek(&self.root, SeekFrom::Start(0))?;
        let mut space = [MaybeUninit::uninit(); ROOM];
        let mut entries = RawDir::new(&self.root, &mut space);
        while let Some(entry) = entries.next() {
            let pid = number(entry?.file_name().to_bytes());
            into.extend(pid.and_then(|pid| u32::try_from(pid).ok()));
        }
        into.sort_unstable();
        Ok(())
    }
}

/// Reads a file from its beginning, and says how much it is.
fn whole(file: &File, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let mut filled = 0;
    loop {
        filled += file.read_at(&mut buffer[filled..], filled as u64)?;
        if filled < buffer.len() {
            return Ok(filled);
        }
        buffer.resize(filled * 2, 0);
    }
}

/// Digits and nothing else.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// A decimal fraction.
pub(super) fn decimal(text: &[u8]) -> Option<f64> {
    str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Words between spaces and tabs.
pub(super) fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

/// Lines without their ends.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
}

/// What stands behind `name` in the line that begins with it.
pub(super) fn value<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    lines(text)
        .find_map(|line| line.strip_prefix(name.as_bytes()))
        .map(<[u8]>::trim_ascii)
}

/// A share, with two digits behind the point: what is shown is what is compared, and it comes back from JSON exactly.
pub(super) fn percent(part: f64, whole: f64) -> f64 {
    if whole <= 0.0 {
        return 0.0;
    }
    hundredths(part / whole * 100.0)
}

pub(super) fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_open_is_read_anew_and_of_the_living() {
        let mut tree = Tree::open(Path::new("/proc")).unwrap();
        tree.keep_open();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let name = format!("{}/stat", child.id());
        assert!(
            tree.read(&name)
                .unwrap()
                .starts_with(child.id().to_string().as_bytes())
        );
        let mut uptime = || decimal(words(tree.read("uptime").unwrap()).next().unwrap());
        let before = uptime();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(uptime() > before);
        assert_eq!(tree.held.files.len(), 2);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tree.read(&name).is_err(), "it is dead");
        assert_eq!(tree.held.files.len(), 2);
        tree.forget_others(&[1]);
        assert_eq!(tree.held.files.len(), 1);
        tree.held.most = 1;
        assert!(!tree.read("loadavg").unwrap().is_empty());
        assert_eq!(tree.held.files.len(), 1, "there is an end to it");
    }

    #[test]
    fn numbers_are_digits_and_fit() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for none in ["", "18446744073709551616", "-1", "+1", "1 ", "max"] {
            assert_eq!(number(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn files_larger_than_the_buffer_are_read_whole_and_tables_line_by_line() {
        let directory = tempfile::tempdir().unwrap();
        let text: String = (0..9_000).map(|n| format!("{n}\n")).collect();
        assert!(text.len() > 2 * ROOM);
        std::fs::write(directory.path().join("file"), &text).unwrap();
        let mut tree = Tree::open(directory.path()).unwrap();
        let mut next = 0;
        let mut count = |line: &[u8]| {
            assert_eq!(number(line), Some(next));
            next += 1;
            next < 8_000
        };
        tree.lines("file", &mut count).unwrap();
        assert_eq!(next, 8_000);
        assert_eq!(tree.read("file").unwrap(), text.as_bytes());
    }
}
