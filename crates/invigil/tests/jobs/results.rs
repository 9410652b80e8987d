//! What a job says of itself, to whoever asked and in the journal; and what is on record before it has any effect.

use std::collections::BTreeSet;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::world::{World, data, fed, id, message, none_is_left, signal, unique_seconds, until};

#[test]
fn a_result_has_everything_and_the_journal_too() {
    for world in World::everyone() {
        world.write("a", "x");
        let result = world.exec(0, "file_read", json!({ "path": "a" }));
        assert!(id(&result).starts_with("job_"));
        assert_eq!(result["capability"], "file_read");
        assert_eq!(result["spawned"], json!([]));
        for moment in ["before", "after"] {
            let machine = &result[moment]["telemetry"];
            assert!(machine["memory"]["total_bytes"].as_u64().unwrap() > 0);
            assert!(machine["cpu"]["count"].is_u64() || machine["cpu"].is_object());
            assert!(result[moment]["processes"].is_object());
        }
        let uptime = |moment: &str| result[moment]["telemetry"]["uptime_ms"].as_u64().unwrap();
        assert!(uptime("before") < uptime("after"));
        assert_ne!(result["before"], result["after"]);
        let records = world.records();
        let [_, started, completed] = &records[..] else {
            panic!("{records:#?}")
        };
        assert_eq!(
            (&started["kind"], &completed["kind"]),
            (&json!("job_started"), &json!("job_completed"))
        );
        assert_eq!(completed["seq"], result["seq"]);
        assert_eq!(started["data"]["arguments"], json!({ "path": "a" }));
        assert_eq!(started["data"]["before"], result["before"]);
        let end = &completed["data"]["end"];
        assert_eq!(
            (&end["before"], &end["after"]),
            (&result["before"], &result["after"])
        );
        assert_eq!(completed["data"]["output"]["data"], *data(&result));
        let result = world.exec(1, "file_read", json!({ "path": "no" }));
        assert!(
            message(&result).starts_with("Execution failed: "),
            "{result}"
        );
        assert_eq!(world.all("job_failed")[0]["error"], message(&result));
        let result = world.exec(125, "file_read", json!({}));
        assert!(
            message(&result).starts_with("Validation failed: "),
            "{result}"
        );
        world.is_well();
    }
}

#[test]
fn people_get_data_and_a_line() {
    for world in World::everyone() {
        world.write("a", "x");
        let (stdout, stderr) = world.expect(0, &["exec", "file_read", r#"{"path": "a"}"#]);
        assert!(stdout.contains("\"content\": \"x\""), "{stdout}");
        assert!(stderr.contains("done file_read job_"), "{stderr}");
        let (_, stderr) = world.expect(125, &["exec", "file_read", "{path}"]);
        assert!(stderr.contains("not JSON"), "{stderr}");
        let (_, stderr) = world.expect(125, &["exec", "file_raed", "{}"]);
        assert!(stderr.contains("did you mean `file_read`"), "{stderr}");
        let (_, stderr) = world.expect(125, &["exec", "file_read", "{}", "--allow", "/no/such"]);
        assert!(stderr.contains("/no/such"), "{stderr}");
        let (_, stderr) = world.expect(125, &["exec", "file_read", "{}", "--session", "none"]);
        assert!(stderr.contains("there is no session none"), "{stderr}");
        assert_eq!(world.is_well(), 1, "only the first was a job");
    }
}

/// The processes of a job are those that it really had: the program prints its own numbers.
#[test]
fn what_was_spawned_is_what_ran() {
    for world in World::everyone() {
        let command =
            "for i in 1 2 3; do sh -c 'echo $$; exit 3'; done; (sh -c 'echo $$; :' & wait); exit 0";
        let result = world.exec(0, "shell", json!({ "command": command }));
        let printed = data(&result)["stdout"].as_str().unwrap();
        let printed: BTreeSet<u64> = printed.lines().map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(printed.len(), 4);
        let spawned = result["spawned"].as_array().unwrap();
        let loaded = |one: &&Value| !one["program"].is_null();
        let pids: BTreeSet<u64> = spawned
            .iter()
            .filter(loaded)
            .map(|one| one["pid"].as_u64().unwrap())
            .collect();
        assert_eq!(pids, printed, "{spawned:#?}");
        // And the subshell, which has loaded nothing.
        assert_eq!(spawned.len(), 5, "{spawned:#?}");
        assert_eq!(data(&result)["descendants"], 5);
        let codes: Vec<_> = spawned.iter().filter(|one| one["exit_code"] == 3).collect();
        assert_eq!(codes.len(), 3, "{spawned:#?}");
        let run = result["run"].as_str().unwrap();
        let (shown, _) = world.expect(0, &["show", run, "--processes"]);
        assert!(shown.contains("sh"), "{shown}");
    }
}

/// Secrets of arguments and results are not written down.
#[test]
fn secrets_are_not_on_record() {
    for world in World::everyone() {
        let secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
        let command = json!({ "command": format!("echo {secret}") });
        let result = world.exec(0, "shell", command);
        assert_eq!(
            data(&result)["stdout"],
            format!("{secret}\n"),
            "who asked gets it"
        );
        let kept = format!("{:?}", world.records());
        assert!(kept.contains("echo ") && !kept.contains(secret), "{kept}");
        let long = json!({ "command": format!("yes {secret} | head -n 20000") });
        world.exec(0, "shell", long);
        let all = std::process::Command::new("grep")
            .args(["-rl", secret])
            .arg(world.home())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&all.stdout), "", "in a blob");
    }
}

/// A record has room for a mebibyte; nothing that an agent says or does may leave a job without one.
#[test]
fn nothing_is_too_large_for_the_record() {
    for world in World::everyone() {
        let content = "0123456789abcdef".repeat(200_000);
        let write = json!({ "path": "big", "content": content }).to_string();
        let output = fed(
            world.command(&["exec", "file_write", "-", "--json"]),
            write.as_bytes(),
        );
        world.result(0, &output, &"a large content");
        assert!(world.read("big") == content);
        let started = world.all("job_started").pop().unwrap();
        assert_eq!(started["arguments"], Value::Null);
        let blob = started["arguments_blob"].as_str().unwrap().parse().unwrap();
        let kept = world.store().blobs().unwrap().open(&blob).unwrap();
        assert!(
            std::io::read_to_string(kept).unwrap() == write,
            "word for word"
        );
        // Hundreds of refusals with the longest paths that there are.
        let deep = world.at("outside").join("0123456789abcdef/".repeat(200));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("secret"), "x").unwrap();
        world.give_away();
        let deep = deep.display();
        let command = format!(
            "i=0; while [ $i -lt 400 ]; do {{ true < {deep}secret; }} 2>/dev/null; i=$((i+1)); done; exit 3"
        );
        let result = world.exec(1, "shell", json!({ "command": command }));
        assert_eq!(message(&result), "Execution failed: exit code 3");
        let failed = world.all("job_failed").pop().unwrap();
        assert!(
            failed["end"]["refused"].as_array().unwrap().len() >= 50,
            "{failed}"
        );
        world.is_well();
    }
}

/// Whoever is killed in the first moment of the effect has left a record of what it was about to do, and nothing else.
#[test]
fn the_start_is_on_record_before_the_effect() {
    for world in World::everyone() {
        let mark = unique_seconds();
        let command = format!("touch began; setsid -f sleep {mark}; sleep {mark}");
        let mut child = world
            .exec_command("shell", &json!({ "command": command }), &[])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let began = world.work().join("began");
        until("the effect", || began.exists());
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        none_is_left(&mark);
        let started = world.all("job_started");
        assert_eq!(started.len(), 1);
        assert_eq!(started[0]["arguments"]["command"], command);
        assert_eq!(world.records().len(), 2, "no end yet");
        let job = started[0]["job_id"].as_str().unwrap();
        let (_, stderr) = world.expect(125, &["wait", job, "--timeout", "50ms"]);
        assert!(stderr.contains("its process is gone"), "{stderr}");
        let recovered = world.lines(0, &["recover", "--json"]).remove(0);
        assert_eq!(recovered["recovered"], json!([job]));
        let failed = world.all("job_failed");
        assert_eq!((failed.len(), &failed[0]["recovered"]), (1, &json!(true)));
        assert_eq!(
            world.lines(0, &["recover", "--json"])[0]["recovered"],
            json!([])
        );
        world.expect(1, &["wait", job]);
        world.is_well();
    }
}

/// While a change is made: what was there is kept before, so that even a job whose process was killed can be undone.
#[test]
fn what_a_killed_job_changed_can_be_undone() {
    for world in World::everyone() {
        for n in 0..1500 {
            let name = world.work().join(format!("d/{}/{n}", n % 10));
            std::fs::create_dir_all(name.parent().unwrap()).unwrap();
            std::fs::write(name, n.to_string()).unwrap();
        }
        world.give_away();
        let before = crate::world::shape(&world.work());
        let mut child = world
            .exec_command(
                "file_delete",
                &json!({ "path": "d", "recursive": true }),
                &[],
            )
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let gone = || {
            let folders = std::fs::read_dir(world.work().join("d"));
            !folders.is_ok_and(|folders| folders.count() == 10)
        };
        until("something is deleted", gone);
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        assert_ne!(before, crate::world::shape(&world.work()));
        world.expect(0, &["recover"]);
        world.expect(0, &["undo", "last"]);
        crate::world::same(&before, &crate::world::shape(&world.work()));
        world.is_well();
    }
}

/// A job cannot reach the process that looks after it.
#[test]
fn a_job_cannot_kill_its_supervisor() {
    for world in World::everyone() {
        let command = "kill -9 $PPID; cd /proc; for p in [0-9]*; do [ $p = $$ ] || { kill -STOP $p 2>/dev/null && echo $p; }; done; true";
        let result = world.exec(0, "shell", json!({ "command": command }));
        let own: BTreeSet<&str> = data(&result)["stdout"].as_str().unwrap().lines().collect();
        assert!(own.is_empty(), "{own:?}");
        world.is_well();
    }
}
