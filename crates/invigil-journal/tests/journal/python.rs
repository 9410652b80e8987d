//! The program in `docs/journal-format.md` that checks a journal without Invigil.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use invigil_journal::{Expected, verify};

use super::support::{disk, journal};

/// The one Python block of the page.
fn program() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/journal-format.md");
    let text = fs::read_to_string(page).unwrap();
    let mut blocks = text.split("```python\n").skip(1);
    let block = blocks.next().unwrap().split("```").next().unwrap();
    assert!(blocks.next().is_none());
    block.to_owned()
}

fn run(directory: &Path) -> Output {
    Command::new("python3")
        .args(["-c", &program()])
        .arg(directory)
        .output()
        .expect("python3 is needed for this test")
}

#[test]
fn the_page_checks_a_journal() {
    assert!(program().lines().count() <= 22, "it says twenty lines");
    let directory = tempfile::tempdir().unwrap();
    journal(directory.path(), 100, 2000);
    let report = verify(disk(directory.path()), &Expected::default()).unwrap();
    assert!(report.segments > 3);
    let output = run(directory.path());
    let said = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert_eq!(
        said.trim(),
        format!("ok: 101 records, head {}", report.head.hash)
    );
}

#[test]
fn the_page_names_a_bad_record() {
    let directory = tempfile::tempdir().unwrap();
    journal(directory.path(), 100, 2000);
    let name = directory.path().join("journal.ndjson");
    let whole = fs::read(&name).unwrap();
    let third = whole
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .nth(2)
        .unwrap()
        .0;
    for (what, bytes) in [
        ("a bit", {
            let mut bytes = whole.clone();
            bytes[third + 30] ^= 0x80;
            bytes
        }),
        ("a cut", whole[..third + 40].to_vec()),
    ] {
        fs::write(&name, bytes).unwrap();
        let output = run(directory.path());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{what}");
        assert_eq!(error.trim(), "bad record: seq 3", "{what}");
    }
}
