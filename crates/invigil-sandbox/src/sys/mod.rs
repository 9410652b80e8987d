//! System calls, one safe function each. Nothing here decides anything.

pub(crate) mod caps;
pub(crate) mod fs;
pub(crate) mod landlock;
pub(crate) mod ptrace;
pub(crate) mod seccomp;
pub(crate) mod socket;

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use invigil_schema::Errno;

/// The result of a system call.
pub(crate) type Sys<T> = Result<T, Errno>;

/// The error of the call that has just failed.
pub(crate) fn errno() -> Errno {
    // SAFETY: the location is valid for the life of the thread.
    Errno(unsafe { *libc::__errno_location() })
}

/// Turns the −1 convention into a result.
pub(crate) fn check(value: impl Into<i64>) -> Sys<i64> {
    match value.into() {
        -1 => Err(errno()),
        value => Ok(value),
    }
}

/// Takes ownership of a descriptor that a call has just returned.
fn own(value: Sys<i64>) -> Sys<OwnedFd> {
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    value.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Copies up to `buffer.len()` bytes from another process; fewer if the rest is not mapped.
pub(crate) fn read_memory(tid: u32, address: u64, buffer: &mut [u8]) -> Sys<usize> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: buffer.len(),
    };
    // SAFETY: `local` describes `buffer`, which outlives the call; `remote` is checked by the kernel.
    let read = unsafe { libc::process_vm_readv(tid as i32, &local, 1, &remote, 1, 0) };
    check(read as i64).map(|n| n as usize)
}

/// Copies bytes into another process.
pub(crate) fn write_memory(tid: u32, address: u64, bytes: &[u8]) -> Sys<()> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: `local` describes `bytes`, which is only read; `remote` is checked by the kernel.
    let written = unsafe { libc::process_vm_writev(tid as i32, &local, 1, &remote, 1, 0) };
    match check(written as i64)? {
        n if n == bytes.len() as i64 => Ok(()),
        _ => Err(Errno(libc::EFAULT)),
    }
}

/// Reads a plain C structure from another process.
pub(crate) fn read_array<const N: usize>(tid: u32, address: u64) -> Sys<[u8; N]> {
    let mut bytes = [0; N];
    match read_memory(tid, address, &mut bytes)? {
        n if n == N => Ok(bytes),
        _ => Err(Errno(libc::EFAULT)),
    }
}

/// Reads so many bytes, or fails.
pub(crate) fn read_bytes(tid: u32, address: u64, length: usize) -> Sys<Vec<u8>> {
    let mut bytes = vec![0; length];
    if length > 0 && read_memory(tid, address, &mut bytes)? != length {
        return Err(Errno(libc::EFAULT));
    }
    Ok(bytes)
}

/// Reads two short strings in one go. None if one of them is not short, or not within one page.
pub(crate) fn read_two_strings(tid: u32, addresses: [u64; 2]) -> Option<[Vec<u8>; 2]> {
    const PAGE: u64 = 4096;
    const SHORT: u64 = 256;
    let mut buffers = [[0u8; SHORT as usize]; 2];
    let lengths = addresses.map(|at| (PAGE - at % PAGE).min(SHORT) as usize);
    let [one, other] = &mut buffers;
    let vector = |base: *mut u8, length| libc::iovec {
        iov_base: base.cast(),
        iov_len: length,
    };
    let local = [
        vector(one.as_mut_ptr(), lengths[0]),
        vector(other.as_mut_ptr(), lengths[1]),
    ];
    let remote = [
        vector(addresses[0] as *mut u8, lengths[0]),
        vector(addresses[1] as *mut u8, lengths[1]),
    ];
    // SAFETY: `local` describes the two buffers, which outlive the call; `remote` is checked by the kernel.
    let read =
        unsafe { libc::process_vm_readv(tid as i32, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
    if read != (lengths[0] + lengths[1]) as isize {
        return None;
    }
    let text = |i: usize| {
        let text = &buffers[i][..lengths[i]];
        text.iter()
            .position(|&b| b == 0)
            .map(|end| text[..end].to_vec())
    };
    Some([text(0)?, text(1)?])
}

/// Reads a string that ends in a zero byte, of at most `limit` bytes. `ENAMETOOLONG` if there is no end.
pub(crate) fn read_string(tid: u32, address: u64, limit: usize) -> Sys<Vec<u8>> {
    match read_string_prefix(tid, address, limit)? {
        (text, true) => Ok(text),
        (text, false) if text.len() >= limit => Err(Errno(libc::ENAMETOOLONG)),
        _ => Err(Errno(libc::EFAULT)),
    }
}

/// The same as far as it can be read, and whether that is all of it.
pub(crate) fn read_string_prefix(tid: u32, address: u64, limit: usize) -> Sys<(Vec<u8>, bool)> {
    const PAGE: u64 = 4096;
    let mut text = Vec::new();
    let mut at = address;
    let mut chunk = [0; PAGE as usize];
    while text.len() <= limit {
        // A read that stays within a page never fails because of the page behind the string. Most strings are short.
        let in_page = (PAGE - at % PAGE) as usize;
        let want = in_page.min(if text.is_empty() { 256 } else { PAGE as usize });
        let read = match read_memory(tid, at, &mut chunk[..want]) {
            Ok(read) if read > 0 => read,
            Ok(_) | Err(Errno(libc::EFAULT)) if !text.is_empty() => return Ok((text, false)),
            Ok(_) => return Err(Errno(libc::EFAULT)),
            Err(error) => return Err(error),
        };
        let part = &chunk[..read];
        let end = part.iter().position(|&b| b == 0);
        text.extend_from_slice(&part[..end.unwrap_or(read)]);
        if end.is_some() && text.len() <= limit {
            return Ok((text, true));
        }
        at = at.wrapping_add(read as u64);
    }
    text.truncate(limit);
    Ok((text, false))
}

/// A descriptor for a process; with `thread` for one thread (Linux 6.9).
pub(crate) fn pidfd_open(pid: u32, thread: bool) -> Sys<OwnedFd> {
    let flags = if thread { libc::O_EXCL } else { 0 };
    // SAFETY: plain integers.
    own(check(unsafe {
        libc::syscall(libc::SYS_pidfd_open, pid, flags)
    }))
}

/// A duplicate of a descriptor of another process.
pub(crate) fn pidfd_getfd(pidfd: BorrowedFd<'_>, fd: RawFd) -> Sys<OwnedFd> {
    // SAFETY: plain integers.
    own(check(unsafe {
        libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0)
    }))
}

/// A counter that can be polled.
pub(crate) fn eventfd() -> Sys<OwnedFd> {
    // SAFETY: plain integers.
    own(check(unsafe {
        libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
    }))
}

/// Makes an eventfd readable. Safe in a signal handler.
pub(crate) fn ring(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` has the 8 bytes that an eventfd takes. A full counter is readable already.
    unsafe { libc::write(fd, one.as_ptr().cast(), 8) };
}

/// Makes an eventfd unreadable again.
pub(crate) fn silence(fd: BorrowedFd<'_>) {
    let mut count = [0u8; 8];
    // SAFETY: `count` has room for the 8 bytes that are read.
    unsafe { libc::read(fd.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
}

/// Both ends of a pipe, reading first.
pub(crate) fn pipe() -> Sys<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((own(Ok(fds[0].into()))?, own(Ok(fds[1].into()))?))
}

/// Waits until one of the descriptors is ready, `SIGCHLD` arrives or the time is over. `EINTR` is no error.
/// `mask` is the signal mask while it waits.
pub(crate) fn wait_ready(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    mask: &libc::sigset_t,
) -> Sys<usize> {
    let time = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs() as libc::time_t,
        tv_nsec: t.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice, the time and the mask outlive the call.
    match check(unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, mask) }) {
        Ok(n) => Ok(n as usize),
        Err(Errno(libc::EINTR)) => Ok(0),
        Err(error) => Err(error),
    }
}

/// The calling thread's signal mask, without one signal.
pub(crate) fn current_mask(without: Option<i32>) -> libc::sigset_t {
    // SAFETY: an all-zero set is a valid set, and both calls only touch it.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        if let Some(signal) = without {
            libc::sigdelset(&mut mask, signal);
        }
        mask
    }
}

/// Whether a mask keeps a signal away.
pub(crate) fn holds(mask: &libc::sigset_t, signal: i32) -> bool {
    // SAFETY: `mask` is a valid set.
    unsafe { libc::sigismember(mask, signal) == 1 }
}

/// The signals that a mask keeps away, as bits.
pub(crate) fn signals_of(mask: &libc::sigset_t) -> u64 {
    (0..64)
        .filter(|bit| holds(mask, bit + 1))
        .fold(0, |bits, bit| bits | 1 << bit)
}

/// The mask that keeps these signals away.
pub(crate) fn mask_of(signals: u64) -> libc::sigset_t {
    // SAFETY: an all-zero set is a valid set, and signals that are not there are refused.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        for bit in (0..64).filter(|bit| signals >> bit & 1 == 1) {
            libc::sigaddset(&mut mask, bit + 1);
        }
        mask
    }
}

/// Closes every descriptor from this one on. Nobody may own one of them.
pub(crate) fn close_from(first: u32) -> Sys<()> {
    // SAFETY: plain integers; whoever calls this has given all of them up.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }).map(drop)
}

/// Keeps a signal away from the calling thread.
pub(crate) fn block_signal(signal: i32) {
    // SAFETY: an all-zero set is a valid set.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut mask, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &mask, std::ptr::null_mut());
    }
}

/// Keeps every signal away from the calling thread, and returns the mask that it had.
pub(crate) fn block_all_signals() -> libc::sigset_t {
    // SAFETY: an all-zero set is a valid set, and the calls only touch the two sets.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

/// Sets the calling thread's mask.
pub(crate) fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: `mask` is a valid set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// The calling thread's id.
pub(crate) fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() as u32 }
}

/// `prctl` with integers.
pub(crate) fn prctl(option: i32, argument: u64) -> Sys<i64> {
    // SAFETY: used for options that take integers only.
    check(unsafe { libc::prctl(option, argument, 0, 0, 0) })
}

/// Sends a signal to a process.
pub(crate) fn kill(pid: u32, signal: i32) -> Sys<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::kill(pid as i32, signal) }).map(drop)
}

/// Sends a signal to a thread.
pub(crate) fn kill_thread(pid: u32, tid: u32, signal: i32) -> Sys<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }).map(drop)
}

/// The process group of a process.
pub(crate) fn getpgid(pid: u32) -> Sys<u32> {
    // SAFETY: plain integers.
    check(unsafe { libc::getpgid(pid as i32) }).map(|g| g as u32)
}

/// The user as whom this process acts.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() }
}

/// Gives the calling thread a umask, root and working directory of its own.
pub(crate) fn unshare_fs() -> Sys<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::unshare(libc::CLONE_FS) }).map(drop)
}

/// Goes to a directory.
pub(crate) fn fchdir(dir: BorrowedFd<'_>) -> Sys<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::fchdir(dir.as_raw_fd()) }).map(drop)
}

/// Sets the umask and returns the old one.
pub(crate) fn umask(mask: u32) -> u32 {
    // SAFETY: plain integers.
    unsafe { libc::umask(mask) }
}

/// Lowers a limit of the calling process for good, if it is higher.
pub(crate) fn lower_limit(resource: libc::__rlimit_resource_t, limit: u64) -> Sys<()> {
    let mut current = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `current` outlives both calls.
    unsafe {
        check(libc::getrlimit(resource, &mut current))?;
        current.rlim_cur = current.rlim_cur.min(limit);
        current.rlim_max = current.rlim_max.min(limit);
        check(libc::setrlimit(resource, &current)).map(drop)
    }
}

/// The kernel's release: `6.18.1`.
pub(crate) fn kernel_release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// The processor that the calling thread runs on.
pub(crate) fn current_processor() -> Option<usize> {
    // SAFETY: no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Where a thread may run when it is not kept anywhere.
pub(crate) struct Processors {
    tid: u32,
    usual: libc::cpu_set_t,
}

impl Processors {
    /// Keeps a thread on one processor. None if it has no choice already, or may not be there.
    pub(crate) fn keep(tid: u32, processor: usize) -> Option<Processors> {
        const SIZE: usize = size_of::<libc::cpu_set_t>();
        // SAFETY: all-zero sets are valid, the calls touch nothing else, and the number is within the set.
        unsafe {
            let mut usual: libc::cpu_set_t = std::mem::zeroed();
            check(libc::sched_getaffinity(tid as i32, SIZE, &mut usual)).ok()?;
            if processor >= SIZE * 8
                || !libc::CPU_ISSET(processor, &usual)
                || libc::CPU_COUNT(&usual) == 1
            {
                return None;
            }
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor, &mut one);
            check(libc::sched_setaffinity(tid as i32, SIZE, &one)).ok()?;
            Some(Processors { tid, usual })
        }
    }

    /// Lets it go where it likes.
    pub(crate) fn release(self) {
        // SAFETY: the set is the one that the kernel gave.
        unsafe {
            libc::sched_setaffinity(self.tid as i32, size_of::<libc::cpu_set_t>(), &self.usual)
        };
    }
}
