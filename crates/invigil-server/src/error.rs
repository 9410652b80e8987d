//! Why a daemon cannot start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use invigil_journal::StoreError;
use invigil_policy::PolicyError;

/// Why a daemon cannot start, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// There is one already.
    #[error("a daemon has this store already: {0}; use it, or stop it first")]
    Running(String),
    /// The operating system said no.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}; choose another one with --listen")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// The address can be reached from elsewhere.
    #[error("{0} can be reached from other machines: only a loopback address is listened on")]
    NotLoopback(SocketAddr),
    /// A policy file.
    #[error("{}", _0.report())]
    Policy(#[from] PolicyError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No threads, no signals.
    #[error("cannot start: {0}")]
    Start(#[source] io::Error),
}

impl ServeError {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> ServeError {
        let path = path.into();
        move |source| ServeError::Io {
            action,
            path,
            source,
        }
    }
}
