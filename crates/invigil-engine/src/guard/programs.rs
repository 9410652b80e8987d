//! Programs that are refused whatever their arguments: found when the policy is loaded, and known again under any name.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use invigil_policy::{Action, Decision, Exec, Policy, ProgramPattern, Verdict};
use invigil_schema::{DeniedProgram, Digest, OsText};
use rustix::fs::{Mode, OFlags, Stat};
use sha2::{Digest as _, Sha256};

use super::links::Identity;

/// A program larger than this is known by its path alone.
const HASHED_MAX: u64 = 1 << 30;

/// The files of denied programs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Denied(Vec<Program>);

#[derive(Debug, Clone)]
struct Program {
    path: PathBuf,
    identity: Identity,
    size: u64,
    sha256: Option<Digest>,
    decision: Decision,
}

impl Denied {
    /// Looks for the programs that a policy denies. Where a name leads to a program that does many things (`su` to
    /// `busybox`), the name is denied and not the file.
    pub(crate) fn find(policy: &Policy, patterns: &[ProgramPattern], path: &[PathBuf]) -> Denied {
        let mut found: Vec<Program> = Vec::new();
        for candidate in patterns
            .iter()
            .flat_map(|pattern| candidates(pattern, path))
        {
            let Ok(real) = candidate.canonicalize() else {
                continue;
            };
            let is_program = real.metadata().is_ok_and(|data| data.is_file());
            if !is_program || found.iter().any(|program| program.path == real) {
                continue;
            }
            let bytes = real.as_os_str().as_bytes();
            let argv = [OsText::from(bytes.to_vec())];
            let action = Action::Exec(Exec {
                program: bytes,
                called: bytes,
                argv: &argv,
                interpreter: None,
            });
            if policy.verdict(&action) != Verdict::Deny {
                continue;
            }
            let Ok(data) = real.metadata() else {
                continue;
            };
            found.push(Program {
                identity: (data.dev(), data.ino()),
                size: data.len(),
                sha256: digest_of(&real).ok().flatten(),
                decision: policy.decide(&action),
                path: real,
            });
        }
        Denied(found)
    }

    /// What the evidence says of them.
    pub(crate) fn recorded(&self) -> Vec<DeniedProgram> {
        let program = |program: &Program| DeniedProgram {
            path: program.path.as_os_str().to_owned().into(),
            sha256: program.sha256,
        };
        self.0.iter().map(program).collect()
    }

    /// Whether this is the file of one: it cannot be read, so that no copy of it can be made.
    pub(crate) fn file(&self, path: &[u8]) -> Option<&Decision> {
        let path = Path::new(OsStr::from_bytes(path));
        let found = self.0.iter().find(|program| program.path == path);
        found.map(|program| &program.decision)
    }

    /// The same for a file that is held, by what it is: another link to one, or a copy that was there before.
    pub(crate) fn held(&self, held: BorrowedFd<'_>, data: &Stat) -> Option<&Decision> {
        let identity = (data.st_dev, data.st_ino);
        let linked = self.0.iter().find(|program| program.identity == identity);
        linked.map(|program| &program.decision).or_else(|| {
            let path = format!("/proc/self/fd/{}", held.as_raw_fd());
            self.like(Path::new(&path), data.st_size.cast_unsigned())
        })
    }

    /// Whether something else than its own file has been mapped into a process that has just been loaded, and is one: the
    /// interpreter that an ELF file names.
    pub(crate) fn mapped(&self, pid: u32, program: &OsText) -> Option<&Decision> {
        if self.0.is_empty() {
            return None;
        }
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mut paths: Vec<&[u8]> = maps
            .split(|&byte| byte == b'\n')
            .filter_map(|line| Some(&line[line.iter().position(|&byte| byte == b'/')?..]))
            .filter(|path| *path != program.as_bytes())
            .collect();
        paths.dedup();
        paths.iter().find_map(|path| {
            let path = Path::new(OsStr::from_bytes(path));
            let data = path.metadata().ok()?;
            let identity = (data.dev(), data.ino());
            let linked = self.0.iter().find(|program| program.identity == identity);
            let linked = linked.map(|program| &program.decision);
            linked.or_else(|| self.like(path, data.len()))
        })
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a program that is loaded is one.
    pub(crate) fn digest(&self, sha256: Digest) -> Option<&Decision> {
        let found = self.0.iter().find(|program| program.sha256 == Some(sha256));
        found.map(|program| &program.decision)
    }

    /// Whether a file that is to be loaded is a copy of one. Reads it only if it is just as long.
    pub(crate) fn copy(&self, path: &[u8]) -> Option<&Decision> {
        if self.0.is_empty() {
            return None;
        }
        let path = Path::new(OsStr::from_bytes(path));
        let size = fs::metadata(path).ok().filter(fs::Metadata::is_file)?.len();
        self.like(path, size)
    }

    fn like(&self, path: &Path, size: u64) -> Option<&Decision> {
        if !self.0.iter().any(|program| program.size == size) {
            return None;
        }
        self.digest(digest_of(path).ok().flatten()?)
    }
}

fn candidates(pattern: &ProgramPattern, path: &[PathBuf]) -> Vec<PathBuf> {
    match pattern {
        ProgramPattern::Name(name) => path.iter().map(|dir| dir.join(name)).collect(),
        ProgramPattern::Path(path) => vec![path.clone()],
        // The policy has the last word on each of them.
        ProgramPattern::Glob(_) => {
            let listed = path.iter().filter_map(|dir| fs::read_dir(dir).ok());
            listed
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .collect()
        }
    }
}

/// Opens a plain file without ever waiting for anybody.
pub(crate) fn open_plain(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let plain = file.metadata()?.is_file();
    Ok(plain.then_some(file))
}

/// The digest of a plain file that is not too large.
pub(crate) fn digest_of(path: &Path) -> io::Result<Option<Digest>> {
    let Some(mut file) = open_plain(path)? else {
        return Ok(None);
    };
    if file.metadata()?.len() > HASHED_MAX {
        return Ok(None);
    }
    let mut hasher = Hasher(Sha256::new());
    io::copy(&mut file, &mut hasher)?;
    Ok(Some(Digest::from_bytes(hasher.0.finalize().into())))
}

struct Hasher(Sha256);

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
