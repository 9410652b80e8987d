//! Many connections: nothing fails, nothing leaks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::hostile::usage;
use crate::world::{Daemon, Host, Reply, World};

const IDLE: usize = 1_000;
const ACTIVE: usize = 200;

fn active(daemon: &Daemon<'_>, n: usize, rounds: usize, slowest: &AtomicU64) {
    let mut host = daemon.host(Some(&format!("agent{n}")));
    host.tool("t", |_| Reply::With(json!({ "ok": true })));
    let run = host.start("load");
    for _ in 0..rounds {
        let begun = Instant::now();
        let results = host.submit(json!([{ "id": "a", "tool": "t", "parameters": { "n": n } }]));
        assert_eq!(results[0]["status"], "succeeded");
        slowest.fetch_max(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
    assert_eq!(host.turns(&run).len(), rounds);
    host.complete(&run);
}

fn round(daemon: &Daemon<'_>, rounds: usize) {
    let slowest = AtomicU64::new(0);
    let begun = Instant::now();
    thread::scope(|scope| {
        for n in 0..ACTIVE {
            let slowest = &slowest;
            scope.spawn(move || active(daemon, n, rounds, slowest));
        }
    });
    let (slowest, took) = (slowest.into_inner(), begun.elapsed().as_secs_f64());
    println!(
        "{} proposals in {took:.1} s, the slowest took {slowest} ms",
        ACTIVE * rounds
    );
}

#[test]
fn a_thousand_idle_and_two_hundred_active() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    for world in World::everyone() {
        let daemon = world.serve(&[]);
        // What is made once and kept is there before anything is counted.
        round(&daemon, 2);
        daemon.wait_for("connections", |open| open <= 1);
        let before = usage(&daemon);
        let idle: Vec<Host> = (0..IDLE).map(|_| daemon.host(None)).collect();
        let with_idle = usage(&daemon);
        let each = with_idle.0.saturating_sub(before.0) as f64 / IDLE as f64;
        println!("an idle connection takes {each:.1} KiB");
        round(&daemon, 10);
        for mut host in idle.into_iter().step_by(50) {
            host.ok("session.info", json!({}));
        }
        daemon.wait_for("connections", |open| open <= 1);
        thread::sleep(Duration::from_millis(300));
        let after = usage(&daemon);
        println!("KiB and files before {before:?}, with all {with_idle:?}, after {after:?}");
        assert!(after.1 <= before.1 + 4, "{before:?} {after:?}");
        assert!(after.0 < before.0 + 40_000, "{before:?} {after:?}");
        assert_eq!(
            (daemon.metric("runs_open"), daemon.metric("errors_total")),
            (0, 0)
        );
    }
}
