//! A model that follows a script, on loopback: it asks for one command after the other and keeps what comes back.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::wire::{self, Say};
use crate::Result;

/// The longest request that is read.
const LONGEST: u64 = 64 << 20;

/// A running endpoint.
pub(super) struct Endpoint {
    pub(super) port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    commands: Vec<String>,
    transcript: Mutex<Transcript>,
    over: AtomicBool,
}

/// What an agent told the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Transcript {
    /// What the tools answered, in their order.
    pub(super) results: Vec<String>,
    /// Whether the model came to say that it is done.
    pub(super) done: bool,
}

impl Endpoint {
    pub(super) fn start(commands: Vec<String>) -> Result<Endpoint> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            commands,
            transcript: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if served.over.load(Ordering::SeqCst) {
                    return;
                }
                let served = Arc::clone(&served);
                std::thread::spawn(move || {
                    // An agent that hangs up is no error of ours.
                    let _ = connection.map(|connection| served.serve(connection));
                });
            }
        });
        Ok(Endpoint {
            port,
            shared,
            thread: Some(thread),
        })
    }

    /// What was said so far.
    pub(super) fn transcript(&self) -> Transcript {
        let transcript = self.shared.transcript.lock();
        transcript
            .map(|transcript| transcript.clone())
            .unwrap_or_default()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes the one who waits for connections.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Shared {
    /// One request and its answer.
    fn serve(&self, connection: TcpStream) -> Result {
        connection.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut reader = BufReader::new(connection);
        let (path, body) = request(&mut reader)?;
        let mut connection = reader.into_inner();
        let (status, kind, text) = match serde_json::from_slice(&body) {
            Ok(request)
                if path.contains("/responses")
                    || path.contains("/messages") && !path.contains("count_tokens") =>
            {
                let (text, kind) = self.answer(&path, &request);
                ("200 OK", kind, text)
            }
            _ => ("404 Not Found", "application/json", String::from("{}")),
        };
        write!(
            connection,
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
            text.len()
        )?;
        Ok(connection.flush()?)
    }

    fn answer(&self, path: &str, request: &Value) -> (String, &'static str) {
        let Some(results) = wire::results(path, request) else {
            return wire::answer(path, request, &Say::Done);
        };
        let step = results.len();
        let say = match self.commands.get(step) {
            Some(line) => Say::Command { step, line },
            None => Say::Done,
        };
        if let Ok(mut transcript) = self.transcript.lock() {
            transcript.done |= matches!(say, Say::Done);
            if step > transcript.results.len() {
                transcript.results = results;
            }
        }
        wire::answer(path, request, &say)
    }
}

/// The path and the body of a request.
fn request(reader: &mut BufReader<TcpStream>) -> Result<(String, Vec<u8>)> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    if length > LONGEST {
        return Err("a request that is too long".into());
    }
    let mut body = vec![0; length as usize];
    reader.read_exact(&mut body)?;
    Ok((path, body))
}
