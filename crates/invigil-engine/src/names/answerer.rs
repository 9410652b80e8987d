//! The threads that answer queries on loopback.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::dns::{Asks, Query, Reply, is_host};
use super::table::Table;
use super::{MayLookUp, Resolve, lock};

/// How many may be looked up or connected at the same time.
const WORKERS_MAX: usize = 32;
/// No question is longer.
const MESSAGE_MAX: usize = 4096;
/// How long a connection may be silent.
const SILENCE: Duration = Duration::from_secs(5);
/// Before something is tried again that has failed.
const BREATH: Duration = Duration::from_millis(5);

/// Who knows the answers.
pub(super) struct Oracle {
    pub(super) table: Arc<Mutex<Table>>,
    pub(super) allowed: Box<MayLookUp>,
    pub(super) resolve: Box<Resolve>,
}

impl Oracle {
    /// The answer, if nobody has to be asked for it.
    fn at_once(&self, asks: &Asks, from: SocketAddr) -> Option<Reply> {
        let name = match asks {
            Asks::Nonsense => return Some(Reply::BadForm),
            Asks::NameOf(address) => {
                let found = lock(&self.table).find(*address);
                return Some(found.map_or(Reply::NoSuchName, |(host, _)| Reply::Name(host)));
            }
            Asks::Four(name) | Asks::Six(name) | Asks::Else(name) => name,
        };
        if name == "localhost" || name.ends_with(".localhost") {
            let loopback = [
                IpAddr::from(Ipv4Addr::LOCALHOST),
                Ipv6Addr::LOCALHOST.into(),
            ];
            return Some(of_kind(asks, &loopback));
        }
        if !is_host(name) || !(self.allowed)(name, from) {
            return Some(Reply::NoSuchName);
        }
        if matches!(asks, Asks::Else(_)) {
            return Some(Reply::Nothing);
        }
        lock(&self.table)
            .fresh(name)
            .map(|ours| of_kind(asks, &ours))
    }

    /// Looks a name up that may be looked up.
    fn look_up(&self, asks: &Asks) -> Reply {
        let (Asks::Four(name) | Asks::Six(name)) = asks else {
            return Reply::Nothing;
        };
        let real = match (self.resolve)(name) {
            Ok(real) if !real.is_empty() => real,
            _ => return Reply::NoSuchName,
        };
        let ours = lock(&self.table).learn(name, &real);
        ours.map_or(Reply::Failure, |ours| of_kind(asks, &ours))
    }
}

fn of_kind(asks: &Asks, ours: &[IpAddr]) -> Reply {
    let wanted = |ip: &&IpAddr| match asks {
        Asks::Four(_) => ip.is_ipv4(),
        Asks::Six(_) => ip.is_ipv6(),
        _ => false,
    };
    let found: Vec<IpAddr> = ours.iter().filter(wanted).copied().collect();
    if found.is_empty() {
        Reply::Nothing
    } else {
        Reply::Addresses(found)
    }
}

struct Shared {
    oracle: Oracle,
    stopped: AtomicBool,
    workers: AtomicUsize,
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Does something on a thread of its own. False if there are too many.
    fn work(self: &Arc<Self>, work: impl FnOnce(&Shared) + Send + 'static) -> bool {
        let shared = Arc::clone(self);
        if self.workers.fetch_add(1, Ordering::SeqCst) >= WORKERS_MAX {
            self.workers.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        let worker = move || {
            work(&shared);
            shared.workers.fetch_sub(1, Ordering::SeqCst);
        };
        let begun = Builder::new().name("invigil-name".into()).spawn(worker);
        if begun.is_err() {
            self.workers.fetch_sub(1, Ordering::SeqCst);
        }
        begun.is_ok()
    }
}

/// The two doors, UDP and TCP, at one port.
pub(super) struct Answerer {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Answerer {
    pub(super) fn start(oracle: Oracle) -> io::Result<Answerer> {
        let (listener, socket) = open()?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            oracle,
            stopped: AtomicBool::new(false),
            workers: AtomicUsize::new(0),
        });
        let mut answerer = Answerer {
            address,
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let socket = Arc::new(socket);
        let thread = |name: &str| Builder::new().name(name.to_owned());
        let datagrams = Arc::clone(&shared);
        answerer
            .threads
            .push(thread("invigil-dns-udp").spawn(move || serve_datagrams(&socket, &datagrams))?);
        answerer
            .threads
            .push(thread("invigil-dns-tcp").spawn(move || serve_streams(&listener, &shared))?);
        Ok(answerer)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Each door is woken by somebody who knocks.
        drop(TcpStream::connect(self.address));
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
            drop(socket.send_to(&[], self.address));
        }
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// Both doors at one port. Somebody else may have the port for one of them.
fn open() -> io::Result<(TcpListener, UdpSocket)> {
    let mut tries = 0;
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        match UdpSocket::bind(listener.local_addr()?) {
            Ok(socket) => return Ok((listener, socket)),
            Err(error) if tries == 100 => return Err(error),
            Err(_) => tries += 1,
        }
    }
}

fn serve_datagrams(socket: &Arc<UdpSocket>, shared: &Arc<Shared>) {
    let mut bytes = [0; MESSAGE_MAX];
    while !shared.is_stopped() {
        let Ok((length, from)) = socket.recv_from(&mut bytes) else {
            std::thread::sleep(BREATH);
            continue;
        };
        let Some(query) = Query::parse(&bytes[..length]) else {
            continue;
        };
        // An answer that cannot be sent is asked for again.
        let tell = move |reply: &Reply, query: &Query, socket: &UdpSocket| {
            drop(socket.send_to(&query.answer(reply), from));
        };
        if let Some(reply) = shared.oracle.at_once(&query.asks, from) {
            tell(&reply, &query, socket);
            continue;
        }
        let door = Arc::clone(socket);
        // Whoever gets no answer because there are too many asks again.
        shared.work(move |shared| {
            let reply = shared.oracle.look_up(&query.asks);
            tell(&reply, &query, &door);
        });
    }
}

fn serve_streams(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.is_stopped() {
        match listener.accept() {
            Ok((stream, from)) => {
                // Whoever is one too many is hung up on.
                shared.work(move |shared| drop(converse(stream, from, shared)));
            }
            Err(_) => std::thread::sleep(BREATH),
        }
    }
}

/// Answers one connection until it ends.
fn converse(mut stream: TcpStream, from: SocketAddr, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut bytes = [0; MESSAGE_MAX];
    while !shared.is_stopped() {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let length = usize::from(u16::from_be_bytes(length));
        let Some(message) = bytes.get_mut(..length) else {
            return Ok(());
        };
        stream.read_exact(message)?;
        let Some(query) = Query::parse(message) else {
            return Ok(());
        };
        let reply = shared.oracle.at_once(&query.asks, from);
        let reply = reply.unwrap_or_else(|| shared.oracle.look_up(&query.asks));
        let answer = query.answer(&reply);
        stream.write_all(&[&(answer.len() as u16).to_be_bytes()[..], &answer].concat())?;
    }
    Ok(())
}
