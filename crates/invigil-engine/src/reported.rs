//! What is reported of a run while it goes on, and when it enters the record: before everything that came after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use invigil_schema::{
    Address, Event, NetOp, NetOpKind, Origin, RunId, SdkEventType, StopReason, Tier,
};

use crate::channel::{Channel, Hearer, Peer};
use crate::control::Control;
use crate::record::Recorder;

/// The agent's own reports on the channel of its run. Clones hear the same run.
#[derive(Clone)]
pub(crate) struct Reported {
    run_id: RunId,
    tier: Tier,
    channel: Arc<Channel>,
    recorder: Arc<Recorder>,
    calls: Calls,
}

/// How many tools the agent's framework says to have called, and how many it may.
#[derive(Clone)]
pub(crate) struct Calls {
    most: Option<u64>,
    made: Arc<AtomicU64>,
    control: Control,
}

impl Calls {
    pub(crate) fn new(most: Option<u64>, control: &Control) -> Self {
        Calls {
            most,
            made: Arc::default(),
            control: control.clone(),
        }
    }

    fn count(&self, event: &Event) {
        let is_call = matches!(
            event,
            Event::SdkEvent(event) if event.event_type == SdkEventType::ToolCallStarted
        );
        if let (true, Some(most)) = (is_call, self.most)
            && self.made.fetch_add(1, Ordering::Relaxed) >= most
        {
            let why = format!("it called more than {most} tools");
            self.control.end(StopReason::Budget, &why);
        }
    }
}

impl Reported {
    pub(crate) fn new(
        run_id: &RunId,
        tier: Tier,
        channel: &Arc<Channel>,
        recorder: &Arc<Recorder>,
        calls: Calls,
    ) -> Self {
        Reported {
            run_id: run_id.clone(),
            tier,
            channel: Arc::clone(channel),
            recorder: Arc::clone(recorder),
            calls,
        }
    }

    /// Records what was said before this fact, which is about to be recorded. While nobody has connected it costs
    /// nothing: who connects is seen doing it.
    pub(crate) fn before(&self, fact: &Event) {
        let connected = matches!(
            fact,
            Event::NetOp(NetOp {
                op: NetOpKind::Connect,
                address: Address::Unix { .. },
                ..
            })
        );
        if connected || self.channel.is_open() {
            // A caller that has to wait is taken on by the thread that serves the channel.
            self.channel.catch_up(self);
        }
    }

    /// Records what is said until the channel is stopped.
    pub(crate) fn serve(&self) {
        self.channel.serve(self);
    }
}

impl Hearer for Reported {
    fn run_id(&self) -> &RunId {
        &self.run_id
    }

    fn who(&self, pid: u32) -> Peer {
        match self.recorder.processes.find(pid) {
            // Without the kernel's facts nobody knows who belongs to the run.
            _ if self.tier == Tier::ContractOnly => Peer::Member(None),
            None => Peer::Stranger,
            member => Peer::Member(member),
        }
    }

    fn hear(&self, event: Event) {
        self.recorder.try_record(Origin::Sdk, &event);
        self.calls.count(&event);
    }
}
