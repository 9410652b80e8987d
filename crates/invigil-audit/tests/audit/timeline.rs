use invigil_audit::{Fact, Moment, Notable, Timeline, View};
use invigil_schema::*;

use crate::journal::{Journal, process};

fn denied(pid: u32) -> AccessDenied {
    AccessDenied {
        process: process(pid),
        what: "file.open".into(),
        target: "/etc/shadow".into(),
        rule: "policy".into(),
        place: None,
        error: Errno(13),
    }
}

/// Folds with a clock that gives these nanoseconds.
fn fold<V: View + Default>(journal: &Journal, mono: impl Fn(u64) -> u64) -> V {
    let mut view = V::default();
    for (seq, (origin, event)) in journal.0.iter().enumerate() {
        let seq = seq as u64;
        view.take(&Fact {
            seq,
            stamp: Stamp {
                time: Timestamp::default(),
                mono: mono(seq),
            },
            origin: *origin,
            event,
        });
    }
    view
}

#[test]
fn every_record_is_in_one_bin_however_long_the_run_is() {
    let journal = Journal::around(|mut j| {
        for n in 0..1000 {
            j = j.write(1, "/w/a").kernel(denied(1));
            if n % 100 == 0 {
                j = j.call(1, "c", SdkEventType::ToolCallStarted);
            }
        }
        j
    });
    for step in [0, 1, 999, 1_000_000, 77_000_000_000] {
        let timeline = fold::<Timeline>(&journal, |seq| seq * step).document();
        let all = journal.0.len() as u64;
        assert_eq!(timeline.records(), all, "step {step}");
        assert_eq!(timeline.elapsed_ns, (all - 1) * step);
        assert!(timeline.bins.len() <= 256);
        assert!(step < 1000 || timeline.bins.len() > 100);
        let sum = |of: fn(&invigil_audit::TimelineBin) -> u64| timeline.bins.iter().map(of).sum();
        let refused: u64 = sum(|bin| bin.refused);
        let sdk: u64 = sum(|bin| bin.sdk);
        assert_eq!((refused, sdk), (1000, 10));
        let firsts: Vec<u64> = timeline.bins.iter().filter_map(|bin| bin.first).collect();
        assert_eq!(firsts[0], 0);
        assert!(firsts.is_sorted());
        // A bin holds what lies between its first record and that of the next one.
        let full = timeline.bins.iter().filter(|bin| bin.first.is_some());
        let ends = firsts[1..].iter().copied().chain([all]);
        for ((bin, first), end) in full.zip(&firsts).zip(ends) {
            assert_eq!(bin.records(), end - first);
        }
    }
}

#[test]
fn a_boot_in_between_takes_no_time() {
    let journal = Journal::around(|j| j.write(1, "/w/a"));
    let timeline = fold::<Timeline>(&journal, |seq| if seq < 3 { 900 + seq } else { seq });
    assert_eq!(
        timeline.document().elapsed_ns,
        2 + journal.0.len() as u64 - 1 - 3
    );
}

#[test]
fn what_the_agent_says_is_no_refusal() {
    let event = Event::from(denied(1));
    let of = |origin| {
        let stamp = Stamp::default();
        let seq = 0;
        Fact {
            seq,
            stamp,
            origin,
            event: &event,
        }
        .notable()
    };
    assert_eq!(of(Origin::Kernel), Some(Notable::Refused));
    assert_eq!(of(Origin::Sdk), None);
}

#[test]
fn a_moment_has_who_lives_behind_its_parent() {
    let journal = Journal::of(Tier::Notify)
        .forked(1, None)
        .exec(1, "/bin/sh")
        .forked(2, Some(1))
        .forked(3, Some(1))
        .forked(4, Some(2))
        .exec(4, "/bin/cat")
        .forked(5, Some(3))
        .exited(3, 0);
    let at = |records: usize| {
        let first = Journal(journal.0[..records].to_vec());
        fold::<Moment>(&first, |seq| seq).document()
    };
    let shape = |records| {
        let moment = at(records);
        let processes = moment.processes.iter();
        processes
            .map(|living| (living.depth, living.process.pid, living.loaded))
            .collect::<Vec<_>>()
    };
    assert_eq!(shape(2), []);
    assert_eq!(shape(3), [(0, 1, false)]);
    assert_eq!(
        shape(journal.0.len() - 1),
        [
            (0, 1, true),
            (1, 2, false),
            (2, 4, true),
            (1, 3, false),
            (2, 5, false)
        ]
    );
    // An orphan has no one to stand behind.
    assert_eq!(
        shape(journal.0.len()),
        [(0, 1, true), (1, 2, false), (2, 4, true), (0, 5, false)]
    );
    let copy = &at(journal.0.len()).processes[1];
    assert_eq!(copy.argv.as_ref().unwrap()[0], "/bin/sh".into());
    let done = fold::<Moment>(&journal.done(), |seq| seq).document();
    assert!(done.processes.is_empty() && done.finished.is_some());
}
