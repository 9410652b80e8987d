//! Other kinds of machines than the one at hand.

use std::fs;

use invigil_engine::{Sampler, TelemetryError};
use invigil_schema::{OsText, ProcessState};
use serde_json::json;

use crate::machine::Machine;

#[test]
fn a_container_with_limits_pressure_and_accelerators() {
    let machine = Machine::recorded("container-v2");
    let mut figures = machine.figures();
    assert!(figures.disk.take().is_some());
    let stall = |some10, some60, full10, full60| {
        json!({
            "some_10s_percent": some10, "some_60s_percent": some60,
            "full_10s_percent": full10, "full_60s_percent": full60,
        })
    };
    let expected = json!({
        "uptime_ms": 1_000_500,
        "cpu": { "count": 4, "model": "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz" },
        "load": { "tasks_1min": 0.52, "tasks_5min": 1.25, "tasks_15min": 10.0 },
        "memory": {
            "total_bytes": 16_384_000_000_u64, "available_bytes": 12_288_000_000_u64,
            "swap_total_bytes": 2_048_000_000, "swap_free_bytes": 1_536_000_000,
        },
        "tasks": { "count": 1234, "limit": 125_000, "user_limit": 2000 },
        "pressure": {
            "cpu": stall(9.41, 9.02, 0.0, 0.0),
            "memory": stall(1.5, 0.75, 0.83, 0.46),
            "io": stall(0.0, 0.0, 0.0, 0.0),
        },
        "cgroup": {
            "memory": { "limit_bytes": 2_147_483_648_u64, "used_bytes": 1_500_000_000 },
            "cpu": { "limit_cpus": 1.5 },
            "tasks": { "count": 37, "limit": 512 },
            "pressure": {
                "cpu": stall(85.0, 40.0, 20.0, 10.0),
                "memory": stall(0.0, 0.0, 0.0, 0.0),
                "io": stall(0.0, 0.0, 0.0, 0.0),
            },
        },
        "accelerators": [
            {
                "name": "renderD128", "model": "NVIDIA A100-SXM4-40GB", "driver": "nvidia",
                "vendor_id": 0x10de, "device_id": 0x20b0,
            },
            { "name": "accel0", "driver": "habanalabs", "vendor_id": 0x1da3, "device_id": 0x1020 },
            { "name": "0000:02:00.0", "model": "NVIDIA L4", "driver": "nvidia", "vendor_id": 0x10de },
        ],
        "listening": [
            { "port": 22, "address": "0.0.0.0" },
            { "port": 22, "address": "::" },
            { "port": 8080, "address": "127.0.0.1" },
        ],
    });
    assert_eq!(serde_json::to_value(&figures).unwrap(), expected);
    let back = serde_json::from_value(expected).unwrap();
    assert_eq!(figures, back);
}

#[test]
fn limits_of_groups_above_count_where_they_are_nearest() {
    let figures = Machine::recorded("session-v2").figures();
    // The slice of all users has less left than that of this one, although it may have more.
    let memory = figures.cgroup.memory.unwrap();
    assert_eq!(
        (memory.limit_bytes, memory.used_bytes),
        (4_000_000_000, 3_900_000_000)
    );
    let tasks = figures.cgroup.tasks.unwrap();
    assert_eq!((tasks.limit, tasks.count), (10_813, 300));
    assert_eq!(figures.cgroup.cpu, None);
    assert_eq!(figures.cgroup.pressure, None);
    assert_eq!(figures.pressure, None);
    // Root is not held to the number of its processes.
    assert_eq!(figures.tasks.user_limit, None);
    assert_eq!(figures.memory.swap_total_bytes, 0);
    assert_eq!(figures.cpu.model, None);
    assert!(figures.listening.is_empty() && figures.accelerators.is_empty());
}

#[test]
fn a_container_of_the_first_version_whose_names_are_those_of_the_host() {
    let machine = Machine::recorded("docker-v1");
    let figures = machine.figures();
    let memory = figures.cgroup.memory.unwrap();
    assert_eq!(
        (memory.limit_bytes, memory.used_bytes),
        (1 << 30, 700_000_000)
    );
    assert_eq!(figures.cgroup.cpu.unwrap().limit_cpus, 0.5);
    assert_eq!(figures.cgroup.tasks, None);
    assert_eq!(figures.pressure, None);
    assert_eq!(figures.tasks.limit, 20_000);
    // Root in a user namespace is held to limits as anybody else.
    assert_eq!(figures.tasks.user_limit, None);
    machine.write(
        "proc/self/limits",
        "Max processes             50    100     processes\n",
    );
    assert_eq!(machine.figures().tasks.user_limit, Some(50));
}

#[test]
fn limits_that_are_none_are_not_shown() {
    let machine = Machine::recorded("container-v2");
    let cgroup = |name: &str, content: &str| {
        machine.write(&format!("sys/fs/cgroup/{name}"), content);
    };
    cgroup("memory.max", "17000000000\n");
    cgroup("cpu.max", "400000 100000\n");
    cgroup("pids.max", "max\n");
    machine.remove("sys/fs/cgroup/cgroup.type");
    assert!(machine.figures().cgroup.is_empty());
    cgroup("memory.high", "1000\n");
    assert_eq!(machine.figures().cgroup.memory.unwrap().limit_bytes, 1000);
}

#[test]
fn a_process_that_is_moved_to_another_group_is_followed() {
    let machine = Machine::recorded("container-v2");
    let mut sampler = machine.sampler();
    let mut limit = || {
        let figures = sampler.machine(&machine.path("")).unwrap();
        figures.cgroup.memory.unwrap().limit_bytes
    };
    assert_eq!(limit(), 1 << 31);
    machine.write("sys/fs/cgroup/job/memory.max", "1700000000\n");
    machine.write("sys/fs/cgroup/job/memory.current", "1600000000\n");
    assert_eq!(limit(), 1 << 31);
    machine.write("proc/self/cgroup", "0::/job\n");
    assert_eq!(limit(), 1_700_000_000);
}

#[test]
fn processor_time_is_a_difference_and_says_over_which_time() {
    let machine = Machine::recorded("container-v2");
    let mut sampler = machine.sampler();
    let mut busy = || {
        let figures = sampler.machine(&machine.path("")).unwrap();
        let of =
            |busy: Option<invigil_schema::CpuBusy>| busy.map(|busy| (busy.percent, busy.over_ms));
        (of(figures.cpu.busy), of(figures.cgroup.cpu.unwrap().busy))
    };
    let at = |uptime: &str, stat: &str, usage: u64| {
        machine.write("proc/uptime", format!("{uptime} 1.00\n"));
        machine.write("proc/stat", format!("cpu {stat}\ncpu0 {stat}\n"));
        machine.write("sys/fs/cgroup/cpu.max", "50000 100000\n");
        machine.write("sys/fs/cgroup/cpu.stat", format!("usage_usec {usage}\n"));
    };
    at("1000.50", "1000 0 0 8000 0 0 0 0 0 0", 60_000_000);
    assert_eq!(busy(), (None, None));
    at("1000.55", "1005 0 0 8000 0 0 0 0 0 0", 60_050_000);
    assert_eq!(busy(), (None, None), "50 ms say nothing");
    // Idle and waiting for a disk is not busy; stolen by another machine is.
    at("1000.90", "1010 0 0 8020 5 0 0 5 0 0", 60_100_000);
    assert_eq!(busy(), (Some((37.5, 400)), Some((50.0, 400))));
    at("1001.50", "1010 0 0 8080 5 0 0 5 0 0", 60_250_000);
    assert_eq!(busy(), (Some((15.0, 1000)), Some((50.0, 1000))));
    // From here on the last reading is the one to compare with.
    at("1002.00", "1060 0 0 8080 5 0 0 5 0 0", 60_250_000);
    assert_eq!(busy(), (Some((100.0, 500)), Some((0.0, 500))));
}

#[test]
fn the_last_reading_outlives_the_process_but_not_the_boot() {
    let machine = Machine::recorded("container-v2");
    let file = machine.path("reading.json");
    let look = |expected: Option<u64>| {
        let mut sampler = machine.sampler();
        sampler.load(&file);
        let figures = sampler.machine(&machine.path("")).unwrap();
        assert_eq!(figures.cpu.busy.map(|busy| busy.over_ms), expected);
        sampler.save(&file).unwrap();
    };
    look(None);
    machine.write("proc/uptime", "1003.50 1.00\n");
    machine.write("proc/stat", "cpu 1200 200 300 8100 500 10 20 30\ncpu0 1\n");
    look(Some(3_000));
    let kept = fs::read(&file).unwrap();
    machine.write("proc/uptime", "1004.00 1.00\n");
    machine.write("proc/stat", "cpu 1200 200 300 8200 500 10 20 30\ncpu0 1\n");
    look(Some(500));
    assert_eq!(fs::read(&file).unwrap(), kept, "too young to be replaced");
    machine.write("proc/sys/kernel/random/boot_id", "another\n");
    look(None);
}

/// `utime stime cutime cstime priority nice threads itrealvalue start vsize rss`
fn rest(ticks: u64, threads: u32, start: u64, pages: u64) -> String {
    format!("{ticks} 0 0 0 20 0 {threads} 0 {start} 1000 {pages} 18446744073709551615")
}

#[test]
fn odd_names_many_zombies_and_the_largest() {
    let machine = Machine::recorded("container-v2");
    let odd: [&[u8]; 5] = [b"a b", b") R 1 (", b"two\nlines", b"((", b"\xff\xfe"];
    for (pid, name) in (10..).zip(odd) {
        machine.process(
            pid,
            name,
            'S',
            &rest(5, 2, 100, u64::from(pid)),
            b"odd\0-x\0\0\0",
        );
    }
    for pid in 100..150 {
        machine.process(pid, b"defunct", 'Z', &rest(1, 1, 100, 0), b"");
    }
    machine.process(200, b"big", 'D', &rest(900, 4, 100, 5_000), &[b'x'; 5_000]);
    machine.process(201, b"kworker/0:1", 'I', &rest(0, 1, 1, 0), b"");
    machine.process(202, b"busy", 'R', &rest(90_000, 1, 100, 7), b"busy");
    machine.process(203, b"stopped", 't', &rest(0, 1, 100, 7), b"stopped");
    // What is no process, or has just ended.
    machine.write("proc/300/status", "");
    machine.write("proc/301/stat", "");
    machine.write("proc/12a/stat", "");
    let mut sampler = machine.sampler();
    let all = sampler.processes().unwrap();
    assert_eq!(all.len(), 5 + 50 + 4);
    for (view, name) in all.iter().zip(odd) {
        assert_eq!(view.name, OsText::from(name.to_vec()));
        assert_eq!(view.command, ["odd", "-x"].map(OsText::from));
        assert_eq!((view.parent, view.threads, view.cpu_ms), (1, 2, 50));
        assert_eq!((view.process.start, view.started_ms), (100, 1_000));
        assert_eq!(view.uid, rustix::process::getuid().as_raw());
    }
    let of = |pid: u32| all.iter().find(|view| view.process.pid == pid).unwrap();
    assert!(of(120).command.is_empty() && of(120).state == ProcessState::Zombie);
    assert!(of(200).command_cut && of(200).command[0].as_bytes().len() == 256);
    assert_eq!(of(201).state, ProcessState::Idle);
    let summary = sampler.summary().unwrap();
    let counts = (
        summary.total,
        summary.running,
        summary.blocked,
        summary.stopped,
        summary.zombies,
    );
    assert_eq!(counts, (59, 1, 1, 1, 50));
    assert_eq!(summary.threads, 10 + 50 + 4 + 1 + 1 + 1);
    let pids = |views: &[invigil_schema::ProcessView]| -> Vec<u32> {
        views.iter().map(|view| view.process.pid).collect()
    };
    assert_eq!(pids(&summary.most_memory), [200, 14, 13]);
    assert_eq!(pids(&summary.most_cpu)[..2], [202, 200]);
}

#[test]
fn a_process_is_as_busy_as_it_was_since_the_last_look() {
    let machine = Machine::recorded("container-v2");
    let mut sampler = machine.sampler();
    machine.process(10, b"old", 'S', &rest(90_000, 1, 100, 1), b"");
    machine.process(11, b"again", 'S', &rest(50, 1, 100, 1), b"");
    sampler.summary().unwrap();
    machine.write("proc/uptime", "1002.50 1.00\n");
    machine.process(10, b"old", 'S', &rest(90_020, 1, 100, 1), b"");
    // The same pid is another process; this one and the next started since, half a second ago.
    machine.process(11, b"again", 'S', &rest(10, 1, 100_200, 1), b"");
    machine.process(12, b"new", 'S', &rest(40, 1, 100_200, 1), b"");
    let summary = sampler.summary().unwrap();
    let busy: Vec<_> = summary
        .most_cpu
        .iter()
        .map(|view| {
            (
                view.process.pid,
                view.busy.map(|busy| (busy.percent, busy.over_ms)),
            )
        })
        .collect();
    let expected = [
        (12, Some((80.0, 500))),
        (11, Some((20.0, 500))),
        (10, Some((10.0, 2_000))),
    ];
    assert_eq!(busy, expected);
}

#[test]
fn a_machine_without_the_most_basic_files_is_an_error_that_names_the_file() {
    let machine = Machine::recorded("docker-v1");
    let error = || {
        let figures = machine.sampler().machine(&machine.path(""));
        figures.unwrap_err().to_string()
    };
    machine.write("proc/meminfo", "MemTotal: many kB\n");
    assert!(
        error().contains("proc/meminfo is not what Linux writes"),
        "{}",
        error()
    );
    machine.remove("proc/stat");
    assert!(error().contains("proc/stat: No such file"), "{}", error());
    let nowhere = Sampler::open_at(&machine.path("none"), &machine.path("sys"));
    assert!(matches!(nowhere, Err(TelemetryError::Read { .. })));
}

#[test]
fn a_working_directory_that_is_gone_has_no_disk() {
    let machine = Machine::recorded("docker-v1");
    let figures = machine.sampler().machine(&machine.path("none")).unwrap();
    assert_eq!(figures.disk, None);
}
