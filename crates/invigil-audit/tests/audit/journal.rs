//! Journals made by hand.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use invigil_audit::{
    Correlation, CorrelationDoc, Fact, Health, HealthDoc, Summary, SummaryDoc, Surface, SurfaceDoc,
    View,
};
use invigil_schema::*;
use serde_json::json;

#[derive(Debug, Clone, Default)]
pub(crate) struct Journal(pub(crate) Vec<(Origin, Event)>);

impl Journal {
    /// Opened, started, and nothing observed.
    pub(crate) fn of(tier: Tier) -> Self {
        let opened = JournalOpened {
            format: 1,
            run_id: RunId::new("run_0193aabbccddeeff").unwrap(),
            writer: "test".into(),
        };
        let started = RunStarted {
            command: vec!["sh".into()],
            cwd: "/w".into(),
            directory: None,
            env_keys: vec![],
            platform: "linux".into(),
            agent_shim: "none".into(),
            tier,
            lineage: None,
        };
        Journal::default().runtime(opened).runtime(started)
    }

    /// A whole run in the notify tier, with `inside` between its beginning and its end.
    pub(crate) fn around(inside: impl FnOnce(Journal) -> Journal) -> Self {
        let begun = Journal::of(Tier::Notify)
            .runtime(observer(Tier::Notify, false))
            .forked(1, None)
            .exec(1, "/bin/sh");
        inside(begun).exited(1, 0).done()
    }

    pub(crate) fn runtime(self, event: impl Into<Event>) -> Self {
        self.with(Origin::Runtime, event)
    }

    pub(crate) fn kernel(self, event: impl Into<Event>) -> Self {
        self.with(Origin::Kernel, event)
    }

    pub(crate) fn with(mut self, origin: Origin, event: impl Into<Event>) -> Self {
        self.0.push((origin, event.into()));
        self
    }

    pub(crate) fn forked(self, pid: u32, parent: Option<u32>) -> Self {
        self.kernel(ProcessForked {
            process: process(pid),
            parent: parent.map(process),
        })
    }

    pub(crate) fn exec(self, pid: u32, path: &str) -> Self {
        self.kernel(exec(pid, path))
    }

    pub(crate) fn exited(self, pid: u32, code: i32) -> Self {
        self.kernel(ProcessExited {
            process: process(pid),
            exit_code: Some(code),
            signal: None,
            user_us: 10,
            system_us: 5,
            max_rss_kib: 1000,
        })
    }

    pub(crate) fn write(self, pid: u32, path: &str) -> Self {
        let mut op = file(pid, FileOpKind::Create, path);
        op.flags = vec![OpenFlag::Write, OpenFlag::Create];
        self.kernel(op)
    }

    pub(crate) fn connect(self, pid: u32, port: u16) -> Self {
        self.kernel(net(pid, NetOpKind::Connect, port))
    }

    pub(crate) fn call(self, pid: u32, id: &str, event_type: SdkEventType) -> Self {
        self.with(Origin::Sdk, sdk(pid, id, event_type))
    }

    pub(crate) fn decision(self, id: &str, decision: &str) -> Self {
        self.runtime(PolicyDecision {
            line: 1,
            source: "gate".into(),
            tool: "edit".into(),
            tool_call_id: id.into(),
            decision: decision.into(),
            body: json!({}),
        })
    }

    pub(crate) fn note(self, note: Note) -> Self {
        self.runtime(ObserverNote {
            process: None,
            note,
            detail: "pid 4711 did it".into(),
        })
    }

    pub(crate) fn done(self) -> Self {
        self.runtime(ObserverFinished {
            emitted: 7,
            received: 7,
            ..ObserverFinished::default()
        })
        .runtime(RunFinished {
            exit_code: Some(0),
            signal: None,
            success: true,
            window_elapsed_ms: 12,
            stopped: None,
            why: None,
        })
    }

    pub(crate) fn fold<V: View + Default>(&self) -> V::Document {
        let mut view = V::default();
        for (seq, (origin, event)) in (0..).zip(&self.0) {
            let mono = seq * 1_000_000;
            let stamp = Stamp {
                time: Timestamp::from_micros(mono / 1000),
                mono,
            };
            let origin = *origin;
            view.take(&Fact {
                seq,
                stamp,
                origin,
                event,
            });
        }
        view.document()
    }

    pub(crate) fn surface(&self) -> SurfaceDoc {
        self.fold::<Surface>()
    }

    pub(crate) fn health(&self) -> HealthDoc {
        self.fold::<Health>()
    }

    pub(crate) fn correlation(&self) -> CorrelationDoc {
        self.fold::<Correlation>()
    }

    pub(crate) fn summary(&self) -> SummaryDoc {
        self.fold::<Summary>()
    }
}

pub(crate) fn process(pid: u32) -> ProcessRef {
    let start = u64::from(pid) * 100;
    ProcessRef { pid, start }
}

pub(crate) fn exec(pid: u32, path: &str) -> ProcessExec {
    ProcessExec {
        process: process(pid),
        parent: None,
        executable: path.into(),
        requested: None,
        argv: vec![path.into()],
        argv_cut_bytes: 0,
        cwd: "/w".into(),
        sha256: None,
    }
}

pub(crate) fn file(pid: u32, op: FileOpKind, path: &str) -> FileOp {
    FileOp {
        process: process(pid),
        op,
        path: path.into(),
        to: None,
        flags: vec![],
        mode: None,
        detail: None,
        result: CallResult::Ok,
    }
}

pub(crate) fn net(pid: u32, op: NetOpKind, port: u16) -> NetOp {
    NetOp {
        process: process(pid),
        op,
        address: Address::Inet {
            ip: Ipv4Addr::LOCALHOST,
            port,
        },
        host: None,
        instead: None,
        result: CallResult::Ok,
    }
}

pub(crate) fn sdk(pid: u32, id: &str, event_type: SdkEventType) -> SdkEvent {
    SdkEvent {
        connection: Some(0),
        line: 1,
        process: Some(process(pid)),
        event_type,
        source: "test".into(),
        tool_call_id: Some(id.into()),
        tool: Some("edit".into()),
        body: json!({}),
    }
}

pub(crate) fn hook(name: &str, attached: bool) -> Hook {
    Hook {
        name: name.into(),
        attached,
        why_not: (!attached).then(|| "test".into()),
    }
}

pub(crate) fn observer(tier: Tier, reads: bool) -> ObserverStarted {
    let seen = tier != Tier::ContractOnly;
    ObserverStarted {
        tier,
        reads,
        hooks: vec![
            hook("processes", seen),
            hook("files", seen),
            hook("network", seen),
            hook("reads", reads),
        ],
        landlock_abi: None,
        kernel: "6.18".into(),
        privileged: false,
        floor: None,
        limits: vec![],
    }
}

pub(crate) fn lost(cause: &str, count: u64) -> ObserverFinished {
    ObserverFinished {
        emitted: count.saturating_add(7),
        received: 7,
        lost: BTreeMap::from([(cause.into(), count)]),
        processes: 1,
    }
}

pub(crate) fn rejected(flaw: LineFlaw) -> SdkRejected {
    SdkRejected {
        connection: None,
        line: 3,
        process: None,
        flaw,
        reason: "test".into(),
        text: "x".into(),
    }
}
