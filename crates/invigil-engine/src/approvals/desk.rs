//! The supervisor's side: open questions, who may close them, and what is recorded of it.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use invigil_schema::{
    AddedRule, AnswerFile, ApprovalAnswered, ApprovalBy, ApprovalDecision, ApprovalRefused,
    ApprovalRequested, ApprovalScope, Asked, Digest, Event, Origin, ProcessRef, QuestionFile,
    RunId, Timestamp,
};

use super::folder::{Folder, hash};
use super::{Asking, Reply};
use crate::letters::Found;
use crate::record::Recorder;

/// How many questions of one run may be open.
const MAX_OPEN: usize = 256;
/// Between two looks for answers, while a question is open.
const LOOK: Duration = Duration::from_millis(100);

/// The open questions of one run. Clones are the same desk.
#[derive(Clone)]
pub struct Desk(Arc<Inner>);

struct Inner {
    run_id: RunId,
    folder: Folder,
    recorder: Arc<Recorder>,
    asking: Asking,
    state: Mutex<State>,
    /// How many are open, for those who look often.
    open: AtomicUsize,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    open: BTreeMap<String, Open>,
    /// Actions that were allowed for the whole run.
    granted: HashSet<Digest>,
    /// Why nobody can be asked.
    nobody: Option<&'static str>,
    over: bool,
}

struct Open {
    question: ApprovalRequested,
    until: Instant,
    tell: Tell,
}

/// Whom to tell how a question was decided: the call that waits.
type Tell = Box<dyn FnOnce(ApprovalDecision, &ApprovalAnswered) + Send>;

/// What somebody wants to do, and the rule that asks.
pub(crate) struct Put {
    pub(crate) process: ProcessRef,
    pub(crate) what: Asked,
    pub(crate) rule: String,
    pub(crate) reason: Option<String>,
}

/// What became of a question that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It was allowed before, for the whole run.
    Granted,
    /// It is on the desk. The call is told when it is decided, perhaps before this is returned.
    Waits,
}

/// Why a question is closed, and what goes on the record with it.
struct Closing {
    by: ApprovalBy,
    reply: Reply,
}

impl Closing {
    fn nobody(by: ApprovalBy, reason: Option<String>) -> Closing {
        let reply = Reply::deny(reason);
        Closing { by, reply }
    }
}

impl Desk {
    pub(crate) fn new(
        run_id: &RunId,
        store: &std::path::Path,
        recorder: Arc<Recorder>,
        asking: Asking,
    ) -> Desk {
        Desk(Arc::new(Inner {
            run_id: run_id.clone(),
            folder: Folder::new(store, run_id),
            recorder,
            asking,
            state: Mutex::default(),
            open: AtomicUsize::new(0),
            changed: Condvar::new(),
        }))
    }

    /// Puts a question. Does not wait for a person.
    pub(crate) fn put(&self, put: Put, tell: Tell) -> Place {
        let inner = &self.0;
        let action = hash(&put.what);
        let (id, refused) = {
            let state = inner.state();
            if state.granted.contains(&action) {
                return Place::Granted;
            }
            let nobody = match (state.over, inner.asking.somebody) {
                (true, _) => Some("the run is over"),
                (false, false) => Some("nobody is to be asked"),
                (false, true) => state.nobody,
            };
            let refused = match nobody {
                Some(why) => Some((ApprovalBy::Nobody, Some(why.to_owned()))),
                None if state.open.len() >= MAX_OPEN => Some((ApprovalBy::TooMany, None)),
                None => None,
            };
            (new_id(&state.open), refused)
        };
        let asked_at = SystemTime::now();
        let question = ApprovalRequested {
            id,
            process: put.process,
            what: put.what,
            action,
            rule: put.rule,
            reason: put.reason,
            deadline: (asked_at + inner.asking.timeout).into(),
        };
        let until = Instant::now() + inner.asking.timeout;
        let open = Open {
            question: question.clone(),
            until,
            tell,
        };
        let Ok(seq) = inner
            .recorder
            .record_at(Origin::Runtime, &question.clone().into())
        else {
            // The run is being killed: what is not on the record does not happen, and nobody is asked about it.
            return Place::Waits;
        };
        if let Some((by, reason)) = refused {
            inner.close(open, Closing::nobody(by, reason));
            return Place::Waits;
        }
        let file = QuestionFile {
            schema: QuestionFile::SCHEMA.to_owned(),
            run_id: inner.run_id.clone(),
            seq,
            asked_at: Timestamp::from(asked_at),
            question,
        };
        if let Err(error) = inner.folder.show(&file) {
            let reason = Some(format!("the question cannot be shown: {error}"));
            inner.close(open, Closing::nobody(ApprovalBy::Nobody, reason));
            return Place::Waits;
        }
        if let Some(open) = inner.lay_open(open) {
            inner.close(open, Closing::nobody(ApprovalBy::RunEnded, None));
            return Place::Waits;
        }
        if let Some(audience) = &inner.asking.audience {
            audience.asked(&file, self);
        }
        Place::Waits
    }

    /// Somebody at the terminal answers a question. False if it is not open any more.
    pub fn answer(&self, id: &str, reply: Reply) -> bool {
        let uid = rustix::process::getuid().as_raw();
        let by = ApprovalBy::Terminal { uid };
        let open = self.0.claim(id);
        let answered = open.is_some();
        if let Some(open) = open {
            self.0.close(open, Closing { by, reply });
        }
        answered
    }

    /// Whether a question is open.
    pub fn is_open(&self, id: &str) -> bool {
        self.0.state().open.contains_key(id)
    }

    /// Takes over what a fact says: whoever is dead, or has become another program, does not wait any more.
    pub(crate) fn fact(&self, event: &Event) {
        let process = match event {
            _ if self.0.open.load(Ordering::Acquire) == 0 => return,
            Event::ProcessExited(exited) => exited.process,
            Event::ProcessExec(exec) => exec.process,
            _ => return,
        };
        let gone = self.0.claim_all(|open| open.question.process == process);
        for open in gone {
            let closing = Closing::nobody(ApprovalBy::ProcessEnded, None);
            self.0.close(open, closing);
        }
    }

    /// From now on every question is denied at once.
    pub(crate) fn ask_nobody(&self, why: &'static str) {
        self.0.state().nobody = Some(why);
    }

    /// Somebody wants the run to end. A call that waits does not feel a signal, so what is open is withdrawn.
    pub(crate) fn interrupt(&self) {
        for open in self.0.claim_all(|_| true) {
            let closing = Closing::nobody(ApprovalBy::Interrupted, None);
            self.0.close(open, closing);
        }
    }

    /// Looks after the questions of a run while it goes on. When it is over, what is open is withdrawn.
    pub(crate) fn during<T>(&self, run: impl FnOnce() -> T) -> T {
        struct Ending<'a>(&'a Desk);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        thread::scope(|scope| {
            scope.spawn(|| self.serve());
            let _ending = Ending(self);
            run()
        })
    }

    /// Looks for answers and at the clock until [`Desk::end`].
    fn serve(&self) {
        let inner = &self.0;
        loop {
            let ids: Vec<(String, Digest)> = {
                let mut state = inner.state();
                while state.open.is_empty() && !state.over {
                    state = inner.wait(state, None);
                }
                if !state.over {
                    state = inner.wait(state, Some(LOOK));
                }
                if state.over {
                    return;
                }
                let open = state.open.iter();
                open.map(|(id, open)| (id.clone(), open.question.action))
                    .collect()
            };
            for (id, action) in ids {
                inner.look_for_answer(&id, action);
            }
            let now = Instant::now();
            for open in inner.claim_all(|open| open.until <= now) {
                let closing = Closing::nobody(ApprovalBy::Timeout, None);
                inner.close(open, closing);
            }
        }
    }

    /// The run is over: what is open is withdrawn, and nothing new is asked.
    fn end(&self) {
        let inner = &self.0;
        inner.state().over = true;
        inner.changed.notify_all();
        for open in inner.claim_all(|_| true) {
            let closing = Closing::nobody(ApprovalBy::RunEnded, None);
            inner.close(open, closing);
        }
        inner.folder.remove();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        most: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match most {
            Some(most) => {
                let waited = self.changed.wait_timeout(state, most);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.changed.wait(state);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// Puts a question on the desk. If the run has ended meanwhile, it is given back.
    fn lay_open(&self, open: Open) -> Option<Open> {
        let mut state = self.state();
        if state.over {
            return Some(open);
        }
        state.open.insert(open.question.id.clone(), open);
        self.open.store(state.open.len(), Ordering::Release);
        drop(state);
        self.changed.notify_all();
        None
    }

    /// Takes a question off the desk. Whoever has it closes it; nobody else can.
    fn claim(&self, id: &str) -> Option<Open> {
        let mut state = self.state();
        let open = state.open.remove(id);
        self.open.store(state.open.len(), Ordering::Release);
        open
    }

    fn claim_all(&self, which: impl Fn(&Open) -> bool) -> Vec<Open> {
        let mut state = self.state();
        let claimed = state.open.extract_if(.., |_, open| which(open));
        let claimed = claimed.map(|(_, open)| open).collect();
        self.open.store(state.open.len(), Ordering::Release);
        claimed
    }

    fn look_for_answer(&self, id: &str, action: Digest) {
        let refuse = |why: String| {
            let id = id.to_owned();
            let refused = ApprovalRefused { id, why };
            self.recorder.try_record(Origin::Runtime, &refused.into());
        };
        let answer = match self.folder.take_answer(id) {
            Found::Nothing => return,
            Found::Refused(why) => return refuse(why),
            Found::Letter(answer) => answer,
        };
        if let Err(why) = self.fits(&answer, id, action) {
            return refuse(why.to_owned());
        }
        let Some(open) = self.claim(id) else { return };
        let by = ApprovalBy::CommandLine {
            uid: answer.uid,
            pid: answer.pid,
        };
        let reply = Reply {
            decision: answer.decision,
            scope: answer.scope.unwrap_or(ApprovalScope::Once),
            reason: answer.reason,
        };
        self.close(open, Closing { by, reply });
    }

    fn fits(&self, answer: &AnswerFile, id: &str, action: Digest) -> Result<(), &'static str> {
        if answer.schema != AnswerFile::SCHEMA {
            return Err("it has another form");
        }
        if answer.run_id != self.run_id || answer.id != id {
            return Err("it is for another question");
        }
        if answer.action != action {
            return Err("it is for another action than the one that waits");
        }
        Ok(())
    }

    /// Closes a question that was claimed: records it, tells the call that waits, and takes it back everywhere.
    fn close(&self, open: Open, closing: Closing) {
        let answered = self.settle(&open.question, closing);
        let origin = match answered.by.is_person() {
            true => Origin::User,
            false => Origin::Runtime,
        };
        let recorded = self.recorder.record_at(origin, &answered.clone().into());
        let decision = match recorded {
            Ok(_) => answered.decision,
            // What is not on the record does not happen.
            Err(_) => ApprovalDecision::Deny,
        };
        (open.tell)(decision, &answered);
        self.folder.close(&answered.id);
        if let Some(audience) = &self.asking.audience {
            audience.closed(&answered);
        }
        let lasting = matches!(
            answered.scope,
            Some(ApprovalScope::Run | ApprovalScope::Always)
        );
        if decision == ApprovalDecision::Allow && lasting {
            self.state().granted.insert(answered.action);
            for same in self.claim_all(|open| open.question.action == answered.action) {
                // The same answer, for the others who wait for it; it is not lasting a second time.
                let reply = Reply::allow(ApprovalScope::Once);
                let by = ApprovalBy::SameAction;
                self.close(same, Closing { by, reply });
            }
        }
    }

    fn settle(&self, question: &ApprovalRequested, closing: Closing) -> ApprovalAnswered {
        let Closing { by, reply } = closing;
        let allowed = reply.decision == ApprovalDecision::Allow;
        let mut scope = allowed.then_some(reply.scope);
        let (mut added, mut not_added) = (None, None);
        if scope == Some(ApprovalScope::Always) {
            match self.grant(question) {
                Ok(rule) => added = Some(rule),
                Err(why) => (scope, not_added) = (Some(ApprovalScope::Run), Some(why)),
            }
        }
        ApprovalAnswered {
            id: question.id.clone(),
            action: question.action,
            decision: reply.decision,
            scope,
            by,
            reason: reply.reason,
            added,
            not_added,
        }
    }

    fn grant(&self, question: &ApprovalRequested) -> Result<AddedRule, String> {
        let Some(policy) = &self.asking.policy else {
            return Err("there is no policy file of the user's own".to_owned());
        };
        let note = format!("approved in {}", self.run_id);
        let granted = policy.grant(&question.what, &note);
        granted.map_err(|error| error.to_string())
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.0.open.load(Ordering::Acquire);
        f.debug_struct("Desk").field("open", &open).finish()
    }
}

/// Eight characters that can be read aloud. They are no secret; they only have to differ.
fn new_id(taken: &BTreeMap<String, Open>) -> String {
    const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    loop {
        let mut bytes = [0; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        if rustix::rand::getrandom(&mut bytes, flags).is_err() {
            bytes.copy_from_slice(&uuid::Uuid::now_v7().as_bytes()[8..]);
        }
        let letter = |byte: u8| char::from(LETTERS[usize::from(byte & 31)]);
        let id: String = bytes.into_iter().map(letter).collect();
        if !taken.contains_key(&id) {
            return id;
        }
    }
}
