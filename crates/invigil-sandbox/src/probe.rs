//! What works on this machine, found out by doing it, never by version or flag.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio as Streams};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use invigil_schema::{Errno, Event, FileOpKind, Origin, Tier};
use serde::Serialize;

use crate::api::{AllowAll, LaunchSpec, SinkError, Stdio};
use crate::cgroup::{Cgroup, Version};
use crate::limits::Limits;
use crate::sys::fs::{self, At, cstring};
use crate::sys::landlock::{self, Rights, Ruleset};
use crate::sys::{self, caps, ptrace};
use crate::table::status_line;

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The kernel's release.
    pub kernel: String,
    /// The tier that a run would get.
    pub tier: Tier,
    /// The version of Landlock, if the kernel has it.
    pub landlock_abi: Option<u32>,
    /// Each thing that was tried.
    pub probes: Vec<Probe>,
}

/// One thing that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct Probe {
    /// Its name.
    pub name: &'static str,
    /// Whether it worked.
    pub works: bool,
    /// What is lost without it.
    pub for_what: &'static str,
    /// What happened when it did not.
    pub problem: Option<String>,
}

impl Report {
    /// Whether something that was tried worked.
    pub fn works(&self, name: &str) -> bool {
        self.probes
            .iter()
            .any(|probe| probe.name == name && probe.works)
    }
}

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(5);

fn probe(name: &'static str, for_what: &'static str, result: Result<(), String>) -> Probe {
    Probe {
        name,
        works: result.is_ok(),
        for_what,
        problem: result.err(),
    }
}

/// Tries everything. Starts a few short processes and leaves nothing behind, not even what others have left: cgroups of
/// supervisors that were killed.
pub fn probe_all() -> Report {
    let mut probes = vec![
        probe(
            "notify",
            "the notify tier: every fact, free of races",
            watched(Tier::Notify),
        ),
        probe(
            "ptrace",
            "the ptrace tier: every fact, slower",
            watched(Tier::Ptrace),
        ),
    ];
    probes.push(probe(
        "pidfd_getfd",
        "connecting on behalf; without it addresses are seen but not race-free",
        with_child(|child| {
            let pidfd =
                sys::pidfd_open(child.id(), false).map_err(|e| format!("pidfd_open: {e}"))?;
            sys::pidfd_getfd(pidfd.as_fd(), 0)
                .map(drop)
                .map_err(|e| e.to_string())
        }),
    ));
    probes.push(probe(
        "attach",
        "watching at all",
        with_child(|child| ptrace::seize(child.id(), false).map_err(|e| e.to_string())),
    ));
    probes.push(probe(
        "landlock_signal_scope",
        "keeping signals and tracing inside the run; without it they are trapped",
        scoped_signal(),
    ));
    probes.push(probe(
        "user_namespace",
        "a network of its own, later",
        in_child(|| sys::check(unshare_user()).map(drop)),
    ));
    probes.push(probe(
        "landlock_floor",
        "a confined run that the kernel holds, too; without it only the gate does",
        floor(),
    ));
    probes.push(probe(
        "capability_drop",
        "a confined run without the powers of root",
        without_capabilities(),
    ));
    probes.push(probe(
        "cgroup_v2",
        "limits that are enforced, not sampled",
        cgroup(Version::Unified),
    ));
    probes.push(probe(
        "cgroup_v1",
        "the same on older systems",
        cgroup(Version::Separate),
    ));
    let works = |name: &str| probes.iter().any(|p| p.name == name && p.works);
    let tier = match (works("notify"), works("ptrace")) {
        (true, _) => Tier::Notify,
        (false, true) => Tier::Ptrace,
        (false, false) => Tier::ContractOnly,
    };
    Report {
        kernel: sys::kernel_release(),
        tier,
        landlock_abi: landlock::abi(),
        probes,
    }
}

/// The best tier that works here, tried from the top.
pub fn best_tier() -> Tier {
    [Tier::Notify, Tier::Ptrace]
        .into_iter()
        .find(|tier| watched(*tier).is_ok())
        .unwrap_or(Tier::ContractOnly)
}

/// A directory of our own that goes when we go.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, String> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("invigil-probe-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a shell that makes a file, and sees the shell, the file and the end arrive.
fn watched(tier: Tier) -> Result<(), String> {
    let scratch = Scratch::new()?;
    let mut spec = LaunchSpec::new(["/bin/sh", "-c", ": > seen"]);
    spec.cwd.clone_from(&scratch.0);
    spec.tier = tier;
    (spec.stdin, spec.stdout, spec.stderr) = (Stdio::Null, Stdio::Null, Stdio::Null);
    let seen = Arc::new(Mutex::new((false, false, false)));
    let facts = Arc::clone(&seen);
    let sink = move |_: Origin, event: Event| -> Result<(), SinkError> {
        let mut seen = facts.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::ProcessExec(_) => seen.0 = true,
            Event::FileOp(op) => {
                let made = matches!(op.op, FileOpKind::Create | FileOpKind::Open);
                seen.1 |= made && op.result.is_ok() && op.path.as_bytes().ends_with(b"/seen");
            }
            Event::ProcessExited(_) => seen.2 = true,
            _ => {}
        }
        Ok(())
    };
    let run = crate::launch(spec, sink, AllowAll).map_err(|e| e.to_string())?;
    let outcome = run.wait(Some(PATIENCE)).ok_or("the run did not end")?;
    let seen = *seen.lock().unwrap_or_else(PoisonError::into_inner);
    match (outcome.exit_code, seen) {
        (Some(0), (true, true, true)) => Ok(()),
        (code, seen) => Err(format!(
            "exit code {code:?}; exec, file, end seen: {seen:?}"
        )),
    }
}

/// Does something to a child that waits.
fn with_child(attempt: impl FnOnce(&Child) -> Result<(), String>) -> Result<(), String> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "read x"])
        .stdin(Streams::piped())
        .stdout(Streams::null())
        .stderr(Streams::null())
        .spawn()
        .map_err(|e| format!("/bin/sh: {e}"))?;
    let result = attempt(&child);
    let _ = child.kill();
    let _ = child.wait();
    result
}

/// Does something in a child between fork and exec.
fn in_child(attempt: impl FnMut() -> sys::Sys<()> + Send + Sync + 'static) -> Result<(), String> {
    let mut attempt = attempt;
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", ":"])
        .stdin(Streams::null())
        .stdout(Streams::null())
        .stderr(Streams::null());
    // SAFETY: the attempts make system calls only.
    unsafe {
        command.pre_exec(move || attempt().map_err(|e| std::io::Error::from_raw_os_error(e.0)));
    }
    command.status().map(drop).map_err(|e| e.to_string())
}

fn unshare_user() -> i32 {
    // SAFETY: plain integers.
    unsafe { libc::unshare(libc::CLONE_NEWUSER) }
}

fn scoped_signal() -> Result<(), String> {
    let ruleset = landlock::signal_scope().map_err(|e| format!("landlock_create_ruleset: {e}"))?;
    in_child(move || {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
        landlock::enter(ruleset.as_raw_fd(), 0)?;
        // SAFETY: plain integers; signal 0 only asks.
        let parent = unsafe { libc::getppid() };
        match sys::kill(parent as u32, 0) {
            Err(Errno(libc::EPERM)) => Ok(()),
            _ => Err(Errno(libc::EPROTO)),
        }
    })
}

/// Enters a domain in which nothing may be written, and sees a write refused.
fn floor() -> Result<(), String> {
    let scratch = Scratch::new()?;
    let file = cstring(scratch.0.join("refused").into_os_string().into_vec());
    let file = file.map_err(|e| e.to_string())?;
    let known = Rights::of_abi(landlock::abi().ok_or("the kernel has no Landlock")?);
    let handled = Rights {
        fs: landlock::WRITE & known.fs,
        ..Rights::default()
    };
    let ruleset = Ruleset::new(handled).map_err(|e| format!("landlock_create_ruleset: {e}"))?;
    in_child(move || {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
        landlock::enter(ruleset.as_raw_fd(), 0)?;
        match fs::open(At::Cwd, &file, libc::O_CREAT | libc::O_WRONLY, 0o600, 0) {
            Err(Errno(libc::EACCES)) => Ok(()),
            _ => Err(Errno(libc::EPROTO)),
        }
    })
}

/// Gives up everything for good, and sees that nothing is left after a program was loaded.
fn without_capabilities() -> Result<(), String> {
    let mut command = Command::new("/bin/sh");
    command
        .args([
            "-c",
            "while read -r line; do echo $line; done < /proc/self/status",
        ])
        .stdin(Streams::null())
        .stderr(Streams::null());
    // SAFETY: makes system calls only.
    unsafe {
        command.pre_exec(|| {
            let dropped = caps::keep_for_good(0);
            dropped.map_err(|e| std::io::Error::from_raw_os_error(e.0))
        });
    }
    let output = command.output().map_err(|e| e.to_string())?;
    let left = status_line(&output.stdout, "CapEff").ok_or("/bin/sh cannot read its status")?;
    match left.iter().all(|&b| b == b'0') {
        true => Ok(()),
        false => Err(format!("{} is left", String::from_utf8_lossy(left))),
    }
}

/// Makes a group, puts a process into it, and removes it.
fn cgroup(version: Version) -> Result<(), String> {
    let limits = Limits {
        memory: Some(PROBE_MEMORY),
        ..Limits::default()
    };
    let cgroup = Cgroup::of(version, &limits, true)?;
    with_child(|child| cgroup.take_in(child.id()).map_err(|e| e.to_string()))
}

/// More than a shell needs.
const PROBE_MEMORY: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_a_tier_that_works() {
        let report = probe_all();
        if report.tier != Tier::ContractOnly {
            assert!(report.works(report.tier.as_str()), "{report:?}");
        }
        assert!(report.probes.iter().all(|p| p.works == p.problem.is_none()));
    }
}
