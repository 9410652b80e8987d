//! What comes from another repository: clone and pull.

use std::fs;
use std::path::{Path, PathBuf};

use invigil_schema::{Entry, Kept, OsText};
use rustix::fs::RenameFlags;
use serde_json::{Value, json};

use super::super::change::{self, as_path, removals, temporary_prefix};
use super::super::{Context, Failure, Invalid, Output, Place, entry};
use super::Args;
use super::call::Caller;
use super::repository::{Repository, containing};
use super::write::{at, move_branch};

/// Where another repository is.
pub(super) enum Source<'a> {
    /// On this machine.
    Path(&'a str),
    /// Elsewhere.
    Web(&'a str),
}

/// What a URL means. Transports that start programs of the URL's choice are refused, and so is all that is not known.
pub(super) fn source(url: &str) -> Result<Source<'_>, Invalid> {
    super::no_option("url", url.as_bytes())?;
    if url.is_empty() || url.chars().any(char::is_control) {
        return Err(Invalid::new("url", "it is not a URL"));
    }
    if url.starts_with("https://") || url.starts_with("http://") {
        return Ok(Source::Web(url));
    }
    if let Some(path) = url.strip_prefix("file://") {
        return Ok(Source::Path(path));
    }
    // `host:path` is ssh, `name::address` a helper; a colon after a slash is part of a path.
    let before_slash = url.split('/').next().unwrap_or(url);
    if before_slash.contains(':') || url.contains("::") {
        return Err(Invalid::new(
            "url",
            "only https, http and paths are allowed",
        ));
    }
    Ok(Source::Path(url))
}

/// The place to give to git: of a path the real one, which is below an allowed root.
fn resolved(url: &str, context: &Context<'_>) -> Result<PathBuf, Failure> {
    match source(url).map_err(|invalid| Failure::new(invalid.to_string()))? {
        Source::Web(url) => Ok(url.into()),
        Source::Path(path) => context
            .roots
            .directory(Path::new(path))
            .map(|(_, real)| real),
    }
}

pub(super) fn clone(args: &Args, context: &mut Context<'_>) -> Result<Output, Failure> {
    let url = args.url.as_deref().unwrap_or_default();
    let from = resolved(url, context)?;
    let path = args.path.as_ref().map_or(Path::new("."), as_path);
    let place = context.roots.at(path)?;
    let exists = entry::look(&place.dir, &place.name).map(|found| found.entry);
    if !matches!(exists, Ok(Entry::Absent)) {
        return Err(Failure::new(format!(
            "{}: it exists already",
            place.path.display()
        )));
    }
    if context.dry_run {
        return Ok(Output::new(
            json!({ "path": OsText::from(place.path.as_os_str()) }),
        ));
    }
    let copy = Copy::of(&from, &place, context)?;
    let mut kept = vec![created(&place.path, entry::look(&place.dir, copy.name()))?];
    let mut inside = Vec::new();
    let dir = context.roots.exact_directory(&copy.path)?;
    removals(&dir, &place.path, &mut inside)?;
    // From the last to be removed to the first: directories before what is in them.
    let entries = inside.into_iter().rev().map(|change| change.kept);
    kept.extend(entries.map(|kept| Kept {
        after: kept.before,
        before: Entry::Absent,
        ..kept
    }));
    let keep = |error| Failure::io("cannot keep what is to be changed", error);
    for kept in kept {
        context.keeper.keep(kept, None).map_err(keep)?;
    }
    context.keeper.settle().map_err(keep)?;
    copy.put(&place)?;
    let repository = Repository::find(&place.path, context)?;
    Ok(Output::new(repository.state()?))
}

fn created(path: &Path, found: std::io::Result<entry::Found>) -> Result<Kept, Failure> {
    let found = found.map_err(|error| Failure::io(path.display(), error))?;
    Ok(Kept {
        path: OsText::from(path.as_os_str()),
        before: Entry::Absent,
        after: found.entry,
        repository: None,
    })
}

/// A repository under a temporary name; it goes away with this value unless it was put in its place.
struct Copy {
    path: PathBuf,
}

impl Copy {
    fn of(from: &Path, place: &Place, context: &Context<'_>) -> Result<Self, Failure> {
        let parent = place.path.parent().unwrap_or(Path::new("/"));
        let name = format!("{}clone", temporary_prefix(context.job_id));
        let copy = Copy {
            path: parent.join(name),
        };
        let mut git = Caller::new(parent, containing(parent, context));
        git.trust(Path::new("*"));
        // No template, no links between the two, and the other side's own git prepares what is sent.
        let options = [
            "clone",
            "--quiet",
            "--no-local",
            "--no-recurse-submodules",
            "--template=",
        ];
        let mut words: Vec<&std::ffi::OsStr> = options.iter().map(AsRef::as_ref).collect();
        words.extend(["--".as_ref(), from.as_os_str(), copy.path.as_os_str()]);
        git.call(&words)?;
        Ok(copy)
    }

    fn name(&self) -> &std::ffi::OsStr {
        self.path.file_name().unwrap_or_default()
    }

    fn put(mut self, place: &Place) -> Result<(), Failure> {
        let (dir, flags) = (&place.dir, RenameFlags::NOREPLACE);
        rustix::fs::renameat_with(dir, self.name(), dir, &place.name, flags)
            .map_err(|error| Failure::io(place.path.display(), error))?;
        self.path = PathBuf::new();
        Ok(())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // There is nobody left to tell.
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

pub(super) fn pull(
    repository: &Repository,
    args: &Args,
    context: &mut Context<'_>,
) -> Result<Value, Failure> {
    let git = &repository.git;
    let Some(branch) = repository.branch()? else {
        return Err(Failure::new("no branch is checked out"));
    };
    let short = branch.strip_prefix("refs/heads/").unwrap_or(&branch);
    let configured = |key: &str| -> Result<Option<String>, Failure> {
        let key = format!("branch.{short}.{key}");
        let printed = git.try_call(&["config", "--get", &key], b"")?;
        Ok((printed.code == Some(0)).then(|| printed.line()))
    };
    let remote = match &args.remote {
        Some(remote) => remote.clone(),
        None => configured("remote")?.unwrap_or_else(|| "origin".to_owned()),
    };
    let theirs = match &args.name {
        Some(name) => format!("refs/heads/{name}"),
        None => configured("merge")?.unwrap_or_else(|| branch.clone()),
    };
    let printed = git.call(&["remote", "get-url", "--", &remote])?;
    resolved(&printed.line(), context)?;
    let listed = git.call(&["ls-remote", "--", &remote, &theirs])?.line();
    let Some(new) = listed.split_whitespace().next().map(str::to_owned) else {
        return Err(Failure::new(format!("{remote} has no branch {theirs}")));
    };
    let old = repository.commit("HEAD")?;
    let result = json!({ "remote": remote, "before": old, "after": new, "updated": old != new });
    if context.dry_run {
        return Ok(result);
    }
    // Objects only: what refers to them is changed below.
    let fetch = [
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-write-fetch-head",
        "--refmap=",
    ];
    git.call(&[&fetch[..], &["--", &remote, &theirs]].concat())?;
    let known = git.try_call(&["merge-base", "--is-ancestor", &old, &new], b"")?;
    if known.code != Some(0) {
        let why = "the two have gone apart, or it moved meanwhile; nothing was changed";
        return Err(Failure::new(format!(
            "{short} cannot go forward to {new}: {why}"
        )));
    }
    let tracking = theirs.strip_prefix("refs/heads/").unwrap_or(&theirs);
    let tracking = format!("refs/remotes/{remote}/{tracking}");
    let mut changes = vec![
        repository.move_reference(&tracking, at(&new), false)?,
        move_branch(repository, &new, true)?,
    ];
    changes.retain(|change| change.kept.before != change.kept.after);
    if !changes.is_empty() {
        change::make(changes, context)?;
    }
    Ok(result)
}
