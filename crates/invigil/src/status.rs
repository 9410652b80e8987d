//! The file that says without ambiguity how a run ended, written where the run could have put a trap.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use invigil_journal::Store;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use serde_json::Value;

use crate::error::CliError;

/// A place for a result. The directory is held from before the run, so that nothing in it leads elsewhere later.
pub(crate) struct StatusFile {
    path: PathBuf,
    directory: OwnedFd,
    name: OsString,
}

impl StatusFile {
    /// Before the run: an old result is removed, and a place that cannot be written is an error now.
    pub(crate) fn prepare(path: &Path, store: &Store) -> Result<StatusFile, CliError> {
        let failed = |source: io::Error| CliError::Status {
            path: path.to_owned(),
            source,
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let Some(name) = path.file_name() else {
            return Err(failed(io::Error::other("it has no name")));
        };
        let real = parent.canonicalize().map_err(failed)?;
        if store.holds(path) {
            return Err(failed(io::Error::other("it is in the store")));
        }
        let directory: OwnedFd = File::open(&real).map_err(failed)?.into();
        let status = StatusFile {
            path: path.to_owned(),
            directory,
            name: name.to_owned(),
        };
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(failed(io::ErrorKind::IsADirectory.into()));
            }
            Ok(_) => status.remove(&status.name).map_err(failed)?,
            Err(_) => {}
        }
        // Found out by doing it.
        status
            .draft()
            .and_then(|(_, draft)| status.remove(&draft))
            .map_err(failed)?;
        Ok(status)
    }

    /// After the run: a new file takes the name, whatever has it now.
    pub(crate) fn write(self, result: &Value) -> Result<(), CliError> {
        let written = self.draft().and_then(|(mut file, draft)| {
            file.write_all(format!("{result}\n").as_bytes())?;
            Ok(renameat(
                &self.directory,
                &draft,
                &self.directory,
                &self.name,
            )?)
        });
        written.map_err(|source| CliError::Status {
            path: self.path,
            source,
        })
    }

    fn draft(&self) -> io::Result<(File, OsString)> {
        let name = format!(".invigil-{}", uuid::Uuid::now_v7().simple());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.directory, &name, flags, Mode::from_raw_mode(0o644))?;
        Ok((file.into(), name.into()))
    }

    fn remove(&self, name: &OsString) -> io::Result<()> {
        Ok(unlinkat(&self.directory, name, AtFlags::empty())?)
    }
}
