//! Through a tree by descriptors, so that nobody can lead the way out of it with a link.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use super::{Invalid, entry};

/// Nobody goes deeper. Each level takes a descriptor and some of the stack, and whoever made the tree may want us to have
/// neither.
const MAX_DEPTH: usize = 256;

/// What a visitor wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Go on, into a directory too.
    On,
    /// Do not go into this directory.
    Past,
    /// It has seen enough.
    Stop,
}

/// One name in a directory.
pub(crate) struct Visit<'a> {
    pub(crate) dir: BorrowedFd<'a>,
    pub(crate) name: &'a OsStr,
    /// From where the walk began.
    pub(crate) path: &'a Path,
    pub(crate) depth: usize,
    pub(crate) stat: Stat,
}

impl Visit<'_> {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

/// What looks at a tree.
pub(crate) trait Visitor {
    /// One name; the names of a directory come sorted.
    fn visit(&mut self, visit: &Visit<'_>) -> io::Result<Next>;
    /// A directory is about to be gone through.
    fn enter(&mut self, _dir: BorrowedFd<'_>, _path: &Path) -> io::Result<()> {
        Ok(())
    }
    /// A directory has been gone through.
    fn leave(&mut self) {}
    /// A directory below may not be read.
    fn closed(&mut self, path: &Path, error: &io::Error);
}

/// Visits everything below a directory. What goes away meanwhile is passed over.
pub(crate) fn walk(dir: impl AsFd, visitor: &mut dyn Visitor) -> io::Result<()> {
    let mut path = PathBuf::new();
    inside(dir.as_fd(), &mut path, 1, visitor).map(drop)
}

fn inside(
    dir: BorrowedFd<'_>,
    path: &mut PathBuf,
    depth: usize,
    visitor: &mut dyn Visitor,
) -> io::Result<Next> {
    visitor.enter(dir, path)?;
    for name in entry::names(dir)? {
        let Ok(stat) = rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        path.push(&name);
        let visit = Visit {
            dir,
            name: &name,
            path,
            depth,
            stat,
        };
        let is_directory = visit.kind() == FileType::Directory;
        let next = match visitor.visit(&visit)? {
            Next::On if is_directory => below(dir, &name, path, depth, visitor)?,
            next => next,
        };
        path.pop();
        if next == Next::Stop {
            return Ok(Next::Stop);
        }
    }
    visitor.leave();
    Ok(Next::On)
}

fn below(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    path: &mut PathBuf,
    depth: usize,
    visitor: &mut dyn Visitor,
) -> io::Result<Next> {
    if depth >= MAX_DEPTH {
        visitor.closed(path, &io::Error::other("it is nested too deep"));
        return Ok(Next::On);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(child) => inside(child.as_fd(), path, depth + 1, visitor),
        Err(error) => {
            visitor.closed(path, &error.into());
            Ok(Next::On)
        }
    }
}

/// Which files are meant: a pattern with a slash is about the path, one without is about the name.
pub(super) struct Chosen {
    matcher: Option<GlobMatcher>,
    whole: bool,
}

impl Chosen {
    pub(super) fn new(glob: Option<&str>) -> Result<Self, Invalid> {
        let Some(glob) = glob else {
            return Ok(Chosen {
                matcher: None,
                whole: false,
            });
        };
        let built = GlobBuilder::new(glob).literal_separator(true).build();
        let matcher = built.map_err(|error| Invalid::new("glob", error.to_string()))?;
        Ok(Chosen {
            matcher: Some(matcher.compile_matcher()),
            whole: glob.contains('/'),
        })
    }

    pub(super) fn is(&self, path: &Path) -> bool {
        let Some(matcher) = &self.matcher else {
            return true;
        };
        match path.file_name() {
            Some(name) if !self.whole => matcher.is_match(name),
            _ => matcher.is_match(path),
        }
    }
}
