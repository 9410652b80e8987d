//! Jobs that mean harm: each is carried out by the example `hands`, in processes of its own, as root and as an ordinary
//! user, by workers that were started and by workers that were born in a nursery, and nothing but the job itself may suffer.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it left out"
)]

mod nursery;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use invigil_journal::{Expected, JobFilter, JobState, Jobs, Store, verify};
use invigil_schema::{Event, JobEnd};
use serde_json::{Value, json};
use tempfile::TempDir;

const NOBODY: u32 = 65534;

/// A store and a directory to work in, for one user.
struct Bench {
    folder: TempDir,
    program: PathBuf,
    nobody: bool,
    /// Whether workers are born, and not started.
    nursery: bool,
}

impl Bench {
    /// Both users, both ways.
    fn everyone() -> Vec<Bench> {
        let root = rustix::process::getuid().is_root();
        let setpriv = Command::new("setpriv").arg("--version").output().is_ok();
        if !(root && setpriv) {
            println!("only as one user: no root, or no setpriv");
        }
        let nobody = [false, true]
            .into_iter()
            .take(1 + usize::from(root && setpriv));
        nobody
            .flat_map(|nobody| [false, true].map(|nursery| Bench::new(nobody, nursery)))
            .collect()
    }

    fn new(nobody: bool, nursery: bool) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        // The build directory may be closed to others.
        let program = folder.path().join("hands");
        fs::copy(hands(), &program).unwrap();
        if nobody {
            for path in [folder.path().to_owned(), folder.path().join("work")] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        Bench {
            folder,
            program,
            nobody,
            nursery,
        }
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn store(&self) -> Store {
        Store::new(self.folder.path().join("home"))
    }

    /// A program as the user.
    fn program(&self, program: &Path) -> Command {
        match self.nobody {
            false => Command::new(program),
            true => {
                let mut command = Command::new("setpriv");
                let id = NOBODY.to_string();
                command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
                command.arg(program);
                command
            }
        }
    }

    fn command(&self, order: Value) -> Command {
        let mut command = self.program(&self.program);
        let mut whole = json!({
            "home": self.folder.path().join("home"),
            "dir": self.work(),
            "capability": "harm",
            "nursery": self.nursery,
        });
        whole
            .as_object_mut()
            .unwrap()
            .extend(order.as_object().unwrap().clone());
        command
            .arg(whole.to_string())
            .env("HOME", self.folder.path());
        command
    }

    /// One job, and how long it took.
    fn exec(&self, order: Value) -> (Value, Duration) {
        let begun = Instant::now();
        let output = self.command(order.clone()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{order}: {said}{error}");
        let line = said
            .lines()
            .last()
            .unwrap_or_else(|| panic!("{order}: {error}"));
        (serde_json::from_str(line).unwrap(), begun.elapsed())
    }

    fn harm(&self, arguments: Value) -> (Value, Duration) {
        self.exec(json!({ "arguments": arguments }))
    }

    fn events(&self) -> Vec<Event> {
        let mut reader = self
            .store()
            .jobs_so_far()
            .unwrap()
            .read(0)
            .unwrap()
            .unwrap();
        let mut events = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            events.push(record.envelope().unwrap().event());
        }
        events
    }

    /// Afterwards everything is well: the journal verifies, each job has one end, and the next one is carried out.
    fn is_well(&self) {
        let (result, _) = self.harm(json!({ "how": "nothing" }));
        assert_eq!(result["state"], "completed", "{result}");
        let run = self.store().jobs_so_far().unwrap();
        verify(run.storage(), &Expected::default()).unwrap();
        let mut open = Vec::new();
        for event in self.events() {
            match &event {
                Event::JobStarted(started) => open.push(started.job_id.clone()),
                _ => {
                    if let Some(end) = end(&event) {
                        let at = open.iter().position(|id| *id == end.job_id);
                        open.remove(at.unwrap_or_else(|| panic!("{event:?} ends nothing")));
                    }
                }
            }
        }
        assert_eq!(open, []);
        assert!(no_process_below(&self.program), "somebody is left");
    }
}

fn end(event: &Event) -> Option<&JobEnd> {
    match event {
        Event::JobCompleted(job) => Some(&job.end),
        Event::JobFailed(job) => Some(&job.end),
        Event::JobDenied(job) => Some(&job.end),
        Event::JobTimedOut(job) => Some(&job.end),
        Event::JobCancelled(job) => Some(&job.end),
        _ => None,
    }
}

/// The example, which cargo builds before the tests.
fn hands() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    profile.join("examples/hands")
}

fn no_process_below(program: &Path) -> bool {
    let runs =
        |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    let entries = fs::read_dir("/proc").unwrap();
    !entries
        .flatten()
        .any(|entry| entry.file_name().to_str().is_some_and(runs))
}

fn message(result: &Value) -> &str {
    result["output"]["message"].as_str().unwrap_or_default()
}

#[test]
fn a_job_is_on_record_before_and_after() {
    for bench in Bench::everyone() {
        let (result, _) = bench.harm(json!({ "how": "nothing" }));
        assert_eq!(result["success"], true, "{result}");
        assert_eq!(result["output"]["data"]["harmed"], true);
        let events = bench.events();
        let [
            _,
            Event::JobStarted(started),
            Event::JobCompleted(completed),
        ] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(started.job_id, completed.end.job_id);
        assert_eq!(started.arguments["how"], "nothing");
        assert_eq!(completed.end.before.as_ref(), Some(&started.before));
        let (before, after) = (&started.before, completed.end.after.as_ref().unwrap());
        assert!(after.telemetry.uptime_ms >= before.telemetry.uptime_ms);
        assert_ne!(before, after);
        assert_eq!(result["seq"], 2);
        bench.is_well();
    }
}

#[test]
fn a_panic_is_a_failure() {
    for bench in Bench::everyone() {
        let (result, _) = bench.harm(json!({ "how": "panic" }));
        assert_eq!(result["state"], "failed");
        assert!(
            message(&result)
                .starts_with("Execution failed: the capability panicked: it was asked for")
        );
        bench.is_well();
    }
}

#[test]
fn a_deadline_is_a_deadline() {
    for bench in Bench::everyone() {
        for how in ["loop", "sleep", "flood"] {
            let (result, took) = bench.harm(json!({ "how": how, "timeout_ms": 1000 }));
            let expected = match how {
                // What cannot be understood is not listened to for long.
                "flood" => "failed",
                _ => "timed_out",
            };
            assert_eq!(result["state"], expected, "{result}");
            assert!(took < Duration::from_millis(2500), "{how}: {took:?}");
            let ran = result["duration_ms"].as_u64().unwrap();
            assert!(ran < 1500, "{how}: {ran} ms");
        }
        bench.is_well();
    }
}

#[test]
fn who_eats_all_memory_is_killed_alone() {
    for bench in Bench::everyone() {
        let order = json!({ "memory": 256 << 20, "arguments": { "how": "eat" } });
        let (result, _) = bench.exec(order);
        assert_eq!(result["state"], "failed");
        assert!(message(&result).contains("oom_killed"), "{result}");
        bench.is_well();
    }
}

#[test]
fn a_bomb_of_processes_is_stopped() {
    for bench in Bench::everyone() {
        let order = json!({ "processes": 20, "arguments": { "how": "fork", "timeout_ms": 5000 } });
        let (result, _) = bench.exec(order);
        assert_eq!(result["state"], "failed");
        assert!(message(&result).contains("processes"), "{result}");
        // What starts no programs has little use for processes.
        assert!(result["spawned"].as_array().unwrap().len() < 3, "{result}");
        bench.is_well();
    }
}

#[test]
fn a_file_without_end_has_one() {
    for bench in Bench::everyone() {
        let arguments = json!({ "how": "fill", "to": "big", "writes": true });
        let (result, _) = bench.exec(json!({ "file_size": 1 << 20, "arguments": arguments }));
        assert_eq!(result["state"], "failed", "{result}");
        assert!(fs::metadata(bench.work().join("big")).unwrap().size() <= 1 << 20);
        bench.is_well();
    }
}

#[test]
fn who_leaves_or_talks_nonsense_has_failed() {
    for bench in Bench::everyone() {
        for how in ["exit", "nonsense"] {
            let (result, took) = bench.harm(json!({ "how": how }));
            assert_eq!(result["state"], "failed", "{result}");
            assert!(took < Duration::from_secs(5), "{how}: {took:?}");
        }
        bench.is_well();
    }
}

#[test]
fn nothing_beyond_the_bounds() {
    for bench in Bench::everyone() {
        fs::write(bench.folder.path().join("secret"), "x").unwrap();
        drop(bench.harm(json!({ "how": "nothing" })));
        let journal = bench.folder.path().join("home/jobs/journal.ndjson");
        let cases = [
            ("read", "/etc/passwd"),
            ("read", "../secret"),
            ("read", journal.to_str().unwrap()),
            ("write", "made"),
            ("write", "../made"),
            ("connect", "127.0.0.1:9"),
            ("run", "/bin/true"),
        ];
        for (how, to) in cases {
            let (result, _) = bench.harm(json!({ "how": how, "to": to }));
            assert_eq!(result["state"], "denied", "{how} {to}: {result}");
            assert!(message(&result).starts_with("Denied: "), "{result}");
            let events = bench.events();
            let Some(Event::JobDenied(denied)) = events.last() else {
                panic!("{events:?}")
            };
            assert!(!denied.end.refused.is_empty());
        }
        assert!(!bench.work().join("made").exists());
        assert!(!bench.folder.path().join("made").exists());
        bench.is_well();
    }
}

#[test]
fn a_dry_run_cannot_change_anything() {
    for bench in Bench::everyone() {
        let arguments = json!({ "how": "write", "to": "made", "writes": true });
        let (result, _) = bench.exec(json!({ "dry_run": true, "arguments": arguments.clone() }));
        assert_eq!(result["state"], "denied", "{result}");
        assert!(!bench.work().join("made").exists());
        let (result, _) = bench.exec(json!({ "arguments": arguments }));
        assert_eq!(result["state"], "completed", "{result}");
        assert!(bench.work().join("made").exists());
        // A process of the same user, which a signal would reach.
        let mut other = bench.program(Path::new("sleep")).arg("30").spawn().unwrap();
        let to = other.id().to_string();
        let arguments = json!({ "how": "kill", "to": to, "signals": true });
        let (result, _) = bench.exec(json!({ "dry_run": true, "arguments": arguments.clone() }));
        assert_eq!(result["success"], false, "{result}");
        assert!(other.try_wait().unwrap().is_none());
        let (result, _) = bench.exec(json!({ "arguments": arguments }));
        assert_eq!(result["state"], "completed", "{result}");
        assert!(!other.wait().unwrap().success());
        bench.is_well();
    }
}

#[test]
fn a_policy_is_stacked_upon_the_bounds() {
    for bench in Bench::everyone() {
        fs::write(bench.work().join("key.pem"), "x").unwrap();
        let policy =
            "version = 1\n[files.read]\ndeny = [{ rule = \"**/*.pem\", reason = \"keys\" }]\n";
        let order = |to: &str, policy: Option<&str>| json!({ "arguments": { "how": "read", "to": to }, "policy": policy });
        assert_eq!(bench.exec(order("key.pem", None)).0["state"], "completed");
        let (result, _) = bench.exec(order("key.pem", Some(policy)));
        assert_eq!(result["state"], "denied");
        assert!(message(&result).contains("test.toml:3"), "{result}");
        let tool = "version = 1\n[tools]\ndeny = [\"harm\"]\n";
        let (result, _) = bench.exec(order("key.pem", Some(tool)));
        assert_eq!(result["state"], "denied");
        assert!(message(&result).contains("test.toml:3"), "{result}");
        bench.is_well();
    }
}

#[test]
fn only_some_variables_reach_a_job() {
    for bench in Bench::everyone() {
        let order = json!({ "arguments": { "how": "env" } });
        let output = bench
            .command(order)
            .env("AWS_SECRET_ACCESS_KEY", "x")
            .output()
            .unwrap();
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let names = result["output"]["data"]["names"].as_array().unwrap();
        assert!(names.contains(&json!("PATH")), "{result}");
        assert!(!names.contains(&json!("AWS_SECRET_ACCESS_KEY")), "{result}");
    }
}

#[test]
fn blobs_of_others_are_not_given_out() {
    for bench in Bench::everyone() {
        drop(bench.harm(json!({ "how": "nothing" })));
        let blob = bench
            .store()
            .blobs()
            .unwrap()
            .put(b"of another job")
            .unwrap();
        if bench.nobody {
            let blobs = bench.folder.path().join("home/blobs");
            for path in walk(&blobs) {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        let (result, _) = bench.harm(json!({ "how": "fetch", "to": blob.to_string() }));
        assert_eq!(result["state"], "failed", "{result}");
        assert!(message(&result).contains("has not kept it"), "{result}");
    }
}

fn walk(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap().flatten() {
            all.extend(walk(&entry.path()));
        }
    }
    all
}

#[test]
fn wrong_arguments_name_the_field() {
    for bench in Bench::everyone() {
        for (arguments, field) in [
            (json!({}), "how"),
            (json!({ "how": "" }), "how"),
            (json!({ "how": 7 }), "how"),
            (json!({ "how": "nothing", "bad": 1 }), "bad"),
            (json!({ "how": "nothing", "timeout_ms": -1 }), "timeout_ms"),
        ] {
            let (result, _) = bench.harm(arguments);
            assert_eq!(result["state"], "invalid", "{result}");
            assert!(
                message(&result).starts_with("Validation failed: "),
                "{result}"
            );
            assert!(message(&result).contains(field), "{result}");
        }
        let (result, _) = bench.exec(json!({ "capability": "harn", "arguments": {} }));
        assert!(
            result["refused"]
                .as_str()
                .unwrap()
                .contains("did you mean `harm`"),
            "{result}"
        );
        bench.is_well();
    }
}

#[test]
fn a_busy_machine_is_left_alone() {
    for bench in Bench::everyone() {
        let order =
            |percent: f64| json!({ "arguments": { "how": "nothing" }, "memory_percent": percent });
        let (result, _) = bench.exec(order(0.01));
        let why = result["refused"].as_str().unwrap();
        assert!(
            why.contains("memory") && why.contains("past 0.01 %"),
            "{why}"
        );
        let events = bench.events();
        assert!(
            matches!(&events[..], [_, Event::JobRefused(refused)] if refused.why.contains("memory"))
        );
        assert_eq!(bench.exec(order(99.9)).0["state"], "completed");
        bench.is_well();
    }
}

#[test]
fn a_cancelled_job_is_gone_at_once() {
    for bench in Bench::everyone() {
        let order = json!({ "arguments": { "how": "sleep" }, "cancel_after_ms": 300 });
        let (result, took) = bench.exec(order);
        assert_eq!(result["state"], "cancelled");
        assert!(took < Duration::from_secs(3), "{took:?}");
        bench.is_well();
    }
}

/// Whoever dies in the middle leaves a job without an end; it gets exactly one, and those of the living get none.
#[test]
fn the_dead_are_found_and_the_living_left_alone() {
    for bench in Bench::everyone() {
        let order = json!({ "arguments": { "how": "sleep" } });
        let start = || {
            let mut command = bench.command(order.clone());
            command.stdout(Stdio::null()).spawn().unwrap()
        };
        let (mut dead, mut living) = (start(), start());
        let open = JobFilter {
            state: Some(JobState::Open),
            ..JobFilter::default()
        };
        let begun = Instant::now();
        while bench.store().jobs_so_far().is_none()
            || Jobs::refreshed(&bench.store())
                .unwrap()
                .jobs(&open)
                .unwrap()
                .len()
                < 2
        {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "they do not start"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        dead.kill().unwrap();
        dead.wait().unwrap();
        let clock = std::sync::Arc::new(invigil_journal::SystemClock);
        let recovered =
            invigil_engine::recover(&bench.store(), clock.clone(), "test", bench.folder.path())
                .unwrap();
        assert_eq!(recovered.len(), 1);
        let again =
            invigil_engine::recover(&bench.store(), clock, "test", bench.folder.path()).unwrap();
        assert_eq!(again, []);
        let failed: Vec<_> = bench
            .events()
            .into_iter()
            .filter_map(|event| match event {
                Event::JobFailed(failed) => Some(failed),
                _ => None,
            })
            .collect();
        assert!(matches!(&failed[..], [one] if one.recovered && one.end.job_id == recovered[0]));
        let jobs = Jobs::refreshed(&bench.store()).unwrap();
        assert_eq!(jobs.jobs(&open).unwrap().len(), 1);
        living.kill().unwrap();
        living.wait().unwrap();
    }
}

/// What a policy opens is open as far as it says, and no further.
#[test]
fn what_a_policy_lets_be_read_is_not_written() {
    for bench in Bench::everyone() {
        let other = bench.folder.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "x").unwrap();
        if bench.nobody {
            walk(&other)
                .into_iter()
                .for_each(|path| chown(path, Some(NOBODY), Some(NOBODY)).unwrap());
        }
        let other = other.canonicalize().unwrap();
        let rule = |section: &str| {
            let tree = other.join("**");
            format!(
                "[files.{section}]\nallow = [{:?}]\n",
                tree.to_str().unwrap()
            )
        };
        let reads = format!("version = 1\n{}", rule("read"));
        let both = format!("{reads}{}", rule("write"));
        let exec = |capability: &str, arguments: Value, policy: &str| {
            let order =
                json!({ "capability": capability, "arguments": arguments, "policy": policy });
            bench.exec(order).0["state"].clone()
        };
        let read = json!({ "path": other.join("file") });
        let write = json!({ "path": other.join("file"), "content": "y" });
        let command = format!("echo y > {}/file", other.display());
        assert_eq!(exec("file_read", read.clone(), "version = 1\n"), "denied");
        assert_eq!(exec("file_read", read, &reads), "completed");
        assert_eq!(exec("file_write", write.clone(), &reads), "denied");
        let shell = json!({ "command": command });
        assert_eq!(exec("shell", shell, &reads), "failed");
        assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "x");
        assert_eq!(exec("file_write", write, &both), "completed");
        assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "y");
        bench.is_well();
    }
}
