//! Opening for append, and finding a record in the middle.

use std::fs;
use std::sync::Arc;

use invigil_journal::{Journal, Options, Reader, SystemClock};

use super::report::Table;
use super::rounds::{interleaved, timed};
use super::sample::{Scratch, storage, write};
use crate::Result;

const SEGMENT: u64 = 64 * 1024 * 1024;
const RECORDS: usize = 1_000_000;
const SEEKS: usize = 1_000;

pub(super) fn measure(scratch: &Scratch, quick: bool) -> Result<Table> {
    println!("open and seek …");
    let (rounds, scale) = if quick { (2, 10) } else { (11, 1) };
    let mut table = Table::new("Open and seek", &["what", "reached"]);
    table.note("All files are in the page cache. There is no peer and no goal here; these numbers are for orientation.");
    open(scratch, SEGMENT / scale, rounds, &mut table)?;
    seek(scratch, RECORDS / scale as usize, rounds, &mut table)?;
    Ok(table)
}

fn open(scratch: &Scratch, size: u64, rounds: usize, table: &mut Table) -> Result {
    let folder = scratch.folder("open")?;
    let options = Options {
        segment_bytes: u64::MAX,
        ..Options::default()
    };
    write(&folder, size as usize / 300, options.clone())?;
    let (mark, aside) = (folder.join("durable"), scratch.path().join("mark"));
    let open = || {
        let mut journal = None;
        let clock = Arc::new(SystemClock);
        let wall = timed(|| {
            journal = Some(Journal::open(storage(&folder), clock, options.clone())?);
            Ok(())
        });
        drop(journal);
        wall
    };
    let mut with = |_| open();
    let mut without = |_| {
        fs::rename(&mark, &aside)?;
        let wall = open();
        fs::rename(&aside, &mark)?;
        wall
    };
    let [with, without] = interleaved(rounds, [&mut with, &mut without])?;
    let mib = fs::metadata(folder.join("journal.ndjson"))?.len() as f64 / 1048576.0;
    table.row([
        format!("open a segment of {mib:.0} MiB for append, with a durable mark at its end, µs"),
        with.map(|seconds| seconds * 1e6).to_string(),
    ]);
    table.row([
        "the same without the mark: every record is checked, ms".into(),
        without.map(|seconds| seconds * 1e3).to_string(),
    ]);
    fs::remove_dir_all(folder)?;
    Ok(())
}

fn seek(scratch: &Scratch, records: usize, rounds: usize, table: &mut Table) -> Result {
    let folder = scratch.folder("seek")?;
    write(&folder, records, Options::default())?;
    let mut seek = |round| {
        timed(|| {
            for n in 0..SEEKS {
                // Jumps that never repeat: steps of a number without a divisor in common.
                let seq = ((round * SEEKS + n) * 611_953 % records) as u64;
                let mut reader = Reader::open_at(storage(&folder), seq)?.ok_or("no such record")?;
                let found = reader.next()?.map(|record| record.seq);
                assert_eq!(found, Some(seq), "the reader stands where it should");
            }
            Ok(())
        })
    };
    let [seek] = interleaved(rounds, [&mut seek])?;
    table.row([
        format!("`Reader::open_at` and the first record, in a journal of {records}, µs"),
        seek.map(|seconds| seconds * 1e6 / SEEKS as f64).to_string(),
    ]);
    fs::remove_dir_all(folder)?;
    Ok(())
}
