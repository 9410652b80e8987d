//! The daemon is killed under load: what it acknowledged is there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use invigil_server::ClientError;
use serde_json::{Value, json};

use crate::world::{Daemon, Reply, World};

const CLIENTS: usize = 8;

/// How many turns of each run were acknowledged, and whether its end was.
type Acknowledged = Arc<Mutex<HashMap<String, (u64, bool)>>>;

/// Works until the daemon is gone; how that was told.
fn work(
    daemon: &Daemon<'_>,
    agent: &str,
    done: &Acknowledged,
    killed: &AtomicBool,
    ready: &Barrier,
) -> ClientError {
    let mut host = daemon.host(Some(agent));
    host.tool("t", |_| Reply::With(json!("x")));
    ready.wait();
    let mut round = 0;
    let mut once = || -> Result<(), ClientError> {
        let run = host.call("runs.start", json!({ "intent": "load" }))?;
        let run = run["run_id"].as_str().unwrap().to_owned();
        done.lock().unwrap().insert(run.clone(), (0, false));
        for n in 0..20 {
            round += 1;
            let turns = if n % 3 == 0 {
                let turns = json!([{ "parameters": {} }, { "parameters": {} }]);
                host.call(
                    "runs.record_turns",
                    json!({ "run_id": run, "turns": turns }),
                )?;
                2
            } else {
                let actions = json!([{ "id": "a", "tool": "t" }]);
                let id = format!("p{round}");
                host.call(
                    "proposal.submit",
                    json!({ "proposal": { "id": id, "actions": actions } }),
                )?;
                1
            };
            done.lock().unwrap().get_mut(&run).unwrap().0 += turns;
        }
        host.call(
            "runs.complete",
            json!({ "run_id": run, "outcome": { "status": "done" } }),
        )?;
        done.lock().unwrap().get_mut(&run).unwrap().1 = true;
        Ok(())
    };
    loop {
        if let Err(error) = once() {
            assert!(
                killed.load(Ordering::SeqCst),
                "before it was killed: {error}"
            );
            return error;
        }
    }
}

fn check(world: &World, run: &str, turns: u64, ended: bool) {
    let events = world.events(run);
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds
            .iter()
            .filter(|kind| **kind == "client_run_ended")
            .count(),
        1,
        "{run}"
    );
    assert_eq!(kinds.last(), Some(&"client_run_ended"), "{run}");
    let indexes: Vec<u64> = events
        .iter()
        .filter(|event| event["kind"] == "turn")
        .map(|event| event["data"]["index"].as_u64().unwrap())
        .collect();
    assert_eq!(
        indexes,
        (0..indexes.len() as u64).collect::<Vec<_>>(),
        "{run}"
    );
    assert!(
        indexes.len() as u64 >= turns,
        "{run}: {} of {turns}",
        indexes.len()
    );
    let last = &events.last().unwrap()["data"];
    assert_eq!(last["turns"], json!(indexes.len()));
    if ended {
        assert_eq!(last["termination"]["kind"], "outcome", "{run}");
    }
}

#[test]
fn a_kill_under_load_loses_nothing_that_was_acknowledged() {
    let kills = std::env::var("INVIGIL_KILLS").map_or(3, |kills| kills.parse().unwrap());
    let world = World::new();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut incomplete = 0;
    let mut daemon = world.serve(&[]);
    for round in 0..kills {
        let done: Acknowledged = Arc::default();
        let killed = AtomicBool::new(false);
        let ready = Barrier::new(CLIENTS + 1);
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let pause = Duration::from_millis(20 + seed % 280);
        thread::scope(|scope| {
            let (daemon, done, killed, ready) = (&daemon, &done, &killed, &ready);
            let workers: Vec<_> = (0..CLIENTS)
                .map(|n| {
                    scope.spawn(move || work(daemon, &format!("agent{n}"), done, killed, ready))
                })
                .collect();
            ready.wait();
            thread::sleep(pause);
            killed.store(true, Ordering::SeqCst);
            let pid = rustix::process::Pid::from_child(&daemon.child);
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            for worker in workers {
                let error = worker.join().unwrap();
                assert!(!matches!(error, ClientError::Timeout), "silence: {error}");
            }
        });
        daemon.kill();
        // The socket of the dead one is still there, and is replaced.
        daemon = world.serve(&[]);
        let mut operator = daemon.operator();
        for (run, (turns, ended)) in done.lock().unwrap().iter() {
            check(&world, run, *turns, *ended);
            let trace = operator.ok("runs.get_trace", json!({ "run_id": run, "limit": 1 }));
            let status: &Value = &trace["status"];
            assert!(
                status == "incomplete" || status == "completed",
                "{run}: {status}"
            );
            assert!(!ended || status == "completed", "{run}");
            incomplete += u64::from(status == "incomplete");
            if round + 1 == kills {
                world.verify(run);
            }
        }
        let open = operator.ok("runs.list", json!({ "status": "running" }));
        assert_eq!(open["runs"], json!([]));
    }
    println!("{kills} kills, {incomplete} runs were incomplete");
    assert!(incomplete > 0, "nothing was under way");
}

#[test]
fn what_was_under_way_at_a_kill_is_interrupted_and_never_sent_again() {
    let world = World::new();
    let mut daemon = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    host.tool("silent", |_| Reply::Never);
    let run = host.start("x");
    let proposal =
        host.proposal(json!([{ "id": "a", "tool": "silent", "parameters": { "n": 1 } }]));
    host.client.request("proposal.submit", &proposal).unwrap();
    host.until(|host| host.calls("tools.execute") == 1);
    daemon.kill();
    let daemon = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    host.tool("silent", |_| panic!("sent again"));
    host.listen(Duration::from_millis(200));
    let turns = host.turns(&run);
    assert_eq!(turns.len(), 1);
    assert_eq!(
        (&turns[0]["status"], &turns[0]["parameters"]),
        (&json!("interrupted"), &json!({ "n": 1 }))
    );
    assert_eq!(
        host.records(&run, "ended")[0]["termination"],
        json!({ "kind": "incomplete" })
    );
    world.verify(&run);
}
