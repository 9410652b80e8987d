//! A repository below the allowed roots: where it is, what its references and its index are, and how they change.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use invigil_schema::{Entry, Kept, OsText, Repository as Kind};
use rustix::fs::OFlags;
use serde_json::{Value, json};

use super::super::change::{Change, Content, as_path, conflict, temporary_prefix};
use super::super::{Context, Failure, entry};
use super::call::Caller;

/// The name of a commit that does not exist: what a new reference was before.
const NONE: &str = "0000000000000000000000000000000000000000";

/// After the epoch: older than any file. At the epoch itself git would take it for no date.
const LONG_AGO: Duration = Duration::from_secs(1);

/// A repository with a work tree.
#[derive(Debug)]
pub(super) struct Repository {
    pub(super) top: PathBuf,
    pub(super) git_dir: PathBuf,
    pub(super) git: Caller,
}

impl Repository {
    /// The one that a directory is in. Everything of it is below the allowed roots.
    pub(super) fn find(path: &Path, context: &Context<'_>) -> Result<Self, Failure> {
        let (_, dir) = context.roots.directory(path)?;
        let root = containing(&dir, context);
        let mut git = Caller::new(&dir, root);
        git.trust(Path::new("*"));
        let ask = |what: &str| -> Result<PathBuf, Failure> {
            let mut printed = git
                .call(&["rev-parse", "--path-format=absolute", what])?
                .stdout;
            printed.pop_if(|last| *last == b'\n');
            let path = PathBuf::from(OsString::from_vec(printed));
            context.roots.directory(&path).map(|(_, real)| real)
        };
        let (top, git_dir) = (ask("--show-toplevel")?, ask("--absolute-git-dir")?);
        ask("--git-common-dir")?;
        let mut git = Caller::new(&top, root);
        git.trust(Path::new("*"));
        git.disarm()?;
        Ok(Repository { top, git_dir, git })
    }

    /// The one of something that was kept.
    fn of(kind: &Kind, context: &Context<'_>) -> Result<Self, Failure> {
        let git_dir = as_path(&kind.git_dir);
        context.roots.exact_directory(git_dir)?;
        let top = kind.work_tree.as_ref().map_or(git_dir, as_path);
        context.roots.exact_directory(top)?;
        let root = containing(git_dir, context);
        let mut git = Caller::new(top, root);
        git.trust(Path::new("*"));
        git = git.with("GIT_DIR", git_dir);
        if kind.work_tree.is_some() {
            git = git.with("GIT_WORK_TREE", top);
        }
        git.disarm()?;
        Ok(Repository {
            top: top.to_owned(),
            git_dir: git_dir.to_owned(),
            git,
        })
    }

    /// The commit that something names.
    pub(super) fn commit(&self, name: &str) -> Result<String, Failure> {
        let commit = format!("{name}^{{commit}}");
        let args = [
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            &commit,
        ];
        let printed = self.git.try_call(&args, b"")?;
        match printed.code {
            Some(0) => Ok(printed.line()),
            _ => Err(Failure::new(format!("`ref`: there is no commit {name:?}"))),
        }
    }

    /// The reference that HEAD is, if it is on a branch.
    pub(super) fn branch(&self) -> Result<Option<String>, Failure> {
        let printed = self.git.try_call(&["symbolic-ref", "-q", "HEAD"], b"")?;
        Ok((printed.code == Some(0)).then(|| printed.line()))
    }

    /// A reference as it is now; `HEAD` as what it says, other names as the commit.
    pub(super) fn reference(&self, name: &str) -> Result<Entry, Failure> {
        let args = ["rev-parse", "--verify", "--quiet", "--end-of-options", name];
        let printed = self.git.try_call(&args, b"")?;
        let commit = (printed.code == Some(0)).then(|| printed.line());
        let branch = if name == "HEAD" { self.branch()? } else { None };
        Ok(match (branch, commit) {
            (Some(branch), commit) => Entry::Reference {
                target: format!("ref: {branch}"),
                commit,
            },
            (None, Some(commit)) => Entry::Reference {
                target: commit.clone(),
                commit: Some(commit),
            },
            (None, None) => Entry::Absent,
        })
    }

    /// A change of a reference. With `files`, the work tree follows.
    pub(super) fn move_reference(
        &self,
        name: &str,
        after: Entry,
        files: bool,
    ) -> Result<Change, Failure> {
        Ok(Change {
            kept: Kept {
                path: OsText::from(self.git_dir.join(name).into_os_string()),
                before: self.reference(name)?,
                after,
                repository: Some(self.kind(files)),
            },
            content: Content::Kept,
        })
    }

    fn kind(&self, files: bool) -> Kind {
        Kind {
            git_dir: OsText::from(self.git_dir.as_os_str()),
            work_tree: files.then(|| OsText::from(self.top.as_os_str())),
        }
    }

    /// The index as it is now.
    pub(super) fn index(&self) -> Result<Entry, Failure> {
        self.index_at(&self.git_dir.join("index"))
    }

    fn index_at(&self, path: &Path) -> Result<Entry, Failure> {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(path);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Entry::Absent),
            Err(error) => return Err(Failure::io(path.display(), error)),
        };
        let (sha256, size) =
            entry::digest(&mut file).map_err(|error| Failure::io(path.display(), error))?;
        let git = self.git.with("GIT_INDEX_FILE", path);
        let listed = git.call(&["ls-files", "--stage", "-z"])?;
        Ok(Entry::Index {
            sha256,
            size,
            listing: entry::digest_of(&listed.stdout),
        })
    }

    /// A copy of the index to work with. The real one stays as it is until the change of it has been announced.
    pub(super) fn scratch(&self, context: &Context<'_>) -> Result<Scratch, Failure> {
        let name = format!("{}index", &temporary_prefix(context.job_id)[1..]);
        let scratch = Scratch(self.git_dir.join(name));
        let index = self.git_dir.join("index");
        // git takes a file for unchanged if it is older than the index, so a copy must be as old as the original.
        let copied = fs::copy(&index, &scratch.0).and_then(|_| {
            let then = fs::metadata(&index)?.modified()?;
            File::options()
                .write(true)
                .open(&scratch.0)?
                .set_modified(then)
        });
        match copied {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Failure::io(index.display(), error))
            }
            _ => Ok(scratch),
        }
    }

    /// The change from the index to what a copy of it has become.
    pub(super) fn take_index(&self, scratch: &Scratch) -> Result<Change, Failure> {
        let failed = |error| Failure::io(scratch.0.display(), error);
        let bytes = fs::read(&scratch.0).map_err(failed)?;
        let then = fs::metadata(&scratch.0).and_then(|meta| meta.modified());
        Ok(Change {
            kept: Kept {
                path: OsText::from(self.git_dir.join("index").into_os_string()),
                before: self.index()?,
                after: self.index_at(&scratch.0)?,
                repository: Some(self.kind(false)),
            },
            content: Content::Dated(bytes, then.map_err(failed)?),
        })
    }

    /// Branch, commit and whether anything is changed: part of every result.
    pub(super) fn state(&self) -> Result<Value, Failure> {
        let args = [
            "status",
            "--porcelain=v2",
            "-z",
            "--branch",
            "--untracked-files=normal",
        ];
        let printed = self.git.call(&args)?;
        let lines = printed.parts();
        let header = |name: &str| {
            let found = lines
                .iter()
                .find_map(|line| line.strip_prefix(name.as_bytes()));
            found.map(|value| String::from_utf8_lossy(value).into_owned())
        };
        let branch = header("# branch.head ").filter(|branch| branch != "(detached)");
        Ok(json!({
            "repository": OsText::from(self.top.as_os_str()),
            "branch": branch,
            "head": header("# branch.oid ").filter(|head| head != "(initial)"),
            "clean": lines.iter().all(|line| line.starts_with(b"# ")),
        }))
    }
}

/// A file that goes away with this value.
#[derive(Debug)]
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    /// The file is somebody else's, or has another name by now.
    fn release(mut self) {
        self.0 = PathBuf::new();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // There is nobody left to tell.
        drop(fs::remove_file(&self.0));
    }
}

/// The root that a directory is below.
pub(super) fn containing<'c>(dir: &Path, context: &Context<'c>) -> &'c Path {
    let mut roots = context.roots.paths();
    roots
        .find(|root| dir.starts_with(root))
        .unwrap_or(context.working_dir)
}

/// What is to be done to take something of git back.
pub(in super::super) enum Back {
    /// This change.
    Change(Box<Change>),
    /// Nothing: it is as it was.
    Unchanged,
    /// Nothing, because somebody else was there, too.
    Conflict(String),
}

/// The way back of something that was kept, after what goes back earlier.
pub(in super::super) fn way_back(
    kept: Kept,
    force: bool,
    earlier: &[Change],
    context: &Context<'_>,
) -> Result<Back, Failure> {
    let Some(kind) = &kept.repository else {
        return Ok(Back::Unchanged);
    };
    let Ok(repository) = Repository::of(kind, context) else {
        return Ok(Back::Conflict("the repository is gone".to_owned()));
    };
    let (now, name) = match name_of(&kept) {
        Some(name) => (repository.reference(&name)?, name),
        None => (repository.index()?, String::new()),
    };
    if alike(&now, &kept.before) {
        return Ok(Back::Unchanged);
    }
    if !alike(&now, &kept.after) && !force {
        return Ok(Back::Conflict("it has changed since".to_owned()));
    }
    let head = repository.git_dir.join("HEAD");
    let leaves = earlier.iter().any(|change| change.path() == head);
    if let Some(why) = repository.hindrance(&name, &kept, leaves)? {
        return Ok(Back::Conflict(why));
    }
    Ok(Back::Change(Box::new(Change {
        kept: Kept {
            before: now,
            after: kept.before,
            ..kept
        },
        content: Content::Kept,
    })))
}

/// The name of the reference, unless it is the index.
fn name_of(kept: &Kept) -> Option<String> {
    let git_dir = as_path(&kept.repository.as_ref()?.git_dir);
    let name = as_path(&kept.path).strip_prefix(git_dir).ok()?;
    let name = name.to_str()?;
    (name != "index").then(|| name.to_owned())
}

/// Whether two entries of git are the same; of an index, whether it lists the same.
fn alike(a: &Entry, b: &Entry) -> bool {
    match (a, b) {
        (Entry::Index { listing: a, .. }, Entry::Index { listing: b, .. }) => a == b,
        (a, b) => a == b,
    }
}

impl Repository {
    /// What makes the old state of a reference impossible or wrong now, if HEAD leaves its place or does not.
    fn hindrance(&self, name: &str, kept: &Kept, leaves: bool) -> Result<Option<String>, Failure> {
        match &kept.before {
            Entry::Reference { target, commit } => {
                let branch = target.strip_prefix("ref: ");
                let Some(branch) = branch.filter(|_| same_branch(kept).is_none()) else {
                    return Ok(None);
                };
                let now = self.reference(branch)?;
                let moved = commit_of(&now) != commit.as_deref();
                Ok(moved.then(|| format!("{branch} has moved since")))
            }
            Entry::Absent if !leaves && self.branch()?.as_deref() == Some(name) => {
                Ok(Some("it is checked out".to_owned()))
            }
            _ => Ok(None),
        }
    }
}

/// The branch that HEAD stays on while the commit changes: where the first commit of all is made.
fn same_branch(kept: &Kept) -> Option<&str> {
    match (&kept.before, &kept.after) {
        (Entry::Reference { target: before, .. }, Entry::Reference { target: after, .. }) => {
            before.strip_prefix("ref: ").filter(|_| before == after)
        }
        _ => None,
    }
}

/// Makes a change of a reference or of the index, if it is still what was announced.
pub(in super::super) fn change(
    kept: &Kept,
    content: &Content,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let Some(kind) = &kept.repository else {
        return Ok(());
    };
    let repository = Repository::of(kind, context)?;
    match name_of(kept) {
        Some(name) => repository.set_reference(&name, kept, context),
        None => repository.set_index(kept, content, context),
    }
}

impl Repository {
    fn set_reference(&self, name: &str, kept: &Kept, context: &Context<'_>) -> Result<(), Failure> {
        if self.reference(name)? != kept.before {
            return Err(conflict(as_path(&kept.path), "it changed meanwhile"));
        }
        let (before, after) = (commit_of(&kept.before), commit_of(&kept.after));
        let follows = kept
            .repository
            .as_ref()
            .is_some_and(|r| r.work_tree.is_some());
        if follows && before != after {
            self.move_files(before, after)?;
        }
        let reason = format!("invigil: job {}", context.job_id);
        let set = self.point(name, kept, &reason);
        if set.is_err() && follows && before != after {
            self.move_files(after, before)?;
        }
        set
    }

    /// Changes work tree and index from one commit to another. git looks at everything first: a file that was changed
    /// or that stands in the way stops it before it has done anything.
    fn move_files(&self, from: Option<&str>, to: Option<&str>) -> Result<(), Failure> {
        let (Some(from), Some(to)) = (from, to) else {
            return Err(Failure::new("there is no commit to go to"));
        };
        // So that a file which was only touched does not count as changed.
        self.git
            .try_call(&["update-index", "-q", "--refresh"], b"")?;
        let moved = self.git.call(&["read-tree", "-m", "-u", from, to]);
        moved.map(drop).map_err(|failure| {
            Failure::new(format!(
                "conflict with changes that are not committed: {failure}"
            ))
        })
    }

    fn point(&self, name: &str, kept: &Kept, reason: &str) -> Result<(), Failure> {
        let old = commit_of(&kept.before).unwrap_or(NONE);
        let branch = match &kept.after {
            Entry::Reference { target, .. } => target.strip_prefix("ref: "),
            _ => None,
        };
        let stays = same_branch(kept);
        let moved = stays.unwrap_or(name);
        let args = match (branch, commit_of(&kept.after)) {
            (Some(branch), _) if stays.is_none() => {
                vec!["symbolic-ref", "-m", reason, name, branch]
            }
            (_, Some(new)) => vec!["update-ref", "--no-deref", "-m", reason, moved, new, old],
            (_, None) => vec!["update-ref", "--no-deref", "-m", reason, "-d", moved, old],
        };
        self.git.call(&args).map(drop)
    }

    /// Replaces the index by git's own rules: whoever makes `index.lock` may.
    fn set_index(
        &self,
        kept: &Kept,
        content: &Content,
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let index = self.git_dir.join("index");
        let failed = |error| Failure::io(index.display(), error);
        let lock = Scratch(self.git_dir.join("index.lock"));
        let opened = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o666)
            .open(&lock.0);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) => {
                // It is somebody else's.
                lock.release();
                return Err(failed(error));
            }
        };
        if !alike(&self.index()?, &kept.before) {
            return Err(conflict(&index, "it changed meanwhile"));
        }
        match (&kept.after, content) {
            (Entry::Absent, _) => return fs::remove_file(&index).map_err(failed),
            (_, Content::Dated(bytes, then)) => {
                file.write_all(bytes).map_err(failed)?;
                file.set_modified(*then).map_err(failed)?;
            }
            (after, _) => {
                let sha256 = after
                    .sha256()
                    .ok_or_else(|| Failure::new("no index was kept"))?;
                context.keeper.fetch(sha256, &mut file).map_err(failed)?;
                // So old that git compares every file with it, whenever that was changed.
                file.set_modified(SystemTime::UNIX_EPOCH + LONG_AGO)
                    .map_err(failed)?;
            }
        }
        file.sync_all().map_err(failed)?;
        fs::rename(&lock.0, &index).map_err(failed)?;
        lock.release();
        File::open(&self.git_dir)
            .and_then(|dir| dir.sync_all())
            .map_err(failed)
    }
}

fn commit_of(entry: &Entry) -> Option<&str> {
    match entry {
        Entry::Reference { commit, .. } => commit.as_deref(),
        _ => None,
    }
}

/// Bytes of git as text of the operating system.
pub(super) fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}
