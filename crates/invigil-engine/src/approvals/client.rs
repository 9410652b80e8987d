//! The person's side: which questions are open, and how an answer gets to the supervisor that asked.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use invigil_journal::{RunRef, Store, StoreError};
use invigil_schema::{
    AnswerFile, ApprovalAnswered, ApprovalBy, ApprovalDecision, Event, QuestionFile, RunId,
};

use super::Reply;
use super::folder::{APPROVALS, Folder, hash};

/// Between two looks for what became of an answer.
const LOOK: Duration = Duration::from_millis(20);
/// How long the supervisor may take to notice an answer. It looks ten times a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many runs are looked through for a question that is not open any more.
const RECENT: usize = 10;

/// A question that waits for an answer.
#[derive(Debug, Clone)]
pub struct OpenQuestion {
    /// The run that waits.
    pub run: RunRef,
    /// The question in its exact words.
    pub file: QuestionFile,
    folder: Folder,
}

/// Why a question cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    /// No such question.
    #[error("there is no question {0:?}: `invigil approvals list` shows those that are open")]
    NotFound(String),
    /// It was answered before.
    #[error("question {id} was answered already: {how}")]
    Answered {
        /// The question.
        id: String,
        /// How.
        how: String,
    },
    /// Its time was up.
    #[error("question {0} has expired: nobody answered in time, so it was denied")]
    Expired(String),
    /// Nobody waits for it any more.
    #[error("question {id} is gone: {why}")]
    Gone {
        /// The question.
        id: String,
        /// What happened.
        why: &'static str,
    },
    /// Several questions begin like this.
    #[error("{prefix:?} begins {} questions: {}", ids.len(), ids.join(", "))]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// Which ones.
        ids: Vec<String>,
    },
    /// Another answer lies there and will be taken in a moment.
    #[error("question {0} has just been answered by somebody else")]
    Busy(String),
    /// The supervisor did not take the answer as one.
    #[error("the answer to question {id} was refused: {why}")]
    Refused {
        /// The question.
        id: String,
        /// Why.
        why: String,
    },
    /// The supervisor does not look.
    #[error(
        "run {0} does not react, and the answer was taken back; has it been stopped? `fg` or `kill -CONT` lets it go on"
    )]
    Deaf(RunId),
    /// The store cannot be written, and that is how a run is kept from answering.
    #[error(
        "no answer can be left in {}: {source}; a process of a run cannot answer questions, so use a terminal outside of any run", path.display()
    )]
    Forbidden {
        /// The store.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The files of the question.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// All open questions of runs that go on, the oldest first. What dead runs have left is removed.
pub fn open_questions(store: &Store) -> Result<Vec<OpenQuestion>, ApprovalError> {
    let path = store.home().join(APPROVALS);
    let failed = |source| ApprovalError::Io {
        action: "list",
        path: path.clone(),
        source,
    };
    let entries = match path.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name().into_string();
        let Some(run_id) = name.ok().and_then(|name| RunId::new(name).ok()) else {
            continue;
        };
        let folder = Folder::new(store.home(), &run_id);
        match store.run(&run_id) {
            Ok(run) if run.is_live() => found.extend(questions_of(&run, &folder)),
            _ => folder.remove(),
        }
    }
    found.sort_by(|a, b| (a.file.asked_at, a.id()).cmp(&(b.file.asked_at, b.id())));
    Ok(found)
}

/// One that is closed while we look is not open.
fn questions_of(run: &RunRef, folder: &Folder) -> Vec<OpenQuestion> {
    let ids = folder.questions().unwrap_or_default();
    let open = |id: String| {
        let file = folder.question(&id).ok().flatten()?;
        // What is shown is what its hash says, or it is not shown.
        let true_to_itself = file.question.id == id
            && file.run_id == *run.run_id()
            && file.question.action == hash(&file.question.what);
        true_to_itself.then(|| OpenQuestion {
            run: run.clone(),
            file,
            folder: folder.clone(),
        })
    };
    ids.into_iter().filter_map(open).collect()
}

/// The question that a person means: an id, or the beginning of one.
pub fn find(store: &Store, name: &str) -> Result<OpenQuestion, ApprovalError> {
    let mut open = open_questions(store)?;
    if let Some(at) = open.iter().position(|question| question.id() == name) {
        return Ok(open.swap_remove(at));
    }
    open.retain(|question| !name.is_empty() && question.id().starts_with(name));
    match open.len() {
        0 => Err(what_became_of(store, name)),
        1 => Ok(open.remove(0)),
        _ => Err(ApprovalError::Ambiguous {
            prefix: name.to_owned(),
            ids: open
                .iter()
                .map(|question| question.id().to_owned())
                .collect(),
        }),
    }
}

/// Why a question is not open, as far as the newest runs tell.
fn what_became_of(store: &Store, name: &str) -> ApprovalError {
    let nothing = || ApprovalError::NotFound(name.to_owned());
    if name.is_empty() {
        return nothing();
    }
    let mut runs = store.runs().unwrap_or_default();
    // Ids sort by time, unless somebody has chosen them.
    runs.reverse();
    let (live, dead): (Vec<_>, Vec<_>) = runs.into_iter().partition(RunRef::is_live);
    let runs = live.into_iter().chain(dead.into_iter().take(RECENT));
    for run in runs {
        let mut last = None;
        let looked = events(&run, 0, |event| match event {
            Event::ApprovalRequested(asked) if asked.id.starts_with(name) => {
                last = Some((asked.id, None));
                false
            }
            Event::ApprovalAnswered(answered) if answered.id.starts_with(name) => {
                last = Some((answered.id.clone(), Some(answered)));
                false
            }
            _ => false,
        });
        match (looked, last) {
            (Ok(()), Some((_, Some(answered)))) => return closed(&answered),
            (Ok(()), Some((id, None))) => {
                let why = "its run was killed";
                return ApprovalError::Gone { id, why };
            }
            _ => {}
        }
    }
    nothing()
}

fn closed(answered: &ApprovalAnswered) -> ApprovalError {
    let id = answered.id.clone();
    let gone = |why| ApprovalError::Gone {
        id: id.clone(),
        why,
    };
    match answered.by {
        ApprovalBy::Timeout => ApprovalError::Expired(id),
        ApprovalBy::ProcessEnded => gone("the process that waited has ended"),
        ApprovalBy::Interrupted => gone("its run was interrupted"),
        ApprovalBy::RunEnded => gone("its run is over"),
        ApprovalBy::Nobody => gone("nobody could be asked, so it was denied"),
        ApprovalBy::TooMany => gone("too many questions were open, so it was denied"),
        ApprovalBy::SameAction => ApprovalError::Answered {
            id,
            how: "allowed, together with another question for the same action".to_owned(),
        },
        ApprovalBy::Terminal { .. } | ApprovalBy::CommandLine { .. } => {
            let how = match answered.decision {
                ApprovalDecision::Allow => "allowed",
                ApprovalDecision::Deny => "denied",
            };
            let place = match answered.by {
                ApprovalBy::CommandLine { uid, pid } => {
                    format!("with the command line, by process {pid} of user {uid}")
                }
                _ => "at its terminal".to_owned(),
            };
            let how = format!("{how} {place}");
            ApprovalError::Answered { id, how }
        }
    }
}

/// Leaves an answer to a question that was shown, and waits until it is on the record.
pub fn answer(question: &OpenQuestion, reply: &Reply) -> Result<ApprovalAnswered, ApprovalError> {
    let (uid, pid) = (rustix::process::getuid().as_raw(), std::process::id());
    let allowed = reply.decision == ApprovalDecision::Allow;
    let answer = AnswerFile {
        schema: AnswerFile::SCHEMA.to_owned(),
        run_id: question.file.run_id.clone(),
        id: question.id().to_owned(),
        action: hash(&question.file.question.what),
        decision: reply.decision,
        scope: allowed.then_some(reply.scope),
        reason: reply.reason.clone(),
        uid,
        pid,
    };
    question
        .folder
        .answer(&answer)
        .map_err(|error| question.not_left(error))?;
    let ours = ApprovalBy::CommandLine { uid, pid };
    let until = Instant::now() + PATIENCE;
    loop {
        // Asked in this order: the supervisor takes the answer first, and the question last.
        let taken = !question.folder.has_answer(question.id());
        if !question.folder.has_question(question.id()) || !question.run.is_live() {
            let answered = question.answered()?;
            return match answered.by == ours {
                true => Ok(answered),
                false => Err(closed(&answered)),
            };
        }
        if taken && let Some(error) = question.refusal()? {
            return Err(error);
        }
        if Instant::now() > until && question.folder.take_back_answer(question.id()) {
            return Err(ApprovalError::Deaf(question.file.run_id.clone()));
        }
        thread::sleep(LOOK);
    }
}

impl OpenQuestion {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.file.question.id
    }

    fn not_left(&self, source: io::Error) -> ApprovalError {
        let (id, path) = (self.id().to_owned(), self.run.directory().to_owned());
        match source.kind() {
            io::ErrorKind::AlreadyExists => ApprovalError::Busy(id),
            io::ErrorKind::NotFound => match self.answered() {
                Ok(answered) => closed(&answered),
                Err(error) => error,
            },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ApprovalError::Forbidden { path, source }
            }
            _ => ApprovalError::Io {
                action: "leave an answer beside",
                path,
                source,
            },
        }
    }

    /// How it was closed, as the journal says.
    fn answered(&self) -> Result<ApprovalAnswered, ApprovalError> {
        let mut found = None;
        events(&self.run, self.file.seq, |event| match event {
            Event::ApprovalAnswered(answered) if answered.id == self.id() => {
                found = Some(answered);
                true
            }
            _ => false,
        })?;
        found.ok_or_else(|| ApprovalError::Gone {
            id: self.id().to_owned(),
            why: "its run was killed",
        })
    }

    fn refusal(&self) -> Result<Option<ApprovalError>, ApprovalError> {
        let mut found = None;
        events(&self.run, self.file.seq, |event| {
            match event {
                Event::ApprovalRefused(refused) if refused.id == self.id() => found = Some(refused),
                Event::ApprovalAnswered(answered) if answered.id == self.id() => found = None,
                _ => {}
            }
            false
        })?;
        let error = |refused: invigil_schema::ApprovalRefused| ApprovalError::Refused {
            id: refused.id,
            why: refused.why,
        };
        Ok(found.map(error))
    }
}

/// Goes through a journal from a record on, until it is enough.
fn events(
    run: &RunRef,
    from: u64,
    mut enough: impl FnMut(Event) -> bool,
) -> Result<(), StoreError> {
    let Some(mut reader) = run.read(from)? else {
        return Ok(());
    };
    while let Some(record) = reader.next().map_err(|error| run.error(error))? {
        let envelope = record.envelope().map_err(|error| run.error(error))?;
        if envelope.kind.starts_with("approval_") && enough(envelope.event()) {
            break;
        }
    }
    Ok(())
}
