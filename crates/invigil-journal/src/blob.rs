//! Payloads too large for a record: content-addressed, written once, checked whenever they are read.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use invigil_schema::Digest;
use sha2::{Digest as _, Sha256};

use crate::chain::digest;
use crate::storage::{Access, Storage, StorageFile, read_full, write_full};

const CHUNK: usize = 64 * 1024;

/// A directory of blobs, each named after its SHA-256.
pub struct Blobs {
    storage: Arc<dyn Storage>,
}

/// What can go wrong with a blob.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// There is none.
    #[error("there is no blob {0}")]
    Missing(Digest),
    /// What is stored under this name is not what the name says.
    #[error("blob {0} is damaged: its content has another digest")]
    Damaged(Digest),
    /// It is larger than the caller wants to hold in memory.
    #[error("blob {digest} has {size} bytes, more than the {limit} that were asked for")]
    TooLarge {
        /// Which one.
        digest: Digest,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The payload could not be read.
    #[error("cannot read the payload: {0}")]
    Source(#[source] io::Error),
    /// The medium said no.
    #[error("cannot {action} a blob: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
}

impl BlobError {
    fn io(action: &'static str) -> impl FnOnce(io::Error) -> BlobError {
        move |source| BlobError::Io { action, source }
    }
}

impl Blobs {
    /// Blobs in this directory.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        Blobs { storage }
    }

    /// Stores bytes. They are durable when this returns.
    pub fn put(&self, bytes: &[u8]) -> Result<Digest, BlobError> {
        let digest = digest(bytes);
        if self.intact(&digest)? {
            self.storage.sync().map_err(BlobError::io("sync"))?;
            return Ok(digest);
        }
        self.put_from(bytes).map(|(digest, _)| digest)
    }

    /// Stores everything that `source` gives, in constant memory. It is durable when this returns.
    pub fn put_from(&self, source: impl Read) -> Result<(Digest, u64), BlobError> {
        let (name, file) = self.temporary()?;
        let stored = fill(&*file, source).and_then(|(digest, size)| {
            file.sync().map_err(BlobError::io("sync"))?;
            if self.intact(&digest)? {
                self.storage
                    .remove(&name)
                    .map_err(BlobError::io("tidy up"))?;
            } else {
                let renamed = self.storage.rename(&name, &digest.to_string());
                renamed.map_err(BlobError::io("name"))?;
            }
            self.storage.sync().map_err(BlobError::io("sync"))?;
            Ok((digest, size))
        });
        if stored.is_err() {
            drop(self.storage.remove(&name));
        }
        stored
    }

    /// The content, checked, if it has at most `limit` bytes.
    pub fn get(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, BlobError> {
        let mut reader = self.open(digest)?;
        let size = reader.file.size().map_err(BlobError::io("read"))?;
        if size > limit {
            let digest = *digest;
            return Err(BlobError::TooLarge {
                digest,
                size,
                limit,
            });
        }
        let mut bytes = Vec::new();
        match reader.read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(BlobError::Damaged(*digest))
            }
            Err(error) => Err(BlobError::io("read")(error)),
        }
    }

    /// Reads a blob of any size. The digest is known only at the end: the last read fails if it is wrong, so that a
    /// consumer which gets to the end without an error has seen the right bytes.
    pub fn open(&self, digest: &Digest) -> Result<BlobReader, BlobError> {
        match self.storage.open(&digest.to_string(), Access::Read) {
            Ok(file) => Ok(BlobReader {
                file,
                expected: *digest,
                hasher: Sha256::new(),
                offset: 0,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(BlobError::Missing(*digest))
            }
            Err(error) => Err(BlobError::io("open")(error)),
        }
    }

    /// Whether a blob is there and whole.
    fn intact(&self, digest: &Digest) -> Result<bool, BlobError> {
        let mut reader = match self.open(digest) {
            Ok(reader) => reader,
            Err(BlobError::Missing(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        match io::copy(&mut reader, &mut io::sink()) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(false),
            Err(error) => Err(BlobError::io("read")(error)),
        }
    }

    /// A new file that no other writer has.
    fn temporary(&self) -> Result<(String, Arc<dyn StorageFile>), BlobError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("tmp.{}.{number}", std::process::id());
            match self.storage.create(&name) {
                Ok(file) => return Ok((name, file)),
                // Left over by a process of the same id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(BlobError::io("create")(error)),
            }
        }
    }
}

fn fill(file: &dyn StorageFile, mut source: impl Read) -> Result<(Digest, u64), BlobError> {
    let (mut hasher, mut size) = (Sha256::new(), 0);
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = match source.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(BlobError::Source(error)),
        };
        hasher.update(&chunk[..read]);
        write_full(file, &chunk[..read], size).map_err(BlobError::io("write"))?;
        size += read as u64;
    }
    Ok((Digest::from_bytes(hasher.finalize().into()), size))
}

/// Reads a blob and checks it as it goes.
pub struct BlobReader {
    file: Arc<dyn StorageFile>,
    expected: Digest,
    hasher: Sha256,
    offset: u64,
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let read = read_full(&*self.file, buffer, self.offset)?;
        self.hasher.update(&buffer[..read]);
        self.offset += read as u64;
        if read == 0 {
            let found = Digest::from_bytes(self.hasher.clone().finalize().into());
            if found != self.expected {
                let damaged = BlobError::Damaged(self.expected);
                return Err(io::Error::new(io::ErrorKind::InvalidData, damaged));
            }
        }
        Ok(read)
    }
}
