//! The daemon's files in the store: who has it, the tokens, the socket.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::ServeError;

/// Where the daemon's files lie.
#[derive(Debug, Clone)]
pub struct Places {
    directory: PathBuf,
}

impl Places {
    /// In this store.
    pub fn of(home: &Path) -> Places {
        let directory = home.join("daemon");
        Places { directory }
    }

    /// What a client shows.
    pub fn token(&self) -> PathBuf {
        self.directory.join("token")
    }

    /// What a person shows.
    pub fn operator_token(&self) -> PathBuf {
        self.directory.join("operator-token")
    }

    /// The Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }
}

/// The store is this daemon's, until it is dropped.
pub(crate) struct Held {
    places: Places,
    lock: File,
    pub(crate) token: String,
    pub(crate) operator_token: String,
}

impl Held {
    /// Takes the store, or says who has it.
    pub(crate) fn take(home: &Path) -> Result<Held, ServeError> {
        let places = Places::of(home);
        let made = DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&places.directory);
        made.map_err(ServeError::io("make the directory", &places.directory))?;
        let path = places.lock();
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(ServeError::io("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut who = String::new();
                drop(lock.read_to_string(&mut who));
                return Err(ServeError::Running(who.trim().to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(ServeError::io("lock", &path)(error)),
        }
        let (token, operator_token) = (secret()?, secret()?);
        for (path, token) in [
            (places.token(), &token),
            (places.operator_token(), &operator_token),
        ] {
            replace(&path, token).map_err(ServeError::io("write", &path))?;
        }
        Ok(Held {
            places,
            lock,
            token,
            operator_token,
        })
    }

    /// Leaves word for others of where this daemon is.
    pub(crate) fn announce(&mut self, words: &str) -> Result<(), ServeError> {
        let mut announce = || {
            self.lock.set_len(0)?;
            self.lock.rewind()?;
            self.lock.write_all(words.as_bytes())
        };
        announce().map_err(ServeError::io("write", self.places.lock()))
    }

    /// Listens on the socket. Whoever had it before is dead, since the lock is ours.
    pub(crate) fn listen(&self) -> Result<UnixListener, ServeError> {
        let path = self.places.socket();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ServeError::io("replace", &path)(error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(ServeError::io("listen on", &path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
            .map_err(ServeError::io("close to others", &path))?;
        Ok(listener)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A file that stays is replaced by the next daemon.
        for path in [
            self.places.socket(),
            self.places.token(),
            self.places.operator_token(),
        ] {
            drop(fs::remove_file(path));
        }
    }
}

/// 32 bytes that nobody can guess, in hex.
fn secret() -> Result<String, ServeError> {
    let bytes = crate::random::<32>().map_err(ServeError::io("read", "/dev/urandom"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("new");
    drop(fs::remove_file(&draft));
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&draft, path)
}
