//! The life of one connection: a reader that hands on what comes, and a writer that nobody but its client can hold up.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::daemon::Daemon;
use crate::dispatch::{self, After};
use crate::peer::Peer;
use crate::rpc::{self, RpcError};
use crate::session::{OUTBOX, Session};
use crate::ws::{Decoder, Incoming, Outgoing, Role};

/// Frames are joined to one write up to this size.
const JOINED: usize = 64 * 1024;
/// How much is read at once: little from who says little.
const READ: (usize, usize) = (2 * 1024, 64 * 1024);

/// Serves a connection until one end is done.
pub(crate) async fn serve<S>(stream: S, daemon: Arc<Daemon>, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(stream);
    let (outbox, frames) = mpsc::channel(OUTBOX);
    let session = Session::new(Arc::clone(&daemon), peer, outbox);
    daemon.enter(&session);
    let stall = Duration::from_millis(daemon.config.limits.stall_ms);
    let mut writing = tokio::spawn(write(writer, frames, stall));
    let code = tokio::select! {
        code = read(reader, &session) => code,
        _ = &mut writing => None,
        () = session.gone.wait() => Some(1001),
    };
    session.close().await;
    daemon.leave(&session);
    if let Some(code) = code {
        drop(timeout(stall, session.outbox.send(Outgoing::Close(code))).await);
        drop(timeout(stall, &mut writing).await);
    }
    writing.abort();
}

/// Reads until the client is done; the code with which to part.
async fn read<S: AsyncRead>(mut stream: ReadHalf<S>, session: &Arc<Session>) -> Option<u16> {
    let limits = &session.daemon.config.limits;
    let mut decoder = Decoder::new(Role::Server, limits.message_bytes);
    let mut size = READ.0;
    loop {
        let input = decoder.input();
        input.reserve(size);
        let before = input.capacity() - input.len();
        let reading = stream.read_buf(input);
        let read = if session.identity().authenticated {
            reading.await
        } else {
            let patience = Duration::from_millis(limits.auth_ms);
            match timeout(patience, reading).await {
                Ok(read) => read,
                Err(_) => return refuse(session).await,
            }
        };
        match read {
            Ok(0) | Err(_) => return None,
            Ok(read) if read == before => size = READ.1,
            Ok(_) => size = READ.0,
        }
        loop {
            let incoming = match decoder.next() {
                Ok(Some(incoming)) => incoming,
                Ok(None) => break,
                Err(broken) => {
                    tracing::debug!(session = session.id, "{broken}");
                    return Some(1002);
                }
            };
            match handle(session, incoming).await {
                After::GoOn => {}
                After::Close(code) => return Some(code),
            }
        }
    }
}

async fn refuse(session: &Session) -> Option<u16> {
    let error = RpcError::unauthenticated("the first frame must be session.auth");
    session.send(rpc::failure(None, &error)).await;
    Some(1008)
}

async fn handle(session: &Arc<Session>, incoming: Incoming) -> After {
    let error = match incoming {
        Incoming::Text(text) => return dispatch::text(session, text).await,
        Incoming::Ping(bytes) => {
            // A client that pings and reads nothing gets no more pongs than others get frames.
            drop(session.outbox.try_send(Outgoing::Pong(bytes)));
            return After::GoOn;
        }
        Incoming::Pong => return After::GoOn,
        Incoming::Close => return After::Close(1000),
        Incoming::NotText => RpcError::parse("messages are text in UTF-8"),
        Incoming::TooLarge(size) => {
            let limit = session.daemon.config.limits.message_bytes;
            let why = format!("the message has {size} bytes, at most {limit} are taken");
            RpcError::limit("message_bytes", why)
        }
    };
    session.daemon.metrics.errors_total.add(1);
    session.send(rpc::failure(None, &error)).await;
    match session.identity().authenticated {
        true => After::GoOn,
        false => After::Close(1008),
    }
}

/// Writes what is in the outbox, joined while there is more. A client that takes nothing for too long is let go.
async fn write<S: AsyncWrite>(
    mut stream: WriteHalf<S>,
    mut frames: mpsc::Receiver<Outgoing>,
    stall: Duration,
) {
    let mut buffer = Vec::new();
    while let Some(frame) = frames.recv().await {
        let mut last = matches!(frame, Outgoing::Close(_));
        frame.encode(&mut buffer, None);
        while !last && buffer.len() < JOINED {
            let Ok(frame) = frames.try_recv() else { break };
            last = matches!(frame, Outgoing::Close(_));
            frame.encode(&mut buffer, None);
        }
        let written = timeout(stall, stream.write_all(&buffer)).await;
        if last || !matches!(written, Ok(Ok(()))) {
            break;
        }
        buffer.clear();
        if buffer.capacity() > 2 * JOINED {
            buffer = Vec::new();
        }
    }
    drop(timeout(Duration::from_secs(1), stream.shutdown()).await);
}
