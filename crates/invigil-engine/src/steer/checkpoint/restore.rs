//! Putting files back. Every place is resolved by the kernel below the workspace, without links; what stands there now is
//! in a checkpoint, or is not touched.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use invigil_schema::{LeftOut, OsText};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::repository::{Entries, Kept, Kind, Line, Objects};
use super::tree::held;
use crate::capabilities::{Place, Roots};

/// What a file is called while it is written.
const DRAFT: &str = ".invigil-rollback";

/// What was done.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) written: u64,
    pub(super) removed: u64,
    pub(super) failed: Vec<LeftOut>,
}

/// Makes a workspace that is `present` what is `wanted`. A failure stops nothing else.
pub(super) fn restore(
    workspace: &Path,
    present: &Entries,
    wanted: &Entries,
    objects: Objects,
) -> io::Result<Restored> {
    let held = held(workspace)?;
    let held_at = format!("/proc/self/fd/{}", held.as_raw_fd());
    let mut restorer = Restorer {
        roots: Roots::open(Path::new(&held_at), &[])?,
        present,
        objects,
        done: Restored::default(),
    };
    let gone = |path: &PathBuf| !wanted.0.contains_key(path);
    // What is below comes before what it is in.
    let leaving = present.0.iter().rev().filter(|(path, _)| gone(path));
    for (path, kept) in leaving {
        let removed = restorer.remove(path, kept);
        restorer.note(path, removed);
    }
    for (path, kept) in &wanted.0 {
        let same = present.0.get(path) == Some(kept);
        if !same {
            let written = restorer.write(path, kept);
            restorer.note(path, written);
        }
    }
    Ok(restorer.done)
}

struct Restorer<'a> {
    roots: Roots,
    present: &'a Entries,
    objects: Objects,
    done: Restored,
}

impl Restorer<'_> {
    fn note(&mut self, path: &Path, done: Result<(), String>) {
        if let Err(why) = done {
            let path = OsText::from(path.as_os_str());
            self.done.failed.push(LeftOut { path, why });
        }
    }

    fn remove(&mut self, path: &Path, kept: &Kept) -> Result<(), String> {
        let place = self.roots.exact_or_absent(path);
        let Some(place) = place.map_err(|failure| failure.to_string())? else {
            return Ok(());
        };
        let flags = match kept.line.kind {
            Kind::Directory => AtFlags::REMOVEDIR,
            Kind::File | Kind::Link => AtFlags::empty(),
        };
        match rustix::fs::unlinkat(&place.dir, &place.name, flags) {
            Ok(()) => {
                self.done.removed += u64::from(kept.line.kind != Kind::Directory);
                Ok(())
            }
            // Something is in it that was never kept; it is left alone.
            Err(Errno::NOTEMPTY) if kept.line.kind == Kind::Directory => Ok(()),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(io::Error::from(error).to_string()),
        }
    }

    fn write(&mut self, path: &Path, kept: &Kept) -> Result<(), String> {
        let said = |error: io::Error| error.to_string();
        let place = self.roots.exact(path);
        let place = place.map_err(|failure| failure.to_string())?;
        let there = rustix::fs::statat(&place.dir, &place.name, AtFlags::SYMLINK_NOFOLLOW);
        let known = self.present.0.get(path).map(|kept| kept.line.kind);
        match (there, known, kept.line.kind) {
            (Ok(_), None, _) => {
                return Err("what is there now is in no checkpoint, so it is left alone".to_owned());
            }
            (Ok(_), Some(Kind::Directory), Kind::Directory) => {
                return dress(&place, &kept.line).map_err(said);
            }
            (Ok(_), Some(Kind::Directory), _) => {
                let removed = rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR);
                removed.map_err(|error| said(error.into()))?;
            }
            (Ok(_), Some(_), Kind::Directory) => {
                let removed = rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::empty());
                removed.map_err(|error| said(error.into()))?;
            }
            _ => {}
        }
        if kept.line.kind == Kind::Directory {
            let mode = Mode::from_raw_mode(0o700);
            let made = rustix::fs::mkdirat(&place.dir, &place.name, mode);
            made.map_err(|error| said(error.into()))?;
            return dress(&place, &kept.line).map_err(said);
        }
        let object = kept.object.as_deref().ok_or("its content was not kept")?;
        let content = self.objects.read(object).map_err(said)?;
        put(&place, &kept.line, &content).map_err(said)?;
        self.done.written += 1;
        Ok(())
    }
}

/// Puts a file or a link in its place, whole.
fn put(place: &Place, line: &Line, content: &[u8]) -> io::Result<()> {
    let draft = OsStr::new(DRAFT);
    match rustix::fs::unlinkat(&place.dir, draft, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let written = match line.kind {
        Kind::Link => {
            let target = OsStr::from_bytes(content);
            rustix::fs::symlinkat(target, &place.dir, draft).map_err(io::Error::from)
        }
        Kind::File | Kind::Directory => write_draft(&place.dir, draft, line, content),
    };
    let renamed = written.and_then(|()| {
        Ok(rustix::fs::renameat(
            &place.dir,
            draft,
            &place.dir,
            &place.name,
        )?)
    });
    if renamed.is_err() {
        let _ = rustix::fs::unlinkat(&place.dir, draft, AtFlags::empty());
    }
    renamed
}

fn write_draft(dir: &OwnedFd, draft: &OsStr, line: &Line, content: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, draft, flags, Mode::from_raw_mode(0o600))?;
    let mut file = File::from(file);
    file.write_all(content)?;
    own(&file, line)
}

/// Gives a directory its owner and its mode.
fn dress(place: &Place, line: &Line) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(&place.dir, &place.name, flags, Mode::empty())?;
    own(dir.as_fd(), line)
}

fn own(fd: impl std::os::fd::AsFd, line: &Line) -> io::Result<()> {
    let stat = rustix::fs::fstat(&fd)?;
    if (stat.st_uid, stat.st_gid) != (line.uid, line.gid) {
        let (uid, gid) = (Uid::from_raw(line.uid), Gid::from_raw(line.gid));
        rustix::fs::fchown(&fd, Some(uid), Some(gid))?;
    }
    Ok(rustix::fs::fchmod(&fd, Mode::from_raw_mode(line.mode))?)
}
