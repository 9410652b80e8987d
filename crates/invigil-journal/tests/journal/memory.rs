//! Memory does not grow with the length of a journal.
//!
//! `INVIGIL_SOAK_RECORDS=10000000` makes the long journal that long (some 2 GB in the temporary directory).

use std::path::Path;

use invigil_journal::{Expected, Reader, verify};

use super::child::{self, Words, listen, say};
use super::support::{ORIGIN, create, disk, exclusive, note};

const SHORT: u64 = 20_000;
const LONG: u64 = 200_000;
/// Allocator and page cache of the binary itself; the long journal has more than ten times as many bytes.
const SLACK_KIB: u64 = 2 * 1024;

#[test]
fn verify_and_follow_take_no_more_for_a_longer_journal() {
    let long = std::env::var("INVIGIL_SOAK_RECORDS");
    let long = long.map_or(LONG, |records| records.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    // Segments of 8 MiB: the short journal fits into one, the long one does not.
    let journal = create(disk(path), exclusive(8 << 20));
    let text = note("some text of a usual length");
    let mut appended = 0;
    let mut peaks = |records: u64| {
        while appended < records {
            appended += 1;
            drop(journal.append(ORIGIN, &text).unwrap());
        }
        journal
            .append(ORIGIN, &note("flush"))
            .unwrap()
            .written()
            .unwrap();
        ["verify", "follow"].map(|what| (what, peak(path, what)))
    };
    let (short, long) = (peaks(SHORT), peaks(long));
    for ((what, short), (_, long)) in short.into_iter().zip(long) {
        assert!(
            long <= short + SLACK_KIB,
            "{what}: {short} KiB, then {long} KiB"
        );
    }
}

/// The most memory that a process has had that did nothing but this.
fn peak(path: &Path, what: &str) -> u64 {
    let words = [("PATH", path.to_str().unwrap()), ("WHAT", what)];
    let mut child = child::command("read", &words).spawn().unwrap();
    let said: Vec<String> = listen(&mut child).collect();
    assert!(child.wait().unwrap().success());
    said[0].parse().unwrap()
}

pub(crate) fn read(words: &Words) {
    let storage = disk(Path::new(&words["PATH"]));
    match words["WHAT"].as_str() {
        "verify" => {
            let live = Expected {
                live: true,
                ..Expected::default()
            };
            verify(storage, &live).unwrap();
        }
        _ => {
            let mut reader = Reader::open(storage).unwrap();
            while reader.next().unwrap().is_some() {}
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    say(peak.unwrap().trim().trim_end_matches(" kB"));
}
