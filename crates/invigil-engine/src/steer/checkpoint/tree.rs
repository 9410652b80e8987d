//! Finding and reading the files of a workspace, by descriptors that follow no link.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use invigil_schema::{LeftOut, OsText};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, openat2};

use super::repository::{Import, Kind, Line};
use super::{CheckpointError, LISTED};
use crate::capabilities::entry::open_regular;
use crate::capabilities::ignored::Ignored;
use crate::capabilities::walk::{Next, Visit, Visitor, walk};

/// A larger file is left out.
const MAX_FILE: u64 = 64 << 20;
/// More is not kept.
const MAX_FILES: u64 = 200_000;
const MAX_BYTES: u64 = 4 << 30;

/// What was found.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) manifest: Vec<Line>,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) left_out: Vec<LeftOut>,
    pub(super) left_out_count: u64,
}

/// The directory itself, without a link on the way: a run that may rename it could have put one there.
pub(super) fn held(workspace: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    Ok(openat2(CWD, workspace, flags, Mode::empty(), resolve)?)
}

impl Listed {
    /// Reads everything below the workspace into objects. Times and sizes can be made up, so nothing is taken for
    /// unchanged.
    pub(super) fn read(
        workspace: &Path,
        store: &Path,
        also: &BTreeSet<PathBuf>,
        import: &mut Import,
    ) -> Result<Listed, CheckpointError> {
        let unreadable = |source: io::Error| CheckpointError::Workspace {
            workspace: workspace.to_owned(),
            source,
        };
        let root = held(workspace).map_err(unreadable)?;
        let device = rustix::fs::fstat(&root).map_err(|error| unreadable(error.into()))?;
        let mut reading = Reading {
            listed: Listed::default(),
            ignored: Ignored::default(),
            also,
            import,
            device: device.st_dev,
            store: rustix::fs::stat(store).ok(),
            too_large: false,
        };
        walk(root.as_fd(), &mut reading).map_err(unreadable)?;
        if reading.too_large {
            return Err(CheckpointError::TooLarge {
                workspace: workspace.to_owned(),
                most: format!("{MAX_FILES} files or {} GiB", MAX_BYTES >> 30),
            });
        }
        Ok(reading.listed)
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
    also: &'a BTreeSet<PathBuf>,
    import: &'a mut Import,
    /// What is mounted below is somebody else's.
    device: u64,
    store: Option<Stat>,
    too_large: bool,
}

impl Reading<'_> {
    /// Whether a path, or something below it, is wanted whatever a `.gitignore` says.
    fn is_wanted(&self, path: &Path) -> bool {
        let mut from = self
            .also
            .range::<Path, _>((std::ops::Bound::Included(path), std::ops::Bound::Unbounded));
        from.next().is_some_and(|next| next.starts_with(path))
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
            Err(error) => self.listed.leave_out(visit.path, error),
        }
        self.too_large |= self.listed.files > MAX_FILES || self.listed.bytes > MAX_BYTES;
        match self.too_large {
            true => Ok(Next::Stop),
            false => Ok(Next::On),
        }
    }

    fn closed(&mut self, path: &Path, error: &io::Error) {
        self.listed.leave_out(path, error);
    }
}
