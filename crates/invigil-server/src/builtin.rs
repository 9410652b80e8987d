//! Tools that the daemon itself carries out: the border to whoever writes them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::Value;

/// Tools that need no client. They are gated and recorded like all others.
pub trait BuiltIn: Send + Sync {
    /// The names of all.
    fn names(&self) -> Vec<String>;

    /// One line about a tool, and the JSON Schema of its parameters.
    fn schema(&self, name: &str) -> (String, Value);

    /// Does it, on a thread of its own. It should end at the deadline, and soon after it was cancelled.
    fn execute(
        &self,
        name: &str,
        parameters: &Value,
        deadline: Instant,
        cancelled: &Cancelled,
    ) -> Result<Value, String>;
}

/// Whether somebody still waits for the result.
#[derive(Debug, Default)]
pub struct Cancelled(AtomicBool);

impl Cancelled {
    /// Nobody waits any more.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
