//! A deadline is a deadline, a cancelled job is gone, and no program can drown, starve or bury anybody else.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::world::{
    World, a_second, data, fed, message, none_is_left, processes_with, signal, unique_seconds,
    until,
};

/// How often a deadline is tried on a machine that others use, too.
const TRIES: usize = 5;

/// Each with a second: back within a second and a half of the start, and nobody is left.
#[test]
fn whatever_a_program_does_its_time_is_up() {
    let ways = [
        "sleep @ & wait",
        "sleep @ &",
        "setsid sleep @",
        "setsid -f sleep @; sleep @",
        "(sleep @ & (sleep @ & sleep @) &) & wait; sleep @",
        "trap '' TERM; sleep @ & trap '' INT HUP; sleep @; sleep @",
        "while :; do :; done; : @",
        "cat /dev/zero > /dev/null; : @",
        "exec 0<&- 1>&- 2>&-; sleep @",
    ];
    for world in World::everyone() {
        for way in ways {
            let ended = (0..TRIES).any(|_| in_time(&world, way));
            assert!(ended, "{way}: not back in time, {TRIES} times");
        }
        world.is_well();
    }
}

/// Whether a command is back in time. What does not depend on the time must be right in any case.
fn in_time(world: &World, way: &str) -> bool {
    let mark = unique_seconds();
    let arguments = a_second(&way.replace('@', &mark));
    // What is left to run behind the end of the first process is not waited for.
    let code = if way.ends_with('&') { 0 } else { 124 };
    let begun = Instant::now();
    let output = world
        .exec_command("shell", &arguments, &[])
        .output()
        .unwrap();
    let took = begun.elapsed();
    let result = world.result(code, &output, &arguments);
    none_is_left(&mark);
    assert_eq!(data(&result)["timed_out"], code == 124, "{result}");
    let ran = Duration::from_millis(result["duration_ms"].as_u64().unwrap());
    if code == 124 {
        assert!(ran >= Duration::from_secs(1), "{way}: {ran:?} is too early");
        let timed_out = world.all("job_timed_out").pop().unwrap();
        assert_eq!(
            timed_out["timeout_ms"], 1000,
            "what it had, not what it took"
        );
    }
    // Around the job: the start of a process and a first look at the machine.
    let beyond = took.saturating_sub(ran);
    println!("{way}: {ran:?} and {beyond:?}");
    ran < Duration::from_millis(1500) && beyond < Duration::from_millis(500)
}

#[test]
fn a_signal_cancels() {
    for world in World::everyone() {
        for (count, by) in [Signal::INT, Signal::TERM, Signal::HUP]
            .into_iter()
            .enumerate()
        {
            let mark = unique_seconds();
            let command =
                format!("trap '' INT TERM HUP; echo begun; setsid -f sleep {mark}; sleep {mark}");
            let arguments = json!({ "command": command });
            let child = world
                .exec_command("shell", &arguments, &[])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            until("both sleep", || {
                processes_with(&format!("sleep {mark}"))
                    .iter()
                    .filter(|(_, line)| line.starts_with("sleep"))
                    .count()
                    == 2
            });
            let begun = Instant::now();
            signal(&child, by);
            let result = world.result(130, &child.wait_with_output().unwrap(), &by);
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(2), "{took:?}");
            none_is_left(&mark);
            assert_eq!(data(&result)["stdout"], "begun\n");
            assert_eq!(world.all("job_cancelled").len(), count + 1);
        }
        world.is_well();
    }
}

#[test]
fn a_mebibyte_goes_in_and_comes_out() {
    for world in World::everyone() {
        let text: String = (0..1 << 20)
            .map(|n| char::from(b'a' + (n % 23) as u8))
            .collect();
        for command in ["cat", "cat; cat; cat", "true"] {
            let arguments = json!({ "command": command, "stdin": text }).to_string();
            let output = fed(
                world.command(&["exec", "shell", "-", "--json"]),
                arguments.as_bytes(),
            );
            let result = world.result(0, &output, &command);
            let expected = if command == "true" { "" } else { &text };
            assert!(data(&result)["stdout"] == expected, "{command}");
            assert_eq!(data(&result)["truncated"], false);
        }
        world.is_well();
    }
}

const MUCH: &str = "head -c 100000000 /dev/zero | tr '\\0' x";

#[test]
fn a_hundred_megabytes_are_cut_or_kept() {
    let digest = Command::new("sh")
        .args(["-c", &format!("{MUCH} | sha256sum")])
        .output()
        .unwrap();
    let digest = String::from_utf8(digest.stdout).unwrap();
    let digest = digest.split(' ').next().unwrap();
    for world in World::everyone() {
        let arguments = json!({ "command": MUCH });
        let result = world.exec(0, "shell", arguments.clone());
        let check = |result: &Value| {
            let given = data(result);
            assert_eq!(
                (&given["truncated"], &given["stdout_bytes"]),
                (&json!(true), &json!(100_000_000))
            );
            assert_eq!(given["stdout"].as_str().unwrap().len(), 1 << 20);
        };
        check(&result);
        assert_eq!(data(&result)["stdout_blob"], Value::Null);
        let result = world.exec_with(0, "shell", arguments, &["--keep-output"]);
        check(&result);
        assert_eq!(data(&result)["stdout_blob"], digest);
        let digest = digest.parse().unwrap();
        let mut blob = world.store().blobs().unwrap().open(&digest).unwrap();
        assert_eq!(
            std::io::copy(&mut blob, &mut std::io::sink()).unwrap(),
            100_000_000
        );
        world.is_well();
    }
}

/// The limits of a policy are those of the job; `ulimit` is there in case that they do not hold.
#[test]
fn bombs_and_hogs_are_stopped_alone() {
    for world in World::everyone() {
        let policy = world.policy("version = 1\n[budget]\nprocesses = 24\nmemory = \"96MiB\"\n");
        let mark = unique_seconds();
        let bomb = format!("ulimit -t 5; b() {{ sleep {mark} & b | b & }}; b; sleep {mark}");
        let bomb = json!({ "command": bomb, "timeout": 10 });
        let result = world.exec_with(1, "shell", bomb, &["--policy", &policy]);
        none_is_left(&mark);
        assert!(
            message(&result).contains("processes"),
            "{}",
            message(&result)
        );
        assert!(
            data(&result)["descendants"].as_u64().unwrap() >= 20,
            "{}",
            data(&result)
        );
        let hog = "ulimit -v 2000000; head -c 700000000 /dev/zero | tail; sleep 5";
        let hog = json!({ "command": hog, "timeout": 20 });
        let result = world.exec_with(1, "shell", hog, &["--policy", &policy]);
        assert!(
            message(&result).contains("oom_killed"),
            "{}",
            message(&result)
        );
        world.exec(0, "shell", json!({ "command": "true" }));
        world.is_well();
    }
}
