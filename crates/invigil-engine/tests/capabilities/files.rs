//! Reading, writing, editing, deleting, listing, searching.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::process::Command;

use serde_json::json;

use super::support::{World, is_root, mode, set_mode, sha256, tree};

#[test]
fn a_file_is_read_whole_and_in_parts() {
    let mut world = World::new();
    world.write("a.md", "one two");
    let job = world.run("file_read", json!({"path": "a.md"}));
    assert_eq!(
        *job.data(),
        json!({
            "content": "one two", "encoding": "utf-8", "bytes_read": 7, "size": 7,
            "truncated": false, "content_type": "text/markdown", "sha256": sha256(b"one two"),
        })
    );
    let part = world.run(
        "file_read",
        json!({"path": "a.md", "offset": 4, "max_bytes": 2}),
    );
    assert_eq!(part.data()["content"], "tw");
    assert_eq!(part.data()["truncated"], true);
    assert_eq!(part.data()["sha256"], json!(sha256(b"tw")));
    let rest = world.run(
        "file_read",
        json!({"path": "a.md", "offset": 4, "max_bytes": 3}),
    );
    assert_eq!(rest.data()["truncated"], false);
    let beyond = world.run("file_read", json!({"path": "a.md", "offset": 100}));
    assert_eq!(beyond.data()["bytes_read"], 0);
    assert!(
        world
            .run("file_read", json!({"path": "none"}))
            .failure()
            .contains("No such file")
    );
    let absolute = json!({"path": world.path("a.md")});
    assert_eq!(world.run("file_read", absolute).data()["size"], 7);
}

#[test]
fn bytes_that_are_not_text_come_as_base64_and_characters_stay_whole() {
    let mut world = World::new();
    world.write("b", b"\x89PNG\r\n\x1a\n\xff");
    let job = world.run("file_read", json!({"path": "b"}));
    assert_eq!(job.data()["encoding"], "base64");
    assert_eq!(job.data()["content"], "iVBORw0KGgr/");
    assert_eq!(job.data()["content_type"], "image/png");
    world.write("u", "aü");
    let cut = world.run("file_read", json!({"path": "u", "max_bytes": 2}));
    assert_eq!(cut.data()["content"], "a");
    assert_eq!(cut.data()["bytes_read"], 1);
    let half = world.run(
        "file_read",
        json!({"path": "u", "max_bytes": 1, "offset": 1}),
    );
    assert_eq!(half.data()["encoding"], "base64");
    world.write("z", b"a\0b");
    let zero = world.run("file_read", json!({"path": "z"}));
    assert_eq!(zero.data()["content_type"], "application/octet-stream");
}

#[test]
fn the_limit_holds_for_a_file_that_is_mostly_holes() {
    let mut world = World::new();
    let file = fs::File::create(world.path("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    let job = world.run("file_read", json!({"path": "sparse", "max_bytes": 10}));
    assert_eq!(job.data()["bytes_read"], 10);
    assert_eq!(job.data()["size"], 1_u64 << 40);
}

#[test]
fn nothing_waits_for_a_fifo() {
    let mut world = World::new();
    let made = Command::new("mkfifo")
        .arg(world.path("pipe"))
        .status()
        .unwrap();
    assert!(made.success());
    let path = json!({"path": "pipe"});
    assert!(
        world
            .run("file_read", path.clone())
            .failure()
            .contains("a FIFO")
    );
    assert!(world.run("file_delete", path).failure().contains("a FIFO"));
    let write = json!({"path": "pipe", "content": ""});
    assert!(world.run("file_write", write).failure().contains("a FIFO"));
    let edit = json!({"path": "pipe", "old": "a", "new": "b"});
    assert!(world.run("file_edit", edit).failure().contains("a FIFO"));
    assert_eq!(
        world.run("search", json!({"pattern": "a"})).data()["matches"],
        json!([])
    );
    assert_eq!(
        world.run("file_list", json!({"path": "."})).data()["entries"][0]["type"],
        "fifo"
    );
}

#[test]
fn a_new_file_is_written_and_undo_removes_it() {
    let mut world = World::new();
    let before = tree(&world.dir);
    let args = json!({"path": "a..b.txt", "content": "hello"});
    let dry = world.dry_run("file_write", args.clone());
    assert_eq!(dry.data()["sha256_after"], json!(sha256(b"hello")));
    let job = world.run("file_write", args);
    assert_eq!(world.read("a..b.txt"), b"hello");
    assert_eq!(job.data()["bytes_written"], 5);
    assert_eq!(job.data()["created"], true);
    assert_eq!(job.data()["backup"], json!(null));
    assert_eq!(job.kept.len(), 1);
    let undo = world.undo(&job);
    assert_eq!(undo.data()["restored"], json!([world.path("a..b.txt")]));
    assert_eq!(tree(&world.dir), before);
    let redo = world.undo(&undo);
    assert_eq!(redo.data()["conflicts"], json!([]));
    assert_eq!(world.read("a..b.txt"), b"hello");
}

#[test]
fn a_new_file_has_the_mode_of_any_new_file() {
    let mut world = World::new();
    world.run("file_write", json!({"path": "ours", "content": ""}));
    world.write("theirs", "");
    assert_eq!(mode(&world.path("ours")), mode(&world.path("theirs")));
}

#[test]
fn an_overwrite_keeps_mode_owner_and_attributes() {
    let mut world = World::new();
    world.write("f", "old");
    set_mode(&world.path("f"), 0o640);
    if is_root() {
        std::os::unix::fs::chown(world.path("f"), Some(12345), Some(54321)).unwrap();
    }
    let flags = rustix::fs::XattrFlags::empty();
    let attributed = rustix::fs::setxattr(world.path("f"), "user.test", b"x", flags).is_ok();
    let before = tree(&world.dir);
    let job = world.run(
        "file_write",
        json!({"path": "f", "content": "bmV3", "encoding": "base64"}),
    );
    assert_eq!(world.read("f"), b"new");
    assert_eq!(job.data()["backup"], json!(sha256(b"old")));
    assert_eq!(job.data()["sha256_after"], json!(sha256(b"new")));
    let expected = before[std::path::Path::new("f")]
        .replace(&sha256(b"old").to_string(), &sha256(b"new").to_string());
    assert_eq!(tree(&world.dir)[std::path::Path::new("f")], expected);
    assert!(!attributed || expected.contains("\"x\""), "{expected}");
    assert_eq!(world.undo(&job).data()["conflicts"], json!([]));
    assert_eq!(tree(&world.dir), before);
}

#[test]
fn rights_of_whoever_starts_a_file_are_not_given_to_new_content() {
    let mut world = World::new();
    world.write("f", "old");
    set_mode(&world.path("f"), 0o4755);
    let before = tree(&world.dir);
    let job = world.run("file_write", json!({"path": "f", "content": "new"}));
    assert_eq!(mode(&world.path("f")), 0o755);
    world.undo(&job).data();
    assert_eq!(tree(&world.dir), before);
}

#[test]
fn more_is_added_to_the_end() {
    let mut world = World::new();
    world.write("f", "one");
    let args = json!({"path": "f", "content": " two", "append": true});
    let dry = world.dry_run("file_write", args.clone());
    assert_eq!(dry.data()["sha256_after"], json!(sha256(b"one two")));
    let job = world.run("file_write", args);
    assert_eq!(world.read("f"), b"one two");
    assert_eq!(job.data()["bytes_written"], 4);
    world.undo(&job).data();
    assert_eq!(world.read("f"), b"one");
    world
        .run(
            "file_write",
            json!({"path": "new", "content": "x", "append": true}),
        )
        .data();
    assert_eq!(world.read("new"), b"x");
}

#[test]
fn a_write_that_expects_something_else_does_nothing() {
    let mut world = World::new();
    world.write("f", "theirs");
    let expect =
        |content: &[u8]| json!({"path": "f", "content": "ours", "expect_sha256": sha256(content)});
    let job = world.run("file_write", expect(b"other"));
    assert!(job.failure().contains("not as expected"), "{job:?}");
    assert_eq!(world.read("f"), b"theirs");
    world.run("file_write", expect(b"theirs")).data();
    assert_eq!(world.read("f"), b"ours");
    let mut absent = expect(b"");
    absent["path"] = json!("none");
    assert!(
        world
            .run("file_write", absent)
            .failure()
            .contains("does not exist")
    );
}

#[test]
fn directories_are_made_only_when_asked_for() {
    let mut world = World::new();
    let before = tree(&world.dir);
    let args = json!({"path": "a/b/c.txt", "content": "x"});
    assert!(
        world
            .run("file_write", args.clone())
            .failure()
            .contains("No such file")
    );
    assert_eq!(tree(&world.dir), before);
    let args = json!({"path": "a/b/c.txt", "content": "x", "parents": true});
    world.dry_run("file_write", args.clone()).data();
    let job = world.run("file_write", args);
    assert_eq!(world.read("a/b/c.txt"), b"x", "{:?}", job.result);
    assert_eq!(job.kept.len(), 3);
    world.undo(&job).data();
    assert_eq!(tree(&world.dir), before);
    let out = json!({"path": "x/../../c", "content": "x", "parents": true});
    assert!(world.run("file_write", out).result.is_err());
    assert_eq!(tree(world.dir.parent().unwrap()).len(), 1);
}

#[test]
fn a_write_through_a_link_changes_what_it_leads_to() {
    let mut world = World::new();
    world.write("target", "old");
    symlink("target", world.path("link")).unwrap();
    let job = world.run("file_write", json!({"path": "link", "content": "new"}));
    job.data();
    assert_eq!(world.read("target"), b"new");
    assert!(world.path("link").is_symlink());
    world.undo(&job).data();
    assert_eq!(world.read("target"), b"old");
    symlink("nowhere", world.path("dangling")).unwrap();
    let job = world.run("file_write", json!({"path": "dangling", "content": "new"}));
    assert!(job.failure().contains("leads to nothing"));
    assert!(!world.path("nowhere").exists());
}

#[test]
fn a_write_that_fails_leaves_nothing_behind() {
    let mut world = World::new();
    fs::create_dir(world.path("d")).unwrap();
    assert!(
        world
            .run("file_write", json!({"path": "d", "content": ""}))
            .result
            .is_err()
    );
    assert!(
        world
            .run("file_write", json!({"path": ".", "content": ""}))
            .result
            .is_err()
    );
    if !is_root() {
        set_mode(&world.path("d"), 0o555);
        let job = world.run("file_write", json!({"path": "d/f", "content": ""}));
        assert!(job.result.unwrap_err().denied);
    }
    assert_eq!(tree(&world.dir).len(), 1);
}

#[test]
fn an_edit_shows_its_difference() {
    let mut world = World::new();
    world.write("f.txt", "one\ntwo\nthree\n");
    set_mode(&world.path("f.txt"), 0o600);
    let args = json!({"path": "f.txt", "old": "two", "new": "2"});
    let dry = world.dry_run("file_edit", args.clone());
    let job = world.run("file_edit", args.clone());
    assert_eq!(world.read("f.txt"), b"one\n2\nthree\n");
    assert_eq!(mode(&world.path("f.txt")), 0o600);
    let diff = "--- a/f.txt\n+++ b/f.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n";
    assert_eq!(job.data()["diff"], diff);
    assert_eq!(dry.data(), job.data());
    assert!(
        world
            .run("file_edit", args)
            .failure()
            .contains("occurs 0 times")
    );
    world.undo(&job).data();
    assert_eq!(world.read("f.txt"), b"one\ntwo\nthree\n");
}

#[test]
fn an_edit_replaces_as_often_as_expected_or_not_at_all() {
    let mut world = World::new();
    world.write("f", "a a a");
    let args = |count| json!({"path": "f", "old": "a", "new": "b", "expect_count": count});
    assert!(
        world
            .run("file_edit", args(2))
            .failure()
            .contains("occurs 3 times")
    );
    assert_eq!(world.read("f"), b"a a a");
    assert_eq!(world.run("file_edit", args(3)).data()["replacements"], 3);
    assert_eq!(world.read("f"), b"b b b");
    world.write("g", b"a\xff");
    let job = world.run("file_edit", json!({"path": "g", "old": "a", "new": "b"}));
    assert!(job.failure().contains("not UTF-8"));
}

#[test]
fn a_tree_is_deleted_and_comes_back_as_it_was() {
    let mut world = World::new();
    fs::create_dir_all(world.path("t/empty")).unwrap();
    fs::create_dir_all(world.path("t/sub")).unwrap();
    world.write("t/über.txt", "u");
    world.write("t/sub/x", "x");
    world.write("t/sub/y", "x");
    symlink("../über.txt", world.path("t/sub/link")).unwrap();
    symlink("/etc/passwd", world.path("t/out")).unwrap();
    set_mode(&world.path("t/sub/x"), 0o400);
    set_mode(&world.path("t/empty"), 0o700);
    let before = tree(&world.dir);
    let refused = world.run("file_delete", json!({"path": "t"}));
    assert!(refused.failure().contains("not empty"));
    let args = json!({"path": "t", "recursive": true});
    let dry = world.dry_run("file_delete", args.clone());
    let job = world.run("file_delete", args);
    assert_eq!(dry.data(), job.data());
    assert_eq!(job.data()["entries"], 8);
    assert!(tree(&world.dir).is_empty());
    let undo = world.undo(&job);
    assert_eq!(undo.data()["restored"].as_array().unwrap().len(), 8);
    assert_eq!(tree(&world.dir), before);
    world.undo(&undo).data();
    assert!(tree(&world.dir).is_empty());
}

#[test]
fn of_a_link_the_link_is_deleted() {
    let mut world = World::new();
    world.write("target", "x");
    symlink("target", world.path("link")).unwrap();
    let job = world.run("file_delete", json!({"path": "link"}));
    assert!(!world.path("link").is_symlink());
    assert_eq!(world.read("target"), b"x");
    world.undo(&job).data();
    assert!(world.path("link").is_symlink());
    assert!(
        world
            .run("file_delete", json!({"path": "none"}))
            .failure()
            .contains("no such file")
    );
    for path in [".", "..", "x/..", "./."] {
        let job = world.run("file_delete", json!({"path": path, "recursive": true}));
        assert!(job.result.is_err(), "{path}");
    }
    let root = json!({"path": world.dir, "recursive": true});
    assert!(world.run("file_delete", root).result.is_err());
    assert_eq!(world.read("target"), b"x");
}

#[test]
fn a_directory_is_listed() {
    let mut world = World::new();
    fs::create_dir_all(world.path("d/e")).unwrap();
    world.write("d/a.rs", "abc");
    world.write("d/e/b.rs", "");
    symlink("a.rs", world.path("d/link")).unwrap();
    let list = |world: &mut World, args| {
        let job = world.run("file_list", args);
        let entries = job.data()["entries"].as_array().unwrap().clone();
        entries
            .iter()
            .map(|entry| entry["path"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let job = world.run("file_list", json!({"path": "d"}));
    let entries = &job.data()["entries"];
    assert_eq!(entries[0]["path"], "a.rs");
    assert_eq!(entries[0]["size"], 3);
    assert_eq!(entries[1]["type"], "directory");
    assert_eq!(entries[2]["target"], "a.rs");
    assert_eq!(
        list(&mut world, json!({"path": "d", "depth": 2})),
        ["a.rs", "e", "e/b.rs", "link"]
    );
    let deep = json!({"path": "d", "depth": 9, "glob": "*.rs"});
    assert_eq!(list(&mut world, deep), ["a.rs", "e/b.rs"]);
    let whole = json!({"path": ".", "depth": 9, "glob": "d/*.rs"});
    assert_eq!(list(&mut world, whole), ["d/a.rs"]);
    assert!(
        world
            .run("file_list", json!({"path": "d/a.rs"}))
            .result
            .is_err()
    );
}

#[test]
fn a_list_has_an_end() {
    let mut world = World::new();
    for name in 0..10_001 {
        world.write(name.to_string(), "");
    }
    let job = world.run("file_list", json!({"path": "."}));
    assert_eq!(job.data()["entries"].as_array().unwrap().len(), 10_000);
    assert_eq!(job.data()["truncated"], true);
}

#[test]
fn a_pattern_is_searched_for() {
    let mut world = World::new();
    fs::create_dir_all(world.path("src/gen")).unwrap();
    fs::create_dir_all(world.path(".git")).unwrap();
    world.write("src/a.rs", "fn main() {\n    über();\n}\n");
    world.write("src/b.txt", "fn other\n");
    world.write("src/gen/c.rs", "fn generated\n");
    world.write("src/.gitignore", "gen/\n");
    world.write(".git/x.rs", "fn hidden\n");
    world.write("bin", b"fn\0binary\n");
    symlink("/etc", world.path("etc")).unwrap();
    let job = world.run("search", json!({"pattern": r"fn \w+"}));
    let found = &job.data()["matches"];
    assert_eq!(found.as_array().unwrap().len(), 2, "{found}");
    assert_eq!(
        found[0],
        json!({"path": "src/a.rs", "line": 1, "column": 1, "text": "fn main() {"})
    );
    let job = world.run(
        "search",
        json!({"pattern": "ber", "glob": "*.rs", "path": "src"}),
    );
    assert_eq!(job.data()["matches"][0]["path"], "a.rs");
    assert_eq!(job.data()["matches"][0]["line"], 2);
    let job = world.run("search", json!({"pattern": "fn", "max_matches": 1}));
    assert_eq!(job.data()["matches"].as_array().unwrap().len(), 1);
    assert_eq!(job.data()["truncated"], true);
    let job = world.run(
        "search",
        json!({"pattern": "gener", "path": "src/gen/c.rs"}),
    );
    assert_eq!(job.data()["matches"][0]["column"], 4);
    assert!(
        world
            .run("search", json!({"pattern": "a", "path": "none"}))
            .result
            .is_err()
    );
}

#[test]
fn what_may_not_be_read_is_named_by_a_search() {
    if is_root() {
        return;
    }
    let mut world = World::new();
    let closed = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o200)
        .open(world.path("f"));
    closed.unwrap();
    let job = world.run("search", json!({"pattern": "a"}));
    assert_eq!(job.data()["files_skipped"], json!(["f"]));
}
