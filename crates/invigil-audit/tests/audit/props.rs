//! What holds for every journal.

use invigil_audit::{DiffDoc, Ignore, Side, Verdict, diff};
use invigil_schema::*;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::value::RawValue;

use crate::journal::{Journal, exec, file, lost, net, observer, process, rejected, sdk};

const KINDS: [FileOpKind; 6] = [
    FileOpKind::Open,
    FileOpKind::Create,
    FileOpKind::Rename,
    FileOpKind::Unlink,
    FileOpKind::Mkdir,
    FileOpKind::Chmod,
];

fn path() -> impl Strategy<Value = String> {
    "/(w|tmp|proc|dev/pts)/[a-c0-9]{1,2}(/x)?"
}

fn result() -> impl Strategy<Value = CallResult> {
    select(vec![
        CallResult::Ok,
        CallResult::Unknown,
        CallResult::Failed(Errno(13)),
    ])
}

/// Facts that touch something and depend on no other fact.
fn touch() -> impl Strategy<Value = (Origin, Event)> {
    let flags = subsequence(
        vec![
            OpenFlag::Read,
            OpenFlag::Write,
            OpenFlag::Create,
            OpenFlag::Path,
        ],
        0..=4,
    );
    let files = (
        1..4u32,
        select(KINDS.to_vec()),
        path(),
        path(),
        flags,
        result(),
    )
        .prop_map(|(pid, op, path, to, flags, result)| {
            let mut fact = file(pid, op, &path);
            fact.flags = flags;
            fact.result = result;
            fact.to = (op == FileOpKind::Rename).then(|| to.as_str().into());
            Event::from(fact)
        });
    let ops = select(vec![
        NetOpKind::Connect,
        NetOpKind::Bind,
        NetOpKind::Listen,
        NetOpKind::Send,
    ]);
    let nets = (1..4u32, ops, 0..4u16).prop_map(|(pid, op, port)| net(pid, op, port).into());
    let execs = (1..4u32, path()).prop_map(|(pid, path)| exec(pid, &path).into());
    let denied = (1..4u32, path()).prop_map(|(pid, target)| {
        let denied = AccessDenied {
            process: process(pid),
            what: "file.open".into(),
            target: target.as_str().into(),
            rule: "r".into(),
            place: None,
            error: Errno(13),
        };
        Event::from(denied)
    });
    prop_oneof![
        4 => files,
        2 => nets,
        1 => execs,
        1 => denied,
    ]
    .prop_map(|event| (Origin::Kernel, event))
}

/// Facts of every kind, in any order.
pub(crate) fn fact() -> impl Strategy<Value = (Origin, Event)> {
    let types = select(vec![
        SdkEventType::ToolCallStarted,
        SdkEventType::ToolCallCompleted,
        SdkEventType::Message,
    ]);
    let calls = (1..4u32, "c[1-3]", types)
        .prop_map(|(pid, id, of)| (Origin::Sdk, Event::from(sdk(pid, &id, of))));
    let decisions = ("c[1-3]", select(vec!["allow", "deny"])).prop_map(|(id, decision)| {
        let journal = Journal::default().decision(&id, decision);
        journal.0.into_iter().next().unwrap()
    });
    let forks = (1..6u32, proptest::option::of(1..6u32)).prop_map(|(pid, parent)| {
        let forked = ProcessForked {
            process: process(pid),
            parent: parent.map(process),
        };
        (Origin::Kernel, Event::from(forked))
    });
    let exits = (1..6u32).prop_map(|pid| {
        let journal = Journal::default().exited(pid, 0);
        journal.0.into_iter().next().unwrap()
    });
    let runtime = select(vec![
        Event::from(observer(Tier::Notify, true)),
        observer(Tier::Ptrace, false).into(),
        ObserverFinished::default().into(),
        lost("x", u64::MAX).into(),
        rejected(LineFlaw::NotJson).into(),
    ])
    .prop_map(|event| (Origin::Runtime, event));
    let origins = select(vec![
        Origin::Kernel,
        Origin::Runtime,
        Origin::Sdk,
        Origin::Client,
        Origin::User,
    ]);
    let odd = (origins, touch()).prop_map(|(origin, (_, event))| (origin, event));
    prop_oneof![6 => touch(), 2 => calls, 1 => decisions, 2 => forks, 2 => exits, 1 => runtime, 1 => odd]
}

fn journal() -> impl Strategy<Value = Journal> {
    (any::<bool>(), proptest::collection::vec(fact(), 0..40)).prop_map(|(whole, facts)| {
        if !whole {
            let mut journal = Journal::of(Tier::Notify);
            journal.0.extend(facts);
            return journal;
        }
        Journal::around(|mut j| {
            j.0.extend(facts);
            j
        })
    })
}

fn all_views(journal: &Journal) -> [String; 4] {
    [
        serde_json::to_string(&journal.surface()).unwrap(),
        serde_json::to_string(&journal.health()).unwrap(),
        serde_json::to_string(&journal.correlation()).unwrap(),
        serde_json::to_string(&journal.summary()).unwrap(),
    ]
}

fn compare(a: &Journal, b: &Journal, identity: Option<&str>) -> DiffDoc {
    let (a_surface, a_health) = (a.surface(), a.health());
    let (b_surface, b_health) = (b.surface(), b.health());
    let before = Side {
        surface: &a_surface,
        health: &a_health,
        identity,
    };
    let after = Side {
        surface: &b_surface,
        health: &b_health,
        identity,
    };
    diff(before, after, &Ignore::nothing())
}

proptest! {
    #[test]
    fn the_same_journal_gives_the_same_bytes(journal in journal()) {
        prop_assert_eq!(all_views(&journal), all_views(&journal.clone()));
    }

    #[test]
    fn documents_come_back_from_their_bytes(journal in journal()) {
        let [surface, health, correlation, _] = all_views(&journal);
        prop_assert_eq!(journal.surface(), serde_json::from_str(&surface).unwrap());
        prop_assert_eq!(journal.health(), serde_json::from_str(&health).unwrap());
        prop_assert_eq!(journal.correlation(), serde_json::from_str(&correlation).unwrap());
        let doc = compare(&journal, &Journal::around(|j| j), None);
        let bytes = serde_json::to_string(&doc).unwrap();
        prop_assert_eq!(doc, serde_json::from_str(&bytes).unwrap());
    }

    #[test]
    fn the_order_of_what_was_touched_does_not_matter(
        facts in proptest::collection::vec(touch(), 0..30),
        seed in any::<u64>(),
    ) {
        let around = |facts: Vec<(Origin, Event)>| Journal::around(|mut j| { j.0.extend(facts); j });
        let mut shuffled = facts.clone();
        shuffled.sort_by_key(|(_, event)| {
            let text = format!("{event:?}{seed}");
            text.bytes().fold(seed, |sum, byte| sum.rotate_left(7) ^ u64::from(byte))
        });
        let (one, two) = (around(facts), around(shuffled));
        prop_assert_eq!(one.surface(), two.surface());
        prop_assert_eq!(one.health(), two.health());
    }

    #[test]
    fn a_run_is_the_same_as_itself(journal in journal()) {
        let doc = compare(&journal, &journal, Some("head"));
        prop_assert_eq!(doc.verdict, Verdict::Same);
        prop_assert!(doc.rows().is_empty());
    }

    #[test]
    fn two_runs_that_look_alike_are_never_different(journal in journal()) {
        prop_assert_ne!(compare(&journal, &journal, None).verdict, Verdict::Different);
    }

    #[test]
    fn the_other_way_round_additions_are_removals(a in journal(), b in journal()) {
        let (there, back) = (compare(&a, &b, None), compare(&b, &a, None));
        prop_assert_eq!(there.verdict, back.verdict);
        for (there, back) in there.sections.iter().zip(&back.sections) {
            prop_assert_eq!(&there.added, &back.removed);
            prop_assert_eq!(&there.removed, &back.added);
            prop_assert_eq!(there.added_sure, back.removed_sure);
            for (there, back) in there.changed.iter().zip(&back.changed) {
                prop_assert_eq!(&there.added, &back.removed);
                prop_assert_eq!(&there.removed, &back.added);
            }
        }
    }

    #[test]
    fn kinds_from_tomorrow_are_skipped(journal in journal(), at in any::<prop::sample::Index>()) {
        let mut with = journal.clone();
        let event = Event::Unknown {
            kind: "from_tomorrow".into(),
            data: RawValue::from_string("[1]".into()).unwrap(),
        };
        with.0.insert(at.index(journal.0.len() + 1), (Origin::Kernel, event));
        prop_assert_eq!(journal.surface(), with.surface());
        prop_assert_eq!(journal.health(), with.health());
        prop_assert_eq!(journal.correlation(), with.correlation());
    }
}
