//! Policies that name hosts: a name is reached by its name, and by no address.

use std::net::TcpListener;

use super::Invigil;

const SCRIPT: &str = r#"
import socket, struct, sys
port = int(sys.argv[1])

def said(what, act):
    try:
        print(what, act())
    except OSError as error:
        print(what, error.strerror)

def connect(host):
    socket.create_connection((host, port), 5).close()
    return "connected"

def ask(name):
    question = b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\0"
    packet = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + question + struct.pack(">HH", 1, 1)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(5)
    s.connect(("192.0.2.53", 53))
    s.send(packet)
    answer = s.recv(512)
    count = struct.unpack(">H", answer[6:8])[0]
    return socket.inet_ntoa(answer[-4:]) if count else "no such name"

said("by name", lambda: connect("localhost"))
said("another loopback", lambda: connect("127.0.0.2"))
address = ask("localhost")
said("looked up", lambda: connect(address))
print("evil", ask("evil.example"))
print("suffix", ask("notlocalhost"))
"#;

#[test]
fn a_host_is_reached_by_its_name() {
    for invigil in Invigil::everyone() {
        let server = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let rules =
            format!("version = 1\n[network]\nallow = [\"localhost:{port}\"]\ndefault = \"deny\"\n");
        let policy = invigil.directory.path().join("hosts.toml");
        std::fs::write(&policy, rules).unwrap();
        let output = invigil.output(&[
            "run",
            "--run-id",
            "hosts",
            "--quiet",
            "--policy",
            policy.to_str().unwrap(),
            "--",
            "python3",
            "-c",
            SCRIPT,
            &port.to_string(),
        ]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            text,
            "by name connected\nanother loopback Permission denied\nlooked up connected\nevil no such name\nsuffix no such name\n",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let denied = invigil.all("hosts", "access_denied");
        let targets: Vec<_> = denied
            .iter()
            .map(|denied| denied["target"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            targets,
            [
                format!("127.0.0.2:{port}"),
                "evil.example".into(),
                "notlocalhost".into()
            ]
        );
        let named = invigil.all("hosts", "net_op");
        let named = named.iter().filter(|op| op["host"] == "localhost");
        let named = named.filter(|op| op["op"] == "connect").count();
        assert_eq!(named, 2, "{:#?}", invigil.all("hosts", "net_op"));
        let enforced = invigil.all("hosts", "policy_enforced");
        let parts = enforced[0]["parts"].as_array().unwrap();
        assert!(
            parts
                .iter()
                .any(|part| part["part"] == "network.names" && part["strength"] == "full"),
            "{parts:?}"
        );
    }
}
