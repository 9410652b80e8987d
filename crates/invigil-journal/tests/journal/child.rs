//! Other processes. This binary runs itself with one test selected, [`entry`], and a role in the environment; without
//! a role `entry` does nothing. A child says lines that begin with `>`, because the test harness says others.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use super::{environment, index, memory, processes};

const ROLE: &str = "INVIGIL_TEST_CHILD";

/// What a child is told.
pub(crate) type Words = HashMap<String, String>;

/// Every role there is.
fn role(name: &str) -> fn(&Words) {
    match name {
        "append" => processes::append,
        "fill" => environment::fill_disk,
        "hold" => processes::hold,
        "note_until_killed" => index::note_until_killed,
        "read" => memory::read,
        "small_disk" => environment::small_disk,
        "without_rights" => environment::without_rights,
        "write_until_killed" => processes::write_until_killed,
        other => panic!("there is no role {other:?}"),
    }
}

#[test]
fn entry() {
    if let Ok(name) = std::env::var(ROLE) {
        let words = std::env::vars().filter_map(|(key, value)| {
            let key = key.strip_prefix("INVIGIL_WORD_")?;
            Some((key.to_owned(), value))
        });
        role(&name)(&words.collect());
    }
}

/// A command that runs a role. It can be handed to another program as its arguments.
pub(crate) fn command(role: &str, words: &[(&str, &str)]) -> Command {
    through(&[], role, words)
}

/// The same through another program, which is given the command as its last arguments.
pub(crate) fn through(program: &[&str], role: &str, words: &[(&str, &str)]) -> Command {
    of(&std::env::current_exe().unwrap(), program, role, words)
}

/// The same of a copy of this binary.
pub(crate) fn of(me: &Path, program: &[&str], role: &str, words: &[(&str, &str)]) -> Command {
    let mut command = match program {
        [] => Command::new(me),
        [name, arguments @ ..] => {
            let mut command = Command::new(name);
            command.args(arguments).arg(me);
            command
        }
    };
    command
        .args(["--exact", "child::entry", "--nocapture", "--quiet"])
        .env(ROLE, role)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    for (key, value) in words {
        command.env(format!("INVIGIL_WORD_{key}"), value);
    }
    command
}

/// Says something to the parent.
pub(crate) fn say(line: &str) {
    println!(">{line}");
}

/// What a child says, line by line, until it ends.
pub(crate) fn listen(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let stdout: ChildStdout = child.stdout.take().unwrap();
    let lines = BufReader::new(stdout).lines();
    // Half a line of a child that was killed is no word of it.
    lines.map_while(Result::ok).filter_map(|line| {
        let said = line.split_once('>')?.1;
        Some(said.to_owned())
    })
}
