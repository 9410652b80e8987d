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
    let whole = format!("ok: 101 records, head {}", report.head.hash);
    assert_eq!(said.trim(), whole);

    // Room is fine at the end of the last segment, alone, and nowhere else.
    let mut names: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|name| name.extension().is_some_and(|end| end == "ndjson"))
        .collect();
    names.sort_by_key(|name| (name.as_os_str().len(), name.clone()));
    let last = names.last().unwrap();
    for (name, added, good) in [
        (last, "\n\n\n", true),
        (last, "\n\nx\n", false),
        (last, "{\"seq\":101\n\n\n", false),
        (&names[0], "\n\n\n", false),
    ] {
        let bytes = fs::read(name).unwrap();
        fs::write(name, [&bytes, added.as_bytes()].concat()).unwrap();
        let output = run(directory.path());
        assert_eq!(output.status.success(), good, "{added:?}");
        assert_eq!(
            verify(disk(directory.path()), &Expected::default()).is_ok(),
            good
        );
        if good {
            assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), whole);
        }
        fs::write(name, bytes).unwrap();
    }
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
