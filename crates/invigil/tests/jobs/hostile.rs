//! What an agent may leave in the working directory, or ask for, to get beyond its bounds.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::world::{World, data, until};

#[test]
fn the_policy_of_a_project_is_no_way_to_read_what_is_outside() {
    for world in World::everyone() {
        let secret = world.at("outside/secret");
        fs::write(&secret, "password = hunter2").unwrap();
        fs::create_dir(world.work().join(".invigil")).unwrap();
        for target in [secret.as_path(), "../../outside/secret".as_ref()] {
            world.link(".invigil/policy.toml", target);
            let (stdout, stderr) = world.expect(125, &["exec", "file_list", r#"{"path":"."}"#]);
            assert!(!stderr.contains("hunter2") && stdout.is_empty(), "{stderr}");
            assert!(stderr.contains("leads out of the project"), "{stderr}");
            fs::remove_file(world.work().join(".invigil/policy.toml")).unwrap();
        }
        fs::remove_dir(world.work().join(".invigil")).unwrap();
        fs::write(world.at("outside/policy.toml"), "password = hunter2").unwrap();
        symlink(world.at("outside"), world.work().join(".invigil")).unwrap();
        let (_, stderr) = world.expect(125, &["exec", "file_list", r#"{"path":"."}"#]);
        assert!(!stderr.contains("hunter2"), "{stderr}");
        fs::remove_file(world.work().join(".invigil")).unwrap();
        // A link that stays inside is as good as a file.
        world.write(
            "rules/policy.toml",
            "version = 1\n[tools]\ndeny = [\"search\"]\n",
        );
        symlink("rules", world.work().join(".invigil")).unwrap();
        world.exec(121, "search", json!({ "pattern": "x" }));
        world.is_well();
    }
}

#[test]
fn no_job_writes_the_rules_of_the_next() {
    for world in World::everyone() {
        let all = world.at("").to_str().unwrap().to_owned();
        let more = ["--allow", all.as_str()];
        fs::create_dir_all(world.at(".config/invigil")).unwrap();
        world.give_away();
        let own = world.at(".config/invigil/policy.toml");
        let text = "version = 1\ndefault = \"allow\"\n";
        let arguments = json!({ "path": own, "content": text });
        world.exec_with(121, "file_write", arguments, &more);
        let command = format!("echo 'version = 1' > {}", own.display());
        world.exec_with(1, "shell", json!({ "command": command }), &more);
        assert!(!own.exists());
        fs::write(&own, "version = 1\n").unwrap();
        world.give_away();
        world.exec_with(121, "file_delete", json!({ "path": own }), &more);
        let folder = json!({ "path": world.at(".config"), "recursive": true });
        world.exec_with(121, "file_delete", folder, &more);
        assert_eq!(fs::read_to_string(&own).unwrap(), "version = 1\n");
        world.is_well();
    }
}

#[test]
fn a_temporary_directory_goes_even_if_it_was_closed() {
    for world in World::everyone() {
        let command = "mkdir -p $TMPDIR/a/b && ln -s / $TMPDIR/a/l && touch $TMPDIR/a/b/c \
                       && chmod 0 $TMPDIR/a/b $TMPDIR/a && echo $TMPDIR";
        let result = world.exec(0, "shell", json!({ "command": command }));
        let temporary = data(&result)["stdout"].as_str().unwrap().trim_end();
        assert!(temporary.contains("invigil-job_"), "{temporary}");
        assert!(!fs::exists(temporary).unwrap(), "{temporary}");
    }
}

#[test]
fn the_commands_of_others_are_told_without_their_secrets() {
    let world = World::everyone().remove(0);
    let secret = "ghp_0123456789abcdefghijABCDEFGHIJ456789";
    // Large and busy, so that it is among those that are shown.
    let body = "x = b'x' * (1 << 30)\nwhile True: pass";
    let mut large = world
        .program("python3", &["-c", body, "--token", secret])
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let shown = loop {
        let result = world.exec(0, "file_list", json!({ "path": "." }));
        let shown = result.to_string();
        if shown.contains("while True") || begun.elapsed() > Duration::from_secs(20) {
            break shown;
        }
    };
    large.kill().unwrap();
    large.wait().unwrap();
    assert!(shown.contains("while True") && shown.contains("<redacted:"));
    assert!(!shown.contains(secret));
}

#[test]
fn whoever_waits_is_told_of_wrong_arguments_as_whoever_asked() {
    let world = World::ordinary();
    world.exec(125, "file_read", json!({}));
    world.expect(125, &["wait", "last"]);
}

#[test]
fn nobody_waits_for_a_job_whose_process_is_gone() {
    for world in World::everyone() {
        let arguments = json!({ "command": "touch began; sleep 30" });
        let mut gone = world
            .exec_command("shell", &arguments, &[])
            .spawn()
            .unwrap();
        until("the job began", || world.work().join("began").exists());
        gone.kill().unwrap();
        gone.wait().unwrap();
        let (_, stderr) = world.expect(125, &["wait", "last"]);
        assert!(stderr.contains("invigil recover"), "{stderr}");
        world.expect(0, &["recover"]);
        world.expect(1, &["wait", "last"]);
        world.is_well();
    }
}

#[test]
fn names_of_files_do_not_steer_a_terminal() {
    let world = World::ordinary();
    world.write("a\u{9b}31mb\u{202e}c", "");
    let (stdout, _) = world.expect(0, &["exec", "file_list", r#"{"path":"."}"#]);
    assert!(stdout.contains(r"\u{9b}31mb\u{202e}c"), "{stdout}");
    assert!(!stdout.contains(['\u{9b}', '\u{202e}']), "{stdout}");
}

#[test]
fn there_is_an_end_to_arguments() {
    let world = World::ordinary();
    let mut command = world.command(&["exec", "file_write", "-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Without an end; whoever has read enough closes the pipe.
    let mut input = child.stdin.take().unwrap();
    while input.write_all(&[b' '; 1 << 16]).is_ok() {}
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("32 MiB"), "{stderr}");
}
