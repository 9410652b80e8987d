//! Going back over long runs: the fold of a snapshot beside a parser of the same lines, and a look at any record.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use invigil_engine::os_view;
use invigil_journal::{Options, RunRef, Store, SystemClock};
use invigil_schema::{
    Address, CallResult, Envelope, Event, FileOp, FileOpKind, NetOp, NetOpKind, OpenFlag, Origin,
    ProcessExec, ProcessExited, ProcessForked, ProcessRef, RunId,
};
use serde_json::Value;

use super::machine;
use super::report::{Goal, Part, Table};
use super::rounds::{interleaved, number, timed};
use super::sample::{Scratch, on_one_core};
use super::screen;
use crate::Result;

/// Records of the long run, and of the one that is looked at.
const LONG: u64 = 10_000_000;
const LOOKED_AT: u64 = 1_000_000;
/// Records of one process, from its birth to its end.
const OF_A_PROCESS: u64 = 50;

pub(super) fn measure(quick: bool) -> Result<Part> {
    let scratch = Scratch::new()?;
    let mut part = Part::new("Audit", machine::describe(scratch.path(), &[])?);
    let scale = if quick { 50 } else { 1 };
    part.add(fold(&scratch, LONG / scale, if quick { 2 } else { 5 })?);
    part.add(looks(
        &scratch,
        LOOKED_AT / scale,
        if quick { 10 } else { 101 },
    )?);
    part.add(screen::measure(
        &scratch,
        LOOKED_AT / scale,
        if quick { 5 } else { 31 },
    )?);
    Ok(part)
}

/// A run as an observer records it: processes that come, touch files and go.
pub(super) fn long_run(scratch: &Scratch, name: &str, records: u64) -> Result<(Store, RunRef)> {
    println!("a run of {records} records …");
    let store = Store::new(scratch.folder(name)?);
    let clock = Arc::new(SystemClock);
    let (run, journal) = store.create(
        &RunId::new("bench")?,
        clock,
        Options::default(),
        "xtask bench",
    )?;
    for record in 1..records {
        drop(journal.append(Origin::Kernel, &event(record))?);
    }
    journal.close()?;
    Ok((store, run))
}

fn event(record: u64) -> Event {
    const PATHS: [&str; 4] = [
        "src/main.rs",
        "Cargo.lock",
        "target/debug/deps/libserde-0193aabbccddeeff.rmeta",
        "README.md",
    ];
    let number = record / OF_A_PROCESS;
    let process = ProcessRef {
        pid: 1000 + (number % 4_000_000) as u32,
        start: number,
    };
    let path = format!("/home/user/work/{}", PATHS[record as usize % PATHS.len()]);
    match record % OF_A_PROCESS {
        0 => ProcessForked {
            process,
            parent: None,
        }
        .into(),
        1 => ProcessExec {
            process,
            parent: None,
            executable: "/usr/bin/rustc".into(),
            requested: None,
            argv: vec!["rustc".into(), "--crate-name".into(), path.as_str().into()],
            argv_cut_bytes: 0,
            cwd: "/home/user/work".into(),
            sha256: None,
        }
        .into(),
        2 => NetOp {
            process,
            op: NetOpKind::Connect,
            address: Address::Inet {
                ip: [192, 0, 2, 1].into(),
                port: 443,
            },
            host: None,
            instead: None,
            result: CallResult::Ok,
        }
        .into(),
        49 => ProcessExited {
            process,
            exit_code: Some(0),
            signal: None,
            user_us: record,
            system_us: 17,
            max_rss_kib: 4096,
        }
        .into(),
        at => FileOp {
            process,
            op: if at % 8 == 0 {
                FileOpKind::Create
            } else {
                FileOpKind::Open
            },
            path: path.as_str().into(),
            to: None,
            flags: vec![OpenFlag::Read, OpenFlag::Write, OpenFlag::CloseOnExec],
            mode: Some(0o644),
            detail: None,
            result: CallResult::Ok,
        }
        .into(),
    }
}

fn fold(scratch: &Scratch, records: u64, rounds: usize) -> Result<Table> {
    let (store, run) = long_run(scratch, "long", records)?;
    let segments = segments(&run)?;
    let bytes: u64 = segments
        .iter()
        .map(|path| fs::metadata(path).map_or(0, |data| data.len()))
        .sum();
    let folded = || {
        drop(fs::remove_dir_all(store.folds()));
        timed(|| {
            let view = os_view(&store, &run, None)?;
            assert_eq!(view.events(), records, "everything is folded");
            Ok(())
        })
    };
    let mut fold = |_| folded();
    let mut values = |_| {
        parsed(&segments, |line| {
            serde_json::from_slice::<Value>(line).map(|value| drop(black_box(value)))
        })
    };
    let mut typed = |_| {
        parsed(&segments, |line| {
            black_box(Envelope::parse(line)?.event());
            Ok(())
        })
    };
    println!("fold …");
    let [fold, values, typed] =
        on_one_core(|| interleaved(rounds, [&mut fold, &mut values, &mut typed]))?;
    let rate = |seconds: f64| records as f64 / seconds;
    let (to_values, to_typed) = (fold.speed_of(&values), fold.speed_of(&typed));
    let mut table = Table::new("The fold of a long run", &["what", "reached", "goal"]);
    table.note(format!(
        "{} records, {} MB in {} segments, on one core. The fold reads the journal as anybody does, checks the chain, and keeps \
         its state every 32,768 records. serde_json parses the same lines and checks nothing: into a `Value`, and into the \
         types of the events.",
        number(records as f64),
        number(bytes as f64 / 1e6),
        segments.len(),
    ));
    table.row([
        "the fold, records a second".into(),
        fold.map(rate).to_string(),
        String::new(),
    ]);
    table.row([
        "serde_json into `Value`, records a second".into(),
        values.map(rate).to_string(),
        String::new(),
    ]);
    table.row([
        "serde_json into events, records a second".into(),
        typed.map(rate).to_string(),
        String::new(),
    ]);
    for (what, ratio) in [
        ("the fold ÷ `Value`", to_values),
        ("the fold ÷ events", to_typed),
    ] {
        let verdict = Goal::AtLeast(0.5).verdict(ratio.median());
        table.row([what.into(), ratio.to_string(), verdict]);
    }
    let (few, all) = (
        grown(&store, &run, records / 10)?,
        grown(&store, &run, records)?,
    );
    table.row([
        "memory that a tenth of it needs, MB".into(),
        number(few),
        String::new(),
    ]);
    table.row([
        "memory that all of it needs, MB".into(),
        number(all),
        Goal::AtMost(few + 8.0).verdict(all),
    ]);
    fs::remove_dir_all(store.home())?;
    Ok(table)
}

/// By how much the most memory of this process grows while it folds, in MB.
fn grown(store: &Store, run: &RunRef, records: u64) -> Result<f64> {
    drop(fs::remove_dir_all(store.folds()));
    // Makes the mark of the most memory what is in use now.
    fs::write("/proc/self/clear_refs", "5")?;
    let before = high_water()?;
    black_box(os_view(store, run, Some(records))?);
    Ok((high_water()? - before) * 1024.0 / 1e6)
}

fn high_water() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = line.ok_or("no VmHWM")?.trim().trim_end_matches(" kB");
    Ok(peak.parse()?)
}

fn looks(scratch: &Scratch, records: u64, rounds: usize) -> Result<Table> {
    let (store, run) = long_run(scratch, "looks", records)?;
    println!("looks …");
    let first = timed(|| os_view(&store, &run, None).map(drop).map_err(Into::into))?;
    let mut look = |round: usize| {
        // Jumps that never repeat: steps of a number without a divisor in common.
        let point = (round as u64 + 1) * 611_953 % records + 1;
        timed(|| {
            let view = os_view(&store, &run, Some(point))?;
            assert_eq!(view.events(), point, "the look is at the right record");
            Ok(())
        })
    };
    let [look] = on_one_core(|| interleaved(rounds, [&mut look]))?;
    let millis = look.map(|seconds| seconds * 1e3);
    let mut table = Table::new("A look at any record", &["what", "ms", "goal"]);
    table.note(format!(
        "The snapshot at {rounds} records all over a run of {}. The first look folds all of it and keeps states; the others \
         begin at the nearest.",
        number(records as f64)
    ));
    table.row([
        "the first look, at the end".into(),
        number(first.as_secs_f64() * 1e3),
        String::new(),
    ]);
    let goal = |reached: f64| Goal::AtMost(100.0).verdict(reached);
    table.row(["a look".into(), millis.to_string(), goal(millis.median())]);
    let slowest = millis.quantile(1.0);
    table.row(["the slowest".into(), number(slowest), goal(slowest)]);
    fs::remove_dir_all(store.home())?;
    Ok(table)
}

fn segments(run: &RunRef) -> Result<Vec<PathBuf>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(run.directory())? {
        let path = entry?.path();
        let is_segment = path.extension().is_some_and(|end| end == "ndjson");
        segments.extend(is_segment.then_some(path));
    }
    segments.sort();
    Ok(segments)
}

/// Hands every line of some files to a parser.
fn parsed(files: &[PathBuf], parse: impl Fn(&[u8]) -> serde_json::Result<()>) -> Result<Duration> {
    timed(|| {
        let mut line = Vec::new();
        for file in files {
            let mut reader = BufReader::with_capacity(256 * 1024, File::open(file)?);
            while reader.read_until(b'\n', &mut line)? > 0 {
                // A journal may end in room for more.
                if line.len() > 1 {
                    parse(&line)?;
                }
                line.clear();
            }
        }
        Ok(())
    })
}
