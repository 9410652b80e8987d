//! A medium in memory that behaves as badly as `docs/journal-format.md` assumes, on demand and repeatably.
//!
//! It keeps for each file what a process would read (the page cache) and what a loss of power would leave (the
//! medium), with the unsynced changes in between. [`FaultStorage::crash`] turns one into the other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;

use super::{Access, Sharing, Storage, StorageFile};

/// What goes wrong, and when. Operations are counted from 0; reading counts too.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// The process dies in the middle of this operation: it and all later ones fail.
    pub kill_at: Option<u64>,
    /// This operation fails if it is a sync, and what was unsynced then will not reach the medium.
    pub fail_sync_at: Option<u64>,
    /// The medium has room for this many bytes.
    pub capacity: Option<u64>,
    /// Writes take at most this many bytes at a time.
    pub short_writes: Option<usize>,
}

/// How a process or a machine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process is gone, the page cache stays.
    Process,
    /// The machine is gone: of what was not synced, some subset stays, torn and in any order.
    Power,
}

/// Files in memory, with faults.
pub struct FaultStorage {
    disk: Arc<Disk>,
    /// Whether this handle holds the lock.
    holds: Mutex<bool>,
}

struct Disk {
    state: Mutex<State>,
    released: Condvar,
}

struct State {
    faults: Faults,
    operations: u64,
    dead: bool,
    locked: Option<Sharing>,
    /// The file whose sync failed; empty for the directory.
    failed_sync: Option<String>,
    /// Names that a failed sync of the directory has dropped: a later one succeeds without them.
    dropped: BTreeSet<String>,
    rng: Rng,
    files: Vec<Content>,
    /// Names as a process sees them.
    names: BTreeMap<String, usize>,
    /// Names as they are on the medium.
    durable_names: BTreeMap<String, usize>,
}

#[derive(Default)]
struct Content {
    cache: Vec<u8>,
    medium: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Truncate(usize),
}

impl FaultStorage {
    /// An empty medium. The seed decides what a crash keeps.
    pub fn new(seed: u64) -> Self {
        let state = State {
            faults: Faults::default(),
            operations: 0,
            dead: false,
            locked: None,
            failed_sync: None,
            dropped: BTreeSet::new(),
            rng: Rng::with_seed(seed),
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
        };
        FaultStorage::on(Arc::new(Disk {
            state: Mutex::new(state),
            released: Condvar::new(),
        }))
    }

    fn on(disk: Arc<Disk>) -> Self {
        FaultStorage {
            disk,
            holds: Mutex::new(false),
        }
    }

    fn opened(&self, file: usize, access: Access) -> Arc<dyn StorageFile> {
        Arc::new(FaultFile {
            disk: Arc::clone(&self.disk),
            file,
            access,
        })
    }

    /// Another process on the same machine.
    pub fn another(&self) -> FaultStorage {
        FaultStorage::on(Arc::clone(&self.disk))
    }

    /// Decides what goes wrong from here on; operations are counted anew.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.disk.state();
        state.faults = faults;
        state.operations = 0;
    }

    /// How many operations there have been since the faults were set.
    pub fn operations(&self) -> u64 {
        self.disk.state().operations
    }

    /// Whether the process was killed.
    pub fn is_dead(&self) -> bool {
        self.disk.state().dead
    }

    /// The file whose sync was made to fail since the last crash; empty for the directory.
    pub fn failed_sync(&self) -> Option<String> {
        self.disk.state().failed_sync.clone()
    }

    /// Ends every process, or the machine, and starts anew without faults. Old handles stay dead: use the new one.
    pub fn crash(&self, how: Crash) -> FaultStorage {
        let mut state = self.disk.state();
        let mut rng = state.rng.fork();
        let names = match how {
            Crash::Process => state.names.clone(),
            Crash::Power => surviving_names(&state, &mut rng),
        };
        let files: Vec<Content> = state
            .files
            .iter()
            .map(|content| match how {
                Crash::Process => Content {
                    cache: content.cache.clone(),
                    medium: content.medium.clone(),
                    unsynced: content.unsynced.clone(),
                },
                Crash::Power => {
                    let kept = surviving_bytes(content, &mut rng);
                    Content {
                        cache: kept.clone(),
                        medium: kept,
                        unsynced: Vec::new(),
                    }
                }
            })
            .collect();
        let durable_names = match how {
            Crash::Process => state.durable_names.clone(),
            Crash::Power => names.clone(),
        };
        state.dead = true;
        let state = State {
            faults: Faults::default(),
            operations: 0,
            dead: false,
            locked: None,
            failed_sync: None,
            dropped: match how {
                Crash::Process => state.dropped.clone(),
                Crash::Power => BTreeSet::new(),
            },
            rng,
            files,
            names,
            durable_names,
        };
        self.disk.released.notify_all();
        FaultStorage::on(Arc::new(Disk {
            state: Mutex::new(state),
            released: Condvar::new(),
        }))
    }
}

/// Each name that was made, replaced or removed without a sync of the directory may be as before or as after.
fn surviving_names(state: &State, rng: &mut Rng) -> BTreeMap<String, usize> {
    let choose = |name: &String, rng: &mut Rng| {
        let (before, after) = (state.durable_names.get(name), state.names.get(name));
        if rng.bool() { before } else { after }.copied()
    };
    let touched = state.touched().into_iter();
    touched
        .filter_map(|name| choose(&name, rng).map(|file| (name, file)))
        .collect()
}

/// Each unsynced write reaches the medium whole, in part, or not at all, and without regard for their order.
fn surviving_bytes(content: &Content, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = content.medium.clone();
    for change in &content.unsynced {
        match change {
            Change::Truncate(size) if rng.bool() => bytes.truncate(*size),
            Change::Truncate(_) => {}
            // What is missing is as it was before, or reads as zeros if there was nothing.
            Change::Write { offset, bytes: new } => match rng.u8(0..5) {
                0 => {}
                1 => overwrite(&mut bytes, *offset, new),
                2 => overwrite(&mut bytes, *offset, &new[..rng.usize(0..=new.len())]),
                3 => {
                    let from = rng.usize(0..=new.len());
                    overwrite(&mut bytes, offset + from, &new[from..]);
                }
                _ => {
                    let size = rng.usize(1..128);
                    for (at, piece) in new.chunks(size).enumerate() {
                        if rng.bool() {
                            overwrite(&mut bytes, offset + at * size, piece);
                        }
                    }
                }
            },
        }
    }
    bytes
}

fn overwrite(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if new.is_empty() {
        return;
    }
    if bytes.len() < offset + new.len() {
        bytes.resize(offset + new.len(), 0);
    }
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts an operation. `Ok(true)` means that the process dies in the middle of it.
    fn operation(&mut self) -> io::Result<bool> {
        if self.dead {
            return Err(killed());
        }
        let now = self.operations;
        self.operations += 1;
        self.dead = self.faults.kill_at == Some(now);
        Ok(self.dead)
    }

    /// An operation that happens whole or not at all.
    fn atomic(&mut self) -> io::Result<()> {
        let dies = self.operation()?;
        if dies && self.rng.bool() {
            return Err(killed());
        }
        Ok(())
    }

    /// What the caller hears after an atomic operation: nothing, if it died of it.
    fn answer(&self) -> io::Result<()> {
        if self.dead { Err(killed()) } else { Ok(()) }
    }

    fn sync_fails(&self) -> bool {
        self.faults.fail_sync_at == Some(self.operations - 1)
    }

    fn name(&mut self, name: &str, file: usize) {
        self.dropped.remove(name);
        self.names.insert(name.to_owned(), file);
    }

    fn unname(&mut self, name: &str) {
        self.dropped.remove(name);
        self.names.remove(name);
    }

    /// Every name there is, or was at the last sync of the directory.
    fn touched(&self) -> BTreeSet<String> {
        let names = self.names.keys().chain(self.durable_names.keys());
        names.cloned().collect()
    }

    fn file(&self, name: &str) -> io::Result<usize> {
        let file = self.names.get(name).copied();
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// How many bytes a full medium could still take.
    fn space(&self) -> usize {
        let used: usize = self
            .names
            .values()
            .map(|&file| self.files[file].cache.len())
            .sum();
        let capacity = self.faults.capacity.unwrap_or(u64::MAX);
        usize::try_from(capacity)
            .unwrap_or(usize::MAX)
            .saturating_sub(used)
    }

    fn write(&mut self, file: usize, offset: usize, bytes: &[u8]) {
        let content = &mut self.files[file];
        overwrite(&mut content.cache, offset, bytes);
        let bytes = bytes.to_vec();
        content.unsynced.push(Change::Write { offset, bytes });
    }
}

fn killed() -> io::Error {
    io::Error::other("the process was killed")
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl Storage for FaultStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = self.disk.state();
        state.atomic()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let mut state = self.disk.state();
        state.atomic()?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if state.space() == 0 {
            return Err(full());
        }
        let file = state.files.len();
        state.files.push(Content::default());
        state.name(name, file);
        state.answer()?;
        Ok(self.opened(file, Access::Write))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        let mut state = self.disk.state();
        state.atomic()?;
        let file = state.file(name)?;
        Ok(self.opened(file, access))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        state.atomic()?;
        let file = match state.file(name) {
            Ok(file) => file,
            Err(_) if state.space() < bytes.len() => return Err(full()),
            Err(_) => {
                let file = state.files.len();
                state.files.push(Content::default());
                state.name(name, file);
                file
            }
        };
        state.write(file, 0, bytes);
        state.answer()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.disk.state();
        state.atomic()?;
        let file = state.file(from)?;
        state.unname(from);
        state.name(to, file);
        state.answer()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.disk.state();
        state.atomic()?;
        state.file(name)?;
        state.unname(name);
        state.answer()
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.atomic()?;
        if state.sync_fails() {
            state.failed_sync = Some(String::new());
            let touched = state.touched();
            let changed = |name: &String| state.names.get(name) != state.durable_names.get(name);
            state.dropped = touched.into_iter().filter(changed).collect();
            return Err(io::Error::other("the sync failed"));
        }
        for name in state.touched() {
            if state.dropped.contains(&name) {
                continue;
            }
            match state.names.get(&name).copied() {
                Some(file) => state.durable_names.insert(name, file),
                None => state.durable_names.remove(&name),
            };
        }
        state.answer()
    }

    fn lock(&self, sharing: Sharing) -> io::Result<bool> {
        let mut state = self.disk.state();
        while state.locked == Some(Sharing::Shared) && sharing == Sharing::Shared && !state.dead {
            let woken = self.disk.released.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        state.atomic()?;
        if state.locked.is_some() {
            return Ok(false);
        }
        state.locked = Some(sharing);
        *self.holds.lock().unwrap_or_else(PoisonError::into_inner) = true;
        Ok(true)
    }

    fn unlock(&self) -> io::Result<()> {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *holds) {
            self.disk.state().locked = None;
            self.disk.released.notify_one();
        }
        Ok(())
    }
}

impl Drop for FaultStorage {
    fn drop(&mut self) {
        drop(self.unlock());
    }
}

struct FaultFile {
    disk: Arc<Disk>,
    file: usize,
    access: Access,
}

impl FaultFile {
    fn writable(&self) -> io::Result<()> {
        match self.access {
            Access::Write => Ok(()),
            Access::Read => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

impl StorageFile for FaultFile {
    fn size(&self) -> io::Result<u64> {
        let mut state = self.disk.state();
        state.atomic()?;
        Ok(state.files[self.file].cache.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        state.atomic()?;
        let cache = &state.files[self.file].cache;
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(cache.len());
        let size = buffer.len().min(cache.len() - start);
        buffer[..size].copy_from_slice(&cache[start..start + size]);
        Ok(size)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.writable()?;
        let mut state = self.disk.state();
        let dies = state.operation()?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        // What is written over needs no space.
        let length = state.files[self.file].cache.len();
        let (there, gap) = (length.saturating_sub(offset), offset.saturating_sub(length));
        let fits = there.saturating_add(state.space().saturating_sub(gap));
        let mut size = bytes
            .len()
            .min(state.faults.short_writes.unwrap_or(usize::MAX))
            .min(fits);
        if dies {
            size = state.rng.usize(0..=size);
        } else if size == 0 && !bytes.is_empty() {
            return Err(full());
        }
        state.write(self.file, offset, &bytes[..size]);
        state.answer()?;
        Ok(size)
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.writable()?;
        let mut state = self.disk.state();
        state.atomic()?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let content = &mut state.files[self.file];
        content.cache.resize(size, 0);
        content.unsynced.push(Change::Truncate(size));
        state.answer()
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.atomic()?;
        if state.sync_fails() {
            // The kernel marks the pages clean all the same: a later sync will not write them.
            state.files[self.file].unsynced.clear();
            let names = state.names.iter();
            let named = names.filter(|(_, file)| **file == self.file);
            state.failed_sync = named.map(|(name, _)| name.clone()).next();
            return Err(io::Error::other("the sync failed"));
        }
        let content = &mut state.files[self.file];
        // Applied one by one: pages that an earlier failed sync has dropped stay holes.
        for change in std::mem::take(&mut content.unsynced) {
            match change {
                Change::Truncate(size) => content.medium.truncate(size),
                Change::Write { offset, bytes } => overwrite(&mut content.medium, offset, &bytes),
            }
        }
        state.answer()
    }
}
