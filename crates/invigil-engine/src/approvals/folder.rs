//! The files through which questions and answers travel. They lie in the store, which no process of a run can write.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use invigil_schema::{AnswerFile, Asked, Digest, QuestionFile, RunId};
use sha2::{Digest as _, Sha256};

use crate::letters::{self, Found};

/// The directory of all questions, in the store.
pub(super) const APPROVALS: &str = "approvals";
const QUESTION: &str = "question";
const ANSWER: &str = "answer";
/// A question has all arguments of a program, of which the kernel takes some megabytes, and JSON may make six characters
/// of one.
const MAX_QUESTION: u64 = 64 << 20;

/// The hash that binds an answer to an action.
pub(crate) fn hash(what: &Asked) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update(b"invigil.action.v1\0");
    // Texts, numbers and names of variants: there is nothing in it that JSON could not say.
    hasher.update(serde_json::to_vec(what).unwrap_or_default());
    Digest::from_bytes(hasher.finalize().into())
}

/// The questions of one run.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn new(store: &Path, run_id: &RunId) -> Folder {
        let path = store.join(APPROVALS).join(run_id.as_str());
        Folder { path }
    }

    pub(super) fn show(&self, question: &QuestionFile) -> io::Result<()> {
        letters::make_box(&self.path)?;
        letters::leave(&self.file(&question.question.id, QUESTION), question)
    }

    /// Fails with `AlreadyExists` if there is an answer already, and with `NotFound` if the run is over.
    pub(super) fn answer(&self, answer: &AnswerFile) -> io::Result<()> {
        letters::leave(&self.file(&answer.id, ANSWER), answer)
    }

    /// The ids of questions that are shown.
    pub(super) fn questions(&self) -> io::Result<Vec<String>> {
        letters::names(&self.path, QUESTION)
    }

    /// Reads a question. Nothing if it is closed.
    pub(super) fn question(&self, id: &str) -> io::Result<Option<QuestionFile>> {
        match letters::open(&self.file(id, QUESTION)) {
            Ok(file) => letters::parse(file, MAX_QUESTION)
                .map(Some)
                .map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn has_question(&self, id: &str) -> bool {
        self.file(id, QUESTION).symlink_metadata().is_ok()
    }

    pub(super) fn has_answer(&self, id: &str) -> bool {
        self.file(id, ANSWER).symlink_metadata().is_ok()
    }

    /// Takes what lies there as an answer. It is gone afterwards, whatever it was.
    pub(super) fn take_answer(&self, id: &str) -> Found<AnswerFile> {
        letters::take(&self.file(id, ANSWER))
    }

    pub(super) fn take_back_answer(&self, id: &str) -> bool {
        fs::remove_file(self.file(id, ANSWER)).is_ok()
    }

    /// A question is closed. What cannot be removed now is removed with the folder.
    pub(super) fn close(&self, id: &str) {
        drop(fs::remove_file(self.file(id, QUESTION)));
        drop(fs::remove_file(self.file(id, ANSWER)));
    }

    /// The run is over.
    pub(super) fn remove(&self) {
        drop(fs::remove_dir_all(&self.path));
    }

    fn file(&self, id: &str, kind: &str) -> PathBuf {
        self.path.join(format!("{id}.{kind}"))
    }
}
