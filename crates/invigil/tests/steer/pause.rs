//! Everybody stops, nobody can go on, and then everybody does.

use std::thread;
use std::time::Duration;

use crate::world::{World, state, until};

/// Counts in a file, makes a new process each time, and wakes everybody whom it may.
const RESTLESS: &str = r#"
    echo 0 > count
    (while true; do kill -CONT 0; sleep 0.01; done) &
    n=0
    while [ ! -e stop ]; do n=$((n+1)); echo $n > new; mv new count; sleep 0.01; done
    kill $!
"#;

#[test]
fn a_paused_run_stands_still_whatever_it_does_and_goes_on_where_it_was() {
    for world in World::everyone() {
        for tier in ["notify", "ptrace"] {
            let run = format!("pause-{tier}");
            drop(std::fs::remove_file(world.work("stop")));
            drop(std::fs::remove_file(world.work("count")));
            let going = world.start(&run, &["--tier", tier, "--timeout", "20s"], RESTLESS);
            world.wait_for("count");
            let (said, _) = world.expect(0, &["pause", &run, "--reason", "coffee"]);
            assert_eq!(said, "paused\n");
            let before = world.read("count");
            let alive: Vec<u64> = living(&world, &run);
            assert!(alive.len() >= 2, "{alive:?}");
            for pid in &alive {
                assert!(!matches!(state(*pid), Some('R' | 'S')), "{pid} moves");
            }
            thread::sleep(Duration::from_millis(500));
            assert_eq!(world.read("count"), before, "{tier}");
            assert_eq!(living(&world, &run), alive);
            let (said, _) = world.expect(0, &["pause", &run]);
            assert_eq!(said, "it was paused already\n");
            world.expect(0, &["resume", &run]);
            until("it counts again", || world.read("count") != before);
            let (said, _) = world.expect(0, &["resume", &run]);
            assert_eq!(said, "it was not paused\n");
            world.shell("touch stop");
            going.expect(0);
            let suspended = world.event(&run, "run_suspended");
            assert_eq!(suspended["why"], "coffee");
            let resumed = world.event(&run, "run_resumed");
            assert_eq!(resumed["id"], suspended["id"]);
            assert!(resumed["after_ms"].as_u64() >= Some(500), "{resumed}");
            let kinds = ["order_taken", "run_suspended", "run_resumed", "order_ended"];
            let order = world.order(&run, &kinds).join(" ");
            assert_eq!(
                order,
                "order_taken run_suspended order_ended order_taken order_ended \
                 order_taken run_resumed order_ended order_taken order_ended"
            );
            let origins = world.events(&run).into_iter();
            let mut taken = origins.filter(|event| event["kind"] == "order_taken");
            assert!(taken.all(|event| event["origin"] == "user"));
            world.verifies(&run);
        }
    }
}

/// The pids that were born and have not ended, as the journal says.
fn living(world: &World, run: &str) -> Vec<u64> {
    let pids = |kind| world.all(run, kind).into_iter();
    let pid = |event: serde_json::Value| event["process"]["pid"].as_u64().unwrap();
    let ended: Vec<u64> = pids("process_exited").map(pid).collect();
    let mut born: Vec<u64> = pids("process_forked").map(pid).collect();
    born.retain(|pid| !ended.contains(pid));
    born.sort_unstable();
    born
}

#[test]
fn the_clock_of_a_run_stands_still_too() {
    for world in World::everyone() {
        let going = world.start(
            "slow",
            &["--timeout", "2s"],
            "touch up; sleep 1; touch done",
        );
        world.wait_for("up");
        world.expect(0, &["pause", "slow"]);
        thread::sleep(Duration::from_millis(2500));
        world.expect(0, &["resume", "slow"]);
        going.expect(0);
        assert!(world.work("done").exists());
    }
}

#[test]
fn a_paused_run_can_be_killed_and_a_killed_one_is_not_steered() {
    for world in World::everyone() {
        let going = world.start(
            "dying",
            &[],
            "touch up; trap '' TERM; while true; do sleep 0.1; done",
        );
        world.wait_for("up");
        world.expect(0, &["pause", "dying"]);
        world.expect(0, &["signal", "dying", "--urgency", "critical", "enough"]);
        going.expect(143);
        let finished = world.event("dying", "run_finished");
        assert_eq!(finished["stopped"], "signal");
        assert_eq!(finished["why"], "enough");
        assert_eq!(world.all("dying", "run_resumed").len(), 1);
        let (_, said) = world.expect(125, &["pause", "dying"]);
        assert!(said.contains("is over"), "{said}");
        assert!(!world.at("home/orders/dying").exists());
    }
}

#[test]
fn no_process_of_a_run_can_steer_a_run() {
    for world in World::everyone() {
        let other = world.start(
            "other",
            &[],
            "touch up; while [ ! -e stop ]; do sleep 0.02; done",
        );
        world.wait_for("up");
        let invigil = env!("CARGO_BIN_EXE_invigil");
        let script = format!(
            "{invigil} pause other 2>>said; {invigil} pause inside 2>>said;
             {invigil} signal other --urgency critical 2>>said;
             cp said $INVIGIL_HOME/orders/other/x.order 2>>said; true"
        );
        world.start("inside", &[], &script).expect(0);
        let said = world.read("said");
        assert_eq!(said.matches("cannot steer runs").count(), 3, "{said}");
        let refused = world.all("inside", "access_denied");
        assert!(refused.len() >= 4, "{refused:?}");
        for run in ["other", "inside"] {
            assert!(world.all(run, "order_taken").is_empty());
            assert!(world.all(run, "run_suspended").is_empty());
        }
        // What only looks like an order is refused by the supervisor.
        world.shell("echo nonsense > $INVIGIL_HOME/orders/other/bad.order");
        until("it is refused", || {
            !world.all("other", "order_refused").is_empty()
        });
        world.shell("touch stop");
        other.expect(0);
    }
}

#[test]
fn without_a_watch_nobody_steers() {
    let world = &World::everyone()[0];
    let options = ["--tier", "contract_only"];
    let child = world
        .command(&[
            "run", "--run-id", "blind", "--tier", options[1], "--quiet", "--",
        ])
        .args([
            "sh",
            "-c",
            "touch up; while [ ! -e stop ]; do sleep 0.02; done",
        ])
        .spawn();
    let mut child = child.unwrap();
    world.wait_for("up");
    let (said, _) = world.expect(1, &["pause", "blind"]);
    assert!(said.contains("could steer itself"), "{said}");
    world.shell("touch stop");
    assert!(child.wait().unwrap().success());
    assert_eq!(world.event("blind", "order_ended")["done"], false);
}

#[test]
fn a_process_that_stops_itself_is_seen_to() {
    for world in World::everyone() {
        let script = "sh -c 'kill -STOP $$; touch again' & sleep 0.3; kill -CONT $!; wait";
        world.start("standing", &[], script).expect(0);
        assert!(world.work("again").exists());
        let stopped = world.event("standing", "process_stopped");
        assert_eq!(stopped["signal"], 19);
        let continued = world.event("standing", "process_continued");
        assert_eq!(continued["process"], stopped["process"]);
    }
}
