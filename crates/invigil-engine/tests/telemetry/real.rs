//! The machine at hand, with real processes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use invigil_engine::{ResourceGuard, Sampler, Thresholds};
use invigil_schema::{Guarded, OsText, ProcessState, ProcessView};

/// A Python program that says a line when it has done its work, and ends with its input.
struct Program {
    child: Child,
    said: String,
}

impl Program {
    fn start(code: &str) -> Program {
        let code = format!("import sys\n{code}\nsys.stdin.read()");
        let mut child = Command::new("python3")
            .args(["-c", &code, "an argument"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut output = BufReader::new(child.stdout.as_mut().unwrap());
        output.read_line(&mut said).unwrap();
        Program { child, said }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// A failed test leaves nobody behind.
impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn view(sampler: &mut Sampler, pid: u32) -> Option<ProcessView> {
    let mut all = sampler.processes().unwrap();
    assert!(all.is_sorted_by_key(|view| view.process.pid));
    let at = all.iter().position(|view| view.process.pid == pid)?;
    Some(all.swap_remove(at))
}

/// A number in `/proc/PID/status` or `/proc/meminfo`.
fn kib(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.unwrap().split_whitespace().next().unwrap();
    number.parse().unwrap()
}

#[test]
fn a_process_is_shown_as_it_says_of_itself() {
    let mut sampler = Sampler::open().unwrap();
    let begun = sampler.machine(Path::new(".")).unwrap().uptime_ms;
    let program = Program::start(
        "import time\nmemory = bytearray(64 << 20)\nwhile time.process_time() < 0.5: pass\n\
         print(int(time.process_time() * 1000), flush=True)",
    );
    let seen = view(&mut sampler, program.pid()).unwrap();
    let used: u64 = program.said.trim().parse().unwrap();
    assert!(seen.cpu_ms.abs_diff(used) <= 50, "{used}: {seen:?}");
    let rss = kib(&format!("/proc/{}/status", program.pid()), "VmRSS:") * 1024;
    assert!(
        rss > 64 << 20 && seen.rss_bytes.abs_diff(rss) < 4 << 20,
        "{rss}: {seen:?}"
    );
    assert_eq!(seen.parent, std::process::id());
    assert_eq!(seen.uid, rustix::process::geteuid().as_raw());
    assert_eq!(seen.threads, 1);
    assert!(seen.name.as_bytes().starts_with(b"python3"), "{seen:?}");
    assert!(seen.command[0].as_bytes().ends_with(b"python3"), "{seen:?}");
    assert_eq!(seen.command.len(), 4);
    assert_eq!(seen.command[3], OsText::from("an argument"));
    let now = sampler.machine(Path::new(".")).unwrap().uptime_ms;
    assert!((begun - 10..=now).contains(&seen.started_ms), "{seen:?}");
    let pid = program.pid();
    program.end();
    assert_eq!(view(&mut sampler, pid), None);
}

#[test]
fn a_busy_process_is_as_busy_as_its_time_says() {
    let program = Program::start(
        "import threading\nprint('ready', flush=True)\n\
         def spin():\n  while True: pass\nthreading.Thread(target=spin, daemon=True).start()",
    );
    // On a machine with much to do it may take a while until it gets its turn.
    let tries = (0..50).find_map(|_| {
        let mut sampler = Sampler::open().unwrap();
        let first = view(&mut sampler, program.pid()).unwrap();
        let start = sampler.machine(Path::new(".")).unwrap();
        assert_eq!((first.busy, start.cpu.busy), (None, None));
        std::thread::sleep(Duration::from_millis(500));
        let second = view(&mut sampler, program.pid()).unwrap();
        let end = sampler.machine(Path::new(".")).unwrap();
        (second.cpu_ms > first.cpu_ms + 100).then_some((first, second, end, sampler))
    });
    let (first, second, end, mut sampler) = tries.expect("it got no time at all");
    let busy = second.busy.unwrap();
    assert!(busy.over_ms >= 490, "{busy:?}");
    let used = (second.cpu_ms - first.cpu_ms) as f64;
    let told = busy.percent * busy.over_ms as f64 / 100.0;
    assert!((told - used).abs() <= 1.0, "{used}: {busy:?}");
    // What one process used, the machine has used.
    let whole = end.cpu.busy.unwrap();
    assert!(whole.percent > 0.0 && whole.percent <= 100.0, "{whole:?}");
    let all = whole.percent * whole.over_ms as f64 / 100.0 * f64::from(end.cpu.count);
    assert!(all > used / 2.0, "{all} of {used}: {whole:?}");
    let summary = sampler.summary().unwrap();
    assert!(summary.threads > summary.total);
    program.end();
}

#[test]
fn a_zombie_is_one_until_it_is_waited_for() {
    let mut sampler = Sampler::open().unwrap();
    let mut child = Command::new("true").spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let seen = loop {
        let seen = view(&mut sampler, child.id()).unwrap();
        if seen.state == ProcessState::Zombie {
            break seen;
        }
        assert!(Instant::now() < deadline, "{seen:?}");
    };
    assert_eq!((seen.name.as_bytes(), seen.rss_bytes), (&b"true"[..], 0));
    assert!(seen.command.is_empty() && seen.parent == std::process::id());
    assert!(sampler.summary().unwrap().zombies >= 1);
    child.wait().unwrap();
    assert_eq!(view(&mut sampler, child.id()), None);
}

#[test]
fn ports_are_listened_at_as_long_as_somebody_does() {
    let mut sampler = Sampler::open().unwrap();
    let mut listens = |address: IpAddr, port: u16| {
        let figures = sampler.machine(Path::new(".")).unwrap();
        let mut ports = figures.listening.iter();
        ports.any(|at| at.port == port && at.address == address)
    };
    for address in ["127.0.0.1", "::1"].map(|ip| ip.parse::<IpAddr>().unwrap()) {
        let Ok(listener) = TcpListener::bind((address, 0)) else {
            println!("no {address} on this machine");
            continue;
        };
        let port = listener.local_addr().unwrap().port();
        assert!(listens(address, port));
        // Connections come behind all that listen, and are not shown.
        let connection = std::net::TcpStream::connect((address, port)).unwrap();
        assert!(!listens(address, connection.local_addr().unwrap().port()));
        drop(listener);
        assert!(!listens(address, port));
    }
}

#[test]
fn the_machine_is_shown_as_the_kernel_does() {
    let mut sampler = Sampler::open().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let figures = sampler.machine(directory.path()).unwrap();
    assert_eq!(
        figures.memory.total_bytes,
        kib("/proc/meminfo", "MemTotal:") * 1024
    );
    let available = kib("/proc/meminfo", "MemAvailable:") * 1024;
    assert!(figures.memory.available_bytes.abs_diff(available) < 2 << 30);
    let disk = figures.disk.unwrap();
    assert!(
        disk.used_bytes + disk.free_bytes <= disk.total_bytes,
        "{disk:?}"
    );
    let mut file = fs::File::create(directory.path().join("large")).unwrap();
    file.write_all(&vec![1; 64 << 20]).unwrap();
    file.sync_all().unwrap();
    let fuller = sampler.machine(directory.path()).unwrap().disk.unwrap();
    let more = fuller.used_bytes as i64 - disk.used_bytes as i64;
    assert!(more > 16 << 20, "64 MiB written, {more} bytes more in use");
    assert!(figures.tasks.count > 1 && figures.tasks.count < figures.tasks.limit);
    assert_eq!(
        figures.pressure.is_some(),
        fs::read("/proc/pressure/cpu").is_ok()
    );
}

/// Others use the machine too. So the thresholds are little above what is in use, a try in which others take or leave
/// more than that is repeated, and one good try is enough.
#[test]
fn a_burst_is_refused_with_its_figure_and_its_end_admits_again() {
    let told: Vec<String> = (0..10).map_while(|_| burst().err()).collect();
    assert!(told.len() < 10, "{told:#?}");
}

fn burst() -> Result<(), String> {
    let mut sampler = Sampler::open().unwrap();
    let mut look = || {
        let machine = sampler.machine(Path::new(".")).unwrap();
        (machine, sampler.summary().unwrap())
    };
    let (machine, _) = look();
    let share = |part: u64, whole: u64| part as f64 * 100.0 / whole as f64;
    let memory = machine.memory;
    let in_use = share(
        memory.total_bytes - memory.available_bytes,
        memory.total_bytes,
    );
    let guard = ResourceGuard::new(Thresholds {
        memory_percent: in_use + 1.5,
        processes_percent: share(machine.tasks.count, machine.tasks.limit) + 0.3,
        // A machine in use by others is at times at all of these.
        cpu_percent: 100.0,
        disk_percent: 100.0,
        pressure_percent: 100.0,
        ..Thresholds::default()
    });
    let check = |(machine, processes)| guard.check(&machine, &processes);
    check(look()).map_err(|refused| format!("before: {refused}"))?;
    let threads = machine.tasks.limit * 6 / 1_000;
    let bytes = memory.total_bytes * 3 / 100;
    let program = Program::start(&format!(
        "import threading, time\nthreading.stack_size(65536)\nmemory = bytearray(b'x') * {bytes}\n\
         for _ in range({threads}): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n\
         print('ready', flush=True)"
    ));
    let refused = check(look());
    program.end();
    let refused = refused.err().ok_or("the burst was admitted")?;
    for figure in [Guarded::Memory, Guarded::Processes] {
        let one = refused.exceeded.iter().find(|one| one.figure == figure);
        let one = one.ok_or_else(|| format!("{figure} is not in {refused}"))?;
        assert!(one.percent > one.threshold_percent, "{one:?}");
        assert!(
            refused
                .to_string()
                .contains(&format!("{:.1} %", one.percent))
        );
    }
    check(look()).map_err(|refused| format!("afterwards: {refused}"))
}

#[test]
fn busy_processors_are_refused_and_admitted_again() {
    let mut sampler = Sampler::open().unwrap();
    let guard = ResourceGuard::new(Thresholds {
        cpu_percent: 90.0,
        memory_percent: 100.0,
        disk_percent: 100.0,
        processes_percent: 100.0,
        pressure_percent: 100.0,
        ..Thresholds::default()
    });
    let mut check = || {
        let machine = sampler.machine(Path::new(".")).unwrap();
        let verdict = guard.check(&machine, &sampler.summary().unwrap());
        (machine, verdict)
    };
    let (first, verdict) = check();
    assert_eq!(verdict, Ok(()), "nothing is known yet");
    let spin = "print('ready', flush=True)\nimport os, threading\n\
                def spin():\n  while True: pass\nthreading.Thread(target=spin, daemon=True).start()";
    let programs: Vec<_> = (0..first.cpu.count).map(|_| Program::start(spin)).collect();
    // The first reading after the burst began is compared with one from before.
    std::thread::sleep(Duration::from_millis(1_100));
    let _ = check();
    std::thread::sleep(Duration::from_millis(1_500));
    let (machine, verdict) = check();
    drop(programs);
    let busy = machine.cpu.busy.unwrap();
    let refused = verdict.expect_err("all processors are busy");
    assert_eq!(refused.exceeded[0].figure, Guarded::Cpu);
    assert_eq!(refused.exceeded[0].percent, busy.percent);
    assert_eq!(refused.exceeded[0].over_ms, Some(busy.over_ms));
    let admitted = (0..20).any(|_| {
        std::thread::sleep(Duration::from_millis(1_100));
        let (machine, verdict) = check();
        let busy = machine.cpu.busy.unwrap();
        assert_eq!(verdict.is_ok(), busy.percent <= 90.0, "{busy:?}");
        verdict.is_ok()
    });
    if !admitted {
        println!("others kept all processors busy for 20 s");
    }
}
