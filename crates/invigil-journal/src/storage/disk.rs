//! The real medium: a directory of the operating system.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

use super::{Access, Sharing, Storage, StorageFile};

/// Files in a directory, readable by their owner only.
#[derive(Debug)]
pub struct DiskStorage {
    directory: PathBuf,
    /// While the lock is held. Opened anew each time: the kernel lets one open file take the same lock twice, and two
    /// journals may share this handle.
    held: Mutex<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    owner: File,
    /// Of those who share.
    turn: Option<File>,
}

/// Locked by whoever owns the journal; shared by all others while they append.
const OWNER: &str = "lock";
/// Locked by the one of them whose turn it is.
const TURN: &str = "turn";
const MODE: u32 = 0o600;

impl DiskStorage {
    /// A directory that exists.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        DiskStorage {
            directory: directory.into(),
            held: Mutex::new(None),
        }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether another handle owns the journal: a writer is alive. Makes no file; shares the lock for a moment if it
    /// is free.
    pub fn is_locked(&self) -> io::Result<bool> {
        let file = match options(Access::Read).open(self.directory.join(OWNER)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn lock_file(&self, name: &str) -> io::Result<File> {
        let mut options = options(Access::Write);
        regular(
            options
                .create(true)
                .truncate(false)
                .open(self.directory.join(name))?,
        )
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Never through a link, never blocked by a FIFO, never inherited.
fn options(access: Access) -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(access == Access::Write)
        .mode(MODE)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    options
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is not a regular file",
    ))
}

impl Storage for DiskStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            // Names that are not UTF-8 are none of ours.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let file = options(Access::Write)
            .create_new(true)
            .open(self.directory.join(name))?;
        Ok(Arc::new(file))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        let file = options(access).open(self.directory.join(name))?;
        Ok(Arc::new(regular(file)?))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let file = options(Access::Read)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.directory.join(name))?;
        regular(file)?.write_all_at(bytes, 0)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.directory.join(from), self.directory.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.directory.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn lock(&self, sharing: Sharing) -> io::Result<bool> {
        let owner = self.lock_file(OWNER)?;
        let taken = match sharing {
            Sharing::Exclusive => owner.try_lock(),
            Sharing::Shared => owner.try_lock_shared(),
        };
        match taken {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // While one shares there is no owner, so the wait is for those who append one record.
        let turn = match sharing {
            Sharing::Exclusive => None,
            Sharing::Shared => Some(self.lock_file(TURN)?),
        };
        while let Some(Err(error)) = turn.as_ref().map(File::lock) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        *self.held() = Some(Held { owner, turn });
        Ok(true)
    }

    fn unlock(&self) -> io::Result<()> {
        // Said aloud, not left to closing: a child between fork and exec has the files open as well.
        let Some(Held { owner, turn }) = self.held().take() else {
            return Ok(());
        };
        turn.map_or(Ok(()), |turn| turn.unlock())
            .and(owner.unlock())
    }
}

impl StorageFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::write_at(self, bytes, offset)
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
