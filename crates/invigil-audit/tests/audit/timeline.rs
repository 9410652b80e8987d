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
fn a_moment_knows_what_the_living_run_and_how_much_happened() {
    let journal = Journal::of(Tier::Notify)
        .forked(1, None)
        .exec(1, "/bin/sh")
        .forked(2, Some(1))
        .exec(2, "/bin/cat")
        .write(2, "/w/a")
        .kernel(denied(2))
        .connect(2, 80)
        .exited(2, 0);
    let at = |records: usize| {
        let first = Journal(journal.0[..records].to_vec());
        fold::<Moment>(&first, |seq| seq * 10).document()
    };
    let all = at(journal.0.len());
    assert_eq!((all.records, all.elapsed_ns), (10, 90));
    assert_eq!((all.programs, all.changes, all.network), (2, 1, 1));
    assert_eq!((all.refused, all.last_refused), (1, Some(7)));
    assert_eq!(at(7).refused, 0);
    let commands = |moment: &invigil_audit::MomentDoc| {
        let commands = moment.commands.iter();
        commands
            .map(|(process, argv)| (process.pid, argv[0].to_string_lossy().into_owned()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        commands(&at(9)),
        [(1, "/bin/sh".to_owned()), (2, "/bin/cat".to_owned())]
    );
    assert_eq!(commands(&all), [(1, "/bin/sh".to_owned())]);
    let done = fold::<Moment>(&journal.done(), |seq| seq).document();
    assert!(done.commands.is_empty() && done.finished.is_some());
}
