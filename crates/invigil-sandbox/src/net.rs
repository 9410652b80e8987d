//! Calls on sockets: addresses, and connecting and binding on behalf.
//!
//! Unix sockets remember who connected, bound or listened, by pid and credentials, and a peer can ask. That must be
//! the caller, so these calls are left to the kernel and watched. Internet sockets remember nothing. Where a gate must
//! not be fooled everything is done on behalf: see [`crate::exact`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use invigil_schema::{Address, Errno, NetOpKind};

use crate::calls::Call;
use crate::message::Sending;
use crate::paths::Caller;
use crate::sys::{self, Sys, fs, socket};
use crate::walk;

/// What a call on sockets would do.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) ops: Vec<(NetOpKind, Address)>,
    pub(crate) act: Option<Act>,
}

/// What we would do.
#[derive(Debug)]
pub(crate) struct Act {
    pub(crate) socket: OwnedFd,
    pub(crate) address: Vec<u8>,
    pub(crate) kind: Kind,
    /// Keeps the file that the address leads to.
    pub(crate) _holds: Option<OwnedFd>,
}

impl Act {
    /// Goes somewhere else. The error if a socket of this kind cannot.
    pub(crate) fn lead(&mut self, to: SocketAddr) -> Sys<()> {
        let connects = match &mut self.kind {
            Kind::Connect => true,
            Kind::ConnectBlocking { local } => {
                *local = to.ip().to_canonical().is_loopback();
                true
            }
            Kind::Send(_) => !self.address.is_empty(),
            Kind::Bind | Kind::BindFrom(_) | Kind::BindNumbered | Kind::Listen(_) => false,
        };
        if !connects {
            return Err(Errno(libc::EACCES));
        }
        let wide = match socket::option(self.socket.as_fd(), libc::SO_DOMAIN)? {
            libc::AF_INET => false,
            // Datagrams may go to plain addresses from there too.
            libc::AF_INET6 => to.is_ipv6() || family(&self.address) != libc::AF_INET,
            _ => return Err(Errno(libc::EACCES)),
        };
        self.address = encode(to, wide).ok_or(Errno(libc::ENETUNREACH))?;
        Ok(())
    }
}

/// An address as the kernel takes it, for a socket of IPv6 if that is asked for.
fn encode(to: SocketAddr, wide: bool) -> Option<Vec<u8>> {
    let port = to.port().to_be_bytes();
    match (to.ip(), wide) {
        (IpAddr::V4(ip), false) => {
            let family = (libc::AF_INET as u16).to_ne_bytes();
            Some([&family[..], &port, &ip.octets(), &[0; 8]].concat())
        }
        (IpAddr::V6(_), false) => None,
        (ip, true) => {
            let family = (libc::AF_INET6 as u16).to_ne_bytes();
            let (ip, scope) = match (ip, to) {
                (IpAddr::V6(ip), SocketAddr::V6(to)) => (ip, to.scope_id()),
                (IpAddr::V6(ip), _) => (ip, 0),
                (IpAddr::V4(ip), _) => (ip.to_ipv6_mapped(), 0),
            };
            let scope = scope.to_ne_bytes();
            Some([&family[..], &port, &[0; 4], &ip.octets(), &scope].concat())
        }
    }
}

/// How it is done.
#[derive(Debug)]
pub(crate) enum Kind {
    /// At once.
    Bind,
    /// To a path, which starts in this directory if it starts nowhere else. With the umask of the caller.
    BindFrom(Option<OwnedFd>),
    /// To the caller's own number, or to any if that is taken.
    BindNumbered,
    /// At once, with this backlog.
    Listen(i32),
    /// It may take long.
    Send(Sending),
    /// At once, because the socket does not block.
    Connect,
    /// It may take long.
    ConnectBlocking {
        /// To ourselves, which is usually quick.
        local: bool,
    },
}

/// How many addresses of one `sendmmsg` are looked at; the kernel takes no more.
const MESSAGES: u64 = 1024;
/// The longest address that the kernel takes.
pub(crate) const ADDRESS_MAX: u64 = 128;

/// Reads an address of the caller.
pub(crate) fn read_address(caller: &Caller, address: u64, length: u64) -> Sys<Vec<u8>> {
    let length = length as u32 as u64;
    if length > ADDRESS_MAX {
        return Err(Errno(libc::EINVAL));
    }
    let mut bytes = vec![0; length as usize];
    if length > 0 && sys::read_memory(caller.tid, address, &mut bytes)? != bytes.len() {
        return Err(Errno(libc::EFAULT));
    }
    Ok(bytes)
}

/// What an address says.
pub(crate) fn parse(caller: &Caller, bytes: &[u8]) -> Address {
    let Some((family, rest)) = bytes.split_first_chunk::<2>() else {
        return Address::Unnamed;
    };
    let family = u16::from_ne_bytes(*family);
    match (i32::from(family), rest) {
        (libc::AF_INET, [p0, p1, a, b, c, d, ..]) => Address::Inet {
            ip: Ipv4Addr::new(*a, *b, *c, *d),
            port: u16::from_be_bytes([*p0, *p1]),
        },
        (libc::AF_INET6, rest) if rest.len() >= 22 => {
            let mut ip = [0; 16];
            ip.copy_from_slice(&rest[6..22]);
            let scope = rest
                .get(22..26)
                .map_or(0, |s| u32::from_ne_bytes([s[0], s[1], s[2], s[3]]));
            let port = u16::from_be_bytes([rest[0], rest[1]]);
            Address::Inet6 {
                ip: Ipv6Addr::from(ip),
                port,
                scope,
            }
        }
        (libc::AF_UNIX, []) | (libc::AF_UNSPEC, _) => Address::Unnamed,
        (libc::AF_UNIX, [0, name @ ..]) => Address::Abstract {
            name: name.to_vec().into(),
        },
        (libc::AF_UNIX, path) => {
            let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
            Address::Unix {
                path: walk::would_be(caller, libc::AT_FDCWD, &path[..end]).into(),
            }
        }
        (_, rest) => Address::Other {
            number: family,
            bytes: rest.to_vec().into(),
        },
    }
}

pub(crate) fn family(address: &[u8]) -> i32 {
    address
        .first_chunk::<2>()
        .map_or(libc::AF_UNSPEC, |f| u16::from_ne_bytes(*f).into())
}

pub(crate) fn is_local(address: &Address) -> bool {
    match address {
        Address::Inet { ip, .. } => ip.is_loopback(),
        Address::Inet6 { ip, .. } => {
            ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback())
        }
        _ => false,
    }
}

/// Plans a call. None if it is not about sockets or says nothing that is a fact.
pub(crate) fn plan(caller: &Caller, call: Call, ours: bool) -> Option<Planned> {
    let (fd, address, length, op) = match call {
        Call::Connect {
            fd,
            address,
            length,
        } => (fd, address, length, NetOpKind::Connect),
        Call::Bind {
            fd,
            address,
            length,
        } => (fd, address, length, NetOpKind::Bind),
        Call::Listen { fd, .. } => {
            let own = caller
                .duplicate(fd)
                .and_then(|s| socket::own_address(s.as_fd()));
            let address = own.map_or(Address::Unnamed, |bytes| parse(caller, &bytes));
            return Some(Planned {
                ops: vec![(NetOpKind::Listen, address)],
                act: None,
            });
        }
        Call::SendTo {
            flags,
            address,
            length,
            fd,
            ..
        } => {
            let bytes = read_address(caller, address, length).ok()?;
            return plan_send(caller, fd, vec![(bytes, flags)]);
        }
        Call::SendMsg { fd, message, flags } => {
            let bytes = message_address(caller, message)?;
            return plan_send(caller, fd, vec![(bytes, flags)]);
        }
        Call::SendMmsg {
            fd,
            messages,
            count,
            flags,
        } => {
            // struct mmsghdr is a msghdr and a length, padded.
            const STRIDE: u64 = size_of::<libc::mmsghdr>() as u64;
            let all = (0..count.min(MESSAGES))
                .filter_map(|i| message_address(caller, messages + i * STRIDE))
                .map(|bytes| (bytes, flags))
                .collect();
            return plan_send(caller, fd, all);
        }
        _ => return None,
    };
    // What cannot be read fails in the kernel too, and is seen to.
    let bytes = read_address(caller, address, length).unwrap_or_default();
    let parsed = parse(caller, &bytes);
    let inet = matches!(family(&bytes), libc::AF_INET | libc::AF_INET6);
    let act = if ours && inet {
        plan_act(caller, fd, op, bytes, is_local(&parsed)).ok()
    } else {
        None
    };
    Some(Planned {
        ops: vec![(op, parsed)],
        act,
    })
}

fn plan_act(caller: &Caller, fd: i32, op: NetOpKind, address: Vec<u8>, local: bool) -> Sys<Act> {
    let socket = caller.duplicate(fd)?;
    let kind = if op == NetOpKind::Bind {
        Kind::Bind
    } else {
        connecting(&socket, local)?
    };
    Ok(Act {
        socket,
        address,
        kind,
        _holds: None,
    })
}

/// How a socket is connected.
pub(crate) fn connecting(socket: &OwnedFd, local: bool) -> Sys<Kind> {
    let at_once = socket::is_nonblocking(socket.as_fd())?
        // To ourselves it makes no difference.
        || !local && socket::option(socket.as_fd(), libc::SO_TYPE)? == libc::SOCK_DGRAM;
    Ok(if at_once {
        Kind::Connect
    } else {
        Kind::ConnectBlocking { local }
    })
}

/// The address in a `msghdr`, if it has one.
fn message_address(caller: &Caller, message: u64) -> Option<Vec<u8>> {
    let header: [u8; 16] = sys::read_array(caller.tid, message).ok()?;
    let (name, length) = header.split_at(8);
    let name = u64::from_ne_bytes(name.try_into().ok()?);
    let length = u32::from_ne_bytes(length[..4].try_into().ok()?);
    if name == 0 || length == 0 {
        return None;
    }
    read_address(caller, name, length.into()).ok()
}

fn plan_send(caller: &Caller, fd: i32, messages: Vec<(Vec<u8>, i32)>) -> Option<Planned> {
    if messages.is_empty() {
        return None;
    }
    // A connected stream ignores the address, and a netlink socket speaks to the kernel.
    let stream = caller
        .duplicate(fd)
        .and_then(|s| socket::option(s.as_fd(), libc::SO_TYPE))
        .is_ok_and(|kind| kind == libc::SOCK_STREAM);
    let mut ops = Vec::new();
    for (bytes, flags) in messages {
        let fast_open = flags & libc::MSG_FASTOPEN != 0;
        if stream && !fast_open || family(&bytes) == libc::AF_NETLINK {
            continue;
        }
        let op = if stream {
            NetOpKind::Connect
        } else {
            NetOpKind::Send
        };
        let op = (op, parse(caller, &bytes));
        if !ops.contains(&op) {
            ops.push(op);
        }
    }
    (!ops.is_empty()).then_some(Planned { ops, act: None })
}

/// How long the loop waits for a connection to ourselves before a worker takes over.
const PATIENCE: Duration = Duration::from_millis(1);

/// What came of an act.
#[derive(Debug)]
pub(crate) enum Done {
    /// It has ended, with what the call returns.
    Ended(Sys<i64>),
    /// It goes on, and somebody else has to wait for it.
    Wait(Act),
}

/// Does what was planned, or as much of it as can be done at once.
pub(crate) fn perform(mut act: Act) -> Done {
    let socket = act.socket.as_fd();
    let ended = |result: Sys<()>| Done::Ended(result.map(|()| 0));
    match &mut act.kind {
        Kind::Bind | Kind::BindFrom(None) => ended(socket::bind(socket, &act.address)),
        Kind::BindFrom(Some(dir)) => {
            let bound = sys::fchdir(dir.as_fd()).and_then(|()| socket::bind(socket, &act.address));
            // Nobody's directory is kept in use.
            let _ = fs::open(fs::At::Cwd, c"/", libc::O_PATH, 0, 0)
                .and_then(|root| sys::fchdir(root.as_fd()));
            ended(bound)
        }
        Kind::BindNumbered => ended(match socket::bind(socket, &act.address) {
            Err(Errno(libc::EADDRINUSE)) => {
                act.address[4..8].fill(0);
                socket::bind(socket, &act.address)
            }
            bound => bound,
        }),
        Kind::Listen(backlog) => ended(socket::listen(socket, *backlog)),
        Kind::Send(sending) => match sending.try_now(socket, &act.address) {
            Some(result) => Done::Ended(result),
            None => Done::Wait(act),
        },
        Kind::Connect => ended(socket::connect(socket, &act.address)),
        Kind::ConnectBlocking { local: false } => Done::Wait(act),
        Kind::ConnectBlocking { local: true } => {
            let Ok(timeout) = socket::send_timeout(socket) else {
                return Done::Wait(act);
            };
            if !timeout.is_zero() || socket::set_send_timeout(socket, PATIENCE).is_err() {
                return Done::Wait(act);
            }
            let result = socket::connect(socket, &act.address);
            let restored = socket::set_send_timeout(socket, timeout);
            match (result, restored) {
                // The attempt goes on in the kernel; connecting again waits for its end.
                (Err(Errno(libc::EINPROGRESS | libc::EAGAIN)), Ok(())) => Done::Wait(act),
                (result, _) => ended(result),
            }
        }
    }
}

/// Goes on to the end, on a thread of its own. Whoever waits may be forgotten meanwhile.
pub(crate) fn finish(act: Act, forgotten: &AtomicBool) -> Sys<i64> {
    let socket = act.socket.as_fd();
    if let Kind::Send(sending) = act.kind {
        return sending.finish(socket, &act.address, forgotten);
    }
    loop {
        match socket::connect(socket, &act.address) {
            Err(Errno(libc::EINTR)) => {}
            result => return result.map(|()| 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths;

    fn us() -> Caller {
        let pid = std::process::id();
        Caller {
            tid: pid,
            pid,
            cwd: paths::Cwd::default(),
            process: paths::Held::default(),
        }
    }

    #[test]
    fn addresses_of_all_kinds() {
        let inet = [2, 0, 0x1f, 0x90, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            parse(&us(), &inet),
            Address::Inet {
                ip: Ipv4Addr::LOCALHOST,
                port: 8080
            }
        );
        let mut inet6 = [0u8; 28];
        inet6[0] = 10;
        inet6[3] = 53;
        inet6[23] = 1;
        inet6[24] = 3;
        let expected = Address::Inet6 {
            ip: Ipv6Addr::LOCALHOST,
            port: 53,
            scope: 3,
        };
        assert_eq!(parse(&us(), &inet6), expected);
        assert_eq!(
            parse(&us(), b"\x01\x00\x00hid"),
            Address::Abstract { name: "hid".into() }
        );
        assert_eq!(
            parse(&us(), b"\x01\x00/run/x\0junk"),
            Address::Unix {
                path: "/run/x".into()
            }
        );
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        let base = dir.path().canonicalize().unwrap();
        let socket = |name: &str| {
            let path = base.join(name);
            let bytes = [b"\x01\x00", path.as_os_str().as_encoded_bytes()].concat();
            match parse(&us(), &bytes) {
                Address::Unix { path } => path.to_string_lossy().into_owned(),
                other => panic!("{other:?}"),
            }
        };
        let real = |name: &str| base.join(name).to_str().unwrap().to_owned();
        assert_eq!(socket("link/s"), real("real/s"));
        assert_eq!(socket("link/none/./deep/s"), real("real/none/deep/s"));
        assert_eq!(socket("link/none/../s"), real("link/s"));
        assert_eq!(parse(&us(), b"\x01\x00"), Address::Unnamed);
        assert_eq!(parse(&us(), b""), Address::Unnamed);
        assert!(matches!(
            parse(&us(), b"\x10\x00abc"),
            Address::Other { number: 16, .. }
        ));
        let v4 = "127.0.0.1:8080".parse().unwrap();
        assert_eq!(encode(v4, false).unwrap(), inet);
        let mapped = parse(&us(), &encode(v4, true).unwrap());
        assert!(is_local(&mapped) && matches!(mapped, Address::Inet6 { port: 8080, .. }));
        assert_eq!(encode("[::1%3]:53".parse().unwrap(), true).unwrap(), inet6);
        assert_eq!(encode("[::1]:53".parse().unwrap(), false), None);
        assert!(matches!(
            parse(&us(), b"\x02\x00a"),
            Address::Other { number: 2, .. }
        ));
    }
}
