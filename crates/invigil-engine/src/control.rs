//! Steering a run from outside of its threads: signals that are passed on, and the reason why it is ended.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use invigil_sandbox::{Decision, Line};
use invigil_schema::{BudgetExceeded, BudgetKind, Origin, ProcessRef, StopReason};
use rustix::process::Signal;

use crate::approvals::Desk;
use crate::record::Recorder;

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
    recorder: Option<Arc<Recorder>>,
    /// Budgets that are known to be exceeded.
    exceeded: BTreeSet<BudgetKind>,
    /// Since when every process is stopped.
    paused: Option<Instant>,
    /// For how long every process was stopped before.
    rested: Duration,
}

/// What became of an order to stop every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paused {
    /// Nothing moves.
    Still,
    /// Somebody is in a call that takes its time, and is stopped on the way back from it.
    Settling,
    /// There is nothing to stop.
    NotRunning,
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

    /// Where budgets that are exceeded are recorded; None when the run is over.
    pub(crate) fn record_at(&self, recorder: Option<Arc<Recorder>>) {
        self.state().recorder = recorder;
    }

    /// Stops every process of the run, until [`Control::resume`]. One that has not begun yet begins stopped.
    pub(crate) fn pause(&self, patience: Duration) -> Paused {
        let line = {
            let mut state = self.state();
            if state.over {
                return Paused::NotRunning;
            }
            state.paused.get_or_insert_with(Instant::now);
            state.line.clone()
        };
        let Some(line) = line else {
            return Paused::Still;
        };
        // Not under the lock: whoever is stopped meanwhile may need it.
        match line.pause(patience) {
            true => Paused::Still,
            false => Paused::Settling,
        }
    }

    /// Lets every process of the run go on.
    pub(crate) fn resume(&self) {
        let mut state = self.state();
        if let Some(since) = state.paused.take() {
            state.rested += since.elapsed();
        }
        if let Some(line) = &state.line {
            line.resume();
        }
    }

    /// Whether a process of the run still has what the command was started with.
    pub(crate) fn is_kin(&self, process: ProcessRef, patience: Duration) -> bool {
        let line = self.state().line.clone();
        line.is_some_and(|line| line.is_kin(process, patience))
    }

    /// For how long every process was stopped, and whether they are now.
    pub(crate) fn rested(&self) -> (Duration, bool) {
        let state = self.state();
        let now = state.paused.map_or(Duration::ZERO, |since| since.elapsed());
        (state.rested + now, state.paused.is_some())
    }

    /// Records that a budget is exceeded, once, and gives the reason for the end of the run.
    pub(crate) fn exceeded(&self, exceeded: BudgetExceeded) {
        let recorder = {
            let mut state = self.state();
            match state.exceeded.insert(exceeded.budget) {
                true => state.recorder.clone(),
                false => None,
            }
        };
        if let Some(recorder) = recorder {
            recorder.try_record(Origin::Runtime, &exceeded.into());
        }
    }

    /// Ends the run at once, because a budget is exceeded.
    pub(crate) fn end_over_budget(&self, exceeded: BudgetExceeded, why: &str) {
        self.exceeded(exceeded);
        self.end(StopReason::Budget, why);
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

    /// The run starts: everything that waited goes there. Told as soon as there is somebody to tell, before the command
    /// is there.
    pub(crate) fn attach(&self, line: Line) {
        let mut state = self.state();
        if state.paused.is_some() {
            // Whoever wanted it has been told already.
            line.pause(Duration::ZERO);
        }
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

    /// Whether the last process of the run is dead.
    pub(crate) fn is_over(&self) -> bool {
        self.state().over
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
