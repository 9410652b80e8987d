//! Whether a person is at the other end of a connection, and no process that somebody watches.

use std::collections::HashSet;
use std::sync::Arc;

use crate::peer::{self, Peer};
use crate::session::Session;

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
