//! Tasks with real repositories and scripted agents: the right verdict, an untouched checkout, and nothing left behind.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Invigil;
use super::repos::{
    NODE, NODE_CONTRACT, PYTHON, PYTHON_CONTRACT, RUST, RUST_CONTRACT, has, make, put, sh,
};
use super::terminal::on_a_terminal;

const SOLVES: &str = "sed -i 's/a - b/a + b/' calc/__init__.py";

/// Everything of a repository, but what an approval may add.
fn untouched(repository: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = super::tree(repository);
    let git = repository.join(".git");
    let may_change = [
        git.join("objects"),
        git.join("refs/heads/invigil"),
        git.join("logs/refs/heads/invigil"),
    ];
    all.retain(|(path, _)| !may_change.iter().any(|added| path.starts_with(added)));
    all
}

/// A task in a repository.
struct Task<'a> {
    invigil: &'a Invigil,
    repository: PathBuf,
    before: Vec<(PathBuf, Vec<u8>)>,
}

impl<'a> Task<'a> {
    fn new(invigil: &'a Invigil, script: &str, contract: &str) -> Task<'a> {
        let repository = make(invigil, script);
        put(invigil, "contract.json", contract);
        let before = untouched(&repository);
        Task {
            invigil,
            repository,
            before,
        }
    }

    fn args<'s>(&self, id: &'s str, agent: &'s str) -> Vec<&'s str> {
        vec![
            "task",
            "start",
            "--repo",
            "repo",
            "--intent",
            "make it add",
            "--contract",
            "contract.json",
            "--task-id",
            id,
            "--json",
            "--max-rounds",
            "0",
            "--agent",
            agent,
        ]
    }

    #[track_caller]
    fn start(&self, code: i32, id: &str, agent: &str) -> Value {
        let output = self.invigil.output(&self.args(id, agent));
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
        serde_json::from_str(&out).unwrap()
    }

    fn approve(&self, code: i32, view: &Value) -> String {
        let digest = view["proposed"]["digest"].as_str().unwrap();
        let id = view["task_id"].as_str().unwrap();
        self.invigil
            .expect(code, &["task", "approve", id, "--digest", digest])
            .1
    }

    fn git(&self, script: &str) -> String {
        sh(self.invigil, &self.repository, script)
    }

    /// The checkout is as it was, and nothing is left of the task but what was asked for.
    #[track_caller]
    fn clean(&self, branches: &str) {
        assert!(
            untouched(&self.repository) == self.before,
            "the repository has changed"
        );
        let made = self.git("git for-each-ref --format='%(refname:short)' refs/heads/invigil");
        assert_eq!(made.trim(), branches);
        let work = self.invigil.directory.path().join(".cache/invigil/tasks");
        let left: Vec<_> = fs::read_dir(work).into_iter().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(!self.repository.join("hook-has-run").exists());
    }
}

fn verdict(view: &Value) -> &str {
    view["verdict"].as_str().unwrap()
}

fn sleeping(seconds: &str) -> String {
    let found = Command::new("pgrep")
        .args(["-fx", &format!("sleep {seconds}")])
        .output();
    found.map_or_else(
        |_| String::new(),
        |found| String::from_utf8_lossy(&found.stdout).into_owned(),
    )
}

#[test]
fn an_agent_that_solves_it_is_approved_to_a_branch() {
    for invigil in Invigil::everyone() {
        let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
        let view = task.start(0, "t1", &format!("cat > /dev/null; {SOLVES}; git add -A; git -c user.name=A -c user.email=a@b commit -qm mine; echo more >> README"));
        assert_eq!(view["state"], "needs_approval", "{view}");
        assert_eq!(view["baseline"][0]["passed"], false);
        assert_eq!(view["checks"][0]["passed"], true);
        assert_eq!(
            verdict(&view),
            "All 2 checks pass; 1 of them failed before."
        );
        let (shown, _) = invigil.expect(0, &["task", "show", "t1"]);
        for words in [
            "+    return a + b",
            "-    return a - b",
            "red → green  tests_pass",
            "digest",
            "commit",
            "mine",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        // Nothing but the digest of what was shown approves.
        let (_, err) = invigil.expect(125, &["task", "approve", "t1"]);
        assert!(err.contains("--digest"), "{err}");
        invigil.expect(1, &["task", "approve", "t1", "--digest", &"0".repeat(64)]);
        let said = task.approve(0, &view);
        assert!(said.contains("invigil/t1"), "{said}");
        task.clean("invigil/t1");
        let log = task.git("git log --format=%s main..invigil/t1");
        assert_eq!(log, "make it add\nmine\n");
        assert_eq!(
            task.git("git show invigil/t1:calc/__init__.py"),
            "def add(a, b):\n    return a + b\n"
        );
        task.git("git fsck --strict");
        let (list, _) = invigil.expect(0, &["task", "list", "--json"]);
        assert!(list.contains("\"state\":\"merged\""), "{list}");
        let journal = invigil.home().join("tasks/t1");
        invigil.expect(0, &["verify", journal.to_str().unwrap()]);
    }
}

#[test]
fn an_agent_that_only_claims_is_refused() {
    for invigil in Invigil::everyone() {
        let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
        let view = task.start(120, "t1", "echo All tests pass now.");
        assert_eq!(view["state"], "failed");
        assert_eq!(
            verdict(&view),
            "The agent says that it is done, but 1 of 2 checks fails: tests_pass (it exits with 1)."
        );
        task.clean("");
        let (_, err) = invigil.expect(125, &["task", "approve", "t1", "--digest", &"0".repeat(64)]);
        assert!(err.contains("nothing to approve"), "{err}");
    }
}

#[test]
fn what_an_agent_does_besides_is_told() {
    for invigil in Invigil::everyone() {
        let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
        let view = task.start(0, "t1", "sed -i 's/, 5)/, -1)/' tests/test_calc.py");
        assert!(
            verdict(&view).contains("changed what the checks depend on: tests/test_calc.py"),
            "{view}"
        );
        assert!(
            verdict(&view).contains("With those as they were, 1 of 2 checks fails."),
            "{view}"
        );
        let worktree = PathBuf::from(view["worktree"].as_str().unwrap());
        let edited = fs::read_to_string(worktree.join("tests/test_calc.py")).unwrap();
        assert!(
            edited.contains(", -1)"),
            "what is approved is what the agent left: {edited}"
        );
        invigil.expect(0, &["task", "cancel", "t1"]);
        let hooks = format!(
            "{SOLVES}; echo evil > .git/hooks/pre-commit; echo evil > {}/.git/hooks/pre-commit; echo evil >> {0}/README",
            task.repository.display()
        );
        let view = task.start(0, "t2", &hooks);
        assert!(
            verdict(&view).contains("The policy refused this: "),
            "{view}"
        );
        let refused = view["runs"][0]["refused"].to_string();
        assert!(
            refused.contains("repo/.git/hooks/pre-commit") && refused.contains("repo/README"),
            "{refused}"
        );
        task.approve(0, &view);
        task.clean("invigil/t2");
        let view = task.start(0, "t3", &format!("{SOLVES}; (setsid sleep 311 &)"));
        assert!(
            verdict(&view).contains("A process that it left running was killed."),
            "{view}"
        );
        assert_eq!(sleeping("311"), "");
        invigil.expect(0, &["task", "cancel", "t3"]);
        sh(
            &invigil,
            invigil.directory.path(),
            "git init -q --bare remote.git",
        );
        let remote = invigil.at("remote.git");
        let view = task.start(
            0,
            "t4",
            &format!("{SOLVES}; git push {remote} HEAD:refs/heads/x; git push"),
        );
        let refused = view["runs"][0]["refused"].to_string();
        assert!(
            refused.contains("/git") && refused.contains("{push,"),
            "{view}"
        );
        assert!(
            verdict(&view).contains("The policy refused this: "),
            "{view}"
        );
        assert_eq!(sh(&invigil, Path::new(&remote), "git for-each-ref"), "");
        invigil.expect(0, &["task", "cancel", "t4"]);
        task.clean("invigil/t2");
    }
}

#[test]
fn the_same_with_node_and_with_cargo() {
    let node = has("node").then_some((NODE, NODE_CONTRACT, "index.js", "test.js"));
    let cargo = has("cargo").then_some((RUST, RUST_CONTRACT, "src/lib.rs", "tests/adds.rs"));
    for (script, contract, source, test) in [node, cargo].into_iter().flatten() {
        for invigil in Invigil::everyone() {
            if invigil.nobody && source == "src/lib.rs" {
                println!("skipped: cargo is the other user's");
                continue;
            }
            let task = Task::new(&invigil, script, contract);
            let home = std::env::var("HOME").unwrap();
            let start = |code: i32, id: &str, agent: &str| {
                let mut command = invigil.command(&task.args(id, agent));
                command
                    .env("CARGO_HOME", format!("{home}/.cargo"))
                    .env("RUSTUP_HOME", format!("{home}/.rustup"));
                let output = command.output().unwrap();
                let err = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.code(), Some(code), "{err}");
                serde_json::from_slice::<Value>(&output.stdout).unwrap()
            };
            let view = start(120, "t1", "echo done");
            assert!(verdict(&view).contains("the one check fails"), "{view}");
            let view = start(0, "t2", &format!("sed -i 's/, 5)/, -1)/' {test}"));
            assert!(verdict(&view).contains(test), "{view}");
            invigil.expect(0, &["task", "cancel", "t2"]);
            let view = start(0, "t3", &format!("sed -i 's/a - b/a + b/' {source}"));
            assert_eq!(verdict(&view), "The one check passes; it failed before.");
            task.approve(0, &view);
            task.clean("invigil/t3");
        }
    }
}

#[test]
fn red_checks_go_back_with_what_fails() {
    let invigil = Invigil::new();
    let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
    let agent = format!(
        "cat > told; if grep -q 'AssertionError: -1 != 5' told; then {SOLVES}; fi; rm told"
    );
    let mut args = task.args("t1", &agent);
    args.retain(|arg| *arg != "--max-rounds" && *arg != "0");
    let (out, err) = invigil.expect(0, &args);
    let view: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&view["state"], &view["round"]),
        (&"needs_approval".into(), &2.into())
    );
    assert!(err.contains("round 2: the agent works"), "{err}");
    assert_eq!(view["runs"].as_array().unwrap().len(), 2);
    // A person may send it back, too.
    let (out, _) = invigil.expect(
        0,
        &[
            "task",
            "respond",
            "t1",
            "write it in README as well",
            "--json",
        ],
    );
    let view: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&view["state"], &view["round"]),
        (&"needs_approval".into(), &3.into())
    );
    invigil.expect(0, &["task", "cancel", "t1"]);
    task.clean("");
}

#[test]
fn the_intent_can_be_an_argument_and_nothing_may_have_to_change() {
    let invigil = Invigil::new();
    let task = Task::new(
        &invigil,
        PYTHON,
        r#"{"checks": [{"name": "a", "command": "true"}]}"#,
    );
    let (out, err) = invigil.expect(
        0,
        &[
            "task",
            "start",
            "--repo",
            "repo",
            "--intent",
            "it's \"quoted\"; rm -rf $HOME",
            "--contract",
            "contract.json",
            "--task-id",
            "t1",
            "--json",
            "--agent",
            "test {intent} = \"it's \\\"quoted\\\"; rm -rf \\$HOME\"",
        ],
    );
    let view: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(view["state"], "reported", "{view}");
    assert_eq!(view["runs"][0]["exit_code"], 0, "{err}");
    assert_eq!(
        verdict(&view),
        "The one check passes, and the agent has changed nothing."
    );
    assert!(err.contains("proves nothing"), "{err}");
    task.clean("");
}

#[test]
fn what_changes_after_it_was_shown_is_not_approved() {
    for invigil in Invigil::everyone() {
        let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
        let view = task.start(0, "t1", SOLVES);
        let worktree = PathBuf::from(view["worktree"].as_str().unwrap());
        sh(&invigil, &worktree, "echo evil >> calc/__init__.py");
        let said = task.approve(1, &view);
        assert!(
            said.contains("refused") && said.contains("has changed since it was shown"),
            "{said}"
        );
        assert_eq!(task.git("git for-each-ref refs/heads/invigil"), "");
        sh(&invigil, &worktree, "sed -i '$d' calc/__init__.py");
        task.approve(0, &view);
        task.clean("invigil/t1");
    }
}

#[test]
fn no_run_can_approve() {
    for invigil in Invigil::everyone() {
        let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
        let view = task.start(0, "t1", SOLVES);
        let digest = view["proposed"]["digest"].as_str().unwrap();
        let binary = env!("CARGO_BIN_EXE_invigil");
        let args = [
            "run", "--quiet", "--", binary, "task", "approve", "t1", "--digest", digest,
        ];
        assert_ne!(invigil.output(&args).status.code(), Some(0));
        let (out, _) = invigil.expect(0, &["task", "show", "t1", "--json"]);
        assert!(out.contains("\"state\":\"needs_approval\""), "{out}");
        task.approve(0, &view);
    }
}

/// Starts a task in the background and waits until the agent works.
fn begin(task: &Task<'_>, id: &str, seconds: &str) -> std::process::Child {
    let agent = format!("touch begun; sleep {seconds}");
    let mut command = task.invigil.command(&task.args(id, &agent));
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while sleeping(seconds).is_empty() {
        assert!(Instant::now() < until, "the agent does not work");
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

#[test]
fn a_cancelled_task_leaves_nothing() {
    for invigil in Invigil::everyone() {
        let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
        let mut child = begin(&task, "t1", "312");
        invigil.expect(0, &["task", "cancel", "t1"]);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(sleeping("312"), "");
        task.clean("");
        let (out, _) = invigil.expect(0, &["task", "show", "t1", "--json"]);
        assert!(out.contains("\"state\":\"abandoned\""), "{out}");
        invigil.expect(125, &["task", "cancel", "t1"]);
    }
}

#[test]
fn a_crashed_task_is_ended_by_the_next_command() {
    for invigil in Invigil::everyone() {
        let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
        let mut child = begin(&task, "t1", "313");
        child.kill().unwrap();
        child.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !sleeping("313").is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(sleeping("313"), "");
        let (out, err) = invigil.expect(0, &["task", "list"]);
        assert!(
            out.contains("failed") && err.contains("is gone"),
            "{out}{err}"
        );
        task.clean("");
    }
}

#[test]
fn special_repositories() {
    for invigil in Invigil::everyone() {
        let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
        // Detached, dirty, with a submodule, LFS pointers and a filter that would leave a trace.
        task.git(
            "git config filter.lfs.smudge 'touch /tmp/invigil-filter-has-run; cat'; git config filter.lfs.clean cat
             git config filter.lfs.required true
             printf '*.bin filter=lfs\\n' > .gitattributes; printf 'version https://git-lfs\\n' > a.bin
             touch \"$(printf 'odd\\377name')\"
             git add -A; mkdir sub; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub
             git commit -qm more; git checkout -q --detach; echo dirty >> README; rm -f hook-has-run",
        );
        let before = untouched(&task.repository);
        let task = Task { before, ..task };
        let agent = format!(
            "{SOLVES}; grep -q git-lfs a.bin && echo x > \"$(printf 'odd\\377name')\"; mkfifo pipe; mkdir own && cd own && git init -q . && touch in"
        );
        let view = task.start(0, "t1", &agent);
        let notes = view["notes"].to_string();
        assert!(notes.contains("not committed"), "{notes}");
        assert!(notes.contains("1 submodules are empty folders"), "{notes}");
        let notes = view["proposed"]["notes"].to_string();
        assert!(
            notes.contains("own/ holds a repository of its own"),
            "{view}"
        );
        task.approve(0, &view);
        task.clean("invigil/t1");
        let odd = task.repository.join(OsStr::from_bytes(b"odd\xffname"));
        assert_eq!(fs::read(odd).unwrap(), b"");
        assert_eq!(
            task.git("git show invigil/t1:$(printf 'odd\\377name')"),
            "x\n"
        );
        assert_eq!(
            task.git("git show invigil/t1:a.bin"),
            "version https://git-lfs\n"
        );
        let link = task.git("git ls-tree invigil/t1 sub");
        assert!(link.starts_with("160000 commit"), "{link}");
        assert!(!Path::new("/tmp/invigil-filter-has-run").exists());
    }
}

#[test]
fn shallow_clones_and_repositories_without_commits() {
    let invigil = Invigil::new();
    let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
    task.git("git commit -q --allow-empty -m second; rm -f hook-has-run");
    sh(
        &invigil,
        invigil.directory.path(),
        "mv repo full; git clone -q --depth 1 file://$PWD/full repo",
    );
    let before = untouched(&task.repository);
    let task = Task { before, ..task };
    let view = task.start(0, "t1", SOLVES);
    task.approve(0, &view);
    task.clean("invigil/t1");
    sh(
        &invigil,
        invigil.directory.path(),
        "rm -rf repo; git init -q repo",
    );
    let (_, err) = invigil.expect(125, &task.args("t2", "true"));
    assert!(err.contains("has no commits yet"), "{err}");
    sh(
        &invigil,
        invigil.directory.path(),
        "rm -rf repo; mkdir repo",
    );
    let (_, err) = invigil.expect(125, &task.args("t3", "true"));
    assert!(err.contains("is not in a git repository"), "{err}");
}

#[test]
fn a_derived_contract_is_confirmed_first() {
    let invigil = Invigil::new();
    let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
    let mut args = task.args("t1", SOLVES);
    args.retain(|arg| *arg != "--contract" && *arg != "contract.json");
    let model = format!("cat {}", invigil.at("contract.json"));
    args.extend(["--derive", "--model-cmd", &model]);
    let (out, _) = invigil.expect(0, &args);
    let view: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(view["state"], "contract_proposed");
    let (out, _) = invigil.expect(0, &["task", "confirm", "t1", "--json"]);
    let view: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(view["state"], "needs_approval", "{view}");
    task.approve(0, &view);
    task.clean("invigil/t1");
}

#[test]
fn a_person_at_a_terminal_needs_one_key() {
    for invigil in Invigil::everyone() {
        let task = Task::new(&invigil, PYTHON, PYTHON_CONTRACT);
        let start = |id: &str, keys: &str| {
            let mut args = task.args(id, SOLVES);
            args.retain(|arg| !["--contract", "contract.json", "--json"].contains(arg));
            let model = format!("cat {}", invigil.at("contract.json"));
            args.extend(["--derive", "--model-cmd", &model]);
            on_a_terminal(&invigil, &args, keys)
        };
        let yes = "until(b'Agree?')\ntype(b'y')\nuntil(b'return a + b')\nuntil(b'[a]pprove')\n";
        assert_eq!(
            start("t1", &format!("{yes}type(b'a')\nuntil(b'merged')\nend()")),
            0
        );
        task.clean("invigil/t1");
        assert_eq!(start("t2", &format!("{yes}type(b'c')\nend()")), 130);
        assert_eq!(start("t3", "until(b'Agree?')\ntype(b'n')\nend()"), 130);
        task.clean("invigil/t1");
        // Later, in another terminal.
        assert_eq!(start("t4", &format!("{yes}type(b'x')\nend()")), 0);
        let approve = ["task", "approve", "t4"];
        assert_eq!(
            on_a_terminal(&invigil, &approve, "until(b'[a]pprove')\ntype(b'a')\nend()"),
            0
        );
        task.git("git rev-parse --verify invigil/t4");
    }
}

#[test]
fn what_checks_leave_behind_leads_nowhere() {
    let invigil = Invigil::new();
    let repository = invigil.at("repo");
    let contract = format!(
        r#"{{"checks": [{{"name": "a", "command": "grep -q 'a + b' calc/__init__.py && echo x > left && rm -r calc && ln -s {repository}/calc calc"}}]}}"#
    );
    let task = Task::new(&invigil, PYTHON, &contract);
    // Ignored, the link is not seen as a change.
    let view = task.start(0, "t1", &format!("{SOLVES}; echo calc >> .gitignore"));
    assert_eq!(view["state"], "needs_approval", "{view}");
    assert!(
        untouched(&task.repository) == task.before,
        "a check reached the checkout"
    );
    task.approve(0, &view);
    task.clean("invigil/t1");
    let files = task.git("git diff --name-only main invigil/t1");
    assert_eq!(files, ".gitignore\ncalc/__init__.py\n");
}
