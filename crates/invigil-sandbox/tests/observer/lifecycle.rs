//! From the first process to the last.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::harness::{Mode, modes, open_dir, read_facts, tools, wait};

#[test]
fn a_tree_outlives_its_root_and_the_run_waits_for_it() {
    for mode in modes() {
        let script = "(setsid sh -c 'sleep 0.2; echo x > late' &)";
        let run = mode.run(&[], &["sh", "-c", script]);
        assert_eq!(run.code, 0);
        run.complete();
        assert_eq!(run.on("late").len(), 1, "{mode:?}");
        let late = run
            .facts
            .iter()
            .position(|f| f["kind"] == "file_op")
            .unwrap();
        let shell = run.of("process_forked")[0]["process"].clone();
        let ended =
            |f: &serde_json::Value| f["kind"] == "process_exited" && f["data"]["process"] == shell;
        assert!(run.facts.iter().position(ended).unwrap() < late, "{mode:?}");
        let least = Mode {
            tier: "contract_only",
            ..mode
        }
        .run(&[], &["sh", "-c", script]);
        assert!(least.work().join("late").exists(), "{mode:?}");
    }
}

#[test]
fn exit_codes_and_signals() {
    for mode in modes() {
        for (script, code) in [
            ("exit 3", 3),
            ("kill -9 $$", 137),
            ("kill -TERM $$", 143),
            ("exit 0", 0),
        ] {
            let run = mode.run(&[], &["sh", "-c", script]);
            assert_eq!(run.code, code, "{mode:?} {script}");
            run.complete();
        }
        assert_eq!(mode.run(&[], &["no-such-command"]).code, 127);
        assert_eq!(mode.run(&[], &["./no-such-command"]).code, 127);
        assert_eq!(mode.run(&[], &["/etc/passwd"]).code, 126);
    }
}

fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

#[test]
fn nobody_survives_the_supervisor() {
    let Some(traps) = &tools().traps else { return };
    for mode in modes() {
        let dir = open_dir();
        let mut command = mode.watch(dir.path(), &[]);
        command.arg(traps).args(["detached", "40"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pids: Vec<u32> = (0..3)
            .map(|_| lines.next().unwrap().unwrap().parse().unwrap())
            .collect();
        assert!(pids.iter().all(|pid| alive(*pid)), "{mode:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while pids.iter().any(|pid| alive(*pid)) {
            assert!(Instant::now() < deadline, "{mode:?}: somebody lives");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_fact_that_cannot_be_recorded_ends_the_run() {
    let Some(traps) = &tools().traps else { return };
    for mode in modes() {
        let dir = open_dir();
        let mut command = mode.watch(dir.path(), &["--fail-after", "8"]);
        command.arg(traps).args(["detached", "40"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let code = wait(&mut child, Duration::from_secs(10));
        assert_eq!(code, Some(125), "{mode:?}");
    }
}

#[test]
fn a_time_limit_kills_the_whole_tree() {
    let Some(traps) = &tools().traps else { return };
    for mode in modes() {
        let dir = open_dir();
        let mut command = mode.watch(dir.path(), &["--timeout", "1"]);
        command.arg(traps).args(["detached", "40"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(
            wait(&mut child, Duration::from_secs(15)),
            Some(125),
            "{mode:?}"
        );
        let facts = read_facts(dir.path());
        let count = |kind: &str| facts.iter().filter(|f| f["kind"] == kind).count();
        assert_eq!(count("process_forked"), count("process_exited"), "{mode:?}");
        assert_eq!(count("observer_finished"), 1, "{mode:?}");
    }
}
