//! `export`, `verify` of archives, `diff`: evidence that can be handed on.

use serde_json::Value;

use crate::{Invigil, tree};

#[test]
fn the_same_run_gives_the_same_archive() {
    let invigil = Invigil::new();
    invigil.expect(
        3,
        &[
            "run",
            "-q",
            "--run-id",
            "a",
            "--",
            "sh",
            "-c",
            "echo x > file; exit 3",
        ],
    );
    let (stdout, _) = invigil.expect(0, &["export", "a", "-o", "one.tar.gz", "--json"]);
    let packed: Value = serde_json::from_str(&stdout).unwrap();
    invigil.expect(0, &["export", "a", "-o", "two.tar.gz"]);
    let read = |name: &str| std::fs::read(invigil.at(name)).unwrap();
    assert_eq!(read("one.tar.gz"), read("two.tar.gz"));
    let sha256 = packed["sha256"].as_str().unwrap();
    let (stdout, _) = invigil.expect(
        0,
        &["verify", "one.tar.gz", "--sha256", sha256, "--run-id", "a"],
    );
    assert!(stdout.contains("every view fits"), "{stdout}");
    let (stdout, _) = invigil.expect(0, &["diff", "a", "one.tar.gz"]);
    assert_eq!(stdout, "same\n");
    let (_, stderr) = invigil.expect(125, &["export", "a", "-o", "one.tar.gz"]);
    assert!(stderr.contains("exists already"), "{stderr}");
    invigil.expect(0, &["export", "a", "-o", "one.tar.gz", "--force"]);
}

#[test]
fn tampering_is_refused_by_name() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "-q", "--run-id", "a", "--", "true"]);
    invigil.expect(0, &["export", "a"]);
    let good = std::fs::read(invigil.at("a.tar.gz")).unwrap();
    let refused = |bytes: &[u8], says: &str| {
        std::fs::write(invigil.at("bad.tar.gz"), bytes).unwrap();
        let before = tree(invigil.directory.path());
        let (stdout, _) = invigil.expect(1, &["verify", "bad.tar.gz"]);
        assert!(stdout.contains(says), "{says}: {stdout}");
        assert_eq!(tree(invigil.directory.path()), before);
    };
    refused(&[&good[..], b"more"].concat(), "after");
    refused(&good[..good.len() - 9], "");
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 4;
    refused(&flipped, "");
    let zeros = "0".repeat(64);
    let (stdout, _) = invigil.expect(1, &["verify", "a.tar.gz", "--sha256", &zeros]);
    assert!(stdout.contains("the file's SHA-256"), "{stdout}");
    let (stdout, _) = invigil.expect(1, &["verify", "a.tar.gz", "--run-id", "b"]);
    assert!(stdout.contains("run a"), "{stdout}");
    invigil.expect(125, &["verify", "nowhere.tar.gz"]);
}

#[test]
fn doctor_says_which_tier_a_run_would_get() {
    for invigil in Invigil::everyone() {
        let (stdout, _) = invigil.expect(0, &["doctor", "--json"]);
        let report: Value = serde_json::from_str(&stdout).unwrap();
        assert!(
            ["notify", "ptrace"].contains(&report["tier"].as_str().unwrap()),
            "{report}"
        );
        let (stdout, _) = invigil.expect(0, &["doctor"]);
        assert!(stdout.contains("works"), "{stdout}");
    }
}

/// The agent's framework speaks over the socket, and its word stays its word.
#[test]
fn what_the_agent_says_is_bound_to_what_was_seen() {
    for invigil in Invigil::everyone() {
        let script = r#"
import os, socket, json
channel = socket.socket(socket.AF_UNIX)
channel.connect(os.environ["INVIGIL_EVENTS"])
seq = 0
def say(**more):
    global seq
    line = dict(schema=os.environ["INVIGIL_EVENTS_SCHEMA"], run_id=os.environ["INVIGIL_RUN_ID"],
                seq=seq, source="test", **more)
    channel.sendall(json.dumps(line).encode() + b"\n")
    seq += 1
say(event_type="tool_call_started", tool_call_id="c1", tool="read_file")
open("hidden", "w").write("x")
channel.sendall(b"not json\n")
say(event_type="tool_call_completed", tool_call_id="c1", tool="read_file")
say(event_type="run_finished")
"#;
        std::fs::write(invigil.at("agent.py"), script).unwrap();
        let args = [
            "run", "--run-id", "a", "--shim", "mcp", "--", "python3", "agent.py",
        ];
        let (_, _) = invigil.expect(0, &args);
        let said = invigil.all("a", "sdk_event");
        assert_eq!(said.len(), 3, "{said:#?}");
        let hidden = invigil.all("a", "file_op");
        let hidden = hidden
            .iter()
            .find(|op| op["path"] == invigil.at("hidden"))
            .unwrap();
        assert_eq!(
            said[0]["process"], hidden["process"],
            "the kernel says who speaks"
        );
        let rejected = invigil.event("a", "sdk_rejected");
        assert_eq!(
            (&rejected["line"], &rejected["flaw"]),
            (&2.into(), &"not_json".into())
        );
        let events = invigil.events("a");
        assert!(
            events
                .iter()
                .filter(|e| e["kind"] == "sdk_event")
                .all(|e| e["origin"] == "sdk")
        );
        invigil.expect(0, &["export", "a"]);
        invigil.expect(0, &["verify", "a.tar.gz"]);
    }
}

/// Two hundred calls, a new connection for every tenth: what is written right behind the word belongs to that word.
const HASTY: &str = r#"
import json, os, socket
def connect():
    global channel, seq
    channel, seq = socket.socket(socket.AF_UNIX), 0
    channel.connect(os.environ["INVIGIL_EVENTS"])
def say(kind, call):
    global seq
    line = dict(schema=os.environ["INVIGIL_EVENTS_SCHEMA"], run_id=os.environ["INVIGIL_RUN_ID"], seq=seq,
                source="test", event_type=kind, tool_call_id=call, tool="write")
    os.write(channel.fileno(), json.dumps(line).encode() + b"\n")
    seq += 1
for i in range(200):
    if i % 10 == 0:
        connect()
    say("tool_call_started", "c%d" % i)
    os.close(os.open("f%d" % i, os.O_CREAT | os.O_WRONLY))
    say("tool_call_completed", "c%d" % i)
"#;

#[test]
fn a_call_lasts_from_the_word_of_its_start() {
    for invigil in Invigil::everyone() {
        std::fs::write(invigil.at("agent.py"), HASTY).unwrap();
        for tier in ["notify", "ptrace"] {
            let start = ["run", "-q", "--run-id", tier, "--tier", tier];
            let args = [&start[..], &["--", "python3", "agent.py"]].concat();
            invigil.expect(0, &args);
            invigil.expect(0, &["export", tier]);
            let output = std::process::Command::new("tar")
                .args(["xzOf", &invigil.at(&format!("{tier}.tar.gz"))])
                .arg("correlation-report.json")
                .output()
                .unwrap();
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let calls = report["calls"].as_array().unwrap();
            assert_eq!(calls.len(), 200);
            for call in calls {
                let id = call["tool_call_id"].as_str().unwrap();
                let own = invigil.at(&id.replace('c', "f"));
                let paths = &call["by_caller"]["paths"];
                assert_eq!(paths, &serde_json::json!([own]), "{tier}: {id}");
            }
        }
    }
}

#[test]
fn the_store_takes_no_archives() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "-q", "--run-id", "a", "--", "true"]);
    std::os::unix::fs::symlink(invigil.home(), invigil.at("link")).unwrap();
    let before = tree(&invigil.home().join("runs"));
    for target in [
        "home/a.tar.gz",
        "link/runs/a/x",
        "home/runs/a/journal.ndjson",
    ] {
        let (_, stderr) = invigil.expect(125, &["export", "a", "--force", "-o", target]);
        assert!(stderr.contains("is in the store"), "{stderr}");
    }
    let inside = invigil
        .command(&["export", "a"])
        .current_dir(invigil.home())
        .output()
        .unwrap();
    assert_eq!(inside.status.code(), Some(125));
    assert_eq!(tree(&invigil.home().join("runs")), before);
    assert!(!invigil.home().join("a.tar.gz").exists());
}
