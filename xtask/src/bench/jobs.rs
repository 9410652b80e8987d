//! What it takes to carry out a capability as a job: isolated, durable before and after.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use invigil_engine::{
    Asking, Cancel, Engine, Executor, JobLimits, JobSpec, Registry, ResourceGuard, Sampler, Setup,
    Worker,
};
use invigil_journal::{Jobs, Store, SystemClock};
use invigil_policy::Places;
use invigil_schema::{
    Event, JobCompleted, JobEnd, JobId, JobOutput, JobStarted, Origin, OsText, Snapshot,
};
use serde_json::{Value, json};

use super::machine;
use super::report::{Goal, Part, Table};
use super::rounds::{Samples, interleaved, timed};
use crate::child::{Program, Scratch, User};
use crate::{Result, release};

/// Jobs in the store whose status is asked for; each has two records.
const JOBS: usize = 500_000;

pub(super) fn measure(quick: bool) -> Result<Part> {
    let bench = Bench::new(quick)?;
    let mut part = Part::new("Jobs", machine::describe(bench.scratch.path(), &[])?);
    part.add(bench.one()?);
    part.add(bench.many()?);
    part.add(bench.looks()?);
    Ok(part)
}

struct Bench {
    scratch: Scratch,
    invigil: PathBuf,
    work: PathBuf,
    quick: bool,
}

impl Bench {
    fn new(quick: bool) -> Result<Bench> {
        let scratch = Scratch::new("jobs")?;
        let work = scratch.folder("work", User::Same)?;
        fs::write(work.join("file.txt"), "a line of text\n".repeat(64))?;
        Ok(Bench {
            invigil: release("invigil")?.canonicalize()?,
            work,
            scratch,
            quick,
        })
    }

    fn executor(&self, name: &str) -> Result<Executor> {
        let env = ["PATH", "HOME"].map(|name| (name.into(), std::env::var_os(name)));
        let env = env
            .into_iter()
            .filter_map(|(name, value): (OsString, _)| Some((name, value?)));
        Ok(Executor::new(Setup {
            engine: Engine {
                store: Store::new(self.scratch.path().join(name)),
                clock: Arc::new(SystemClock),
                env: env.collect(),
                cwd: self.work.clone(),
                runtime_dir: self.scratch.path().to_owned(),
                writer: "bench".into(),
            },
            registry: Registry::standard(),
            worker: Worker {
                program: self.invigil.clone(),
                arguments: vec!["__worker".into()],
            },
            policies: Vec::new(),
            places: Places {
                home: "/root".into(),
                workspace: self.work.clone(),
                tmp: "/tmp".into(),
                path: vec!["/usr/bin".into()],
            },
            asking: Asking::default(),
            guard: ResourceGuard::off(),
            limits: JobLimits::default(),
            nursery: true,
            spares: true,
        })?)
    }

    /// One job at a time.
    fn one(&self) -> Result<Table> {
        println!("one job …");
        let executor = self.executor("one")?;
        let mut read = |_| timed(|| done(&executor, "file_read", json!({ "path": "file.txt" })));
        let mut written = 0;
        let mut write = |_| {
            written += 1;
            let arguments = json!({ "path": "made.txt", "content": format!("{written}\n") });
            timed(|| done(&executor, "file_write", arguments))
        };
        let mut bare = Program::new(["/bin/true"]);
        bare.folder.clone_from(&self.work);
        let words = [
            self.invigil.as_os_str(),
            "exec".as_ref(),
            "file_read".as_ref(),
        ];
        let words = words.into_iter().map(OsString::from);
        let mut exec = Program::new(words.chain([r#"{"path": "file.txt"}"#.into()]));
        exec.folder.clone_from(&self.work);
        exec.env("INVIGIL_GUARD", "off");
        exec.env("INVIGIL_HOME", self.scratch.path().join("home"));
        let said = self.scratch.path();
        let mut bare = |_| Ok(bare.succeed(said)?.took);
        let mut exec = |_| Ok(exec.succeed(said)?.took);
        let rounds = if self.quick { 5 } else { 101 };
        let [read, write, bare, exec] =
            interleaved(rounds, [&mut read, &mut write, &mut bare, &mut exec])?;
        let milliseconds = |seconds| seconds * 1e3;
        let mut table = Table::new("One job", &["what", "ms", "goal"]);
        table.note(format!(
            "{rounds} rounds. Each job has a process of its own in the sandbox, two looks at the machine, and two syncs; \
             `file_write` has those of the kept content and of the file besides. Through the library a worker stands \
             ready when the job comes. A sync of this medium alone is among the journal's figures."
        ));
        let over: Samples = exec.minus(&bare).map(milliseconds);
        let read = read.map(milliseconds);
        for (what, samples, goal) in [
            ("`file_read` through the library", &read, Goal::AtMost(3.0)),
            (
                "`file_write` through the library",
                &write.map(milliseconds),
                Goal::None,
            ),
            (
                "the start of a bare process",
                &bare.map(milliseconds),
                Goal::None,
            ),
            (
                "`invigil exec file_read`, over that",
                &over,
                Goal::AtMost(10.0),
            ),
        ] {
            let verdict = match goal {
                Goal::None => String::new(),
                goal => goal.verdict_of(samples),
            };
            table.row([what.to_owned(), samples.to_string(), verdict]);
        }
        Ok(table)
    }

    /// Several jobs at a time.
    fn many(&self) -> Result<Table> {
        println!("many jobs …");
        let executor = self.executor("many")?;
        let jobs = if self.quick { 40 } else { 400 };
        let burst = |threads: usize| {
            let next = AtomicUsize::new(0);
            let begun = Instant::now();
            thread::scope(|scope| {
                let body = || -> std::result::Result<(), String> {
                    while next.fetch_add(1, Ordering::Relaxed) < jobs {
                        done(&executor, "file_read", json!({ "path": "file.txt" }))
                            .map_err(|error| error.to_string())?;
                    }
                    Ok(())
                };
                let threads: Vec<_> = (0..threads).map(|_| scope.spawn(body)).collect();
                threads
                    .into_iter()
                    .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
            })?;
            Ok::<Duration, Box<dyn std::error::Error>>(begun.elapsed())
        };
        let mut table = Table::new("Many jobs", &["in flight", "jobs a second"]);
        table.note(format!(
            "`file_read` through the library, {jobs} a burst, 5 bursts each."
        ));
        let bursts = if self.quick { 1 } else { 5 };
        let mut rates: [Vec<Duration>; 3] = Default::default();
        for _ in 0..bursts {
            for (rate, threads) in rates.iter_mut().zip([1, 8, 32]) {
                rate.push(burst(threads)?);
            }
        }
        for (rate, threads) in rates.iter().zip([1, 8, 32]) {
            let rate = Samples::of(rate).map(|seconds| jobs as f64 / seconds);
            table.row([threads.to_string(), rate.to_string()]);
        }
        Ok(table)
    }

    /// Looks at a store with many jobs.
    fn looks(&self) -> Result<Table> {
        println!("a store with many jobs …");
        let store = Store::new(self.scratch.path().join("large"));
        let jobs = if self.quick { JOBS / 100 } else { JOBS };
        fill(&store, jobs)?;
        let begun = Instant::now();
        let last = Jobs::refreshed(&store)?.begin_with("last")?;
        let built = begun.elapsed();
        let last = last.first().ok_or("the store is empty")?.job_id.clone();
        let command = |words: &[&str]| {
            let all = [self.invigil.as_os_str()].map(OsString::from).into_iter();
            let mut program = Program::new(all.chain(words.iter().map(OsString::from)));
            program.env("INVIGIL_HOME", store.home());
            program
        };
        let tail = command(&["jobs"]);
        let show = command(&["jobs", "show", last.as_str()]);
        let bare = Program::new(["/bin/true"]);
        let said = self.scratch.path();
        let mut bare = |_| Ok(bare.succeed(said)?.took);
        let mut tail = |_| Ok(tail.succeed(said)?.took);
        let mut show = |_| Ok(show.succeed(said)?.took);
        let rounds = if self.quick { 3 } else { 41 };
        let [bare, tail, show] = interleaved(rounds, [&mut bare, &mut tail, &mut show])?;
        let mut table = Table::new("Looks at many jobs", &["what", "ms", "goal"]);
        table.note(format!(
            "A store with {} records of jobs, {rounds} rounds, the start of the program included. The index, a cache, was built \
             from nothing in {:.1} s.",
            2 * jobs,
            built.as_secs_f64()
        ));
        for (what, samples, goal) in [
            ("the start of a bare process", bare, Goal::None),
            ("`invigil jobs`, the last 20", tail, Goal::AtMost(10.0)),
            ("`invigil jobs show JOB`", show, Goal::AtMost(10.0)),
        ] {
            let samples = samples.map(|seconds| seconds * 1e3);
            let verdict = match goal {
                Goal::None => String::new(),
                goal => goal.verdict_of(&samples),
            };
            table.row([what.to_owned(), samples.to_string(), verdict]);
        }
        Ok(table)
    }
}

fn done(executor: &Executor, capability: &str, arguments: Value) -> Result {
    let spec = JobSpec {
        capability: capability.to_owned(),
        arguments,
        ..JobSpec::default()
    };
    let result = executor.exec(&spec, &Cancel::new())?;
    match result.success {
        true => Ok(()),
        false => Err(format!("{:?}", result.output).into()),
    }
}

/// Records as jobs make them, without the jobs.
fn fill(store: &Store, jobs: usize) -> Result {
    let (_, journal) = store.jobs(Arc::new(SystemClock), "bench")?;
    let mut sampler = Sampler::open()?;
    let now = Snapshot {
        telemetry: sampler.machine("/".as_ref())?,
        processes: Default::default(),
    };
    for n in 0..jobs {
        let job_id = JobId::new(format!("job_{n:032}"))?;
        let started: Event = JobStarted {
            job_id: job_id.clone(),
            capability: "file_read".into(),
            arguments: json!({ "path": "file.txt" }),
            arguments_blob: None,
            dry_run: false,
            session: None,
            step: None,
            working_dir: OsText::from("/work"),
            allowed: Vec::new(),
            owner: "own".into(),
            before: now.clone(),
        }
        .into();
        let completed: Event = JobCompleted {
            end: JobEnd {
                job_id,
                capability: "file_read".into(),
                session: None,
                duration_ms: 2,
                spawned: Vec::new(),
                refused: Vec::new(),
                degraded: Vec::new(),
                run: None,
                before: Some(now.clone()),
                after: Some(now.clone()),
            },
            output: JobOutput {
                data: json!({ "content": "x" }),
                blob: None,
                message: None,
            },
        }
        .into();
        let ticket =
            journal.append_all([&started, &completed].map(|event| (Origin::Runtime, event)))?;
        if n % 1024 == 0 {
            ticket.written()?;
        }
    }
    journal.close()?;
    Ok(())
}
