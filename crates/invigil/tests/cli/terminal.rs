//! `invigil run` on a terminal, as a person uses it: keys are typed, windows change their size, terminals are closed.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::Invigil;

/// Plays a person at a pseudo-terminal. The rest of a script is what that person does.
const PERSON: &str = r#"
import fcntl, os, pty, select, struct, sys, termios, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b""
def until(text, limit=60):
    global seen
    end = time.time() + limit
    while text not in seen:
        left = end - time.time()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            fail("did not see %r in %r" % (text, seen))
        try:
            seen += os.read(fd, 4096)
        except OSError:
            fail("the terminal was closed before %r: %r" % (text, seen))
    seen = seen[seen.find(text) + len(text):]
def fail(why):
    print(why)
    os.kill(pid, 15)
    time.sleep(1)
    os.kill(pid, 9)
    sys.exit(1)
def type(text):
    os.write(fd, text)
def window(rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
def end(limit=60):
    stop = time.time() + limit
    while time.time() < stop:
        if fd is not None and select.select([fd], [], [], 0.02)[0]:
            try:
                os.read(fd, 4096)
            except OSError:
                pass
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            print("exit", os.waitstatus_to_exitcode(status))
            sys.exit(0)
        time.sleep(0.01)
    fail("it does not end")
"#;

/// Puts `watched` behind `line` on a terminal of its own with somebody at it, who says how it ended.
pub(crate) fn at_a_terminal(
    invigil: &Invigil,
    line: &[&str],
    watched: &Command,
    person: &str,
) -> String {
    let variables = watched.get_envs();
    let output = Command::new("python3")
        .args(["-c", &format!("{PERSON}{person}")])
        .args(line)
        .arg(watched.get_program())
        .args(watched.get_args())
        .envs(variables.filter_map(|(name, value)| Some((name, value?))))
        .current_dir(invigil.directory.path())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).trim().to_owned()
}

/// Runs Invigil on a terminal; its exit code.
#[track_caller]
pub(crate) fn on_a_terminal(invigil: &Invigil, args: &[&str], person: &str) -> i32 {
    let said = at_a_terminal(invigil, &[], &invigil.command(args), person);
    let code = said
        .strip_prefix("exit ")
        .and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("{args:?}: {said}"))
}

/// A shell script under watch on a terminal.
#[track_caller]
fn run(invigil: &Invigil, id: &str, script: &str, person: &str) -> i32 {
    let argv = ["run", "--run-id", id, "--", "sh", "-c", script];
    on_a_terminal(invigil, &argv, person)
}

/// The record goes to the end, everybody who was born has died in it, and nobody is alive.
#[track_caller]
fn complete(invigil: &Invigil, id: &str) -> serde_json::Value {
    invigil.expect(0, &["verify", id]);
    let last = invigil.events(id).pop().unwrap();
    assert_eq!(last["kind"], "run_finished");
    let born = invigil.all(id, "process_forked");
    assert_eq!(born.len(), invigil.all(id, "process_exited").len(), "{id}");
    for process in born {
        let process = &process["process"];
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process["pid"]));
        let stat = stat.unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
        // One that is dead and that nobody has asked after yet is still listed.
        let alive = fields.len() > 20 && !["Z", "X"].contains(&fields[1]);
        let same = alive && fields[20].parse().ok() == process["start"].as_u64();
        assert!(!same, "{id}: {stat}");
    }
    last["data"].clone()
}

const FOREVER: &str = "while :; do sleep 0.05; done";

#[test]
fn an_interrupt_is_for_the_command() {
    for invigil in Invigil::everyone() {
        let person = "until(b'ready'); type(b'\\x03'); end()";
        // A shell can miss an interrupt while it makes a child, with Invigil and without.
        let script = "echo rea''dy; exec sleep 60";
        assert_eq!(run(&invigil, "a", script, person), 130);
        assert_eq!(complete(&invigil, "a")["signal"], 2);
        // What the command makes of it is its own business, and it gets each of them once.
        let script = format!("trap 'echo g''ot; exit 9' INT; echo rea''dy; {FOREVER}");
        let person = "until(b'ready'); type(b'\\x03'); until(b'got'); end()";
        assert_eq!(run(&invigil, "b", &script, person), 9);
        assert_eq!(complete(&invigil, "b")["exit_code"], 9);
    }
}

#[test]
fn interrupts_that_are_ignored_kill_the_second_time() {
    for invigil in Invigil::everyone() {
        let script = format!("trap '' INT; (setsid sh -c '{FOREVER}' &); echo rea''dy; {FOREVER}");
        let person = "until(b'ready'); type(b'\\x03'); time.sleep(0.4); type(b'\\x03'); end()";
        assert_eq!(run(&invigil, "a", &script, person), 137);
        assert_eq!(complete(&invigil, "a")["signal"], 9);
    }
}

#[test]
fn interrupts_far_apart_do_not_kill() {
    let invigil = Invigil::new();
    let script = format!("trap 'echo g''ot' INT; trap 'exit 4' TERM; echo rea''dy; {FOREVER}");
    let person = "until(b'ready')
for _ in range(2):
    type(b'\\x03'); until(b'got'); time.sleep(2.2)
os.kill(pid, 15); end()";
    assert_eq!(run(&invigil, "a", &script, person), 4);
    complete(&invigil, "a");
}

#[test]
fn a_request_to_end_is_passed_on() {
    for invigil in Invigil::everyone() {
        let script = format!("(setsid sh -c '{FOREVER}' &); echo rea''dy; {FOREVER}");
        let person = "until(b'ready'); os.kill(pid, 15); end()";
        assert_eq!(run(&invigil, "a", &script, person), 143);
        assert_eq!(complete(&invigil, "a")["signal"], 15);
    }
}

/// Whether the supervisor leads the session, as on `ssh -t` or in a container, or a shell does.
#[test]
fn a_closed_terminal_ends_the_run() {
    for invigil in Invigil::everyone() {
        let script = format!("(setsid sh -c '{FOREVER}' &); echo rea''dy; {FOREVER}");
        let person = "until(b'ready'); os.close(fd); fd = None; end()";
        assert_eq!(run(&invigil, "a", &script, person), 129);
        assert_eq!(complete(&invigil, "a")["signal"], 1);
        for (id, shell) in [("dash", ["sh", "-c"]), ("bash", ["bash", "-ic"])] {
            let watched = invigil.command(&["run", "--run-id", id, "--", "sh", "-c", &script]);
            let line = [&shell[..], &["\"$@\"; echo over", "shell"]].concat();
            let said = at_a_terminal(&invigil, &line, &watched, person);
            assert!(said.starts_with("exit "), "{shell:?}: {said}");
            // The shell does not wait for its job.
            let deadline = Instant::now() + Duration::from_secs(20);
            while invigil.all(id, "run_finished").is_empty() {
                assert!(Instant::now() < deadline, "{id}: the run goes on");
                std::thread::sleep(Duration::from_millis(20));
            }
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(complete(&invigil, id)["signal"], 1);
        }
    }
}

#[test]
fn the_window_is_the_commands() {
    for invigil in Invigil::everyone() {
        let script = format!("trap 'stty size' WINCH; trap 'exit 5' TERM; echo rea''dy; {FOREVER}");
        let person = "until(b'ready'); window(33, 77); until(b'33 77'); window(20, 66); \
                      until(b'20 66'); os.kill(pid, 15); end()";
        assert_eq!(run(&invigil, "a", &script, person), 5);
        complete(&invigil, "a");
    }
}

/// A shell with jobs of its own, which makes and unmakes foreground groups; and a run that is itself the job of one.
#[test]
fn job_control_inside_and_around() {
    for invigil in Invigil::everyone() {
        let rc = invigil.at("rc");
        std::fs::write(&rc, "PS1='ready> '\n").unwrap();
        let inside = "
until(b'ready> '); type(b'sleep 60\\n'); time.sleep(0.5); type(b'\\x1a')
until(b'Stopped'); until(b'ready> '); type(b'jobs\\n'); until(b'sleep 60'); until(b'ready> ')
type(b'fg\\n'); until(b'sleep 60'); time.sleep(0.5); type(b'\\x03'); until(b'ready> ')
type(b'echo code-$?\\n'); until(b'code-130'); until(b'ready> ')
type(b'sleep 60 &\\n'); until(b'ready> '); type(b'kill %1; wait; echo al\"\"one\\n'); until(b'alone')
type(b'exit 5\\n'); end()";
        let shell = ["bash", "--noprofile", "--rcfile", &rc, "-i"];
        let argv = [&["run", "--run-id", "inside", "--"], &shell[..]].concat();
        assert_eq!(on_a_terminal(&invigil, &argv, inside), 5);
        assert_eq!(complete(&invigil, "inside")["exit_code"], 5);

        let script = "echo be''gun; sleep 1; echo wo''ke; sleep 60";
        let watched =
            invigil.command(&["run", "-q", "--run-id", "around", "--", "sh", "-c", script]);
        let around = "
until(b'ready> '); type(b'\"$@\"\\n'); until(b'begun'); type(b'\\x1a')
until(b'Stopped'); until(b'ready> '); time.sleep(1.5); type(b'fg\\n'); until(b'woke'); time.sleep(0.3)
type(b'\\x03'); until(b'ready> '); type(b'echo code-$?\\n'); until(b'code-130'); until(b'ready> ')
type(b'exit 6\\n'); end()";
        let line = [&shell[..], &["-s"]].concat();
        let said = at_a_terminal(&invigil, &line, &watched, around);
        assert_eq!(said, "exit 6");
        assert_eq!(complete(&invigil, "around")["signal"], 2);
    }
}

/// When the command is gone and its files are being looked at, nobody has to wait for that.
#[test]
fn interrupts_at_the_end_cut_it_short() {
    for invigil in Invigil::everyone() {
        let script = "for i in 1 2 3 4 5 6 7; do truncate -s 1000M f$i; done; echo rea''dy; exit 3";
        let person = "until(b'ready'); time.sleep(0.5); type(b'\\x03'); time.sleep(0.2); type(b'\\x03'); end()";
        assert_eq!(run(&invigil, "a", script, person), 3);
        complete(&invigil, "a");
        let finals = invigil.all("a", "file_final");
        assert_eq!(finals.len(), 7, "each is named all the same");
        let skipped = finals.iter().filter(|file| {
            let why = file["why_not"].as_str().unwrap_or_default();
            why.contains("interrupted")
        });
        assert!(skipped.count() >= 1, "{finals:#?}");
    }
}
