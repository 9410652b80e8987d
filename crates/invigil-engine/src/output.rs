//! The command's output: handed through untouched, or counted on its way when there is a limit.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use invigil_sandbox::Stdio;
use invigil_schema::{BudgetExceeded, BudgetKind};

use crate::control::Control;
use crate::spec::{Output, RunSpec};

/// Stands between the command and our own output, if it must.
pub(crate) struct Relay {
    target: Output,
    counted: Option<Counted>,
}

struct Counted {
    ends: (PipeWriter, PipeWriter),
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn new(spec: &RunSpec, most: Option<u64>, control: &Control) -> io::Result<Relay> {
        let counted = match most {
            Some(limit) => Some(Counted::new(limit, &spec.stdout, control)?),
            None => None,
        };
        Ok(Relay {
            target: spec.stdout.clone(),
            counted,
        })
    }

    /// What the command gets as stdout and stderr.
    pub(crate) fn ends(&self) -> (Stdio, Stdio) {
        let owned = |fd: io::Result<OwnedFd>| fd.map_or(Stdio::Null, Stdio::Fd);
        if let Some(Counted {
            ends: (stdout, stderr),
            ..
        }) = &self.counted
        {
            let clone = |end: &PipeWriter| owned(end.try_clone().map(OwnedFd::from));
            return (clone(stdout), clone(stderr));
        }
        match &self.target {
            Output::Stdout => (Stdio::Inherit, Stdio::Inherit),
            Output::Stderr => (
                owned(io::stderr().as_fd().try_clone_to_owned()),
                Stdio::Inherit,
            ),
            Output::Into { stdout, stderr } => {
                (owned(stdout.try_clone()), owned(stderr.try_clone()))
            }
        }
    }

    /// The run is over: hands through what is still on its way, as long as somebody takes it.
    pub(crate) fn finish(self) {
        let Some(Counted { ends, threads }) = self.counted else {
            return;
        };
        drop(ends);
        let until = Instant::now() + PATIENCE;
        // The other end may have been handed to somebody outside, or nobody reads what we write.
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// How long a slow reader of the output is waited for when the run is over.
const PATIENCE: Duration = Duration::from_secs(5);

impl Counted {
    fn new(limit: u64, target: &Output, control: &Control) -> io::Result<Counted> {
        let total = Arc::new(AtomicU64::new(0));
        let ((out_reader, out), (err_reader, err)) = (io::pipe()?, io::pipe()?);
        let spawn = |reader: PipeReader, writer: Box<dyn Write + Send>| {
            let (total, control) = (Arc::clone(&total), control.clone());
            let body = move || relay(reader, writer, &total, limit, &control);
            std::thread::Builder::new()
                .name("output".into())
                .spawn(body)
        };
        let (to_out, to_err): (Box<dyn Write + Send>, Box<dyn Write + Send>) = match target {
            Output::Stdout => (Box::new(io::stdout()), Box::new(io::stderr())),
            Output::Stderr => (Box::new(io::stderr()), Box::new(io::stderr())),
            Output::Into { stdout, stderr } => (
                Box::new(File::from(stdout.try_clone()?)),
                Box::new(File::from(stderr.try_clone()?)),
            ),
        };
        let threads = vec![spawn(out_reader, to_out)?, spawn(err_reader, to_err)?];
        Ok(Counted {
            ends: (out, err),
            threads,
        })
    }
}

/// Up to the limit everything is handed through, and nothing behind it.
fn relay(
    mut reader: PipeReader,
    mut writer: impl Write,
    total: &AtomicU64,
    limit: u64,
    control: &Control,
) {
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let read = match reader.read(&mut chunk) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let before = total.fetch_add(read as u64, Ordering::SeqCst);
        let room = usize::try_from(limit.saturating_sub(before)).unwrap_or(usize::MAX);
        let written = writer
            .write_all(&chunk[..read.min(room)])
            .and_then(|()| writer.flush());
        if read > room {
            let why = format!("it printed more than {limit} bytes");
            let exceeded = BudgetExceeded {
                budget: BudgetKind::Output,
                limit,
                used: before + read as u64,
            };
            control.end_over_budget(exceeded, &why);
        }
        if written.is_err() {
            // Whoever read our output is gone: the command learns it by a signal, as it would without us.
            return;
        }
    }
}
