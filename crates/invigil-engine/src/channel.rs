//! The SDK channel: a Unix socket on which the processes of a run report of themselves.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::Duration;

use invigil_schema::{Event, ProcessRef, RunId};
use rustix::event::{PollFd, PollFlags, poll};

use crate::lines::Splitter;
use crate::reports::SdkReader;

/// How many may report at the same time.
const MAX_CONNECTIONS: usize = 256;
/// Between two looks at something that cannot be waited for.
const BREATH: Duration = Duration::from_millis(5);

/// What the directories of sockets are called.
const PREFIX: &str = "invigil-";

/// A socket in a directory of its own, gone when this is dropped.
pub(crate) struct Channel {
    directory: PathBuf,
    /// Says that we live.
    _lock: File,
    listener: UnixListener,
    /// Closing the second end wakes whoever waits at the first.
    stop: (UnixStream, UnixStream),
    stopped: AtomicBool,
    open: Mutex<BTreeMap<u64, UnixStream>>,
}

/// Whom a connection comes from.
pub(crate) enum Peer {
    /// A process of the run; which one, where that is known.
    Member(Option<ProcessRef>),
    /// Somebody else.
    Stranger,
}

impl Channel {
    /// Makes the socket below `base`, or below `/tmp` where `base` is too long for the address of a socket.
    pub(crate) fn open(base: &Path) -> io::Result<Channel> {
        sweep(base);
        let name = format!("{PREFIX}{}", uuid::Uuid::now_v7().simple());
        match Channel::open_in(base.join(&name)) {
            Err(_) if base != Path::new("/tmp") => Channel::open_in(Path::new("/tmp").join(name)),
            other => other,
        }
    }

    fn open_in(directory: PathBuf) -> io::Result<Channel> {
        DirBuilder::new().mode(0o700).create(&directory)?;
        let bound = UnixListener::bind(socket(&directory)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let lock = File::create_new(owner(&directory))?;
            lock.lock()?;
            Ok((listener, UnixStream::pair()?, lock))
        });
        match bound {
            Ok((listener, stop, lock)) => Ok(Channel {
                directory,
                _lock: lock,
                listener,
                stop,
                stopped: AtomicBool::new(false),
                open: Mutex::default(),
            }),
            Err(error) => {
                drop(fs::remove_dir_all(&directory));
                Err(error)
            }
        }
    }

    /// Where to connect.
    pub(crate) fn path(&self) -> PathBuf {
        socket(&self.directory)
    }

    /// Accepts connections until [`Channel::stop`]; each is read on a thread of its own.
    pub(crate) fn serve<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        run_id: &RunId,
        who: &'scope (dyn Fn(u32) -> Peer + Sync),
        record: &'scope (dyn Fn(Event) + Sync),
    ) {
        let mut connection = 0;
        loop {
            // Asked before accepting: whoever connected before the stop is still served.
            let stopped = self.wait();
            loop {
                if !stopped && self.connections().len() >= MAX_CONNECTIONS {
                    // Who comes now waits until somebody has finished: nothing is turned away.
                    std::thread::sleep(BREATH);
                    break;
                }
                match self.listener.accept() {
                    Ok((stream, _)) => {
                        self.take(scope, connection, stream, run_id, who, record);
                        connection += 1;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        if error.kind() != io::ErrorKind::WouldBlock {
                            // Out of descriptors, most likely; the connection waits meanwhile.
                            std::thread::sleep(BREATH);
                        }
                        break;
                    }
                }
            }
            if stopped {
                return self.hang_up();
            }
        }
    }

    /// Waits for a connection or for the stop; whether it was the stop.
    fn wait(&self) -> bool {
        let (listener, stop) = (&self.listener, &self.stop.0);
        let mut events = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        // An interruption is looked at like everything else. If even waiting is impossible, one looks again and again.
        if poll(&mut events, None).is_err() {
            std::thread::sleep(BREATH);
        }
        self.stopped.load(Ordering::SeqCst)
    }

    fn take<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        connection: u64,
        stream: UnixStream,
        run_id: &RunId,
        who: &'scope (dyn Fn(u32) -> Peer + Sync),
        record: &'scope (dyn Fn(Event) + Sync),
    ) {
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else {
            return;
        };
        let pid = peer.pid.as_raw_nonzero().get() as u32;
        let process = match who(pid) {
            Peer::Member(process) => process,
            Peer::Stranger => return record(SdkReader::foreign(connection, pid)),
        };
        let lost = |why: io::Error| record(SdkReader::lost(connection, process, &why));
        match stream.try_clone() {
            Ok(clone) => drop(self.connections().insert(connection, clone)),
            Err(why) => return lost(why),
        }
        let reader = SdkReader::new(run_id.clone(), Some(connection), process);
        let body = move || {
            listen(stream, reader, record);
            self.connections().remove(&connection);
        };
        let thread = Builder::new().name("sdk".into());
        if let Err(why) = thread.spawn_scoped(scope, body) {
            self.connections().remove(&connection);
            lost(why);
        }
    }

    /// Ends the service when everything that was sent before has been read. It does not depend on the socket's path,
    /// which the run may have removed.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        drop(self.stop.1.shutdown(std::net::Shutdown::Both));
    }

    /// What is in the buffer of a connection is still read.
    fn hang_up(&self) {
        for stream in self.connections().values() {
            drop(stream.shutdown(std::net::Shutdown::Read));
        }
    }

    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, UnixStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.directory));
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("events")
}

fn listen(mut stream: UnixStream, mut reader: SdkReader, record: &dyn Fn(Event)) {
    let mut splitter = Splitter::default();
    let mut chunk = vec![0; 16 * 1024];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => splitter.feed(&chunk[..read], |line| record(reader.read(&line))),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    splitter.finish(|line| record(reader.read(&line)));
}

/// Removes directories whose supervisor was killed: nobody holds their lock any more.
fn sweep(base: &Path) {
    /// Who has just made one may not have locked it yet.
    const YOUNG: Duration = Duration::from_secs(60);
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let ours = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if ours && age().is_some_and(|age| age > YOUNG) {
            let lock = File::open(owner(&entry.path()));
            if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
                drop(fs::remove_dir_all(entry.path()));
            }
        }
    }
}

/// Locked for as long as the supervisor lives.
fn owner(directory: &Path) -> PathBuf {
    directory.join("owner")
}
