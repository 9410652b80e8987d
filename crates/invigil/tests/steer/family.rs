//! Runs inside of runs that are stopped, kept and turned back: nobody moves who should not.

use std::thread;
use std::time::Duration;

use crate::voice::{HANDS_OVER, Voice, until_ended};
use crate::world::{World, until};

const INVIGIL: &str = env!("CARGO_BIN_EXE_invigil");

/// Counts in a file until another file is there.
fn counting(file: &str, stop: &str) -> String {
    format!(
        "n=0; while [ ! -e {stop} ]; do n=$((n+1)); echo $n > {file}.new; mv {file}.new {file}; sleep 0.005; done"
    )
}

/// Nothing is written there for a while.
#[track_caller]
fn stands_still(world: &World, file: &str) {
    let before = world.read(file);
    thread::sleep(Duration::from_millis(250));
    assert_eq!(world.read(file), before, "{file} changes");
}

#[test]
fn nothing_is_born_in_a_run_that_stands_still() {
    for world in World::everyone() {
        let mut voice = Voice::of(&world, "parent");
        let options = ["--max-children", "30"];
        let agent = ["python3", "-c", HANDS_OVER];
        let going = world.start_command("parent", &options, &agent);
        world.wait_for("handed");
        world.expect(0, &["pause", "parent"]);
        // As many as may wait, and two more.
        for child in 0..18 {
            voice.want(&format!("child-{child}"), &format!("touch born-{child}"));
        }
        until("the last two are refused", || {
            voice.answers(&world).len() == 2
        });
        let answers = voice.answers(&world);
        let refused = |answer: &serde_json::Value| {
            let why = answer["error"].as_str().unwrap_or_default();
            why.contains("too many runs are asked for at once")
        };
        assert!(answers.iter().all(refused), "{answers:?}");
        thread::sleep(Duration::from_millis(500));
        assert!(world.all("parent", "child_run_started").is_empty());
        assert!(!world.work("born-0").exists());
        world.expect(0, &["resume", "parent"]);
        until_ended(&world, "parent", 16);
        world.shell("touch stop");
        going.expect(0);
        assert!(world.work("born-15").exists() && !world.work("born-16").exists());
        let kinds = ["run_suspended", "run_resumed", "child_run_started"];
        let order = world.order("parent", &kinds);
        assert_eq!(
            order[..3],
            ["run_suspended", "run_resumed", "child_run_started"]
        );
    }
}

#[test]
fn a_child_that_is_being_started_stands_still_with_its_parent() {
    for world in World::everyone() {
        let mut voice = Voice::of(&world, "parent");
        let going = world.start_command("parent", &[], &["python3", "-c", HANDS_OVER]);
        world.wait_for("handed");
        // Whenever the order comes, the child is about to be born, to be loaded, to run.
        for (round, delay) in [0, 1, 2, 4, 6, 8, 12, 16, 24, 40].into_iter().enumerate() {
            let (file, stop) = (format!("count-{round}"), format!("stop-{round}"));
            voice.want(&format!("child-{round}"), &counting(&file, &stop));
            thread::sleep(Duration::from_millis(delay));
            let order = format!("pause-{round}");
            leave_pause(&world, "parent", &order);
            // So that the order is seen now and not at the next look.
            voice.want(&format!("later-{round}"), "true");
            until("the order is obeyed", || {
                let ended = world.all("parent", "order_ended");
                ended.iter().any(|ended| ended["id"] == order.as_str())
            });
            stands_still(&world, &file);
            world.expect(0, &["resume", "parent"]);
            until("it counts", || !world.read(&file).is_empty());
            let before = world.read(&file);
            until("it counts on", || world.read(&file) != before);
            world.shell(&format!("touch {stop}"));
            until_ended(&world, "parent", 2 * (round + 1));
        }
        world.shell("touch stop");
        going.expect(0);
        for round in 0..10 {
            world.verifies(&format!("child-{round}"));
        }
    }
}

/// Leaves the order that `invigil pause` does, at once.
fn leave_pause(world: &World, run: &str, id: &str) {
    let order = serde_json::json!({
        "schema": "invigil.order.v1", "run_id": run, "id": id, "order": { "order": "pause" },
        "uid": 0, "pid": 1,
    });
    world.shell(&format!(
        "umask 077; echo '{order}' > ../home/orders/{run}/.{id}; mv ../home/orders/{run}/.{id} ../home/orders/{run}/{id}.order"
    ));
}

#[test]
fn a_parent_that_dies_while_the_files_of_its_child_are_kept_ends_with_it() {
    for world in World::everyone() {
        world.shell("mkdir many; cd many; seq 40000 | xargs touch");
        let child = format!("{INVIGIL} run -q --run-id kid -- sh -c 'touch ready; sleep 396'");
        let script = format!("echo $$ > first; {child} & echo $! > second; wait");
        let going = world.start("parent", &[], &script);
        world.wait_for("ready");
        let mut keeping = world.command(&["checkpoint", "kid"]).spawn().unwrap();
        until("everybody stands still", || {
            !world.all("kid", "run_suspended").is_empty()
        });
        world.shell("kill -9 $(cat first) $(cat second)");
        // Neither waits for the other.
        going.expect(137);
        keeping.wait().unwrap();
        world.verifies("parent");
        world.verifies("kid");
    }
}

#[test]
fn a_child_is_stopped_for_as_long_as_anybody_holds_it() {
    for world in World::everyone() {
        let count = counting("count", "stop");
        let script = format!("{INVIGIL} run -q --run-id kid -- sh -c '{count}'");
        let going = world.start("parent", &[], &script);
        world.wait_for("count");
        world.expect(0, &["pause", "parent"]);
        // A person cannot let go what its parent holds, nor can a checkpoint.
        let (said, _) = world.expect(1, &["resume", "kid"]);
        assert!(said.contains("resume parent"), "{said}");
        world.expect(0, &["checkpoint", "kid"]);
        stands_still(&world, "count");
        // Its parent cannot let go what a person holds.
        world.expect(0, &["pause", "kid"]);
        world.expect(0, &["resume", "parent"]);
        stands_still(&world, "count");
        let before = world.read("count");
        world.expect(0, &["resume", "kid"]);
        until("it counts again", || world.read("count") != before);
        world.shell("touch stop");
        going.expect(0);
        let ids = |kind| -> Vec<String> {
            let all = world.all("kid", kind).into_iter();
            let mut ids: Vec<_> = all.map(|one| one["id"].to_string()).collect();
            ids.sort();
            ids
        };
        assert_eq!(ids("run_suspended"), ids("run_resumed"));
        assert_eq!(ids("run_suspended").len(), 3);
    }
}

#[test]
fn nobody_of_the_family_writes_while_the_files_of_a_child_are_kept() {
    for world in World::everyone() {
        world.shell("i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i > b$i; done");
        // Its parent writes one number to the first file and then to the last, again and again.
        let script = format!(
            "{INVIGIL} run -q --run-id kid -- sh -c 'touch up; while [ ! -e stop ]; do sleep 0.02; done' &
             n=0; while [ ! -e stop ]; do n=$((n+1)); echo $n > a; echo $n > z; done; wait; touch over; while [ ! -e end ]; do sleep 0.02; done"
        );
        let going = world.start("parent", &[], &script);
        world.wait_for("up");
        world.wait_for("z");
        for checkpoint in 1..=3 {
            world.expect(0, &["checkpoint", "kid"]);
            let kept = |file: &str| {
                let name = format!("refs/checkpoints/c{checkpoint}:files/{file}");
                let mut git = world.program("git");
                git.arg("--git-dir")
                    .arg(world.at("home/checkpoints/kid.git"));
                let shown = git.args(["show", &name]).output().unwrap();
                String::from_utf8(shown.stdout)
                    .unwrap()
                    .trim()
                    .parse::<u64>()
                    .ok()
            };
            // A file may be empty when it is about to be written.
            let (first, last) = (kept("a"), kept("z"));
            let together = match (first, last) {
                (Some(first), Some(last)) => first == last || first == last + 1,
                (None, last) => last.is_some(),
                (first, None) => first.is_some(),
            };
            assert!(together, "{first:?} {last:?}");
        }
        let held: Vec<_> = world.all("parent", "run_suspended");
        let held: Vec<_> = held.iter().filter(|one| one["reason"] == "files").collect();
        assert_eq!(held.len(), 3);
        assert_eq!(held[0]["by"]["through"], "child");
        assert_eq!(held[0]["by"]["run_id"], "kid");
        // It is over, and its parent goes on and writes.
        world.shell("touch stop");
        world.wait_for("over");
        for order in ["checkpoint", "rollback"] {
            let (_, said) = world.expect(125, &[order, "kid"]);
            assert!(
                said.contains("parent, which it belongs to, goes on"),
                "{said}"
            );
        }
        world.shell("touch end");
        going.expect(0);
        world.expect(0, &["rollback", "kid", "c1"]);
        assert!(!world.work("stop").exists());
    }
}

/// Reports as many tokens as a number can say.
const REPORTER: &str = r#"
import json, os, socket, time
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["INVIGIL_EVENTS"])
s.sendall((json.dumps({"schema": "invigil.sdk.event.v1", "run_id": os.environ["INVIGIL_RUN_ID"], "seq": 0,
    "source": "t", "event_type": "model_call", "usage": {"total_tokens": 2**64 - 1}}) + "\n").encode())
time.sleep(30)
"#;

#[test]
fn what_children_say_that_they_used_does_not_overflow() {
    for world in World::everyone() {
        std::fs::write(world.at("reporter.py"), REPORTER).unwrap();
        let policy = world.at("policy.toml");
        let most = i64::MAX;
        std::fs::write(&policy, format!("version = 1\n[budget]\ntokens = {most}\n")).unwrap();
        let agent = format!("python3 {}", world.at("reporter.py").display());
        // What is set aside for the first one, added to that, would be less than the budget.
        let script = format!(
            "{INVIGIL} run -q --run-id idle -- sh -c 'touch up; exec sleep 300' &
             while [ ! -e up ]; do sleep 0.02; done
             {INVIGIL} run -q --run-id greedy -- {agent}; sleep 300"
        );
        let policy = policy.to_str().unwrap();
        let going = world.start("parent", &["--policy", policy], &script);
        going.expect(122);
        let greedy = &world.all("parent", "child_run_ended")[0];
        assert_eq!(greedy["run_id"], "greedy");
        assert_eq!(greedy["used"][0]["amount"], u64::MAX);
        let exceeded = world.event("parent", "budget_exceeded");
        assert_eq!(exceeded["used"], u64::MAX);
    }
}

#[test]
fn a_child_has_the_fuse_of_its_parent() {
    for world in World::everyone() {
        let circle = "while true; do sh -c \"exit 4\"; done";
        let script = format!("{INVIGIL} run -q --run-id kid -- sh -c '{circle}'; echo $? > code");
        world
            .start("parent", &["--stop-failures", "3"], &script)
            .expect(0);
        assert_eq!(world.read("code"), "122\n");
        assert_eq!(world.event("kid", "run_finished")["stopped"], "fuse");
        assert_eq!(world.event("kid", "repeat_fuse")["count"], 3);
        assert!(world.all("parent", "repeat_fuse").is_empty());
    }
}
