//! The guard over recorded figures: each one alone, whose limit decides, and what is no reason.

use invigil_engine::{ResourceGuard, Thresholds};
use invigil_schema::{CpuBusy, Exceeded, GuardScope, Guarded, ProcessSummary, Telemetry};

use crate::machine::Machine;

/// A machine on which nothing is wrong.
fn calm() -> Telemetry {
    let mut figures = Machine::recorded("container-v2").figures();
    figures.cgroup.pressure = None;
    figures.disk = Some(invigil_schema::DiskFigures {
        total_bytes: 100 << 30,
        used_bytes: 50 << 30,
        free_bytes: 45 << 30,
    });
    figures
}

fn refusals(figures: &Telemetry, processes: &ProcessSummary) -> Vec<(Guarded, GuardScope, f64)> {
    match ResourceGuard::default().check(figures, processes) {
        Ok(()) => Vec::new(),
        Err(refused) => refused
            .exceeded
            .iter()
            .map(
                |Exceeded {
                     figure,
                     of,
                     percent,
                     ..
                 }| (*figure, *of, *percent),
            )
            .collect(),
    }
}

/// Checks one change of a calm machine.
#[track_caller]
fn with(change: impl FnOnce(&mut Telemetry), expected: &[(Guarded, GuardScope, f64)]) {
    let mut figures = calm();
    assert_eq!(refusals(&figures, &ProcessSummary::default()), []);
    change(&mut figures);
    assert_eq!(refusals(&figures, &ProcessSummary::default()), expected);
}

#[test]
fn memory_of_the_machine_or_of_the_group() {
    let at = |percent: u64| {
        move |figures: &mut Telemetry| {
            figures.memory.available_bytes = figures.memory.total_bytes / 100 * (100 - percent);
        }
    };
    with(at(80), &[]);
    with(at(81), &[(Guarded::Memory, GuardScope::Host, 81.0)]);
    with(
        |figures| figures.cgroup.memory.as_mut().unwrap().used_bytes = 2_000_000_000,
        &[(Guarded::Memory, GuardScope::Cgroup, 93.13)],
    );
}

#[test]
fn processors_when_they_were_busy_long_enough_and_not_long_ago() {
    let busy = |percent, over_ms| {
        move |figures: &mut Telemetry| {
            figures.cpu.busy = Some(CpuBusy { percent, over_ms });
        }
    };
    with(busy(79.99, 5_000), &[]);
    with(busy(97.5, 5_000), &[(Guarded::Cpu, GuardScope::Host, 97.5)]);
    with(busy(97.5, 999), &[]);
    with(busy(97.5, 60_001), &[]);
    with(
        |figures| {
            busy(81.0, 5_000)(figures);
            let percent = 99.0;
            let over_ms = 5_000;
            figures.cgroup.cpu.as_mut().unwrap().busy = Some(CpuBusy { percent, over_ms });
        },
        &[(Guarded::Cpu, GuardScope::Cgroup, 99.0)],
    );
}

#[test]
fn a_disk_that_is_full_and_has_little_left() {
    let at = |total: u64, free: u64| {
        move |figures: &mut Telemetry| {
            let disk = figures.disk.as_mut().unwrap();
            disk.total_bytes = total << 30;
            // A twentieth is root's.
            disk.used_bytes = ((total - free) << 30) - (total << 30) / 20;
            disk.free_bytes = free << 30;
        }
    };
    with(at(2_000, 60), &[]);
    with(at(2_000, 5), &[]);
    with(at(10, 4), &[]);
    with(at(2_000, 4), &[(Guarded::Disk, GuardScope::Host, 99.79)]);
    with(at(20, 3), &[(Guarded::Disk, GuardScope::Host, 84.21)]);
    with(|figures| figures.disk = None, &[]);
}

#[test]
fn processes_of_the_machine_of_the_group_and_of_the_user() {
    with(
        |figures| figures.tasks.count = 110_000,
        &[(Guarded::Processes, GuardScope::Host, 88.0)],
    );
    with(
        |figures| figures.cgroup.tasks.as_mut().unwrap().count = 500,
        &[(Guarded::Processes, GuardScope::Cgroup, 97.66)],
    );
    let mut figures = calm();
    let mut processes = ProcessSummary {
        user_threads: 1_990,
        ..ProcessSummary::default()
    };
    let user = [(Guarded::Processes, GuardScope::User, 99.5)];
    assert_eq!(refusals(&figures, &processes), user);
    processes.user_threads = 1_000;
    assert_eq!(refusals(&figures, &processes), []);
    figures.tasks.user_limit = None;
    processes.user_threads = 1_990;
    assert_eq!(refusals(&figures, &processes), []);
}

#[test]
fn pressure_when_somebody_waits_for_processors_or_memory_and_everybody_for_disks() {
    with(
        |figures| {
            let pressure = figures.pressure.as_mut().unwrap();
            pressure.io.as_mut().unwrap().some_10s_percent = 99.0;
        },
        &[],
    );
    with(
        |figures| {
            let pressure = figures.pressure.as_mut().unwrap();
            pressure.cpu.as_mut().unwrap().some_10s_percent = 90.5;
            pressure.memory.as_mut().unwrap().some_10s_percent = 91.5;
            pressure.io.as_mut().unwrap().full_10s_percent = Some(92.5);
        },
        &[
            (Guarded::CpuPressure, GuardScope::Host, 90.5),
            (Guarded::MemoryPressure, GuardScope::Host, 91.5),
            (Guarded::IoPressure, GuardScope::Host, 92.5),
        ],
    );
    with(
        |figures| {
            figures.cgroup.pressure = figures.pressure.take();
            let pressure = figures.cgroup.pressure.as_mut().unwrap();
            pressure.memory.as_mut().unwrap().some_10s_percent = 80.01;
        },
        &[(Guarded::MemoryPressure, GuardScope::Cgroup, 80.01)],
    );
}

#[test]
fn a_refusal_says_which_figure_how_much_and_the_threshold() {
    let mut figures = calm();
    figures.memory.available_bytes = figures.memory.total_bytes / 10;
    figures.cpu.busy = Some(CpuBusy {
        percent: 97.53,
        over_ms: 2_000,
    });
    let guard = ResourceGuard::new(Thresholds {
        cpu_percent: 92.5,
        ..Thresholds::default()
    });
    let processes = ProcessSummary::default();
    let refused = guard.check(&figures, &processes).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the machine is too busy to start work: memory of the machine is at 90.0 %, past 80 % (1.5 GiB left); \
         cpu of the machine is at 97.5 %, past 92.5 % (over 2.0 s); try again when it is less"
    );
    assert_eq!(ResourceGuard::off().check(&figures, &processes), Ok(()));
}

#[test]
fn many_zombies_are_worth_a_word_and_no_refusal() {
    let processes = |zombies| ProcessSummary {
        zombies,
        ..ProcessSummary::default()
    };
    let guard = ResourceGuard::default();
    assert_eq!(guard.zombies(&processes(20)), None);
    let many = guard.zombies(&processes(21)).unwrap();
    assert_eq!((many.count, many.threshold), (21, 20));
    assert!(many.to_string().starts_with("21 processes have ended"));
    assert_eq!(guard.check(&calm(), &processes(10_000)), Ok(()));
    assert_eq!(ResourceGuard::off().zombies(&processes(10_000)), None);
}
