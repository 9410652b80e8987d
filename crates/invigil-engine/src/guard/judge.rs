//! From what a process does to what a policy judges: which paths are read and written, which address is meant.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use invigil_policy::{Action, Decision, Endpoint, Exec, Policy, UnixSocket, Verdict};
use invigil_schema::{Address, Asked, FileOpKind, NetOpKind, OpenFlag, OsText};

use super::Denied;

/// What lies below a directory that is renamed is looked at up to this number; a larger one stays where it is.
const BELOW_MAX: usize = 200_000;
/// Kernel sockets, which lead nowhere else.
const NETLINK: u16 = 16;

/// What is done to a file, as facts and questions both have it.
#[derive(Clone, Copy)]
pub(super) struct FileAct<'a> {
    pub(super) op: FileOpKind,
    pub(super) path: &'a OsText,
    pub(super) to: Option<&'a OsText>,
    pub(super) flags: &'a [OpenFlag],
}

/// A policy and the programs that it denies.
pub(super) struct Judge<'a> {
    pub(super) policy: &'a Policy,
    pub(super) denied: &'a Denied,
    /// Whether it may look at the disk. What is decided again later must not: it has changed since.
    pub(super) looks: bool,
}

impl Judge<'_> {
    /// The decision on an action, unless it is allowed.
    fn on(&self, action: Action<'_>) -> Option<Decision> {
        match self.policy.verdict(&action) {
            Verdict::Allow => None,
            Verdict::Ask | Verdict::Deny => Some(self.policy.decide(&action)),
        }
    }

    fn read(&self, path: &[u8]) -> Option<Decision> {
        if is_placeless(path) {
            return None;
        }
        let denied = self.denied.file(path).cloned();
        denied.or_else(|| self.on(Action::Read(path)))
    }

    fn write(&self, path: &[u8]) -> Option<Decision> {
        if is_placeless(path) {
            return None;
        }
        self.on(Action::Write(path))
    }

    /// What is done to a file.
    pub(super) fn file(&self, act: FileAct<'_>) -> Option<Decision> {
        let path = act.path.as_bytes();
        let has = |flag| act.flags.contains(&flag);
        match act.op {
            // It can neither be read nor written; whatever is done with it next is judged.
            FileOpKind::Open if has(OpenFlag::Path) => None,
            FileOpKind::Open if has(OpenFlag::Temporary) => {
                let directory = path.strip_suffix(b"/").unwrap_or(path);
                self.write(&[directory, b"/(nameless)"].concat())
            }
            FileOpKind::Open | FileOpKind::Create => {
                let writes =
                    act.op == FileOpKind::Create || has(OpenFlag::Write) || has(OpenFlag::Truncate);
                let read = has(OpenFlag::Read).then(|| self.read(path)).flatten();
                let write = writes.then(|| self.write(path)).flatten();
                stricter(read, write)
            }
            FileOpKind::Rename => self.moved(path, act.to?.as_bytes()),
            FileOpKind::Exchange => {
                let to = act.to?.as_bytes();
                stricter(self.moved(path, to), self.moved(to, path))
            }
            FileOpKind::Link => {
                let to = act.to?.as_bytes();
                // What can be done under the new name is done to the same file.
                let source = stricter(self.read(path), self.write(path));
                stricter(source, self.write(to))
            }
            FileOpKind::Truncate
            | FileOpKind::Unlink
            | FileOpKind::Mkdir
            | FileOpKind::Rmdir
            | FileOpKind::Chmod
            | FileOpKind::Chown
            | FileOpKind::Symlink
            | FileOpKind::Utimes
            | FileOpKind::SetXattr
            | FileOpKind::RemoveXattr
            | FileOpKind::Mknod
            | FileOpKind::Mount
            | FileOpKind::Unmount
            | FileOpKind::Chroot => self.write(path),
        }
    }

    /// A rename changes the names of everything below, and the rules with them.
    fn moved(&self, from: &[u8], to: &[u8]) -> Option<Decision> {
        let own = stricter(self.write(from), self.write(to));
        let own = stricter(own, self.refused_read(from, to));
        let refuses = self.policy.refuses_below(from) || self.policy.refuses_below(to);
        if own.as_ref().is_some_and(|d| d.verdict == Verdict::Deny) || !refuses || !self.looks {
            return own;
        }
        let root = Path::new(OsStr::from_bytes(from));
        if !root.symlink_metadata().is_ok_and(|data| data.is_dir()) {
            return own;
        }
        let (mut worst, mut seen) = (own, 0);
        let mut pending = vec![root.to_owned()];
        while let Some(directory) = pending.pop() {
            // Its owner can close a directory for us as well, and open it again under the new name.
            let Ok(entries) = directory.read_dir() else {
                return Some(Decision::unseen());
            };
            for entry in entries {
                seen += 1;
                let entry = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)));
                let (path, kind) = match entry {
                    Ok(entry) if seen <= BELOW_MAX => entry,
                    _ => return Some(Decision::unseen()),
                };
                let new = renamed(&path, root, to);
                let (old, new) = (path.as_os_str().as_bytes(), new.as_os_str().as_bytes());
                worst = stricter(worst, self.refused_read(old, new));
                worst = stricter(worst, self.write(old));
                worst = stricter(worst, self.write(new));
                if worst.as_ref().is_some_and(|d| d.verdict == Verdict::Deny) {
                    return worst;
                }
                if kind.is_dir() {
                    pending.push(path);
                }
            }
        }
        worst
    }

    /// What may not be read gets no other name; what is asked about gets none under which nobody would be asked.
    fn refused_read(&self, from: &[u8], to: &[u8]) -> Option<Decision> {
        let old = self.read(from)?;
        let laxer = || self.read(to).is_none_or(|new| new.verdict < old.verdict);
        (old.verdict == Verdict::Deny || laxer()).then_some(old)
    }

    /// What is done on the network. `own` is the run's own socket.
    pub(super) fn net(&self, op: NetOpKind, address: &Address) -> Option<Decision> {
        let addr: SocketAddr = match address {
            Address::Inet { ip, port } => (*ip, *port).into(),
            // An IPv4 address in IPv6 clothes is an IPv4 address.
            Address::Inet6 { ip, port, .. } => (IpAddr::V6(*ip).to_canonical(), *port).into(),
            Address::Unix { path } => return self.unix(path, op),
            Address::Abstract { name } => {
                return self.on(Action::Unix(UnixSocket::Abstract(name.as_bytes())));
            }
            Address::Unnamed => return None,
            Address::Other { number, .. } if *number == NETLINK => return None,
            // No rule can name it, so what holds for everything else holds.
            Address::Other { .. } => (Ipv4Addr::UNSPECIFIED, 0).into(),
        };
        let endpoint = Endpoint { addr, host: None };
        match op {
            NetOpKind::Bind | NetOpKind::Listen => self.on(Action::Bind(endpoint)),
            NetOpKind::Connect | NetOpKind::Send => self.on(Action::Connect(endpoint)),
        }
    }

    /// A socket under the name that was given, and under the one that it really has.
    fn unix(&self, path: &OsText, op: NetOpKind) -> Option<Decision> {
        let judge = |path: &[u8]| self.on(Action::Unix(UnixSocket::Path(path)));
        let given = Path::new(OsStr::from_bytes(path.as_bytes()));
        let real = match op {
            NetOpKind::Connect | NetOpKind::Send if self.looks => given.canonicalize().ok(),
            _ => None,
        };
        let real = real.filter(|real| real != given);
        let spoken = match real {
            Some(real) => judge(real.as_os_str().as_bytes()),
            None => judge(path.as_bytes()),
        };
        // A socket that is bound is a new file, too.
        let made = (op == NetOpKind::Bind && self.looks)
            .then(|| self.write(of_parent(given).as_os_str().as_bytes()))
            .flatten();
        stricter(spoken, made)
    }
}

/// A path that need not exist, in a directory without links on the way.
fn of_parent(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

fn renamed(path: &Path, root: &Path, to: &[u8]) -> PathBuf {
    let rest = path.strip_prefix(root).unwrap_or(path);
    Path::new(OsStr::from_bytes(to)).join(rest)
}

/// The stricter of two decisions.
pub(super) fn stricter(one: Option<Decision>, other: Option<Decision>) -> Option<Decision> {
    match (one, other) {
        (Some(one), Some(other)) if other.verdict > one.verdict => Some(other),
        (None, other) => other,
        (one, _) => one,
    }
}

/// Pipes, sockets, memory: what has no place in the tree of files has no rule either.
fn is_placeless(path: &[u8]) -> bool {
    !path.starts_with(b"/") || path.starts_with(b"/memfd:")
}

/// What a policy says about something that a person was asked about, unless it allows it.
pub(crate) fn decide(policy: &Policy, what: &Asked) -> Option<Decision> {
    decide_by(policy, what, true)
}

/// The same from the words of the record alone, whatever the disk looks like now.
pub(crate) fn decide_again(policy: &Policy, what: &Asked) -> Option<Decision> {
    decide_by(policy, what, false)
}

fn decide_by(policy: &Policy, what: &Asked, looks: bool) -> Option<Decision> {
    let denied = Denied::default();
    let judge = Judge {
        policy,
        denied: &denied,
        looks,
    };
    match what {
        Asked::Exec { program, argv, .. } => judge.on(Action::Exec(Exec {
            program: program.as_bytes(),
            called: program.as_bytes(),
            argv,
            interpreter: None,
        })),
        Asked::File {
            op,
            path,
            to,
            flags,
            ..
        } => judge.file(FileAct {
            op: *op,
            path,
            to: to.as_ref(),
            flags,
        }),
        Asked::Net { op, address } => judge.net(*op, address),
    }
}
