//! Putting files back. Every place is resolved by the kernel below the workspace, without links; what stands there now is
//! in a checkpoint, or is not touched.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use invigil_schema::{LeftOut, OsText};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::repository::{Entries, Kept, Kind, Objects};
use crate::capabilities::{Place, Roots};

/// What was done.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) written: u64,
    pub(super) removed: u64,
    pub(super) failed: Vec<LeftOut>,
}

/// Makes a workspace that is `present` what is `wanted`. A failure stops nothing else.
pub(super) fn restore(
    workspace: &OwnedFd,
    present: &Entries,
    wanted: &Entries,
    objects: Objects,
) -> io::Result<Restored> {
    let mut restorer = Restorer {
        roots: Roots::open(&by_descriptor(workspace), &[])?,
        draft: draft()?,
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

/// What a file is called while it is written. Nobody can have put anything there before.
fn draft() -> io::Result<OsString> {
    let random = crate::run::random()?;
    let hex: String = random[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(format!(".invigil-{hex}").into())
}

fn by_descriptor(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

struct Restorer<'a> {
    roots: Roots,
    draft: OsString,
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
        let flags = match kept.kind {
            Kind::Directory => AtFlags::REMOVEDIR,
            Kind::File | Kind::Link => AtFlags::empty(),
        };
        match rustix::fs::unlinkat(&place.dir, &place.name, flags) {
            Ok(()) => {
                self.done.removed += u64::from(kept.kind != Kind::Directory);
                Ok(())
            }
            // Something is in it that was never kept; it is left alone.
            Err(Errno::NOTEMPTY) if kept.kind == Kind::Directory => Ok(()),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(io::Error::from(error).to_string()),
        }
    }

    fn write(&mut self, path: &Path, kept: &Kept) -> Result<(), String> {
        let said = |error: io::Error| error.to_string();
        let place = self.roots.exact(path);
        let place = place.map_err(|failure| failure.to_string())?;
        let there = rustix::fs::statat(&place.dir, &place.name, AtFlags::SYMLINK_NOFOLLOW);
        let known = self.present.0.get(path).map(|kept| kept.kind);
        match (there, known, kept.kind) {
            (Ok(_), None, _) => {
                return Err("what is there now is in no checkpoint, so it is left alone".to_owned());
            }
            (Ok(_), Some(Kind::Directory), Kind::Directory) => {
                return dress(&place, kept).map_err(said);
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
        if kept.kind == Kind::Directory {
            let mode = Mode::from_raw_mode(0o700);
            let made = rustix::fs::mkdirat(&place.dir, &place.name, mode);
            made.map_err(|error| said(error.into()))?;
            return dress(&place, kept).map_err(said);
        }
        let object = kept.object.as_deref().ok_or("its content was not kept")?;
        let content = self.objects.read(object).map_err(said)?;
        put(&place, &self.draft, kept, &content).map_err(said)?;
        self.done.written += 1;
        Ok(())
    }
}

/// Puts a file or a link in its place, whole.
fn put(place: &Place, draft: &OsStr, kept: &Kept, content: &[u8]) -> io::Result<()> {
    // What is there already is not ours, and is not taken away.
    let written = match kept.kind {
        Kind::Link => {
            rustix::fs::symlinkat(OsStr::from_bytes(content), &place.dir, draft)?;
            Ok(())
        }
        Kind::File | Kind::Directory => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&place.dir, draft, flags, Mode::from_raw_mode(0o600))?;
            let mut file = File::from(file);
            file.write_all(content).and_then(|()| own(&file, kept))
        }
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

/// Gives a directory its owner and its mode. It need not be readable: a run could have seen to that.
fn dress(place: &Place, kept: &Kept) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(&place.dir, &place.name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&dir)?;
    if let Some((uid, gid)) = other_owner(&stat, kept) {
        rustix::fs::chownat(&dir, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    Ok(rustix::fs::chmod(
        by_descriptor(&dir),
        Mode::from_raw_mode(kept.mode),
    )?)
}

fn own(file: &File, kept: &Kept) -> io::Result<()> {
    if let Some((uid, gid)) = other_owner(&rustix::fs::fstat(file)?, kept) {
        rustix::fs::fchown(file, Some(uid), Some(gid))?;
    }
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(kept.mode))?)
}

/// Who shall own it, if that is somebody else.
fn other_owner(stat: &Stat, kept: &Kept) -> Option<(Uid, Gid)> {
    let same = (stat.st_uid, stat.st_gid) == (kept.uid, kept.gid);
    (!same).then(|| (Uid::from_raw(kept.uid), Gid::from_raw(kept.gid)))
}
