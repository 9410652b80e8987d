//! Somebody else changes the same files at the same time.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::support::{World, sha256, tree};

/// Runs a capability while somebody else acts between the keeping and the change.
fn against(world: &mut World, act: impl FnMut() + 'static, name: &str, args: Value) -> String {
    world.keeper.before_changes = Some(Box::new(act));
    let job = world.run(name, args);
    world.keeper.before_changes = None;
    job.failure()
}

#[test]
fn what_another_wrote_meanwhile_stays() {
    for (name, args) in [
        ("file_write", json!({"path": "f", "content": "ours"})),
        (
            "file_write",
            json!({"path": "f", "content": "ours", "append": true}),
        ),
        (
            "file_edit",
            json!({"path": "f", "old": "old", "new": "ours"}),
        ),
        ("file_delete", json!({"path": "f"})),
    ] {
        let mut world = World::new();
        world.write("f", "old");
        let path = world.path("f");
        let failure = against(
            &mut world,
            move || fs::write(&path, "other").unwrap(),
            name,
            args,
        );
        assert!(failure.starts_with("conflict: "), "{name}: {failure}");
        assert_eq!(world.read("f"), b"other", "{name}");
    }
}

#[test]
fn what_another_created_meanwhile_stays() {
    let mut world = World::new();
    let path = world.path("f");
    let args = json!({"path": "f", "content": "ours"});
    let failure = against(
        &mut world,
        move || fs::write(&path, "other").unwrap(),
        "file_write",
        args,
    );
    assert!(failure.starts_with("conflict: "), "{failure}");
    assert_eq!(world.read("f"), b"other");
}

#[test]
fn a_tree_that_grows_while_it_is_deleted_comes_back() {
    let mut world = World::new();
    fs::create_dir_all(world.path("t/sub")).unwrap();
    world.write("t/a", "a");
    world.write("t/sub/b", "b");
    let path = world.path("t/new");
    let args = json!({"path": "t", "recursive": true});
    let failure = against(
        &mut world,
        move || fs::write(&path, "new").unwrap(),
        "file_delete",
        args,
    );
    assert!(failure.starts_with("conflict: "), "{failure}");
    assert_eq!(world.read("t/a"), b"a");
    assert_eq!(world.read("t/sub/b"), b"b");
    assert_eq!(world.read("t/new"), b"new");
}

#[test]
fn a_directory_that_became_a_link_is_not_followed() {
    let mut world = World::new();
    let outside = world.outside("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "theirs").unwrap();
    fs::create_dir(world.path("d")).unwrap();
    world.write("d/f", "theirs");
    let (dir, aside, to) = (world.path("d"), world.path("aside"), outside.clone());
    let swap = move || {
        fs::rename(&dir, &aside).unwrap();
        symlink(&to, &dir).unwrap();
    };
    let args = json!({"path": "d/f", "content": "ours"});
    against(&mut world, swap, "file_write", args);
    assert_eq!(fs::read(outside.join("f")).unwrap(), b"theirs");
    assert_eq!(world.read("aside/f"), b"theirs");
}

#[test]
fn links_that_are_swapped_all_the_time_never_lead_out() {
    let mut world = World::new();
    let outside = world.outside("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "secret").unwrap();
    fs::create_dir(world.path("real")).unwrap();
    world.write("real/f", "inside");
    fs::rename(world.path("real"), world.path("d")).unwrap();
    let before = tree(&outside);
    let stop = AtomicBool::new(false);
    let (dir, aside) = (world.path("d"), world.path("aside"));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&dir, &aside).unwrap();
                symlink(&outside, &dir).unwrap();
                fs::remove_file(&dir).unwrap();
                fs::rename(&aside, &dir).unwrap();
            }
        });
        for round in 0..400 {
            let read = world.run("file_read", json!({"path": "d/f"}));
            if let Ok(output) = &read.result {
                assert_ne!(output.data["content"], "secret");
            }
            let content = format!("round {round}");
            // These fail or work; where they work is what matters.
            world.run("file_write", json!({"path": "d/f", "content": content}));
            world.run("file_write", json!({"path": "d/new", "content": content}));
            world.run("file_delete", json!({"path": "d/new"}));
            let found = world.run("search", json!({"pattern": "secret"}));
            if let Ok(output) = &found.result {
                assert_eq!(output.data["matches"], json!([]));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(tree(&outside), before);
}

#[test]
fn readers_see_the_old_file_or_the_new_one() {
    let mut world = World::new();
    let contents = ["a".repeat(100_000), "b".repeat(200_000)];
    world.write("f", &contents[0]);
    let known = contents.clone().map(|content| sha256(content.as_bytes()));
    let path = world.path("f");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) {
                assert!(known.contains(&sha256(&fs::read(&path).unwrap())));
                seen += 1;
            }
            seen
        });
        for round in 0..60 {
            world
                .run(
                    "file_write",
                    json!({"path": "f", "content": contents[(round + 1) % 2]}),
                )
                .data();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
}

#[test]
fn the_last_write_of_another_is_never_lost() {
    let mut world = World::new();
    let path = world.path("f");
    let mut refused = 0;
    for round in 0..150 {
        world.write("f", "start");
        let last = thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut last = String::new();
                for write in 0..30 {
                    last = format!("other {round} {write}");
                    let new = path.with_extension("new");
                    fs::write(&new, &last).unwrap();
                    fs::rename(&new, &path).unwrap();
                }
                last
            });
            let job = world.run("file_write", json!({"path": "f", "content": "ours"}));
            let last = other.join().unwrap();
            (job, last)
        });
        let (job, last) = last;
        let now = String::from_utf8(world.read("f")).unwrap();
        match job.result {
            Ok(_) => assert!(now == "ours" || now == last, "{now}"),
            Err(failure) => {
                assert_eq!(now, last, "{failure}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "there was never a race");
}
