//! The client package for Python, where `websockets` can be had.

use std::path::Path;
use std::process::Command;

use crate::coder::{SOLVES, repository};
use crate::world::World;

/// A Python that has the package's one dependency.
fn python() -> Option<String> {
    let named = std::env::var("INVIGIL_PYTHON").ok();
    let python = named.unwrap_or_else(|| "python3".to_owned());
    let has = Command::new(&python)
        .args(["-c", "import websockets"])
        .output();
    let has = has.is_ok_and(|output| output.status.success());
    if !has {
        println!("skipped: {python} has no `websockets`; INVIGIL_PYTHON names another one");
    }
    has.then_some(python)
}

fn run(world: &World, python: &str, script: &str, args: &[&str]) -> String {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python");
    let output = Command::new(python)
        .arg(package.join(script))
        .args(args)
        .env("PYTHONPATH", &package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("INVIGIL_HOME", world.home())
        .output()
        .unwrap();
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}{error}");
    out.into_owned()
}

#[test]
fn the_first_scenarios_once_more_from_python() {
    let Some(python) = python() else { return };
    let world = World::new();
    let daemon = world.serve(&[]);
    let said = run(&world, &python, "tests/seeds.py", &[&daemon.address]);
    assert_eq!(
        said.lines().filter(|line| line.starts_with("ok ")).count(),
        7,
        "{said}"
    );
}

#[test]
fn the_example_shows_its_trace() {
    let Some(python) = python() else { return };
    let world = World::new();
    let _daemon = world.serve(&[]);
    let said = run(&world, &python, "examples/two_tools.py", &[]);
    assert!(
        said.contains("THERE ARE 3") && said.contains("\"rule\": \"be_polite\""),
        "{said}"
    );
}

#[test]
fn a_task_is_begun_and_followed() {
    let Some(python) = python() else { return };
    let world = World::new();
    let _daemon = world.serve(&[]);
    let repository = repository(&world);
    let repository = repository.to_str().unwrap();
    let task = |agent| {
        let args = [repository, "make it add", agent, "sh try.sh"];
        run(&world, &python, "examples/task.py", &args)
    };
    let said = task(SOLVES);
    assert!(
        said.starts_with("0 journal_opened\n1 task_started\n"),
        "{said}"
    );
    assert!(said.contains(" task_proposed\n"), "{said}");
    assert!(
        said.contains("\nlook at it: invigil task approve "),
        "{said}"
    );
    let said = task("echo done");
    assert!(said.contains(" task_ended\n"), "{said}");
    assert!(!said.contains("look at it"), "{said}");
}
