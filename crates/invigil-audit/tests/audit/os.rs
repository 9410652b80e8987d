//! The snapshot: its two golden cases, its rules, and what holds for every journal and every session log.

use std::path::Path;

use invigil_audit::{
    AnomalyKind, Fact, MilestoneState, OsSnapshot, OsView, ProcessState, RunState, View,
};
use invigil_schema::*;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::journal::{Journal, process};
use crate::props;

fn golden(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    std::fs::read_to_string(directory.join(name)).unwrap()
}

fn log(text: &str) -> Vec<SessionRecord> {
    let events: Vec<Value> = serde_json::from_str(text).unwrap();
    let events = events.into_iter();
    events
        .map(|event| SessionRecord::parse(&event.to_string()).unwrap())
        .collect()
}

fn session(log: &[SessionRecord]) -> OsSnapshot {
    let mut view = OsView::default();
    log.iter().for_each(|record| view.take_session(record));
    view.snapshot()
}

fn events(events: Value) -> OsSnapshot {
    session(&log(&events.to_string()))
}

fn anomalies(snapshot: &OsSnapshot) -> Vec<(u64, AnomalyKind)> {
    let anomalies = snapshot.anomalies.iter();
    anomalies.map(|one| (one.seq, one.anomaly)).collect()
}

#[test]
fn the_golden_cases() {
    for name in ["ask_user", "spawn_lifecycle"] {
        let log = log(&golden(&format!("{name}.events.json")));
        let text = golden(&format!("{name}.snapshot.json"));
        let snapshot = session(&log);
        assert_eq!(
            format!("{}\n", serde_json::to_string_pretty(&snapshot).unwrap()),
            text,
            "{name}"
        );
        assert_eq!(serde_json::from_str::<OsSnapshot>(&text).unwrap(), snapshot);
        assert!(session_log_has_required_categories(&log), "{name}");
        assert!(log.iter().all(|record| category_flaw(record).is_none()));
    }
}

#[test]
fn an_older_snapshot_has_no_memories() {
    let older = json!({
        "last_suspend": null, "last_resumed_turn": 7, "process_by_agent": [], "budget_exceeded": [], "signals": [],
        "page_out_count": 1, "page_in_count": 2, "tool_gated_count": 3,
    });
    let snapshot: OsSnapshot = serde_json::from_value(older).unwrap();
    let expected = OsSnapshot {
        last_resumed_turn: Some(7),
        page_out_count: 1,
        page_in_count: 2,
        tool_gated_count: 3,
        ..OsSnapshot::default()
    };
    assert_eq!(snapshot, expected);
}

#[test]
fn the_last_event_wins_at_the_first_place() {
    let change = |agent: &str, turn: u64, state: &str| {
        json!({ "kind": "agent_process_changed", "turn": turn, "agent_id": agent, "parent_session_id": "p",
            "state": state })
    };
    let snapshot = events(json!([
        change("a", 1, "running"),
        change("b", 9, "running"),
        // The order of the log counts, not that of the turns.
        change("b", 2, "waiting"),
        change("a", 3, "joined"),
    ]));
    let rows: Vec<_> = snapshot
        .process_by_agent
        .iter()
        .map(|row| (row.agent_id.as_str(), row.turn, row.state.as_str()))
        .collect();
    assert_eq!(rows, [("a", 3, "joined"), ("b", 2, "waiting")]);
    assert_eq!(anomalies(&snapshot), []);
}

#[test]
fn what_cannot_be_is_listed_and_not_applied() {
    let change = |agent: &str, state: &str| {
        json!({ "kind": "agent_process_changed", "turn": 1, "agent_id": agent, "parent_session_id": "p",
            "state": state })
    };
    let snapshot = events(json!([
        change("ghost", "joined"),
        { "kind": "resumed", "turn": 1 },
        change("a", "running"),
        change("a", "joined"),
        change("a", "joined"),
        change("a", "running"),
        { "kind": "suspended", "turn": 4, "reason": "ask_user", "pending_calls": ["c1"] },
        { "kind": "resumed", "turn": 5, "approved": ["another"] },
        { "kind": "resumed", "turn": 6, "denied": ["c1"] },
        { "kind": "resumed", "turn": 7, "denied": ["c1"] },
        { "kind": "run_terminal", "reason": "done" },
        { "kind": "page_out", "turn": 8 },
        { "kind": "run_terminal", "reason": "done" },
        { "kind": "dreamt" },
    ]));
    use AnomalyKind::*;
    assert_eq!(
        anomalies(&snapshot),
        [
            (0, UnknownAgent),
            (1, StaleCompletion),
            (4, DuplicateCompletion),
            (5, AfterEnd),
            (7, StaleCompletion),
            (9, DuplicateCompletion),
            (11, AfterEnd),
            (12, DuplicateCompletion),
        ]
    );
    assert_eq!(snapshot.process_by_agent.len(), 1);
    assert_eq!(snapshot.process_by_agent[0].state, "joined");
    assert_eq!(snapshot.last_resumed_turn, Some(6));
    assert_eq!(
        (snapshot.page_out_count, snapshot.categories.unknown),
        (0, 1)
    );
}

#[test]
fn suspensions_stay_open_until_they_are_resumed() {
    let suspended =
        json!({ "kind": "suspended", "turn": 2, "reason": "ask_user", "pending_calls": ["c1"] });
    let open = events(json!([suspended]));
    assert_eq!(open.open_suspensions.len(), 1);
    assert_eq!(open.last_resumed_turn, None);
    let closed = events(json!([suspended, { "kind": "resumed", "turn": 3 }]));
    assert_eq!(closed.open_suspensions, []);
    assert_eq!(closed.last_suspend, open.last_suspend);
}

fn asked(id: &str, pid: u32) -> ApprovalRequested {
    ApprovalRequested {
        id: id.into(),
        process: process(pid),
        what: Asked::File {
            op: FileOpKind::Open,
            path: "/x".into(),
            to: None,
            flags: vec![],
            detail: None,
        },
        action: Digest::ZERO,
        rule: "r".into(),
        reason: None,
        deadline: Timestamp::from_micros(0),
    }
}

fn answered(id: &str) -> (Origin, Event) {
    let answered = ApprovalAnswered {
        id: id.into(),
        action: Digest::ZERO,
        decision: ApprovalDecision::Allow,
        scope: None,
        by: ApprovalBy::Terminal { uid: 0 },
        reason: None,
        added: None,
        not_added: None,
    };
    (Origin::User, answered.into())
}

fn suspended(id: &str, reason: SuspendReason) -> RunSuspended {
    RunSuspended {
        id: id.into(),
        reason,
        pending: vec![],
        by: SteeredBy::Supervisor,
        why: None,
    }
}

fn resumed(id: &str, reason: SuspendReason) -> RunResumed {
    RunResumed {
        id: id.into(),
        reason,
        by: SteeredBy::Supervisor,
        after_ms: 1,
    }
}

fn child(run: &str) -> ChildRunStarted {
    ChildRunStarted {
        run_id: RunId::new(run).unwrap(),
        process: process(1),
        depth: 1,
        command: vec![],
        reserved: vec![],
    }
}

fn child_ended(run: &str) -> ChildRunEnded {
    ChildRunEnded {
        run_id: RunId::new(run).unwrap(),
        exit_code: Some(0),
        signal: None,
        success: true,
        stopped: None,
        used: vec![],
    }
}

fn fold(journal: &Journal) -> OsSnapshot {
    journal.fold::<OsView>()
}

#[test]
fn questions_suspend_and_answers_resume() {
    let waits = Journal::of(Tier::Notify)
        .forked(1, None)
        .exec(1, "/bin/sh")
        .runtime(asked("q1", 1));
    let snapshot = fold(&waits);
    assert_eq!(snapshot.open_suspensions[0].pending_calls, ["q1"]);
    assert_eq!(snapshot.open_suspensions[0].turn, 4);
    assert_eq!(snapshot.tool_gated_count, 1);
    assert_eq!(snapshot.processes.rows[0].state, ProcessState::Waiting);
    let (origin, answer) = answered("q1");
    let goes_on = waits.with(origin, answer.clone());
    let snapshot = fold(&goes_on);
    assert_eq!(snapshot.open_suspensions, []);
    assert_eq!(snapshot.last_resumed_turn, Some(5));
    assert_eq!(snapshot.processes.rows[0].state, ProcessState::Running);
    // A second answer, one to nobody, and one for which nobody vouches.
    let (_, stranger) = answered("q2");
    let odd = goes_on
        .with(Origin::User, answer.clone())
        .with(Origin::User, stranger)
        .with(Origin::Sdk, answer);
    use AnomalyKind::{DuplicateCompletion, StaleCompletion};
    assert_eq!(
        anomalies(&fold(&odd)),
        [(6, DuplicateCompletion), (7, StaleCompletion)]
    );
}

#[test]
fn a_pause_stops_every_process() {
    let paused = Journal::of(Tier::Notify)
        .forked(1, None)
        .exec(1, "/bin/sh")
        .runtime(suspended("s1", SuspendReason::Pause))
        .forked(2, Some(1));
    let snapshot = fold(&paused);
    assert_eq!(snapshot.run_state, Some(RunState::Paused));
    let stopped = |row: &invigil_audit::ProcessRow| row.state == ProcessState::Stopped;
    assert!(snapshot.processes.rows.iter().all(stopped));
    let snapshot = fold(&paused.runtime(resumed("s1", SuspendReason::Pause)));
    assert_eq!(snapshot.run_state, Some(RunState::Running));
    let states: Vec<ProcessState> = snapshot
        .processes
        .rows
        .iter()
        .map(|row| row.state)
        .collect();
    assert_eq!(states, [ProcessState::Running, ProcessState::Starting]);
}

#[test]
fn what_a_signal_has_stopped_stays_stopped_when_the_run_goes_on() {
    let (signal, stopped) = (Some(19), process(2));
    let run = Journal::of(Tier::Notify)
        .forked(1, None)
        .forked(2, Some(1))
        .kernel(ProcessStopped {
            process: stopped,
            signal,
        })
        .runtime(suspended("s", SuspendReason::Pause))
        .runtime(resumed("s", SuspendReason::Pause));
    let states = |run: &Journal| -> Vec<ProcessState> {
        let rows = fold(run).processes.rows;
        rows.iter().map(|row| row.state).collect()
    };
    assert_eq!(
        states(&run),
        [ProcessState::Starting, ProcessState::Stopped]
    );
    let goes_on = run.kernel(ProcessContinued { process: stopped });
    assert_eq!(states(&goes_on), [ProcessState::Starting; 2]);
}

#[test]
fn child_runs_are_agents_of_their_parent() {
    let parent = Journal::of(Tier::Notify)
        .runtime(child("one"))
        .runtime(child("two"))
        .runtime(suspended("w", SuspendReason::SubAgentAwait))
        .runtime(child_ended("two"))
        .runtime(child_ended("two"))
        .runtime(child_ended("ghost"));
    let snapshot = fold(&parent);
    let rows: Vec<_> = snapshot
        .process_by_agent
        .iter()
        .map(|row| (row.agent_id.as_str(), row.state.as_str()))
        .collect();
    let own = "run_0193aabbccddeeff";
    assert_eq!(
        rows,
        [(own, "running"), ("one", "running"), ("two", "exited")]
    );
    assert_eq!(snapshot.process_by_agent[1].parent_session_id, own);
    assert_eq!(snapshot.run_state, Some(RunState::Running));
    use AnomalyKind::{DuplicateCompletion, UnknownAgent};
    assert_eq!(
        anomalies(&snapshot),
        [(6, DuplicateCompletion), (7, UnknownAgent)]
    );
}

#[test]
fn processes_live_end_and_are_lost() {
    let run = Journal::of(Tier::Notify)
        .forked(1, None)
        .forked(2, Some(1))
        .exec(2, "/bin/true")
        .exited(2, 3)
        .exited(2, 3)
        .exited(9, 0)
        .done();
    let snapshot = fold(&run);
    let states: Vec<ProcessState> = snapshot
        .processes
        .rows
        .iter()
        .map(|row| row.state)
        .collect();
    let (code, signal) = (Some(3), None);
    assert_eq!(
        states,
        [ProcessState::Lost, ProcessState::Exited { code, signal }]
    );
    assert_eq!(
        (snapshot.processes.started, snapshot.processes.ended),
        (2, 1)
    );
    assert_eq!(snapshot.run_state, Some(RunState::Ended));
    use AnomalyKind::{AfterEnd, DuplicateCompletion, UnknownAgent};
    let odd = [(6, DuplicateCompletion), (7, UnknownAgent)];
    assert_eq!(anomalies(&snapshot), odd);
    let after = run.write(1, "/x").forked(5, None).done();
    let late = [
        (10, AfterEnd),
        (11, AfterEnd),
        (12, AfterEnd),
        (13, DuplicateCompletion),
    ];
    assert_eq!(anomalies(&fold(&after)), [&odd[..], &late].concat());
}

#[test]
fn steps_are_counted_and_named() {
    let by = SteeredBy::Supervisor;
    let taken = CheckpointTaken {
        id: "c1".into(),
        cause: CheckpointCause::Ordered,
        label: None,
        workspace: "/w".into(),
        tree: "t".into(),
        at_seq: 1,
        files: 1,
        bytes: 1,
        left_out: vec![],
        left_out_count: 0,
        by: by.clone(),
    };
    let back = Rollbacked {
        checkpoint: "c1".into(),
        at_seq: 1,
        before: "c2".into(),
        restored: 1,
        removed: 0,
        failed: vec![],
        failed_count: 0,
    };
    let run = Journal::of(Tier::Notify)
        .runtime(taken.clone())
        .runtime(MilestonesSet {
            phases: vec!["one".into(), "two".into()],
            sha256: Digest::ZERO,
        })
        .runtime(MilestoneAdvanced {
            phase: "one".into(),
            next: Some("two".into()),
            by: by.clone(),
        })
        .runtime(MilestoneBlocked {
            phase: "two".into(),
            missing: vec![],
            by,
        })
        .done()
        // What a run left can be put back later.
        .runtime(taken)
        .runtime(back);
    let snapshot = fold(&run);
    assert_eq!((snapshot.checkpoint_count, snapshot.rollback_count), (2, 1));
    assert_eq!(snapshot.last_checkpoint.as_ref().unwrap().turn, 8);
    assert_eq!(snapshot.last_rollback.as_ref().unwrap().id, "c1");
    let states: Vec<MilestoneState> = snapshot.milestones.iter().map(|row| row.state).collect();
    assert_eq!(states, [MilestoneState::Advanced, MilestoneState::Blocked]);
    assert_eq!(anomalies(&snapshot), []);
}

#[test]
fn lists_that_grow_have_an_end() {
    let mut view = OsView::default();
    let record = |kind: &str, turn: u64| {
        let event = json!({ "kind": kind, "turn": turn, "signal_id": "s", "disposition": "queue", "queue_depth": 1,
            "reason": "r", "state": "joined", "agent_id": "ghost", "parent_session_id": "p" });
        SessionRecord::parse(&event.to_string()).unwrap()
    };
    for turn in 0..2_000 {
        for kind in ["signal_disposed", "suspended", "agent_process_changed"] {
            view.take_session(&record(kind, turn));
        }
    }
    let snapshot = view.snapshot();
    assert_eq!(
        (snapshot.signals.len(), snapshot.left_out.signals),
        (1024, 976)
    );
    assert_eq!(snapshot.signals[0].turn, 976);
    let open = (
        snapshot.open_suspensions.len(),
        snapshot.left_out.open_suspensions,
    );
    assert_eq!(open, (1024, 976));
    let odd = (snapshot.anomalies.len(), snapshot.left_out.anomalies);
    assert_eq!(odd, (256, 1744));
}

/// The lines of a journal, as they are written.
fn lines(journal: &Journal) -> Vec<Vec<u8>> {
    let records = (0..).zip(&journal.0);
    let line = |(seq, (origin, event)): (u64, &(Origin, Event))| {
        let mut line = Vec::new();
        let stamp = stamp(seq);
        encode_body(&mut line, seq, stamp, *origin, event).unwrap();
        line.extend_from_slice(format!(",\"hash\":\"{}\"}}", Digest::ZERO).as_bytes());
        line
    };
    records.map(line).collect()
}

fn stamp(seq: u64) -> Stamp {
    Stamp {
        time: Timestamp::from_micros(seq),
        mono: seq,
    }
}

fn of_lines(lines: &[Vec<u8>]) -> OsView {
    let mut view = OsView::default();
    for line in lines {
        view.take_line(line).unwrap();
    }
    view
}

/// What is kept of a fold, and read back.
fn kept(view: &OsView) -> OsView {
    serde_json::from_str(&serde_json::to_string(view).unwrap()).unwrap()
}

/// Everything that the snapshot looks at, in any order, among facts that it does not.
fn steered() -> impl Strategy<Value = (Origin, Event)> {
    let ids = || select(vec!["a", "b", "c"]);
    let reasons = || {
        select(vec![
            SuspendReason::Pause,
            SuspendReason::Files,
            SuspendReason::SubAgentAwait,
        ])
    };
    let own = |event: Event| (Origin::Runtime, event);
    prop_oneof![
        (ids(), 1..5u32).prop_map(move |(id, pid)| own(asked(id, pid).into())),
        ids().prop_map(answered),
        (ids(), reasons()).prop_map(move |(id, reason)| own(suspended(id, reason).into())),
        (ids(), reasons()).prop_map(move |(id, reason)| own(resumed(id, reason).into())),
        ids().prop_map(move |id| own(child(id).into())),
        ids().prop_map(move |id| own(child_ended(id).into())),
        (1..5u32).prop_map(|pid| {
            let process = process(pid);
            let signal = None;
            (Origin::Kernel, ProcessStopped { process, signal }.into())
        }),
        Just(own(RunFinished {
            exit_code: Some(1),
            signal: None,
            success: false,
            window_elapsed_ms: 1,
            stopped: Some(StopReason::Budget),
            why: None,
        }
        .into())),
    ]
}

fn journal() -> impl Strategy<Value = Journal> {
    let facts = prop_oneof![3 => props::fact(), 4 => steered()];
    proptest::collection::vec(facts, 0..40).prop_map(|facts| {
        let mut journal = Journal::of(Tier::Notify);
        journal.0.extend(facts);
        journal
    })
}

fn session_log() -> impl Strategy<Value = Vec<SessionRecord>> {
    let kinds = select(SessionKind::ALL.to_vec());
    let ids = || select(vec!["a", "b", "c"]);
    let states = select(vec!["running", "waiting", "joined", "failed"]);
    let event = (kinds, ids(), ids(), states, 0..9u64, any::<bool>()).prop_map(
        |(kind, id, other, state, turn, known)| {
            let kind = if known { kind.as_str() } else { "dreamt" };
            let event = json!({ "kind": kind, "turn": turn, "reason": "r", "pending_calls": [id], "approved": [other],
                "call_id": id, "tool": "t", "agent_id": id, "parent_session_id": "p", "state": state, "signal_id": id,
                "disposition": "queue", "queue_depth": turn, "budget": "b" });
            SessionRecord::parse(&event.to_string()).unwrap()
        },
    );
    proptest::collection::vec(event, 0..40)
}

proptest! {
    #[test]
    fn live_and_replayed_are_equal_at_every_record(journal in journal()) {
        let lines = lines(&journal);
        let mut live = OsView::default();
        for (seq, (origin, event)) in (0..).zip(&journal.0) {
            let (stamp, origin) = (stamp(seq), *origin);
            live.take(&Fact { seq, stamp, origin, event });
            let replayed = of_lines(&lines[..seq as usize + 1]);
            prop_assert_eq!(&live, &replayed);
            prop_assert_eq!(
                serde_json::to_string(&live.document()).unwrap(),
                serde_json::to_string(&replayed.snapshot()).unwrap()
            );
        }
    }

    #[test]
    fn a_fold_goes_on_where_it_was_kept(journal in journal(), a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>()) {
        let lines = lines(&journal);
        let (a, b) = (a.index(lines.len()), b.index(lines.len()));
        let (a, b) = (a.min(b), a.max(b));
        let whole = of_lines(&lines);
        let mut pieces = kept(&of_lines(&lines[..a]));
        for piece in [&lines[a..b], &lines[b..]] {
            for line in piece {
                pieces.take_line(line).unwrap();
            }
            pieces = kept(&pieces);
        }
        prop_assert_eq!(&whole, &pieces);
    }

    #[test]
    fn documents_come_back_from_their_bytes_and_are_the_same_twice(journal in journal()) {
        let text = serde_json::to_string(&fold(&journal)).unwrap();
        prop_assert_eq!(&text, &serde_json::to_string(&fold(&journal)).unwrap());
        prop_assert_eq!(fold(&journal), serde_json::from_str(&text).unwrap());
    }

    #[test]
    fn a_spelling_that_only_a_parser_reads_means_the_same(journal in journal()) {
        let mut other = OsView::default();
        for line in lines(&journal) {
            let text = String::from_utf8(line).unwrap().replacen("{\"seq\":", "{ \"seq\":", 1);
            other.take_line(text.as_bytes()).unwrap();
        }
        prop_assert_eq!(other, of_lines(&lines(&journal)));
    }

    #[test]
    fn sessions_fold_alike_in_pieces(log in session_log(), at in any::<prop::sample::Index>()) {
        let at = at.index(log.len() + 1);
        let mut pieces = OsView::default();
        log[..at].iter().for_each(|record| pieces.take_session(record));
        let mut pieces = kept(&pieces);
        log[at..].iter().for_each(|record| pieces.take_session(record));
        prop_assert_eq!(pieces.snapshot(), session(&log));
    }

    #[test]
    fn nobody_waits_behind_a_resume(log in session_log()) {
        let mut view = OsView::default();
        for record in &log {
            view.take_session(record);
            let snapshot = view.snapshot();
            let closed = matches!(record.event, SessionEvent::Resumed { turn, .. } if
                snapshot.last_resumed_turn == Some(turn) && snapshot.anomalies.last().is_none_or(|last| last.seq + 1 != snapshot.events));
            prop_assert!(!closed || snapshot.open_suspensions.is_empty());
            let mut agents: Vec<&str> = snapshot.process_by_agent.iter().map(|row| row.agent_id.as_str()).collect();
            agents.sort_unstable();
            agents.dedup();
            prop_assert_eq!(agents.len(), snapshot.process_by_agent.len());
        }
    }
}
