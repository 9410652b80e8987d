//! Budgets that are exceeded by silent programs and by what frameworks report.

use crate::world::World;

fn policy(world: &World, budget: &str) -> String {
    let path = world.at("policy.toml");
    std::fs::write(&path, format!("version = 1\n[budget]\n{budget}\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A run under a budget that ends with 122; the only budget that it exceeds.
#[track_caller]
fn exceeds(world: &World, run: &str, budget: &str, command: &[&str]) -> serde_json::Value {
    let policy = policy(world, budget);
    let going = world.start_command(run, &["--policy", &policy], command);
    going.expect(122);
    let kinds = ["budget_exceeded", "run_finished"];
    assert_eq!(world.order(run, &kinds), kinds);
    assert_eq!(world.event(run, "run_finished")["stopped"], "budget");
    world.event(run, "budget_exceeded")
}

#[test]
fn a_silent_program_that_fills_the_disk_is_ended() {
    for world in World::everyone() {
        let script = "exec > /dev/null; i=0; while true; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; sleep 0.02; done";
        let exceeded = exceeds(&world, "disk", "disk = \"5MB\"", &["sh", "-c", script]);
        assert_eq!(
            (&exceeded["budget"], &exceeded["limit"]),
            (&"disk".into(), &5_000_000.into())
        );
        assert!(exceeded["used"].as_u64() > Some(5_000_000), "{exceeded}");
        // What is there before, and a hole, are not the run's.
        world.shell("rm f*; head -c 9000000 /dev/zero > big");
        let policy = policy(&world, "disk = \"5MB\"");
        let script = "echo x >> big; truncate -s 1G hole; sleep 0.5; rm hole";
        world
            .start("modest", &["--policy", &policy], script)
            .expect(0);
    }
}

#[test]
fn time_and_output_leave_their_mark() {
    for world in World::everyone() {
        let exceeded = exceeds(&world, "wall", "wall = \"1s\"", &["sleep", "30"]);
        assert_eq!(
            (&exceeded["budget"], &exceeded["limit"]),
            (&"wall".into(), &1000.into())
        );
        let exceeded = exceeds(&world, "output", "output = \"10KB\"", &["yes"]);
        assert_eq!(exceeded["budget"], "output");
        let busy = ["sh", "-c", "while true; do :; done"];
        let exceeded = exceeds(&world, "cpu", "cpu = \"1s\"", &busy);
        assert_eq!(exceeded["budget"], "cpu");
    }
}

/// Reports what its arguments say, and then sleeps.
const REPORTER: &str = r#"
import json, os, socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["INVIGIL_EVENTS"])
for seq, body in enumerate(sys.argv[1:]):
    head = {"schema": "invigil.sdk.event.v1", "run_id": os.environ["INVIGIL_RUN_ID"], "seq": seq,
            "source": "test", "tool_call_id": str(seq), "tool": "t"}
    s.sendall((json.dumps({**head, **json.loads(body)}) + "\n").encode())
time.sleep(30)
"#;

#[test]
fn what_a_framework_reports_adds_up() {
    for world in World::everyone() {
        let call = r#"{"event_type":"tool_call_started"}"#;
        let exceeded = exceeds(
            &world,
            "calls",
            "tool_calls = 2",
            &["python3", "-c", REPORTER, call, call, call],
        );
        assert_eq!(
            (&exceeded["budget"], &exceeded["used"]),
            (&"tool_calls".into(), &3.into())
        );
        let model = r#"{"event_type":"model_call","usage":{"input_tokens":700,"output_tokens":301,"cost":0.6}}"#;
        let exceeded = exceeds(
            &world,
            "tokens",
            "tokens = 1000",
            &["python3", "-c", REPORTER, model],
        );
        assert_eq!(
            (&exceeded["budget"], &exceeded["used"]),
            (&"tokens".into(), &1001.into())
        );
        let exceeded = exceeds(
            &world,
            "cost",
            "cost = \"1.00\"",
            &["python3", "-c", REPORTER, model, model],
        );
        assert_eq!(
            (&exceeded["budget"], &exceeded["used"]),
            (&"cost".into(), &1_200_000.into())
        );
    }
}
