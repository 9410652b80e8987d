//! What the kernel layer sees, from outside, as root and as an ordinary user.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Invigil;

/// Everything that was done to one path.
fn ops(invigil: &Invigil, run: &str, path: &str) -> Vec<Value> {
    let mut ops = invigil.all(run, "file_op");
    ops.retain(|op| op["path"] == path);
    ops
}

#[test]
fn a_hidden_write_appears_exactly_once() {
    for invigil in Invigil::everyone() {
        let tool = "cat /etc/hostname >/dev/null; echo x > hidden";
        invigil.expect(0, &["run", "--run-id", "a", "--", "sh", "-c", tool]);
        let ops = ops(&invigil, "a", &invigil.at("hidden"));
        assert_eq!(ops.len(), 1, "{ops:?}");
        assert_eq!(ops[0]["op"], "create");
        assert_eq!(ops[0]["result"], "ok");
        let flags: Vec<&str> = ops[0]["flags"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| f.as_str().unwrap())
            .collect();
        assert_eq!(flags, ["write", "create", "truncate"]);
        let shell = invigil.all("a", "process_exec");
        let shell = shell.iter().find(|exec| exec["argv"][0] == "sh").unwrap();
        assert_eq!(ops[0]["process"], shell["process"]);
        let finals = invigil.event("a", "file_final");
        assert_eq!(
            (finals["size"].as_u64(), &finals["path"]),
            (Some(2), &ops[0]["path"])
        );
    }
}

#[test]
fn what_is_detached_is_waited_for_and_seen() {
    for invigil in Invigil::everyone() {
        let script = "(setsid sh -c 'sleep 0.3; echo x > late' &)";
        let begun = Instant::now();
        invigil.expect(0, &["run", "--run-id", "a", "--", "sh", "-c", script]);
        assert!(begun.elapsed() >= Duration::from_millis(300));
        assert_eq!(ops(&invigil, "a", &invigil.at("late")).len(), 1);
        let last = invigil.events("a").pop().unwrap();
        assert_eq!(last["kind"], "run_finished");
    }
}

#[test]
fn a_thousand_short_processes_each_with_its_parent() {
    for invigil in Invigil::everyone() {
        let script = "i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done";
        invigil.expect(0, &["run", "--run-id", "a", "--", "sh", "-c", script]);
        let execs = invigil.all("a", "process_exec");
        let shell = &execs[0]["process"];
        let short: Vec<&Value> = execs
            .iter()
            .filter(|exec| exec["argv"][0] == "/bin/true")
            .collect();
        assert_eq!(short.len(), 1000);
        assert!(short.iter().all(|exec| exec["parent"] == *shell));
        let exits = invigil.all("a", "process_exited");
        assert_eq!(exits.len(), 1001);
        assert!(exits.iter().all(|exit| exit["exit_code"] == 0));
        let finished = invigil.event("a", "observer_finished");
        assert_eq!(
            (&finished["emitted"], &finished["processes"]),
            (&finished["received"], &1001.into())
        );
    }
}

#[test]
fn a_failed_open_has_the_name_of_its_error() {
    for invigil in Invigil::everyone() {
        let script = "echo x > /nonexistent-directory/file; mkdir there; mkdir there; :";
        invigil.expect(0, &["run", "--run-id", "a", "--", "sh", "-c", script]);
        let open = ops(&invigil, "a", "/nonexistent-directory/file");
        assert_eq!(open.len(), 1, "{open:?}");
        assert_eq!(open[0]["result"], "ENOENT");
        let results: Vec<Value> = ops(&invigil, "a", &invigil.at("there"))
            .iter()
            .map(|op| op["result"].clone())
            .collect();
        assert_eq!(results, ["ok", "EEXIST"]);
    }
}

#[test]
fn reads_are_seen_when_asked_for() {
    for invigil in Invigil::everyone() {
        let read = |run: &str| ops(&invigil, run, "/etc/passwd").len();
        invigil.expect(
            0,
            &["run", "-q", "--run-id", "off", "--", "cat", "/etc/passwd"],
        );
        assert_eq!(read("off"), 0);
        invigil.expect(
            0,
            &[
                "run",
                "-q",
                "--run-id",
                "on",
                "--reads",
                "on",
                "--",
                "cat",
                "/etc/passwd",
            ],
        );
        assert_eq!(read("on"), 1);
    }
}

#[test]
fn every_tier_says_which_it_is() {
    for invigil in Invigil::everyone() {
        for tier in ["notify", "ptrace", "contract_only"] {
            let args = [
                "run",
                "--run-id",
                tier,
                "--tier",
                tier,
                "--",
                "sh",
                "-c",
                "echo x > file; exit 5",
            ];
            let (_, stderr) = invigil.expect(5, &args);
            assert!(stderr.contains(tier), "{stderr}");
            let seen = ops(&invigil, tier, &invigil.at("file")).len();
            assert_eq!(seen, usize::from(tier != "contract_only"), "{tier}");
        }
        let args = [
            "run",
            "--tier",
            "ptrace",
            "--require-tier",
            "notify",
            "--",
            "true",
        ];
        let (_, stderr) = invigil.expect(125, &args);
        assert!(stderr.contains("below the required"), "{stderr}");
    }
}

#[test]
fn three_runs_of_the_same_look_the_same() {
    for invigil in Invigil::everyone() {
        let script = "mkdir -p d; echo a > d/x; mv d/x d/y; cat d/y > /dev/null; rm -r d; exit 0";
        let member = |run: &str, name: &str| {
            let archive = invigil.at(&format!("{run}.tar.gz"));
            let output = std::process::Command::new("tar")
                .args(["xzOf", &archive, name])
                .output()
                .unwrap();
            assert!(output.status.success());
            assert!(!output.stdout.is_empty());
            output.stdout
        };
        for run in ["a", "b", "c"] {
            invigil.expect(0, &["run", "-q", "--run-id", run, "--", "sh", "-c", script]);
            invigil.expect(0, &["export", run]);
        }
        for name in [
            "capability-surface.json",
            "observation-health.json",
            "correlation-report.json",
        ] {
            assert_eq!(member("a", name), member("b", name), "{name}");
            assert_eq!(member("b", name), member("c", name), "{name}");
        }
        let (stdout, _) = invigil.expect(0, &["diff", "a", "c"]);
        assert_eq!(stdout, "same\n");
        invigil.expect(
            0,
            &[
                "run",
                "-q",
                "--run-id",
                "other",
                "--",
                "sh",
                "-c",
                "echo a > elsewhere",
            ],
        );
        let (stdout, _) = invigil.expect(1, &["diff", "a", "other", "--json"]);
        assert!(stdout.contains("elsewhere"), "{stdout}");
    }
}

#[test]
fn time_is_up_for_everybody() {
    for invigil in Invigil::everyone() {
        let script = "(setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' &) ; trap '' TERM; while :; do sleep 0.1; done";
        let begun = Instant::now();
        invigil.expect(
            124,
            &[
                "run",
                "--run-id",
                "a",
                "--timeout",
                "300ms",
                "--",
                "sh",
                "-c",
                script,
            ],
        );
        assert!(begun.elapsed() < Duration::from_secs(20));
        assert_eq!(invigil.event("a", "run_finished")["stopped"], "timeout");
        let born = invigil.all("a", "process_forked").len();
        assert_eq!(
            invigil.all("a", "process_exited").len(),
            born,
            "nobody is left"
        );
        let (stdout, _) = invigil.expect(0, &["runs"]);
        assert!(stdout.contains("time-out"), "{stdout}");
    }
}

#[test]
fn output_has_a_limit_if_one_is_set() {
    for invigil in Invigil::everyone() {
        let script = "yes | head -c 3000; sleep 0.2; yes";
        let (stdout, _) = invigil.expect(
            122,
            &[
                "run",
                "--run-id",
                "a",
                "--max-output",
                "4KiB",
                "--",
                "sh",
                "-c",
                script,
            ],
        );
        assert_eq!(stdout.len(), 4096);
        assert_eq!(invigil.event("a", "run_finished")["stopped"], "budget");
        let (stdout, _) = invigil.expect(
            0,
            &[
                "run",
                "--max-output",
                "4KiB",
                "--",
                "sh",
                "-c",
                "yes | head -c 4096",
            ],
        );
        assert_eq!(stdout.len(), 4096, "the limit itself is fine");
    }
}

#[test]
fn the_status_file_says_what_the_exit_code_means() {
    let invigil = Invigil::new();
    let status = || -> Value {
        serde_json::from_str(&std::fs::read_to_string(invigil.at("status")).unwrap()).unwrap()
    };
    invigil.expect(
        124,
        &[
            "run", "-q", "--status", "status", "--", "sh", "-c", "exit 124",
        ],
    );
    assert_eq!(status()["outcome"]["exit_code"], 124);
    assert_eq!(status()["outcome"]["stopped"], Value::Null);
    invigil.expect(
        124,
        &[
            "run",
            "-q",
            "--status",
            "status",
            "--timeout",
            "100ms",
            "--",
            "sleep",
            "9",
        ],
    );
    assert_eq!(status()["outcome"]["stopped"], "timeout");
}

#[test]
fn variables_are_set_and_only_their_names_kept() {
    let invigil = Invigil::new();
    let args = [
        "run",
        "--run-id",
        "a",
        "--env",
        "GREETING=s3cret-words",
        "--",
        "sh",
        "-c",
        "echo $GREETING $INVIGIL_RUN_ID",
    ];
    let (stdout, _) = invigil.expect(0, &args);
    assert_eq!(stdout, "s3cret-words a\n");
    assert_eq!(
        invigil.event("a", "run_started")["env_keys"],
        serde_json::json!(["GREETING"])
    );
    let journal = std::fs::read_to_string(invigil.journal("a")).unwrap();
    assert!(!journal.contains("s3cret-words"));
}

#[test]
fn a_run_inside_a_run_never_hangs() {
    for invigil in Invigil::everyone() {
        let inner = invigil.at("inner");
        let binary = env!("CARGO_BIN_EXE_invigil");
        let begun = Instant::now();
        let args = [
            "run", "--run-id", "a", "--", binary, "--home", &inner, "run", "--", "sh", "-c",
            "exit 7",
        ];
        let output = invigil.output(&args);
        assert!(begun.elapsed() < Duration::from_secs(20));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(7), "{stderr}");
        let notes = invigil.all("a", "observer_note");
        assert!(
            !notes.is_empty(),
            "the second supervisor is on the record: {stderr}"
        );
        assert!(stderr.contains("contract_only"), "{stderr}");
    }
}

/// More arguments than a record holds: what there is of them is kept, and nobody says that everything was seen.
#[test]
fn arguments_that_are_cut_are_not_called_whole() {
    for invigil in Invigil::everyone() {
        let script = "exec true $(seq 100000 140000)";
        let args = ["run", "--run-id", "a", "--", "bash", "-c", script];
        let (_, stderr) = invigil.expect(0, &args);
        assert!(
            stderr.contains("more arguments than were recorded"),
            "{stderr}"
        );
        let execs = invigil.all("a", "process_exec");
        let long = execs.last().unwrap();
        assert_eq!(long["argv"][1], "100000");
        let cut = long["argv_cut_bytes"].as_u64().unwrap();
        assert!((100_000..200_000).contains(&cut), "{cut}");
    }
}
