//! A daemon of its own for each test, and hosts that talk to it.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use invigil_server::{Client, ClientError, Endpoint, RpcError};
use serde_json::{Value, json};

/// Nobody in particular: an ordinary user without any rights.
const NOBODY: u32 = 65534;
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A store, and whoever serves it.
pub(crate) struct World {
    directory: tempfile::TempDir,
    nobody: bool,
}

impl World {
    pub(crate) fn new() -> World {
        World {
            directory: tempfile::tempdir().unwrap(),
            nobody: false,
        }
    }

    /// As whoever runs the tests; if that is root, as an ordinary user too.
    pub(crate) fn everyone() -> Vec<World> {
        let mut all = vec![World::new()];
        let setpriv = Command::new("setpriv").arg("--version").output();
        if rustix::process::getuid().is_root() && setpriv.is_ok() {
            let directory = tempfile::tempdir().unwrap();
            std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
            let nobody = true;
            all.push(World { directory, nobody });
        } else {
            println!("only as this user: no root, or no setpriv");
        }
        all
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.program(env!("CARGO_BIN_EXE_invigil"), args)
    }

    /// Any program, as the user of this world.
    pub(crate) fn program(&self, binary: &str, args: &[&str]) -> Command {
        let mut command = Command::new(if self.nobody { "setpriv" } else { binary });
        if self.nobody {
            let nobody = NOBODY.to_string();
            let ids = [
                "--reuid",
                &nobody,
                "--regid",
                &nobody,
                "--clear-groups",
                binary,
            ];
            command.args(ids);
        }
        command
            .args(args)
            .env("HOME", self.directory.path())
            .env_remove("XDG_CONFIG_HOME")
            .env("INVIGIL_HOME", self.home())
            .env("NO_COLOR", "1")
            .current_dir(self.directory.path());
        command
    }

    /// Starts a daemon on a free port, and waits until it can be reached.
    pub(crate) fn serve(&self, args: &[&str]) -> Daemon<'_> {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0"];
        all.extend(args);
        let errors = self.directory.path().join("daemon.log");
        let errors = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(errors);
        let mut child = self
            .command(&all)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors.unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let address = line
            .split("ws://")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .unwrap_or_else(|| panic!("{line:?} {}", self.log()))
            .to_owned();
        Daemon {
            world: self,
            child,
            address,
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("daemon.log")).unwrap_or_default()
    }

    /// The events of a run, as they stand in its journal.
    pub(crate) fn events(&self, run: &str) -> Vec<Value> {
        let path = self.home().join("runs").join(run).join("journal.ndjson");
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().filter(|line| !line.is_empty());
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The data of all events of a kind.
    pub(crate) fn all(&self, run: &str, kind: &str) -> Vec<Value> {
        let events = self.events(run).into_iter();
        events
            .filter(|event| event["kind"] == kind)
            .map(|mut event| event["data"].take())
            .collect()
    }

    /// Every journal of the store is whole.
    pub(crate) fn verify(&self, run: &str) {
        let output = self.command(&["verify", run]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}{error}");
    }
}

/// A daemon that runs; killed when it is dropped.
pub(crate) struct Daemon<'w> {
    pub(crate) world: &'w World,
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        self.kill();
        let log = self.world.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

impl Daemon<'_> {
    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Asks it to stop, and waits; the exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }

    pub(crate) fn token(&self, name: &str) -> String {
        std::fs::read_to_string(self.world.home().join("daemon").join(name)).unwrap()
    }

    /// A connection that has said nothing.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(&Endpoint::Tcp(self.address.clone())).unwrap()
    }

    /// A host that has said who it is.
    pub(crate) fn host(&self, agent: Option<&str>) -> Host {
        self.with_token(&self.token("token"), agent)
    }

    pub(crate) fn operator(&self) -> Host {
        self.with_token(&self.token("operator-token"), None)
    }

    fn with_token(&self, token: &str, agent: Option<&str>) -> Host {
        let mut host = Host::new(self.connect());
        let auth = json!({ "token": token, "agent_id": agent });
        host.session = host.ok("session.auth", auth)["session_id"]
            .as_str()
            .unwrap()
            .to_owned();
        host
    }

    /// A page over plain HTTP, with what stands in front of it.
    pub(crate) fn get(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut page = String::new();
        drop(stream.read_to_string(&mut page));
        page
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = self.get("/metrics", "Host: localhost\r\n");
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("invigil_{name} ")));
        line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a number is as it should be.
    pub(crate) fn wait_for(&self, name: &str, wanted: impl Fn(u64) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !wanted(self.metric(name)) {
            assert!(Instant::now() < until, "{name} is {}", self.metric(name));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What a tool does when it is called: what it answers, if it does.
pub(crate) type ToolFn = Box<dyn FnMut(&Value) -> Reply + Send>;

/// How a tool answers.
pub(crate) enum Reply {
    With(Value),
    Failing(&'static str),
    Never,
    Twice(Value),
}

/// An agent host.
pub(crate) struct Host {
    pub(crate) client: Client,
    pub(crate) session: String,
    tools: HashMap<String, ToolFn>,
    /// Everything that came besides answers.
    pub(crate) seen: Vec<Value>,
    next: u64,
}

impl Host {
    pub(crate) fn new(client: Client) -> Host {
        Host {
            client,
            session: String::new(),
            tools: HashMap::new(),
            seen: Vec::new(),
            next: 0,
        }
    }

    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, ClientError> {
        let (tools, seen) = (&mut self.tools, &mut self.seen);
        self.client
            .call_with(method, &params, PATIENCE, |client, message| {
                serve(client, tools, &message)?;
                seen.push(message);
                Ok(())
            })
    }

    #[track_caller]
    pub(crate) fn ok(&mut self, method: &str, params: Value) -> Value {
        match self.call(method, params.clone()) {
            Ok(answer) => answer,
            Err(error) => panic!("{method} {params}: {error}"),
        }
    }

    #[track_caller]
    pub(crate) fn refused(&mut self, method: &str, params: Value) -> RpcError {
        match self.call(method, params.clone()) {
            Err(ClientError::Refused(error)) => error,
            other => panic!("{method} {params}: {other:?}"),
        }
    }

    /// Registers a tool without a schema.
    pub(crate) fn tool(&mut self, name: &str, tool: impl FnMut(&Value) -> Reply + Send + 'static) {
        self.ok(
            "tools.register",
            json!([{ "name": name, "description": "", "parameters": {} }]),
        );
        self.tools.insert(name.to_owned(), Box::new(tool));
    }

    /// What a tool does that was registered in another way.
    pub(crate) fn on(&mut self, name: &str, tool: impl FnMut(&Value) -> Reply + Send + 'static) {
        self.tools.insert(name.to_owned(), Box::new(tool));
    }

    pub(crate) fn start(&mut self, intent: &str) -> String {
        let run = self.ok("runs.start", json!({ "intent": intent }));
        run["run_id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn proposal(&mut self, actions: Value) -> Value {
        self.next += 1;
        json!({ "proposal": { "id": format!("p{}", self.next), "source": "test", "actions": actions } })
    }

    /// The results of a proposal.
    #[track_caller]
    pub(crate) fn submit(&mut self, actions: Value) -> Vec<Value> {
        let proposal = self.proposal(actions);
        let answer = self.ok("proposal.submit", proposal);
        answer["results"].as_array().unwrap().clone()
    }

    /// The turns of a run, as the daemon tells them.
    #[track_caller]
    pub(crate) fn turns(&mut self, run: &str) -> Vec<Value> {
        self.records(run, "turn")
    }

    #[track_caller]
    pub(crate) fn records(&mut self, run: &str, kind: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = 0;
        loop {
            let page = self.ok("runs.get_trace", json!({ "run_id": run, "cursor": cursor }));
            let records = page["records"].as_array().unwrap().clone();
            cursor = page["cursor"].as_u64().unwrap();
            if records.is_empty() {
                break;
            }
            all.extend(records);
        }
        all.retain(|record| record["record"] == kind);
        all
    }

    /// How often a tool was called.
    pub(crate) fn calls(&self, method: &str) -> usize {
        self.seen
            .iter()
            .filter(|message| message["method"] == method)
            .count()
    }

    /// Serves callbacks until something is so.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: impl Fn(&Host) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !wanted(self) {
            assert!(Instant::now() < until, "{:?}", self.seen);
            self.listen(Duration::from_millis(20));
        }
    }

    /// The answer to a request that was sent.
    #[track_caller]
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        let answers = |host: &Host| host.seen.iter().position(|message| message["id"] == id);
        self.until(|host| answers(host).is_some());
        let at = answers(self).unwrap();
        self.seen[at].clone()
    }

    /// Serves callbacks for a while.
    pub(crate) fn listen(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.client.receive(left) {
                Ok(message) => {
                    serve(&mut self.client, &mut self.tools, &message).unwrap();
                    self.seen.push(message);
                }
                Err(ClientError::Timeout) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn complete(&mut self, run: &str) {
        self.ok(
            "runs.complete",
            json!({ "run_id": run, "outcome": { "status": "success" } }),
        );
    }
}

fn serve(
    client: &mut Client,
    tools: &mut HashMap<String, ToolFn>,
    message: &Value,
) -> Result<(), ClientError> {
    if message["method"] != "tools.execute" {
        return Ok(());
    }
    let params = &message["params"];
    let tool = params["tool"].as_str().unwrap();
    let Some(tool) = tools.get_mut(tool) else {
        return Ok(());
    };
    let id = &message["id"];
    let with = |result: Value| json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
    match tool(params) {
        Reply::With(value) => client.send(with(value)),
        Reply::Twice(value) => {
            client.send(with(value.clone()))?;
            client.send(with(value))
        }
        Reply::Failing(why) => {
            let error = json!({ "code": -1, "message": why });
            client.send(json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string())
        }
        Reply::Never => Ok(()),
    }
}
