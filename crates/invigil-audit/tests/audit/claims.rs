//! What agents say, beside what was seen: small journals made by hand.

use invigil_audit::{Claims, ClaimsDoc, Fact, Finding, View};
use invigil_schema::*;
use serde_json::{Value, json};

use crate::journal::{Journal, file, net, process, sdk};

pub(crate) fn message(text: &str) -> SdkEvent {
    reported(SdkEventType::Message, json!({ "text": text }))
}

pub(crate) fn reported(event_type: SdkEventType, body: Value) -> SdkEvent {
    let mut event = sdk(1, "c", event_type);
    event.body = body;
    event
}

pub(crate) fn argv(pid: u32, words: &[&str]) -> ProcessExec {
    let mut exec = crate::journal::exec(pid, words[0]);
    exec.argv = words.iter().map(|&word| word.into()).collect();
    exec
}

/// A command of its own process, from its birth to its end.
pub(crate) fn command(journal: Journal, pid: u32, words: &[&str], code: i32) -> Journal {
    journal
        .forked(pid, Some(1))
        .kernel(argv(pid, words))
        .exited(pid, code)
}

/// A whole run in which something happens and then something is said; the numbers of what is said begin at 5.
pub(crate) fn said(inside: impl FnOnce(Journal) -> Journal, text: &str) -> ClaimsDoc {
    let journal = Journal::around(|journal| inside(journal).with(Origin::Sdk, message(text)));
    journal.fold::<Claims>()
}

pub(crate) fn only(document: &ClaimsDoc) -> (Finding, &[u64], &str) {
    let [claim] = &document.claims[..] else {
        panic!("{document:#?}")
    };
    (claim.finding, &claim.events, &claim.because)
}

pub(crate) fn finding(inside: impl FnOnce(Journal) -> Journal, text: &str) -> (Finding, Vec<u64>) {
    let document = said(inside, text);
    let (finding, events, _) = only(&document);
    (finding, events.to_vec())
}

use Finding::{Contradicted, Supported, Unsupported};

#[test]
fn tests_pass_if_the_last_run_of_each_did() {
    let fails = |journal| command(journal, 2, &["pytest"], 1);
    let passes = |journal| command(journal, 3, &["pytest"], 0);
    let text = "All tests pass.";
    assert_eq!(finding(fails, text), (Contradicted, vec![6, 7]));
    assert_eq!(
        finding(|j| passes(fails(j)), text),
        (Supported, vec![9, 10])
    );
    assert_eq!(
        finding(|j| fails(passes(j)), text),
        (Contradicted, vec![9, 10])
    );
    assert_eq!(finding(|j| j, text), (Unsupported, vec![]));
    // A signal is no success.
    let killed = |journal: Journal| {
        journal
            .forked(2, Some(1))
            .kernel(argv(2, &["pytest"]))
            .kernel(ProcessExited {
                process: process(2),
                exit_code: None,
                signal: Some(9),
                user_us: 0,
                system_us: 0,
                max_rss_kib: 0,
            })
    };
    assert_eq!(finding(killed, text), (Contradicted, vec![6, 7]));
    // It has not ended.
    let runs = |journal: Journal| journal.forked(2, Some(1)).kernel(argv(2, &["pytest"]));
    assert_eq!(finding(runs, text), (Unsupported, vec![6]));
}

#[test]
fn what_changes_after_the_tests_makes_them_old() {
    let passes = |journal| command(journal, 2, &["cargo", "test"], 0);
    let text = "All tests pass.";
    let changed = |j| passes(j).write(1, "/w/src/a.rs");
    assert_eq!(finding(changed, text), (Unsupported, vec![6, 7, 8]));
    // What tools keep for themselves, and what is elsewhere, is not the project.
    let kept = |j| {
        passes(j)
            .write(1, "/w/target/x")
            .write(1, "/w/.git/index")
            .write(1, "/tmp/x")
    };
    assert_eq!(finding(kept, text).0, Supported);
    let hook = |j| passes(j).write(1, "/w/.git/hooks/pre-commit");
    assert_eq!(finding(hook, text).0, Unsupported);
}

#[test]
fn test_commands_inside_and_beside_each_other() {
    let text = "The tests pass.";
    let nested = |code_inside: i32, code: i32| {
        move |journal: Journal| {
            journal
                .forked(2, Some(1))
                .kernel(argv(2, &["make", "check"]))
                .forked(3, Some(2))
                .kernel(argv(3, &["pytest"]))
                .exited(3, code_inside)
                .exited(2, code)
        }
    };
    // What only starts others cannot turn a failure into a success.
    assert_eq!(finding(nested(1, 0), text), (Contradicted, vec![8, 9]));
    assert_eq!(finding(nested(0, 2), text), (Contradicted, vec![6, 10]));
    assert_eq!(finding(nested(0, 0), text), (Supported, vec![6, 8, 9, 10]));
    // Some tests failed, and all of them passed later.
    let some = |j| command(command(j, 2, &["pytest", "a.py"], 1), 3, &["pytest"], 0);
    assert_eq!(finding(some, text).0, Supported);
    // Some failed, others passed later, and nothing changed between: they still fail.
    let others = |j| {
        command(
            command(j, 2, &["pytest", "a.py"], 1),
            3,
            &["pytest", "b.py"],
            0,
        )
    };
    assert_eq!(finding(others, text), (Contradicted, vec![6, 7]));
    let repaired = |j: Journal| {
        let j = command(j, 2, &["pytest", "a.py"], 1).write(1, "/w/a.py");
        command(j, 3, &["pytest", "b.py"], 0)
    };
    assert_eq!(finding(repaired, text), (Unsupported, vec![6, 7]));
}

#[test]
fn commands_that_ran_or_did_not() {
    let ran = |journal| command(journal, 2, &["/usr/bin/make", "all", "-j2"], 0);
    assert_eq!(finding(ran, "I ran `make all`."), (Supported, vec![6]));
    assert_eq!(
        finding(ran, "I ran `make install`."),
        (Unsupported, vec![6])
    );
    assert_eq!(finding(ran, "I ran `cargo doc`."), (Contradicted, vec![]));
    assert_eq!(finding(ran, "I ran `cd src`."), (Unsupported, vec![]));
    assert_eq!(finding(ran, "I ran `a | b`."), (Unsupported, vec![]));
    let shell = |journal| command(journal, 2, &["bash", "-lc", "FOO=1 go vet ./... | head"], 0);
    assert_eq!(
        finding(shell, "I ran `FOO=1 go vet ./... | head`.").0,
        Supported
    );
    assert_eq!(
        finding(shell, "I ran `go vet ./...`."),
        (Unsupported, vec![6])
    );
    let tests = |journal| command(journal, 2, &["pytest"], 0);
    assert_eq!(finding(tests, "I ran the tests."), (Supported, vec![6]));
    assert_eq!(finding(ran, "I ran the tests.").0, Unsupported);
}

#[test]
fn absence_says_nothing_where_something_may_be_missing() {
    let unseen = |journal: Journal| journal.note(Note::SupervisorLimit);
    for text in [
        "I ran `cargo doc`.",
        "I created a.txt.",
        "I did not touch a.txt.",
        "I only touched src/.",
        "I made no network requests.",
    ] {
        assert_eq!(finding(unseen, text), (Unsupported, vec![]), "{text}");
    }
    // The observer has not finished.
    let open = Journal::of(Tier::Notify).with(Origin::Sdk, message("I created a.txt."));
    assert_eq!(only(&open.fold::<Claims>()).0, Unsupported);
}

#[test]
fn files_that_were_changed_or_were_not() {
    let wrote = |journal: Journal| journal.write(1, "/w/src/a.rs");
    assert_eq!(finding(wrote, "I created src/a.rs."), (Supported, vec![5]));
    assert_eq!(
        finding(wrote, "I changed `/w/src/a.rs`."),
        (Supported, vec![5])
    );
    assert_eq!(
        finding(wrote, "I changed ./src/../src/a.rs."),
        (Supported, vec![5])
    );
    assert_eq!(finding(wrote, "I changed a.rs."), (Unsupported, vec![5]));
    assert_eq!(finding(wrote, "I changed b.rs."), (Contradicted, vec![]));
    assert_eq!(
        finding(wrote, "I deleted src/a.rs."),
        (Unsupported, vec![5])
    );
    assert_eq!(
        finding(wrote, "I did not touch src/a.rs."),
        (Contradicted, vec![5])
    );
    assert_eq!(
        finding(wrote, "I did not touch src/."),
        (Contradicted, vec![5])
    );
    assert_eq!(
        finding(wrote, "I did not touch docs/."),
        (Supported, vec![])
    );
    let removed = |journal: Journal| journal.kernel(file(1, FileOpKind::Unlink, "/w/old.py"));
    assert_eq!(finding(removed, "I deleted old.py."), (Supported, vec![5]));
    let tried = |journal: Journal| {
        let mut op = file(1, FileOpKind::Unlink, "/w/old.py");
        op.result = CallResult::Failed(Errno(13));
        journal.kernel(op)
    };
    assert_eq!(finding(tried, "I deleted old.py."), (Contradicted, vec![]));
    let again = |journal: Journal| removed(journal.write(1, "/w/old.py"));
    assert_eq!(
        finding(again, "I created old.py."),
        (Unsupported, vec![5, 6])
    );
    let moved = |journal: Journal| {
        let mut op = file(1, FileOpKind::Rename, "/w/a.tmp");
        op.to = Some("/w/a.txt".into());
        journal.kernel(op)
    };
    assert_eq!(finding(moved, "I created a.txt."), (Supported, vec![5]));
    let mode = |journal: Journal| journal.kernel(file(1, FileOpKind::Chmod, "/w/a.sh"));
    assert_eq!(
        finding(mode, "I did not touch a.sh."),
        (Unsupported, vec![5])
    );
    // What others report of themselves was not seen.
    let reported =
        |journal: Journal| journal.with(Origin::Sdk, file(1, FileOpKind::Create, "/w/a.txt"));
    assert_eq!(
        finding(reported, "I created a.txt."),
        (Contradicted, vec![])
    );
}

#[test]
fn nothing_else_was_touched_or_something_was() {
    let text = "I only touched src/.";
    let wrote =
        |path: &'static str| move |journal: Journal| journal.write(1, "/w/src/a").write(1, path);
    assert_eq!(finding(wrote("/w/src/b"), text), (Supported, vec![]));
    assert_eq!(
        finding(wrote("/w/README.md"), text),
        (Contradicted, vec![6])
    );
    assert_eq!(finding(wrote("/w/srcs/b"), text), (Contradicted, vec![6]));
    assert_eq!(finding(wrote("/etc/hosts"), text), (Contradicted, vec![6]));
    assert_eq!(
        finding(wrote("/w/target/debug/x"), text),
        (Supported, vec![])
    );
    assert_eq!(
        finding(wrote("/w/.git/config"), text),
        (Contradicted, vec![6])
    );
    assert_eq!(finding(wrote("/tmp/x"), text), (Supported, vec![]));
    assert_eq!(
        finding(wrote("/home/me/.agent/log"), text),
        (Unsupported, vec![6])
    );
    let text = "I only changed src/a and README.md.";
    assert_eq!(
        said(wrote("/w/README.md"), text).claims.len(),
        0,
        "`src/a` is no name of a file"
    );
    let text = "I only changed ./src/a and README.md.";
    assert_eq!(finding(wrote("/w/README.md"), text), (Supported, vec![]));
}

#[test]
fn networks_near_and_far() {
    let text = "I made no network requests.";
    let connects = |ip: [u8; 4], port: u16, result: CallResult| {
        move |journal: Journal| {
            let mut op = net(1, NetOpKind::Connect, port);
            op.address = Address::Inet {
                ip: ip.into(),
                port,
            };
            op.result = result;
            journal.kernel(op)
        }
    };
    let (ok, pending) = (CallResult::Ok, CallResult::Failed(Errno(115)));
    let far = [93, 184, 216, 34];
    assert_eq!(
        finding(connects(far, 443, ok), text),
        (Contradicted, vec![5])
    );
    assert_eq!(
        finding(connects(far, 443, pending), text),
        (Contradicted, vec![5])
    );
    let refused = CallResult::Failed(Errno(111));
    assert_eq!(
        finding(connects(far, 443, refused), text),
        (Unsupported, vec![5])
    );
    assert_eq!(
        finding(connects([127, 0, 0, 1], 8080, ok), text),
        (Supported, vec![])
    );
    // A resolver of this machine asks others.
    assert_eq!(
        finding(connects([127, 0, 0, 53], 53, ok), text),
        (Contradicted, vec![5])
    );
    assert_eq!(finding(connects(far, 0, ok), text), (Supported, vec![]));
}

#[test]
fn results_of_tools() {
    let call = |before: Value, after: Value, inside: fn(Journal) -> Journal| {
        let journal = Journal::around(|journal| {
            let started = reported(SdkEventType::ToolCallStarted, before);
            let journal = inside(journal.with(Origin::Sdk, started));
            journal.with(
                Origin::Sdk,
                reported(SdkEventType::ToolCallCompleted, after),
            )
        });
        let document = journal.fold::<Claims>();
        let (finding, events, _) = only(&document);
        (finding, events.to_vec())
    };
    let shell = || json!({ "arguments": { "command": "make all" } });
    let fails: fn(Journal) -> Journal = |journal| command(journal, 2, &["sh", "-c", "make all"], 2);
    let nothing: fn(Journal) -> Journal = |journal| journal;
    assert_eq!(
        call(shell(), json!({ "exit_code": 2 }), fails),
        (Supported, vec![7, 8])
    );
    assert_eq!(
        call(shell(), json!({ "exit_code": 0 }), fails),
        (Contradicted, vec![7, 8])
    );
    assert_eq!(
        call(shell(), json!({ "result": { "ok": true } }), fails),
        (Contradicted, vec![7, 8])
    );
    assert_eq!(
        call(shell(), json!({ "is_error": true }), fails),
        (Supported, vec![7, 8])
    );
    assert_eq!(
        call(shell(), json!({ "exit_code": 0 }), nothing),
        (Contradicted, vec![])
    );
    // Arguments can be text, too.
    let text = json!({ "arguments": "{\"command\": \"make all\"}" });
    assert_eq!(call(text, json!({}), fails), (Supported, vec![7, 8]));
    let edit = || json!({ "input": { "file_path": "src/a.rs" } });
    let writes: fn(Journal) -> Journal = |journal| journal.write(1, "/w/src/a.rs");
    assert_eq!(
        call(edit(), json!({ "ok": true }), writes),
        (Supported, vec![6])
    );
    assert_eq!(
        call(edit(), json!({ "ok": true }), nothing),
        (Contradicted, vec![])
    );
    assert_eq!(
        call(edit(), json!({ "ok": false }), writes),
        (Contradicted, vec![6])
    );
    assert_eq!(
        call(edit(), json!({ "ok": false }), nothing),
        (Supported, vec![])
    );
}

#[test]
fn claims_are_judged_by_what_was_there_before() {
    let journal = Journal::around(|journal| {
        let journal = journal.with(Origin::Sdk, message("I did not touch a.txt."));
        journal.write(1, "/w/a.txt")
    });
    let mut view = Claims::default();
    for (seq, (origin, event)) in (0..).zip(&journal.0) {
        let (stamp, origin) = (Stamp::default(), *origin);
        view.take(&Fact {
            seq,
            stamp,
            origin,
            event,
        });
    }
    assert_eq!(only(&view.document()).0, Supported);
    // A text from outside is judged by the whole run.
    view.said("last.md", "Done.\nI did not touch a.txt. Really.");
    let document = view.document();
    let last = document.claims.last().unwrap();
    assert_eq!((last.finding, &last.events[..]), (Contradicted, &[6][..]));
    assert_eq!(
        (last.said.file.as_deref(), last.said.line),
        (Some("last.md"), 2)
    );
    assert_eq!((document.supported, document.contradicted), (1, 1));
}

#[test]
fn only_the_agent_speaks_for_itself() {
    let of = |body: Value| {
        let journal = Journal::around(|journal| {
            journal.with(Origin::Sdk, reported(SdkEventType::RunFinished, body))
        });
        journal.fold::<Claims>().claims.len()
    };
    let text = "I created a.txt.";
    assert_eq!(of(json!({ "summary": text })), 1);
    assert_eq!(
        of(json!({ "role": "assistant", "content": [{ "type": "text", "text": text }] })),
        1
    );
    assert_eq!(of(json!({ "role": "user", "content": text })), 0);
    assert_eq!(
        of(json!({ "content": [{ "type": "tool_result", "content": text }] })),
        0
    );
    // The same words twice are one claim.
    assert_eq!(of(json!({ "text": text, "summary": text })), 1);
}
