//! Who is at the other end of a connection: which processes, and whether a person can be behind them.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// The other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// On the Unix socket; the kernel vouches for the process, as it was when it connected.
    Unix {
        pid: Option<u32>,
    },
    Tcp(SocketAddr),
}

impl Peer {
    /// Needs no token: it is the same user.
    pub(crate) fn is_vouched_for(self) -> bool {
        matches!(self, Peer::Unix { .. })
    }

    /// The processes that hold the other end. None if they cannot be found.
    pub(crate) fn processes(self) -> Option<BTreeSet<u32>> {
        match self {
            Peer::Unix { pid } => pid.map(|pid| BTreeSet::from([pid])),
            Peer::Tcp(address) => {
                let owners = owners(socket_inode(address)?);
                (!owners.is_empty()).then_some(owners)
            }
        }
    }
}

/// A process and all its parents.
pub(crate) fn ancestry(pid: u32) -> Vec<u32> {
    let mut line = vec![pid];
    let mut at = pid;
    while let Some(stat) = Stat::of(at) {
        // A pid that is used again could lead in a circle.
        if stat.parent == 0 || line.contains(&stat.parent) {
            break;
        }
        line.push(stat.parent);
        at = stat.parent;
    }
    line
}

/// Whether a process belongs to a terminal, and the shell there is among its parents: nobody else has left it behind.
pub(crate) fn is_at_a_terminal(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.terminal && ancestry(pid).contains(&stat.session))
}

/// Whether one of these processes holds the lock of a run in this store: what is below it is watched.
pub(crate) fn supervises(pids: &[u32], runs: &Path) -> bool {
    let runs = runs.canonicalize().unwrap_or_else(|_| runs.to_owned());
    let own = std::process::id();
    let mut others = pids.iter().filter(|pid| **pid != own);
    others.any(|pid| {
        let files = fs::read_dir(format!("/proc/{pid}/fd"));
        files
            .into_iter()
            .flatten()
            .flatten()
            .any(|file| fs::read_link(file.path()).is_ok_and(|file| file.starts_with(&runs)))
    })
}

/// Whether somebody traces one of these processes, as every supervisor does with what it watches.
pub(crate) fn is_traced(pids: &[u32]) -> bool {
    let traced = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"));
        line.is_some_and(|tracer| tracer.trim() != "0")
    };
    pids.iter().any(traced)
}

/// One process, whoever has its number later: its pid and when it was started.
pub(crate) fn identity(pid: u32) -> Option<(u32, u64)> {
    Stat::of(pid).map(|stat| (pid, stat.start))
}

/// What the kernel says of a process.
struct Stat {
    parent: u32,
    session: u32,
    terminal: bool,
    start: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in brackets can hold anything.
        let mut rest = text[text.rfind(')')? + 1..]
            .split_ascii_whitespace()
            .skip(1);
        let parent = rest.next()?.parse().ok()?;
        let session = rest.nth(1)?.parse().ok()?;
        let terminal = rest.next()?.parse::<i64>().ok()? != 0;
        // The 22nd field; the terminal is the 7th.
        let start = rest.nth(14)?.parse().ok()?;
        Some(Stat {
            parent,
            session,
            terminal,
            start,
        })
    }
}

/// The inode of the socket that is bound to this address and connected.
fn socket_inode(address: SocketAddr) -> Option<u64> {
    let port = format!(":{:04X}", address.port());
    let (table, ip) = match address {
        SocketAddr::V4(v4) => {
            let ip = u32::from_ne_bytes(v4.ip().octets());
            ("/proc/net/tcp", format!("{ip:08X}"))
        }
        SocketAddr::V6(v6) => {
            let octets = v6.ip().octets();
            let word = |word: &[u8; 4]| format!("{:08X}", u32::from_ne_bytes(*word));
            let (words, _) = octets.as_chunks::<4>();
            ("/proc/net/tcp6", words.iter().map(word).collect())
        }
    };
    let local = format!("{ip}{port}");
    let table = fs::read_to_string(table).ok()?;
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.nth(1)? == local).then_some(())?;
        words.nth(7)?.parse().ok().filter(|inode| *inode != 0)
    })
}

/// All processes that hold a socket, as far as we may look.
fn owners(inode: u64) -> BTreeSet<u32> {
    let name = format!("socket:[{inode}]");
    let holds = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|link| link == Path::new(&name)))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(holds)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_owner_of_a_connection_is_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                println!("{address} cannot be had here");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_server, from) = listener.accept().unwrap();
            let processes = Peer::Tcp(from).processes().unwrap();
            assert_eq!(processes, BTreeSet::from([std::process::id()]));
            drop(client);
        }
    }

    #[test]
    fn parents_are_found() {
        let line = ancestry(std::process::id());
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get() as u32;
        assert_eq!(line[..2], [std::process::id(), parent]);
    }
}
