//! What may be touched: directories that were opened once, and paths that the kernel resolves beneath them.
//!
//! No path is compared as text to decide whether it is inside. `openat2` walks below the descriptor of the root and
//! refuses `..` and links that would leave it, however they are swapped meanwhile.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Failure;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// `openat2` gives up when something is renamed while it looks at `..`; it asks for another try.
const TRIES: usize = 64;

/// The allowed roots.
#[derive(Debug)]
pub struct Roots {
    /// The working directory first.
    roots: Vec<Root>,
}

#[derive(Debug)]
struct Root {
    /// As it was given, absolute.
    given: PathBuf,
    /// Without links, as the kernel says.
    real: PathBuf,
    dir: OwnedFd,
}

/// A name in a directory below a root. The directory is open, so that nobody can put another in its place.
#[derive(Debug)]
pub struct Place {
    /// The directory.
    pub dir: OwnedFd,
    /// The name in it: one component, neither `.` nor `..`.
    pub name: OsString,
    /// The absolute path of both, without links.
    pub path: PathBuf,
}

impl Roots {
    /// Opens the working directory and further roots. All paths are absolute; links in them are followed, since a
    /// person chose them.
    pub fn open(working_dir: &Path, more: &[PathBuf]) -> io::Result<Self> {
        let given = std::iter::once(working_dir).chain(more.iter().map(PathBuf::as_path));
        let roots: io::Result<Vec<Root>> = given.map(Root::open).collect();
        Ok(Roots { roots: roots? })
    }

    /// The absolute paths of the roots without links, the working directory first.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.roots.iter().map(|root| root.real.as_path())
    }

    /// The place that a path names. A link in the last component is not followed.
    pub fn at(&self, path: &Path) -> Result<Place, Failure> {
        let (root, below) = self.below(path)?;
        let last = below.components().next_back();
        let (Some(Component::Normal(name)), false) = (last, ends_in_slash_dot(path)) else {
            let why = "it names a directory by `.` or `..`, or a root itself";
            return Err(unfit(path, why));
        };
        let parent = below.parent().unwrap_or(Path::new(""));
        let dir = root.open_parent(parent, RESOLVE).map_err(|e| at(path, e))?;
        Place::new(dir, name).map_err(|error| Failure::io(path.display(), error))
    }

    /// The place at the end of all links, for what is read or written through them. What is not there yet is the place
    /// where it would be.
    pub fn follow(&self, path: &Path) -> Result<Place, Failure> {
        let (root, below) = self.below(path)?;
        match root.open_path(below, RESOLVE) {
            Ok(end) => {
                let real = real_path(&end).map_err(|error| Failure::io(path.display(), error))?;
                self.exact(&real)
            }
            Err(Errno::NOENT) => {
                let place = self.at(path)?;
                if place.is_link() {
                    return Err(unfit(path, "it is a link that leads to nothing"));
                }
                Ok(place)
            }
            Err(error) => Err(at(path, error)),
        }
    }

    /// The place of a path that has no links in it, as one that was kept. Links that have come since are refused.
    pub fn exact(&self, path: &Path) -> Result<Place, Failure> {
        let (root, below) = self.below(path)?;
        let Some(Component::Normal(name)) = below.components().next_back() else {
            return Err(unfit(path, "it is a root itself"));
        };
        let parent = below.parent().unwrap_or(Path::new(""));
        let dir = root
            .open_parent(parent, RESOLVE | ResolveFlags::NO_SYMLINKS)
            .map_err(|error| at(path, error))?;
        Ok(Place {
            dir,
            name: name.to_owned(),
            path: root.real.join(below),
        })
    }

    /// As [`Roots::exact`], or nothing if a directory on the way is not there.
    pub(crate) fn exact_or_absent(&self, path: &Path) -> Result<Option<Place>, Failure> {
        let (root, below) = self.below(path)?;
        let parent = below.parent().unwrap_or(Path::new(""));
        match root.open_parent(parent, RESOLVE | ResolveFlags::NO_SYMLINKS) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            _ => self.exact(path).map(Some),
        }
    }

    /// A directory that has no links on the way.
    pub(super) fn exact_directory(&self, path: &Path) -> Result<OwnedFd, Failure> {
        let (root, below) = self.below(path)?;
        root.open_dir(below, RESOLVE | ResolveFlags::NO_SYMLINKS)
            .map_err(|error| at(path, error))
    }

    /// A directory, with links followed, and its absolute path without links.
    pub fn directory(&self, path: &Path) -> Result<(OwnedFd, PathBuf), Failure> {
        let (root, below) = self.below(path)?;
        let dir = root.open_dir(below, RESOLVE).map_err(|e| at(path, e))?;
        let real = real_path(&dir).map_err(|error| Failure::io(path.display(), error))?;
        Ok((dir, real))
    }

    /// The root that a path lies under, and the rest of it: of several the longest.
    fn below<'p>(&self, path: &'p Path) -> Result<(&Root, &'p Path), Failure> {
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(unfit(path, "it contains a zero byte"));
        }
        if path.is_relative() {
            let first = self.roots.first();
            return first
                .map(|root| (root, path))
                .ok_or_else(|| unfit(path, "there is no working directory"));
        }
        let under = |root: &'_ Root| {
            let rest = [&root.given, &root.real].map(|base| path.strip_prefix(base).ok());
            rest.into_iter().flatten().next()
        };
        let inside = self
            .roots
            .iter()
            .filter_map(|root| under(root).map(|rest| (root, rest)));
        inside
            .min_by_key(|(_, rest)| rest.components().count())
            .ok_or_else(|| {
                refused(
                    path,
                    "it is outside of the allowed roots; allow one with --allow",
                )
            })
    }
}

impl Root {
    fn open(path: &Path) -> io::Result<Self> {
        if path.is_relative() {
            let why = format!("{} is not absolute", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Root {
            given: path.to_owned(),
            real: real_path(&dir)?,
            dir,
        })
    }

    fn open_path(&self, below: &Path, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        self.open_below(below, OFlags::PATH, resolve)
    }

    /// To name things in it, for which it need not be readable.
    fn open_parent(&self, below: &Path, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        self.open_below(below, OFlags::PATH | OFlags::DIRECTORY, resolve)
    }

    fn open_dir(&self, below: &Path, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        self.open_below(below, OFlags::RDONLY | OFlags::DIRECTORY, resolve)
    }

    fn open_below(
        &self,
        below: &Path,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> Result<OwnedFd, Errno> {
        let empty = below.as_os_str().is_empty();
        let below = if empty { Path::new(".") } else { below };
        openat2(&self.dir, below, flags, resolve)
    }
}

impl Place {
    fn new(dir: OwnedFd, name: &OsStr) -> io::Result<Self> {
        let path = real_path(&dir)?.join(name);
        Ok(Place {
            dir,
            name: name.to_owned(),
            path,
        })
    }

    fn is_link(&self) -> bool {
        rustix::fs::readlinkat(&self.dir, &self.name, Vec::new()).is_ok()
    }
}

fn openat2(
    dir: &OwnedFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut flags = flags | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        match rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // In a worker the gate carries opens out, and cannot hand over what can only be named.
            Err(Errno::NOSYS) if flags.contains(OFlags::PATH) => {
                flags.remove(OFlags::PATH);
                flags |= OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
            }
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// The path of what is open, as the kernel knows it.
pub(super) fn real_path(fd: impl AsFd) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let path = rustix::fs::readlinkat(CWD, link, Vec::new())?.into_bytes();
    if !path.starts_with(b"/") || path.ends_with(b" (deleted)") && !exists(&path) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(PathBuf::from(OsString::from_vec(path)))
}

fn exists(path: &[u8]) -> bool {
    rustix::fs::statat(
        CWD,
        OsStr::from_bytes(path),
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .is_ok()
}

/// `Path::components` passes over a `.` at the end.
fn ends_in_slash_dot(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/.")
}

fn at(path: &Path, error: Errno) -> Failure {
    match error {
        Errno::XDEV => refused(path, "it leads outside of the allowed roots"),
        Errno::LOOP => refused(path, "it has a link in it that may not be followed"),
        error => Failure::io(path.display(), error),
    }
}

fn unfit(path: &Path, why: &str) -> Failure {
    Failure::new(format!("{}: {why}", path.display()))
}

/// As [`unfit`], for what is not allowed.
fn refused(path: &Path, why: &str) -> Failure {
    let mut failure = unfit(path, why);
    failure.denied = true;
    failure
}
