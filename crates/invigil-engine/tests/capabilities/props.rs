//! Any sequence of changes, taken back in reverse, gives the same tree again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::{World, set_mode, tree};

const NAMES: [&str; 5] = ["a", "b", "ü", "c..d", "l"];

/// A path of one to three names.
fn path() -> impl Strategy<Value = String> {
    let name = prop::sample::select(NAMES.as_slice());
    prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"))
}

#[derive(Debug, Clone)]
enum Start {
    File(String, u32, Vec<u8>, bool),
    Directory(String, u32),
    Link(String, String),
}

fn start() -> impl Strategy<Value = Start> {
    let modes =
        prop::sample::select([0o644, 0o600, 0o755, 0o400, 0o444, 0o6755, 0o1777].as_slice());
    let directories = prop::sample::select([0o755, 0o700, 0o555, 0o1777, 0o2755].as_slice());
    let content = prop::collection::vec(prop::sample::select(b"xyz\n\0\xff".as_slice()), 0..20);
    let target = prop_oneof![
        path(),
        Just("/etc/passwd".to_owned()),
        Just("../..".to_owned())
    ];
    prop_oneof![
        4 => (path(), modes, content, any::<bool>()).prop_map(|(p, m, c, x)| Start::File(p, m, c, x)),
        2 => (path(), directories).prop_map(|(p, m)| Start::Directory(p, m)),
        1 => (path(), target).prop_map(|(p, t)| Start::Link(p, t)),
    ]
}

fn act() -> impl Strategy<Value = (&'static str, Value)> {
    let text = "[xyz\n]{0,8}";
    prop_oneof![
        3 => (path(), text, any::<bool>(), any::<bool>()).prop_map(|(path, content, append, parents)| {
            ("file_write", json!({"path": path, "content": content, "append": append, "parents": parents}))
        }),
        2 => (path(), 1..4_usize).prop_map(|(path, count)| {
            ("file_edit", json!({"path": path, "old": "x", "new": "new", "expect_count": count}))
        }),
        3 => (path(), any::<bool>()).prop_map(|(path, recursive)| {
            ("file_delete", json!({"path": path, "recursive": recursive}))
        }),
    ]
}

/// Makes what can be made; what stands in the way of something else stays.
fn make(dir: &Path, start: &[Start]) {
    let mut closed: Vec<(PathBuf, u32)> = Vec::new();
    for thing in start {
        let (Start::File(path, ..) | Start::Directory(path, _) | Start::Link(path, _)) = thing;
        let path = dir.join(path);
        let inside = path.parent().is_some_and(|parent| {
            fs::create_dir_all(parent).is_ok()
                && parent
                    .canonicalize()
                    .is_ok_and(|real| real.starts_with(dir))
        });
        if !inside || path.symlink_metadata().is_ok() {
            continue;
        }
        match thing {
            Start::File(_, mode, content, attribute) => {
                fs::write(&path, content).unwrap();
                if *attribute {
                    let flags = rustix::fs::XattrFlags::empty();
                    // Not every file system has them.
                    let _ = rustix::fs::setxattr(&path, "user.test", content, flags);
                }
                set_mode(&path, *mode);
            }
            Start::Directory(_, mode) => {
                fs::create_dir(&path).unwrap();
                closed.push((path, *mode));
            }
            Start::Link(_, target) => symlink(target, &path).unwrap(),
        }
    }
    for (path, mode) in closed {
        set_mode(&path, mode);
    }
}

/// So that a temporary directory can be removed by whoever is not root.
fn open(dir: &Path) {
    for (path, what) in tree(dir) {
        if what.starts_with("dir") {
            set_mode(&dir.join(path), 0o755);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn everything_taken_back_in_reverse_gives_the_same_tree(
        start in prop::collection::vec(start(), 0..12),
        acts in prop::collection::vec(act(), 1..10),
    ) {
        let mut world = World::new();
        make(&world.dir, &start);
        let mut states = vec![tree(&world.dir)];
        let mut jobs = Vec::new();
        for (name, args) in acts {
            let dry = world.dry_run(name, args.clone());
            let job = world.run(name, args);
            prop_assert!(dry.result.is_ok() || job.result.is_err(), "{dry:?} {job:?}");
            if job.result.is_err() {
                prop_assert_eq!(&tree(&world.dir), states.last().unwrap(), "{:?}", job);
                continue;
            }
            states.push(tree(&world.dir));
            jobs.push(job);
        }
        let mut undone = Vec::new();
        for job in jobs.iter().rev() {
            states.pop();
            let undo = world.undo(job);
            prop_assert!(undo.result.is_ok(), "{:?} {:?}", job, undo.result);
            prop_assert_eq!(&tree(&world.dir), states.last().unwrap(), "{:?}", job);
            undone.push(undo);
        }
        // And forward again, by taking back the taking back.
        if let Some(undo) = undone.pop().filter(|undo| !undo.kept.is_empty()) {
            let again = world.undo(&undo);
            prop_assert!(again.result.is_ok(), "{:?}", again.result);
        }
        open(&world.dir);
    }
}
