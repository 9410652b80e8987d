//! `invigil`: runs an AI agent under watch. One file per command in `commands/`; errors become exit codes in `error`.

mod args;
mod commands;
mod describe;
mod error;
mod policies;
mod question;
mod status;
mod summary;
mod terminal;
mod turn;
mod ui;

use std::process::ExitCode;

fn main() -> ExitCode {
    invigil_sandbox::leave_child_signals();
    match commands::dispatch(args::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => error.report(),
    }
}
