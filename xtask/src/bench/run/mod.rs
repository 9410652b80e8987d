//! What it costs to be watched: commands alone, under `invigil run`, and under strace with the same classes of calls.

mod guarded;
mod memory;
mod workload;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use self::workload::{Run, Workload};
use super::machine;
use super::report::{Goal, Part, Table};
use super::rounds::{Contestant, Samples, interleaved, number};
use crate::child::{self, Program, Scratch, User};
use crate::{Result, agree, release};

pub(super) use guarded::measure as measure_guarded;

/// How often everybody has a turn, and how long one may take.
const ROUNDS: usize = 7;
const LIMIT: Duration = Duration::from_secs(300);

/// Measures everything, one table after the other.
pub(super) fn measure(quick: bool) -> Result<Part> {
    if let Some(missing) = child::missing(&["gcc", "make", "git", "python3"]) {
        return Err(format!("{missing} is needed").into());
    }
    let track = Track::new(quick)?;
    let strace = [("strace", track.strace_version()?)];
    let machine = machine::describe(track.scratch.path(), &strace)?;
    let mut part = Part::new("A run", machine);
    part.add(track.workloads()?);
    part.add(track.single()?);
    part.add(memory::measure(&track)?);
    Ok(part)
}

/// Where it happens.
struct Track {
    scratch: Scratch,
    invigil: PathBuf,
    floor: PathBuf,
    strace: bool,
    quick: bool,
}

impl Track {
    fn new(quick: bool) -> Result<Track> {
        let scratch = Scratch::new("bench")?;
        let invigil = release("invigil")?;
        let floor = scratch.path().join("floor");
        let source = floor.with_extension("c");
        fs::write(&source, include_str!("programs/floor.c"))?;
        let words = [OsStr::new("gcc"), "-O1".as_ref(), "-o".as_ref()];
        let words = words
            .into_iter()
            .chain([floor.as_os_str(), source.as_os_str()]);
        Program::new(words.map(OsString::from)).succeed(scratch.path())?;
        let strace = child::missing(&["strace"]).is_none();
        if !strace {
            println!("strace is not installed: its columns stay empty");
        }
        Ok(Track {
            scratch,
            invigil,
            floor,
            strace,
            quick,
        })
    }

    fn strace_version(&self) -> Result<String> {
        if !self.strace {
            return Ok("not there".into());
        }
        let ended = Program::new(["strace", "--version"]).succeed(self.scratch.path())?;
        let text = ended.said();
        let line = text.lines().next().unwrap_or_default();
        Ok(line.rsplit(' ').next().unwrap_or_default().to_owned())
    }

    fn rounds(&self) -> usize {
        if self.quick { 2 } else { ROUNDS }
    }

    fn size(&self, workload: &Workload) -> u32 {
        if self.quick {
            workload.quick
        } else {
            workload.size
        }
    }

    fn workloads(&self) -> Result<Table> {
        let mut table = Table::new(
            "What it costs to be watched",
            &[
                "what",
                "alone, ms",
                "invigil ÷ alone",
                "goal",
                "processor time ÷ alone",
                "records",
                "µs a record",
                "floor ÷ alone",
                "strace ÷ alone",
                "invigil ÷ strace",
                "goal",
            ],
        );
        table.note(format!(
            "`invigil run` with its default settings but for what the name says, {} rounds. `µs a record` is what the run \
             took longer, divided by the records of its journal. Processor time is that of all processes, the supervisor's too; \
             unlike the ratio of times it hardly depends on what else the machine does. strace is `strace -f --seccomp-bpf` of the classes of calls \
             that Invigil records, with its output thrown away; it cannot choose opens by their flags and so stops at all of \
             them. It does 10,000 of the 200,000 opens and 5,000 of the 50,000 files, and is compared with the bare command doing as \
             many. The floor is a program that traps the same usual calls and lets each go on without a look: nothing is \
             read, recorded, decided or traced, so that whoever uses this mechanism cannot cost less.",
            self.rounds()
        ));
        for workload in workload::ALL {
            println!("{} …", workload.title);
            self.workload(workload, &mut table)?;
        }
        Ok(table)
    }

    fn workload(&self, workload: &Workload, table: &mut Table) -> Result {
        let program = self.prepare(workload)?;
        let clean = self.shell(workload.clean, &program);
        let mut records = 0;
        let mut processor = [Vec::new(), Vec::new()];
        let turn = |watched: &Program| {
            clean.succeed(self.scratch.path())?;
            watched.succeed(self.scratch.path())
        };
        let options: &[&str] = if workload.reads {
            &["--reads", "on"]
        } else {
            &[]
        };
        let watched = self.invigil(&program, options);
        let part = self.part_for_strace(workload, &program);
        let traced = part.under(strace_words());
        let kind = if workload.reads { "reads" } else { "writes" };
        let trapped = program.under([self.floor.as_os_str(), kind.as_ref()]);
        let [of_alone, of_ours] = &mut processor;
        let mut alone = |_| {
            let ended = turn(&program)?;
            of_alone.push(ended.processor);
            Ok(ended.took)
        };
        let mut ours = |_| {
            self.scratch.folder("home", User::Same)?;
            let ended = turn(&watched)?;
            of_ours.push(ended.processor);
            records = self.records()?;
            Ok(ended.took)
        };
        let mut least = |_| Ok(turn(&trapped)?.took);
        let (alone, ours, least, theirs) = if self.strace {
            let mut theirs = |_| Ok(turn(&traced)?.took);
            let mut part = |_| Ok(turn(&part)?.took);
            let turns: [Contestant<'_>; 5] =
                [&mut alone, &mut ours, &mut least, &mut part, &mut theirs];
            let [alone, ours, least, part, theirs] = interleaved(self.rounds(), turns)?;
            (alone, ours, least, Some(theirs.over(&part)))
        } else {
            let turns: [Contestant<'_>; 3] = [&mut alone, &mut ours, &mut least];
            let [alone, ours, least] = interleaved(self.rounds(), turns)?;
            (alone, ours, least, None)
        };
        let [of_alone, of_ours] = processor.map(|times| Samples::of(&times[1..]));
        let ratio = ours.over(&alone);
        let each = ours
            .minus(&alone)
            .map(|seconds| seconds * 1e6 / records as f64);
        let goal = match workload.goal {
            Goal::None => Goal::AtMost(25.0).verdict_in("µs a call", &each),
            goal => goal.verdict_of(&ratio),
        };
        let empty = String::new;
        table.row([
            workload.title.into(),
            alone.map(|seconds| seconds * 1e3).to_string(),
            ratio.to_string(),
            goal,
            of_ours.over(&of_alone).to_string(),
            number(records as f64),
            if records > 100 {
                each.to_string()
            } else {
                empty()
            },
            least.over(&alone).to_string(),
            theirs.as_ref().map_or_else(empty, Samples::to_string),
            theirs
                .as_ref()
                .map_or_else(empty, |theirs| ratio.over(theirs).to_string()),
            theirs.as_ref().map_or_else(empty, |theirs| {
                // Where strace costs nothing, nobody can cost less.
                if theirs.median() < 1.05 {
                    return String::new();
                }
                Goal::Below(1.0).verdict_of(&ratio.over(theirs))
            }),
        ]);
        Ok(())
    }

    /// One run of a program that does nothing.
    fn single(&self) -> Result<Table> {
        println!("one run of true …");
        let mut program = Program::new(["/bin/true"]);
        program.folder = self.scratch.folder("work", User::Same)?;
        let watched = self.invigil(&program, &[]);
        self.scratch.folder("home", User::Same)?;
        let said = self.scratch.path();
        let mut alone = |_| Ok(program.succeed(said)?.took);
        let mut ours = |_| Ok(watched.succeed(said)?.took);
        let rounds = if self.quick { 5 } else { 41 };
        let [alone, ours] = interleaved(rounds, [&mut alone, &mut ours])?;
        let milliseconds = |seconds| seconds * 1e3;
        let added: Samples = ours.minus(&alone).map(milliseconds);
        let mut table = Table::new("One run", &["what", "reached", "goal"]);
        table.note(format!("`/bin/true`, {rounds} rounds."));
        table.row([
            "alone, ms".into(),
            alone.map(milliseconds).to_string(),
            String::new(),
        ]);
        table.row([
            "added by `invigil run`, ms".into(),
            added.to_string(),
            Goal::AtMost(15.0).verdict_of(&added),
        ]);
        Ok(table)
    }

    /// A program in a folder of its own.
    fn prepare(&self, workload: &Workload) -> Result<Program> {
        let folder = self.scratch.folder("work", User::Same)?;
        for (name, text) in workload.inputs {
            fs::write(folder.join(name), text)?;
        }
        let size = self.size(workload);
        let mut program = Program::new(words(workload, size));
        program.folder = folder;
        program.limit = LIMIT;
        program.env("HOME", self.scratch.folder("user", User::Same)?);
        program.env("SIZE", size.to_string());
        self.shell(workload.prepare, &program)
            .succeed(self.scratch.path())?;
        Ok(program)
    }

    /// As much of the workload as strace has to do.
    fn part_for_strace(&self, workload: &Workload, program: &Program) -> Program {
        let size = self.size(workload);
        Program {
            words: words(workload, workload.traced.unwrap_or(size).min(size)),
            ..program.clone()
        }
    }

    fn shell(&self, line: &str, program: &Program) -> Program {
        Program {
            words: ["/bin/sh", "-ec", line].map(Into::into).into(),
            ..program.clone()
        }
    }

    /// The same under watch. The journal is on the same disk as everything else.
    fn invigil(&self, program: &Program, options: &[&str]) -> Program {
        let mut words = vec![self.invigil.clone().into_os_string()];
        words.extend(["run", "--quiet"].map(Into::into));
        words.extend(options.iter().map(Into::into));
        words.push("--".into());
        let mut watched = program.under(words);
        watched.env("INVIGIL_HOME", self.scratch.path().join("home"));
        watched
    }

    /// How many records the only run has.
    fn records(&self) -> Result<u64> {
        let mut records = 0;
        for run in fs::read_dir(self.scratch.path().join("home/runs"))? {
            for entry in fs::read_dir(run?.path())? {
                let path = entry?.path();
                if path.extension().is_some_and(|end| end == "ndjson") {
                    let bytes = fs::read(path)?;
                    records += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
                }
            }
        }
        Ok(records)
    }
}

fn words(workload: &Workload, size: u32) -> Vec<OsString> {
    let filled = |text: &str| text.replace("SIZE", &size.to_string()).into();
    match workload.run {
        Run::Words(words) => words.iter().map(|word| filled(word)).collect(),
        Run::Shell(line) => vec!["/bin/sh".into(), "-c".into(), filled(line)],
    }
}

fn strace_words() -> Vec<OsString> {
    let mut words: Vec<OsString> = ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e"]
        .map(Into::into)
        .into();
    words.push(format!("trace={}", agree::facts()).into());
    words.push("--".into());
    words
}
