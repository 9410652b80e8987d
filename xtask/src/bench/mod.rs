//! `cargo xtask bench`: Invigil beside its peers, in the same run on the same machine.
//!
//! All contestants take turns, so that whatever else the machine does hits all of them. A ratio is the median over rounds
//! of the ratio within one round. Goals stand beside what was reached, met or not.

#[cfg(feature = "bench")]
mod append;
#[cfg(feature = "bench")]
mod audit;
#[cfg(feature = "bench")]
mod daemon;
#[cfg(feature = "bench")]
mod durable;
#[cfg(feature = "bench")]
mod jobs;
#[cfg(feature = "bench")]
mod machine;
#[cfg(feature = "bench")]
mod open;
#[cfg(feature = "bench")]
mod policy;
#[cfg(feature = "bench")]
mod report;
#[cfg(feature = "bench")]
mod rounds;
#[cfg(feature = "bench")]
mod run;
#[cfg(feature = "bench")]
mod sample;
#[cfg(feature = "bench")]
mod screen;
#[cfg(feature = "bench")]
mod telemetry;
#[cfg(feature = "bench")]
mod verify;

use crate::{Result, cargo, check};

/// Measure beside peers and write docs/benchmarks.md.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure.
    #[arg(value_enum, default_value_t = Subject::Journal)]
    subject: Subject,
    /// Few and short rounds. Shows that it works; says little about speed, so the page is not written.
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Subject {
    /// Append, verify, open.
    Journal,
    /// Decisions of a policy.
    Policy,
    /// Commands under watch.
    Run,
    /// Commands under a policy.
    Guard,
    /// Looks at the machine and its processes.
    Telemetry,
    /// Capabilities, carried out as jobs.
    Jobs,
    /// Durable proposals through the daemon.
    Daemon,
    /// Folds of long runs, and looks at any record.
    Audit,
}

pub(crate) fn run(args: &Args) -> Result {
    if cfg!(all(feature = "bench", not(debug_assertions))) {
        return measure(args);
    }
    let mut again = cargo(&["run", "--release", "--package", "xtask"]);
    again.args(["--features", "bench", "--", "bench"]);
    again.args(args.quick.then_some("--quick"));
    again.arg(match args.subject {
        Subject::Journal => "journal",
        Subject::Policy => "policy",
        Subject::Run => "run",
        Subject::Guard => "guard",
        Subject::Telemetry => "telemetry",
        Subject::Jobs => "jobs",
        Subject::Daemon => "daemon",
        Subject::Audit => "audit",
    });
    check(again)
}

#[cfg(not(feature = "bench"))]
fn measure(_: &Args) -> Result {
    Err("built without the feature `bench`".into())
}

#[cfg(feature = "bench")]
fn measure(args: &Args) -> Result {
    let part = match args.subject {
        Subject::Journal => journal(args.quick)?,
        Subject::Policy => policy::measure(args.quick)?,
        Subject::Run => run::measure(args.quick)?,
        Subject::Guard => run::measure_guarded(args.quick)?,
        Subject::Telemetry => telemetry::measure(args.quick)?,
        Subject::Jobs => jobs::measure(args.quick)?,
        Subject::Daemon => daemon::measure(args.quick)?,
        Subject::Audit => audit::measure(args.quick)?,
    };
    if !args.quick {
        let path = crate::root().join("docs/benchmarks.md");
        let page = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(&path, part.put_into(&page))?;
        println!("written to {}", path.display());
    }
    Ok(())
}

#[cfg(feature = "bench")]
fn journal(quick: bool) -> Result<report::Part> {
    let scratch = sample::Scratch::new()?;
    let sqlite = [("SQLite", rusqlite::version().to_owned())];
    let machine = machine::describe(scratch.path(), &sqlite)?;
    let mut part = report::Part::new("The journal", machine);
    for table in durable::measure(&scratch, quick)? {
        part.add(table);
    }
    part.add(append::measure(&scratch, quick)?);
    part.add(verify::measure(&scratch, quick)?);
    part.add(open::measure(&scratch, quick)?);
    Ok(part)
}
