//! What a journal needs of a medium: one flat directory of files, and a lock.
//!
//! [`DiskStorage`] is the real one. `FaultStorage` (feature `fault`) keeps its files in memory and loses, tears,
//! reorders and refuses on demand. Both pass the same conformance suite in `tests/journal/conformance.rs`.

mod disk;
#[cfg(feature = "fault")]
mod fault;

use std::io;
use std::ops::Range;
use std::sync::Arc;

pub use disk::DiskStorage;
#[cfg(feature = "fault")]
pub use fault::{Crash, FaultStorage, Faults};

/// A directory of files.
pub trait Storage: Send + Sync {
    /// The names of all files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes a new file to write. Fails with `AlreadyExists` if there is one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;
    /// Opens a file that exists.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>>;
    /// Writes a small file in place, without a sync. It has the same length every time.
    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Renames atomically, replacing what is there.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes created, renamed and removed names durable.
    fn sync(&self) -> io::Result<()>;
    /// Takes the lock. Who shares it waits for others who do, and only for them; who wants it alone waits for nobody.
    /// False if somebody else has it.
    fn lock(&self, sharing: Sharing) -> io::Result<bool>;
    /// Gives the lock back.
    fn unlock(&self) -> io::Result<()>;
}

/// Who else may append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody, for as long as this handle is open.
    Exclusive,
    /// Any number of processes, one record at a time. Nothing is buffered.
    Shared,
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only: works on a read-only copy.
    Read,
    /// Reading, writing, cutting.
    Write,
}

/// One open file.
pub trait StorageFile: Send + Sync {
    /// Its length now. Never empty in the sense of a collection, so there is no `is_empty`.
    fn size(&self) -> io::Result<u64>;
    /// Reads from an offset; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes over what is there, and on behind the end; perhaps fewer bytes than given, then it says how many.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Cuts off what lies behind `size`.
    fn truncate(&self, size: u64) -> io::Result<()>;
    /// Returns when all bytes written so far are on the medium.
    fn sync(&self) -> io::Result<()>;
}

/// Writes all of `bytes`, from front to back.
pub(crate) fn write_full(
    file: &dyn StorageFile,
    mut bytes: &[u8],
    mut offset: u64,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => (bytes, offset) = (&bytes[n..], offset + n as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until `buffer` is full or the file ends, and says how much.
pub(crate) fn read_full(
    file: &dyn StorageFile,
    buffer: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads a range, or what there is of it, however large it is.
pub(crate) fn in_pieces(
    file: &dyn StorageFile,
    range: Range<u64>,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut piece = vec![0; 64 * 1024];
    let mut offset = range.start;
    while offset < range.end {
        let left = usize::try_from(range.end - offset).unwrap_or(usize::MAX);
        let size = left.min(piece.len());
        let filled = read_full(file, &mut piece[..size], offset)?;
        if filled == 0 {
            break;
        }
        take(&piece[..filled])?;
        offset += filled as u64;
    }
    Ok(())
}

/// The whole content of a small file, or nothing if there is no such file.
pub(crate) fn read_small(storage: &dyn Storage, name: &str) -> io::Result<Option<Vec<u8>>> {
    const SMALL: usize = 64 * 1024;
    let file = match storage.open(name, Access::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; SMALL.min(usize::try_from(file.size()?).unwrap_or(SMALL))];
    let filled = read_full(&*file, &mut bytes, 0)?;
    bytes.truncate(filled);
    Ok(Some(bytes))
}
