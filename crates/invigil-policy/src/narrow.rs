//! A policy for one job: some trees, some programs, and nothing else.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::learn::{glob_of, section};
use crate::source::{Layer, Source};

/// What the system itself offers for reading.
const SYSTEM: &[&str] = &[
    "/{bin,sbin,lib,lib32,lib64,libx32}/**",
    "/usr/**",
    "/opt/**",
    "/etc/**",
    "/dev/**",
    "/proc/**",
    "/sys/**",
    "/run/systemd/resolve/*",
    "/",
];
/// What every program needs to be loaded.
const LIBRARIES: &[&str] = &[
    "/{lib,lib32,lib64,libx32}/**",
    "/usr/{lib,lib32,lib64,libx32}/**",
    "/usr/local/lib/**",
    "/etc/ld.so.{cache,preload}",
    "/dev/{null,zero,full,random,urandom}",
    "/proc/*/{maps,stat}",
];
/// Of this, what nobody reads for a job.
const SECRET: &[&str] = &[
    "/etc/{shadow,gshadow}{,-}",
    "/etc/security/opasswd",
    "/etc/sudoers{,.d/**}",
    "/etc/ssh/ssh_host_*_key",
    "/etc/ssl/private/**",
    "/etc/{pki/tls/private,letsencrypt,wireguard,openvpn}/**",
    "/etc/NetworkManager/system-connections/**",
    "/etc/krb5.keytab",
];
/// What is no file that stays.
const DEVICES: &[&str] = &[
    "/dev/{null,zero,full,random,urandom,tty,ptmx,stdin,stdout,stderr}",
    "/dev/{pts,shm,fd}/**",
    "/proc/*/fd/*",
    "/proc/*/{oom_score_adj,comm}",
];
const PROGRAMS: &[&str] = &["/{bin,sbin}/**", "/usr/**", "/opt/**"];

/// What one job may do.
#[derive(Debug, Clone, Default)]
pub struct Narrow {
    /// Trees that it may read.
    pub read: Vec<PathBuf>,
    /// Trees that it may change.
    pub write: Vec<PathBuf>,
    /// Programs that it may load, by their paths.
    pub programs: Vec<PathBuf>,
    /// Whether it may load what the system offers, and read what that needs.
    pub system: bool,
    /// Whether it may use the network.
    pub network: bool,
    /// The variables that it gets, as patterns; no list is all of them.
    pub env: Vec<String>,
    /// How much memory it may use, in bytes.
    pub memory: Option<u64>,
    /// How many processes it may have at once.
    pub processes: Option<u64>,
    /// How large a file it may write, in bytes.
    pub file_size: Option<u64>,
}

impl Narrow {
    /// The same as a policy file that others can be stacked upon.
    pub fn source(&self, name: &str) -> Source {
        let mut text = String::from("version = 1\ndefault = \"deny\"\n");
        let mut read = trees(&self.read);
        let mut write = trees(&self.write);
        let mut programs: Vec<String> = self.programs.iter().map(|path| exactly(path)).collect();
        read.extend(programs.iter().cloned());
        read.extend(LIBRARIES.iter().map(ToString::to_string));
        let mut secret = Vec::new();
        if self.system {
            read.extend(SYSTEM.iter().map(ToString::to_string));
            secret.extend(SECRET.iter().map(ToString::to_string));
            programs.extend(PROGRAMS.iter().map(ToString::to_string));
            write.extend(DEVICES.iter().map(ToString::to_string));
        }
        section(
            &mut text,
            "files.read",
            &[("allow", read), ("deny", secret)],
            &[],
        );
        section(&mut text, "files.write", &[("allow", write)], &[]);
        section(&mut text, "programs", &[("allow", programs)], &[]);
        if self.network {
            section(
                &mut text,
                "network",
                &[("allow", vec!["*:*".into(), "unix:/**".into()])],
                &[],
            );
        }
        section(&mut text, "tools", &[("allow", vec!["*".into()])], &[]);
        section(&mut text, "env", &[("allow", self.env.clone())], &[]);
        let budget = [
            ("memory", self.memory.map(|bytes| format!("\"{bytes}B\""))),
            ("processes", self.processes.map(|most| most.to_string())),
            (
                "file_size",
                self.file_size.map(|bytes| format!("\"{bytes}B\"")),
            ),
        ];
        let budget: Vec<String> = budget
            .into_iter()
            .filter_map(|(key, value)| Some(format!("{key} = {}\n", value?)))
            .collect();
        if !budget.is_empty() {
            text.push_str("\n[budget]\n");
            text.extend(budget);
        }
        Source {
            name: name.to_owned(),
            text,
            layer: Layer::Builtin,
        }
    }
}

/// A policy file to be stacked upon others: these trees may be read, and nothing in those may be written.
pub fn fence(name: &str, read: &[PathBuf], keep: &[PathBuf]) -> Source {
    let mut text = String::from("version = 1\n");
    section(&mut text, "files.read", &[("allow", trees(read))], &[]);
    let kept = keep.iter().map(|path| exactly(path)).chain(trees(keep));
    section(&mut text, "files.write", &[("deny", kept.collect())], &[]);
    Source {
        name: name.to_owned(),
        text,
        layer: Layer::CommandLine,
    }
}

fn exactly(path: &Path) -> String {
    glob_of(path.as_os_str().as_bytes())
}

fn trees(roots: &[PathBuf]) -> Vec<String> {
    let tree = |root: &PathBuf| match exactly(root).as_str() {
        "/" => "/**".to_owned(),
        root => format!("{root}/**"),
    };
    roots.iter().map(tree).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Places, Policy, Verdict};

    fn policy(narrow: &Narrow) -> Policy {
        let places = Places {
            home: "/home/me".into(),
            workspace: "/work".into(),
            tmp: "/tmp".into(),
            path: vec!["/usr/bin".into()],
        };
        Policy::load(&[narrow.source("job")], &places).unwrap()
    }

    #[test]
    fn nothing_beyond_the_trees() {
        let odd: PathBuf = "/work/a [b]{c}*\"\\".into();
        let narrow = Narrow {
            read: vec!["/work".into(), odd.clone()],
            write: vec![odd],
            programs: vec!["/opt/invigil".into()],
            memory: Some(1 << 20),
            processes: Some(8),
            file_size: Some(1),
            env: vec!["PATH".into(), "LC_*".into()],
            ..Narrow::default()
        };
        let policy = policy(&narrow);
        let read = |path: &str| policy.verdict(&Action::Read(path.as_bytes()));
        let write = |path: &str| policy.verdict(&Action::Write(path.as_bytes()));
        assert_eq!(read("/work/x"), Verdict::Allow);
        assert_eq!(read("/workers/x"), Verdict::Deny);
        assert_eq!(read("/etc/passwd"), Verdict::Deny);
        assert_eq!(write("/work/x"), Verdict::Deny);
        assert_eq!(write("/work/a [b]{c}*\"\\/x"), Verdict::Allow);
        assert_eq!(write("/work/a bcZ\"\\/x"), Verdict::Deny);
        let bounds = policy.bounds();
        assert!(bounds.network_off());
        assert_eq!(bounds.budget.memory, Some(1 << 20));
        assert_eq!(bounds.budget.processes, Some(8));
        assert_eq!(bounds.budget.file_size, Some(1));
    }

    #[test]
    fn a_fence_stands_whatever_was_allowed_before() {
        let narrow = Narrow {
            write: vec!["/work".into()],
            ..Narrow::default()
        };
        let places = Places {
            home: "/home/me".into(),
            workspace: "/work".into(),
            tmp: "/tmp".into(),
            path: Vec::new(),
        };
        let fence = fence("task", &["/objects".into()], &["/work/mine".into()]);
        let policy = Policy::load(&[narrow.source("job"), fence], &places).unwrap();
        let write = |path: &str| policy.verdict(&Action::Write(path.as_bytes()));
        assert_eq!(write("/work/x"), Verdict::Allow);
        assert_eq!(write("/work/mine"), Verdict::Deny);
        assert_eq!(write("/work/mine/a/b"), Verdict::Deny);
        assert_eq!(policy.verdict(&Action::Read(b"/objects/x")), Verdict::Allow);
    }

    #[test]
    fn the_system_without_its_secrets() {
        let narrow = Narrow {
            system: true,
            network: true,
            ..Narrow::default()
        };
        let policy = policy(&narrow);
        let read = |path: &str| policy.verdict(&Action::Read(path.as_bytes()));
        assert_eq!(read("/usr/bin/git"), Verdict::Allow);
        for secret in [
            "/etc/shadow",
            "/etc/gshadow-",
            "/etc/sudoers",
            "/etc/sudoers.d/admins",
            "/etc/ssl/private/server.key",
            "/etc/wireguard/wg0.conf",
        ] {
            assert_eq!(read(secret), Verdict::Deny, "{secret}");
        }
        assert_eq!(read("/etc/ssl/certs/ca.pem"), Verdict::Allow);
        assert_eq!(read("/root/.bashrc"), Verdict::Deny);
        assert!(!policy.bounds().network_off());
    }
}
