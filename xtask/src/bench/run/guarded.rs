//! What it costs to be limited: the same commands under the profile `coding`, beside watching alone and bubblewrap.

use std::ffi::OsString;

use super::super::report::{Goal, Part, Table};
use super::super::rounds::{Contestant, Samples, interleaved};
use super::workload::{C_BUILD, FILES, GIT, Workload};
use super::{Track, machine};
use crate::Result;
use crate::child::{self, Program, User};

/// What is measured, and what its ratio to the bare command should be at most.
const MEASURED: &[(Workload, f64)] = &[(C_BUILD, 1.2), (GIT, 1.5)];
/// How much more one event of the file storm may cost than without a policy.
const STORM: f64 = 2.0;

/// Measures everything.
pub(crate) fn measure(quick: bool) -> Result<Part> {
    let track = Track::new(quick)?;
    let bubblewrap = match child::missing(&["bwrap"]) {
        None => Program::new(["bwrap", "--version"])
            .succeed(track.scratch.path())?
            .said()
            .trim()
            .rsplit(' ')
            .next()
            .unwrap_or_default()
            .to_owned(),
        Some(_) => {
            println!("bubblewrap is not installed: its column stays empty");
            String::new()
        }
    };
    let there = if bubblewrap.is_empty() {
        "not there".to_owned()
    } else {
        bubblewrap.clone()
    };
    let machine = machine::describe(track.scratch.path(), &[("bubblewrap", there)])?;
    let mut part = Part::new("A run under a policy", machine);
    let mut table = Table::new(
        "What it costs to be limited",
        &[
            "what",
            "alone, ms",
            "watched ÷ alone",
            "`coding` ÷ alone",
            "goal",
            "floor ÷ alone",
            "bubblewrap ÷ alone",
        ],
    );
    table.note(format!(
        "`invigil run --profile coding`: every open, every program and every connection is decided, and what was decided is \
         carried out on behalf; {} rounds. bubblewrap shows the whole tree of files for reading and the folder of the command \
         for writing. It decides nothing one by one, refuses nothing inside of what it shows, and records nothing. The floor is \
         a program that traps the same usual calls, opens for reading too, and lets each go on without a look: nothing is read, \
         decided, carried out or recorded, so that whoever decides each open by this mechanism cannot cost less.",
        track.rounds()
    ));
    for (workload, goal) in MEASURED {
        println!("{} …", workload.title);
        let [alone, watched, limited, least, theirs] =
            round(&track, workload, !bubblewrap.is_empty())?;
        table.row([
            workload.title.into(),
            milliseconds(&alone),
            watched.over(&alone).to_string(),
            limited.over(&alone).to_string(),
            Goal::AtMost(*goal).verdict_of(&limited.over(&alone)),
            least.over(&alone).to_string(),
            theirs_over(&theirs, &alone),
        ]);
    }
    println!("{} …", FILES.title);
    let [alone, watched, limited, least, theirs] = round(&track, &FILES, !bubblewrap.is_empty())?;
    let each = limited.minus(&alone).over(&watched.minus(&alone));
    table.row([
        format!("{}; the goal is for what an event adds", FILES.title),
        milliseconds(&alone),
        watched.over(&alone).to_string(),
        limited.over(&alone).to_string(),
        format!(
            "{each} of watching, {}",
            Goal::AtMost(STORM).verdict_of(&each)
        ),
        least.over(&alone).to_string(),
        theirs_over(&theirs, &alone),
    ]);
    part.add(table);
    Ok(part)
}

fn milliseconds(samples: &Samples) -> String {
    samples.map(|seconds| seconds * 1e3).to_string()
}

fn theirs_over(theirs: &Samples, alone: &Samples) -> String {
    if theirs.is_empty() {
        return String::new();
    }
    theirs.over(alone).to_string()
}

/// Lets everybody have their turns: alone, watched, limited, the floor, and bubblewrap if it is there.
fn round(track: &Track, workload: &Workload, bubblewrap: bool) -> Result<[Samples; 5]> {
    let program = track.prepare(workload)?;
    let clean = track.shell(workload.clean, &program);
    let watched = track.invigil(&program, &[]);
    let limited = track.invigil(&program, &["--profile", "coding"]);
    let trapped = program.under([track.floor.as_os_str(), "reads".as_ref()]);
    let folder = program.folder.clone().into_os_string();
    let mut words: Vec<OsString> = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev"]
        .map(Into::into)
        .into();
    words.extend(["--proc".into(), "/proc".into(), "--bind".into()]);
    words.extend([folder.clone(), folder.clone(), "--chdir".into(), folder]);
    words.push("--".into());
    let boxed = program.under(words);
    let turn = |program: &Program| {
        clean.succeed(track.scratch.path())?;
        track.scratch.folder("home", User::Same)?;
        Ok(program.succeed(track.scratch.path())?.took)
    };
    let mut of_alone = |_| turn(&program);
    let mut of_watched = |_| turn(&watched);
    let mut of_limited = |_| turn(&limited);
    let mut of_least = |_| turn(&trapped);
    if !bubblewrap {
        let turns: [Contestant<'_>; 4] = [
            &mut of_alone,
            &mut of_watched,
            &mut of_limited,
            &mut of_least,
        ];
        let [alone, watched, limited, least] = interleaved(track.rounds(), turns)?;
        return Ok([alone, watched, limited, least, Samples::of(&[])]);
    }
    let mut of_boxed = |_| turn(&boxed);
    let turns: [Contestant<'_>; 5] = [
        &mut of_alone,
        &mut of_watched,
        &mut of_limited,
        &mut of_least,
        &mut of_boxed,
    ];
    interleaved(track.rounds(), turns)
}
