//! The two repositories of a task: the agent's, in which it may do as it likes, and Invigil's own, which takes down
//! what the agent has made of it.
//!
//! git is never run in the agent's repository. What is read there are files: contents, objects, and its `HEAD`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use invigil_schema::OsText;

use super::TaskError;
use crate::capabilities::git::call::Caller;
use crate::contracts::Changed;

/// A person's repository.
#[derive(Debug, Clone)]
pub(super) struct Repository {
    /// The top of the checkout.
    pub(super) top: PathBuf,
    /// What all worktrees of it have in common: objects and references.
    pub(super) common: PathBuf,
    /// What `HEAD` stands for.
    pub(super) base: String,
    format: String,
    git: Caller,
}

impl Repository {
    /// Looks at a repository, and changes nothing.
    pub(super) fn at(directory: &Path) -> Result<Repository, TaskError> {
        let cannot = |source| TaskError::Directory {
            path: directory.to_owned(),
            source,
        };
        let directory = fs::canonicalize(directory).map_err(cannot)?;
        let mut git = Caller::new(&directory, Path::new("/"));
        git.trust(Path::new("*"));
        let ask = |args: &[&str]| git.call(args);
        let top = ask(&["rev-parse", "--show-toplevel"]);
        let top = path(
            &top.map_err(|_| TaskError::NoRepository(directory.clone()))?
                .stdout,
        );
        let absolute = ["rev-parse", "--path-format=absolute", "--git-common-dir"];
        let common = path(&ask(&absolute)?.stdout);
        let base = ask(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]);
        let base = base.map_err(|_| TaskError::NoCommits(top.clone()))?.line();
        let format = ask(&["rev-parse", "--show-object-format"])?.line();
        Ok(Repository {
            top,
            common,
            base,
            format,
            git,
        })
    }

    /// What the person should know before the work begins.
    pub(super) fn notes(&self) -> Result<Vec<String>, TaskError> {
        let mut notes = Vec::new();
        let mut git = self.git.clone();
        git.disarm()?;
        let status = ["status", "--porcelain", "-z", "--ignore-submodules=all"];
        let changed = git.call(&status)?.parts().len();
        if changed > 0 {
            notes.push(format!(
                "{changed} changes of the checkout are not committed, and not part of the task"
            ));
        }
        let tree = self.git.call(&["ls-tree", "-r", "-z", &self.base])?;
        let links = tree
            .parts()
            .iter()
            .filter(|entry| entry.starts_with(b"160000"))
            .count();
        if links > 0 {
            notes.push(format!(
                "{links} submodules are empty folders in the worktree"
            ));
        }
        Ok(notes)
    }

    pub(super) fn objects(&self) -> PathBuf {
        self.common.join("objects")
    }

    /// Which trees the agent may read beyond its own, and which it may not write.
    pub(super) fn fence(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        (
            vec![self.objects()],
            vec![self.top.clone(), self.common.clone()],
        )
    }

    /// Makes both repositories.
    pub(super) fn prepare(&self, worktree: &Path, own: &Path) -> Result<(), TaskError> {
        let git = |dir: &Path| Caller::new(dir, dir);
        for (at, bare) in [(worktree, false), (own, true)] {
            fs::create_dir_all(at).map_err(in_directory(at))?;
            let format = format!("--object-format={}", self.format);
            let mut init = vec!["init", "--quiet", "--template=", &format];
            init.extend(bare.then_some("--bare"));
            git(at).call(&init)?;
            let dir = match bare {
                true => at.to_owned(),
                false => at.join(".git"),
            };
            let info = dir.join("objects/info");
            fs::create_dir_all(&info).map_err(in_directory(&info))?;
            let mut alternates = self.objects().into_os_string();
            alternates.push("\n");
            let file = info.join("alternates");
            fs::write(&file, alternates.as_bytes()).map_err(in_directory(&file))?;
            match fs::copy(self.common.join("shallow"), dir.join("shallow")) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(in_directory(&dir)(error));
                }
                _ => {}
            }
        }
        let git = git(worktree);
        // It does not live long enough to be tidied up, least of all in the background.
        git.call(&["config", "gc.auto", "0"])?;
        git.call(&["config", "maintenance.auto", "false"])?;
        git.call(&["symbolic-ref", "HEAD", "refs/heads/work"])?;
        git.call(&["update-ref", "refs/heads/work", &self.base])?;
        git.call(&["reset", "--quiet", "--hard", &self.base])?;
        Ok(())
    }

    /// Makes the branch, with the objects that it needs. Nothing else of the repository changes.
    pub(super) fn deliver(&self, own: &Own, commit: &str, branch: &str) -> Result<(), TaskError> {
        let wanted = format!("{commit}\n^{}\n", self.base);
        let pack = own.git.call_with(&PACK, wanted.as_bytes())?;
        if pack.truncated {
            return Err(TaskError::TooLarge);
        }
        self.git
            .call_with(&["unpack-objects", "-q", "--strict"], &pack.stdout)?;
        let reference = format!("refs/heads/{branch}");
        let there = self
            .git
            .try_call(&["rev-parse", "--verify", "--quiet", &reference], b"")?;
        if there.code == Some(0) && there.line() == commit {
            // Whoever was about to say so died.
            return Ok(());
        }
        // Zeros: it must not be there yet.
        let nothing = "0".repeat(commit.len());
        self.git.call(&[
            "update-ref",
            "-m",
            "invigil: approved",
            &reference,
            commit,
            &nothing,
        ])?;
        Ok(())
    }
}

const PACK: [&str; 5] = [
    "pack-objects",
    "--revs",
    "--stdout",
    "-q",
    "--no-reuse-delta",
];

/// Invigil's own repository of a task. No run can write it.
pub(super) struct Own {
    worktree: PathBuf,
    base: String,
    index: PathBuf,
    git: Caller,
}

/// What the worktree holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) tree: String,
    /// What is not part of it, and why.
    pub(super) notes: Vec<String>,
}

/// What could be delivered.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) commit: String,
    pub(super) patch: Vec<u8>,
    pub(super) files: Vec<Changed>,
    /// The agent's own commits, oldest first.
    pub(super) commits: Vec<String>,
}

impl Own {
    pub(super) fn new(own: &Path, worktree: &Path, base: &str) -> Own {
        let index = own.join("invigil-index");
        let git = Caller::new(own, own)
            .with("GIT_DIR", own)
            .with("GIT_WORK_TREE", worktree)
            .with("GIT_INDEX_FILE", &index)
            .with("GIT_AUTHOR_NAME", "Invigil")
            .with("GIT_AUTHOR_EMAIL", "invigil@localhost")
            .with("GIT_COMMITTER_NAME", "Invigil")
            .with("GIT_COMMITTER_EMAIL", "invigil@localhost");
        Own {
            worktree: worktree.to_owned(),
            base: base.to_owned(),
            index,
            git,
        }
    }

    /// Takes down what is in the worktree now. Everything is read anew: times and sizes can be made up.
    pub(super) fn content(&self) -> Result<Content, TaskError> {
        if !self.worktree.is_dir() {
            return Err(TaskError::WorktreeGone(self.worktree.clone()));
        }
        match fs::remove_file(&self.index) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(in_directory(&self.index)(error));
            }
            _ => {}
        }
        self.git.call(&["read-tree", &self.base])?;
        let listed = self.git.call(&["ls-files", "-z", "--cached", "--stage"])?;
        let others = self
            .git
            .call(&["ls-files", "-z", "--others", "--exclude-standard"])?;
        let (mut add, mut remove, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for entry in listed.parts() {
            let Some(tab) = entry.iter().position(|&byte| byte == b'\t') else {
                continue;
            };
            let path = &entry[tab + 1..];
            match self.kind(path) {
                // A submodule is what it was: an empty folder says nothing.
                _ if entry.starts_with(b"160000") => {}
                Kind::Content => list(&mut add, path),
                Kind::Other => {
                    notes.push(format!("{} is no plain file any more", show(path)));
                    list(&mut remove, path);
                }
                Kind::Nothing => list(&mut remove, path),
            }
        }
        for path in others.parts() {
            match self.kind(path) {
                Kind::Content => list(&mut add, path),
                _ => notes.push(format!(
                    "{} holds a repository of its own and is not part of the result",
                    show(path)
                )),
            }
        }
        let update = |option: &'static str| ["update-index", "-z", "--replace", option, "--stdin"];
        self.git.call_with(&update("--force-remove"), &remove)?;
        self.git.call_with(&update("--add"), &add)?;
        let tree = self.git.call(&["write-tree"])?.line();
        Ok(Content { tree, notes })
    }

    /// What stands at a path below the worktree, no link followed.
    fn kind(&self, path: &[u8]) -> Kind {
        let path = Path::new(OsStr::from_bytes(path));
        let mut at = self.worktree.clone();
        let mut parts = path.components().peekable();
        while let Some(part) = parts.next() {
            at.push(part);
            let Ok(data) = fs::symlink_metadata(&at) else {
                return Kind::Nothing;
            };
            match (parts.peek().is_some(), data.file_type()) {
                (true, kind) if kind.is_dir() => {}
                (true, _) => return Kind::Nothing,
                (false, kind) if kind.is_file() || kind.is_symlink() => return Kind::Content,
                (false, kind) if kind.is_dir() => return Kind::Nothing,
                (false, _) => return Kind::Other,
            }
        }
        Kind::Nothing
    }

    /// Puts back what checks have changed since this content was taken down.
    pub(super) fn restore(&self, content: &Content) -> Result<(), TaskError> {
        let now = self.content()?;
        if now.tree == content.tree {
            return Ok(());
        }
        let names = ["diff-tree", "-r", "-z", "--no-renames", "--name-status"];
        let args = [&names[..], &[&content.tree, &now.tree]].concat();
        let listed = self.git.call(&args)?;
        let parts = listed.parts();
        let mut back = Vec::new();
        for pair in parts.chunks_exact(2) {
            let (status, path) = (pair[0], pair[1]);
            // What was not there is taken away, and what stands in the way of what was.
            self.take_away(path)?;
            if status != b"A" {
                list(&mut back, path);
            }
        }
        self.git.call(&["read-tree", &content.tree])?;
        self.git
            .call_with(&["checkout-index", "-f", "-z", "--stdin"], &back)?;
        Ok(())
    }

    /// Removes a file of the worktree. A check may have left a link that leads out of it: none is followed.
    fn take_away(&self, path: &[u8]) -> Result<(), TaskError> {
        let at = self.worktree.join(OsStr::from_bytes(path));
        match self.kind(path) {
            // A folder in the way is removed by git.
            Kind::Nothing => Ok(()),
            Kind::Content | Kind::Other => fs::remove_file(&at).map_err(in_directory(&at)),
        }
    }

    /// Puts these files back to what they were before the work began.
    pub(super) fn revert(&self, paths: &[OsText]) -> Result<(), TaskError> {
        self.git.call(&["read-tree", &self.base])?;
        let listed = self.git.call(&["ls-files", "-z", "--cached"])?;
        let known: BTreeSet<&[u8]> = listed.parts().into_iter().collect();
        let mut back = Vec::new();
        for path in paths.iter().map(OsText::as_bytes) {
            match known.contains(path) {
                true => list(&mut back, path),
                false => self.take_away(path)?,
            }
        }
        self.git
            .call_with(&["checkout-index", "-f", "-z", "--stdin"], &back)?;
        Ok(())
    }

    /// What would be delivered; nothing if nothing was changed.
    pub(super) fn change(
        &self,
        content: &Content,
        message: &str,
    ) -> Result<Option<Change>, TaskError> {
        let base_tree = self
            .git
            .call(&["rev-parse", &format!("{}^{{tree}}", self.base)])?;
        if base_tree.line() == content.tree {
            return Ok(None);
        }
        let (parent, commits) = self.agents_commits()?;
        let same = self
            .git
            .call(&["rev-parse", &format!("{parent}^{{tree}}")])?
            .line()
            == content.tree;
        let commit = match same {
            true => parent,
            false => {
                let args = ["commit-tree", &content.tree, "-p", &parent];
                self.git.call_with(&args, message.as_bytes())?.line()
            }
        };
        self.git
            .call(&["update-ref", "refs/heads/result", &commit])?;
        let diff = [
            "diff-tree",
            "-r",
            "-p",
            "--binary",
            "--full-index",
            "--no-renames",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
        ];
        let args = [&diff[..], &[&self.base, &content.tree]].concat();
        let patch = self.git.call(&args)?;
        if patch.truncated {
            return Err(TaskError::TooLarge);
        }
        let names = ["diff-tree", "-r", "-z", "--no-renames", "--name-only"];
        let args = [&names[..], &[&self.base, &content.tree]].concat();
        let files = self.git.call(&args)?;
        let files = files.parts().into_iter().map(|path| Changed {
            path: OsText::from(path.to_vec()),
            removed: self.removed(path, &content.tree),
        });
        Ok(Some(Change {
            files: files.collect(),
            commit,
            patch: patch.stdout,
            commits,
        }))
    }

    /// The lines of a file that were taken away.
    fn removed(&self, path: &[u8], tree: &str) -> Vec<String> {
        let options = [
            "diff-tree",
            "-r",
            "-p",
            "-U0",
            "--no-renames",
            "--no-ext-diff",
            "--no-textconv",
        ];
        let mut args: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        args.extend([OsStr::new(&self.base), OsStr::new(tree), OsStr::new("--")]);
        args.push(OsStr::from_bytes(path));
        let Ok(diff) = self.git.call(&args) else {
            return Vec::new();
        };
        let text = String::from_utf8_lossy(&diff.stdout);
        let lines = text.lines().filter(|line| !line.starts_with("---"));
        lines
            .filter_map(|line| line.strip_prefix('-').map(str::to_owned))
            .collect()
    }

    /// The agent's last commit, if its commits build upon the base, and their messages; else the base. They are copied:
    /// what the agent's repository becomes later does not matter.
    fn agents_commits(&self) -> Result<(String, Vec<String>), TaskError> {
        let none = || Ok((self.base.clone(), Vec::new()));
        let theirs = self.worktree.join(".git");
        let Some(head) = head(&theirs, self.base.len()).filter(|head| *head != self.base) else {
            return none();
        };
        let with = self
            .git
            .with("GIT_ALTERNATE_OBJECT_DIRECTORIES", theirs.join("objects"));
        let ancestor = ["merge-base", "--is-ancestor", &self.base, &head];
        if with.try_call(&ancestor, b"")?.code != Some(0) {
            return none();
        }
        let wanted = format!("{head}\n^{}\n", self.base);
        let Ok(pack) = with.call_with(&PACK, wanted.as_bytes()) else {
            return none();
        };
        if pack.truncated {
            return Err(TaskError::TooLarge);
        }
        self.git
            .call_with(&["unpack-objects", "-q", "--strict"], &pack.stdout)?;
        let range = format!("{}..{head}", self.base);
        let log = self
            .git
            .call(&["log", "--reverse", "-z", "--format=%h %s", &range])?;
        let commits = log.parts().iter().map(|line| show(line)).collect();
        Ok((head, commits))
    }
}

enum Kind {
    Content,
    Nothing,
    Other,
}

fn list(into: &mut Vec<u8>, path: &[u8]) {
    into.extend_from_slice(path);
    into.push(0);
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn path(line: &[u8]) -> PathBuf {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    PathBuf::from(OsString::from(OsStr::from_bytes(line)))
}

fn in_directory(path: &Path) -> impl FnOnce(io::Error) -> TaskError {
    let path = path.to_owned();
    move |source| TaskError::Directory { path, source }
}

/// The commit that a `HEAD` stands for, read as a file; the agent may have written anything there.
fn head(git_dir: &Path, length: usize) -> Option<String> {
    let is_commit =
        |text: &str| text.len() == length && text.bytes().all(|c| c.is_ascii_hexdigit());
    let first = line(&git_dir.join("HEAD"))?;
    let Some(name) = first.strip_prefix("ref: ") else {
        return Some(first).filter(|text| is_commit(text));
    };
    let plain = Path::new(name)
        .components()
        .all(|part| matches!(part, std::path::Component::Normal(_)));
    if !plain || !name.starts_with("refs/") {
        return None;
    }
    if let Some(commit) = line(&git_dir.join(name)) {
        return Some(commit).filter(|text| is_commit(text));
    }
    let packed = small(&git_dir.join("packed-refs"), 1 << 20)?;
    let names: BTreeSet<(&str, &str)> = packed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    let found = names.into_iter().find(|(_, reference)| *reference == name);
    found
        .map(|(commit, _)| commit.to_owned())
        .filter(|text| is_commit(text))
}

fn line(path: &Path) -> Option<String> {
    small(path, 4096).map(|text| text.trim_end().to_owned())
}

/// A plain file, no link, that nobody can make us wait for.
fn small(path: &Path, most: u64) -> Option<String> {
    if !fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    fs::File::open(path)
        .ok()?
        .take(most)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}
