//! Names of hosts: an answerer for DNS on loopback, and addresses that each stand for one name.
//!
//! A gate leads queries here and connects to the real addresses; see `docs/network.md`. Nothing of this runs unless it
//! is started.

mod answerer;
mod dns;
mod table;

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use answerer::Answerer;
use table::Table;

/// The port of DNS.
const DNS: u16 = 53;

/// Who knows the real addresses of a name.
pub type Resolve = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;
/// Who says whether a name may be looked up; the address is whoever asks. It is called on threads of the answerer.
pub type MayLookUp = dyn Fn(&str, SocketAddr) -> bool + Send + Sync;

/// What an address of ours stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The name: lower case, without a last dot.
    pub host: String,
    /// Where it really is, with the port that was asked for.
    pub real: SocketAddr,
}

/// The names of one run. Dropping it ends the answerer.
pub struct Names {
    table: Arc<Mutex<Table>>,
    answerer: Answerer,
}

impl Names {
    /// Starts the answerer, with the resolver of this machine.
    pub fn start(
        allowed: impl Fn(&str, SocketAddr) -> bool + Send + Sync + 'static,
    ) -> io::Result<Names> {
        Names::start_with(allowed, |name| {
            let found = (name, 0).to_socket_addrs()?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }

    /// The same with another resolver. An error of it is "no such name".
    pub fn start_with(
        allowed: impl Fn(&str, SocketAddr) -> bool + Send + Sync + 'static,
        resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> io::Result<Names> {
        let table = Arc::new(Mutex::new(Table::default()));
        let oracle = answerer::Oracle {
            table: Arc::clone(&table),
            allowed: Box::new(allowed),
            resolve: Box::new(resolve),
        };
        Ok(Names {
            table,
            answerer: Answerer::start(oracle)?,
        })
    }

    /// Where queries are to be led, over UDP and TCP.
    pub fn answerer(&self) -> SocketAddr {
        self.answerer.address()
    }

    /// Whether somebody wants to ask a name server.
    pub fn is_dns(&self, address: SocketAddr) -> bool {
        address.port() == DNS
    }

    /// What an address stands for, if it is one of ours. A mapped address is what it maps.
    pub fn judge(&self, address: SocketAddr) -> Option<Named> {
        let (host, real) = lock(&self.table).find(address.ip().to_canonical())?;
        Some(Named {
            host,
            real: SocketAddr::new(real, address.port()),
        })
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // Each change of the table is one insertion after the other; none leaves it unusable.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
