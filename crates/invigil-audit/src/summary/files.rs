//! What happened to files, as a person would say it: made, changed, moved there, removed.

use std::collections::BTreeMap;

use invigil_schema::{Digest, FileFinal, FileOp, OsText};
use serde::Serialize;

use crate::outcome::accesses;
use crate::{Access, Outcome};

/// What happened in one directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DirectoryChanges {
    /// The directory.
    pub directory: OsText,
    /// What happened to the files in it, by name.
    pub files: Vec<FileEntry>,
}

/// What happened to one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileEntry {
    /// Its absolute path.
    pub path: OsText,
    /// What happened to it.
    pub change: FileChange,
    /// Its size at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Its digest at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    /// Why there is no digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// What happened to a file, all in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    /// Only its permissions, owner, times or attributes changed.
    Attributes,
    /// It was opened for writing.
    Modified,
    /// It was not there before.
    Created,
    /// It was put there by a rename; whether something was there before is not known.
    Moved,
    /// It is gone.
    Deleted,
}

#[derive(Debug, Clone, Default)]
struct State {
    change: Option<FileChange>,
    settled: Option<FileFinal>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Files {
    files: BTreeMap<OsText, State>,
    temporary: u64,
}

impl Files {
    pub(super) fn take(&mut self, op: &FileOp) {
        use invigil_schema::FileOpKind;
        if Outcome::from(op.result) == Outcome::Failed {
            return;
        }
        match (op.op, &op.to) {
            (FileOpKind::Rename, Some(to)) => return self.renamed(&op.path, to),
            (FileOpKind::Exchange, Some(to)) => {
                self.set(&op.path, FileChange::Moved);
                return self.set(to, FileChange::Moved);
            }
            (FileOpKind::Open, _) => {
                // It was there, whatever was asked for.
                let writes = accesses(op)
                    .iter()
                    .any(|(_, access)| *access == Access::Write);
                return if writes {
                    self.set(&op.path, FileChange::Modified)
                };
            }
            (FileOpKind::Create, _) => return self.set(&op.path, FileChange::Created),
            _ => {}
        }
        for (path, access) in accesses(op) {
            match access {
                Access::Create => self.set(path, FileChange::Created),
                Access::Write => self.set(path, FileChange::Modified),
                Access::Delete => self.removed(path),
                Access::Attributes => self.set(path, FileChange::Attributes),
                _ => {}
            }
        }
    }

    /// A file that was written, as it is at the end.
    pub(super) fn settled(&mut self, file: &FileFinal) {
        if is_plain(&file.path) {
            let state = self.files.entry(file.path.clone()).or_default();
            state.settled = Some(file.clone());
            state.change.get_or_insert(FileChange::Modified);
        }
    }

    fn set(&mut self, path: &OsText, change: FileChange) {
        if !is_plain(path) {
            return;
        }
        if !self.files.contains_key(path) {
            self.files.insert(path.clone(), State::default());
        }
        let Some(state) = self.files.get_mut(path) else {
            return;
        };
        state.change = Some(match (state.change, change) {
            // Removed and made again is changed.
            (Some(FileChange::Deleted), FileChange::Created) => FileChange::Modified,
            (Some(FileChange::Deleted), new) | (None, new) => new,
            (Some(FileChange::Modified), FileChange::Created) => FileChange::Modified,
            (Some(old), new) => old.max(new),
        });
    }

    fn removed(&mut self, path: &OsText) {
        if !is_plain(path) {
            return;
        }
        if self.files.get(path).and_then(|state| state.change) == Some(FileChange::Created) {
            self.files.remove(path);
            self.temporary += 1;
        } else {
            self.files.entry(path.clone()).or_default().change = Some(FileChange::Deleted);
        }
    }

    /// What is inside a directory moves with it.
    fn renamed(&mut self, from: &OsText, to: &OsText) {
        let inside = [from.as_bytes(), b"/"].concat();
        let range = self.files.range(OsText::from(inside.clone())..);
        let moved: Vec<OsText> = range
            .map(|(path, _)| path)
            .take_while(|path| path.as_bytes().starts_with(&inside))
            .cloned()
            .collect();
        for old in moved {
            let new = [to.as_bytes(), &old.as_bytes()[from.as_bytes().len()..]].concat();
            if let Some(state) = self.files.remove(&old)
                && state.change != Some(FileChange::Deleted)
            {
                self.files.insert(new.into(), state);
            }
        }
        let was_made_here = self.files.get(from).and_then(|state| state.change);
        match was_made_here {
            Some(FileChange::Created) => _ = self.files.remove(from),
            _ => self.removed(from),
        }
        self.set(to, FileChange::Moved);
    }

    pub(super) fn temporary(&self) -> u64 {
        self.temporary
    }

    pub(super) fn document(&self) -> Vec<DirectoryChanges> {
        let mut directories: BTreeMap<OsText, Vec<FileEntry>> = BTreeMap::new();
        for (path, state) in &self.files {
            let Some(change) = state.change else {
                continue;
            };
            let settled = state.settled.as_ref();
            let entry = FileEntry {
                path: path.clone(),
                change,
                size: settled.and_then(|file| file.size),
                sha256: settled.and_then(|file| file.sha256),
                why_not: settled.and_then(|file| file.why_not.clone()),
            };
            directories.entry(directory(path)).or_default().push(entry);
        }
        let directories = directories.into_iter();
        directories
            .map(|(directory, files)| DirectoryChanges { directory, files })
            .collect()
    }
}

/// Devices, `/proc`, pipes and nameless files are not what a person calls a changed file.
pub(crate) fn is_plain(path: &OsText) -> bool {
    let path = path.as_bytes();
    let device = path.starts_with(b"/dev/") && !path.starts_with(b"/dev/shm/");
    let kernel = path.starts_with(b"/proc/") || path.starts_with(b"/sys/");
    path.starts_with(b"/") && !device && !kernel && !path.ends_with(b" (deleted)")
}

fn directory(path: &OsText) -> OsText {
    let bytes = path.as_bytes();
    match bytes.iter().rposition(|&byte| byte == b'/') {
        Some(0) | None => "/".into(),
        Some(slash) => bytes[..slash].to_vec().into(),
    }
}
