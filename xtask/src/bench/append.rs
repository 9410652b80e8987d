//! Append without waiting for the medium, on one core.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use invigil_journal::Options;
use invigil_schema::Origin;
use rustix::time::{ClockId, clock_gettime};

use super::durable::append_to;
use super::report::{Goal, Table};
use super::rounds::{interleaved, timed};
use super::sample::{Lines, Scratch, create, events, on_one_core};
use crate::Result;

/// Fits into one segment.
const BURST: usize = 150_000;
/// Takes five segments.
const LONG: usize = 1_000_000;
const ONE_BY_ONE: usize = 20_000;

pub(super) fn measure(scratch: &Scratch, quick: bool) -> Result<Table> {
    println!("append without waiting for the medium …");
    on_one_core(|| measure_pinned(scratch, quick))
}

fn measure_pinned(scratch: &Scratch, quick: bool) -> Result<Table> {
    let (rounds, scale) = if quick { (2, 10) } else { (11, 1) };
    let mut table = Table::new("Append", &["what", "reached", "goal"]);
    table.note(
        "Each record is encoded, stamped, chained and, at the latest when the buffer is full, written. The process and its \
         background thread, which syncs every 50 ms, have one core together. Processor time is that of all its threads, in \
         the kernel too.",
    );
    let (wall, cpu) = appended(scratch, BURST / scale, rounds)?;
    table.row([
        format!("burst of {} records, records/s", BURST / scale),
        wall.to_string(),
        Goal::AtLeast(500_000.0).verdict(wall.median()),
    ]);
    table.row([
        "the same, records per second of processor time".into(),
        cpu.to_string(),
        String::new(),
    ]);
    let (wall, cpu) = appended(scratch, LONG / scale, rounds.min(5))?;
    table.row([
        format!(
            "{} records through several segments, records/s",
            LONG / scale
        ),
        wall.to_string(),
        Goal::AtLeast(500_000.0).verdict(wall.median()),
    ]);
    table.row([
        "the same, records per second of processor time".into(),
        cpu.to_string(),
        String::new(),
    ]);
    one_by_one(scratch, ONE_BY_ONE / scale, rounds, &mut table)?;
    Ok(table)
}

type Rates = super::rounds::Samples;

/// Records a second, by the wall clock and by the processor's.
fn appended(scratch: &Scratch, count: usize, rounds: usize) -> Result<(Rates, Rates)> {
    let events = events();
    let mut processor = Vec::new();
    let mut journal = |_| {
        let folder = scratch.folder("append")?;
        let journal = create(&folder, Options::default())?;
        let before = processor_time();
        let wall = timed(|| {
            for event in events.iter().cycle().take(count - 1) {
                drop(journal.append(Origin::Kernel, event)?);
            }
            Ok(journal.append(Origin::Kernel, &events[0])?.written()?)
        })?;
        processor.push(processor_time() - before);
        journal.close()?;
        Ok(wall)
    };
    let [wall] = interleaved(rounds, [&mut journal])?;
    let mut processor = processor.into_iter();
    let [cpu] = interleaved(rounds, [&mut |_| Ok(processor.next().unwrap_or_default())])?;
    fs::remove_dir_all(scratch.path().join("append"))?;
    let rate = |seconds| count as f64 / seconds;
    Ok((wall.map(rate), cpu.map(rate)))
}

fn one_by_one(scratch: &Scratch, count: usize, rounds: usize, table: &mut Table) -> Result {
    let lines = Lines::new(scratch, count)?;
    let events = events();
    let mut journal = |_| {
        let journal = create(&scratch.folder("append")?, Options::default())?;
        let wall = timed(|| {
            for event in events.iter().cycle().take(count) {
                journal.append(Origin::Kernel, event)?.written()?;
            }
            Ok(())
        })?;
        journal.close()?;
        Ok(wall)
    };
    let mut bare = |_| {
        let mut file = append_to(&scratch.folder("bare")?.join("file"))?;
        let wall = timed(|| {
            for line in 0..count {
                file.write_all(lines.range(line..line + 1))?;
            }
            Ok(())
        })?;
        file.sync_all()?;
        Ok(wall)
    };
    let [journal, bare] = interleaved(rounds, [&mut journal, &mut bare])?;
    let micros = |seconds| seconds * 1e6 / count as f64;
    table.row([
        "`append` and `written`, one record at a time, µs a record".into(),
        journal.map(micros).to_string(),
        String::new(),
    ]);
    table.row([
        "a bare `write` of the same bytes, µs a record".into(),
        bare.map(micros).to_string(),
        String::new(),
    ]);
    Ok(())
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
