//! Signals of each urgency, to agents that listen and agents that do not.

use crate::world::{World, until};

#[test]
fn critical_asks_and_then_kills() {
    for world in World::everyone() {
        let polite =
            "trap 'echo bye > last; exit 3' TERM; touch up; while true; do sleep 0.05; done";
        let going = world.start("polite", &[], polite);
        world.wait_for("up");
        world.expect(0, &["signal", "polite", "--urgency", "critical"]);
        going.expect(143);
        assert_eq!(world.read("last"), "bye\n");
        let finished = world.event("polite", "run_finished");
        assert_eq!(
            (&finished["exit_code"], &finished["success"]),
            (&3.into(), &false.into())
        );
        let kinds = [
            "order_taken",
            "signal_disposed",
            "order_ended",
            "run_finished",
        ];
        assert_eq!(world.order("polite", &kinds), kinds);

        let deaf = "trap '' TERM INT; touch deaf; while true; do sleep 0.05; done";
        let going = world.start("deaf", &[], deaf);
        world.wait_for("deaf");
        world.expect(0, &["signal", "deaf", "--urgency", "critical"]);
        going.expect(143);
        assert_eq!(world.event("deaf", "run_finished")["signal"], 9);
    }
}

#[test]
fn high_interrupts_at_the_next_program_and_not_before() {
    for world in World::everyone() {
        // The shell itself starts nothing while it waits for the file.
        let script = "trap 'echo heard > heard; exit 7' INT; touch up
            while [ ! -e go ]; do :; done
            sh -c 'sleep 5; touch late'; echo after > after";
        let going = world.start("high", &[], script);
        world.wait_for("up");
        let given = world.json(
            0,
            &["signal", "high", "--urgency", "high", "--json", "look up"],
        );
        assert_eq!(given["events"][0]["data"]["disposition"], "pending");
        assert_eq!(given["events"][0]["data"]["queue_depth"], 1);
        assert!(!world.work("heard").exists());
        world.shell("touch go");
        going.expect(7);
        assert_eq!(world.read("heard"), "heard\n");
        assert!(!world.work("late").exists() && !world.work("after").exists());
        let disposed = world.all("high", "signal_disposed");
        let how: Vec<_> = disposed
            .iter()
            .map(|one| one["disposition"].clone())
            .collect();
        assert_eq!(how, ["pending", "delivered"]);
        assert_eq!(disposed[1]["boundary"], "exec");
    }
}

/// An agent that asks once for each line that it is given, and writes down what it was told.
const LISTENER: &str = r#"
import json, os, socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["INVIGIL_EVENTS"])
f = s.makefile("rw")
run, seq = os.environ["INVIGIL_RUN_ID"], 0
def ask():
    f.write(json.dumps({"schema": "invigil.request.v1", "run_id": run, "request": "signals"}) + "\n")
    f.flush()
    return [[x["id"], x["urgency"], x["text"]] for x in json.loads(f.readline())["signals"]]
open("up", "w").close()
n = 0
while not os.path.exists("stop"):
    if os.path.exists(f"ask{n}"):
        with open("new", "w") as out: json.dump(ask(), out)
        os.rename("new", f"told{n}")
        n += 1
    time.sleep(0.01)
"#;

#[test]
fn normal_waits_until_the_agent_asks_and_each_comes_once() {
    for world in World::everyone() {
        let going = world.start_command("listener", &[], &["python3", "-c", LISTENER]);
        world.wait_for("up");
        let send = |code: i32, urgency: &str, id: &str, text: &str| {
            let args = [
                "signal",
                "listener",
                "--json",
                "--urgency",
                urgency,
                "--id",
                id,
                text,
            ];
            let given = world.json(code, &args);
            let data = &given["events"][0]["data"];
            (
                data["disposition"].as_str().unwrap().to_owned(),
                data["queue_depth"].as_u64().unwrap(),
            )
        };
        assert_eq!(send(0, "normal", "a", "first"), ("queued".into(), 1));
        assert_eq!(send(0, "low", "b", "by the way"), ("recorded".into(), 1));
        assert_eq!(send(0, "high", "c", "now"), ("pending".into(), 2));
        assert_eq!(send(0, "normal", "a", "again"), ("duplicate".into(), 2));
        world.shell("touch ask0");
        world.wait_for("told0");
        let told: serde_json::Value = serde_json::from_str(&world.read("told0")).unwrap();
        let wanted = serde_json::json!([["c", "high", "now"], ["a", "normal", "first"]]);
        assert_eq!(told, wanted);
        // What the agent has is gone, and asking is free.
        world.shell("touch ask1");
        world.wait_for("told1");
        assert_eq!(world.read("told1"), "[]");
        assert_eq!(
            send(0, "normal", "a", "a third time"),
            ("duplicate".into(), 0)
        );
        for number in 0..64 {
            let (how, depth) = send(0, "normal", &format!("n{number}"), "x");
            assert_eq!((how.as_str(), depth), ("queued", number + 1));
        }
        assert_eq!(
            send(1, "normal", "late", "too much"),
            ("dropped".into(), 64)
        );
        world.shell("touch ask2");
        world.wait_for("told2");
        assert_eq!(send(0, "normal", "late", "at last"), ("queued".into(), 1));
        world.shell("touch stop");
        going.expect(0);
        let taken = world.all("listener", "signal_disposed");
        let taken = taken.iter().filter(|one| one["disposition"] == "taken");
        assert_eq!(taken.count(), 2 + 64);
        world.verifies("listener");
    }
}

#[test]
fn a_secret_in_a_signal_is_not_on_the_record() {
    let world = &World::everyone()[0];
    let going = world.start(
        "secret",
        &[],
        "touch up; while [ ! -e stop ]; do sleep 0.02; done",
    );
    world.wait_for("up");
    let token = format!(
        "ghp_{}",
        "a1B2c3D4e5F6g7H8i9J0".repeat(2).get(..36).unwrap()
    );
    world.expect(0, &["signal", "secret", &format!("use {token}")]);
    until("it is there", || {
        !world.all("secret", "order_ended").is_empty()
    });
    world.shell("touch stop");
    going.expect(0);
    let text = world
        .events("secret")
        .iter()
        .map(ToString::to_string)
        .collect::<String>();
    assert!(!text.contains(&token));
}
