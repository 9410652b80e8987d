//! The key of a store: what makes equal secrets look equal in its journals, and nothing guessable.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use invigil_journal::Store;

const FILE: &str = "redaction.key";

/// Reads the key of a store, or makes it.
pub(crate) fn of(store: &Store) -> io::Result<[u8; 32]> {
    let path = store.home().join(FILE);
    loop {
        match fs::read(&path) {
            Ok(bytes) => {
                return bytes.try_into().map_err(|_| {
                    let what = format!("{} does not hold 32 bytes: remove it", path.display());
                    io::Error::new(io::ErrorKind::InvalidData, what)
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(store.home(), &path)?,
            Err(error) => return Err(error),
        }
    }
}

/// Whole or not at all; of two who make it at the same time one wins, and both use that one.
fn make(home: &Path, path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(home)?;
    let mut key = [0; 32];
    let mut filled = 0;
    while filled < key.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut key[filled..], flags)?;
    }
    let draft = path.with_extension(format!("key.{}", uuid::Uuid::now_v7().simple()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    let linked = file
        .write_all(&key)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_and_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("home"));
        let keys: Vec<[u8; 32]> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| of(&store).unwrap()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0] && *key != [0; 32]));
        assert_eq!(fs::read_dir(store.home()).unwrap().count(), 1);
        fs::write(store.home().join(FILE), "short").unwrap();
        assert!(of(&store).unwrap_err().to_string().contains("remove it"));
    }
}
