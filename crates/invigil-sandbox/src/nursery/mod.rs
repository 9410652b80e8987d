//! A nursery: a small process of one thread that makes copies of itself, each watched and bounded like any other command.
//!
//! To copy a process with many threads and load a program takes milliseconds; a copy of one that has just been loaded and
//! has done nothing takes a fraction of one. Whoever starts many processes of one kind keeps a nursery. It is told by
//! nobody but its owner, over a socket, and reads nothing else. Each copy is its owner's own child (`CLONE_PARENT`), shares
//! the nursery's descriptor table until the listener of its filter is there (see `launch`), and then closes everything but
//! its streams. The nursery hands the listener over and closes all that it was sent.
//!
//! See `docs/observer.md`, "The nursery".

mod parent;
mod wire;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use invigil_schema::Errno;

use crate::birth::{Birth, end};
use crate::sys::{self, Sys, socket};

/// What a nursery says first. Whoever says something else is none, or one of another version.
const HELLO: &[u8] = b"invigil nursery 1";
/// How long a nursery may take to be loaded, or to answer: it only ever makes a few system calls.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long one waits until another is born, and how often one looks. To load a program takes about as long.
const TURN: Duration = Duration::from_millis(20);
const MOMENT: Duration = Duration::from_micros(100);
/// Nobody's descriptor.
const NONE: RawFd = -1;
/// The first descriptor that is no standard stream.
const OTHERS: u32 = 3;

/// A process that makes copies of itself, from the outside. Dropping it ends the process, and none of the copies.
#[derive(Debug)]
pub struct Nursery(Mutex<Option<Line>>);

/// The way to it, as long as it is there.
#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    process: Child,
    greeted: bool,
    /// It has been told that nobody else will be born.
    retired: bool,
}

impl Nursery {
    /// Starts a program that calls [`nurse`] first thing. The environment is that of all copies.
    pub fn start(
        program: &Path,
        arguments: &[OsString],
        env: &BTreeMap<OsString, OsString>,
    ) -> std::io::Result<Nursery> {
        let system = |error: Errno| std::io::Error::from_raw_os_error(error.0);
        let (ours, its) = socket::pair().map_err(system)?;
        socket::set_timeouts(ours.as_fd(), PATIENCE).map_err(system)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(env)
            .current_dir("/")
            .stdin(its)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = parent::spawn(command)?;
        Ok(Nursery(Mutex::new(Some(Line {
            socket: ours,
            process,
            greeted: false,
            retired: false,
        }))))
    }

    /// None while somebody is being born.
    fn line(&self) -> Option<MutexGuard<'_, Option<Line>>> {
        match self.0.try_lock() {
            Ok(line) => Some(line),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The line, as soon as nobody else is being born. Births are short; behind one that is not, nobody waits for long.
    fn turn(&self) -> Sys<MutexGuard<'_, Option<Line>>> {
        let deadline = Instant::now() + TURN;
        loop {
            match self.line() {
                Some(line) => return Ok(line),
                None if Instant::now() < deadline => thread::sleep(MOMENT),
                None => return Err(Errno(libc::EBUSY)),
            }
        }
    }

    /// Whether it is known to be gone for good. Nobody waits for the answer.
    pub fn is_gone(&self) -> bool {
        let line = self.line();
        line.is_some_and(|line| line.as_ref().is_none_or(|line| line.retired))
    }

    /// Nobody else is to be born. It ends by itself, and nobody has to wait for that. Whoever is being born needs it longer.
    pub fn retire(&self) {
        if let Some(mut line) = self.line()
            && let Some(line) = &mut *line
        {
            line.retired = true;
            socket::hang_up(line.socket.as_fd());
        }
    }

    /// Has a copy made. Of a nursery that has just been started, as soon as it is ready.
    pub(crate) fn bear(&self, birth: &Birth<'_>) -> Sys<Labour<'_>> {
        let mut line = self.turn()?;
        let born = line
            .as_mut()
            .ok_or(Errno(libc::ENOTCONN))
            .and_then(|line| line.bear(birth));
        match born {
            Ok(pid) => Ok(Labour {
                line,
                pid,
                over: false,
            }),
            Err(error) => {
                // It answers no more, or not as it should.
                *line = None;
                Err(error)
            }
        }
    }
}

impl Line {
    fn bear(&mut self, birth: &Birth<'_>) -> Sys<u32> {
        if !self.greeted {
            self.greet()?;
        }
        let (message, descriptors) = wire::packed(birth);
        socket::send_with(self.socket.as_fd(), &message, &descriptors)?;
        let (pid, _) = self.answer()?;
        u32::try_from(pid).map_err(|_| Errno(pid.wrapping_neg()))
    }

    fn greet(&mut self) -> Sys<()> {
        let mut hello = [0; HELLO.len() + 1];
        let (length, _) = socket::receive_with(self.socket.as_fd(), &mut hello)?;
        self.greeted = &hello[..length] == HELLO;
        match self.greeted {
            true => Ok(()),
            false => Err(Errno(libc::EPROTO)),
        }
    }

    /// One number, and perhaps a descriptor.
    fn answer(&self) -> Sys<(i32, Option<OwnedFd>)> {
        let mut number = [0; 4];
        match socket::receive_with(self.socket.as_fd(), &mut number)? {
            (4, mut descriptors) => Ok((i32::from_ne_bytes(number), descriptors.pop())),
            _ => Err(Errno(libc::EPROTO)),
        }
    }

    fn settle(&self, listener: RawFd) -> Sys<Option<OwnedFd>> {
        let message = listener.to_ne_bytes();
        socket::send_with(self.socket.as_fd(), &message, &[])?;
        match listener {
            NONE => Ok(None),
            _ => self.answer()?.1.map(Some).ok_or(Errno(libc::EBADF)),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // It would end by itself, unless somebody has stopped it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A copy that shares the table of its nursery, where nobody else is born meanwhile. When this is dropped, it does not any
/// more, or is dead.
#[derive(Debug)]
pub(crate) struct Labour<'a> {
    line: MutexGuard<'a, Option<Line>>,
    pid: u32,
    over: bool,
}

impl Labour<'_> {
    /// The pid of the copy.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// The copy has a table of its own. Its listener has this number in the nursery's.
    pub(crate) fn finish(mut self, listener: Option<RawFd>) -> Sys<Option<OwnedFd>> {
        self.settle(listener.unwrap_or(NONE))
    }

    /// The copy has not become anything in its time. Whatever keeps them, the nursery ends.
    pub(crate) fn close(mut self) {
        self.over = true;
        *self.line = None;
    }

    fn settle(&mut self, listener: RawFd) -> Sys<Option<OwnedFd>> {
        self.over = true;
        let line = self.line.as_ref().ok_or(Errno(libc::ENOTCONN));
        let settled = line.and_then(|line| line.settle(listener));
        if settled.is_err() {
            *self.line = None;
        }
        settled
    }
}

impl Drop for Labour<'_> {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.settle(NONE);
        }
    }
}

/// The other side. If stdin is the socket of a [`Nursery`], this process becomes one: true is returned in each copy, which
/// goes on from here with streams of its own, and false in the nursery itself when its owner is gone. Otherwise it returns
/// true at once. For a process that has one thread, and as long as it has done nothing.
pub fn nurse() -> bool {
    // SAFETY: whatever it is, it is only asked what it is before it is known to be a socket that was given to us.
    let owner = unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) };
    if !socket::is_of_pair(owner) {
        return true;
    }
    // A copy of a process with threads could wait for ever for one of them. What cannot be closed, copies would have too;
    // what can be and is not ours, a careless parent has left to us.
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    let alone = matches!(threads, Ok(1)) && sys::close_from(OTHERS).is_ok();
    if !alone || sys::prctl(libc::PR_SET_DUMPABLE, 0).is_err() {
        return false;
    }
    // The socket ends with our owner, but whoever is stopped does not see that. The thread that has started us ends last,
    // and copies do not get this of us.
    let _ = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64);
    sys::block_all_signals();
    let mut room = vec![0; wire::LONGEST];
    let mut ready = socket::send_with(owner, HELLO, &[]);
    while ready.is_ok() {
        match next(owner, &mut room) {
            Ok(Born::Copy) => return true,
            Ok(Born::Another) => {}
            Err(error) => ready = Err(error),
        }
    }
    false
}

enum Born {
    /// This is the copy.
    Copy,
    /// There is one more.
    Another,
}

/// Makes one copy, as it is told, and leaves nothing of that for the next to see.
fn next(owner: BorrowedFd<'_>, room: &mut [u8]) -> Sys<Born> {
    let (length, descriptors) = socket::receive_with(owner, room)?;
    let born = bear(owner, &room[..length], descriptors);
    room[..length].fill(0);
    born
}

fn bear(owner: BorrowedFd<'_>, order: &[u8], descriptors: Vec<OwnedFd>) -> Sys<Born> {
    let order = wire::Order::unpacked(order, &descriptors).ok_or(Errno(libc::EPROTO))?;
    let flags = libc::CLONE_PARENT | libc::CLONE_FILES;
    // SAFETY: like fork, with a shared descriptor table and our own parent. We are the only thread, so that the copy is as
    // whole as we are.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if pid == 0 {
        // Whoever is to watch us must be able to.
        let _ = sys::prctl(libc::PR_SET_DUMPABLE, 1);
        order.birth().grow();
        // The table is our own by now, and so are its numbers: those of the nursery stay as they are.
        descriptors.into_iter().for_each(std::mem::forget);
        // With its own listener it could answer itself.
        return match sys::close_from(OTHERS) {
            Ok(()) => Ok(Born::Copy),
            Err(_) => end(),
        };
    }
    let pid = sys::check(pid).unwrap_or_else(|error| -i64::from(error.0));
    socket::send_with(owner, &(pid as i32).to_ne_bytes(), &[])?;
    if pid < 0 {
        return Ok(Born::Another);
    }
    let mut number = [0; 4];
    socket::receive_with(owner, &mut number)?;
    let listener = RawFd::from_ne_bytes(number);
    if listener != NONE {
        socket::send_with(owner, &number, &[listener])?;
    }
    descriptors.into_iter().for_each(std::mem::forget);
    sys::close_from(OTHERS)?;
    Ok(Born::Another)
}
