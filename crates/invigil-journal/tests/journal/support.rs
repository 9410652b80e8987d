//! What all of these tests need: events, clocks, directories.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use invigil_journal::storage::{Access, StorageFile};
use invigil_journal::{Clock, DiskStorage, Journal, Options, Reader, Sharing, Storage};
use invigil_schema::{Digest, Event, Origin, RunId, Stamp, Timestamp};
use serde_json::value::RawValue;
use sha2::Digest as _;

pub(crate) const ORIGIN: Origin = Origin::Sdk;

/// A clock that stands still: the bytes of a journal depend on nothing but its events.
pub(crate) struct NoTime;

impl Clock for NoTime {
    fn now(&self) -> Stamp {
        Stamp {
            time: Timestamp::from_micros(1_800_000_000_000_000),
            mono: 1,
        }
    }
}

pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(NoTime)
}

pub(crate) fn run_id() -> RunId {
    RunId::new("run_test").unwrap()
}

/// An event whose data are this text.
pub(crate) fn note(text: &str) -> Event {
    let data = serde_json::to_string(text).unwrap();
    Event::Unknown {
        kind: "note".into(),
        data: RawValue::from_string(data).unwrap(),
    }
}

pub(crate) fn text_of(event: &Event) -> String {
    let Event::Unknown { data, .. } = event else {
        return format!("{event:?}");
    };
    serde_json::from_str(data.get()).unwrap()
}

/// Nothing happens in the background. There is room, and little of it, so that it is soon used up.
pub(crate) fn options(sharing: Sharing, segment_bytes: u64) -> Options {
    Options {
        sharing,
        segment_bytes,
        sync_after: None,
        room_bytes: 2000,
    }
}

pub(crate) fn exclusive(segment_bytes: u64) -> Options {
    options(Sharing::Exclusive, segment_bytes)
}

pub(crate) fn shared(segment_bytes: u64) -> Options {
    options(Sharing::Shared, segment_bytes)
}

pub(crate) fn disk(directory: &Path) -> Arc<dyn Storage> {
    Arc::new(DiskStorage::new(directory))
}

pub(crate) fn create(storage: Arc<dyn Storage>, options: Options) -> Journal {
    Journal::create(storage, clock(), options, &run_id(), "test").unwrap()
}

/// A closed journal of `notes` records after record 0.
pub(crate) fn journal(directory: &Path, notes: u64, segment_bytes: u64) {
    let journal = create(disk(directory), exclusive(segment_bytes));
    for n in 1..=notes {
        let ticket = journal.append(ORIGIN, &note(&format!("n{n}"))).unwrap();
        // One write for each record, so that segments end where they are full.
        ticket.written().unwrap();
    }
    journal.close().unwrap();
}

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) seq: u64,
    pub(crate) hash: Digest,
    pub(crate) kind: String,
    pub(crate) text: String,
}

/// Every record up to the end, or up to damage.
pub(crate) fn read_all(
    storage: Arc<dyn Storage>,
) -> (Vec<Seen>, Result<(), invigil_journal::Error>) {
    let mut seen = Vec::new();
    let mut reader = match Reader::open(storage) {
        Ok(reader) => reader,
        Err(error) => return (seen, Err(error)),
    };
    let end = read_on(&mut reader, &mut seen);
    (seen, end)
}

/// Adds what a reader has not returned yet.
pub(crate) fn read_on(
    reader: &mut Reader,
    seen: &mut Vec<Seen>,
) -> Result<(), invigil_journal::Error> {
    while let Some(record) = reader.next()? {
        let event = record.envelope()?.event();
        seen.push(Seen {
            seq: record.seq,
            hash: record.hash,
            kind: event.kind().to_owned(),
            text: text_of(&event),
        });
    }
    Ok(())
}

pub(crate) fn bytes_of(storage: &dyn Storage, name: &str) -> Vec<u8> {
    let file = storage.open(name, Access::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += file.read_at(&mut bytes[filled..], filled as u64).unwrap();
    }
    bytes
}

pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    Digest::from_bytes(sha2::Sha256::digest(bytes).into())
}

/// Names and contents of a directory.
pub(crate) fn snapshot(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect()
}

/// A storage that passes everything on but what a test replaces.
pub(crate) struct Hooked {
    pub(crate) inner: Arc<dyn Storage>,
    pub(crate) on_file_sync: FileSync,
    pub(crate) on_names_sync: fn(&dyn Storage) -> std::io::Result<()>,
    pub(crate) on_cut: Cut,
    /// Called with what was read, and where; may change it.
    pub(crate) after_read: AfterRead,
}

pub(crate) type FileSync = Arc<dyn Fn(&dyn StorageFile) -> std::io::Result<()> + Send + Sync>;
pub(crate) type Cut = fn(&dyn StorageFile, u64) -> std::io::Result<()>;
pub(crate) type AfterRead = Arc<dyn Fn(&mut [u8], u64) + Send + Sync>;

struct HookedFile {
    inner: Arc<dyn StorageFile>,
    on_sync: FileSync,
    on_cut: Cut,
    after_read: AfterRead,
}

impl Hooked {
    pub(crate) fn file_sync(
        inner: Arc<dyn Storage>,
        hook: impl Fn(&dyn StorageFile) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Arc<dyn Storage> {
        Arc::new(Hooked {
            on_file_sync: Arc::new(hook),
            ..Hooked::none(inner)
        })
    }

    pub(crate) fn none(inner: Arc<dyn Storage>) -> Hooked {
        Hooked {
            inner,
            on_file_sync: Arc::new(|file| file.sync()),
            on_names_sync: |storage| storage.sync(),
            on_cut: |file, size| file.truncate(size),
            after_read: Arc::new(|_, _| {}),
        }
    }

    fn hook(&self, inner: Arc<dyn StorageFile>) -> Arc<dyn StorageFile> {
        Arc::new(HookedFile {
            inner,
            on_sync: Arc::clone(&self.on_file_sync),
            on_cut: self.on_cut,
            after_read: Arc::clone(&self.after_read),
        })
    }
}

impl Storage for Hooked {
    fn list(&self) -> std::io::Result<Vec<String>> {
        self.inner.list()
    }
    fn create(&self, name: &str) -> std::io::Result<Arc<dyn StorageFile>> {
        self.inner.create(name).map(|file| self.hook(file))
    }
    fn open(&self, name: &str, access: Access) -> std::io::Result<Arc<dyn StorageFile>> {
        self.inner.open(name, access).map(|file| self.hook(file))
    }
    fn put(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        self.inner.put(name, bytes)
    }
    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.inner.remove(name)
    }
    fn sync(&self) -> std::io::Result<()> {
        (self.on_names_sync)(&*self.inner)
    }
    fn lock(&self, sharing: Sharing) -> std::io::Result<bool> {
        self.inner.lock(sharing)
    }
    fn unlock(&self) -> std::io::Result<()> {
        self.inner.unlock()
    }
}

impl StorageFile for HookedFile {
    fn size(&self) -> std::io::Result<u64> {
        self.inner.size()
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<usize> {
        self.inner.write_at(bytes, offset)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let read = self.inner.read_at(buffer, offset)?;
        (self.after_read)(&mut buffer[..read], offset);
        Ok(read)
    }
    fn truncate(&self, size: u64) -> std::io::Result<()> {
        (self.on_cut)(&*self.inner, size)
    }
    fn sync(&self) -> std::io::Result<()> {
        (self.on_sync)(&*self.inner)
    }
}
