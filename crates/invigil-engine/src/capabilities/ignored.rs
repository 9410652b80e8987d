//! What `.gitignore` and `.ignore` leave out of a tree, directory by directory.

use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::entry;

/// Longer files are no lists of patterns.
const MAX_IGNORE_FILE: u64 = 1 << 20;

/// What each directory on the way leaves out.
#[derive(Debug, Default)]
pub(crate) struct Ignored {
    on_the_way: Vec<(PathBuf, Gitignore)>,
    read: u64,
}

impl Ignored {
    /// A directory is about to be gone through.
    pub(crate) fn enter(&mut self, dir: BorrowedFd<'_>, path: &Path) {
        let rules = rules(dir, &mut self.read);
        self.on_the_way.push((path.to_owned(), rules));
    }

    /// A directory has been gone through.
    pub(crate) fn leave(&mut self) {
        self.on_the_way.pop();
    }

    /// How many bytes of patterns were read in all. Each of them costs time.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// Whether a path is left out: the innermost directory that says something decides.
    pub(crate) fn is(&self, path: &Path, is_dir: bool) -> bool {
        let decisions = self.on_the_way.iter().rev().map(|(base, rules)| {
            let below = path.strip_prefix(base).unwrap_or(path);
            rules.matched(below, is_dir)
        });
        decisions
            .filter(|decision| !decision.is_none())
            .map(|decision| decision.is_ignore())
            .next()
            .unwrap_or(false)
    }
}

/// What the files of one directory leave out, and how much more was read. What cannot be read leaves out nothing.
fn rules(dir: BorrowedFd<'_>, read: &mut u64) -> Gitignore {
    let mut builder = GitignoreBuilder::new("");
    for name in [".gitignore", ".ignore"] {
        let mut text = String::new();
        let Ok(file) = entry::open_regular(dir, name.as_ref()) else {
            continue;
        };
        let whole = file.take(MAX_IGNORE_FILE).read_to_string(&mut text);
        *read += text.len() as u64;
        if whole.is_ok() {
            for line in text.lines() {
                // A line that is no pattern leaves out nothing, as for git.
                drop(builder.add_line(None, line).map(drop));
            }
        }
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}
