//! Programs that use too much, with a cgroup and without one.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Mode, Run, modes, tools};

const SIGXFSZ: i32 = 25;
const MEMORY: &str = "134217728";

/// How a run in this mode is limited in memory and processor time.
fn enforcer(run: &Run) -> String {
    let started = run.of("observer_started")[0];
    started["limits"][0]["by"].as_str().unwrap().to_owned()
}

fn fixture() -> Option<&'static str> {
    tools().confined.as_deref().and_then(Path::to_str)
}

fn too_much(mode: Mode, limit: &[&str], what: &str, program: &[&str]) -> Run {
    let begun = Instant::now();
    let run = mode.run(limit, program);
    assert_eq!(run.code, 125, "{mode:?} {}", run.output);
    assert!(
        run.output.contains(&format!("what: {what}")),
        "{mode:?} {}",
        run.output
    );
    assert!(begun.elapsed() < Duration::from_secs(20), "{mode:?}");
    run.complete();
    assert!(run.notes().contains(&"tree_killed"), "{mode:?}");
    run
}

fn no_cgroup_is_left() {
    let mine = std::process::id();
    for controller in std::fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten()
    {
        let groups = std::fs::read_dir(controller.path())
            .into_iter()
            .flatten()
            .flatten();
        for group in groups {
            let name = group.file_name().to_string_lossy().into_owned();
            // Others may be at work; those of dead supervisors are nobody's.
            let owner = name
                .strip_prefix("invigil-")
                .and_then(|rest| rest.split('-').next());
            let alive = owner.is_none_or(|pid| Path::new("/proc").join(pid).exists());
            assert!(alive, "{name} was left behind by {mine}");
        }
    }
}

#[test]
fn memory() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        for hungry in ["hog", "hogs"] {
            let run = too_much(mode, &["--memory", MEMORY], "Memory", &[fixture, hungry]);
            let by = enforcer(&run);
            assert!(["cgroup", "sampled"].contains(&by.as_str()), "{by}");
            let hooks = run.of("observer_started")[0]["hooks"].as_array().unwrap();
            let hook = hooks.iter().find(|hook| hook["name"] == "cgroup").unwrap();
            assert_eq!(hook["attached"], by == "cgroup", "{mode:?} {hook}");
        }
    }
    no_cgroup_is_left();
}

/// What processes share is not counted twice.
#[test]
fn shared_memory_counts_once() {
    for mode in modes() {
        let script = "import os, time
data = bytearray(60 << 20)
for i in range(4):
    if not os.fork():
        time.sleep(0.3)
        os._exit(0)
for i in range(4): os.wait()
print('done')";
        let run = mode.run(&["--memory", MEMORY], &["python3", "-c", script]);
        assert_eq!(run.output, "done\n", "{mode:?}");
    }
}

#[test]
fn processor_time() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        for busy in ["burn", "burns"] {
            too_much(mode, &["--cpu-ms", "400"], "Cpu", &[fixture, busy]);
        }
    }
    no_cgroup_is_left();
}

#[test]
fn a_fork_bomb() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        let run = too_much(
            mode,
            &["--processes", "64"],
            "Processes",
            &[fixture, "bomb"],
        );
        let born = run.of("process_forked").len();
        // Those who were being born when it was noticed, and have not run.
        assert!((65..=200).contains(&born), "{mode:?} {born}");
    }
    no_cgroup_is_left();
}

/// Where nobody hears of births, only as many are possible as can be seen. If that fails, the outer limit is there.
#[test]
fn a_fork_bomb_in_the_least_tier() {
    let Some(fixture) = fixture() else { return };
    let (root, tier) = (false, "contract_only");
    let dir = crate::harness::open_dir();
    let watch = Mode { root, tier }.watch(dir.path(), &["--processes", "64"]);
    let mut command = Mode { root, tier }.command("prlimit");
    let unprivileged = watch.get_args().skip_while(|arg| *arg != "--").skip(1);
    command.args(["--nproc=600", "--"]);
    match watch.get_program() == "setpriv" {
        true => command.args(unprivileged),
        false => command.arg(watch.get_program()).args(watch.get_args()),
    };
    command.args([fixture, "bomb"]).current_dir(dir.path());
    let (code, output) = crate::harness::finish(command);
    assert_eq!(code, 125, "{output}");
    assert!(output.contains("what: Processes"), "{output}");
}

#[test]
fn a_large_file() {
    let Some(fixture) = fixture() else { return };
    for mode in modes() {
        let limit = ["--file-size", "100000"];
        let run = mode.run(&limit, &[fixture, "fill", "full"]);
        assert_eq!(run.code, 128 + SIGXFSZ, "{mode:?} {}", run.output);
        assert_eq!(run.work().join("full").metadata().unwrap().len(), 100_000);
        let script = format!("trap '' XFSZ; exec {fixture} fill full");
        let run = mode.run(&limit, &["sh", "-c", &script]);
        assert_eq!(run.output, "write EFBIG\nextend EFBIG\n", "{mode:?}");
        assert_eq!(run.work().join("full").metadata().unwrap().len(), 100_000);
    }
}

/// What stays below its limits does not notice them.
#[test]
fn enough_for_everybody() {
    for mode in modes() {
        let limits = [
            "--memory",
            MEMORY,
            "--processes",
            "8",
            "--cpu-ms",
            "20000",
            "--file-size",
            "1000000",
        ];
        let script = "for i in 1 2 3 4 5 6; do (echo $i > f$i) & done; wait; cat f?";
        let run = mode.run(&limits, &["sh", "-c", script]);
        assert_eq!(run.output, "1\n2\n3\n4\n5\n6\n", "{mode:?}");
        let started = run.of("observer_started")[0];
        assert_eq!(started["limits"].as_array().unwrap().len(), 4);
        run.complete();
    }
    no_cgroup_is_left();
}

/// A supervisor that is killed cannot clean up; the next one does.
#[test]
fn what_a_killed_supervisor_leaves() {
    let Some(fixture) = fixture() else { return };
    for mode in modes().into_iter().filter(|mode| mode.tier == "notify") {
        let dir = crate::harness::open_dir();
        let mut command = mode.watch(dir.path(), &["--memory", MEMORY]);
        let mut child = command.args([fixture, "burn"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        child.kill().unwrap();
        child.wait().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        mode.run(&["--memory", MEMORY], &["true"]);
        no_cgroup_is_left();
    }
}
