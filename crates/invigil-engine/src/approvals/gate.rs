//! A gate that judges by a policy and puts on the desk what the policy leaves to a person.

use std::net::SocketAddr;
use std::sync::Arc;

use invigil_policy::Verdict::{Allow, Ask, Deny};
use invigil_policy::{Action as Judged, Decision as Verdict, Endpoint, Exec, Policy, UnixSocket};
use invigil_sandbox::{Action, Answer, Decision, Gate, Request};
use invigil_schema::{
    Address, ApprovalAnswered, ApprovalDecision, Asked, Errno, FileOp, FileOpKind, NetOp,
    NetOpKind, OsText,
};

use super::desk::{Desk, Place, Put};
use super::grant::writes;
use crate::control::Control;

/// `EACCES`
const REFUSED: Errno = Errno(13);

pub(crate) struct PolicyGate {
    pub(crate) policy: Arc<Policy>,
    pub(crate) desk: Desk,
    pub(crate) control: Control,
}

impl Gate for PolicyGate {
    fn check(&mut self, request: &Request<'_>) -> Answer {
        let what = asked(request);
        let Some(verdict) = decide(&self.policy, &what) else {
            return Answer::Now(Decision::Allow);
        };
        let rule = verdict.cite();
        if verdict.verdict == Deny {
            return Answer::Now(Decision::Deny {
                error: REFUSED,
                rule,
            });
        }
        let reason = verdict.rule().and_then(|rule| rule.reason.clone());
        let put = Put {
            process: request.process,
            what,
            rule: rule.clone(),
            reason,
        };
        let (id, control) = (request.id, self.control.clone());
        let tell = move |decision: ApprovalDecision, answered: &ApprovalAnswered| {
            let decision = match decision {
                ApprovalDecision::Allow => Decision::Allow,
                ApprovalDecision::Deny => Decision::Deny {
                    error: REFUSED,
                    rule: format!("{rule} (question {})", answered.id),
                },
            };
            control.answer(id, decision);
        };
        match self.desk.put(put, Box::new(tell)) {
            Place::Granted => Answer::Now(Decision::Allow),
            Place::Waits => Answer::Ask,
        }
    }
}

fn asked(request: &Request<'_>) -> Asked {
    match request.action {
        Action::Exec(program) => Asked::Exec {
            program: program.clone(),
            argv: vec![program.clone()],
            cwd: cwd(request.process.pid),
        },
        Action::File(FileOp {
            op,
            path,
            to,
            flags,
            detail,
            ..
        }) => Asked::File {
            op: *op,
            path: path.clone(),
            to: to.clone(),
            flags: flags.clone(),
            detail: detail.clone(),
        },
        Action::Net(NetOp { op, address, .. }) => Asked::Net {
            op: *op,
            address: address.clone(),
        },
    }
}

fn cwd(pid: u32) -> OsText {
    let link = std::fs::read_link(format!("/proc/{pid}/cwd"));
    link.unwrap_or_default().into_os_string().into()
}

/// What a policy says about an action, unless it allows it. Of two paths the stricter one decides.
pub(crate) fn decide(policy: &Policy, what: &Asked) -> Option<Verdict> {
    let judge = |action: Judged<'_>| match policy.verdict(&action) {
        Allow => None,
        Ask | Deny => Some(policy.decide(&action)),
    };
    match what {
        Asked::Exec { program, argv, .. } => judge(Judged::Exec(Exec {
            program: program.as_bytes(),
            called: program.as_bytes(),
            argv,
            interpreter: None,
        })),
        Asked::File {
            op: FileOpKind::Open,
            path,
            flags,
            ..
        } if !writes(flags) => judge(Judged::Read(path.as_bytes())),
        Asked::File { op, path, to, .. } => {
            // The text of a symbolic link is no access.
            let to = to.as_ref().filter(|_| *op != FileOpKind::Symlink);
            let paths = [Some(path), to].into_iter().flatten();
            let verdicts = paths.filter_map(|path| judge(Judged::Write(path.as_bytes())));
            verdicts.max_by_key(|verdict| verdict.verdict)
        }
        Asked::Net { op, address } => {
            let addr: SocketAddr = match address {
                Address::Inet { ip, port } => (*ip, *port).into(),
                Address::Inet6 { ip, port, .. } => (*ip, *port).into(),
                Address::Unix { path } => {
                    return judge(Judged::Unix(UnixSocket::Path(path.as_bytes())));
                }
                Address::Abstract { name } => {
                    return judge(Judged::Unix(UnixSocket::Abstract(name.as_bytes())));
                }
                Address::Unnamed | Address::Other { .. } => return None,
            };
            let endpoint = Endpoint { addr, host: None };
            match op {
                NetOpKind::Bind | NetOpKind::Listen => judge(Judged::Bind(endpoint)),
                _ => judge(Judged::Connect(endpoint)),
            }
        }
    }
}
