//! Invigil's own repository of checkpoints: one commit each, whose tree has the files and a list of what git does not
//! keep.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use invigil_schema::CheckpointTaken;

use super::CheckpointError;
use crate::capabilities::git::call::Caller;

/// Where the references of checkpoints are.
const REFS: &str = "refs/checkpoints";

/// A bare repository that no run can write.
#[derive(Debug, Clone)]
pub(super) struct Repository {
    path: PathBuf,
    git: Caller,
}

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Link,
    Directory,
}

/// What git does not keep of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) path: PathBuf,
}

/// What a checkpoint has of a path, with the object that has its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) object: Option<Box<str>>,
}

/// Everything in a checkpoint, by path.
#[derive(Debug, Default)]
pub(super) struct Entries(pub(super) BTreeMap<PathBuf, Kept>);

impl Entries {
    /// The first path that is this one or comes after it.
    pub(super) fn from(&self, path: &Path) -> Option<&Path> {
        let from = (Bound::Included(path), Bound::Unbounded);
        let mut behind = self.0.range::<Path, _>(from);
        behind.next().map(|(path, _)| path.as_path())
    }
}

impl Repository {
    pub(super) fn new(path: PathBuf) -> Repository {
        let git = Caller::new(Path::new("/"), Path::new("/")).with("GIT_DIR", &path);
        Repository { path, git }
    }

    /// Makes it, if it is not there yet.
    pub(super) fn make(&self) -> Result<(), CheckpointError> {
        if self.path.is_dir() {
            return Ok(());
        }
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let made = crate::letters::make_box(parent);
        made.map_err(|error| CheckpointError::Git(format!("{}: {error}", parent.display())))?;
        let init = ["init", "--quiet", "--bare", "--template="];
        self.git.call(&init)?;
        Ok(())
    }

    /// All checkpoints, oldest first.
    pub(super) fn list(&self) -> Result<Vec<CheckpointTaken>, CheckpointError> {
        if !self.path.is_dir() {
            return Ok(Vec::new());
        }
        let format = ["for-each-ref", "--format=%(tree) %(contents)%00", REFS];
        let mut all = Vec::new();
        self.each(&format, |text| {
            let text = String::from_utf8_lossy(text);
            let Some((tree, text)) = text.trim().split_once(' ') else {
                return Ok(());
            };
            let mut taken: CheckpointTaken = serde_json::from_str(text)?;
            tree.clone_into(&mut taken.tree);
            all.push(taken);
            Ok(())
        })?;
        all.sort_by_key(|taken| number(&taken.id));
        Ok(all)
    }

    /// Does something with each part of what git prints, each ended by a zero byte, however much it is.
    fn each(
        &self,
        args: &[&str],
        mut act: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), CheckpointError> {
        let mut command = self.git.command();
        let mut git = Running(
            command
                .args(args)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .map_err(cannot_run)?,
        );
        let what = args.first().copied().unwrap_or_default();
        let failed = |why: String| CheckpointError::Git(format!("git {what}: {why}"));
        let mut parts = || -> io::Result<()> {
            let Some(output) = git.0.stdout.take() else {
                return Ok(());
            };
            let mut output = BufReader::new(output);
            let mut part = Vec::new();
            while output.read_until(0, &mut part)? > 0 {
                act(part.strip_suffix(b"\0").unwrap_or(&part))?;
                part.clear();
            }
            Ok(())
        };
        parts().map_err(|error| failed(error.to_string()))?;
        match git.0.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(failed(status.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Begins to take files in.
    pub(super) fn import(&self) -> Result<Import, CheckpointError> {
        let mut command = self.git.command();
        command.args(["fast-import", "--quiet", "--done", "--date-format=raw"]);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(cannot_run)?;
        let input = child.stdin.take().map(BufWriter::new);
        Ok(Import {
            git: self.git.clone(),
            child: Running(child),
            input,
            marks: 0,
        })
    }

    /// What is in a checkpoint.
    pub(super) fn entries(&self, tree: &str) -> Result<Entries, CheckpointError> {
        let list = self.objects()?.read(&format!("{tree}:list"));
        let list = list.map_err(|error| CheckpointError::Git(error.to_string()))?;
        let mut entries: BTreeMap<PathBuf, Kept> = parse_manifest(&list).map(Line::kept).collect();
        drop(list);
        self.each(&["ls-tree", "-r", "-z", "--full-tree", tree], |entry| {
            if let Some((object, path)) = parse_entry(entry)
                && let Some(path) = path.strip_prefix(b"files/")
                && let Some(kept) = entries.get_mut(Path::new(OsStr::from_bytes(path)))
            {
                kept.object = Some(object.into());
            }
            Ok(())
        })?;
        Ok(Entries(entries))
    }

    /// Reads objects, one after the other.
    pub(super) fn objects(&self) -> Result<Objects, CheckpointError> {
        let mut command = self.git.command();
        let child = command
            .args(["cat-file", "--batch"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.map_err(cannot_run)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.map(BufReader::new);
        Ok(Objects {
            _git: Running(child),
            input,
            output,
        })
    }
}

fn cannot_run(error: io::Error) -> CheckpointError {
    CheckpointError::Git(format!("git cannot be run: {error}"))
}

fn number(id: &str) -> u64 {
    id.trim_start_matches('c').parse().unwrap_or(u64::MAX)
}

/// `MODE TYPE OBJECT\tPATH`
fn parse_entry(entry: &[u8]) -> Option<(&str, &[u8])> {
    let tab = entry.iter().position(|byte| *byte == b'\t')?;
    let head = str::from_utf8(&entry[..tab]).ok()?;
    let object = head.split(' ').nth(2)?;
    Some((object, &entry[tab + 1..]))
}

/// git at work. Nobody is left behind.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Takes files in.
pub(super) struct Import {
    git: Caller,
    /// What it has not finished is no checkpoint.
    child: Running,
    input: Option<BufWriter<ChildStdin>>,
    /// How many contents there were. The n-th file or link of the manifest has the n-th content.
    marks: usize,
}

impl Import {
    /// The content of the next file or link.
    pub(super) fn blob(&mut self, content: &[u8]) -> io::Result<()> {
        self.marks += 1;
        let marks = self.marks;
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        write!(input, "blob\nmark :{marks}\ndata {}\n", content.len())?;
        input.write_all(content)?;
        input.write_all(b"\n")
    }

    /// Makes the commit; its tree.
    pub(super) fn finish(
        mut self,
        taken: &CheckpointTaken,
        manifest: &[Line],
    ) -> Result<String, CheckpointError> {
        let sent = self.send(taken, manifest);
        // Its end is the end of what it reads.
        drop(self.input.take());
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.0.stderr {
            drop(stderr.take(4096).read_to_string(&mut said));
        }
        let status = self.child.0.wait();
        if sent.is_err() || !status.is_ok_and(|status| status.success()) {
            let why = sent.err().map(|error| error.to_string());
            let why = why.filter(|_| said.is_empty()).unwrap_or(said);
            return Err(CheckpointError::Git(format!("git fast-import: {why}")));
        }
        let tree = format!("{REFS}/{}^{{tree}}", taken.id);
        Ok(self.git.call(&["rev-parse", "--verify", &tree])?.line())
    }

    fn send(&mut self, taken: &CheckpointTaken, manifest: &[Line]) -> io::Result<()> {
        self.marks += 1;
        let (of_list, message) = (self.marks, serde_json::to_vec(taken)?);
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let length: usize = manifest.iter().map(|line| line.encode().len()).sum();
        writeln!(input, "blob\nmark :{of_list}\ndata {length}")?;
        for line in manifest {
            input.write_all(&line.encode())?;
        }
        input.write_all(b"\n")?;
        writeln!(input, "commit {REFS}/{}", taken.id)?;
        input.write_all(b"committer Invigil <invigil@localhost> 0 +0000\n")?;
        writeln!(input, "data {}", message.len())?;
        input.write_all(&message)?;
        input.write_all(b"\n")?;
        let contents = manifest.iter().filter(|line| line.kind != Kind::Directory);
        for (line, mark) in contents.zip(1..) {
            let mode = match line.kind {
                Kind::Link => "120000",
                _ if line.mode & 0o100 != 0 => "100755",
                _ => "100644",
            };
            writeln!(input, "M {mode} :{mark} {}", quoted(&line.path))?;
        }
        writeln!(input, "M 100644 :{of_list} list\ndone")?;
        input.flush()
    }
}

/// A path below `files/`, as fast-import reads it.
fn quoted(path: &Path) -> String {
    let mut text = String::from("\"files/");
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'"' | b'\\' => {
                text.push('\\');
                text.push(char::from(byte));
            }
            b' '..=b'~' => text.push(char::from(byte)),
            // Writing to a text cannot fail.
            byte => drop(write!(text, "\\{byte:03o}")),
        }
    }
    text.push('"');
    text
}

impl Line {
    /// `KIND MODE UID GID PATH\0`
    fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            Kind::File => 'f',
            Kind::Link => 'l',
            Kind::Directory => 'd',
        };
        let mut line = format!("{kind} {:o} {} {} ", self.mode, self.uid, self.gid).into_bytes();
        line.extend_from_slice(self.path.as_os_str().as_bytes());
        line.push(0);
        line
    }

    /// As it is found in a checkpoint; its content is not known yet.
    fn kept(self) -> (PathBuf, Kept) {
        let Line {
            kind,
            mode,
            uid,
            gid,
            path,
        } = self;
        let kept = Kept {
            kind,
            mode,
            uid,
            gid,
            object: None,
        };
        (path, kept)
    }

    fn decode(text: &[u8]) -> Option<Line> {
        let mut parts = text.splitn(5, |byte| *byte == b' ');
        let mut next = || str::from_utf8(parts.next()?).ok();
        let kind = match next()? {
            "f" => Kind::File,
            "l" => Kind::Link,
            "d" => Kind::Directory,
            _ => return None,
        };
        let mode = u32::from_str_radix(next()?, 8).ok()?;
        let (uid, gid) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let path = PathBuf::from(OsStr::from_bytes(parts.next()?));
        Some(Line {
            kind,
            mode,
            uid,
            gid,
            path,
        })
    }
}

fn parse_manifest(text: &[u8]) -> impl Iterator<Item = Line> {
    text.split(|byte| *byte == 0).filter_map(Line::decode)
}

/// Reads objects.
pub(super) struct Objects {
    _git: Running,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
}

impl Objects {
    /// The content of an object.
    pub(super) fn read(&mut self, object: &str) -> io::Result<Vec<u8>> {
        let (Some(input), Some(output)) = (&mut self.input, &mut self.output) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        writeln!(input, "{object}")?;
        let mut head = String::new();
        output.read_line(&mut head)?;
        let size = head.trim_end().rsplit(' ').next();
        let size: usize = size
            .and_then(|size| size.parse().ok())
            .ok_or_else(|| io::Error::other(format!("git does not have it: {}", head.trim())))?;
        let mut content = vec![0; size];
        output.read_exact(&mut content)?;
        output.read_exact(&mut [0])?;
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_does_not_keep_comes_back() {
        let lines = [
            (Kind::File, "a b\nc"),
            (Kind::Link, "l"),
            (Kind::Directory, "d/e"),
        ];
        let lines = lines.map(|(kind, path)| Line {
            kind,
            mode: 0o4751,
            uid: 7,
            gid: 8,
            path: path.into(),
        });
        let text: Vec<u8> = lines.iter().flat_map(Line::encode).collect();
        assert_eq!(parse_manifest(&text).collect::<Vec<_>>(), lines);
    }

    #[test]
    fn paths_are_quoted() {
        assert_eq!(quoted(Path::new("a\"b\\c\nd")), r#""files/a\"b\\c\012d""#);
        let odd = Path::new(OsStr::from_bytes(b"\xff"));
        assert_eq!(quoted(odd), r#""files/\377""#);
    }
}
