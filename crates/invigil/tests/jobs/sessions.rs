//! Sessions: rows of jobs, one by one or from a file, with limits, through crashes, from many processes at once.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::world::{World, id, message, same, shape, signal, until};

/// A file of steps beside the working directory.
fn steps(world: &World, steps: &[Value]) -> String {
    let path = world.at("steps.jsonl");
    let text: String = steps.iter().map(|step| format!("{step}\n")).collect();
    std::fs::write(&path, text).unwrap();
    world.give_away();
    path.to_str().unwrap().to_owned()
}

fn write(name: &str, content: &str) -> Value {
    json!({ "capability": "file_write", "arguments": { "path": name, "content": content } })
}

fn new_session(world: &World) -> String {
    world
        .expect(0, &["session", "new", "a test"])
        .0
        .trim()
        .to_owned()
}

/// The jobs of a session, in order.
#[track_caller]
fn jobs(world: &World, session: &str) -> Vec<Value> {
    let shown = world
        .lines(0, &["session", "show", session, "--json"])
        .remove(0);
    shown["jobs"].as_array().unwrap().clone()
}

#[test]
fn a_session_from_its_beginning_to_its_end() {
    for world in World::everyone() {
        let session = new_session(&world);
        let listed = world.lines(0, &["session", "list", "--json"]);
        assert_eq!(listed.len(), 1);
        assert_eq!(
            (&listed[0]["session"], &listed[0]["title"]),
            (&json!(session), &json!("a test"))
        );
        world.expect(0, &["session", "new", "--id", "mine"]);
        let (_, stderr) = world.expect(125, &["session", "new", "--id", "mine"]);
        assert!(stderr.contains("exists already"), "{stderr}");
        let more = ["--session", &session];
        let file = |name: &str| json!({ "path": name, "content": name });
        let first = world.exec_with(0, "file_write", file("a"), &more);
        let failed = world.exec_with(1, "file_read", json!({ "path": "no" }), &more);
        let wrong = world.exec_with(125, "file_read", json!({}), &more);
        let denied = world.exec_with(121, "file_read", json!({ "path": "/etc/passwd" }), &more);
        let ids: Vec<_> = jobs(&world, &session)
            .iter()
            .map(|job| job["job_id"].clone())
            .collect();
        let all = [&first, &failed, &wrong, &denied].map(|job| job["job_id"].clone());
        assert_eq!(ids, all, "failed ones too, in order");
        world.expect(0, &["session", "pause", &session]);
        let (_, stderr) = world.expect(0, &["session", "pause", &session]);
        assert!(stderr.contains("already paused"), "{stderr}");
        let refused = |code: i32, words: &str| {
            let args = [
                "exec",
                "file_list",
                r#"{"path": "."}"#,
                "--session",
                &session,
            ];
            let (_, stderr) = world.expect(code, &args);
            assert!(stderr.contains(words), "{stderr}");
        };
        refused(125, "is paused");
        world.expect(0, &["session", "resume", &session]);
        world.exec_with(0, "file_write", file("b"), &more);
        world.expect(0, &["session", "end", &session]);
        refused(125, "has ended");
        let (_, stderr) = world.expect(125, &["session", "resume", &session]);
        assert!(stderr.contains("has ended"), "{stderr}");
        let (_, stderr) = world.expect(125, &["session", "show", "none"]);
        assert!(stderr.contains("there is no session none"), "{stderr}");
        let (shown, _) = world.expect(0, &["session", "show", &session]);
        assert!(
            shown.contains("ended") && shown.contains("file_write"),
            "{shown}"
        );
        assert_eq!(jobs(&world, &session).len(), 5);
        world.is_well();
    }
}

#[test]
fn a_session_can_be_taken_back() {
    for world in World::everyone() {
        world.write("a", "old");
        let before = shape(&world.work());
        let session = new_session(&world);
        let list = [
            write("a", "1"),
            write("b", "2"),
            write("a", "3"),
            json!({ "capability": "file_read", "arguments": { "path": "a" } }),
            json!({ "capability": "file_delete", "arguments": { "path": "b" } }),
        ];
        let file = steps(&world, &list);
        world.expect(0, &["session", "run", &file, "--session", &session]);
        let undone = world.lines(0, &["session", "undo", &session, "--json"]);
        assert_eq!(undone.len(), 4);
        same(&before, &shape(&world.work()));
        let again = world.lines(0, &["session", "undo", &session, "--json"]);
        assert_eq!(again, [] as [Value; 0], "nothing is left to take back");
        world.is_well();
    }
}

#[test]
fn limits_and_errors_of_a_file() {
    for world in World::everyone() {
        let session = new_session(&world);
        let list = [
            write("a", "1"),
            write("b", "2"),
            write("no/c", "3"),
            write("d", "4"),
        ];
        let file = steps(&world, &list);
        let run = |code: i32, more: &[&str]| {
            let mut args = vec!["session", "run", &file, "--session", &session];
            args.extend(more);
            world.expect(code, &args)
        };
        let (_, stderr) = run(1, &["--max-steps", "1"]);
        assert!(
            stderr.contains("1/4") && stderr.contains("0 failed, 3 left"),
            "{stderr}"
        );
        run(1, &["--max-seconds", "0"]);
        for wrong in ["-1", "nan", "soon"] {
            let (_, stderr) = run(125, &[&format!("--max-seconds={wrong}")]);
            assert!(stderr.contains("--max-seconds"), "{stderr}");
        }
        assert_eq!(jobs(&world, &session).len(), 1);
        let (_, stderr) = run(1, &["--on-error", "stop"]);
        assert!(stderr.contains("1 failed, 2 left"), "{stderr}");
        assert_eq!(jobs(&world, &session).len(), 3);
        // The one that failed is tried again, and passed over.
        let (stdout, stderr) = run(1, &["--on-error", "continue", "--json"]);
        let results: Vec<Value> = stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let states: Vec<_> = results
            .iter()
            .map(|result| result["state"].as_str().unwrap())
            .collect();
        assert_eq!(states, ["failed", "completed"], "{stderr}");
        assert!(world.work().join("d").exists());
        let (_, stderr) = run(0, &[]);
        assert!(stderr.contains("all done"), "{stderr}");
        assert_eq!(jobs(&world, &session).len(), 5, "nothing is done twice");
        let bad = world.at("bad.jsonl");
        for (text, words) in [
            ("{\"capability\": 1}\n", "line 1"),
            ("\n\n{\"cap\": 1}", "line 3"),
            ("\n", "no step"),
        ] {
            std::fs::write(&bad, text).unwrap();
            world.give_away();
            let (_, stderr) = world.expect(
                125,
                &[
                    "session",
                    "run",
                    bad.to_str().unwrap(),
                    "--session",
                    &session,
                ],
            );
            assert!(stderr.contains(words), "{stderr}");
        }
        world.expect(0, &["session", "pause", &session]);
        let other = steps(&world, &[write("e", "5"), write("f", "6")]);
        let (_, stderr) = world.expect(125, &["session", "run", &other, "--session", &session]);
        assert!(stderr.contains("is paused"), "{stderr}");
        // What was not even tried is left, and not passed over.
        let go_on = ["--session", &session, "--on-error", "continue"];
        let args = [&["session", "run", &other][..], &go_on].concat();
        let (_, stderr) = world.expect(125, &args);
        assert!(stderr.contains("1 failed, 2 left"), "{stderr}");
        assert!(!world.work().join("e").exists());
        world.is_well();
    }
}

/// What was only tried is not done.
#[test]
fn a_dry_run_of_a_file_does_not_count() {
    for world in World::everyone() {
        let session = new_session(&world);
        let file = steps(&world, &[write("a", "1"), write("b", "2")]);
        let still = world.everything();
        world.expect(
            0,
            &["session", "run", &file, "--session", &session, "--dry-run"],
        );
        world.is_still(&still);
        world.expect(0, &["session", "run", &file, "--session", &session]);
        assert_eq!(
            (world.read("a"), world.read("b")),
            ("1".to_owned(), "2".to_owned())
        );
        world.is_well();
    }
}

#[test]
fn a_limit_of_time_is_kept() {
    let world = World::ordinary();
    let sleep = |n: usize| json!({ "capability": "shell", "arguments": { "command": format!("sleep 0.3; echo {n}") } });
    let list: Vec<Value> = (0..20).map(sleep).collect();
    let file = steps(&world, &list);
    let begun = Instant::now();
    let (_, stderr) = world.expect(1, &["session", "run", &file, "--max-seconds", "1"]);
    assert!(begun.elapsed() < Duration::from_secs(5), "{stderr}");
    let done = world.is_well();
    assert!((1..=4).contains(&done), "{done} of 20: {stderr}");
}

/// 200 steps, and a crash in the middle: every job gets its one end, and the same command goes on where it was.
#[test]
fn a_crash_in_the_middle_of_a_file() {
    const STEPS: usize = 200;
    let world = World::ordinary();
    let session = new_session(&world);
    let list: Vec<Value> = (0..STEPS)
        .map(|n| write(&format!("f{n}"), &n.to_string()))
        .collect();
    let file = steps(&world, &list);
    let args = ["session", "run", &file, "--session", &session, "--json"];
    let mut acknowledged = Vec::new();
    for at in [60, 130] {
        let mut child = world
            .command(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let reading = std::thread::spawn(move || std::io::read_to_string(stdout).unwrap());
        let middle = world.work().join(format!("f{at}"));
        until("the middle", || middle.exists());
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        let told = reading.join().unwrap();
        acknowledged.extend(
            told.lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok()),
        );
        let recovered = world.lines(0, &["recover", "--json"]).remove(0);
        assert!(
            recovered["recovered"].as_array().unwrap().len() <= 1,
            "{recovered}"
        );
        world.is_well();
    }
    let results = world.lines(0, &args);
    assert!(results.len() < STEPS - 100, "it began anew");
    acknowledged.extend(results);
    let count = world.is_well();
    let rows = jobs(&world, &session);
    assert_eq!(rows.len(), count);
    assert!((STEPS..=STEPS + 2).contains(&count), "{count}");
    let known: BTreeMap<&str, &Value> = rows.iter().map(|row| (id(row), row)).collect();
    for result in &acknowledged {
        assert_eq!(
            known[id(result)]["end_seq"],
            result["seq"],
            "{}",
            message(result)
        );
        assert_eq!(known[id(result)]["state"], "completed");
    }
    for n in 0..STEPS {
        assert_eq!(world.read(&format!("f{n}")), n.to_string());
    }
    let mut done: Vec<u64> = Vec::new();
    for started in world.all("job_started") {
        if known[started["job_id"].as_str().unwrap()]["state"] == "completed" {
            done.push(started["step"]["number"].as_u64().unwrap());
        }
    }
    let expected: Vec<u64> = (1..=STEPS as u64).collect();
    assert_eq!(done, expected, "each step is done once, in order");
}

#[test]
fn many_processes_add_to_one_session() {
    const EACH: usize = 6;
    for world in World::everyone() {
        let session = new_session(&world);
        let added: Vec<String> = std::thread::scope(|scope| {
            let (world, session) = (&world, &session);
            let adds = move |who: usize| {
                let add = |n: usize| {
                    let file = json!({ "path": format!("{who}-{n}"), "content": "x" });
                    let result = world.exec_with(0, "file_write", file, &["--session", session]);
                    assert_eq!(result["warnings"], Value::Null, "{result}");
                    id(&result).to_owned()
                };
                (0..EACH).map(add).collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..8).map(|who| scope.spawn(move || adds(who))).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        let rows = jobs(&world, &session);
        let mut known: Vec<&str> = rows.iter().map(id).collect();
        known.sort_unstable();
        let mut added: Vec<&str> = added.iter().map(String::as_str).collect();
        added.sort_unstable();
        assert_eq!(known, added, "none is lost, none is there twice");
        let order: Vec<_> = rows.iter().map(|row| row["seq"].as_u64()).collect();
        assert!(order.is_sorted());
        world.is_well();
    }
}
