//! Those outside who wait to be reached, and know if they were.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, sendmsg};

/// Servers on this machine: one port that may be reached, and everything else.
pub(crate) struct Servers {
    pub(crate) port: u16,
    pub(crate) allowed: u16,
    streams: Vec<TcpListener>,
    datagrams: Vec<UdpSocket>,
    docker: UnixListener,
    bus: UnixDatagram,
    name: UnixListener,
    open: Open,
    givers: Givers,
    _also: (UdpSocket, UnixListener),
}

impl Servers {
    /// Listens on two ports, and on sockets in a directory.
    pub(crate) fn start(outside: &Path) -> Servers {
        let (port, streams, datagrams) = forbidden();
        let (allowed, open, datagram) = Open::start();
        let at = |name: &str| outside.join(name);
        let docker = UnixListener::bind(at("docker.sock")).unwrap();
        let bus = UnixDatagram::bind(at("bus.sock")).unwrap();
        let also = UnixListener::bind(at("allowed.sock")).unwrap();
        let givers = Givers::start(outside);
        for name in [
            "docker.sock",
            "bus.sock",
            "allowed.sock",
            "giver.sock",
            "stranger.sock",
        ] {
            std::fs::set_permissions(at(name), PermissionsExt::from_mode(0o777)).unwrap();
        }
        let name = format!("invigil-escape-{port}");
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let name = UnixListener::bind_addr(&name).unwrap();
        docker.set_nonblocking(true).unwrap();
        bus.set_nonblocking(true).unwrap();
        name.set_nonblocking(true).unwrap();
        Servers {
            port,
            allowed,
            streams,
            datagrams,
            docker,
            bus,
            name,
            open,
            givers,
            _also: (datagram, also),
        }
    }

    /// Who was reached that must not be.
    pub(crate) fn reached(&self) -> Vec<String> {
        let came = |result: std::io::Result<()>| match result {
            Ok(()) => true,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        let mut reached = Vec::new();
        for server in &self.streams {
            if came(server.accept().map(drop)) {
                reached.push(format!("tcp {}", server.local_addr().unwrap()));
            }
        }
        for server in &self.datagrams {
            if came(server.recv(&mut [0; 8]).map(drop)) {
                reached.push(format!("udp {}", server.local_addr().unwrap()));
            }
        }
        if came(self.docker.accept().map(drop)) {
            reached.push("docker.sock".into());
        }
        if came(self.bus.recv(&mut [0; 8]).map(drop)) {
            reached.push("bus.sock".into());
        }
        if came(self.name.accept().map(drop)) {
            reached.push("the abstract socket".into());
        }
        reached
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.open.stop(self.allowed);
        self.givers.stop();
    }
}

/// One number that is a port of both families and both protocols.
fn forbidden() -> (u16, Vec<TcpListener>, Vec<UdpSocket>) {
    let places = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    loop {
        let first = TcpListener::bind((places[0], 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let second = TcpListener::bind((places[1], port));
        let datagrams: Result<Vec<_>, _> = places
            .iter()
            .map(|place| UdpSocket::bind((*place, port)))
            .collect();
        if let (Ok(second), Ok(datagrams)) = (second, datagrams) {
            let streams = vec![first, second];
            for server in &streams {
                server.set_nonblocking(true).unwrap();
            }
            for server in &datagrams {
                server.set_nonblocking(true).unwrap();
            }
            return (port, streams, datagrams);
        }
    }
}

/// A port that takes whoever comes.
struct Open {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Open {
    fn start() -> (u16, Open, UdpSocket) {
        let (listener, datagram) = loop {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            if let Ok(datagram) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) {
                break (listener, datagram);
            }
        };
        let port = listener.local_addr().unwrap().port();
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                drop(listener.accept());
            }
        });
        let thread = Some(thread);
        (port, Open { over, thread }, datagram)
    }

    fn stop(&mut self, port: u16) {
        self.over.store(true, Ordering::Relaxed);
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port)));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Those who give what they have open to whoever comes: the directory of the secret, its file by name, its file to be read.
struct Givers(Vec<(UnixListener, JoinHandle<()>)>);

impl Givers {
    fn start(outside: &Path) -> Givers {
        let secret = outside.parent().unwrap().join("secret");
        let start = |name: &str| {
            let listener = UnixListener::bind(outside.join(name)).unwrap();
            let (own, secret) = (listener.try_clone().unwrap(), secret.clone());
            let thread = std::thread::spawn(move || {
                while let Ok((stream, _)) = own.accept() {
                    give(&stream, &secret);
                }
            });
            (listener, thread)
        };
        Givers(["giver.sock", "stranger.sock"].map(start).into())
    }

    fn stop(&mut self) {
        for (listener, thread) in self.0.drain(..) {
            rustix::net::shutdown(&listener, Shutdown::Both).unwrap();
            thread.join().unwrap();
        }
    }
}

fn give(stream: &UnixStream, secret: &Path) {
    let open = |path: &Path, flags| rustix::fs::open(path, flags, Mode::empty()).unwrap();
    let given = [
        open(secret, OFlags::RDONLY | OFlags::DIRECTORY),
        open(&secret.join("key"), OFlags::PATH),
        open(&secret.join("key"), OFlags::RDONLY),
    ];
    let given = given.each_ref().map(OwnedFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    assert!(message.push(SendAncillaryMessage::ScmRights(&given)));
    let part = [std::io::IoSlice::new(b"x")];
    // Whoever came may be gone.
    let _ = sendmsg(stream, &part, &mut message, SendFlags::NOSIGNAL);
}
