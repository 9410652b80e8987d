//! Programs that are refused whatever their arguments: found when the policy is loaded, and known again under any name.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use invigil_policy::{Action, Decision, Exec, Policy, ProgramPattern, Verdict};
use invigil_schema::{DeniedProgram, Digest, OsText};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

/// A program larger than this is known by its path alone.
const HASHED_MAX: u64 = 1 << 30;

/// The files of denied programs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Denied(Vec<Program>);

#[derive(Debug, Clone)]
struct Program {
    path: PathBuf,
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
            let sha256 = digest_of(&real).ok().flatten();
            found.push(Program {
                size: real.metadata().map_or(0, |data| data.len()),
                sha256,
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
