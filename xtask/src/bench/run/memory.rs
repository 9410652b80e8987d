//! How much memory the supervisor needs, for a short run and for a long one.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use super::super::report::{Goal, Table};
use super::super::rounds::number;
use super::{Track, workload};
use crate::Result;
use crate::child::User;

/// Each file is three events.
const EVENTS: [u32; 3] = [10_000, 100_000, 1_000_000];

pub(super) fn measure(track: &Track) -> Result<Table> {
    let mut table = Table::new("Memory of the supervisor", &["records", "peak, MB", "goal"]);
    table.note(
        "The most memory that the supervisor had at once (`VmHWM`, which counts the pages of the program too), while a program \
         made, wrote, renamed and unlinked files that all have other names.",
    );
    for events in EVENTS {
        let events = if track.quick { events / 100 } else { events };
        println!("memory at {events} events …");
        let (records, peak) = peak(track, events)?;
        let goal = Goal::AtMost(50.0).verdict(peak);
        table.row([number(records as f64), number(peak), goal]);
    }
    Ok(table)
}

fn peak(track: &Track, events: u32) -> Result<(u64, f64)> {
    track.scratch.folder("home", User::Same)?;
    let mut program = track.prepare(&workload::FILES)?;
    program.words[1] = (events / 3).to_string().into();
    let watched = track.invigil(&program, &[]);
    let supervisor = watched.words[0].clone();
    let run = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            watched
                .succeed(track.scratch.path())
                .map(drop)
                .map_err(|error| error.to_string())
        });
        let mut peak = 0;
        while !run.is_finished() {
            peak = peak.max(high_water(&supervisor.to_string_lossy()));
            sleep(Duration::from_millis(5));
        }
        run.join().map(|ended| ended.map(|()| peak))
    });
    let peak = run.map_err(|_| "the run panicked")??;
    Ok((track.records()?, peak as f64 * 1024.0 / 1e6))
}

/// The most memory of our children that run this program, in KiB.
fn high_water(program: &str) -> u64 {
    let us = std::process::id().to_string();
    let children = (|| {
        let mut all = String::new();
        for task in fs::read_dir(format!("/proc/{us}/task")).ok()? {
            let path = task.ok()?.path().join("children");
            all += &fs::read_to_string(path).unwrap_or_default();
        }
        Some(all)
    })();
    let children = children.unwrap_or_default();
    let peaks = children.split_whitespace().filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let peak = peak.trim().trim_end_matches(" kB").parse().ok()?;
        line.starts_with(program.as_bytes()).then_some(peak)
    });
    peaks.max().unwrap_or_default()
}
