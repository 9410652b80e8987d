//! A journal that was changed behind its back: what `verify` names, and what opening does about it.

use std::fs;
use std::path::{Path, PathBuf};

use invigil_journal::{
    Damage, Error, Expected, Head, Journal, Reader, Report, VerifyError, verify,
};
use invigil_schema::{Digest, JournalRecovered, RunId};
use tempfile::TempDir;

use super::support::{
    ORIGIN, clock, disk, exclusive, journal, note, read_all, sha256, shared, snapshot,
};

const FIRST: &str = "journal.ndjson";

/// Enough that it does not fit into one read of a few lines.
const ROOM: [u8; 500] = [b'\n'; 500];

/// A journal to damage, and what it was before.
struct Victim {
    directory: TempDir,
    lines: Vec<Vec<u8>>,
    heads: Vec<Head>,
}

impl Victim {
    /// In one segment, without a durable mark, so that only the chain speaks.
    fn new(notes: u64) -> Victim {
        let victim = Victim::with_mark(notes, u64::MAX);
        fs::remove_file(victim.path("durable")).unwrap();
        victim
    }

    fn with_mark(notes: u64, segment_bytes: u64) -> Victim {
        let directory = tempfile::tempdir().unwrap();
        journal(directory.path(), notes, segment_bytes);
        let (seen, end) = read_all(disk(directory.path()));
        end.unwrap();
        let lines = segments(directory.path())
            .iter()
            .flat_map(|segment| lines_of(&fs::read(segment).unwrap()))
            .collect();
        let heads = seen.iter().map(|seen| Head {
            seq: seen.seq,
            hash: seen.hash,
        });
        Victim {
            lines,
            heads: heads.collect(),
            directory,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, lines: &[Vec<u8>]) {
        fs::write(self.path(FIRST), lines.concat()).unwrap();
    }

    /// Checks, and that checking changes nothing.
    fn verify(&self, expected: &Expected) -> Result<Report, VerifyError> {
        let before = snapshot(self.directory.path());
        let result = verify(disk(self.directory.path()), expected);
        assert_eq!(before, snapshot(self.directory.path()));
        result
    }

    fn damage(&self, expected: &Expected) -> Damage {
        match self.verify(expected) {
            Err(VerifyError::Damaged(damage)) => damage,
            other => panic!("{other:?}"),
        }
    }

    fn open(&self) -> Result<(Journal, Option<JournalRecovered>), Error> {
        Journal::open(disk(self.directory.path()), clock(), exclusive(u64::MAX))
    }
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let names = snapshot(directory).into_keys();
    let mut later: Vec<PathBuf> = names
        .filter(|name| name.starts_with("journal.0"))
        .map(|name| directory.join(name))
        .collect();
    later.insert(0, directory.join(FIRST));
    later
}

fn lines_of(bytes: &[u8]) -> Vec<Vec<u8>> {
    let lines = bytes.split_inclusive(|&byte| byte == b'\n');
    lines.map(<[u8]>::to_vec).collect()
}

fn plain() -> Expected {
    Expected::default()
}

#[test]
fn a_whole_journal_is_whole() {
    let victim = Victim::with_mark(50, 1000);
    let report = victim.verify(&plain()).unwrap();
    let files = segments(victim.directory.path());
    let bytes: u64 = files
        .iter()
        .map(|file| fs::metadata(file).unwrap().len())
        .sum();
    assert_eq!(report.head, victim.heads[50]);
    assert_eq!((report.segments, report.bytes), (files.len(), bytes));
    assert!(files.len() > 5, "{}", files.len());
    assert_eq!(report.torn, 0);
}

#[test]
fn the_last_record_cut_at_every_byte() {
    cut_at_every_byte(&[]);
}

/// A record that was being written over room.
#[test]
fn the_last_record_cut_at_every_byte_with_room_behind() {
    cut_at_every_byte(&ROOM);
}

fn cut_at_every_byte(room: &[u8]) {
    let victim = Victim::new(4);
    let (last, before) = victim.lines.split_last().unwrap();
    let before = before.concat();
    // Room has the newline that a record ends in.
    for kept in 0..last.len() - usize::from(!room.is_empty()) {
        let torn = &last[..kept];
        // What an earlier turn has left: side files are numbered on.
        for side in snapshot(victim.directory.path()).into_keys() {
            if side.starts_with("torn.") {
                fs::remove_file(victim.path(&side)).unwrap();
            }
        }
        drop(fs::remove_file(victim.path("durable")));
        fs::write(victim.path(FIRST), [&before, torn, room].concat()).unwrap();
        let (seen, end) = read_all(disk(victim.directory.path()));
        end.unwrap();
        assert_eq!(seen.len(), 4, "cut after {kept}");

        if kept == 0 {
            assert_eq!(victim.verify(&plain()).unwrap().head, victim.heads[3]);
        } else {
            assert_eq!(victim.damage(&plain()).seq, 4, "cut after {kept}");
            // A writer might just be writing it.
            let live = Expected {
                live: true,
                ..plain()
            };
            assert_eq!(victim.verify(&live).unwrap().head, victim.heads[3]);
        }

        let (journal, recovered) = victim.open().unwrap();
        match recovered {
            None => assert_eq!(kept, 0),
            Some(recovered) => {
                assert_eq!(recovered.bytes, kept as u64);
                assert_eq!(recovered.file, "torn.4.0");
                assert_eq!(recovered.sha256, sha256(torn));
                assert_eq!(fs::read(victim.path("torn.4.0")).unwrap(), torn);
            }
        }
        let ticket = journal.append(ORIGIN, &note("next")).unwrap();
        ticket.durable().unwrap();
        journal.close().unwrap();

        let (seen, end) = read_all(disk(victim.directory.path()));
        end.unwrap();
        let kinds: Vec<&str> = seen.iter().map(|seen| seen.kind.as_str()).collect();
        let whole = ["journal_opened", "note", "note", "note"];
        let expected = match kept {
            0 => [&whole[..], &["note"]].concat(),
            _ => [&whole[..], &["journal_recovered", "note"]].concat(),
        };
        assert_eq!(kinds, expected, "cut after {kept}");
        let bytes = fs::read(victim.path(FIRST)).unwrap();
        assert!(bytes.starts_with(&before) && bytes.ends_with(b"\"}\n"));
        assert_eq!(seen.last().unwrap().text, "next");
        let report = victim.verify(&plain()).unwrap();
        assert_eq!(report.torn, usize::from(kept > 0));
    }
}

#[test]
fn one_bit_at_every_byte_of_two_hundred_records() {
    flip_every_byte(Victim::new(199), &[]);
}

#[test]
fn one_bit_at_every_byte_of_records_and_the_room_behind() {
    flip_every_byte(Victim::new(50), &ROOM);
}

fn flip_every_byte(victim: Victim, room: &[u8]) {
    let whole = [&victim.lines.concat(), room].concat();
    fs::write(victim.path(FIRST), &whole).unwrap();
    let mut seq_at = Vec::new();
    for (seq, line) in victim.lines.iter().enumerate() {
        seq_at.extend(std::iter::repeat_n(seq as u64, line.len()));
    }
    seq_at.resize(whole.len(), victim.lines.len() as u64);
    let path = victim.path(FIRST);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut not_utf8 = 0;
    for (at, &byte) in whole.iter().enumerate() {
        use std::os::unix::fs::FileExt as _;
        let flipped = byte ^ (1 << (at % 8));
        not_utf8 += u64::from(flipped >= 0x80);
        file.write_all_at(&[flipped], at as u64).unwrap();
        let found = verify(disk(victim.directory.path()), &plain());
        let Err(VerifyError::Damaged(damage)) = found else {
            panic!("byte {at}: {found:?}");
        };
        assert_eq!(damage.seq, seq_at[at], "byte {at}: {damage}");
        file.write_all_at(&[byte], at as u64).unwrap();
    }
    assert!(not_utf8 > 500);
    victim.verify(&plain()).unwrap();
}

#[test]
fn records_removed_from_the_end_are_missed_by_who_knew_them() {
    let victim = Victim::new(9);
    let mark = Victim::with_mark(9, u64::MAX);
    for left in 1..10 {
        victim.write(&victim.lines[..left]);
        // The chain itself cannot know.
        assert_eq!(
            victim.verify(&plain()).unwrap().head,
            victim.heads[left - 1]
        );
        let head = Expected {
            head: Some(victim.heads[9]),
            ..plain()
        };
        assert_eq!(victim.damage(&head).seq, left as u64);
        let hash = Expected {
            head_hash: Some(victim.heads[9].hash),
            ..plain()
        };
        assert_eq!(victim.damage(&hash).seq, left as u64);

        mark.write(&mark.lines[..left]);
        assert_eq!(mark.damage(&plain()).seq, left as u64);
        assert!(matches!(mark.open(), Err(Error::DurableLost { seq: 9 })));
        // Refusing has changed nothing.
        assert_eq!(
            fs::read(mark.path(FIRST)).unwrap(),
            mark.lines[..left].concat()
        );
    }
    victim.write(&[]);
    assert_eq!(victim.damage(&plain()).seq, 0);
    assert!(matches!(victim.open(), Err(Error::Damaged { seq: 0, .. })));
}

#[test]
fn a_rewritten_chain_does_not_have_the_remembered_head() {
    let victim = Victim::new(9);
    let expected = |head| Expected {
        head: Some(head),
        ..plain()
    };
    assert!(victim.verify(&expected(victim.heads[5])).is_ok());
    let wrong = Head {
        seq: 5,
        hash: Digest::ZERO,
    };
    let damage = victim.damage(&expected(wrong));
    assert_eq!(damage.seq, 5, "{damage}");
    let both = Expected {
        head: Some(victim.heads[9]),
        head_hash: Some(victim.heads[3].hash),
        ..plain()
    };
    assert!(victim.verify(&both).is_ok());
    let foreign = Expected {
        run_id: Some(RunId::new("run_other").unwrap()),
        ..plain()
    };
    assert_eq!(victim.damage(&foreign).seq, 0);
}

#[test]
fn removed_swapped_and_repeated_records_are_named() {
    let victim = Victim::new(20);
    for at in 0..20 {
        let mut lines = victim.lines.clone();
        lines.remove(at);
        victim.write(&lines);
        assert_eq!(victim.damage(&plain()).seq, at as u64, "removed");

        let mut lines = victim.lines.clone();
        lines.drain(at..(at + 5).min(20));
        victim.write(&lines);
        assert_eq!(victim.damage(&plain()).seq, at as u64, "five removed");

        let mut lines = victim.lines.clone();
        lines.swap(at, at + 1);
        victim.write(&lines);
        assert_eq!(victim.damage(&plain()).seq, at as u64, "swapped");

        let mut lines = victim.lines.clone();
        lines.insert(at, lines[at].clone());
        victim.write(&lines);
        assert_eq!(victim.damage(&plain()).seq, at as u64 + 1, "repeated");

        let mut lines = victim.lines.clone();
        lines.insert(at, b"\n".to_vec());
        victim.write(&lines);
        assert_eq!(victim.damage(&plain()).seq, at as u64, "an empty line");
    }
    let repeated = [&victim.lines[..], &victim.lines[20..]].concat();
    victim.write(&repeated);
    assert_eq!(victim.damage(&plain()).seq, 21);
}

#[test]
fn room_is_fine_at_the_very_end_and_nowhere_else() {
    let victim = Victim::with_mark(60, 1000);
    let names = segments(victim.directory.path());
    for (at, name) in names.iter().enumerate() {
        let whole = fs::read(name).unwrap();
        fs::write(name, [&whole, &ROOM[..]].concat()).unwrap();
        for live in [false, true] {
            let expected = Expected { live, ..plain() };
            if at == names.len() - 1 {
                let report = victim.verify(&expected).unwrap();
                let bytes: usize = victim.lines.iter().map(Vec::len).sum();
                assert_eq!(report.head, victim.heads[60]);
                assert_eq!(report.bytes, bytes as u64);
            } else {
                let after = seq_of(lines_of(&whole).last().unwrap()) + 1;
                assert_eq!(victim.damage(&expected).seq, after, "{name:?}");
            }
        }
        if at < names.len() - 1 {
            fs::write(name, whole).unwrap();
        }
    }
    // Nothing is torn. The room is used, and what is left of it goes with the last writer.
    for sharing in [exclusive(u64::MAX), shared(u64::MAX)] {
        let (journal, recovered) =
            Journal::open(disk(victim.directory.path()), clock(), sharing).unwrap();
        assert_eq!(recovered, None);
        let ticket = journal.append(ORIGIN, &note("in the room")).unwrap();
        ticket.written().unwrap();
        let bytes = fs::read(names.last().unwrap()).unwrap();
        assert!(bytes.ends_with(b"\n\n\n"));
        journal.close().unwrap();
        let bytes = fs::read(names.last().unwrap()).unwrap();
        assert!(bytes.ends_with(b"\"}\n"));
        assert_eq!(victim.verify(&plain()).unwrap().head.seq, ticket.seq());
        fs::write(names.last().unwrap(), [&bytes, &ROOM[..]].concat()).unwrap();
    }
}

/// After a loss of power there may be records behind room that was not written over.
#[test]
fn records_behind_room_are_torn() {
    for gap in [1, 100, 300_000] {
        let victim = Victim::new(6);
        let gap = vec![b'\n'; gap];
        let (before, behind) = (victim.lines[..4].concat(), victim.lines[5].clone());
        let bytes = [&before, &gap, &behind, &ROOM[..]].concat();
        fs::write(victim.path(FIRST), bytes).unwrap();
        for live in [false, true] {
            let expected = Expected { live, ..plain() };
            assert_eq!(victim.damage(&expected).seq, 4);
        }
        let (_, end) = read_all(disk(victim.directory.path()));
        assert!(matches!(end, Err(Error::Damaged { seq: 4, .. })));
        let (journal, recovered) = victim.open().unwrap();
        let side = fs::read(victim.path(&recovered.unwrap().file)).unwrap();
        assert_eq!(side, [&gap, &behind[..behind.len() - 1]].concat());
        assert_eq!(journal.head().seq, 4);
        drop(journal);
        victim.verify(&plain()).unwrap();
    }
}

#[test]
fn a_line_of_any_length_is_only_a_flaw() {
    let victim = Victim::new(3);
    for garbage in [vec![b'x'; 3 << 20], vec![0; 5 << 20], {
        let mut line = vec![b'y'; 2 << 20];
        line.push(b'\n');
        line
    }] {
        victim.write(&[victim.lines.concat(), garbage.clone()]);
        assert_eq!(victim.damage(&plain()).seq, 4);
        let mut reader = Reader::open(disk(victim.directory.path())).unwrap();
        for _ in 0..4 {
            assert!(reader.next().unwrap().is_some());
        }
        // The same damage however often one asks.
        let first = reader.next().err().unwrap().to_string();
        assert_eq!(reader.next().err().unwrap().to_string(), first);
        let (journal, recovered) = victim.open().unwrap();
        let recovered = recovered.unwrap();
        // A newline at its end could as well be room.
        let garbage = garbage.strip_suffix(b"\n").unwrap_or(&garbage);
        assert_eq!(recovered.bytes, garbage.len() as u64);
        assert_eq!(fs::read(victim.path(&recovered.file)).unwrap(), garbage);
        drop(journal);
        fs::remove_file(victim.path("durable")).unwrap();
        fs::remove_file(victim.path(&recovered.file)).unwrap();
    }
}

#[test]
fn whole_segments_are_missed() {
    let reference = Victim::with_mark(60, 1000);
    let names = segments(reference.directory.path());
    for at in 0..names.len() {
        let victim = Victim::with_mark(60, 1000);
        let names = segments(victim.directory.path());
        let first = lines_of(&fs::read(&names[at]).unwrap());
        let seq: u64 = seq_of(&first[0]);
        fs::remove_file(&names[at]).unwrap();
        let last = at == names.len() - 1;
        if at == 0 {
            let missing = victim.verify(&plain()).unwrap_err().to_string();
            assert!(missing.contains(FIRST), "{missing}");
        } else {
            for live in [false, true] {
                let expected = Expected { live, ..plain() };
                assert_eq!(victim.damage(&expected).seq, seq, "segment {at}");
            }
        }
        if at == 0 || last {
            assert!(victim.open().is_err(), "segment {at}");
        }
    }
}

fn seq_of(line: &[u8]) -> u64 {
    let text = str::from_utf8(line).unwrap();
    let rest = text.strip_prefix("{\"seq\":").unwrap();
    rest.split_once(',').unwrap().0.parse().unwrap()
}

#[test]
fn a_truncated_segment_is_named() {
    let victim = Victim::with_mark(60, 1000);
    for name in segments(victim.directory.path()) {
        let whole = fs::read(&name).unwrap();
        let lines = lines_of(&whole);
        let last = seq_of(lines.last().unwrap());
        // In the middle of its last record, and exactly in front of it.
        for cut in [40, lines.last().unwrap().len()] {
            fs::write(&name, &whole[..whole.len() - cut]).unwrap();
            for live in [false, true] {
                let expected = Expected { live, ..plain() };
                assert_eq!(victim.damage(&expected).seq, last, "{name:?} by {cut}");
            }
        }
        fs::write(&name, whole).unwrap();
    }
    victim.verify(&plain()).unwrap();
}

/// A writer may be at work at the end, but not in front of a segment that has a successor.
#[test]
fn a_live_journal_is_whole_up_to_its_last_segment() {
    let victim = Victim::with_mark(60, 1000);
    fs::remove_file(victim.path("durable")).unwrap();
    let names = segments(victim.directory.path());
    let (_, finished) = names.split_last().unwrap();
    for name in finished {
        let whole = fs::read(name).unwrap();
        let last = seq_of(lines_of(&whole).last().unwrap());
        fs::write(name, &whole[..whole.len() - 40]).unwrap();
        let live = Expected {
            live: true,
            ..plain()
        };
        assert_eq!(victim.damage(&live).seq, last);
        fs::write(name, whole).unwrap();
    }
}

#[test]
fn extra_segments_are_named() {
    let victim = Victim::with_mark(10, u64::MAX);
    // Not the next, whatever is in it.
    let stray = victim.path("journal.00000000000000000099.ndjson");
    fs::write(&stray, &victim.lines[3]).unwrap();
    assert_eq!(victim.damage(&plain()).seq, 11);
    let before = snapshot(victim.directory.path());
    assert!(matches!(victim.open(), Err(Error::DurableLost { .. })));
    assert_eq!(before, snapshot(victim.directory.path()));
    fs::remove_file(&stray).unwrap();
    // The next, with something else in it.
    let next = victim.path("journal.00000000000000000011.ndjson");
    fs::write(&next, &victim.lines[3]).unwrap();
    assert_eq!(victim.damage(&plain()).seq, 11);
    // The next and empty: a rotation that was interrupted, and no damage.
    fs::write(&next, "").unwrap();
    victim.verify(&plain()).unwrap();
    let (journal, recovered) = victim.open().unwrap();
    assert!(recovered.is_none());
    journal
        .append(ORIGIN, &note("on"))
        .unwrap()
        .durable()
        .unwrap();
    drop(journal);
    assert_eq!(victim.verify(&plain()).unwrap().head.seq, 11);
    assert!(!fs::read(&next).unwrap().is_empty());
}

#[test]
fn names_that_only_look_like_segments_are_nothing() {
    let victim = Victim::with_mark(10, u64::MAX);
    for name in [
        "journal.11.ndjson",
        "journal.00000000000000000000.ndjson",
        "journal.99999999999999999999.ndjson",
        "journal.0000000000000000011x.ndjson",
        "journal.00000000000000000011.ndjson.bak",
    ] {
        fs::write(victim.path(name), "garbage\n").unwrap();
    }
    victim.verify(&plain()).unwrap();
    let (journal, recovered) = victim.open().unwrap();
    assert!(recovered.is_none());
    assert_eq!(journal.head().seq, 10);
}

#[test]
fn nothing_is_cut_in_front_of_the_mark() {
    let victim = Victim::with_mark(10, u64::MAX);
    let whole = victim.lines.concat();
    // Inside of the record that the mark names: refused, and left as it is.
    for cut in 1..victim.lines[10].len() {
        fs::write(victim.path(FIRST), &whole[..whole.len() - cut]).unwrap();
        let before = snapshot(victim.directory.path());
        assert!(matches!(victim.open(), Err(Error::DurableLost { seq: 10 })));
        assert_eq!(before, snapshot(victim.directory.path()));
    }
    // Behind it: cut.
    fs::write(victim.path(FIRST), [&whole[..], b"{\"seq\":11,"].concat()).unwrap();
    let (_, recovered) = victim.open().unwrap();
    assert_eq!(recovered.unwrap().bytes, 10);
}

#[test]
fn a_shared_writer_that_is_behind_does_not_cut_what_others_made_durable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let open = |segment_bytes| {
        Journal::open(disk(path), clock(), shared(segment_bytes))
            .unwrap()
            .0
    };
    journal(path, 3, u64::MAX);
    for rotated in [false, true] {
        let behind = open(u64::MAX);
        let ahead = open(if rotated { 1 } else { u64::MAX });
        for n in 0..6 {
            let ticket = ahead.append(ORIGIN, &note(&format!("{n}"))).unwrap();
            ticket.written().unwrap();
        }
        ahead.close().unwrap();
        // Someone spoils a record that only `ahead` has written.
        let spoilt = segments(path)
            .into_iter()
            .rev()
            .nth(usize::from(rotated) * 2)
            .unwrap();
        let whole = fs::read(&spoilt).unwrap();
        let mut bytes = whole.clone();
        let at = bytes.len() - 100;
        bytes[at] ^= 1;
        fs::write(&spoilt, bytes).unwrap();
        let before = snapshot(path);
        let refused = behind.append(ORIGIN, &note("behind"));
        assert!(matches!(refused, Err(Error::Poisoned(_))), "{rotated}");
        drop(behind);
        assert_eq!(before, snapshot(path), "{rotated}");
        fs::write(&spoilt, whole).unwrap();
        verify(disk(path), &plain()).unwrap();
    }
}

#[test]
fn closing_sets_the_mark_even_if_nothing_was_appended() {
    let victim = Victim::new(5);
    victim.open().unwrap().0.close().unwrap();
    assert!(victim.path("durable").exists());
    victim.write(&victim.lines[..4]);
    assert!(matches!(victim.open(), Err(Error::DurableLost { seq: 5 })));
}

#[test]
fn a_mark_that_is_half_old_and_half_new_is_none() {
    let victim = Victim::with_mark(10, u64::MAX);
    let new = fs::read(victim.path("durable")).unwrap();
    let other = Victim::with_mark(9, u64::MAX);
    let old = fs::read(other.path("durable")).unwrap();
    assert_eq!(new.len(), old.len());
    for at in 0..new.len() {
        fs::write(victim.path("durable"), [&new[..at], &old[at..]].concat()).unwrap();
        // Old, new or none; in no case an accusation.
        victim.verify(&plain()).unwrap();
        drop(victim.open().unwrap());
    }
    fs::write(victim.path("durable"), vec![0; new.len()]).unwrap();
    victim.verify(&plain()).unwrap();
}

#[test]
fn an_interrupted_recovery_is_recorded_by_the_next() {
    let victim = Victim::new(5);
    // A tail was kept and cut, and then the process died.
    fs::write(victim.path("torn.6.0"), "{\"seq\":6").unwrap();
    let (journal, recovered) = victim.open().unwrap();
    assert_eq!(recovered.unwrap().file, "torn.6.0");
    assert_eq!(journal.head().seq, 6);
    drop(journal);
    let (_, again) = victim.open().unwrap();
    assert!(again.is_none());
    assert_eq!(victim.verify(&plain()).unwrap().torn, 1);
}

#[test]
fn a_journal_of_another_format_is_left_alone() {
    let victim = Victim::new(0);
    let directory = tempfile::tempdir().unwrap();
    // Sealed by the same arithmetic, but of a format that does not exist.
    let line = String::from_utf8(victim.lines[0].clone()).unwrap();
    let body = line[..line.len() - 76].replace("\"format\":1", "\"format\":2");
    let hash = sha256(&[&[0; 32], body.as_bytes()].concat());
    let sealed = format!("{body},\"hash\":\"{hash}\"}}\n{{\"seq\":1,\"torn");
    fs::write(directory.path().join(FIRST), &sealed).unwrap();
    let opened = Journal::open(disk(directory.path()), clock(), exclusive(1000));
    assert!(matches!(opened, Err(Error::Foreign(_))));
    let after = fs::read_to_string(directory.path().join(FIRST)).unwrap();
    assert_eq!(after, sealed);
}
