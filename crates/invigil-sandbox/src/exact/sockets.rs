//! Calls on sockets without a gap between what is judged and what happens: everything is copied, and done on behalf.
//!
//! Nothing here is ever left to the kernel. Another thread can exchange an address behind a look at it, and also what
//! the number of a socket means. See `docs/network.md`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use invigil_schema::{Address, Errno, NetOpKind};

use crate::calls::Call;
use crate::message::{COPIED_MAX, Header, Message, Sending};
use crate::net::{self, Act, Kind, parse, read_address};
use crate::paths::{Base, Caller, Stop};
use crate::sys::fs::{self, At, cstring};
use crate::sys::{Sys, socket};

/// What a call would do, and to which address.
pub(crate) type Op = (NetOpKind, Address);

/// What we would do, if the gate lets it happen; without an address there is nothing to judge.
pub(crate) type Plan = (Option<Op>, Act);

/// Why nothing is done.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It fails, whoever makes it.
    Fails(Option<Op>, Errno),
    /// It would have our rights, which the caller may not have.
    Lends(Op, Errno),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Refusal {
        Refusal::Fails(None, error)
    }
}

type Planned = Result<Plan, Refusal>;

/// Ports below this need a privilege.
const UNPRIVILEGED: u16 = 1024;
/// How many messages one call takes.
const MESSAGES: u64 = 1024;
const MSG_ZEROCOPY: i32 = 0x0400_0000;

/// Plans a call. `like` says that the caller may do exactly what we may do.
pub(crate) fn plan(caller: &Caller, call: Call, like: bool) -> Planned {
    match call {
        Call::Connect {
            fd,
            address,
            length,
        } => Socket::of(caller, fd, like).and_then(|socket| socket.connect(address, length)),
        Call::Bind {
            fd,
            address,
            length,
        } => Socket::of(caller, fd, like).and_then(|socket| socket.bind(address, length)),
        Call::Listen { fd, backlog } => Socket::of(caller, fd, like).map(|s| s.listen(backlog)),
        Call::SendTo { flags, .. } | Call::SendMsg { flags, .. } | Call::SendMmsg { flags, .. }
            if flags & libc::MSG_FASTOPEN != 0 =>
        {
            Err(Errno(libc::EOPNOTSUPP).into())
        }
        // The kernel would go on reading our copy after it is gone.
        Call::SendMsg { flags, .. } | Call::SendMmsg { flags, .. } if flags & MSG_ZEROCOPY != 0 => {
            Err(Errno(libc::ENOBUFS).into())
        }
        Call::SendTo {
            fd,
            data,
            size,
            flags,
            address,
            length,
        } => Socket::of(caller, fd, like).and_then(|socket| {
            let name = read_address(caller, address, length)?;
            let header = Header::plain(data, size);
            let message = Message::copy(caller, &header, socket.is_stream())?;
            socket.send(flags & !MSG_ZEROCOPY, name, [message].into(), None)
        }),
        Call::SendMsg { fd, message, flags } => Socket::of(caller, fd, like).and_then(|socket| {
            let header = Header::read(caller, message)?;
            let name = read_address(caller, header.name, header.name_length.into())?;
            let message = Message::copy(caller, &header, socket.is_stream())?;
            socket.send(flags, name, [message].into(), None)
        }),
        Call::SendMmsg {
            fd,
            messages,
            count,
            flags,
        } => {
            Socket::of(caller, fd, like).and_then(|socket| socket.send_many(messages, count, flags))
        }
        _ => Err(Errno(libc::ENOSYS).into()),
    }
}

/// A socket of the caller, and what was found out about it.
struct Socket<'a> {
    caller: &'a Caller,
    like: bool,
    socket: OwnedFd,
    domain: i32,
    kind: i32,
}

/// Where an address leads.
struct Target {
    address: Address,
    bytes: Vec<u8>,
    holds: Option<OwnedFd>,
}

impl<'a> Socket<'a> {
    fn of(caller: &'a Caller, fd: i32, like: bool) -> Result<Socket<'a>, Refusal> {
        let socket = caller.duplicate(fd).map_err(unreachable_socket)?;
        Ok(Socket {
            caller,
            like,
            domain: socket::option(socket.as_fd(), libc::SO_DOMAIN)?,
            kind: socket::option(socket.as_fd(), libc::SO_TYPE)?,
            socket,
        })
    }

    fn is_stream(&self) -> bool {
        self.kind == libc::SOCK_STREAM
    }

    fn is_inet(&self) -> bool {
        matches!(self.domain, libc::AF_INET | libc::AF_INET6)
    }

    /// Where bytes lead as this socket understands them, for connects and sends.
    fn target(&self, op: NetOpKind, bytes: Vec<u8>) -> Result<Target, Refusal> {
        match path_of(&bytes) {
            Some(path) if self.domain == libc::AF_UNIX => self.socket_file(op, path, &bytes),
            _ => Ok(Target {
                address: self.meant(op, &bytes),
                bytes,
                holds: None,
            }),
        }
    }

    /// What an address means to this socket. IPv4 takes one of no family for one of its own, unless it connects.
    fn meant(&self, op: NetOpKind, bytes: &[u8]) -> Address {
        let unspecified = bytes.len() >= 2 && net::family(bytes) == libc::AF_UNSPEC;
        if self.domain == libc::AF_INET && op != NetOpKind::Connect && unspecified {
            let family = (libc::AF_INET as u16).to_ne_bytes();
            return parse(self.caller, &[&family[..], &bytes[2..]].concat());
        }
        parse(self.caller, bytes)
    }

    /// Holds the file of a Unix socket, and reaches it by that hold.
    fn socket_file(&self, op: NetOpKind, path: &[u8], bytes: &[u8]) -> Result<Target, Refusal> {
        let written = || (op, parse(self.caller, bytes));
        if !self.like {
            return Err(Refusal::Lends(written(), Errno(libc::EACCES)));
        }
        let found = Base::of(self.caller, libc::AT_FDCWD, path)
            .and_then(|base| base.target(self.caller, 0, 0));
        let found = found.map_err(|stop| stopped(stop, written()))?;
        Ok(Target {
            bytes: unix_address(found.handle().as_bytes_with_nul()),
            address: Address::Unix {
                path: found.path.into(),
            },
            holds: Some(found.fd),
        })
    }

    fn connect(self, address: u64, length: u64) -> Planned {
        let bytes = read_address(self.caller, address, length)?;
        let dissolves = net::family(&bytes) == libc::AF_UNSPEC;
        let target = self.target(NetOpKind::Connect, bytes)?;
        self.settle_netlink();
        let local = !self.is_inet() || net::is_local(&target.address);
        let kind = if dissolves {
            Kind::Connect
        } else {
            net::connecting(&self.socket, local)?
        };
        Ok(self.act(Some(NetOpKind::Connect), target, kind))
    }

    fn bind(self, address: u64, length: u64) -> Planned {
        let mut bytes = read_address(self.caller, address, length)?;
        let op = NetOpKind::Bind;
        if self.domain == libc::AF_UNIX
            && let Some(path) = path_of(&bytes)
        {
            let path = path.to_vec();
            return self.bind_path(&path, bytes);
        }
        let meant = self.meant(op, &bytes);
        let port = match &meant {
            Address::Inet { port, .. } | Address::Inet6 { port, .. } => *port,
            _ => 0,
        };
        if !self.like && (1..UNPRIVILEGED).contains(&port) {
            return Err(Refusal::Lends((op, meant), Errno(libc::EACCES)));
        }
        let mut kind = Kind::Bind;
        if self.domain == libc::AF_NETLINK && bytes.get(4..8) == Some(&[0; 4]) {
            // The kernel would choose our number.
            bytes[4..8].copy_from_slice(&self.caller.pid.to_ne_bytes());
            kind = Kind::BindNumbered;
        }
        let target = Target {
            address: meant,
            bytes,
            holds: None,
        };
        Ok(self.act(Some(op), target, kind))
    }

    /// A path is bound as it is written, for its owner can ask for it, from the caller's directory.
    fn bind_path(self, path: &[u8], bytes: Vec<u8>) -> Planned {
        let written = || (NetOpKind::Bind, parse(self.caller, &bytes));
        if !self.like {
            return Err(Refusal::Lends(written(), Errno(libc::EACCES)));
        }
        let place = Base::of(self.caller, libc::AT_FDCWD, path).and_then(|base| base.locate());
        let place = place.map_err(|stop| stopped(stop, written()))?;
        // What means the caller by its text would mean us.
        let own = path.starts_with(b"/proc/") || path.starts_with(b"/dev/");
        let (from, bytes) = if own {
            let dir = fs::open(place.at(), c".", libc::O_PATH | libc::O_DIRECTORY, 0, 0)?;
            (Some(dir), unix_address(place.name.as_bytes_with_nul()))
        } else if path[0] == b'/' {
            (None, bytes)
        } else {
            let cwd = cstring(format!("/proc/{}/cwd", self.caller.tid))?;
            let dir = fs::open(At::Cwd, &cwd, libc::O_PATH | libc::O_DIRECTORY, 0, 0)?;
            (Some(dir), bytes)
        };
        let target = Target {
            address: Address::Unix {
                path: place.path.into(),
            },
            bytes,
            holds: None,
        };
        Ok(self.act(Some(NetOpKind::Bind), target, Kind::BindFrom(from)))
    }

    fn listen(self, backlog: i32) -> Plan {
        let own = socket::own_address(self.socket.as_fd());
        let target = Target {
            address: own.map_or(Address::Unnamed, |bytes| parse(self.caller, &bytes)),
            bytes: Vec::new(),
            holds: None,
        };
        self.act(Some(NetOpKind::Listen), target, Kind::Listen(backlog))
    }

    /// Plans several messages, up to the first that goes elsewhere than the first one.
    fn send_many(self, at: u64, count: u64, flags: i32) -> Planned {
        const STRIDE: u64 = size_of::<libc::mmsghdr>() as u64;
        let (mut name, mut messages) = (Vec::new(), VecDeque::new());
        let mut room = COPIED_MAX as u64;
        for i in 0..count.min(MESSAGES) {
            let read = || -> Sys<_> {
                let header = Header::read(self.caller, at.wrapping_add(i * STRIDE))?;
                let name = read_address(self.caller, header.name, header.name_length.into())?;
                let message = Message::copy(self.caller, &header, self.is_stream())?;
                Ok((name, message))
            };
            let (its_name, message) = match read() {
                Ok(read) => read,
                Err(error) if messages.is_empty() => return Err(Refusal::from(error)),
                // It is met again by the next call.
                Err(_) => break,
            };
            if messages.is_empty() {
                name = its_name;
            } else if its_name != name || message.length > room {
                break;
            }
            room = room.saturating_sub(message.length);
            messages.push_back(message);
        }
        self.send(flags, name, messages, Some(at))
    }

    fn send(
        self,
        flags: i32,
        name: Vec<u8>,
        messages: VecDeque<Message>,
        lengths: Option<u64>,
    ) -> Planned {
        self.settle_netlink();
        let socket = self.socket.as_fd();
        let sending = Sending::new(
            self.caller,
            socket,
            flags,
            self.is_stream(),
            messages,
            lengths,
        )?;
        let kind = Kind::Send(sending);
        let nowhere = self.domain == libc::AF_INET6 && net::family(&name) == libc::AF_UNSPEC;
        let ignored = match self.domain {
            libc::AF_INET | libc::AF_INET6 => self.is_stream() || nowhere,
            libc::AF_UNIX => self.kind == libc::SOCK_SEQPACKET,
            _ => false,
        };
        if ignored || name.is_empty() {
            return Ok(self.act(None, Target::none(Vec::new()), kind));
        }
        // A Unix stream only says what is wrong with an address, and netlink speaks to the kernel.
        if self.is_stream() || self.domain == libc::AF_NETLINK {
            return Ok(self.act(None, Target::none(name), kind));
        }
        let target = self.target(NetOpKind::Send, name)?;
        Ok(self.act(Some(NetOpKind::Send), target, kind))
    }

    /// An unbound netlink socket is called by the number of whoever uses it first.
    fn settle_netlink(&self) {
        if self.domain != libc::AF_NETLINK {
            return;
        }
        let socket = self.socket.as_fd();
        if let Ok(mut own) = socket::own_address(socket)
            && own.get(4..8) == Some(&[0; 4])
        {
            own[4..8].copy_from_slice(&self.caller.pid.to_ne_bytes());
            // If the number is taken the kernel chooses another.
            let _ = socket::bind(socket, &own);
        }
    }

    fn act(self, op: Option<NetOpKind>, target: Target, kind: Kind) -> Plan {
        let act = Act {
            socket: self.socket,
            address: target.bytes,
            kind,
            _holds: target.holds,
        };
        (op.map(|op| (op, target.address)), act)
    }
}

impl Target {
    /// Nothing to judge.
    fn none(bytes: Vec<u8>) -> Target {
        Target {
            address: Address::Unnamed,
            bytes,
            holds: None,
        }
    }
}

/// A bad number is the caller's mistake. Anything else is ours, and then it does not happen.
fn unreachable_socket(error: Errno) -> Refusal {
    match error {
        Errno(libc::EBADF) => error.into(),
        _ => Errno(libc::ENOBUFS).into(),
    }
}

fn stopped(stop: Stop, op: Op) -> Refusal {
    match stop {
        Stop::Fail(error) => Refusal::Fails(Some(op), error),
        Stop::Native => Refusal::Lends(op, Errno(libc::EACCES)),
    }
}

/// The path in the address of a Unix socket, if it has one.
fn path_of(bytes: &[u8]) -> Option<&[u8]> {
    let path = bytes
        .get(2..)
        .filter(|_| net::family(bytes) == libc::AF_UNIX)?;
    let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
    (end > 0).then(|| &path[..end])
}

fn unix_address(path: &[u8]) -> Vec<u8> {
    [&(libc::AF_UNIX as u16).to_ne_bytes()[..], path].concat()
}
