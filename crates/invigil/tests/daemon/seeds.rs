//! What every host relies on: the scenarios that came first.

use std::thread;

use serde_json::{Value, json};

use crate::world::{Reply, World};

#[test]
fn a_command_line_is_recorded_with_prompt_output_and_exit_code() {
    for world in World::everyone() {
        let daemon = world.serve(&[]);
        let mut host = daemon.host(None);
        host.tool("drive_cli", |_| {
            Reply::With(json!({ "exit_code": 3, "output_tail": "…the end", "output": "all of it" }))
        });
        let run = host.start("try it");
        let results = host.submit(json!([
            { "id": "a", "type": "tool_call", "tool": "drive_cli", "parameters": { "prompt": "fix the bug" } },
        ]));
        assert_eq!(results[0]["status"], "succeeded");
        assert_eq!(results[0]["output"]["output"], "all of it");
        let turns = host.turns(&run);
        assert_eq!(turns.len(), 1);
        let turn = &turns[0];
        assert_eq!(
            (&turn["index"], &turn["prompt"]),
            (&json!(0), &json!("fix the bug"))
        );
        assert_eq!(turn["output"], "…the end");
        assert_eq!(turn["cli_outcome"], json!({ "kind": "exited", "code": 3 }));
        assert_eq!(turn["verifier_verdict"], "not_run");
        assert_eq!(
            (&turn["action_id"], &turn["proposal_id"]),
            (&json!("a"), &json!("p1"))
        );
        assert_eq!(turn["status"], "succeeded");
        assert_eq!(turn["attempt"], 1);
        host.complete(&run);
        world.verify(&run);
    }
}

#[test]
fn what_a_command_line_came_to_has_an_order() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    let outputs = [
        json!({ "timed_out": true, "exit_code": 0, "signal": 9 }),
        json!({ "timed_out": false, "exit_code": 0, "signal": 9 }),
        json!({ "exit_code": null, "signal": 9 }),
        json!({ "other": 1 }),
    ];
    let mut next = outputs.clone().into_iter();
    host.tool("drive_cli", move |_| Reply::With(next.next().unwrap()));
    let run = host.start("x");
    for n in 0..outputs.len() {
        host.submit(json!([{ "id": format!("a{n}"), "tool": "drive_cli" }]));
    }
    let outcomes: Vec<Value> = host
        .turns(&run)
        .iter()
        .map(|turn| turn["cli_outcome"].clone())
        .collect();
    assert_eq!(
        outcomes,
        [
            json!({ "kind": "timeout" }),
            json!({ "kind": "exited", "code": 0 }),
            json!({ "kind": "killed" }),
            json!(null)
        ]
    );
}

#[test]
fn checks_pass_and_fail_in_order() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    let mut passed = [true, false].into_iter();
    host.tool("check_outcome", move |_| {
        Reply::With(json!({ "passed": passed.next().unwrap() }))
    });
    let run = host.start("check it");
    host.submit(json!([{ "id": "a", "tool": "check_outcome" }]));
    host.submit(json!([{ "id": "b", "tool": "check_outcome" }]));
    let turns = host.turns(&run);
    let seen: Vec<_> = turns
        .iter()
        .map(|turn| (&turn["index"], &turn["verifier_verdict"]))
        .collect();
    assert_eq!(
        seen,
        [(&json!(0), &json!("pass")), (&json!(1), &json!("fail"))]
    );
    assert!(turns.iter().all(|turn| turn.get("cli_outcome").is_none()));
}

#[test]
fn what_the_policy_denies_never_reaches_its_tool() {
    for world in World::everyone() {
        let daemon = world.serve(&[]);
        let mut host = daemon.host(None);
        host.tool("drive_cli", |_| panic!("it was called"));
        host.ok(
            "policy.register",
            json!({ "name": "no_rm", "rule": "deny_tool_param", "target": "drive_cli", "key": "prompt",
                    "pattern": "rm -rf" }),
        );
        let run = host.start("x");
        let results = host.submit(json!([
            { "id": "a", "tool": "drive_cli", "parameters": { "prompt": "please rm -rf /" } },
        ]));
        assert_eq!(results[0]["status"], "rejected");
        assert_eq!(results[0]["rejected_by"], "policy");
        assert_eq!(host.calls("tools.execute"), 0);
        assert_eq!(daemon.metric("callbacks_total"), 0);
        let turns = host.turns(&run);
        assert_eq!(
            turns[0]["policy_rejected"],
            json!({ "rule": "no_rm", "param": "prompt" })
        );
        assert_eq!(turns[0]["status"], "rejected");
        assert!(turns[0].get("cli_outcome").is_none());
    }
}

#[test]
fn a_tool_that_is_too_slow_times_out() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    host.tool("drive_cli", |_| Reply::Never);
    let run = host.start("x");
    let begun = std::time::Instant::now();
    let results = host.submit(json!([{ "id": "a", "tool": "drive_cli", "timeout_ms": 200 }]));
    let took = begun.elapsed().as_millis();
    assert!((200..10_000).contains(&took), "{took}");
    assert_eq!(results[0]["status"], "timed_out");
    host.until(|host| host.calls("tools.cancel") == 1);
    let turns = host.turns(&run);
    assert_eq!(turns[0]["cli_outcome"], json!({ "kind": "timeout" }));
}

#[test]
fn any_other_tool_gives_a_plain_turn() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    host.tool("add", |params| {
        let sum = params["parameters"]["a"].as_i64().unwrap() + 1;
        Reply::With(json!(sum))
    });
    let run = host.start("x");
    let results = host.submit(json!([{ "id": "a", "tool": "add", "parameters": { "a": 41 } }]));
    assert_eq!(results[0]["output"], 42);
    let turn = host.turns(&run).remove(0);
    assert_eq!(
        (&turn["tool"], &turn["output"]),
        (&json!("add"), &json!(42))
    );
    assert_eq!(turn["parameters"], json!({ "a": 41 }));
    assert!(turn.get("prompt").is_none() && turn.get("cli_outcome").is_none());
    assert_eq!(turn["verifier_verdict"], "not_run");
}

#[test]
fn without_a_run_nothing_is_recorded() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(None);
    host.tool("add", |_| Reply::With(json!(1)));
    let results = host.submit(json!([{ "id": "a", "tool": "add" }]));
    assert_eq!(results[0]["status"], "succeeded");
    assert_eq!(host.ok("runs.list", json!({}))["runs"], json!([]));
    assert!(
        !world.home().join("runs").exists()
            || world.home().join("runs").read_dir().unwrap().count() == 0
    );
    assert_eq!(daemon.metric("turns_total"), 0);
}

#[test]
fn two_batches_at_once_give_one_order() {
    for world in World::everyone() {
        let daemon = world.serve(&[]);
        let mut host = daemon.host(Some("both"));
        let run = host.start("x");
        let batch = |who: &str| {
            let turn = |n: u64| json!({ "index": n, "tool": who, "parameters": { "n": n } });
            json!({ "run_id": run, "turns": (0..25).map(turn).collect::<Vec<_>>() })
        };
        let batches = [batch("a"), batch("b")];
        let bases: Vec<u64> = thread::scope(|scope| {
            let send = |batch: &Value| {
                let (mut host, batch) = (daemon.host(Some("both")), batch.clone());
                scope.spawn(move || {
                    let answer = host.ok("runs.record_turns", batch);
                    assert_eq!(
                        (&answer["count"], &answer["ok"]),
                        (&json!(25), &json!(true))
                    );
                    answer["base_index"].as_u64().unwrap()
                })
            };
            let threads: Vec<_> = batches.iter().map(send).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(bases == [0, 25] || bases == [25, 0], "{bases:?}");
        let told = host.turns(&run);
        let kept = world.all(&run, "turn");
        assert_eq!(told.len(), 50);
        for (n, (told, kept)) in told.iter().zip(&kept).enumerate() {
            assert_eq!((&told["index"], &kept["index"]), (&json!(n), &json!(n)));
            assert_eq!(kept["parameters"]["n"], json!(n % 25));
            assert_eq!(told["tool"], kept["tool"]);
        }
    }
}
