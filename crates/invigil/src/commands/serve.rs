//! `invigil serve`: the daemon.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use invigil_engine::{Cancel, Executor, JobSpec, recover};
use invigil_journal::{Store, SystemClock};
use invigil_server::{BuiltIn, Cancelled, Config, Limits, Listening, Retention};
use serde_json::{Value, json};

use super::contract::ModelOptions;
use crate::error::CliError;
use crate::executor::{WRITER, lasting_executor};
use crate::policies;
use crate::ui;
use crate::workshop::Workshop;

/// Serve agent hosts: they register tools and submit proposals, Invigil gates and records
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Where to listen, besides the Unix socket; a loopback address, or `none`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7117")]
    listen: String,

    /// A policy file that holds for everybody; may be given several times
    #[arg(long, value_name = "FILE")]
    policy: Vec<PathBuf>,

    /// A profile that holds for everybody: observe, coding or strict
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,

    /// A web page that may connect; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,

    /// Keep at most so many runs that are over [default: all]
    #[arg(long, value_name = "N")]
    keep_runs: Option<usize>,

    /// Keep runs so long after their end [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    keep_for: Option<Duration>,

    /// What is under way has so long when the daemon goes down
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "10s")]
    grace: Duration,

    /// After this time an unanswered question is a deny
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "10m")]
    ask_timeout: Duration,

    /// The most turns of a run
    #[arg(long, value_name = "N", default_value_t = Limits::default().turns_per_run)]
    turns_per_run: u64,

    #[command(flatten)]
    model: ModelOptions,

    /// Log more; twice for everything
    #[arg(long, short, action = clap::ArgAction::Count)]
    verbose: u8,
}

impl Serve {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let level = match self.verbose {
            0 => tracing_subscriber::filter::LevelFilter::WARN,
            1 => tracing_subscriber::filter::LevelFilter::INFO,
            _ => tracing_subscriber::filter::LevelFilter::DEBUG,
        };
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
        // Jobs that an earlier daemon has left without an end get it now.
        recover(store, Arc::new(SystemClock), WRITER, &std::env::temp_dir())?;
        let workspace = std::env::current_dir().map_err(CliError::NoCwd)?;
        let places = policies::places(&workspace);
        let workshop = Workshop::new(
            store,
            self.model,
            self.profile.clone(),
            self.policy.clone(),
            self.ask_timeout,
        )?;
        let config = Config {
            home: store.home().to_owned(),
            listen: address(&self.listen)?,
            origins: self.allow_origin,
            policies: policies::gather(self.profile.as_deref(), &self.policy, &places)?,
            places,
            limits: Limits {
                turns_per_run: self.turns_per_run,
                question_ms: self.ask_timeout.as_millis() as u64,
                ..Limits::default()
            },
            retention: Retention {
                count: self.keep_runs,
                age: self.keep_for,
            },
            built_in: Some(Arc::new(Capabilities::new(store, &self.policy)?)),
            workshop: Some(Arc::new(workshop)),
            grace: self.grace,
        };
        invigil_server::serve(config, ready)?;
        Ok(0)
    }
}

fn address(listen: &str) -> Result<Option<SocketAddr>, CliError> {
    match listen {
        "none" => Ok(None),
        address => match address.parse() {
            Ok(address) => Ok(Some(address)),
            Err(_) => Err(CliError::NotAnAddress(address.to_owned())),
        },
    }
}

/// One line on stdout for scripts: where it is. If nobody reads it, it serves all the same.
fn ready(listening: &Listening) {
    let mut out = anstream::stdout();
    drop(writeln!(out, "listening on {listening}"));
    drop(out.flush());
    ui::say(format_args!("invigil serves; stop it with Ctrl-C"));
}

/// The capabilities as tools that need no client: each call is a job in the directory where the daemon was started.
struct Capabilities(Executor);

/// Between two looks whether somebody still waits.
const LOOK: Duration = Duration::from_millis(20);

impl Capabilities {
    fn new(store: &Store, policies: &[PathBuf]) -> Result<Self, CliError> {
        Ok(Capabilities(lasting_executor(store, policies)?))
    }
}

impl BuiltIn for Capabilities {
    fn names(&self) -> Vec<String> {
        let all = self.0.registry().iter();
        all.map(|capability| capability.name().to_owned()).collect()
    }

    fn schema(&self, name: &str) -> (String, Value) {
        match self.0.registry().get(name) {
            Ok(capability) => (capability.description().to_owned(), capability.schema()),
            Err(_) => (String::new(), Value::Null),
        }
    }

    fn execute(
        &self,
        name: &str,
        parameters: &Value,
        deadline: Instant,
        cancelled: &Cancelled,
    ) -> Result<Value, String> {
        let spec = JobSpec {
            capability: name.to_owned(),
            arguments: parameters.clone(),
            ..JobSpec::default()
        };
        let (cancel, over) = (Cancel::new(), AtomicBool::new(false));
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    if cancelled.is_set() || Instant::now() >= deadline {
                        return cancel.cancel();
                    }
                    thread::park_timeout(LOOK);
                }
            });
            let result = self.0.exec(&spec, &cancel);
            over.store(true, Ordering::Relaxed);
            result
        });
        let result = result.map_err(|error| error.to_string())?;
        match result.success {
            true => Ok(json!({ "job_id": result.job_id, "data": result.output.data })),
            false => Err(result.output.message.unwrap_or_default()),
        }
    }
}
