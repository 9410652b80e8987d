//! The other end of a connection, for people, scripts and tests. It blocks.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::RpcError;
use crate::ws::{Broken, Decoder, Incoming, Outgoing, Role};

/// Where a daemon is.
#[derive(Debug, Clone)]
pub enum Endpoint {
    /// Its Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

/// What can go wrong between here and a daemon.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It cannot be reached, or is gone.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("this is not a daemon: {0}")]
    Handshake(String),
    /// It speaks another language.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// It has ended the connection.
    #[error("the daemon has closed the connection")]
    Closed,
    /// What it sent is no JSON.
    #[error("the daemon sent something that is no JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// It said no.
    #[error("{0}")]
    Refused(RpcError),
    /// It did not answer in time.
    #[error("no answer in time")]
    Timeout,
}

/// The largest message that is taken from a daemon.
const LARGEST: usize = 256 << 20;

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn io(&mut self) -> &mut dyn Io {
        match self {
            Stream::Unix(stream) => stream,
            Stream::Tcp(stream) => stream,
        }
    }

    fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(time),
            Stream::Tcp(stream) => stream.set_read_timeout(time),
        }
    }
}

trait Io: Read + Write {}
impl<T: Read + Write> Io for T {}

/// A connection to a daemon.
pub struct Client {
    stream: Stream,
    decoder: Decoder,
    next: u64,
}

impl Client {
    /// Connects. On TCP the next thing must be `session.auth`.
    pub fn connect(endpoint: &Endpoint) -> Result<Client, ClientError> {
        let stream = match endpoint {
            Endpoint::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
        };
        let mut client = Client {
            stream,
            decoder: Decoder::new(Role::Client, LARGEST),
            next: 0,
        };
        client.handshake()?;
        Ok(client)
    }

    fn handshake(&mut self) -> Result<(), ClientError> {
        const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
        let request = format!(
            "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        let io = self.stream.io();
        io.write_all(request.as_bytes())?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if head.len() > 8192 || io.read(&mut byte)? == 0 {
                break;
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head);
        let first = head.lines().next().unwrap_or_default();
        match first.starts_with("HTTP/1.1 101 ") {
            true => Ok(()),
            false => Err(ClientError::Handshake(first.to_owned())),
        }
    }

    /// Sends a text as it is.
    pub fn send(&mut self, text: String) -> Result<(), ClientError> {
        let mut frame = Vec::with_capacity(text.len() + 16);
        // A mask protects proxies from clients, of which there are none here.
        Outgoing::Text(text).encode(&mut frame, Some([0; 4]));
        self.send_raw(&frame)
    }

    /// Sends bytes as they are.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        Ok(self.stream.io().write_all(bytes)?)
    }

    /// The next message, as it is.
    pub fn receive_text(&mut self, patience: Duration) -> Result<String, ClientError> {
        let until = Instant::now() + patience;
        let mut piece = vec![0; 64 * 1024];
        loop {
            match self.decoder.next()? {
                Some(Incoming::Text(text)) => return Ok(text),
                Some(Incoming::Close) => return Err(ClientError::Closed),
                Some(_) => continue,
                None => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::Timeout);
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.io().read(&mut piece) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(read) => self.decoder.input().extend_from_slice(&piece[..read]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        return Err(ClientError::Timeout);
                    }
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// The next message.
    pub fn receive(&mut self, patience: Duration) -> Result<Value, ClientError> {
        Ok(serde_json::from_str(&self.receive_text(patience)?)?)
    }

    /// Sends a request; its id.
    pub fn request(&mut self, method: &str, params: &Value) -> Result<u64, ClientError> {
        self.next += 1;
        let id = self.next;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(request.to_string())?;
        Ok(id)
    }

    /// Sends a request and waits for its answer; what comes in between is handed on.
    pub fn call_with(
        &mut self,
        method: &str,
        params: &Value,
        patience: Duration,
        mut other: impl FnMut(&mut Client, Value) -> Result<(), ClientError>,
    ) -> Result<Value, ClientError> {
        let id = self.request(method, params)?;
        loop {
            let mut message = self.receive(patience)?;
            if message.get("method").is_some() || message["id"] != id {
                other(self, message)?;
                continue;
            }
            return match message.get_mut("error") {
                Some(error) => Err(ClientError::Refused(serde_json::from_value(error.take())?)),
                None => Ok(message["result"].take()),
            };
        }
    }

    /// The same, where nothing else matters.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, ClientError> {
        let patience = Duration::from_secs(60);
        self.call_with(method, params, patience, |_, _| Ok(()))
    }
}
