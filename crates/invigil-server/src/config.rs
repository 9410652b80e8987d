//! What a daemon is told when it starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use invigil_policy::{Places, Source};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{BuiltIn, Workshop};

/// Everything that a daemon needs to know.
pub struct Config {
    /// The store.
    pub home: PathBuf,
    /// Where to listen; a loopback address. None for the Unix socket alone.
    pub listen: Option<SocketAddr>,
    /// Web pages that may connect.
    pub origins: Vec<String>,
    /// The policy files that hold for everybody.
    pub policies: Vec<Source>,
    /// What the variables in policy files stand for.
    pub places: Places,
    /// How much of everything.
    pub limits: Limits,
    /// Which runs are kept.
    pub retention: Retention,
    /// Tools that the daemon itself carries out.
    pub built_in: Option<Arc<dyn BuiltIn>>,
    /// What tasks need, if there are to be any.
    pub workshop: Option<Arc<dyn Workshop>>,
    /// What is under way has so long when the daemon goes down.
    pub grace: Duration,
}

/// How much of everything. `session.auth` answers them.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Limits {
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Connections at a time.
    pub connections: usize,
    /// Requests under way on one connection.
    pub requests: usize,
    /// Requests in a list.
    pub batch: usize,
    /// Bytes of one string in a turn.
    pub string_bytes: usize,
    /// Bytes of a turn.
    pub turn_bytes: usize,
    /// Turns in one `runs.record_turns`.
    pub turns_per_batch: usize,
    /// Turns of a run.
    pub turns_per_run: u64,
    /// Actions of a proposal.
    pub actions: usize,
    /// Tools, policies and keys of the state, each, of a session.
    pub entries: usize,
    /// Bytes of the state of a session.
    pub state_bytes: usize,
    /// Open questions.
    pub questions: usize,
    /// Tasks that agents work on at a time.
    pub tasks: usize,
    /// Milliseconds that an action has if it does not say.
    pub action_ms: u64,
    /// Milliseconds that an action can ask for.
    pub action_ms_most: u64,
    /// Milliseconds until a question is a deny.
    pub question_ms: u64,
    /// Milliseconds that a client may take nothing.
    pub stall_ms: u64,
    /// Milliseconds that a subscriber may take nothing.
    pub lag_ms: u64,
    /// Milliseconds until the first frame must be there.
    pub auth_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            message_bytes: 8 << 20,
            connections: 4096,
            requests: 128,
            batch: 64,
            string_bytes: 16 << 10,
            turn_bytes: 256 << 10,
            turns_per_batch: 256,
            turns_per_run: 2_000,
            actions: 256,
            entries: 1_024,
            state_bytes: 16 << 20,
            questions: 256,
            tasks: 16,
            action_ms: 60_000,
            action_ms_most: 24 * 3_600_000,
            question_ms: 600_000,
            stall_ms: 60_000,
            lag_ms: 5_000,
            auth_ms: 10_000,
        }
    }
}

/// Which runs of the daemon are kept. An open one always is.
#[derive(Debug, Clone, Default)]
pub struct Retention {
    /// At most so many that are over.
    pub count: Option<usize>,
    /// Those that ended no longer ago.
    pub age: Option<Duration>,
}
