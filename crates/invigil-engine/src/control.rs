//! Steering a run from outside of its threads: signals that are passed on, and the reason why it is ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invigil_sandbox::{Decision, Line};
use invigil_schema::StopReason;
use rustix::process::Signal;

use crate::approvals::Desk;

/// Steers one run. Clones steer the same run; what comes before it has started is kept until then.
#[derive(Clone, Default)]
pub struct Control(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    line: Option<Line>,
    waiting: Vec<Order>,
    stopped: Option<(StopReason, String)>,
    /// The run is over, and somebody wants the rest to be, too.
    impatient: bool,
    over: bool,
    desk: Option<Desk>,
}

enum Order {
    Signal(i32),
    Kill,
    Answer(u64, Decision),
}

impl Control {
    /// For a run that is about to start.
    pub fn new() -> Self {
        Control::default()
    }

    /// Sends a signal to every process of the run.
    pub fn signal(&self, signal: i32) {
        self.order(Order::Signal(signal));
        if [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT]
            .map(Signal::as_raw)
            .contains(&signal)
        {
            self.interrupted();
        }
    }

    /// The run was sent a signal that ends programs. Who waits for an answer would not feel it: questions are withdrawn.
    pub fn interrupted(&self) {
        // Whoever closes a question comes back here with the answer.
        let desk = self.state().desk.clone();
        if let Some(desk) = desk {
            desk.interrupt();
        }
    }

    /// Where the questions of the run are; None when it is over.
    pub(crate) fn ask_at(&self, desk: Option<Desk>) {
        self.state().desk = desk;
    }

    /// Kills every process of the run.
    pub fn kill(&self) {
        self.order(Order::Kill);
    }

    /// Answers a call that waits.
    pub(crate) fn answer(&self, request: u64, decision: Decision) {
        self.order(Order::Answer(request, decision));
    }

    /// Asks every process of the run to end.
    pub(crate) fn terminate(&self, reason: StopReason, why: &str) {
        self.stop(reason, why);
        self.signal(Signal::TERM.as_raw());
    }

    /// Ends the run at once.
    pub(crate) fn end(&self, reason: StopReason, why: &str) {
        self.stop(reason, why);
        self.order(Order::Kill);
    }

    fn stop(&self, reason: StopReason, why: &str) {
        let mut state = self.state();
        state
            .stopped
            .get_or_insert_with(|| (reason, why.to_owned()));
    }

    /// Why Invigil has ended it, if it has.
    pub(crate) fn stopped(&self) -> Option<(StopReason, String)> {
        self.state().stopped.clone()
    }

    /// The run starts: everything that waited goes there.
    pub(crate) fn attach(&self, line: Line) {
        let mut state = self.state();
        for order in state.waiting.drain(..) {
            carry_out(&line, order);
        }
        state.line = Some(line);
    }

    /// The run is over.
    pub(crate) fn detach(&self) {
        let mut state = self.state();
        (state.line, state.over) = (None, true);
    }

    /// Whether there is a run to steer now.
    pub fn is_running(&self) -> bool {
        self.state().line.is_some()
    }

    /// Whether somebody has asked for an end after the last process was dead.
    pub(crate) fn is_impatient(&self) -> bool {
        self.state().impatient
    }

    fn order(&self, order: Order) {
        let mut state = self.state();
        match &state.line {
            _ if state.over => state.impatient |= !matches!(order, Order::Answer(..)),
            Some(line) => carry_out(line, order),
            None => state.waiting.push(order),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn carry_out(line: &Line, order: Order) {
    match order {
        Order::Signal(signal) => line.signal(signal),
        Order::Kill => line.kill(),
        Order::Answer(request, decision) => line.answer(request, decision),
    }
}
