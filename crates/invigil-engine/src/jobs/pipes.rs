//! The pipes to a worker. Nothing here waits longer than until the deadline, whatever the worker does with its ends.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// How much of a worker's stderr is kept: the words of a panic.
const WORDS: usize = 16 * 1024;

/// Our ends.
#[derive(Debug)]
pub(super) struct Pipes {
    to: File,
    from: File,
    stderr: RefCell<Stderr>,
    /// When every wait ends.
    pub(super) deadline: Option<Instant>,
}

/// What the worker says to nobody.
#[derive(Debug)]
struct Stderr {
    pipe: Option<File>,
    words: Vec<u8>,
}

impl Pipes {
    pub(super) fn new(to: PipeWriter, from: PipeReader, stderr: PipeReader) -> io::Result<Pipes> {
        let patient = |fd: OwnedFd| -> io::Result<File> {
            // The worker's end is another description, and waits as usual.
            fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
            Ok(fd.into())
        };
        Ok(Pipes {
            to: patient(to.into())?,
            from: patient(from.into())?,
            stderr: RefCell::new(Stderr {
                pipe: Some(patient(stderr.into())?),
                words: Vec::new(),
            }),
            deadline: None,
        })
    }

    /// To write to and to read from.
    pub(super) fn ends(&self) -> (To<'_>, From<'_>) {
        (To(self), From(self))
    }

    /// What the worker has said to nobody.
    pub(super) fn words(&self) -> String {
        let mut stderr = self.stderr.borrow_mut();
        stderr.drain();
        String::from_utf8_lossy(&stderr.words).into_owned()
    }

    /// Waits until a pipe can be used.
    fn wait(&self, pipe: &File, flags: PollFlags) -> io::Result<()> {
        loop {
            let left = match self.deadline {
                None => None,
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    Some(Timespec {
                        tv_sec: left.as_secs() as i64,
                        tv_nsec: i64::from(left.subsec_nanos()),
                    })
                }
            };
            let mut stderr = self.stderr.borrow_mut();
            let mut polled = vec![PollFd::from_borrowed_fd(pipe.as_fd(), flags)];
            polled.extend(
                stderr
                    .pipe
                    .iter()
                    .map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)),
            );
            match poll(&mut polled, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let usable = !polled[0].revents().is_empty();
            let words = polled.get(1).is_some_and(|pipe| !pipe.revents().is_empty());
            if words {
                stderr.drain();
            }
            if usable {
                return Ok(());
            }
        }
    }
}

impl Stderr {
    /// Takes what is there. Nobody writes without end into a pipe that is read: what is too much is thrown away.
    fn drain(&mut self) {
        let mut piece = [0; 4096];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut piece) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    let room = WORDS - self.words.len();
                    self.words.extend_from_slice(&piece[..length.min(room)]);
                    if room == 0 {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// To the worker.
pub(super) struct To<'a>(&'a Pipes);

/// From the worker.
pub(super) struct From<'a>(&'a Pipes);

fn again(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

impl Write for To<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.0.wait(&self.0.to, PollFlags::OUT)?;
            match (&self.0.to).write(bytes) {
                Err(error) if again(&error) => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for From<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.0.wait(&self.0.from, PollFlags::IN)?;
            match (&self.0.from).read(into) {
                Err(error) if again(&error) => {}
                read => return read,
            }
        }
    }
}
