//! The commands, one file each.

pub(crate) mod approvals;
pub(crate) mod capabilities;
pub(crate) mod claims;
pub(crate) mod contract;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod export;
pub(crate) mod fork;
pub(crate) mod jobs;
pub(crate) mod policy;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod rpc;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod show;
pub(crate) mod task;
pub(crate) mod telemetry;
pub(crate) mod undo;
pub(crate) mod verify;

use std::env;
use std::path::{Path, PathBuf};

use invigil_journal::{Refreshed, RunRef, Store, StoreError};

use crate::args::{Args, Command};
use crate::error::CliError;
use crate::ui;

/// Does what was asked. The number is the exit code.
pub(crate) fn dispatch(args: Args) -> Result<u8, CliError> {
    let store = Store::new(home(args.home)?);
    match args.command {
        Command::Run(command) => command.execute(&store),
        Command::Approvals(command) => command.execute(&store),
        Command::Runs(command) => command.execute(&store),
        Command::Show(command) => command.execute(&store),
        Command::Replay(command) => command.execute(&store),
        Command::Report(command) => command.execute(&store),
        Command::Claims(command) => command.execute(&store),
        Command::Fork(command) => command.execute(&store),
        Command::Export(command) => command.execute(&store),
        Command::Verify(command) => command.execute(&store),
        Command::Diff(command) => command.execute(&store),
        Command::Policy(command) => command.execute(&store),
        Command::Contract(command) => command.execute(&store),
        Command::Task(command) => command.execute(&store),
        Command::Exec(command) => command.execute(&store),
        Command::Capabilities(command) => command.execute(),
        Command::Jobs(command) => command.execute(&store),
        Command::Wait(command) => command.execute(&store),
        Command::Undo(command) => command.execute(&store),
        Command::Session(command) => command.execute(&store),
        Command::Recover(command) => command.execute(&store),
        Command::Serve(command) => command.execute(&store),
        Command::Rpc(command) => command.execute(&store),
        Command::Doctor(command) => command.execute(),
        Command::Telemetry(command) => command.execute(&store),
    }
}

fn home(flag: Option<PathBuf>) -> Result<PathBuf, CliError> {
    let variable = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    flag.or_else(|| variable("INVIGIL_HOME"))
        // The XDG specification says that a relative path is to be ignored.
        .or_else(|| {
            variable("XDG_DATA_HOME")
                .filter(|path| path.is_absolute())
                .map(|xdg| xdg.join("invigil"))
        })
        .or_else(|| variable("HOME").map(|home| home.join(".local/share/invigil")))
        .ok_or(CliError::NoHome)
}

/// The run that a person means: a name in the store, or a path to a copy.
fn find(store: &Store, name: &str) -> Result<RunRef, StoreError> {
    if name.contains('/') || name.ends_with(".ndjson") {
        return RunRef::at(Path::new(name));
    }
    store.find(name)
}

/// Whether a person means an archive, and not a run or a directory.
fn is_archive(name: &str) -> bool {
    let path = Path::new(name);
    let named = name.ends_with(".tar.gz") || name.ends_with(".tgz");
    named || path.is_file() && !name.ends_with(".ndjson")
}

fn tell(refreshed: &Refreshed) {
    if let Some(why) = &refreshed.rebuilt {
        ui::warning(&format!(
            "the index was built anew, and the heads that it remembered are gone: {why}"
        ));
    }
    if let Some(why) = &refreshed.unsaved {
        ui::warning(&format!(
            "the index cannot be written, and the heads that it remembers were not compared: {why}"
        ));
    }
}
