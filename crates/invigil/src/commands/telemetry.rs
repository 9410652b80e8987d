//! `invigil telemetry`: how the machine is doing, and whether a job would be started on it.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use invigil_engine::{ResourceGuard, Sampler};
use invigil_journal::Store;
use invigil_schema::{
    CpuBusy, MemoryFigures, OsText, Pressure, ProcessState, ProcessSummary, ProcessView,
    Telemetry as Machine,
};
use serde_json::json;

use crate::error::CliError;
use crate::summary::bytes;
use crate::ui::{self, BAD, BOLD, DIM, GOOD, WARN};

/// Show how the machine is doing, and whether the resource guard would let a job start
///
/// Takes a quarter of a second, because processor time is a difference between two looks.
#[derive(Debug, clap::Args)]
pub(crate) struct Telemetry {
    /// Every process, not only the largest
    #[arg(long)]
    processes: bool,

    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);

/// A reading that an earlier command has left is of use for so long.
const FRESH_MS: u64 = 60_000;

impl Telemetry {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let folder = std::env::current_dir().map_err(CliError::NoCwd)?;
        let reading = store.home().join(Sampler::LAST_READING);
        let mut sampler = Sampler::open()?;
        sampler.load(&reading);
        let mut machine = sampler.machine(&folder)?;
        sampler.summary()?;
        thread::sleep(PAUSE);
        let fresh = |busy: CpuBusy| busy.over_ms <= FRESH_MS;
        if !machine.cpu.busy.is_some_and(fresh) {
            machine = sampler.machine(&folder)?;
        }
        let summary = sampler.summary()?;
        let all = match self.processes {
            true => Some(sampler.processes()?),
            false => None,
        };
        // Without a store, or with one that is somebody else's, the next command begins anew.
        drop(sampler.save(&reading));
        match self.json {
            true => print_json(&machine, &summary, all.as_deref())?,
            false => print(&machine, &summary, all.as_deref())?,
        }
        Ok(0)
    }
}

fn print_json(
    machine: &Machine,
    summary: &ProcessSummary,
    all: Option<&[ProcessView]>,
) -> Result<(), CliError> {
    let refused = ResourceGuard::default().check(machine, summary).err();
    let mut object = json!({
        "machine": machine,
        "processes": summary,
        "guard": {
            "admits": refused.is_none(),
            "exceeded": refused.map(|refused| refused.exceeded).unwrap_or_default(),
        },
    });
    if let Some(all) = all {
        object["all_processes"] = json!(all);
    }
    writeln!(io::stdout(), "{object}")?;
    Ok(())
}

fn print(
    machine: &Machine,
    summary: &ProcessSummary,
    all: Option<&[ProcessView]>,
) -> Result<(), CliError> {
    let mut out = anstream::stdout().lock();
    print_machine(&mut out, machine)?;
    print_limits(&mut out, machine)?;
    print_counts(&mut out, machine, summary)?;
    print_guard(&mut out, machine, summary)?;
    writeln!(out)?;
    match all {
        Some(all) => print_table(&mut out, machine, all)?,
        None => {
            let mut few = summary.most_cpu.clone();
            few.retain(|view| view.busy.is_some_and(|busy| busy.percent > 0.0));
            for view in &summary.most_memory {
                if few.iter().all(|known| known.process != view.process) {
                    few.push(view.clone());
                }
            }
            print_table(&mut out, machine, &few)?;
        }
    }
    Ok(())
}

fn line(out: &mut impl Write, name: &str, text: &str) -> io::Result<()> {
    writeln!(out, "{BOLD}{name:10}{BOLD:#} {text}")
}

fn print_machine(out: &mut impl Write, machine: &Machine) -> io::Result<()> {
    let cpu = &machine.cpu;
    let model = cpu.model.as_deref().unwrap_or("an unnamed processor");
    let busy = cpu.busy.map_or("not known yet".into(), busy_text);
    let count = cpu.count;
    let text = format!("{busy}, {count} × {}", ui::harmless(model));
    line(out, "cpu", &text)?;
    let load = machine.load;
    let averages = [load.tasks_1min, load.tasks_5min, load.tasks_15min];
    let averages = averages.map(|tasks| format!("{tasks:.2}")).join(", ");
    let up = ui::duration(Duration::from_millis(machine.uptime_ms));
    line(out, "load", &format!("{averages}; up {up}"))?;
    line(out, "memory", &memory_text(&machine.memory))?;
    if let Some(disk) = machine.disk {
        let text = format!(
            "{} free of {}{}",
            bytes(disk.free_bytes),
            bytes(disk.total_bytes),
            share(disk.used_bytes, disk.used_bytes + disk.free_bytes)
        );
        line(out, "disk", &text)?;
    }
    if let Some(pressure) = machine.pressure {
        line(out, "pressure", &pressure_text(pressure))?;
    }
    for accelerator in &machine.accelerators {
        let model = accelerator.model.as_ref().or(accelerator.driver.as_ref());
        let model = model.map_or("", String::as_str);
        let text = format!("{} {model}", accelerator.name);
        line(out, "computes", &ui::harmless(text.trim_end()))?;
    }
    if !machine.listening.is_empty() {
        let mut ports: Vec<u16> = machine.listening.iter().map(|at| at.port).collect();
        ports.dedup();
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        line(out, "listening", &ui::shorten(&ports.join(", "), 100))?;
    }
    Ok(())
}

fn memory_text(memory: &MemoryFigures) -> String {
    let used = memory.total_bytes.saturating_sub(memory.available_bytes);
    let swap = match memory.swap_total_bytes {
        0 => "no swap".to_owned(),
        total => {
            let free = bytes(memory.swap_free_bytes);
            format!("swap {free} free of {}", bytes(total))
        }
    };
    format!(
        "{} available of {}{}; {swap}",
        bytes(memory.available_bytes),
        bytes(memory.total_bytes),
        share(used, memory.total_bytes)
    )
}

/// Where the control group or the user may have less than the machine has.
fn print_limits(out: &mut impl Write, machine: &Machine) -> io::Result<()> {
    let group = &machine.cgroup;
    let mut limits = Vec::new();
    if let Some(cpu) = group.cpu {
        let busy = cpu.busy.map(|busy| format!(", {}", busy_text(busy)));
        limits.push(format!(
            "{} cpus{}",
            cpu.limit_cpus,
            busy.unwrap_or_default()
        ));
    }
    if let Some(memory) = group.memory {
        limits.push(format!(
            "{} of memory{}",
            bytes(memory.limit_bytes),
            share(memory.used_bytes, memory.limit_bytes)
        ));
    }
    if let Some(tasks) = group.tasks {
        let used = share(tasks.count, tasks.limit);
        limits.push(format!("{} threads{used}", tasks.limit));
    }
    if let Some(pressure) = group.pressure {
        limits.push(pressure_text(pressure));
    }
    match limits.is_empty() {
        true => Ok(()),
        false => line(out, "cgroup", &limits.join("; ")),
    }
}

fn print_counts(
    out: &mut impl Write,
    machine: &Machine,
    summary: &ProcessSummary,
) -> io::Result<()> {
    let tasks = machine.tasks;
    let mut text = format!("{}, {} running", summary.total, summary.running);
    for (count, what) in [
        (summary.blocked, "blocked"),
        (summary.stopped, "stopped"),
        (summary.zombies, "ended and not waited for"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text += &format!("; {} of {} threads", tasks.count, tasks.limit);
    if let Some(limit) = tasks.user_limit {
        let own = summary.user_threads;
        text += &format!("; {own} of this user's {limit}");
    }
    line(out, "processes", &text)
}

fn print_guard(
    out: &mut impl Write,
    machine: &Machine,
    summary: &ProcessSummary,
) -> io::Result<()> {
    let guard = ResourceGuard::default();
    match guard.check(machine, summary) {
        Ok(()) => line(out, "guard", &format!("{GOOD}admits{GOOD:#} new jobs"))?,
        Err(refused) => {
            for exceeded in refused.exceeded {
                line(out, "guard", &format!("{BAD}refuses{BAD:#}: {exceeded}"))?;
            }
        }
    }
    match guard.zombies(summary) {
        Some(many) => line(out, "", &format!("{WARN}warning{WARN:#}: {many}")),
        None => Ok(()),
    }
}

fn print_table(
    out: &mut impl Write,
    machine: &Machine,
    processes: &[ProcessView],
) -> io::Result<()> {
    writeln!(
        out,
        "{BOLD}{:>7} {:>7} {:>6} {:8} {:>7} {:>8} {:>9} {:>8}  COMMAND{BOLD:#}",
        "PID", "PARENT", "USER", "STATE", "CPU %", "CPU", "MEMORY", "AGE"
    )?;
    for view in processes {
        let style = match view.state {
            ProcessState::Zombie => WARN,
            ProcessState::Running => BOLD,
            _ => DIM,
        };
        let busy = view.busy.map(|busy| format!("{:.1}", busy.percent));
        let age = machine.uptime_ms.saturating_sub(view.started_ms);
        let command = match view.command.is_empty() {
            true => format!("[{}]", ui::harmless(&view.name.to_string_lossy())),
            false => ui::command(&named(&view.command)),
        };
        writeln!(
            out,
            "{:>7} {:>7} {:>6} {style}{:8}{style:#} {:>7} {:>8} {:>9} {:>8}  {}",
            view.process.pid,
            view.parent,
            view.uid,
            view.state.as_str(),
            busy.unwrap_or_default(),
            ui::duration(Duration::from_millis(view.cpu_ms)),
            bytes(view.rss_bytes),
            ui::duration(Duration::from_millis(age)),
            ui::shorten(&command, 60),
        )?;
    }
    Ok(())
}

/// A command without the folder of its program: a long one would leave no room for the rest.
fn named(command: &[OsText]) -> Vec<OsText> {
    let mut command = command.to_vec();
    if let Some(program) = command.first_mut()
        && program.as_bytes().starts_with(b"/")
        && let Some(name) = program.as_bytes().rsplit(|&byte| byte == b'/').next()
    {
        *program = name.to_vec().into();
    }
    command
}

fn busy_text(busy: CpuBusy) -> String {
    let over = ui::duration(Duration::from_millis(busy.over_ms));
    format!("{:.1} % busy over {over}", busy.percent)
}

fn pressure_text(pressure: Pressure) -> String {
    let kinds = [
        ("cpu", pressure.cpu),
        ("memory", pressure.memory),
        ("i/o", pressure.io),
    ];
    let texts = kinds.iter().filter_map(|(name, stall)| {
        let share = (*stall)?.some_10s_percent;
        Some(format!("{name} {share:.1} %"))
    });
    let texts: Vec<String> = texts.collect();
    format!("{} of the last 10 s", texts.join(", "))
}

/// ` (12.3 % in use)`
fn share(part: u64, whole: u64) -> String {
    let percent = part as f64 * 100.0 / whole.max(1) as f64;
    format!(" ({percent:.1} % in use)")
}
