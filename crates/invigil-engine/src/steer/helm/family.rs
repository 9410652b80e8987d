//! Runs inside of the run: started on behalf, awaited, ended before it.

use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use invigil_schema::{
    ChildRunRefused, ChildRunStarted, Origin, ProcessExited, ProcessRef, RunId, RunResumed,
    RunSuspended, SteeredBy, StopReason, SuspendReason,
};

use super::{Await, GRACE, Helm, Inner, SETTLE, lock};
use crate::control::Control;
use crate::steer::children::{self, Birth, Child, ChildNews, ChildSpec};
use crate::steer::request::Reply;

/// So many runs can be asked for before the first of them is started. Each holds a descriptor.
const BIRTHS: usize = 16;

impl Inner {
    /// A process of the run wants a run of its own. It is started when this thread comes to it.
    pub(super) fn conceive(
        &self,
        spec: ChildSpec,
        from: Option<ProcessRef>,
        to: &UnixStream,
    ) -> Option<Reply> {
        let Some(process) = from else {
            children::tell(to, &ChildNews::Elsewhere);
            return None;
        };
        if !self.engine.store.is_at(&children::path(&spec.home)) {
            children::tell(to, &ChildNews::Elsewhere);
            return None;
        }
        match to.try_clone() {
            Ok(stream) => {
                let birth = Birth {
                    spec,
                    process,
                    stream,
                };
                let mut state = self.state();
                if state.births.len() >= BIRTHS {
                    drop(state);
                    let why = "too many runs are asked for at once: try again";
                    birth.tell(&ChildNews::Error(why.to_owned()));
                    return None;
                }
                state.births.push_back(birth);
                drop(state);
                self.wake();
            }
            Err(error) => children::tell(to, &ChildNews::Error(error.to_string())),
        }
        None
    }

    /// Starts the next run that was asked for, on the record first. One at a time: whoever asks without end must not keep us
    /// from orders.
    pub(super) fn bear(&self, helm: &Helm) {
        let _turn = lock(&self.turn);
        let (birth, more) = {
            let mut state = self.state();
            // Nothing is born in a run that stands still.
            let next = match state.stops.is_empty() {
                true => state.births.pop_front(),
                false => None,
            };
            state.bearing = next.as_ref().map(|birth| birth.process);
            (next, !state.births.is_empty())
        };
        let Some(birth) = birth else {
            return;
        };
        if let Err(why) = self.start_child(&birth, helm) {
            let process = Some(birth.process);
            let refused = ChildRunRefused {
                process,
                why: why.clone(),
            };
            drop(self.record(Origin::Runtime, refused));
            birth.tell(&ChildNews::Error(why));
        }
        if more {
            self.wake();
        }
    }

    fn start_child(&self, birth: &Birth, helm: &Helm) -> Result<(), String> {
        if self.state().over || self.control.stopped().is_some() {
            return Err("the run that it would be in is ending".to_owned());
        }
        // A run has the rights of its supervisor under the rules. Who has given some up must not get them back that way.
        if !self.control.is_kin(birth.process, SETTLE) {
            let why = "whoever wants it has other rights than the run, or a sandbox of its own";
            return Err(why.to_owned());
        }
        let left = self.left();
        let ready = lock(&self.children).prepare(birth, &self.engine, &self.spec, &left)?;
        let run_id = ready.run_id.clone();
        self.record(
            Origin::Runtime,
            ChildRunStarted {
                run_id: run_id.clone(),
                process: birth.process,
                depth: ready.depth,
                command: birth.spec.command.clone(),
                reserved: ready.reserved.clone(),
            },
        )?;
        self.begin_to_await(&run_id)?;
        birth.tell(&ChildNews::Started { run_id });
        let helm = helm.clone();
        let child = ready.start(&self.family, birth, move || helm.0.wake());
        lock(&self.children).open.push(child);
        Ok(())
    }

    /// The agent waits, from its first child that goes on to the end of the last.
    fn begin_to_await(&self, child: &RunId) -> Result<(), String> {
        if self.state().awaits.is_some() {
            return Ok(());
        }
        let id = uuid::Uuid::now_v7().simple().to_string();
        let suspended = RunSuspended {
            id: id.clone(),
            reason: SuspendReason::SubAgentAwait,
            pending: vec![child.as_str().to_owned()],
            by: SteeredBy::Supervisor,
            why: None,
        };
        self.record(Origin::Runtime, suspended)?;
        self.state().awaits = Some(Await {
            id,
            since: Instant::now(),
        });
        Ok(())
    }

    /// Takes leave of children that have ended; of all of them, if that is waited for.
    pub(super) fn part(&self, all: bool) {
        let over = lock(&self.children).over(all);
        for mut child in over {
            // Not under the lock: on its way out it may want something of us.
            let (ended, news) = child.leave();
            lock(&self.children).account(&ended.used);
            drop(self.record(Origin::Runtime, ended));
            child.tell(&news);
        }
        if !lock(&self.children).open.is_empty() {
            return;
        }
        let awaits = self.state().awaits.take();
        if let Some(open) = awaits {
            let resumed = RunResumed {
                id: open.id,
                reason: SuspendReason::SubAgentAwait,
                by: SteeredBy::Supervisor,
                after_ms: open.since.elapsed().as_millis() as u64,
            };
            drop(self.record(Origin::Runtime, resumed));
        }
    }

    /// Whoever wanted a run and has ended does not want it any more.
    pub(super) fn exited(&self, exited: &ProcessExited) {
        if *lock(&self.root) == Some(exited.process) {
            let used = exited.user_us + exited.system_us;
            self.cpu_us.store(used, Ordering::Relaxed);
        }
        let wanted = |child: &Child| child.process == exited.process;
        let wants = lock(&self.children).open.iter().any(wanted);
        let mut state = self.state();
        if wants || state.bearing == Some(exited.process) {
            state.gone.push(exited.process);
            drop(state);
            self.wake();
        }
    }

    /// Ends the runs that nobody wants any more.
    pub(super) fn abandon(&self) {
        let gone = std::mem::take(&mut self.state().gone);
        let unwanted = self.children(|child| gone.contains(&child.process));
        for (control, helm) in unwanted {
            cancel_child(&control, helm.as_ref(), "whoever wanted it has ended");
        }
    }

    /// Ends all children, those inside of them first, and waits for them. What does not end in time is killed.
    pub(super) fn cancel_children(&self, why: &str) {
        let children = self.children(|_| true);
        if children.is_empty() {
            return;
        }
        for (control, helm) in &children {
            cancel_child(control, helm.as_ref(), why);
        }
        let until = Instant::now() + GRACE + GRACE;
        while Instant::now() < until && children.iter().any(|(control, _)| !control.is_over()) {
            thread::sleep(Duration::from_millis(5));
        }
        for (control, _) in &children {
            control.kill();
        }
    }

    /// Does something to each child that can be steered.
    pub(super) fn each_child(&self, act: impl FnMut(&Helm)) {
        let children = self.children(|_| true);
        let helms = children.iter().filter_map(|(_, helm)| helm.as_ref());
        helms.for_each(act);
    }

    /// What steers the children that are meant.
    fn children(&self, meant: impl Fn(&Child) -> bool) -> Vec<(Control, Option<Helm>)> {
        let children = lock(&self.children);
        let open = children.open.iter().filter(|child| meant(child));
        let steered = open.map(|child| (child.control.clone(), child.helm.clone()));
        steered.collect()
    }
}

/// Asks a child to end. One that could not begin is not waited for.
fn cancel_child(control: &Control, helm: Option<&Helm>, why: &str) {
    match helm {
        Some(helm) => helm.cancel(why),
        None => control.end(StopReason::Parent, why),
    }
}
