//! What the engine sees: how to start a run, who receives its facts, who decides, and how it ended.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use invigil_schema::{
    Digest, Errno, Event, FileOp, Limited, NetOp, ObserverFinished, Origin, OsText, ProcessRef,
    RulePlace, Tier,
};

use crate::confine::Confinement;
use crate::limits::Limits;
use crate::nursery::Nursery;
use crate::waker::{Mailbox, Order};

/// What to start, and how to watch it.
#[derive(Debug)]
pub struct LaunchSpec {
    /// The command and its arguments. A command without a slash is looked up in `PATH` of `env`.
    pub argv: Vec<OsString>,
    /// The whole environment of the command.
    pub env: BTreeMap<OsString, OsString>,
    /// Where it starts.
    pub cwd: PathBuf,
    /// Its standard input.
    pub stdin: Stdio,
    /// Its standard output.
    pub stdout: Stdio,
    /// Its standard error.
    pub stderr: Stdio,
    /// How to watch.
    pub tier: Tier,
    /// What becomes of opens for reading.
    pub reads: Reads,
    /// Absolute paths that nothing in the run may change: Invigil's own store.
    pub protected: Vec<PathBuf>,
    /// Whether the gate must not be fooled: whatever it judges is carried out by us, or not at all, so that nothing can
    /// be changed after it was judged. Processes that are not like us any more (other credentials, a sandbox of their
    /// own) can do little then, and peers of Unix sockets see the supervisor. On the network it needs `pidfd_getfd`; the
    /// hook `exact_network` says whether it is so.
    pub exact: bool,
    /// Whether Landlock keeps signals inside the run where the kernel can do that. Without it they are trapped. With
    /// it nothing in the run can mount anything, so that sandboxes inside do not work.
    pub landlock: bool,
    /// What the run may reach at most; None leaves it free.
    pub confine: Option<Confinement>,
    /// How much it may use.
    pub limits: Limits,
    /// Whether the digest of each program that is loaded is taken.
    pub digests: bool,
    /// How long one call may keep the observer busy before the whole run is killed.
    pub patience: Duration,
    /// Where the command may be born, grown up: as a copy of a process that has loaded it already, in an environment like
    /// `env`. It is loaded as usual where that cannot be.
    pub nursery: Option<Arc<Nursery>>,
}

impl LaunchSpec {
    /// A command with the environment, directory and standard streams of this process, in the default tier.
    pub fn new<A: Into<OsString>>(argv: impl IntoIterator<Item = A>) -> Self {
        LaunchSpec {
            argv: argv.into_iter().map(Into::into).collect(),
            env: std::env::vars_os().collect(),
            cwd: std::env::current_dir().unwrap_or_else(|_| "/".into()),
            stdin: Stdio::Inherit,
            stdout: Stdio::Inherit,
            stderr: Stdio::Inherit,
            tier: Tier::Notify,
            reads: Reads::Free,
            protected: Vec::new(),
            exact: false,
            landlock: false,
            confine: None,
            limits: Limits::default(),
            digests: true,
            patience: Duration::from_secs(120),
            nursery: None,
        }
    }
}

/// What becomes of opens for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// Nobody sees them, and they cost nothing.
    Free,
    /// The gate is asked, and only what is refused is a fact.
    Judged,
    /// The gate is asked, and each one is a fact.
    Recorded,
}

/// What a standard stream of the command is.
#[derive(Debug)]
pub enum Stdio {
    /// That of this process.
    Inherit,
    /// `/dev/null`.
    Null,
    /// This descriptor.
    Fd(OwnedFd),
}

/// Why a fact could not be recorded.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Who receives the facts of a run, in the order in which they became known.
pub trait Sink: Send {
    /// Records one fact. The call that it is about is answered only after this returns; an error kills the whole run.
    fn fact(&mut self, origin: Origin, event: Event) -> Result<(), SinkError>;
}

impl<F: FnMut(Origin, Event) -> Result<(), SinkError> + Send> Sink for F {
    fn fact(&mut self, origin: Origin, event: Event) -> Result<(), SinkError> {
        self(origin, event)
    }
}

/// Something that a process wants to do and that has not happened yet.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What an answer that comes later is addressed to.
    pub id: u64,
    /// Who wants it.
    pub process: ProcessRef,
    /// What it wants.
    pub action: Action<'a>,
    /// When it is asked about.
    pub moment: Moment,
    /// The file that it is about, where it is held: what the names in the action stand for, whoever renames them.
    pub held: Option<BorrowedFd<'a>>,
    /// On the network: exactly this will happen, or nothing. Otherwise another thread may exchange the address behind
    /// the decision, and nothing can be led elsewhere.
    pub exact: bool,
}

/// When a gate is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before it happens; it can wait until somebody has decided.
    Before,
    /// It does not happen anyway, because the kernel refuses it. The gate says whether it is refused here too, which is
    /// of interest only if somebody has said so of this very thing.
    Failing,
    /// It has happened, and its process can still be stopped.
    After,
}

/// What a process wants to do. In the facts inside, the result is not known yet.
#[derive(Debug, Clone, Copy)]
pub enum Action<'a> {
    /// Load a program.
    Exec(Exec<'a>),
    /// Do something to a file.
    File(&'a FileOp),
    /// Do something on the network.
    Net(&'a NetOp),
}

/// A program that is to be loaded, or has been.
#[derive(Debug, Clone, Copy)]
pub struct Exec<'a> {
    /// Whether it is loaded, so that all of this is fixed and nothing of it has run. Before, the caller could still
    /// change it, and a refusal is an error that it is told; now, a refusal kills.
    pub loaded: bool,
    /// The file, all links followed. Loaded, for a script, its interpreter.
    pub program: &'a OsText,
    /// What was asked for, made absolute, its links not followed.
    pub asked: &'a OsText,
    /// The same, letter for letter. A script gets this as its name.
    pub name: &'a OsText,
    /// The arguments; empty if the gate does not look at them.
    pub argv: &'a [OsText],
    /// Whether there are more arguments than these.
    pub cut: bool,
    /// The digest of a program that is loaded.
    pub sha256: Option<Digest>,
}

/// What a gate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It may happen, or may not.
    Now(Decision),
    /// Somebody is asked. The process waits until [`crate::Handle::answer`] is called with the request's id.
    Ask,
}

/// What is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It may happen.
    Allow,
    /// It may happen, but at another address. Only for connects and sends on the internet whose request is exact;
    /// otherwise it is a refusal.
    Instead {
        /// The address.
        to: SocketAddr,
        /// The name that it stands for; it is in the evidence.
        host: Option<String>,
    },
    /// It does not happen, and the process is told this error.
    Deny {
        /// The error.
        error: Errno,
        /// The rule that says so; it is in the evidence.
        rule: String,
        /// Where it stands, if that is a policy file.
        place: Option<Box<RulePlace>>,
    },
}

/// Who decides. It is asked on the observer's thread, and everything waits for it: it must not block.
pub trait Gate: Send {
    /// Decides on one request.
    fn check(&mut self, request: &Request<'_>) -> Answer;

    /// The run is about to begin; this steers it.
    fn begin(&mut self, _: Line) {}

    /// Nobody waits for the answer to this request any more.
    fn withdrawn(&mut self, _: u64) {}

    /// Whether it looks at what programs are started with, and at each one when it is loaded.
    fn looks_at_programs(&self) -> bool {
        false
    }
}

/// Steers a run from any thread, from before its first program is loaded.
#[derive(Debug, Clone)]
pub struct Line(pub(crate) Arc<Mailbox>);

impl Line {
    /// Sends a signal to every process of the run.
    pub fn signal(&self, signal: i32) {
        self.0.post(Order::Signal(signal));
    }

    /// Kills every process of the run.
    pub fn kill(&self) {
        self.0.post(Order::Kill);
    }

    /// Stops every process of the run, whoever is born meanwhile included, until [`Line::resume`]. No process inside can
    /// end it, but in the tier `contract_only`. Whether nothing moved any more before the patience was over.
    pub fn pause(&self, patience: Duration) -> bool {
        let (tell, told) = mpsc::sync_channel(1);
        self.0.post(Order::Pause(tell));
        told.recv_timeout(patience).is_ok()
    }

    /// Lets every process of the run go on.
    pub fn resume(&self) {
        self.0.post(Order::Resume);
    }

    /// Whether a process of the run still has what the command was started with: credentials, namespaces, root, no sandbox
    /// of its own. What is done in its name gains it nothing then.
    pub fn is_kin(&self, process: ProcessRef, patience: Duration) -> bool {
        let (tell, told) = mpsc::sync_channel(1);
        self.0.post(Order::Kin(process, tell));
        told.recv_timeout(patience).unwrap_or(false)
    }

    /// Answers a request that the gate has left open. Without effect if nobody waits for it any more.
    pub fn answer(&self, request: u64, decision: Decision) {
        self.0.post(Order::Answer(request, decision));
    }
}

/// A gate that allows everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl Gate for AllowAll {
    fn check(&mut self, _: &Request<'_>) -> Answer {
        Answer::Now(Decision::Allow)
    }
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The exit code of the command, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// From the start of the command to the death of the last process.
    pub elapsed: Duration,
    /// How much was seen.
    pub observed: ObserverFinished,
    /// Why the tree was killed before its time, if it was.
    pub killed: Option<Killed>,
}

/// Why a whole tree was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Killed {
    /// It was asked for.
    Asked,
    /// A fact could not be recorded.
    SinkFailed(String),
    /// The observer itself failed.
    ObserverFailed(String),
    /// It has used more than it may.
    Limit {
        /// The limit that it met.
        limited: Limited,
        /// How much it had used when that was noticed, in the unit of the limit.
        measured: u64,
    },
}

/// Why a run did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is nothing to start.
    #[error("there is no command to run")]
    NoCommand,
    /// A text that goes to the kernel has a zero byte inside.
    #[error("an argument, a variable or a path has a zero byte inside")]
    ZeroByte,
    /// There is no such command.
    #[error("{command}: not found")]
    NotFound {
        /// What was looked for.
        command: String,
    },
    /// The command is there but cannot be executed.
    #[error("{command}: cannot be executed: {error}")]
    NotExecutable {
        /// What was tried.
        command: String,
        /// Why not.
        error: Errno,
    },
    /// The working directory cannot be entered.
    #[error("{cwd}: cannot be the working directory: {error}")]
    Cwd {
        /// The directory.
        cwd: String,
        /// Why not.
        error: Errno,
    },
    /// The tier is not to be had here.
    #[error("the {} tier cannot be had here: {step} failed with {error}; `invigil doctor` says more", tier.as_str())]
    Tier {
        /// Which tier.
        tier: Tier,
        /// What failed.
        step: &'static str,
        /// With what.
        error: Errno,
    },
    /// The first facts could not be recorded.
    #[error("the first facts could not be recorded: {0}")]
    Sink(String),
    /// Something else.
    #[error("{step} failed with {error}")]
    System {
        /// What failed.
        step: &'static str,
        /// With what.
        error: Errno,
    },
}
