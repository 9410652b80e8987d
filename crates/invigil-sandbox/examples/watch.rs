//! Runs a command and prints what it does, one JSON object a line.
//!
//! `watch [--tier notify|ptrace|contract_only] [--reads] [--protect DIR] [--out FILE] [--quiet] [--timeout SECS]
//! [--deny SUBSTRING] [--lead FROM=TO] [--exact] [--landlock] [BOUNDS] -- COMMAND…`
//!
//! Bounds are `--confine`, which all of the next five imply: `--may-read PATH`, `--may-write PATH`, `--may-execute PATH`,
//! `--may-connect PORT`, `--no-network`; and `--cpu-ms`, `--memory`, `--processes` and `--file-size` with a number.

#![expect(clippy::print_stderr, reason = "a program for people and tests")]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use invigil_sandbox::{
    Action, Answer, Confinement, Decision, Gate, LaunchError, LaunchSpec, Limits, Network, Reads,
    Request, SinkError, Stdio, launch,
};
use invigil_schema::{Envelope, Errno, Event, Origin, Stamp, Tier, encode_body};

struct Refusing {
    deny: Option<String>,
    /// From an address, as text, to another.
    lead: Option<(String, SocketAddr)>,
}

impl Gate for Refusing {
    fn check(&mut self, request: &Request<'_>) -> Answer {
        let target = match request.action {
            Action::Exec(exec) => exec.program.to_string_lossy().into_owned(),
            Action::File(op) => op.path.to_string_lossy().into_owned(),
            Action::Net(op) => format!("{:?}", op.address),
        };
        Answer::Now(match (&self.deny, &self.lead) {
            (Some(text), _) if target.contains(text.as_str()) => Decision::Deny {
                error: Errno(13),
                rule: format!("no {text}"),
                place: None,
            },
            (_, Some((from, to))) if target.contains(from.as_str()) => Decision::Instead {
                to: *to,
                host: Some("a.name".to_owned()),
            },
            _ => Decision::Allow,
        })
    }
}

fn encode(line: &mut Vec<u8>, origin: Origin, event: &Event) -> Result<(), SinkError> {
    line.clear();
    encode_body(line, 0, Stamp::default(), origin, event)?;
    line.extend_from_slice(b"}\n");
    debug_assert!(Envelope::parse(line).is_err() || !line.is_empty());
    Ok(())
}

fn main() {
    let mut args = std::env::args_os().skip(1);
    let mut tier = Tier::Notify;
    let mut reads = false;
    let mut quiet = false;
    let mut landlock = false;
    let mut exact = false;
    let mut lead = None;
    let mut protect = Vec::new();
    let mut out = None;
    let mut deny = None;
    let mut timeout = None;
    let mut fail_after = u64::MAX;
    let mut confine: Option<Confinement> = None;
    let mut limits = Limits::default();
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("a value").to_string_lossy().into_owned();
        match arg.to_str() {
            Some("--tier") => {
                tier = match value().as_str() {
                    "notify" => Tier::Notify,
                    "ptrace" => Tier::Ptrace,
                    _ => Tier::ContractOnly,
                }
            }
            Some("--reads") => reads = true,
            Some("--quiet") => quiet = true,
            Some("--exact") => exact = true,
            Some("--landlock") => landlock = true,
            Some("--lead") => {
                let value = value();
                let (from, to) = value.split_once('=').expect("FROM=TO");
                lead = Some((from.to_owned(), to.parse().expect("an address")));
            }
            Some("--protect") => protect.push(value().into()),
            Some("--out") => out = Some(value()),
            Some("--deny") => deny = Some(value()),
            Some("--timeout") => timeout = value().parse().ok().map(Duration::from_secs),
            Some("--fail-after") => fail_after = value().parse().expect("a number"),
            Some("--confine") => drop(confine.get_or_insert_default()),
            Some("--may-read") => {
                let roots = &mut confine.get_or_insert_default().read;
                roots.get_or_insert_default().push(value().into());
            }
            Some("--may-write") => {
                let roots = &mut confine.get_or_insert_default().write;
                roots.get_or_insert_default().push(value().into());
            }
            Some("--may-execute") => {
                let roots = &mut confine.get_or_insert_default().execute;
                roots.get_or_insert_default().push(value().into());
            }
            Some("--may-connect") => {
                let ports = &mut confine.get_or_insert_default().connect;
                let port = value().parse().expect("a port");
                ports.get_or_insert_default().push(port);
            }
            Some("--no-network") => confine.get_or_insert_default().network = Network::None,
            Some("--cpu-ms") => limits.cpu = value().parse().ok().map(Duration::from_millis),
            Some("--memory") => limits.memory = value().parse().ok(),
            Some("--processes") => limits.processes = value().parse().ok(),
            Some("--file-size") => limits.file_size = value().parse().ok(),
            Some("--") => break,
            _ => panic!("what is {arg:?}?"),
        }
    }
    let mut spec = LaunchSpec::new(args);
    (spec.tier, spec.protected) = (tier, protect);
    if reads {
        spec.reads = Reads::Recorded;
    }
    spec.stdin = Stdio::Inherit;
    (spec.landlock, spec.exact) = (landlock, exact);
    (spec.confine, spec.limits) = (confine, limits);
    let file: Box<dyn Write + Send> = match out {
        Some(path) => Box::new(BufWriter::new(File::create(path).expect("the output file"))),
        None => Box::new(std::io::stderr()),
    };
    let file = Arc::new(Mutex::new(file));
    let output = Arc::clone(&file);
    let mut line = Vec::new();
    let mut seen = 0;
    let sink = move |origin, event: Event| -> Result<(), SinkError> {
        seen += 1;
        if seen > fail_after {
            return Err("the sink is full".into());
        }
        encode(&mut line, origin, &event)?;
        if !quiet {
            output.lock().map_err(|e| e.to_string())?.write_all(&line)?;
        }
        Ok(())
    };
    let run = match launch(spec, sink, Refusing { deny, lead }) {
        Ok(run) => run,
        Err(error) => {
            eprintln!("watch: {error}");
            std::process::exit(match error {
                LaunchError::NotFound { .. } => 127,
                LaunchError::NotExecutable { .. } => 126,
                _ => 125,
            });
        }
    };
    let outcome = run.wait(timeout).unwrap_or_else(|| {
        eprintln!("watch: timeout");
        run.kill();
        run.wait(Some(Duration::from_secs(20)))
            .expect("the tree is dead")
    });
    file.lock()
        .expect("the output")
        .flush()
        .expect("the output");
    if let Some(killed) = &outcome.killed {
        eprintln!("watch: killed: {killed:?}");
        std::process::exit(125);
    }
    std::process::exit(
        outcome
            .exit_code
            .unwrap_or(128 + outcome.signal.unwrap_or(0)),
    );
}
