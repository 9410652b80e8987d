//! A run whose network is exact: what a gate refuses does not happen, whatever another thread does meanwhile, and what
//! it allows happens as it would without anybody watching.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{Mode, is_root, lasting_dir, open_dir};

/// How often a race is run; the long form is much longer.
fn tries() -> u64 {
    let text = std::env::var("INVIGIL_RACES").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(50_000)
}

/// The program that tries.
fn sockets() -> Option<&'static str> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sockets.c");
        let program = lasting_dir().join("sockets");
        let mut gcc = Command::new("gcc");
        gcc.args(["-w", "-O1", "-pthread", source, "-o"])
            .arg(&program);
        gcc.status().is_ok_and(|s| s.success()).then_some(program)
    });
    if built.is_none() {
        eprintln!("skipped: there is no gcc to build the fixtures with");
    }
    built.as_ref().and_then(|program| program.to_str())
}

fn users() -> Vec<Mode> {
    let users: &[bool] = if is_root() { &[true, false] } else { &[false] };
    let tier = "notify";
    users.iter().map(|&root| Mode { root, tier }).collect()
}

/// Runs one race for each user. Facts are not written down: there are too many.
fn race(way: &str, family: &str, good: &str, bad: &str, deny: &str) {
    let Some(program) = sockets() else { return };
    let (users, tries) = (users(), tries().to_string());
    for mode in users {
        let seconds = (60 + tries.parse::<u64>().unwrap() / 1000).to_string();
        let mut watch = mode.watch(
            std::path::Path::new("/tmp"),
            &[
                "--exact",
                "--quiet",
                "--deny",
                deny,
                "--timeout",
                &seconds,
                "--out",
                "/dev/null",
            ],
        );
        watch.args([program, "race", way, &tries, family, good, bad]);
        let output = watch.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mode:?} {way} {text} {error}");
        assert!(
            ["some\n", "over\n"].contains(&&*text),
            "{mode:?} {way} {text} {error}"
        );
    }
}

/// Takes connections, and says at the end how many there were.
fn count_tcp(ip: &str) -> (u16, impl FnOnce() -> usize) {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut seen = 0;
        while let Ok((stream, _)) = listener.accept() {
            // The last one is ours.
            stream
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            let mut byte = [0; 3];
            if std::io::Read::read(&mut &stream, &mut byte).is_ok_and(|n| &byte[..n] == b"end") {
                break;
            }
            seen += 1;
        }
        seen
    });
    (port, move || {
        let mut last = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut last, b"end").unwrap();
        server.join().unwrap()
    })
}

fn port_text(port: u16) -> String {
    format!("port: {port}")
}

#[test]
fn exact_races_of_connect() {
    for ip in ["127.0.0.1", "::1"] {
        let ((good, allowed), (bad, denied)) = (count_tcp(ip), count_tcp(ip));
        let (good, bad) = (good.to_string(), bad.to_string());
        race("connect", ip, &good, &bad, &format!("port: {bad}"));
        assert_eq!(denied(), 0, "{ip}");
        assert!(allowed() > 0, "{ip}");
    }
}

#[test]
fn exact_races_of_datagrams() {
    for (way, ip) in [
        ("sendto", "127.0.0.1"),
        ("sendmsg", "127.0.0.1"),
        ("sendmsg", "::1"),
        ("sendmmsg", "127.0.0.1"),
        ("dconnect", "127.0.0.1"),
        ("swap", "127.0.0.1"),
    ] {
        let (good, bad) = (
            UdpSocket::bind((ip, 0)).unwrap(),
            UdpSocket::bind((ip, 0)).unwrap(),
        );
        let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
        let (to, not) = (port(&good).to_string(), port(&bad).to_string());
        race(way, ip, &to, &not, &port_text(port(&bad)));
        for socket in [&good, &bad] {
            socket.set_nonblocking(true).unwrap();
        }
        assert!(bad.recv(&mut [0; 8]).is_err(), "{way} {ip}");
        assert_eq!(good.recv(&mut [0; 8]).is_ok(), way != "swap", "{way} {ip}");
    }
}

#[test]
fn exact_races_of_unix_sockets() {
    let dir = open_dir();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (good, bad) = (path("aaaa.sock"), path("bbbb.sock"));
    let allowed = UnixListener::bind(&good).unwrap();
    let denied = UnixListener::bind(&bad).unwrap();
    for name in [&good, &bad] {
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(name, everybody).unwrap();
    }
    let server = std::thread::spawn(move || {
        let mut seen = 0;
        while let Ok((mut stream, _)) = allowed.accept() {
            let mut byte = [0; 3];
            if std::io::Read::read(&mut stream, &mut byte).is_ok_and(|n| &byte[..n] == b"end") {
                return seen;
            }
            seen += 1;
        }
        seen
    });
    race("connect", "unix", &good, &bad, "bbbb.sock");
    let mut last = std::os::unix::net::UnixStream::connect(&good).unwrap();
    std::io::Write::write_all(&mut last, b"end").unwrap();
    assert!(server.join().unwrap() > 0);
    denied.set_nonblocking(true).unwrap();
    assert!(denied.accept().is_err());
    // Abstract names, by datagrams.
    let pid = std::process::id();
    let name = |kind: &str| format!("@invigil-{pid}-{kind}");
    let bind = |name: &str| {
        let bytes = [&name.as_bytes()[1..], b"\0"].concat();
        let socket =
            UnixDatagram::bind_addr(&UnixAddr::from_abstract_name(bytes).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (good, bad) = (bind(&name("good")), bind(&name("evil")));
    for way in ["sendto", "sendmsg"] {
        let over = AtomicBool::new(false);
        let taken = std::thread::scope(|scope| {
            // A queue that is full would keep everybody out.
            let drain = scope.spawn(|| {
                let mut taken = 0;
                while !over.load(Ordering::Relaxed) {
                    match good.recv(&mut [0; 8]) {
                        Ok(_) => taken += 1,
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
                taken
            });
            race(way, "unix", &name("good"), &name("evil"), "evil");
            over.store(true, Ordering::Relaxed);
            drain.join().unwrap()
        });
        assert!(bad.recv(&mut [0; 8]).is_err(), "{way}");
        assert!(taken > 0, "{way}");
    }
}

#[test]
fn exact_calls_are_as_they_would_be() {
    let Some(program) = sockets() else { return };
    for mode in users() {
        let (code, bare) = mode.bare(&[program, "faithful"]);
        let run = mode.run(&["--exact"], &[program, "faithful"]);
        assert_eq!(run.output, bare, "{mode:?}");
        assert_eq!((run.code, code), (0, 0), "{mode:?}");
        run.complete();
        let hooks = run.of("observer_started")[0]["hooks"].clone();
        let exact = hooks
            .as_array()
            .unwrap()
            .iter()
            .find(|h| h["name"] == "exact_network");
        assert_eq!(exact.unwrap()["attached"], true, "{mode:?}");
        let socket = run.work().join("here.sock");
        let ops: Vec<_> = run
            .of("net_op")
            .into_iter()
            .filter(|op| op["address"]["path"] == socket.to_str().unwrap())
            .map(|op| format!("{} {}", op["op"], op["result"]))
            .collect();
        let expected = [
            "bind ok",
            "listen ok",
            "connect ok",
            "bind EADDRINUSE",
            "connect ok",
        ];
        assert_eq!(ops.len(), expected.len(), "{mode:?} {ops:?}");
    }
}

#[test]
fn exact_refusals_know_every_spelling() {
    let Some(program) = sockets() else { return };
    let four = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = four.local_addr().unwrap().port();
    let six = UdpSocket::bind((Ipv6Addr::LOCALHOST, port));
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let good = other.local_addr().unwrap().port().to_string();
    for mode in users() {
        let (deny, port) = (port_text(port), port.to_string());
        let run = mode.run(
            &["--exact", "--deny", &deny],
            &[program, "ways", &port, &good],
        );
        let (no, fast) = ("-1 EACCES", "-1 EOPNOTSUPP");
        let expected = format!(
            "sendto {no}\nno family {no}\nwide {no}\nmapped {no}\nmapped connect {no}\nsix {no}\n\
             fast open {fast}\ndeferred {no}\nsource route -1 EPERM\nrouted -1 EPERM\npassed {no}\n"
        );
        assert_eq!(run.output, expected, "{mode:?}");
        assert_eq!(run.of("access_denied").len(), 8, "{mode:?}");
        run.complete();
    }
    for socket in [Some(four), six.ok()].iter().flatten() {
        socket.set_nonblocking(true).unwrap();
        assert!(socket.recv(&mut [0; 8]).is_err());
    }
    tcp.set_nonblocking(true).unwrap();
    assert!(tcp.accept().is_err());
}

#[test]
fn exact_calls_can_be_led_elsewhere() {
    let Some(program) = sockets() else { return };
    let real = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = real.local_addr().unwrap();
    let tcp = TcpListener::bind(to).unwrap();
    real.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for mode in users() {
        let lead = format!("198.18.0.7={to}");
        let run = mode.run(
            &["--exact", "--lead", &lead],
            &[program, "led", "198.18.0.7", "53"],
        );
        assert_eq!(
            run.output, "sendto 3 -\nconnect 0 -\nsend 3 -\nwide 0 -\n",
            "{mode:?}"
        );
        let mut text = [0; 8];
        for expected in [b"one", b"two"] {
            let length = real.recv(&mut text).unwrap();
            assert_eq!(&text[..length], expected, "{mode:?}");
        }
        tcp.accept().unwrap();
        for op in run.of("net_op") {
            assert_eq!(op["host"], "a.name", "{mode:?} {op}");
            assert_eq!(op["instead"]["port"], to.port(), "{mode:?} {op}");
        }
    }
    // Where nothing can be led anywhere it is a refusal.
    for root in users().iter().map(|mode| mode.root) {
        let mode = Mode {
            root,
            tier: "ptrace",
        };
        let lead = format!("198.18.0.7={to}");
        let run = mode.run(
            &["--exact", "--lead", &lead],
            &[program, "led", "198.18.0.7", "53"],
        );
        assert!(
            run.output
                .starts_with("sendto -1 EACCES\nconnect -1 EACCES\n"),
            "{}",
            run.output
        );
    }
}
