//! What a program is to a policy: the file, the name by which it is called, its arguments, and for a script its
//! interpreter.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use invigil_policy as policy;
use invigil_sandbox::Exec;
use invigil_schema::{Digest, OsText};
use sha2::{Digest as _, Sha256};

use super::programs::{digest_of, open_plain};

/// How much of a script the kernel looks at.
const FIRST_LINE: usize = 256;

/// A program as a policy judges it.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: OsText,
    called: OsText,
    pub(super) argv: Vec<OsText>,
    pub(super) interpreter: Option<Box<Program>>,
    /// Whether there are arguments that nobody has seen.
    pub(super) cut: bool,
}

impl Program {
    pub(super) fn new(exec: &Exec<'_>) -> Program {
        match exec.loaded {
            true => Program::loaded(exec),
            false => Program::wanted(exec),
        }
    }

    fn plain(path: OsText, called: OsText, argv: &[OsText], cut: bool) -> Program {
        Program {
            path,
            called,
            argv: argv.to_vec(),
            interpreter: None,
            cut,
        }
    }

    /// From what the caller asks for, and the first line of the file.
    fn wanted(exec: &Exec<'_>) -> Program {
        let called = called(exec.asked);
        let mut program = Program::plain(exec.program.clone(), called, exec.argv, exec.cut);
        let Some((interpreter, argument)) = interpreter(exec.program) else {
            return program;
        };
        let path = real(&interpreter).unwrap_or_else(|| interpreter.clone());
        let mut argv = vec![interpreter.clone()];
        argv.extend(argument);
        argv.push(exec.name.clone());
        argv.extend(exec.argv.iter().skip(1).cloned());
        // The kernel does not pass the name on by which the script was called.
        if let Some(first) = program.argv.first_mut() {
            *first = exec.name.clone();
        }
        let called = self::called(&interpreter);
        program.interpreter = Some(Box::new(Program::plain(path, called, &argv, exec.cut)));
        program
    }

    /// From the image: what is loaded, and the name that led to it.
    fn loaded(exec: &Exec<'_>) -> Program {
        let own = |name: &OsText| {
            let name = name.as_bytes();
            name.is_empty() || name.starts_with(b"/dev/fd/") || name.starts_with(b"/proc/")
        };
        // What an open file of the caller is called says nothing here.
        let script = match own(exec.name) {
            true => None,
            false => real(exec.asked).filter(|real| real != exec.program),
        };
        let (Some(script), Some(at)) = (script, exec.argv.iter().position(|a| a == exec.name))
        else {
            let called = if own(exec.name) {
                exec.program.clone()
            } else {
                called(exec.asked)
            };
            return Program::plain(exec.program.clone(), called, exec.argv, exec.cut);
        };
        let called = called(exec.asked);
        let mut program = Program::plain(script, called, &exec.argv[at..], exec.cut);
        let interpreter = exec
            .argv
            .first()
            .map_or_else(|| exec.program.clone(), self::called);
        program.interpreter = Some(Box::new(Program::plain(
            exec.program.clone(),
            interpreter,
            exec.argv,
            exec.cut,
        )));
        program
    }

    /// Calls something with this as the policy has it.
    pub(super) fn with<T>(&self, judge: impl FnOnce(&policy::Exec<'_>) -> T) -> T {
        match &self.interpreter {
            None => judge(&self.as_policy(None)),
            Some(interpreter) => {
                let interpreter = interpreter.as_policy(None);
                judge(&self.as_policy(Some(&interpreter)))
            }
        }
    }

    fn as_policy<'a>(&'a self, interpreter: Option<&'a policy::Exec<'a>>) -> policy::Exec<'a> {
        policy::Exec {
            program: self.path.as_bytes(),
            called: self.called.as_bytes(),
            argv: &self.argv,
            interpreter,
        }
    }

    /// The digest that an approval is bound to: where it runs, the files as they are now, and every argument. What is
    /// loaded must have the same. None if a part of it cannot be seen.
    pub(super) fn fingerprint(&self, cwd: &OsText) -> Option<Digest> {
        let mut hasher = Sha256::new();
        hasher.update((cwd.as_bytes().len() as u64).to_le_bytes());
        hasher.update(cwd.as_bytes());
        let mut next = Some(self);
        while let Some(program) = next {
            if program.cut {
                return None;
            }
            let file = digest_of(Path::new(OsStr::from_bytes(program.path.as_bytes())));
            let mut part = |bytes: &[u8]| {
                hasher.update((bytes.len() as u64).to_le_bytes());
                hasher.update(bytes);
            };
            part(program.path.as_bytes());
            part(file.ok().flatten()?.as_bytes());
            part(&(program.argv.len() as u64).to_le_bytes());
            program.argv.iter().for_each(|arg| part(arg.as_bytes()));
            next = program.interpreter.as_deref();
        }
        Some(Digest::from_bytes(hasher.finalize().into()))
    }
}

fn path_of(text: &OsText) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(text.as_bytes()))
}

/// A path with all links followed.
fn real(path: &OsText) -> Option<OsText> {
    let real = path_of(path).canonicalize().ok()?;
    Some(real.into_os_string().into())
}

/// A path whose directory is resolved and whose last link is not followed.
fn called(path: &OsText) -> OsText {
    let path = path_of(path);
    let found = path
        .parent()
        .and_then(|parent| parent.canonicalize().ok())
        .zip(path.file_name());
    match found {
        Some((parent, name)) => parent.join(name).into_os_string().into(),
        None => path.into_os_string().into(),
    }
}

/// The interpreter of a script and its argument, as the kernel reads them from the first line.
fn interpreter(path: &OsText) -> Option<(OsText, Option<OsText>)> {
    let mut line = [0; FIRST_LINE];
    let mut file = open_plain(&path_of(path)).ok()??;
    let read = file.read(&mut line).ok()?;
    let line = line[..read].strip_prefix(b"#!")?;
    let line = line.split(|&b| b == b'\n' || b == 0).next()?;
    let blank = |b: &u8| *b == b' ' || *b == b'\t';
    let line = &line[line.iter().position(|b| !blank(b))?..];
    let end = line.iter().position(blank).unwrap_or(line.len());
    let rest = line[end..].trim_ascii();
    let argument = (!rest.is_empty()).then(|| rest.to_vec().into());
    Some((line[..end].to_vec().into(), argument))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_script() {
        let dir = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let path = dir.path().join("script");
            std::fs::write(&path, text).unwrap();
            interpreter(&path.into_os_string().into())
        };
        assert_eq!(read("#!/bin/sh\nexit"), Some(("/bin/sh".into(), None)));
        assert_eq!(
            read("#! /usr/bin/env  -S python3 -u \n"),
            Some(("/usr/bin/env".into(), Some("-S python3 -u".into())))
        );
        assert_eq!(read("echo"), None);
        assert_eq!(read("#!\n"), None);
    }
}
