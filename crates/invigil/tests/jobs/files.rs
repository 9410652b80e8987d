//! The capabilities for files: a good call of each, each wrong field, what lies outside, what a policy denies, a dry run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use crate::world::{World, data, message};

/// Paths that lead out, by their text, by a link, by a link on the way, or by the kernel's own.
fn outside(world: &World) -> Vec<(String, &'static str)> {
    world.link("absolute", world.at("outside/secret"));
    world.link("relative", "../outside/secret");
    world.link("folder", world.at("outside"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    vec![
        ("/etc/passwd".into(), "outside of the allowed roots"),
        ("../outside/secret".into(), "outside of the allowed roots"),
        ("folder/secret".into(), "outside of the allowed roots"),
        (text(&world.at("outside/secret")), "--allow"),
        // Not below the working directory, though it begins like it.
        (format!("{}foo", text(&world.work())), "--allow"),
        (
            "/proc/self/root/etc/passwd".into(),
            "outside of the allowed roots",
        ),
    ]
}

/// The same, and links as the last component.
fn outside_through_links(world: &World) -> Vec<(String, &'static str)> {
    let mut paths = outside(world);
    for link in ["absolute", "relative"] {
        paths.push((link.to_owned(), "outside of the allowed roots"));
    }
    paths
}

fn with_paths(paths: &[(String, &'static str)], arguments: &Value) -> Vec<(Value, &'static str)> {
    let with = |(path, why): &(String, &'static str)| {
        let mut arguments = arguments.clone();
        arguments["path"] = json!(path);
        (arguments, *why)
    };
    paths.iter().map(with).collect()
}

const NO_TOOL: &str =
    "version = 1\n\n[tools]\ndeny = [{ rule = \"file_*\", reason = \"no files\" }]\n";
const NO_NEW_KEYS: &str = "version = 1\n\n[files.write]\ndeny = [\"**/*.pem\"]\n";
const NO_KEYS: &str =
    "version = 1\n[files.read]\ndeny = [\"**/*.pem\"]\n[files.write]\ndeny = [\"**/*.pem\"]\n";

#[test]
fn file_read() {
    for world in World::everyone() {
        world.write("über.txt", "grüße\n");
        world.write("a..b.bin", [0xff, 0, 1]);
        world.write("key.pem", "key");
        let before = world.everything();
        let result = world.exec(0, "file_read", json!({ "path": "über.txt" }));
        let read = data(&result);
        assert_eq!(read["content"], "grüße\n");
        assert_eq!(
            (&read["encoding"], &read["truncated"]),
            (&json!("utf-8"), &json!(false))
        );
        assert_eq!(read["bytes_read"], 8);
        assert_eq!(read["content_type"], "text/plain");
        assert_eq!(read["sha256"].as_str().unwrap().len(), 64);
        let part = json!({ "path": world.work().join("über.txt"), "max_bytes": 2, "offset": 1 });
        let result = world.exec(0, "file_read", part);
        assert_eq!(data(&result)["content"], "r");
        assert_eq!(data(&result)["truncated"], true);
        let result = world.exec(0, "file_read", json!({ "path": "a..b.bin" }));
        assert_eq!(data(&result)["content"], "/wAB");
        assert_eq!(data(&result)["encoding"], "base64");
        let result = world.exec(1, "file_read", json!({ "path": "nothing" }));
        assert!(
            message(&result).starts_with("Execution failed: "),
            "{result}"
        );
        world.is_still(&before);
        world.dry("file_read", json!({ "path": "über.txt" }));
        world.wrong(
            "file_read",
            &[
                (json!({}), "path"),
                (json!({ "path": 7 }), "path"),
                (json!({ "path": "" }), "path"),
                (json!({ "path": "a\0b" }), "path"),
                (json!({ "path": "a", "max_bytes": 0 }), "max_bytes"),
                (
                    json!({ "path": "a", "max_bytes": (10 << 20) + 1 }),
                    "max_bytes",
                ),
                (json!({ "path": "a", "offset": -1 }), "offset"),
                (json!({ "path": "a", "mode": "r" }), "mode"),
                (json!(["a"]), "arguments"),
            ],
        );
        world.denied(
            "file_read",
            &with_paths(&outside_through_links(&world), &json!({})),
        );
        world.forbidden("file_read", json!({ "path": "key.pem" }), NO_KEYS, 3);
        world.forbidden("file_read", json!({ "path": "über.txt" }), NO_TOOL, 4);
        let outside = world.at("outside");
        let allow = ["--allow", outside.to_str().unwrap()];
        let secret = json!({ "path": outside.join("secret") });
        let result = world.exec_with(0, "file_read", secret, &allow);
        assert_eq!(data(&result)["content"], "secret");
        world.is_well();
    }
}

#[test]
fn file_write() {
    for world in World::everyone() {
        let path = world.write("a", "old");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        world.write("key.pem", "key");
        world.dry("file_write", json!({ "path": "a", "content": "new" }));
        world.dry(
            "file_write",
            json!({ "path": "x/y", "content": "new", "parents": true }),
        );
        let result = world.exec(0, "file_write", json!({ "path": "a", "content": "new" }));
        let written = data(&result);
        assert_eq!(
            (&written["bytes_written"], &written["created"]),
            (&json!(3), &json!(false))
        );
        assert_eq!(written["backup"], written["sha256_before"]);
        assert_ne!(written["sha256_before"], written["sha256_after"]);
        assert_eq!(world.read("a"), "new");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            0o640
        );
        let more = json!({ "path": "a", "content": "IQ==", "append": true, "encoding": "base64" });
        world.exec(0, "file_write", more);
        assert_eq!(world.read("a"), "new!");
        let only_if =
            |sha256: &Value| json!({ "path": "a", "content": "x", "expect_sha256": sha256 });
        let result = world.exec(1, "file_write", only_if(&written["sha256_after"]));
        assert!(message(&result).contains("not as expected"), "{result}");
        let new = json!({ "path": "x/y/z", "content": "deep", "parents": true });
        assert_eq!(data(&world.exec(0, "file_write", new))["created"], true);
        assert_eq!(world.read("x/y/z"), "deep");
        world.exec(1, "file_write", json!({ "path": "no/such", "content": "" }));
        world.wrong(
            "file_write",
            &[
                (json!({ "content": "x" }), "path"),
                (json!({ "path": "a" }), "content"),
                (json!({ "path": "a", "content": 1 }), "content"),
                (json!({ "path": "", "content": "x" }), "path"),
                (
                    json!({ "path": "a", "content": "?", "encoding": "base64" }),
                    "content",
                ),
                (
                    json!({ "path": "a", "content": "x", "encoding": "latin" }),
                    "encoding",
                ),
                (
                    json!({ "path": "a", "content": "x", "append": "yes" }),
                    "append",
                ),
                (
                    json!({ "path": "a", "content": "x", "expect_sha256": "00" }),
                    "expect_sha256",
                ),
                (
                    json!({ "path": "a", "content": "x", "parents": 1 }),
                    "parents",
                ),
                (json!({ "path": "a", "content": "x", "more": 1 }), "more"),
            ],
        );
        let content = json!({ "content": "gotcha" });
        world.denied(
            "file_write",
            &with_paths(&outside_through_links(&world), &content),
        );
        let new = json!({ "path": "../outside/new", "content": "x" });
        world.denied("file_write", &[(new, "outside of the allowed roots")]);
        world.forbidden(
            "file_write",
            json!({ "path": "key.pem", "content": "" }),
            NO_NEW_KEYS,
            4,
        );
        world.forbidden(
            "file_write",
            json!({ "path": "a", "content": "" }),
            NO_TOOL,
            4,
        );
        assert_eq!(fs::read(world.at("outside/secret")).unwrap(), b"secret");
        world.is_well();
    }
}

#[test]
fn file_edit() {
    for world in World::everyone() {
        world.write("a", "one\ntwo\ntwo\n");
        world.write("key.pem", "key");
        let edit = |old: &str, new: &str| json!({ "path": "a", "old": old, "new": new });
        world.dry("file_edit", edit("one", "1"));
        let result = world.exec(0, "file_edit", edit("one", "1"));
        assert_eq!(data(&result)["replacements"], 1);
        let diff = data(&result)["diff"].as_str().unwrap();
        assert!(diff.contains("\n-one\n+1\n"), "{diff}");
        assert_eq!(world.read("a"), "1\ntwo\ntwo\n");
        let result = world.exec(1, "file_edit", edit("two", "2"));
        assert!(message(&result).contains("occurs 2 times"), "{result}");
        let both = json!({ "path": "a", "old": "two", "new": "2", "expect_count": 2 });
        assert_eq!(data(&world.exec(0, "file_edit", both))["replacements"], 2);
        assert_eq!(world.read("a"), "1\n2\n2\n");
        world.wrong(
            "file_edit",
            &[
                (json!({ "old": "a", "new": "b" }), "path"),
                (json!({ "path": "a", "new": "b" }), "old"),
                (json!({ "path": "a", "old": "a" }), "new"),
                (edit("", "b"), "old"),
                (edit("a", "a"), "new"),
                (
                    json!({ "path": "a", "old": "a", "new": "b", "expect_count": 0 }),
                    "expect_count",
                ),
                (
                    json!({ "path": "a", "old": "a", "new": "b", "all": true }),
                    "all",
                ),
            ],
        );
        let change = json!({ "old": "secret", "new": "gone" });
        world.denied(
            "file_edit",
            &with_paths(&outside_through_links(&world), &change),
        );
        let key = json!({ "path": "key.pem", "old": "key", "new": "no" });
        world.forbidden("file_edit", key, NO_KEYS, 3);
        world.forbidden("file_edit", edit("1", "2"), NO_TOOL, 4);
        world.is_well();
    }
}

#[test]
fn file_delete() {
    for world in World::everyone() {
        world.write("a", "1");
        world.write("d/b", "2");
        world.write("key.pem", "key");
        world.dry("file_delete", json!({ "path": "a" }));
        world.dry("file_delete", json!({ "path": "d", "recursive": true }));
        let result = world.exec(0, "file_delete", json!({ "path": "a" }));
        assert_eq!(data(&result)["backup"].as_str().unwrap().len(), 64);
        let result = world.exec(1, "file_delete", json!({ "path": "d" }));
        assert!(message(&result).contains("`recursive`"), "{result}");
        let result = world.exec(0, "file_delete", json!({ "path": "d", "recursive": true }));
        assert_eq!(data(&result)["entries"], 2);
        assert!(!world.work().join("a").exists() && !world.work().join("d").exists());
        world.wrong(
            "file_delete",
            &[
                (json!({}), "path"),
                (json!({ "path": null }), "path"),
                (json!({ "path": "" }), "path"),
                (json!({ "path": "a", "recursive": "yes" }), "recursive"),
                (json!({ "path": "a", "force": true }), "force"),
            ],
        );
        world.denied(
            "file_delete",
            &with_paths(&outside(&world), &json!({ "recursive": true })),
        );
        let result = world.exec(1, "file_delete", json!({ "path": "." }));
        assert!(message(&result).contains("root itself"), "{result}");
        world.forbidden("file_delete", json!({ "path": "key.pem" }), NO_KEYS, 3);
        world.forbidden("file_delete", json!({ "path": "key.pem" }), NO_TOOL, 4);
        // Of a link the link goes, and not what it leads to.
        world.exec(0, "file_delete", json!({ "path": "absolute" }));
        assert_eq!(fs::read(world.at("outside/secret")).unwrap(), b"secret");
        world.is_well();
    }
}

#[test]
fn file_list() {
    for world in World::everyone() {
        world.write("a.txt", "1");
        world.write("d/b.txt", "2");
        world.link("l", "a.txt");
        let list = |arguments: Value| {
            let result = world.exec(0, "file_list", arguments);
            let entries = data(&result)["entries"].as_array().unwrap().clone();
            let path = |entry: &Value| entry["path"].as_str().unwrap().to_owned();
            entries.iter().map(path).collect::<Vec<_>>()
        };
        let before = world.everything();
        assert_eq!(list(json!({ "path": "." })), ["a.txt", "d", "l"]);
        assert_eq!(
            list(json!({ "path": ".", "glob": "*.txt", "depth": 2 })),
            ["a.txt", "d/b.txt"]
        );
        world.is_still(&before);
        world.dry("file_list", json!({ "path": "." }));
        world.wrong(
            "file_list",
            &[
                (json!({}), "path"),
                (json!({ "path": "" }), "path"),
                (json!({ "path": ".", "depth": 0 }), "depth"),
                (json!({ "path": ".", "depth": 65 }), "depth"),
                (json!({ "path": ".", "depth": "all" }), "depth"),
                (json!({ "path": ".", "glob": "[" }), "glob"),
                (json!({ "path": ".", "all": true }), "all"),
            ],
        );
        world.link("folder", world.at("outside"));
        let out = "outside of the allowed roots";
        let paths = ["/etc", "..", "../outside", "folder"];
        world.denied(
            "file_list",
            &paths.map(|path| (json!({ "path": path }), out)),
        );
        let policy = "version = 1\n[files.read]\ndeny = [\"**/d\"]\n";
        world.forbidden("file_list", json!({ "path": "d" }), policy, 3);
        world.forbidden("file_list", json!({ "path": "." }), NO_TOOL, 4);
        world.is_well();
    }
}

#[test]
fn search() {
    for world in World::everyone() {
        world.write("a.txt", "one\ntwo needles\n");
        world.write("d/b.rs", "needle\n");
        world.write("ignored", "needle\n");
        world.write(".gitignore", "ignored\n");
        world.link("folder", world.at("outside"));
        let before = world.everything();
        let result = world.exec(0, "search", json!({ "pattern": "need.e" }));
        let matches = data(&result)["matches"].as_array().unwrap();
        let found = |entry: &Value| {
            (
                entry["path"].as_str().unwrap().to_owned(),
                entry["line"].as_u64(),
            )
        };
        let found: Vec<_> = matches.iter().map(found).collect();
        assert_eq!(
            found,
            [
                ("a.txt".to_owned(), Some(2)),
                ("d/b.rs".to_owned(), Some(1))
            ]
        );
        assert_eq!(matches[0]["column"], 5);
        assert_eq!(result["spawned"], json!([]), "no other process");
        let few = json!({ "pattern": "e", "path": "a.txt", "max_matches": 1 });
        let result = world.exec(0, "search", few);
        assert_eq!(data(&result)["truncated"], true);
        let result = world.exec(0, "search", json!({ "pattern": "secret", "glob": "*" }));
        assert_eq!(
            data(&result)["matches"],
            json!([]),
            "links are not followed"
        );
        let result = world.exec(124, "search", json!({ "pattern": "x", "timeout": 0.001 }));
        assert_eq!(
            message(&result),
            "Execution failed: it took longer than 1ms"
        );
        world.is_still(&before);
        world.dry("search", json!({ "pattern": "x" }));
        world.wrong(
            "search",
            &[
                (json!({}), "pattern"),
                (json!({ "pattern": "(" }), "pattern"),
                (json!({ "pattern": "x", "path": "" }), "path"),
                (json!({ "pattern": "x", "glob": "[" }), "glob"),
                (json!({ "pattern": "x", "max_matches": 0 }), "max_matches"),
                (
                    json!({ "pattern": "x", "max_matches": 10_001 }),
                    "max_matches",
                ),
                (json!({ "pattern": "x", "timeout": 0 }), "timeout"),
                (json!({ "pattern": "x", "timeout": 3601 }), "timeout"),
                (json!({ "pattern": "x", "case": false }), "case"),
            ],
        );
        world.link("absolute", world.at("outside/secret"));
        let out = "outside of the allowed roots";
        let paths = [
            "/etc/passwd",
            "/etc",
            "..",
            "../outside/secret",
            "folder",
            "absolute",
        ];
        let cases = paths.map(|path| (json!({ "pattern": "x", "path": path }), out));
        world.denied("search", &cases);
        world.write("key.pem", "needle");
        let key = json!({ "pattern": "needle", "path": "key.pem" });
        world.forbidden("search", key, NO_KEYS, 3);
        let no_search = "version = 1\n[tools]\ndeny = [\"search\"]\n";
        world.forbidden("search", json!({ "pattern": "x" }), no_search, 3);
        world.is_well();
    }
}

/// While a job goes on, somebody swaps a directory on its way with a link that leads out. Whatever comes of it, nothing
/// outside is read or changed.
#[test]
fn a_link_that_is_swapped_in_leads_nowhere() {
    for world in World::everyone() {
        world.write("d/x", "inside");
        fs::write(world.at("outside/x"), "outside").unwrap();
        world.link("swapped", world.at("outside"));
        let outside = crate::world::tree(&world.at("outside"));
        let (real, link) = (world.work().join("d"), world.work().join("swapped"));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    renameat_with(CWD, &real, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                }
            });
            let jobs = [
                ("file_read", json!({ "path": "d/x" })),
                ("file_write", json!({ "path": "d/x", "content": "inside" })),
                (
                    "file_edit",
                    json!({ "path": "d/x", "old": "side", "new": "side!" }),
                ),
                ("file_list", json!({ "path": "d" })),
                ("search", json!({ "pattern": "outside", "path": "d" })),
                ("file_delete", json!({ "path": "d/x" })),
            ];
            for (capability, arguments) in jobs.iter().cycle().take(24) {
                let output = world
                    .exec_command(capability, arguments, &[])
                    .output()
                    .unwrap();
                let code = output.status.code().unwrap();
                assert!([0, 1, 121].contains(&code), "{capability}: {output:?}");
                let result = world.result(code, &output, capability);
                assert!(
                    !data(&result).to_string().contains("\"outside\""),
                    "{result}"
                );
            }
            over.store(true, Ordering::Relaxed);
        });
        crate::world::same(&outside, &crate::world::tree(&world.at("outside")));
        world.is_well();
    }
}

/// Even where the store lies in the working directory, a job cannot touch it.
#[test]
fn the_store_is_out_of_reach() {
    for world in World::everyone() {
        world.exec(0, "file_list", json!({ "path": "." }));
        let (folder, store) = (world.at(""), world.home());
        let journal = store.join("jobs/journal.ndjson");
        let allow = ["--allow", folder.to_str().unwrap()];
        let head = fs::read(&journal).unwrap();
        for (capability, arguments) in [
            ("file_read", json!({ "path": journal })),
            ("file_write", json!({ "path": journal, "content": "" })),
            ("file_delete", json!({ "path": store, "recursive": true })),
            ("file_delete", json!({ "path": journal })),
            ("file_list", json!({ "path": store })),
        ] {
            let result = world.exec_with(121, capability, arguments, &allow);
            assert!(message(&result).starts_with("Denied: "), "{result}");
        }
        let command = format!(
            "cat {0}; echo x > {0}; rm -rf {1}",
            journal.display(),
            store.display()
        );
        let result = world.exec_with(1, "shell", json!({ "command": command }), &allow);
        assert_eq!(data(&result)["stdout"], "");
        assert!(fs::read(&journal).unwrap().starts_with(&head));
        world.is_well();
    }
}
