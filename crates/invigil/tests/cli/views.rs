//! `runs`, `show` and `verify`: what people and scripts read.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use serde_json::Value;

use crate::{Invigil, tree};

#[test]
fn runs_for_people_and_for_scripts() {
    let invigil = Invigil::new();
    let (stdout, stderr) = invigil.expect(0, &["runs"]);
    assert_eq!(stdout, "");
    assert!(stderr.contains("no runs yet"), "{stderr}");
    invigil.expect(0, &["run", "--run-id", "first", "--", "true"]);
    invigil.expect(
        5,
        &["run", "--run-id", "second", "--", "sh", "-c", "exit 5"],
    );
    let (stdout, _) = invigil.expect(0, &["runs"]);
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert!(
        lines[1].starts_with("second") && lines[1].contains("exited"),
        "{stdout}"
    );
    assert!(lines[1].ends_with("sh -c 'exit 5'"), "{stdout}");
    assert!(
        lines[2].starts_with("first") && lines[2].contains(" ok "),
        "{stdout}"
    );
    let (stdout, _) = invigil.expect(0, &["runs", "--json", "-n", "1"]);
    let row: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(row["run_id"], "second");
    assert_eq!(row["outcome"]["exit_code"], 5);
    assert_eq!(row["events"], invigil.events("second").len());
}

#[test]
fn show_json_is_the_journal_word_for_word() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "--run-id", "one", "--", "true"]);
    let journal = std::fs::read_to_string(invigil.journal("one")).unwrap();
    let (stdout, _) = invigil.expect(0, &["show", "one", "--events", "--json"]);
    assert_eq!(stdout, journal);
    let (stdout, _) = invigil.expect(0, &["show", "last", "--events", "--json", "--from", "2"]);
    let rest: String = journal.split_inclusive('\n').skip(2).collect();
    assert_eq!(stdout, rest);
    let (_, stderr) = invigil.expect(125, &["show", "one", "--events", "--from", "999"]);
    assert!(stderr.contains("ends at record"), "{stderr}");
    let (_, stderr) = invigil.expect(125, &["show", "none"]);
    assert!(stderr.contains("`invigil runs` lists them"), "{stderr}");
}

#[test]
fn show_steers_no_terminal() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "--run-id", "one", "--", "true", "\x1b[2J\x07"]);
    for args in [
        &["show", "one"][..],
        &["show", "one", "--events"],
        &["runs"],
    ] {
        let (stdout, _) = invigil.expect(0, args);
        assert!(!stdout.contains(['\x1b', '\x07']), "{stdout:?}");
    }
}

#[test]
fn follow_goes_on_until_the_run_ends() {
    let invigil = Invigil::new();
    let mut run = invigil
        .command(&["run", "--run-id", "one", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = run.stdin.take().unwrap();
    stdin.write_all(b"go\n").unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let mut follow = invigil
        .command(&["show", "one", "--follow", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let mut kind = || {
        let line = lines.next()?.unwrap();
        let event: Value = serde_json::from_str(&line).unwrap();
        Some(event["kind"].as_str().unwrap().to_owned())
    };
    assert_eq!(kind().as_deref(), Some("journal_opened"));
    assert_eq!(kind().as_deref(), Some("run_started"));
    assert_eq!(follow.try_wait().unwrap(), None, "the run goes on");
    drop(stdin);
    let rest: Vec<String> = std::iter::from_fn(kind).collect();
    assert_eq!(rest.last().map(String::as_str), Some("run_finished"));
    assert!(follow.wait().unwrap().success());
    assert!(run.wait().unwrap().success());
}

#[test]
fn a_closed_pipe_is_no_error() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "--run-id", "one", "--", "true"]);
    let mut show = invigil
        .command(&["show", "one", "--events", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(show.stdout.take());
    let output = show.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn verify_says_yes_or_names_the_record_and_changes_nothing() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "--run-id", "one", "--", "true"]);
    let (stdout, _) = invigil.expect(0, &["verify", "one"]);
    let records = format!("{} records", invigil.events("one").len());
    assert!(stdout.contains(&records), "{stdout}");
    let (stdout, _) = invigil.expect(0, &["verify", "one", "--json"]);
    let head = serde_json::from_str::<Value>(&stdout).unwrap()["head"]["hash"].clone();
    let head = head.as_str().unwrap();
    invigil.expect(0, &["verify", "one", "--head", head]);

    let journal = invigil.journal("one");
    let good = std::fs::read(&journal).unwrap();
    let lines: Vec<&[u8]> = good.split_inclusive(|byte| *byte == b'\n').collect();
    let last = format!("record {} is bad", lines.len() - 1);
    let mut flipped = good.clone();
    flipped[lines[0].len() + 30] ^= 1;
    let cases = [
        ("record 1 is bad", flipped),
        (&*last, good[..good.len() - 1].to_vec()),
        ("record 2 is bad", lines[..2].concat()),
        ("record 1 is bad", [lines[0], lines[2]].concat()),
        ("record 1 is bad", [lines[0], lines[2], lines[1]].concat()),
        (
            "record 2 is bad",
            [lines[0], lines[1], lines[1], lines[2]].concat(),
        ),
        ("record 0 is bad", Vec::new()),
        ("record 0 is bad", [&b"\xff\xfe"[..], &good[2..]].concat()),
    ];
    for (says, bytes) in cases {
        std::fs::write(&journal, &bytes).unwrap();
        let before = tree(&invigil.home().join("runs"));
        let (stdout, _) = invigil.expect(1, &["verify", "one"]);
        assert!(stdout.contains(says), "{says}: {stdout}");
        let (stdout, _) = invigil.expect(1, &["verify", "one", "--json"]);
        assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap()["ok"], false);
        assert_eq!(tree(&invigil.home().join("runs")), before);
    }
}

#[test]
fn the_end_is_missed_by_whoever_kept_a_head() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "--run-id", "one", "--", "true"]);
    let journal = invigil.journal("one");
    let good = std::fs::read_to_string(&journal).unwrap();
    let last: Value = serde_json::from_str(good.lines().last().unwrap()).unwrap();
    let head = last["hash"].as_str().unwrap();
    let cut: String = good.split_inclusive('\n').take(2).collect();
    std::fs::write(&journal, cut).unwrap();
    std::fs::remove_file(journal.with_file_name("durable")).unwrap();
    // The index remembers.
    let (stdout, _) = invigil.expect(1, &["verify", "one"]);
    assert!(
        stdout.contains("record 2 is bad") && stdout.contains("remembered head"),
        "{stdout}"
    );
    let (stdout, _) = invigil.expect(0, &["runs"]);
    assert!(stdout.contains("damaged"), "{stdout}");
    // Without an index only a head that somebody kept tells.
    std::fs::remove_file(invigil.home().join("index.sqlite")).unwrap();
    invigil.expect(0, &["verify", "one"]);
    let (stdout, _) = invigil.expect(1, &["verify", "one", "--head", head]);
    assert!(stdout.contains("cut or rewritten"), "{stdout}");
    let (_, stderr) = invigil.expect(125, &["verify", "one", "--head", "abc"]);
    assert!(stderr.contains("64 lower-case"), "{stderr}");
}

#[test]
fn a_copy_is_verified_by_its_path() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "--run-id", "one", "--", "true"]);
    let copy = invigil.directory.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(invigil.journal("one"), copy.join("journal.ndjson")).unwrap();
    for path in ["./copy", "./copy/journal.ndjson"] {
        let (stdout, _) = invigil.expect(0, &["verify", path]);
        assert!(stdout.contains("ok one"), "{stdout}");
    }
    assert_eq!(tree(&copy).len(), 1, "looking leaves no trace");
    let (_, stderr) = invigil.expect(125, &["verify", "./nowhere"]);
    assert!(stderr.contains("./nowhere"), "{stderr}");
}
