//! Workers that are born in a nursery are what those are that were started: no more, no less, and gone when they should be.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Bench, no_process_below};

/// Waits until something is there.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn line<'a>(status: &'a str, name: &str) -> &'a str {
    let mut lines = status.lines();
    let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_default().trim()
}

/// The processes of a bench, with what the kernel says of them.
fn processes(bench: &Bench) -> Vec<(u32, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let of_bench = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let exe = fs::read_link(entry.path().join("exe")).ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        (exe == bench.program).then_some((pid, status))
    });
    of_bench.collect()
}

/// The worker of a job that sleeps, seen from outside.
fn worker(bench: &Bench, supervisor: &Child) -> u32 {
    let parent = supervisor.id().to_string();
    until("there is no worker", || {
        let all = processes(bench);
        let mut workers = all.iter().filter(|(_, status)| {
            line(status, "PPid") == parent && line(status, "TracerPid") != "0"
        });
        // It has its order: the other pipes are those of one that waits.
        workers.find_map(|(pid, _)| {
            let call = fs::read_to_string(format!("/proc/{pid}/wchan")).ok()?;
            call.contains("nanosleep").then_some(*pid)
        })
    })
}

/// The first of several jobs, so that everything is there that is made ahead.
fn sleeper(bench: &Bench) -> Child {
    let order = json!({ "arguments": { "how": "sleep" }, "repeat": 2 });
    let mut command = bench.command(order);
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// All that a process has of others, as far as the kernel tells.
fn inherited(pid: u32) -> BTreeMap<String, String> {
    let file = |name: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let status = file("status");
    let lines = [
        "Umask",
        "Uid",
        "Gid",
        "Groups",
        "Threads",
        "SigPnd",
        "ShdPnd",
        "SigBlk",
        "SigIgn",
        "SigCgt",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
        "Seccomp",
        "Seccomp_filters",
        "Cpus_allowed_list",
    ];
    let mut found: BTreeMap<String, String> = lines
        .iter()
        .map(|name| ((*name).to_owned(), line(&status, name).to_owned()))
        .collect();
    for name in ["SigBlk", "SigIgn", "SigCgt"] {
        // What is above these is the C library's own.
        let signals = found[name].clone();
        found.insert(name.to_owned(), signals[signals.len() - 8..].to_owned());
    }
    for name in ["limits", "cmdline", "cgroup", "oom_score_adj", "comm"] {
        found.insert(name.to_owned(), file(name));
    }
    let mut environ: Vec<String> = file("environ").split('\0').map(str::to_owned).collect();
    environ.sort();
    found.insert("environ".to_owned(), environ.join("\n"));
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    found.insert(
        "cwd".to_owned(),
        cwd.file_name().unwrap().to_string_lossy().into(),
    );
    // Whoever may be read and traced belongs to its user.
    let owner = fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid();
    found.insert("owner".to_owned(), owner.to_string());
    let mut descriptors = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let what = fs::read_link(entry.path()).unwrap();
        let kind = what
            .to_string_lossy()
            .split(':')
            .next()
            .unwrap_or_default()
            .to_owned();
        descriptors.push(format!("{} {kind}", entry.file_name().to_string_lossy()));
    }
    descriptors.sort();
    found.insert("fd".to_owned(), descriptors.join("\n"));
    found
}

#[test]
fn who_is_born_has_what_who_is_started_has() {
    let benches = Bench::everyone();
    for pair in benches.chunks(2) {
        let mut found = pair.iter().map(|bench| {
            let mut supervisor = sleeper(bench);
            let mut found = inherited(worker(bench, &supervisor));
            // Each has a home and a program of its own.
            let folder = bench.folder.path().to_str().unwrap();
            found
                .values_mut()
                .for_each(|value| *value = value.replace(folder, "HERE"));
            supervisor.kill().unwrap();
            supervisor.wait().unwrap();
            found
        });
        let (mut started, mut born) = (found.next().unwrap(), found.next().unwrap());
        // Who is started also has what a careless parent of the supervisor has left open. The directory is the job's.
        assert!(started.remove("fd").unwrap().contains("2 pipe"));
        let own = "0 pipe\n1 pipe\n2 pipe\n3 HERE/work";
        assert_eq!(born.remove("fd").unwrap(), own);
        assert_eq!(started, born);
    }
}

/// Where things lie in memory tells who is a copy of whom.
#[test]
fn workers_are_copies_and_know_nothing_of_each_other() {
    for bench in Bench::everyone() {
        let order = json!({ "arguments": { "how": "where" }, "repeat": 4 });
        let output = bench.command(order).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let results: Vec<Value> = said
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(results.len(), 4, "{said}");
        let data = |result: &Value| result["output"]["data"].clone();
        assert!(
            results.iter().all(|result| data(result)["before"] == 0),
            "{said}"
        );
        if bench.nursery {
            let first = data(&results[0])["stack"].clone();
            assert!(
                results.iter().all(|result| data(result)["stack"] == first),
                "{said}"
            );
        }
        bench.is_well();
    }
}

/// So many jobs were completed.
fn completed(output: &Output) -> usize {
    let said = String::from_utf8_lossy(&output.stdout);
    let done = said
        .lines()
        .filter(|line| line.contains(r#""state":"completed""#));
    done.count()
}

#[test]
fn without_a_nursery_workers_are_started() {
    for bench in Bench::everyone().into_iter().filter(|bench| bench.nursery) {
        let order =
            json!({ "arguments": { "how": "nothing" }, "repeat": 12, "kill_nursery_after": 3 });
        let output = bench.command(order).output().unwrap();
        assert_eq!(completed(&output), 12, "{output:?}");
        bench.is_well();
    }
}

/// Whoever makes the next worker waits for it a while. Who has a job does not.
#[test]
fn nobody_waits_behind_a_nursery_that_does_not_answer() {
    for bench in Bench::everyone().into_iter().filter(|bench| bench.nursery) {
        let order = json!({ "arguments": { "how": "nap" }, "repeat": 8, "stop_nursery_after": 3 });
        let output = bench.command(order).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let took: Vec<u64> = said
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|result| result["duration_ms"].as_u64().unwrap())
            .collect();
        assert_eq!(completed(&output), 8, "{output:?}");
        assert!(took.iter().all(|&ms| ms < 1500), "{took:?}");
        bench.is_well();
    }
}

#[test]
fn a_worker_that_died_waiting_gets_no_job() {
    for bench in Bench::everyone() {
        let order =
            json!({ "arguments": { "how": "nothing" }, "repeat": 6, "kill_spares_after": 3 });
        let output = bench.command(order).output().unwrap();
        assert_eq!(completed(&output), 6, "{output:?}");
        bench.is_well();
    }
}

/// What sends signals is not traced, and its orphans are looked for among the children of the supervisor. Workers that are
/// born meanwhile are none of them.
#[test]
fn who_sends_signals_leaves_workers_alone() {
    for bench in Bench::everyone().into_iter().filter(|bench| bench.nursery) {
        let mut stubborn = bench
            .program("sh".as_ref())
            .args(["-c", "trap '' TERM; echo; exec sleep 60"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0];
        let said = stubborn.stdout.as_mut().unwrap();
        said.read_exact(&mut ready).unwrap();
        let order = json!({
            "arguments": { "how": "nap" },
            "repeat": 40,
            "beside": { "capability": "kill", "arguments": { "pid": stubborn.id() } },
        });
        let output = bench.command(order).output().unwrap();
        let alive = stubborn.try_wait().unwrap().is_none();
        stubborn.kill().unwrap();
        stubborn.wait().unwrap();
        assert!(alive, "it did not take its time");
        assert_eq!(completed(&output), 41, "{output:?}");
        bench.is_well();
    }
}

#[test]
fn nobody_is_left_when_the_supervisor_is_killed() {
    for bench in Bench::everyone() {
        let mut supervisor = sleeper(&bench);
        worker(&bench, &supervisor);
        let before = processes(&bench).len();
        assert!(before >= 2 + usize::from(bench.nursery), "{before}");
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
        until("somebody is left", || {
            no_process_below(&bench.program).then_some(())
        });
    }
}

#[test]
fn a_nursery_for_one_worker_is_gone_when_it_is_there() {
    for bench in Bench::everyone().into_iter().filter(|bench| bench.nursery) {
        let order = json!({ "arguments": { "how": "sleep" } });
        let mut command = bench.command(order);
        let mut supervisor = command.stdout(Stdio::null()).spawn().unwrap();
        worker(&bench, &supervisor);
        until("it stays", || {
            let alive = |(_, status): &&(u32, String)| !line(status, "State").starts_with('Z');
            let all = processes(&bench);
            (all.iter().filter(alive).count() == 2).then_some(())
        });
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
    }
}

/// It has nothing to hide, and yet it is nobody's business: whoever could steer it would have processes without bounds.
#[test]
fn a_nursery_cannot_be_traced() {
    for bench in Bench::everyone().into_iter().filter(|bench| bench.nursery) {
        let mut supervisor = sleeper(&bench);
        worker(&bench, &supervisor);
        let parent = supervisor.id().to_string();
        let nursery = processes(&bench)
            .into_iter()
            .find(|(_, status)| line(status, "PPid") == parent && line(status, "TracerPid") == "0");
        let (pid, _) = nursery.unwrap();
        assert_eq!(fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid(), 0);
        let reads = bench
            .program("cat".as_ref())
            .arg(format!("/proc/{pid}/environ"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(reads.success(), !bench.nobody);
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
    }
}
