//! A run that is stopped as a whole. Every task is held in a stop of the tracer's, which no signal from inside ends but
//! a killing one; who is born or comes out of a call meanwhile is held too, and trapped calls are not looked at.

use std::collections::HashMap;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::Observer;
use crate::sys::fs::{self, cstring};
use crate::sys::ptrace;
use crate::waker::Order;

/// Between two looks at whether anything still moves.
pub(super) const SETTLE: Duration = Duration::from_millis(5);

/// A run that is stopped, or about to be.
#[derive(Debug, Default)]
pub(super) struct Pause {
    held: HashMap<u32, Held>,
    /// What comes from outside waits too.
    postponed: Vec<Order>,
    /// Who wants to know when nothing moves any more.
    tell: Vec<SyncSender<()>>,
}

/// Where a task is held, and how it goes on.
#[derive(Debug, Clone, Copy)]
enum Held {
    /// With this signal, or with 0.
    Signal(i32),
    /// At a call that has not been looked at.
    Call,
}

impl Observer {
    /// Stops everybody. A second order only asks to be told.
    pub(super) fn pause(&mut self, tell: SyncSender<()>) {
        if self.paused.is_none() {
            for tid in self.table.tasks.keys() {
                let _ = ptrace::interrupt(*tid);
            }
        }
        self.paused
            .get_or_insert_with(Pause::default)
            .tell
            .push(tell);
    }

    /// Lets everybody go on, each with what it was about to do.
    pub(super) fn unpause(&mut self) {
        let Some(pause) = self.paused.take() else {
            return;
        };
        for (tid, held) in pause.held {
            match held {
                Held::Signal(signal) => self.resume(tid, signal),
                Held::Call => self.on_call_stop(tid),
            }
        }
        for order in pause.postponed {
            self.obey(order);
        }
    }

    /// Keeps a stopped task where it is, if the run is paused. The dying are not kept.
    pub(super) fn holds(&mut self, tid: u32, signal: i32) -> bool {
        self.hold(tid, Held::Signal(signal))
    }

    /// The same at a call.
    pub(super) fn holds_call(&mut self, tid: u32) -> bool {
        self.hold(tid, Held::Call)
    }

    fn hold(&mut self, tid: u32, held: Held) -> bool {
        match &mut self.paused {
            Some(pause) if self.killed.is_none() => {
                pause.held.insert(tid, held);
                true
            }
            _ => false,
        }
    }

    /// A task is dead.
    pub(super) fn forget_held(&mut self, tid: u32) {
        if let Some(pause) = &mut self.paused {
            pause.held.remove(&tid);
        }
    }

    /// Keeps what would let a call happen; gives back everything else.
    pub(super) fn postpone(&mut self, order: Order) -> Option<Order> {
        let acts = matches!(
            order,
            Order::Answer(..) | Order::Opened(..) | Order::Connected(..)
        );
        match &mut self.paused {
            Some(pause) if acts => {
                pause.postponed.push(order);
                None
            }
            _ => Some(order),
        }
    }

    /// Whether somebody waits for the run to be still.
    pub(super) fn settles(&self) -> bool {
        self.paused
            .as_ref()
            .is_some_and(|pause| !pause.tell.is_empty())
    }

    /// Tells those who wait, if nothing moves any more.
    pub(super) fn tell_when_still(&mut self) {
        let Some(pause) = &mut self.paused else {
            return;
        };
        if pause.tell.is_empty() {
            return;
        }
        let mut tasks = self.table.tasks.keys();
        if tasks.all(|tid| pause.held.contains_key(tid) || is_still(*tid)) {
            for tell in pause.tell.drain(..) {
                let _ = tell.try_send(());
            }
        }
    }
}

/// Whether a task does nothing: it is stopped, dead, or waits in the kernel for something that only we, or a task that is
/// held, can give. On its way back from there it is stopped.
fn is_still(tid: u32) -> bool {
    let stat = cstring(format!("/proc/{tid}/stat")).and_then(|path| fs::read_all(&path));
    let Ok(stat) = stat else { return true };
    let behind = stat.iter().rposition(|byte| *byte == b')');
    let state = behind.and_then(|at| stat.get(at + 2));
    !matches!(state, Some(b'R' | b'S'))
}
