//! What a repository says: status, differences, commits. Nothing is changed.

use std::ffi::OsString;

use invigil_schema::OsText;
use serde_json::{Value, json};

use super::super::Failure;
use super::super::change::as_path;
use super::Args;
use super::repository::{Repository, os};

/// How much of a difference a result has.
const MAX_DIFF: usize = 1 << 20;

pub(super) fn status(repository: &Repository) -> Result<Value, Failure> {
    let args = ["status", "--porcelain=v2", "-z", "--untracked-files=all"];
    let printed = repository.git.call(&args)?;
    let mut entries = Vec::new();
    let mut parts = printed.parts().into_iter();
    while let Some(part) = parts.next() {
        // The path is the last field and may have spaces; how many fields come before depends on the kind.
        let fields = |count| part.splitn(count, |&byte| byte == b' ').collect::<Vec<_>>();
        let (status, path) = match part.first() {
            Some(b'1') => (fields(9)[1], fields(9).pop()),
            Some(b'2') => (fields(10)[1], fields(10).pop()),
            Some(b'u') => (fields(11)[1], fields(11).pop()),
            _ => (&b"??"[..], fields(2).pop()),
        };
        let mut entry = json!({
            "path": path.map(|path| OsText::from(os(path))),
            "status": String::from_utf8_lossy(status),
        });
        if part.first() == Some(&b'2') {
            let original = parts.next();
            entry["original"] = json!(original.map(|path| OsText::from(os(path))));
        }
        entries.push(entry);
    }
    Ok(json!({ "entries": entries }))
}

pub(super) fn diff(repository: &Repository, args: &Args) -> Result<Value, Failure> {
    let mut words: Vec<OsString> = vec!["--no-ext-diff".into(), "--no-textconv".into()];
    if args.staged == Some(true) {
        words.push("--cached".into());
    }
    for revision in [&args.reference, &args.to].into_iter().flatten() {
        words.push(repository.commit(revision)?.into());
    }
    words.push("--".into());
    words.extend(args.paths.iter().flatten().map(|path| as_path(path).into()));
    let run = |format: &[&str]| {
        let mut all: Vec<OsString> = vec!["diff".into(), "--no-color".into()];
        all.extend(format.iter().map(OsString::from));
        all.extend(words.iter().cloned());
        repository.git.call(&all)
    };
    let text = run(&["--patch"])?;
    let shown = &text.stdout[..text.stdout.len().min(MAX_DIFF)];
    Ok(json!({
        "files": changed(&run(&["--name-status", "--no-renames", "-z"])?.parts()),
        "diff": String::from_utf8_lossy(shown),
        "truncated": text.truncated || text.stdout.len() > MAX_DIFF,
    }))
}

/// Pairs of a letter and a path, as `--name-status -z` without renames prints them.
pub(super) fn changed(parts: &[&[u8]]) -> Vec<Value> {
    let pairs = parts.as_chunks::<2>().0.iter();
    pairs
        .map(|[status, path]| {
            json!({ "path": OsText::from(os(path)), "status": String::from_utf8_lossy(status) })
        })
        .collect()
}

pub(super) fn log(repository: &Repository, args: &Args) -> Result<Value, Failure> {
    const FIELDS: usize = 6;
    let begin = match (&args.reference, repository.commit("HEAD")) {
        (Some(revision), _) => repository.commit(revision)?,
        (None, Ok(head)) => head,
        (None, Err(_)) => return Ok(json!({ "commits": [] })),
    };
    let count = format!("--max-count={}", args.max_count.unwrap_or(20));
    let format = "--format=tformat:%H%x00%P%x00%an%x00%ae%x00%aI%x00%B";
    let printed = repository.git.call(&[
        "log",
        "-z",
        "--no-show-signature",
        &count,
        format,
        &begin,
        "--",
    ])?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    // An empty body still is a field, and so is the one at the end.
    let parts: Vec<&[u8]> = printed.stdout.split(|&byte| byte == 0).collect();
    let commits: Vec<Value> = parts
        .as_chunks::<FIELDS>()
        .0
        .iter()
        .map(|[hash, parents, name, address, time, message]| {
            let parents = text(parents);
            json!({
                "hash": text(hash),
                "parents": parents.split_whitespace().collect::<Vec<_>>(),
                "author": format!("{} <{}>", text(name), text(address)),
                "time": text(time),
                "message": text(message),
            })
        })
        .collect();
    Ok(json!({ "commits": commits, "truncated": printed.truncated }))
}
