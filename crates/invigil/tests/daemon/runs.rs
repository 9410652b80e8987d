//! Runs: how they begin and end, what is refused, what is kept.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Reply, World};

#[test]
fn a_run_from_its_start_to_its_end() {
    for world in World::everyone() {
        let daemon = world.serve(&[]);
        let mut host = daemon.host(None);
        let started = host.ok(
            "runs.start",
            json!({ "intent": "mend it", "agent_id": "coder", "agent_name": "The coder",
                    "outcome_description": "tests pass" }),
        );
        let run = started["run_id"].as_str().unwrap().to_owned();
        assert_eq!(started["agent_id"], "coder");
        let row = host.ok("runs.list", json!({}))["runs"][0].clone();
        assert_eq!(
            (&row["run_id"], &row["status"]),
            (&json!(run), &json!("running"))
        );
        assert_eq!(
            (&row["intent"], &row["client_id"]),
            (&json!("mend it"), &json!(host.session))
        );
        let again = host.refused("runs.start", json!({ "intent": "another" }));
        assert_eq!(again.code, -32008);
        assert!(again.message.contains(&run), "{again}");
        let outcome = json!({ "status": "partial_success", "summary": "half", "evidence": ["a"], "metrics": { "n": 1 } });
        host.ok(
            "runs.complete",
            json!({ "run_id": run, "outcome": outcome }),
        );
        let before = world.events(&run);
        for (method, params) in [
            (
                "runs.complete",
                json!({ "run_id": run, "outcome": { "status": "done" } }),
            ),
            ("runs.cancel", json!({ "run_id": run })),
            (
                "runs.record_turns",
                json!({ "run_id": run, "turns": [{ "parameters": {} }] }),
            ),
        ] {
            assert_eq!(host.refused(method, params).code, -32008, "{method}");
        }
        assert_eq!(world.events(&run), before, "nothing follows the end");
        let trace = host.ok("runs.get_trace", json!({ "run_id": run }));
        let kinds: Vec<_> = trace["records"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| &r["record"])
            .collect();
        assert_eq!(kinds, ["started", "ended"]);
        let ended = &trace["records"][1];
        assert_eq!(
            ended["termination"],
            json!({ "kind": "outcome", "status": "partial_success", "outcome": outcome })
        );
        assert_eq!(trace["status"], "completed");
        world.verify(&run);
        let next = host.start("another one");
        assert_ne!(next, run);
    }
}

#[test]
fn bad_starts_and_ends_change_nothing() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    for (params, field) in [
        (json!({}), "intent"),
        (json!({ "intent": "  " }), "intent"),
        (json!({ "intent": 7 }), "intent"),
        (json!({ "intent": "x", "agent_id": "" }), "agent_id"),
        (json!({ "intent": "x", "more": 1 }), "more"),
    ] {
        let error = host.refused("runs.start", params);
        assert_eq!(
            (error.code, &error.data.unwrap()["field"]),
            (-32602, &json!(field))
        );
    }
    let run = host.start("x");
    for outcome in [
        json!({}),
        json!({ "status": "fine" }),
        json!({ "status": "done", "x": 1 }),
    ] {
        let error = host.refused(
            "runs.complete",
            json!({ "run_id": run, "outcome": outcome }),
        );
        assert_eq!(error.code, -32602);
    }
    assert_eq!(
        host.ok("runs.list", json!({ "status": "running" }))["runs"][0]["run_id"],
        json!(run)
    );
    let error = host.refused(
        "runs.complete",
        json!({ "run_id": "run_none", "outcome": { "status": "done" } }),
    );
    assert_eq!(error.code, -32004);
}

#[test]
fn one_key_is_one_run() {
    let world = World::new();
    let mut daemon = world.serve(&[]);
    let start = |agent: &'static str| {
        let mut host = daemon.host(Some(agent));
        thread::spawn(move || {
            let run = host.call(
                "runs.start",
                json!({ "intent": "x", "idempotency_key": "k" }),
            );
            (
                run.map(|run| run["run_id"].as_str().unwrap().to_owned()),
                host,
            )
        })
    };
    let threads: Vec<_> = (0..8).map(|_| start("same")).collect();
    let mut hosts = Vec::new();
    let mut ids: Vec<String> = Vec::new();
    for thread in threads {
        let (id, host) = thread.join().unwrap();
        ids.push(id.unwrap());
        hosts.push(host);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let (refused, _other) = start("other").join().unwrap();
    assert!(refused.unwrap_err().to_string().contains("-32008"));
    // All of them lead it: it ends with the last.
    let run = ids.remove(0);
    let mut last = hosts.pop().unwrap();
    drop(hosts);
    last.tool("t", |_| Reply::With(json!(1)));
    last.submit(json!([{ "id": "a", "tool": "t" }]));
    assert_eq!(last.turns(&run).len(), 1);
    daemon.kill();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(Some("same"));
    let again = host.ok(
        "runs.start",
        json!({ "intent": "x", "idempotency_key": "k" }),
    );
    assert_eq!(
        again["run_id"],
        json!(run),
        "the key is remembered by the journal"
    );
    let row = host.ok("runs.list", json!({}))["runs"][0].clone();
    assert_eq!(row["status"], "incomplete");
}

#[test]
fn limits_hold_on_every_way_in() {
    let world = World::new();
    let daemon = world.serve(&["--turns-per-run", "300"]);
    let mut host = daemon.host(None);
    let long = "x".repeat(17 << 10);
    let big: Vec<Value> = (0..40).map(|_| json!("y".repeat(8 << 10))).collect();
    host.on("t", {
        let (long, big) = (long.clone(), big.clone());
        move |params| match params["parameters"]["big"].as_bool() {
            Some(true) => Reply::With(json!(big)),
            _ => Reply::With(json!({ "text": format!("begin{long}end") })),
        }
    });
    host.ok("tools.register", json!([{ "name": "t" }]));
    let run = host.start("x");
    let record = |turns: Value| json!({ "run_id": run, "turns": turns });
    let turn = json!({ "parameters": {} });
    for (turns, limit) in [
        (json!([turn, { "prompt": long }]), "string_bytes"),
        (
            json!([{ "parameters": { "deep": [{ "x": long }] } }]),
            "string_bytes",
        ),
        (json!([{ "parameters": big }]), "turn_bytes"),
        (json!(vec![turn.clone(); 257]), "turns_per_batch"),
    ] {
        let error = host.refused("runs.record_turns", record(turns));
        assert_eq!(
            (error.code, &error.data.unwrap()["limit"]),
            (-32009, &json!(limit))
        );
    }
    assert_eq!(host.turns(&run), Vec::<Value>::new());
    let whole = host.submit(json!([{ "id": "a", "tool": "t", "parameters": { "p": long } }]));
    assert!(
        whole[0]["output"]["text"].as_str().unwrap().len() > 17 << 10,
        "the answer has it all"
    );
    host.submit(json!([{ "id": "a", "tool": "t", "parameters": { "big": true } }]));
    let turns = host.turns(&run);
    assert_eq!(
        turns[0]["truncated"],
        json!(["parameters.p", "output.text"])
    );
    let kept = turns[0]["output"]["text"].as_str().unwrap();
    assert!(kept.len() == 16 << 10 && kept.ends_with("end"));
    assert_eq!(turns[1]["truncated"], json!(["output"]));
    host.ok("runs.record_turns", record(json!(vec![turn.clone(); 256])));
    host.ok("runs.record_turns", record(json!(vec![turn.clone(); 40])));
    let error = host.refused("runs.record_turns", record(json!(vec![turn.clone(); 3])));
    assert_eq!(error.data.unwrap()["limit"], "turns_per_run");
    host.ok("runs.record_turns", record(json!([turn])));
    let calls = host.calls("tools.execute");
    let proposal = host.proposal(json!([{ "id": "a", "tool": "t" }, { "id": "b", "tool": "t" }]));
    let error = host.refused("proposal.submit", proposal);
    assert_eq!(error.data.unwrap()["limit"], "turns_per_run");
    assert_eq!(
        host.calls("tools.execute"),
        calls,
        "refused before anything runs"
    );
    host.submit(json!([{ "id": "a", "tool": "t" }]));
    let indexes: Vec<u64> = host
        .turns(&run)
        .iter()
        .map(|turn| turn["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indexes, (0..300).collect::<Vec<_>>());
}

#[test]
fn a_cancelled_run_stops_what_is_under_way() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    host.tool("slow", |_| Reply::Never);
    let run = host.start("x");
    let proposal = host.proposal(json!([
        { "id": "a", "tool": "slow" },
        { "id": "b", "tool": "slow", "depends_on": ["a"] },
    ]));
    let submitted = host.client.request("proposal.submit", &proposal).unwrap();
    host.until(|host| host.calls("tools.execute") == 1);
    let busy = host.refused(
        "runs.complete",
        json!({ "run_id": run, "outcome": { "status": "done" } }),
    );
    assert_eq!(busy.code, -32008);
    let answer = host.ok("runs.cancel", json!({ "run_id": run }));
    assert_eq!(
        answer,
        json!({ "run_id": run, "ok": true, "stopped": ["p1"], "unconfirmed": [] })
    );
    let result = host.answer(submitted);
    let statuses: Vec<_> = result["result"]["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["status"])
        .collect();
    assert_eq!(statuses, ["cancelled", "cancelled"]);
    host.until(|host| host.calls("tools.cancel") == 1);
    assert_eq!(host.turns(&run).len(), 2);
    assert_eq!(
        host.records(&run, "ended")[0]["termination"],
        json!({ "kind": "cancelled" })
    );
    world.verify(&run);
}

#[test]
fn a_submit_right_behind_the_start_is_recorded() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    host.tool("t", |_| Reply::With(json!(1)));
    // Not even the answer is waited for.
    host.client
        .request("runs.start", &json!({ "intent": "x" }))
        .unwrap();
    host.submit(json!([{ "id": "a", "tool": "t" }]));
    let run = host.ok("session.info", json!({}))["run_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(host.turns(&run).len(), 1);
}

#[test]
fn retention_takes_what_is_over_and_nothing_else() {
    let world = World::new();
    let mut daemon = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    let mut runs = Vec::new();
    for _ in 0..5 {
        let run = host.start("x");
        host.complete(&run);
        runs.push(run);
    }
    world
        .command(&["run", "--tier", "contract_only", "--", "true"])
        .output()
        .unwrap();
    daemon.stop();
    let daemon = world.serve(&["--keep-runs", "2"]);
    let mut host = daemon.host(Some("a"));
    let left: Vec<Value> = host.ok("runs.list", json!({}))["runs"]
        .as_array()
        .unwrap()
        .clone();
    let left: Vec<&str> = left
        .iter()
        .map(|row| row["run_id"].as_str().unwrap())
        .collect();
    assert_eq!(left, [&runs[4], &runs[3]]);
    let open = host.start("open");
    for _ in 0..3 {
        let mut other = daemon.host(Some("a"));
        let run = other.start("x");
        other.complete(&run);
    }
    daemon.wait_for("runs_open", |open| open == 1);
    let mut left = 0;
    for _ in 0..100 {
        left = host.ok("runs.list", json!({}))["runs"]
            .as_array()
            .unwrap()
            .len();
        if left == 3 {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(left, 3, "two that are over, and the open one");
    assert_eq!(host.turns(&open), Vec::<Value>::new());
    let listed = world.command(&["runs", "--json"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(!listed.contains("its directory is gone"), "{listed}");
    assert_eq!(listed.lines().count(), 4, "{listed}");
}

#[test]
fn pages_and_filters() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    let mut runs = Vec::new();
    for n in 0..5 {
        let run = host.start(&format!("number {n}"));
        host.complete(&run);
        runs.insert(0, run);
    }
    let mut seen = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let page = host.ok("runs.list", json!({ "limit": 2, "cursor": cursor }));
        let rows = page["runs"].as_array().unwrap();
        seen.extend(
            rows.iter()
                .map(|row| row["run_id"].as_str().unwrap().to_owned()),
        );
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(seen, runs);
    assert_eq!(
        host.ok("runs.list", json!({ "status": "running" }))["runs"],
        json!([])
    );
    assert_eq!(
        host.ok("runs.list", json!({ "agent_id": "b" }))["runs"],
        json!([])
    );
}
