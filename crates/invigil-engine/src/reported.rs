//! What is reported of a run while it goes on, and when it enters the record: before everything that came after it.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use invigil_schema::{Address, Event, NetOp, NetOpKind, Origin, ProcessRef, RunId, Tier};

use crate::channel::{Channel, Hearer, Peer};
use crate::record::Recorder;
use crate::steer::Helm;

/// The agent's own reports on the channel of its run. Clones hear the same run.
#[derive(Clone)]
pub(crate) struct Reported {
    run_id: RunId,
    tier: Tier,
    channel: Arc<Channel>,
    recorder: Arc<Recorder>,
    helm: Helm,
}

impl Reported {
    pub(crate) fn new(
        run_id: &RunId,
        tier: Tier,
        channel: &Arc<Channel>,
        recorder: &Arc<Recorder>,
        helm: Helm,
    ) -> Self {
        Reported {
            run_id: run_id.clone(),
            tier,
            channel: Arc::clone(channel),
            recorder: Arc::clone(recorder),
            helm,
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
        self.helm.heard(&event);
    }

    fn answer(&self, line: &[u8], from: Option<ProcessRef>, to: &UnixStream) -> bool {
        self.helm.answer(line, from, to)
    }
}
