//! From what a caller wrote to the file that the kernel would take: its cwd, its descriptors, its `/proc/self`.
//!
//! Everything ends in a descriptor of ours, and the path that is reported is what the kernel says of that descriptor,
//! so the file that is judged, the file that is reported and the file that is changed are the same file.

use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::LazyLock;

use invigil_schema::Errno;

use crate::sys::fs::{self, At, cstring};
use crate::sys::{self, Sys};

/// The longest path that the kernel takes, with its zero byte.
pub(crate) const PATH_MAX: usize = 4096;
const NO_MAGIC: u64 = libc::RESOLVE_NO_MAGICLINKS;
const NO_LINKS: u64 = libc::RESOLVE_NO_SYMLINKS | NO_MAGIC;

/// Who makes a call.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The thread.
    pub(crate) tid: u32,
    /// Its process.
    pub(crate) pid: u32,
    /// The working directory, once somebody has asked for it.
    pub(crate) cwd: Cwd,
    /// Its process, held, once somebody has asked for it.
    pub(crate) process: Held,
}

/// A process that is held by a descriptor. It goes on meaning that process, whatever becomes of its number.
pub(crate) type Held = Rc<OnceCell<HeldProcess>>;

/// See [`Held`].
#[derive(Debug)]
pub(crate) struct HeldProcess(OwnedFd);

/// How many processes are held before they are looked up each time.
const PROCESSES_KEPT: usize = 64;

impl Drop for HeldProcess {
    fn drop(&mut self) {
        PROCESSES.set(PROCESSES.get() - 1);
    }
}

impl Caller {
    /// A duplicate of one of its descriptors.
    pub(crate) fn duplicate(&self, fd: i32) -> Sys<OwnedFd> {
        let duplicated = match self.process.get() {
            Some(held) => sys::pidfd_getfd(held.0.as_fd(), fd),
            None => {
                let pidfd = sys::pidfd_open(self.pid, false)?;
                let duplicated = sys::pidfd_getfd(pidfd.as_fd(), fd);
                if PROCESSES.get() < PROCESSES_KEPT {
                    PROCESSES.set(PROCESSES.get() + 1);
                    let _ = self.process.set(HeldProcess(pidfd));
                }
                duplicated
            }
        };
        match duplicated {
            // A leader that has exited has no descriptors; its threads still do.
            Err(Errno(libc::ESRCH)) => {
                let thread = sys::pidfd_open(self.tid, true)?;
                sys::pidfd_getfd(thread.as_fd(), fd)
            }
            other => other,
        }
    }
}

/// A working directory, which processes share until one of them leaves it.
pub(crate) type Cwd = Rc<OnceCell<Rc<Dir>>>;

/// A directory that is held open.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    /// What the kernel called it when that was first asked. A rename within the run makes it forgotten.
    path: RefCell<Option<Vec<u8>>>,
}

/// How many directories are held before working directories are looked up each time.
const DIRS_KEPT: usize = 128;

thread_local! {
    static DIRS: Cell<usize> = const { Cell::new(0) };
    static PROCESSES: Cell<usize> = const { Cell::new(0) };
}

impl Drop for Dir {
    fn drop(&mut self) {
        DIRS.set(DIRS.get() - 1);
    }
}

impl Dir {
    fn new(fd: OwnedFd) -> Rc<Dir> {
        Dir::with(fd, None)
    }

    fn called(fd: OwnedFd, path: Vec<u8>) -> Rc<Dir> {
        Dir::with(fd, Some(path))
    }

    fn with(fd: OwnedFd, path: Option<Vec<u8>>) -> Rc<Dir> {
        DIRS.set(DIRS.get() + 1);
        Rc::new(Dir {
            fd,
            path: RefCell::new(path),
        })
    }

    fn path(&self) -> Result<Vec<u8>, Stop> {
        if let Some(path) = self.path.borrow().as_ref() {
            return Ok(path.clone());
        }
        let path = outside_of_us(self.fd.as_fd())?;
        *self.path.borrow_mut() = Some(path.clone());
        Ok(path)
    }

    /// What it is called, if that has been asked before.
    pub(crate) fn known_path(&self) -> Option<Vec<u8>> {
        self.path.borrow().clone()
    }

    /// Forgets the path if something on the way to it has been renamed.
    pub(crate) fn renamed(&self, path: &[u8]) {
        let mut own = self.path.borrow_mut();
        if own.as_ref().is_some_and(|own| is_below(own, path)) {
            *own = None;
        }
    }
}

/// Why a call is not carried out on behalf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It fails like this, whoever makes it.
    Fail(Errno),
    /// Only the caller itself can make it as it would be.
    Native,
}

/// Tells an error of the call from one of ours.
pub(crate) fn stop(error: Errno) -> Stop {
    match error.0 {
        // A magic link, which is not ours to follow, or a true loop, which the kernel will find as well.
        libc::ELOOP => Stop::Native,
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOSYS | libc::EAGAIN | libc::EINTR => {
            Stop::Native
        }
        _ => Stop::Fail(error),
    }
}

/// Reads a path argument.
pub(crate) fn read_path(caller: &Caller, address: u64) -> Result<Vec<u8>, Stop> {
    match sys::read_string(caller.tid, address, PATH_MAX - 1) {
        Ok(text) => Ok(text),
        Err(Errno(libc::EFAULT)) => Err(Stop::Fail(Errno(libc::EFAULT))),
        Err(Errno(libc::ENAMETOOLONG)) => Err(Stop::Fail(Errno(libc::ENAMETOOLONG))),
        Err(_) => Err(Stop::Native),
    }
}

/// How many bytes of a path that no call takes are reported.
const TOO_LONG_MAX: usize = 64 * 1024;
/// What follows a path that was longer still.
const CUT: &[u8] = b" (cut)";

/// Reads a path argument for a fact, whether or not a call takes it.
pub(crate) fn read_any_path(caller: &Caller, address: u64) -> Sys<Vec<u8>> {
    let (mut text, whole) = sys::read_string_prefix(caller.tid, address, TOO_LONG_MAX)?;
    if !whole {
        text.extend_from_slice(CUT);
    }
    Ok(text)
}

/// Where a path starts, held open, and what is left of it.
#[derive(Debug)]
pub(crate) struct Base {
    start: Start,
    text: Vec<u8>,
    /// The path, once it is known that no symbolic link stands on the way.
    straight: RefCell<Option<Vec<u8>>>,
}

#[derive(Debug)]
enum Start {
    /// At the root.
    Root,
    /// At a directory.
    Dir(Rc<Dir>),
    /// It is an open file of the caller; nothing is left.
    File(i32),
}

/// A name in a directory that is held open.
#[derive(Debug)]
pub(crate) struct Located {
    parent: Rc<Dir>,
    /// The name, perhaps with slashes behind it.
    pub(crate) name: CString,
    /// The absolute path of the name; symbolic links in front of it are resolved.
    pub(crate) path: Vec<u8>,
}

impl Located {
    pub(crate) fn new(dir: OwnedFd, name: CString, path: Vec<u8>) -> Located {
        Located {
            parent: Dir::new(dir),
            name,
            path,
        }
    }

    /// Whether the name still stands where it stood when it was judged.
    pub(crate) fn is_in_place(&self) -> bool {
        let parent = fs::path_of(self.parent.fd.as_fd());
        parent.is_ok_and(|parent| join(&parent, self.name.to_bytes()) == self.path)
    }

    /// As system calls take it.
    pub(crate) fn at(&self) -> At<'_> {
        At::Dir(self.parent.fd.as_fd())
    }
}

/// A file that is held, without being open for anything.
#[derive(Debug)]
pub(crate) struct Target {
    /// Holds it.
    pub(crate) fd: OwnedFd,
    /// What the kernel calls it.
    pub(crate) path: Vec<u8>,
}

impl Target {
    /// A path that leads to exactly this file.
    pub(crate) fn handle(&self) -> CString {
        fs::own_fd_path(self.fd.as_fd())
    }
}

fn strip<'a>(text: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let rest = text.strip_prefix(prefix)?;
    match rest.first() {
        None => Some(rest),
        Some(b'/') => Some(rest.trim_ascii_start_slashes()),
        Some(_) => None,
    }
}

trait Slashes {
    fn trim_ascii_start_slashes(&self) -> &[u8];
    fn trim_end_slashes(&self) -> &[u8];
}

impl Slashes for [u8] {
    fn trim_ascii_start_slashes(&self) -> &[u8] {
        let start = self.iter().position(|&b| b != b'/').unwrap_or(self.len());
        &self[start..]
    }
    fn trim_end_slashes(&self) -> &[u8] {
        let end = self.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
        &self[..end]
    }
}

/// A directory descriptor of the caller, by number; `AT_FDCWD` is its working directory.
fn dir_path(caller: &Caller, dir: i32) -> String {
    match dir {
        libc::AT_FDCWD => format!("/proc/{}/cwd", caller.tid),
        fd => format!("/proc/{}/fd/{fd}", caller.tid),
    }
}

impl Base {
    fn new(start: Start, text: impl Into<Vec<u8>>) -> Base {
        Base {
            start,
            text: text.into(),
            straight: RefCell::new(None),
        }
    }

    /// Finds where `text` starts for the caller.
    pub(crate) fn of(caller: &Caller, dir: i32, text: &[u8]) -> Result<Base, Stop> {
        if text.is_empty() {
            return Err(Stop::Fail(Errno(libc::ENOENT)));
        }
        if text[0] != b'/' {
            return Ok(Base::new(open_dir(caller, dir)?, text));
        }
        for (prefix, number) in [
            (&b"/dev/stdin"[..], 0),
            (b"/dev/stdout", 1),
            (b"/dev/stderr", 2),
        ] {
            if text == prefix {
                return Ok(Base::new(Start::File(number), *b""));
            }
        }
        if let Some(rest) = strip(text, b"/dev/fd") {
            return Base::in_fds(caller, rest);
        }
        let pid = caller.pid.to_string();
        let own = ["/proc/self", &format!("/proc/{pid}")]
            .into_iter()
            .find_map(|p| strip(text, p.as_bytes()));
        if let Some(rest) = own {
            return Base::in_proc(caller, rest);
        }
        if let Some(rest) = strip(text, b"/proc/thread-self") {
            let text = [format!("/proc/{pid}/task/{}/", caller.tid).as_bytes(), rest].concat();
            return Ok(Base::new(Start::Root, text));
        }
        Ok(Base::new(Start::Root, text))
    }

    /// Continues a symbolic link that stands in a directory of ours.
    pub(crate) fn of_link(caller: &Caller, link: &Located, text: &[u8]) -> Result<Base, Stop> {
        if text.first() == Some(&b'/') {
            return Base::of(caller, libc::AT_FDCWD, text);
        }
        Ok(Base::new(Start::Dir(Rc::clone(&link.parent)), text))
    }

    fn in_proc(caller: &Caller, rest: &[u8]) -> Result<Base, Stop> {
        if let Some(rest) = strip(rest, b"fd") {
            return Base::in_fds(caller, rest);
        }
        if let Some(rest) = strip(rest, b"cwd") {
            let text = if rest.is_empty() {
                b".".to_vec()
            } else {
                rest.to_vec()
            };
            return Ok(Base::new(open_dir(caller, libc::AT_FDCWD)?, text));
        }
        if let Some(rest) = strip(rest, b"root") {
            return Ok(Base::new(Start::Root, [b"/", rest].concat()));
        }
        let text = [format!("/proc/{}/", caller.pid).as_bytes(), rest].concat();
        Ok(Base::new(Start::Root, text))
    }

    fn in_fds(caller: &Caller, rest: &[u8]) -> Result<Base, Stop> {
        let (number, rest) = match rest.iter().position(|&b| b == b'/') {
            Some(slash) => (&rest[..slash], rest[slash..].trim_ascii_start_slashes()),
            None => (rest, &b""[..]),
        };
        let parsed = str::from_utf8(number)
            .ok()
            .and_then(|n| n.parse::<i32>().ok());
        let Some(fd) = parsed.filter(|fd| *fd >= 0) else {
            return Err(Stop::Native);
        };
        if rest.is_empty() {
            return Ok(Base::new(Start::File(fd), *b""));
        }
        Ok(Base::new(open_dir(caller, fd)?, rest))
    }

    /// The directory that a relative path of the caller starts at.
    pub(crate) fn start(caller: &Caller, dir: i32) -> Result<Base, Stop> {
        Ok(Base::new(open_dir(caller, dir)?, *b""))
    }

    pub(crate) fn at(&self) -> At<'_> {
        match &self.start {
            Start::Dir(dir) => At::Dir(dir.fd.as_fd()),
            Start::Root | Start::File(_) => At::Cwd,
        }
    }

    /// Holds the file at the end of the path. `flags` are `O_NOFOLLOW` and `O_DIRECTORY`.
    pub(crate) fn target(&self, caller: &Caller, flags: i32, resolve: u64) -> Result<Target, Stop> {
        let fd = match self.start {
            Start::File(number) => {
                let path = cstring(dir_path(caller, number)).map_err(Stop::Fail)?;
                fs::open(
                    At::Cwd,
                    &path,
                    libc::O_PATH | flags & libc::O_DIRECTORY,
                    0,
                    0,
                )
                .map_err(stop)?
            }
            Start::Root | Start::Dir(_) => {
                let text = cstring(self.text.clone()).map_err(Stop::Fail)?;
                let flags = libc::O_PATH | flags;
                match self.open_straight(&text, &self.text, flags, resolve) {
                    Some((opened, path)) => {
                        return match opened {
                            Ok(fd) => Ok(Target { fd, path }),
                            Err(error) => {
                                *self.straight.borrow_mut() = Some(path);
                                Err(stop(error))
                            }
                        };
                    }
                    None => {
                        fs::open(self.at(), &text, flags, 0, resolve | NO_MAGIC).map_err(stop)?
                    }
                }
            }
        };
        let path = outside_of_us(fd.as_fd())?;
        Ok(Target { fd, path })
    }

    /// The path of something that could not be held, if it is known that no symbolic link stands on the way to it.
    pub(crate) fn straight_path(&self) -> Option<Vec<u8>> {
        self.straight.borrow().clone()
    }

    /// Opens `text` if no symbolic link stands on the way, and says what it is called: where there are no links and no
    /// `..`, a path is its own resolution, and nobody has to be asked for it. None if there are any.
    fn open_straight(
        &self,
        text: &CStr,
        plain: &[u8],
        flags: i32,
        resolve: u64,
    ) -> Option<(Sys<OwnedFd>, Vec<u8>)> {
        if plain.split(|&b| b == b'/').any(|part| part == b"..") {
            return None;
        }
        let start = match &self.start {
            Start::Root => Vec::new(),
            Start::Dir(dir) => dir.path().ok()?,
            Start::File(_) => return None,
        };
        if start.first().is_some_and(|&b| b != b'/') {
            return None;
        }
        let path = join(&start, plain);
        if is_us(&path) {
            return None;
        }
        match fs::open(self.at(), text, flags, 0, resolve | NO_LINKS) {
            Err(Errno(libc::ELOOP)) => None,
            opened => Some((opened, path)),
        }
    }

    /// Opens a file for reading at once, with the path that it has. None if that takes more than this.
    pub(crate) fn read_now(&self, flags: i32) -> Option<Result<Target, Stop>> {
        if matches!(self.start, Start::File(_)) {
            return None;
        }
        let text = cstring(self.text.clone()).ok()?;
        // What a device or a FIFO does when it is opened depends on who opens it, and it may block.
        let kind = fs::stat(self.at(), &text).map(|stat| stat.st_mode & libc::S_IFMT);
        let flags = match kind {
            Ok(libc::S_IFREG | libc::S_IFDIR) => flags | libc::O_NOCTTY,
            Ok(_) => return None,
            // It is not there, or cannot be reached. Where that ends says what it is called.
            Err(_) => libc::O_PATH,
        };
        let target = match self.open_straight(&text, &self.text, flags, 0) {
            Some((Ok(fd), path)) => Target { fd, path },
            Some((Err(error), path)) => {
                *self.straight.borrow_mut() = Some(path);
                return Some(Err(stop(error)));
            }
            None => {
                let fd = fs::open(self.at(), &text, flags, 0, NO_MAGIC).ok()?;
                let path = outside_of_us(fd.as_fd()).ok()?;
                Target { fd, path }
            }
        };
        (kind.is_ok() && !target.path.starts_with(b"/proc/")).then_some(Ok(target))
    }

    /// Holds the directory that the last name of the path stands in.
    pub(crate) fn locate(&self) -> Result<Located, Stop> {
        if matches!(self.start, Start::File(_)) {
            return Err(Stop::Native);
        }
        let (dir, name) = split_name(&self.text);
        let parent = match (&self.start, dir) {
            (Start::Dir(base), b".") => Rc::clone(base),
            _ => {
                let text = cstring(dir).map_err(Stop::Fail)?;
                let flags = libc::O_PATH | libc::O_DIRECTORY;
                match self.open_straight(&text, dir, flags, 0) {
                    Some((opened, path)) => Dir::called(opened.map_err(stop)?, path),
                    None => Dir::new(fs::open(self.at(), &text, flags, 0, NO_MAGIC).map_err(stop)?),
                }
            }
        };
        let path = join(&parent.path()?, name);
        Ok(Located {
            parent,
            name: cstring(name).map_err(Stop::Fail)?,
            path,
        })
    }
}

/// The directory and the last name of a path.
fn split_name(text: &[u8]) -> (&[u8], &[u8]) {
    let trimmed = text.trim_end_slashes();
    match trimmed.iter().rposition(|&b| b == b'/') {
        Some(0) => (b"/", &text[1..]),
        Some(slash) => (&text[..slash], &text[slash + 1..]),
        None if trimmed.is_empty() => (b"/", b"/"),
        None => (b".", text),
    }
}

/// Holds two names, which are mostly in the same directory.
pub(crate) fn locate_two(
    caller: &Caller,
    (dir, text): (i32, &[u8]),
    (dir2, text2): (i32, &[u8]),
) -> Result<(Located, Located), Stop> {
    let from = Base::of(caller, dir, text)?.locate()?;
    let ((parent, _), (parent2, name2)) = (split_name(text), split_name(text2));
    let beside = dir == dir2 && parent == parent2 && !text2.is_empty();
    let to = if beside {
        Located {
            parent: Rc::clone(&from.parent),
            path: join(&from.parent.path()?, name2),
            name: cstring(name2).map_err(Stop::Fail)?,
        }
    } else {
        Base::of(caller, dir2, text2)?.locate()?
    };
    Ok((from, to))
}

fn open_dir(caller: &Caller, dir: i32) -> Result<Start, Stop> {
    if dir == libc::AT_FDCWD
        && let Some(cwd) = caller.cwd.get()
    {
        return Ok(Start::Dir(Rc::clone(cwd)));
    }
    let path = cstring(dir_path(caller, dir)).map_err(Stop::Fail)?;
    match fs::open(At::Cwd, &path, libc::O_PATH | libc::O_DIRECTORY, 0, 0) {
        Ok(fd) => {
            let opened = Dir::new(fd);
            if dir == libc::AT_FDCWD && DIRS.get() < DIRS_KEPT {
                let _ = caller.cwd.set(Rc::clone(&opened));
            }
            Ok(Start::Dir(opened))
        }
        Err(Errno(libc::ENOENT)) if dir != libc::AT_FDCWD => Err(Stop::Fail(Errno(libc::EBADF))),
        Err(Errno(libc::ENOTDIR)) => Err(Stop::Fail(Errno(libc::ENOTDIR))),
        Err(_) => Err(Stop::Native),
    }
}

/// The path behind a descriptor; native if the way led to our own entry in `/proc`, where the caller's was meant.
fn outside_of_us(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Stop> {
    let path = fs::path_of(fd).map_err(|_| Stop::Native)?;
    if is_us(&path) {
        return Err(Stop::Native);
    }
    Ok(path)
}

/// Whether a path leads to our own entry in `/proc`.
fn is_us(path: &[u8]) -> bool {
    static OURS: LazyLock<Vec<u8>> =
        LazyLock::new(|| format!("/proc/{}", std::process::id()).into_bytes());
    path.starts_with(b"/proc/") && strip(path, &OURS).is_some()
}

/// A directory and what is in it, without `.`, `..` and doubled slashes.
pub(crate) fn join(dir: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut path = dir.trim_end_slashes().to_vec();
    for part in rest.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                let end = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
                path.truncate(end);
            }
            part => {
                path.push(b'/');
                path.extend_from_slice(part);
            }
        }
    }
    if path.is_empty() {
        path.push(b'/');
    }
    path
}

/// The absolute path as written, for a call that does not reach a file.
pub(crate) fn as_written(caller: &Caller, dir: i32, text: &[u8]) -> Vec<u8> {
    if text.first() == Some(&b'/') {
        return join(b"", text);
    }
    let base = cstring(dir_path(caller, dir))
        .and_then(|path| fs::open(At::Cwd, &path, libc::O_PATH, 0, 0))
        .and_then(|base| fs::path_of(base.as_fd()));
    match base {
        Ok(base) if text.is_empty() => base,
        Ok(base) => join(&base, text),
        Err(_) => join(format!("(fd {dir})").as_bytes(), text),
    }
}

/// What the kernel calls an open file of the caller.
pub(crate) fn of_descriptor(caller: &Caller, fd: i32) -> Sys<Vec<u8>> {
    fs::readlink(At::Cwd, &cstring(dir_path(caller, fd))?)
}

/// Whether `path` is `root` or lies below it.
pub(crate) fn is_below(path: &[u8], root: &[u8]) -> bool {
    strip(path, root.trim_end_slashes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us() -> Caller {
        let pid = std::process::id();
        Caller {
            tid: pid,
            pid,
            cwd: Cwd::default(),
            process: Held::default(),
        }
    }

    #[test]
    fn joining() {
        assert_eq!(join(b"/a", b"b/./c//d"), b"/a/b/c/d");
        assert_eq!(join(b"/a/b", b"../c/"), b"/a/c");
        assert_eq!(join(b"/", b"x"), b"/x");
        assert_eq!(join(b"/a", b"../../.."), b"/");
    }

    #[test]
    fn below_means_below() {
        assert!(is_below(b"/store/x", b"/store"));
        assert!(is_below(b"/store", b"/store/"));
        assert!(!is_below(b"/storeroom", b"/store"));
    }

    #[test]
    fn the_callers_own_proc() {
        let pid = std::process::id();
        let us = us();
        let of = |text: &[u8]| Base::of(&us, libc::AT_FDCWD, text);
        assert!(matches!(of(b"/dev/stdout").unwrap().start, Start::File(1)));
        assert!(matches!(
            of(b"/proc/self/fd/7").unwrap().start,
            Start::File(7)
        ));
        assert!(matches!(of(b"/dev/fd//9").unwrap().start, Start::File(9)));
        assert!(matches!(of(b"/dev/fdx").unwrap().start, Start::Root));
        assert_eq!(
            of(b"/proc/self/comm").unwrap().text,
            format!("/proc/{pid}/comm").as_bytes()
        );
        assert_eq!(of(b"").unwrap_err(), Stop::Fail(Errno(libc::ENOENT)));
    }

    #[test]
    fn our_own_descriptors_are_out_of_reach() {
        let us = us();
        for text in [&b"/proc/self/../self/fd/0"[..], b"/proc/self/../self/comm"] {
            // Not the caller's /proc/self by its text, and ours by what it leads to.
            let base = Base::new(Start::Root, text);
            assert_eq!(base.target(&us, 0, 0).unwrap_err(), Stop::Native);
        }
    }
}
