//! `telemetry`: the machine at one look, for people and for scripts, for root and for anybody.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Invigil;

#[test]
fn one_look_shows_the_machine() {
    for invigil in Invigil::everyone() {
        let (stdout, stderr) = invigil.expect(0, &["telemetry"]);
        assert_eq!(stderr, "");
        for name in ["cpu", "load", "memory", "disk", "processes", "guard"] {
            let line = stdout.lines().find(|line| line.starts_with(name));
            assert!(line.is_some(), "{name}:\n{stdout}");
        }
        let over = stdout.split("% busy over ").nth(1);
        let seconds = over.and_then(|rest| rest.split('s').next()?.trim().parse::<f64>().ok());
        assert!(seconds.is_some_and(|seconds| seconds >= 0.2), "{stdout}");
        assert!(stdout.contains("COMMAND"), "{stdout}");
        assert!(stdout.lines().count() < 30, "{stdout}");
        assert!(!invigil.home().exists(), "a look leaves nothing behind");
    }
}

#[test]
fn scripts_get_numbers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for invigil in Invigil::everyone() {
        let (stdout, _) = invigil.expect(0, &["telemetry", "--json", "--processes"]);
        let json: Value = serde_json::from_str(&stdout).unwrap();
        let machine = &json["machine"];
        assert!(machine["memory"]["available_bytes"].as_u64().unwrap() > 0);
        assert!(machine["cpu"]["busy"]["over_ms"].as_u64().unwrap() >= 240);
        let ports = machine["listening"].as_array().unwrap();
        assert!(ports.iter().any(|at| at["port"] == port), "{ports:?}");
        assert!(json["guard"]["admits"].is_boolean());
        // Root is held to no number of processes; an ordinary user mostly is, and sees the same processes.
        let root = rustix::process::getuid().is_root() && !invigil.nobody;
        let limit = machine["tasks"]["user_limit"].as_u64();
        assert!(!root || limit.is_none(), "{machine}");
        let all = json["all_processes"].as_array().unwrap();
        let pid = std::process::id();
        let this = all.iter().find(|view| view["process"]["pid"] == pid);
        let this = this.unwrap();
        assert_eq!(this["uid"], rustix::process::geteuid().as_raw());
        assert!(this["rss_bytes"].as_u64().unwrap() > 0 && this["threads"].as_u64() > Some(0));
        assert!(!this["command"].as_array().unwrap().is_empty(), "{this}");
        let own = json["processes"]["user_threads"].as_u64().unwrap();
        assert!(own >= 1, "at least itself");
    }
}

#[test]
fn a_limit_on_processes_is_seen_by_whom_it_holds_for() {
    let everyone = Invigil::everyone();
    let Some(nobody) = everyone.iter().find(|invigil| invigil.nobody) else {
        return;
    };
    let output = std::process::Command::new("prlimit")
        .args(["--nproc=12345", "--"])
        .arg(nobody.command(&[]).get_program())
        .args(nobody.command(&["telemetry", "--json"]).get_args())
        .current_dir(nobody.directory.path())
        .env("INVIGIL_HOME", nobody.home())
        .output();
    let Ok(output) = output else {
        println!("no prlimit on this machine");
        return;
    };
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["machine"]["tasks"]["user_limit"], 12_345);
}

#[test]
fn the_next_command_knows_how_busy_it_was_since_the_last() {
    let invigil = Invigil::new();
    std::fs::create_dir(invigil.home()).unwrap();
    let over = || {
        let (stdout, _) = invigil.expect(0, &["telemetry", "--json"]);
        let json: Value = serde_json::from_str(&stdout).unwrap();
        json["machine"]["cpu"]["busy"]["over_ms"].as_u64().unwrap()
    };
    let begun = Instant::now();
    assert!(over() < 60_000);
    std::thread::sleep(Duration::from_millis(1_300));
    let second = over();
    let most = begun.elapsed().as_millis() as u64 + 20;
    assert!((1_000..=most).contains(&second), "{second} of {most}");
    let files: Vec<_> = std::fs::read_dir(invigil.home()).unwrap().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    std::fs::write(invigil.at("home/cpu-reading.json"), "{").unwrap();
    assert!(over() >= 240, "a damaged file counts as none");
}
