//! Which files a run has written, and what they are at its end.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use invigil_schema::{Digest, Event, FileFinal, FileOpKind, OpenFlag, OsText};
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

/// The paths that were written, at the place where each was last seen.
#[derive(Default)]
pub(crate) struct Written {
    paths: BTreeSet<OsText>,
}

impl Written {
    /// Takes over what a fact says.
    pub(crate) fn take(&mut self, event: &Event) {
        let Event::FileOp(op) = event else {
            return;
        };
        if !op.result.is_ok() {
            return;
        }
        match op.op {
            FileOpKind::Create | FileOpKind::Truncate => self.add(&op.path),
            FileOpKind::Open if op.flags.contains(&OpenFlag::Write) => self.add(&op.path),
            FileOpKind::Unlink => {
                self.paths.remove(&op.path);
            }
            FileOpKind::Rename => {
                if let Some(to) = &op.to {
                    self.renamed(&op.path, to);
                }
            }
            FileOpKind::Link => {
                if let Some(to) = &op.to
                    && self.paths.contains(&op.path)
                {
                    self.add(to);
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, path: &OsText) {
        let bytes = path.as_bytes();
        let no_file = [&b"/dev/"[..], b"/proc/", b"/sys/"];
        if bytes.starts_with(b"/") && !no_file.iter().any(|prefix| bytes.starts_with(prefix)) {
            self.paths.insert(path.clone());
        }
    }

    /// A file that was renamed is new at its new place whoever wrote it; with a directory everything in it moves.
    fn renamed(&mut self, from: &OsText, to: &OsText) {
        let mut below = from.as_bytes().to_vec();
        below.push(b'/');
        let start = OsText::from(below.clone());
        let inside: Vec<OsText> = self
            .paths
            .range(start..)
            .take_while(|path| path.as_bytes().starts_with(&below))
            .cloned()
            .collect();
        for path in inside {
            self.paths.remove(&path);
            let rest = &path.as_bytes()[from.as_bytes().len()..];
            self.add(&OsText::from([to.as_bytes(), rest].concat()));
        }
        self.paths.remove(from);
        self.add(to);
    }

    /// What became of each. Directories are left out: they have no content of their own. A run cannot keep its own end
    /// from being recorded: there is a limit to a file, to all of them, and to the time it takes.
    pub(crate) fn finals(self, impatient: &dyn Fn() -> bool) -> impl Iterator<Item = FileFinal> {
        let mut left = Limits {
            bytes: MAX_BYTES,
            until: Instant::now() + MAX_TIME,
            impatient,
        };
        self.paths
            .into_iter()
            .filter_map(move |path| look(path, &mut left))
    }
}

/// The largest file that is hashed.
const MAX_FILE: u64 = 1 << 30;
/// How much is hashed in all.
const MAX_BYTES: u64 = 8 << 30;
/// How long that may take.
const MAX_TIME: Duration = Duration::from_secs(60);

/// How much may still be hashed.
struct Limits<'a> {
    bytes: u64,
    until: Instant,
    impatient: &'a dyn Fn() -> bool,
}

impl Limits<'_> {
    /// Why a file of this size is not hashed.
    fn refuse(&self, size: u64) -> Option<&'static str> {
        match () {
            () if size > MAX_FILE => Some("not hashed: it is larger than 1 GiB"),
            () if size > self.bytes => Some("not hashed: 8 GiB were hashed before it"),
            () => self.over(),
        }
    }

    /// Why nothing is hashed any more.
    fn over(&self) -> Option<&'static str> {
        match () {
            () if Instant::now() > self.until => Some("not hashed: the time for it was over"),
            () if (self.impatient)() => Some("not hashed: it was interrupted"),
            () => None,
        }
    }
}

fn look(path: OsText, limits: &mut Limits<'_>) -> Option<FileFinal> {
    let gone = |why: &str| FileFinal {
        path: path.clone(),
        size: None,
        sha256: None,
        why_not: Some(why.to_owned()),
    };
    let file = match open(Path::new(OsStr::from_bytes(path.as_bytes()))) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(gone("it is gone")),
        Err(error) => return Some(gone(&error.to_string())),
    };
    let size = match file.metadata() {
        Ok(metadata) if metadata.is_dir() => return None,
        Ok(metadata) if !metadata.is_file() => return Some(gone("it is not a plain file")),
        Ok(metadata) => metadata.len(),
        Err(error) => return Some(gone(&error.to_string())),
    };
    let unhashed = |why: &str| FileFinal {
        size: Some(size),
        ..gone(why)
    };
    if let Some(why) = limits.refuse(size) {
        return Some(unhashed(why));
    }
    limits.bytes -= size;
    Some(match hash(file, limits) {
        Ok(Hashed::Whole(size, sha256)) => FileFinal {
            path,
            size: Some(size),
            sha256: Some(sha256),
            why_not: None,
        },
        Ok(Hashed::GivenUp(why)) => unhashed(why),
        Err(error) => gone(&error.to_string()),
    })
}

/// Not through a link in its place, and without waiting for the other end of a FIFO.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

enum Hashed {
    Whole(u64, Digest),
    GivenUp(&'static str),
}

/// Somebody outside may be writing to the file all the time, so that it never ends.
fn hash(mut file: File, limits: &Limits<'_>) -> io::Result<Hashed> {
    let (mut hasher, mut size) = (Sha256::new(), 0);
    let mut chunk = vec![0; 256 * 1024];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => {
                let digest = Digest::from_bytes(hasher.finalize().into());
                return Ok(Hashed::Whole(size, digest));
            }
            Ok(read) => {
                hasher.update(&chunk[..read]);
                size += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if let Some(why) = limits.over() {
            return Ok(Hashed::GivenUp(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use invigil_schema::{CallResult, Errno, FileOp, ProcessRef};

    fn op(op: FileOpKind, path: &str, to: Option<&str>) -> FileOp {
        FileOp {
            process: ProcessRef { pid: 1, start: 1 },
            op,
            path: path.into(),
            to: to.map(OsText::from),
            flags: Vec::new(),
            mode: None,
            detail: None,
            result: CallResult::Ok,
        }
    }

    fn paths(ops: Vec<FileOp>) -> Vec<String> {
        let mut written = Written::default();
        for op in ops {
            written.take(&op.into());
        }
        written
            .paths
            .iter()
            .map(|path| path.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn follows_renames_of_files_and_directories() {
        use FileOpKind::*;
        let seen = paths(vec![
            op(Create, "/w/a/x", None),
            op(Create, "/w/a/y", None),
            op(Create, "/w/ab", None),
            op(Rename, "/w/a", Some("/w/b")),
            op(Rename, "/w/b/x", Some("/w/b/z")),
            op(Unlink, "/w/b/y", None),
        ]);
        assert_eq!(seen, ["/w/ab", "/w/b", "/w/b/z"]);
    }

    #[test]
    fn only_what_succeeded_and_is_a_file() {
        use FileOpKind::*;
        let failed = FileOp {
            result: CallResult::Failed(Errno(13)),
            ..op(Create, "/w/no", None)
        };
        let read = FileOp {
            flags: vec![OpenFlag::Read],
            ..op(Open, "/w/read", None)
        };
        let write = FileOp {
            flags: vec![OpenFlag::Write],
            ..op(Open, "/w/write", None)
        };
        let tty = FileOp {
            flags: vec![OpenFlag::Write],
            ..op(Open, "/dev/tty", None)
        };
        assert_eq!(paths(vec![failed, read, write, tty]), ["/w/write"]);
    }

    #[test]
    fn looks_at_what_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| OsText::from(directory.path().join(name).into_os_string());
        std::fs::write(directory.path().join("file"), "hello").unwrap();
        std::os::unix::fs::symlink("file", directory.path().join("link")).unwrap();
        let mut limits = Limits {
            bytes: 100,
            until: Instant::now() + MAX_TIME,
            impatient: &|| false,
        };
        let mut look = |path| look(path, &mut limits);
        let file = look(at("file")).unwrap();
        assert_eq!(file.size, Some(5));
        assert!(file.sha256.unwrap().to_string().starts_with("2cf24dba"));
        assert_eq!(
            look(at("gone")).unwrap().why_not.as_deref(),
            Some("it is gone")
        );
        assert!(
            look(at("link")).unwrap().sha256.is_none(),
            "not through a link"
        );
        assert!(look(at(".")).is_none());
        let sparse = File::create(directory.path().join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        let sparse = look(at("sparse")).unwrap();
        assert_eq!((sparse.size, sparse.sha256), (Some(1 << 40), None));
        std::fs::write(directory.path().join("more"), vec![0; 96]).unwrap();
        let more = look(at("more")).unwrap();
        assert!(
            more.why_not.unwrap().contains("before it"),
            "5 of 100 bytes were used"
        );
    }
}
