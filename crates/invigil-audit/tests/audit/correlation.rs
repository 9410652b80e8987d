use invigil_audit::{AmbiguityKind, Binding, CorrelationDoc};
use invigil_schema::*;

use crate::journal::{Journal, sdk};

use SdkEventType::{ToolCallCompleted as Completed, ToolCallStarted as Started};

fn names(doc: &CorrelationDoc) -> Vec<(AmbiguityKind, Option<&str>)> {
    let all = doc.ambiguities.iter();
    all.map(|a| (a.name, a.tool_call_id.as_deref())).collect()
}

#[test]
fn a_call_has_what_its_process_did_while_it_lasted() {
    let doc = Journal::around(|j| {
        j.write(1, "/w/before")
            .decision("c1", "allow")
            .call(1, "c1", Started)
            .forked(2, Some(1))
            .exec(2, "/bin/cp")
            .write(2, "/w/inside")
            .connect(2, 443)
            .exited(2, 0)
            .forked(3, None)
            .write(3, "/w/elsewhere")
            .call(1, "c1", Completed)
            .write(1, "/w/after")
    })
    .correlation();
    assert_eq!(doc.status, Binding::Clean, "{doc:?}");
    let [call] = doc.calls.as_slice() else {
        panic!("{doc:?}")
    };
    assert_eq!(call.caller, Some("/bin/sh".into()));
    assert_eq!(call.decisions, ["allow".to_owned()].into());
    assert_eq!(call.by_caller.paths, ["/w/inside".into()].into());
    assert_eq!(call.by_caller.execs, ["/bin/cp".into()].into());
    assert_eq!(call.by_caller.endpoints, ["127.0.0.1:443".into()].into());
    assert_eq!(call.by_caller.facts["file_op"], 1);
    assert_eq!(call.by_caller.facts["process_exited"], 1);
    assert_eq!(call.by_others.paths, ["/w/elsewhere".into()].into());
}

#[test]
fn without_calls_it_is_not_applicable() {
    let doc = Journal::around(|j| j.write(1, "/w/a")).correlation();
    assert_eq!(doc.status, Binding::NotApplicable);
    assert!(doc.ambiguities.is_empty());
}

#[test]
fn each_ambiguity_has_its_name() {
    let one = |inside: fn(Journal) -> Journal| {
        let doc = Journal::around(inside).correlation();
        assert_eq!(doc.status, Binding::Partial, "{doc:?}");
        let names = names(&doc);
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(names[0].1, Some("c1"));
        names[0].0
    };
    assert_eq!(
        one(|j| j
            .decision("c1", "allow")
            .call(1, "c1", Started)
            .call(1, "c1", Completed)),
        AmbiguityKind::PolicyDecisionWithoutKernelEvents
    );
    assert_eq!(
        one(|j| j
            .decision("c1", "deny")
            .call(1, "c1", Started)
            .write(1, "/w/a")
            .call(1, "c1", Completed)),
        AmbiguityKind::DeniedCallWithKernelEvents
    );
    assert_eq!(
        one(|j| j
            .call(1, "c1", Started)
            .write(1, "/w/a")
            .call(1, "c1", Completed)),
        AmbiguityKind::SdkCallWithoutDecision
    );
    assert_eq!(
        one(|j| j.decision("c1", "allow")),
        AmbiguityKind::DecisionWithoutSdkCall
    );
    assert_eq!(
        one(|j| j
            .decision("c1", "allow")
            .call(1, "c1", Started)
            .write(1, "/w/a")),
        AmbiguityKind::StartedWithoutCompleted
    );
    assert_eq!(
        one(|j| j.decision("c1", "deny").call(1, "c1", Completed)),
        AmbiguityKind::CompletedWithoutStarted
    );
    assert_eq!(
        one(|j| j
            .decision("c1", "deny")
            .call(1, "c1", Started)
            .call(1, "c1", Completed)
            .call(1, "c1", Started)
            .call(1, "c1", Completed)),
        AmbiguityKind::DuplicateCallId
    );
    assert_eq!(
        one(|j| j
            .decision("c1", "deny")
            .decision("c1", "deny")
            .call(1, "c1", Started)
            .call(1, "c1", Completed)),
        AmbiguityKind::SecondDecision
    );
    assert_eq!(
        one(|j| {
            let mut anonymous = sdk(1, "c1", Started);
            anonymous.process = None;
            j.decision("c1", "deny")
                .with(Origin::Sdk, anonymous)
                .call(1, "c1", Completed)
        }),
        AmbiguityKind::SdkCallWithoutProcess
    );
    assert_eq!(
        one(|j| {
            let mut other = sdk(1, "c1", Completed);
            other.tool = Some("another".into());
            j.decision("c1", "deny")
                .call(1, "c1", Started)
                .with(Origin::Sdk, other)
        }),
        AmbiguityKind::ToolMismatch
    );
}

#[test]
fn calls_at_the_same_time_share_what_was_seen() {
    let doc = Journal::around(|j| {
        j.decision("c1", "allow")
            .decision("c2", "allow")
            .call(1, "c1", Started)
            .call(1, "c2", Started)
            .write(1, "/w/a")
            .call(1, "c1", Completed)
            .call(1, "c2", Completed)
    })
    .correlation();
    let overlapping = AmbiguityKind::OverlappingWindows;
    assert_eq!(
        names(&doc),
        [(overlapping, Some("c1")), (overlapping, Some("c2"))]
    );
    assert!(
        doc.calls
            .iter()
            .all(|c| c.by_caller.paths == ["/w/a".into()].into())
    );
}

#[test]
fn calls_that_nobody_observed_are_never_clean() {
    let doc = Journal::of(Tier::ContractOnly)
        .decision("c1", "deny")
        .call(1, "c1", Started)
        .call(1, "c1", Completed)
        .correlation();
    assert_eq!(doc.status, Binding::Partial);
    assert_eq!(names(&doc), [(AmbiguityKind::NoKernelLayer, None)]);
}

#[test]
fn a_circle_of_parents_ends() {
    let doc = Journal::around(|j| {
        j.forked(5, Some(6))
            .forked(6, Some(5))
            .call(1, "c1", Started)
            .write(5, "/w/a")
    })
    .correlation();
    assert_eq!(doc.calls[0].by_others.paths, ["/w/a".into()].into());
}
