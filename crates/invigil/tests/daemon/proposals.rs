//! Proposals: order, references, gates, retries, memory, rates.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::world::{Daemon, Host, Reply, World};

fn statuses(results: &[Value]) -> Vec<&str> {
    results
        .iter()
        .map(|result| result["status"].as_str().unwrap())
        .collect()
}

fn host(daemon: &Daemon<'_>) -> Host {
    let mut host = daemon.host(None);
    host.tool("echo", |params| Reply::With(params["parameters"].clone()));
    host.tool("fail", |_| Reply::Failing("no luck"));
    host
}

#[test]
fn actions_run_in_order_and_see_what_came_before() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = host(&daemon);
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    host.tool("note", move |params| {
        seen.lock()
            .unwrap()
            .push(params["action_id"].as_str().unwrap().to_owned());
        Reply::With(json!({ "n": [params["parameters"]["n"], 7] }))
    });
    let run = host.start("x");
    let results = host.submit(json!([
        { "id": "c", "tool": "note", "depends_on": ["b"], "parameters": { "n": 3 } },
        { "id": "b", "tool": "note", "parameters": { "n": "${a.output.n.1}", "text": "<${a.output.n.0}>" } },
        { "id": "a", "tool": "note", "parameters": { "n": 1 } },
    ]));
    assert_eq!(*order.lock().unwrap(), ["a", "b", "c"]);
    assert_eq!(results[1]["output"], json!({ "n": [7, 7] }));
    let turns = host.turns(&run);
    let ids: Vec<_> = turns.iter().map(|turn| &turn["action_id"]).collect();
    assert_eq!(ids, ["c", "b", "a"], "in the order of the proposal");
    assert_eq!(turns[1]["parameters"], json!({ "n": 7, "text": "<1>" }));
    let failed = host.submit(json!([
        { "id": "a", "tool": "note" },
        { "id": "b", "tool": "echo", "parameters": { "x": "${a.output.nothing}" } },
    ]));
    assert_eq!(statuses(&failed), ["succeeded", "failed"]);
}

#[test]
fn independent_actions_run_side_by_side() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    host.ok("tools.register", json!([{ "name": "both" }]));
    let proposal =
        host.proposal(json!([{ "id": "a", "tool": "both" }, { "id": "b", "tool": "both" }]));
    host.client.request("proposal.submit", &proposal).unwrap();
    // Both calls are there before either is answered.
    let calls: Vec<Value> = (0..2)
        .map(|_| host.client.receive(Duration::from_secs(5)).unwrap())
        .collect();
    for call in calls {
        assert_eq!(call["method"], "tools.execute");
        assert_eq!(call["id"], call["params"]["request_id"]);
        assert!(call["id"].is_string());
        let answer = json!({ "jsonrpc": "2.0", "id": call["id"], "result": null });
        host.client.send(answer.to_string()).unwrap();
    }
    let answer = host.client.receive(Duration::from_secs(5)).unwrap();
    assert_eq!(
        statuses(answer["result"]["results"].as_array().unwrap()),
        ["succeeded", "succeeded"]
    );
    assert_eq!(answer["result"]["cost"]["tool_calls"], 2);
}

#[test]
fn what_is_wrong_is_refused_before_anything_runs() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = host(&daemon);
    for (actions, field) in [
        (
            json!([{ "id": "a", "tool": "echo" }, { "id": "a", "tool": "echo" }]),
            "proposal.actions[1].id",
        ),
        (
            json!([{ "id": "a", "tool": "echo" }, { "id": "b", "tool": "echo", "depends_on": ["z"] }]),
            "proposal.actions[1].depends_on",
        ),
        (
            json!([{ "id": "a", "tool": "echo" }, { "id": "b", "tool": "echo", "parameters": { "x": "${z.output}" } }]),
            "proposal.actions[1].parameters",
        ),
        (
            json!([{ "id": "a", "tool": "echo", "depends_on": ["b"] }, { "id": "b", "tool": "echo", "depends_on": ["a"] }]),
            "proposal.actions[0].depends_on",
        ),
        (
            json!([{ "id": "a", "tool": "echo", "wish": 1 }]),
            "proposal.actions[0].wish",
        ),
        (
            json!([{ "id": "a", "type": "dance" }]),
            "proposal.actions[0].type",
        ),
        (
            json!([{ "id": "a", "tool": "echo", "timeout_ms": 0 }]),
            "proposal.actions[0].timeout_ms",
        ),
    ] {
        let proposal = host.proposal(actions);
        let error = host.refused("proposal.submit", proposal);
        assert_eq!(
            (error.code, error.data.unwrap()["field"].as_str().unwrap()),
            (-32602, field)
        );
    }
    assert_eq!(daemon.metric("callbacks_total"), 0);
}

#[test]
fn failures_stop_the_rest_or_do_not() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = host(&daemon);
    let run = host.start("x");
    let chain = |behaviour: &str| {
        json!([
            { "id": "a", "tool": "fail", "failure_behavior": behaviour, "max_retries": 0 },
            { "id": "b", "tool": "echo", "depends_on": ["a"] },
            { "id": "c", "tool": "echo", "depends_on": ["d"] },
            { "id": "d", "type": "assertion", "parameters": { "key": "k", "operator": "not_exists" } },
        ])
    };
    // `d` is independent and has begun; `c` has not.
    let results = host.submit(chain("skip"));
    assert_eq!(
        statuses(&results),
        ["failed", "skipped", "succeeded", "succeeded"]
    );
    assert_eq!(results[0]["error"], "no luck");
    let results = host.submit(json!([
        { "id": "a", "tool": "fail" },
        { "id": "b", "tool": "echo", "depends_on": ["a"] },
        { "id": "c", "tool": "echo", "depends_on": ["b"] },
    ]));
    assert_eq!(statuses(&results), ["failed", "skipped", "skipped"]);
    let results = host.submit(json!([
        { "id": "a", "tool": "nothing" },
        { "id": "s", "type": "state_read", "parameters": { "key": "gone" }, "failure_behavior": "skip" },
    ]));
    assert_eq!(results[0]["status"], "rejected");
    assert_eq!(results[0]["rejected_by"], "unregistered_tool");
    assert!(results[0].get("policy_rejected").is_none());
    assert_eq!(host.turns(&run).len(), 4 + 3 + 2);
}

#[test]
fn retries_and_what_is_not_tried_again() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = host(&daemon);
    let mut left = 2;
    host.tool("flaky", move |params| {
        left -= 1;
        match left {
            0 => Reply::With(json!({ "attempt": params["attempt"] })),
            _ => Reply::Failing("not yet"),
        }
    });
    host.tool("silent", |_| Reply::Never);
    let run = host.start("x");
    let results = host.submit(
        json!([{ "id": "a", "tool": "flaky", "failure_behavior": "retry", "max_retries": 3 }]),
    );
    assert_eq!(results[0]["output"], json!({ "attempt": 2 }));
    let results = host.submit(json!([
        { "id": "a", "tool": "fail", "failure_behavior": "retry", "max_retries": 2 },
        { "id": "b", "tool": "echo", "depends_on": ["a"] },
    ]));
    assert_eq!(statuses(&results), ["failed", "skipped"]);
    let before = host.calls("tools.execute");
    assert_eq!(before, 2 + 3);
    // Nobody knows how far it came: not again, unless that does no harm.
    host.submit(json!([{ "id": "a", "tool": "silent", "timeout_ms": 50, "max_retries": 2 }]));
    assert_eq!(host.calls("tools.execute"), before + 1);
    host.submit(json!([{ "id": "a", "tool": "silent", "timeout_ms": 50, "max_retries": 2, "idempotent": true }]));
    assert_eq!(host.calls("tools.execute"), before + 4);
    let attempts: Vec<_> = host
        .turns(&run)
        .iter()
        .map(|turn| turn["attempt"].clone())
        .collect();
    assert_eq!(
        attempts,
        [json!(2), json!(3), Value::Null, json!(1), json!(3)]
    );
}

#[test]
fn results_are_remembered_and_deny_beats_memory() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    host.ok("tools.register", json!([
        { "name": "cached", "cache_ttl_secs": 0.3 }, { "name": "same", "idempotent": true }, { "name": "plain" },
    ]));
    for tool in ["cached", "same", "plain"] {
        let mut n = 0;
        host.on(tool, move |_| {
            n += 1;
            Reply::With(json!(n))
        });
    }
    let mut ask = |tool: &str, parameters: Value| {
        host.submit(json!([{ "id": "a", "tool": tool, "parameters": parameters }]))[0]["output"]
            .clone()
    };
    assert_eq!(
        [ask("plain", json!({})), ask("plain", json!({}))],
        [json!(1), json!(2)]
    );
    assert_eq!(
        [
            ask("same", json!({ "a": 1, "b": 2 })),
            ask("same", json!({ "b": 2, "a": 1 }))
        ],
        [json!(1), json!(1)]
    );
    assert_eq!(ask("same", json!({ "a": 2 })), json!(2));
    assert_eq!(
        [ask("cached", json!({})), ask("cached", json!({}))],
        [json!(1), json!(1)]
    );
    std::thread::sleep(Duration::from_millis(350));
    assert_eq!(ask("cached", json!({})), json!(2));
    host.ok(
        "policy.register",
        json!({ "name": "none", "rule": "deny_tool", "target": "*" }),
    );
    for tool in ["cached", "same"] {
        let results =
            host.submit(json!([{ "id": "a", "tool": tool, "parameters": { "a": 1, "b": 2 } }]));
        assert_eq!(
            (
                &results[0]["status"],
                &results[0]["policy_rejected"]["rule"]
            ),
            (&json!("rejected"), &json!("none"))
        );
    }
}

#[test]
fn rates_of_tools_wait_and_rates_of_policies_refuse() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = host(&daemon);
    host.ok(
        "tools.register",
        json!([{ "name": "slow", "rate_limit": { "max_calls": 1, "interval_secs": 0.3 } }]),
    );
    host.on("slow", |_| Reply::With(json!(1)));
    let begun = Instant::now();
    let results = host.submit(json!([
        { "id": "a", "tool": "slow" }, { "id": "b", "tool": "slow" }, { "id": "c", "tool": "slow" },
    ]));
    assert_eq!(statuses(&results), ["succeeded"; 3]);
    assert!(
        begun.elapsed() >= Duration::from_millis(600),
        "{:?}",
        begun.elapsed()
    );
    let late = host.submit(json!([{ "id": "a", "tool": "slow", "timeout_ms": 50 }]));
    assert_eq!(statuses(&late), ["timed_out"]);
    let limit = json!({ "max_calls": 2, "interval_secs": 60 });
    host.ok(
        "policy.register",
        json!({ "name": "twice", "rule": "rate_limit_tool", "target": "echo", "value": limit }),
    );
    let results: Vec<Value> = (0..3)
        .flat_map(|_| host.submit(json!([{ "id": "a", "tool": "echo" }])))
        .collect();
    assert_eq!(statuses(&results), ["succeeded", "succeeded", "rejected"]);
    assert_eq!(results[2]["policy_rejected"]["rule"], "twice");
}

#[test]
fn state_gates_and_schemas() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = host(&daemon);
    host.ok("state.set", json!({ "key": "n", "value": 5 }));
    assert_eq!(
        host.ok("state.get", json!({ "key": "n" })),
        json!({ "value": 5, "exists": true })
    );
    assert_eq!(
        host.ok("state.get", json!({ "key": "m" })),
        json!({ "value": null, "exists": false })
    );
    let results = host.submit(json!([
        { "id": "w", "type": "state_write", "parameters": { "key": "m", "value": [1] } },
        { "id": "r", "type": "state_read", "parameters": { "key": "m" }, "depends_on": ["w"] },
        { "id": "e", "tool": "echo", "parameters": { "m": "${r.output}" },
          "preconditions": [{ "key": "n", "operator": "gt", "value": 4 }, { "key": "q", "operator": "not_exists" }] },
        { "id": "f", "tool": "echo", "preconditions": [{ "key": "n", "operator": "eq", "value": 4 }], "failure_behavior": "skip" },
        { "id": "x", "type": "assertion", "parameters": { "key": "n", "value": 6 }, "failure_behavior": "skip" },
    ]));
    assert_eq!(
        statuses(&results),
        ["succeeded", "succeeded", "succeeded", "rejected", "failed"]
    );
    assert_eq!(results[2]["output"], json!({ "m": [1] }));
    assert_eq!(results[3]["rejected_by"], "precondition");
    assert_eq!(host.ok("state.keys", json!({}))["keys"], json!(["m", "n"]));
    assert_eq!(
        host.ok("state.snapshot", json!({}))["state"],
        json!({ "m": [1], "n": 5 })
    );
    let mut other = daemon.host(None);
    assert_eq!(
        other.ok("state.exists", json!({ "key": "n" }))["exists"],
        false,
        "a session's own"
    );
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    host.ok(
        "tools.register",
        json!({ "tools": [{ "name": "strict", "parameters": schema }] }),
    );
    host.on("strict", |_| Reply::With(json!("ok")));
    for (parameters, status) in [
        (json!({ "n": 1 }), "succeeded"),
        (json!({ "n": "1" }), "rejected"),
        (json!({}), "rejected"),
    ] {
        let results =
            host.submit(json!([{ "id": "a", "tool": "strict", "parameters": parameters }]));
        assert_eq!(statuses(&results), [status]);
        if status == "rejected" {
            assert_eq!(results[0]["rejected_by"], "parameters");
        }
    }
    let error = host.refused(
        "tools.register",
        json!([{ "name": "bad", "parameters": { "type": "nonsense" } }]),
    );
    assert_eq!(error.data.unwrap()["field"], "tools[0].parameters");
    host.ok("tools.unregister", json!({ "names": ["strict", "never"] }));
    let results = host.submit(json!([{ "id": "a", "tool": "strict", "parameters": { "n": 1 } }]));
    assert_eq!(results[0]["rejected_by"], "unregistered_tool");
}

#[test]
fn policies_of_files_and_of_sessions() {
    let world = World::new();
    let file = world.path("rules.toml");
    std::fs::write(
        &file,
        "version = 1\n[tools]\ndeny = [\"rm_*\"]\nallow = [\"echo\"]\n",
    )
    .unwrap();
    let daemon = world.serve(&["--policy", file.to_str().unwrap()]);
    let mut host = host(&daemon);
    host.tool("rm_all", |_| panic!("called"));
    let run = host.start("x");
    let results = host.submit(json!([{ "id": "a", "tool": "rm_all" }]));
    let rule = results[0]["policy_rejected"]["rule"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(rule.contains("rules.toml:3: deny rm_*"), "{rule}");
    // A session tightens, and cannot loosen.
    let text = "version = 1\n[tools]\nallow = [\"rm_all\"]\n[[tool]]\nname = \"echo\"\nparam = { to = { equals = \"evil\" } }\ndecision = \"deny\"\n";
    host.ok(
        "policy.register",
        json!({ "name": "mine", "rule": "policy_file", "value": text }),
    );
    assert_eq!(
        host.submit(json!([{ "id": "a", "tool": "rm_all" }]))[0]["status"],
        "rejected"
    );
    assert_eq!(
        host.submit(json!([{ "id": "a", "tool": "echo", "parameters": { "to": "evil" } }]))[0]["status"],
        "rejected"
    );
    assert_eq!(
        host.submit(json!([{ "id": "a", "tool": "echo" }]))[0]["status"],
        "succeeded"
    );
    let bad = host.refused(
        "policy.register",
        json!({ "name": "bad", "rule": "policy_file", "value": "version = 1\nx = 2" }),
    );
    assert_eq!(bad.data.unwrap()["field"], "value");
    let unknown = host.refused(
        "policy.register",
        json!({ "name": "x", "rule": "deny_everything" }),
    );
    assert!(
        unknown.message.contains("deny_everything") && unknown.data.unwrap()["field"] == "rule"
    );
    host.ok("policy.register", json!({ "name": "ready", "rule": "require_state", "target": "echo", "key": "ready", "value": true }));
    assert_eq!(
        host.submit(json!([{ "id": "a", "tool": "echo" }]))[0]["policy_rejected"],
        json!({ "rule": "ready", "param": "ready" })
    );
    host.ok("state.set", json!({ "key": "ready", "value": true }));
    assert_eq!(
        host.submit(json!([{ "id": "a", "tool": "echo" }]))[0]["status"],
        "succeeded"
    );
    // A list around a text hides nothing.
    host.ok(
        "policy.register",
        json!({ "name": "words", "rule": "deny_tool_param", "key": "argv", "pattern": "a \"b\"" }),
    );
    let hidden = host
        .submit(json!([{ "id": "a", "tool": "echo", "parameters": { "argv": [["a \"b\""]] } }]));
    assert_eq!(hidden[0]["policy_rejected"]["param"], "argv");
    assert_eq!(
        host.ok("policy.list", json!({}))["policies"],
        json!(["ready", "words", "mine"])
    );
    assert!(host.turns(&run).len() == 7);
}

#[test]
fn a_tool_that_answers_late_or_twice() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = host(&daemon);
    host.tool("twice", |_| Reply::Twice(json!("first")));
    host.tool("silent", |_| Reply::Never);
    let run = host.start("x");
    assert_eq!(
        host.submit(json!([{ "id": "a", "tool": "twice" }]))[0]["output"],
        "first"
    );
    assert_eq!(
        host.submit(json!([{ "id": "a", "tool": "silent", "timeout_ms": 50 }]))[0]["status"],
        "timed_out"
    );
    let id = host
        .seen
        .iter()
        .find(|message| message["params"]["tool"] == "silent")
        .unwrap()["id"]
        .clone();
    host.client
        .send(json!({ "jsonrpc": "2.0", "id": id, "result": "late" }).to_string())
        .unwrap();
    host.client
        .send(json!({ "jsonrpc": "2.0", "id": "made up", "result": 1 }).to_string())
        .unwrap();
    daemon.wait_for("late_answers_total", |late| late == 3);
    let turns = host.turns(&run);
    assert_eq!(turns.len(), 2);
    assert!(turns[1].get("output").is_none());
}

#[test]
fn a_proposal_can_be_cancelled() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = host(&daemon);
    host.tool("silent", |_| Reply::Never);
    let proposal = host.proposal(json!([{ "id": "a", "tool": "silent" }, { "id": "b", "tool": "echo", "depends_on": ["a"] }]));
    let id = host.client.request("proposal.submit", &proposal).unwrap();
    host.until(|host| host.calls("tools.execute") == 1);
    let twice = host.refused("proposal.submit", proposal);
    assert_eq!(twice.code, -32008);
    host.ok("proposal.cancel", json!({ "proposal_id": "p1" }));
    let answer = host.answer(id);
    assert_eq!(
        statuses(answer["result"]["results"].as_array().unwrap()),
        ["cancelled", "cancelled"]
    );
    assert_eq!(
        host.refused("proposal.cancel", json!({ "proposal_id": "p1" }))
            .code,
        -32004
    );
}
