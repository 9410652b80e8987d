//! Names against real clients: python's resolver over whatever name server this machine has, and raw queries. Nothing
//! leaves loopback: every query is led to the answerer, and the resolver behind it is the test's own.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "these are tests")]

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use invigil_engine::Names;
use invigil_sandbox::{
    Action, Answer, Decision, Gate, LaunchSpec, Request, SinkError, Stdio, launch,
};
use invigil_schema::{Address, CallResult, Errno, Event, NetOp, Origin};

/// How a connection that is not waited for begins.
const IN_PROGRESS: i32 = 115;

/// Every name is looked up here, and nowhere else.
fn resolve(name: &str) -> std::io::Result<Vec<IpAddr>> {
    match name {
        "api.example.com" => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
        "two.example.com" => Ok(vec![
            Ipv4Addr::new(127, 0, 0, 9).into(),
            Ipv4Addr::LOCALHOST.into(),
        ]),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    }
}

/// Names below `example.com` may be reached; addresses may not.
struct ByName(Names);

impl Gate for ByName {
    fn check(&mut self, request: &Request<'_>) -> Answer {
        let Action::Net(op) = request.action else {
            return Answer::Now(Decision::Allow);
        };
        let address = match op.address {
            Address::Inet { ip, port } => SocketAddr::new(ip.into(), port),
            Address::Inet6 { ip, port, .. } => SocketAddr::new(ip.into(), port),
            _ => return Answer::Now(Decision::Allow),
        };
        assert!(request.exact);
        Answer::Now(if self.0.is_dns(address) {
            Decision::Instead {
                to: self.0.answerer(),
                host: None,
            }
        } else if let Some(named) = self.0.judge(address) {
            Decision::Instead {
                to: named.real,
                host: Some(named.host),
            }
        } else {
            Decision::Deny {
                error: Errno(13),
                place: None,
                rule: "by address".to_owned(),
            }
        })
    }
}

/// Runs a Python script under the gate; what it printed, and what it did on the network.
fn run(prefix: &[&str], script: &str) -> (String, Vec<NetOp>, Vec<String>) {
    let denied = Arc::new(Mutex::new(Vec::new()));
    let refused = Arc::clone(&denied);
    let allowed = move |name: &str, _| {
        let may = name.ends_with(".example.com");
        if !may {
            refused.lock().unwrap().push(name.to_owned());
        }
        may
    };
    let gate = ByName(Names::start_with(allowed, resolve).unwrap());
    let mut argv: Vec<String> = prefix.iter().map(|&word| word.to_owned()).collect();
    argv.extend(["/usr/bin/env", "python3", "-c", script].map(str::to_owned));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut spec = LaunchSpec::new(argv);
    spec.exact = true;
    spec.cwd = "/".into();
    spec.stdin = Stdio::Null;
    spec.stderr = Stdio::Fd(writer.try_clone().unwrap().into());
    spec.stdout = Stdio::Fd(writer.into());
    let facts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&facts);
    let sink = move |_: Origin, event: Event| -> Result<(), SinkError> {
        if let Event::NetOp(op) = event {
            seen.lock().unwrap().push(op);
        }
        Ok(())
    };
    let handle = launch(spec, sink, gate).unwrap();
    let output = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    let outcome = handle.wait(Some(Duration::from_secs(60)));
    handle.kill();
    let text = output.join().unwrap();
    assert!(outcome.is_some(), "it hangs: {text}");
    let facts = facts.lock().unwrap().clone();
    let denied = denied.lock().unwrap().clone();
    (text, facts, denied)
}

/// As ourselves, and as somebody with fewer rights where that is possible.
fn users() -> Vec<Vec<&'static str>> {
    let mut users = vec![vec![]];
    let somebody = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--",
    ];
    let possible = Command::new(somebody[0])
        .args(&somebody[1..])
        .arg("true")
        .status();
    if possible.is_ok_and(|status| status.success()) {
        users.push(somebody.to_vec());
    }
    users
}

fn has_python() -> bool {
    let there = Command::new("python3").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: there is no python3");
    }
    there
}

/// A server that says hello to everybody.
fn server() -> (u16, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut word = [0; 3];
            if stream.read(&mut word).is_ok_and(|n| &word[..n] == b"end") {
                return;
            }
            let _ = stream.write_all(b"hello");
        }
    });
    (port, thread)
}

fn end(port: u16, thread: std::thread::JoinHandle<()>) {
    let mut last = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    last.write_all(b"end").unwrap();
    thread.join().unwrap();
}

#[test]
fn a_host_is_reached_by_its_name_and_by_nothing_else() {
    if !has_python() {
        return;
    }
    let has_server = std::fs::read_to_string("/etc/resolv.conf")
        .is_ok_and(|text| text.lines().any(|line| line.starts_with("nameserver")));
    if !has_server {
        eprintln!("skipped: this machine has no name server to turn to");
        return;
    }
    let (port, thread) = server();
    let script = format!(
        "import socket
def reach(host):
    try:
        s = socket.create_connection((host, {port}), timeout=10)
        s.sendall(b'hi')
        print(host, s.recv(5).decode())
    except OSError as e:
        print(host, type(e).__name__, e.errno)
reach('api.example.com')
reach('two.example.com')
reach('127.0.0.1')
reach('evil.example.org')
reach('none.example.com')
print(socket.getaddrinfo('api.example.com', {port}, type=socket.SOCK_STREAM)[0][4][0])
"
    );
    for user in users() {
        let (text, facts, denied) = run(&user, &script);
        let expected = "api.example.com hello\ntwo.example.com hello\n127.0.0.1 PermissionError 13\n\
                        evil.example.org gaierror -2\nnone.example.com gaierror -2\n198.18.0.1\n";
        assert_eq!(text, expected, "{user:?}");
        assert!(
            denied.iter().any(|name| name == "evil.example.org"),
            "{denied:?}"
        );
        let named = |op: &&NetOp| {
            op.host.as_deref() == Some("api.example.com")
                && matches!(
                    op.result,
                    CallResult::Ok | CallResult::Failed(Errno(IN_PROGRESS))
                )
                && matches!(op.address, Address::Inet { ip, .. } if ip.octets()[0] == 198)
        };
        let real = Address::Inet {
            ip: Ipv4Addr::LOCALHOST,
            port,
        };
        let led = facts
            .iter()
            .filter(named)
            .any(|op| op.instead.as_ref() == Some(&real));
        assert!(led, "{user:?} {facts:?}");
    }
    end(port, thread);
}

#[test]
fn raw_queries_over_udp_and_tcp() {
    if !has_python() {
        return;
    }
    let script = r"
import socket, struct
def q(name, kind):
    labels = b''.join(bytes([len(l)]) + l.encode() for l in name.split('.'))
    return struct.pack('>6H', 7, 0x100, 1, 0, 0, 0) + labels + b'\0' + struct.pack('>2H', kind, 1)
def show(what, m):
    rcode, count = m[3] & 15, struct.unpack('>H', m[6:8])[0]
    print(what, rcode, count, '.'.join(map(str, m[-4:])) if count and what != 'ptr' else '')
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.settimeout(10)
u.connect(('192.0.2.1', 53))
def udp(what, *question):
    u.send(q(*question)); show(what, u.recv(600))
udp('a', 'Two.Example.com', 1)
udp('aaaa', 'two.example.com', 28)
udp('https', 'two.example.com', 65)
udp('ptr', '1.0.18.198.in-addr.arpa', 12)
udp('other ptr', '9.9.18.198.in-addr.arpa', 12)
udp('local', 'x.localhost', 1)
udp('denied', 'secret.example.org', 1)
udp('number', '127.1', 1)
u.send(b'\0\7\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1'); show('loop', u.recv(600))
u.send(b'junk')
free = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
free.settimeout(10)
free.sendto(q('api.example.com', 1), ('192.0.2.2', 53))
show('free', free.recv(600))
t = socket.create_connection(('192.0.2.3', 53), timeout=10)
for name in ('api.example.com', 'two.example.com'):
    m = q(name, 1)
    t.sendall(struct.pack('>H', len(m)) + m)
    size = struct.unpack('>H', t.recv(2))[0]
    show('tcp', t.recv(size))
t.sendall(b'\xff\xff' + b'x' * 5000)
try: print('huge', t.recv(2))
except OSError: print('huge', b'')
";
    for user in users() {
        let (text, ..) = run(&user, script);
        let expected = "a 0 2 198.18.0.2\naaaa 0 0 \nhttps 0 0 \nptr 0 1 \nother ptr 3 0 \n\
                        local 0 1 127.0.0.1\ndenied 3 0 \nnumber 3 0 \nloop 1 0 \nfree 0 1 198.18.0.3\n\
                        tcp 0 1 198.18.0.3\ntcp 0 2 198.18.0.2\nhuge b''\n";
        assert_eq!(text, expected, "{user:?}");
    }
}
