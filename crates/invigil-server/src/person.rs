//! Whether a person is at the other end of a connection, and no process that somebody watches.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::peer::{self, Peer};
use crate::session::{Session, lock};

/// The processes that have begun tasks, for as long as they live.
#[derive(Default)]
pub(crate) struct Hosts(Mutex<HashSet<(u32, u64)>>);

impl Hosts {
    /// Remembers who is at the other end. Blocks. Who cannot be found there is of another user, and no person here.
    pub(crate) fn add(&self, peer: Peer) {
        let found = peer.processes().unwrap_or_default();
        let mut hosts = lock(&self.0);
        hosts.retain(|host| peer::identity(host.0) == Some(*host));
        hosts.extend(found.into_iter().filter_map(peer::identity));
    }

    fn has_one_of(&self, pids: &[u32]) -> bool {
        let hosts = lock(&self.0);
        let mut pids = pids.iter().filter_map(|pid| peer::identity(*pid));
        pids.any(|process| hosts.contains(&process))
    }
}

/// The process of the person at the other end, or why there is none.
pub(crate) async fn person(session: &Arc<Session>) -> Result<u32, String> {
    let session = Arc::clone(session);
    let looked = tokio::task::spawn_blocking(move || look(&session));
    looked.await.unwrap_or_else(|error| Err(error.to_string()))
}

/// Looks at the processes at the other end, and at those of all sessions that lead a run. Blocks.
fn look(session: &Session) -> Result<u32, String> {
    let operator = session.identity().operator;
    if !operator && matches!(session.peer, Peer::Tcp(_)) {
        return Err("to answer needs the operator's token, or the Unix socket".to_owned());
    }
    let processes = session.peer.processes();
    let processes = processes.ok_or("the process at the other end cannot be found")?;
    let line: Vec<u32> = processes
        .iter()
        .flat_map(|pid| peer::ancestry(*pid))
        .collect();
    // Agents of tasks and programs of jobs; what they leave behind is adopted by the daemon.
    if line.contains(&std::process::id()) {
        return Err("a process that the daemon has started cannot answer".to_owned());
    }
    let mut accused = HashSet::new();
    for other in session.daemon.sessions() {
        if other.run().is_some() {
            accused.extend(other.peer.processes().into_iter().flatten());
        }
    }
    if line.iter().any(|pid| accused.contains(pid)) {
        return Err("a process of a run cannot answer".to_owned());
    }
    // Whoever wants a task is no judge of it, on another connection neither.
    if !operator && session.daemon.hosts.has_one_of(&line) {
        return Err(
            "whoever has begun a task cannot answer without the operator's token".to_owned(),
        );
    }
    let runs = session.daemon.config.home.join("runs");
    if peer::supervises(&line, &runs) || peer::is_traced(&line) {
        return Err("a process of a watched run cannot answer".to_owned());
    }
    let first = processes.first().copied();
    let pid = first.ok_or("the process at the other end cannot be found")?;
    if !operator && !peer::is_at_a_terminal(pid) {
        return Err(
            "without the operator's token, only somebody at a terminal can answer".to_owned(),
        );
    }
    Ok(pid)
}
