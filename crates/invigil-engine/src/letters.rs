//! Files in the store through which somebody outside reaches the supervisor of a run: no process of a run can write there,
//! and that is what makes them count.
//!
//! A letter appears whole and never in the place of another. It is read without following a link and without waiting, and
//! must be a plain file of our own user that nobody else may write.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A letter is a few words.
pub(crate) const MAX_LETTER: u64 = 16 * 1024;

/// What there is where a letter is looked for.
pub(crate) enum Found<T> {
    Nothing,
    Letter(T),
    /// Something that is none; it is gone now.
    Refused(String),
}

/// Makes a directory for letters that only its owner can enter.
pub(crate) fn make_box(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)
}

/// Writes a letter. Fails with `AlreadyExists` if there is one of this name, and with `NotFound` if there is no box.
pub(crate) fn leave(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let name = path.file_name().map(OsString::from).unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new("."));
    let draft = folder.join(format!(
        ".{}.{}",
        uuid::Uuid::now_v7().simple(),
        name.display()
    ));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = options.open(&draft).and_then(|mut file| {
        let mut text = serde_json::to_vec(value)?;
        text.push(b'\n');
        file.write_all(&text)?;
        fs::hard_link(&draft, path)
    });
    drop(fs::remove_file(&draft));
    written
}

/// Takes what lies there as a letter. It is gone afterwards, whatever it was, unless it could not be looked at now: then it
/// is there at the next look.
pub(crate) fn take<T: DeserializeOwned>(path: &Path) -> Found<T> {
    let letter = match open(path) {
        Ok(file) => own(&file).and_then(|()| read(file, MAX_LETTER)),
        Err(error) => Err(error.into()),
    };
    let letter = match letter {
        Ok(text) => from_json(&text),
        Err(Unread::Unfit(why)) => Err(why),
        Err(Unread::Failed(error)) if is_final(&error) => Err(error.to_string()),
        Err(Unread::Failed(_)) => return Found::Nothing,
    };
    match (fs::remove_file(path), letter) {
        // A directory. It cannot be a letter, and is no reason to say so ten times a second.
        (Err(_), _) => Found::Nothing,
        (Ok(()), Ok(letter)) => Found::Letter(letter),
        (Ok(()), Err(why)) => Found::Refused(why),
    }
}

/// The names of letters with this ending, without it, sorted. Drafts are not among them.
pub(crate) fn names(folder: &Path, ending: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        if let Some((id, kind)) = name.rsplit_once('.')
            && kind == ending
            && !name.starts_with('.')
        {
            names.push(id.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Follows no link and waits for nobody.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// Why there is nothing to read.
enum Unread {
    /// It can be no letter.
    Unfit(String),
    Failed(io::Error),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Unread::Failed(error)
    }
}

/// Whether an error is about what lies there: a link, a socket, what we may not read. Everything else passes, as a want of
/// descriptors or memory does, and nothing is thrown away for it.
fn is_final(error: &io::Error) -> bool {
    let causes = [Errno::LOOP, Errno::NXIO, Errno::ACCESS, Errno::PERM];
    let number = error.raw_os_error();
    causes
        .iter()
        .any(|cause| number == Some(cause.raw_os_error()))
}

/// Whether a file is a plain one of our own user that nobody else can have written.
fn own(file: &File) -> Result<(), Unread> {
    let metadata = file.metadata()?;
    let us = rustix::process::geteuid().as_raw();
    let unfit = |why: &str| Err(Unread::Unfit(why.to_owned()));
    match () {
        () if !metadata.is_file() => unfit("it is not a plain file"),
        () if metadata.uid() != us => unfit(&format!("it is the file of user {}", metadata.uid())),
        () if metadata.mode() & 0o022 != 0 => unfit("others may write to it"),
        () => Ok(()),
    }
}

/// Reads up to a limit.
fn read(file: File, most: u64) -> Result<Vec<u8>, Unread> {
    let mut text = Vec::new();
    file.take(most + 1).read_to_end(&mut text)?;
    match text.len() as u64 > most {
        true => Err(Unread::Unfit(format!("it is larger than {most} bytes"))),
        false => Ok(text),
    }
}

fn from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|error| format!("it cannot be read: {error}"))
}

/// Reads JSON up to a limit.
pub(crate) fn parse<T: DeserializeOwned>(file: File, most: u64) -> Result<T, String> {
    match read(file, most) {
        Ok(text) => from_json(&text),
        Err(Unread::Unfit(why)) => Err(why),
        Err(Unread::Failed(error)) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, setrlimit};

    /// Set in the process that has no descriptors left.
    const ALONE: &str = "INVIGIL_TEST_ALONE";

    /// The limit is that of a whole process, so it is another one.
    #[test]
    fn no_letter_is_lost_for_want_of_a_descriptor() {
        if std::env::var_os(ALONE).is_none() {
            let name = "letters::tests::no_letter_is_lost_for_want_of_a_descriptor";
            let alone = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--test-threads=1"])
                .env(ALONE, "1")
                .output();
            let alone = alone.unwrap();
            let said = String::from_utf8_lossy(&alone.stdout);
            assert!(
                alone.status.success() && said.contains("1 passed"),
                "{said}"
            );
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.order");
        leave(&path, &"word").unwrap();
        let few = Rlimit {
            current: Some(32),
            maximum: Some(32),
        };
        setrlimit(Resource::Nofile, few).unwrap();
        let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(matches!(take::<String>(&path), Found::Nothing));
        drop(all);
        assert!(matches!(take::<String>(&path), Found::Letter(word) if word == "word"));
        assert!(matches!(take::<String>(&path), Found::Nothing));
    }

    #[test]
    fn what_can_be_no_letter_is_refused_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.order");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(matches!(take::<String>(&path), Found::Refused(_)));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(matches!(take::<String>(&path), Found::Refused(_)));
        fs::write(&path, "{").unwrap();
        assert!(matches!(take::<String>(&path), Found::Refused(_)));
        assert!(matches!(take::<String>(&path), Found::Nothing));
    }
}
