//! How a daemon begins, who is let in, how it ends.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use invigil_server::ClientError;
use serde_json::{Value, json};

use crate::world::{Host, Reply, World};

#[test]
fn one_daemon_has_a_store() {
    for world in World::everyone() {
        let mut daemon = world.serve(&[]);
        let second = world
            .command(&["serve", "--listen", "127.0.0.1:0"])
            .output()
            .unwrap();
        let words = String::from_utf8(second.stderr).unwrap();
        assert_eq!(second.status.code(), Some(125));
        assert!(
            words.contains(&daemon.address) && words.contains("daemon/socket"),
            "{words}"
        );
        for (name, mode) in [
            ("token", 0o600),
            ("operator-token", 0o600),
            ("socket", 0o600),
            ("", 0o700),
        ] {
            let path = world.home().join("daemon").join(name);
            assert_eq!(
                path.metadata().unwrap().permissions().mode() & 0o777,
                mode,
                "{name}"
            );
        }
        let token = daemon.token("token");
        assert!(token.len() == 64 && token != daemon.token("operator-token"));
        daemon.kill();
        assert!(
            world.home().join("daemon/socket").exists(),
            "left by the dead one"
        );
        let mut daemon = world.serve(&[]);
        assert_ne!(daemon.token("token"), token, "a new one with every start");
        let mut old = Host::new(daemon.connect());
        assert_eq!(
            old.refused("session.auth", json!({ "token": token })).code,
            -32001
        );
        assert_eq!(daemon.stop(), Some(0));
        assert!(!world.home().join("daemon/socket").exists());
    }
}

#[test]
fn only_loopback_is_listened_on() {
    let world = World::new();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let refused = world
            .command(&["serve", "--listen", address])
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(125));
        assert!(
            String::from_utf8(refused.stderr)
                .unwrap()
                .contains("loopback")
        );
    }
}

#[test]
fn the_first_frame_says_who_one_is() {
    let world = World::new();
    let daemon = world.serve(&[]);
    for first in [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "runs.list" }).to_string(),
        json!({ "jsonrpc": "2.0", "id": 1, "method": "session.auth", "params": { "token": "x" } })
            .to_string(),
        json!({ "jsonrpc": "2.0", "id": 1, "method": "session.auth", "params": {} }).to_string(),
        json!([{ "jsonrpc": "2.0", "id": 1, "method": "runs.start", "params": { "intent": "x" } }])
            .to_string(),
    ] {
        let mut client = daemon.connect();
        client.send(first.clone()).unwrap();
        let answer = client.receive(Duration::from_secs(5)).unwrap();
        let answer = answer.get(0).unwrap_or(&answer);
        assert_eq!(answer["error"]["code"], -32001, "{first}");
        let after = client.receive(Duration::from_secs(5));
        assert!(
            matches!(after, Err(ClientError::Closed)),
            "{first}: {after:?}"
        );
    }
    assert!(!world.home().join("runs").exists());
}

#[test]
fn pages_of_the_web_are_not_let_in() {
    let world = World::new();
    let daemon = world.serve(&["--allow-origin", "http://good.example"]);
    let get = |headers: &str| {
        let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n";
        let page = daemon.get("/ws", &format!("{upgrade}{headers}Connection: close\r\n"));
        page.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(
        get("Host: localhost\r\nOrigin: http://evil.example\r\n"),
        "403"
    );
    assert_eq!(get("Host: localhost\r\nOrigin: null\r\n"), "403");
    assert_eq!(get("Host: evil.example\r\n"), "403");
    assert_eq!(
        daemon
            .get("/nothing", "Host: localhost\r\n")
            .split(' ')
            .nth(1),
        Some("404")
    );
    assert_eq!(
        daemon.get("/", "Host: localhost\r\n").split(' ').nth(1),
        Some("426")
    );
    assert!(
        daemon
            .get("/healthz", "Host: 127.0.0.1:7117\r\n")
            .ends_with("ok\n")
    );
    assert!(
        daemon
            .get("/metrics", "Host: [::1]\r\n")
            .contains("# TYPE invigil_turns_total counter")
    );
    assert_eq!(daemon.metric("connections_refused_total"), 3);
}

#[test]
fn requests_come_in_lists_and_notifications_are_not_answered() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    let list = json!([
        { "jsonrpc": "2.0", "id": "a", "method": "state.set", "params": { "key": "k", "value": 1 } },
        { "jsonrpc": "2.0", "method": "state.set", "params": { "key": "k", "value": 2 } },
        { "jsonrpc": "2.0", "id": 7, "method": "state.get", "params": { "key": "k" } },
        { "jsonrpc": "2.0", "id": null, "method": "no.such" },
        42,
    ]);
    host.client.send(list.to_string()).unwrap();
    let answers = host.client.receive(Duration::from_secs(5)).unwrap();
    assert_eq!(answers.as_array().unwrap().len(), 4);
    assert_eq!(
        (&answers[0]["id"], &answers[1]["id"]),
        (&json!("a"), &json!(7))
    );
    assert_eq!(answers[1]["result"]["value"], 2);
    assert_eq!(answers[2]["error"]["code"], -32601);
    assert_eq!(answers[3]["error"]["code"], -32600);
    host.client.send("[]".into()).unwrap();
    assert_eq!(
        host.client.receive(Duration::from_secs(5)).unwrap()["error"]["code"],
        -32600
    );
    host.client
        .send(json!([{ "jsonrpc": "2.0", "method": "state.keys" }]).to_string())
        .unwrap();
    assert!(matches!(
        host.client.receive(Duration::from_millis(200)),
        Err(ClientError::Timeout)
    ));
}

#[test]
fn going_down_loses_nothing() {
    for world in World::everyone() {
        let mut daemon = world.serve(&["--grace", "5s"]);
        let mut host = daemon.host(Some("a"));
        host.tool("slow", |_| {
            std::thread::sleep(Duration::from_millis(600));
            Reply::With(json!("done"))
        });
        let run = host.start("x");
        let proposal = host.proposal(json!([{ "id": "a", "tool": "slow" }]));
        let pid = rustix::process::Pid::from_child(&daemon.child);
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        });
        let answer = host.ok("proposal.submit", proposal);
        assert_eq!(
            answer["results"][0]["output"], "done",
            "what was under way came to its end"
        );
        stopper.join().unwrap();
        assert_eq!(host.calls("daemon.shutdown"), 1);
        assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
        assert!(host.call("runs.list", json!({})).is_err());
        let events = world.events(&run);
        assert_eq!(events.last().unwrap()["kind"], "client_run_ended");
        assert_eq!(
            events.last().unwrap()["data"]["termination"]["kind"],
            "incomplete"
        );
        assert_eq!(world.all(&run, "turn")[0]["status"], "succeeded");
        world.verify(&run);
    }
}

#[test]
fn a_full_disk_is_told() {
    let world = World::new();
    // Files of 40 KiB at most: as good as a full disk, without one.
    let script = format!(
        "trap '' XFSZ; ulimit -f 80; exec {} serve --listen 127.0.0.1:0",
        env!("CARGO_BIN_EXE_invigil")
    );
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .env("HOME", world.path("."))
        .env("INVIGIL_HOME", world.home())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let address = line
        .split("ws://")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .to_owned();
    let mut host = Host::new(
        invigil_server::Client::connect(&invigil_server::Endpoint::Tcp(address)).unwrap(),
    );
    let token = std::fs::read_to_string(world.home().join("daemon/token")).unwrap();
    host.ok("session.auth", json!({ "token": token, "agent_id": "a" }));
    let run = host.start("x");
    let mut acknowledged = 0;
    let error = loop {
        let turn = json!({ "parameters": { "text": "x".repeat(1000) } });
        match host.call(
            "runs.record_turns",
            json!({ "run_id": run, "turns": [turn] }),
        ) {
            Ok(_) => acknowledged += 1,
            Err(ClientError::Refused(error)) => break error,
            Err(error) => panic!("{error}"),
        }
        assert!(acknowledged < 1000);
    };
    assert_eq!(error.code, -32010, "{error}");
    assert!(acknowledged > 10);
    assert_eq!(host.turns(&run).len(), acknowledged);
    assert_eq!(
        host.ok("state.keys", json!({}))["keys"],
        json!([]),
        "it still serves"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    assert!(host.turns(&run).len() >= acknowledged);
    let row = host.ok("runs.list", json!({}))["runs"][0].clone();
    assert_eq!(row["status"], "incomplete");
}

#[test]
fn people_talk_to_it_with_rpc() {
    for world in World::everyone() {
        let daemon = world.serve(&[]);
        let rpc = |args: &[&str]| {
            let mut all = vec!["rpc"];
            all.extend(args);
            let output = world.command(&all).output().unwrap();
            let out = String::from_utf8(output.stdout).unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            let json: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{error}"));
            (output.status.code(), json)
        };
        let (code, document) = rpc(&["rpc.discover"]);
        assert_eq!((code, &document["openrpc"]), (Some(0), &json!("1.3.2")));
        let start = r#"{"intent":"from a shell"}"#;
        let (_, run) = rpc(&[
            "--tcp",
            &daemon.address,
            "--agent",
            "me",
            "runs.start",
            start,
        ]);
        assert_eq!(run["agent_id"], "me");
        let (code, error) = rpc(&["runs.start", "{}"]);
        assert_eq!((code, &error["code"]), (Some(1), &json!(-32602)));
        let (_, all) = rpc(&["--operator", "runs.list"]);
        assert_eq!(all["runs"][0]["run_id"], run["run_id"]);
        daemon.wait_for("runs_open", |open| open == 0);
        let shown = world
            .command(&["show", run["run_id"].as_str().unwrap(), "--events"])
            .output()
            .unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(
            shown.contains("from a shell for me") && shown.contains("incomplete"),
            "{shown}"
        );
        let shown = world
            .command(&["show", run["run_id"].as_str().unwrap()])
            .output()
            .unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert_eq!(shown.lines().count(), 2, "its start and its end: {shown}");
    }
    let world = World::new();
    let none = world.command(&["rpc", "runs.list"]).output().unwrap();
    assert_eq!(none.status.code(), Some(125));
    assert!(
        String::from_utf8(none.stderr)
            .unwrap()
            .contains("invigil serve")
    );
}

/// Where a host goes away in the middle of a proposal.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Point {
    Submitted,
    HalfSubmitted,
    Called,
    HalfAnswered,
    Answered,
    Asked,
    Waiting,
    Retrying,
}

#[test]
fn a_host_can_go_away_at_every_point() {
    use Point::{
        Answered, Asked, Called, HalfAnswered, HalfSubmitted, Retrying, Submitted, Waiting,
    };
    let world = World::new();
    let daemon = world.serve(&[]);
    for point in [
        Submitted,
        HalfSubmitted,
        Called,
        HalfAnswered,
        Answered,
        Asked,
        Waiting,
        Retrying,
    ] {
        let mut host = daemon.host(Some("a"));
        host.ok("tools.register", json!([
            { "name": "t" }, { "name": "slow", "rate_limit": { "max_calls": 1, "interval_secs": 60 } },
        ]));
        host.ok(
            "policy.register",
            json!({ "name": "ask", "rule": "ask_tool", "target": "t", "key": "ask" }),
        );
        let run = host.start("x");
        let tool = if point == Waiting { "slow" } else { "t" };
        let parameters = if point == Asked {
            json!({ "ask": 1 })
        } else {
            json!({})
        };
        let proposal = host.proposal(json!([
            { "id": "a", "tool": tool, "parameters": parameters, "max_retries": 5 },
            { "id": "b", "tool": tool, "depends_on": ["a"] },
        ]));
        let before = daemon.metric("callbacks_total");
        let request =
            json!({ "jsonrpc": "2.0", "id": 99, "method": "proposal.submit", "params": proposal });
        let whole = frame(&request);
        if point == HalfSubmitted {
            host.client.send_raw(&whole[..whole.len() / 2]).unwrap();
        } else {
            host.client.send_raw(&whole).unwrap();
        }
        if !matches!(point, Submitted | HalfSubmitted | Asked) {
            let call = host.client.receive(Duration::from_secs(5)).unwrap();
            let answer = json!({ "jsonrpc": "2.0", "id": call["id"], "result": 1 });
            let error = json!({ "jsonrpc": "2.0", "id": call["id"], "error": { "code": 1, "message": "no" } });
            match point {
                HalfAnswered => host.client.send_raw(&frame(&answer)[..20]).unwrap(),
                Answered | Waiting => host.client.send_raw(&frame(&answer)).unwrap(),
                Retrying => host.client.send_raw(&frame(&error)).unwrap(),
                _ => {}
            }
        }
        if matches!(point, Asked | Waiting) {
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(host);
        daemon.wait_for("runs_open", |open| open == 0);
        let calls = daemon.metric("callbacks_total") - before;
        std::thread::sleep(Duration::from_millis(150));
        assert!(
            daemon.metric("callbacks_total") - before == calls && calls <= 2,
            "{point:?}: {calls}"
        );
        let mut host = daemon.host(Some("a"));
        let turns = host.turns(&run);
        let statuses: Vec<&str> = turns
            .iter()
            .map(|turn| turn["status"].as_str().unwrap())
            .collect();
        match point {
            HalfSubmitted => assert_eq!(statuses, [""; 0]),
            // The answer may have been taken before the end was noticed.
            Answered | Waiting => {
                assert!(
                    matches!(statuses[..], ["succeeded" | "interrupted", "interrupted"]),
                    "{statuses:?}"
                );
            }
            _ => assert_eq!(statuses, ["interrupted", "interrupted"], "{point:?}"),
        }
        let ended = host.records(&run, "ended");
        assert_eq!(
            ended[0]["termination"],
            json!({ "kind": "incomplete" }),
            "{point:?}"
        );
        assert_eq!(daemon.metric("questions_open"), 0);
        world.verify(&run);
    }
}

fn frame(message: &Value) -> Vec<u8> {
    let mut frame = Vec::new();
    invigil_server::ws::Outgoing::Text(message.to_string()).encode(&mut frame, Some([1, 2, 3, 4]));
    frame
}
