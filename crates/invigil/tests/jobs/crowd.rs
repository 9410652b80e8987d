//! Many processes against one store, and processes that are killed at any moment: nothing that was told is lost.
//!
//! `INVIGIL_JOBS_SOAK` is how many jobs each of eight processes carries out; a fifth of it is how often one is killed.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::world::{World, id, signal};

const PROCESSES: usize = 8;

/// So many, or what a soak asks for.
fn jobs_each() -> usize {
    let asked = std::env::var("INVIGIL_JOBS_SOAK");
    asked.map_or(25, |jobs| jobs.parse().unwrap())
}

fn kills() -> usize {
    (jobs_each() / 5).max(40)
}

#[test]
fn eight_processes_share_a_store() {
    let each = jobs_each();
    let world = World::ordinary();
    let begun = Instant::now();
    let told: Vec<Vec<Value>> = std::thread::scope(|scope| {
        let world = &world;
        let one = move |who: usize| {
            let step = |n: usize| match n % 3 {
                0 => {
                    json!({ "capability": "file_write", "arguments": { "path": format!("{who}-{n}"), "content": "x" } })
                }
                1 => {
                    json!({ "capability": "file_read", "arguments": { "path": format!("{who}-{}", n - 1) } })
                }
                _ => {
                    json!({ "capability": "file_delete", "arguments": { "path": format!("{who}-{}", n - 2) } })
                }
            };
            let text: String = (0..each).map(|n| format!("{}\n", step(n))).collect();
            let file = world.at(&format!("steps-{who}"));
            std::fs::write(&file, text).unwrap();
            world.lines(0, &["session", "run", file.to_str().unwrap(), "--json"])
        };
        let threads: Vec<_> = (0..PROCESSES)
            .map(|who| scope.spawn(move || one(who)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    println!("{PROCESSES} × {each} jobs in {:?}", begun.elapsed());
    assert_eq!(world.is_well(), PROCESSES * each);
    let records = world.records();
    for result in told.iter().flatten() {
        let record = &records[result["seq"].as_u64().unwrap() as usize];
        assert_eq!(record["data"]["end"]["job_id"], result["job_id"]);
        assert_eq!(record["kind"], "job_completed");
    }
    assert!(told.iter().all(|results| results.len() == each));
    let folder = world.home().join("jobs");
    let verified = world
        .lines(0, &["verify", folder.to_str().unwrap(), "--json"])
        .remove(0);
    assert_eq!(verified["records"], records.len());
    let listed = world.lines(0, &["jobs", "-n", "1000000", "--json"]);
    assert_eq!(listed.len(), PROCESSES * each);
    assert!(listed.iter().all(|job| job["state"] == "completed"));
}

/// Many short processes begin and end at once, the first ones before there is a store.
#[test]
fn eight_processes_make_a_store() {
    for world in World::everyone() {
        std::thread::scope(|scope| {
            let world = &world;
            let one = move || {
                for _ in 0..3 {
                    world.exec(0, "file_list", json!({ "path": "." }));
                    world.lines(0, &["jobs", "--json"]);
                }
            };
            let threads: Vec<_> = (0..PROCESSES).map(|_| scope.spawn(one)).collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(world.is_well(), PROCESSES * 3);
        assert_eq!(
            world.lines(0, &["jobs", "-n", "100", "--json"]).len(),
            PROCESSES * 3
        );
    }
}

/// Numbers that can be had again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// A process is killed at any moment, also while two others go on; what it has told is on record.
#[test]
fn killed_at_any_moment() {
    let world = World::ordinary();
    let arguments = |n: usize| json!({ "path": format!("f{}", n % 7), "content": n.to_string() });
    let begun = Instant::now();
    let first = world.exec(0, "file_write", arguments(0));
    let usual = begun.elapsed().max(Duration::from_millis(20));
    let mut told: Vec<Value> = vec![first];
    let mut dice = Dice(20_261_116);
    for n in 1..=kills() {
        let start = |n: usize| {
            let mut command = world.exec_command("file_write", &arguments(n), &[]);
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut victim = start(n);
        let other = (n % 4 == 0).then(|| start(n + 1));
        let delay = dice.below(usual.as_micros() as u64 * 5 / 4);
        std::thread::sleep(Duration::from_micros(delay));
        if victim.try_wait().unwrap().is_none() {
            signal(&victim, Signal::KILL);
        }
        let outputs = [Some(victim), other].into_iter().flatten();
        for output in outputs.map(|child| child.wait_with_output().unwrap()) {
            let text = String::from_utf8(output.stdout.clone()).unwrap();
            // Half a line says nothing; a whole one must be true.
            if text.ends_with('\n') {
                told.push(serde_json::from_str(&text).unwrap());
            } else {
                assert!(!output.status.success(), "{output:?}");
            }
        }
    }
    let records = world.records();
    for result in &told {
        let record = &records[result["seq"].as_u64().unwrap() as usize];
        assert_eq!(
            record["data"]["end"]["job_id"], result["job_id"],
            "told and not on record"
        );
    }
    let open = world
        .lines(0, &["jobs", "--state", "open", "-n", "10000", "--json"])
        .len();
    let recovered = world.lines(0, &["recover", "--json"]).remove(0);
    assert_eq!(recovered["recovered"].as_array().unwrap().len(), open);
    let count = world.is_well();
    println!(
        "{} killed: {count} jobs, {} told, {open} recovered",
        kills(),
        told.len()
    );
    let kept: Vec<Value> = world.lines(0, &["jobs", "-n", "10000", "--json"]);
    for result in &told {
        let row = kept.iter().find(|row| id(row) == id(result)).unwrap();
        assert_eq!(row["state"], result["state"]);
    }
    let before: Vec<String> = (0..7).map(|n| format!("f{n}")).collect();
    for entry in std::fs::read_dir(world.work()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        println!("{name}");
        assert!(before.contains(&name), "{name} is left behind");
    }
}
