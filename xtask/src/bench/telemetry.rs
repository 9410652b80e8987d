//! How long a look at the machine takes, and one at its processes.

use std::hint::black_box;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use invigil_engine::{ResourceGuard, Sampler};

use super::machine;
use super::report::{Goal, Part, Table};
use super::rounds::{Contestant, interleaved, timed};
use super::sample::{Scratch, on_one_core};
use crate::Result;

/// Processes that are there beside those of the machine.
const SLEEPERS: usize = 300;

pub(super) fn measure(quick: bool) -> Result<Part> {
    println!("looks at the machine …");
    let scratch = Scratch::new()?;
    let mut part = Part::new("Telemetry", machine::describe(scratch.path(), &[])?);
    let rounds = if quick { 20 } else { 300 };
    let sleepers = Sleepers::start()?;
    part.add(on_one_core(|| table(rounds, scratch.path()))?);
    drop(sleepers);
    Ok(part)
}

fn table(rounds: usize, folder: &Path) -> Result<Table> {
    let mut sampler = Sampler::open()?;
    let processes = sampler.processes()?.len();
    let guard = ResourceGuard::default();
    let (figures, summary) = (sampler.machine(folder)?, sampler.summary()?);
    let mut table = Table::new("Looks", &["what", "µs", "goal"]);
    table.note(format!(
        "One look each round, on one core, with {processes} processes, {SLEEPERS} of which sleep. The first look of a process \
         opens the trees and reads what does not change; the others do not."
    ));

    let mut first = |_| looked(|| Ok(Sampler::open()?.machine(folder)?));
    let mut again = Sampler::open()?;
    let mut machine = |_| looked(|| Ok(again.machine(folder)?));
    let mut counting = Sampler::open()?;
    let mut count = |_| looked(|| Ok(counting.summary()?));
    let mut all = |_| looked(|| Ok(sampler.processes()?));
    let mut check = |_| looked(|| Ok(guard.check(&figures, &summary)));
    let contestants: [Contestant<'_>; 5] =
        [&mut first, &mut machine, &mut count, &mut all, &mut check];
    let [first, machine, count, all, check] = interleaved(rounds, contestants)?;

    let micros = |seconds: f64| seconds * 1e6;
    let each = |seconds: f64| seconds * 1e6 / processes as f64;
    let whole = Duration::from_millis(1).as_micros() as f64;
    for (what, samples, goal) in [
        ("the machine", machine.map(micros), Goal::AtMost(whole)),
        (
            "the machine, first look",
            first.map(micros),
            Goal::AtMost(whole),
        ),
        (
            "the summary, a process",
            count.map(each),
            Goal::AtMost(10.0),
        ),
        (
            "all processes, a process",
            all.map(each),
            Goal::AtMost(10.0),
        ),
        ("the guard's verdict", check.map(micros), Goal::None),
    ] {
        let verdict = goal.verdict(samples.median());
        table.row([what.into(), samples.to_string(), verdict]);
    }
    Ok(table)
}

/// How long it takes to find something out.
fn looked<T>(look: impl FnOnce() -> Result<T>) -> Result<Duration> {
    timed(|| {
        black_box(look()?);
        Ok(())
    })
}

/// Processes with nothing to do, ended with the measurement.
struct Sleepers(Vec<Child>);

impl Sleepers {
    fn start() -> Result<Sleepers> {
        let mut sleepers = Sleepers(Vec::with_capacity(SLEEPERS));
        for _ in 0..SLEEPERS {
            sleepers.0.push(Command::new("sleep").arg("600").spawn()?);
        }
        Ok(sleepers)
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
