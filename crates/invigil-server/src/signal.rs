//! Something that happens once, and that many may wait for.

use tokio::sync::watch;

/// Fired at most once.
#[derive(Debug)]
pub(crate) struct Signal(watch::Sender<bool>);

impl Default for Signal {
    fn default() -> Self {
        Signal(watch::Sender::new(false))
    }
}

impl Signal {
    pub(crate) fn fire(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_fired(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when it has been fired.
    pub(crate) async fn wait(&self) {
        // The sender is here, so this cannot fail.
        drop(self.0.subscribe().wait_for(|fired| *fired).await);
    }
}
