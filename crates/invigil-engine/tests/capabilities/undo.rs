//! Taking back: everything or nothing, in parts, by force, and after things that went wrong.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::support::{World, set_mode, tree};

#[test]
fn what_was_changed_since_is_not_touched() {
    let mut world = World::new();
    world.write("f", "old");
    let job = world.run("file_write", json!({"path": "f", "content": "ours"}));
    world.write("f", "later");
    let before = tree(&world.dir);
    let undo = world.undo(&job);
    assert!(undo.failure().starts_with("conflict, nothing was touched"));
    let data = undo.result.unwrap_err().data.unwrap();
    assert_eq!(data["conflicts"][0]["path"], json!(world.path("f")));
    assert_eq!(data["restored"], json!([]));
    assert_eq!(undo.kept, []);
    assert_eq!(tree(&world.dir), before);
    let forced = world.undo_with(&job, json!({"force": true}));
    forced.data();
    assert_eq!(world.read("f"), b"old");
    world.undo(&forced).data();
    assert_eq!(world.read("f"), b"later");
}

#[test]
fn a_mode_that_was_changed_since_is_a_conflict() {
    let mut world = World::new();
    let job = world.run("file_write", json!({"path": "f", "content": "ours"}));
    set_mode(&world.path("f"), 0o600);
    assert!(world.undo(&job).failure().contains("changed since"));
    assert_eq!(world.read("f"), b"ours");
}

#[test]
fn one_conflict_keeps_all_of_a_tree_from_coming_back() {
    let mut world = World::new();
    fs::create_dir(world.path("t")).unwrap();
    world.write("t/a", "a");
    world.write("t/b", "b");
    let job = world.run("file_delete", json!({"path": "t", "recursive": true}));
    fs::create_dir(world.path("t")).unwrap();
    set_mode(&world.path("t"), 0o750);
    world.write("t/b", "later");
    let before = tree(&world.dir);
    let undo = world.undo(&job);
    assert!(undo.failure().contains("t/b"), "{undo:?}");
    assert_eq!(tree(&world.dir), before);
    world.undo_with(&job, json!({"force": true})).data();
    assert_eq!(world.read("t/a"), b"a");
    assert_eq!(world.read("t/b"), b"b");
}

#[test]
fn a_part_comes_back_with_the_directories_above_it() {
    let mut world = World::new();
    fs::create_dir_all(world.path("t/s")).unwrap();
    world.write("t/s/a", "a");
    world.write("t/s/b", "b");
    let job = world.run("file_delete", json!({"path": "t", "recursive": true}));
    let part = world.undo_with(&job, json!({"path": "t/s/a"}));
    assert_eq!(
        part.data()["restored"],
        json!([world.path("t"), world.path("t/s"), world.path("t/s/a")])
    );
    assert!(!world.path("t/s/b").exists());
    let rest = world.undo(&job);
    assert_eq!(rest.data()["restored"], json!([world.path("t/s/b")]));
    assert_eq!(world.read("t/s/b"), b"b");
    let other = world.undo_with(&job, json!({"path": "elsewhere"}));
    assert!(other.failure().contains("nothing at this path"));
}

#[test]
fn a_directory_that_was_made_goes_only_if_nothing_else_is_in_it() {
    let mut world = World::new();
    let args = json!({"path": "d/f", "content": "x", "parents": true});
    let job = world.run("file_write", args);
    world.write("d/other", "other");
    let undo = world.undo(&job);
    assert!(undo.failure().contains("other things"), "{undo:?}");
    assert_eq!(world.read("d/f"), b"x");
    let forced = world.undo_with(&job, json!({"force": true}));
    forced.data();
    assert!(tree(&world.dir).is_empty());
    world.undo(&forced).data();
    assert_eq!(world.read("d/other"), b"other");
}

#[test]
fn by_force_a_tree_makes_room_for_a_file() {
    let mut world = World::new();
    world.write("f", "file");
    let job = world.run("file_delete", json!({"path": "f"}));
    fs::create_dir_all(world.path("f/sub")).unwrap();
    world.write("f/sub/x", "x");
    symlink("x", world.path("f/link")).unwrap();
    let later = tree(&world.dir);
    assert!(world.undo(&job).failure().contains("changed since"));
    let forced = world.undo_with(&job, json!({"force": true}));
    forced.data();
    assert_eq!(world.read("f"), b"file");
    world.undo(&forced).data();
    assert_eq!(tree(&world.dir), later);
}

#[test]
fn a_dry_undo_touches_nothing() {
    let mut world = World::new();
    let job = world.run("file_write", json!({"path": "f", "content": "x"}));
    let before = tree(&world.dir);
    let dry = world.undo_dry(&job, json!({}), true);
    assert_eq!(dry.data()["restored"], json!([world.path("f")]));
    assert_eq!(dry.kept, []);
    assert_eq!(tree(&world.dir), before);
}

#[test]
fn a_job_that_announced_and_did_nothing_is_undone_by_doing_nothing() {
    let mut world = World::new();
    world.write("f", "old");
    let mut job = world.run("file_write", json!({"path": "f", "content": "new"}));
    world.undo(&job).data();
    let again = world.undo(&job);
    assert_eq!(again.data()["restored"], json!([]));
    assert_eq!(again.data()["unchanged"], json!([world.path("f")]));
    job.kept.clear();
    assert!(world.undo(&job).failure().contains("changed nothing"));
}

#[test]
fn an_old_place_that_is_now_behind_a_link_is_refused() {
    let mut world = World::new();
    fs::create_dir(world.path("d")).unwrap();
    world.write("d/f", "old");
    let job = world.run("file_delete", json!({"path": "d/f"}));
    let outside = world.outside("outside");
    fs::create_dir(&outside).unwrap();
    fs::remove_dir(world.path("d")).unwrap();
    symlink(&outside, world.path("d")).unwrap();
    assert!(world.undo(&job).result.is_err());
    assert!(tree(&outside).is_empty());
}

#[test]
fn content_that_is_lost_leaves_everything_as_it_is() {
    let mut world = World::new();
    fs::create_dir(world.path("t")).unwrap();
    world.write("t/a", "a");
    world.write("t/b", "b");
    let job = world.run("file_delete", json!({"path": "t", "recursive": true}));
    world.keeper = Default::default();
    assert!(world.undo(&job).failure().contains("entity not found"));
    assert!(tree(&world.dir).is_empty());
}
