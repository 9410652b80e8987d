//! An executor with capabilities that do harm, for the tests of jobs.
//!
//! `hands JSON` carries out one job and prints the result; `hands __worker` is its worker.

#![expect(clippy::print_stdout, reason = "what it prints is its result")]

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use invigil_engine::capabilities::{Capability, Context, Failure, Invalid, Needs, Output, Plan};
use invigil_engine::{
    Asking, Cancel, Engine, ExecError, Executor, JobLimits, JobResult, JobSpec, Registry,
    ResourceGuard, Setup, Thresholds, Worker, worker,
};
use invigil_journal::{Store, SystemClock};
use invigil_policy::{Layer, Places, Source};
use rustix::process::{Pid, Signal, kill_process};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// What harm.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Which of them.
    how: String,
    /// To what.
    #[serde(default)]
    to: String,
    /// How long it may take.
    #[serde(default)]
    timeout_ms: Option<u64>,
    /// Whether it says that it writes.
    #[serde(default)]
    writes: bool,
    /// Whether it says that it sends signals.
    #[serde(default)]
    signals: bool,
}

struct Harm;

impl Capability for Harm {
    type Args = Args;
    const NAME: &'static str = "harm";
    const DESCRIPTION: &'static str = "Does harm, if it can.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        match args.how.is_empty() {
            true => Err(Invalid::new("how", "it must say something")),
            false => Ok(()),
        }
    }

    fn plan(&self, args: &Args) -> Plan {
        Plan::Work(Needs {
            writes: args.writes,
            signals: args.signals,
            timeout: Duration::from_millis(args.timeout_ms.unwrap_or(20_000)),
            ..Needs::READS
        })
    }

    fn execute(&self, args: Args, context: &mut Context<'_>) -> Result<Output, Failure> {
        let fail = |error: std::io::Error| Failure::io(&args.to, error);
        let to = context.working_dir.join(&args.to);
        match args.how.as_str() {
            "nothing" => {}
            "panic" => panic!("it was asked for"),
            "loop" => loop {
                std::hint::spin_loop();
            },
            "sleep" => std::thread::sleep(Duration::from_secs(60)),
            "nap" => std::thread::sleep(Duration::from_millis(50)),
            "eat" => {
                let mut eaten: Vec<Vec<u8>> = Vec::new();
                loop {
                    eaten.push(vec![1; 1 << 22]);
                    std::hint::black_box(&eaten);
                }
            }
            "fork" => {
                for _ in 0..64 {
                    drop(Command::new(me()).arg("bomb").spawn().map_err(fail)?);
                }
            }
            "fill" => {
                let mut file = fs::File::create(&to).map_err(fail)?;
                loop {
                    file.write_all(&[1; 1 << 16]).map_err(fail)?;
                }
            }
            "exit" => std::process::exit(7),
            "nonsense" => {
                println!("{{}}");
                std::thread::sleep(Duration::from_secs(60));
            }
            "flood" => loop {
                // A line without an end.
                print!("{}", "x".repeat(1 << 16));
            },
            "fetch" => {
                let digest = args.to.parse().map_err(|_| Failure::new("no digest"))?;
                let mut stolen = Vec::new();
                context.keeper.fetch(&digest, &mut stolen).map_err(fail)?;
                return Ok(Output::new(json!({ "stolen": stolen.len() })));
            }
            "kill" => {
                let pid = args.to.parse().ok().and_then(Pid::from_raw);
                let pid = pid.ok_or_else(|| Failure::new("no process"))?;
                kill_process(pid, Signal::KILL).map_err(|error| fail(error.into()))?;
            }
            "write" => fs::write(&to, "harm").map_err(fail)?,
            "read" => drop(fs::read(&to).map_err(fail)?),
            "connect" => drop(std::net::TcpStream::connect(&args.to).map_err(fail)?),
            "run" => drop(Command::new(&args.to).output().map_err(fail)?),
            "where" => {
                // What an earlier worker has left in memory would be seen here.
                static BEFORE: AtomicU64 = AtomicU64::new(0);
                let before = BEFORE.fetch_add(1, Ordering::Relaxed);
                let stack = std::ptr::from_ref(&before).addr();
                return Ok(Output::new(json!({ "stack": stack, "before": before })));
            }
            "env" => {
                let names: Vec<String> = env::vars().map(|(name, _)| name).collect();
                return Ok(Output::new(json!({ "names": names })));
            }
            other => return Err(Failure::new(format!("{other} is no harm"))),
        }
        Ok(Output::new(json!({ "harmed": true })))
    }
}

fn me() -> PathBuf {
    env::current_exe()
        .and_then(fs::canonicalize)
        .unwrap_or_else(|_| "/nowhere".into())
}

fn registry() -> Registry {
    let mut registry = Registry::standard();
    if let Err(error) = registry.register(Harm) {
        panic!("{error}");
    }
    registry
}

/// One job, and the machine that it is on.
#[derive(Deserialize)]
struct Order {
    home: PathBuf,
    dir: PathBuf,
    capability: String,
    arguments: Value,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    strict: bool,
    policy: Option<String>,
    memory: Option<u64>,
    processes: Option<u64>,
    file_size: Option<u64>,
    /// The guard refuses from here on.
    memory_percent: Option<f64>,
    cancel_after_ms: Option<u64>,
    /// As often, one after the other.
    #[serde(default)]
    repeat: u64,
    /// Workers are born in a nursery, and nothing begins before that is ready.
    #[serde(default)]
    nursery: bool,
    /// It is killed after so many jobs.
    kill_nursery_after: Option<u64>,
    /// It is stopped after so many jobs, when a worker stands ready.
    stop_nursery_after: Option<u64>,
    /// The workers that stand ready are killed after so many jobs.
    kill_spares_after: Option<u64>,
    /// Another job, at the same time.
    beside: Option<Beside>,
}

/// What is to be done at the same time.
#[derive(Deserialize)]
struct Beside {
    capability: String,
    arguments: Value,
}

/// Our children, as far as they are like that: who traces them, and what they block.
fn children(are: impl Fn(&str, &str) -> bool) -> Vec<Pid> {
    let ours = std::process::id().to_string();
    let is_one = |status: &str| {
        let line = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let value = |name| line(name).unwrap_or_default().trim();
        value("PPid:") == ours && are(value("TracerPid:"), value("SigBlk:"))
    };
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| {
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let pid = entry.file_name().to_str()?.parse().ok()?;
        is_one(&status).then(|| Pid::from_raw(pid)).flatten()
    })
    .collect()
}

/// The process that workers are born in: the child that nobody traces and that no signal reaches.
fn nursery() -> Option<Pid> {
    children(|tracer, blocked| tracer == "0" && blocked == "fffffffe7ffbfeff").pop()
}

/// Between two looks at what changes.
const MOMENT: Duration = Duration::from_millis(5);

/// Workers that stand ready, as long as nobody works.
fn spares() -> Vec<Pid> {
    children(|tracer, _| tracer != "0")
}

fn wait_for_spares() {
    while spares().is_empty() {
        std::thread::sleep(MOMENT);
    }
}

/// Kills workers that stand ready, and returns when that is known.
fn kill_spares() -> Result<(), Box<dyn Error>> {
    wait_for_spares();
    let killed = spares();
    for &spare in &killed {
        kill_process(spare, Signal::KILL)?;
    }
    while spares().iter().any(|spare| killed.contains(spare)) {
        std::thread::sleep(MOMENT);
    }
    // Those who watched them have something to say yet.
    std::thread::sleep(20 * MOMENT);
    Ok(())
}

/// Prints what came of a job.
fn tell(result: Result<JobResult, ExecError>) {
    match result {
        Ok(result) => println!("{}", json!(result)),
        Err(error) => println!("{}", json!({ "refused": error.to_string() })),
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let first = env::args().nth(1).unwrap_or_default();
    match first.as_str() {
        "__worker" => return Ok(worker(&registry())),
        "bomb" => loop {
            drop(Command::new(me()).arg("bomb").spawn());
            std::thread::sleep(Duration::from_millis(5));
        },
        _ => {}
    }
    let order: Order = serde_json::from_str(&first)?;
    let limits = JobLimits::default();
    let guard = order.memory_percent.map(|memory_percent| {
        ResourceGuard::new(Thresholds {
            memory_percent,
            cpu_percent: 1000.0,
            pressure_percent: 1000.0,
            ..Thresholds::default()
        })
    });
    let policies = order.policy.map(|text| Source {
        name: "test.toml".into(),
        text,
        layer: Layer::CommandLine,
    });
    let executor = Executor::new(Setup {
        engine: Engine {
            store: Store::new(&order.home),
            clock: Arc::new(SystemClock),
            env: env::vars_os().collect::<BTreeMap<_, _>>(),
            cwd: order.dir.clone(),
            runtime_dir: env::temp_dir(),
            writer: "hands".into(),
        },
        registry: registry(),
        worker: Worker {
            program: me(),
            arguments: vec!["__worker".into()],
        },
        policies: policies.into_iter().collect(),
        places: Places {
            home: "/root".into(),
            workspace: order.dir.canonicalize()?,
            tmp: env::temp_dir().canonicalize()?,
            path: vec!["/usr/bin".into(), "/bin".into()],
        },
        asking: Asking::default(),
        guard: guard.unwrap_or_else(ResourceGuard::off),
        limits: JobLimits {
            memory: order.memory.unwrap_or(limits.memory),
            processes: order.processes.unwrap_or(limits.processes),
            file_size: order.file_size.unwrap_or(limits.file_size),
        },
        nursery: order.nursery,
        spares: order.repeat > 0,
    })?;
    while order.nursery && nursery().is_none() {
        std::thread::sleep(MOMENT);
    }
    let spec = JobSpec {
        capability: order.capability,
        arguments: order.arguments,
        dry_run: order.dry_run,
        strict: order.strict,
        ..JobSpec::default()
    };
    let cancel = Cancel::new();
    if let Some(after) = order.cancel_after_ms {
        let cancel = cancel.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(after));
            cancel.cancel();
        });
    }
    let beside = order.beside.map(|beside| JobSpec {
        capability: beside.capability,
        arguments: beside.arguments,
        ..JobSpec::default()
    });
    std::thread::scope(|scope| {
        if let Some(spec) = &beside {
            scope.spawn(|| tell(executor.exec(spec, &cancel)));
        }
        for n in 1..order.repeat {
            if order.kill_nursery_after == Some(n)
                && let Some(nursery) = nursery()
            {
                kill_process(nursery, Signal::KILL)?;
            }
            if order.stop_nursery_after == Some(n) {
                wait_for_spares();
                // Somebody may be on the way yet.
                std::thread::sleep(20 * MOMENT);
                let nursery = nursery().ok_or("there is no nursery")?;
                kill_process(nursery, Signal::STOP)?;
            }
            if order.kill_spares_after == Some(n) {
                kill_spares()?;
            }
            tell(executor.exec(&spec, &cancel));
        }
        tell(executor.exec(&spec, &cancel));
        Ok(ExitCode::SUCCESS)
    })
}
