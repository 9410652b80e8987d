//! How long it takes until the first screen of a long run is there, on a terminal, from the start of the program.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::audit::long_run;
use super::report::{Goal, Table};
use super::rounds::{interleaved, number};
use super::sample::Scratch;
use crate::{Result, release};

/// Starts a program on a terminal, and prints how many seconds it took until the last line of the screen was drawn.
const WATCH: &str = r#"
import fcntl, os, pty, struct, sys, termios, time
start = time.monotonic()
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
while b"q quit" not in seen:
    seen += os.read(fd, 65536)
print(time.monotonic() - start)
os.write(fd, b"q")
try:
    while os.read(fd, 65536):
        pass
except OSError:
    pass
os.waitpid(pid, 0)
"#;

pub(super) fn measure(scratch: &Scratch, records: u64, rounds: usize) -> Result<Table> {
    let (store, run) = long_run(scratch, "screen", records)?;
    let invigil = release("invigil")?.canonicalize()?;
    println!("first screens …");
    let mut start = |_| first_screen(&invigil, run.directory(), &[]);
    let mut end = |_| first_screen(&invigil, run.directory(), &["--follow"]);
    let [start, end] = interleaved(rounds, [&mut start, &mut end])?;
    let mut table = Table::new("The first screen of a replay", &["what", "ms", "goal"]);
    table.note(format!(
        "`invigil replay` of a run of {}, on a terminal of 140 by 40, from the start of the program to the last line of its \
         first screen. The journal is in the page cache.",
        number(records as f64)
    ));
    for (what, samples) in [("at the first record", start), ("at the last", end)] {
        let millis = samples.map(|seconds| seconds * 1e3);
        let verdict = Goal::AtMost(300.0).verdict(millis.median());
        table.row([what.into(), millis.to_string(), verdict]);
    }
    std::fs::remove_dir_all(store.home())?;
    Ok(table)
}

fn first_screen(invigil: &Path, run: &Path, more: &[&str]) -> Result<Duration> {
    let output = Command::new("python3")
        .args(["-c", WATCH])
        .arg(invigil)
        .arg("replay")
        .arg(run)
        .args(more)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let seconds: f64 = said.trim().parse().map_err(|_| {
        let error = String::from_utf8_lossy(&output.stderr);
        format!("no screen: {said}{error}")
    })?;
    Ok(Duration::from_secs_f64(seconds))
}
