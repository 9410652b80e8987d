//! How an observer learns that there is something to do: `SIGCHLD`, and a mailbox.
//!
//! `SIGCHLD` is sent to the process, and any thread may get it. An observer takes it only while it waits, which
//! interrupts the waiting; a handler on any other thread rings every observer's bell. So none is ever missed, whoever
//! gets it. A program that calls [`leave_child_signals`] before it makes threads has the observer woken at once each
//! time; otherwise the kernel mostly wakes the main thread first.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use invigil_schema::{Errno, Limited, ProcessRef};

use crate::api::Decision;
use crate::sys::{self, Sys};

/// How many runs one process can watch at once.
const BELLS: usize = 256;
/// A bell is never closed: a handler on another thread may be about to ring it, and the number could be anybody's then.
static BELL: [AtomicI32; BELLS] = [const { AtomicI32::new(-1) }; BELLS];
/// The thread that a bell is for; 0 if it is free.
static OWNER: [AtomicU32; BELLS] = [const { AtomicU32::new(0) }; BELLS];

extern "C" fn on_child(_: libc::c_int) {
    let errno = sys::errno();
    let here = sys::gettid();
    for (bell, owner) in BELL.iter().zip(&OWNER) {
        let fd = bell.load(Ordering::Acquire);
        let owner = owner.load(Ordering::Acquire);
        if fd >= 0 && owner != 0 && owner != here {
            sys::ring(fd);
        }
    }
    // SAFETY: the location is valid for the life of the thread.
    unsafe { *libc::__errno_location() = errno.0 };
}

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handler only reads atomics and writes to eventfds, and keeps errno.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_child as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGCHLD, &action, std::ptr::null_mut());
        }
    });
}

/// Whether the program has kept `SIGCHLD` back on our behalf.
static KEPT_BACK: AtomicBool = AtomicBool::new(false);

/// Leaves `SIGCHLD` to the threads that watch runs: the calling thread, and those that it makes from now on, do not
/// take it. Commands are started without this mask. To be called first thing in `main`; not needed, but faster.
pub fn leave_child_signals() {
    let before = sys::current_mask(None);
    if !sys::holds(&before, libc::SIGCHLD) {
        KEPT_BACK.store(true, Ordering::Release);
        sys::block_signal(libc::SIGCHLD);
    }
}

/// Lets the calling thread use the terminal without being stopped for it: in the background its reads fail, and its
/// writes pass.
pub fn keep_from_being_stopped() {
    sys::block_signal(libc::SIGTTIN);
    sys::block_signal(libc::SIGTTOU);
}

/// The mask that a command starts with: that of the calling thread, but for what is only ours.
pub(crate) fn command_mask() -> libc::sigset_t {
    let ours = KEPT_BACK.load(Ordering::Acquire);
    sys::current_mask(ours.then_some(libc::SIGCHLD))
}

/// What somebody outside wants of an observer.
#[derive(Debug)]
pub(crate) enum Order {
    /// Send a signal to every process.
    Signal(i32),
    /// Kill every process.
    Kill,
    /// Stop every process, and say when none moves any more.
    Pause(SyncSender<()>),
    /// Let every process go on.
    Resume,
    /// Say whether a process still has all that it was started with, and nothing more.
    Kin(ProcessRef, SyncSender<bool>),
    /// The answer to a question.
    Answer(u64, Decision),
    /// An open that had to wait has ended.
    Opened(u64, Sys<OwnedFd>),
    /// Too much was used: which limit, and how much.
    Limit(Limited, u64),
    /// A connection or a message has ended, well or not.
    Connected(u64, Sys<i64>),
}

/// Where orders wait.
#[derive(Debug)]
pub(crate) struct Mailbox {
    bell: BorrowedFd<'static>,
    slot: usize,
    orders: Mutex<VecDeque<Order>>,
}

impl Mailbox {
    /// A mailbox for the calling thread, whose `SIGCHLD` is kept back from now on except while it waits.
    pub(crate) fn for_this_thread() -> Sys<Mailbox> {
        install_handler();
        sys::block_signal(libc::SIGCHLD);
        let here = sys::gettid();
        let take = |slot: &usize| {
            OWNER[*slot]
                .compare_exchange(0, here, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let slot = (0..BELLS).find(take).ok_or(Errno(libc::EAGAIN))?;
        let mut fd = BELL[slot].load(Ordering::Acquire);
        if fd < 0 {
            fd = match sys::eventfd() {
                Ok(bell) => bell.into_raw_fd(),
                Err(error) => {
                    OWNER[slot].store(0, Ordering::Release);
                    return Err(error);
                }
            };
            BELL[slot].store(fd, Ordering::Release);
        }
        // SAFETY: it is open, and never closed.
        let bell = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(Mailbox {
            bell,
            slot,
            orders: Mutex::default(),
        })
    }

    fn orders(&self) -> MutexGuard<'_, VecDeque<Order>> {
        // A queue is whole whatever its user was doing.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves an order.
    pub(crate) fn post(&self, order: Order) {
        self.orders().push_back(order);
        sys::ring(self.bell.as_raw_fd());
    }

    /// Takes the oldest order.
    pub(crate) fn take(&self) -> Option<Order> {
        self.orders().pop_front()
    }

    /// What is readable when there is an order.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        OWNER[self.slot].store(0, Ordering::Release);
    }
}
