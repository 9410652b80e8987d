//! Who wants a task, or works on it, does not approve it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use invigil_server::{Client, Endpoint};
use serde_json::{Value, json};

use crate::coder::{SOLVES, digest, repository, stands, start, wanted};
use crate::world::{Host, World};

/// No test: an agent that has the operator's token, and tries to approve a task.
#[test]
#[ignore = "started by another one"]
fn the_approver() {
    let Ok(address) = std::env::var("INVIGIL_TEST_ADDRESS") else {
        return;
    };
    let mut host = Host::new(Client::connect(&Endpoint::Tcp(address)).unwrap());
    let token = std::env::var("INVIGIL_TEST_OPERATOR").unwrap();
    host.ok("session.auth", json!({ "token": token }));
    let params: Value =
        serde_json::from_str(&std::env::var("INVIGIL_TEST_PARAMS").unwrap()).unwrap();
    let mut said = Vec::new();
    for method in ["coder.approve_merge", "coder.respond", "coder.cancel"] {
        let mut params = params.clone();
        match method {
            "coder.approve_merge" => {}
            "coder.respond" => params = json!({ "task_id": params["task_id"], "text": "x" }),
            _ => params = json!({ "task_id": params["task_id"] }),
        }
        said.push(match host.call(method, params) {
            Ok(_) => format!("{method} done"),
            Err(error) => format!("{method} {error}"),
        });
    }
    let to = std::env::var("INVIGIL_TEST_SAYS").unwrap();
    fs::write(to, said.join("\n") + "\n").unwrap();
}

/// No test: a host that somebody has started in a terminal.
#[test]
#[ignore = "started by another one"]
fn the_host_in_a_terminal() {
    let Ok(socket) = std::env::var("INVIGIL_TEST_SOCKET") else {
        return;
    };
    let connect = |agent: Option<&str>| {
        let endpoint = Endpoint::Unix(socket.clone().into());
        let mut host = Host::new(Client::connect(&endpoint).unwrap());
        host.ok("session.auth", json!({ "agent_id": agent }));
        host
    };
    let repository = PathBuf::from(std::env::var("INVIGIL_TEST_REPOSITORY").unwrap());
    let mut host = connect(Some("h"));
    let task = start(&mut host, wanted(&repository, SOLVES));
    let view = stands(&mut host, &task, "needs_approval");
    let approve = json!({ "task_id": task, "digest": digest(&view) });
    let mut said = vec![task];
    for mut person in [host, connect(None)] {
        said.push(match person.call("coder.approve_merge", approve.clone()) {
            Ok(_) => "merged".to_owned(),
            Err(error) => error.to_string(),
        });
    }
    fs::write(std::env::var("INVIGIL_TEST_SAYS").unwrap(), said.join("\n")).unwrap();
}

#[test]
fn a_host_in_a_terminal_is_no_person() {
    if Command::new("script").arg("--version").output().is_err() {
        println!("there is no script(1) here");
        return;
    }
    let world = World::new();
    let repository = repository(&world);
    let daemon = world.serve(&[]);
    let says = world.path("says");
    let line = format!(
        "{} --exact approvers::the_host_in_a_terminal --ignored",
        std::env::current_exe().unwrap().display()
    );
    let output = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("INVIGIL_TEST_SOCKET", world.home().join("daemon/socket"))
        .env("INVIGIL_TEST_REPOSITORY", &repository)
        .env("INVIGIL_TEST_SAYS", &says)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = fs::read_to_string(&says).unwrap_or_else(|_| panic!("{output:?}"));
    let task = said.lines().next().unwrap().to_owned();
    assert_eq!(
        said.matches("whoever has begun a task").count(),
        2,
        "{said}"
    );
    let mut operator = daemon.operator();
    stands(&mut operator, &task, "needs_approval");
    operator.ok("coder.cancel", json!({ "task_id": task }));
}

#[test]
fn no_process_of_a_task_can_approve() {
    for world in World::everyone() {
        let repository = repository(&world);
        let daemon = world.serve(&[]);
        let mut host = daemon.host(Some("a"));
        let task = start(&mut host, wanted(&repository, SOLVES));
        let view = stands(&mut host, &task, "needs_approval");
        let approve = json!({ "task_id": task, "digest": digest(&view) });
        // Everybody can run it, wherever it was built.
        let program = world.path("approver");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let set = format!(
            "export INVIGIL_TEST_ADDRESS={} INVIGIL_TEST_OPERATOR={} INVIGIL_TEST_PARAMS='{approve}'",
            daemon.address,
            daemon.token("operator-token"),
        );
        let run = format!(
            "{} --exact approvers::the_approver --ignored",
            program.display()
        );
        let agent = format!(
            "{set}; INVIGIL_TEST_SAYS=said {run}; INVIGIL_TEST_SAYS=left setsid -f sh -c 'sleep 1; {run}'; \
             while ! test -s left; do sleep 0.1; done; {SOLVES}"
        );
        let other = start(&mut host, wanted(&repository, &agent));
        let tried = stands(&mut host, &other, "needs_approval");
        let worktree = PathBuf::from(tried["worktree"].as_str().unwrap());
        for name in ["said", "left"] {
            let said = fs::read_to_string(worktree.join(name)).unwrap();
            assert_eq!(said.matches("(-32002)").count(), 3, "{said}");
            assert!(
                said.contains("that the daemon has started cannot answer"),
                "{said}"
            );
        }
        assert_eq!(stands(&mut host, &task, "needs_approval"), view);
        // The command line in the place of the agent finds no store.
        let rpc = format!(
            "{} rpc --operator coder.approve_merge '{approve}' > said 2>&1; {SOLVES}",
            env!("CARGO_BIN_EXE_invigil")
        );
        let third = start(&mut host, wanted(&repository, &rpc));
        stands(&mut host, &third, "needs_approval");
        assert_eq!(stands(&mut host, &task, "needs_approval"), view);
        for task in [&other, &third, &task] {
            host.ok("coder.cancel", json!({ "task_id": task }));
        }
    }
}
