//! The project's own commands: `cargo xtask test`, `agree`, `agents`, `bench`, `soak`.
//!
//! Needs nothing but stable Rust, a C compiler, git and python3. One file, or one folder, per command.
#![expect(
    clippy::print_stdout,
    reason = "what these commands have to say goes to the terminal"
)]

mod agents;
mod agree;
mod bench;
mod child;
mod soak;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;

/// An error for people: nobody handles it, it is printed.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Xtask {
    Test(test::Args),
    Agree(agree::Args),
    Agents(agents::Args),
    Bench(bench::Args),
    Soak(soak::Args),
}

fn main() -> ExitCode {
    let result = match Xtask::parse() {
        Xtask::Test(args) => test::run(&args),
        Xtask::Agree(args) => agree::run(&args),
        Xtask::Agents(args) => agents::run(&args),
        Xtask::Bench(args) => bench::run(&args),
        Xtask::Soak(args) => soak::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("\nerror: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The folder that holds the workspace.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The cargo that started this program, at the root of the workspace.
fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root());
    command
}

/// Builds a program of the workspace as it is shipped, and says where it is.
fn release(program: &str) -> Result<PathBuf> {
    let build = ["build", "--quiet", "--release", "--package", program];
    check(cargo(&build))?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root().join("target"), PathBuf::from);
    Ok(root().join(target).join("release").join(program))
}

/// Runs a command to its end. What it says goes to the terminal.
fn check(mut command: Command) -> Result {
    let status = command.status()?;
    if status.success() {
        return Ok(());
    }
    let mut words = vec![String::from("cargo")];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    Err(format!("`{}` failed ({status})", words.join(" ")).into())
}
