//! The resource guard under a real load from outside: it refuses with the figure, and admits again.

use std::fs;
use std::process::{Child, Command};

use serde_json::{Value, json};

use crate::world::World;

/// Processes of the same user that have nothing to do with Invigil.
struct Load(Vec<Child>);

impl Load {
    fn new(world: &World, count: usize) -> Load {
        let start = |_| world.program("sleep", &["120"]).spawn().unwrap();
        Load((0..count).map(start).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// `exec` with the guard, where the user may have so many processes.
fn guarded(world: &World, limit: u64, guard: &str) -> (Option<i32>, String) {
    // How busy processors were since the last job says nothing about processes.
    drop(fs::remove_file(world.home().join("last-reading.json")));
    let inner = world.exec_command("file_list", &json!({ "path": "." }), &[]);
    let mut command = Command::new("prlimit");
    command
        .arg(format!("--nproc={limit}"))
        .arg("--")
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command
        .env("INVIGIL_GUARD", guard)
        .current_dir(world.work())
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn too_many_processes_are_refused_until_they_end() {
    let world = World::ordinary();
    if Command::new("prlimit").arg("--version").output().is_err() {
        println!("no prlimit on this machine");
        return;
    }
    let telemetry = world.lines(0, &["telemetry", "--json"]).remove(0);
    if telemetry["machine"]["tasks"]["user_limit"].is_null() {
        println!("nobody counts the processes of this user");
        return;
    }
    // Other tests go on as the same user; the load is much more than they are.
    let own = telemetry["processes"]["user_threads"].as_u64().unwrap();
    let load = Load::new(&world, 300);
    let limit = (own + 300) * 11 / 10;
    let (code, stderr) = guarded(&world, limit, "on");
    assert_eq!(code, Some(125), "{stderr}");
    assert!(
        stderr.contains("the machine is too busy to start work"),
        "{stderr}"
    );
    assert!(
        stderr.contains("process count of the user") && stderr.contains("past 80 %"),
        "{stderr}"
    );
    let refused = world.all("job_refused");
    assert_eq!(refused.len(), 1);
    assert!(
        refused[0]["why"]
            .as_str()
            .unwrap()
            .contains("process count of the user"),
        "{refused:?}"
    );
    assert!(refused[0]["before"]["telemetry"].is_object());
    assert_eq!(
        world.all("job_started"),
        [] as [Value; 0],
        "a refusal is no job"
    );
    let (code, stderr) = guarded(&world, limit * 2, "off");
    assert_eq!(code, Some(0), "{stderr}");
    drop(load);
    let (code, stderr) = guarded(&world, limit, "on");
    // Whatever else the machine is busy with is another matter.
    let other = code == Some(125)
        && stderr.contains("too busy")
        && !stderr.contains("process count of the user");
    assert!(code == Some(0) || other, "{stderr}");
    println!("after the load: {code:?} {stderr}");
    world.is_well();
}

/// Busy processors: the figure is of the time between two jobs.
#[test]
fn busy_processors_are_named_with_their_figure() {
    let world = World::ordinary();
    let run = || {
        let mut command = world.exec_command("file_list", &json!({ "path": "." }), &[]);
        let output = command.env("INVIGIL_GUARD", "on").output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    drop(run());
    let until = std::time::Instant::now() + std::time::Duration::from_millis(1500);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() * 2 {
            scope.spawn(move || while std::time::Instant::now() < until {});
        }
    });
    let (code, stderr) = run();
    assert_eq!(code, Some(125), "{stderr}");
    assert!(
        stderr.contains("cpu of the") && stderr.contains("past 80 %"),
        "{stderr}"
    );
    assert!(
        world
            .all("job_refused")
            .iter()
            .any(|refused| refused["why"].to_string().contains("cpu of the"))
    );
    let output = world
        .exec_command("file_list", &json!({ "path": "." }), &[])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "switched off: {output:?}");
}
