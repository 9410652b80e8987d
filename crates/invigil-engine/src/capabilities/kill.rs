//! `kill`: a signal to exactly one process, held by a descriptor so that its number cannot come to mean another.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{Capability, Context, Failure, Invalid, Needs, Output, Plan, arguments};

/// How long it is waited for the end of a process that was asked to end.
const GRACE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Sends signals.
pub(super) struct Kill;

/// Arguments of `kill`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The process.
    #[schemars(range(min = 2, max = 2_147_483_647))]
    pid: i64,
    /// What it is told.
    #[serde(default)]
    signal: Name,
    /// When it started, in clock ticks since the boot: the 22nd field of `/proc/PID/stat`. If the process of this
    /// number started at another time, it is another one and gets no signal.
    start_time: Option<u64>,
}

/// The signals that can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum Name {
    /// Please end.
    #[default]
    Term,
    /// End at once.
    Kill,
    /// Interrupted from the keyboard.
    Int,
    /// The terminal is gone.
    Hup,
    /// End and leave a dump.
    Quit,
    /// Stop for a while.
    Stop,
    /// Go on.
    Cont,
    /// As the program says.
    Usr1,
    /// As the program says.
    Usr2,
}

impl Name {
    fn signal(self) -> Signal {
        match self {
            Name::Term => Signal::TERM,
            Name::Kill => Signal::KILL,
            Name::Int => Signal::INT,
            Name::Hup => Signal::HUP,
            Name::Quit => Signal::QUIT,
            Name::Stop => Signal::STOP,
            Name::Cont => Signal::CONT,
            Name::Usr1 => Signal::USR1,
            Name::Usr2 => Signal::USR2,
        }
    }

    fn ends(self) -> bool {
        matches!(
            self,
            Name::Term | Name::Kill | Name::Int | Name::Hup | Name::Quit
        )
    }
}

impl Capability for Kill {
    type Args = Args;
    const NAME: &'static str = "kill";
    const DESCRIPTION: &'static str = "Sends a signal to a process. With its start time it never reaches another of the same number.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        arguments::in_range("pid", args.pid, 2, i64::from(i32::MAX))
    }

    fn plan(&self, _: &Args) -> Plan {
        Plan::Work(Needs {
            signals: true,
            ..Needs::READS
        })
    }

    fn execute(&self, args: Args, context: &mut Context<'_>) -> Result<Output, Failure> {
        let number = i32::try_from(args.pid).ok().and_then(Pid::from_raw);
        let pid = number.ok_or_else(|| Failure::new(format!("{} is no process", args.pid)))?;
        if is_own(pid) {
            return Err(Failure::new(format!(
                "{} is Invigil itself or one of its ancestors; it gets no signal",
                args.pid
            )));
        }
        let gone = || Failure::new(format!("there is no process {}", args.pid));
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Err(gone()),
            Err(error) => return Err(Failure::io(format_args!("process {}", args.pid), error)),
        };
        // The descriptor holds the process; if it still lives after these were read, they are its own.
        let start_time = stat(pid).map(|stat| stat.start_time);
        let ours = name(pid).is_some_and(|name| Some(name) == name_of_this());
        if ended(&process, &Timespec::default()) {
            return Err(gone());
        }
        if ours {
            let mut failure = Failure::new(format!(
                "{} is a process of Invigil's own, which may look after others; it gets no signal",
                args.pid
            ));
            failure.denied = true;
            return Err(failure);
        }
        let pid_reused = args.start_time.is_some() && args.start_time != start_time;
        let mut killed = false;
        if !pid_reused && !context.dry_run {
            pidfd_send_signal(&process, args.signal.signal()).map_err(|error| match error {
                Errno::SRCH => gone(),
                error => Failure::io(format_args!("process {}", args.pid), error),
            })?;
            killed = args.signal.ends() && ended(&process, &GRACE);
        }
        Ok(Output::new(json!({
            "pid": args.pid,
            "start_time": start_time,
            "sent": !pid_reused && !context.dry_run,
            "killed": killed,
            "pid_reused": pid_reused,
        })))
    }
}

fn ended(process: &OwnedFd, within: &Timespec) -> bool {
    let mut waiting = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut waiting, Some(within)), Ok(1..))
}

/// The kernel's name for a process, which everybody may read, also of one that shows nothing else of itself.
fn name(pid: Pid) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{}/comm", pid.as_raw_nonzero())).ok()
}

fn name_of_this() -> Option<Vec<u8>> {
    name(rustix::process::getpid())
}

/// Whether it is this process or one that it descends from.
fn is_own(pid: Pid) -> bool {
    let mut own = Some(rustix::process::getpid());
    while let Some(next) = own {
        if next == pid {
            return true;
        }
        own = stat(next).and_then(|stat| Pid::from_raw(stat.parent));
    }
    false
}

struct Stat {
    parent: i32,
    start_time: u64,
}

fn stat(pid: Pid) -> Option<Stat> {
    let text = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name of the program stands in parentheses and may contain any others.
    let rest = text.rsplit(|&byte| byte == b')').next()?;
    let fields: Vec<&str> = str::from_utf8(rest).ok()?.split_whitespace().collect();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}
