//! Subscriptions: no gap, no duplicate, and nobody waits for a slow one.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Daemon, Host, World};

fn batch(run: &str, turns: usize, text: &str) -> Value {
    let turn = json!({ "tool": "t", "parameters": { "text": text } });
    json!({ "run_id": run, "turns": vec![turn; turns] })
}

/// Follows a run to its end; the indexes of its turns as they came.
fn follow(daemon: &Daemon<'_>, agent: &str, run: &str) -> Vec<u64> {
    let mut host = daemon.host(Some(agent));
    let mut records = Vec::new();
    let first = host.ok("runs.subscribe", json!({ "run_id": run }));
    records.extend(first["records"].as_array().unwrap().iter().cloned());
    let mut cursor = first["cursor"].as_u64().unwrap();
    let ended = |records: &[Value]| records.last().is_some_and(|last| last["record"] == "ended");
    let mut events = std::mem::take(&mut host.seen).into_iter();
    while !ended(&records) {
        let event = events
            .next()
            .unwrap_or_else(|| host.client.receive(Duration::from_secs(20)).unwrap());
        assert_eq!(event["method"], "runs.trace.event");
        let params = &event["params"];
        assert!(params["cursor"].as_u64().unwrap() > cursor);
        assert_eq!(
            (&params["run_id"], &params["agent_id"]),
            (&json!(run), &json!(agent))
        );
        cursor = params["cursor"].as_u64().unwrap();
        let last = params["record"]["record"] == "ended";
        assert_eq!(params["status"], if last { "completed" } else { "running" });
        records.push(params["record"].clone());
    }
    assert_eq!(records[0]["record"], "started");
    let turns = records.iter().filter(|record| record["record"] == "turn");
    turns.map(|turn| turn["index"].as_u64().unwrap()).collect()
}

#[test]
fn subscribers_see_everything_once_whenever_they_come() {
    for world in World::everyone() {
        let daemon = world.serve(&[]);
        let mut host = daemon.host(Some("a"));
        let run = host.start("x");
        thread::scope(|scope| {
            let (daemon, run) = (&daemon, &run);
            let followers: Vec<_> = (0..6)
                .map(|n| {
                    scope.spawn(move || {
                        thread::sleep(Duration::from_millis(15 * n));
                        follow(daemon, "a", run)
                    })
                })
                .collect();
            for _ in 0..60 {
                host.ok("runs.record_turns", batch(run, 25, "x"));
            }
            host.complete(run);
            for follower in followers {
                assert_eq!(follower.join().unwrap(), (0..1500).collect::<Vec<_>>());
            }
        });
        assert_eq!(follow(&daemon, "a", &run).len(), 1500, "after its end too");
        daemon.wait_for("subscriptions", |open| open == 0);
    }
}

#[test]
fn a_slow_subscriber_is_told_and_catches_up() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    let run = host.start("x");
    let mut slow = daemon.host(Some("a"));
    let first = slow.ok("runs.subscribe", json!({ "run_id": run }));
    let mut cursor = first["cursor"].as_u64().unwrap();
    // It reads nothing; 20 MiB do not fit anywhere on the way.
    let text = "z".repeat(15 << 10);
    for _ in 0..140 {
        host.ok("runs.record_turns", batch(&run, 10, &text));
    }
    thread::sleep(Duration::from_millis(6_500));
    let mut seen = Vec::new();
    let lagged = loop {
        let event = slow.client.receive(Duration::from_secs(20)).unwrap();
        let params = event["params"].clone();
        if event["method"] == "runs.trace.lagged" {
            break params;
        }
        cursor = params["cursor"].as_u64().unwrap();
        seen.push(params["record"]["index"].as_u64().unwrap());
    };
    assert_eq!(lagged, json!({ "run_id": run, "cursor": cursor }));
    let rest = catch_up(&mut slow, &run, cursor);
    seen.extend(rest);
    assert_eq!(seen, (0..1400).collect::<Vec<_>>());
    daemon.wait_for("subscriptions", |open| open == 0);
}

fn catch_up(host: &mut Host, run: &str, mut cursor: u64) -> Vec<u64> {
    let mut seen = Vec::new();
    loop {
        let page = host.ok("runs.get_trace", json!({ "run_id": run, "cursor": cursor }));
        let records = page["records"].as_array().unwrap();
        if records.is_empty() {
            return seen;
        }
        seen.extend(
            records
                .iter()
                .map(|record| record["index"].as_u64().unwrap()),
        );
        cursor = page["cursor"].as_u64().unwrap();
    }
}

#[test]
fn a_subscription_can_be_ended_and_replaced() {
    let world = World::new();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    let run = host.start("x");
    let first = host.ok("runs.subscribe", json!({ "run_id": run }));
    host.ok(
        "runs.subscribe",
        json!({ "run_id": run, "from": first["cursor"] }),
    );
    host.ok("runs.record_turns", batch(&run, 3, "x"));
    host.until(|host| host.calls("runs.trace.event") >= 3);
    host.listen(Duration::from_millis(200));
    assert_eq!(host.calls("runs.trace.event"), 3, "once, not twice");
    host.ok("runs.unsubscribe", json!({ "run_id": run }));
    host.ok("runs.record_turns", batch(&run, 3, "x"));
    host.listen(Duration::from_millis(300));
    assert_eq!(host.calls("runs.trace.event"), 3);
    assert_eq!(
        host.refused("runs.unsubscribe", json!({ "run_id": run }))
            .code,
        -32004
    );
    let missing = host.ok("runs.subscribe", json!({ "run_id": "run_none" }));
    assert_eq!(missing, json!({ "run_id": "run_none", "not_found": true }));
}
