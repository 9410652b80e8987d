//! Decides on what processes want to do, by the policy; puts on the desk what the policy leaves to a person.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use invigil_policy::{Action as Judged, By, Decision as Decided, Verdict};
use invigil_sandbox::{Action, Answer, Decision, Exec, Gate, Line, Moment, Request};
use invigil_schema::{
    Address, ApprovalAnswered, ApprovalDecision, Asked, Digest, Errno, FileOp, FileOpKind, Mode,
    NetOp, OpenFlag, OsText, ProcessRef, RulePlace,
};

use super::exec::Program;
use super::hosts::{Hosts, Led};
use super::judge::{FileAct, Judge, stricter};
use super::links::Links;
use super::{Denied, Rules};
use crate::approvals::{Desk, Place, Put};
use crate::control::Control;

const EPERM: Errno = Errno(1);
const EACCES: Errno = Errno(13);

/// The gate of one run.
pub(crate) struct PolicyGate {
    pub(crate) rules: Arc<Rules>,
    pub(crate) denied: Arc<Denied>,
    pub(crate) links: Arc<Links>,
    /// Where a person is asked; without one, what would be asked is refused.
    pub(crate) desk: Option<Desk>,
    pub(crate) control: Control,
    /// Where the agent's framework reports to; that is always allowed.
    pub(crate) reports: OsText,
    pub(crate) told: Arc<Told>,
    /// Where rules name hosts.
    pub(crate) hosts: Option<Hosts>,
}

/// What the run must know of the gate's decisions.
#[derive(Debug, Default)]
pub(crate) struct Told {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Programs that were approved and are not loaded yet.
    approved: HashSet<Wanted>,
    /// The last program that was not let through, and who wanted it.
    refused: Option<(u32, String)>,
    /// The last program that somebody said no to, when, and the rule.
    declined: Option<(Wanted, Instant, String)>,
}

/// A program that a process wants, by the digest that an approval is bound to.
type Wanted = (ProcessRef, Digest);

/// How long a no counts for the same process. A shell that is refused one program tries the next directory of `PATH`, and
/// comes to the same file again.
const DECLINED: Duration = Duration::from_secs(2);

impl Told {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rule by which somebody has just said no to this.
    fn declined(&self, wanted: &Wanted) -> Option<String> {
        let state = self.state();
        let (_, _, rule) = state
            .declined
            .as_ref()
            .filter(|(declined, when, _)| declined == wanted && when.elapsed() < DECLINED)?;
        Some(rule.clone())
    }

    /// Why the command did not start, if the policy did not let it.
    pub(crate) fn refused(&self) -> Option<(u32, String)> {
        self.state().refused.clone()
    }
}

impl Gate for PolicyGate {
    fn check(&mut self, request: &Request<'_>) -> Answer {
        let judge = Judge {
            policy: self.rules.policy(),
            denied: &self.denied,
            looks: true,
        };
        let mut granted = Decision::Allow;
        let mut what = None;
        let (decided, error) = match request.action {
            Action::Exec(exec) => return self.exec(request, &exec),
            Action::File(op) if self.is_report(op) => (None, EACCES),
            Action::File(op) if self.is_for_the_project(op) => {
                return Answer::Now(Decision::Deny {
                    error: EACCES,
                    rule: "the policy of a project is not for its agents to change".to_owned(),
                    place: None,
                });
            }
            Action::File(op) => {
                let by_name = judge.file(file_act(op));
                let by_itself = self.known(&judge, op, request.held);
                (stricter(by_name, by_itself), error_of(op.op))
            }
            Action::Net(op) if self.is_ours(&op.address) => (None, EACCES),
            Action::Net(op) => {
                let hosts = self.hosts.as_ref().filter(|_| request.exact);
                let led = hosts.and_then(|hosts| {
                    hosts.lead(judge.policy, request.process, op.op, &op.address)
                });
                match led {
                    Some(Led::Instead(decision)) => return Answer::Now(decision),
                    Some(Led::Refused(decided, instead, to)) => {
                        granted = instead;
                        what = Some(Asked::Net {
                            op: op.op,
                            address: to.into(),
                        });
                        (Some(decided), EACCES)
                    }
                    None => (judge.net(op.op, &op.address), EACCES),
                }
            }
        };
        match decided {
            None => Answer::Now(Decision::Allow),
            Some(decided) if request.moment == Moment::Failing && !is_by_rule(&decided) => {
                Answer::Now(Decision::Allow)
            }
            Some(decided) if request.moment == Moment::Before && self.asks(&decided) => {
                let what = what.unwrap_or_else(|| asked(request));
                self.ask(request, what, &decided, error, granted, None)
            }
            Some(decided) => Answer::Now(refusal(&decided, error)),
        }
    }

    fn begin(&mut self, line: Line) {
        self.control.attach(line);
    }

    fn looks_at_programs(&self) -> bool {
        true
    }
}

impl PolicyGate {
    fn asks(&self, decided: &Decided) -> bool {
        decided.verdict == Verdict::Ask && self.rules.mode() != Mode::Strict && self.desk.is_some()
    }

    /// What is decided on a file by what it is, whatever it is called: a denied program, or another name of a file that
    /// is refused.
    fn known(
        &self,
        judge: &Judge<'_>,
        op: &FileOp,
        held: Option<BorrowedFd<'_>>,
    ) -> Option<Decided> {
        if self.denied.is_empty() && self.links.is_empty() {
            return None;
        }
        let data = match (held, op.op) {
            (Some(held), _) => rustix::fs::fstat(held),
            // Another name for a name. Whatever comes of it is looked at again when it is opened.
            (None, FileOpKind::Link | FileOpKind::Rename | FileOpKind::Exchange) => {
                rustix::fs::lstat(op.path.as_bytes())
            }
            (None, _) => return None,
        };
        let data = data.ok()?;
        let reads = op.op == FileOpKind::Link || op.flags.contains(&OpenFlag::Read);
        let held = held.filter(|_| reads);
        let program = held.and_then(|held| self.denied.held(held, &data));
        let names = self.links.names((data.st_dev, data.st_ino)).iter();
        let decided = names.map(|name| {
            let path = name.as_os_str().to_owned().into();
            let act = FileAct {
                path: &path,
                ..file_act(op)
            };
            judge.file(act)
        });
        decided.fold(program.cloned(), stricter)
    }

    /// Whether a file is only used as what it is there for. Another name for it is like any other name.
    fn is_report(&self, op: &FileOp) -> bool {
        matches!(op.op, FileOpKind::Open | FileOpKind::Create) && op.path == self.reports
    }

    /// Whether it would change what limits the next run in this workspace.
    fn is_for_the_project(&self, op: &FileOp) -> bool {
        let writes = |flag: &OpenFlag| matches!(flag, OpenFlag::Write | OpenFlag::Truncate);
        if op.op == FileOpKind::Open && !op.flags.iter().any(writes) {
            return false;
        }
        let workspace = &self.rules.places().workspace;
        let rules = workspace.join(".invigil");
        let touches = |path: &OsText| {
            let path = Path::new(OsStr::from_bytes(path.as_bytes()));
            path.starts_with(&rules) || op.op == FileOpKind::Rename && path == workspace
        };
        touches(&op.path) || op.to.as_ref().is_some_and(touches)
    }

    fn is_ours(&self, address: &Address) -> bool {
        matches!(address, Address::Unix { path } if *path == self.reports)
    }

    /// A program is judged twice: when it is asked for, and when it is loaded and cannot be changed any more. What was
    /// approved the first time must be what is there the second time.
    fn exec(&self, request: &Request<'_>, exec: &Exec<'_>) -> Answer {
        let program = Program::new(exec);
        let policy = self.rules.policy();
        let decided = program.with(|exec| {
            let action = Judged::Exec(*exec);
            match policy.verdict(&action) {
                Verdict::Allow => None,
                Verdict::Ask | Verdict::Deny => Some(policy.decide(&action)),
            }
        });
        let same = match exec.sha256 {
            Some(sha256) => self.denied.digest(sha256),
            None => self.denied.copy(exec.program.as_bytes()),
        };
        let same = same.or_else(|| match exec.loaded {
            true => self.denied.mapped(request.process.pid, exec.program),
            false => None,
        });
        let decided = match (decided, same) {
            (Some(decided), _) if decided.verdict == Verdict::Deny => Some(decided),
            (_, Some(same)) => Some(same.clone()),
            (decided, None) => decided,
        };
        let Some(decided) = decided else {
            return Answer::Now(Decision::Allow);
        };
        let refuse = |decision: Decision| {
            if let Decision::Deny { rule, .. } = &decision {
                self.told.state().refused = Some((request.process.pid, rule.clone()));
            }
            Answer::Now(decision)
        };
        if !self.asks(&decided) {
            return refuse(refusal(&decided, EACCES));
        }
        let cwd = cwd(request.process.pid);
        let Some(fingerprint) = program.fingerprint(&cwd) else {
            return refuse(unseen(&decided));
        };
        let key = (request.process, fingerprint);
        if exec.loaded {
            return match self.told.state().approved.remove(&key) {
                true => Answer::Now(Decision::Allow),
                false => refuse(unseen(&decided)),
            };
        }
        if let Some(rule) = self.told.declined(&key) {
            let place = None;
            let error = EACCES;
            return refuse(Decision::Deny { error, rule, place });
        }
        let what = Asked::Exec {
            program: program.path.clone(),
            argv: program.argv.clone(),
            cwd,
        };
        self.ask(request, what, &decided, EACCES, Decision::Allow, Some(key))
    }

    fn ask(
        &self,
        request: &Request<'_>,
        what: Asked,
        decided: &Decided,
        error: Errno,
        granted: Decision,
        key: Option<Wanted>,
    ) -> Answer {
        let put = Put {
            process: request.process,
            what,
            rule: decided.cite(),
            reason: decided.rule().and_then(|rule| rule.reason.clone()),
        };
        let refused = refusal(decided, error);
        let Some(desk) = &self.desk else {
            return Answer::Now(refused);
        };
        let (id, pid) = (request.id, request.process.pid);
        let at_once = granted.clone();
        let (control, told) = (self.control.clone(), Arc::clone(&self.told));
        let tell = move |decision: ApprovalDecision, answered: &ApprovalAnswered| {
            let decision = match (decision, refused) {
                (ApprovalDecision::Allow, _) => {
                    told.state().approved.extend(key);
                    granted
                }
                (ApprovalDecision::Deny, Decision::Deny { error, rule, place }) => {
                    let rule = format!("{rule} (question {})", answered.id);
                    if let Some(key) = key {
                        let mut state = told.state();
                        state.refused = Some((pid, rule.clone()));
                        state.declined = Some((key, Instant::now(), rule.clone()));
                    }
                    Decision::Deny { error, rule, place }
                }
                (ApprovalDecision::Deny, decision) => decision,
            };
            control.answer(id, decision);
        };
        match desk.put(put, Box::new(tell)) {
            Place::Granted => {
                self.told.state().approved.extend(key);
                Answer::Now(at_once)
            }
            Place::Waits => Answer::Ask,
        }
    }
}

fn is_by_rule(decided: &Decided) -> bool {
    matches!(decided.by, By::Rule(_))
}

fn file_act(op: &FileOp) -> FileAct<'_> {
    FileAct {
        op: op.op,
        path: &op.path,
        to: op.to.as_ref(),
        flags: &op.flags,
    }
}

/// What an ordinary program is told when it may not do this.
fn error_of(op: FileOpKind) -> Errno {
    match op {
        FileOpKind::Chmod | FileOpKind::Chown | FileOpKind::Utimes => EPERM,
        FileOpKind::Mount | FileOpKind::Unmount | FileOpKind::Chroot => EPERM,
        _ => EACCES,
    }
}

fn asked(request: &Request<'_>) -> Asked {
    match request.action {
        Action::Exec(exec) => Asked::Exec {
            program: exec.program.clone(),
            argv: exec.argv.to_vec(),
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

/// What the evidence and the process are told.
pub(super) fn refusal(decided: &Decided, error: Errno) -> Decision {
    let place = decided.rule().map(|rule| {
        Box::new(RulePlace {
            file: rule.file.to_string(),
            line: rule.line as u64,
            column: rule.column as u64,
            decision: rule.verdict.as_str().to_owned(),
            text: rule.text.clone(),
            reason: rule.reason.clone(),
            instead: decided.instead.clone(),
        })
    });
    Decision::Deny {
        error,
        rule: decided.cite(),
        place,
    }
}

/// What is there is not what a person has seen, or cannot be shown to one.
fn unseen(decided: &Decided) -> Decision {
    match refusal(decided, EACCES) {
        Decision::Deny { error, rule, place } => Decision::Deny {
            error,
            rule: format!("{rule} (not what was approved)"),
            place,
        },
        decision => decision,
    }
}
