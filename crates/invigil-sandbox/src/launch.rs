//! The launcher: from our own image to the command's, with nothing unwatched in between.
//!
//! The child is made by `clone` with a shared descriptor table, so that the listener, which only the child can make,
//! is ours the moment it exists: no message has to pass a filter that traps messages. It then takes a table of its own.
//! Between `clone` and `execve` the child calls nothing but the kernel.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use invigil_schema::{Errno, Tier};

use crate::api::{LaunchError, LaunchSpec, Reads, Stdio};
use crate::census;
use crate::cgroup::{Cgroup, Controller};
use crate::confine::Confined;
use crate::filter::{self, Trap};
use crate::limits::Limits;
use crate::sys::{self, Sys, caps, fs, landlock, ptrace};
use crate::traps::{self, Scope};
use crate::waker;

/// Where a launch can fail in the child; also the tags of its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Step {
    Ready = 1,
    Watched,
    Chdir,
    Limits,
    NoNewPrivileges,
    Capabilities,
    Landlock,
    Filter,
    Descriptors,
    Exec,
}

impl Step {
    fn from_tag(tag: i32) -> Option<Step> {
        use Step::*;
        [
            Ready,
            Watched,
            Chdir,
            Limits,
            NoNewPrivileges,
            Capabilities,
            Landlock,
            Filter,
            Descriptors,
            Exec,
        ]
        .into_iter()
        .find(|s| *s as i32 == tag)
    }

    fn name(self) -> &'static str {
        match self {
            Step::Ready | Step::Watched => "the handshake",
            Step::Chdir => "chdir",
            Step::Limits => "setrlimit",
            Step::NoNewPrivileges => "no_new_privs",
            Step::Capabilities => "giving up capabilities",
            Step::Landlock => "Landlock",
            Step::Filter => "the seccomp filter",
            Step::Descriptors => "the descriptor table",
            Step::Exec => "execve",
        }
    }
}

/// Everything that the child needs, made before it exists.
pub(crate) struct Prepared {
    candidates: Vec<CString>,
    argv: Vec<CString>,
    shell_argv: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
    stdio: [Option<OwnedFd>; 3],
    program: Vec<libc::sock_filter>,
    trap: Option<Trap>,
    /// The domain of a run that is not confined.
    signal_scope: Option<landlock::Ruleset>,
    pub(crate) confined: Option<Arc<Confined>>,
    pub(crate) limits: Limits,
    cgroup: OwnCgroup,
    /// Tasks of this user, where nobody counts those of the run.
    tasks: Option<u64>,
    mask: libc::sigset_t,
    command: String,
    tier: Tier,
}

/// The cgroup of a run, or why it has none.
pub(crate) type OwnCgroup = Result<Arc<Cgroup>, String>;

/// A child that is watched and about to load the command.
pub(crate) struct Launched {
    /// Its pid.
    pub(crate) pid: u32,
    /// Where its trapped calls arrive.
    pub(crate) listener: Option<OwnedFd>,
    /// Where it says that it could not load the command; closed when it could.
    pub(crate) status: OwnedFd,
    /// Whether trapped calls wait for their answer whatever signals arrive.
    pub(crate) killable: bool,
    /// The cgroup that it is in.
    pub(crate) cgroup: OwnCgroup,
}

fn c(text: &OsStr) -> Result<CString, LaunchError> {
    CString::new(text.as_bytes()).map_err(|_| LaunchError::ZeroByte)
}

/// The paths that `execvp` would try, as far as they exist.
fn candidates(spec: &LaunchSpec, command: &OsStr) -> Result<Vec<CString>, LaunchError> {
    if command.as_bytes().contains(&b'/') {
        return Ok(vec![c(command)?]);
    }
    let path = spec.env.get(OsStr::new("PATH"));
    let path = path.map_or(OsStr::new("/bin:/usr/bin"), |p| p.as_os_str());
    let mut found = Vec::new();
    let mut refused = false;
    for dir in std::env::split_paths(path) {
        let dir = if dir.as_os_str().is_empty() {
            Path::new(".").to_owned()
        } else {
            dir
        };
        let candidate = dir.join(command);
        let Ok(data) = spec.cwd.join(&candidate).metadata() else {
            continue;
        };
        if data.is_file() && data.permissions().mode() & 0o111 != 0 {
            found.push(c(candidate.as_os_str())?);
        } else {
            refused = true;
        }
    }
    let name = command.to_string_lossy().into_owned();
    match found.is_empty() {
        false => Ok(found),
        true if refused => Err(LaunchError::NotExecutable {
            command: name,
            error: Errno(libc::EACCES),
        }),
        true => Err(LaunchError::NotFound { command: name }),
    }
}

fn stream(stdio: Stdio) -> Result<Option<OwnedFd>, LaunchError> {
    match stdio {
        Stdio::Inherit => Ok(None),
        Stdio::Fd(fd) => Ok(Some(fd)),
        Stdio::Null => match fs::open(fs::At::Cwd, c"/dev/null", libc::O_RDWR, 0, 0) {
            Ok(fd) => Ok(Some(fd)),
            Err(error) => Err(LaunchError::System {
                step: "opening /dev/null",
                error,
            }),
        },
    }
}

/// Checks a specification and turns it into what the child needs. Starts nothing.
pub(crate) fn prepare(spec: LaunchSpec) -> Result<Prepared, LaunchError> {
    let command = spec.argv.first().ok_or(LaunchError::NoCommand)?.clone();
    if command.is_empty() {
        return Err(LaunchError::NotFound {
            command: String::new(),
        });
    }
    let candidates = candidates(&spec, &command)?;
    let argv = spec
        .argv
        .iter()
        .map(|a| c(a))
        .collect::<Result<Vec<_>, _>>()?;
    let mut env = Vec::new();
    for (key, value) in &spec.env {
        let mut pair = key.clone();
        pair.push("=");
        pair.push(value);
        env.push(c(&pair)?);
    }
    let trap = match spec.tier {
        Tier::Notify => Some(Trap::Notify),
        Tier::Ptrace => Some(Trap::Trace),
        Tier::ContractOnly => None,
    };
    if trap.is_none() && spec.confine.is_some() {
        return Err(LaunchError::Tier {
            tier: spec.tier,
            step: "confinement, which needs an observer,",
            error: Errno(libc::EOPNOTSUPP),
        });
    }
    let confined = spec.confine.as_ref().map(Confined::new);
    let scoped = spec.landlock
        && confined.is_none()
        && trap.is_some()
        && landlock::abi().is_some_and(|abi| abi >= landlock::ABI_WITH_SCOPES);
    let signal_scope = if scoped {
        landlock::signal_scope().ok()
    } else {
        None
    };
    let scope = Scope {
        reads: spec.reads > Reads::Free,
        // In a confined run they are trapped all the same, so that what Landlock would refuse is recorded.
        signals_scoped: signal_scope.is_some(),
        exact: spec.exact,
        supervisor: std::process::id(),
        confined: confined.as_ref().map(|confined| confined.bound.sockets()),
    };
    let cgroup = match spec.limits.want_cgroup() {
        true => Cgroup::new(&spec.limits, trap.is_some()).map(Arc::new),
        false => Err("no limit asks for one".to_owned()),
    };
    // A script without `#!` is the shell's, as with execvp.
    let mut shell_argv = vec![c"/bin/sh".to_owned(), argv[0].clone()];
    shell_argv.extend(argv[1..].iter().cloned());
    Ok(Prepared {
        candidates,
        shell_argv,
        argv,
        env,
        cwd: c(spec.cwd.as_os_str())?,
        stdio: [
            stream(spec.stdin)?,
            stream(spec.stdout)?,
            stream(spec.stderr)?,
        ],
        program: trap.map_or_else(Vec::new, |t| filter::compile(&traps::rules(scope), t)),
        trap,
        signal_scope,
        confined: confined.map(Arc::new),
        limits: spec.limits,
        tasks: tasks_of_user(&spec.limits, spec.tier, &cgroup)?,
        cgroup,
        mask: waker::command_mask(),
        command: command.to_string_lossy().into_owned(),
        tier: spec.tier,
    })
}

/// Without an observer or a cgroup a limit on processes is one on the tasks of the user, beside those that it has. Root
/// cannot be held by that.
fn tasks_of_user(
    limits: &Limits,
    tier: Tier,
    cgroup: &OwnCgroup,
) -> Result<Option<u64>, LaunchError> {
    let held = cgroup.as_ref().is_ok_and(|c| c.has(Controller::Tasks));
    let Some(processes) = limits
        .processes
        .filter(|_| tier == Tier::ContractOnly && !held)
    else {
        return Ok(None);
    };
    let user = sys::effective_user();
    if user == 0 {
        return Err(LaunchError::Tier {
            tier,
            step: "a limit on processes, which needs an observer or a cgroup,",
            error: Errno(libc::EOPNOTSUPP),
        });
    }
    // More than is allowed, so that it can be seen; some will be our own threads.
    const MARGIN: u64 = 8;
    Ok(Some(census::tasks_of(user) + u64::from(processes) + MARGIN))
}

impl Prepared {
    /// Whether Landlock keeps signals inside the run.
    pub(crate) fn signals_scoped(&self) -> bool {
        let confined = self.confined.as_ref();
        self.signal_scope.is_some() || confined.is_some_and(|confined| confined.signals_scoped)
    }

    fn failure(&self, step: Step, error: Errno) -> LaunchError {
        let command = self.command.clone();
        match step {
            Step::Exec if matches!(error.0, libc::ENOENT | libc::ENOTDIR) => {
                LaunchError::NotFound { command }
            }
            Step::Exec => LaunchError::NotExecutable { command, error },
            Step::Chdir => LaunchError::Cwd {
                cwd: self.cwd.to_string_lossy().into_owned(),
                error,
            },
            step => LaunchError::Tier {
                tier: self.tier,
                step: step.name(),
                error,
            },
        }
    }

    /// Makes the child, attaches to it, and returns when it is about to load the command.
    pub(crate) fn start(&self) -> Result<Launched, LaunchError> {
        let system = |step| move |error| LaunchError::System { step, error };
        let (status, child_status) = sys::pipe().map_err(system("pipe"))?;
        let (child_go, go) = sys::pipe().map_err(system("pipe"))?;
        // Vectors of pointers cannot be made in the child, which must not allocate.
        let argv = pointers(&self.argv);
        let mut shell_argv = pointers(&self.shell_argv);
        let env = pointers(&self.env);
        let mut child = Child {
            prepared: self,
            argv: &argv,
            shell_argv: &mut shell_argv,
            env: &env,
            status: child_status.as_raw_fd(),
            go: child_go.as_raw_fd(),
            parent: std::process::id(),
        };
        let flags = libc::CLONE_FILES | libc::SIGCHLD;
        // The child starts with this mask, and takes on its own when somebody is there to pass signals on to it.
        let before = sys::block_all_signals();
        // SAFETY: like fork, with a shared descriptor table. The child runs on a copy of this stack and never returns
        // from `run`, which makes system calls only.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        if pid == 0 {
            child.run();
        }
        let pid = sys::check(pid);
        sys::set_mask(&before);
        let pid = pid.map_err(system("clone"))? as u32;
        match self.handshake(pid, &status, &go) {
            Ok((listener, killable, cgroup)) => {
                // SAFETY: the child made this descriptor in the table that we shared, and has left that table.
                let listener = listener.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
                Ok(Launched {
                    pid,
                    listener,
                    status,
                    killable,
                    cgroup,
                })
            }
            Err(error) => {
                let _ = sys::kill(pid, libc::SIGKILL);
                while matches!(ptrace::wait_for(pid as i32, true, libc::__WALL), Ok(Some(w))
                    if !matches!(w.change, ptrace::Change::Exited(_) | ptrace::Change::Killed(_)))
                {
                }
                Err(error)
            }
        }
    }

    fn handshake(
        &self,
        pid: u32,
        status: &OwnedFd,
        go: &OwnedFd,
    ) -> Result<(Option<RawFd>, bool, OwnCgroup), LaunchError> {
        let expect = |step: Step| match message_of(pid, status) {
            Ok([tag, value, extra]) if tag == step as i32 => Ok((value, extra)),
            Ok([tag, error, _]) => {
                let step = Step::from_tag(tag).unwrap_or(Step::Ready);
                Err(self.failure(step, Errno(error)))
            }
            Err(error) => Err(self.failure(Step::Ready, error)),
        };
        expect(Step::Ready)?;
        if let Some(trap) = self.trap {
            ptrace::seize(pid, trap == Trap::Trace).map_err(|error| LaunchError::Tier {
                tier: self.tier,
                step: "ptrace",
                error,
            })?;
        }
        let cgroup = self.cgroup.clone().and_then(|cgroup| {
            let taken = cgroup.take_in(pid);
            taken.map(|()| cgroup).map_err(|error| error.to_string())
        });
        fs::write_all(std::os::fd::AsFd::as_fd(go), &[1])
            .map_err(|e| self.failure(Step::Ready, e))?;
        let (listener, killable) = expect(Step::Watched)?;
        Ok(((listener >= 0).then_some(listener), killable != 0, cgroup))
    }

    /// Why the command was not loaded, after its process has ended; None if it was.
    pub(crate) fn exec_failure(&self, status: &OwnedFd) -> Option<LaunchError> {
        let [tag, error, _] = message(status).ok()?;
        Some(self.failure(Step::from_tag(tag)?, Errno(error)))
    }
}

/// Waits for a message of a child that we may be tracing. It can be stopped by a signal meanwhile, or die; its end of
/// the pipe is ours too, so that its death does not close the pipe.
fn message_of(pid: u32, status: &OwnedFd) -> Sys<[i32; 3]> {
    let mask = sys::current_mask(None);
    loop {
        let mut fds = [libc::pollfd {
            fd: status.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        if sys::wait_ready(&mut fds, Some(HANDSHAKE_TICK), &mask)? > 0 {
            return message(status);
        }
        let waited = ptrace::wait_for(pid as i32, false, libc::__WALL);
        match waited.map(|waited| waited.map(|waited| waited.change)) {
            Ok(Some(ptrace::Change::Signal(signal))) => drop(ptrace::resume(pid, signal)),
            Ok(Some(ptrace::Change::Exited(_) | ptrace::Change::Killed(_))) => {
                return Err(Errno(libc::EPIPE));
            }
            Ok(Some(_)) => drop(ptrace::resume(pid, 0)),
            Ok(None) => {}
            Err(_) => return Err(Errno(libc::EPIPE)),
        }
    }
}

/// Seconds that a process may run beyond the limit of the whole tree before the kernel ends it.
const CPU_GRACE: u64 = 5;
/// How often a child that does not speak is looked at.
const HANDSHAKE_TICK: Duration = Duration::from_millis(10);

/// Reads one message of the child: a tag and two numbers. `EPIPE` if it is gone.
fn message(status: &OwnedFd) -> Sys<[i32; 3]> {
    let mut bytes = [0u8; 12];
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // SAFETY: `rest` is valid for its length.
        let read = unsafe { libc::read(status.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len()) };
        match sys::check(read as i64) {
            Ok(0) => return Err(Errno(libc::EPIPE)),
            Ok(n) => filled += n as usize,
            Err(Errno(libc::EINTR)) => {}
            Err(error) => return Err(error),
        }
    }
    let number =
        |i: usize| i32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
    Ok([number(0), number(4), number(8)])
}

fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts
        .iter()
        .map(|t| t.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// The child's side. No allocation, no lock, no panic.
struct Child<'a> {
    prepared: &'a Prepared,
    argv: &'a [*const libc::c_char],
    shell_argv: &'a mut [*const libc::c_char],
    env: &'a [*const libc::c_char],
    status: RawFd,
    go: RawFd,
    parent: u32,
}

impl Child<'_> {
    fn say(&self, step: Step, value: i32, extra: i32) {
        let mut bytes = [0u8; 12];
        bytes[..4].copy_from_slice(&(step as i32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&value.to_ne_bytes());
        bytes[8..].copy_from_slice(&extra.to_ne_bytes());
        // SAFETY: 12 bytes, which a pipe takes whole.
        unsafe { libc::write(self.status, bytes.as_ptr().cast(), bytes.len()) };
    }

    fn fail(&self, step: Step, error: Errno) -> ! {
        self.say(step, error.0, 0);
        // SAFETY: ends this process without running anything of ours.
        unsafe { libc::_exit(127) }
    }

    fn run(&mut self) -> ! {
        // SAFETY: integers only; the signal dispositions and mask are set before anything can rely on them.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != self.parent {
                libc::_exit(127);
            }
            // Our own image is not dumpable, which would keep us from attaching to its copy.
            libc::prctl(libc::PR_SET_DUMPABLE, 1);
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
        self.say(Step::Ready, 0, 0);
        let mut go = 0u8;
        // SAFETY: room for one byte.
        if unsafe { libc::read(self.go, std::ptr::from_mut(&mut go).cast(), 1) } != 1 {
            // SAFETY: ends this process without running anything of ours.
            unsafe { libc::_exit(127) }
        }
        // SAFETY: the path ends in a zero byte.
        if unsafe { libc::chdir(self.prepared.cwd.as_ptr()) } != 0 {
            self.fail(Step::Chdir, sys::errno());
        }
        self.limit();
        let (listener, killable) = match self.prepared.trap {
            Some(trap) => self.confine(trap),
            None => (-1, false),
        };
        self.leave_table();
        self.say(Step::Watched, listener, killable.into());
        self.streams();
        // SAFETY: the mask is a valid set. From here on the observer's loop is there to pass signals on.
        unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, &self.prepared.mask, std::ptr::null_mut());
        }
        self.exec()
    }

    /// What the kernel limits for each process.
    fn limit(&self) {
        let limits = &self.prepared.limits;
        // Long after the whole tree should have been killed for it.
        let cpu = limits.cpu.map(|cpu| cpu.as_secs() + CPU_GRACE);
        let all = [
            (libc::RLIMIT_FSIZE, limits.file_size),
            (libc::RLIMIT_DATA, limits.data),
            (libc::RLIMIT_CPU, cpu),
            (libc::RLIMIT_NPROC, self.prepared.tasks),
            // The kernel would write it where the process stands, and ask nobody.
            (
                libc::RLIMIT_CORE,
                self.prepared.confined.as_ref().map(|_| 0),
            ),
        ];
        for (resource, limit) in all {
            if let Some(limit) = limit
                && let Err(error) = sys::lower_limit(resource, limit)
            {
                self.fail(Step::Limits, error);
            }
        }
    }

    fn confine(&self, trap: Trap) -> (i32, bool) {
        if let Err(error) = sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1) {
            self.fail(Step::NoNewPrivileges, error);
        }
        let (mut ruleset, mut flags) = (self.prepared.signal_scope.as_ref(), 0);
        if let Some(confined) = &self.prepared.confined {
            if let Err(error) = caps::keep_for_good(caps::ORDINARY) {
                self.fail(Step::Capabilities, error);
            }
            (ruleset, flags) = (confined.ruleset.as_ref(), confined.restrict_flags);
        }
        if let Some(ruleset) = ruleset
            && let Err(error) = ruleset.enter(flags)
        {
            self.fail(Step::Landlock, error);
        }
        let program = filter::as_fprog(&self.prepared.program);
        let install = |flags: libc::c_ulong| {
            // SAFETY: `program` points to the compiled filter, which lives as long as this process.
            sys::check(unsafe {
                libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    flags,
                    &program,
                )
            })
        };
        if trap == Trap::Trace {
            return match install(0) {
                Ok(_) => (-1, false),
                Err(error) => self.fail(Step::Filter, error),
            };
        }
        let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let killable = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
        match install(listener | killable) {
            Ok(fd) => return (fd as i32, true),
            Err(Errno(libc::EINVAL)) => {}
            Err(error) => self.fail(Step::Filter, error),
        }
        match install(listener) {
            Ok(fd) => (fd as i32, false),
            Err(error) => self.fail(Step::Filter, error),
        }
    }

    /// Takes a copy of the descriptor table. `unshare` is refused in some containers, `close_range` is not.
    fn leave_table(&self) {
        const CLOSE_RANGE_UNSHARE: u32 = 2;
        // SAFETY: closes a descriptor that cannot exist; unshares the table.
        let unshared = unsafe {
            libc::syscall(
                libc::SYS_close_range,
                u32::MAX,
                u32::MAX,
                CLOSE_RANGE_UNSHARE,
            ) == 0
                || libc::unshare(libc::CLONE_FILES) == 0
        };
        if !unshared {
            self.fail(Step::Descriptors, sys::errno());
        }
    }

    fn streams(&self) {
        // A stream that is given as descriptor 0 to 2 could be overwritten before it is used.
        let mut sources = [-1; 3];
        for (target, stream) in self.prepared.stdio.iter().enumerate() {
            if let Some(fd) = stream {
                // SAFETY: plain integers.
                sources[target] = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
            }
        }
        for (target, source) in sources.into_iter().enumerate() {
            // SAFETY: plain integers; the duplicate is not closed at exec.
            if source >= 0 && unsafe { libc::dup2(source, target as i32) } < 0 {
                self.fail(Step::Descriptors, sys::errno());
            }
        }
    }

    fn exec(&mut self) -> ! {
        let mut error = Errno(libc::ENOENT);
        let prepared = self.prepared;
        for candidate in &prepared.candidates {
            self.try_exec(candidate, self.argv);
            match sys::errno() {
                Errno(libc::ENOENT | libc::ENOTDIR) => {}
                Errno(libc::ENOEXEC) => {
                    // The shell gets the path that was found, not the name that was asked for.
                    self.shell_argv[1] = candidate.as_ptr();
                    self.try_exec(c"/bin/sh", self.shell_argv);
                    error = sys::errno();
                }
                Errno(libc::EACCES) => error = Errno(libc::EACCES),
                other => {
                    error = other;
                    break;
                }
            }
        }
        self.fail(Step::Exec, error)
    }

    fn try_exec(&self, path: &CStr, argv: &[*const libc::c_char]) {
        // SAFETY: both vectors end in null and point to strings that end in a zero byte.
        unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), self.env.as_ptr()) };
    }
}
