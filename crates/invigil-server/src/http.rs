//! HTTP as far as it is needed: the handshake of a WebSocket, and two pages.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection;
use crate::daemon::{Daemon, Seat};
use crate::peer::Peer;
use crate::ws;

type Page = Response<Full<Bytes>>;

/// Whoever has not said what it wants by then goes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves one stream.
pub(crate) async fn serve<S>(stream: S, seat: Seat, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let seat = Arc::new(seat);
    let service = service_fn(move |request| {
        let page = route(request, &seat, peer);
        async move { Ok::<_, Infallible>(page) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    if let Err(error) = served.await {
        tracing::debug!(?peer, %error, "a connection failed");
    }
}

fn route(request: Request<Incoming>, seat: &Arc<Seat>, peer: Peer) -> Page {
    let daemon = &seat.daemon;
    if let Err(why) = from_here(&request, daemon) {
        daemon.metrics.connections_refused_total.add(1);
        return page(StatusCode::FORBIDDEN, why);
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/" | "/ws") => upgrade(request, seat, peer),
        (&Method::GET, "/healthz") => page(StatusCode::OK, "ok\n"),
        (&Method::GET, "/metrics") => page(StatusCode::OK, daemon.metrics.page()),
        _ => page(StatusCode::NOT_FOUND, "there is nothing here\n"),
    }
}

/// A page of the web may not speak for the user, and no name of the web may lead here.
fn from_here(request: &Request<Incoming>, daemon: &Daemon) -> Result<(), &'static str> {
    let text = |name| {
        let value: Option<&HeaderValue> = request.headers().get(name);
        value.map(|value| value.to_str().unwrap_or_default())
    };
    if let Some(origin) = text(header::ORIGIN) {
        let known = |allowed: &String| allowed == origin;
        if !daemon.config.origins.iter().any(known) {
            return Err("this origin is not allowed: see --allow-origin\n");
        }
    }
    let host = text(header::HOST).unwrap_or("localhost");
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host.split(':').next(),
    };
    match name.unwrap_or_default() {
        "localhost" | "127.0.0.1" | "::1" => Ok(()),
        _ => Err("this is no name of this machine\n"),
    }
}

fn upgrade(mut request: Request<Incoming>, seat: &Arc<Seat>, peer: Peer) -> Page {
    let has = |name, word: &str| {
        let value = request.headers().get(name);
        let value = value.and_then(|value: &HeaderValue| value.to_str().ok());
        value.is_some_and(|value| value.to_ascii_lowercase().contains(word))
    };
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY);
    let key = key.and_then(|key| key.to_str().ok()).map(ws::accept);
    let fits = has(header::UPGRADE, "websocket")
        && has(header::CONNECTION, "upgrade")
        && has(header::SEC_WEBSOCKET_VERSION, "13");
    let Some(key) = key.filter(|_| fits) else {
        let mut answer = page(
            StatusCode::UPGRADE_REQUIRED,
            "this is a WebSocket, version 13\n",
        );
        let version = HeaderValue::from_static("13");
        let headers = answer.headers_mut();
        headers.insert(header::SEC_WEBSOCKET_VERSION, version);
        return answer;
    };
    let Ok(key) = HeaderValue::try_from(key) else {
        return page(StatusCode::BAD_REQUEST, "the key cannot be answered\n");
    };
    let upgraded = hyper::upgrade::on(&mut request);
    let seat = Arc::clone(seat);
    tokio::spawn(async move {
        if let Ok(stream) = upgraded.await {
            connection::serve(TokioIo::new(stream), Arc::clone(&seat.daemon), peer).await;
        }
        drop(seat);
    });
    let mut answer = page(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = answer.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, key);
    answer
}

fn page(status: StatusCode, text: impl Into<Bytes>) -> Page {
    let mut page = Response::new(Full::new(text.into()));
    *page.status_mut() = status;
    page
}
