use invigil_audit::{Binding, ClaimKind, Coverage, HealthDoc, PolicyStatus, SdkStatus};
use invigil_schema::*;
use serde_json::value::RawValue;

use crate::journal::{Journal, exec, file, hook, lost, observer, rejected};

fn has_note(health: &HealthDoc, name: &str) -> bool {
    health.notes.iter().any(|note| note.starts_with(name))
}

#[test]
fn a_run_that_was_seen_whole_is_complete() {
    let health = Journal::around(|j| j.write(1, "/w/a")).health();
    assert_eq!(health.kernel_layer, Coverage::Complete, "{health:?}");
    assert_eq!(health.network_coverage, Coverage::Complete);
    assert_eq!(health.cgroup_correlation, Binding::Clean);
    assert_eq!(health.policy_layer, PolicyStatus::Absent);
    assert_eq!(health.sdk_layer, SdkStatus::Absent);
    assert_eq!(
        (health.kernel.emitted, health.kernel.received),
        (Some(7), Some(7))
    );
    assert!(health.kernel.missing.is_empty());
    assert!(health.notes.is_empty());
    for claim in [
        ClaimKind::NoOtherFileChanged,
        ClaimKind::NoOtherNetwork,
        ClaimKind::NoOtherProgram,
    ] {
        assert!(health.allows(claim));
    }
    assert!(!health.allows(ClaimKind::NoOtherTool));
}

#[test]
fn reads_that_are_off_allow_no_claim_about_reads() {
    let health = Journal::around(|j| j).health();
    let claim = health.claim(ClaimKind::NoOtherFileRead).unwrap();
    assert!(!claim.allowed);
    assert!(claim.reasons.iter().any(|r| r.starts_with("reads_off")));

    let on = Journal::of(Tier::Notify)
        .runtime(observer(Tier::Notify, true))
        .forked(1, None)
        .done();
    assert!(on.health().allows(ClaimKind::NoOtherFileRead));
}

#[test]
fn each_hook_that_is_not_attached_is_named() {
    for (missing, claim) in [
        ("processes", ClaimKind::NoOtherProgram),
        ("files", ClaimKind::NoOtherFileChanged),
        ("network", ClaimKind::NoOtherNetwork),
        ("race_free_arguments", ClaimKind::NoOtherNetwork),
    ] {
        let mut started = observer(Tier::Notify, false);
        started.hooks.retain(|h| h.name != missing);
        started.hooks.push(hook(missing, false));
        let journal = Journal::of(Tier::Notify)
            .runtime(started)
            .forked(1, None)
            .done();
        let health = journal.health();
        assert_eq!(health.kernel_layer, Coverage::Partial);
        let named = format!("hook_not_attached: {missing}");
        assert!(health.kernel.missing.contains(&named), "{health:?}");
        assert!(health.notes.contains(&named));
        assert!(!health.allows(claim));
        if missing == "network" {
            assert_eq!(health.network_coverage, Coverage::Absent);
            assert!(health.allows(ClaimKind::NoOtherFileChanged));
        }
    }
}

#[test]
fn a_class_without_a_hook_is_not_observed() {
    let mut started = observer(Tier::Notify, false);
    started.hooks.retain(|h| h.name != "network");
    let health = Journal::of(Tier::Notify).runtime(started).done().health();
    assert_eq!(health.kernel_layer, Coverage::Partial);
    assert_eq!(health.network_coverage, Coverage::Absent);
    assert!(!health.allows(ClaimKind::NoOtherNetwork));
}

#[test]
fn an_aid_that_is_missing_is_noted_and_takes_back_nothing() {
    let mut started = observer(Tier::Notify, false);
    started.hooks.push(hook("synchronous_wake_up", false));
    let journal = Journal::of(Tier::Notify)
        .runtime(started)
        .forked(1, None)
        .done();
    let health = journal.health();
    assert_eq!(health.kernel_layer, Coverage::Complete);
    assert!(has_note(&health, "aid_not_attached: synchronous_wake_up"));
}

#[test]
fn what_was_lost_is_named_by_its_cause() {
    let journal = Journal::of(Tier::Notify)
        .runtime(observer(Tier::Notify, false))
        .forked(1, None)
        .runtime(lost("died_while_reading", 2));
    let health = journal.health();
    assert_eq!(health.kernel_layer, Coverage::Partial);
    assert_eq!(health.kernel.lost["died_while_reading"], 2);
    assert!(
        health
            .kernel
            .missing
            .contains("facts_lost: died_while_reading")
    );
    assert_eq!(health.cgroup_correlation, Binding::Partial);

    let unexplained = ObserverFinished {
        emitted: 3,
        received: 2,
        ..ObserverFinished::default()
    };
    let journal = Journal::of(Tier::Notify)
        .runtime(observer(Tier::Notify, false))
        .runtime(unexplained);
    assert!(has_note(&journal.health(), "facts_lost"));
}

#[test]
fn a_run_that_was_cut_off_is_partial() {
    let journal = Journal::of(Tier::Notify)
        .runtime(observer(Tier::Notify, false))
        .forked(1, None);
    let health = journal.health();
    assert_eq!(health.kernel_layer, Coverage::Partial);
    assert!(has_note(&health, "interrupted"));
    assert!(!health.allows(ClaimKind::NoOtherProgram));
}

#[test]
fn a_torn_tail_is_missing_facts() {
    let recovered = JournalRecovered {
        bytes: 9,
        file: "torn.1.0".into(),
        sha256: Digest::ZERO,
    };
    let health = Journal::around(|j| j.runtime(recovered)).health();
    assert_eq!(health.kernel_layer, Coverage::Partial);
}

#[test]
fn notes_lower_the_layer_where_something_could_be_missed() {
    for (note, expected) in [
        (Note::ForeignListener, Coverage::Complete),
        (Note::IoUringDenied, Coverage::Complete),
        (Note::DebuggerInside, Coverage::Complete),
        (Note::ExecMismatch, Coverage::Complete),
        (Note::TreeKilled, Coverage::Complete),
        (Note::Continued, Coverage::Partial),
        (Note::SupervisorLimit, Coverage::Partial),
        (Note::Privileged, Coverage::Partial),
        (Note::ForeignArchitecture, Coverage::Partial),
    ] {
        let health = Journal::around(|j| j.note(note)).health();
        assert_eq!(health.kernel_layer, expected, "{note:?}");
        assert_eq!(health.notes.len(), 1);
        assert!(!health.notes.iter().any(|note| note.contains("4711")));
    }
}

#[test]
fn contract_only_claims_nothing() {
    let before = Journal::of(Tier::ContractOnly);
    let with_observer = before
        .clone()
        .runtime(observer(Tier::ContractOnly, false))
        .done();
    for journal in [before, with_observer] {
        let health = journal.health();
        assert_eq!(health.kernel_layer, Coverage::Absent);
        assert_eq!(health.cgroup_correlation, Binding::Partial);
        assert_eq!(health.network_coverage, Coverage::Absent);
        assert!(has_note(&health, "contract_only_mode"));
        assert!(health.claims.iter().all(|claim| !claim.allowed));
    }
}

#[test]
fn before_anything_runs_there_is_a_skeleton() {
    let journal = Journal::of(Tier::Notify);
    let health = journal.health();
    assert_eq!(health.kernel_layer, Coverage::Absent);
    assert_eq!(health.cgroup_correlation, Binding::NotApplicable);
    assert_eq!(health.kernel.tier, Some(Tier::Notify));
    assert!(health.claims.iter().all(|claim| !claim.allowed));
    assert_eq!(journal.correlation().status, Binding::NotApplicable);
    assert!(journal.surface().filesystem_paths.is_empty());
    assert_eq!(journal.summary().counts.processes, 0);
}

#[test]
fn a_shim_that_is_only_named_reports_nothing() {
    let mut journal = Journal::of(Tier::Notify);
    let Event::RunStarted(started) = &mut journal.0[1].1 else {
        panic!()
    };
    started.agent_shim = "codex".into();
    let health = journal.health();
    assert_eq!(health.sdk_layer, SdkStatus::Absent);
    assert!(has_note(&health, "shim_silent"));

    let told = journal.call(1, "c1", SdkEventType::ToolCallStarted);
    assert_eq!(told.health().sdk_layer, SdkStatus::SelfReported);
    let bad = told.runtime(rejected(LineFlaw::SequenceGap));
    assert_eq!(bad.health().sdk_layer, SdkStatus::Partial);
    assert!(has_note(&bad.health(), "sdk_rejected: sequence_gap"));
}

#[test]
fn decisions_make_the_policy_layer() {
    let health = Journal::around(|j| j.decision("c1", "allow")).health();
    assert_eq!(health.policy_layer, PolicyStatus::Present);
    assert!(health.allows(ClaimKind::NoOtherDecision));
    let flagged = PolicyFlagged {
        line: 2,
        flaw: LineFlaw::SecondDecision,
        reason: "test".into(),
        text: "x".into(),
    };
    let health = Journal::around(|j| j.decision("c1", "allow").runtime(flagged)).health();
    assert!(!health.allows(ClaimKind::NoOtherDecision));
    assert_eq!(health.policy.flagged[&LineFlaw::SecondDecision], 1);
}

#[test]
fn facts_must_belong_to_a_process_of_the_run() {
    let health = Journal::around(|j| j.write(9, "/w/a")).health();
    assert_eq!(health.cgroup_correlation, Binding::Partial);
    assert!(!health.allows(ClaimKind::NoOtherProgram));
    assert!(health.allows(ClaimKind::NoOtherNetwork));
    // The record of the beginning may come late.
    let health = Journal::around(|j| j.write(9, "/w/a").forked(9, Some(1))).health();
    assert_eq!(health.cgroup_correlation, Binding::Clean);

    let strays = Journal::of(Tier::Notify)
        .runtime(observer(Tier::Notify, false))
        .write(9, "/w/a");
    assert_eq!(strays.health().cgroup_correlation, Binding::Failed);
}

#[test]
fn a_fact_that_cannot_be_read_is_missing_and_one_from_tomorrow_is_not() {
    let unknown = |kind: &str| Event::Unknown {
        kind: kind.into(),
        data: RawValue::from_string("{}".into()).unwrap(),
    };
    let whole = Journal::around(|j| j).health();
    let tomorrow = Journal::around(|j| j.kernel(unknown("file_op_2"))).health();
    assert_eq!(tomorrow, whole);
    let damaged = Journal::around(|j| j.kernel(unknown("file_op"))).health();
    assert_eq!(damaged.kernel_layer, Coverage::Partial);
    assert!(has_note(&damaged, "unreadable"));
}

#[test]
fn nobody_vouches_for_what_he_cannot_know() {
    let told = file(1, FileOpKind::Unlink, "/w/told");
    let health = Journal::around(|j| j.with(Origin::Sdk, told)).health();
    assert!(has_note(&health, "not_counted: file_op"));
    let faked = Journal::of(Tier::Notify).with(Origin::Sdk, observer(Tier::Notify, true));
    assert_eq!(faked.health().kernel_layer, Coverage::Absent);
}

#[test]
fn arguments_that_were_cut_take_back_the_claim_about_programs() {
    let cut = ProcessExec {
        argv_cut_bytes: 1,
        ..exec(1, "/bin/long")
    };
    let health = Journal::around(|j| j.kernel(cut)).health();
    assert_eq!(health.kernel_layer, Coverage::Partial);
    assert!(has_note(&health, "arguments_cut"));
    for claim in &health.claims {
        match claim.claim {
            ClaimKind::NoOtherProgram => assert!(!claim.allowed),
            ClaimKind::NoOtherFileChanged | ClaimKind::NoOtherNetwork => assert!(claim.allowed),
            _ => {}
        }
    }
}
