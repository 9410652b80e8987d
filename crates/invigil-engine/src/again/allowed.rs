//! What people have allowed. An approval covers the action that it was given for, for as long as it was given, and nothing
//! else.

use invigil_schema::{
    ApprovalRequested, ApprovalScope, Asked, Digest, FileOp, FileOpKind, NetOp, OsText,
    ProcessExec, ProcessRef,
};

/// The interpreter of a script has at most this many words before the script's own.
const IN_FRONT: usize = 3;

/// The approvals of a run.
#[derive(Default)]
pub(super) struct Allowed(Vec<Approval>);

struct Approval {
    asked: ApprovalRequested,
    scope: ApprovalScope,
    used: bool,
}

impl Approval {
    fn lasts(&self) -> bool {
        matches!(self.scope, ApprovalScope::Run | ApprovalScope::Always)
    }
}

impl Allowed {
    pub(super) fn add(&mut self, asked: ApprovalRequested, scope: ApprovalScope) {
        self.0.push(Approval {
            asked,
            scope,
            used: false,
        });
    }

    /// Whether an action was allowed for the whole run.
    pub(super) fn lasts(&self, action: &Digest) -> bool {
        let mut approvals = self.0.iter();
        approvals.any(|approval| approval.lasts() && approval.asked.action == *action)
    }

    /// Whether something that a process did was allowed. What was allowed once is used up by it.
    pub(super) fn covers(&mut self, process: ProcessRef, fits: impl Fn(&Asked) -> bool) -> bool {
        let of = |approval: &&mut Approval| fits(&approval.asked.what);
        let mut fitting: Vec<&mut Approval> = self.0.iter_mut().filter(of).collect();
        if fitting.iter().any(|approval| approval.lasts()) {
            return true;
        }
        let open =
            |approval: &&mut &mut Approval| !approval.used && approval.asked.process == process;
        let once = fitting.iter_mut().find(open);
        once.map(|once| once.used = true).is_some()
    }
}

/// Whether what was asked is what was done to a file. Whether it was there is known only when it is opened.
pub(super) fn is_file(asked: &Asked, done: &FileOp) -> bool {
    let Asked::File {
        op,
        path,
        to,
        flags,
        detail,
    } = asked
    else {
        return false;
    };
    let opens = |op: FileOpKind| matches!(op, FileOpKind::Open | FileOpKind::Create);
    let same_op = *op == done.op || opens(*op) && opens(done.op);
    let same_flags =
        flags.len() == done.flags.len() && flags.iter().all(|flag| done.flags.contains(flag));
    same_op && same_flags && (path, to, detail) == (&done.path, &done.to, &done.detail)
}

/// Whether what was asked is what was done on the network, perhaps at the address that a name was led to.
pub(super) fn is_net(asked: &Asked, done: &NetOp) -> bool {
    let Asked::Net { op, address } = asked else {
        return false;
    };
    *op == done.op && (*address == done.address || Some(address) == done.instead.as_ref())
}

/// Whether what was asked is the program that was loaded. Of a script, the words of its interpreter stand in front.
pub(super) fn is_exec(asked: &Asked, done: &ProcessExec) -> bool {
    let Asked::Exec { program, argv, cwd } = asked else {
        return false;
    };
    let plain = *program == done.executable && *argv == done.argv;
    // Where a link led that was asked for is not recorded; its name is.
    let named = |asked: &OsText| {
        asked == program || argv.first().is_some_and(|name| is_called(asked, name))
    };
    let front = 1..done.argv.len().min(IN_FRONT + 1);
    let script = || front.into_iter().any(|at| done.argv[at..] == argv[..]);
    let script = || done.requested.as_ref().is_some_and(named) && script();
    *cwd == done.cwd && (plain || *program != done.executable && script())
}

/// Whether a path ends in the same name as another one.
fn is_called(path: &OsText, other: &OsText) -> bool {
    let name = |path: &OsText| {
        path.as_bytes()
            .rsplit(|byte| *byte == b'/')
            .next()
            .map(<[u8]>::to_vec)
    };
    name(path) == name(other)
}
