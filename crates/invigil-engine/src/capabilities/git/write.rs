//! What changes a repository: add, commit, branch, checkout, revert.

use std::collections::BTreeSet;
use std::ffi::OsString;

use invigil_schema::{Entry, OsText};
use serde_json::{Value, json};

use super::super::change::{self, Change, as_path};
use super::super::{Context, Failure, Invalid};
use super::Args;
use super::call::Caller;
use super::look::changed;
use super::repository::{Repository, os};

/// Who commits where nobody is configured.
const NOBODY: (&str, &str) = ("Invigil", "invigil@localhost");

pub(super) fn add(
    repository: &Repository,
    args: &Args,
    context: &mut Context<'_>,
) -> Result<Value, Failure> {
    let paths = || args.paths.iter().flatten().map(|path| as_path(path).into());
    if context.dry_run {
        // Even its own dry run would take git's lock.
        let list = ["ls-files", "-z", "--modified", "--others"];
        let mut words: Vec<OsString> = list.iter().map(Into::into).collect();
        words.extend(["--exclude-standard".into(), "--".into()]);
        words.extend(paths());
        let printed = repository.git.call(&words)?;
        let paths = printed.parts().into_iter();
        let would: BTreeSet<OsText> = paths.map(|path| OsText::from(os(path))).collect();
        return Ok(json!({ "would_add": would }));
    }
    let scratch = repository.scratch(context)?;
    let mut words: Vec<OsString> = vec!["add".into(), "--".into()];
    words.extend(paths());
    let git = repository.git.with("GIT_INDEX_FILE", &scratch.0);
    git.call(&words)?;
    let index = repository.take_index(&scratch)?;
    if index.kept.before != index.kept.after {
        change::make(vec![index], context)?;
    }
    Ok(json!({ "staged": staged(&repository.git)? }))
}

/// What the index has that the commit has not.
fn staged(git: &Caller) -> Result<Vec<Value>, Failure> {
    let args = ["diff", "--cached", "--name-status", "--no-renames", "-z"];
    Ok(changed(&git.call(&args)?.parts()))
}

pub(super) fn commit(
    repository: &Repository,
    args: &Args,
    context: &mut Context<'_>,
) -> Result<Value, Failure> {
    nothing_under_way(repository)?;
    let all = args.all == Some(true);
    if context.dry_run {
        let files = if all {
            let args = ["diff", "HEAD", "--name-status", "--no-renames", "-z"];
            changed(&repository.git.call(&args)?.parts())
        } else {
            staged(&repository.git)?
        };
        return Ok(json!({ "files": files }));
    }
    let scratch = repository.scratch(context)?;
    let git = repository.git.with("GIT_INDEX_FILE", &scratch.0);
    if all {
        git.call(&["add", "--update", "--", "."])?;
    }
    let files = staged(&git)?;
    if files.is_empty() && args.allow_empty != Some(true) {
        return Err(Failure::new(
            "there is nothing to commit: add files first, or set `all`",
        ));
    }
    let index = repository.take_index(&scratch)?;
    let tree = git.call(&["write-tree"])?.line();
    let head = repository.commit("HEAD").ok();
    let message = args.message.as_deref().unwrap_or_default();
    let commit = write_commit(repository, args, &tree, head.as_deref(), message)?;
    let mut changes = Vec::new();
    if all && index.kept.before != index.kept.after {
        changes.push(index);
    }
    changes.push(move_branch(repository, &commit, false)?);
    change::make(changes, context)?;
    Ok(json!({ "commit": commit, "parent": head, "files": files }))
}

/// A commit in the middle of a merge would forget one of its parents.
fn nothing_under_way(repository: &Repository) -> Result<(), Failure> {
    for name in [
        "MERGE_HEAD",
        "CHERRY_PICK_HEAD",
        "REVERT_HEAD",
        "rebase-merge",
        "rebase-apply",
    ] {
        if repository.git_dir.join(name).exists() {
            let why = "a merge, rebase, pick or revert is under way; end it with git itself first";
            return Err(Failure::new(why));
        }
    }
    Ok(())
}

fn write_commit(
    repository: &Repository,
    args: &Args,
    tree: &str,
    parent: Option<&str>,
    message: &str,
) -> Result<String, Failure> {
    let (name, address) = match &args.author {
        Some(author) => person(author).map_err(|invalid| Failure::new(invalid.to_string()))?,
        None => (
            configured(repository, "user.name", NOBODY.0)?,
            configured(repository, "user.email", NOBODY.1)?,
        ),
    };
    let git = repository
        .git
        .with("GIT_AUTHOR_NAME", &name)
        .with("GIT_AUTHOR_EMAIL", &address)
        .with("GIT_COMMITTER_NAME", &name)
        .with("GIT_COMMITTER_EMAIL", &address);
    let mut words = vec!["commit-tree", tree, "-F", "-"];
    if let Some(parent) = parent {
        words.extend(["-p", parent]);
    }
    let message = format!("{}\n", message.trim_end());
    Ok(git.call_with(&words, message.as_bytes())?.line())
}

fn configured(repository: &Repository, key: &str, default: &str) -> Result<String, Failure> {
    let printed = repository.git.try_call(&["config", "--get", key], b"")?;
    let value = printed.line();
    Ok(if value.is_empty() {
        default.to_owned()
    } else {
        value
    })
}

/// The name and the address of `Name <address>`.
pub(super) fn person(text: &str) -> Result<(String, String), Invalid> {
    let parts = text.strip_suffix('>').and_then(|text| text.split_once('<'));
    let (name, address) = parts.unwrap_or_default();
    let (name, address) = (name.trim(), address.trim());
    let bad = |part: &str| part.is_empty() || part.contains(['<', '>', '\n', '\0']);
    if bad(name) || bad(address) {
        return Err(Invalid::new("author", "it is not `Name <address>`"));
    }
    Ok((name.to_owned(), address.to_owned()))
}

/// The change of the branch that is checked out, or of HEAD if there is none, to a commit.
pub(super) fn move_branch(
    repository: &Repository,
    commit: &str,
    files: bool,
) -> Result<Change, Failure> {
    let Some(branch) = repository.branch()? else {
        return repository.move_reference("HEAD", at(commit), files);
    };
    if repository.reference(&branch)? != Entry::Absent {
        return repository.move_reference(&branch, at(commit), files);
    }
    // The branch is there only as what HEAD says, and taking it back leaves it so.
    let after = Entry::Reference {
        target: format!("ref: {branch}"),
        commit: Some(commit.to_owned()),
    };
    repository.move_reference("HEAD", after, files)
}

/// A reference that is at a commit.
pub(super) fn at(commit: &str) -> Entry {
    Entry::Reference {
        target: commit.to_owned(),
        commit: Some(commit.to_owned()),
    }
}

pub(super) fn branch(
    repository: &Repository,
    args: &Args,
    context: &mut Context<'_>,
) -> Result<Value, Failure> {
    let Some(name) = &args.name else {
        return list(repository);
    };
    let reference = format!("refs/heads/{name}");
    let now = repository.reference(&reference)?;
    let change = if args.delete == Some(true) {
        if now == Entry::Absent {
            return Err(Failure::new(format!("`name`: there is no branch {name:?}")));
        }
        if repository.branch()?.as_ref() == Some(&reference) {
            return Err(Failure::new(format!("`name`: {name:?} is checked out")));
        }
        repository.move_reference(&reference, Entry::Absent, false)?
    } else {
        if now != Entry::Absent {
            return Err(Failure::new(format!("`name`: {name:?} exists already")));
        }
        let commit = repository.commit(args.reference())?;
        repository.move_reference(&reference, at(&commit), false)?
    };
    let (before, after) = (change.kept.before.clone(), change.kept.after.clone());
    if !context.dry_run {
        change::make(vec![change], context)?;
    }
    Ok(json!({ "name": name, "before": hash(&before), "after": hash(&after) }))
}

fn hash(entry: &Entry) -> Option<&str> {
    match entry {
        Entry::Reference { commit, .. } => commit.as_deref(),
        _ => None,
    }
}

fn list(repository: &Repository) -> Result<Value, Failure> {
    let format = "--format=%(refname:strip=2)%00%(objectname)";
    let printed = repository
        .git
        .call(&["for-each-ref", format, "refs/heads"])?;
    let text = |bytes: &[u8]| OsText::from(bytes.to_vec());
    let lines = printed.stdout.split(|&byte| byte == b'\n');
    let branches: Vec<Value> = lines
        .filter_map(|line| {
            let at = line.iter().position(|&byte| byte == 0)?;
            Some(json!({ "name": text(&line[..at]), "hash": text(&line[at + 1..]) }))
        })
        .collect();
    Ok(json!({ "branches": branches }))
}

pub(super) fn checkout(
    repository: &Repository,
    args: &Args,
    context: &mut Context<'_>,
) -> Result<Value, Failure> {
    nothing_under_way(repository)?;
    let wanted = args.reference();
    let branch = format!("refs/heads/{wanted}");
    let exists = repository.reference(&branch)? != Entry::Absent;
    let mut changes = Vec::new();
    let commit = if args.create == Some(true) {
        if exists {
            return Err(Failure::new(format!("`ref`: {wanted:?} exists already")));
        }
        let commit = repository.commit("HEAD")?;
        changes.push(repository.move_reference(&branch, at(&commit), false)?);
        commit
    } else {
        repository.commit(if exists { &branch } else { wanted })?
    };
    let target = if exists || args.create == Some(true) {
        format!("ref: {branch}")
    } else {
        commit.clone()
    };
    let after = Entry::Reference {
        target,
        commit: Some(commit.clone()),
    };
    let head = repository.move_reference("HEAD", after, true)?;
    let before = hash(&head.kept.before).map(str::to_owned);
    if head.kept.before != head.kept.after {
        changes.push(head);
    }
    if !context.dry_run && !changes.is_empty() {
        change::make(changes, context)?;
    }
    Ok(json!({ "before": before, "after": commit }))
}

pub(super) fn revert(
    repository: &Repository,
    args: &Args,
    context: &mut Context<'_>,
) -> Result<Value, Failure> {
    nothing_under_way(repository)?;
    let git = &repository.git;
    let commit = repository.commit(args.reference())?;
    let head = repository.commit("HEAD")?;
    let parents = git.call(&["rev-list", "--parents", "-1", &commit])?.line();
    let [_, parent] = parents.split(' ').collect::<Vec<_>>()[..] else {
        let why = "only a commit with exactly one parent can be reverted";
        return Err(Failure::new(format!("`ref`: {why}")));
    };
    let words = [
        "diff",
        "--name-status",
        "--no-renames",
        "-z",
        &commit,
        parent,
    ];
    let files = changed(&git.call(&words)?.parts());
    if context.dry_run {
        return Ok(json!({ "reverts": commit, "files": files }));
    }
    let base = format!("--merge-base={commit}");
    let words = [
        "merge-tree",
        "--write-tree",
        "--name-only",
        "-z",
        &base,
        &head,
        parent,
    ];
    let merged = git.try_call(&words, b"")?;
    let parts = merged.parts();
    let tree = String::from_utf8_lossy(parts.first().copied().unwrap_or_default()).into_owned();
    match merged.code {
        Some(0) => {}
        Some(1) => {
            // After the tree come the files in conflict, until an empty part.
            let files = parts.iter().skip(1).take_while(|part| !part.is_empty());
            let files: Vec<OsText> = files.map(|part| OsText::from(part.to_vec())).collect();
            let message = "conflict: later commits changed the same places; nothing was touched";
            return Err(Failure::new(message).with(json!({ "conflicts": files })));
        }
        _ => {
            return Err(Failure::new(format!(
                "git merge-tree: {}",
                merged.stderr.trim()
            )));
        }
    }
    let subject = git.call(&["log", "-1", "--format=%s", &commit])?.line();
    let message = format!("Revert \"{subject}\"\n\nThis reverts commit {commit}.");
    let new = write_commit(repository, args, &tree, Some(&head), &message)?;
    change::make(vec![move_branch(repository, &new, true)?], context)?;
    Ok(json!({ "reverts": commit, "commit": new, "parent": head, "files": files }))
}
