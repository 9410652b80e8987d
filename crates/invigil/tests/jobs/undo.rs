//! Undo through the command line: back to what was, a conflict where something changed since, once, and itself undoable.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::world::{World, data, id, message, same, shape};

/// What each capability changes in a tree with a bit of everything.
fn changes() -> Vec<(&'static str, Value)> {
    vec![
        ("file_write", json!({ "path": "a", "content": "new" })),
        (
            "file_write",
            json!({ "path": "a", "content": "more", "append": true }),
        ),
        ("file_write", json!({ "path": "made", "content": "new" })),
        (
            "file_write",
            json!({ "path": "x/y/made", "content": "new", "parents": true }),
        ),
        (
            "file_edit",
            json!({ "path": "a", "old": "old", "new": "new" }),
        ),
        ("file_delete", json!({ "path": "a" })),
        ("file_delete", json!({ "path": "link" })),
        ("file_delete", json!({ "path": "d", "recursive": true })),
    ]
}

fn furnished() -> Vec<World> {
    let worlds = World::everyone();
    for world in &worlds {
        let path = world.write("a", "old");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        world.write("d/e/f", "deep");
        world.write("d/program", "#!/bin/sh\n");
        let program = world.work().join("d/program");
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        world.link("d/dangling", "nowhere");
        world.link("link", "a");
        fs::create_dir(world.work().join("d/empty")).unwrap();
        world.give_away();
    }
    worlds
}

fn undo(world: &World, code: i32, words: &[&str]) -> Value {
    let args: Vec<&str> = ["undo"]
        .iter()
        .chain(words)
        .chain(&["--json"])
        .copied()
        .collect();
    let output = world.command(&args).output().unwrap();
    world.result(code, &output, &args)
}

#[test]
fn every_change_can_be_taken_back_and_made_again() {
    for world in furnished() {
        let before = shape(&world.work());
        for (capability, arguments) in changes() {
            let job = world.exec(0, capability, arguments);
            let changed = shape(&world.work());
            assert_ne!(before, changed);
            let still = world.everything();
            undo(&world, 0, &[id(&job), "--dry-run"]);
            world.is_still(&still);
            let undone = undo(&world, 0, &[id(&job)]);
            same(&before, &shape(&world.work()));
            assert!(!data(&undone)["restored"].as_array().unwrap().is_empty());
            assert_eq!(undone["capability"], "undo", "a job like any other");
            let twice = undo(&world, 1, &[id(&job)]);
            let words = format!(
                "was taken back already, by job {}; to do it again, undo that one",
                id(&undone)
            );
            assert!(message(&twice).contains(&words), "{}", message(&twice));
            undo(&world, 0, &[id(&undone)]);
            same(&changed, &shape(&world.work()));
            // Done again, so it can be taken back again.
            undo(&world, 0, &[id(&job)]);
            same(&before, &shape(&world.work()));
        }
        world.is_well();
    }
}

#[test]
fn what_changed_since_is_a_conflict() {
    for world in furnished() {
        let job = world.exec(0, "file_write", json!({ "path": "a", "content": "new" }));
        world.write("a", "newer");
        let still = world.everything();
        let result = undo(&world, 1, &[id(&job)]);
        assert!(
            message(&result).starts_with("Execution failed: conflict, nothing was touched"),
            "{result}"
        );
        let conflicts = data(&result)["conflicts"].as_array().unwrap();
        assert_eq!(conflicts.len(), 1);
        assert!(
            conflicts[0]["path"].as_str().unwrap().ends_with("work/a"),
            "{conflicts:?}"
        );
        world.is_still(&still);
        let forced = undo(&world, 0, &[id(&job), "--force"]);
        assert_eq!(world.read("a"), "old");
        undo(&world, 0, &[id(&forced)]);
        assert_eq!(
            world.read("a"),
            "newer",
            "what was overwritten by force is kept, too"
        );
        // A tree of which one part is in the way: all or nothing.
        let job = world.exec(0, "file_delete", json!({ "path": "d", "recursive": true }));
        world.write("d/program", "another");
        let still = world.everything();
        let result = undo(&world, 1, &[id(&job)]);
        assert!(message(&result).contains("conflict"), "{result}");
        world.is_still(&still);
        undo(&world, 0, &[id(&job), "--force"]);
        assert_eq!(world.read("d/program"), "#!/bin/sh\n");
        // A directory that was made has other things in it by now.
        let made = json!({ "path": "x/y", "content": "new", "parents": true });
        let job = world.exec(0, "file_write", made);
        world.write("x/other", "mine");
        let still = world.everything();
        undo(&world, 1, &[id(&job)]);
        world.is_still(&still);
        // Only its mode has changed.
        let job = world.exec(0, "file_write", json!({ "path": "a", "content": "new" }));
        fs::set_permissions(world.work().join("a"), fs::Permissions::from_mode(0o600)).unwrap();
        undo(&world, 1, &[id(&job)]);
        world.is_well();
    }
}

#[test]
fn a_part_of_a_job_can_be_taken_back() {
    for world in furnished() {
        let before = shape(&world.work());
        let job = world.exec(0, "file_delete", json!({ "path": "d", "recursive": true }));
        undo(&world, 0, &[id(&job), "d/e"]);
        assert_eq!(world.read("d/e/f"), "deep");
        assert!(!world.work().join("d/program").exists());
        undo(&world, 1, &[id(&job), "d/e"]);
        undo(&world, 0, &[id(&job)]);
        same(&before, &shape(&world.work()));
        let result = undo(&world, 1, &[id(&job)]);
        assert!(message(&result).contains("taken back already"), "{result}");
        world.is_well();
    }
}

#[test]
fn what_cannot_be_undone_says_why() {
    for world in furnished() {
        world.expect(125, &["undo", "last"]);
        let read = world.exec(0, "file_read", json!({ "path": "a" }));
        let result = undo(&world, 1, &[id(&read)]);
        assert!(message(&result).contains("has changed nothing"), "{result}");
        let dry = world.exec_with(0, "file_delete", json!({ "path": "a" }), &["--dry-run"]);
        let result = undo(&world, 1, &[id(&dry)]);
        assert!(message(&result).contains("has changed nothing"), "{result}");
        let (_, stderr) = world.expect(125, &["undo", "job_nothing"]);
        assert!(stderr.contains("there is no job"), "{stderr}");
        let result = world.exec(1, "undo", json!({ "job_id": "job_nothing" }));
        assert!(message(&result).contains("there is no job"), "{result}");
        world.wrong(
            "undo",
            &[
                (json!({}), "job_id"),
                (json!({ "job_id": "a/b" }), "job_id"),
                (json!({ "job_id": 1 }), "job_id"),
                (json!({ "job_id": "j", "path": "" }), "path"),
                (json!({ "job_id": "j", "force": 1 }), "force"),
                (json!({ "job_id": "j", "all": true }), "all"),
            ],
        );
        // From somewhere else the files are outside.
        let job = world.exec(0, "file_write", json!({ "path": "a", "content": "new" }));
        let still = world.everything();
        let output = world
            .command(&["undo", id(&job), "--json"])
            .current_dir(world.at("outside"))
            .output()
            .unwrap();
        let result = world.result(121, &output, &"from outside");
        assert!(message(&result).contains("--allow"), "{result}");
        world.is_still(&still);
        let denied = "version = 1\n[tools]\ndeny = [\"undo\"]\n";
        world.forbidden("undo", json!({ "job_id": id(&job) }), denied, 3);
        let written = "version = 1\n\n[files.write]\ndeny = [\"**/a\"]\n";
        world.forbidden("undo", json!({ "job_id": id(&job) }), written, 4);
        undo(&world, 0, &[id(&job)]);
        world.is_well();
    }
}

/// Of several who take back the same job at once, one does.
#[test]
fn one_of_many_takes_it_back() {
    for world in World::everyone() {
        let result = world.exec(0, "file_write", json!({ "path": "file", "content": "x" }));
        let job = result["job_id"].as_str().unwrap();
        let start = || {
            let mut undo = world.command(&["undo", job]);
            undo.stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let undos: Vec<_> = (0..6).map(|_| start()).collect();
        let done = undos
            .into_iter()
            .map(|mut undo| undo.wait().unwrap())
            .filter(|status| status.success());
        assert_eq!(done.count(), 1);
        assert!(!world.work().join("file").exists());
        world.is_well();
    }
}
