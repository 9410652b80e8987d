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
use std::time::{Duration, Instant};

use invigil_schema::{Errno, Tier};

use crate::api::{LaunchError, LaunchSpec, Reads, Stdio};
use crate::birth::{Birth, LIMITS, Step, end};
use crate::census;
use crate::cgroup::{Cgroup, Controller};
use crate::confine::Confined;
use crate::filter::{self, Trap};
use crate::limits::Limits;
use crate::nursery::Nursery;
use crate::sys::{self, Sys, fs, landlock, ptrace};
use crate::traps::{self, Scope};
use crate::waker;

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
    nursery: Option<Arc<Nursery>>,
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
    /// Whether it is what it is to be, and loads nothing.
    pub(crate) grown: bool,
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
    let stdio = [
        stream(spec.stdin)?,
        stream(spec.stdout)?,
        stream(spec.stderr)?,
    ];
    // Who is not traced would not die with us, and who gets no streams would have those of the nursery: its socket.
    let bearable = trap.is_some() && stdio.iter().all(Option::is_some);
    // A script without `#!` is the shell's, as with execvp.
    let mut shell_argv = vec![c"/bin/sh".to_owned(), argv[0].clone()];
    shell_argv.extend(argv[1..].iter().cloned());
    Ok(Prepared {
        candidates,
        shell_argv,
        argv,
        env,
        cwd: c(spec.cwd.as_os_str())?,
        stdio,
        program: trap.map_or_else(Vec::new, |t| filter::compile(&traps::rules(scope), t)),
        trap,
        signal_scope,
        confined: confined.map(Arc::new),
        limits: spec.limits,
        tasks: tasks_of_user(&spec.limits, spec.tier, &cgroup)?,
        cgroup,
        mask: waker::command_mask(),
        nursery: spec.nursery.filter(|_| bearable),
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

    /// What the child does to itself.
    fn birth(&self, status: RawFd, go: RawFd) -> Birth<'_> {
        let confined = self.confined.as_deref();
        let (ruleset, flags) = match confined {
            Some(confined) => (confined.ruleset.as_ref(), confined.restrict_flags),
            None => (self.signal_scope.as_ref(), 0),
        };
        Birth {
            cwd: &self.cwd,
            limits: self.rlimits(),
            trap: self.trap,
            gives_up_capabilities: confined.is_some(),
            ruleset: ruleset.map(|ruleset| (ruleset.as_raw_fd(), flags)),
            program: &self.program,
            streams: self
                .stdio
                .each_ref()
                .map(|stream| stream.as_ref().map(OwnedFd::as_raw_fd)),
            mask: self.mask,
            status,
            go,
        }
    }

    /// What the kernel limits for each process.
    fn rlimits(&self) -> [Option<u64>; LIMITS] {
        let limits = &self.limits;
        // Long after the whole tree should have been killed for it.
        let cpu = limits.cpu.map(|cpu| cpu.as_secs() + CPU_GRACE);
        // The kernel would write a core where the process stands, and ask nobody.
        let core = self.confined.as_ref().map(|_| 0);
        [limits.file_size, limits.data, cpu, self.tasks, core]
    }

    /// Makes the child, attaches to it, and returns when it is about to load the command, or has grown up in a nursery.
    pub(crate) fn start(&self) -> Result<Launched, LaunchError> {
        // Whatever is wrong there: if it is wrong here too, it will be told.
        let born = self.nursery.as_ref().and_then(|n| self.start_in(n).ok());
        match born {
            Some(launched) => Ok(launched),
            None => self.start_by_loading(),
        }
    }

    fn start_in(&self, nursery: &Nursery) -> Result<Launched, LaunchError> {
        let system = |step| move |error| LaunchError::System { step, error };
        let (status, child_status) = sys::pipe().map_err(system("pipe"))?;
        let (child_go, go) = sys::pipe().map_err(system("pipe"))?;
        let birth = self.birth(child_status.as_raw_fd(), child_go.as_raw_fd());
        let labour = nursery.bear(&birth).map_err(system("the nursery"))?;
        drop((child_status, child_go));
        let pid = labour.pid();
        let deadline = Instant::now() + BIRTH;
        let watched = match self.handshake(pid, &status, &go, Some(deadline)) {
            Ok(watched) => watched,
            Err(error) => {
                // Before anybody else is born there: it may still share the table.
                put_down(pid);
                if Instant::now() >= deadline {
                    labour.close();
                }
                return Err(error);
            }
        };
        let Watched {
            listener,
            killable,
            cgroup,
        } = watched;
        let listener = labour.finish(listener);
        let listener = listener.inspect_err(|_| put_down(pid));
        let listener = listener.map_err(system("the nursery"))?;
        Ok(Launched {
            pid,
            listener,
            status,
            killable,
            grown: true,
            cgroup,
        })
    }

    fn start_by_loading(&self) -> Result<Launched, LaunchError> {
        let system = |step| move |error| LaunchError::System { step, error };
        let (status, child_status) = sys::pipe().map_err(system("pipe"))?;
        let (child_go, go) = sys::pipe().map_err(system("pipe"))?;
        // Vectors of pointers cannot be made in the child, which must not allocate.
        let argv = pointers(&self.argv);
        let mut shell_argv = pointers(&self.shell_argv);
        let env = pointers(&self.env);
        let mut child = Child {
            birth: self.birth(child_status.as_raw_fd(), child_go.as_raw_fd()),
            candidates: &self.candidates,
            argv: &argv,
            shell_argv: &mut shell_argv,
            env: &env,
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
        let watched = self.handshake(pid, &status, &go, None);
        let Watched {
            listener,
            killable,
            cgroup,
        } = watched.inspect_err(|_| put_down(pid))?;
        Ok(Launched {
            pid,
            // SAFETY: the child made this descriptor in the table that we shared, and has left that table.
            listener: listener.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            status,
            killable,
            grown: false,
            cgroup,
        })
    }

    fn handshake(
        &self,
        pid: u32,
        status: &OwnedFd,
        go: &OwnedFd,
        deadline: Option<Instant>,
    ) -> Result<Watched, LaunchError> {
        let expect = |step: Step| match message_of(pid, status, deadline) {
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
        Ok(Watched {
            listener: (listener >= 0).then_some(listener),
            killable: killable != 0,
            cgroup,
        })
    }

    /// Why the command was not loaded, after its process has ended; None if it was.
    pub(crate) fn exec_failure(&self, status: &OwnedFd) -> Option<LaunchError> {
        let [tag, error, _] = message(status).ok()?;
        Some(self.failure(Step::from_tag(tag)?, Errno(error)))
    }
}

/// A child that is watched, bounded, and in a descriptor table of its own.
struct Watched {
    /// What its listener is called in the table that it was born with.
    listener: Option<RawFd>,
    killable: bool,
    cgroup: OwnCgroup,
}

/// Ends a child that has not become what it was to be.
fn put_down(pid: u32) {
    let _ = sys::kill(pid, libc::SIGKILL);
    while matches!(ptrace::wait_for(pid as i32, true, libc::__WALL), Ok(Some(w))
        if !matches!(w.change, ptrace::Change::Exited(_) | ptrace::Change::Killed(_)))
    {}
}

/// Waits for a message of a child that we may be tracing. It can be stopped by a signal meanwhile, or die; its end of
/// the pipe is ours too, so that its death does not close the pipe.
fn message_of(pid: u32, status: &OwnedFd, deadline: Option<Instant>) -> Sys<[i32; 3]> {
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
        if deadline.is_some_and(|at| at <= Instant::now()) {
            return Err(Errno(libc::ETIMEDOUT));
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
/// How long a birth may take: nobody else is born in that nursery meanwhile.
const BIRTH: Duration = Duration::from_secs(2);

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

/// The child's side, where it loads a program. No allocation, no lock, no panic.
struct Child<'a> {
    birth: Birth<'a>,
    candidates: &'a [CString],
    argv: &'a [*const libc::c_char],
    shell_argv: &'a mut [*const libc::c_char],
    env: &'a [*const libc::c_char],
    parent: u32,
}

impl Child<'_> {
    fn run(&mut self) -> ! {
        // SAFETY: integers only; the signal dispositions are set before anything can rely on them.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != self.parent {
                end();
            }
            // Our own image is not dumpable, which would keep us from attaching to its copy.
            libc::prctl(libc::PR_SET_DUMPABLE, 1);
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
        self.birth.grow();
        let mut error = Errno(libc::ENOENT);
        for candidate in self.candidates {
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
        self.birth.fail(Step::Exec, error)
    }

    fn try_exec(&self, path: &CStr, argv: &[*const libc::c_char]) {
        // SAFETY: both vectors end in null and point to strings that end in a zero byte.
        unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), self.env.as_ptr()) };
    }
}
