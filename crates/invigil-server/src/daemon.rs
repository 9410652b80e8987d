//! The daemon as a whole: how it starts, takes connections, and goes down without losing anything.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use invigil_engine::redact::Redactor;
use invigil_journal::Store;
use invigil_policy::Policy;
use invigil_schema::Termination;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{Signal as UnixSignal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::approvals::Approvals;
use crate::config::Config;
use crate::home::Held;
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::person::Hosts;
use crate::proposal::{Tool, ToolInfo};
use crate::rpc;
use crate::runs::Registry;
use crate::session::{Session, lock};
use crate::signal::Signal;
use crate::tasks::Bench;
use crate::{BuiltIn, ServeError, http};

/// Threads that wait for disks and for built-in tools.
const BLOCKING: usize = 192;
/// Built-in tools at a time, so that enough threads stay for the journals.
const BUILT_IN: usize = 64;
/// How often old runs are looked for.
const TIDY: Duration = Duration::from_secs(600);

/// What is said when there is no seat.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// What all sessions share.
pub(crate) struct Daemon {
    pub(crate) config: Config,
    pub(crate) policy: Arc<Policy>,
    pub(crate) token: String,
    pub(crate) operator_token: String,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) registry: Registry,
    pub(crate) approvals: Approvals,
    /// Tasks, if there are to be any.
    pub(crate) bench: Option<Arc<Bench>>,
    /// Who has begun tasks.
    pub(crate) hosts: Hosts,
    /// No more runs and proposals are taken.
    pub(crate) going_down: Signal,
    pub(crate) built_in: Arc<Semaphore>,
    built_in_tools: BTreeMap<String, Arc<Tool>>,
    seats: Arc<Semaphore>,
    sessions: Mutex<HashMap<String, Weak<Session>>>,
}

/// One of the connections that there may be.
pub(crate) struct Seat {
    pub(crate) daemon: Arc<Daemon>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.daemon.metrics.connections.less();
    }
}

/// Where a daemon can be reached.
#[derive(Debug, Clone)]
pub struct Listening {
    /// Over TCP.
    pub url: Option<String>,
    /// The Unix socket.
    pub socket: PathBuf,
}

impl std::fmt::Display for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.url {
            Some(url) => write!(f, "{url} and {}", self.socket.display()),
            None => write!(f, "{}", self.socket.display()),
        }
    }
}

/// Runs a daemon until it is told to stop. `ready` is called when it can be reached.
pub fn serve(config: Config, ready: impl FnOnce(&Listening)) -> Result<(), ServeError> {
    let mut held = Held::take(&config.home)?;
    raise_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()
        .map_err(ServeError::Start)?;
    let served = runtime.block_on(run(config, &mut held, ready));
    runtime.shutdown_timeout(Duration::from_secs(5));
    drop(held);
    served
}

/// As many files as this user may open.
fn raise_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

async fn run(
    config: Config,
    held: &mut Held,
    ready: impl FnOnce(&Listening),
) -> Result<(), ServeError> {
    let mut signals = Signals::new().map_err(ServeError::Start)?;
    let unix = held.listen()?;
    let tcp = match config.listen {
        Some(address) if !address.ip().is_loopback() => {
            return Err(ServeError::NotLoopback(address));
        }
        Some(address) => {
            let listener = TcpListener::bind(address).await;
            Some(listener.map_err(|source| ServeError::Listen { address, source })?)
        }
        None => None,
    };
    let url = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
    let listening = Listening {
        url: url.map(|address| format!("ws://{address}")),
        socket: crate::home::Places::of(&config.home).socket(),
    };
    held.announce(&format!("process {}, {listening}", std::process::id()))?;
    let daemon = Daemon::new(config, held)?;
    tracing::info!(%listening, runs = daemon.registry.list(None, usize::MAX, |_| true).len(), "ready");
    ready(&listening);
    tokio::select! {
        () = take_unix(&daemon, unix) => {}
        () = take_tcp(&daemon, tcp) => {}
        () = tidy(&daemon) => {}
        () = signals.next() => {}
    }
    tracing::info!("going down");
    tokio::select! {
        () = daemon.go_down() => {}
        () = signals.next() => tracing::warn!("going down at once; open runs are ended by the next daemon"),
    }
    Ok(())
}

async fn take_tcp(daemon: &Arc<Daemon>, listener: Option<TcpListener>) {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                // Frames are small, and somebody waits for each.
                drop(stream.set_nodelay(true));
                match daemon.seat() {
                    Some(seat) => drop(tokio::spawn(http::serve(stream, seat, Peer::Tcp(from)))),
                    None => drop(stream.try_write(FULL)),
                }
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn take_unix(daemon: &Arc<Daemon>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match (same_user(daemon, &stream), daemon.seat()) {
                (None, _) => {}
                (Some(peer), Some(seat)) => drop(tokio::spawn(http::serve(stream, seat, peer))),
                (Some(_), None) => drop(stream.try_write(FULL)),
            },
            Err(error) => pause(&error).await,
        }
    }
}

fn same_user(daemon: &Daemon, stream: &UnixStream) -> Option<Peer> {
    let own = rustix::process::getuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == own => Some(Peer::Unix {
            pid: peer.pid().and_then(|pid| pid.try_into().ok()),
        }),
        _ => {
            daemon.metrics.connections_refused_total.add(1);
            None
        }
    }
}

/// Without files or memory the next one fails too.
async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot take a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn tidy(daemon: &Arc<Daemon>) {
    loop {
        tokio::time::sleep(TIDY).await;
        daemon.tidy().await;
    }
}

impl Daemon {
    fn new(config: Config, held: &Held) -> Result<Arc<Daemon>, ServeError> {
        let policy = Policy::load(&config.policies, &config.places)?;
        let key = crate::random().map_err(ServeError::Start)?;
        let metrics = Arc::new(Metrics::default());
        let registry = Registry::open(
            Store::new(&config.home),
            Redactor::new(key),
            &config.limits,
            config.retention.clone(),
            Arc::clone(&metrics),
        )?;
        let bench = config.workshop.clone().map(|workshop| {
            let bench = Bench::new(workshop, config.limits.tasks, Arc::clone(&metrics));
            Arc::new(bench)
        });
        Ok(Arc::new(Daemon {
            policy: Arc::new(policy),
            token: held.token.clone(),
            operator_token: held.operator_token.clone(),
            metrics,
            registry,
            approvals: Approvals::default(),
            bench,
            hosts: Hosts::default(),
            going_down: Signal::default(),
            built_in: Arc::new(Semaphore::new(BUILT_IN)),
            built_in_tools: tools_of(config.built_in.as_deref())?,
            seats: Arc::new(Semaphore::new(config.limits.connections)),
            sessions: Mutex::default(),
            config,
        }))
    }

    /// A tool of the daemon's own.
    pub(crate) fn built_in_tool(&self, name: &str) -> Option<Arc<Tool>> {
        self.built_in_tools.get(name).cloned()
    }

    /// All of them.
    pub(crate) fn built_in_tools(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.built_in_tools.values()
    }

    /// A seat for one more connection, if there is one.
    fn seat(self: &Arc<Self>) -> Option<Seat> {
        match Arc::clone(&self.seats).try_acquire_owned() {
            Ok(permit) => {
                self.metrics.connections.add(1);
                self.metrics.connections_total.add(1);
                Some(Seat {
                    daemon: Arc::clone(self),
                    _permit: permit,
                })
            }
            Err(_) => {
                self.metrics.connections_refused_total.add(1);
                None
            }
        }
    }

    pub(crate) fn enter(&self, session: &Arc<Session>) {
        let weak = Arc::downgrade(session);
        lock(&self.sessions).insert(session.id.clone(), weak);
    }

    pub(crate) fn leave(&self, session: &Session) {
        lock(&self.sessions).remove(&session.id);
    }

    /// All sessions that are there.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        let sessions = lock(&self.sessions);
        sessions.values().filter_map(Weak::upgrade).collect()
    }

    /// Removes old runs.
    pub(crate) async fn tidy(self: &Arc<Self>) {
        let daemon = Arc::clone(self);
        drop(tokio::task::spawn_blocking(move || daemon.registry.tidy()).await);
    }

    /// Tells everybody, lets what is under way come to its end, ends the runs, closes the connections.
    async fn go_down(self: &Arc<Self>) {
        self.going_down.fire();
        let grace = self.config.grace;
        let word = serde_json::json!({ "grace_ms": grace.as_millis() as u64 });
        if let Ok(word) = rpc::notification("daemon.shutdown", &word) {
            let sessions = self.sessions();
            sessions
                .iter()
                .for_each(|session| session.try_send(word.clone()));
        }
        let quiet = async {
            while self
                .sessions()
                .iter()
                .any(|session| !lock(&session.proposals).is_empty())
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let tasks = async {
            if let Some(bench) = &self.bench {
                bench.go_down(grace).await;
            }
        };
        drop(tokio::join!(tokio::time::timeout(grace, quiet), tasks));
        let mut ends = JoinSet::new();
        for run in self.registry.open_runs() {
            ends.spawn(async move { run.end(Termination::Incomplete).await });
        }
        while let Some(ended) = ends.join_next().await {
            if let Ok(Err(error)) = ended {
                tracing::warn!(%error, "the end of a run could not be recorded");
            }
        }
        self.sessions()
            .iter()
            .for_each(|session| session.gone.fire());
        let gone = async {
            while self.metrics.connections.get() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        drop(tokio::time::timeout(Duration::from_secs(2), gone).await);
    }
}

fn tools_of(built_in: Option<&dyn BuiltIn>) -> Result<BTreeMap<String, Arc<Tool>>, ServeError> {
    let mut tools = BTreeMap::new();
    for name in built_in.map(BuiltIn::names).unwrap_or_default() {
        let Some((description, parameters)) = built_in.map(|tools| tools.schema(&name)) else {
            continue;
        };
        let info = ToolInfo {
            name: name.clone(),
            description,
            parameters,
            idempotent: false,
            cache_ttl_secs: None,
            rate_limit: None,
            built_in: true,
        };
        let tool = Tool::new(info, &name);
        let tool = tool.map_err(|error| ServeError::Start(io::Error::other(error)))?;
        tools.insert(name, Arc::new(tool));
    }
    Ok(tools)
}

/// What a daemon is told by the system.
struct Signals {
    terminate: UnixSignal,
    interrupt: UnixSignal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
