//! Runs that are started inside of runs.

use crate::voice::child_spec;
use crate::world::{World, until};

const INVIGIL: &str = env!("CARGO_BIN_EXE_invigil");

#[test]
fn three_children_are_joined_in_any_order_and_the_parent_goes_on_once() {
    for world in World::everyone() {
        // The second ends first, then the third, then the first.
        let script = format!(
            "for i in 1 2 3; do
                 {INVIGIL} run -q --run-id child-$i -- sh -c \"echo out-$i; touch up-$i; while [ ! -e go-$i ]; do sleep 0.02; done; exit 1$i\" > said-$i &
                 eval pid$i=$!
             done
             wait $pid2; echo 2 $? >> ends; touch go-3
             wait $pid3; echo 3 $? >> ends; touch go-1
             wait $pid1; echo 1 $? >> ends; touch after"
        );
        let going = world.start("parent", &[], &script);
        for child in 1..=3 {
            world.wait_for(&format!("up-{child}"));
        }
        world.shell("touch go-2");
        going.expect(0);
        assert_eq!(world.read("ends"), "2 12\n3 13\n1 11\n");
        assert_eq!(world.read("said-2"), "out-2\n");
        let kinds = [
            "child_run_started",
            "child_run_ended",
            "run_suspended",
            "run_resumed",
            "run_finished",
        ];
        assert_eq!(
            world.order("parent", &kinds).join(" "),
            "child_run_started run_suspended child_run_started child_run_started \
             child_run_ended child_run_ended child_run_ended run_resumed run_finished"
        );
        assert_eq!(
            world.event("parent", "run_suspended")["reason"],
            "sub_agent_await"
        );
        let ended = world.all("parent", "child_run_ended");
        let ids: Vec<&str> = ended
            .iter()
            .map(|one| one["run_id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, ["child-2", "child-3", "child-1"]);
        for child in 1..=3 {
            let run = format!("child-{child}");
            let lineage = &world.event(&run, "run_started")["lineage"];
            assert_eq!(
                (&lineage["parent"], &lineage["depth"]),
                (&"parent".into(), &1.into())
            );
            assert_eq!(world.event(&run, "run_finished")["exit_code"], 10 + child);
            assert_eq!(world.event(&run, "observer_started")["tier"], "notify");
            world.verifies(&run);
        }
        world.verifies("parent");
    }
}

#[test]
fn a_child_has_the_rights_of_its_parent_or_fewer() {
    for world in World::everyone() {
        let policy = world.at("policy.toml");
        std::fs::write(
            &policy,
            "version = 1\n[files.write]\ndeny = [\"${workspace}/no/**\"]\n[programs]\ndeny = [\"mkfifo\"]\n",
        )
        .unwrap();
        let child = world.at("child.toml");
        std::fs::write(
            &child,
            "version = 1\n[files.write]\nallow = [\"${workspace}/no/**\"]\ndeny = [\"${workspace}/mine/**\"]\n",
        )
        .unwrap();
        world.shell("mkdir no mine");
        let policy = policy.to_str().unwrap();
        let child = child.to_str().unwrap();
        let inner = "touch no/a; touch mine/a; touch fine; mkfifo pipe; true";
        let script = format!(
            "{INVIGIL} run -q --run-id narrow --policy {child} -- sh -c '{inner}'
             cd mine; {INVIGIL} run -q --run-id plain -- sh -c 'touch ../no/b; touch ../mine/b'; true"
        );
        world
            .start("wide", &["--policy", policy], &script)
            .expect(0);
        assert!(!world.work("no/a").exists() && !world.work("no/b").exists());
        assert!(!world.work("mine/a").exists() && !world.work("pipe").exists());
        assert!(world.work("fine").exists() && world.work("mine/b").exists());
        let denied = world.all("narrow", "access_denied");
        assert!(denied.len() >= 3, "{denied:?}");
        assert_eq!(world.event("narrow", "policy_loaded")["mode"], "guard");
        assert!(!world.all("plain", "access_denied").is_empty());

        // Where the parent may do everything, a child can still be held to something.
        let script = format!(
            "{INVIGIL} run -q --run-id held --policy {child} -- sh -c 'touch mine/c; touch no/c'; true"
        );
        world.start("free", &[], &script).expect(0);
        assert!(!world.work("mine/c").exists() && world.work("no/c").exists());
    }
}

#[test]
fn depth_and_number_are_limited_by_real_lineage() {
    for world in World::everyone() {
        let file = |name: &str, text: String| std::fs::write(world.at(name), text).unwrap();
        let (second, third) = (world.at("second"), world.at("third"));
        file(
            "second",
            format!("{INVIGIL} run -q --run-id d2 -- sh {}", third.display()),
        );
        file(
            "third",
            format!("{INVIGIL} run -q --run-id d3 -- true 2> too-deep; echo $? > code"),
        );
        let script = format!("{INVIGIL} run -q --run-id d1 -- sh {}", second.display());
        world.start("d0", &["--max-depth", "2"], &script).expect(0);
        assert_eq!(world.event("d2", "run_started")["lineage"]["depth"], 2);
        assert_eq!(world.event("d2", "run_started")["lineage"]["root"], "d0");
        assert_eq!(world.read("code"), "125\n");
        assert!(
            world.read("too-deep").contains("2 deep at most"),
            "{}",
            world.read("too-deep")
        );
        assert!(!world.at("home/runs/d3").exists());
        assert_eq!(world.all("d2", "child_run_refused").len(), 1);

        let script = format!(
            "{INVIGIL} run -q -- sh -c 'touch first; while [ ! -e go ]; do sleep 0.02; done' &
             while [ ! -e first ]; do sleep 0.02; done
             {INVIGIL} run -q -- true 2> too-many; touch go; wait"
        );
        world
            .start("one", &["--max-children", "1"], &script)
            .expect(0);
        assert!(world.read("too-many").contains("which is the most"));
    }
}

#[test]
fn cancelling_the_root_ends_the_leaves_first_and_each_once() {
    for world in World::everyone() {
        let stay = "while true; do sleep 0.05; done";
        let leaf = format!("{INVIGIL} run -q --run-id leaf -- sh -c 'touch leaf; {stay}'");
        let script =
            format!("{INVIGIL} run -q --run-id branch -- sh -c \"{leaf}\"; touch after; {stay}");
        let going = world.start("trunk", &[], &script);
        world.wait_for("leaf");
        world.expect(
            0,
            &["signal", "trunk", "--urgency", "critical", "all of it"],
        );
        going.expect(143);
        let end = |run: &str| {
            let events = world.events(run);
            let ends = events
                .iter()
                .filter(|event| event["kind"] == "run_finished");
            let ends: Vec<_> = ends.collect();
            assert_eq!(ends.len(), 1, "{run}");
            (
                ends[0]["mono"].as_u64().unwrap(),
                ends[0]["data"]["stopped"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            )
        };
        let (leaf, branch, trunk) = (end("leaf"), end("branch"), end("trunk"));
        assert!(
            leaf.0 < branch.0 && branch.0 < trunk.0,
            "{leaf:?} {branch:?} {trunk:?}"
        );
        assert_eq!(
            (leaf.1.as_str(), branch.1.as_str(), trunk.1.as_str()),
            ("parent", "parent", "signal")
        );
        for (run, child) in [("trunk", "branch"), ("branch", "leaf")] {
            let ended = world.event(run, "child_run_ended");
            assert_eq!(
                (&ended["run_id"], &ended["stopped"]),
                (&child.into(), &"parent".into())
            );
        }
    }
}

#[test]
fn a_child_is_paused_with_its_parent_and_ends_with_whoever_wanted_it() {
    for world in World::everyone() {
        let count = "n=0; while true; do n=$((n+1)); echo $n > new; mv new count; sleep 0.01; done";
        let script = format!(
            "{INVIGIL} run -q --run-id counted -- sh -c '{count}' & nested=$!
             while [ ! -e stop ]; do sleep 0.02; done; kill -KILL $nested; wait $nested; touch last"
        );
        let going = world.start("counting", &[], &script);
        world.wait_for("count");
        world.expect(0, &["pause", "counting"]);
        let before = world.read("count");
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(world.read("count"), before);
        assert_eq!(
            world.event("counted", "run_suspended")["by"]["run_id"],
            "counting"
        );
        world.expect(0, &["resume", "counting"]);
        until("it counts again", || world.read("count") != before);
        world.shell("touch stop");
        going.expect(0);
        assert_eq!(world.event("counted", "run_finished")["stopped"], "parent");
    }
}

#[test]
fn children_get_a_part_of_what_is_left() {
    for world in World::everyone() {
        let policy = world.at("policy.toml");
        std::fs::write(&policy, "version = 1\n[budget]\ntool_calls = 4\n").unwrap();
        let call = r#"
import json, os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["INVIGIL_EVENTS"])
for seq in range(int(sys.argv[1])):
    s.sendall((json.dumps({"schema": "invigil.sdk.event.v1", "run_id": os.environ["INVIGIL_RUN_ID"], "seq": seq,
        "event_type": "tool_call_started", "source": "t", "tool_call_id": str(seq), "tool": "t"}) + "\n").encode())
s.close()
import time; time.sleep(0.2)
"#;
        std::fs::write(world.at("call.py"), call).unwrap();
        let agent = format!("python3 {}", world.at("call.py").display());
        let script = format!(
            "{INVIGIL} run -q --run-id half -- {agent} 2; echo $? >> codes
             {INVIGIL} run -q --run-id over -- {agent} 2; echo $? >> codes
             {INVIGIL} run -q --run-id poor -- {agent} 1; echo $? >> codes; true"
        );
        let policy = policy.to_str().unwrap();
        world
            .start("rich", &["--policy", policy], &script)
            .expect(0);
        // Half of four, half of two, and of nothing nothing.
        assert_eq!(world.read("codes"), "0\n122\n125\n");
        let reserved =
            |run| world.event(run, "run_started")["lineage"]["reserved"][0]["amount"].clone();
        assert_eq!((reserved("half"), reserved("over")), (2.into(), 1.into()));
        let ended = world.all("rich", "child_run_ended");
        assert_eq!(ended[0]["used"][0]["amount"], 2);
        let refused = world.event("rich", "child_run_refused");
        assert!(
            refused["why"].as_str().unwrap().contains("tool_calls"),
            "{refused}"
        );
    }
}

/// Puts a filter of its own on, which allows everything, and loads the rest of its arguments.
const FILTERED: &str = r#"
import ctypes, os, struct, sys
code = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7fff0000))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(1, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[1], sys.argv[1:])
"#;

/// The same in a thread, which then asks for a run itself.
const THREAD: &str = r#"
import ctypes, json, os, socket, struct, sys, threading
code = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7fff0000))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(1, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
def ask():
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["INVIGIL_EVENTS"])
    s.sendall((json.dumps({"schema": "invigil.request.v1", "run_id": os.environ["INVIGIL_RUN_ID"],
        "request": "run", "child": json.loads(sys.argv[1])}) + "\n").encode())
    open("said", "wb").write(s.recv(65536))
thread = threading.Thread(target=ask)
thread.start()
thread.join()
"#;

#[test]
fn nobody_gets_back_what_it_has_given_up() {
    for world in World::everyone() {
        std::fs::write(world.at("filtered.py"), FILTERED).unwrap();
        let filtered = world.at("filtered.py").display().to_string();
        let script =
            format!("python3 {filtered} {INVIGIL} run -q -- touch out 2> said; echo $? > code");
        world.start("filtered", &[], &script).expect(0);
        assert_eq!(world.read("code"), "125\n");
        assert!(
            world.read("said").contains("a sandbox of its own"),
            "{}",
            world.read("said")
        );
        assert!(!world.work("out").exists());
        assert_eq!(world.all("filtered", "child_run_refused").len(), 1);
        // Each thread can have filters of its own, and the one that asks is not the first.
        std::fs::write(world.at("thread.py"), THREAD).unwrap();
        let wanted = child_spec(
            world.at("home").to_str().unwrap(),
            world.work("").to_str().unwrap(),
            "freed",
            "touch out",
        );
        let (program, wanted) = (world.at("thread.py"), wanted.to_string());
        let agent = ["python3", program.to_str().unwrap(), &wanted];
        world.start_command("threaded", &[], &agent).expect(0);
        let said = world.read("said");
        assert!(said.contains("a sandbox of its own"), "{said}");
        assert!(!world.work("out").exists());
        if !world.is_root() {
            continue;
        }
        world.shell("chmod 777 . ..");
        let script = format!(
            "setpriv --reuid 65534 --regid 65534 --clear-groups {INVIGIL} run -q -- touch out 2> said; echo $? > code"
        );
        world.start("humble", &[], &script).expect(0);
        assert_eq!(world.read("code"), "125\n", "{}", world.read("said"));
        assert!(!world.work("out").exists());
    }
}
