//! `invigil run`: the exit code is the command's, the evidence is complete, and nothing is made for a wrong call.

use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Invigil;

#[test]
fn the_exit_code_is_the_commands() {
    let invigil = Invigil::new();
    let (stdout, stderr) = invigil.expect(
        3,
        &[
            "run",
            "--run-id",
            "three",
            "--",
            "sh",
            "-c",
            "echo out; exit 3",
        ],
    );
    assert_eq!(stdout, "out\n", "stdout is the command's alone");
    assert!(stderr.contains("exit 3"), "{stderr}");
    let events = invigil.events("three");
    let kinds: Vec<&str> = events.iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["journal_opened", "run_started"]);
    assert_eq!(kinds.last(), Some(&"run_finished"));
    assert_eq!(events[0]["data"]["run_id"], "three");
    assert_eq!(
        events[1]["data"]["command"],
        serde_json::json!(["sh", "-c", "echo out; exit 3"])
    );
    let finished = invigil.event("three", "run_finished");
    assert_eq!(finished["exit_code"], 3);
    assert_eq!(finished["success"], false);
}

#[test]
fn death_by_signal_is_128_and_more() {
    let invigil = Invigil::new();
    invigil.expect(
        137,
        &["run", "--run-id", "nine", "--", "sh", "-c", "kill -9 $$"],
    );
    let finished = invigil.event("nine", "run_finished");
    assert_eq!(finished["signal"], 9);
    assert_eq!(finished["exit_code"], Value::Null);
}

#[test]
fn what_cannot_be_started_leaves_evidence() {
    let invigil = Invigil::new();
    let (_, stderr) = invigil.expect(127, &["run", "--run-id", "a", "--", "no-such-program"]);
    assert!(stderr.contains("in PATH?"), "{stderr}");
    assert_eq!(invigil.event("a", "run_failed")["failure"], "not_found");
    let (_, stderr) = invigil.expect(126, &["run", "--run-id", "b", "--", "/etc/passwd"]);
    assert!(stderr.contains("may you execute it?"), "{stderr}");
    assert_eq!(
        invigil.event("b", "run_failed")["failure"],
        "not_executable"
    );
    invigil.expect(0, &["verify", "a"]);
}

#[test]
fn a_wrong_call_makes_nothing() {
    let invigil = Invigil::new();
    for (args, says) in [
        (&["run"][..], "required"),
        (&["run", "--"], "required"),
        (&["run", "--run-id", "", "--", "true"], "is empty"),
        (&["run", "--run-id", "a:b", "--", "true"], "':'"),
        (&["run", "--run-id", "../x", "--", "true"], "only ASCII"),
        (&["run", "--run-id", "last", "--", "true"], "reserved"),
        (&["run", "--no-such-flag", "--", "true"], "unexpected"),
        (&["run", "--run-id", &"x".repeat(129), "--", "true"], "128"),
    ] {
        let (_, stderr) = invigil.expect(125, args);
        assert!(stderr.contains(says), "{args:?}: {stderr}");
    }
    assert_eq!(
        std::fs::read_dir(invigil.directory.path()).unwrap().count(),
        0
    );
}

#[test]
fn an_id_is_not_used_twice() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "--run-id", "one", "--", "true"]);
    let before = crate::tree(&invigil.home().join("runs"));
    let (_, stderr) = invigil.expect(125, &["run", "--run-id", "one", "--", "touch", "effect"]);
    assert!(stderr.contains("exists already"), "{stderr}");
    assert_eq!(crate::tree(&invigil.home().join("runs")), before);
    assert!(!invigil.directory.path().join("effect").exists());
}

#[test]
fn json_is_alone_on_stdout() {
    let invigil = Invigil::new();
    let (stdout, stderr) = invigil.expect(
        4,
        &["run", "--json", "--", "sh", "-c", "echo words; exit 4"],
    );
    let result: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&result["exit"], &result["outcome"]["exit_code"]),
        (&4.into(), &4.into())
    );
    assert_eq!(result["event"], "run_finished");
    assert_eq!(stderr, "words\n");
    let (stdout, _) = invigil.expect(127, &["run", "--json", "--", "no-such-program"]);
    let result: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        result["event"], "run_failed",
        "127 of Invigil, not of the command"
    );
}

#[test]
fn arguments_keep_their_bytes() {
    let invigil = Invigil::new();
    let odd = std::ffi::OsStr::from_bytes(b"a\xff\n b");
    let output = invigil
        .command(&["run", "--run-id", "odd", "--", "printf", "%s"])
        .arg(odd)
        .output()
        .unwrap();
    assert_eq!(output.stdout, odd.as_bytes());
    assert_eq!(
        invigil.event("odd", "run_started")["command"][2],
        serde_json::json!({ "base64": "Yf8KIGI=" })
    );
    invigil.expect(0, &["show", "odd"]);
}

/// Starts `sh` under Invigil, and returns when it has said that it is ready.
fn start(invigil: &Invigil, run: &str, script: &str) -> Child {
    let script = format!("{script}; echo ready; exec sleep 100");
    let mut child = invigil
        .command(&["run", "--run-id", run, "--", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Not the foreground group of a terminal, which would send an interrupt to the command as well.
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn signals_reach_the_command_and_the_evidence_is_complete() {
    let invigil = Invigil::new();
    for (run, signal, code) in [
        ("term", Signal::TERM, 143),
        ("hup", Signal::HUP, 129),
        ("int", Signal::INT, 130),
        ("quit", Signal::QUIT, 131),
    ] {
        let mut child = start(&invigil, run, ":");
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{run}");
        assert_eq!(invigil.event(run, "run_finished")["signal"], code - 128);
        invigil.expect(0, &["verify", run]);
    }
}

#[test]
fn a_second_interrupt_kills() {
    let invigil = Invigil::new();
    let mut child = start(&invigil, "stubborn", "trap '' INT");
    send(&child, Signal::INT);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(child.try_wait().unwrap(), None, "it ignores the first");
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert_eq!(invigil.event("stubborn", "run_finished")["signal"], 9);
}

#[test]
fn killed_itself_the_run_is_interrupted_and_verifies() {
    let invigil = Invigil::new();
    let mut child = start(&invigil, "gone", "(setsid sleep 100 &)");
    let (stdout, _) = invigil.expect(0, &["runs"]);
    assert!(stdout.contains("running"), "{stdout}");
    let pids: Vec<u64> = invigil
        .events("gone")
        .iter()
        .filter(|event| event["kind"] == "process_forked")
        .map(|event| event["data"]["process"]["pid"].as_u64().unwrap())
        .collect();
    assert!(pids.len() >= 3, "{pids:?}");
    send(&child, Signal::KILL);
    child.wait().unwrap();
    let (stdout, _) = invigil.expect(0, &["runs"]);
    assert!(stdout.contains("interrupted"), "{stdout}");
    invigil.expect(0, &["verify", "gone"]);
    let alive = |pid: &u64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains("sleep") && !stat.contains(") Z ")
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while pids.iter().any(alive) {
        assert!(
            std::time::Instant::now() < deadline,
            "a process outlived its supervisor"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn no_place_to_keep_runs_says_what_to_set() {
    let invigil = Invigil::new();
    let mut command = invigil.command(&["run", "--", "true"]);
    for variable in ["INVIGIL_HOME", "XDG_DATA_HOME", "HOME"] {
        command.env_remove(variable);
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("set INVIGIL_HOME"), "{stderr}");
}

#[test]
fn the_place_is_taken_from_flag_variable_and_xdg_in_this_order() {
    let invigil = Invigil::new();
    let place = |name: &str| invigil.directory.path().join(name);
    let run = |flag: bool, variable: bool, xdg: bool| {
        let mut command = invigil.command(&["run", "--quiet"]);
        command
            .env_remove("INVIGIL_HOME")
            .env_remove("XDG_DATA_HOME")
            .env("HOME", place("user"));
        if flag {
            command.arg("--home").arg(place("flag"));
        }
        if variable {
            command.env("INVIGIL_HOME", place("variable"));
        }
        if xdg {
            command.env("XDG_DATA_HOME", place("xdg"));
        }
        assert!(command.args(["--", "true"]).status().unwrap().success());
    };
    run(true, true, true);
    assert!(place("flag/runs").exists() && !place("variable").exists());
    run(false, true, true);
    assert!(place("variable/runs").exists() && !place("xdg").exists());
    run(false, false, true);
    assert!(place("xdg/invigil/runs").exists() && !place("user").exists());
    run(false, false, false);
    assert!(place("user/.local/share/invigil/runs").exists());
}

/// What cannot be recorded does not happen: there is no more room for the journal in the middle of a run.
#[test]
fn a_full_disk_ends_the_run_and_everything_in_it() {
    for invigil in Invigil::everyone() {
        // Root gets a small disk, everybody a limit on the size of files.
        if !invigil.nobody {
            let home = invigil.home();
            std::fs::create_dir(&home).unwrap();
            let small = format!(
                "mount -t tmpfs -o size=400k none {} || exit 77; exec \"$@\"",
                home.display()
            );
            let before = ["unshare", "--mount", "sh", "-c", &small, "sh"];
            match without_room(&invigil, "disk", &before) {
                None => println!("skipped: no small disk can be mounted here"),
                Some(stderr) => assert!(stderr.contains("No space left"), "{stderr}"),
            }
        }
        let before = ["sh", "-c", "ulimit -f 600; exec \"$@\"", "sh"];
        let stderr = without_room(&invigil, "limit", &before).unwrap();
        assert!(stderr.contains("File too large"), "{stderr}");
        // What is there is whole up to where the room ended.
        let output = invigil.output(&["verify", "limit"]);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(
            output.status.success() || said.contains("cut off in the middle"),
            "{said}"
        );
        let (stdout, _) = invigil.expect(0, &["runs"]);
        assert!(stdout.contains("interrupted"), "{stdout}");
    }
}

/// Runs something that writes and detaches, with this before the command line; what was said, if it could be tried.
fn without_room(invigil: &Invigil, run: &str, before: &[&str]) -> Option<String> {
    let marked = invigil.at(&format!("marked-{run}"));
    let script = "(setsid sh -c 'while :; do sleep 0.05; done' \"$0\" &); \
                  i=0; while :; do i=$((i+1)); echo x > f$i; rm f$i; done";
    let args = [
        "run", "--status", "status", "--run-id", run, "--", "sh", "-c", script, &marked,
    ];
    let watched = invigil.command(&args);
    let output = std::process::Command::new(before[0])
        .args(&before[1..])
        .arg(watched.get_program())
        .args(watched.get_args())
        .envs(
            watched
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .current_dir(invigil.directory.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(77) || stderr.contains("unshare failed") {
        return None;
    }
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(
        stderr.contains("could not be recorded any more"),
        "{stderr}"
    );
    let status = std::fs::read_to_string(invigil.at("status")).unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["event"], "invigil_failed");
    let survivors = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| {
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(&marked)
        });
    assert_eq!(survivors.count(), 0, "{run}: somebody is alive");
    Some(stderr)
}
