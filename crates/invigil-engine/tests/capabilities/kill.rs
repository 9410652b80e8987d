//! Signals to real processes.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use serde_json::json;

use super::support::World;

/// A process that is ended with this value.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Sleeper(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn start_time(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let rest = stat.rsplit_once(')').unwrap().1;
        rest.split_whitespace().nth(19).unwrap().parse().unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_process_is_ended() {
    let mut world = World::new();
    let mut sleeper = Sleeper::new();
    let start_time = sleeper.start_time();
    let dry = world.dry_run("kill", json!({"pid": sleeper.0.id()}));
    assert_eq!(dry.data()["sent"], false);
    assert_eq!(dry.data()["start_time"], start_time);
    assert!(sleeper.0.try_wait().unwrap().is_none());
    let job = world.run(
        "kill",
        json!({"pid": sleeper.0.id(), "start_time": start_time}),
    );
    assert_eq!(job.data()["killed"], true);
    assert_eq!(job.data()["pid_reused"], false);
    assert_eq!(sleeper.0.wait().unwrap().signal(), Some(15));
    let again = world.run("kill", json!({"pid": sleeper.0.id()}));
    assert!(again.failure().contains("there is no process"));
}

#[test]
fn another_process_of_the_same_number_gets_no_signal() {
    let mut world = World::new();
    let mut sleeper = Sleeper::new();
    let start_time = sleeper.start_time() - 1;
    let args = json!({"pid": sleeper.0.id(), "signal": "KILL", "start_time": start_time});
    let job = world.run("kill", args);
    assert_eq!(job.data()["pid_reused"], true);
    assert_eq!(job.data()["killed"], false);
    assert_eq!(job.data()["sent"], false);
    assert!(sleeper.0.try_wait().unwrap().is_none());
}

#[test]
fn a_signal_that_does_not_end_is_not_waited_for() {
    let mut world = World::new();
    let sleeper = Sleeper::new();
    let begin = std::time::Instant::now();
    let job = world.run("kill", json!({"pid": sleeper.0.id(), "signal": "STOP"}));
    assert_eq!(job.data()["sent"], true);
    assert_eq!(job.data()["killed"], false);
    assert!(begin.elapsed() < std::time::Duration::from_millis(900));
}

#[test]
fn neither_oneself_nor_ones_ancestors_are_signalled() {
    let mut world = World::new();
    let parent = std::os::unix::process::parent_id();
    for pid in [std::process::id(), parent] {
        if pid > 1 {
            let job = world.run("kill", json!({"pid": pid, "signal": "CONT"}));
            assert!(job.failure().contains("ancestors"), "{pid}");
        }
    }
}

/// The process that `nobody` leaves running as root. Any other would not do: `CONT` is open to everybody in a session.
#[test]
fn a_process_of_another_user_is_a_denial() {
    let Ok(pid) = std::env::var(super::nobody::FOREIGN) else {
        return;
    };
    let pid: u32 = pid.parse().unwrap();
    let mut world = World::new();
    let job = world.run("kill", json!({"pid": pid, "signal": "TERM"}));
    let failure = job.result.unwrap_err();
    assert!(failure.denied, "{failure}");
}
