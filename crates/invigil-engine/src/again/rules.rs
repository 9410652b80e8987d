//! What a policy decided: what was refused and asked must be what the rules say, and nothing may have happened that they
//! do not allow.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use invigil_audit::Fact;
use invigil_journal::Store;
use invigil_policy::{Action, Decision, Endpoint, Exec, Layer, Places, Policy, Source, Verdict};
use invigil_schema::{
    AccessDenied, Address, ApprovalAnswered, ApprovalBy, ApprovalDecision, ApprovalRequested,
    ApprovalScope, Asked, CallResult, Errno, Event, FileOp, FileOpKind, Mode, NetOp,
    ObserverStarted, OpenFlag, Origin, OsText, PolicyEnforced, PolicyLoaded, ProcessExec,
    ProcessRef, RulePlace,
};

use super::allowed::{Allowed, is_exec, is_file, is_net};
use super::{Came, RedecideError};
use crate::approvals::hash;
use crate::guard::{Rules, decide_again, enforced_by};

/// The largest policy text.
const TEXT_MAX: u64 = 16 * 1024 * 1024;
const EINPROGRESS: Errno = Errno(115);
const SIGKILL: i32 = 9;
/// What is put in the place of a secret.
const HIDDEN: &[u8] = b"<redacted:";

/// A run under its policy, as far as it has come.
pub(super) struct Ruled {
    rules: Rules,
    observer: Option<ObserverStarted>,
    /// Open questions.
    questions: BTreeMap<String, ApprovalRequested>,
    allowed: Allowed,
    /// The last call that failed, with all that is known of it.
    failed: Option<Failed>,
    /// What was refused to a process last, if nothing was seen of that process since.
    refused: BTreeMap<ProcessRef, AccessDenied>,
    /// What the rules do not allow, and what has happened all the same, one of each process. It can be that it was noticed
    /// too late and undone by the death of its process.
    held: BTreeMap<ProcessRef, Held>,
    /// A file that was opened without a rule that allows it. It may be the one that the agent reports to.
    doubt: Option<Held>,
    /// The agent has reported by a file, which one is not recorded.
    reports_by_file: bool,
    finished: bool,
}

struct Held {
    seq: u64,
    /// The program that was loaded, or the file that was opened; other things cannot be undone.
    target: Option<OsText>,
    /// It was a file, and it was only opened.
    opened: bool,
    /// It was refused after all: just before, or just after it is on record.
    refused: bool,
    came: Came,
}

impl Held {
    fn is_refused_by(&self, denied: &AccessDenied) -> bool {
        let what = if self.opened { "file.open" } else { "exec" };
        denied.what == what && self.target.as_ref() == Some(&denied.target)
    }
}

enum Failed {
    File(FileOp),
    Net(NetOp),
}

impl Ruled {
    pub(super) fn load(store: &Store, loaded: &PolicyLoaded) -> Result<Ruled, RedecideError> {
        let blobs = store.blobs()?;
        let mut sources = Vec::new();
        for source in &loaded.sources {
            let sha256 = source.sha256;
            let text = blobs.get(&sha256, TEXT_MAX);
            let text = text.map_err(|source| RedecideError::Text { sha256, source })?;
            sources.push(Source {
                name: source.name.clone(),
                text: String::from_utf8_lossy(&text).into_owned(),
                layer: layer(&source.layer),
            });
        }
        let path = |text: &OsText| PathBuf::from(OsStr::from_bytes(text.as_bytes()));
        let places = Places {
            home: path(&loaded.places.home),
            workspace: path(&loaded.places.workspace),
            tmp: path(&loaded.places.tmp),
            path: loaded.places.path.iter().map(path).collect(),
        };
        let rules = Rules::load(loaded.mode, sources, places);
        Ok(Ruled {
            rules: rules.map_err(|error| RedecideError::Policy(Box::new(error)))?,
            observer: None,
            questions: BTreeMap::new(),
            allowed: Allowed::default(),
            failed: None,
            refused: BTreeMap::new(),
            held: BTreeMap::new(),
            doubt: None,
            reports_by_file: false,
            finished: false,
        })
    }

    fn policy(&self) -> &Policy {
        self.rules.policy()
    }

    /// What comes of the decisions that this fact is, or shows.
    pub(super) fn take(&mut self, fact: &Fact<'_>) -> Vec<(u64, Came)> {
        let mut came = Vec::new();
        match fact.event {
            Event::AccessDenied(denied) => self.refuse(denied),
            Event::RunFinished(_) => {
                self.finished = true;
                came.extend(self.settle_all());
            }
            event if fact.origin == Origin::Kernel => came.extend(self.settle(event)),
            _ => {}
        }
        let judged = match (fact.origin, fact.event) {
            (_, Event::ObserverStarted(started)) => {
                self.observer = Some(started.clone());
                None
            }
            (Origin::Runtime, Event::PolicyEnforced(enforced)) => self.enforced(enforced),
            (Origin::Runtime, Event::AccessDenied(denied)) => self.denied(denied),
            (Origin::Runtime, Event::ApprovalRequested(asked)) => {
                self.questions.insert(asked.id.clone(), asked.clone());
                Some(self.asked(asked))
            }
            (_, Event::ApprovalAnswered(answered)) => Some(self.answered(answered)),
            (_, Event::SdkEvent(reported)) => {
                self.reports_by_file |= reported.connection.is_none();
                None
            }
            (Origin::Kernel, event) => {
                came.extend(self.happened(fact.seq, event));
                None
            }
            _ => None,
        };
        came.extend(judged.map(|judged| (fact.seq, judged)));
        came
    }

    /// What is loaded or opened is judged once more, and whoever has what they may not have dies at once.
    fn refuse(&mut self, denied: &AccessDenied) {
        match self.held.get_mut(&denied.process) {
            Some(held) => held.refused |= held.is_refused_by(denied),
            None => _ = self.refused.insert(denied.process, denied.clone()),
        }
    }

    /// What has happened stays so, unless it was refused and its process does not live to see it.
    fn settle(&mut self, event: &Event) -> Vec<(u64, Came)> {
        let plain = self.held.extract_if(.., |_, held| !held.refused);
        let plain: Vec<Held> = plain.map(|(_, held)| held).collect();
        let mut came: Vec<(u64, Came)> = Vec::new();
        came.extend(plain.into_iter().filter_map(|held| self.stays(held)));
        let Some(process) = process_of(event) else {
            return came;
        };
        if let Event::ProcessExited(exited) = event {
            self.refused.remove(&process);
            let held = self.held.remove(&process);
            let undone = exited.signal == Some(SIGKILL);
            came.extend(held.and_then(|held| match undone {
                true => Some((held.seq, Came::InPart)),
                false => self.stays(held),
            }));
        } else if self.held.get(&process).is_some_and(|held| !held.opened) {
            // Nothing of a program runs before it was judged; of other threads, something may.
            let held = self.held.remove(&process);
            came.extend(held.and_then(|held| self.stays(held)));
        }
        came
    }

    fn settle_all(&mut self) -> Vec<(u64, Came)> {
        let held = std::mem::take(&mut self.held).into_values();
        held.filter_map(|held| self.stays(held)).collect()
    }

    fn stays(&mut self, held: Held) -> Option<(u64, Came)> {
        match (&self.doubt, held.opened) {
            (None, true) => {
                self.doubt = Some(held);
                None
            }
            (Some(doubt), true) if doubt.target == held.target => Some((held.seq, Came::InPart)),
            // There is one file to report to, and no more.
            (Some(_), _) => self.doubt.take().map(|doubt| (doubt.seq, doubt.came)),
            (None, false) => Some((held.seq, held.came)),
        }
    }

    /// What is left at the end of the journal.
    pub(super) fn end(&mut self) -> Vec<(u64, Came)> {
        // A journal that breaks off may have lost the death of a process.
        if !self.finished {
            self.held.retain(|_, held| !held.refused);
        }
        let mut came = self.settle_all();
        let doubt = self.doubt.take().map(|doubt| match self.reports_by_file {
            true => (doubt.seq, Came::InPart),
            false => (doubt.seq, doubt.came),
        });
        came.extend(doubt);
        came
    }

    fn happened(&mut self, seq: u64, event: &Event) -> Option<(u64, Came)> {
        let refused = process_of(event).and_then(|process| self.refused.remove(&process));
        let (process, judged) = match event {
            Event::FileOp(op) => {
                if matches!(op.result, CallResult::Failed(_)) {
                    // What was allowed once was tried.
                    self.allowed.covers(op.process, |asked| is_file(asked, op));
                    self.failed = Some(Failed::File(op.clone()));
                    return None;
                }
                (op.process, self.file(op))
            }
            Event::NetOp(op) => {
                let gone = matches!(op.result, CallResult::Failed(error) if error != EINPROGRESS);
                if gone {
                    self.allowed.covers(op.process, |asked| is_net(asked, op));
                    self.failed = Some(Failed::Net(op.clone()));
                    return None;
                }
                (op.process, self.net(op))
            }
            Event::ProcessExec(exec) => (exec.process, self.exec(exec)),
            _ => return None,
        };
        if !matches!(judged, Came::Differs { .. }) {
            return Some((seq, judged));
        }
        let (target, opened) = undoable(event);
        let mut held = Held {
            seq,
            target,
            opened,
            refused: false,
            came: judged,
        };
        held.refused = refused.is_some_and(|denied| held.is_refused_by(&denied));
        match self.held.insert(process, held) {
            Some(other) => self.stays(other),
            None => None,
        }
    }

    /// Whether something may have happened, by the laxest reading of what is recorded of it.
    fn may(
        &mut self,
        what: &str,
        process: ProcessRef,
        readings: Vec<Option<Decision>>,
        approved: impl Fn(&Asked) -> bool,
    ) -> Came {
        let Some(laxest) = readings
            .into_iter()
            .min_by_key(|read| read.as_ref().map(|read| read.verdict))
        else {
            return Came::InPart;
        };
        let Some(decision) = laxest else {
            return Came::Same;
        };
        match decision.verdict {
            Verdict::Allow => Came::Same,
            Verdict::Ask if self.allowed.covers(process, approved) => Came::Same,
            verdict => Came::differs(
                what,
                "it happened",
                format!("{} by {}", verdict.as_str(), decision.cite()),
            ),
        }
    }

    fn file(&mut self, op: &FileOp) -> Came {
        let path = op.path.to_string_lossy();
        // What is reported to may be anywhere, and which file that was is not recorded. Of a call that was let through
        // nobody knows the end.
        if is_hidden(&[Some(&op.path), op.to.as_ref()]) || op.result == CallResult::Unknown {
            self.allowed.covers(op.process, |asked| is_file(asked, op));
            return Came::InPart;
        }
        let read = decide_again(self.policy(), &asked_file(op));
        let what = format!("a file: {path}");
        self.may(&what, op.process, vec![read], |asked| is_file(asked, op))
    }

    fn net(&mut self, op: &NetOp) -> Came {
        let is_channel = |path: &OsText| {
            let path = path.to_string_lossy();
            path.contains("/invigil-") && path.ends_with("/events")
        };
        match (&op.address, &op.host, &op.instead) {
            // The run's own channel is always open to it.
            (Address::Unix { path }, ..) if is_channel(path) => return Came::InPart,
            // Questions for names are answered by the supervisor.
            (_, None, Some(_)) => return Came::InPart,
            // Which socket a link leads to is not recorded.
            (Address::Unix { .. }, ..) => return Came::InPart,
            _ => {}
        }
        let what = format!("the network: {}", shown(&op.address));
        let approved = |asked: &Asked| is_net(asked, op);
        let Some(host) = &op.host else {
            let asked = Asked::Net {
                op: op.op,
                address: op.address.clone(),
            };
            let read = decide_again(self.policy(), &asked);
            return self.may(&what, op.process, vec![read], approved);
        };
        let Some(addr) = socket(op.instead.as_ref().unwrap_or(&op.address)) else {
            return Came::InPart;
        };
        if addr.port() == 0 {
            return Came::InPart;
        }
        let host = Some(host.as_str());
        let action = Action::Connect(Endpoint { addr, host });
        let read = refused(self.policy(), &action);
        self.may(&what, op.process, vec![read], approved)
    }

    fn exec(&mut self, exec: &ProcessExec) -> Came {
        let argv = exec.argv.iter().map(Some);
        let texts: Vec<Option<&OsText>> = argv
            .chain([Some(&exec.executable), exec.requested.as_ref()])
            .collect();
        if is_hidden(&texts) || exec.argv_cut_bytes > 0 {
            return Came::InPart;
        }
        let what = format!("a program: {}", exec.executable.to_string_lossy());
        let policy = self.policy();
        let requested = exec.requested.as_ref().unwrap_or(&exec.executable);
        let plain = |called: &OsText| {
            let action = Action::Exec(Exec {
                program: exec.executable.as_bytes(),
                called: called.as_bytes(),
                argv: &exec.argv,
                interpreter: None,
            });
            refused(policy, &action)
        };
        let mut readings = vec![plain(requested), plain(&exec.executable)];
        // It may be a script: then these are its interpreter's arguments, and its own begin somewhere behind.
        let first = exec.argv.first().unwrap_or(&exec.executable);
        let interpreter = Exec {
            program: exec.executable.as_bytes(),
            called: first.as_bytes(),
            argv: &exec.argv,
            interpreter: None,
        };
        for at in 1..exec.argv.len().min(4) {
            readings.push(refused(
                policy,
                &Action::Exec(Exec {
                    program: requested.as_bytes(),
                    called: requested.as_bytes(),
                    argv: &exec.argv[at..],
                    interpreter: Some(&interpreter),
                }),
            ));
        }
        self.may(&what, exec.process, readings, |asked| is_exec(asked, exec))
    }

    /// A refusal must be what the rules say to what was tried, or at least one of their words.
    fn denied(&mut self, denied: &AccessDenied) -> Option<Came> {
        let failed = self.failed.take();
        let rule = bare(&denied.rule);
        let by_policy = denied.place.is_some() || rule == "no rule" || rule.starts_with("strict:");
        if !by_policy {
            // The sandbox holds to its own bounds.
            return None;
        }
        let asked = match failed {
            Some(Failed::File(op)) if op.process == denied.process && op.path == denied.target => {
                let known = !is_hidden(&[Some(&op.path), op.to.as_ref()]);
                known.then(|| asked_file(&op))
            }
            Some(Failed::Net(op))
                if op.process == denied.process && op.host.is_none() && op.instead.is_none() =>
            {
                let inet = matches!(op.address, Address::Inet { .. } | Address::Inet6 { .. });
                let names = self.policy().bounds().names;
                inet.then_some(()).filter(|()| !names).map(|()| Asked::Net {
                    op: op.op,
                    address: op.address,
                })
            }
            _ => only_read(denied),
        };
        let derived = asked.and_then(|asked| decide_again(self.policy(), &asked));
        let what = format!("{} {}", denied.what, denied.target.to_string_lossy());
        let recorded = format!("deny by {rule}");
        Some(match derived {
            // A question that was answered with no is a refusal by the rule that asks.
            Some(decision)
                if decision.cite() == rule && self.is_at(&decision, denied.place.as_ref()) =>
            {
                Came::Same
            }
            Some(decision) if decision.verdict == Verdict::Deny => {
                Came::differs(what, recorded, format!("deny by {}", decision.cite()))
            }
            // Another name of a file, a program under another name, arguments, a name of a host: not all of that is
            // recorded. The rule must be there all the same.
            _ if self.is_rule(rule, denied.place.as_ref()) => Came::InPart,
            _ => Came::differs(what, recorded, "no such rule in the policy of the run"),
        })
    }

    fn is_at(&self, decision: &Decision, place: Option<&RulePlace>) -> bool {
        match (decision.rule(), place) {
            (Some(rule), Some(place)) => {
                let fits = (rule.line as u64, rule.column as u64) == (place.line, place.column);
                fits && *rule.file == *place.file
                    && rule.text == place.text
                    && rule.verdict.as_str() == place.decision
            }
            (None, None) => true,
            _ => false,
        }
    }

    /// Whether the policy has this line, as a rule or as a default.
    fn is_rule(&self, cited: &str, place: Option<&RulePlace>) -> bool {
        let Some(place) = place else {
            return cited == "no rule" || self.rules.mode() == Mode::Strict;
        };
        let says = |rule: &invigil_policy::Rule| {
            let at = (rule.line as u64, rule.column as u64) == (place.line, place.column);
            at && *rule.file == *place.file
                && rule.verdict.as_str() == place.decision
                && rule.to_string() == cited
        };
        // A default is no rule: it says the same to what nobody ever names.
        let nowhere: [Action<'_>; 3] = [
            Action::Read(b"/\x01nowhere"),
            Action::Write(b"/\x01nowhere"),
            Action::Exec(Exec {
                program: b"/\x01nowhere",
                called: b"/\x01nowhere",
                argv: &[],
                interpreter: None,
            }),
        ];
        let nobody = SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 1);
        let host = None;
        let nowhere = nowhere.into_iter().chain([
            Action::Connect(Endpoint { addr: nobody, host }),
            Action::Bind(Endpoint { addr: nobody, host }),
            Action::Unix(invigil_policy::UnixSocket::Path(b"/\x01nowhere")),
        ]);
        let mut defaults = nowhere.map(|action| self.policy().decide(&action));
        self.policy().rules().any(says)
            || defaults.any(|decision| decision.rule().is_some_and(says))
    }

    fn asked(&self, asked: &ApprovalRequested) -> Came {
        let what = format!("question {}", asked.id);
        let recorded = format!("ask by {}", asked.rule);
        if self.rules.mode() == Mode::Strict {
            return Came::differs(what, recorded, "nobody is asked in the mode strict");
        }
        if !is_hidden_in(&asked.what) && hash(&asked.what) != asked.action {
            let derived = "its hash is that of another action";
            return Came::differs(what, recorded, derived);
        }
        let cites = |decision: &Decision| decision.cite() == asked.rule;
        let known = self
            .policy()
            .rules()
            .any(|rule| rule.verdict == Verdict::Ask && rule.to_string() == asked.rule);
        match decide_again(self.policy(), &asked.what) {
            Some(decision) if decision.verdict == Verdict::Ask && cites(&decision) => Came::Same,
            _ if known => Came::InPart,
            // A default that asks.
            Some(decision) => Came::differs(
                what,
                recorded,
                format!("{} by {}", decision.verdict.as_str(), decision.cite()),
            ),
            None if asked.rule == "no rule" => Came::InPart,
            None => Came::differs(what, recorded, "allow"),
        }
    }

    /// What was answered must be what was asked, and only a person allows.
    fn answered(&mut self, answered: &ApprovalAnswered) -> Came {
        let what = format!("the answer to question {}", answered.id);
        let recorded = match answered.decision {
            ApprovalDecision::Allow => "allow",
            ApprovalDecision::Deny => "deny",
        };
        let Some(asked) = self.questions.remove(&answered.id) else {
            return Came::differs(what, recorded, "there is no such question open");
        };
        if asked.action != answered.action {
            return Came::differs(
                what,
                recorded,
                "it is about another action than the one that was asked about",
            );
        }
        if answered.decision == ApprovalDecision::Deny {
            return Came::Same;
        }
        let again = self.allowed.lasts(&asked.action);
        let may = answered.by.is_person() || answered.by == ApprovalBy::SameAction && again;
        if !may {
            return Came::differs(what, recorded, "deny: no person has allowed it");
        }
        let scope = answered.scope.unwrap_or(ApprovalScope::Once);
        if scope == ApprovalScope::Always && answered.added.is_none() {
            return Came::differs(what, "always", "run: no rule was added");
        }
        self.allowed.add(asked, scope);
        Came::Same
    }

    fn enforced(&self, recorded: &PolicyEnforced) -> Option<Came> {
        let bounds = self.policy().bounds();
        let derived = enforced_by(&bounds, self.observer.as_ref()?);
        let words = |enforced: &PolicyEnforced| {
            let parts = enforced.parts.iter();
            let parts: Vec<String> = parts
                .map(|part| format!("{} {:?}: {}", part.part, part.strength, part.by))
                .collect();
            parts.join("; ")
        };
        Some(match derived == *recorded {
            true => Came::Same,
            false => Came::differs(
                "how the policy is enforced",
                words(recorded),
                words(&derived),
            ),
        })
    }
}

/// What can be undone by the death of a process: the program that it was to be, the file that it was to have; and whether
/// it is a file.
fn undoable(event: &Event) -> (Option<OsText>, bool) {
    match event {
        Event::FileOp(op) if matches!(op.op, FileOpKind::Open | FileOpKind::Create) => {
            (Some(op.path.clone()), true)
        }
        Event::ProcessExec(exec) => (Some(exec.executable.clone()), false),
        _ => (None, false),
    }
}

fn process_of(event: &Event) -> Option<ProcessRef> {
    match event {
        Event::ProcessExec(exec) => Some(exec.process),
        Event::ProcessExited(exited) => Some(exited.process),
        Event::FileOp(op) => Some(op.process),
        Event::NetOp(op) => Some(op.process),
        Event::ExecFailed(failed) => Some(failed.process),
        Event::ProcessForked(forked) => forked.parent,
        _ => None,
    }
}

/// The words of a rule without what is added where a person was asked.
fn bare(rule: &str) -> &str {
    let rule = rule
        .strip_suffix(" (not what was approved)")
        .unwrap_or(rule);
    match rule.rsplit_once(" (question ") {
        Some((rule, _)) => rule,
        None => rule,
    }
}

fn refused(policy: &Policy, action: &Action<'_>) -> Option<Decision> {
    match policy.verdict(action) {
        Verdict::Allow => None,
        Verdict::Ask | Verdict::Deny => Some(policy.decide(action)),
    }
}

fn asked_file(op: &FileOp) -> Asked {
    Asked::File {
        op: op.op,
        path: op.path.clone(),
        to: op.to.clone(),
        flags: op.flags.clone(),
        detail: op.detail.clone(),
    }
}

/// What is not recorded besides its refusal: a file that was only to be read.
fn only_read(denied: &AccessDenied) -> Option<Asked> {
    let known = denied.what == "file.read" && !is_hidden(&[Some(&denied.target)]);
    known.then(|| Asked::File {
        op: FileOpKind::Open,
        path: denied.target.clone(),
        to: None,
        flags: vec![OpenFlag::Read],
        detail: None,
    })
}

/// Whether a part of what was asked is not recorded, so that its hash cannot be derived.
fn is_hidden_in(asked: &Asked) -> bool {
    match asked {
        Asked::Exec { program, argv, cwd } => {
            let texts: Vec<_> = argv.iter().chain([program, cwd]).map(Some).collect();
            is_hidden(&texts)
        }
        Asked::File {
            path, to, detail, ..
        } => is_hidden(&[Some(path), to.as_ref(), detail.as_ref()]),
        Asked::Net { address, .. } => match address {
            Address::Unix { path } => is_hidden(&[Some(path)]),
            Address::Abstract { name } => is_hidden(&[Some(name)]),
            _ => false,
        },
    }
}

fn is_hidden(texts: &[Option<&OsText>]) -> bool {
    let hidden = |text: &OsText| {
        let mut windows = text.as_bytes().windows(HIDDEN.len());
        windows.any(|window| window == HIDDEN)
    };
    texts.iter().flatten().copied().any(hidden)
}

fn socket(address: &Address) -> Option<SocketAddr> {
    match address {
        Address::Inet { ip, port } => Some((*ip, *port).into()),
        Address::Inet6 { ip, port, .. } => Some((IpAddr::V6(*ip).to_canonical(), *port).into()),
        _ => None,
    }
}

fn shown(address: &Address) -> String {
    match socket(address) {
        Some(address) => address.to_string(),
        None => format!("{address:?}"),
    }
}

fn layer(name: &str) -> Layer {
    match name {
        "builtin" => Layer::Builtin,
        "user" => Layer::User,
        "command_line" => Layer::CommandLine,
        // The one that can loosen nothing.
        _ => Layer::Project,
    }
}
