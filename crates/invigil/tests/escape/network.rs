//! One port of this machine may be reached, and one Unix socket. Nobody else.

use crate::world::{Case, Suite, untried, works};

const POLICY: &str = r#"
version = 1
default = "allow"
[network]
allow = ["127.0.0.1:ALLOWED", "unix:@/outside/allowed.sock"]
default = "deny"
"#;

const fn suite(cases: &[Case]) -> Suite<'_> {
    Suite {
        program: "network",
        policy: POLICY,
        options: &[],
        cases,
    }
}

#[test]
fn streams() {
    suite(&[
        works("tcp4", "net.connect 127.0.0.1:"),
        works("tcp4_nonblocking", "net.connect 127.0.0.1:"),
        works("tcp6", "net.connect [::1]:"),
        works("mapped", "net.connect 127.0.0.1"),
        works("any4", "net.connect 0.0.0.0"),
        works("any6", "net.connect [::]"),
        untried("other_loopback", "net.connect 127.0.0.2"),
        works("long_address", "net.connect 127.0.0.1:"),
        works("fast_open", "127.0.0.1 | confined:fast"),
        works("fast_open_message", "127.0.0.1 | confined:fast"),
        works("fast_open_option", "net.connect 127.0.0.1"),
        untried("multipath", "socket"),
        works("passed", "net.connect 127.0.0.1:"),
        works("listening", "net.bind 0.0.0.0:0"),
        works("listening_unbound", "net.listen"),
    ])
    .hold();
}

#[test]
fn datagrams() {
    suite(&[
        works("udp_connected", "127.0.0.1"),
        works("udp_sendto", "net.send 127.0.0.1"),
        works("udp_unspecified", "net.send"),
        works("udp6", "[::1]"),
        works("four_on_six", "net.send 127.0.0.1"),
        works("udp_sendmsg", "net.send 127.0.0.1"),
        works("udp_sendmmsg", "net.send 127.0.0.1"),
        works("bound_unspecified", "net.bind"),
    ])
    .hold();
}

#[test]
fn other_families() {
    suite(&[
        untried("raw", "socket"),
        untried("ping", "net.socket"),
        untried("packet", "socket"),
        untried("vsock", "socket"),
        untried("sctp", "socket"),
        untried("crypto", "socket"),
        untried("ring", "io_uring_denied"),
        works("messages_to_processes", "net.socket"),
    ])
    .hold();
}

#[test]
fn unix_sockets() {
    suite(&[
        works("docker", "net.connect outside/docker.sock"),
        works("docker_by_link", "net.connect outside/docker.sock"),
        works("docker_by_descriptor", "net.connect docker.sock"),
        works("docker_by_socket_descriptor", "net.connect docker.sock"),
        works("docker_hard_link", "net.connect work/s"),
        works("docker_renamed", "net.connect docker.sock | file.rename"),
        works("bus_datagram", "net.send outside/bus.sock"),
        works("bus_message", "net.send outside/bus.sock"),
        works("abstract_name", "net.connect @invigil-escape"),
    ])
    .hold();
}

const GIVEN: &str = r#"
version = 1
default = "allow"
[files.read]
deny = ["@/secret/**"]
[network]
allow = ["unix:@/outside/giver.sock"]
default = "deny"
"#;

/// What somebody outside hands over is worth what may be done with it.
#[test]
fn descriptors_from_outside() {
    let cases = [
        works("given_directory", "file.read secret/key"),
        works("given_parent", "file.read secret/key"),
        works("given_name", "file.read secret/key"),
        works("given_name_by_process", "file.read secret/key"),
        works("given_by_stranger", "net.connect outside/stranger.sock"),
    ];
    Suite {
        policy: GIVEN,
        ..suite(&cases)
    }
    .hold();
}

#[test]
fn races() {
    suite(&[
        works("race_connect", "net.connect 127.0.0.1"),
        works("race_sendto", "net.send 127.0.0.1"),
        works("race_sendmsg", "net.send 127.0.0.1"),
        works("race_unix", "net.connect outside/docker.sock"),
        works("race_socket", "net.send 127.0.0.1"),
    ])
    .hold();
}
