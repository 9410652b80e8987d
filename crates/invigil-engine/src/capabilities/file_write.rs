//! `file_write`: a whole file in one step, or more at its end.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use invigil_schema::{Digest, Entry, OsText};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::change::{self, Change, Content, as_path, conflict};
use super::entry::{self, look};
use super::{Capability, Context, Failure, Invalid, Needs, Output, Plan, arguments};

/// Writes files.
pub(super) struct FileWrite;

/// Arguments of `file_write`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The file; relative to the working directory, or absolute below an allowed root.
    path: OsText,
    /// What it will contain.
    content: String,
    /// Add to the end of the file, and keep what is there.
    #[serde(default)]
    append: bool,
    /// How `content` is to be read.
    #[serde(default)]
    encoding: Encoding,
    /// Write only if the file has this content now.
    expect_sha256: Option<Digest>,
    /// Make the directories that are not there yet.
    #[serde(default)]
    parents: bool,
}

/// How bytes are written in JSON.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
enum Encoding {
    /// As they are.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// In base64, with padding.
    #[serde(rename = "base64")]
    Base64,
}

impl Args {
    fn bytes(&self) -> Result<Vec<u8>, Invalid> {
        match self.encoding {
            Encoding::Utf8 => Ok(self.content.clone().into_bytes()),
            Encoding::Base64 => STANDARD
                .decode(&self.content)
                .map_err(|error| Invalid::new("content", format!("it is not base64: {error}"))),
        }
    }
}

impl Capability for FileWrite {
    type Args = Args;
    const NAME: &'static str = "file_write";
    const DESCRIPTION: &'static str =
        "Writes a file in one step, or adds to its end. Mode and owner are kept.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        arguments::path("path", &args.path)?;
        args.bytes().map(drop)
    }

    fn plan(&self, _: &Args) -> Plan {
        Plan::Work(Needs::WRITES)
    }

    fn execute(&self, args: Args, context: &mut Context<'_>) -> Result<Output, Failure> {
        let bytes = args
            .bytes()
            .map_err(|invalid| Failure::new(invalid.to_string()))?;
        let length = bytes.len();
        let Target { new, dir, path } = target(&args, context)?;
        let found = match (&dir, path.file_name()) {
            (Some(dir), Some(name)) => look(dir, name).map_err(|error| at(&path, error))?.entry,
            _ => Entry::Absent,
        };
        let before = found.sha256().copied();
        if args.expect_sha256.is_some() && args.expect_sha256 != before {
            let is = before.map_or("it does not exist".to_owned(), |is| format!("it has {is}"));
            return Err(conflict(
                &path,
                &format!("its content is not as expected: {is}"),
            ));
        }
        let mut changes = new_directories(&new, context)?;
        let (after, content) = if args.append && before.is_some() {
            (
                appended(&path, &dir, &found, &bytes)?,
                Content::Appended(bytes),
            )
        } else {
            let digest = entry::digest_of(&bytes);
            let after = written(&found, digest, length as u64, &new, &dir, context)?;
            (after, Content::Bytes(bytes))
        };
        let sha256 = after.sha256().copied();
        changes.push(Change::new(&path, found, after, content));
        if !context.dry_run {
            change::make(changes, context)?;
        }
        Ok(Output::new(json!({
            "path": OsText::from(path.as_os_str()),
            "bytes_written": length,
            "created": before.is_none(),
            "backup": before,
            "sha256_before": before,
            "sha256_after": sha256,
        })))
    }
}

/// Where the file will be.
struct Target {
    /// Directories to make, the outermost first.
    new: Vec<PathBuf>,
    /// Its directory, if it is there.
    dir: Option<OwnedFd>,
    path: PathBuf,
}

fn target(args: &Args, context: &Context<'_>) -> Result<Target, Failure> {
    let path = as_path(&args.path);
    let missing = match context.roots.follow(path) {
        Ok(place) => {
            return Ok(Target {
                new: Vec::new(),
                dir: Some(place.dir),
                path: place.path,
            });
        }
        Err(failure) if !args.parents => return Err(failure),
        Err(failure) => failure,
    };
    // The longest beginning that is there; what is missing must be plain names.
    let mut rest: Vec<OsString> = Vec::new();
    let mut begin = path;
    while let (Some(Component::Normal(name)), Some(parent)) =
        (begin.components().next_back(), begin.parent())
    {
        rest.push(name.to_owned());
        begin = parent;
        let found = if begin.as_os_str().is_empty() {
            context.roots.directory(Path::new("."))
        } else {
            context.roots.directory(begin)
        };
        let Ok((_, real)) = found else { continue };
        let mut path = real;
        let mut new = Vec::new();
        for name in rest.into_iter().rev() {
            path.push(name);
            new.push(path.clone());
        }
        new.pop();
        if let Some(first) = new.first()
            && !matches!(change::current(first, context)?, Entry::Absent)
        {
            return Err(missing);
        }
        return if new.is_empty() {
            Err(missing)
        } else {
            Ok(Target {
                new,
                dir: None,
                path,
            })
        };
    }
    Err(missing)
}

fn new_directories(new: &[PathBuf], context: &Context<'_>) -> Result<Vec<Change>, Failure> {
    let (uid, gid, inherits) = heir(new, context)?;
    let mode = 0o777 & !entry::umask() | if inherits { 0o2000 } else { 0 };
    let directory = Entry::Directory {
        mode,
        uid,
        gid,
        xattrs: Default::default(),
    };
    let make = |path: &PathBuf| Change::new(path, Entry::Absent, directory.clone(), Content::Kept);
    Ok(new.iter().map(make).collect())
}

/// The owner of what is made in the directory that is there, and whether its group is handed down.
fn heir(new: &[PathBuf], context: &Context<'_>) -> Result<(u32, u32, bool), Failure> {
    let Some(existing) = new.first().and_then(|first| first.parent()) else {
        return Ok((0, 0, false));
    };
    let dir = context.roots.exact_directory(existing)?;
    let stat = rustix::fs::fstat(&dir).map_err(|error| at(existing, error))?;
    let (uid, gid) = entry::newborn(&dir).map_err(|error| at(existing, error))?;
    Ok((uid, gid, stat.st_mode & 0o2000 != 0))
}

/// The entry of a file with new content: mode, owner and attributes stay, but for rights of whoever starts it, which
/// the kernel takes from a file that is written, too.
fn written(
    found: &Entry,
    sha256: Digest,
    size: u64,
    new: &[PathBuf],
    dir: &Option<OwnedFd>,
    context: &Context<'_>,
) -> Result<Entry, Failure> {
    if let Some(after) = rewritten(found, sha256, size) {
        return Ok(after);
    }
    if !matches!(found, Entry::Absent) {
        return Err(Failure::new("it is not a regular file"));
    }
    let (uid, gid) = match dir {
        Some(dir) => entry::newborn(dir).map_err(|error| Failure::io("its directory", error))?,
        None => heir(new, context).map(|(uid, gid, _)| (uid, gid))?,
    };
    Ok(Entry::File {
        sha256,
        size,
        mode: 0o666 & !entry::umask(),
        uid,
        gid,
        xattrs: Default::default(),
    })
}

/// A file whose content is replaced.
pub(super) fn rewritten(found: &Entry, sha256: Digest, size: u64) -> Option<Entry> {
    let Entry::File {
        mode,
        uid,
        gid,
        xattrs,
        ..
    } = found
    else {
        return None;
    };
    let mut xattrs = xattrs.clone();
    xattrs.remove("security.capability");
    Some(Entry::File {
        sha256,
        size,
        mode: mode & 0o1777,
        uid: *uid,
        gid: *gid,
        xattrs,
    })
}

fn appended(
    path: &Path,
    dir: &Option<OwnedFd>,
    found: &Entry,
    more: &[u8],
) -> Result<Entry, Failure> {
    let (Some(dir), Some(name)) = (dir, path.file_name()) else {
        return Err(conflict(path, "its directory has gone"));
    };
    let mut file = entry::open_regular(dir, name).map_err(|error| at(path, error))?;
    let mut hash = Sha256::new();
    let size = entry::hash_into(&mut hash, &mut file).map_err(|error| at(path, error))?;
    hash.update(more);
    let sha256 = Digest::from_bytes(hash.finalize().into());
    rewritten(found, sha256, size + more.len() as u64)
        .ok_or_else(|| Failure::new(format!("{}: it is not a regular file", path.display())))
}

fn at(path: &Path, error: impl Into<std::io::Error>) -> Failure {
    Failure::io(path.display(), error)
}
