//! Sockets.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::{Sys, check};

/// `connect`.
pub(crate) fn connect(fd: BorrowedFd<'_>, address: &[u8]) -> Sys<()> {
    // SAFETY: the slice is valid for its length; the kernel reads no more.
    check(unsafe {
        libc::connect(
            fd.as_raw_fd(),
            address.as_ptr().cast(),
            address.len() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// `bind`.
pub(crate) fn bind(fd: BorrowedFd<'_>, address: &[u8]) -> Sys<()> {
    // SAFETY: the slice is valid for its length; the kernel reads no more.
    check(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            address.as_ptr().cast(),
            address.len() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// `listen`.
pub(crate) fn listen(fd: BorrowedFd<'_>, backlog: i32) -> Sys<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// `sendmsg`. An empty address or control is none.
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    address: &[u8],
    data: &[u8],
    control: &[u8],
    flags: i32,
) -> Sys<usize> {
    let mut vector = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    let some = |bytes: &[u8]| match bytes {
        [] => std::ptr::null_mut(),
        bytes => bytes.as_ptr().cast_mut().cast(),
    };
    // SAFETY: an all-zero header is valid; every pointer has the length beside it, and sending only reads.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = some(address);
        message.msg_namelen = address.len() as libc::socklen_t;
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = some(control);
        message.msg_controllen = control.len() as _;
        libc::sendmsg(fd.as_raw_fd(), &message, flags)
    };
    check(sent as i64).map(|n| n as usize)
}

/// Waits until something can be sent, or for so long.
pub(crate) fn wait_for_room(fd: BorrowedFd<'_>, limit: Duration) {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one descriptor, which outlives the call. Whatever comes of it, one tries again.
    unsafe { libc::poll(&mut poll, 1, limit.as_millis() as i32) };
}

/// The own address of a socket.
pub(crate) fn own_address(fd: BorrowedFd<'_>) -> Sys<Vec<u8>> {
    let mut address = vec![0u8; 256];
    let mut length = address.len() as libc::socklen_t;
    // SAFETY: `length` is the room in `address`.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), address.as_mut_ptr().cast(), &mut length) })?;
    address.truncate(length as usize);
    Ok(address)
}

/// An option of `SOL_SOCKET` that is an integer.
pub(crate) fn option(fd: BorrowedFd<'_>, option: i32) -> Sys<i32> {
    let mut value = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `length` is the room in `value`.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_mut(&mut value).cast(),
            &mut length,
        )
    })?;
    Ok(value)
}

/// How long a blocking connect waits; `zero` is for ever.
pub(crate) fn send_timeout(fd: BorrowedFd<'_>) -> Sys<Duration> {
    // SAFETY: all-zero is a valid `timeval`, and `length` is its size.
    let time = unsafe {
        let mut time: libc::timeval = std::mem::zeroed();
        let mut length = size_of::<libc::timeval>() as libc::socklen_t;
        check(libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            std::ptr::from_mut(&mut time).cast(),
            &mut length,
        ))?;
        time
    };
    Ok(Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64))
}

/// Sets what [`send_timeout`] gets.
pub(crate) fn set_send_timeout(fd: BorrowedFd<'_>, timeout: Duration) -> Sys<()> {
    let time = libc::timeval {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_usec: timeout.subsec_micros().into(),
    };
    // SAFETY: the size is that of `time`.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            std::ptr::from_ref(&time).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Whether calls on it return at once.
pub(crate) fn is_nonblocking(fd: BorrowedFd<'_>) -> Sys<bool> {
    // SAFETY: no third argument is read.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    Ok(flags as i32 & libc::O_NONBLOCK != 0)
}

/// Whether a socket is one of TCP, or would be if it were one of the internet.
pub(crate) fn is_tcp(socket: BorrowedFd<'_>) -> bool {
    option(socket, libc::SO_TYPE) == Ok(libc::SOCK_STREAM)
}
