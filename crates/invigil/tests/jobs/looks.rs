//! Looking at jobs: the list, one of them, waiting, what can be asked for, and the journal itself.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::world::{World, id, until};

#[test]
fn jobs_are_listed_shown_and_waited_for() {
    for world in World::everyone() {
        world.write("a", "x");
        let first = world.exec(0, "file_write", json!({ "path": "a", "content": "new" }));
        let second = world.exec(1, "file_read", json!({ "path": "no" }));
        let rows = world.lines(0, &["jobs", "--json"]);
        let ids: Vec<&str> = rows.iter().map(id).collect();
        assert_eq!(ids, [id(&second), id(&first)], "newest first");
        assert_eq!(rows[1]["end_seq"], first["seq"]);
        assert_eq!(
            world
                .lines(0, &["jobs", "--state", "failed", "--json"])
                .len(),
            1
        );
        assert_eq!(world.lines(0, &["jobs", "-n", "1", "--json"]).len(), 1);
        let (shown, _) = world.expect(0, &["jobs"]);
        assert!(
            shown.contains(id(&first)) && shown.contains("Execution failed: "),
            "{shown}"
        );
        let kinds = |records: Vec<Value>| -> Vec<String> {
            let kind = |record: &Value| record["kind"].as_str().unwrap().to_owned();
            records.iter().map(kind).collect()
        };
        let records = world.lines(0, &["jobs", "show", id(&first), "--json"]);
        assert_eq!(kinds(records), ["job_started", "job_kept", "job_completed"]);
        let (shown, _) = world.expect(0, &["jobs", "show", "last"]);
        assert!(
            shown.contains("job_failed") && shown.contains("Execution failed"),
            "{shown}"
        );
        world.expect(0, &["wait", id(&first)]);
        world.expect(1, &["wait", "last"]);
        world.expect(125, &["wait", "nothing"]);
        world.expect(125, &["jobs", "show", "nothing"]);
    }
}

#[test]
fn a_job_is_waited_for_while_it_goes_on() {
    for world in World::everyone() {
        let go = world.work().join("go");
        let command = "echo x > begun; while [ ! -e go ]; do sleep 0.05; done; exit 3";
        let mut child = world
            .exec_command("shell", &json!({ "command": command }), &[])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("it begins", || world.work().join("begun").exists());
        let open = world.lines(0, &["jobs", "--state", "open", "--json"]);
        assert_eq!(open.len(), 1);
        assert_eq!(
            world.lines(0, &["recover", "--json"])[0]["recovered"],
            json!([]),
            "it lives"
        );
        world.expect(124, &["wait", id(&open[0]), "--timeout", "100ms"]);
        let waiting = world
            .command(&["wait", id(&open[0]), "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::fs::write(&go, "").unwrap();
        let output = waiting.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&row["state"], id(&row)), (&json!("failed"), id(&open[0])));
        child.wait().unwrap();
        world.is_well();
    }
}

#[test]
fn capabilities_have_schemas() {
    for world in World::everyone() {
        let all = world.lines(0, &["capabilities", "--json"]);
        let names: Vec<&str> = all
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        let expected = [
            "file_delete",
            "file_edit",
            "file_list",
            "file_read",
            "file_write",
            "git",
            "kill",
            "search",
            "shell",
            "undo",
        ];
        assert_eq!(names, expected, "sorted");
        for one in &all {
            let schema = &one["arguments"];
            assert_eq!(
                (&schema["type"], &schema["additionalProperties"]),
                (&json!("object"), &json!(false)),
                "{schema}"
            );
            assert!(!schema["properties"].as_object().unwrap().is_empty());
            assert!(!one["description"].as_str().unwrap().is_empty());
        }
        let (shown, _) = world.expect(0, &["capabilities", "file_read"]);
        assert!(
            shown.contains("*path") && shown.contains("max_bytes"),
            "{shown}"
        );
        let (_, stderr) = world.expect(125, &["capabilities", "file_raed"]);
        assert!(stderr.contains("did you mean `file_read`"), "{stderr}");
        assert!(!world.home().exists(), "nothing is written");
    }
}

/// The journal of jobs is a journal like any other.
#[test]
fn the_journal_can_be_verified_and_shown() {
    for world in World::everyone() {
        world.exec(0, "file_list", json!({ "path": "." }));
        world.exec(0, "shell", json!({ "command": "echo x" }));
        let folder = world.home().join("jobs");
        let folder = folder.to_str().unwrap();
        let (stdout, _) = world.expect(0, &["verify", folder]);
        assert!(stdout.contains("5 records, every hash fits"), "{stdout}");
        let shown = world.lines(0, &["show", folder, "--events", "--json"]);
        assert_eq!(shown, world.records());
        let (stdout, _) = world.expect(0, &["show", folder, "--events"]);
        for words in ["job_started", "job_completed", "file_list", "shell"] {
            assert!(stdout.contains(words), "{words}: {stdout}");
        }
        // The run of a program is one of the store's, with all of its facts.
        let run = world.all("job_completed").pop().unwrap()["end"]["run"]
            .as_str()
            .unwrap()
            .to_owned();
        world.expect(0, &["verify", &run]);
        // A bit that flips is found.
        let journal = world.home().join("jobs/journal.ndjson");
        let mut bytes = std::fs::read(&journal).unwrap();
        let at = bytes
            .windows(9)
            .position(|part| part == b"file_list")
            .unwrap();
        bytes[at] = b'F';
        std::fs::write(&journal, bytes).unwrap();
        let (stdout, _) = world.expect(1, &["verify", folder]);
        assert!(stdout.contains("damaged"), "{stdout}");
    }
}
