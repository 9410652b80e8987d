//! An interactive program keeps its terminal: job control, window size, interrupts.

use crate::harness::{finish, modes, open_dir};

/// Drives a shell on a pseudo-terminal and prints what the terminal showed.
const DRIVER: &str = r#"
import os, pty, select, struct, sys, termios, fcntl, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
seen = b""
def until(text, limit=15):
    global seen
    end = time.time() + limit
    while text not in seen:
        left = end - time.time()
        if left <= 0:
            print("did not see", text, "in", seen)
            os.kill(pid, 9)
            sys.exit(1)
        if select.select([fd], [], [], left)[0]:
            try:
                seen += os.read(fd, 4096)
            except OSError:
                break
    seen = seen[seen.find(text) + len(text):]
def type(text):
    os.write(fd, text)
until(b"ready> ")
type(b"stty size; echo tty-$(test -t 0 && echo yes)\n")
until(b"33 77"); until(b"tty-yes"); until(b"ready> ")
type(b"sleep 60\n"); time.sleep(0.5)
type(b"\x1a")
until(b"Stopped"); until(b"ready> ")
type(b"jobs\n")
until(b"sleep 60"); until(b"ready> ")
type(b"fg\n"); time.sleep(0.5)
type(b"\x03")
until(b"ready> ")
type(b"echo code-$?\n")
until(b"code-130"); until(b"ready> ")
type(b"sh -c 'echo deep > /dev/tty'\n")
until(b"deep\r\n"); until(b"ready> ")
type(b"exit 5\n")
_, status = os.waitpid(pid, 0)
print("exit", os.waitstatus_to_exitcode(status))
"#;

/// The same from outside: the run itself is stopped and continued by the shell that started it.
const OUTER: &str = r#"
import os, pty, select, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp("bash", ["bash", "--noprofile", "--rcfile", sys.argv[1], "-i"])
seen = b""
def until(text, limit=15):
    global seen
    end = time.time() + limit
    while text not in seen:
        left = end - time.time()
        if left <= 0:
            print("did not see", text, "in", seen)
            os.kill(pid, 9)
            sys.exit(1)
        if select.select([fd], [], [], left)[0]:
            seen += os.read(fd, 4096)
    seen = seen[seen.find(text) + len(text):]
def type(text):
    os.write(fd, text)
until(b"ready> ")
line = " ".join("'%s'" % a for a in sys.argv[2:])
type((line + " sh -c 'echo be''gun; sleep 1; echo wo''ke; sleep 60'\n").encode())
until(b"begun")
type(b"\x1a")
until(b"Stopped"); until(b"ready> ")
time.sleep(1.5)
type(b"fg\n")
until(b"woke")
type(b"\x03")
until(b"ready> ")
type(b"exit 6\n")
_, status = os.waitpid(pid, 0)
print("exit", os.waitstatus_to_exitcode(status))
"#;

#[test]
fn a_run_that_is_stopped_and_continued() {
    if missing("python3") || missing("bash") {
        eprintln!("skipped: there is no python3 or bash");
        return;
    }
    for mode in modes() {
        let dir = open_dir();
        let rc = dir.path().join("rc");
        std::fs::write(&rc, "PS1='ready> '\n").unwrap();
        let watch = mode.watch(dir.path(), &[]);
        let mut command = std::process::Command::new("python3");
        command.args(["-c", OUTER]).arg(rc);
        command.arg(watch.get_program()).args(watch.get_args());
        command.current_dir(dir.path());
        let (code, output) = finish(command);
        assert_eq!((code, output.trim()), (0, "exit 6"), "{mode:?}");
    }
}

fn missing(program: &str) -> bool {
    let tried = std::process::Command::new(program)
        .arg("--version")
        .output();
    tried.is_err()
}

#[test]
fn a_shell_with_job_control() {
    if missing("python3") || missing("bash") {
        eprintln!("skipped: there is no python3 or bash");
        return;
    }
    for mode in modes() {
        let dir = open_dir();
        let rc = dir.path().join("rc");
        std::fs::write(&rc, "PS1='ready> '\n").unwrap();
        let watch = mode.watch(dir.path(), &[]);
        let mut command = std::process::Command::new("python3");
        command
            .args(["-c", DRIVER])
            .arg(watch.get_program())
            .args(watch.get_args());
        command
            .args(["bash", "--noprofile", "--rcfile"])
            .arg(rc)
            .arg("-i")
            .current_dir(dir.path());
        let (code, output) = finish(command);
        assert_eq!((code, output.trim()), (0, "exit 5"), "{mode:?}");
    }
}
