//! Changes of the file system: announced all together, made one by one, each so that a race is noticed, and taken back
//! if one of them fails.
//!
//! Every capability that changes files computes a list of [`Change`]s and hands it to [`make`]. A change leads from one
//! entry to another. What stood at a place when it was changed is looked at once more after it has been moved aside; if
//! it is not what was announced, it is put back and the change is a conflict.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use invigil_schema::{Entry, Kept, OsText};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::entry::{self, look, same};
use super::{Context, Failure, Place, git};

/// How often somebody else may get in between while something is put back.
const TRIES: usize = 64;

/// One change, not made yet.
#[derive(Debug)]
pub(super) struct Change {
    /// Where, from what, to what.
    pub(super) kept: Kept,
    /// The content of what will be there, if it is a file.
    pub(super) content: Content,
}

/// Where the content of a new file comes from.
#[derive(Debug)]
pub(super) enum Content {
    /// There is none, or it was kept.
    Kept,
    /// These bytes.
    Bytes(Vec<u8>),
    /// What is there now, and then these bytes.
    Appended(Vec<u8>),
    /// These bytes, in a file that was last changed then.
    Dated(Vec<u8>, SystemTime),
}

impl Change {
    /// A change of a path, which is absolute and without links.
    pub(super) fn new(path: &Path, before: Entry, after: Entry, content: Content) -> Self {
        let kept = Kept {
            path: OsText::from(path.as_os_str()),
            before,
            after,
            repository: None,
        };
        Change { kept, content }
    }

    /// Removes what is there.
    pub(super) fn removal(path: &Path, before: Entry) -> Self {
        Change::new(path, before, Entry::Absent, Content::Kept)
    }

    /// The way back.
    fn reversed(self) -> Self {
        let Kept {
            path,
            before,
            after,
            repository,
        } = self.kept;
        Change {
            kept: Kept {
                path,
                before: after,
                after: before,
                repository,
            },
            content: Content::Kept,
        }
    }

    pub(super) fn path(&self) -> &Path {
        as_path(&self.kept.path)
    }
}

/// A path as it is kept.
pub(super) fn as_path(path: &OsText) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(OsStr::from_bytes(path.as_bytes()))
}

/// How the names of temporary files of a job begin.
pub fn temporary_prefix(job_id: &invigil_schema::JobId) -> String {
    format!(".invigil-{job_id}-")
}

/// Announces all changes, waits until that is durable, and makes them. After an error everything is as it was, or the
/// error says what is not.
pub(super) fn make(changes: Vec<Change>, context: &mut Context<'_>) -> Result<(), Failure> {
    for change in &changes {
        announce(change, context)?;
    }
    context
        .keeper
        .settle()
        .map_err(|error| Failure::io("cannot keep what is to be changed", error))?;
    let mut maker = Maker {
        context,
        temporaries: 0,
        undressed: Vec::new(),
        touched: BTreeSet::new(),
    };
    let mut made: Vec<Change> = Vec::new();
    for change in changes {
        if let Err(failure) = maker.change(&change) {
            return Err(maker.take_back(made, failure));
        }
        made.push(change);
    }
    match maker.finish() {
        Ok(()) => Ok(()),
        Err(failure) => Err(maker.take_back(made, failure)),
    }
}

fn announce(change: &Change, context: &mut Context<'_>) -> Result<(), Failure> {
    let path = change.path();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => conflict(path, "it changed while it was kept"),
        _ => Failure::io(format_args!("cannot keep {}", path.display()), error),
    };
    let kept = change.kept.clone();
    if kept.before.sha256().is_none() {
        return context.keeper.keep(kept, None).map_err(failed);
    }
    let place = context.roots.exact(path)?;
    let mut file = entry::open_regular(&place.dir, &place.name).map_err(failed)?;
    context.keeper.keep(kept, Some(&mut file)).map_err(failed)
}

/// Somebody else was there, too.
pub(super) fn conflict(path: &Path, why: &str) -> Failure {
    Failure::new(format!(
        "conflict: {}: {why}; nothing was done to it",
        path.display()
    ))
}

struct Maker<'a, 'c> {
    context: &'a mut Context<'c>,
    temporaries: usize,
    /// Directories that are filled before they get their owner and mode, which may forbid it.
    undressed: Vec<(PathBuf, Entry)>,
    /// Directories whose entries have changed and must become durable.
    touched: BTreeSet<PathBuf>,
}

impl Maker<'_, '_> {
    fn change(&mut self, change: &Change) -> Result<(), Failure> {
        if change.kept.repository.is_some() {
            return git::change(&change.kept, &change.content, self.context);
        }
        let place = self.context.roots.exact(change.path())?;
        if let Some(dir) = place.path.parent() {
            self.touched.insert(dir.to_owned());
        }
        use Entry::{Absent, Directory};
        match (&change.kept.before, &change.kept.after) {
            (before, after) if before == after => self.verify(&place, before),
            (before @ Directory { .. }, after @ Directory { .. }) => {
                self.verify(&place, before)?;
                self.undressed.push((place.path, after.clone()));
                Ok(())
            }
            (before @ Directory { .. }, after) => {
                self.remove_directory(&place, before)?;
                self.create(&place, after, &change.content)
            }
            (before, after @ (Absent | Directory { .. })) => {
                self.move_away(&place, before)?;
                self.create(&place, after, &change.content)
            }
            (Absent, after) => self.create(&place, after, &change.content),
            (before, after) => self.replace(&place, before, after, &change.content),
        }
    }

    fn verify(&self, place: &Place, expected: &Entry) -> Result<(), Failure> {
        let found = look(&place.dir, &place.name).map_err(|error| at(place, error))?;
        if same(&found.entry, expected) {
            return Ok(());
        }
        Err(conflict(&place.path, "it changed meanwhile"))
    }

    fn create(&mut self, place: &Place, entry: &Entry, from: &Content) -> Result<(), Failure> {
        let exists = || conflict(&place.path, "something has come there meanwhile");
        match entry {
            Entry::Absent => Ok(()),
            Entry::Directory { .. } => {
                match rustix::fs::mkdirat(&place.dir, &place.name, Mode::RWXU) {
                    Ok(()) => {}
                    Err(Errno::EXIST) => return Err(exists()),
                    Err(error) => return Err(at(place, error)),
                }
                self.undressed.push((place.path.clone(), entry.clone()));
                Ok(())
            }
            _ => {
                let temporary = self.prepare(place, entry, from)?;
                let flags = RenameFlags::NOREPLACE;
                match temporary.rename(&place.name, flags) {
                    Ok(()) => Ok(()),
                    Err(Errno::EXIST) => Err(exists()),
                    Err(error) => Err(at(place, error)),
                }
            }
        }
    }

    /// Puts a new file or link in the place of the old one, and looks at the old one afterwards.
    fn replace(
        &mut self,
        place: &Place,
        before: &Entry,
        after: &Entry,
        from: &Content,
    ) -> Result<(), Failure> {
        let mut temporary = self.prepare(place, after, from)?;
        self.verify(place, before)?;
        match temporary.exchange(&place.name) {
            Ok(()) => {}
            // The file system cannot exchange: what was just looked at is replaced.
            Err(Errno::INVAL | Errno::NOSYS) => {
                return temporary
                    .rename(&place.name, RenameFlags::empty())
                    .map_err(|error| at(place, error));
            }
            Err(Errno::NOENT) => return Err(conflict(&place.path, "it was removed meanwhile")),
            Err(error) => return Err(at(place, error)),
        }
        // From here on the temporary name holds what was there before; it goes only if it is what was announced.
        match look(&place.dir, &temporary.name) {
            Ok(found) if same(&found.entry, before) => temporary.remove().map_err(|e| at(place, e)),
            _ => {
                if let Err(error) = temporary.give_back(&place.name) {
                    temporary.armed = false;
                    return Err(stranded(place, &temporary.name, error));
                }
                Err(conflict(&place.path, "it changed meanwhile"))
            }
        }
    }

    /// Removes a file or a link, looking at it once nobody finds it under its name.
    fn move_away(&mut self, place: &Place, before: &Entry) -> Result<(), Failure> {
        if matches!(before, Entry::Absent) {
            return Ok(());
        }
        self.verify(place, before)?;
        let name = self.temporary_name();
        let dir = place.dir.as_fd();
        match rustix::fs::renameat_with(dir, &place.name, dir, &name, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(conflict(&place.path, "it was removed meanwhile")),
            Err(error) => return Err(at(place, error)),
        }
        match look(dir, &name) {
            Ok(found) if same(&found.entry, before) => {
                rustix::fs::unlinkat(dir, &name, AtFlags::empty()).map_err(|e| at(place, e))
            }
            _ => {
                let flags = RenameFlags::NOREPLACE;
                rustix::fs::renameat_with(dir, &name, dir, &place.name, flags)
                    .map_err(|error| stranded(place, &name, error))?;
                Err(conflict(&place.path, "it changed meanwhile"))
            }
        }
    }

    fn remove_directory(&mut self, place: &Place, before: &Entry) -> Result<(), Failure> {
        self.verify(place, before)?;
        match rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(conflict(
                &place.path,
                "something has come into it meanwhile",
            )),
            Err(error) => Err(at(place, error)),
        }
    }

    /// Writes a file or link under a temporary name, complete and durable.
    fn prepare(
        &mut self,
        place: &Place,
        entry: &Entry,
        from: &Content,
    ) -> Result<Temporary, Failure> {
        let name = self.temporary_name();
        let dir = rustix::io::dup(&place.dir).map_err(|error| at(place, error))?;
        if let Entry::Symlink { target, uid, gid } = entry {
            rustix::fs::symlinkat(target.as_bytes(), &dir, &name).map_err(|e| at(place, e))?;
            let temporary = Temporary::new(dir, name).map_err(|e| at(place, e))?;
            entry::dress_link(&temporary.dir, &temporary.name, *uid, *gid)
                .map_err(|error| at(place, error))?;
            return Ok(temporary);
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&dir, &name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| at(place, error))?;
        let temporary = Temporary::new(dir, name).map_err(|e| at(place, e))?;
        let mut file = File::from(fd);
        self.fill(&mut file, place, entry, from)?;
        entry::dress(&file, entry).map_err(|error| {
            Failure::io(
                format_args!(
                    "{}: owner, mode and attributes cannot be kept",
                    place.path.display()
                ),
                error,
            )
        })?;
        file.sync_all().map_err(|error| at(place, error))?;
        Ok(temporary)
    }

    fn fill(
        &mut self,
        file: &mut File,
        place: &Place,
        entry: &Entry,
        from: &Content,
    ) -> Result<(), Failure> {
        let written = match (from, entry.sha256()) {
            (Content::Bytes(bytes), _) => file.write_all(bytes),
            (Content::Dated(bytes, then), _) => file
                .write_all(bytes)
                .and_then(|()| file.set_modified(*then)),
            (Content::Appended(bytes), Some(sha256)) => {
                let mut old = entry::open_regular(&place.dir, &place.name)
                    .map_err(|error| at(place, error))?;
                let mut both = Hashing::new(file);
                io::copy(&mut old, &mut both).map_err(|error| at(place, error))?;
                both.write_all(bytes).map_err(|error| at(place, error))?;
                if both.digest() != *sha256 {
                    return Err(conflict(&place.path, "it changed meanwhile"));
                }
                Ok(())
            }
            (Content::Kept, Some(sha256)) => self.context.keeper.fetch(sha256, file),
            (_, None) => Ok(()),
        };
        written.map_err(|error| at(place, error))
    }

    fn temporary_name(&mut self) -> OsString {
        self.temporaries += 1;
        let prefix = temporary_prefix(self.context.job_id);
        format!("{prefix}{}", self.temporaries).into()
    }

    /// Gives directories their owner and mode, the innermost first, and makes all new names durable.
    fn finish(&mut self) -> Result<(), Failure> {
        for (path, entry) in std::mem::take(&mut self.undressed).into_iter().rev() {
            let dir = self.context.roots.exact_directory(&path)?;
            entry::dress(&dir, &entry).map_err(|error| Failure::io(path.display(), error))?;
        }
        for path in std::mem::take(&mut self.touched) {
            // One that was removed needs nothing, and one that may not be read cannot be synced.
            if let Ok(dir) = self.context.roots.exact_directory(&path) {
                rustix::fs::fsync(&dir).map_err(|error| Failure::io(path.display(), error))?;
            }
        }
        Ok(())
    }

    /// Takes back what was made before something failed.
    fn take_back(&mut self, made: Vec<Change>, failure: Failure) -> Failure {
        self.undressed.clear();
        for change in made.into_iter().rev().map(Change::reversed) {
            let change = self.as_it_is(change);
            if let Err(second) = self.change(&change) {
                let path = change.path().display();
                return Failure {
                    message: format!("{failure}; {path} could not be put back: {second}"),
                    ..failure
                };
            }
        }
        match self.finish() {
            Ok(()) => failure,
            Err(second) => Failure {
                message: format!("{failure}; not all could be put back: {second}"),
                ..failure
            },
        }
    }

    /// A directory that was made and not dressed yet looks different from what was planned.
    fn as_it_is(&self, mut change: Change) -> Change {
        if let Entry::Directory { .. } = change.kept.before
            && let Ok(dir) = self.context.roots.exact_directory(change.path())
            && let Ok(entry) = entry::directory(&dir)
        {
            change.kept.before = entry;
        }
        change
    }
}

fn at(place: &Place, error: impl Into<io::Error>) -> Failure {
    Failure::io(place.path.display(), error)
}

fn stranded(place: &Place, name: &OsStr, error: Errno) -> Failure {
    Failure::new(format!(
        "conflict: {} changed meanwhile, and what it was is now named {} beside it: {error}",
        place.path.display(),
        name.display()
    ))
}

/// A name that goes away with this value.
struct Temporary {
    dir: OwnedFd,
    name: OsString,
    /// What was made under the name.
    own: Identity,
    armed: bool,
}

/// The device and the number of a file.
type Identity = (u64, u64);

impl Temporary {
    fn new(dir: OwnedFd, name: OsString) -> Result<Self, Errno> {
        let own = identity(&dir, &name)?;
        Ok(Temporary {
            dir,
            name,
            own,
            armed: true,
        })
    }

    fn rename(mut self, to: &OsStr, flags: RenameFlags) -> Result<(), Errno> {
        rustix::fs::renameat_with(&self.dir, &self.name, &self.dir, to, flags)?;
        self.armed = false;
        Ok(())
    }

    fn exchange(&mut self, with: &OsStr) -> Result<(), Errno> {
        let flags = RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(&self.dir, &self.name, &self.dir, with, flags)
    }

    /// After an exchange: takes its own file out again. Somebody may put another there meanwhile, which then comes out
    /// in its place; being the newer one, it is put back in turn.
    fn give_back(&mut self, to: &OsStr) -> Result<(), Errno> {
        let mut inside = self.own;
        for _ in 0..TRIES {
            let held = identity(&self.dir, &self.name)?;
            self.exchange(to)?;
            if identity(&self.dir, &self.name)? == inside {
                return Ok(());
            }
            inside = held;
        }
        Err(Errno::AGAIN)
    }

    fn remove(mut self) -> Result<(), Errno> {
        self.armed = false;
        rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty())
    }
}

fn identity(dir: &OwnedFd, name: &OsStr) -> Result<Identity, Errno> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.armed {
            // There is nobody left to tell.
            let _ = rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// Hashes what it passes on.
pub(super) struct Hashing<W> {
    to: W,
    hash: sha2::Sha256,
}

impl<W: Write> Hashing<W> {
    pub(super) fn new(to: W) -> Self {
        use sha2::Digest as _;
        Hashing {
            to,
            hash: sha2::Sha256::new(),
        }
    }

    pub(super) fn digest(self) -> invigil_schema::Digest {
        use sha2::Digest as _;
        invigil_schema::Digest::from_bytes(self.hash.finalize().into())
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        use sha2::Digest as _;
        let written = self.to.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// What is at a path now; nothing, if its directory is not there either.
pub(super) fn current(path: &Path, context: &Context<'_>) -> Result<Entry, Failure> {
    match context.roots.exact_or_absent(path)? {
        Some(place) => Ok(look(&place.dir, &place.name)
            .map_err(|error| at(&place, error))?
            .entry),
        None => Ok(Entry::Absent),
    }
}

/// The changes that remove everything in a directory and below, the innermost first, but not the directory itself.
pub(super) fn removals(
    dir: impl AsFd,
    path: &Path,
    changes: &mut Vec<Change>,
) -> Result<(), Failure> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| Failure::io(path, error)
    };
    let device = |fd: &dyn AsFd| rustix::fs::fstat(fd.as_fd()).map(|stat| stat.st_dev);
    for name in entry::names(&dir).map_err(failed(path))? {
        let below = path.join(&name);
        let found = look(&dir, &name).map_err(failed(&below))?;
        if let Entry::Directory { .. } = found.entry {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let child = rustix::fs::openat(&dir, &name, flags, Mode::empty())
                .map_err(|error| Failure::io(below.display(), error))?;
            if device(&child).ok() != device(&dir).ok() {
                return Err(Failure::new(format!(
                    "{}: another file system is mounted there",
                    below.display()
                )));
            }
            removals(&child, &below, changes)?;
        }
        changes.push(Change::removal(&below, found.entry));
    }
    Ok(())
}
