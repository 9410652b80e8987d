//! What a host gets from the daemon: durable proposals a second, beside what the same frames cost without it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use invigil_server::ws::{Decoder, Incoming, Outgoing, Role, accept};
use invigil_server::{Client, Endpoint};
use serde_json::{Value, json};

use super::machine;
use super::report::{Goal, Part, Table};
use super::rounds::{Samples, number};
use super::sample::Scratch;
use crate::{Result, release};

const PATIENCE: Duration = Duration::from_secs(60);
const CLIENTS: [usize; 3] = [1, 16, 64];

/// What one client does again and again.
type Work<'a> = &'a (dyn Fn(usize) -> Result<Box<dyn FnMut() -> Result + Send>> + Sync);

pub(super) fn measure(quick: bool) -> Result<Part> {
    let scratch = Scratch::new()?;
    let mut part = Part::new("The daemon", machine::describe(scratch.path(), &[])?);
    let (rounds, time) = match quick {
        true => (2, Duration::from_millis(500)),
        false => (7, Duration::from_secs(3)),
    };
    let daemon = Daemon::start(scratch.folder("store")?)?;
    part.add(proposals(&daemon, &scratch, rounds, time)?);
    part.add(others(&daemon, if quick { 10_000 } else { 100_000 })?);
    Ok(part)
}

fn proposals(daemon: &Daemon, scratch: &Scratch, rounds: usize, time: Duration) -> Result<Table> {
    let echo = Echo::start()?;
    let folder = scratch.folder("sync")?;
    let header = [
        "clients",
        "proposals/s, a run each",
        "proposals/s, one run",
        "echo/s",
        "a sync each/s",
        "p50 ms",
        "p99 ms",
        "turns a sync, one run",
        "÷ a sync each",
        "goal",
    ];
    let mut table = Table::new("Durable proposals", &header);
    table.note(
        "Each client submits a proposal of one action, is called back, answers, and waits for the result, which comes when the \
         turn is on the medium. With a run each every client has its own journal; with one run all share one. `echo` is a bare \
         WebSocket server in the process of the clients that sends back the same two frames. `a sync each` is one thread that \
         appends a turn of the same size to a file and calls `fdatasync`, again and again. p50 and p99 are of the runs each. The \
         goal is that of the shared run; the clients use the same two cores.",
    );
    for clients in CLIENTS {
        println!("{clients} clients …");
        let (mut own, mut shared, mut bare, mut synced) = (vec![], vec![], vec![], vec![]);
        let (mut latencies, mut per_sync) = (vec![], vec![]);
        for round in 0..=rounds {
            let (rate, mut times) = run(clients, time, &|n| {
                daemon.host(&format!("r{round}-{clients}-{n}"), None)
            })?;
            let key = format!("shared-{round}-{clients}");
            let before = daemon.metrics()?;
            let (together, _) = run(clients, time, &|_| daemon.host("all", Some(&key)))?;
            let after = daemon.metrics()?;
            let (echoed, _) = run(clients, time, &|_| echo.client())?;
            let alone = sync_each(&folder, time)?;
            if round > 0 {
                own.push(rate);
                shared.push(together);
                bare.push(echoed);
                synced.push(alone);
                latencies.append(&mut times);
                per_sync.push(Duration::from_secs_f64(
                    (after.0 - before.0) / (after.1 - before.1).max(1.0),
                ));
            }
        }
        let [own, shared, bare, synced] =
            [own, shared, bare, synced].map(|each| Samples::of(&each));
        let rate = |each: &Samples| each.map(|seconds| 1.0 / seconds).to_string();
        let ratio = shared.speed_of(&synced);
        let goal = if clients >= 16 {
            Goal::AtLeast(5.0)
        } else {
            Goal::None
        };
        let latencies = Samples::of(&latencies).map(|seconds| seconds * 1000.0);
        table.row([
            clients.to_string(),
            rate(&own),
            rate(&shared),
            rate(&bare),
            rate(&synced),
            number(latencies.quantile(0.5)),
            number(latencies.quantile(0.99)),
            Samples::of(&per_sync).to_string(),
            ratio.to_string(),
            goal.verdict_of(&ratio),
        ]);
    }
    Ok(table)
}

/// Lets clients work for a while: the time per piece of work over all, and how long each piece took.
fn run(clients: usize, time: Duration, work: Work<'_>) -> Result<(Duration, Vec<Duration>)> {
    let ready = Barrier::new(clients + 1);
    let all = thread::scope(|scope| {
        let ready = &ready;
        let body = move |n| -> std::result::Result<(Vec<Duration>, Duration), String> {
            let made = work(n);
            ready.wait();
            let mut once = made.map_err(|error| error.to_string())?;
            let (begun, mut times) = (Instant::now(), Vec::new());
            while begun.elapsed() < time {
                let at = Instant::now();
                once().map_err(|error| error.to_string())?;
                times.push(at.elapsed());
            }
            Ok((times, begun.elapsed()))
        };
        let threads: Vec<_> = (0..clients).map(|n| scope.spawn(move || body(n))).collect();
        ready.wait();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().map_err(|_| "a client broke")?
        };
        threads
            .into_iter()
            .map(join)
            .collect::<std::result::Result<Vec<_>, String>>()
    })?;
    let longest = all.iter().map(|(_, took)| *took).max().unwrap_or_default();
    let times: Vec<Duration> = all.into_iter().flat_map(|(times, _)| times).collect();
    Ok((longest / times.len().max(1) as u32, times))
}

/// One thread, one sync for each turn: the time of one.
fn sync_each(folder: &Path, time: Duration) -> Result<Duration> {
    let path = folder.join("turns");
    let mut file = File::create(&path)?;
    let turn = vec![b'x'; 700];
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < time {
        file.write_all(&turn)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(begun.elapsed() / count)
}

fn others(daemon: &Daemon, turns: usize) -> Result<Table> {
    let mut table = Table::new("Catching up, and idle connections", &["what", "reached"]);
    table.note(
        "A run of many turns is subscribed to from its beginning; every record is sent as an event of its own. Memory is what the \
         daemon has more with 1,000 connections that have said who they are and nothing else.",
    );
    println!("catching up …");
    let mut host = daemon.connect("long")?;
    let run = host.call("runs.start", &json!({ "intent": "many turns" }))?;
    let run = run["run_id"].as_str().unwrap_or_default().to_owned();
    let turn = json!({ "tool": "t", "parameters": { "text": "about as much as a short command" } });
    let mut left = turns;
    while left > 0 {
        let some = left.min(256);
        host.call(
            "runs.record_turns",
            &json!({ "run_id": run, "turns": vec![&turn; some] }),
        )?;
        left -= some;
    }
    let mut reader = daemon.connect("long")?;
    let begun = Instant::now();
    let mut seen = 0;
    let first = reader.call_with(
        "runs.subscribe",
        &json!({ "run_id": run }),
        PATIENCE,
        |_, _| {
            seen += 1;
            Ok(())
        },
    )?;
    seen += first["records"].as_array().map_or(0, Vec::len);
    while seen < turns + 1 {
        reader.receive_text(PATIENCE)?;
        seen += 1;
    }
    let took = begun.elapsed();
    table.row([
        format!("catching up {turns} turns, seconds"),
        number(took.as_secs_f64()),
    ]);
    table.row([
        "turns a second".into(),
        number(turns as f64 / took.as_secs_f64()),
    ]);
    println!("idle connections …");
    let before = daemon.memory()?;
    let idle: Vec<Client> = (0..1000)
        .map(|_| daemon.connect("idle"))
        .collect::<Result<_>>()?;
    let after = daemon.memory()?;
    drop(idle);
    table.row([
        "memory of an idle connection, KiB".into(),
        number((after - before) / 1000.0),
    ]);
    Ok(table)
}

/// A daemon as it is shipped.
struct Daemon {
    child: Child,
    address: String,
    home: PathBuf,
}

impl Daemon {
    fn start(home: PathBuf) -> Result<Daemon> {
        let mut child = Command::new(release("invigil")?)
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--turns-per-run",
                "100000000",
            ])
            .env("INVIGIL_HOME", &home)
            .env("HOME", &home)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().ok_or("no stdout")?;
        BufReader::new(out).read_line(&mut line)?;
        let address = line
            .split("ws://")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let address = address.ok_or("the daemon did not start")?.to_owned();
        Ok(Daemon {
            child,
            address,
            home,
        })
    }

    fn connect(&self, agent: &str) -> Result<Client> {
        let mut client = Client::connect(&Endpoint::Tcp(self.address.clone()))?;
        let token = fs::read_to_string(self.home.join("daemon/token"))?;
        client.call(
            "session.auth",
            &json!({ "token": token, "agent_id": agent }),
        )?;
        Ok(client)
    }

    /// A client with a run: one proposal of one action, again and again.
    fn host(&self, agent: &str, key: Option<&str>) -> Result<Box<dyn FnMut() -> Result + Send>> {
        let mut client = self.connect(agent)?;
        client.call("tools.register", &json!([{ "name": "tool" }]))?;
        client.call(
            "runs.start",
            &json!({ "intent": "measure", "idempotency_key": key }),
        )?;
        let info: Value = client.call("session.info", &json!({}))?;
        let name = info["session_id"].as_str().unwrap_or_default().to_owned();
        let mut n = 0;
        Ok(Box::new(move || {
            n += 1;
            client.send(format!("{SUBMIT}{name}{n}{ACTION}"))?;
            let call = client.receive_text(PATIENCE)?;
            let id = call
                .split("\"id\":\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            let id = id.ok_or_else(|| format!("no call: {call}"))?;
            client.send(format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",{RESULT}"))?;
            let answer = client.receive_text(PATIENCE)?;
            match answer.contains("\"succeeded\"") {
                true => Ok(()),
                false => Err(answer.into()),
            }
        }))
    }

    /// Turns and syncs so far.
    fn metrics(&self) -> Result<(f64, f64)> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        let find = |name: &str| {
            let line = page.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
            number.ok_or_else(|| format!("no {name}"))
        };
        Ok((find("invigil_turns_total ")?, find("invigil_syncs_total ")?))
    }

    /// KiB in memory.
    fn memory(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let number = line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok());
        number.ok_or_else(|| "no VmRSS".into())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

const SUBMIT: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"proposal.submit\",\"params\":{\"proposal\":{\"id\":\"";
const ACTION: &str = "\",\"source\":\"bench\",\"actions\":[{\"id\":\"a\",\"type\":\"tool_call\",\"tool\":\"tool\",\
    \"parameters\":{\"path\":\"/srv/app/src/main.rs\",\"line\":7}}]}}}";
const RESULT: &str = "\"result\":{\"text\":\"fn main() {}\",\"ok\":true}}";

/// A server that sends back what it gets.
struct Echo {
    address: String,
}

impl Echo {
    fn start() -> Result<Echo> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        // It ends with this process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || echo(stream));
            }
        });
        Ok(Echo { address })
    }

    fn client(&self) -> Result<Box<dyn FnMut() -> Result + Send>> {
        let mut client = Client::connect(&Endpoint::Tcp(self.address.clone()))?;
        Ok(Box::new(move || {
            for text in [
                format!("{SUBMIT}client{ACTION}"),
                format!("{{\"id\":\"x\",{RESULT}"),
            ] {
                client.send(text)?;
                client.receive_text(PATIENCE)?;
            }
            Ok(())
        }))
    }
}

fn echo(mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut head = BufReader::new(stream.try_clone().ok()?);
    let mut key = String::new();
    loop {
        let mut line = String::new();
        head.read_line(&mut line).ok()?;
        match line.trim().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("sec-websocket-key") => {
                key = accept(value)
            }
            _ if line.trim().is_empty() => break,
            _ => {}
        }
    }
    let answer = format!("HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: {key}\r\n\r\n");
    stream.write_all(answer.as_bytes()).ok()?;
    let mut decoder = Decoder::new(Role::Server, 1 << 20);
    let (mut piece, mut frame) = ([0; 4096], Vec::new());
    loop {
        match decoder.next().ok()? {
            Some(Incoming::Text(text)) => {
                frame.clear();
                Outgoing::Text(text).encode(&mut frame, None);
                stream.write_all(&frame).ok()?;
            }
            Some(_) => {}
            None => {
                let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
                decoder.input().extend_from_slice(&piece[..read]);
            }
        }
    }
}
