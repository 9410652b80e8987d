//! Whether a process still has what it was started with, so that something may be done in its name by somebody who has it
//! all: nothing may be gained by asking.

use invigil_schema::ProcessRef;

use super::Observer;
use crate::table::{Identity, Rights, status_line, status_of};

impl Observer {
    /// The command is bounded, and has done nothing yet. This is its status.
    pub(super) fn note_filters(&mut self, status: &[u8]) {
        self.filters = filters(status);
    }

    /// Whether no thread of a process has given up or put on anything: credentials, namespaces, a root, Landlock, filters
    /// of its own. Which of them asks is not known.
    pub(super) fn is_kin(&mut self, wanted: ProcessRef) -> bool {
        let tasks = self.table.tasks.iter();
        let own = tasks.filter(|(_, task)| task.pid == wanted.pid);
        let threads: Vec<u32> = own.map(|(tid, _)| *tid).collect();
        let Some(process) = self.table.processes.get_mut(&wanted.pid) else {
            return false;
        };
        if process.identity == Identity::Unchecked {
            let rights = |tid: &u32| Rights::of(&tid.to_string()).ok();
            let same = threads.iter().all(|tid| rights(tid) == self.rights);
            process.identity = match same && self.rights.is_some() {
                true => Identity::Ours,
                false => Identity::Different,
            };
        }
        process.id == wanted
            && process.identity == Identity::Ours
            && self.filters.is_some()
            && threads.iter().all(|tid| {
                status_of(&tid.to_string()).is_ok_and(|its| filters(&its) == self.filters)
            })
    }
}

/// How many filters of system calls a thread has whose status this is.
fn filters(status: &[u8]) -> Option<Vec<u8>> {
    status_line(status, "Seccomp_filters").map(<[u8]>::to_vec)
}
