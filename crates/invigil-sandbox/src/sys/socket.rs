//! Sockets.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use invigil_schema::Errno;

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

/// Two sockets that are connected, for messages that stay whole.
pub(crate) fn pair() -> Sys<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: the kernel has just made them for us, and nobody else knows them.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Ends a connection, whoever has descriptors of it.
pub(crate) fn hang_up(fd: BorrowedFd<'_>) {
    // SAFETY: plain integers.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// So many descriptors go with one message.
pub(crate) const DESCRIPTORS: usize = 8;
const ROOM: usize = 16 + DESCRIPTORS * size_of::<RawFd>();

/// Room for the descriptors of one message, as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; ROOM]);

/// Sends a message with descriptors, all of it or nothing.
pub(crate) fn send_with(fd: BorrowedFd<'_>, data: &[u8], descriptors: &[RawFd]) -> Sys<()> {
    let mut control = Control([0; ROOM]);
    let length = size_of_val(descriptors);
    if descriptors.len() > DESCRIPTORS {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the room is that of one header and the descriptors behind it, and aligned for it.
    unsafe {
        let header = control.0.as_mut_ptr().cast::<libc::cmsghdr>();
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(length as u32) as _;
        let to = libc::CMSG_DATA(header).cast::<RawFd>();
        std::ptr::copy_nonoverlapping(descriptors.as_ptr(), to, descriptors.len());
    }
    // SAFETY: computes a number.
    let used = unsafe { libc::CMSG_SPACE(length as u32) } as usize;
    let control = match descriptors {
        [] => &[][..],
        _ => &control.0[..used],
    };
    loop {
        match send(fd, &[], data, control, libc::MSG_NOSIGNAL) {
            Err(Errno(libc::EINTR)) => {}
            sent => return sent.map(drop),
        }
    }
}

/// Receives a message with descriptors, which are closed at exec. `EPIPE` if nobody is at the other end any more.
pub(crate) fn receive_with(fd: BorrowedFd<'_>, data: &mut [u8]) -> Sys<(usize, Vec<OwnedFd>)> {
    let mut control = Control([0; ROOM]);
    let mut vector = libc::iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: data.len(),
    };
    // SAFETY: an all-zero header is valid; every pointer has the room beside it, and outlives the call.
    let (received, message) = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = ROOM as _;
        loop {
            let received = libc::recvmsg(fd.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC);
            match check(received as i64) {
                Err(Errno(libc::EINTR)) => {}
                received => break (received?, message),
            }
        }
    };
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has written whole headers, as far as it says, and the descriptors behind them are ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let from = libc::CMSG_DATA(header).cast::<RawFd>();
                for n in 0..bytes / size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(from.add(n).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    match received {
        0 => Err(Errno(libc::EPIPE)),
        _ if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 => {
            Err(Errno(libc::EMSGSIZE))
        }
        received => Ok((received as usize, descriptors)),
    }
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

/// Whether a descriptor is one end of a [`pair`].
pub(crate) fn is_of_pair(fd: BorrowedFd<'_>) -> bool {
    option(fd, libc::SO_TYPE) == Ok(libc::SOCK_SEQPACKET)
        && option(fd, libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
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
    set_timeout(fd, libc::SO_SNDTIMEO, timeout)
}

/// Nothing is waited for any longer than this, neither to send nor to receive.
pub(crate) fn set_timeouts(fd: BorrowedFd<'_>, timeout: Duration) -> Sys<()> {
    set_timeout(fd, libc::SO_SNDTIMEO, timeout)?;
    set_timeout(fd, libc::SO_RCVTIMEO, timeout)
}

fn set_timeout(fd: BorrowedFd<'_>, option: i32, timeout: Duration) -> Sys<()> {
    let time = libc::timeval {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_usec: timeout.subsec_micros().into(),
    };
    // SAFETY: the size is that of `time`.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
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
