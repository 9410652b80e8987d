//! A subscription: one for each thing that a session follows, and nobody waits for a slow one.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;

use crate::rpc::{self, Answer, RpcError};
use crate::session::{Followed, Session, lock};
use crate::signal::Signal;
use crate::ws::Outgoing;

/// A subscription of a session, until it is dropped.
pub(crate) struct Subscription {
    pub(crate) session: Arc<Session>,
    followed: Followed,
    stop: Arc<Signal>,
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It will be written.
    Yes,
    /// There was no room for it for too long.
    Late,
    /// Nobody wants it any more.
    Over,
}

impl Subscription {
    pub(crate) fn enter(session: &Arc<Session>, followed: Followed) -> Answer<Subscription> {
        let stop = Arc::new(Signal::default());
        let mut subscriptions = lock(&session.subscriptions);
        let most = session.daemon.config.limits.entries;
        if subscriptions.len() >= most {
            let why = format!("{most} subscriptions are open in this session");
            return Err(RpcError::limit("entries", why));
        }
        // Another one for the same takes the place of the first.
        if let Some(before) = subscriptions.insert(followed.clone(), Arc::clone(&stop)) {
            before.fire();
        }
        drop(subscriptions);
        session.daemon.metrics.subscriptions.add(1);
        Ok(Subscription {
            session: Arc::clone(session),
            followed,
            stop,
        })
    }

    /// Ends a subscription of a session, if it has it.
    pub(crate) fn end(session: &Session, followed: &Followed) -> Answer<()> {
        let stop = lock(&session.subscriptions).remove(followed);
        stop.ok_or_else(|| RpcError::not_found("subscription"))?
            .fire();
        Ok(())
    }

    /// Returns when it is over.
    pub(crate) async fn over(&self) {
        tokio::select! {
            () = self.stop.wait() => {}
            () = self.session.gone.wait() => {}
        }
    }

    /// Sends a frame to somebody who may be slow.
    pub(crate) async fn send(&self, frame: String) -> Sent {
        if self.stop.is_fired() || self.session.gone.is_fired() {
            return Sent::Over;
        }
        let patience = Duration::from_millis(self.session.daemon.config.limits.lag_ms);
        let sent = self.session.outbox.send(Outgoing::Text(frame));
        match timeout(patience, sent).await {
            Ok(Ok(())) => Sent::Yes,
            Ok(Err(_)) => Sent::Over,
            Err(_) => Sent::Late,
        }
    }

    /// Tells a slow one, as soon as it can be told anything.
    pub(crate) async fn lagged(&self, method: &str, params: &impl Serialize) {
        let Ok(frame) = rpc::notification(method, params) else {
            return;
        };
        tokio::select! {
            () = self.session.send(frame) => {}
            () = self.over() => {}
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscriptions = lock(&self.session.subscriptions);
        let own = subscriptions.get(&self.followed);
        if own.is_some_and(|own| Arc::ptr_eq(own, &self.stop)) {
            subscriptions.remove(&self.followed);
        }
        self.session.daemon.metrics.subscriptions.less();
    }
}
