//! `invigil run` under a policy: what is refused, what is not, and what the evidence says.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::Invigil;

const RULES: &str = r#"version = 1
[files.read]
deny = [{ rule = "~/.ssh/**", reason = "private keys" }]
[files.write]
default = "deny"
allow = ["${workspace}/**", "${tmp}/**", "/dev/{null,tty}"]
[[exec]]
program = "git"
args = ["push", ".."]
decision = "deny"
reason = "pushing leaves this machine"
[[exec]]
program = "rm"
args = ["-rf", ".."]
decision = "deny"
"#;

/// Somebody with a workspace, a secret and a policy.
pub(crate) fn everyone() -> Vec<Invigil> {
    let everyone = Invigil::everyone();
    for invigil in &everyone {
        for directory in ["ws", ".ssh", "outside"] {
            make(invigil, directory);
        }
        put(invigil, ".ssh/id_rsa", "very secret");
        put(invigil, "rules.toml", RULES);
    }
    everyone
}

fn own(invigil: &Invigil, path: &Path) {
    if invigil.nobody {
        std::os::unix::fs::chown(path, Some(super::NOBODY), Some(super::NOBODY)).unwrap();
    }
}

pub(crate) fn make(invigil: &Invigil, name: &str) {
    let path = invigil.directory.path().join(name);
    fs::create_dir_all(&path).unwrap();
    own(invigil, &path);
}

pub(crate) fn put(invigil: &Invigil, name: &str, text: &str) {
    let path = invigil.directory.path().join(name);
    fs::write(&path, text).unwrap();
    own(invigil, &path);
}

/// Runs a script in the workspace under a policy; its exit code and what it printed.
pub(crate) fn run(
    invigil: &Invigil,
    id: &str,
    options: &[&str],
    command: &[&str],
) -> (Option<i32>, String) {
    let args = ["run", "--run-id", id, "--ask", "never", "--quiet"];
    let args: Vec<&str> = args.iter().chain(options).copied().collect();
    let args: Vec<&str> = args
        .into_iter()
        .chain(["--"])
        .chain(command.iter().copied())
        .collect();
    let mut command = invigil.command(&args);
    command.current_dir(invigil.at("ws"));
    // A temporary directory of its own: the tests themselves are in the common one.
    let tmp = invigil.at("ws/tmp");
    make(invigil, "ws/tmp");
    let output = command.env("TMPDIR", tmp).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn sh(invigil: &Invigil, id: &str, script: &str) -> (Option<i32>, String) {
    let policy = invigil.at("rules.toml");
    run(invigil, id, &["--policy", &policy], &["sh", "-c", script])
}

pub(crate) fn denials(invigil: &Invigil, run: &str) -> Vec<Value> {
    invigil.all(run, "access_denied")
}

pub(crate) fn has(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: there is no {program}");
    }
    found
}

#[test]
fn spellings_that_defeat_rules_about_text() {
    if !has("git") {
        return;
    }
    let git = Command::new("sh")
        .args(["-c", "command -v git"])
        .output()
        .unwrap();
    let git = String::from_utf8(git.stdout).unwrap();
    for invigil in everyone() {
        let absolute = format!("{} push", git.trim());
        let spellings = [
            absolute.as_str(),
            "env git push",
            "sh -c 'git push'",
            "true & git push; wait",
            "$(echo git) push",
            "g=git; p=push; $g $p origin",
            "ln -s $(command -v git) other; ./other push",
            "printf '#!/bin/sh\\nexec git \"$@\"\\n' > script; chmod +x script; ./script push",
        ];
        for (n, spelling) in spellings.iter().enumerate() {
            let id = format!("push{n}");
            let (_, out) = sh(&invigil, &id, spelling);
            let denied = denials(&invigil, &id);
            let denied = denied.iter().find(|denied| denied["what"] == "exec");
            let denied = denied.unwrap_or_else(|| panic!("{spelling}: {out}"));
            assert_eq!(denied["error"], "EACCES", "{spelling}");
            assert_eq!(denied["place"]["line"], 8, "{denied}");
            assert_eq!(denied["place"]["reason"], "pushing leaves this machine");
            let ran = invigil.all(&id, "process_exec");
            let pushed = ran.iter().any(|exec| {
                exec["argv"].as_array().is_some_and(|argv| {
                    argv.len() > 1
                        && argv[1] == "push"
                        && exec["executable"].as_str().unwrap().ends_with("git")
                })
            });
            assert!(!pushed, "{spelling}: {ran:?}");
        }
    }
}

#[test]
fn files_are_judged_by_what_they_are() {
    for invigil in everyone() {
        let hidden = invigil.at(".ssh");
        let cases = [
            ("cat ~/.ssh/id_rsa", "file.read"),
            ("cd ~ && cat .ssh/id_rsa", "file.read"),
            ("cat ../.ssh/../.ssh/id_rsa", "file.read"),
            ("ln -s ~/.ssh x; cat x/id_rsa", "file.read"),
            ("cat /proc/self/root$HOME/.ssh/id_rsa", "file.read"),
            ("cd ~/.ssh && exec 3< id_rsa; cat <&3", "file.read"),
            ("ln ~/.ssh/id_rsa copied; cat copied", "file.link"),
            ("mv ~/.ssh moved; cat moved/id_rsa", "file.rename"),
            ("echo x > /etc/passwd", "file.write"),
            ("echo x > ../outside/f", "file.write"),
            ("mkdir ../outside/d", "file.make"),
            ("ln -s /etc ../outside/l", "file.link"),
            ("rm -f ../rules.toml", "file.remove"),
            ("chmod 777 ../rules.toml", "file.attributes"),
        ];
        let before = fs::read("/etc/passwd").unwrap();
        for (n, (script, what)) in cases.iter().enumerate() {
            let id = format!("file{n}");
            let (_, out) = sh(&invigil, &id, script);
            assert!(!out.contains("very secret"), "{script}: {out}");
            let denied = denials(&invigil, &id);
            assert!(
                denied.iter().any(|denied| denied["what"] == *what),
                "{script}: {denied:?} {out}"
            );
            assert!(denied.iter().any(|denied| {
                denied["place"]["file"]
                    .as_str()
                    .unwrap()
                    .ends_with("rules.toml")
            }));
        }
        assert_eq!(fs::read("/etc/passwd").unwrap(), before);
        assert!(Path::new(&hidden).join("id_rsa").exists());
        assert_eq!(fs::read_dir(invigil.at("outside")).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(invigil.at("rules.toml")).unwrap(), RULES);
    }
}

#[test]
fn no_false_alarms() {
    for invigil in everyone() {
        let script =
            "echo rm -rf; echo git push > note; cat note; mkdir d && mv note d/n && rm -r d";
        let (code, out) = sh(&invigil, "fine", script);
        assert_eq!((code, out.as_str()), (Some(0), "rm -rf\ngit push\n"));
        assert_eq!(denials(&invigil, "fine"), Vec::<Value>::new());
        if has("git") {
            let script = "git init -q --template= . && git -c user.name=x -c user.email=x@y commit -q --allow-empty -m push && git log --format=%s";
            let (code, out) = sh(&invigil, "commit", script);
            assert_eq!((code, out.as_str()), (Some(0), "push\n"));
            assert_eq!(denials(&invigil, "commit"), Vec::<Value>::new());
        }
    }
}

#[test]
fn a_denied_program_cannot_be_had_under_another_name() {
    let policy = "version = 1\n[[exec]]\nprogram = \"expr\"\ndecision = \"deny\"\n";
    for invigil in everyone() {
        put(&invigil, "rules.toml", policy);
        let expr = Command::new("sh")
            .args(["-c", "readlink -f $(command -v expr)"])
            .output()
            .unwrap();
        let expr = String::from_utf8(expr.stdout).unwrap().trim().to_owned();
        fs::copy(&expr, invigil.at("ws/copy")).unwrap();
        own(&invigil, Path::new(&invigil.at("ws/copy")));
        for (n, script) in [
            "expr 40 + 2".to_owned(),
            "./copy 40 + 2".to_owned(),
            format!("cp {expr} mine && ./mine 40 + 2"),
            format!("cat {expr} > mine; chmod +x mine; ./mine 40 + 2"),
            format!("ln -s {expr} linked; ./linked 40 + 2"),
            format!("$(ls /lib64/ld-linux* /lib/ld-linux* 2>/dev/null | head -1) {expr} 40 + 2"),
        ]
        .iter()
        .enumerate()
        {
            let id = format!("expr{n}");
            let (_, out) = sh(&invigil, &id, script);
            assert!(!out.contains("42"), "{script}: {out}");
            assert!(!denials(&invigil, &id).is_empty(), "{script}: {out}");
        }
    }
}

#[test]
fn the_policy_is_in_the_evidence_and_its_text_is_kept() {
    for invigil in everyone() {
        sh(&invigil, "kept", "true");
        let loaded = invigil.event("kept", "policy_loaded");
        assert_eq!(loaded["mode"], "guard");
        let source = &loaded["sources"][0];
        assert_eq!(source["layer"], "command_line");
        let name = source["sha256"].as_str().unwrap();
        let blob = walk(&invigil.home())
            .into_iter()
            .find(|path| path.ends_with(name))
            .unwrap();
        assert_eq!(fs::read_to_string(blob).unwrap(), RULES);
        let enforced = invigil.event("kept", "policy_enforced");
        let parts = enforced["parts"].as_array().unwrap();
        assert!(
            parts.iter().any(|part| part["part"] == "files.read"),
            "{parts:?}"
        );
        let (out, _) = invigil.expect(0, &["export", "kept", "-o", &invigil.at("kept.tar.gz")]);
        drop(out);
        invigil.expect(0, &["verify", &invigil.at("kept.tar.gz")]);
    }
}

fn walk(path: &Path) -> Vec<std::path::PathBuf> {
    super::tree(path)
        .into_iter()
        .map(|(path, _)| path)
        .collect()
}

#[test]
fn a_bad_policy_starts_nothing() {
    for invigil in everyone() {
        put(
            &invigil,
            "bad.toml",
            "version = 1\n[files.reed]\ndeny = [\"/x\"]\n",
        );
        let bad = invigil.at("bad.toml");
        let marker = invigil.at("ws/ran");
        for options in [
            &["--policy", bad.as_str()][..],
            &["--policy", "/absent.toml"],
            &["--profile", "no-such"],
            &["--mode", "observe", "--profile", "coding"],
        ] {
            let (code, out) = run(&invigil, "bad", options, &["touch", &marker]);
            assert_eq!(code, Some(125), "{out}");
            assert!(!Path::new(&marker).exists() && !invigil.journal("bad").exists());
            if options[1] == bad {
                assert!(out.contains("bad.toml:2"), "{out}");
            }
        }
        // The project's file counts too.
        make(&invigil, "ws/.invigil");
        put(&invigil, "ws/.invigil/policy.toml", "version = 9\n");
        let (code, out) = run(&invigil, "bad", &["--mode", "guard"], &["touch", &marker]);
        assert_eq!(code, Some(125), "{out}");
    }
}

#[test]
fn a_command_that_the_policy_does_not_let_start() {
    for invigil in everyone() {
        let policy = invigil.at("rules.toml");
        let (code, out) = run(&invigil, "not", &["--policy", &policy], &["rm", "-rf", "x"]);
        assert_eq!(code, Some(121), "{out}");
        assert!(out.contains("rules.toml"), "{out}");
        let failed = invigil.event("not", "run_failed");
        assert_eq!(failed["failure"], "policy");
    }
}

#[test]
fn reads_that_are_only_judged_are_not_recorded() {
    for invigil in everyone() {
        let policy = invigil.at("rules.toml");
        put(&invigil, "ws/f", "x");
        let reads = |id: &str| {
            let ops = invigil.all(id, "file_op").into_iter();
            let read = |op: &Value| {
                op["path"]
                    .as_str()
                    .is_some_and(|path| path.ends_with("/ws/f"))
            };
            ops.filter(read).count()
        };
        run(&invigil, "off", &["--policy", &policy], &["cat", "f"]);
        run(
            &invigil,
            "on",
            &["--policy", &policy, "--reads", "on"],
            &["cat", "f"],
        );
        assert_eq!((reads("off"), reads("on")), (0, 1));
    }
}

#[test]
fn budgets_end_a_run_and_say_why() {
    for invigil in everyone() {
        for (what, script) in [
            ("wall = \"300ms\"", "sleep 20"),
            ("cpu = \"300ms\"", "while :; do :; done"),
            (
                "output = \"1KiB\"",
                "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done",
            ),
            (
                "processes = 8",
                "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 20 & done; wait",
            ),
            (
                "memory = \"60MiB\"",
                "python3 -c 'import time; x = bytearray(200 << 20); time.sleep(20)'",
            ),
        ] {
            put(
                &invigil,
                "rules.toml",
                &format!("version = 1\n[budget]\n{what}\n"),
            );
            let id = what.split(' ').next().unwrap();
            let (code, out) = sh(&invigil, id, script);
            assert_eq!(code, Some(122), "{what}: {out}");
            let finished = invigil.event(id, "run_finished");
            assert_eq!(finished["stopped"], "budget");
            assert!(finished["why"].as_str().unwrap().len() > 10, "{finished}");
        }
    }
}

#[test]
fn a_file_does_not_become_longer_than_it_may() {
    for invigil in everyone() {
        let policy = rules(
            &invigil,
            "rules.toml",
            "version = 1\n[budget]\nfile_size = \"1MiB\"\n",
        );
        // One dies of it, one is told, and what is short enough passes.
        let jobs = [
            ("writes", "head -c 3000000 /dev/zero > f; test $? = 153"),
            (
                "ignores",
                "trap '' XFSZ; head -c 3000000 /dev/zero > f; test $? = 1",
            ),
            ("truncates", "trap '' XFSZ; ! truncate -s 3000000 f"),
        ];
        for (id, script) in jobs {
            let (code, out) = run(
                &invigil,
                id,
                &["--policy", &policy],
                &[
                    "sh",
                    "-c",
                    &format!("head -c 1000000 /dev/zero > g && {script}"),
                ],
            );
            assert_eq!(code, Some(0), "{id}: {out}");
            assert!(fs::metadata(invigil.at("ws/f")).map_or(0, |f| f.len()) <= 1 << 20);
            let denied = denials(&invigil, id);
            assert_eq!(denied.len(), 1, "{id}: {denied:?}");
            assert_eq!(denied[0]["rule"], "limit:file_size", "{id}");
            assert_eq!(denied[0]["error"], "EFBIG", "{id}");
        }
    }
}

#[test]
fn strict_does_not_start_where_it_could_be_got_around() {
    for invigil in everyone() {
        for tier in ["ptrace", "contract_only"] {
            let options = ["--mode", "strict", "--tier", tier];
            let (code, out) = run(&invigil, tier, &options, &["touch", "started"]);
            assert_eq!(code, Some(125), "{tier}: {out}");
            assert!(out.contains("notify"), "{tier}: {out}");
            assert!(!Path::new(&invigil.at("ws/started")).exists(), "{tier}");
        }
        // The same policy in `guard` starts, and says what it is worth.
        let (code, out) = run(
            &invigil,
            "guard",
            &["--mode", "guard", "--tier", "ptrace"],
            &["touch", "started"],
        );
        assert_eq!(code, Some(0), "{out}");
        let enforced = invigil.event("guard", "policy_enforced").to_string();
        assert!(enforced.contains("in the ptrace tier"), "{enforced}");
    }
}

#[test]
fn variables_are_kept_back_where_the_policy_says_so() {
    for invigil in everyone() {
        put(
            &invigil,
            "rules.toml",
            "version = 1\n[env]\nallow = [\"PATH\", \"HOME\"]\n",
        );
        let policy = invigil.at("rules.toml");
        let options = ["--policy", &policy, "--env", "MINE=1"];
        let (_, out) = run(&invigil, "env", &options, &["env"]);
        assert!(out.contains("PATH=") && out.contains("MINE=1") && out.contains("INVIGIL_RUN_ID="));
        assert!(!out.contains("NO_COLOR"), "{out}");
        let loaded = invigil.event("env", "policy_loaded");
        assert!(
            loaded["env_withheld"]
                .as_array()
                .unwrap()
                .iter()
                .any(|name| name == "NO_COLOR")
        );
    }
}

#[test]
fn strict_denies_what_no_rule_allows() {
    for invigil in everyone() {
        let script = "echo in > f; cat f; cat ../rules.toml; echo out > ../outside/f; true";
        let (code, out) = run(
            &invigil,
            "strict",
            &["--mode", "strict"],
            &["sh", "-c", script],
        );
        if code == Some(125) {
            println!("skipped: {out}");
            continue;
        }
        assert_eq!(code, Some(0), "{out}");
        assert!(out.starts_with("in\n") && !out.contains("version"), "{out}");
        let denied = denials(&invigil, "strict");
        assert!(
            denied
                .iter()
                .any(|d| d["target"].as_str().unwrap().ends_with("rules.toml")),
            "{denied:?}"
        );
        assert!(!Path::new(&invigil.at("outside/f")).exists());
    }
}

#[test]
fn what_was_learned_lets_the_same_pass_and_nothing_more() {
    for invigil in everyone() {
        let script = "mkdir -p out && echo a > out/a && cp out/a out/b && ls out | sort";
        let more = format!("{script}; echo x > ../outside/x");
        let command = ["sh", "-c", script];
        let (code, out) = run(&invigil, "seen", &["--reads", "on"], &command);
        assert_eq!(code, Some(0), "{out}");
        let learned = invigil.at("learned.toml");
        let mut learn = invigil.command(&["policy", "learn", "seen", "-o", &learned]);
        let tmp = invigil.at("ws/tmp");
        let status = learn
            .current_dir(invigil.at("ws"))
            .env("TMPDIR", tmp)
            .status()
            .unwrap();
        assert!(status.success());
        let (code, out) = run(&invigil, "again", &["--policy", &learned], &command);
        let denied = denials(&invigil, "again");
        assert_eq!((code, denied), (Some(0), vec![]), "{out}");
        run(
            &invigil,
            "more",
            &["--policy", &learned],
            &["sh", "-c", &more],
        );
        let denied = denials(&invigil, "more");
        assert_eq!(denied.len(), 1, "{denied:?}");
        assert!(
            denied[0]["target"]
                .as_str()
                .unwrap()
                .ends_with("/outside/x")
        );
        // Without reads there is nothing to say of them.
        run(&invigil, "blind", &[], &command);
        let (text, _) = invigil.expect(0, &["policy", "learn", "blind"]);
        assert!(
            text.starts_with("# What was read was not recorded"),
            "{text}"
        );
    }
}

#[test]
fn the_framework_of_the_agent_can_report_under_a_policy() {
    if !has("python3") {
        return;
    }
    let script = "import json, os, socket\n\
        s = socket.socket(socket.AF_UNIX)\n\
        s.connect(os.environ['INVIGIL_EVENTS'])\n\
        for n in range(3):\n\
        \x20   line = {'schema': os.environ['INVIGIL_EVENTS_SCHEMA'], 'run_id': os.environ['INVIGIL_RUN_ID'], 'seq': n,\n\
        \x20           'event_type': 'tool_call_started', 'source': 'test', 'tool_call_id': str(n), 'tool': 'look'}\n\
        \x20   s.sendall((json.dumps(line) + '\\n').encode())\n\
        import time; time.sleep(1)\n";
    for invigil in everyone() {
        let command = ["python3", "-c", script];
        let (code, out) = run(&invigil, "sdk", &["--mode", "guard"], &command);
        assert_eq!(code, Some(0), "{out}");
        let rejected = invigil.all("sdk", "sdk_rejected");
        assert_eq!(
            (invigil.all("sdk", "sdk_event").len(), rejected),
            (3, vec![])
        );
        put(
            &invigil,
            "rules.toml",
            "version = 1\n[budget]\ntool_calls = 2\n",
        );
        let policy = invigil.at("rules.toml");
        let (code, out) = run(&invigil, "calls", &["--policy", &policy], &command);
        assert_eq!(code, Some(122), "{out}");
    }
}

/// A policy with the directory of the test in it.
fn rules(invigil: &Invigil, name: &str, text: &str) -> String {
    put(invigil, name, &text.replace("WS", &invigil.at("ws")));
    invigil.at(name)
}

#[test]
fn another_name_is_no_way_around() {
    for invigil in everyone() {
        make(&invigil, "ws/a/inner");
        make(&invigil, "ws/asked");
        make(&invigil, "ws/hooks");
        put(&invigil, "ws/a/inner/key", "very secret");
        put(&invigil, "ws/asked/x", "rather private");
        put(&invigil, "reports", "");
        let text = "version = 1\ndefault = \"allow\"\n[files.read]\ndeny = [\"WS/a/inner/**\"]\n\
                    ask = [\"WS/asked/**\"]\n[files.write]\ndeny = [\"WS/hooks/**\"]\n";
        let policy = rules(&invigil, "names.toml", text);
        let try_it = |id: &str, script: &str| {
            run(&invigil, id, &["--policy", &policy], &["sh", "-c", script])
        };
        // A directory that its owner has closed cannot be looked through.
        let closed = "chmod 0 a; mv a b; chmod 755 a b; cat a/inner/key b/inner/key";
        let (_, told) = try_it("closed", closed);
        assert!(!told.contains("very secret"), "{told}");
        assert!(!denials(&invigil, "closed").is_empty());
        let (_, told) = try_it("asked", "mv asked/x y; cat y; mv asked other; cat other/x");
        assert!(!told.contains("rather private"), "{told}");
        let (code, told) = try_it("within", "mv asked/x asked/z");
        assert_eq!(code, Some(0), "{told}");
        // Where an agent reports to is its own, but not under every name.
        let file = invigil.at("reports");
        let options = ["--policy", &policy, "--events", &file];
        let script = "echo evil >> $INVIGIL_EVENTS && ! ln $INVIGIL_EVENTS hooks/one && ! mv $INVIGIL_EVENTS hooks/two";
        let (code, told) = run(&invigil, "reports", &options, &["sh", "-c", script]);
        assert_eq!(code, Some(0), "{told}");
        assert_eq!(fs::read_dir(invigil.at("ws/hooks")).unwrap().count(), 0);
    }
}

#[test]
fn no_argument_is_too_far_behind() {
    for invigil in everyone() {
        let text = "version = 1\ndefault = \"allow\"\n[[exec]]\nprogram = \"echo\"\n\
                    args = [\"..\", \"push\", \"..\"]\ndecision = \"deny\"\n";
        let policy = rules(&invigil, "arguments.toml", text);
        let script = "x=$(printf %0100000d 0); /bin/echo $x $x pull; /bin/echo $x $x push";
        let (_, told) = run(
            &invigil,
            "long",
            &["--policy", &policy],
            &["sh", "-c", script],
        );
        assert!(told.contains(" pull\n") && !told.contains(" push\n"));
        assert_eq!(denials(&invigil, "long").len(), 1);
    }
}

#[test]
fn processes_outside_keep_their_own() {
    for invigil in everyone() {
        let text = "version = 1\ndefault = \"allow\"\n[files.read]\ndeny = [\"/nowhere/**\"]\n";
        let policy = rules(&invigil, "processes.toml", text);
        let outside = std::process::id();
        let script = format!(
            "cat /proc/{outside}/comm /proc/self/environ /proc/$$/maps /proc/meminfo /proc/mounts /proc/net/route >/dev/null && ! cat /proc/{outside}/environ"
        );
        let (code, told) = run(
            &invigil,
            "outside",
            &["--policy", &policy],
            &["sh", "-c", &script],
        );
        assert_eq!(code, Some(0), "{told}");
    }
}

#[test]
fn the_next_runs_rules_are_out_of_reach() {
    for invigil in everyone() {
        make(&invigil, "ws/planted");
        make(&invigil, "cfg");
        let text = "version = 1\ndefault = \"allow\"\n";
        let policy = rules(&invigil, "lax.toml", text);
        let config = invigil.at("cfg");
        let script = "ln -s $PWD/planted $XDG_CONFIG_HOME/invigil || mkdir $XDG_CONFIG_HOME/invigil; echo 'version = 1' > $XDG_CONFIG_HOME/invigil/policy.toml";
        for (id, options) in [("guarded", vec!["--policy", &policy]), ("observed", vec![])] {
            let args = ["run", "--run-id", id, "--ask", "never", "--quiet"];
            let args: Vec<&str> = args.into_iter().chain(options).collect();
            let args = [&args[..], &["--", "sh", "-c", script]].concat();
            let mut command = invigil.command(&args);
            command.current_dir(invigil.at("ws"));
            let output = command.env("XDG_CONFIG_HOME", &config).output().unwrap();
            assert!(!output.status.success(), "{id}");
            assert!(!Path::new(&config).join("invigil/policy.toml").exists());
        }
    }
}

#[test]
fn the_rules_of_a_project_are_not_for_its_agents() {
    for invigil in everyone() {
        make(&invigil, "ws/.invigil");
        put(&invigil, "ws/.invigil/policy.toml", "version = 1\n");
        let script = "cat .invigil/policy.toml; rm -f .invigil/policy.toml; mv .invigil away; echo > .invigil/more; true";
        sh(&invigil, "project", script);
        let rules = invigil.at("ws/.invigil/policy.toml");
        assert_eq!(fs::read_to_string(rules).unwrap(), "version = 1\n");
        assert!(!Path::new(&invigil.at("ws/.invigil/more")).exists());
        assert_eq!(denials(&invigil, "project").len(), 3);
    }
}

#[test]
fn a_policy_that_is_no_plain_file_starts_nothing() {
    for invigil in everyone() {
        let made = Command::new("mkfifo").arg(invigil.at("fifo.toml")).status();
        assert!(made.unwrap().success());
        for policy in [invigil.at("fifo.toml"), "/dev/zero".to_owned()] {
            let (code, text) = run(&invigil, "none", &["--policy", &policy], &["true"]);
            assert_eq!(code, Some(125), "{text}");
            assert!(text.contains("no plain file"), "{text}");
        }
        assert!(!invigil.journal("none").exists());
    }
}
