//! Speaking on the channel of a run in the name of one of its processes, from outside of it: also while that process is
//! stopped. A process that wants to be heard then hands its end of the channel to somebody else.

use std::io::Write as _;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::world::{World, until};

/// Connects, hands its end to whoever listens at `hand`, and stays.
pub(crate) const HANDS_OVER: &str = r#"
import os, socket, time
channel = socket.socket(socket.AF_UNIX)
channel.connect(os.environ["INVIGIL_EVENTS"])
hand = socket.socket(socket.AF_UNIX)
hand.connect("hand")
socket.send_fds(hand, [b"x"], [channel.fileno()])
open("handed", "w").close()
while not os.path.exists("stop"): time.sleep(0.02)
"#;

/// Takes the other end, and says there what it is told to say; what is answered goes to a file.
const SPEAKER: &str = r#"
import os, socket, sys, threading
listening = socket.socket(socket.AF_UNIX)
listening.bind("hand")
listening.listen()
open("listening", "w").close()
at, _ = listening.accept()
_, ends, _, _ = socket.recv_fds(at, 1, 1)
channel = socket.socket(fileno=ends[0])
def hear():
    with open("answers", "wb", buffering=0) as answers:
        while True:
            heard = channel.recv(65536)
            if not heard: break
            answers.write(heard)
threading.Thread(target=hear, daemon=True).start()
for line in sys.stdin.buffer: channel.sendall(line)
"#;

/// Somebody outside who speaks for a process of a run. It ends with this.
pub(crate) struct Voice {
    speaker: Child,
    run: String,
    home: String,
    work: String,
}

impl Voice {
    /// For a run of this id that is started next, with [`HANDS_OVER`] in it.
    pub(crate) fn of(world: &World, run: &str) -> Voice {
        world.shell("rm -f hand handed listening stop answers");
        let speaker = world
            .program("env")
            .args(["python3", "-c", SPEAKER])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        world.wait_for("listening");
        let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
        Voice {
            speaker,
            run: run.to_owned(),
            home: text(world.at("home")),
            work: text(world.work("")),
        }
    }

    /// Asks for a run inside of the run.
    pub(crate) fn want(&mut self, child: &str, script: &str) {
        let wanted = child_spec(&self.home, &self.work, child, script);
        let request = json!({
            "schema": "invigil.request.v1", "run_id": self.run, "request": "run", "child": wanted,
        });
        let input = self.speaker.stdin.as_mut().unwrap();
        writeln!(input, "{request}").unwrap();
        input.flush().unwrap();
    }

    /// What was answered so far.
    pub(crate) fn answers(&self, world: &World) -> Vec<Value> {
        let text = world.read("answers");
        let lines = text.lines().map(serde_json::from_str);
        lines.map_while(Result::ok).collect()
    }
}

/// A run that a process wants, as the channel has it.
pub(crate) fn child_spec(home: &str, work: &str, child: &str, script: &str) -> Value {
    json!({
        "home": home, "command": ["sh", "-c", script], "cwd": work, "run_id": child,
        "agent_shim": "none", "timeout_ms": null, "reads": false, "mode": "observe",
        "policy": [], "places": { "home": work, "workspace": work, "tmp": "/tmp", "path": [] },
    })
}

impl Drop for Voice {
    fn drop(&mut self) {
        drop(self.speaker.kill());
        drop(self.speaker.wait());
    }
}

/// Waits until this many children of a run have ended.
#[track_caller]
pub(crate) fn until_ended(world: &World, run: &str, count: usize) {
    until("the children end", || {
        world.all(run, "child_run_ended").len() == count
    });
}
