//! `cargo xtask test`: everything that must hold before a change goes in. Stops at the first step that fails.

use std::time::Instant;

use crate::{Result, cargo, check, root, tidy};

/// Check format, tidiness, lints, tests and documentation; what CI runs.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out the documentation.
    #[arg(long)]
    fast: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let begun = Instant::now();
    step("format", || check(cargo(&["fmt", "--all", "--check"])))?;
    step("tidy", || tidy::check(&root()))?;
    step("clippy", clippy)?;
    step("test", || {
        check(cargo(&["test", "--workspace", "--all-features"]))
    })?;
    if !args.fast {
        step("doc", doc)?;
    }
    println!("\nall good ({:.1} s)", begun.elapsed().as_secs_f64());
    Ok(())
}

fn step(name: &str, run: impl FnOnce() -> Result) -> Result {
    println!("── {name}");
    let begun = Instant::now();
    let result = run();
    let seconds = begun.elapsed().as_secs_f64();
    match result {
        Ok(()) => {
            println!("── {name} is good ({seconds:.1} s)");
            Ok(())
        }
        Err(error) => Err(format!("{name} failed after {seconds:.1} s: {error}").into()),
    }
}

fn clippy() -> Result {
    check(cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ]))
}

fn doc() -> Result {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    check(command)
}
