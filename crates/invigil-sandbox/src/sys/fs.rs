//! Files, by directory descriptor and name.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::LazyLock;

use invigil_schema::Errno;

use super::{Sys, check, own};

/// A path for the kernel. One with a zero byte inside cannot come from a C string, and names nothing.
pub(crate) fn cstring(bytes: impl Into<Vec<u8>>) -> Sys<CString> {
    CString::new(bytes).map_err(|_| Errno(libc::ENOENT))
}

/// Where a relative path starts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum At<'a> {
    /// It is absolute, or relative to our own directory.
    Cwd,
    /// A directory.
    Dir(BorrowedFd<'a>),
}

impl At<'_> {
    fn raw(self) -> RawFd {
        match self {
            At::Cwd => libc::AT_FDCWD,
            At::Dir(fd) => fd.as_raw_fd(),
        }
    }
}

/// `openat2`. `O_CLOEXEC` is always added.
pub(crate) fn open(at: At<'_>, path: &CStr, flags: i32, mode: u32, resolve: u64) -> Sys<OwnedFd> {
    if resolve == 0 {
        // SAFETY: `path` ends in a zero byte.
        return own(check(unsafe {
            libc::openat(at.raw(), path.as_ptr(), flags | libc::O_CLOEXEC, mode)
        }));
    }
    // SAFETY: all-zero is a valid `open_how`.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u32 as u64;
    if flags & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) != 0 {
        how.mode = u64::from(mode & 0o7777);
    }
    how.resolve = resolve;
    // SAFETY: `path` ends in a zero byte and `how` has the size that is given.
    own(check(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            at.raw(),
            path.as_ptr(),
            &how,
            size_of::<libc::open_how>(),
        )
    }))
}

/// `readlinkat`, whole, however long.
pub(crate) fn readlink(at: At<'_>, path: &CStr) -> Sys<Vec<u8>> {
    let mut buffer: Vec<u8> = Vec::with_capacity(512);
    loop {
        // SAFETY: the capacity is what the kernel may fill, and only what it filled becomes the length.
        unsafe {
            let read = check(libc::readlinkat(
                at.raw(),
                path.as_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.capacity(),
            ) as i64)?;
            if (read as usize) < buffer.capacity() {
                buffer.set_len(read as usize);
                return Ok(buffer);
            }
        }
        buffer.reserve(buffer.capacity() * 2);
    }
}

/// What the kernel calls the file behind a descriptor of ours. The former path of a file that is gone follows
/// `(deleted)`, so that it is not mistaken for one that is there.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> Sys<Vec<u8>> {
    let path = match OWN_FDS.as_ref() {
        Some(dir) => readlink(At::Dir(dir.as_fd()), &number(fd))?,
        None => readlink(At::Cwd, &own_fd_path(fd))?,
    };
    // The kernel's own mark could also be the end of a name.
    match path.strip_suffix(b" (deleted)") {
        Some(former) if fstat(fd)?.st_nlink == 0 => Ok([b"(deleted)", former].concat()),
        _ => Ok(path),
    }
}

/// Our own descriptors, as a directory: from here a link is one step away.
static OWN_FDS: LazyLock<Option<OwnedFd>> = LazyLock::new(|| {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    open(At::Cwd, c"/proc/self/fd", flags, 0, 0).ok()
});

fn number(fd: BorrowedFd<'_>) -> CString {
    // Digits hold no zero byte.
    CString::new(fd.as_raw_fd().to_string()).unwrap_or_default()
}

/// Opens what a descriptor of ours holds once more.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: i32) -> Sys<OwnedFd> {
    match OWN_FDS.as_ref() {
        Some(dir) => open(At::Dir(dir.as_fd()), &number(fd), flags, 0, 0),
        None => open(At::Cwd, &own_fd_path(fd), flags, 0, 0),
    }
}

/// The name under which a descriptor of ours can be opened again.
pub(crate) fn own_fd_path(fd: BorrowedFd<'_>) -> CString {
    // Digits hold no zero byte.
    CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default()
}

/// `fstat`.
pub(crate) fn fstat(fd: BorrowedFd<'_>) -> Sys<libc::stat> {
    // SAFETY: all-zero is a valid `stat`, and the call only fills it.
    unsafe {
        let mut stat = std::mem::zeroed();
        check(libc::fstat(fd.as_raw_fd(), &mut stat))?;
        Ok(stat)
    }
}

/// `stat`, following symbolic links.
pub(crate) fn stat(at: At<'_>, path: &CStr) -> Sys<libc::stat> {
    // SAFETY: all-zero is a valid `stat`, and the call only fills it; `path` ends in a zero byte.
    unsafe {
        let mut stat = std::mem::zeroed();
        check(libc::fstatat(at.raw(), path.as_ptr(), &mut stat, 0))?;
        Ok(stat)
    }
}

/// Whether a descriptor holds something of a `proc` file system.
pub(crate) fn is_proc(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: all-zero is a valid `statfs`, and the call only fills it.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        libc::fstatfs(fd.as_raw_fd(), &mut stat) == 0 && stat.f_type == libc::PROC_SUPER_MAGIC
    }
}

/// `mkdirat`.
pub(crate) fn mkdir(at: At<'_>, path: &CStr, mode: u32) -> Sys<()> {
    // SAFETY: `path` ends in a zero byte.
    check(unsafe { libc::mkdirat(at.raw(), path.as_ptr(), mode) }).map(drop)
}

/// `mknodat`.
pub(crate) fn mknod(at: At<'_>, path: &CStr, mode: u32, device: u64) -> Sys<()> {
    // SAFETY: `path` ends in a zero byte.
    check(unsafe { libc::mknodat(at.raw(), path.as_ptr(), mode, device) }).map(drop)
}

/// `unlinkat`.
pub(crate) fn unlink(at: At<'_>, path: &CStr, flags: i32) -> Sys<()> {
    // SAFETY: `path` ends in a zero byte.
    check(unsafe { libc::unlinkat(at.raw(), path.as_ptr(), flags) }).map(drop)
}

/// `symlinkat`.
pub(crate) fn symlink(target: &CStr, at: At<'_>, path: &CStr) -> Sys<()> {
    // SAFETY: both strings end in a zero byte.
    check(unsafe { libc::symlinkat(target.as_ptr(), at.raw(), path.as_ptr()) }).map(drop)
}

/// `linkat`.
pub(crate) fn link(from: (At<'_>, &CStr), to: (At<'_>, &CStr), flags: i32) -> Sys<()> {
    // SAFETY: both strings end in a zero byte.
    check(unsafe {
        libc::linkat(
            from.0.raw(),
            from.1.as_ptr(),
            to.0.raw(),
            to.1.as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// `renameat2`.
pub(crate) fn rename(from: (At<'_>, &CStr), to: (At<'_>, &CStr), flags: u32) -> Sys<()> {
    // SAFETY: both strings end in a zero byte.
    check(unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            from.0.raw(),
            from.1.as_ptr(),
            to.0.raw(),
            to.1.as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// `chmod`, following symbolic links.
pub(crate) fn chmod(path: &CStr, mode: u32) -> Sys<()> {
    // SAFETY: `path` ends in a zero byte.
    check(unsafe { libc::chmod(path.as_ptr(), mode) }).map(drop)
}

/// `fchmod`.
pub(crate) fn fchmod(fd: BorrowedFd<'_>, mode: u32) -> Sys<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::fchmod(fd.as_raw_fd(), mode) }).map(drop)
}

/// `fchown`.
pub(crate) fn fchown(fd: BorrowedFd<'_>, owner: u32, group: u32) -> Sys<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::fchown(fd.as_raw_fd(), owner, group) }).map(drop)
}

/// `futimens`; no times mean now.
pub(crate) fn futimes(fd: BorrowedFd<'_>, times: Option<&[libc::timespec; 2]>) -> Sys<()> {
    let times = times.map_or(std::ptr::null(), |t| t.as_ptr());
    // SAFETY: `times` is null or has two entries.
    check(unsafe { libc::futimens(fd.as_raw_fd(), times) }).map(drop)
}

/// `fchownat`.
pub(crate) fn chown(at: At<'_>, path: &CStr, owner: u32, group: u32, flags: i32) -> Sys<()> {
    // SAFETY: `path` ends in a zero byte.
    check(unsafe { libc::fchownat(at.raw(), path.as_ptr(), owner, group, flags) }).map(drop)
}

/// `chmod` of a file that is held. A symbolic link has no mode.
pub(crate) fn chmod_held(fd: BorrowedFd<'_>, mode: u32) -> Sys<()> {
    if fstat(fd)?.st_mode & libc::S_IFMT == libc::S_IFLNK {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    chmod(&own_fd_path(fd), mode)
}

/// `chown` of a file that is held, a symbolic link included.
pub(crate) fn chown_held(fd: BorrowedFd<'_>, owner: u32, group: u32) -> Sys<()> {
    chown(At::Dir(fd), c"", owner, group, libc::AT_EMPTY_PATH)
}

/// `utimensat` of a file that is held, a symbolic link included.
pub(crate) fn utimes_held(fd: BorrowedFd<'_>, times: Option<&[libc::timespec; 2]>) -> Sys<()> {
    utimes(At::Dir(fd), c"", times, libc::AT_EMPTY_PATH)
}

/// `setxattr`.
pub(crate) fn set_attribute(path: &CStr, name: &CStr, value: &[u8], create: i32) -> Sys<()> {
    // SAFETY: both strings end in a zero byte, and the value has the length that is given.
    check(unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            create,
        )
    })
    .map(drop)
}

/// `removexattr`.
pub(crate) fn remove_attribute(path: &CStr, name: &CStr) -> Sys<()> {
    // SAFETY: both strings end in a zero byte.
    check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}

/// `truncate`.
pub(crate) fn truncate(path: &CStr, length: i64) -> Sys<()> {
    // SAFETY: `path` ends in a zero byte.
    check(unsafe { libc::truncate(path.as_ptr(), length) }).map(drop)
}

/// `utimensat`; no times mean now.
pub(crate) fn utimes(
    at: At<'_>,
    path: &CStr,
    times: Option<&[libc::timespec; 2]>,
    flags: i32,
) -> Sys<()> {
    let times = times.map_or(std::ptr::null(), |t| t.as_ptr());
    // SAFETY: `path` ends in a zero byte; `times` is null or has two entries.
    check(unsafe { libc::utimensat(at.raw(), path.as_ptr(), times, flags) }).map(drop)
}

/// Whether a path exists.
pub(crate) fn exists(path: &CStr) -> bool {
    // SAFETY: `path` ends in a zero byte.
    unsafe { libc::access(path.as_ptr(), libc::F_OK) == 0 }
}

/// Reads a small file of `/proc` whole.
pub(crate) fn read_all(path: &CStr) -> Sys<Vec<u8>> {
    let fd = open(At::Cwd, path, libc::O_RDONLY, 0, 0)?;
    read_fd(fd, usize::MAX)
}

/// The same for a file that fills whatever room it gets unless it ends, as `stat` and `cmdline` of a process do.
pub(crate) fn read_dense(path: &CStr) -> Sys<Vec<u8>> {
    let fd = open(At::Cwd, path, libc::O_RDONLY, 0, 0)?;
    let mut bytes = vec![0; 4096];
    // SAFETY: the buffer has the length that is given.
    let read = check(unsafe {
        libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) as i64
    })?;
    let filled = read as usize == bytes.len();
    bytes.truncate(read as usize);
    if filled {
        bytes.extend(read_fd(fd, usize::MAX)?);
    }
    Ok(bytes)
}

/// Reads a descriptor to its end, or to a limit.
pub(crate) fn read_fd(fd: OwnedFd, limit: usize) -> Sys<Vec<u8>> {
    let mut bytes: Vec<u8> = Vec::with_capacity(1024);
    while bytes.len() < limit {
        if bytes.capacity() - bytes.len() < 512 {
            bytes.reserve(bytes.capacity());
        }
        let room = (bytes.capacity() - bytes.len()).min(limit - bytes.len());
        // SAFETY: `room` bytes are free behind the length, and only what was read is added to it.
        unsafe {
            let start = bytes.as_mut_ptr().add(bytes.len());
            let read = check(libc::read(fd.as_raw_fd(), start.cast(), room) as i64)?;
            if read == 0 {
                break;
            }
            bytes.set_len(bytes.len() + read as usize);
        }
    }
    Ok(bytes)
}

/// Writes all of `bytes`.
pub(crate) fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Sys<()> {
    while !bytes.is_empty() {
        // SAFETY: the slice is valid for its length.
        let written = check(unsafe {
            libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) as i64
        })?;
        bytes = &bytes[written as usize..];
    }
    Ok(())
}
