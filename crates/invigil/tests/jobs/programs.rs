//! `shell`, `git` and `kill`: programs of the agent's choice, a program of ours, and signals to others.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::{Child, Command};

use serde_json::{Value, json};

use crate::world::{World, data, fed, id, message, same, shape};

#[test]
fn shell() {
    for world in World::everyone() {
        world.write("d/x", "1");
        let result = world.exec(
            0,
            "shell",
            json!({ "command": "echo out; echo err >&2; cat x", "cwd": "d" }),
        );
        let given = data(&result);
        assert_eq!(
            (&given["stdout"], &given["stderr"]),
            (&json!("out\n1"), &json!("err\n"))
        );
        assert_eq!(
            (&given["exit_code"], &given["signal"]),
            (&json!(0), &Value::Null)
        );
        assert_eq!(
            (&given["timed_out"], &given["truncated"]),
            (&json!(false), &json!(false))
        );
        assert_eq!(given["descendants"], 1);
        let argv = json!({ "argv": ["printf", "%s|", "a b", "$HOME"], "env": { "X": "1" } });
        assert_eq!(data(&world.exec(0, "shell", argv))["stdout"], "a b|$HOME|");
        let result = world.exec(1, "shell", json!({ "command": "echo partly; exit 7" }));
        assert_eq!(message(&result), "Execution failed: exit code 7");
        assert_eq!(
            (&data(&result)["exit_code"], &data(&result)["stdout"]),
            (&json!(7), &json!("partly\n"))
        );
        let result = world.exec(1, "shell", json!({ "command": "kill -9 $$" }));
        assert_eq!(data(&result)["signal"], 9);
        world.exec(1, "shell", json!({ "argv": ["no-such-program"] }));
        let result = world.dry("shell", json!({ "command": "touch made; mkdir also" }));
        assert_eq!(result["spawned"], json!([]));
        world.exec(0, "shell", json!({ "command": "touch made" }));
        assert!(world.work().join("made").exists());
        let long = "x".repeat((1 << 20) + 1);
        world.wrong(
            "shell",
            &[
                (json!({}), "command"),
                (json!({ "command": "" }), "command"),
                (json!({ "command": "a", "argv": ["a"] }), "argv"),
                (json!({ "argv": [] }), "argv"),
                (json!({ "argv": [""] }), "argv[0]"),
                (json!({ "argv": ["a", 1] }), "argv[1]"),
                (json!({ "argv": ["a", "b\0"] }), "argv[1]"),
                (json!({ "command": "a", "cwd": "" }), "cwd"),
                (json!({ "command": "a", "stdin": 1 }), "stdin"),
                (json!({ "command": "a", "timeout": -1 }), "timeout"),
                (json!({ "command": "a", "timeout": 3601 }), "timeout"),
                (json!({ "command": "a", "timeout": "1s" }), "timeout"),
                (json!({ "command": "a", "env": { "A=B": "x" } }), "env.A=B"),
                (
                    json!({ "command": "a", "env": { "INVIGIL_HOME": "/" } }),
                    "env.INVIGIL_HOME",
                ),
                (json!({ "command": "a", "env": { "A": 1 } }), "env.A"),
                (json!({ "command": "a", "shell": "bash" }), "shell"),
            ],
        );
        let too_much = json!({ "command": "cat", "stdin": long }).to_string();
        let output = fed(
            world.command(&["exec", "shell", "-", "--json"]),
            too_much.as_bytes(),
        );
        let result = world.result(125, &output, &"too much");
        assert!(message(&result).contains("`stdin`"), "{result}");
        world.is_well();
    }
}

/// A directory outside is denied; a path outside is refused to the program, which then says what it likes.
#[test]
fn shell_stays_inside() {
    for world in World::everyone() {
        world.link("folder", world.at("outside"));
        let outside = world.at("outside");
        for cwd in [
            "/etc",
            "..",
            "../outside",
            "folder",
            outside.to_str().unwrap(),
        ] {
            let arguments = json!({ "command": "true", "cwd": cwd });
            world.denied("shell", &[(arguments, "not below an allowed directory")]);
        }
        let before = world.everything();
        let secret = outside.join("secret");
        for command in [
            format!("cat {}", secret.display()),
            "cat ../outside/secret".to_owned(),
            "cat folder/secret".to_owned(),
            format!("echo x > {}", secret.display()),
            format!("echo x > {}/new", outside.display()),
            "rm -f ../outside/secret".to_owned(),
            "mv ../outside/secret .".to_owned(),
            "ln ../outside/secret here && cat here".to_owned(),
        ] {
            let result = world.exec(1, "shell", json!({ "command": command }));
            assert!(
                !data(&result)["stdout"].to_string().contains("secret"),
                "{result}"
            );
            let refused = world.all("job_failed").pop().unwrap();
            let refused = refused["end"]["refused"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let about = |entry: &Value| entry["target"].to_string().contains("outside");
            assert!(refused.iter().any(about), "{command}: {refused:?}");
        }
        world.is_still(&before);
        let programs = "version = 1\n[programs]\ndeny = [{ rule = \"id\", reason = \"nosy\" }]\n";
        world.forbidden("shell", json!({ "argv": ["id"] }), programs, 3);
        let tool = "version = 1\n\n\n[tools]\ndeny = [\"shell\"]\n";
        world.forbidden("shell", json!({ "command": "true" }), tool, 5);
        // The project's own file holds without being named.
        world.write(".invigil/policy.toml", tool);
        let result = world.exec(121, "shell", json!({ "command": "true" }));
        assert!(message(&result).contains("policy.toml:5"), "{result}");
        world.is_well();
    }
}

#[test]
fn only_some_variables_reach_a_program() {
    for world in World::everyone() {
        let arguments = json!({ "argv": ["env"], "env": { "MINE": "1" } });
        let mut command = world.exec_command("shell", &arguments, &[]);
        command
            .env("AWS_SECRET_ACCESS_KEY", "x")
            .env("LD_LIBRARY_PATH", "/nowhere")
            .env("GITHUB_TOKEN", "x")
            .env("LC_TIME", "C");
        let result = world.result(0, &command.output().unwrap(), &arguments);
        let printed = data(&result)["stdout"].as_str().unwrap();
        let names: BTreeSet<&str> = printed
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0))
            .collect();
        for name in ["PATH", "HOME", "LC_TIME", "MINE", "TMPDIR"] {
            assert!(names.contains(name), "{name}: {printed}");
        }
        let known = [
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "SHELL",
            "TERM",
            "LANG",
            "LANGUAGE",
            "TZ",
            "NO_COLOR",
            "RUST_BACKTRACE",
            "MINE",
            "TMPDIR",
        ];
        for name in names {
            let fine =
                known.contains(&name) || name.starts_with("LC_") || name.starts_with("INVIGIL_");
            assert!(fine && name != "INVIGIL_HOME", "{name}: {printed}");
        }
        let tmp = printed
            .lines()
            .find_map(|line| line.strip_prefix("TMPDIR="))
            .unwrap();
        assert!(!fs::exists(tmp).unwrap(), "{tmp} is gone with the job");
    }
}

#[test]
fn there_is_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    let alone = Command::new("bash").args(["-c", &connect]).status();
    if !alone.is_ok_and(|status| status.success()) {
        println!("no bash that can connect");
        return;
    }
    assert!(listener.accept().is_ok());
    for world in World::everyone() {
        world.exec(1, "shell", json!({ "argv": ["bash", "-c", connect] }));
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        let failed = world.all("job_failed").pop().unwrap();
        assert!(
            failed["end"]["refused"]
                .to_string()
                .contains(&port.to_string()),
            "{failed}"
        );
    }
}

/// A repository with one commit.
fn repository(world: &World, name: &str) {
    world.write(&format!("{name}/a.txt"), "one\n");
    let author = [
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.com",
        "-c",
        "init.defaultBranch=main",
    ];
    for words in [
        &["init", "--quiet"][..],
        &["add", "."],
        &["commit", "--quiet", "-m", "first"],
    ] {
        let args: Vec<&str> = author.iter().chain(words).copied().collect();
        let status = world
            .program("git", &args)
            .current_dir(world.work().join(name))
            .status();
        assert!(status.unwrap().success());
    }
}

fn git(world: &World, name: &str, words: &[&str]) -> String {
    let output = world
        .program("git", words)
        .current_dir(world.work().join(name))
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn git_reads_and_writes_with_real_hashes() {
    for world in World::everyone() {
        repository(&world, "r");
        let first = git(&world, "r", &["rev-parse", "HEAD"]);
        let call = |arguments: Value| {
            let mut whole = json!({ "path": "r" });
            whole
                .as_object_mut()
                .unwrap()
                .extend(arguments.as_object().unwrap().clone());
            whole
        };
        let before = world.everything();
        let status = world.exec(0, "git", call(json!({ "operation": "status" })));
        assert_eq!(
            (&data(&status)["clean"], &data(&status)["branch"]),
            (&json!(true), &json!("main"))
        );
        let log = world.exec(0, "git", call(json!({ "operation": "log" })));
        assert!(data(&log).to_string().contains(&first), "{log}");
        assert!(
            !log["spawned"].as_array().unwrap().is_empty(),
            "git is a process"
        );
        world.is_still(&before);
        world.write("r/a.txt", "two\n");
        let diff = world.exec(0, "git", call(json!({ "operation": "diff" })));
        assert!(data(&diff).to_string().contains("+two"), "{diff}");
        let add = call(json!({ "operation": "add", "paths": ["a.txt"] }));
        let commit = call(
            json!({ "operation": "commit", "message": "second", "author": "B <b@example.com>" }),
        );
        world.dry("git", add.clone());
        world.exec(0, "git", add);
        world.dry("git", commit.clone());
        let made = world.exec(0, "git", commit);
        let second = git(&world, "r", &["rev-parse", "HEAD"]);
        assert_ne!(first, second);
        assert!(data(&made).to_string().contains(&second), "{made}");
        let branch = call(json!({ "operation": "branch", "name": "side", "ref": first }));
        world.dry("git", branch.clone());
        world.exec(0, "git", branch);
        assert_eq!(git(&world, "r", &["rev-parse", "side"]), first);
        let checkout = call(json!({ "operation": "checkout", "ref": "side" }));
        world.dry("git", checkout.clone());
        let moved = world.exec(0, "git", checkout);
        assert_eq!(data(&moved)["branch"], "side");
        assert_eq!(world.read("r/a.txt"), "one\n");
        world.is_well();
    }
}

#[test]
fn git_copies_and_follows() {
    let world = World::ordinary();
    repository(&world, "r");
    let first = git(&world, "r", &["rev-parse", "HEAD"]);
    let words = [
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@b",
        "commit",
        "--quiet",
        "-am",
        "second",
    ];
    let clone = json!({ "operation": "clone", "url": world.work().join("r"), "path": "copy" });
    world.dry("git", clone.clone());
    world.exec(0, "git", clone);
    assert_eq!(git(&world, "copy", &["rev-parse", "HEAD"]), first);
    world.write("r/a.txt", "and two\n");
    git(&world, "r", &words);
    let second = git(&world, "r", &["rev-parse", "HEAD"]);
    let pull = json!({ "operation": "pull", "path": "copy", "remote": "origin", "name": "main" });
    world.dry("git", pull.clone());
    world.exec(0, "git", pull);
    assert_eq!(git(&world, "copy", &["rev-parse", "HEAD"]), second);
    let revert = json!({ "operation": "revert", "path": "copy", "ref": second, "author": "B <b@example.com>" });
    world.dry("git", revert.clone());
    world.exec(0, "git", revert);
    assert_eq!(world.read("copy/a.txt"), "one\n");
    world.is_well();
}

#[test]
fn git_refuses_what_is_wrong_or_outside() {
    for world in World::everyone() {
        repository(&world, "r");
        let before = world.everything();
        let timed = json!({ "operation": "status", "path": "r", "timeout": 0.001 });
        world.exec(124, "git", timed);
        world.is_still(&before);
        world.wrong(
            "git",
            &[
                (json!({}), "operation"),
                (json!({ "operation": "push" }), "operation"),
                (json!({ "operation": "status", "message": "x" }), "message"),
                (json!({ "operation": "status", "path": "" }), "path"),
                (json!({ "operation": "add" }), "paths"),
                (json!({ "operation": "add", "paths": [] }), "paths"),
                (json!({ "operation": "add", "paths": ["-x"] }), "paths[0]"),
                (json!({ "operation": "commit" }), "message"),
                (json!({ "operation": "commit", "message": " " }), "message"),
                (
                    json!({ "operation": "commit", "message": "x", "author": "nobody" }),
                    "author",
                ),
                (
                    json!({ "operation": "commit", "message": "x", "all": 1 }),
                    "all",
                ),
                (json!({ "operation": "checkout" }), "ref"),
                (json!({ "operation": "checkout", "ref": "-f" }), "ref"),
                (
                    json!({ "operation": "checkout", "ref": "a b", "create": true }),
                    "ref",
                ),
                (json!({ "operation": "branch", "name": "a..b" }), "name"),
                (json!({ "operation": "branch", "delete": true }), "delete"),
                (json!({ "operation": "log", "max_count": 0 }), "max_count"),
                (json!({ "operation": "diff", "to": "HEAD" }), "to"),
                (json!({ "operation": "clone", "path": "x" }), "url"),
                (
                    json!({ "operation": "clone", "url": "ext::sh -c id", "path": "x" }),
                    "url",
                ),
                (json!({ "operation": "pull", "remote": "-x" }), "remote"),
                (json!({ "operation": "revert" }), "ref"),
                (json!({ "operation": "status", "timeout": 0 }), "timeout"),
                (json!({ "operation": "status", "force": true }), "force"),
            ],
        );
        world.link("folder", world.at("outside"));
        let out = "outside of the allowed roots";
        let paths = ["/etc", "..", "../outside", "folder"];
        let cases = paths.map(|path| (json!({ "operation": "status", "path": path }), out));
        world.denied("git", &cases);
        let into = json!({ "operation": "clone", "url": world.work().join("r"), "path": "../outside/copy" });
        world.denied("git", &[(into, out)]);
        let from = json!({ "operation": "clone", "url": world.at("outside"), "path": "copy" });
        world.denied("git", &[(from, out)]);
        let policy = "version = 1\n[[tool]]\nname = \"git\"\nparam = { operation = { equals = \"status\" } }\ndecision = \"deny\"\n";
        let status = json!({ "operation": "status", "path": "r" });
        world.forbidden("git", status, policy, 3);
        world.is_well();
    }
}

/// A process of the user's own.
struct Sleeper(Child);

impl Sleeper {
    fn new(world: &World) -> Sleeper {
        Sleeper(world.program("sleep", &["60"]).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn kill() {
    for world in World::everyone() {
        let mut sleeper = Sleeper::new(&world);
        let pid = sleeper.pid();
        let dry = world.dry("kill", json!({ "pid": pid, "signal": "KILL" }));
        assert_eq!(
            (&data(&dry)["sent"], &data(&dry)["killed"]),
            (&json!(false), &json!(false))
        );
        let start = data(&dry)["start_time"].as_u64().unwrap();
        let other = json!({ "pid": pid, "start_time": start + 1 });
        let result = world.exec(0, "kill", other);
        assert_eq!(
            (&data(&result)["pid_reused"], &data(&result)["sent"]),
            (&json!(true), &json!(false))
        );
        assert!(sleeper.lives());
        let result = world.exec(0, "kill", json!({ "pid": pid, "start_time": start }));
        assert_eq!(
            (&data(&result)["killed"], &data(&result)["pid_reused"]),
            (&json!(true), &json!(false))
        );
        assert!(!sleeper.lives());
        let result = world.exec(1, "kill", json!({ "pid": pid }));
        assert!(message(&result).contains("there is no process"), "{result}");
        // Whoever looks after another job gets no signal.
        let mut other = world
            .command(&["exec", "shell", r#"{"command": "sleep 2", "timeout": 20}"#])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // `setpriv` is gone when the program itself runs.
        let name = || fs::read_to_string(format!("/proc/{}/comm", other.id()));
        while name().is_ok_and(|name| name.trim() != "invigil") {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let stop = json!({ "pid": other.id(), "signal": "STOP" });
        let result = world.exec(121, "kill", stop);
        assert!(message(&result).contains("Invigil's own"), "{result}");
        assert!(other.wait().unwrap().success());
        let result = world.exec(1, "kill", json!({ "pid": std::process::id() }));
        assert!(
            message(&result).contains("one of its ancestors"),
            "{result}"
        );
        world.wrong(
            "kill",
            &[
                (json!({}), "pid"),
                (json!({ "pid": "1" }), "pid"),
                (json!({ "pid": 0 }), "pid"),
                (json!({ "pid": -1 }), "pid"),
                (json!({ "pid": 1 }), "pid"),
                (json!({ "pid": 1_u64 << 40 }), "pid"),
                (json!({ "pid": pid, "signal": "NONE" }), "signal"),
                (json!({ "pid": pid, "start_time": -1 }), "start_time"),
                (json!({ "pid": pid, "tree": true }), "tree"),
            ],
        );
        if world.nobody {
            // Of another user.
            let mut others = Sleeper(Command::new("sleep").arg("60").spawn().unwrap());
            let result = world.exec(121, "kill", json!({ "pid": others.pid() }));
            assert!(message(&result).starts_with("Denied: "), "{result}");
            assert!(others.lives());
        }
        let policy = "version = 1\n[tools]\ndeny = [\"kill\"]\n";
        let sleeper = Sleeper::new(&world);
        world.forbidden("kill", json!({ "pid": sleeper.pid() }), policy, 3);
        world.is_well();
    }
}

/// What git did can be taken back, and what was taken back can be had again.
#[test]
fn git_can_be_undone() {
    for world in World::everyone() {
        repository(&world, "r");
        let first = git(&world, "r", &["rev-parse", "HEAD"]);
        world.write("r/a.txt", "two\n");
        let commit = json!({ "operation": "commit", "path": "r", "message": "second", "all": true, "author": "B <b@example.com>" });
        let made = world.exec(0, "git", commit);
        let second = git(&world, "r", &["rev-parse", "HEAD"]);
        let undone = world.lines(0, &["undo", id(&made), "--json"]).remove(0);
        assert_eq!(git(&world, "r", &["rev-parse", "HEAD"]), first);
        assert_eq!(world.read("r/a.txt"), "two\n", "the work tree stays");
        world.expect(0, &["undo", id(&undone)]);
        assert_eq!(git(&world, "r", &["rev-parse", "HEAD"]), second);
        let before = shape(&world.work());
        let clone = json!({ "operation": "clone", "url": world.work().join("r"), "path": "copy" });
        let cloned = world.exec(0, "git", clone);
        world.expect(0, &["undo", id(&cloned)]);
        same(&before, &shape(&world.work()));
        // Somebody commits since: a conflict.
        world.write("r/a.txt", "three\n");
        let commit = json!({ "operation": "commit", "path": "r", "message": "third", "all": true, "author": "B <b@example.com>" });
        let third = world.exec(0, "git", commit);
        git(
            &world,
            "r",
            &[
                "-c",
                "user.name=A",
                "-c",
                "user.email=a@b",
                "commit",
                "--quiet",
                "--allow-empty",
                "-m",
                "4",
            ],
        );
        let fourth = git(&world, "r", &["rev-parse", "HEAD"]);
        let result = world.lines(1, &["undo", id(&third), "--json"]).remove(0);
        assert!(message(&result).contains("conflict"), "{result}");
        assert_eq!(git(&world, "r", &["rev-parse", "HEAD"]), fourth);
        world.is_well();
    }
}
