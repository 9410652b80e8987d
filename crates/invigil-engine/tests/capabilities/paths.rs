//! What is below an allowed root and what is not.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::support::{World, tree};

/// Every capability that takes a path, with this one.
fn all(path: &Value) -> Vec<(&'static str, Value)> {
    vec![
        ("file_read", json!({"path": path})),
        ("file_write", json!({"path": path, "content": "x"})),
        (
            "file_write",
            json!({"path": path, "content": "x", "parents": true}),
        ),
        (
            "file_write",
            json!({"path": path, "content": "x", "append": true}),
        ),
        (
            "file_edit",
            json!({"path": path, "old": "secret", "new": "x"}),
        ),
        ("file_delete", json!({"path": path, "recursive": true})),
        ("file_list", json!({"path": path})),
        ("search", json!({"pattern": "secret", "path": path})),
        ("git", json!({"operation": "status", "path": path})),
        (
            "git",
            json!({"operation": "clone", "path": path, "url": "."}),
        ),
        (
            "git",
            json!({"operation": "clone", "path": "copy", "url": path}),
        ),
    ]
}

fn is_refused(world: &mut World, path: Value) {
    let before = tree(world.dir.parent().unwrap());
    for (name, args) in all(&path) {
        if args["url"] == json!(path) && !path.is_string() {
            continue;
        }
        let job = world.run(name, args.clone());
        let failure = job
            .result
            .expect_err(&format!("{name} {args} is not refused"));
        assert!(!failure.to_string().contains("secret"), "{failure}");
        assert!(failure.denied, "{name} {args}: {failure}");
    }
    assert_eq!(tree(world.dir.parent().unwrap()), before);
}

#[test]
fn nothing_outside_is_reached() {
    let mut world = World::new();
    let beside = world.outside("workshop");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("f"), "secret").unwrap();
    fs::create_dir(world.path("d")).unwrap();
    symlink(&beside, world.path("absolute")).unwrap();
    symlink("../workshop", world.path("relative")).unwrap();
    for path in [
        "../workshop/f",
        "d/../../workshop/f",
        "absolute/f",
        "relative/f",
        "/etc/passwd",
        "/",
    ] {
        is_refused(&mut world, json!(path));
    }
    is_refused(&mut world, json!(beside.join("f")));
    is_refused(&mut world, json!(beside));
    let up = json!(world.path("../workshop/f"));
    is_refused(&mut world, up);
    let bytes = STANDARD.encode(
        beside
            .join(OsStr::from_bytes(b"\xff"))
            .as_os_str()
            .as_bytes(),
    );
    is_refused(&mut world, json!({"base64": bytes}));
}

#[test]
fn a_link_at_the_end_that_leads_out_is_not_followed() {
    let mut world = World::new();
    fs::write(world.outside("f"), "secret").unwrap();
    for target in [world.outside("f"), "../f".into()] {
        symlink(target, world.path("link")).unwrap();
        for (name, args) in all(&json!("link")) {
            if name != "file_delete" && args["url"] != "." {
                let job = world.run(name, args.clone());
                assert!(job.result.is_err(), "{name} {args}");
            }
        }
        // Of a link the link itself is deleted, wherever it leads.
        world.run("file_delete", json!({"path": "link"})).data();
        assert_eq!(fs::read(world.outside("f")).unwrap(), b"secret");
    }
}

#[test]
fn links_and_dots_that_stay_inside_are_followed() {
    let mut world = World::new();
    fs::create_dir_all(world.path("a/b")).unwrap();
    world.write("a/f", "inside");
    symlink("../..", world.path("a/b/up")).unwrap();
    for path in ["a/b/../f", "a/b/up/a/f", "./a//f", "a/b/up/a/b/../f"] {
        let job = world.run("file_read", json!({"path": path}));
        assert_eq!(job.data()["content"], "inside", "{path}");
    }
    let job = world.run(
        "file_write",
        json!({"path": "a/b/up/a/f", "content": "new"}),
    );
    assert_eq!(job.data()["path"], json!(world.path("a/f")));
    world.undo(&job).data();
    assert_eq!(world.read("a/f"), b"inside");
}

#[test]
fn unusual_names_are_names() {
    let mut world = World::new();
    let odd: [&[u8]; 6] = [
        b"a..b.txt",
        "über.txt".as_bytes(),
        b"\xff\xfe",
        b"-rf",
        b" ",
        b"...\n",
    ];
    for name in odd {
        let path = match str::from_utf8(name) {
            Ok(text) => json!(text),
            Err(_) => json!({"base64": STANDARD.encode(name)}),
        };
        let job = world.run("file_write", json!({"path": path, "content": "x"}));
        job.data();
        assert_eq!(world.read(OsStr::from_bytes(name)), b"x");
        let listed = world.run("file_list", json!({"path": "."}));
        assert_eq!(listed.data()["entries"][0]["path"], path);
        let found = world.run("search", json!({"pattern": "x"}));
        assert_eq!(found.data()["matches"][0]["path"], path);
        let deleted = world.run("file_delete", json!({"path": path}));
        world.undo(&deleted).data();
        world.undo_with(&job, json!({"path": path})).data();
        assert!(tree(&world.dir).is_empty());
    }
}

#[test]
fn another_root_is_open_if_it_is_allowed() {
    let mut world = World::new();
    let other = world.outside("other");
    fs::create_dir(&other).unwrap();
    let file = other.join("f");
    fs::write(&file, "x").unwrap();
    symlink("f", other.join("link")).unwrap();
    assert!(
        world
            .run("file_read", json!({"path": file}))
            .result
            .is_err()
    );
    world.more.push(other.clone());
    assert_eq!(
        world.run("file_read", json!({"path": file})).data()["content"],
        "x"
    );
    let job = world.run(
        "file_write",
        json!({"path": other.join("link"), "content": "y"}),
    );
    assert_eq!(fs::read(&file).unwrap(), b"y");
    world.undo(&job).data();
    assert_eq!(fs::read(&file).unwrap(), b"x");
    // Relative paths are below the working directory, and there alone.
    assert!(
        world
            .run("file_read", json!({"path": "../other/f"}))
            .result
            .is_err()
    );
    let root = json!({"path": other, "recursive": true});
    assert!(
        world
            .run("file_delete", root)
            .failure()
            .contains("a root itself")
    );
}
