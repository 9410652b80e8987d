//! Phases of a run, one after the other, each with something to show.

use crate::world::{World, until};

const PLAN: &str = r#"{"phases": [
    {"name": "build", "evidence": ["out/report"]},
    {"name": "test", "checks": [{"name": "passes", "command": "grep -q good out/report"}]}
]}"#;

#[test]
fn a_phase_is_reached_when_all_of_it_is_there_and_not_before() {
    for world in World::everyone() {
        std::fs::write(world.at("plan.json"), PLAN).unwrap();
        let plan = world.at("plan.json").to_str().unwrap().to_owned();
        let going = world.start(
            "phases",
            &["--milestones", &plan],
            "touch up; while [ ! -e stop ]; do sleep 0.02; done",
        );
        world.wait_for("up");
        let (said, _) = world.expect(1, &["milestone", "phases"]);
        assert!(said.contains("phase build is not reached"), "{said}");
        let (said, _) = world.expect(1, &["milestone", "phases", "test"]);
        assert!(said.contains("not the current one"), "{said}");
        // An empty file shows nothing, and a link leads nowhere.
        world.shell("mkdir out; : > out/report");
        world.expect(1, &["milestone", "phases", "build"]);
        world.shell("rm out/report; echo bad > bad; ln -s ../bad out/report");
        world.expect(1, &["milestone", "phases", "build"]);
        world.shell("rm out/report; echo bad > out/report");
        world.expect(0, &["milestone", "phases", "build"]);
        world.expect(1, &["milestone", "phases"]);
        world.shell("echo good > out/report");
        let (said, _) = world.expect(0, &["milestone", "phases"]);
        assert!(said.contains("which is the last"), "{said}");
        world.expect(1, &["milestone", "phases"]);
        world.shell("touch stop");
        going.expect(0);
        assert_eq!(world.event("phases", "milestones_set")["phases"][1], "test");
        let kinds = [
            "milestone_evidence",
            "milestone_advanced",
            "milestone_blocked",
        ];
        let order = world.order("phases", &kinds);
        let order: Vec<&str> = order.iter().map(|kind| &kind[10..]).collect();
        assert_eq!(
            order.join(" "),
            "evidence blocked evidence blocked evidence blocked evidence advanced \
             evidence blocked evidence advanced"
        );
        let evidence = world.all("phases", "milestone_evidence");
        assert!(evidence[3]["sha256"].is_string() && evidence[3]["accepted"] == true);
        // A check is a run of its own.
        let check = evidence[5]["run"].as_str().unwrap();
        assert_eq!(world.event(check, "run_finished")["success"], true);
        world.verifies("phases");
    }
}

/// Asks for a phase to be checked, and then for what became of it.
const ASKING: &str = r#"
import json, os, socket, time
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["INVIGIL_EVENTS"])
f = s.makefile("rw")
def ask(**more):
    f.write(json.dumps({"schema": "invigil.request.v1", "run_id": os.environ["INVIGIL_RUN_ID"], **more}) + "\n")
    f.flush()
    return json.loads(f.readline())
def check():
    assert ask(request="milestone")["taken"]
    while True:
        told = ask(request="signals")["signals"]
        if told: return told[0]["text"]
        time.sleep(0.05)
first = check()
os.makedirs("out", exist_ok=True)
open("out/report", "w").write("good")
open("said", "w").write("\n".join([first, check(), check()]))
"#;

#[test]
fn an_agent_can_have_its_own_work_checked() {
    for world in World::everyone() {
        std::fs::write(world.at("plan.json"), PLAN).unwrap();
        let plan = world.at("plan.json").to_str().unwrap().to_owned();
        let options = ["--milestones", &plan];
        world
            .start_command("asks", &options, &["python3", "-c", ASKING])
            .expect(0);
        until("it is written", || world.work("said").exists());
        let said = world.read("said");
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[0].contains("is not reached"), "{said}");
        assert_eq!(lines[1], "phase build is reached; test is next");
        assert_eq!(lines[2], "phase test is reached, which is the last");
        let by = &world.all("asks", "milestone_advanced")[0]["by"];
        assert_eq!(by["through"], "agent");
    }
}

#[test]
fn what_is_not_reached_by_the_end_is_said_to_be_missed() {
    for world in World::everyone() {
        std::fs::write(world.at("plan.json"), PLAN).unwrap();
        let plan = world.at("plan.json").to_str().unwrap().to_owned();
        let run = |run: &str, script: &str| {
            let args = [
                "run",
                "--run-id",
                run,
                "--milestones",
                &plan,
                "--",
                "sh",
                "-c",
                script,
            ];
            world.expect(0, &args).1
        };
        let said = run("idle", "true");
        assert!(
            said.contains("0 of 2 reached; not build (missed), test (missed)"),
            "{said}"
        );
        let missed = world.event("idle", "milestones_missed");
        assert_eq!(missed["phases"], serde_json::json!(["build", "test"]));
        let kinds = ["milestones_missed", "run_finished"];
        assert_eq!(world.order("idle", &kinds), kinds);
        let (said, _) = world.expect(0, &["show", "idle"]);
        assert!(said.contains("0 of 2 reached"), "{said}");
        let snapshot = world.json(0, &["show", "idle", "--snapshot", "--json"]);
        assert_eq!(snapshot["milestones"][1]["state"], "missed");
        world.expect(0, &["report", "idle", "-o", "report.html"]);
        let page = world.read("report.html");
        assert!(page.contains("0 of 2 reached"));
        assert!(page.contains("milestones_missed build → test"));

        // Half of it is half of it, and all of it misses nothing.
        let going = world.start(
            "half",
            &["--milestones", &plan],
            "mkdir out; echo good > out/report; while [ ! -e stop ]; do sleep 0.02; done",
        );
        world.wait_for("out/report");
        world.expect(0, &["milestone", "half"]);
        world.shell("touch stop");
        going.expect(0);
        let missed = world.event("half", "milestones_missed");
        assert_eq!(missed["phases"], serde_json::json!(["test"]));
        let going = world.start(
            "whole",
            &["--milestones", &plan],
            "while [ ! -e end ]; do sleep 0.02; done",
        );
        world.expect(0, &["milestone", "whole"]);
        world.expect(0, &["milestone", "whole"]);
        world.shell("touch end");
        going.expect(0);
        assert!(world.all("whole", "milestones_missed").is_empty());
        let (said, _) = world.expect(0, &["show", "whole"]);
        assert!(said.contains("all 2 reached"), "{said}");
    }
}
