//! The other side: the process that carries out one job and nothing else.

use std::io::{self, BufReader, Read, Stdin, Stdout, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use invigil_schema::{Digest, Kept};

use super::wire::{Answered, Content, Order, Said, receive, send, send_content};
use crate::capabilities::{Context, Failure, Keeper, Output, Registry, Roots};

/// Carries out the one job that stands on stdin. For the process that [`super::Worker`] names, and for nobody else. It is to
/// be called first thing, before there is a second thread: this may be where workers are born, and return in each of them.
pub fn worker(registry: &Registry) -> ExitCode {
    if !invigil_sandbox::nurse() {
        return ExitCode::SUCCESS;
    }
    let mut line = Line {
        from: BufReader::new(io::stdin()),
        to: io::stdout(),
    };
    let order = match receive::<Order>(&mut line.from) {
        Ok(Some(order)) => order,
        // Whoever typed the command by hand.
        Ok(None) | Err(_) => return ExitCode::FAILURE,
    };
    let done = panic::catch_unwind(AssertUnwindSafe(|| carry_out(registry, order, &mut line)));
    let said = match done {
        Ok(Ok(Output { data, message })) => Said::Done { data, message },
        Ok(Err(failure)) => Said::Failed {
            error: failure.to_string(),
            denied: failure.denied,
            data: failure.data,
        },
        Err(panic) => Said::Failed {
            error: format!("the capability panicked: {}", text(&*panic)),
            denied: false,
            data: None,
        },
    };
    match send(&mut line.to, &said) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn carry_out(registry: &Registry, order: Order, line: &mut Line) -> Result<Output, Failure> {
    let capability = registry
        .get(&order.capability)
        .map_err(|unknown| Failure::new(unknown.to_string()))?;
    let roots = Roots::open(&order.working_dir, &order.allowed)
        .map_err(|error| Failure::io("the allowed directories cannot be opened", error))?;
    let mut context = Context {
        dry_run: order.dry_run,
        job_id: &order.job_id,
        working_dir: &order.working_dir,
        roots: &roots,
        keeper: line,
        undo: order.undo,
    };
    capability.execute(&order.arguments, &mut context)
}

fn text(panic: &(dyn std::any::Any + Send)) -> &str {
    let word = panic.downcast_ref::<&str>().copied();
    let words = panic.downcast_ref::<String>().map(String::as_str);
    word.or(words).unwrap_or("without a word")
}

/// The way to the supervisor.
struct Line {
    from: BufReader<Stdin>,
    to: Stdout,
}

impl Line {
    fn say(&mut self, said: &Said) -> io::Result<()> {
        send(&mut self.to, said)
    }

    fn answer(&mut self) -> io::Result<()> {
        match receive(&mut self.from)? {
            Some(Answered::Ok) => Ok(()),
            Some(Answered::No {
                error,
                invalid: true,
            }) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            Some(Answered::No { error, .. }) => Err(io::Error::other(error)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Keeper for Line {
    fn keep(&mut self, kept: Kept, content: Option<&mut dyn Read>) -> io::Result<()> {
        let said = Said::Keep {
            kept,
            content: content.is_some(),
        };
        self.say(&said)?;
        if let Some(content) = content {
            send_content(&mut self.to, content)?;
        }
        self.answer()
    }

    fn settle(&mut self) -> io::Result<()> {
        self.say(&Said::Settle)?;
        self.answer()
    }

    fn fetch(&mut self, sha256: &Digest, into: &mut dyn Write) -> io::Result<()> {
        self.say(&Said::Fetch { sha256: *sha256 })?;
        self.answer()?;
        io::copy(&mut Content::new(&mut self.from), into).map(drop)
    }
}
