//! Going back: snapshots of any record, claims beside what was seen, decisions made again, forks.

use std::fs;

use serde_json::{Value, json};

use crate::Invigil;
use crate::guard::{make, put};

/// The beginning of every scripted agent: how it speaks.
const SPEAKS: &str = r#"
import json, os, socket, subprocess
channel = socket.socket(socket.AF_UNIX)
channel.connect(os.environ["INVIGIL_EVENTS"])
seq = 0
def report(event_type, **more):
    global seq
    line = dict(schema=os.environ["INVIGIL_EVENTS_SCHEMA"], run_id=os.environ["INVIGIL_RUN_ID"], seq=seq,
                event_type=event_type, source="test", **more)
    channel.sendall(json.dumps(line).encode() + b"\n")
    seq += 1
def say(text):
    report("message", role="assistant", content=[{"type": "text", "text": text}])
def tool(id, command, exit_code):
    report("tool_call_started", tool_call_id=id, tool="bash", arguments={"command": command})
    subprocess.run(["sh", "-c", command])
    report("tool_call_completed", tool_call_id=id, tool="bash", result={"exit_code": exit_code})
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
"#;

/// A project with tests that fail until `src/answer` is right.
pub(crate) fn project(invigil: &Invigil) {
    make(invigil, "ws");
    make(invigil, "ws/src");
    put(invigil, "ws/run_tests.sh", "grep -q 42 src/answer\n");
    put(invigil, "ws/src/answer", "41\n");
    put(invigil, "ws/README.md", "about\n");
}

/// Runs an agent in the project, without an environment that would start more than it.
pub(crate) fn agent(invigil: &Invigil, id: &str, script: &str) {
    put(invigil, "agent.py", &format!("{SPEAKS}{script}"));
    let (directory, script) = (invigil.at("ws"), invigil.at("agent.py"));
    let args = [
        "run", "--run-id", id, "--cwd", &directory, "--", "python3", &script,
    ];
    invigil.expect(0, &args);
}

fn claims(invigil: &Invigil, code: i32, args: &[&str]) -> Vec<Value> {
    let args = [&["claims", "--json"], args].concat();
    let (stdout, _) = invigil.expect(code, &args);
    let document: Value = serde_json::from_str(&stdout).unwrap();
    document["claims"].as_array().unwrap().clone()
}

/// What is held of each claim, in short.
fn findings(claims: &[Value]) -> Vec<(&str, &str)> {
    let of = |claim: &'_ Value| -> (&'static str, &'static str) {
        // The words are few and known; a test that meets another one has failed.
        let known = |word: &Value| {
            let words = [
                "tests_pass",
                "ran",
                "created",
                "changed",
                "deleted",
                "untouched",
                "only_touched",
                "no_network",
                "tool_result",
                "supported",
                "contradicted",
                "unsupported",
            ];
            *words.iter().find(|known| **known == *word).unwrap()
        };
        (known(&claim["claim"]["kind"]), known(&claim["finding"]))
    };
    claims.iter().map(of).collect()
}

/// The numbers of the records of a kind whose data fits.
fn records(invigil: &Invigil, run: &str, kind: &str, fits: impl Fn(&Value) -> bool) -> Vec<u64> {
    let events = invigil.events(run).into_iter();
    let events = events.filter(|event| event["kind"] == kind && fits(&event["data"]));
    events.map(|event| event["seq"].as_u64().unwrap()).collect()
}

#[test]
fn an_agent_that_lies_is_contradicted_with_the_records() {
    for invigil in Invigil::everyone() {
        project(&invigil);
        agent(
            &invigil,
            "liar",
            r#"
tool("c1", "sh run_tests.sh", 0)
write("src/answer", "43\n")
write("README.md", "changed\n")
subprocess.run(["sh", "run_tests.sh"])
say("""I ran `make all`. All tests pass.
I only touched src/.
- I did not touch `README.md`.
- I created `src/new.rs` and deleted `run_tests.sh`.""")
"#,
        );
        let claims = claims(&invigil, 1, &["liar"]);
        let all = |kind| (kind, "contradicted");
        assert_eq!(
            findings(&claims),
            [
                all("tool_result"),
                all("ran"),
                all("tests_pass"),
                all("only_touched"),
                all("untouched"),
                all("created"),
                all("deleted"),
            ],
            "{claims:#?}"
        );
        let is_test = |data: &Value| {
            data["argv"]
                .as_array()
                .unwrap()
                .ends_with(&[json!("run_tests.sh")])
        };
        let tests = records(&invigil, "liar", "process_exec", |data| {
            is_test(data) && data["argv"][1] == "run_tests.sh"
        });
        let events = |at: usize| claims[at]["events"].as_array().unwrap().clone();
        // The last run of the tests, and its end.
        let (run, last) = (invigil.events("liar"), *tests.last().unwrap());
        let process = &run[last as usize]["data"]["process"];
        let ended = records(&invigil, "liar", "process_exited", |data| {
            data["process"] == *process
        });
        assert_eq!(events(2), [json!(last), json!(ended[0])]);
        assert_eq!(run[ended[0] as usize]["data"]["exit_code"], 1);
        let readme = records(&invigil, "liar", "file_op", |data| {
            data["path"] == invigil.at("ws/README.md")
        });
        assert_eq!(
            (events(3), events(4)),
            (vec![json!(readme[0])], vec![json!(readme[0])])
        );
        let (stdout, _) = invigil.expect(1, &["claims", "liar"]);
        assert!(
            stdout.contains("contradicted  “I only touched src/”"),
            "{stdout}"
        );
        assert!(
            stdout.contains("0 supported, 7 contradicted, 0 unsupported"),
            "{stdout}"
        );
    }
}

#[test]
fn an_agent_that_tells_the_truth_is_supported() {
    for invigil in Invigil::everyone() {
        project(&invigil);
        agent(
            &invigil,
            "honest",
            r#"
tool("c1", "sh run_tests.sh", 1)
write("src/answer", "42\n")
write("src/new.rs", "fn main() {}\n")
tool("c2", "sh run_tests.sh", 0)
os.remove("src/new.rs")
write("src/other.rs", "x")
subprocess.run(["sh", "run_tests.sh"])
say("""The tests did not pass at first. I ran `sh run_tests.sh`. All tests pass now.
I only touched src/. I did not touch README.md. I created src/other.rs and changed ./src/answer.
I made no network requests.
If all tests pass, you can merge. Should I delete README.md?
```
All tests pass. I deleted README.md.
```""")
"#,
        );
        let claims = claims(&invigil, 0, &["honest"]);
        let all = |kind| (kind, "supported");
        assert_eq!(
            findings(&claims),
            [
                all("tool_result"),
                all("tool_result"),
                all("ran"),
                all("tests_pass"),
                all("only_touched"),
                all("untouched"),
                all("created"),
                all("changed"),
                all("no_network"),
            ],
            "{claims:#?}"
        );
        // The same words in a file, judged by the whole run; and some that cannot be judged.
        put(
            &invigil,
            "said.md",
            "> I deleted README.md.\nAll tests pass. I ran `cd src`. I ran `sh other.sh`.\n",
        );
        let said = invigil.at("said.md");
        let (stdout, _) = invigil.expect(0, &["claims", "honest", "--json", "--said", &said]);
        let document: Value = serde_json::from_str(&stdout).unwrap();
        let claims = document["claims"].as_array().unwrap();
        let last = &claims[claims.len() - 3..];
        assert_eq!(
            findings(last),
            [
                ("tests_pass", "supported"),
                ("ran", "unsupported"),
                ("ran", "unsupported")
            ],
            "{last:#?}"
        );
        assert_eq!(
            (&last[0]["said"]["file"], &last[0]["said"]["line"]),
            (&json!(said), &json!(2))
        );
    }
}

#[test]
fn an_agent_that_is_cunning_is_not_believed() {
    for invigil in Invigil::everyone() {
        project(&invigil);
        put(
            &invigil,
            "ws/test_inner.py",
            "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.fail()\nunittest.main()\n",
        );
        put(
            &invigil,
            "ws/check-tests.sh",
            "python3 -m unittest test_inner.py\nexit 0\n",
        );
        agent(
            &invigil,
            "cunning",
            r#"
subprocess.run(["pytest"], executable="/bin/true")
say("All tests pass. I ran `pytest`.")
subprocess.run(["sh", "check-tests.sh"])
say("All tests pass.")
say("I did not touch README.md.")
os.link("README.md", "src/notes")
write("src/notes", "changed\n")
say("I did not touch README.md. I only touched src/.")
os.rename("src", "aside")
write("aside/answer", "44\n")
os.rename("aside", "src")
say("I did not touch ./src/answer.")
"#,
        );
        let claims = claims(&invigil, 1, &["cunning"]);
        assert_eq!(
            findings(&claims),
            [
                ("tests_pass", "unsupported"),
                ("ran", "unsupported"),
                ("tests_pass", "contradicted"),
                ("untouched", "supported"),
                ("untouched", "contradicted"),
                ("only_touched", "contradicted"),
                ("untouched", "contradicted"),
            ],
            "{claims:#?}"
        );
        // The records that say so are those of the other names.
        let written = |name: &str| {
            let path = invigil.at(name);
            records(&invigil, "cunning", "file_op", |data| {
                data["path"] == path && data["op"] == "open"
            })
        };
        let events = |at: usize| claims[at]["events"].as_array().unwrap().clone();
        assert_eq!(events(4), [json!(written("ws/src/notes")[0])]);
        assert!(events(6).contains(&json!(written("ws/aside/answer")[0])));
    }
}

#[test]
fn a_contract_is_heard_too() {
    let invigil = Invigil::new();
    project(&invigil);
    put(
        &invigil,
        "checks.toml",
        "[[checks]]\nname = \"tests\"\ncommand = \"sh run_tests.sh\"\n",
    );
    put(
        &invigil,
        "agent.py",
        &format!("{SPEAKS}say('All tests pass.')"),
    );
    let (directory, script, checks) = (
        invigil.at("ws"),
        invigil.at("agent.py"),
        invigil.at("checks.toml"),
    );
    let args = [
        "run",
        "--run-id",
        "c",
        "--cwd",
        &directory,
        "--contract",
        &checks,
        "--",
        "python3",
        &script,
    ];
    invigil.expect(120, &args);
    let claims = claims(&invigil, 1, &["c"]);
    assert_eq!(
        findings(&claims),
        [("tests_pass", "contradicted")],
        "{claims:#?}"
    );
    let checked = records(&invigil, "c", "check_completed", |data| {
        data["stage"] == "verify"
    });
    assert!(
        claims[0]["events"]
            .as_array()
            .unwrap()
            .contains(&json!(checked[0]))
    );
}

#[test]
fn any_record_can_be_gone_back_to() {
    for invigil in Invigil::everyone() {
        invigil.expect(
            0,
            &[
                "run",
                "--run-id",
                "one",
                "--",
                "sh",
                "-c",
                "true; sh -c 'echo > file'",
            ],
        );
        let events = invigil.events("one");
        let snapshot = |at: Option<usize>| -> Value {
            let at = at.map(|at| at.to_string());
            let mut args = vec!["show", "one", "--snapshot", "--json"];
            args.extend(at.iter().flat_map(|at| ["--at", at]));
            serde_json::from_str(&invigil.expect(0, &args).0).unwrap()
        };
        let last = snapshot(None);
        assert_eq!(last, snapshot(Some(events.len() - 1)));
        assert_eq!(
            (&last["run_state"], &last["events"]),
            (&json!("ended"), &json!(events.len()))
        );
        assert_eq!(last["process_by_agent"][0]["state"], "exited");
        let mut lived = 0;
        for at in 0..events.len() {
            let then = snapshot(Some(at));
            assert_eq!(then["events"], at + 1);
            let started = events[..=at]
                .iter()
                .filter(|event| event["kind"] == "process_forked");
            let ended = events[..=at]
                .iter()
                .filter(|event| event["kind"] == "process_exited");
            let (started, ended) = (started.count(), ended.count());
            assert_eq!(
                then["processes"]["started"].as_u64().unwrap_or(0),
                started as u64
            );
            assert_eq!(
                then["processes"]["ended"].as_u64().unwrap_or(0),
                ended as u64
            );
            lived = lived.max(started - ended);
        }
        assert!(lived >= 1);
        let (summary, _) = invigil.expect(0, &["show", "one", "--at", "1", "--json"]);
        let summary: Value = serde_json::from_str(&summary).unwrap();
        assert_eq!(
            (&summary["counts"]["facts"], &summary["finished"]),
            (&json!(2), &Value::Null)
        );
        let (stdout, _) = invigil.expect(0, &["show", "one", "--snapshot"]);
        assert!(
            stdout.starts_with("snapshot  ended after record"),
            "{stdout}"
        );
        for args in [
            &["show", "one", "--at", "9999"][..],
            &["show", "one", "--snapshot", "--at", "9999"],
        ] {
            let (_, stderr) = invigil.expect(125, args);
            assert!(stderr.contains("the journal ends at record"), "{stderr}");
        }
    }
}

#[test]
fn session_logs_of_other_runtimes_are_read_and_checked() {
    let invigil = Invigil::new();
    let log = r#"{"kind":"agent_process_changed","turn":1,"agent_id":"c","parent_session_id":"p","state":"running","category":"proc"}
{"kind":"dreamt","x":1}

{"kind":"page_out","turn":2,"category":"mm"}
"#;
    put(&invigil, "log.ndjson", log);
    let (stdout, _) = invigil.expect(0, &["show", "--session", "--json", "log.ndjson"]);
    let answer: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(answer["has_required_categories"], true);
    assert_eq!(answer["snapshot"]["page_out_count"], 1);
    assert_eq!(answer["snapshot"]["categories"]["unknown"], 1);
    put(
        &invigil,
        "log.json",
        r#"[{"kind":"page_out","turn":2,"category":"proc"},{"kind":"page_in","turn":3}]"#,
    );
    let (stdout, _) = invigil.expect(1, &["show", "--session", "log.json"]);
    assert!(
        stdout.contains("page_out carries the category \"proc\"; it is of mm"),
        "{stdout}"
    );
    assert!(stdout.contains("page_in carries no category"), "{stdout}");
    put(&invigil, "log.json", "{\"kind\":\"page_out\"}\nnonsense\n");
    let (_, stderr) = invigil.expect(125, &["show", "--session", "log.json"]);
    assert!(stderr.contains("line 2"), "{stderr}");
}

/// Changes records of a copy of a run, and makes the chain fit again.
fn forge(invigil: &Invigil, run: &str, change: impl Fn(&mut Value)) -> String {
    let copy = invigil.at("forged");
    drop(fs::remove_dir_all(&copy));
    fs::create_dir(&copy).unwrap();
    let mut lines = String::new();
    for mut event in invigil.events(run) {
        change(&mut event);
        let (data, kind) = (&event["data"], &event["kind"]);
        // The order of the members is part of the form.
        let (seq, time, mono, origin) = (
            &event["seq"],
            &event["time"],
            &event["mono"],
            &event["origin"],
        );
        lines += &format!(
            "{{\"seq\":{seq},\"time\":{time},\"mono\":{mono},\"origin\":{origin},\"kind\":{kind},\"data\":{data}\n"
        );
    }
    put(invigil, "bodies", &lines);
    let script = r#"
import hashlib, sys
last = bytes(32)
with open("bodies", "rb") as bodies, open("forged/journal.ndjson", "wb") as out:
    for body in bodies.read().splitlines():
        last = hashlib.sha256(last + body).digest()
        out.write(body + b',"hash":"' + last.hex().encode() + b'"}\n')
"#;
    let mut python = std::process::Command::new("python3");
    let done = python
        .args(["-c", script])
        .current_dir(invigil.directory.path())
        .status();
    assert!(done.unwrap().success());
    format!("{copy}/")
}

const RULES: &str = r#"version = 1
[files.write]
default = "deny"
allow = ["${workspace}/**", "/dev/**"]
deny = ["${workspace}/secret"]
[programs]
deny = ["id"]
"#;

#[test]
fn a_forged_decision_is_found() {
    let invigil = Invigil::new();
    make(&invigil, "ws");
    put(&invigil, "rules.toml", RULES);
    let directory = invigil.at("ws");
    let rules = invigil.at("rules.toml");
    let script = "echo > fine; echo > secret; echo > ../outside; id; exit 3";
    let args = [
        "run", "--run-id", "r", "--mode", "guard", "--policy", &rules, "--cwd", &directory, "--",
        "sh", "-c", script,
    ];
    invigil.expect(3, &args);
    let (stdout, _) = invigil.expect(0, &["verify", "--decisions", "--json", "r"]);
    let answer: Value = serde_json::from_str(&stdout).unwrap();
    assert!(
        answer["decisions"]["same"].as_u64().unwrap() >= 5,
        "{answer}"
    );
    assert!(invigil.all("r", "access_denied").len() >= 3);
    let same = forge(&invigil, "r", |_| {});
    invigil.expect(0, &["verify", "--decisions", &same]);
    let secret = invigil.at("ws/secret");
    let is_secret = |event: &Value| {
        event["data"]["path"] == secret.as_str() || event["data"]["target"] == secret.as_str()
    };
    let fine = invigil.at("ws/fine");
    let loaded = invigil.event("r", "policy_loaded");
    type Change<'a> = &'a dyn Fn(&mut Value);
    let forgeries: [(&str, Change<'_>); 8] = [
        ("deny by", &|event| {
            // The denial stays, and is said to be of something that happened.
            if event["kind"] == "file_op" && is_secret(event) {
                event["data"]["result"] = json!("ok");
            }
        }),
        ("loaded once", &|event| {
            if event["kind"] == "file_op" && event["data"]["path"] == fine.as_str() {
                event["origin"] = json!("runtime");
                event["kind"] = json!("policy_loaded");
                event["data"] = loaded.clone();
            }
        }),
        ("nothing can be derived from it", &|event| {
            if event["kind"] == "file_op" && is_secret(event) {
                event["data"] = json!({ "path": 7 });
            }
        }),
        ("sdk cannot vouch for it", &|event| {
            if event["kind"] == "file_op" && is_secret(event) {
                event["origin"] = json!("sdk");
            }
        }),
        ("deny by", &|event| {
            // What was refused is said to have happened.
            if event["kind"] == "file_op" && is_secret(event) {
                event["data"]["result"] = json!("ok");
            }
            if event["kind"] == "access_denied" && is_secret(event) {
                *event = json!({ "seq": event["seq"], "time": event["time"], "mono": event["mono"], "origin": "runtime",
                    "kind": "from_tomorrow", "data": {} });
            }
        }),
        ("no such rule", &|event| {
            if event["kind"] == "access_denied" && event["data"]["what"] == "exec" {
                event["data"]["rule"] = json!("rules.toml:2: deny nonsense");
                event["data"]["place"]["line"] = json!(2);
            }
        }),
        ("failed", &|event| {
            if event["kind"] == "run_finished" {
                event["data"]["success"] = json!(true);
            }
        }),
        ("exit 3", &|event| {
            if event["kind"] == "run_finished" {
                event["data"]["exit_code"] = json!(0);
                event["data"]["success"] = json!(true);
            }
        }),
    ];
    for (derived, change) in forgeries {
        let forged = forge(&invigil, "r", change);
        invigil.expect(0, &["verify", &forged]);
        let (stdout, _) = invigil.expect(1, &["verify", "--decisions", &forged]);
        assert!(stdout.starts_with("not reproducible at seq "), "{stdout}");
        let line = stdout
            .lines()
            .find(|line| line.starts_with("derived"))
            .unwrap();
        assert!(line.contains(derived), "{derived}: {stdout}");
    }
}

#[test]
fn a_fork_names_its_parent_by_hash() {
    for invigil in Invigil::everyone() {
        invigil.expect(0, &["run", "--run-id", "one", "--", "true"]);
        let parent = invigil.events("one");
        let (stdout, _) = invigil.expect(
            0,
            &["fork", "one", "--at", "3", "--run-id", "two", "--json"],
        );
        let answer: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(answer["run_id"], "two");
        let events = invigil.events("two");
        assert_eq!(events.len(), 2);
        assert_eq!(
            (&events[1]["kind"], &events[1]["origin"]),
            (&json!("run_forked"), &json!("runtime"))
        );
        let expected = json!({ "parent": "one", "at_seq": 3, "hash": parent[3]["hash"] });
        assert_eq!(
            (&events[1]["data"], &answer["parent"]),
            (&expected, &expected)
        );
        invigil.expect(0, &["verify", "two"]);
        let (stdout, _) = invigil.expect(0, &["show", "two", "--snapshot"]);
        assert!(stdout.contains("two of one: forked"), "{stdout}");
        let (_, stderr) = invigil.expect(125, &["fork", "one", "--at", "9999"]);
        assert!(stderr.contains("record 9999 is not there"), "{stderr}");
        let (_, stderr) = invigil.expect(125, &["fork", "one", "--at", "1", "--run-id", "two"]);
        assert!(stderr.contains("exists already"), "{stderr}");
    }
}
