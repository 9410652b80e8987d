//! The SDK channel: a Unix socket on which the processes of a run report of themselves.
//!
//! What was sent is taken by whoever comes first: the thread that serves the channel, or the observer, which asks before
//! it records a fact. So a line stands in the journal before everything that its sender did afterwards.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use invigil_schema::{Event, ProcessRef, RunId};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::ioctl_fionread;

use crate::lines::{Line, Splitter};
use crate::reports::SdkReader;

/// How many may report at the same time.
const MAX_CONNECTIONS: usize = 256;
/// Before something is tried again that cannot be waited for.
const BREATH: Duration = Duration::from_millis(5);

/// In the place of a connection's number: somebody calls.
const CALLER: u64 = u64::MAX;

/// What the directories of sockets are called.
const PREFIX: &str = "invigil-";

/// A socket in a directory of its own, gone when this is dropped.
pub(crate) struct Channel {
    directory: PathBuf,
    /// Says that we live.
    _lock: File,
    listener: UnixListener,
    /// Tells who calls, and who has sent something.
    ready: OwnedFd,
    /// Closing the second end wakes whoever waits at the first.
    stop: (UnixStream, UnixStream),
    stopped: AtomicBool,
    /// How many connections there are, for a look that costs nothing.
    count: AtomicUsize,
    open: Mutex<Open>,
}

/// The connections that are open.
#[derive(Default)]
struct Open {
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Callers wait until somebody has finished.
    full: bool,
}

struct Connection {
    stream: UnixStream,
    splitter: Splitter,
    reader: SdkReader,
}

/// Whom a connection comes from.
pub(crate) enum Peer {
    /// A process of the run; which one, where that is known.
    Member(Option<ProcessRef>),
    /// Somebody else.
    Stranger,
}

/// Who takes what is said on a channel.
pub(crate) trait Hearer {
    /// Which run it must be about.
    fn run_id(&self) -> &RunId;
    /// Who calls.
    fn who(&self, pid: u32) -> Peer;
    /// Takes one report.
    fn hear(&self, event: Event);
    /// Answers a line that asks for something, at once or later. False if it is a report.
    fn answer(&self, line: &[u8], from: Option<ProcessRef>, to: &UnixStream) -> bool;
}

impl Channel {
    /// Makes the socket below `base`, or below `/tmp` where `base` is too long for the address of a socket.
    pub(crate) fn open(base: &Path) -> io::Result<Channel> {
        sweep(base);
        let name = format!("{PREFIX}{}", uuid::Uuid::now_v7().simple());
        match Channel::open_in(base.join(&name)) {
            Err(_) if base != Path::new("/tmp") => {
                sweep(Path::new("/tmp"));
                Channel::open_in(Path::new("/tmp").join(name))
            }
            other => other,
        }
    }

    fn open_in(directory: PathBuf) -> io::Result<Channel> {
        DirBuilder::new().mode(0o700).create(&directory)?;
        let bound = UnixListener::bind(socket(&directory)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let lock = File::create_new(owner(&directory))?;
            lock.lock()?;
            let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let data = epoll::EventData::new_u64(CALLER);
            epoll::add(&ready, &listener, data, epoll::EventFlags::IN)?;
            Ok((listener, ready, UnixStream::pair()?, lock))
        });
        match bound {
            Ok((listener, ready, stop, lock)) => Ok(Channel {
                directory,
                _lock: lock,
                listener,
                ready,
                stop,
                stopped: AtomicBool::new(false),
                count: AtomicUsize::new(0),
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

    /// Takes what is sent until [`Channel::stop`].
    pub(crate) fn serve(&self, hearer: &dyn Hearer) {
        loop {
            // Asked before looking: what was sent before the stop is still taken.
            let stopped = self.wait();
            let done = self.catch_up(hearer);
            if stopped {
                return self.hang_up(hearer);
            }
            if !done {
                std::thread::sleep(BREATH);
            }
        }
    }

    /// Waits for something to take or for the stop; whether it was the stop.
    fn wait(&self) -> bool {
        let (ready, stop) = (&self.ready, &self.stop.0);
        let mut events = [
            PollFd::new(ready, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        // An interruption is looked at like everything else. If even waiting is impossible, one looks again and again.
        if poll(&mut events, None).is_err() {
            std::thread::sleep(BREATH);
        }
        self.stopped.load(Ordering::SeqCst)
    }

    /// Whether somebody may have sent something that was not taken yet. Whoever has called since the last look is not
    /// counted.
    pub(crate) fn is_open(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Takes everything that has been sent up to now, and no more: nobody can hold the observer up by sending on and
    /// on. False if a caller could not be taken on, and will have to wait.
    pub(crate) fn catch_up(&self, hearer: &dyn Hearer) -> bool {
        let mut open = self.connections();
        let nothing = epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        };
        let mut events = [nothing; MAX_CONNECTIONS + 1];
        let now = Timespec::default();
        let ready = epoll::wait(&self.ready, &mut events[..], Some(&now)).unwrap_or(0);
        let mut done = true;
        for event in &events[..ready] {
            let data = event.data;
            match data.u64() {
                CALLER => done &= self.accept(&mut open, hearer),
                connection => self.read(&mut open, connection, hearer),
            }
        }
        done
    }

    /// Takes on everybody who calls, and what they have sent already.
    fn accept(&self, open: &mut Open, hearer: &dyn Hearer) -> bool {
        loop {
            if open.connections.len() >= MAX_CONNECTIONS {
                // Who comes now waits until somebody has finished: nothing is turned away.
                open.full = true;
                return self.listen(epoll::EventFlags::empty());
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let connection = open.next;
                    open.next += 1;
                    self.take_on(open, connection, stream, hearer);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Otherwise we are out of descriptors, most likely.
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Whether callers are told of.
    fn listen(&self, flags: epoll::EventFlags) -> bool {
        let data = epoll::EventData::new_u64(CALLER);
        epoll::modify(&self.ready, &self.listener, data, flags).is_ok()
    }

    fn take_on(&self, open: &mut Open, connection: u64, stream: UnixStream, hearer: &dyn Hearer) {
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else {
            return;
        };
        let pid = peer.pid.as_raw_nonzero().get() as u32;
        let process = match hearer.who(pid) {
            Peer::Member(process) => process,
            Peer::Stranger => return hearer.hear(SdkReader::foreign(connection, pid)),
        };
        let watched = stream.set_nonblocking(true).and_then(|()| {
            let data = epoll::EventData::new_u64(connection);
            Ok(epoll::add(
                &self.ready,
                &stream,
                data,
                epoll::EventFlags::IN,
            )?)
        });
        if let Err(why) = watched {
            return hearer.hear(SdkReader::lost(connection, process, &why));
        }
        let new = Connection {
            stream,
            splitter: Splitter::default(),
            reader: SdkReader::new(hearer.run_id().clone(), Some(connection), process),
        };
        open.connections.insert(connection, new);
        self.count.store(open.connections.len(), Ordering::Release);
        self.read(open, connection, hearer);
    }

    /// Takes what a connection has sent, and lets go of it at its end.
    fn read(&self, open: &mut Open, connection: u64, hearer: &dyn Hearer) {
        let Some(known) = open.connections.get_mut(&connection) else {
            return;
        };
        if known.read(hearer) {
            return;
        }
        known.finish(hearer);
        open.connections.remove(&connection);
        self.count.store(open.connections.len(), Ordering::Release);
        if std::mem::take(&mut open.full) {
            self.listen(epoll::EventFlags::IN);
        }
    }

    /// Ends the service when everything that was sent before has been read. It does not depend on the socket's path,
    /// which the run may have removed.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        drop(self.stop.1.shutdown(std::net::Shutdown::Both));
    }

    /// Takes what is left of everybody, those included who could not be taken on before.
    fn hang_up(&self, hearer: &dyn Hearer) {
        loop {
            self.catch_up(hearer);
            let mut open = self.connections();
            if open.connections.is_empty() {
                return;
            }
            for connection in open.connections.values_mut() {
                connection.finish(hearer);
            }
            open.connections.clear();
            self.count.store(0, Ordering::Release);
            if std::mem::take(&mut open.full) {
                self.listen(epoll::EventFlags::IN);
            }
        }
    }

    fn connections(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Takes what was sent up to now. False at the end.
    fn read(&mut self, hearer: &dyn Hearer) -> bool {
        let mut chunk = [0; 16 * 1024];
        let mut left = ioctl_fionread(&self.stream).unwrap_or(0);
        loop {
            // With nothing there, a look at whether it is the end.
            let size = usize::try_from(left).map_or(chunk.len(), |left| left.clamp(1, chunk.len()));
            match self.stream.read(&mut chunk[..size]) {
                Ok(0) => return false,
                Ok(read) => {
                    let (reader, stream) = (&mut self.reader, &self.stream);
                    self.splitter
                        .feed(&chunk[..read], |line| take(&line, reader, stream, hearer));
                    left = left.saturating_sub(read as u64);
                    if left == 0 {
                        return true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    fn finish(&mut self, hearer: &dyn Hearer) {
        let (reader, stream) = (&mut self.reader, &self.stream);
        self.splitter
            .finish(|line| take(&line, reader, stream, hearer));
    }
}

/// Takes a line: a question is answered, everything else is a report.
fn take(line: &Line<'_>, reader: &mut SdkReader, stream: &UnixStream, hearer: &dyn Hearer) {
    if !hearer.answer(line.bytes, reader.process(), stream) {
        hearer.hear(reader.read(line));
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
            // Anybody can have made it, and a FIFO must not keep us waiting.
            let lock = crate::letters::open(&owner(&entry.path()));
            let is_file = |lock: &File| lock.metadata().is_ok_and(|data| data.is_file());
            if lock.is_ok_and(|lock| is_file(&lock) && lock.try_lock().is_ok()) {
                drop(fs::remove_dir_all(entry.path()));
            }
        }
    }
}

/// Locked for as long as the supervisor lives.
fn owner(directory: &Path) -> PathBuf {
    directory.join("owner")
}

#[cfg(test)]
mod tests {
    use super::*;
    use invigil_schema::SDK_SCHEMA;
    use std::io::Write as _;

    #[test]
    fn what_the_dead_have_left_is_removed_and_nobody_is_waited_for() {
        let base = tempfile::tempdir().unwrap();
        let made =
            ["dead", "living", "trap"].map(|name| base.path().join(format!("{PREFIX}{name}")));
        let [dead, living, trap] = &made;
        made.iter().for_each(|path| fs::create_dir(path).unwrap());
        File::create(owner(dead)).unwrap();
        let lock = File::create(owner(living)).unwrap();
        lock.lock().unwrap();
        // Whoever opens it to read waits for a writer.
        let fifo = std::process::Command::new("mkfifo")
            .arg(owner(trap))
            .status();
        assert!(fifo.unwrap().success());
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        for path in &made {
            File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        let (swept, sweeping) = std::sync::mpsc::channel();
        let at = base.path().to_owned();
        std::thread::spawn(move || {
            sweep(&at);
            let _ = swept.send(());
        });
        sweeping.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(!dead.exists() && living.exists() && trap.exists());
    }

    struct Ear {
        run_id: RunId,
        heard: Mutex<Vec<Event>>,
    }

    impl Ear {
        fn new() -> Ear {
            Ear {
                run_id: RunId::new("r").unwrap(),
                heard: Mutex::default(),
            }
        }

        /// How many reports were accepted, and how many were not.
        fn count(&self) -> (usize, usize) {
            let heard = self.heard.lock().unwrap();
            let good = |event: &&Event| matches!(event, Event::SdkEvent(_));
            let good = heard.iter().filter(good).count();
            (good, heard.len() - good)
        }
    }

    impl Hearer for Ear {
        fn run_id(&self) -> &RunId {
            &self.run_id
        }
        fn who(&self, _: u32) -> Peer {
            Peer::Member(None)
        }
        fn hear(&self, event: Event) {
            self.heard.lock().unwrap().push(event);
        }
        fn answer(&self, _: &[u8], _: Option<ProcessRef>, _: &UnixStream) -> bool {
            false
        }
    }

    fn line(seq: u64) -> String {
        format!(
            r#"{{"schema":"{SDK_SCHEMA}","run_id":"r","seq":{seq},"event_type":"message","source":"t"}}"#
        )
    }

    #[test]
    fn what_was_sent_is_there_after_a_look() {
        let directory = tempfile::tempdir().unwrap();
        let (channel, ear) = (Channel::open(directory.path()).unwrap(), Ear::new());
        assert!(!channel.is_open());
        let mut one = UnixStream::connect(channel.path()).unwrap();
        writeln!(one, "{}", line(0)).unwrap();
        assert!(channel.catch_up(&ear) && channel.is_open());
        assert_eq!(ear.count(), (1, 0), "with the connection itself");
        write!(one, "{}", line(1)).unwrap();
        channel.catch_up(&ear);
        assert_eq!(ear.count(), (1, 0), "the line is not over");
        write!(one, "\n{}\nbad\n{}", line(2), line(3)).unwrap();
        channel.catch_up(&ear);
        assert_eq!(ear.count(), (3, 1));
        drop(one);
        channel.catch_up(&ear);
        assert_eq!(ear.count(), (4, 1), "the last line needs no end");
        assert!(!channel.is_open());
    }

    #[test]
    fn nobody_is_turned_away_however_many_there_are() {
        const MANY: usize = 2 * MAX_CONNECTIONS + 40;
        let directory = tempfile::tempdir().unwrap();
        let (channel, ear) = (Channel::open(directory.path()).unwrap(), Ear::new());
        let (first, path) = (MAX_CONNECTIONS + 20, channel.path());
        let call = || {
            let mut stream = UnixStream::connect(&path).unwrap();
            write!(stream, "{}", line(0)).unwrap();
            stream
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100 {
                    channel.catch_up(&ear);
                }
            });
            let server = scope.spawn(|| channel.serve(&ear));
            let stay: Vec<UnixStream> = (0..first).map(|_| call()).collect();
            drop(stay);
            let stay: Vec<UnixStream> = (first..MANY).map(|_| call()).collect();
            channel.stop();
            server.join().unwrap();
            drop(stay);
        });
        assert_eq!(ear.count(), (MANY, 0));
    }
}
