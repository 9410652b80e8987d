//! What is judged: one thing that a process, or a tool, wants to do.

use std::net::SocketAddr;

use invigil_schema::OsText;
use serde_json::Value;

/// Something that has not happened yet. Paths are absolute and resolved: no `..`, no link on the way.
#[derive(Debug, Clone, Copy)]
pub enum Action<'a> {
    /// Open a file for reading, or list a directory.
    Read(&'a [u8]),
    /// Change, make, remove, rename or link a file.
    Write(&'a [u8]),
    /// Load a program.
    Exec(Exec<'a>),
    /// Connect or send to an address.
    Connect(Endpoint<'a>),
    /// Take an address, to listen there or to receive.
    Bind(Endpoint<'a>),
    /// Connect, send to or bind a Unix socket.
    Unix(UnixSocket<'a>),
    /// Call a tool of an agent.
    Tool {
        /// Its name.
        name: &'a str,
        /// Its parameters.
        params: &'a Value,
    },
}

/// A program that is about to be loaded.
#[derive(Debug, Clone, Copy)]
pub struct Exec<'a> {
    /// The file that is loaded, all links followed.
    pub program: &'a [u8],
    /// The same as it was called: its directory resolved, the last link not followed. `/usr/bin/sh` where `program` is
    /// `/usr/bin/dash`. The same as `program` where it is not known.
    pub called: &'a [u8],
    /// The arguments from the name of the program on.
    pub argv: &'a [OsText],
    /// For a script: its interpreter with all arguments, as the kernel makes them from the first line.
    pub interpreter: Option<&'a Exec<'a>>,
}

/// An address of the network.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint<'a> {
    /// Address and port.
    pub addr: SocketAddr,
    /// The name that led to the address, where it is known.
    pub host: Option<&'a str>,
}

/// A Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnixSocket<'a> {
    /// A file.
    Path(&'a [u8]),
    /// A name that is no file, without the zero byte in front.
    Abstract(&'a [u8]),
}
