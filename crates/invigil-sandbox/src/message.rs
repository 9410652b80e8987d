//! Messages that are sent on behalf: copied out of the caller once, and sent until they are gone.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use invigil_schema::Errno;

use crate::net::ADDRESS_MAX;
use crate::paths::Caller;
use crate::sys::{self, Sys, socket};

/// The longest datagram that is copied, and how much of one call is sent before a worker takes over.
pub(crate) const COPIED_MAX: usize = 1 << 20;
/// How much of a stream is copied at a time.
const PIECE: usize = 256 << 10;
/// How many parts the kernel takes.
const PARTS_MAX: u64 = 1024;
/// More than any list of descriptors needs.
const CONTROL_MAX: usize = 16 << 10;
/// Between two looks whether somebody still waits.
const LOOK: Duration = Duration::from_millis(50);
/// Some sockets always say that they have room.
const BREATH: Duration = Duration::from_millis(1);

const SOL_TLS: i32 = 282;
const SOL_ALG: i32 = 279;
const TLS_SET_RECORD_TYPE: i32 = 1;
const IPV6_FLOWINFO: i32 = 11;
const IPV6_2292PKTINFO: i32 = 2;
const IPV6_2292HOPLIMIT: i32 = 8;
const UDP_SEGMENT: i32 = 103;
const TIMESTAMPING_NEW: i32 = 65;

/// A message as the caller describes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) name: u64,
    pub(crate) name_length: u32,
    parts: Parts,
    control: u64,
    control_length: u64,
}

#[derive(Debug, Clone, Copy)]
enum Parts {
    /// A list of them.
    At {
        list: u64,
        count: u64,
    },
    One {
        start: u64,
        length: u64,
    },
}

impl Header {
    /// Reads a `msghdr`.
    pub(crate) fn read(caller: &Caller, at: u64) -> Sys<Header> {
        let bytes: [u8; size_of::<libc::msghdr>()] = sys::read_array(caller.tid, at)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        let name = word(0);
        let name_length = word(8) as u32;
        if name != 0 && (name_length as i32) < 0 {
            return Err(Errno(libc::EINVAL));
        }
        Ok(Header {
            name,
            name_length: if name == 0 {
                0
            } else {
                name_length.min(ADDRESS_MAX as u32)
            },
            parts: Parts::At {
                list: word(16),
                count: word(24),
            },
            control: word(32),
            control_length: word(40),
        })
    }

    /// Of `sendto`.
    pub(crate) fn plain(start: u64, length: u64) -> Header {
        Header {
            name: 0,
            name_length: 0,
            parts: Parts::One { start, length },
            control: 0,
            control_length: 0,
        }
    }

    /// The parts of its payload, and how long that is.
    fn parts(&self, caller: &Caller) -> Sys<(VecDeque<(u64, u64)>, u64)> {
        let parts: VecDeque<(u64, u64)> = match self.parts {
            Parts::One { start, length } => [(start, length)].into(),
            Parts::At { count, .. } if count > PARTS_MAX => return Err(Errno(libc::EMSGSIZE)),
            Parts::At { list, count } => {
                let mut bytes = vec![0; count as usize * 16];
                if !bytes.is_empty()
                    && sys::read_memory(caller.tid, list, &mut bytes)? != bytes.len()
                {
                    return Err(Errno(libc::EFAULT));
                }
                let word = |bytes: &[u8]| {
                    let mut word = [0; 8];
                    word.copy_from_slice(bytes);
                    u64::from_ne_bytes(word)
                };
                bytes
                    .chunks_exact(16)
                    .map(|part| (word(&part[..8]), word(&part[8..])))
                    .collect()
            }
        };
        let mut total = 0u64;
        for (_, length) in &parts {
            if (*length as i64) < 0 {
                return Err(Errno(libc::EINVAL));
            }
            total = total.saturating_add(*length);
        }
        Ok((parts, total))
    }
}

/// A message that is ours now.
#[derive(Debug)]
pub(crate) struct Message {
    /// What is left of the payload in the caller, and what has been copied of it.
    left: VecDeque<(u64, u64)>,
    copied: Vec<u8>,
    control: Vec<u8>,
    /// What the control message passes on.
    _passed: Vec<OwnedFd>,
    /// How long the payload is.
    pub(crate) length: u64,
    sent: usize,
}

impl Message {
    /// Copies a message; of a stream only what is not payload.
    pub(crate) fn copy(caller: &Caller, header: &Header, stream: bool) -> Sys<Message> {
        let (left, length) = header.parts(caller)?;
        let (control, passed) = copy_control(caller, header)?;
        let mut message = Message {
            left,
            copied: Vec::new(),
            control,
            _passed: passed,
            length,
            sent: 0,
        };
        if !stream {
            if length > COPIED_MAX as u64 {
                return Err(Errno(libc::EMSGSIZE));
            }
            message.fetch(caller.tid, length as usize)?;
            if !message.left.is_empty() {
                return Err(Errno(libc::EFAULT));
            }
        }
        Ok(message)
    }

    /// Copies up to so many bytes of what is left. What cannot be read ends the payload.
    fn fetch(&mut self, tid: u32, limit: usize) -> Sys<()> {
        while let Some((start, length)) = self.left.front_mut() {
            if *length == 0 {
                self.left.pop_front();
                continue;
            }
            let room = limit.saturating_sub(self.copied.len());
            if room == 0 {
                break;
            }
            let want = usize::try_from(*length).unwrap_or(room).min(room);
            let had = self.copied.len();
            self.copied.resize(had + want, 0);
            let read = sys::read_memory(tid, *start, &mut self.copied[had..]);
            self.copied.truncate(had + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(read) if read > 0 => {
                    *start += read as u64;
                    *length -= read as u64;
                }
                Ok(_) => return Err(Errno(libc::EFAULT)),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Copies the control messages that can be passed on, with descriptors of ours in the place of the caller's.
fn copy_control(caller: &Caller, header: &Header) -> Sys<(Vec<u8>, Vec<OwnedFd>)> {
    const HEAD: usize = 16;
    let length = header.control_length;
    if header.control == 0 || length == 0 {
        return Ok((Vec::new(), Vec::new()));
    }
    if length > CONTROL_MAX as u64 {
        return Err(Errno(libc::ENOBUFS));
    }
    let mut bytes = vec![0; length as usize];
    if sys::read_memory(caller.tid, header.control, &mut bytes)? != bytes.len() {
        return Err(Errno(libc::EFAULT));
    }
    let int = |bytes: &[u8]| {
        let mut int = [0; 4];
        int.copy_from_slice(&bytes[..4]);
        i32::from_ne_bytes(int)
    };
    let (mut control, mut passed) = (Vec::new(), Vec::new());
    let mut rest = &bytes[..];
    while rest.len() >= HEAD {
        let mut word = [0; 8];
        word.copy_from_slice(&rest[..8]);
        let size = usize::try_from(u64::from_ne_bytes(word)).unwrap_or(usize::MAX);
        if size < HEAD || size > rest.len() {
            return Err(Errno(libc::EINVAL));
        }
        let (level, kind) = (int(&rest[8..]), int(&rest[12..]));
        let mut one = rest[..size].to_vec();
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for number in one[HEAD..].chunks_exact_mut(4) {
                    let ours = caller.duplicate(int(number))?;
                    number.copy_from_slice(&ours.as_raw_fd().to_ne_bytes());
                    passed.push(ours);
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                if size < HEAD + 12 || !speaks_true(caller, one[HEAD..HEAD + 12].chunks(4).map(int))
                {
                    return Err(Errno(libc::EPERM));
                }
                one.clear();
            }
            (level, kind) if passes(level, kind) => {}
            _ => return Err(Errno(libc::EPERM)),
        }
        control.extend(one);
        control.resize(control.len().next_multiple_of(8), 0);
        rest = &rest[size.next_multiple_of(8).min(rest.len())..];
    }
    Ok((control, passed))
}

/// Whether these are the caller's own pid, user and group, which are ours too.
fn speaks_true(caller: &Caller, mut said: impl Iterator<Item = i32>) -> bool {
    // SAFETY: no arguments.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    said.by_ref()
        .eq([caller.pid, user, group].map(u32::cast_signed))
}

/// Control messages that change nothing about where a message goes, and need no rights.
fn passes(level: i32, kind: i32) -> bool {
    match level {
        libc::IPPROTO_IP => matches!(kind, libc::IP_PKTINFO | libc::IP_TOS | libc::IP_TTL),
        libc::IPPROTO_IPV6 => matches!(
            kind,
            libc::IPV6_PKTINFO
                | libc::IPV6_HOPLIMIT
                | libc::IPV6_TCLASS
                | libc::IPV6_DONTFRAG
                | IPV6_FLOWINFO
                | IPV6_2292PKTINFO
                | IPV6_2292HOPLIMIT
        ),
        libc::IPPROTO_UDP => kind == UDP_SEGMENT,
        libc::SOL_SOCKET => matches!(
            kind,
            libc::SO_TIMESTAMPING | TIMESTAMPING_NEW | libc::SCM_TXTIME
        ),
        SOL_TLS => kind == TLS_SET_RECORD_TYPE,
        SOL_ALG => true,
        _ => false,
    }
}

/// One call that sends.
#[derive(Debug)]
pub(crate) struct Sending {
    pid: u32,
    tid: u32,
    flags: i32,
    stream: bool,
    messages: VecDeque<Message>,
    /// Where the lengths of several messages are written to.
    lengths: Option<u64>,
    /// How many messages are gone.
    gone: i64,
    /// Until when it may wait; None if it may not.
    waits: Option<Option<Instant>>,
}

impl Sending {
    /// `lengths` is where a `sendmmsg` keeps its messages.
    pub(crate) fn new(
        caller: &Caller,
        socket: BorrowedFd<'_>,
        flags: i32,
        stream: bool,
        messages: VecDeque<Message>,
        lengths: Option<u64>,
    ) -> Sys<Sending> {
        let waits = if flags & libc::MSG_DONTWAIT != 0 || socket::is_nonblocking(socket)? {
            None
        } else {
            let limit = socket::send_timeout(socket)?;
            Some((!limit.is_zero()).then(|| Instant::now() + limit))
        };
        Ok(Sending {
            pid: caller.pid,
            tid: caller.tid,
            flags,
            stream,
            messages,
            lengths,
            gone: 0,
            waits,
        })
    }

    /// Sends what can be sent at once. None if the rest has to wait.
    pub(crate) fn try_now(&mut self, socket: BorrowedFd<'_>, address: &[u8]) -> Option<Sys<i64>> {
        let mut budget = COPIED_MAX;
        loop {
            match self.step(socket, address) {
                Step::Done(result) => return Some(result),
                Step::Sent(bytes) if bytes < budget => budget -= bytes,
                Step::Full | Step::Sent(_) if self.waits.is_none() => {
                    return Some(self.so_far(Errno(libc::EAGAIN)));
                }
                Step::Full | Step::Sent(_) => return None,
            }
        }
    }

    /// Sends until it is done, or nobody waits for it any more.
    pub(crate) fn finish(
        mut self,
        socket: BorrowedFd<'_>,
        address: &[u8],
        forgotten: &AtomicBool,
    ) -> Sys<i64> {
        loop {
            match self.step(socket, address) {
                Step::Done(result) => return result,
                Step::Sent(_) => {}
                Step::Full => {
                    let over = self
                        .waits
                        .flatten()
                        .is_some_and(|end| Instant::now() >= end);
                    if over || forgotten.load(Ordering::Relaxed) {
                        return self.so_far(Errno(libc::EAGAIN));
                    }
                    std::thread::sleep(BREATH);
                    socket::wait_for_room(socket, LOOK);
                }
            }
        }
    }

    /// One call to the kernel.
    fn step(&mut self, socket: BorrowedFd<'_>, address: &[u8]) -> Step {
        let Some(message) = self.messages.front_mut() else {
            return Step::Done(Ok(self.gone));
        };
        let mut unreadable = None;
        if self.stream && message.copied.is_empty() {
            unreadable = message.fetch(self.tid, PIECE).err();
            if let Some(error) = unreadable
                && message.copied.is_empty()
            {
                return Step::Done(self.so_far(error));
            }
        }
        let more = !message.left.is_empty() && unreadable.is_none();
        let mut flags = self.flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        if more {
            // The end of a record is at its end, and so is urgency.
            flags = flags & !(libc::MSG_EOR | libc::MSG_OOB) | libc::MSG_MORE;
        }
        let control = std::mem::take(&mut message.control);
        match socket::send(socket, address, &message.copied, &control, flags) {
            Ok(sent) => {
                message.sent += sent;
                if self.stream {
                    message.copied.drain(..sent);
                }
                let whole = !self.stream || message.copied.is_empty() && !more;
                if whole {
                    let length = message.sent;
                    self.messages.pop_front();
                    if let Some(result) = self.took(length) {
                        return Step::Done(result);
                    }
                }
                Step::Sent(sent)
            }
            Err(Errno(libc::EAGAIN)) => {
                message.control = control;
                Step::Full
            }
            Err(Errno(libc::EINTR)) => {
                message.control = control;
                Step::Sent(0)
            }
            Err(error) => {
                let silent = self.flags & libc::MSG_NOSIGNAL != 0 || !self.stream;
                if error == Errno(libc::EPIPE) && !silent && !self.has_sent() {
                    let _ = sys::kill_thread(self.pid, self.tid, libc::SIGPIPE);
                }
                Step::Done(self.so_far(error))
            }
        }
    }

    /// A message is gone; the result, if that was all.
    fn took(&mut self, length: usize) -> Option<Sys<i64>> {
        let Some(at) = self.lengths else {
            return Some(Ok(length as i64));
        };
        self.note_length(at, length);
        self.gone += 1;
        None
    }

    /// Writes the length of a message of several where the caller expects it.
    fn note_length(&self, at: u64, length: usize) {
        const STRIDE: u64 = size_of::<libc::mmsghdr>() as u64;
        const OFFSET: u64 = std::mem::offset_of!(libc::mmsghdr, msg_len) as u64;
        let at = at + self.gone.cast_unsigned() * STRIDE + OFFSET;
        // The message is gone; who cannot be told has taken its memory away.
        let _ = sys::write_memory(self.tid, at, &(length as u32).to_ne_bytes());
    }

    fn has_sent(&self) -> bool {
        self.gone > 0
            || self
                .messages
                .front()
                .is_some_and(|message| message.sent > 0)
    }

    /// What an error means: what was sent before it counts.
    fn so_far(&self, error: Errno) -> Sys<i64> {
        let begun = self.messages.front().map_or(0, |message| message.sent);
        match (self.lengths, begun) {
            (None, 0) => Err(error),
            (None, begun) => Ok(begun as i64),
            (Some(_), 0) if self.gone == 0 => Err(error),
            (Some(_), 0) => Ok(self.gone),
            (Some(at), begun) => {
                self.note_length(at, begun);
                Ok(self.gone + 1)
            }
        }
    }
}

/// What came of one call to the kernel.
enum Step {
    Done(Sys<i64>),
    Sent(usize),
    /// There is no room.
    Full,
}
