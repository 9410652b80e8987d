//! From what was observed to the smallest readable policy under which it would have passed.
//!
//! Files are folded into the directories that people think of; programs and addresses are named one by one. What the
//! profile `coding` refuses to read or to reach is never allowed: it stands in the text as a comment, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use invigil_schema::OsText;

use crate::glob::{PathGlob, escape};
use crate::net::{Target, parse_target};
use crate::syntax::Text;
use crate::{Action, Endpoint, Places, Policy, Section, UnixSocket, Verdict, profile};

/// What runs did. Paths are absolute and resolved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observations {
    /// Files opened for reading and directories listed; none at all if that was not watched.
    pub reads: Option<BTreeSet<OsText>>,
    /// Files made, changed, removed or renamed.
    pub writes: BTreeSet<OsText>,
    /// Files that were loaded as programs, interpreters of scripts too.
    pub programs: BTreeSet<OsText>,
    /// Addresses connected or sent to, with the names that led there.
    pub connects: BTreeSet<(SocketAddr, Option<String>)>,
    /// Addresses taken.
    pub binds: BTreeSet<SocketAddr>,
    /// Unix sockets that are files.
    pub unix: BTreeSet<OsText>,
    /// Unix sockets that are not.
    pub unix_abstract: BTreeSet<OsText>,
    /// Tools called.
    pub tools: BTreeSet<String>,
}

/// Many files of one directory are one thing.
const MANY: usize = 4;
/// From here on Linux hands out ports by chance.
const EPHEMERAL: u16 = 32768;

/// Writes a policy under which what was observed would have passed, but for what is secret.
pub fn learn(observed: &Observations, places: &Places) -> String {
    let learner = Learner::new(places);
    let mut text = String::from(
        "# Written from what was observed. Read it before you use it: what is not named here is refused.\n\n\
         version = 1\ndefault = \"deny\"\n",
    );
    learner.reads(observed, &mut text);
    learner.writes(observed, &mut text);
    learner.programs(observed, &mut text);
    learner.network(observed, &mut text);
    if !observed.tools.is_empty() {
        let tools = observed.tools.iter().map(|name| escape(name)).collect();
        section(&mut text, "tools", &[("allow", tools)], &[]);
    }
    text
}

struct Learner<'p> {
    places: &'p Places,
    /// Knows what is secret.
    coding: Option<Policy>,
}

/// What will be written: rules, and why something is none.
#[derive(Default)]
struct Found {
    rules: BTreeSet<String>,
    refused: Vec<String>,
}

impl<'p> Learner<'p> {
    fn new(places: &'p Places) -> Self {
        let coding = profile("coding").and_then(|source| Policy::load(&[source], places).ok());
        Learner { places, coding }
    }

    /// Why something must not be allowed.
    fn secret(&self, action: &Action<'_>) -> Option<String> {
        let coding = self.coding.as_ref()?;
        if coding.verdict(action) != Verdict::Deny {
            return None;
        }
        let decision = coding.decide(action);
        decision
            .rule()
            .map(|rule| rule.reason.clone().unwrap_or_else(|| rule.text.clone()))
    }

    fn reads(&self, observed: &Observations, text: &mut String) {
        let Some(reads) = &observed.reads else {
            // Nobody saw what was read, so only what is secret is refused.
            let deny = self.secrets(|_| true);
            section(text, "files.read", &[("deny", deny)], &[]);
            text.push_str("default = \"allow\"\n");
            return;
        };
        let mut found = self.files(reads, self.fold_read());
        // A program must be readable to be run.
        for program in &observed.programs {
            if self.secret(&Action::Read(program.as_bytes())).is_none() {
                found.rules.insert(self.fold_read()(program.as_bytes()));
            }
        }
        collapse(&mut found.rules);
        let deny = self.secrets(|glob| found.rules.iter().any(|rule| self.overlap(rule, glob)));
        let allow = found.rules.into_iter().collect();
        section(
            text,
            "files.read",
            &[("allow", allow), ("deny", deny)],
            &found.refused,
        );
    }

    fn writes(&self, observed: &Observations, text: &mut String) {
        let mut found = self.files(&observed.writes, |path| self.fold_write(path));
        collapse(&mut found.rules);
        let allow = found.rules.into_iter().collect();
        section(text, "files.write", &[("allow", allow)], &found.refused);
    }

    fn programs(&self, observed: &Observations, text: &mut String) {
        let fold = |program: &OsText| {
            let path = program.as_bytes();
            self.place(path)
                .map_or_else(|| self.spell(path), |(place, _)| format!("{place}/**"))
        };
        let mut rules: BTreeSet<String> = observed.programs.iter().map(fold).collect();
        collapse(&mut rules);
        section(
            text,
            "programs",
            &[("allow", rules.into_iter().collect())],
            &[],
        );
    }

    fn network(&self, observed: &Observations, text: &mut String) {
        let mut found = Found::default();
        for (addr, host) in &observed.connects {
            let endpoint = Endpoint {
                addr: *addr,
                host: host.as_deref(),
            };
            found.take(
                endpoint_rule(*addr, host.as_deref()),
                self.secret(&Action::Connect(endpoint)),
            );
        }
        for addr in &observed.binds {
            let endpoint = Endpoint {
                addr: *addr,
                host: None,
            };
            found.take(bind_rule(*addr), self.secret(&Action::Bind(endpoint)));
        }
        for socket in &observed.unix {
            let path = socket.as_bytes();
            let rule = self
                .place(path)
                .map_or_else(|| self.spell(path), |(place, _)| format!("{place}/**"));
            found.take(
                format!("unix:{rule}"),
                self.secret(&Action::Unix(UnixSocket::Path(path))),
            );
        }
        for socket in &observed.unix_abstract {
            let name = socket.as_bytes();
            let rule = format!("unix:@{}", glob_of(name));
            found.take(rule, self.secret(&Action::Unix(UnixSocket::Abstract(name))));
        }
        let allow = found.rules.into_iter().collect();
        section(text, "network", &[("allow", allow)], &found.refused);
    }

    fn files(&self, paths: &BTreeSet<OsText>, fold: impl Fn(&[u8]) -> String) -> Found {
        let mut found = Found::default();
        for path in paths {
            match self.secret(&Action::Read(path.as_bytes())) {
                Some(reason) => found.take(self.spell(path.as_bytes()), Some(reason)),
                None => found.take(fold(path.as_bytes()), None),
            }
        }
        found
    }

    fn fold_read(&self) -> impl Fn(&[u8]) -> String {
        |path| {
            const SYSTEM: [&str; 13] = [
                "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt", "/etc",
                "/proc", "/sys", "/dev", "/nix",
            ];
            match SYSTEM
                .iter()
                .find(|system| is_below(path, system.as_bytes()))
            {
                Some(system) if self.place(path).is_none() => format!("{system}/**"),
                _ => self.fold_write(path),
            }
        }
    }

    /// The workspace and temporary directories are one thing each. Elsewhere, what lies three names deep below the home
    /// or the root is folded to the second.
    fn fold_write(&self, path: &[u8]) -> String {
        if let Some((place, _)) = self.place(path) {
            return format!("{place}/**");
        }
        for device in ["/dev/pts", "/dev/shm", "/dev/fd"] {
            if is_below(path, device.as_bytes()) {
                return format!("{device}/**");
            }
        }
        let names: Vec<&[u8]> = path
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty())
            .collect();
        if let [b"proc", rest @ ..] = &names[..] {
            let name = |name: &&[u8]| match name.iter().all(u8::is_ascii_digit) {
                true => "*".to_owned(),
                false => glob_of(name),
            };
            return format!(
                "/proc/{}",
                rest.iter().map(name).collect::<Vec<_>>().join("/")
            );
        }
        let home = self.places.home.as_os_str().as_encoded_bytes();
        let below_home = is_below(path, home) && home.len() > 1;
        let prefix = if below_home {
            home.split(|&byte| byte == b'/')
                .filter(|name| !name.is_empty())
                .count()
        } else {
            0
        };
        match names.len() > prefix + 2 {
            true => {
                let folded = names[..prefix + 2].join(&b'/');
                format!("{}/**", self.spell(&[b"/", &folded[..]].concat()))
            }
            false => self.spell(path),
        }
    }

    /// The place of the policy language that a path lies in.
    fn place(&self, path: &[u8]) -> Option<(&'static str, &Path)> {
        let named = [
            ("${workspace}", self.places.workspace.as_path()),
            ("${tmp}", self.places.tmp.as_path()),
            ("/tmp", Path::new("/tmp")),
            ("/var/tmp", Path::new("/var/tmp")),
        ];
        named.into_iter().find(|(_, place)| {
            let place = place.as_os_str().as_encoded_bytes();
            place.len() > 1 && is_below(path, place)
        })
    }

    /// A path as a rule that matches it and nothing else.
    fn spell(&self, path: &[u8]) -> String {
        let home = self.places.home.as_os_str().as_encoded_bytes();
        match path
            .strip_prefix(home)
            .filter(|rest| home.len() > 1 && (rest.is_empty() || rest.starts_with(b"/")))
        {
            Some(rest) => format!("~{}", glob_of(rest)),
            None => glob_of(path),
        }
    }

    /// The rules of the profile for what is secret, as far as they are wanted.
    fn secrets(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let strata = self.coding.iter().flat_map(|policy| &policy.strata);
        let rules = strata.flat_map(|(stratum, _)| stratum.rules(Section::Read));
        let rules = rules
            .filter(|rule| rule.verdict == Verdict::Deny)
            .map(|rule| rule.text.clone());
        rules.filter(|rule| wanted(rule)).collect()
    }

    /// Whether a secret could lie in what a rule allows.
    fn overlap(&self, rule: &str, secret: &str) -> bool {
        let parse = |text| PathGlob::parse(&Text { text, span: 0..0 }, self.places).ok();
        let (Some(rule), Some(secret)) = (parse(rule), parse(secret)) else {
            return true;
        };
        let roots = rule
            .shapes
            .iter()
            .filter(|shape| shape.only_path().is_none())
            .map(|shape| shape.root());
        let mut roots = roots.map(|root| root.as_os_str().as_encoded_bytes().to_vec());
        roots.any(|root| secret.shapes.iter().any(|shape| shape.reaches_below(&root)))
    }
}

impl Found {
    fn take(&mut self, rule: String, secret: Option<String>) {
        match secret {
            None => {
                self.rules.insert(rule);
            }
            Some(reason) => self
                .refused
                .push(format!("{rule} is not allowed, because: {reason}")),
        }
    }
}

/// Drops what a `/**` covers, and folds many files of one directory.
fn collapse(rules: &mut BTreeSet<String>) {
    let directories: Vec<String> = rules
        .iter()
        .filter_map(|rule| Some(rule.strip_suffix("**")?.to_owned()))
        .collect();
    rules.retain(|rule| {
        let covered = |directory: &String| {
            let inside = rule
                .strip_prefix(directory.as_str())
                .is_some_and(|rest| rest != "**");
            inside || format!("{rule}/") == *directory
        };
        !directories.iter().any(covered)
    });
    let mut siblings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| !rule.ends_with("/**")) {
        if let Some((directory, _)) = rule.rsplit_once('/') {
            siblings
                .entry(directory.to_owned())
                .or_default()
                .push(rule.clone());
        }
    }
    let near_the_top = |directory: &str| {
        directory == "~" || directory.matches('/').count() < 2 && !directory.starts_with('~')
    };
    let programs = |directory: &str| directory.ends_with("/bin") || directory.ends_with("/sbin");
    for (directory, files) in siblings {
        if files.len() >= MANY && !near_the_top(&directory) && !programs(&directory) {
            files.iter().for_each(|file| {
                rules.remove(file);
            });
            rules.insert(format!("{directory}/*"));
        }
    }
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// A glob that matches these bytes; what is not UTF-8 becomes a `?` for each byte.
pub(crate) fn glob_of(bytes: &[u8]) -> String {
    let mut glob = String::new();
    for chunk in bytes.utf8_chunks() {
        glob.push_str(&escape(chunk.valid()));
        glob.push_str(&"?".repeat(chunk.invalid().len()));
    }
    glob
}

fn endpoint_rule(addr: SocketAddr, host: Option<&str>) -> String {
    let ip = addr.ip().to_canonical();
    let port = match addr.port() {
        0 => "*".to_owned(),
        port => port.to_string(),
    };
    match (host.filter(|host| is_host(host)), ip) {
        _ if ip.is_loopback() && ip.is_ipv4() || ip.is_unspecified() && ip.is_ipv4() => {
            "127.0.0.0/8:*".to_owned()
        }
        _ if ip.is_loopback() || ip.is_unspecified() => "[::1]:*".to_owned(),
        (Some(host), _) => format!("{}:{port}", bare(host)),
        (None, IpAddr::V4(v4)) => format!("{v4}:{port}"),
        (None, IpAddr::V6(v6)) => format!("[{v6}]:{port}"),
    }
}

fn bind_rule(addr: SocketAddr) -> String {
    let ip = addr.ip().to_canonical();
    let port = match addr.port() {
        0 | EPHEMERAL.. => "*".to_owned(),
        port => port.to_string(),
    };
    match ip {
        IpAddr::V4(v4) if v4.is_loopback() => "127.0.0.0/8:*".to_owned(),
        IpAddr::V6(v6) if v6.is_loopback() => "[::1]:*".to_owned(),
        IpAddr::V4(v4) => format!("{v4}:{port}"),
        IpAddr::V6(v6) => format!("[{v6}]:{port}"),
    }
}

/// Without the dot of the root.
fn bare(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

/// Whether a rule can be written with this name.
fn is_host(host: &str) -> bool {
    parse_target(bare(host)).is_ok_and(|target| matches!(target, Target::Host(_)))
}

pub(crate) fn section(
    text: &mut String,
    name: &str,
    lists: &[(&str, Vec<String>)],
    refused: &[String],
) {
    let empty = lists.iter().all(|(_, rules)| rules.is_empty());
    if empty && refused.is_empty() {
        return;
    }
    // A section without a rule would be an error; its comments can stand without it.
    text.push('\n');
    if !empty {
        let _ = writeln!(text, "[{name}]");
    }
    for (key, rules) in lists.iter().filter(|(_, rules)| !rules.is_empty()) {
        let _ = writeln!(text, "{key} = [");
        for rule in rules {
            let _ = writeln!(text, "    {},", quoted(rule));
        }
        text.push_str("]\n");
    }
    for line in refused {
        let _ = writeln!(text, "# {}", line.replace(char::is_control, "?"));
    }
}

/// A TOML text.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
