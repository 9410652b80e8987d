//! What is recorded is what happened.

use crate::harness::{modes, same_as_bare, tools};

#[test]
fn a_hidden_write_appears_exactly_once() {
    for mode in modes() {
        let run = mode.run(
            &[],
            &[
                "sh",
                "-c",
                "cat /etc/passwd > /dev/null; echo stolen >> hidden",
            ],
        );
        run.complete();
        let [op] = run.on("hidden")[..] else {
            panic!("{mode:?} {:?}", run.on("hidden"))
        };
        assert_eq!(op["op"], "create", "{mode:?}");
        assert_eq!(
            op["flags"],
            serde_json::json!(["write", "append", "create"])
        );
        assert_eq!(op["result"], "ok");
        assert_eq!(op["process"], run.of("process_forked")[0]["process"]);
    }
}

#[test]
fn a_failed_open_is_recorded_with_its_error() {
    for mode in modes() {
        let run = mode.run(&[], &["sh", "-c", ": > /nonexistent/x; : > /proc/version"]);
        run.complete();
        let missing = run
            .of("file_op")
            .into_iter()
            .find(|op| op["path"] == "/nonexistent/x")
            .unwrap();
        assert_eq!(missing["result"], "ENOENT", "{mode:?}");
        assert_eq!(missing["op"], "open", "{mode:?}");
    }
}

#[test]
fn a_thousand_short_processes() {
    for mode in modes() {
        let script = "i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done";
        let run = mode.run(&[], &["sh", "-c", script]);
        run.complete();
        let shell = &run.of("process_forked")[0]["process"];
        let execs = run.of("process_exec");
        assert_eq!(execs.len(), 1001, "{mode:?}");
        assert!(
            execs[1..]
                .iter()
                .all(|exec| exec["parent"] == *shell && exec["sha256"].is_string())
        );
        assert_eq!(run.of("process_exited").len(), 1001, "{mode:?}");
    }
}

#[test]
fn programs_scripts_and_arguments() {
    for mode in modes() {
        let script = "printf '#!/bin/sh\\nexit 7\\n' > s; chmod +x s; ./s a 'b c'; exit $?";
        let run = mode.run(&[], &["sh", "-c", script]);
        run.complete();
        assert_eq!(run.code, 7, "{mode:?}");
        let execs = run.of("process_exec");
        let last = execs.last().unwrap();
        assert_eq!(
            last["requested"],
            run.work().join("s").to_str().unwrap(),
            "{mode:?}"
        );
        assert_eq!(
            last["argv"],
            serde_json::json!(["/bin/sh", "./s", "a", "b c"])
        );
        assert_eq!(last["cwd"], run.work().to_str().unwrap());
        let exited = run.of("process_exited");
        assert!(
            exited
                .iter()
                .all(|e| e["exit_code"].is_i64() && e["max_rss_kib"].as_u64().unwrap() > 0)
        );
    }
}

#[test]
fn a_script_without_an_interpreter_is_the_shells() {
    for mode in modes() {
        let dir = crate::harness::open_dir();
        let script = dir.path().join("plain");
        std::fs::write(&script, "exit 5\n").unwrap();
        let mut permissions = script.metadata().unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        std::fs::set_permissions(&script, permissions).unwrap();
        let path = script.to_str().unwrap().to_owned();
        let run = mode.run_in(dir, &[], &[&path]);
        assert_eq!(run.code, 5, "{mode:?} {}", run.output);
        assert_eq!(run.of("exec_failed")[0]["error"], "ENOEXEC", "{mode:?}");
    }
}

#[test]
fn the_network_in_all_families() {
    same_as_bare(&["network"], |run| {
        let ops: Vec<(&str, &str, &str)> = run
            .of("net_op")
            .into_iter()
            .map(|op| {
                let text = |v: &'_ serde_json::Value| v.as_str().unwrap().to_owned().leak() as &str;
                (
                    text(&op["op"]),
                    text(&op["address"]["family"]),
                    text(&op["result"]),
                )
            })
            .collect();
        let expected = [
            ("bind", "inet", "ok"),
            ("listen", "inet", "ok"),
            ("connect", "inet", "ok"),
            ("connect", "inet", "EINPROGRESS"),
            ("connect", "inet", "ECONNREFUSED"),
            ("connect", "inet", "ok"),
            ("connect", "unnamed", "ok"),
            ("send", "inet", "ok"),
        ];
        assert_eq!(ops[..8], expected, "{:?}", run.mode);
        for wanted in [
            ("connect", "inet6", "ECONNREFUSED"),
            ("bind", "unix", "ok"),
            ("listen", "unix", "ok"),
            ("connect", "unix", "ok"),
            ("connect", "unix", "ENOENT"),
            ("bind", "abstract", "ok"),
        ] {
            assert!(ops.contains(&wanted), "{:?} {wanted:?} {ops:?}", run.mode);
        }
        let unix = run
            .of("net_op")
            .into_iter()
            .find(|op| op["address"]["family"] == "unix")
            .unwrap();
        assert_eq!(
            unix["address"]["path"],
            run.work().join("sock").to_str().unwrap()
        );
    });
}

#[test]
fn reads_are_facts_when_they_are_asked_for() {
    for mode in modes() {
        let script = "cat /etc/passwd > /dev/null; cat missing";
        let quiet = mode.run(&[], &["sh", "-c", script]);
        let passwd = |run: &crate::harness::Run| {
            run.of("file_op")
                .iter()
                .filter(|op| op["path"] == "/etc/passwd")
                .count()
        };
        assert_eq!(passwd(&quiet), 0, "{mode:?}");
        let run = mode.run(&["--reads"], &["sh", "-c", script]);
        run.complete();
        assert_eq!(passwd(&run), 1, "{mode:?}");
        assert_eq!(run.on("missing")[0]["result"], "ENOENT", "{mode:?}");
        assert_eq!(run.output, quiet.output);
    }
}

#[test]
fn what_is_not_attached_is_named() {
    for mode in modes() {
        let run = mode.run(&[], &["true"]);
        let hooks = run.of("observer_started")[0]["hooks"]
            .as_array()
            .unwrap()
            .clone();
        for hook in hooks {
            assert_eq!(
                hook["attached"].as_bool().unwrap(),
                hook["why_not"].is_null(),
                "{hook}"
            );
        }
        let least = crate::harness::Mode {
            tier: "contract_only",
            ..mode
        }
        .run(&[], &["sh", "-c", "exit 3"]);
        assert_eq!(least.code, 3);
        let started = &least.of("observer_started")[0];
        assert_eq!(started["tier"], "contract_only");
        assert!(
            started["hooks"]
                .as_array()
                .unwrap()
                .iter()
                .all(|hook| hook["attached"] == false)
        );
    }
}

#[test]
fn the_gate_is_obeyed() {
    for mode in modes() {
        let script = "echo x > allowed; echo x > forbidden; mkdir forbidden-dir; /bin/ls-forbidden";
        let run = mode.run(&["--deny", "forbidden"], &["sh", "-c", script]);
        run.complete();
        assert!(run.work().join("allowed").exists());
        assert!(!run.work().join("forbidden").exists(), "{mode:?}");
        assert!(!run.work().join("forbidden-dir").exists(), "{mode:?}");
        let denied = run.of("access_denied");
        assert!(denied.len() >= 2, "{mode:?} {denied:?}");
        assert_eq!(denied[0]["rule"], "no forbidden");
        let exec = mode.run(&["--deny", "bin/mkdir"], &["sh", "-c", "mkdir x"]);
        assert_eq!(exec.of("access_denied")[0]["what"], "exec", "{mode:?}");
        assert!(!exec.work().join("x").exists(), "{mode:?}");
        if let Some(traps) = &tools().traps {
            let net = mode.run(
                &["--deny", "127.0.0.1"],
                &[traps.to_str().unwrap(), "network"],
            );
            assert!(
                net.output.starts_with("bind EACCES"),
                "{mode:?} {}",
                net.output
            );
        }
    }
}
