//! Tasks as a library: what a daemon builds upon, and what it can follow.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use invigil_engine::contracts::parse;
use invigil_engine::{Asking, Attended, Cancel, Engine, Output, TaskError, TaskSpec, Tasks, Voice};
use invigil_journal::{Store, SystemClock};
use invigil_policy::{Places, profile};
use invigil_schema::{Event, Mode, TaskId, TaskState};

fn git(directory: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=A", "-c", "user.email=a@example.com"]);
    let done = command.args(args).current_dir(directory).output().unwrap();
    assert!(done.status.success(), "{args:?}: {done:?}");
}

fn attended<'a>(cancel: &'a Cancel, listen: &'a mut dyn FnMut(&Event)) -> Attended<'a> {
    Attended {
        cancel,
        asking: Asking {
            somebody: false,
            ..Asking::default()
        },
        output: Output::Stderr,
        listen,
    }
}

#[test]
fn a_task_can_be_followed_from_any_record_and_is_approved_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("repo")).unwrap();
    std::fs::write(at("repo/a"), "old\n").unwrap();
    git(&at("repo"), &["init", "-q", "-b", "main", "."]);
    git(&at("repo"), &["add", "."]);
    git(&at("repo"), &["commit", "-q", "-m", "first"]);
    let engine = Engine {
        store: Store::new(at("home")),
        clock: Arc::new(SystemClock),
        env: std::env::vars_os().collect::<BTreeMap<_, _>>(),
        cwd: folder.path().to_owned(),
        runtime_dir: folder.path().to_owned(),
        writer: "test".to_owned(),
    };
    let tasks = Tasks::new(engine, at("work"));
    let contract = parse("checks = [{ name = \"new\", command = \"grep -q new a\" }]").unwrap();
    let spec = TaskSpec {
        task_id: Some(TaskId::new("t1").unwrap()),
        repository: at("repo"),
        intent: "make it new".to_owned(),
        contract: None,
        agent_id: None,
        agent: ["sh", "-c", "cat >> told; echo new > a"]
            .map(Into::into)
            .to_vec(),
        mode: Mode::Guard,
        sources: vec![profile("coding").unwrap()],
        places: Places {
            home: folder.path().to_owned(),
            workspace: folder.path().to_owned(),
            tmp: at("tmp"),
            path: Vec::new(),
        },
        max_rounds: 0,
        timeout: None,
    };
    let id = tasks.start(&spec).unwrap().task_id;
    let (cancel, mut heard) = (Cancel::new(), Vec::new());
    let early = tasks.work(&id, attended(&cancel, &mut |_| {}));
    assert!(matches!(early, Err(TaskError::State { .. })), "{early:?}");
    let mut model = |_: &str| Ok(serde_json::to_string(&contract).unwrap());
    let proposed = tasks.derive(&id, 1, &cancel, &mut model).unwrap();
    assert_eq!(proposed.state, TaskState::ContractProposed);
    let confirmed = tasks.confirm(&id, None, Voice::Person).unwrap();
    assert_eq!(confirmed.state, TaskState::ContractConfirmed);
    let listen = &mut |event: &Event| heard.push(event.kind().to_owned());
    let view = tasks.work(&id, attended(&cancel, listen)).unwrap();
    assert_eq!(view.state, TaskState::NeedsApproval, "{view:?}");
    // Whoever comes later reads what the listener heard, gapless.
    let mut reader = tasks.subscribe(&id, confirmed.seq + 1).unwrap().unwrap();
    let (mut read, mut next) = (Vec::new(), confirmed.seq + 1);
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.seq, next);
        next += 1;
        read.push(record.envelope().unwrap().kind.into_owned());
    }
    assert_eq!(read, heard);
    let digest = view.proposed.as_ref().unwrap().digest.to_string();
    for wrong in ["", &digest[..11], &"0".repeat(64)] {
        let refused = tasks.approve(&id, wrong, 0);
        assert!(
            matches!(refused, Err(TaskError::Digest { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(
        tasks.approve(&id, &digest[..12], 0).unwrap().state,
        TaskState::Merged
    );
    assert!(matches!(
        tasks.approve(&id, &digest, 0),
        Err(TaskError::State { .. })
    ));
    // The same reader has what came since.
    let mut last = String::new();
    while let Some(record) = reader.next().unwrap() {
        last = record.envelope().unwrap().kind.into_owned();
    }
    assert_eq!(last, "task_ended");
    git(
        &at("repo"),
        &["diff", "--exit-code", "--stat", "main:a", "HEAD:a"],
    );
    git(&at("repo"), &["cat-file", "-e", "invigil/t1:told"]);
    assert!(tasks.recover().unwrap().is_empty());
    assert!(!at("work/t1").exists() && !at("home/tasks/t1/repository").exists());
}
