//! How long a decision takes.

use std::fmt::Write as _;
use std::hint::black_box;
use std::net::SocketAddr;

use invigil_policy::{Action, Endpoint, Exec, Layer, Places, Policy, Source, profile};
use invigil_schema::OsText;
use serde_json::json;

use super::machine;
use super::report::{Goal, Part, Table};
use super::rounds::{Samples, interleaved, timed};
use super::sample::{Scratch, on_one_core};
use crate::Result;

const RULES: usize = 1_000;
const DECISIONS: usize = 200_000;

pub(super) fn measure(quick: bool) -> Result<Part> {
    println!("decisions …");
    let scratch = Scratch::new()?;
    let mut part = Part::new("Policy", machine::describe(scratch.path(), &[])?);
    let (rounds, decisions) = if quick {
        (3, DECISIONS / 20)
    } else {
        (21, DECISIONS)
    };
    part.add(on_one_core(|| table(rounds, decisions))?);
    Ok(part)
}

fn table(rounds: usize, decisions: usize) -> Result<Table> {
    let mut table = Table::new("Decisions", &["what", "µs a decision", "goal"]);
    table.note(format!(
        "`Policy::verdict` over a list of different actions, half of which match a rule, on one core. Each row is a policy of \
         {RULES} rules of the kind that decides, a third each of allow, ask and deny; the last row is the profile `coding`."
    ));
    let argv = ["git", "-C", "dir", "push", "origin"].map(OsText::from);
    let programs: Vec<String> = (0..64)
        .map(|n| format!("/usr/bin/program-{}", n * 31))
        .collect();
    let paths: Vec<String> = (0..64).map(path).collect();
    let hosts: Vec<String> = (0..64)
        .map(|n| format!("api.host-{}.example.com", n * 31))
        .collect();
    let names: Vec<String> = (0..64).map(|n| format!("tool_{}", n * 31)).collect();
    let params = json!({ "prompt": "list the files of the workspace, and say what they are for" });
    let reads: Vec<Action<'_>> = paths
        .iter()
        .map(|path| Action::Read(path.as_bytes()))
        .collect();
    let execs = programs.iter().map(|program| {
        let program = program.as_bytes();
        Action::Exec(Exec {
            program,
            called: program,
            argv: &argv,
            interpreter: None,
        })
    });
    let execs: Vec<Action<'_>> = execs.collect();
    let connects = hosts.iter().enumerate().map(|(n, host)| {
        let addr = SocketAddr::from(([10, 0, (n * 31 / 256) as u8, (n * 31) as u8], 443));
        Action::Connect(Endpoint {
            addr,
            host: Some(host),
        })
    });
    let connects: Vec<Action<'_>> = connects.collect();
    let tools: Vec<Action<'_>> = names
        .iter()
        .map(|name| Action::Tool {
            name,
            params: &params,
        })
        .collect();
    let goal = Goal::AtMost(1.0);
    for (what, text, actions) in [
        ("files, 1,000 rules", lists("files.read", file_rule), &reads),
        (
            "programs with arguments, 1,000 rules",
            blocks(exec_rule),
            &execs,
        ),
        (
            "addresses and names, 1,000 rules",
            lists("network", net_rule),
            &connects,
        ),
        (
            "tools with parameters, 1,000 rules",
            blocks(tool_rule),
            &tools,
        ),
    ] {
        let samples = measured(&load(text)?, actions, rounds, decisions)?;
        table.row([
            what.into(),
            samples.to_string(),
            goal.verdict(samples.median()),
        ]);
    }
    let coding = profile("coding").ok_or("there is no profile `coding`")?;
    let samples = measured(
        &Policy::load(&[coding], &places())?,
        &reads,
        rounds,
        decisions,
    )?;
    table.row([
        "files, the profile `coding`".into(),
        samples.to_string(),
        goal.verdict(samples.median()),
    ]);
    Ok(table)
}

/// Microseconds for one decision, round by round.
fn measured(
    policy: &Policy,
    actions: &[Action<'_>],
    rounds: usize,
    decisions: usize,
) -> Result<Samples> {
    let mut decide = |_| {
        timed(|| {
            for action in actions.iter().cycle().take(decisions) {
                black_box(policy.verdict(black_box(action)));
            }
            Ok(())
        })
    };
    let [samples] = interleaved(rounds, [&mut decide])?;
    Ok(samples.map(|seconds| seconds * 1e6 / decisions as f64))
}

fn load(text: String) -> Result<Policy> {
    let source = Source {
        name: "bench".into(),
        text,
        layer: Layer::User,
    };
    Ok(Policy::load(&[source], &places())?)
}

fn places() -> Places {
    Places {
        home: "/home/me".into(),
        workspace: "/home/me/work".into(),
        tmp: "/tmp".into(),
        path: vec!["/usr/bin".into()],
    }
}

const VERDICTS: [&str; 3] = ["allow", "ask", "deny"];

fn lists(section: &str, rule: fn(usize) -> String) -> String {
    let mut text = format!("version = 1\n[{section}]\ndefault = \"deny\"\n");
    for (n, verdict) in VERDICTS.iter().enumerate() {
        let rules = (n..RULES).step_by(3).map(|n| format!("{:?},", rule(n)));
        let _ = writeln!(text, "{verdict} = [{}]", rules.collect::<String>());
    }
    text
}

fn blocks(rule: fn(usize) -> String) -> String {
    let mut text = "version = 1\n".to_owned();
    for n in 0..RULES {
        let _ = writeln!(text, "{}\ndecision = {:?}", rule(n), VERDICTS[n % 3]);
    }
    text
}

/// Directories, names anywhere, and globs in the middle.
fn file_rule(n: usize) -> String {
    match n % 4 {
        0 => format!("/srv/team-{n}/**"),
        1 => format!("**/secret-{n}.key"),
        2 => format!("/home/*/project-{n}/*.pem"),
        _ => format!("~/.config/app-{n}/token"),
    }
}

/// The odd ones match no rule.
fn path(n: usize) -> String {
    let rule = n * 12;
    match n % 8 {
        0 => format!("/srv/team-{rule}/src/deep/main.rs"),
        2 => format!("/home/me/work/a/b/secret-{}.key", rule + 1),
        4 => format!("/home/me/project-{}/server.pem", rule + 2),
        6 => format!("/home/me/.config/app-{}/token", rule + 3),
        _ => format!("/home/me/work/target/debug/deps/crate_{n}-0123456789abcdef.rmeta"),
    }
}

fn exec_rule(n: usize) -> String {
    format!("[[exec]]\nprogram = \"program-{n}\"\nargs = [\"{{push,publish}}\", \"..\"]")
}

fn net_rule(n: usize) -> String {
    match n % 3 {
        0 => format!("*.host-{n}.example.com:443"),
        1 => format!("api.host-{n}.example.com:443"),
        _ => format!("10.0.{}.{}:443", n / 256, n % 256),
    }
}

fn tool_rule(n: usize) -> String {
    format!("[[tool]]\nname = \"tool_{n}\"\nparam = {{ prompt = {{ contains = \"rm -rf\" }} }}")
}
