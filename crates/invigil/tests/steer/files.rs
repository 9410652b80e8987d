//! Checkpoints of a workspace and the way back, with everything that may be in it.

use std::os::unix::fs::PermissionsExt as _;

use crate::world::World;

const TREE: &str = r#"
    mkdir -p src/deep empty
    echo one > src/one; echo two > src/deep/two; printf '\000\377\r\n' > bytes
    echo '#!/bin/sh' > tool; chmod 750 tool; chmod 600 src/one
    ln -s src/one link; ln -s /nowhere dangling
    printf 'odd' > "$(printf 'od\nd \042name\134')"
    echo '*.log' > .gitignore; echo noise > a.log
    mkdir .git; echo ref > .git/HEAD
"#;

/// A run of a script that goes on until a file is there.
fn agent(script: &str) -> String {
    format!("{script}\ntouch up; while [ ! -e stop ]; do sleep 0.02; done")
}

#[test]
fn what_an_agent_did_to_files_is_turned_back_and_that_is_turned_back_too() {
    for world in World::everyone() {
        world.shell(TREE);
        let going = world.start("files", &[], &agent(""));
        world.wait_for("up");
        let taken = world.json(
            0,
            &["checkpoint", "files", "--json", "--label", "before lunch"],
        );
        let first = taken["events"]
            .as_array()
            .unwrap()
            .iter()
            .find(|event| event["kind"] == "checkpoint_taken")
            .unwrap()["data"]
            .clone();
        assert_eq!(
            (&first["id"], &first["label"]),
            (&"c1".into(), &"before lunch".into())
        );
        // one, two, bytes, tool, link, dangling, the odd one, .gitignore, up
        assert_eq!(first["files"], 9);
        assert_eq!(first["left_out"][0]["path"], "a.log");
        let listed = world.expect(0, &["checkpoint", "files", "--list"]).0;
        assert!(listed.starts_with("c1 before lunch of"), "{listed}");

        world.shell(
            "rm -r src/deep empty; echo changed > src/one; chmod 777 tool; rm link; mkdir link
             echo new > new; mkdir fresh; echo x > fresh/x; echo moved > .git/HEAD; rm bytes dangling
             echo '*' > .gitignore; echo more >> a.log",
        );
        let changed = snapshot(&world);
        let given = world.json(0, &["rollback", "files", "--json"]);
        let done = given["events"].as_array().unwrap().iter();
        let done = done
            .clone()
            .find(|event| event["kind"] == "rollbacked")
            .unwrap();
        let done = &done["data"];
        assert_eq!(
            (&done["checkpoint"], &done["before"]),
            (&"c1".into(), &"c2".into())
        );
        assert_eq!(world.read("src/one"), "one\n");
        assert_eq!(world.read("src/deep/two"), "two\n");
        assert_eq!(std::fs::read(world.work("bytes")).unwrap(), b"\0\xff\r\n");
        assert_eq!(world.read("od\nd \"name\\"), "odd");
        let mode = |name| world.work(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("tool"), mode("src/one")), (0o750, 0o600));
        let link = |name| world.work(name).read_link().unwrap();
        assert_eq!(link("link"), std::path::Path::new("src/one"));
        assert_eq!(link("dangling"), std::path::Path::new("/nowhere"));
        assert!(world.work("empty").is_dir());
        assert_eq!(world.read(".gitignore"), "*.log\n");
        // Not of the checkpoint, and not touched.
        assert_eq!(world.read("a.log"), "noise\nmore\n");
        assert_eq!(world.read(".git/HEAD"), "moved\n");

        world.expect(0, &["rollback", "files", "c2"]);
        world.shell("touch stop");
        going.expect(0);
        world.shell("rm stop");
        // What was ignored then was not kept, so it is not taken away again either.
        let now: Vec<_> = snapshot(&world);
        let missing: Vec<_> = changed
            .iter()
            .filter(|entry| !now.contains(entry))
            .collect();
        let ignored = ["new", "fresh", "fresh/x"];
        assert!(
            missing
                .iter()
                .all(|entry| ignored.contains(&entry.0.as_str())),
            "{missing:?}"
        );

        // It works as well when the run is over, and is on its record.
        world.expect(0, &["rollback", "files", "c1"]);
        assert_eq!(world.read("src/one"), "one\n");
        let kinds = [
            "run_suspended",
            "checkpoint_taken",
            "rollback_started",
            "rollbacked",
            "run_resumed",
            "run_finished",
        ];
        assert_eq!(
            world.order("files", &kinds).join(" "),
            "run_suspended checkpoint_taken run_resumed \
             run_suspended checkpoint_taken rollback_started rollbacked run_resumed \
             run_suspended checkpoint_taken rollback_started rollbacked run_resumed \
             run_finished checkpoint_taken rollback_started rollbacked"
        );
        world.verifies("files");
        let (_, said) = world.expect(1, &["rollback", "files", "c99"]);
        assert!(said.is_empty());
    }
}

/// Path, kind and content of everything but `.git`.
fn snapshot(world: &World) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut pending = vec![world.work("")];
    while let Some(directory) = pending.pop() {
        for entry in directory.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path
                .strip_prefix(world.work(""))
                .unwrap()
                .display()
                .to_string();
            let data = path.symlink_metadata().unwrap();
            if name == ".git" {
                continue;
            }
            let content = match () {
                () if data.is_dir() => {
                    pending.push(path);
                    "directory".to_owned()
                }
                () if data.is_symlink() => path.read_link().unwrap().display().to_string(),
                () => String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned(),
            };
            found.push((name, content));
        }
    }
    found.sort();
    found
}

#[test]
fn a_link_in_the_way_leads_nobody_out() {
    for world in World::everyone() {
        world.shell(
            "mkdir -p inside ../outside; echo mine > inside/file; echo theirs > ../outside/file",
        );
        world.start("links", &[], "true").expect(0);
        world.expect(0, &["checkpoint", "links"]);
        // The whole directory is a link to one outside, which has a file of the same name.
        world.shell("rm -r inside; ln -s ../outside inside");
        world.expect(0, &["rollback", "links"]);
        assert_eq!(
            std::fs::read_to_string(world.at("outside/file")).unwrap(),
            "theirs\n"
        );
        assert_eq!(world.read("inside/file"), "mine\n");
        assert!(!world.work("inside").is_symlink());
        // The way back puts the link there again, and does not follow it.
        world.expect(0, &["rollback", "links", "c2"]);
        assert!(world.work("inside").is_symlink());
        assert_eq!(
            std::fs::read_to_string(world.at("outside/file")).unwrap(),
            "theirs\n"
        );
    }
}

#[test]
fn what_cannot_be_put_back_is_listed_and_the_rest_is() {
    for world in World::everyone() {
        world.shell("echo a > a; echo b > b");
        world.start("hard", &[], "true").expect(0);
        world.expect(0, &["checkpoint", "hard"]);
        // Too large to be kept, so it is not thrown away either.
        world.shell("rm b; truncate -s 65M b; echo changed > a");
        let given = world.json(1, &["rollback", "hard", "--json"]);
        let done = given["events"].as_array().unwrap().iter();
        let done = done
            .clone()
            .find(|event| event["kind"] == "rollbacked")
            .unwrap();
        assert_eq!(done["data"]["failed_count"], 1);
        assert_eq!(done["data"]["failed"][0]["path"], "b");
        assert_eq!(world.read("a"), "a\n");
        assert_eq!(world.work("b").metadata().unwrap().len(), 65 << 20);
    }
}

#[test]
fn there_must_be_something_to_go_back_to() {
    let world = &World::everyone()[0];
    world.start("none", &[], "true").expect(0);
    let (said, _) = world.expect(1, &["rollback", "none"]);
    assert!(said.contains("no checkpoint yet"), "{said}");
    assert_eq!(world.event("none", "order_ended")["done"], false);
}

#[test]
fn a_link_in_the_place_of_the_workspace_is_no_way_out() {
    for world in World::everyone() {
        world.shell("mkdir w outside; echo evil > w/f; echo dear > outside/precious");
        world.expect(
            0,
            &["run", "-q", "--run-id", "kid", "--cwd", "w", "--", "true"],
        );
        world.expect(0, &["checkpoint", "kid"]);
        world.shell("mv w w2; ln -s outside w");
        let (said, _) = world.expect(1, &["rollback", "kid"]);
        assert!(said.contains("not the directory in which"), "{said}");
        world.shell("test -e outside/precious && test ! -e outside/f");
        // Another directory in its place is none either, to be read or to be written.
        world.shell("rm w; mv outside w");
        for order in ["checkpoint", "rollback"] {
            let (said, _) = world.expect(1, &[order, "kid"]);
            assert!(said.contains("not the directory in which"), "{said}");
        }
        world.shell("test -e w/precious && test ! -e w/f; mv w outside");
        assert_eq!(world.all("kid", "checkpoint_taken").len(), 1);
        assert!(world.all("kid", "rollback_started").is_empty());
        // The same one is itself, also where a link leads to it.
        world.shell("rm w2/f; ln -s w2 w");
        world.expect(0, &["rollback", "kid"]);
        world.shell("test -e w2/f; rm w w2/f; mv w2 w");
        world.expect(0, &["rollback", "kid"]);
        world.shell("test -e w/f");
    }
}

#[test]
fn nothing_that_a_run_makes_is_in_the_way_of_a_draft() {
    for world in World::everyone() {
        world.shell("mkdir s; echo a > a; echo b > s/b; echo mine > .invigil-rollback");
        world.start("drafts", &[], "true").expect(0);
        world.expect(0, &["checkpoint", "drafts"]);
        world.shell("echo x > a; echo x > s/b; mkdir -p s/.invigil-rollback/full");
        world.expect(0, &["rollback", "drafts"]);
        assert_eq!(
            (world.read("a"), world.read("s/b")),
            ("a\n".into(), "b\n".into())
        );
        assert_eq!(world.read(".invigil-rollback"), "mine\n");
        let left = world.work("").read_dir().unwrap();
        assert_eq!(left.count(), 3);
    }
}

#[test]
fn a_directory_that_nobody_can_read_or_go_through_is_no_hiding_place() {
    for world in World::everyone() {
        world.shell("mkdir src; echo one > src/one");
        world.start("locked", &[], "true").expect(0);
        world.expect(0, &["checkpoint", "locked"]);
        world.shell("echo evil > src/one; chmod 000 src");
        // Who may read everything needs one step. Anybody else gets the directory back, and then what is in it.
        let first = world.command(&["rollback", "locked"]).output().unwrap();
        match first.status.code() {
            Some(0) => {}
            code => {
                assert_eq!(code, Some(1));
                world.expect(0, &["rollback", "locked", "c1"]);
            }
        }
        assert_eq!(world.read("src/one"), "one\n");
    }
}

/// Makes a directory in a directory in a directory.
const DEEP: &str = r#"
import os
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
"#;

#[test]
fn a_bottomless_tree_does_not_take_the_supervisor_with_it() {
    for world in World::everyone() {
        world.shell("echo a > a");
        let script = agent(&format!("python3 -c '{DEEP}'"));
        let going = world.start("deep", &[], &script);
        world.wait_for("up");
        let given = world.json(0, &["checkpoint", "deep", "--json"]);
        let taken = given["events"].as_array().unwrap().iter();
        let taken = taken
            .clone()
            .find(|event| event["kind"] == "checkpoint_taken");
        let left_out = &taken.unwrap()["data"]["left_out"][0];
        assert_eq!(left_out["why"], "it is nested too deep");
        world.shell("echo changed > a");
        world.expect(0, &["rollback", "deep"]);
        assert_eq!(world.read("a"), "a\n");
        world.shell("touch stop");
        going.expect(0);
        world.shell("rm -rf d");
    }
}
