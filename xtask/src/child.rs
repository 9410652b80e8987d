//! Programs that are run to their end or to a deadline, as ourselves or as a user without rights. None outlives its turn.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Result;

/// Where programs are looked for: what a stock system has, and nothing that only the caller's shell knows.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The user and group that own nothing.
const NOBODY: u32 = 65534;

/// As whom a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// As whoever runs this.
    Same,
    /// As somebody who owns nothing. Only root can ask for it.
    Nobody,
}

impl User {
    /// Whether this program is root.
    pub(crate) fn is_root() -> bool {
        fs::metadata("/proc/self").is_ok_and(|proc| proc.uid() == 0)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            User::Same if User::is_root() => "root",
            User::Same => "this user",
            User::Nobody => "nobody",
        }
    }

    /// Makes a folder and all in it the user's own.
    pub(crate) fn give(self, folder: &Path) -> Result {
        if self == User::Same {
            return Ok(());
        }
        let mut chown = Command::new("chown");
        chown.args(["-R", &format!("{NOBODY}:{NOBODY}")]);
        let status = chown.arg(folder).status()?;
        if status.success() {
            return Ok(());
        }
        Err(format!("chown of {} failed", folder.display()).into())
    }

    /// A new file that belongs to the user.
    fn file(self, path: &Path) -> Result<File> {
        let file = File::create(path)?;
        if self == User::Nobody {
            fchown(&file, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(file)
    }

    fn words(self) -> Vec<OsString> {
        if self == User::Same {
            return Vec::new();
        }
        let id = NOBODY.to_string();
        let words = [
            "setpriv",
            "--reuid",
            &id,
            "--regid",
            &id,
            "--clear-groups",
            "--",
        ];
        words.map(OsString::from).into()
    }
}

/// A program, and everything that it can depend on.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) words: Vec<OsString>,
    pub(crate) user: User,
    pub(crate) folder: PathBuf,
    /// All of its environment.
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) limit: Duration,
}

/// How it ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) took: Duration,
    /// Processor time of it and of all that were waited for, in hundredths of a second. Not ours alone if several programs
    /// run at once.
    #[cfg_attr(
        not(feature = "bench"),
        expect(dead_code, reason = "only the benchmark asks")
    )]
    pub(crate) processor: Duration,
}

impl Ended {
    /// The exit code as a shell would say it.
    pub(crate) fn code(&self) -> i32 {
        let by_signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(by_signal).unwrap_or(-1)
    }

    /// Everything it said, for an error.
    pub(crate) fn said(&self) -> String {
        let text = [&self.stdout[..], &self.stderr[..]].concat();
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Program {
    pub(crate) fn new<W: Into<OsString>>(words: impl IntoIterator<Item = W>) -> Program {
        Program {
            words: words.into_iter().map(Into::into).collect(),
            user: User::Same,
            folder: PathBuf::from("/"),
            env: vec![("PATH".into(), PATH.into()), ("LC_ALL".into(), "C".into())],
            limit: Duration::from_secs(120),
        }
    }

    pub(crate) fn env(&mut self, name: &str, value: impl Into<OsString>) -> &mut Program {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The same, started by another program.
    pub(crate) fn under<W: Into<OsString>>(&self, words: impl IntoIterator<Item = W>) -> Program {
        let before = words.into_iter().map(Into::into);
        Program {
            words: before.chain(self.words.iter().cloned()).collect(),
            ..self.clone()
        }
    }

    /// Runs to the end. What it says goes to two files in `said`, so that no reader of a pipe can slow it down.
    pub(crate) fn run(&self, said: &Path) -> Result<Ended> {
        let words: Vec<OsString> = [self.user.words(), self.words.clone()].concat();
        let (stdout, stderr) = (said.join("stdout"), said.join("stderr"));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&self.folder);
        command.env_clear().envs(self.env.iter().cloned());
        command.stdin(Stdio::null()).process_group(0);
        command.stdout(self.user.file(&stdout)?);
        command.stderr(self.user.file(&stderr)?);
        let before = processor_time();
        let begun = Instant::now();
        let mut child = command
            .spawn()
            .map_err(|error| format!("{}: {error}", words[0].to_string_lossy()))?;
        let watchdog = Watchdog::over(child.id(), self.limit);
        let status = child.wait()?;
        let took = begun.elapsed();
        let in_time = watchdog.end();
        let ended = Ended {
            status,
            stdout: fs::read(stdout)?,
            stderr: fs::read(stderr)?,
            took,
            processor: processor_time().saturating_sub(before),
        };
        if in_time {
            return Ok(ended);
        }
        let limit = self.limit.as_secs();
        Err(format!(
            "`{}` was killed after {limit} s; it said:\n{}",
            self.text(),
            ended.said()
        )
        .into())
    }

    /// Runs to the end, which must be a good one.
    pub(crate) fn succeed(&self, said: &Path) -> Result<Ended> {
        let ended = self.run(said)?;
        if ended.status.success() {
            return Ok(ended);
        }
        Err(format!(
            "`{}` failed ({}); it said:\n{}",
            self.text(),
            ended.status,
            ended.said()
        )
        .into())
    }

    fn text(&self) -> String {
        let words = self.words.iter().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Kills a process group when its time is up.
struct Watchdog {
    over: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<bool>,
}

impl Watchdog {
    fn over(group: u32, limit: Duration) -> Watchdog {
        let (over, wait) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let in_time = wait.recv_timeout(limit).is_ok();
            if !in_time {
                kill(&format!("-{group}"));
            }
            in_time
        });
        Watchdog { over, thread }
    }

    /// Whether the watched group ended by itself.
    fn end(self) -> bool {
        let _ = self.over.send(());
        self.thread.join().unwrap_or(false)
    }
}

/// What all children took that have ended: fields 16 and 17 of `/proc/self/stat`, in ticks of 10 ms.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = fields.split(' ').skip(13).take(2);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn kill(whom: &str) {
    let mut kill = Command::new("kill");
    kill.args(["-KILL", "--", whom]).stderr(Stdio::null());
    drop(kill.status());
}

/// Waits until no process works in `folder` any more, and kills those that still do after `patience`.
pub(crate) fn clear(folder: &Path, patience: Duration) {
    let begun = Instant::now();
    loop {
        let left = working_in(folder);
        if left.is_empty() {
            return;
        }
        if begun.elapsed() > patience {
            left.iter().for_each(|pid| kill(pid));
        }
        if begun.elapsed() > patience * 2 {
            return;
        }
        sleep(Duration::from_millis(10));
    }
}

fn working_in(folder: &Path) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let names = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let pids = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    pids.filter(|pid| {
        let cwd = fs::read_link(format!("/proc/{pid}/cwd"));
        cwd.is_ok_and(|cwd| cwd.starts_with(folder))
    })
    .collect()
}

/// The first of these programs that is not there.
pub(crate) fn missing<'a>(programs: &[&'a str]) -> Option<&'a str> {
    programs.iter().copied().find(|name| find(name).is_none())
}

/// A program on [`PATH`].
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let candidates = PATH.split(':').map(|folder| Path::new(folder).join(name));
    candidates.into_iter().find(|path| path.is_file())
}

/// A folder outside of the workspace that every user can reach, gone at the end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Result<Scratch> {
        let name = format!("invigil-{name}.{}", std::process::id());
        let path = std::env::temp_dir().canonicalize()?.join(name);
        fs::create_dir(&path)?;
        Ok(Scratch(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// An empty folder for a user; what had the name before is gone.
    pub(crate) fn folder(&self, name: &str, user: User) -> Result<PathBuf> {
        let path = self.0.join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        user.give(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        clear(&self.0, Duration::ZERO);
        drop(fs::remove_dir_all(&self.0));
    }
}
