//! `invigil`: runs an AI agent under watch. One file per command in `commands/`; errors become exit codes in `error`.

mod args;
mod commands;
mod describe;
mod error;
mod executor;
mod hosted;
mod judge;
mod policies;
mod proposal;
mod question;
mod replay;
mod report;
mod session_log;
mod snapshot;
mod status;
mod steered;
mod summary;
mod terminal;
mod turn;
mod ui;
mod workshop;

use std::process::ExitCode;

fn main() -> ExitCode {
    // A worker has one thing to do, and must not be told anything else.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == executor::WORKER)
    {
        return invigil_engine::worker(&invigil_engine::Registry::standard());
    }
    invigil_sandbox::leave_child_signals();
    match commands::dispatch(args::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => error.report(),
    }
}
