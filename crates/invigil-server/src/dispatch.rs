//! From a text to the method that it names, and back.
//!
//! The requests of one connection begin in the order in which they come. One that changes the session is finished
//! before the next begins; any other runs here until it first waits, and then goes on by itself.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use serde_json::value::RawValue;

use crate::methods::{self, Method, Order};
use crate::rpc::{self, Answer, Frame, RpcError};
use crate::session::Session;

/// What becomes of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    GoOn,
    /// It ends with this code.
    Close(u16),
}

/// A request on its way to an answer. A notification has none.
type Working = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// Takes a message: one request, an answer to one of ours, or a list of them.
pub(crate) async fn text(session: &Arc<Session>, text: String) -> After {
    let (working, list) = match begin(session, &text) {
        Ok(begun) => begun,
        Err(error) => {
            session.daemon.metrics.errors_total.add(1);
            session.send(rpc::failure(None, &error)).await;
            return parting(session);
        }
    };
    let mut answers = Vec::new();
    let mut later = Vec::new();
    for (order, mut request) in working {
        let first = poll_fn(|context| Poll::Ready(request.as_mut().poll(context))).await;
        match (first, order) {
            (Poll::Ready(answer), _) => answers.extend(answer),
            (Poll::Pending, Order::Aside) => later.push(request),
            // A task of its own, so that it comes to its end even if the connection does not last.
            (Poll::Pending, Order::InTurn) => {
                answers.extend(tokio::spawn(request).await.ok().flatten());
            }
        }
    }
    if later.is_empty() {
        finish(session, answers, list).await;
        return parting(session);
    }
    let session = Arc::clone(session);
    tokio::spawn(async move {
        for request in later {
            answers.extend(request.await);
        }
        finish(&session, answers, list).await;
    });
    After::GoOn
}

/// Who has not said who it is goes.
fn parting(session: &Session) -> After {
    match session.identity().authenticated {
        true => After::GoOn,
        false => After::Close(1008),
    }
}

async fn finish(session: &Session, mut answers: Vec<String>, list: bool) {
    match (list, answers.len()) {
        (_, 0) => {}
        (false, _) => session.send(answers.swap_remove(0)).await,
        (true, _) => session.send(format!("[{}]", answers.join(","))).await,
    }
}

/// Reads a message; nothing is done before a request is first polled.
fn begin(session: &Arc<Session>, text: &str) -> Answer<(Vec<(Order, Working)>, bool)> {
    if !text.trim_start().starts_with('[') {
        return Ok((vec![one(session, text)?], false));
    }
    let items: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|error| RpcError::parse(&error.to_string()))?;
    let limit = session.daemon.config.limits.batch;
    if items.is_empty() {
        return Err(RpcError::invalid_request("the list is empty"));
    }
    if items.len() > limit {
        let why = format!(
            "the list has {} requests, at most {limit} are taken",
            items.len()
        );
        return Err(RpcError::limit("batch", why));
    }
    let one = |item: &&RawValue| {
        one(session, item.get()).unwrap_or_else(|error| {
            let failure = rpc::failure(None, &error);
            (Order::InTurn, Box::pin(async { Some(failure) }) as Working)
        })
    };
    Ok((items.iter().map(one).collect(), true))
}

/// Reads one request or answer.
fn one(session: &Arc<Session>, text: &str) -> Answer<(Order, Working)> {
    let frame = Frame::parse(text)?;
    let session = Arc::clone(session);
    if let Some(name) = &frame.method {
        let id = frame.id.map(ToOwned::to_owned);
        let params = frame.params.map(ToOwned::to_owned);
        let method = methods::find(name).ok_or_else(|| RpcError::unknown_method(name));
        let order = method.as_ref().map_or(Order::InTurn, |method| method.order);
        return Ok((order, Box::pin(perform(session, method, id, params))));
    }
    let answer = match (frame.id, frame.result, frame.error) {
        (Some(id), Some(result), None) => (id.to_owned(), Ok(result.to_owned())),
        (Some(id), None, Some(error)) => (id.to_owned(), Err(error)),
        _ => {
            let why = "it has neither a method nor an id with a result or an error";
            return Err(RpcError::invalid_request(why));
        }
    };
    let working = async move {
        // Before anybody has said who it is, nothing was asked.
        if session.identity().authenticated {
            session.answered(&answer.0, answer.1);
        }
        None
    };
    Ok((Order::InTurn, Box::pin(working)))
}

async fn perform(
    session: Arc<Session>,
    method: Answer<&'static Method>,
    id: Option<Box<RawValue>>,
    params: Option<Box<RawValue>>,
) -> Option<String> {
    let metrics = &session.daemon.metrics;
    metrics.requests_total.add(1);
    let answer = match admit(&session, &method) {
        Ok((method, _under_way)) => (method.call)(Arc::clone(&session), params).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &answer {
        metrics.errors_total.add(1);
        tracing::debug!(session = session.id, %error, "refused");
    }
    id.map(|id| rpc::answer(&id, &answer))
}

fn admit(
    session: &Arc<Session>,
    method: &Answer<&'static Method>,
) -> Answer<(&'static Method, UnderWay)> {
    let open = matches!(method, Ok(method) if method.name == methods::AUTH);
    if !open && !session.identity().authenticated {
        let why = "the first frame must be session.auth";
        return Err(RpcError::unauthenticated(why));
    }
    let method = method.clone()?;
    let limit = session.daemon.config.limits.requests;
    let under_way = UnderWay::new(session);
    if session.requests.load(Ordering::Relaxed) > limit {
        let why = format!("{limit} requests are under way on this connection: wait for answers");
        return Err(RpcError::limit("requests", why));
    }
    Ok((method, under_way))
}

/// A request that is counted.
struct UnderWay(Arc<Session>);

impl UnderWay {
    fn new(session: &Arc<Session>) -> Self {
        session.requests.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(session))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Release);
    }
}
