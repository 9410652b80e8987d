//! The command line. The comments on the fields are its help text.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use invigil_schema::ExitCode;

use crate::commands::{
    approvals, capabilities, checkpoint, claims, contract, diff, doctor, exec, export, fork, jobs,
    policy, recover, replay, report, rpc, run, runs, serve, session, show, steer, task, telemetry,
    undo, verify,
};

/// Runs an AI agent under watch: limits what it may do, records what it really did, proves whether the job got done.
#[derive(Debug, Parser)]
#[command(name = "invigil", version, max_term_width = 100)]
pub(crate) struct Args {
    /// Where runs are kept [default: $INVIGIL_HOME, else $XDG_DATA_HOME/invigil, else ~/.local/share/invigil]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<run::Run>),
    Runs(runs::Runs),
    Show(show::Show),
    Replay(replay::Replay),
    Report(report::Report),
    Claims(claims::Claims),
    Fork(fork::Fork),
    Export(export::Export),
    Verify(verify::Verify),
    Diff(diff::Diff),
    Policy(policy::Policy),
    Approvals(approvals::Approvals),
    Pause(steer::Pause),
    Resume(steer::Resume),
    Signal(steer::Signal),
    Checkpoint(checkpoint::Checkpoint),
    Rollback(checkpoint::Rollback),
    Milestone(steer::Milestone),
    Contract(contract::Contract),
    Task(task::Task),
    Exec(exec::Exec),
    Capabilities(capabilities::Capabilities),
    Jobs(jobs::Jobs),
    Wait(jobs::Wait),
    Undo(undo::Undo),
    Session(session::Session),
    Recover(recover::Recover),
    Serve(serve::Serve),
    Rpc(rpc::Rpc),
    Doctor(doctor::Doctor),
    Telemetry(telemetry::Telemetry),
}

/// Reads the command line. Wrong use ends with 125, not with a code that could be the command's own.
pub(crate) fn parse() -> Args {
    Args::try_parse().unwrap_or_else(|error| {
        // Nothing can be said any more if even this cannot be printed.
        drop(error.print());
        let wrong = error.use_stderr();
        std::process::exit(if wrong { ExitCode::Invigil as i32 } else { 0 })
    })
}
