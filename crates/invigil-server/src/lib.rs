//! The daemon: hosts submit, Invigil gates and records. JSON-RPC 2.0 over WebSocket and a Unix socket.
//!
//! `docs/daemon.md` says what is promised, what is durable when, and what was rejected. All of Invigil that is
//! asynchronous is in this crate; journals are written by blocking threads, each for all who wait.
//!
//! - [`serve`] runs a daemon as [`Config`] says; [`BuiltIn`] is the border to tools of its own, [`Workshop`] that to tasks.
//! - [`Client`] is the other end, without anything asynchronous.

mod approvals;
mod builtin;
mod client;
mod config;
mod connection;
mod daemon;
mod dispatch;
mod error;
mod home;
mod http;
mod methods;
mod metrics;
mod peer;
mod person;
mod proposal;
mod rpc;
mod runs;
mod session;
mod signal;
mod subscription;
mod tasks;
pub mod ws;

pub use builtin::{BuiltIn, Cancelled};
pub use client::{Client, ClientError, Endpoint};
pub use config::{Config, Limits, Retention};
pub use daemon::{Listening, serve};
pub use error::ServeError;
pub use home::Places;
pub use rpc::RpcError;
pub use tasks::Workshop;

use std::io::{self, Read as _};

/// Bytes that nobody can guess.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A name that nobody can guess. Without randomness it is only unique.
fn random_id(kind: &str) -> String {
    match random::<16>() {
        Ok(bytes) => format!("{kind}_{:032x}", u128::from_ne_bytes(bytes)),
        Err(_) => format!("{kind}_{}", uuid::Uuid::now_v7().simple()),
    }
}
