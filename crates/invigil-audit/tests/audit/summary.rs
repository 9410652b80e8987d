use invigil_audit::{Coverage, FileChange};
use invigil_schema::*;

use crate::journal::{Journal, exec, file, observer};

fn changes(journal: &Journal) -> Vec<(String, FileChange)> {
    let directories = journal.summary().files.into_iter();
    let files = directories.flat_map(|directory| directory.files);
    files
        .map(|file| (file.path.to_string_lossy().into_owned(), file.change))
        .collect()
}

fn rename(from: &str, to: &str) -> FileOp {
    let mut op = file(1, FileOpKind::Rename, from);
    op.to = Some(to.into());
    op
}

#[test]
fn alike_processes_are_one_line_with_a_count() {
    let journal = Journal::around(|mut j| {
        for pid in 10..1010 {
            j = j.forked(pid, Some(1)).exec(pid, "/bin/true").exited(pid, 0);
        }
        j.forked(2000, Some(1)).exited(2000, 3)
    });
    let summary = journal.summary();
    assert_eq!(summary.counts.processes, 1002);
    assert_eq!(summary.counts.execs, 1001);
    let [root] = summary.processes.as_slice() else {
        panic!("{:?}", summary.processes)
    };
    assert_eq!(root.executable, Some("/bin/sh".into()));
    let [trues, copy] = root.children.as_slice() else {
        panic!("{root:?}")
    };
    assert_eq!((trues.count, trues.cpu_us), (1000, 15_000));
    assert_eq!((copy.execs, copy.exit_code), (0, Some(3)));
    assert_eq!(summary.cpu_us, 15);
    assert_eq!(summary.peak_rss_kib, 1000);
    assert_eq!(summary.duration_ms, 12);
}

#[test]
fn command_lines_are_told_apart_until_there_are_too_many() {
    let journal = Journal::around(|mut j| {
        for pid in 10..2010 {
            let mut exec = exec(pid, "/bin/echo");
            exec.argv.push(pid.to_string().as_str().into());
            j = j.forked(pid, Some(1)).kernel(exec).exited(pid, 0);
        }
        j
    });
    let summary = journal.summary();
    let children = &summary.processes[0].children;
    assert_eq!(children.len(), 65);
    let last = children.last().unwrap();
    assert_eq!((last.count, &last.argv), (2000 - 64, &None));
}

#[test]
fn an_orphan_stays_under_its_parent_and_a_chain_has_an_end() {
    let journal = Journal::around(|j| {
        j.forked(2, Some(1))
            .forked(3, Some(2))
            .exited(2, 0)
            .exec(3, "/bin/late")
            .exited(3, 0)
    });
    let summary = journal.summary();
    let parent = &summary.processes[0].children[0];
    assert_eq!(parent.children[0].executable, Some("/bin/late".into()));

    let chain = Journal::around(|mut j| {
        for pid in 2..20_000 {
            j = j.forked(pid, Some(pid - 1)).exited(pid - 1, 0);
        }
        j
    });
    let mut depth = 0;
    let mut node = &chain.summary().processes[0];
    let mut count = node.count;
    while let Some(child) = node.children.first() {
        count += node.children.iter().map(|child| child.count).sum::<u64>();
        (node, depth) = (child, depth + 1);
    }
    assert!(depth <= 24, "{depth}");
    assert_eq!(count, 19_999);
}

#[test]
fn files_read_as_a_person_would_say_it() {
    let mut open = file(1, FileOpKind::Open, "/w/old");
    open.flags = vec![OpenFlag::Write];
    let mut refused = file(1, FileOpKind::Unlink, "/w/kept");
    refused.result = CallResult::Failed(Errno(13));
    let journal = Journal::around(|j| {
        j.write(1, "/w/new")
            .kernel(open)
            .kernel(file(1, FileOpKind::Unlink, "/w/gone"))
            .write(1, "/w/scratch")
            .kernel(file(1, FileOpKind::Unlink, "/w/scratch"))
            .write(1, "/w/t.tmp")
            .kernel(rename("/w/t.tmp", "/w/t"))
            .kernel(file(1, FileOpKind::Chmod, "/w/mode"))
            .kernel(refused)
            .write(1, "/dev/null")
            .write(1, "pipe:[77]")
    });
    let expected = [
        ("/w/gone", FileChange::Deleted),
        ("/w/mode", FileChange::Attributes),
        ("/w/new", FileChange::Created),
        ("/w/old", FileChange::Modified),
        ("/w/t", FileChange::Moved),
    ];
    assert_eq!(
        changes(&journal),
        expected.map(|(path, change)| (path.to_owned(), change))
    );
    assert_eq!(journal.summary().counts.temporary_files, 1);
}

#[test]
fn what_is_in_a_directory_moves_with_it() {
    let journal = Journal::around(|j| {
        j.kernel(file(1, FileOpKind::Mkdir, "/w/a"))
            .write(1, "/w/a/x")
            .write(1, "/w/ab")
            .kernel(rename("/w/a", "/w/b"))
    });
    let expected = [
        ("/w/ab", FileChange::Created),
        ("/w/b", FileChange::Moved),
        ("/w/b/x", FileChange::Created),
    ];
    assert_eq!(
        changes(&journal),
        expected.map(|(path, change)| (path.to_owned(), change))
    );
}

#[test]
fn the_last_state_of_a_file_is_there() {
    let settled = FileFinal {
        path: "/w/new".into(),
        size: Some(3),
        sha256: Some(Digest::ZERO),
        why_not: None,
    };
    let journal = Journal::around(|j| j.write(1, "/w/new").runtime(settled));
    let file = &journal.summary().files[0].files[0];
    assert_eq!((file.size, file.sha256), (Some(3), Some(Digest::ZERO)));
    assert_eq!(file.change, FileChange::Created);
}

#[test]
fn what_was_not_seen_is_said() {
    let summary = Journal::around(|j| j).summary();
    assert_eq!(summary.kernel_layer, Coverage::Complete);
    assert!(summary.not_seen.iter().any(|r| r.starts_with("reads_off")));
    let cut = Journal::of(Tier::Notify).runtime(observer(Tier::Notify, true));
    let summary = cut.forked(1, None).summary();
    assert!(
        summary
            .not_seen
            .iter()
            .any(|r| r.starts_with("interrupted"))
    );
    assert_eq!(summary.processes.len(), 1);
    assert_eq!(summary.duration_ms, 2);
}

#[test]
fn questions_are_counted_and_nobody_answers_in_the_name_of_a_person() {
    let asked = |id: &str| ApprovalRequested {
        id: id.to_owned(),
        process: crate::journal::process(1),
        what: Asked::Exec {
            program: "/usr/bin/git".into(),
            argv: vec!["git".into(), "push".into()],
            cwd: "/w".into(),
        },
        action: Digest::ZERO,
        rule: "coding.toml:3: ask git push ..".to_owned(),
        reason: None,
        deadline: Timestamp::from_micros(7),
    };
    let answered = |id: &str, decision, by| ApprovalAnswered {
        id: id.to_owned(),
        action: Digest::ZERO,
        decision,
        scope: None,
        by,
        reason: None,
        added: None,
        not_added: None,
    };
    let (allow, deny) = (ApprovalDecision::Allow, ApprovalDecision::Deny);
    let person = ApprovalBy::Terminal { uid: 7 };
    let journal = Journal::around(|j| {
        let j = j
            .runtime(asked("a"))
            .runtime(asked("b"))
            .runtime(asked("c"));
        j.with(Origin::User, answered("a", allow, person))
            .runtime(answered("b", deny, ApprovalBy::Timeout))
            .with(Origin::User, answered("c", deny, person))
    });
    let counts = journal.summary().counts;
    assert_eq!(
        (counts.approvals, counts.approved, counts.unanswered),
        (3, 1, 1)
    );
    let policy = journal.health().policy;
    assert_eq!((policy.approvals, policy.answers), (3, 3));
    // What the agent reports of an answer is none, and the runtime is not a person.
    let journal = Journal::around(|j| {
        j.with(Origin::Sdk, answered("a", allow, person))
            .runtime(answered("a", allow, person))
            .with(Origin::User, answered("a", deny, ApprovalBy::Timeout))
    });
    assert_eq!(journal.summary().counts.approved, 0);
    assert_eq!(journal.health().policy.answers, 0);
}
