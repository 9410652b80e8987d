//! An `ask` waits for a person, and no process of a run is one.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::world::{Daemon, Host, Reply, World};

/// A host in a process of its own; it reports one JSON value a line.
struct Agent {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Agent {
    fn start(daemon: &Daemon<'_>) -> Agent {
        let own = std::env::current_exe().unwrap();
        let args = [
            "--exact",
            "approvals::the_agent",
            "--ignored",
            "--nocapture",
        ];
        let mut child = daemon
            .world
            .program(own.to_str().unwrap(), &args)
            .env("INVIGIL_TEST_ADDRESS", &daemon.address)
            .env("INVIGIL_TEST_TOKEN", daemon.token("token"))
            .env("INVIGIL_TEST_OPERATOR", daemon.token("operator-token"))
            .env("INVIGIL_HOME", daemon.world.home())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Agent { child, lines }
    }

    fn next(&mut self) -> Value {
        loop {
            let line = self.lines.next().unwrap().unwrap();
            if let Some(json) = line.split("@@").nth(1) {
                return serde_json::from_str(json).unwrap();
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn report(value: &Value) {
    println!("@@{value}@@");
}

/// No test: the process of a host, which asks and tries to answer itself.
#[test]
#[ignore = "started by the others"]
fn the_agent() {
    let Ok(address) = std::env::var("INVIGIL_TEST_ADDRESS") else {
        return;
    };
    let endpoint = invigil_server::Endpoint::Tcp(address.clone());
    let connect = || Host::new(invigil_server::Client::connect(&endpoint).unwrap());
    let mut host = connect();
    host.ok(
        "session.auth",
        json!({ "token": std::env::var("INVIGIL_TEST_TOKEN").unwrap(), "agent_id": "a" }),
    );
    host.tool("t", |params| Reply::With(params["parameters"].clone()));
    host.ok(
        "policy.register",
        json!({ "name": "careful", "rule": "ask_tool", "target": "t", "key": "ask" }),
    );
    let run = host.start("x");
    report(&json!(run));
    let ask = |n: u64, id: &str| {
        let action = json!({ "id": "a", "tool": "t", "parameters": { "ask": n } });
        json!({ "proposal": { "id": id, "actions": [action] } })
    };
    host.client
        .request("proposal.submit", &ask(1, "first"))
        .unwrap();
    // Another action does not wait.
    report(&host.submit(json!([{ "id": "b", "tool": "t", "parameters": {} }]))[0]["status"]);
    let open = host.ok("approvals.list", json!({}));
    report(&open["approvals"][0]);
    let id = open["approvals"][0]["id"].as_str().unwrap().to_owned();
    let answer = json!({ "id": id, "decision": "allow" });
    let mut refusals = vec![host.refused("approvals.resolve", answer.clone()).code];
    let mut operator = connect();
    operator.ok(
        "session.auth",
        json!({ "token": std::env::var("INVIGIL_TEST_OPERATOR").unwrap() }),
    );
    refusals.push(operator.refused("approvals.resolve", answer.clone()).code);
    for extra in [&["--operator"][..], &["--operator", "--tcp", &address], &[]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_invigil"));
        let child = child
            .arg("rpc")
            .args(extra)
            .args(["approvals.resolve", &answer.to_string()]);
        let output = child.output().unwrap();
        let error: Value = serde_json::from_slice(&output.stdout).unwrap();
        refusals.push(error["code"].as_i64().unwrap());
    }
    report(&json!(refusals));
    loop {
        host.listen(Duration::from_millis(20));
        let done = host
            .seen
            .iter()
            .position(|message| message["result"]["proposal_id"] == "first");
        if let Some(done) = done {
            report(&host.seen[done]["result"]["results"][0]);
            break;
        }
    }
    // The same again, and another one.
    report(&host.ok("proposal.submit", ask(1, "again"))["results"][0]);
    report(&host.ok("proposal.submit", ask(2, "other"))["results"][0]);
    host.complete(&run);
    report(&json!("done"));
}

#[test]
fn a_person_decides_and_nobody_of_the_run_can() {
    for world in World::everyone() {
        let daemon = world.serve(&[]);
        let mut agent = Agent::start(&daemon);
        let run = agent.next().as_str().unwrap().to_owned();
        assert_eq!(agent.next(), "succeeded", "only the one that asks waits");
        let question = agent.next();
        assert_eq!(
            (&question["tool"], &question["rule"]),
            (&json!("t"), &json!("careful"))
        );
        assert_eq!(question["run_id"], json!(run));
        let refusals = agent.next();
        let refusals: Vec<i64> = refusals
            .as_array()
            .unwrap()
            .iter()
            .map(|code| code.as_i64().unwrap())
            .collect();
        assert_eq!(refusals, [-32002; 5]);
        let mut other = daemon.host(Some("other"));
        assert_eq!(
            other.ok("approvals.list", json!({}))["approvals"],
            json!([])
        );
        let answer = json!({ "id": question["id"], "decision": "allow", "remember": true });
        assert_eq!(
            other.refused("approvals.resolve", answer.clone()).code,
            -32002
        );
        let operator = |method: &str, params: Value| {
            let mut rpc = world.command(&["rpc", "--operator", method, &params.to_string()]);
            let output = rpc.output().unwrap();
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            answer
        };
        let open = operator("approvals.list", json!({}));
        assert_eq!(open["approvals"][0]["id"], question["id"]);
        assert_eq!(operator("approvals.resolve", answer.clone())["ok"], true);
        assert_eq!(
            operator("approvals.resolve", answer)["code"],
            -32004,
            "once"
        );
        assert_eq!(agent.next()["status"], "succeeded");
        assert_eq!(agent.next()["status"], "succeeded", "remembered");
        daemon.wait_for("questions_open", |open| open == 1);
        // The same with the command that is there for people.
        let approvals = |arguments: &[&str]| {
            let command = [&["approvals"], arguments].concat();
            let output = world.command(&command).output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (
                output.status.success(),
                text(&output.stdout),
                text(&output.stderr),
            )
        };
        let (_, listed, _) = approvals(&["list"]);
        let has = |word: &str| listed.contains(word);
        assert!(
            has(&run) && has("careful") && has("{\"ask\":2}"),
            "{listed}"
        );
        let (_, line, _) = approvals(&["list", &run, "--json"]);
        let open: Value = serde_json::from_str(&line).unwrap();
        let id = open["id"].as_str().unwrap();
        let (done, _, why) = approvals(&["deny", id, "--reason", "no"]);
        assert!(!done && why.contains("leave it out"), "{why}");
        let (_, shown, _) = approvals(&["show", &id[..8]]);
        assert!(shown.contains("action a of other"), "{shown}");
        let (done, said, why) = approvals(&["deny", &id[..8]]);
        assert!(done && said.contains("denied"), "{said}{why}");
        let (done, _, why) = approvals(&["allow", id]);
        assert!(!done && why.contains("no question"), "{why}");
        let denied = agent.next();
        assert_eq!(
            (&denied["status"], &denied["rejected_by"]),
            (&json!("rejected"), &json!("approval"))
        );
        assert_eq!(agent.next(), "done");
        let asked = world.all(&run, "tool_asked");
        let answered = world.all(&run, "tool_answered");
        assert_eq!((asked.len(), answered.len()), (2, 2));
        assert_eq!(asked[0]["action"], answered[0]["action"]);
        assert_eq!(
            (&answered[0]["decision"], &answered[0]["remembered"]),
            (&json!("allow"), &json!(true))
        );
        assert!(answered[1]["by"]["pid"].is_u64());
        let origins: Vec<Value> = world
            .events(&run)
            .iter()
            .filter(|e| e["kind"] == "tool_answered")
            .map(|e| e["origin"].clone())
            .collect();
        assert_eq!(origins, ["user", "user"]);
        world.verify(&run);
    }
}

#[test]
fn a_question_that_nobody_answers_is_denied() {
    let world = World::new();
    let daemon = world.serve(&["--ask-timeout", "300ms"]);
    let mut host = daemon.host(None);
    host.tool("t", |_| panic!("called"));
    host.ok(
        "policy.register",
        json!({ "name": "careful", "rule": "ask_tool", "target": "t" }),
    );
    let run = host.start("x");
    let begun = Instant::now();
    let results = host.submit(json!([{ "id": "a", "tool": "t" }]));
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(
        (&results[0]["status"], &results[0]["rejected_by"]),
        (&json!("rejected"), &json!("approval"))
    );
    assert_eq!(
        world.all(&run, "tool_answered")[0]["by"],
        json!({ "through": "timeout" })
    );
    assert_eq!(host.ok("approvals.list", json!({}))["approvals"], json!([]));
}

#[test]
fn a_person_at_a_terminal_needs_no_token() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut agent = Agent::start(&daemon);
    agent.next();
    agent.next();
    let question = agent.next();
    agent.next();
    let answer = json!({ "id": question["id"], "decision": "allow" }).to_string();
    let without = world
        .command(&["rpc", "approvals.resolve", &answer])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let in_session = |command: &mut Command| command.output();
    let mut watched = world.command(&[
        "run",
        "--",
        env!("CARGO_BIN_EXE_invigil"),
        "rpc",
        "--operator",
        "approvals.resolve",
        &answer,
    ]);
    let watched = in_session(&mut watched).unwrap();
    assert!(!watched.status.success(), "a watched run cannot answer");
    if Command::new("script").arg("--version").output().is_err() {
        println!("there is no script(1) here");
        return;
    }
    let line = format!(
        "{} rpc approvals.resolve '{answer}'",
        env!("CARGO_BIN_EXE_invigil")
    );
    let output = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("INVIGIL_HOME", world.home())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if rustix::termios::isatty(std::io::stdin()) {
        println!("the tests have a terminal themselves");
    } else {
        assert_eq!(without.status.code(), Some(1), "no terminal, no answer");
        assert!(said.contains("\"ok\": true"), "{said}");
        assert_eq!(agent.next()["status"], "succeeded");
    }
}
