//! Names of paths and endpoints that are the same in every run of one deterministic command.
//!
//! Pids, inode numbers, terminal numbers and the run's own id differ from run to run without meaning anything. They
//! are replaced by a word in braces. Nothing else is: a random name that a program made up is what it did.

use std::borrow::Cow;
use std::collections::BTreeSet;

use invigil_schema::{Address, NetOp, NetOpKind, OsText, ProcessRef, RunId};

/// Ids at least this long do not occur in a path by chance.
const DISTINCTIVE: usize = 12;

/// A path without what differs from run to run.
pub(crate) fn stable_path<'a>(
    path: &'a OsText,
    process: ProcessRef,
    run: Option<&RunId>,
) -> Cow<'a, OsText> {
    let bytes = path.as_bytes();
    if !needs_work(bytes, run) {
        return Cow::Borrowed(path);
    }
    if let Some(nameless) = stable_nameless(bytes) {
        return Cow::Owned(nameless.into());
    }
    let mut parts: Vec<Vec<u8>> = bytes.split(|&b| b == b'/').map(<[u8]>::to_vec).collect();
    if bytes.starts_with(b"/proc/") {
        stable_proc(&mut parts, process);
    } else if bytes.starts_with(b"/dev/pts/") && is_number(&parts[3]) {
        parts[3] = b"{n}".to_vec();
    }
    if let Some(run) = run {
        stable_run(&mut parts, run.as_str().as_bytes());
    }
    Cow::Owned(parts.join(&b'/').into())
}

/// The common case, a plain path, is told by looking once.
fn needs_work(bytes: &[u8], run: Option<&RunId>) -> bool {
    let names_run = |run: &RunId| {
        let id = run.as_str().as_bytes();
        bytes.split(|&b| b == b'/').any(|part| part.starts_with(id))
    };
    !bytes.starts_with(b"/")
        || bytes.starts_with(b"/proc/")
        || bytes.starts_with(b"/dev/pts/")
        || bytes.ends_with(b" (deleted)")
        || run.is_some_and(names_run)
}

/// `pipe:[123]`, `socket:[123]` and `/tmp/#123 (deleted)`, which are called after an inode.
fn stable_nameless(bytes: &[u8]) -> Option<Vec<u8>> {
    if let Some((kind, rest)) = split_once(bytes, b":[")
        && let Some(number) = rest.strip_suffix(b"]")
        && is_number(number)
    {
        return Some([kind, b":[{inode}]"].concat());
    }
    let name = bytes.strip_suffix(b" (deleted)")?;
    let hash = name.iter().rposition(|&b| b == b'#')?;
    let number = &name[hash + 1..];
    (is_number(number) && name[..hash].ends_with(b"/"))
        .then(|| [&name[..hash], b"#{inode} (deleted)"].concat())
}

fn stable_proc(parts: &mut [Vec<u8>], process: ProcessRef) {
    if !is_number(&parts[2]) {
        return;
    }
    let own = parts[2] == process.pid.to_string().into_bytes();
    parts[2] = if own {
        b"self".to_vec()
    } else {
        b"{pid}".to_vec()
    };
    if parts.len() > 4 && parts[3] == b"task" && is_number(&parts[4]) {
        parts[4] = b"{tid}".to_vec();
    }
}

/// The id counts as such where it is a whole name that is too long to be a coincidence, or a directory of a store.
fn stable_run(parts: &mut [Vec<u8>], id: &[u8]) {
    for at in 0..parts.len() {
        let Some(rest) = parts[at].strip_prefix(id) else {
            continue;
        };
        let whole = rest.is_empty() || rest.starts_with(b".");
        let in_store = rest.is_empty() && at > 0 && parts[at - 1] == b"runs";
        if whole && (id.len() >= DISTINCTIVE || in_store) {
            parts[at] = [b"{run_id}", rest].concat();
        }
    }
}

fn is_number(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit)
}

fn split_once<'a>(bytes: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let found = bytes.windows(at.len()).position(|window| window == at)?;
    Some((&bytes[..found], &bytes[found + at.len()..]))
}

/// How an address is written. An operation without an address has no endpoint.
pub(crate) fn endpoint(address: &Address) -> Option<OsText> {
    const AF_NETLINK: u16 = 16;
    let text = match address {
        Address::Inet { ip, port } => format!("{ip}:{port}"),
        Address::Inet6 { ip, port, scope: 0 } => format!("[{ip}]:{port}"),
        Address::Inet6 { ip, port, scope } => format!("[{ip}%{scope}]:{port}"),
        Address::Unix { path } => return Some([b"unix:", path.as_bytes()].concat().into()),
        Address::Abstract { name } => return Some([b"unix:@", name.as_bytes()].concat().into()),
        Address::Unnamed => return None,
        // Its address is a pid and a set of groups.
        Address::Other {
            number: AF_NETLINK, ..
        } => "netlink".to_owned(),
        Address::Other { number, bytes } => {
            let hex: String = bytes
                .as_bytes()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            format!("family-{number}:{hex}")
        }
    };
    Some(text.as_str().into())
}

/// The address of an operation, without what differs from run to run in the path of a Unix socket.
pub(crate) fn stable_address(op: &NetOp, run: Option<&RunId>) -> Address {
    match &op.address {
        Address::Unix { path } => Address::Unix {
            path: stable_path(path, op.process, run).into_owned(),
        },
        other => other.clone(),
    }
}

/// Tells ports that the kernel chose: those that were listened on after a bind to port 0, and that nobody asked for
/// by number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ports {
    bound: BTreeSet<u16>,
    listened: BTreeSet<u16>,
}

impl Ports {
    pub(crate) fn take(&mut self, op: &NetOp) {
        match (op.op, port(&op.address)) {
            (NetOpKind::Bind, Some(port)) => _ = self.bound.insert(port),
            (NetOpKind::Listen, Some(port)) => _ = self.listened.insert(port),
            _ => {}
        }
    }

    /// How an address is written. A port that the kernel chose is `{ephemeral}`, for whoever listens on it and for
    /// whoever comes to it from the same machine.
    pub(crate) fn endpoint(&self, op: NetOpKind, address: &Address) -> Option<OsText> {
        let chosen = |port| {
            let listened = self.listened.contains(&port) && self.bound.contains(&0);
            listened && !self.bound.contains(&port)
        };
        let near = op == NetOpKind::Listen || is_loopback(address);
        if near && port(address).is_some_and(chosen) {
            let text = match address {
                Address::Inet { ip, .. } => format!("{ip}:{{ephemeral}}"),
                Address::Inet6 { ip, .. } => format!("[{ip}]:{{ephemeral}}"),
                _ => return None,
            };
            return Some(text.as_str().into());
        }
        endpoint(address)
    }
}

fn port(address: &Address) -> Option<u16> {
    match address {
        Address::Inet { port, .. } | Address::Inet6 { port, .. } => Some(*port),
        _ => None,
    }
}

fn is_loopback(address: &Address) -> bool {
    match address {
        Address::Inet { ip, .. } => ip.is_loopback(),
        Address::Inet6 { ip, .. } => ip.is_loopback(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_run_to_run_is_replaced() {
        let run = RunId::new("run_0193aabbccddeeff").unwrap();
        let me = ProcessRef { pid: 77, start: 1 };
        let stable = |path: &str| {
            let path = OsText::from(path);
            let stable = stable_path(&path, me, Some(&run));
            String::from_utf8(stable.as_bytes().to_vec()).unwrap()
        };
        for (path, expected) in [
            ("/proc/77/oom_score_adj", "/proc/self/oom_score_adj"),
            ("/proc/78/mem", "/proc/{pid}/mem"),
            ("/proc/77/task/79/comm", "/proc/self/task/{tid}/comm"),
            ("/proc/sys/kernel/x", "/proc/sys/kernel/x"),
            ("/dev/pts/12", "/dev/pts/{n}"),
            ("/dev/pts/ptmx", "/dev/pts/ptmx"),
            ("pipe:[4711]", "pipe:[{inode}]"),
            ("/tmp/#4711 (deleted)", "/tmp/#{inode} (deleted)"),
            ("/tmp/a (deleted)", "/tmp/a (deleted)"),
            (
                "/home/u/runs/run_0193aabbccddeeff/events.sock",
                "/home/u/runs/{run_id}/events.sock",
            ),
            ("/tmp/run_0193aabbccddeeff.sock", "/tmp/{run_id}.sock"),
            ("/tmp/xrun_0193aabbccddeeff", "/tmp/xrun_0193aabbccddeeff"),
            ("/home/u/src/main.rs", "/home/u/src/main.rs"),
        ] {
            assert_eq!(stable(path), expected);
        }
    }

    #[test]
    fn a_short_run_id_is_not_looked_for_in_the_users_own_paths() {
        let run = RunId::new("src").unwrap();
        let me = ProcessRef { pid: 7, start: 1 };
        let stable = |path: &str| stable_path(&path.into(), me, Some(&run)).into_owned();
        assert_eq!(stable("/home/u/src/a"), "/home/u/src/a".into());
        assert_eq!(stable("/h/runs/src/sock"), "/h/runs/{run_id}/sock".into());
    }

    #[test]
    fn addresses_read_as_people_write_them() {
        let text = |address| endpoint(&address).unwrap();
        let ip = "fe80::1".parse().unwrap();
        let (port, scope) = (443, 2);
        assert_eq!(
            text(Address::Inet6 { ip, port, scope }),
            "[fe80::1%2]:443".into()
        );
        let scope = 0;
        assert_eq!(
            text(Address::Inet6 { ip, port, scope }),
            "[fe80::1]:443".into()
        );
        let path = OsText::from(vec![b'/', 0xff]);
        assert_eq!(
            text(Address::Unix { path }),
            OsText::from(b"unix:/\xff".to_vec())
        );
        assert_eq!(
            text(Address::Abstract { name: "x".into() }),
            "unix:@x".into()
        );
        assert_eq!(endpoint(&Address::Unnamed), None);
    }
}
