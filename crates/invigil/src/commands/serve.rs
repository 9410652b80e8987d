//! `invigil serve`: the daemon.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use invigil_journal::Store;
use invigil_server::{Config, Limits, Listening, Retention};

use crate::error::CliError;
use crate::policies;
use crate::ui;

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
        let workspace = std::env::current_dir().map_err(CliError::NoCwd)?;
        let places = policies::places(&workspace);
        let config = Config {
            home: store.home().to_owned(),
            listen: self.address()?,
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
            built_in: None,
            grace: self.grace,
        };
        invigil_server::serve(config, ready)?;
        Ok(0)
    }

    fn address(&self) -> Result<Option<SocketAddr>, CliError> {
        match self.listen.as_str() {
            "none" => Ok(None),
            address => match address.parse() {
                Ok(address) => Ok(Some(address)),
                Err(_) => Err(CliError::NotAnAddress(address.to_owned())),
            },
        }
    }
}

/// One line on stdout for scripts: where it is. If nobody reads it, it serves all the same.
fn ready(listening: &Listening) {
    let mut out = anstream::stdout();
    drop(writeln!(out, "listening on {listening}"));
    drop(out.flush());
    ui::say(format_args!("invigil serves; stop it with Ctrl-C"));
}
