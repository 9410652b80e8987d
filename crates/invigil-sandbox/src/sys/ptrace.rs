//! ptrace and wait.

use std::time::Duration;

use super::{Sys, check};

/// What `PTRACE_SEIZE` turns on: every new task is traced from its first instruction, and dies with us.
const OPTIONS: u64 = (libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_EXITKILL) as u64;
/// `PTRACE_EVENT_STOP`.
pub(crate) const EVENT_STOP: i32 = 128;

fn request(request: u32, tid: u32, address: u64, data: u64) -> Sys<i64> {
    // SAFETY: used for requests whose data is an integer, or memory that the caller holds.
    check(unsafe { libc::ptrace(request as _, tid, address, data) })
}

/// Attaches without stopping. `calls` asks for stops at the calls that a filter marks.
pub(crate) fn seize(tid: u32, calls: bool) -> Sys<()> {
    let calls = if calls {
        libc::PTRACE_O_TRACESECCOMP as u64
    } else {
        0
    };
    request(libc::PTRACE_SEIZE, tid, 0, OPTIONS | calls).map(drop)
}

/// Lets a stopped task go on, with a signal or with 0.
pub(crate) fn resume(tid: u32, signal: i32) -> Sys<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as u64).map(drop)
}

/// The same, to the end of the system call that it is in.
pub(crate) fn resume_to_exit(tid: u32, signal: i32) -> Sys<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, signal as u64).map(drop)
}

/// Leaves a task in its group-stop and listens for the end of it.
pub(crate) fn listen(tid: u32) -> Sys<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0).map(drop)
}

/// Asks for a stop, which happens on the way back from the system call that the task is in.
pub(crate) fn interrupt(tid: u32) -> Sys<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// What belongs to the event that a task is stopped at.
pub(crate) fn event_message(tid: u32) -> Sys<u64> {
    let mut message = 0u64;
    request(
        libc::PTRACE_GETEVENTMSG,
        tid,
        0,
        std::ptr::from_mut(&mut message) as u64,
    )?;
    Ok(message)
}

/// The registers of a stopped task, as far as system calls go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registers(libc::user_regs_struct);

impl Registers {
    /// Reads them.
    pub(crate) fn of(tid: u32) -> Sys<Self> {
        // SAFETY: all-zero is valid for plain integers.
        let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        transfer(libc::PTRACE_GETREGSET, tid, &mut regs)?;
        Ok(Registers(regs))
    }

    /// Writes them back.
    pub(crate) fn store(mut self, tid: u32) -> Sys<()> {
        transfer(libc::PTRACE_SETREGSET, tid, &mut self.0)
    }
}

fn transfer(what: u32, tid: u32, regs: &mut libc::user_regs_struct) -> Sys<()> {
    let mut vector = libc::iovec {
        iov_base: std::ptr::from_mut(regs).cast(),
        iov_len: size_of::<libc::user_regs_struct>(),
    };
    request(
        what,
        tid,
        libc::NT_PRSTATUS as u64,
        std::ptr::from_mut(&mut vector) as u64,
    )
    .map(drop)
}

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// What the call has returned.
    pub(crate) fn result(&self) -> i64 {
        self.0.rax as i64
    }
    /// Replaces what the call has returned.
    pub(crate) fn set_result(&mut self, value: i64) {
        self.0.rax = value as u64;
    }
    /// The number of the call.
    pub(crate) fn number(&self) -> i64 {
        self.0.orig_rax as i64
    }
    /// Replaces the number; −1 skips the call.
    pub(crate) fn set_number(&mut self, number: i64) {
        self.0.orig_rax = number as u64;
    }
    /// The arguments of the call.
    pub(crate) fn arguments(&self) -> [u64; 6] {
        let r = &self.0;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
    }
}

#[cfg(target_arch = "aarch64")]
impl Registers {
    /// What the call has returned.
    pub(crate) fn result(&self) -> i64 {
        self.0.regs[0] as i64
    }
    /// Replaces what the call has returned.
    pub(crate) fn set_result(&mut self, value: i64) {
        self.0.regs[0] = value as u64;
    }
    /// The number of the call.
    pub(crate) fn number(&self) -> i64 {
        self.0.regs[8] as i64
    }
    /// Replaces the number; −1 skips the call. Takes effect through `NT_ARM_SYSTEM_CALL` only.
    pub(crate) fn set_number(&mut self, number: i64) {
        self.0.regs[8] = number as u64;
    }
    /// The arguments of the call.
    pub(crate) fn arguments(&self) -> [u64; 6] {
        std::array::from_fn(|i| self.0.regs[i])
    }
}

/// What `wait4` has to tell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waited {
    /// Which task.
    pub(crate) tid: u32,
    /// What happened to it.
    pub(crate) change: Change,
    /// What it has used, if it is dead.
    pub(crate) usage: Usage,
}

/// A change of a task's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has exited with a code.
    Exited(i32),
    /// A signal has killed it.
    Killed(i32),
    /// It is about to get a signal.
    Signal(i32),
    /// It has stopped at a system call.
    SystemCall,
    /// It has stopped at an event; with the signal that comes with it.
    Event(i32, i32),
}

/// Resources that a process, and the children that it waited for, have used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// In user mode.
    pub(crate) user: Duration,
    /// In the kernel.
    pub(crate) system: Duration,
    /// KiB.
    pub(crate) max_rss: u64,
}

/// Waits for a child or tracee of the calling thread. None if there is nothing to tell yet.
pub(crate) fn wait(block: bool) -> Sys<Option<Waited>> {
    wait_for(-1, block, libc::__WALL | libc::__WNOTHREAD)
}

/// Waits for one process.
pub(crate) fn wait_for(pid: i32, block: bool, flags: i32) -> Sys<Option<Waited>> {
    let flags = flags | if block { 0 } else { libc::WNOHANG };
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`; both places outlive the call.
    let (tid, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let tid = check(libc::wait4(pid, &mut status, flags, &mut usage))?;
        (tid, usage)
    };
    if tid == 0 {
        return Ok(None);
    }
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)
    };
    Ok(Some(Waited {
        tid: tid as u32,
        change: change(status),
        usage: Usage {
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            max_rss: usage.ru_maxrss as u64,
        },
    }))
}

fn change(status: i32) -> Change {
    if libc::WIFEXITED(status) {
        return Change::Exited(libc::WEXITSTATUS(status));
    }
    if libc::WIFSIGNALED(status) {
        return Change::Killed(libc::WTERMSIG(status));
    }
    match (status >> 16, libc::WSTOPSIG(status)) {
        (0, signal) if signal == libc::SIGTRAP | 0x80 => Change::SystemCall,
        (0, signal) => Change::Signal(signal),
        (event, signal) => Change::Event(event, signal),
    }
}
