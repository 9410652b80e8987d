//! git with real repositories.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::support::{Job, World, tree};

/// Runs git as a person would.
fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(dir)
        .args([
            "-c",
            "user.name=P",
            "-c",
            "user.email=p@localhost",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", dir)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "git {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}

/// A repository in the working directory, with two commits.
fn repository() -> World {
    let world = World::new();
    git(&world.dir, &["init", "-q"]);
    world.write("a.txt", "one\n");
    git(&world.dir, &["add", "."]);
    git(&world.dir, &["commit", "-qm", "First"]);
    world.write("a.txt", "one\ntwo\n");
    world.write("b c.txt", "b\n");
    git(&world.dir, &["add", "."]);
    git(&world.dir, &["commit", "-qm", "Second"]);
    world
}

impl World {
    fn git(&mut self, operation: &str, mut args: Value) -> Job {
        args["operation"] = json!(operation);
        self.run("git", args)
    }

    fn says(&self, args: &[&str]) -> String {
        git(&self.dir, args)
    }

    fn head(&self) -> String {
        self.says(&["rev-parse", "HEAD"])
    }
}

/// The files a person sees, without what is in `.git`.
fn files(dir: &Path) -> Vec<(PathBuf, String)> {
    let all = tree(dir).into_iter();
    all.filter(|(path, _)| !path.starts_with(".git")).collect()
}

#[test]
fn status_tells_real_hashes_the_branch_and_what_changed() {
    let mut world = repository();
    let clean = world.git("status", json!({}));
    assert_eq!(clean.data()["clean"], true);
    assert_eq!(clean.data()["branch"], "main");
    assert_eq!(clean.data()["head"], world.head());
    assert_eq!(clean.data()["entries"], json!([]));
    world.write("a.txt", "changed");
    world.write("über new", "");
    world.says(&["mv", "b c.txt", "d e.txt"]);
    let index = world.read(".git/index");
    let job = world.git("status", json!({}));
    assert_eq!(
        job.data()["entries"],
        json!([
            {"path": "a.txt", "status": ".M"},
            {"path": "d e.txt", "status": "R.", "original": "b c.txt"},
            {"path": "über new", "status": "??"},
        ])
    );
    assert_eq!(job.data()["clean"], false);
    assert_eq!(
        world.read(".git/index"),
        index,
        "the index was written by a look at it"
    );
}

#[test]
fn an_empty_repository_has_a_status_and_a_log() {
    let mut world = World::new();
    assert!(
        world
            .git("status", json!({}))
            .failure()
            .contains("not a git repository")
    );
    world.says(&["init", "-q"]);
    let job = world.git("status", json!({}));
    assert_eq!(job.data()["head"], json!(null));
    assert_eq!(job.data()["branch"], "main");
    assert_eq!(world.git("log", json!({})).data()["commits"], json!([]));
}

#[test]
fn a_repository_above_the_root_is_not_found() {
    let mut world = World::new();
    git(world.dir.parent().unwrap(), &["init", "-q"]);
    assert!(
        world
            .git("status", json!({}))
            .failure()
            .contains("not a git repository")
    );
}

#[test]
fn a_repository_whose_parts_are_outside_is_refused() {
    let mut world = World::new();
    let outside = world.outside("outside");
    fs::create_dir(&outside).unwrap();
    git(&outside, &["init", "-q"]);
    world.write(
        ".git",
        format!("gitdir: {}\n", outside.join(".git").display()),
    );
    assert!(world.git("status", json!({})).result.unwrap_err().denied);
    fs::remove_file(world.path(".git")).unwrap();
    world.says(&["init", "-q"]);
    world.says(&["config", "core.worktree", outside.to_str().unwrap()]);
    assert!(world.git("status", json!({})).result.is_err());
}

#[test]
fn differences_and_commits_are_shown() {
    let mut world = repository();
    world.write("a.txt", "one\n2\n");
    let job = world.git("diff", json!({}));
    assert_eq!(
        job.data()["files"],
        json!([{"path": "a.txt", "status": "M"}])
    );
    assert!(
        job.data()["diff"]
            .as_str()
            .unwrap()
            .contains("\n-two\n+2\n")
    );
    assert_eq!(
        world.git("diff", json!({"staged": true})).data()["diff"],
        ""
    );
    assert_eq!(
        world.git("diff", json!({"paths": ["b c.txt"]})).data()["files"],
        json!([])
    );
    let job = world.git("diff", json!({"ref": "HEAD~1", "to": "HEAD"}));
    assert_eq!(job.data()["files"].as_array().unwrap().len(), 2);
    let job = world.git("log", json!({}));
    let commits = &job.data()["commits"];
    assert_eq!(commits[0]["hash"], world.head());
    assert_eq!(commits[0]["message"], "Second");
    assert_eq!(commits[0]["parents"][0], commits[1]["hash"]);
    assert_eq!(commits[1]["author"], "P <p@localhost>");
    assert_eq!(commits.as_array().unwrap().len(), 2);
    let one = world.git("log", json!({"max_count": 1, "ref": "HEAD~1"}));
    assert_eq!(one.data()["commits"][0]["message"], "First");
    let none = world.git("log", json!({"ref": "nothing"}));
    assert!(none.failure().contains("`ref`: there is no commit"));
}

#[test]
fn files_are_added_and_the_index_comes_back() {
    let mut world = repository();
    world.write("a.txt", "changed\n");
    world.write("new", "new\n");
    let before = world.says(&["ls-files", "--stage"]);
    let args = json!({"operation": "add", "paths": ["a.txt", "new"]});
    world.dry_run("git", args.clone()).data();
    let job = world.run("git", args);
    assert_eq!(
        job.data()["staged"],
        json!([{"path": "a.txt", "status": "M"}, {"path": "new", "status": "A"}])
    );
    assert_eq!(
        world.says(&["diff", "--cached", "--name-only"]),
        "a.txt\nnew"
    );
    // A look at it may write the index anew; what it lists stays the same.
    fs::File::open(world.path("new"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    world.says(&["status"]);
    let undo = world.undo(&job);
    undo.data();
    assert_eq!(world.says(&["ls-files", "--stage"]), before);
    assert_eq!(world.read("new"), b"new\n");
    world.undo(&undo).data();
    assert_eq!(
        world.says(&["diff", "--cached", "--name-only"]),
        "a.txt\nnew"
    );
    world.says(&["rm", "--cached", "-q", "new"]);
    let late = world.undo(&job);
    assert!(late.failure().contains("changed since"));
    assert!(world.git("add", json!({"paths": ["none"]})).result.is_err());
}

#[test]
fn a_commit_is_made_and_taken_back() {
    let mut world = repository();
    let first = world.head();
    assert!(
        world
            .git("commit", json!({"message": "x"}))
            .failure()
            .contains("nothing to commit")
    );
    world.write("a.txt", "three\n");
    world.says(&["add", "a.txt"]);
    let args = json!({"operation": "commit", "message": "Third\n\nWhy.", "author": "Ä <a@b>"});
    let dry = world.dry_run("git", args.clone());
    assert_eq!(
        dry.data()["files"],
        json!([{"path": "a.txt", "status": "M"}])
    );
    let job = world.run("git", args);
    assert_eq!(job.data()["commit"], world.head());
    assert_eq!(job.data()["head"], world.head());
    assert_eq!(job.data()["parent"], first);
    assert_eq!(job.data()["clean"], true);
    assert_eq!(
        world.says(&["log", "-1", "--format=%B%an %ae"]),
        "Third\n\nWhy.\nÄ a@b"
    );
    world.says(&["fsck", "--strict"]);
    let undo = world.undo(&job);
    undo.data();
    assert_eq!(world.head(), first);
    assert_eq!(world.says(&["diff", "--cached", "--name-only"]), "a.txt");
    assert_eq!(world.read("a.txt"), b"three\n");
    world.undo(&undo).data();
    world.says(&["commit", "-q", "--allow-empty", "-m", "Later"]);
    let later = world.head();
    assert!(world.undo(&job).failure().contains("changed since"));
    assert_eq!(world.head(), later);
}

#[test]
fn a_commit_of_everything_takes_the_index_with_it() {
    let mut world = repository();
    let (first, index) = (world.head(), world.says(&["ls-files", "--stage"]));
    world.write("a.txt", "three\n");
    fs::remove_file(world.path("b c.txt")).unwrap();
    world.write("untracked", "");
    let job = world.git("commit", json!({"message": "All", "all": true}));
    assert_eq!(job.data()["files"].as_array().unwrap().len(), 2);
    assert_eq!(world.says(&["status", "--porcelain"]), "?? untracked");
    let author = world.says(&["log", "-1", "--format=%an"]);
    assert_eq!(author, "Invigil");
    world.undo(&job).data();
    assert_eq!(world.head(), first);
    assert_eq!(world.says(&["ls-files", "--stage"]), index);
    assert_eq!(
        world.says(&["status", "--porcelain"]),
        " M a.txt\n D \"b c.txt\"\n?? untracked"
    );
}

#[test]
fn the_very_first_commit_can_be_taken_back() {
    let mut world = World::new();
    world.says(&["init", "-q"]);
    world.write("a", "a");
    world.git("add", json!({"paths": ["a"]})).data();
    let job = world.git("commit", json!({"message": "First"}));
    assert_eq!(job.data()["parent"], json!(null));
    world.undo(&job).data();
    assert_eq!(world.git("status", json!({})).data()["head"], json!(null));
}

#[test]
fn branches_are_made_listed_and_deleted() {
    let mut world = repository();
    let head = world.head();
    let args = json!({"operation": "branch", "name": "topic/x", "ref": "HEAD~1"});
    world.dry_run("git", args.clone()).data();
    let job = world.run("git", args.clone());
    assert_eq!(job.data()["after"], world.says(&["rev-parse", "HEAD~1"]));
    assert!(world.run("git", args).failure().contains("exists already"));
    let list = world.git("branch", json!({}));
    assert_eq!(
        list.data()["branches"][0],
        json!({"name": "main", "hash": head})
    );
    assert_eq!(list.data()["branches"][1]["name"], "topic/x");
    let deleted = world.git("branch", json!({"name": "topic/x", "delete": true}));
    deleted.data();
    assert_eq!(world.says(&["branch", "--list", "topic/x"]), "");
    world.undo(&deleted).data();
    world.says(&["checkout", "-q", "topic/x"]);
    assert!(world.undo(&job).failure().contains("checked out"));
    world.says(&["checkout", "-q", "main"]);
    world.undo(&job).data();
    assert_eq!(world.says(&["branch", "--list"]), "* main");
    let current = world.git("branch", json!({"name": "main", "delete": true}));
    assert!(current.failure().contains("checked out"));
}

#[test]
fn another_commit_is_checked_out_and_back() {
    let mut world = repository();
    let before = files(&world.dir);
    world.write("untracked", "u");
    let args = json!({"operation": "checkout", "ref": "HEAD~1"});
    world.dry_run("git", args.clone()).data();
    let job = world.run("git", args);
    assert_eq!(job.data()["branch"], json!(null));
    assert!(!world.path("b c.txt").exists());
    assert_eq!(world.read("untracked"), b"u");
    let undo = world.undo(&job);
    undo.data();
    assert_eq!(world.says(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(world.says(&["status", "--porcelain"]), "?? untracked");
    fs::remove_file(world.path("untracked")).unwrap();
    assert_eq!(files(&world.dir), before);
    let job = world.git("checkout", json!({"ref": "topic", "create": true}));
    assert_eq!(job.data()["branch"], "topic");
    world.undo(&job).data();
    assert_eq!(world.says(&["branch", "--list"]), "* main");
}

#[test]
fn a_checkout_never_loses_changes() {
    let mut world = repository();
    world.write("a.txt", "mine\n");
    let head = world.head();
    let job = world.git("checkout", json!({"ref": "HEAD~1"}));
    assert!(job.failure().contains("not committed"), "{job:?}");
    assert_eq!(world.read("a.txt"), b"mine\n");
    assert_eq!(world.head(), head);
    assert_eq!(world.says(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    world.says(&["checkout", "-q", "--", "a.txt"]);
    let job = world.git("checkout", json!({"ref": "HEAD~1"}));
    job.data();
    world.write("a.txt", "mine\n");
    let undo = world.undo(&job);
    assert!(undo.failure().contains("not committed"), "{undo:?}");
    assert_eq!(world.read("a.txt"), b"mine\n");
}

#[test]
fn a_commit_is_reverted_or_nothing_is_touched() {
    let mut world = repository();
    let (second, before) = (world.head(), files(&world.dir));
    world
        .dry_run("git", json!({"operation": "revert", "ref": "HEAD"}))
        .data();
    let job = world.git("revert", json!({"ref": "HEAD"}));
    assert_eq!(job.data()["reverts"], second);
    assert_eq!(world.read("a.txt"), b"one\n");
    assert!(!world.path("b c.txt").exists());
    assert_eq!(job.data()["clean"], true);
    assert!(
        world
            .says(&["log", "-1", "--format=%B"])
            .starts_with("Revert \"Second\"")
    );
    world.undo(&job).data();
    assert_eq!(files(&world.dir), before);
    assert_eq!(world.head(), second);
    assert_eq!(world.says(&["status", "--porcelain"]), "");
    world.write("a.txt", "one\ntwo and more\n");
    world.says(&["commit", "-qam", "Third"]);
    let before = tree(&world.dir).len();
    let conflict = world.git("revert", json!({"ref": second}));
    assert!(conflict.failure().starts_with("conflict"), "{conflict:?}");
    let data = conflict.result.unwrap_err().data.unwrap();
    assert_eq!(data["conflicts"], json!(["a.txt"]));
    assert_eq!(world.says(&["status", "--porcelain"]), "");
    // Objects may have come; nothing else.
    assert!(tree(&world.dir).len() >= before);
    let root = world.says(&["rev-list", "--max-parents=0", "HEAD"]);
    assert!(
        world
            .git("revert", json!({"ref": root}))
            .failure()
            .contains("exactly one parent")
    );
}

#[test]
fn a_clone_is_made_and_taken_back() {
    let mut world = World::new();
    fs::create_dir(world.path("source")).unwrap();
    git(&world.path("source"), &["init", "-q"]);
    world.write("source/f", "f");
    git(&world.path("source"), &["add", "."]);
    git(&world.path("source"), &["commit", "-qm", "First"]);
    let before = tree(&world.dir);
    let args = json!({"operation": "clone", "url": "source", "path": "copy"});
    world.dry_run("git", args.clone()).data();
    let job = world.run("git", args.clone());
    assert_eq!(
        job.data()["head"],
        git(&world.path("source"), &["rev-parse", "HEAD"])
    );
    assert_eq!(job.data()["clean"], true);
    assert_eq!(world.read("copy/f"), b"f");
    assert!(world.run("git", args).failure().contains("exists already"));
    world.write("copy/new", "new");
    assert!(world.undo(&job).failure().contains("other things"));
    fs::remove_file(world.path("copy/new")).unwrap();
    world.undo(&job).data();
    assert_eq!(tree(&world.dir), before);
    let none = world.git("clone", json!({"url": "none", "path": "copy"}));
    assert!(none.result.is_err());
    assert_eq!(tree(&world.dir), before);
}

#[test]
fn a_pull_goes_forward_or_does_nothing() {
    let mut world = World::new();
    let source = world.path("source");
    fs::create_dir(&source).unwrap();
    git(&source, &["init", "-q"]);
    git(&source, &["commit", "-q", "--allow-empty", "-m", "First"]);
    world
        .git("clone", json!({"url": "source", "path": "copy"}))
        .data();
    let first = git(&source, &["rev-parse", "HEAD"]);
    fs::write(source.join("f"), "f").unwrap();
    git(&source, &["add", "."]);
    git(&source, &["commit", "-qm", "Second"]);
    let second = git(&source, &["rev-parse", "HEAD"]);
    let args = json!({"operation": "pull", "path": "copy"});
    let dry = world.dry_run("git", args.clone());
    assert_eq!(dry.data()["after"], second);
    let job = world.run("git", args.clone());
    assert_eq!(job.data()["updated"], true);
    assert_eq!(job.data()["head"], second);
    assert_eq!(world.read("copy/f"), b"f");
    assert_eq!(
        git(&world.path("copy"), &["status", "-sb"]),
        "## main...origin/main"
    );
    assert_eq!(world.run("git", args.clone()).data()["updated"], false);
    world.undo(&job).data();
    assert!(!world.path("copy/f").exists());
    assert_eq!(
        git(&world.path("copy"), &["rev-parse", "HEAD", "origin/main"]),
        format!("{first}\n{first}")
    );
    git(
        &world.path("copy"),
        &["commit", "-q", "--allow-empty", "-m", "Apart"],
    );
    assert!(
        world
            .run("git", args.clone())
            .failure()
            .contains("gone apart")
    );
    git(
        &world.path("copy"),
        &["remote", "set-url", "origin", "ext::sh -c 'touch ran'"],
    );
    assert!(world.run("git", args.clone()).failure().contains("`url`"));
    git(
        &world.path("copy"),
        &[
            "remote",
            "set-url",
            "origin",
            world.outside("x").to_str().unwrap(),
        ],
    );
    assert!(world.run("git", args).result.unwrap_err().denied);
}

/// A program that leaves a trace if anybody starts it.
fn trap(world: &World) -> String {
    let program = world.path("trap");
    fs::write(
        &program,
        format!("#!/bin/sh\ntouch {}\ncat\n", world.path("sprung").display()),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program.to_str().unwrap().to_owned()
}

#[test]
fn nothing_that_a_repository_names_is_started() {
    let mut world = repository();
    let trap = trap(&world);
    for hook in [
        "pre-commit",
        "post-commit",
        "post-checkout",
        "reference-transaction",
        "post-index-change",
        "commit-msg",
        "prepare-commit-msg",
    ] {
        fs::create_dir_all(world.path(".git/hooks")).unwrap();
        symlink(&trap, world.path(".git/hooks").join(hook)).unwrap();
    }
    for key in [
        "core.fsmonitor",
        "core.pager",
        "core.editor",
        "core.sshCommand",
        "core.askPass",
        "diff.external",
        "filter.trap.clean",
        "filter.trap.smudge",
        "filter.trap.process",
        "diff.trap.textconv",
        "diff.trap.command",
        "merge.trap.driver",
        "gpg.program",
        "credential.helper",
        "alias.status",
        "pager.log",
    ] {
        let value = if key == "alias.status" {
            format!("!{trap}")
        } else {
            trap.clone()
        };
        world.says(&["config", key, &value]);
    }
    world.says(&[
        "config",
        "core.hooksPath",
        world.path(".git/hooks").to_str().unwrap(),
    ]);
    world.says(&["config", "filter.trap.required", "true"]);
    world.says(&["config", "commit.gpgSign", "true"]);
    world.write(".gitattributes", "* filter=trap diff=trap merge=trap\n");
    world.write("a.txt", "changed\n");
    let sprung = world.path("sprung");
    for (operation, args) in [
        ("status", json!({})),
        ("diff", json!({})),
        ("diff", json!({"ref": "HEAD~1", "to": "HEAD"})),
        ("log", json!({})),
        ("add", json!({"paths": ["a.txt", ".gitattributes"]})),
        ("commit", json!({"message": "x"})),
        ("revert", json!({"ref": "HEAD"})),
        ("checkout", json!({"ref": "t", "create": true})),
        ("checkout", json!({"ref": "HEAD~1"})),
        ("branch", json!({"name": "u"})),
    ] {
        let job = world.git(operation, args);
        job.data();
        assert!(!sprung.exists(), "{operation}");
        if operation == "checkout" {
            world.undo(&job).data();
            assert!(!sprung.exists(), "undo of {operation}");
        }
    }
    world.says(&["config", "remote.origin.uploadpack", &trap]);
    assert!(
        world
            .git("pull", json!({}))
            .failure()
            .contains("names a program")
    );
    assert!(!sprung.exists());
}

#[test]
fn an_index_that_somebody_else_works_on_is_left_alone() {
    let mut world = repository();
    world.write("a.txt", "changed\n");
    world.write(".git/index.lock", "");
    assert!(
        world
            .git("add", json!({"paths": ["a.txt"]}))
            .failure()
            .contains("exists")
    );
    assert!(world.path(".git/index.lock").exists());
    assert_eq!(world.says(&["diff", "--cached", "--name-only"]), "");
}

#[test]
fn a_branch_that_moves_meanwhile_is_left_alone() {
    let mut world = repository();
    world.write("a.txt", "changed\n");
    world.says(&["add", "."]);
    let dir = world.dir.clone();
    world.keeper.before_changes = Some(Box::new(move || {
        git(&dir, &["update-ref", "refs/heads/main", "HEAD~1"]);
    }));
    let expected = world.says(&["rev-parse", "HEAD~1"]);
    let job = world.git("commit", json!({"message": "x"}));
    assert!(job.failure().starts_with("conflict"), "{job:?}");
    world.keeper.before_changes = None;
    assert_eq!(world.head(), expected);
}

/// Takes the right to write from everything in a directory, or gives it back.
fn set_writable(dir: &Path, writable: bool) {
    let mode = if writable { "u+w" } else { "a-w" };
    let status = Command::new("chmod").args(["-R", mode]).arg(dir).status();
    assert!(status.unwrap().success());
}

#[test]
fn a_dry_run_needs_no_right_to_write() {
    let mut world = repository();
    world.write("a.txt", "changed\n");
    world.write("new", "");
    let source = world.dir.to_str().unwrap().to_owned();
    world.says(&["remote", "add", "origin", &source]);
    set_writable(&world.dir, false);
    for args in [
        json!({"operation": "status"}),
        json!({"operation": "diff"}),
        json!({"operation": "add", "paths": ["."]}),
        json!({"operation": "commit", "message": "x", "all": true}),
        json!({"operation": "branch", "name": "x"}),
        json!({"operation": "checkout", "ref": "HEAD~1"}),
        json!({"operation": "revert", "ref": "HEAD"}),
        json!({"operation": "pull"}),
        json!({"operation": "clone", "url": ".", "path": "copy"}),
    ] {
        world.dry_run("git", args).data();
    }
    let add = world.dry_run("git", json!({"operation": "add", "paths": ["."]}));
    assert_eq!(add.data()["would_add"], json!(["a.txt", "new"]));
    set_writable(&world.dir, true);
}
