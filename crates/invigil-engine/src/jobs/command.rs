//! A job that a program carries out: a run like any other, with all of its facts on record, bounded as jobs are.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use invigil_journal::Blobs;
use invigil_policy::Narrow;
use invigil_schema::{Digest, JobId, RunFinished, SpawnFailure, StopReason};
use rustix::fs::{CWD, OFlags, ResolveFlags, openat2};
use serde_json::{Map, Value, json};

use super::seen::Seen;
use super::work::{WorkEnd, Worked, denial};
use super::{Ended, Executor, Job};
use crate::capabilities::{Command, Output as Given};
use crate::control::Control;
use crate::held::{Bell, hold};
use crate::run::End;
use crate::spec::{Leftovers, Output, RunSpec};

/// How much of each stream is in the result.
const SHOWN: usize = 1 << 20;
const CHUNK: usize = 64 * 1024;

impl Executor {
    /// Carries a job out by running a program.
    pub(super) fn command(&self, job: &Job<'_>, command: &Command) -> Ended {
        let ended = self.try_command(job, command);
        ended.unwrap_or_else(Ended::so)
    }

    fn try_command(&self, job: &Job<'_>, command: &Command) -> Result<Ended, WorkEnd> {
        let temporary = Temporary::new(&self.places.tmp, job.id.as_str()).map_err(|error| {
            WorkEnd::failed(format!("cannot make a temporary directory: {error}"))
        })?;
        let mut roots = job.own.clone();
        roots.push(temporary.0.clone());
        let narrow = Narrow {
            read: roots.clone(),
            write: roots,
            system: true,
            // Those of the job itself pass whatever they are called.
            env: super::ENV
                .map(str::to_owned)
                .into_iter()
                .chain(["TMPDIR".to_owned(), "INVIGIL_*".to_owned()])
                .collect(),
            memory: Some(self.limits.memory),
            processes: Some(self.limits.processes),
            file_size: Some(self.limits.file_size),
            ..Narrow::default()
        };
        let rules = self.rules(job, &narrow).map_err(WorkEnd::failed)?;
        let cwd = match &command.cwd {
            Some(cwd) => job.resolved(cwd)?,
            None => job.working_dir.clone(),
        };
        let mut engine = self.engine.clone();
        engine.env = super::work::env_of_jobs(&self.engine.env);
        let io = |error: io::Error| WorkEnd::failed(format!("cannot make a pipe: {error}"));
        let ((out, its_out), (err, its_err)) = (io::pipe().map_err(io)?, io::pipe().map_err(io)?);
        let share = |fd: OwnedFd| Arc::new(fd);
        let mut env = command.env.clone();
        env.insert("TMPDIR".into(), temporary.0.clone().into());
        let spec = RunSpec {
            run_id: Some(job.id.as_str().to_owned()),
            env,
            cwd: Some(cwd),
            stdout: Output::Into {
                stdout: share(its_out.into()),
                stderr: share(its_err.into()),
            },
            leftovers: Leftovers::Kill,
            rules: Some(Arc::new(rules)),
            asking: self.asking.clone(),
            require_tier: job.spec.strict.then_some(invigil_schema::Tier::Notify),
            ..RunSpec::new(command.argv.iter().cloned())
        };
        let blobs = match job.spec.keep_output {
            true => Some(
                self.engine
                    .store
                    .blobs()
                    .map_err(|error| WorkEnd::failed(error.to_string()))?,
            ),
            false => None,
        };
        let control = &Control::new();
        job.cancel.steers(control);
        let read = || {
            thread::scope(|scope| {
                let err = scope.spawn(|| Stream::read(err, blobs.as_ref()));
                let out = Stream::read(out, blobs.as_ref());
                (out, err.join().unwrap_or_default())
            })
        };
        let (stdin, timeout, over) = (&command.stdin, Some(command.timeout), Bell::default());
        let held = hold(&engine, spec, control, stdin, timeout, &over, read).map_err(io)?;
        let (out, err) = held.read.unwrap_or_default();
        let timed_out = held.timed_out;
        let outcome = held
            .ran
            .map_err(|error| WorkEnd::failed(error.to_string()))?;
        let mut seen = Seen::default();
        if let Ok(Some(mut reader)) = outcome.run.read(0) {
            while let Ok(Some(record)) = reader.next() {
                if let Ok(envelope) = record.envelope() {
                    seen.take(&envelope.event());
                }
            }
        }
        let run = Some(outcome.run.run_id().clone());
        let data = |finished: Option<&RunFinished>| {
            let mut data = Map::new();
            out.show("stdout", &mut data);
            err.show("stderr", &mut data);
            data.insert(
                "exit_code".into(),
                json!(finished.and_then(|end| end.exit_code)),
            );
            data.insert("signal".into(), json!(finished.and_then(|end| end.signal)));
            data.insert("timed_out".into(), json!(timed_out));
            data.insert(
                "truncated".into(),
                json!(out.is_truncated() || err.is_truncated()),
            );
            data.insert("descendants".into(), json!(seen.processes));
            Value::Object(data)
        };
        let (end, output) = match &outcome.end {
            End::NotStarted(failed) if failed.failure == SpawnFailure::Policy => {
                (WorkEnd::Denied(failed.reason.clone()), None)
            }
            End::NotStarted(failed) => (WorkEnd::failed(failed.reason.clone()), None),
            End::Finished(finished) => {
                let data = data(Some(finished));
                let end = match (finished.stopped, finished.exit_code, finished.signal) {
                    _ if timed_out => WorkEnd::TimedOut(command.timeout),
                    _ if job.cancel.is_cancelled() => WorkEnd::Cancelled,
                    (Some(StopReason::Policy), ..) => {
                        let why = finished
                            .why
                            .as_deref()
                            .unwrap_or("the policy does not let it");
                        WorkEnd::Denied(denial(why, &seen))
                    }
                    (Some(_), ..) => {
                        let why = finished.why.clone().unwrap_or_default();
                        let oom = match why.contains("budget of memory") {
                            true => "oom_killed: ",
                            false => "",
                        };
                        WorkEnd::failed(format!("{oom}{why}"))
                    }
                    (None, Some(0), _) => WorkEnd::Done(Given::new(data.clone())),
                    (None, Some(code), _) => WorkEnd::failed(format!("exit code {code}")),
                    (None, None, signal) => {
                        WorkEnd::failed(format!("ended by signal {}", signal.unwrap_or_default()))
                    }
                };
                (end, Some(data))
            }
        };
        Ok(Ended {
            worked: Worked {
                end,
                seen,
                degraded: outcome.warnings,
            },
            run,
            shown: output,
            ..Ended::so(WorkEnd::Cancelled)
        })
    }
}

/// What a program has printed on one stream.
#[derive(Debug, Default)]
struct Stream {
    shown: Vec<u8>,
    total: u64,
    blob: Option<Digest>,
}

impl Stream {
    /// Reads to the end. What is too much for the result goes on to the blob, if there is to be one.
    fn read(mut from: PipeReader, blobs: Option<&Blobs>) -> Stream {
        match blobs {
            None => {
                let mut stream = Stream::default();
                let mut chunk = vec![0; CHUNK];
                while let Ok(length @ 1..) = from.read(&mut chunk) {
                    stream.take(&chunk[..length]);
                }
                stream
            }
            Some(blobs) => {
                let mut tee = Tee {
                    from,
                    stream: Stream::default(),
                };
                let put = blobs.put_from(&mut tee);
                // A blob that cannot be written must not stop the command.
                drop(io::copy(&mut tee, &mut io::sink()));
                let mut stream = tee.stream;
                stream.blob = put.ok().map(|(sha256, _)| sha256);
                stream
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = SHOWN - self.shown.len();
        self.shown
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn is_truncated(&self) -> bool {
        self.total > self.shown.len() as u64
    }

    fn show(&self, name: &str, data: &mut Map<String, Value>) {
        let text = match str::from_utf8(&self.shown) {
            Ok(text) => Some(text),
            // Cut in the middle of a character.
            Err(error) if self.is_truncated() && error.error_len().is_none() => {
                str::from_utf8(&self.shown[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        match text {
            Some(text) => data.insert(name.to_owned(), json!(text)),
            None => {
                data.insert(format!("{name}_encoding"), json!("base64"));
                data.insert(name.to_owned(), json!(STANDARD.encode(&self.shown)))
            }
        };
        data.insert(format!("{name}_bytes"), json!(self.total));
        if let Some(blob) = &self.blob {
            data.insert(format!("{name}_blob"), json!(blob));
        }
    }
}

struct Tee {
    from: PipeReader,
    stream: Stream,
}

impl io::Read for Tee {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(into)?;
        self.stream.take(&into[..length]);
        Ok(length)
    }
}

/// A directory that is gone with its job.
pub(super) struct Temporary(PathBuf);

impl Temporary {
    fn path(tmp: &Path, name: &str) -> PathBuf {
        tmp.join(format!("invigil-{name}"))
    }

    /// Removes that of a job whose process is gone.
    pub(super) fn forget(tmp: &Path, job_id: &JobId) {
        // Nothing, if the job had none.
        drop(Temporary(Temporary::path(tmp, job_id.as_str())));
    }

    fn new(tmp: &Path, name: &str) -> io::Result<Temporary> {
        let path = Temporary::path(tmp, name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if fs::remove_dir_all(&self.0).is_err() && open_up(&self.0).is_ok() {
            drop(fs::remove_dir_all(&self.0));
        }
    }
}

/// Opens the directories of a tree that are closed even to their owner. No link leads the way out of it.
fn open_up(top: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let resolve = ResolveFlags::NO_SYMLINKS;
        let dir = openat2(CWD, &path, flags, rustix::fs::Mode::empty(), resolve)?;
        let held = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        fs::set_permissions(&held, Permissions::from_mode(0o700))?;
        let directories = fs::read_dir(&held)?
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(directories.map(|entry| path.join(entry.file_name())));
    }
    Ok(())
}
