//! What a process has loaded.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::AsFd;

use invigil_schema::{Digest, Errno, OsText};
use sha2::Digest as _;

use crate::paths::PATH_MAX;
use crate::sys::fs::{self, At, cstring};
use crate::sys::{self, Sys};

/// How many bytes of arguments a fact holds. Escaped as JSON they can become six times as many.
const ARGUMENTS_MAX: usize = 128 * 1024;
/// How many digests are remembered.
const CACHE_MAX: usize = 4096;

/// A fresh image, in which no instruction has run.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) executable: OsText,
    /// All of them.
    pub(crate) argv: Vec<OsText>,
    pub(crate) cwd: OsText,
    pub(crate) sha256: Option<Digest>,
    /// It would give the rights of its owner to whoever loads it.
    pub(crate) lends_rights: bool,
}

/// Which state of which file a digest is of.
type FileState = (u64, u64, i64, i64, i64, i64, i64);

fn state(stat: &libc::stat) -> FileState {
    (
        stat.st_dev,
        stat.st_ino,
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec,
        stat.st_ctime,
        stat.st_ctime_nsec,
    )
}

/// Digests of executables, by the state of the file.
#[derive(Debug, Default)]
pub(crate) struct Digests(HashMap<FileState, Digest>);

impl Digests {
    /// The digest of an executable that looks like this; None if it cannot be read.
    fn of(&mut self, path: &CStr, stat: &libc::stat) -> Sys<Option<Digest>> {
        if let Some(digest) = self.0.get(&state(stat)) {
            return Ok(Some(*digest));
        }
        let held = fs::open(At::Cwd, path, libc::O_RDONLY, 0, 0)?;
        let state = state(&fs::fstat(held.as_fd())?);
        let mut hasher = sha2::Sha256::new();
        let mut file = std::fs::File::from(held);
        if std::io::copy(&mut file, &mut HashWriter(&mut hasher)).is_err() {
            return Ok(None);
        }
        let digest = Digest::from_bytes(hasher.finalize().into());
        if self.0.len() >= CACHE_MAX {
            self.0.clear();
        }
        self.0.insert(state, digest);
        Ok(Some(digest))
    }
}

struct HashWriter<'a>(&'a mut sha2::Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn link(pid: u32, name: &str) -> OsText {
    let read = cstring(format!("/proc/{pid}/{name}")).and_then(|path| fs::readlink(At::Cwd, &path));
    read.map_or_else(|_| "(unreadable)".into(), Into::into)
}

/// Looks at a process that has just loaded a program. `cwd` is its directory if that is known.
pub(crate) fn look(pid: u32, cwd: Option<Vec<u8>>, digests: Option<&mut Digests>) -> Image {
    let path = cstring(format!("/proc/{pid}/exe"));
    let file = path.and_then(|path| Ok((fs::stat(At::Cwd, &path)?, path)));
    let of_others = libc::S_ISUID | libc::S_ISGID;
    Image {
        lends_rights: matches!(&file, Ok((stat, _)) if stat.st_mode & of_others != 0),
        executable: link(pid, "exe"),
        argv: arguments(pid).unwrap_or_default(),
        cwd: cwd.map_or_else(|| link(pid, "cwd"), Into::into),
        sha256: digests.and_then(|digests| {
            let (stat, path) = file.ok()?;
            digests.of(&path, &stat).ok().flatten()
        }),
    }
}

/// How many arguments are read of a program that is not loaded yet.
const ARGUMENTS_READ: usize = 4096;

/// Reads the arguments that a caller wants to start a program with, and says whether there are more. The caller can
/// still change them.
pub(crate) fn wanted_arguments(tid: u32, address: u64) -> (Vec<OsText>, bool) {
    const POINTER: u64 = 8;
    let (mut argv, mut bytes) = (Vec::new(), 0);
    for n in 0..ARGUMENTS_READ as u64 {
        if address == 0 {
            return (argv, false);
        }
        let pointer = sys::read_array(tid, address.wrapping_add(n * POINTER));
        match pointer.map(u64::from_ne_bytes) {
            Ok(0) => return (argv, false),
            Ok(at) => match sys::read_string(tid, at, ARGUMENTS_MAX - bytes) {
                Ok(text) => {
                    bytes += text.len();
                    argv.push(text.into());
                }
                Err(_) => return (argv, true),
            },
            Err(_) => return (argv, true),
        }
    }
    (argv, true)
}

/// What a process has just asked the kernel to load, letter for letter. The kernel keeps it in the fresh image.
pub(crate) fn name(pid: u32) -> Sys<OsText> {
    const AT_EXECFN: u64 = 31;
    let vector = fs::read_dense(&cstring(format!("/proc/{pid}/auxv"))?)?;
    let mut words = vector.as_chunks::<8>().0.iter().copied();
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        if u64::from_ne_bytes(key) == AT_EXECFN {
            let at = u64::from_ne_bytes(value);
            return sys::read_string(pid, at, PATH_MAX).map(Into::into);
        }
    }
    Err(Errno(libc::ENOENT))
}

fn arguments(pid: u32) -> Sys<Vec<OsText>> {
    let bytes = fs::read_dense(&cstring(format!("/proc/{pid}/cmdline"))?)?;
    Ok(split_arguments(&bytes))
}

fn split_arguments(bytes: &[u8]) -> Vec<OsText> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let whole = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    let argv = whole.split(|&b| b == 0);
    argv.map(|a| a.to_vec().into()).collect()
}

/// As many arguments as a fact holds, and how many bytes are left off.
pub(crate) fn recorded(argv: Vec<OsText>) -> (Vec<OsText>, u64) {
    cut(argv, ARGUMENTS_MAX)
}

fn cut(mut argv: Vec<OsText>, limit: usize) -> (Vec<OsText>, u64) {
    let (mut room, mut left_off) = (limit, 0);
    argv.retain_mut(|argument| {
        let length = argument.as_bytes().len();
        if room == 0 {
            left_off += length as u64 + 1;
            return false;
        }
        if length > room {
            left_off += (length - room) as u64 + 1;
            *argument = argument.as_bytes()[..room].to_vec().into();
        }
        // Each has an end, which counts too.
        room = room.saturating_sub(length + 1);
        true
    });
    (argv, left_off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_whole_or_say_that_they_are_not() {
        let argv = split_arguments(b"sh\0-c\0\0");
        assert_eq!(argv, ["sh".into(), "-c".into(), "".into()]);
        assert_eq!(cut(argv.clone(), 100), (argv, 0));
        let argv = split_arguments(b"sh\0-c\0exit\0");
        assert_eq!(
            cut(argv, 8),
            (vec!["sh".into(), "-c".into(), "ex".into()], 3)
        );
        assert_eq!(split_arguments(b""), []);
    }

    #[test]
    fn our_own_image() {
        let mut digests = Digests::default();
        let image = look(std::process::id(), None, Some(&mut digests));
        assert!(image.executable.as_bytes().starts_with(b"/"));
        assert!(image.sha256.is_some());
        assert_eq!(
            look(std::process::id(), None, Some(&mut digests)).sha256,
            image.sha256
        );
        assert_eq!(digests.0.len(), 1);
    }
}
