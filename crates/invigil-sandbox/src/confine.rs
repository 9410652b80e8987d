//! What a confined run may reach at most: the ruleset that the kernel holds, and the same bound for acts on behalf,
//! which the kernel would not stop.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use invigil_schema::{Address, Errno, FileOp, FileOpKind, Floor, NetOp, NetOpKind, OpenFlag};

use crate::paths::is_below;
use crate::sys::fs::{self, At, cstring};
use crate::sys::landlock::{self, Rights, Ruleset};

/// The outer bound of a run: nothing beyond it happens, whatever the gate says. It is coarse: trees of files, ports,
/// on or off. What is exact is the gate's.
///
/// `None` leaves a kind of access without a bound. A path that does not exist allows nothing and is reported. What
/// every program needs (`/dev/null`, `/dev/tty`, `/proc`, shared libraries, the dynamic loader among the programs) has
/// to be among the roots.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// Files and trees that may be read. Loading a program reads it too.
    pub read: Option<Vec<PathBuf>>,
    /// Files and trees that may be changed, and in which files may be made, renamed and removed.
    pub write: Option<Vec<PathBuf>>,
    /// Files and trees from which programs may be loaded: commands, interpreters, the dynamic loader.
    pub execute: Option<Vec<PathBuf>>,
    /// TCP ports that may be connected to.
    pub connect: Option<Vec<u16>>,
    /// TCP ports that may be listened on; 0 stands for any port that the kernel chooses.
    pub bind: Option<Vec<u16>>,
    /// Whether there is a network at all.
    pub network: Network,
    /// Whether abstract Unix sockets of processes outside may be connected to.
    pub abstract_sockets: bool,
    /// Whether the kernel writes what it refuses to the machine's audit log, where it has one (Landlock 7).
    pub audit: bool,
}

/// Whether there is a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    /// The ports decide.
    #[default]
    Unrestricted,
    /// There is none but Unix sockets: nothing can be connected to, listened on or sent to.
    None,
}

/// A kind of access to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Execute,
}

const ALL: [Access; 3] = [Access::Read, Access::Write, Access::Execute];

impl Access {
    fn rights(self) -> u64 {
        match self {
            Access::Read => landlock::READ,
            Access::Write => landlock::WRITE,
            Access::Execute => landlock::EXECUTE,
        }
    }

    fn rule(self) -> &'static str {
        match self {
            Access::Read => "confined:read",
            Access::Write => "confined:write",
            Access::Execute => "confined:execute",
        }
    }
}

/// Which sockets the filter has to leave to the observer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// None.
    Free,
    /// Those that are not plainly Unix, TCP or routing.
    Unusual,
    /// All of them.
    All,
}

/// A confinement, made ready for a launch.
#[derive(Debug)]
pub(crate) struct Confined {
    /// What the launcher enters.
    pub(crate) ruleset: Option<Ruleset>,
    pub(crate) restrict_flags: u32,
    /// What the evidence says.
    pub(crate) floor: Floor,
    pub(crate) bound: Bound,
    pub(crate) signals_scoped: bool,
}

impl Confined {
    /// Opens the roots as they are now and makes the ruleset, as far as the kernel goes.
    pub(crate) fn new(confinement: &Confinement) -> Confined {
        Confined::with(confinement, landlock::abi())
    }

    /// The same as if the kernel had this version.
    fn with(confinement: &Confinement, abi: Option<u32>) -> Confined {
        let known = abi.map_or(Rights::default(), Rights::of_abi);
        let wanted = wanted(confinement);
        let mut bound = Bound::new(confinement, known.net != 0);
        let mut handled = wanted.and(known);
        let ruleset = Ruleset::new(handled).and_then(|ruleset| {
            bound.fill(&ruleset)?;
            Ok(ruleset)
        });
        let ruleset = ruleset.ok();
        if ruleset.is_none() {
            handled = Rights::default();
            bound.tcp_floor = false;
        }
        let logs = confinement.audit && abi.is_some_and(|abi| abi >= landlock::ABI_WITH_LOG);
        Confined {
            restrict_flags: if logs { landlock::LOG_NEW_EXEC_ON } else { 0 },
            floor: Floor {
                landlock_abi: abi.filter(|_| ruleset.is_some()),
                handled: handled.names(),
                not_handled: wanted.without(handled).names(),
                skipped_roots: bound
                    .skipped
                    .iter()
                    .map(|path| path.as_os_str().as_bytes().to_vec().into())
                    .collect(),
                capabilities: Vec::new(),
            },
            signals_scoped: handled.scoped & landlock::SCOPE_SIGNAL != 0,
            ruleset,
            bound,
        }
    }
}

/// The rights that a confinement would take away.
fn wanted(confinement: &Confinement) -> Rights {
    let mut wanted = Rights {
        fs: landlock::MAKE_DEVICES | landlock::REFER,
        net: 0,
        scoped: landlock::SCOPE_SIGNAL,
    };
    let kinds = [
        (&confinement.read, Access::Read),
        (&confinement.write, Access::Write),
        (&confinement.execute, Access::Execute),
    ];
    for (_, access) in kinds.iter().filter(|(roots, _)| roots.is_some()) {
        wanted.fs |= access.rights();
    }
    let off = confinement.network == Network::None;
    if off || confinement.connect.is_some() {
        wanted.net |= landlock::CONNECT_TCP;
    }
    if off || confinement.bind.is_some() {
        wanted.net |= landlock::BIND_TCP;
    }
    if !confinement.abstract_sockets {
        wanted.scoped |= landlock::SCOPE_ABSTRACT;
    }
    wanted
}

/// Why something is beyond the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beyond {
    pub(crate) rule: &'static str,
    pub(crate) error: Errno,
}

/// The bound as the observer checks it.
#[derive(Debug)]
pub(crate) struct Bound {
    /// For reading, writing and executing.
    roots: [Option<Vec<PathBuf>>; 3],
    connect: Option<Vec<u16>>,
    bind: Option<Vec<u16>>,
    network: Network,
    tcp_floor: bool,
    skipped: Vec<PathBuf>,
}

impl Bound {
    fn new(confinement: &Confinement, tcp_floor: bool) -> Bound {
        let mut skipped = Vec::new();
        let mut real = |roots: &Option<Vec<PathBuf>>| {
            let roots = roots.as_ref()?;
            let found = roots.iter().filter_map(|root| match root.canonicalize() {
                Ok(real) => Some(real),
                Err(_) => {
                    if !skipped.contains(root) {
                        skipped.push(root.clone());
                    }
                    None
                }
            });
            Some(found.collect())
        };
        let roots = [
            real(&confinement.read),
            real(&confinement.write),
            real(&confinement.execute),
        ];
        Bound {
            roots,
            connect: confinement.connect.clone(),
            bind: confinement.bind.clone(),
            network: confinement.network,
            tcp_floor,
            skipped,
        }
    }

    /// Gives back to a ruleset what lies within.
    fn fill(&self, ruleset: &Ruleset) -> crate::sys::Sys<()> {
        for (roots, access) in self.roots.iter().zip(ALL) {
            for root in roots.iter().flatten() {
                allow(ruleset, root, access.rights())?;
            }
        }
        // Moving files between directories is refused unless it is allowed, even if nobody asked for that.
        if self.roots[1].is_none() {
            allow(ruleset, Path::new("/"), landlock::REFER)?;
        }
        if self.network == Network::None {
            return Ok(());
        }
        let ports = [
            (&self.connect, landlock::CONNECT_TCP),
            (&self.bind, landlock::BIND_TCP),
        ];
        for (ports, right) in ports {
            for port in ports.iter().flatten() {
                ruleset.allow_port(*port, right)?;
            }
        }
        Ok(())
    }

    fn holds(&self, path: &[u8], access: Access) -> bool {
        let Some(roots) = &self.roots[access as usize] else {
            return true;
        };
        // What is deleted is where it was.
        let gone = path.strip_prefix(b"(deleted)");
        let path = gone.unwrap_or(path);
        // What has no place in the tree of files cannot be bounded by one. A program without a place is no program.
        let placeless = match gone {
            Some(path) => path.starts_with(b"/memfd:"),
            None => !path.starts_with(b"/"),
        };
        placeless && access != Access::Execute
            || roots.iter().any(|root| is_below(path, root_bytes(root)))
    }

    fn needs(&self, path: &[u8], access: Access) -> Result<(), Beyond> {
        if self.holds(path, access) {
            return Ok(());
        }
        let (rule, error) = (access.rule(), Errno(libc::EACCES));
        Err(Beyond { rule, error })
    }

    /// Whether a file operation on resolved paths stays within.
    pub(crate) fn file(&self, op: &FileOp) -> Result<(), Beyond> {
        let path = op.path.as_bytes();
        let has = |flag| op.flags.contains(&flag);
        if op.op == FileOpKind::Open {
            if has(OpenFlag::Read) {
                self.needs(path, Access::Read)?;
            }
            let changes = [OpenFlag::Write, OpenFlag::Truncate, OpenFlag::Temporary];
            if changes.into_iter().any(has) {
                self.needs(path, Access::Write)?;
            }
            return Ok(());
        }
        self.needs(path, Access::Write)?;
        if op.op == FileOpKind::Create && has(OpenFlag::Read) {
            self.needs(path, Access::Read)?;
        }
        let (Some(to), FileOpKind::Rename | FileOpKind::Exchange | FileOpKind::Link) =
            (&op.to, op.op)
        else {
            return Ok(());
        };
        self.needs(to.as_bytes(), Access::Write)?;
        self.gains_nothing(path, to.as_bytes())?;
        match op.op {
            FileOpKind::Exchange => self.gains_nothing(to.as_bytes(), path),
            _ => Ok(()),
        }
    }

    /// A file must not be moved to where more can be done with it. `EXDEV`, as the kernel says: programs copy then,
    /// if they may read.
    fn gains_nothing(&self, from: &[u8], to: &[u8]) -> Result<(), Beyond> {
        match ALL
            .into_iter()
            .find(|access| self.holds(to, *access) && !self.holds(from, *access))
        {
            None => Ok(()),
            Some(access) => Err(Beyond {
                rule: access.rule(),
                error: Errno(libc::EXDEV),
            }),
        }
    }

    /// Whether a program may be loaded.
    pub(crate) fn exec(&self, path: &[u8]) -> Result<(), Beyond> {
        self.needs(path, Access::Execute)?;
        self.needs(path, Access::Read)
    }

    /// Whether an operation on a socket stays within. Ports are those of TCP.
    pub(crate) fn net(&self, op: &NetOp, is_tcp: impl FnOnce() -> bool) -> Result<(), Beyond> {
        let refused = |rule| {
            let error = Errno(libc::EACCES);
            Err(Beyond { rule, error })
        };
        let port = match op.address {
            Address::Inet { port, .. } | Address::Inet6 { port, .. } => Some(port),
            // What may be asked of the kernel was decided when the socket was made.
            Address::Other { number, .. } if i32::from(number) == libc::AF_NETLINK => return Ok(()),
            Address::Other { .. } => None,
            Address::Unix { .. } | Address::Abstract { .. } | Address::Unnamed => return Ok(()),
        };
        if self.network == Network::None {
            return refused("confined:network");
        }
        let (ports, rule) = match op.op {
            NetOpKind::Connect => (&self.connect, "confined:connect"),
            NetOpKind::Bind => (&self.bind, "confined:bind"),
            NetOpKind::Listen | NetOpKind::Send => return Ok(()),
        };
        match (ports, port) {
            (Some(ports), Some(port)) if !ports.contains(&port) && is_tcp() => refused(rule),
            _ => Ok(()),
        }
    }

    /// Which sockets have to be judged when they are made.
    pub(crate) fn sockets(&self) -> Sockets {
        if self.network == Network::None && !self.tcp_floor {
            Sockets::All
        } else if self.network == Network::None || self.connect.is_some() || self.bind.is_some() {
            Sockets::Unusual
        } else {
            Sockets::Free
        }
    }

    /// Whether such a socket may be made.
    pub(crate) fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<(), Beyond> {
        const KIND: i32 = 0xf;
        let off = self.network == Network::None;
        let allowed = match (domain, kind & KIND) {
            (libc::AF_UNIX, _) => true,
            (libc::AF_NETLINK, _) => {
                protocol == libc::NETLINK_ROUTE || !off && TELLING.contains(&protocol)
            }
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM) => {
                matches!(protocol, 0 | libc::IPPROTO_TCP) && (!off || self.tcp_floor)
            }
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM)
                if matches!(protocol, 0 | libc::IPPROTO_UDP | libc::IPPROTO_UDPLITE) =>
            {
                !off
            }
            _ => !off && self.connect.is_none() && self.bind.is_none(),
        };
        match allowed {
            true => Ok(()),
            false => Err(Beyond {
                rule: "confined:network",
                error: Errno(libc::EACCES),
            }),
        }
    }
}

/// Families of netlink that tell of this machine. Others lead to other processes, or change it.
const TELLING: [i32; 3] = [
    libc::NETLINK_SOCK_DIAG,
    libc::NETLINK_KOBJECT_UEVENT,
    libc::NETLINK_GENERIC,
];

/// A root as the beginning of what lies below it.
fn root_bytes(root: &Path) -> &[u8] {
    root.as_os_str().as_bytes()
}

fn allow(ruleset: &Ruleset, root: &Path, rights: u64) -> crate::sys::Sys<()> {
    let path = cstring(root.as_os_str().as_bytes())?;
    let Ok(file) = fs::open(At::Cwd, &path, libc::O_PATH | libc::O_CLOEXEC, 0, 0) else {
        return Ok(());
    };
    let of_kind = if root.is_dir() {
        u64::MAX
    } else {
        landlock::OF_FILES
    };
    ruleset.allow_beneath(file.as_fd(), rights & of_kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use invigil_schema::{CallResult, ProcessRef};

    fn confinement() -> Confinement {
        Confinement {
            read: Some(vec!["/usr".into(), "/tmp".into(), "/not/there".into()]),
            write: Some(vec!["/tmp".into(), "/dev/null".into(), "/var".into()]),
            execute: Some(vec!["/usr".into()]),
            network: Network::None,
            ..Confinement::default()
        }
    }

    fn op(kind: FileOpKind, path: &str, to: Option<&str>, flags: &[OpenFlag]) -> FileOp {
        FileOp {
            process: ProcessRef { pid: 1, start: 0 },
            op: kind,
            path: path.into(),
            to: to.map(Into::into),
            flags: flags.to_vec(),
            mode: None,
            detail: None,
            result: CallResult::Unknown,
        }
    }

    #[test]
    fn every_version_holds_what_it_can() {
        let has = landlock::abi();
        for abi in (1..=7).filter(|abi| has >= Some(*abi)) {
            let confined = Confined::with(&confinement(), Some(abi));
            assert!(confined.ruleset.is_some(), "{abi}");
            let floor = &confined.floor;
            assert_eq!(floor.landlock_abi, Some(abi));
            assert_eq!(floor.handled.len() + floor.not_handled.len(), 20, "{abi}");
            assert_eq!(confined.signals_scoped, abi >= 6);
            let sockets = if abi < 4 {
                Sockets::All
            } else {
                Sockets::Unusual
            };
            assert_eq!(confined.bound.sockets(), sockets, "{abi}");
            assert_eq!(floor.skipped_roots, ["/not/there".into()]);
        }
        let confined = Confined::with(&confinement(), None);
        assert!(confined.ruleset.is_none() && confined.floor.handled.is_empty());
        assert_eq!(confined.floor.not_handled.len(), 20);
    }

    #[test]
    fn what_stays_within() {
        use FileOpKind::{Create, Link, Open, Rename, Symlink, Unlink};
        use OpenFlag::{Path, Read, Write};
        let bound = Bound::new(&confinement(), true);
        let error = |op: FileOp| {
            bound
                .file(&op)
                .err()
                .map(|beyond| (beyond.rule, beyond.error.0))
        };
        assert_eq!(error(op(Open, "/usr/x", None, &[Read])), None);
        assert_eq!(error(op(Open, "/etc/x", None, &[Path])), None);
        assert_eq!(error(op(Open, "/dev/null", None, &[Write])), None);
        assert_eq!(error(op(Open, "pipe:[7]", None, &[Read, Write])), None);
        assert_eq!(error(op(Open, "(deleted)/memfd:x", None, &[Write])), None);
        assert_eq!(error(op(Open, "(deleted)/tmp/x", None, &[Write])), None);
        assert_eq!(error(op(Symlink, "/tmp/x", Some("/etc"), &[])), None);
        assert_eq!(error(op(Rename, "/tmp/x", Some("/tmp/y"), &[])), None);
        let (read, write) = ("confined:read", "confined:write");
        let refused = Some((write, libc::EACCES));
        assert_eq!(
            error(op(Open, "/etc/x", None, &[Read])),
            Some((read, libc::EACCES))
        );
        assert_eq!(error(op(Open, "/usr/x", None, &[Write])), refused);
        assert_eq!(error(op(Open, "(deleted)/etc/x", None, &[Write])), refused);
        assert_eq!(error(op(Create, "/memfd:x", None, &[Write])), refused);
        assert_eq!(error(op(Create, "/tmpfile", None, &[Write])), refused);
        assert_eq!(error(op(Unlink, "/usr/x", None, &[])), refused);
        assert_eq!(error(op(Link, "/usr/x", Some("/tmp/x"), &[])), refused);
        // What could not be read there could be read here.
        let gained = Some((read, libc::EXDEV));
        assert_eq!(error(op(Rename, "/var/x", Some("/tmp/x"), &[])), gained);
        assert!(bound.exec(b"/usr/bin/x").is_ok());
        assert!(bound.exec(b"/tmp/x").is_err() && bound.exec(b"/memfd:x (deleted)").is_err());
    }

    #[test]
    fn a_root_is_everything_below_it() {
        let everything = Confinement {
            write: Some(vec!["/".into()]),
            ..Confinement::default()
        };
        let bound = Bound::new(&everything, true);
        assert!(bound.file(&op(FileOpKind::Mkdir, "/x", None, &[])).is_ok());
        assert_eq!(bound.sockets(), Sockets::Free);
    }
}
