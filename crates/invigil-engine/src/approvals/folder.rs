//! The files through which questions and answers travel. They lie in the store, which no process of a run can write.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use invigil_schema::{AnswerFile, Asked, Digest, QuestionFile, RunId};
use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

/// The directory of all questions, in the store.
pub(super) const APPROVALS: &str = "approvals";
const QUESTION: &str = "question";
const ANSWER: &str = "answer";
/// An answer is a few words.
const MAX_ANSWER: u64 = 16 * 1024;
/// A question has all arguments of a program, of which the kernel takes some megabytes, and JSON may make six characters
/// of one.
const MAX_QUESTION: u64 = 64 << 20;

/// The hash that binds an answer to an action.
pub(super) fn hash(what: &Asked) -> Digest {
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

/// What there is where an answer is looked for.
pub(super) enum Found {
    Nothing,
    Answer(AnswerFile),
    /// Something that is none; it is gone now.
    Refused(String),
}

impl Folder {
    pub(super) fn new(store: &Path, run_id: &RunId) -> Folder {
        let path = store.join(APPROVALS).join(run_id.as_str());
        Folder { path }
    }

    pub(super) fn show(&self, question: &QuestionFile) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.mode(0o700).recursive(true).create(&self.path)?;
        self.publish(&self.file(&question.question.id, QUESTION), question)
    }

    /// Fails with `AlreadyExists` if there is an answer already, and with `NotFound` if the run is over.
    pub(super) fn answer(&self, answer: &AnswerFile) -> io::Result<()> {
        self.publish(&self.file(&answer.id, ANSWER), answer)
    }

    /// The ids of questions that are shown.
    pub(super) fn questions(&self) -> io::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if let Some((id, QUESTION)) = name.rsplit_once('.')
                && !name.starts_with('.')
            {
                ids.push(id.to_owned());
            }
        }
        Ok(ids)
    }

    /// Reads a question. Nothing if it is closed.
    pub(super) fn question(&self, id: &str) -> io::Result<Option<QuestionFile>> {
        match open(&self.file(id, QUESTION)) {
            Ok(file) => parse(file, MAX_QUESTION)
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
    pub(super) fn take_answer(&self, id: &str) -> Found {
        let path = self.file(id, ANSWER);
        let file = match open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Nothing,
            file => file,
        };
        let answer = file
            .map_err(|error| error.to_string())
            .and_then(|file| own(&file).and_then(|()| parse(file, MAX_ANSWER)));
        match (fs::remove_file(&path), answer) {
            // A directory. It cannot be an answer, and is no reason to say so ten times a second.
            (Err(_), _) => Found::Nothing,
            (Ok(()), Ok(answer)) => Found::Answer(answer),
            (Ok(()), Err(why)) => Found::Refused(why),
        }
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

    /// Writes a file that appears whole, and never in the place of another.
    fn publish(&self, path: &Path, value: &impl Serialize) -> io::Result<()> {
        let name = path.file_name().map(OsString::from).unwrap_or_default();
        let draft = self.path.join(format!(
            ".{}.{}",
            uuid::Uuid::now_v7().simple(),
            name.display()
        ));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let written = options.open(&draft).and_then(|mut file| {
            let mut text = serde_json::to_vec(value)?;
            text.push(b'\n');
            file.write_all(&text)?;
            fs::hard_link(&draft, path)
        });
        drop(fs::remove_file(&draft));
        written
    }
}

/// Follows no link and waits for nobody.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// Whether a file is a plain one of our own user that nobody else can have written.
fn own(file: &File) -> Result<(), String> {
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let us = rustix::process::geteuid().as_raw();
    if !metadata.is_file() {
        return Err("it is not a plain file".to_owned());
    }
    if metadata.uid() != us {
        return Err(format!("it is the file of user {}", metadata.uid()));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err("others may write to it".to_owned());
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(file: File, most: u64) -> Result<T, String> {
    let mut text = Vec::new();
    let read = file.take(most + 1).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > most {
        return Err(format!("it is larger than {most} bytes"));
    }
    serde_json::from_slice(&text).map_err(|error| format!("it cannot be read: {error}"))
}
