//! Finding and reading the files of a workspace, by descriptors that follow no link.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use invigil_schema::{DirectoryId, LeftOut, OsText};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, openat2};
use rustix::io::Errno;

use super::LISTED;
use super::repository::{Entries, Import, Kind, Line};
use crate::capabilities::entry::open_regular;
use crate::capabilities::ignored::Ignored;
use crate::capabilities::walk::{Next, Visit, Visitor, walk};

/// A larger file is left out.
const MAX_FILE: u64 = 64 << 20;

/// More entries are not looked at, be they kept or not.
const MAX_VISITS: u64 = 4_000_000;
/// The paths of all that is kept have no more bytes: they are in memory.
const MAX_NAMES: u64 = 256 << 20;
/// So many bytes of `.gitignore` and the like are read in all.
const MAX_PATTERNS: u64 = 64 << 20;

/// How much is kept.
#[derive(Debug, Clone)]
pub(super) struct Most {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// What was found.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) manifest: Vec<Line>,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) left_out: Vec<LeftOut>,
    pub(super) left_out_count: u64,
}

/// The directory itself. A run that may rename it could have put a link there, so none is followed unless it is looked
/// where that leads.
pub(super) fn open(workspace: &Path, known: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = match known {
        true => ResolveFlags::empty(),
        false => ResolveFlags::NO_SYMLINKS,
    };
    Ok(openat2(CWD, workspace, flags, Mode::empty(), resolve)?)
}

/// What tells this directory from every other one.
pub(super) fn directory_id(directory: &OwnedFd) -> io::Result<DirectoryId> {
    let stat = rustix::fs::fstat(directory)?;
    let more = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    let more = more.ok().filter(|more| {
        let known = StatxFlags::from_bits_retain(more.stx_mask);
        known.contains(StatxFlags::BTIME)
    });
    let born_ns = more.and_then(|more| {
        let seconds = u64::try_from(more.stx_btime.tv_sec).ok()?;
        let whole = seconds.checked_mul(1_000_000_000)?;
        whole.checked_add(more.stx_btime.tv_nsec.into())
    });
    Ok(DirectoryId {
        device: stat.st_dev,
        inode: stat.st_ino,
        born_ns,
    })
}

/// The same of the directory at a path, for the record. None if there is none.
pub(crate) fn directory_at(path: &Path) -> Option<DirectoryId> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
    directory_id(&directory).ok()
}

impl Listed {
    /// Reads everything below a directory into objects; nothing, if it is too much. Times and sizes can be made up, so
    /// nothing is taken for unchanged.
    pub(super) fn read(
        root: &OwnedFd,
        store: &Path,
        most: &Most,
        also: Option<&Entries>,
        import: &mut Import,
    ) -> io::Result<Option<Listed>> {
        let device = rustix::fs::fstat(root)?;
        let mut reading = Reading {
            listed: Listed::default(),
            ignored: Ignored::default(),
            also,
            import,
            device: device.st_dev,
            store: rustix::fs::stat(store).ok(),
            most,
            visits: 0,
            names: 0,
            want: None,
        };
        walk(root.as_fd(), &mut reading)?;
        match reading.want.take() {
            Some(want) => Err(want),
            None => Ok((!reading.is_too_large()).then_some(reading.listed)),
        }
    }

    fn leave_out(&mut self, path: &Path, why: impl ToString) {
        self.left_out_count += 1;
        if self.left_out.len() < LISTED {
            self.left_out.push(LeftOut {
                path: OsText::from(path.as_os_str()),
                why: why.to_string(),
            });
        }
    }
}

struct Reading<'a> {
    listed: Listed,
    ignored: Ignored,
    also: Option<&'a Entries>,
    import: &'a mut Import,
    /// What is mounted below is somebody else's.
    device: u64,
    store: Option<Stat>,
    most: &'a Most,
    /// How many entries were looked at, kept or not.
    visits: u64,
    /// How many bytes the paths of all that was kept have.
    names: u64,
    /// What we lack to go on.
    want: Option<io::Error>,
}

impl Reading<'_> {
    /// Whether a path, or something below it, is wanted whatever a `.gitignore` says.
    fn is_wanted(&self, path: &Path) -> bool {
        let next = self.also.and_then(|also| also.from(path));
        next.is_some_and(|next| next.starts_with(path))
    }

    fn is_too_large(&self) -> bool {
        self.listed.files > self.most.files
            || self.listed.bytes > self.most.bytes
            || self.visits > MAX_VISITS
            || self.names > MAX_NAMES
            || self.ignored.read() > MAX_PATTERNS
    }

    /// Why a path is left out, if it is.
    fn why_not(&self, visit: &Visit<'_>) -> Option<&'static str> {
        let same =
            |store: &Stat| (store.st_dev, store.st_ino) == (visit.stat.st_dev, visit.stat.st_ino);
        let is_dir = visit.kind() == FileType::Directory;
        match visit.kind() {
            _ if self.store.as_ref().is_some_and(same) => Some("it is the store"),
            _ if visit.stat.st_dev != self.device => Some("it is on another file system"),
            _ if self.ignored.is(visit.path, is_dir) && !self.is_wanted(visit.path) => {
                Some("it is ignored")
            }
            FileType::RegularFile if visit.stat.st_size as u64 > MAX_FILE => {
                Some("it is larger than 64 MiB")
            }
            FileType::RegularFile | FileType::Directory | FileType::Symlink => None,
            FileType::Fifo => Some("it is a FIFO"),
            FileType::Socket => Some("it is a socket"),
            _ => Some("it is a device"),
        }
    }

    fn keep(&mut self, visit: &Visit<'_>) -> io::Result<()> {
        let (kind, content) = match visit.kind() {
            FileType::Directory => (Kind::Directory, Vec::new()),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(visit.dir, visit.name, Vec::new())?;
                (Kind::Link, target.into_bytes())
            }
            _ => {
                let file = open_regular(visit.dir, visit.name)?;
                let mut content = Vec::new();
                file.take(MAX_FILE + 1).read_to_end(&mut content)?;
                if content.len() as u64 > MAX_FILE {
                    return Err(io::Error::other("it is larger than 64 MiB"));
                }
                (Kind::File, content)
            }
        };
        if kind != Kind::Directory {
            self.listed.files += 1;
            self.listed.bytes += content.len() as u64;
            self.import.blob(&content)?;
        }
        self.names += visit.path.as_os_str().len() as u64;
        self.listed.manifest.push(Line {
            kind,
            mode: visit.stat.st_mode & 0o7777,
            uid: visit.stat.st_uid,
            gid: visit.stat.st_gid,
            path: visit.path.to_owned(),
        });
        Ok(())
    }
}

impl Visitor for Reading<'_> {
    fn enter(&mut self, dir: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        self.ignored.enter(dir, path);
        Ok(())
    }

    fn leave(&mut self) {
        self.ignored.leave();
    }

    fn visit(&mut self, visit: &Visit<'_>) -> io::Result<Next> {
        self.visits += 1;
        if self.is_too_large() {
            return Ok(Next::Stop);
        }
        // A repository has a history of its own, and is not for us to turn back.
        if visit.name == ".git" {
            return Ok(Next::Past);
        }
        if let Some(why) = self.why_not(visit) {
            self.listed.leave_out(visit.path, why);
            return Ok(Next::Past);
        }
        match self.keep(visit) {
            Ok(()) => {}
            // Without git nothing can be kept; what cannot be read is left out.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(error),
            Err(error) if is_want(&error) => return Err(error),
            Err(error) => self.listed.leave_out(visit.path, error),
        }
        match self.is_too_large() || self.want.is_some() {
            true => Ok(Next::Stop),
            false => Ok(Next::On),
        }
    }

    fn closed(&mut self, path: &Path, error: &io::Error) {
        match error.raw_os_error() {
            Some(number) if is_want(error) => {
                self.want = Some(io::Error::from_raw_os_error(number))
            }
            _ => self.listed.leave_out(path, error),
        }
    }
}

/// Whether it is we who lack something. That says nothing of the file, which would be missing then.
fn is_want(error: &io::Error) -> bool {
    let wants = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
    error
        .raw_os_error()
        .is_some_and(|error| wants.contains(&error))
}
