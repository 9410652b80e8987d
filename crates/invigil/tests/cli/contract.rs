//! Contracts on the command line: what is wrong with them, what their checks say, and what that means for a run.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Invigil;
use super::repos::put;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Runs a contract in the directory of the test; the results.
fn results(invigil: &Invigil, code: i32, options: &[&str], checks: &str) -> Vec<Value> {
    put(invigil, "c.json", &format!("{{\"checks\": [{checks}]}}"));
    let args = [&["contract", "run", "c.json", "--json"], options].concat();
    let (out, _) = invigil.expect(code, &args);
    json(&out)["checks"].as_array().unwrap().clone()
}

#[test]
fn everything_that_is_wrong_is_told_with_its_place() {
    let invigil = Invigil::new();
    let bad = "[[checks]]\nname = \"\"\ncommand = \"rustc --version\"\n";
    put(&invigil, "c.toml", bad);
    let (out, _) = invigil.expect(1, &["contract", "check", "c.toml"]);
    assert!(out.contains("c.toml:2:8: check 1: empty name"), "{out}");
    assert!(
        out.contains("c.toml:3:11: ") && out.contains("toolchain-only no-op"),
        "{out}"
    );
    let (out, _) = invigil.expect(1, &["contract", "check", "c.toml", "--json"]);
    assert_eq!(json(&out)["problems"].as_array().unwrap().len(), 2);
    put(
        &invigil,
        "c.toml",
        &bad.replace("\"\"", "\"a\"")
            .replace("rustc --version", "true"),
    );
    let (out, _) = invigil.expect(0, &["contract", "check", "c.toml"]);
    assert!(out.contains("- a: `true` (expects exit 0)"), "{out}");
    let (_, err) = invigil.expect(125, &["run", "--contract", "missing.toml", "--", "true"]);
    assert!(err.contains("missing.toml"), "{err}");
}

#[test]
fn every_check_runs_and_each_says_what_it_found() {
    for invigil in Invigil::everyone() {
        let found = results(
            &invigil,
            120,
            &[],
            r#"{"name": "a", "command": "echo one; echo two >&2; exit 0", "output_contains": "one\ntwo"},
               {"name": "b", "command": "echo sorry; exit 3"},
               {"name": "c", "command": "echo x; seq 20000", "output_contains": "x\n1\n"},
               {"name": "d", "command": "echo fine", "output_contains": "missing"},
               {"name": "e", "command": "echo no; exit 4", "expect_exit_zero": false, "output_contains": "no"}"#,
        );
        let passed: Vec<bool> = found.iter().map(|check| check["passed"] == true).collect();
        assert_eq!(passed, [true, false, true, false, true], "{found:?}");
        assert_eq!(found[1]["exit_code"], 3);
        assert_eq!(found[1]["tail"], "sorry\n");
        assert_eq!(found[3]["exit_code"], 0);
        let tail = found[2]["tail"].as_str().unwrap();
        assert!(
            tail.len() == 4096 && tail.ends_with("20000\n"),
            "{}",
            tail.len()
        );
        let blob = invigil
            .home()
            .join("blobs")
            .join(found[2]["output"].as_str().unwrap());
        let whole = fs::read_to_string(blob).unwrap();
        assert!(whole.starts_with("x\n1\n") && whole.ends_with("20000\n"));
        // Each is a run with all of its facts.
        let run = found[1]["run"].as_str().unwrap();
        assert_eq!(invigil.event(run, "run_finished")["exit_code"], 3);
    }
}

#[test]
fn no_check_can_hang() {
    for invigil in Invigil::everyone() {
        let begun = Instant::now();
        let found = results(
            &invigil,
            120,
            &[],
            r#"{"name": "slow", "command": "echo begun; sleep 301 & trap '' TERM; sleep 302", "timeout_secs": 1},
               {"name": "left", "command": "(setsid sleep 303 &) ; echo ok"},
               {"name": "next", "command": "! pgrep -f 'sleep 30[123]'"}"#,
        );
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(found[0]["timed_out"], true);
        assert_eq!(found[0]["exit_code"], Value::Null);
        assert_eq!(found[0]["tail"], "begun\n");
        assert_eq!(found[1]["passed"], true, "{found:?}");
        let sleeping = std::process::Command::new("pgrep")
            .args(["-fx", "sleep 30[123]"])
            .output();
        if let Ok(sleeping) = sleeping {
            assert_eq!(String::from_utf8_lossy(&sleeping.stdout), "", "{found:?}");
        }
    }
}

#[test]
fn a_check_can_do_no_more_than_the_run() {
    for invigil in Invigil::everyone() {
        put(
            &invigil,
            "rules.toml",
            "version = 1\n[[exec]]\nprogram = \"git\"\nargs = [\"push\", \"..\"]\ndecision = \"deny\"\n",
        );
        let found = results(
            &invigil,
            120,
            &["--policy", "rules.toml"],
            r#"{"name": "pushes", "command": "git push origin"},
               {"name": "gone", "command": "true", "timeout_secs": 9}"#,
        );
        assert_eq!(found[0]["passed"], false);
        assert_eq!(found[0]["exit_code"], Value::Null, "{found:?}");
        let tail = found[0]["tail"].as_str().unwrap();
        assert!(tail.starts_with("check failed to run: "), "{tail}");
        assert_eq!(found[1]["passed"], true);
    }
}

#[test]
fn a_run_is_judged_by_what_it_leaves() {
    for invigil in Invigil::everyone() {
        put(
            &invigil,
            "c.toml",
            "checks = [{ name = \"made\", command = \"test -f made\" }]",
        );
        let run = |code, id: &str, script: &str| {
            let args = [
                "run",
                "--run-id",
                id,
                "--json",
                "--contract",
                "c.toml",
                "--",
                "sh",
                "-c",
                script,
            ];
            let (out, err) = invigil.expect(code, &args);
            (json(&out), err)
        };
        let (claimed, err) = run(120, "claims", "echo I am done");
        assert_eq!(claimed["contract"]["met"], false);
        assert_eq!(claimed["outcome"]["exit_code"], 0);
        assert!(
            err.contains("contract not met") && err.contains("0 of 1"),
            "{err}"
        );
        let (done, _) = run(0, "does", "touch made");
        assert_eq!(done["contract"]["met"], true);
        assert_eq!(done["contract"]["baseline"][0]["passed"], false);
        // Green from the beginning; and the command's own code is kept.
        let (nothing, err) = run(7, "late", "exit 7");
        assert_eq!(nothing["contract"]["proves_nothing"], true);
        assert!(err.contains("proves nothing"), "{err}");
        // What could not be started is not judged.
        let args = [
            "run",
            "--json",
            "--contract",
            "c.toml",
            "--",
            "/nonexistent/x",
        ];
        let (out, _) = invigil.expect(127, &args);
        assert!(json(&out)["contract"].is_null());
        // All of it is in the journal of the run, and that is still whole.
        let checks = invigil.all("does", "check_completed");
        let stages: Vec<&str> = checks
            .iter()
            .map(|check| check["stage"].as_str().unwrap())
            .collect();
        assert_eq!(stages, ["baseline", "verify"]);
        invigil.expect(0, &["verify", "does"]);
        invigil.expect(0, &["show", "does", "--events"]);
        // Whoever changes what is checked by is found out.
        fs::create_dir(invigil.directory.path().join("tests")).unwrap();
        super::repos::own(&invigil, &invigil.directory.path().join("tests"));
        let (edited, err) = run(0, "edits", "echo x > tests/a.py");
        assert_eq!(edited["contract"]["edited_checks"][0], "tests/a.py");
        assert!(err.contains("tests/a.py"), "{err}");
    }
}
