//! Tasks over the wire: real repositories, scripted agents, and a person with the operator's token.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::world::{Daemon, Host, PATIENCE, World};

/// A repository in which something fails.
const REPOSITORY: &str = r#"
git init -q -b main .
printf 'a - b\n' > calc
printf '#!/bin/sh\ngrep -q "a + b" calc\n' > try.sh
echo hello > README
git add . && git -c user.name=A -c user.email=a@example.com commit -qm first
"#;
pub(crate) const SOLVES: &str = "sed -i 's/a - b/a + b/' calc";

fn contract() -> Value {
    json!({ "description": "it adds", "checks": [
        { "name": "adds", "command": "sh try.sh" },
        { "name": "there", "command": "test -f calc" },
    ] })
}

/// Runs a script as the user of this world.
#[track_caller]
fn sh(world: &World, directory: &Path, script: &str) -> String {
    let mut command = world.program("sh", &["-e", "-c", script]);
    let output = command.current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn repository(world: &World) -> PathBuf {
    let path = world.path("repo");
    sh(world, path.parent().unwrap(), "mkdir repo");
    sh(world, &path, REPOSITORY);
    path
}

/// What `coder.start` is told.
pub(crate) fn wanted(repository: &Path, agent: &str) -> Value {
    json!({ "repo": repository, "intent": "make it add", "agent": agent, "contract": contract(), "max_rounds": 0 })
}

pub(crate) fn start(host: &mut Host, params: Value) -> String {
    let task = host.ok("coder.start", params);
    task["task_id"].as_str().unwrap().to_owned()
}

/// Waits until a task stands like this, and whoever brought it there has let go of it.
#[track_caller]
pub(crate) fn stands(host: &mut Host, task: &str, state: &str) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let view = host.ok("coder.get", json!({ "task_id": task }));
        if view["state"] == state && (state != "needs_approval" || view["live"] == false) {
            return view;
        }
        let over = ["merged", "failed", "abandoned", "reported"];
        let over = over.iter().any(|state| view["state"] == *state);
        assert!(!over && Instant::now() < until, "not {state}: {view}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn digest(view: &Value) -> String {
    view["proposed"]["digest"].as_str().unwrap().to_owned()
}

/// Follows a task from a record on until one of this kind; no record is missing and none comes twice.
#[track_caller]
fn follow(host: &mut Host, task: &str, from: u64, last: &str) -> Vec<Value> {
    host.seen
        .retain(|message| message["params"]["task_id"] != task);
    let params = json!({ "task_id": task, "from_seq": from });
    let first = host.ok("coder.subscribe", params);
    let page = first["events"].as_array().unwrap().clone();
    assert_eq!(first["next_seq"], json!(from + page.len() as u64));
    let page = page.into_iter().map(|mut event| {
        event["task_id"] = json!(task);
        json!({ "method": "coder.event", "params": event })
    });
    host.seen.splice(0..0, page);
    let mut events = Vec::new();
    more(host, task, &mut events, last);
    for (event, seq) in events.iter().zip(from..) {
        assert_eq!(event["seq"], json!(seq), "{events:#?}");
        assert!(event["time"].is_string() && event["origin"].is_string());
    }
    events
}

/// Takes what comes until a record of this kind.
#[track_caller]
fn more(host: &mut Host, task: &str, events: &mut Vec<Value>, last: &str) {
    let mut came = std::mem::take(&mut host.seen).into_iter();
    loop {
        let message = came.next().unwrap_or_else(|| {
            let message = host.client.receive(PATIENCE);
            message.unwrap_or_else(|error| panic!("no {last}, {error}: {events:#?}"))
        });
        let mut event = message["params"].clone();
        if message["method"] != "coder.event" || event["task_id"] != task {
            continue;
        }
        event.as_object_mut().unwrap().remove("task_id");
        events.push(event);
        if events.last().unwrap()["kind"] == last {
            break;
        }
    }
    host.seen.splice(0..0, came);
}

/// What a person says, with the operator's token, in a process of the user of this world.
fn person(world: &World, method: &str, params: &Value) -> Value {
    let mut rpc = world.command(&["rpc", "--operator", method, &params.to_string()]);
    let output = rpc.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().map(|event| event["kind"].as_str().unwrap());
    kinds.collect()
}

/// Processes that sleep so long.
fn sleeping(seconds: &str) -> usize {
    let sleeps = |entry: fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line == format!("sleep\0{seconds}\0").as_bytes()
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.map(sleeps).filter(|sleeps| *sleeps).count()
}

#[track_caller]
fn wait_for(what: &str, so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Nothing is left of any task but its branch.
#[track_caller]
fn clean(world: &World, repository: &Path, view: &Value, branches: &str) {
    let worktree = PathBuf::from(view["worktree"].as_str().unwrap());
    assert!(!worktree.exists() && !worktree.parent().unwrap().exists());
    let made = sh(
        world,
        repository,
        "git for-each-ref --format='%(refname:short)' refs/heads/invigil",
    );
    assert_eq!(made.trim(), branches);
    assert_eq!(sh(world, repository, "git status --porcelain"), "");
    assert_eq!(sh(world, repository, "cat calc"), "a - b\n");
}

#[test]
fn a_task_goes_all_the_way_to_a_branch() {
    for world in World::everyone() {
        let repository = repository(&world);
        let daemon = world.serve(&[]);
        let mut host = daemon.host(Some("a"));
        let task = start(&mut host, wanted(&repository, SOLVES));
        let mut events = follow(&mut host, &task, 0, "task_proposed");
        more(&mut host, &task, &mut events, "task_changed");
        let checks = ["check_started", "check_completed"].repeat(2);
        let mut expected = vec!["journal_opened", "task_started", "task_contract"];
        expected.extend(&checks);
        expected.extend(["task_changed", "task_ran", "task_changed"]);
        expected.extend(&checks);
        expected.extend(["task_proposed", "task_changed"]);
        assert_eq!(kinds(&events), expected);
        // Whose word it is, and how far it is: which check of how many, which round, how long it took.
        assert_eq!(events[2]["origin"], "client");
        let began = &events[10]["data"];
        assert_eq!(
            (
                &began["stage"],
                &began["round"],
                &began["number"],
                &began["of"]
            ),
            (&json!("verify"), &json!(1), &json!(1), &json!(2))
        );
        assert_eq!(began["check"]["name"], "adds");
        assert!(events[11]["data"]["result"]["duration_ms"].is_u64());
        assert!(events[8]["data"]["duration_ms"].is_u64());
        // What is shown, and what it is bound to.
        let shown = host.ok("coder.get", json!({ "task_id": task, "patch_from": 0 }));
        assert_eq!(shown["state"], "needs_approval");
        assert_eq!(
            shown["verdict"],
            "All 2 checks pass; 1 of them failed before."
        );
        let patch = &shown["patch"];
        assert!(
            patch["text"].as_str().unwrap().contains("+a + b"),
            "{patch}"
        );
        assert_eq!(patch["next"], patch["bytes"]);
        let digest = digest(&shown);
        // Who began it cannot approve it; a person can, once.
        let approve = |digest: &str| json!({ "task_id": task, "digest": digest });
        let refused = host.refused("coder.approve_merge", approve(&digest));
        assert_eq!(refused.code, -32002);
        for wrong in ["", "0123456789ab", &digest[..11]] {
            let refused = person(&world, "coder.approve_merge", &approve(wrong));
            assert_eq!(refused["code"], -32008, "{wrong}");
            assert_eq!(refused["data"]["reason"], "digest", "{wrong}");
        }
        let merged = person(&world, "coder.approve_merge", &approve(&digest));
        assert_eq!(merged["state"], "merged");
        more(&mut host, &task, &mut events, "task_ended");
        assert_eq!(
            kinds(&events[events.len() - 2..]),
            ["task_answered", "task_ended"]
        );
        assert_eq!(events[events.len() - 2]["origin"], "user");
        let again = person(&world, "coder.approve_merge", &approve(&digest));
        assert_eq!(again["data"]["reason"], "state");
        let branch = format!("invigil/{task}");
        assert_eq!(merged["branch"], json!(branch));
        assert_eq!(
            sh(&world, &repository, &format!("git show {branch}:calc")),
            "a + b\n"
        );
        clean(&world, &repository, &merged, &branch);
        // It is over for everybody who follows, and can still be read.
        daemon.wait_for("subscriptions", |open| open == 0);
        assert_eq!(follow(&mut host, &task, 0, "task_ended"), events);
        let behind = json!({ "task_id": task, "from_seq": u64::MAX });
        assert_eq!(host.ok("coder.subscribe", behind)["events"], json!([]));
        daemon.wait_for("subscriptions", |open| open == 0);
        let listed = host.ok("coder.list", json!({ "state": "merged" }));
        assert_eq!(listed["tasks"][0]["task_id"], json!(task));
        assert_eq!(
            host.ok("coder.list", json!({ "state": "failed" }))["tasks"],
            json!([])
        );
        daemon.wait_for("tasks_under_way", |open| open == 0);
        let journal = world.home().join("tasks").join(&task);
        world.verify(journal.to_str().unwrap());
    }
}

#[test]
fn what_changes_after_it_was_shown_is_not_approved() {
    let world = World::new();
    let repository = repository(&world);
    let daemon = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    let task = start(&mut host, wanted(&repository, SOLVES));
    let view = stands(&mut host, &task, "needs_approval");
    let worktree = PathBuf::from(view["worktree"].as_str().unwrap());
    fs::write(worktree.join("more"), "evil\n").unwrap();
    let mut operator = daemon.operator();
    let approve = json!({ "task_id": task, "digest": digest(&view) });
    let refused = operator.refused("coder.approve_merge", approve.clone());
    assert_eq!(refused.data.unwrap()["reason"], "changed");
    assert!(refused.message.contains("has changed since it was shown"));
    assert_eq!(stands(&mut host, &task, "needs_approval"), view);
    fs::remove_file(worktree.join("more")).unwrap();
    assert_eq!(
        operator.ok("coder.approve_merge", approve)["state"],
        "merged"
    );
}

#[test]
fn a_derived_contract_is_confirmed_first() {
    for world in World::everyone() {
        let repository = repository(&world);
        fs::write(world.path("contract.json"), contract().to_string()).unwrap();
        let model = format!(
            "cat > /dev/null; cat {}",
            world.path("contract.json").display()
        );
        let daemon = world.serve(&["--model-cmd", &model]);
        let mut host = daemon.host(Some("a"));
        let mut params = wanted(&repository, SOLVES);
        params["contract"].take();
        params["derive"] = json!(true);
        let task = start(&mut host, params.clone());
        let mut events = follow(&mut host, &task, 0, "task_contract");
        let proposed = events.last().unwrap().clone();
        assert_eq!(
            (&proposed["origin"], &proposed["data"]["confirmed"]),
            (&json!("runtime"), &json!(false))
        );
        assert_eq!(
            host.ok("coder.get", json!({ "task_id": task }))["state"],
            "contract_proposed"
        );
        let confirm = json!({ "task_id": task });
        let view = host.ok("coder.confirm_contract", confirm.clone());
        assert_eq!(view["state"], "contract_confirmed");
        more(&mut host, &task, &mut events, "task_proposed");
        let twice = host.refused("coder.confirm_contract", confirm);
        assert_eq!(twice.code, -32008);
        // Another one in its place, from a person.
        let other = start(&mut host, params.clone());
        stands(&mut host, &other, "contract_proposed");
        let instead = json!({ "checks": [{ "name": "only", "command": "sh try.sh" }] });
        let instead = json!({ "task_id": other, "contract": instead });
        person(&world, "coder.confirm_contract", &instead);
        let view = stands(&mut host, &other, "needs_approval");
        assert_eq!(view["contract"]["checks"][0]["name"], "only");
        let events = follow(&mut host, &other, 0, "task_proposed");
        let confirmed = events
            .iter()
            .find(|event| event["data"]["confirmed"] == true);
        assert_eq!(confirmed.unwrap()["origin"], "user");
        // A model that says nothing of use.
        fs::write(world.path("contract.json"), "I would rather not.").unwrap();
        let failed = start(&mut host, params);
        let events = follow(&mut host, &failed, 0, "task_ended");
        let verdict = events.last().unwrap()["data"]["verdict"].as_str().unwrap();
        assert!(verdict.contains("after 3 attempts"), "{verdict}");
    }
}

#[test]
fn what_is_sent_back_goes_on_and_is_followed_after_a_reconnect() {
    let world = World::new();
    let repository = repository(&world);
    let daemon = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    let agent = format!(
        "cat > told; if grep -q louder told; then echo HELLO > README; fi; rm told; {SOLVES}"
    );
    let task = start(&mut host, wanted(&repository, &agent));
    let text = json!({ "task_id": task, "text": "louder, please" });
    let early = host.call("coder.respond", text.clone());
    assert!(early.is_err(), "{early:?}");
    let mut events = follow(&mut host, &task, 0, "task_proposed");
    stands(&mut host, &task, "needs_approval");
    drop(host);
    let mut host = daemon.host(Some("a"));
    let view = host.ok("coder.respond", text);
    assert!(view["state"] != "needs_approval", "{view}");
    let next = events.len() as u64;
    events.extend(follow(&mut host, &task, next, "task_proposed"));
    let answered = events.iter().find(|event| event["kind"] == "task_answered");
    let answered = answered.unwrap();
    assert_eq!(
        (
            &answered["origin"],
            &answered["data"]["approved"],
            &answered["data"]["text"]
        ),
        (&json!("client"), &json!(false), &json!("louder, please"))
    );
    let view = stands(&mut host, &task, "needs_approval");
    assert_eq!(
        (&view["round"], &view["proposed"]["files"]),
        (&json!(2), &json!(["README", "calc"]))
    );
    // The same once more, from the beginning, and from the middle.
    let mut late = daemon.host(Some("a"));
    assert_eq!(
        follow(&mut late, &task, 0, "task_answered")[..],
        events[..=answered["seq"].as_u64().unwrap() as usize]
    );
    late.ok("coder.unsubscribe", json!({ "task_id": task }));
    assert_eq!(
        late.refused("coder.unsubscribe", json!({ "task_id": task }))
            .code,
        -32004
    );
    host.ok("coder.cancel", json!({ "task_id": task }));
    more(&mut host, &task, &mut events, "task_ended");
    late.listen(Duration::from_millis(200));
    assert!(
        late.seen
            .iter()
            .all(|message| message["params"]["kind"] != "task_ended")
    );
}

#[test]
fn a_cancelled_task_leaves_nothing() {
    for world in World::everyone() {
        let repository = repository(&world);
        let daemon = world.serve(&["--model-cmd", "sleep 331"]);
        let mut host = daemon.host(Some("a"));
        let task = start(&mut host, wanted(&repository, "sleep 332"));
        wait_for("the agent works", || sleeping("332") > 0);
        let cancelled = host.ok("coder.cancel", json!({ "task_id": task }));
        assert_eq!(cancelled["state"], "abandoned");
        assert_eq!(sleeping("332"), 0);
        clean(&world, &repository, &cancelled, "");
        let events = follow(&mut host, &task, 0, "task_ended");
        assert_eq!(events.last().unwrap()["data"]["state"], "abandoned");
        let again = host.refused("coder.cancel", json!({ "task_id": task }));
        assert_eq!(again.data.unwrap()["reason"], "state");
        // Also while a model thinks.
        let mut params = wanted(&repository, SOLVES);
        params["contract"].take();
        params["derive"] = json!(true);
        let task = start(&mut host, params);
        wait_for("the model thinks", || sleeping("331") > 0);
        let early = host.refused(
            "coder.confirm_contract",
            json!({ "task_id": task, "contract": contract() }),
        );
        assert_eq!(early.data.unwrap()["reason"], "busy");
        let cancelled = host.ok("coder.cancel", json!({ "task_id": task }));
        assert_eq!(cancelled["state"], "abandoned");
        assert_eq!(sleeping("331"), 0);
        clean(&world, &repository, &cancelled, "");
    }
}

#[test]
fn nobody_waits_for_a_model_that_thinks_about_a_cancelled_task() {
    for world in World::everyone() {
        let repository = repository(&world);
        // It takes the question, and never answers.
        let model = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", model.local_addr().unwrap());
        let daemon = world.serve(&["--openai", &url, "--model", "m", "--model-timeout", "10m"]);
        let mut host = daemon.host(Some("a"));
        let mut params = wanted(&repository, SOLVES);
        params["contract"].take();
        params["derive"] = json!(true);
        let task = start(&mut host, params);
        let (_asked, _) = model.accept().unwrap();
        let began = Instant::now();
        let cancelled = host.ok("coder.cancel", json!({ "task_id": task }));
        assert!(began.elapsed() < PATIENCE);
        assert_eq!(cancelled["state"], "abandoned");
        clean(&world, &repository, &cancelled, "");
    }
}

#[test]
fn a_restart_keeps_what_waits_and_ends_what_was_under_way() {
    for world in World::everyone() {
        let repository = repository(&world);
        let mut daemon = world.serve(&[]);
        let mut host = daemon.host(Some("a"));
        let waits = start(&mut host, wanted(&repository, SOLVES));
        let view = stands(&mut host, &waits, "needs_approval");
        let events = follow(&mut host, &waits, 0, "task_proposed");
        let killed = start(&mut host, wanted(&repository, "sleep 333"));
        wait_for("the agent works", || sleeping("333") > 0);
        daemon.kill();
        wait_for("the agent dies with the daemon", || sleeping("333") == 0);
        drop(host);

        let mut daemon = world.serve(&["--grace", "100ms"]);
        let mut host = daemon.host(Some("a"));
        assert_eq!(stands(&mut host, &waits, "needs_approval"), view);
        assert_eq!(follow(&mut host, &waits, 0, "task_proposed"), events);
        let gone = stands(&mut host, &killed, "failed");
        assert_eq!(gone["verdict"], "The process that worked on it is gone.");
        let stopped = start(&mut host, wanted(&repository, "sleep 334"));
        wait_for("the agent works", || sleeping("334") > 0);
        let mut seen = follow(&mut host, &stopped, 0, "task_changed");
        assert_eq!(daemon.stop(), Some(0));
        assert_eq!(sleeping("334"), 0);
        more(&mut host, &stopped, &mut seen, "task_ended");
        drop(host);

        let daemon = world.serve(&[]);
        let mut host = daemon.host(Some("a"));
        let ended = stands(&mut host, &stopped, "abandoned");
        assert_eq!(
            ended["verdict"],
            "Invigil was told to stop while it was worked on."
        );
        let approve = json!({ "task_id": waits, "digest": digest(&view) });
        let merged = person(&world, "coder.approve_merge", &approve);
        assert_eq!(merged["state"], "merged");
        clean(&world, &repository, &merged, &format!("invigil/{waits}"));
        clean(&world, &repository, &ended, &format!("invigil/{waits}"));
        clean(&world, &repository, &gone, &format!("invigil/{waits}"));
    }
}

#[test]
fn tasks_of_others_and_of_the_command_line_are_for_persons() {
    let world = World::new();
    let repository = repository(&world);
    let daemon = world.serve(&[]);
    let (mut one, mut other) = (daemon.host(Some("one")), daemon.host(Some("other")));
    let task = start(&mut one, wanted(&repository, SOLVES));
    let view = stands(&mut one, &task, "needs_approval");
    fs::write(world.path("contract.json"), contract().to_string()).unwrap();
    let args = [
        "task",
        "start",
        "--repo",
        "repo",
        "--intent",
        "x",
        "--contract",
        "contract.json",
        "--agent",
        SOLVES,
        "--task-id",
        "mine",
        "--json",
    ];
    let typed = world.command(&args).output().unwrap();
    assert!(typed.status.success(), "{typed:?}");
    let mut operator = daemon.operator();
    let names = |host: &mut Host, params: Value| -> Vec<String> {
        let listed = host.ok("coder.list", params);
        let rows = listed["tasks"].as_array().unwrap().iter();
        rows.map(|row| row["task_id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&mut one, json!({})), [task.as_str()]);
    assert_eq!(names(&mut other, json!({})), Vec::<String>::new());
    assert_eq!(
        names(&mut operator, json!({})),
        ["mine".to_owned(), task.clone()]
    );
    assert_eq!(
        names(&mut operator, json!({ "agent_id": "one" })),
        [task.as_str()]
    );
    let first = operator.ok("coder.list", json!({ "limit": 1 }));
    assert_eq!(first["cursor"], "mine");
    assert_eq!(
        names(&mut operator, json!({ "limit": 1, "cursor": "mine" })),
        [task.as_str()]
    );
    // The command line and the daemon see one another's work.
    let mut events = follow(&mut operator, "mine", 0, "task_proposed");
    let shown = world.command(&["task", "cancel", "mine"]).output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    more(&mut operator, "mine", &mut events, "task_ended");
    let approve = ["task", "approve", &task, "--digest", &digest(&view)];
    let approved = world.command(&approve).output().unwrap();
    assert!(approved.status.success(), "{approved:?}");
    assert_eq!(
        stands(&mut one, &task, "merged")["branch"],
        json!(format!("invigil/{task}"))
    );
}

#[test]
fn bad_input_is_refused_with_the_field() {
    let world = World::new();
    let repository = repository(&world);
    sh(&world, &world.path(""), "mkdir plain; git init -q empty");
    let daemon = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    let good = wanted(&repository, SOLVES);
    let check =
        |name: &str, command: &str| json!({ "checks": [{ "name": name, "command": command }] });
    for (change, field) in [
        (json!({ "repo": "" }), "repo"),
        (json!({ "repo": "repo" }), "repo"),
        (json!({ "repo": world.path("nothing") }), "repo"),
        (json!({ "repo": world.path("plain") }), "repo"),
        (json!({ "repo": world.path("empty") }), "repo"),
        (json!({ "repo": "/a\u{0}b" }), "repo"),
        (json!({ "repo": 7 }), "repo"),
        (json!({ "intent": " \n" }), "intent"),
        (json!({ "intent": "x".repeat(20_000) }), "intent"),
        (json!({ "intent": null }), "intent"),
        (json!({ "agent": "" }), "agent"),
        (json!({ "agent": "a\u{0}b" }), "agent"),
        (json!({ "agent": ["sh"] }), "agent"),
        (json!({ "contract": null }), "contract"),
        (json!({ "contract": {} }), "contract"),
        (
            json!({ "contract": { "checks": [{ "name": "a" }] } }),
            "contract.checks[0].command",
        ),
        (
            json!({ "contract": { "checks": [], "more": 1 } }),
            "contract.more",
        ),
        (
            json!({ "contract": check("", "true") }),
            "contract.checks[0].name",
        ),
        (
            json!({ "contract": check("a", "cargo --version") }),
            "contract.checks[0].command",
        ),
        (json!({ "derive": true }), "derive"),
        (json!({ "derive": true, "contract": null }), "derive"),
        (json!({ "derive": "yes" }), "derive"),
        (json!({ "max_rounds": 101 }), "max_rounds"),
        (json!({ "max_rounds": -1 }), "max_rounds"),
        (json!({ "timeout_secs": 0 }), "timeout_secs"),
        (json!({ "timeout_secs": 1e9 as u64 }), "timeout_secs"),
        (json!({ "mode": "observe" }), "mode"),
        (json!({ "mode": "lax" }), "mode"),
        (json!({ "policy": "version = 7" }), "policy"),
        (json!({ "policy": "" }), "policy"),
        (json!({ "agent_id": "" }), "agent_id"),
        (json!({ "task_id": "t" }), "task_id"),
    ] {
        let mut params = good.clone();
        for (name, value) in change.as_object().unwrap() {
            params[name] = value.clone();
        }
        let refused = host.refused("coder.start", params);
        assert_eq!(refused.code, -32602, "{change}: {refused}");
        assert_eq!(
            refused.data.unwrap()["field"],
            field,
            "{change}: {}",
            refused.message
        );
    }
    for missing in ["repo", "intent", "agent"] {
        let mut params = good.clone();
        params.as_object_mut().unwrap().remove(missing);
        let refused = host.refused("coder.start", params);
        assert_eq!(refused.data.unwrap()["field"], missing);
    }
    assert_eq!(
        host.ok("coder.list", json!({}))["tasks"],
        json!([]),
        "nothing was begun"
    );
    assert_eq!(daemon.metric("tasks_total"), 0);
    for (method, params, field) in [
        ("coder.get", json!({}), "task_id"),
        (
            "coder.get",
            json!({ "task_id": "x", "patch_from": -1 }),
            "patch_from",
        ),
        ("coder.respond", json!({ "task_id": "x" }), "text"),
        ("coder.approve_merge", json!({ "task_id": "x" }), "digest"),
        (
            "coder.confirm_contract",
            json!({ "task_id": "x", "contract": 7 }),
            "contract",
        ),
        (
            "coder.subscribe",
            json!({ "task_id": "x", "from_seq": "0" }),
            "from_seq",
        ),
        ("coder.unsubscribe", json!({}), "task_id"),
        ("coder.cancel", json!({ "task_id": 7 }), "task_id"),
        ("coder.list", json!({ "state": "odd" }), "state"),
        ("coder.list", json!({ "limit": -1 }), "limit"),
    ] {
        let refused = host.refused(method, params.clone());
        assert_eq!(refused.data.unwrap()["field"], field, "{method} {params}");
    }
    for odd in ["", "last", "../runs/x", "task_", "x\u{0}"] {
        for method in [
            "coder.get",
            "coder.cancel",
            "coder.subscribe",
            "coder.confirm_contract",
        ] {
            let refused = host.refused(method, json!({ "task_id": odd }));
            assert_eq!(refused.code, -32004, "{method} {odd:?}");
        }
    }
    // A policy of the client tightens.
    let mut params = good.clone();
    params["policy"] = json!("version = 1\n[programs]\ndeny = [\"sed\"]\n");
    let task = start(&mut host, params);
    let view = stands(&mut host, &task, "failed");
    let refused = view["runs"][0]["refused"].to_string();
    assert!(
        refused.contains("/sed") && refused.contains("coder.start"),
        "{view}"
    );
    let mut params = good;
    params["timeout_secs"] = json!(1);
    params["agent"] = json!("sleep 335");
    let task = start(&mut host, params);
    let view = stands(&mut host, &task, "failed");
    assert!(
        view["verdict"]
            .as_str()
            .unwrap()
            .contains("took longer than 1s"),
        "{view}"
    );
}

#[test]
fn only_so_many_tasks_are_worked_on_at_once() {
    let world = World::new();
    let repository = repository(&world);
    let daemon: Daemon<'_> = world.serve(&[]);
    let mut host = daemon.host(Some("a"));
    let most = host.ok("session.auth", json!({ "token": daemon.token("token") }));
    let most = most["limits"]["tasks"].as_u64().unwrap();
    let mut params = wanted(&repository, "sleep 336");
    params["contract"] = json!({ "checks": [{ "name": "a", "command": "test -f none" }] });
    let tasks: Vec<String> = (0..most)
        .map(|_| start(&mut host, params.clone()))
        .collect();
    let refused = host.refused("coder.start", params.clone());
    assert_eq!(refused.data.unwrap()["limit"], "tasks");
    for task in &tasks {
        host.ok("coder.cancel", json!({ "task_id": task }));
    }
    daemon.wait_for("tasks_under_way", |open| open == 0);
    let task = start(&mut host, params);
    host.ok("coder.cancel", json!({ "task_id": task }));
    wait_for("all agents are dead", || sleeping("336") == 0);
}
