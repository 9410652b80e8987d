//! A gate that asks: the process waits until somebody answers, and nobody else does.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use invigil_sandbox::{
    Action, Answer, Decision, Gate, Handle, LaunchSpec, Request, SinkError, Stdio, launch,
};
use invigil_schema::{Errno, Event, Origin, Tier};

struct Asking(Sender<u64>);

impl Gate for Asking {
    fn check(&mut self, request: &Request<'_>) -> Answer {
        let asked = match request.action {
            Action::File(op) => op.path.as_bytes().ends_with(b"asked"),
            Action::Exec(exec) => exec.program.as_bytes().ends_with(b"/mkdir"),
            Action::Net(_) => false,
        };
        if !asked {
            return Answer::Now(Decision::Allow);
        }
        self.0.send(request.id).unwrap();
        Answer::Ask
    }
}

type Facts = Arc<Mutex<Vec<Event>>>;

fn start(tier: Tier, dir: &Path, script: &str) -> (Handle, Facts, Receiver<u64>) {
    let mut spec = LaunchSpec::new(["/bin/sh", "-c", script]);
    spec.tier = tier;
    spec.cwd = dir.to_owned();
    (spec.stdin, spec.stdout, spec.stderr) = (Stdio::Null, Stdio::Null, Stdio::Null);
    let facts = Facts::default();
    let sink = Arc::clone(&facts);
    let (questions, asked) = channel();
    let record = move |_: Origin, event: Event| -> Result<(), SinkError> {
        sink.lock().unwrap().push(event);
        Ok(())
    };
    (
        launch(spec, record, Asking(questions)).unwrap(),
        facts,
        asked,
    )
}

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn an_answer_that_comes_later() {
    for tier in [Tier::Notify, Tier::Ptrace] {
        let dir = tempfile::tempdir().unwrap();
        let (run, facts, asked) = start(tier, dir.path(), ": > asked; exit 4");
        let first = asked.recv_timeout(LIMIT).unwrap();
        assert!(run.wait(Some(Duration::from_millis(100))).is_none());
        assert!(!dir.path().join("asked").exists());
        assert!(run.contains(run.pid()) && run.sample().processes >= 1);
        let rule = "not now".to_owned();
        run.answer(
            first,
            Decision::Deny {
                error: Errno(13),
                rule,
                place: None,
            },
        );
        // A shell ends when a redirection of `:` fails.
        assert_ne!(run.wait(Some(LIMIT)).unwrap().exit_code, Some(4));
        assert!(!dir.path().join("asked").exists());
        let is_denial = |e: &Event| matches!(e, Event::AccessDenied(d) if d.rule == "not now");
        assert!(facts.lock().unwrap().iter().any(is_denial), "{tier:?}");

        let (run, _, asked) = start(tier, dir.path(), ": > asked; mkdir made; exit 4");
        run.answer(asked.recv_timeout(LIMIT).unwrap(), Decision::Allow);
        run.answer(asked.recv_timeout(LIMIT).unwrap(), Decision::Allow);
        assert_eq!(
            run.wait(Some(LIMIT)).unwrap().exit_code,
            Some(4),
            "{tier:?}"
        );
        assert!(dir.path().join("asked").exists() && dir.path().join("made").exists());
    }
}

#[test]
fn a_question_that_nobody_answers_can_be_killed() {
    for tier in [Tier::Notify, Tier::Ptrace] {
        let dir = tempfile::tempdir().unwrap();
        let (run, facts, asked) = start(tier, dir.path(), ": > asked");
        asked.recv_timeout(LIMIT).unwrap();
        run.kill();
        assert_eq!(run.wait(Some(LIMIT)).unwrap().signal, Some(9), "{tier:?}");
        assert!(!dir.path().join("asked").exists());
        let is_end = |e: &Event| matches!(e, Event::ObserverFinished(_));
        assert!(facts.lock().unwrap().iter().any(is_end));
    }
}

#[test]
fn several_runs_at_once_in_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let runs: Vec<_> = (0..6)
        .map(|n| {
            let tier = if n % 2 == 0 {
                Tier::Notify
            } else {
                Tier::Ptrace
            };
            let script =
                format!("for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; : > f{n}-$i; done; exit {n}");
            start(tier, dir.path(), &script)
        })
        .collect();
    for (n, (run, facts, _)) in runs.iter().enumerate() {
        assert_eq!(run.wait(Some(LIMIT)).unwrap().exit_code, Some(n as i32));
        let facts = facts.lock().unwrap();
        let count = |f: fn(&Event) -> bool| facts.iter().filter(|e| f(e)).count();
        assert_eq!(count(|e| matches!(e, Event::ProcessExited(_))), 11);
        assert_eq!(count(|e| matches!(e, Event::FileOp(_))), 10);
    }
}

struct Stuck;

impl Gate for Stuck {
    fn check(&mut self, request: &Request<'_>) -> Answer {
        if matches!(request.action, Action::File(_)) {
            std::thread::sleep(Duration::from_secs(2));
        }
        Answer::Now(Decision::Allow)
    }
}

#[test]
fn an_observer_that_is_stuck_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut spec = LaunchSpec::new(["/bin/sh", "-c", ": > f; sleep 60"]);
    spec.cwd = dir.path().to_owned();
    spec.patience = Duration::from_millis(200);
    (spec.stdin, spec.stdout, spec.stderr) = (Stdio::Null, Stdio::Null, Stdio::Null);
    let forget = |_: Origin, _: Event| -> Result<(), SinkError> { Ok(()) };
    let run = launch(spec, forget, Stuck).unwrap();
    let ended = run.wait(Some(LIMIT)).unwrap();
    assert_eq!(ended.signal, Some(9));
    assert!(ended.killed.is_some(), "{ended:?}");
}
