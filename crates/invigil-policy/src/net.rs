//! Rules about the network: `HOST:PORT`, `*.SUFFIX:PORT`, `ADDRESS:PORT`, `[NET/BITS]:PORT`, `*:PORT` and `unix:PATH`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use globset::{Candidate, Glob};

use crate::error::Flaw;
use crate::glob::{Judged, PathGlob, name_globs};
use crate::syntax::Text;
use crate::{Endpoint, Places, UnixSocket, Verdict};

/// What a rule of the network matches.
#[derive(Debug, Clone)]
pub(crate) enum NetPattern {
    Inet {
        target: Target,
        ports: RangeInclusive<u16>,
    },
    UnixPath(PathGlob),
    UnixAbstract(Vec<Glob>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Any host and any address.
    Any,
    Host(String),
    /// Everything below a name, not the name itself.
    Below(String),
    Net(Net),
}

/// A range of addresses. IPv4 in IPv6 clothes is IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Net {
    v6: bool,
    bits: u8,
    /// The first address, in the lowest bits.
    first: u128,
}

impl Net {
    fn of(addr: IpAddr, bits: u8) -> Self {
        match addr {
            IpAddr::V4(v4) => Net {
                v6: false,
                bits,
                first: u128::from(v4.to_bits()) & mask(32, bits),
            },
            IpAddr::V6(v6) => Net {
                v6: true,
                bits,
                first: v6.to_bits() & mask(128, bits),
            },
        }
    }
}

fn mask(width: u32, bits: u8) -> u128 {
    let host_bits = width - u32::from(bits);
    u128::MAX.checked_shl(host_bits).unwrap_or(0)
}

impl NetPattern {
    pub(crate) fn parse(text: &Text<'_>, places: &Places) -> Result<Self, Flaw> {
        if let Some(socket) = text.text.strip_prefix("unix:") {
            let socket = Text {
                text: socket,
                span: text.span.clone(),
            };
            return Ok(match socket.text.strip_prefix('@') {
                Some(name) => NetPattern::UnixAbstract(name_globs(&Text {
                    text: name,
                    span: socket.span,
                })?),
                None => NetPattern::UnixPath(PathGlob::parse(&socket, places)?),
            });
        }
        let flaw = |message: String, help: String| {
            Flaw::new(text.span.clone(), message, "not an address", help)
        };
        if let Some((scheme, rest)) = text.text.split_once("://") {
            let host = rest.split('/').next().unwrap_or(rest);
            let port = if scheme == "http" { 80 } else { 443 };
            let message = format!("`{}` is a URL, and rules are about addresses", text.text);
            return Err(flaw(message, format!("write \"{host}:{port}\"")));
        }
        let bare_v6 = text.text.matches(':').count() > 1 && !text.text.starts_with('[');
        if bare_v6 {
            let message = format!("`{}` is an IPv6 address without brackets", text.text);
            return Err(flaw(
                message,
                format!("write \"[{}]:443\", or `:*` for every port", text.text),
            ));
        }
        let Some((target, port)) = split_port(text.text) else {
            let message = format!("`{}` has no port", text.text);
            return Err(flaw(
                message,
                format!("write \"{0}:443\", or \"{0}:*\" for every port", text.text),
            ));
        };
        let Some(ports) = parse_ports(port) else {
            let message = format!("`{port}` is not a port");
            return Err(flaw(
                message,
                "write a port from 1 to 65535, a range like 8000-8999, or *".into(),
            ));
        };
        let target = parse_target(target).map_err(|(message, help)| flaw(message, help))?;
        Ok(NetPattern::Inet { target, ports })
    }
}

fn split_port(text: &str) -> Option<(&str, &str)> {
    match text.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']')?;
            Some((&text[..end + 2], rest[end + 1..].strip_prefix(':')?))
        }
        None => text.rsplit_once(':'),
    }
}

fn parse_ports(text: &str) -> Option<RangeInclusive<u16>> {
    // `u16::from_str` would take a plus sign.
    let port = |text: &str| {
        text.parse::<u16>()
            .ok()
            .filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
    };
    if text == "*" {
        return Some(0..=u16::MAX);
    }
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(text)?, port(text)?),
    };
    (first > 0 && first <= last).then_some(first..=last)
}

pub(crate) fn parse_target(text: &str) -> Result<Target, (String, String)> {
    if text == "*" {
        return Ok(Target::Any);
    }
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let (addr, bits) = match inner.unwrap_or(text).split_once('/') {
        Some((addr, bits)) => (addr, Some(bits)),
        None => (inner.unwrap_or(text), None),
    };
    let numeric = addr
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    match addr.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) if inner.is_some() => Err((
            format!("`{text}` is an IPv4 address in brackets"),
            format!("write {addr} without brackets"),
        )),
        Ok(addr) => parse_net(text, addr, bits).map(Target::Net),
        Err(_) if inner.is_some() => Err((
            format!("`{text}` is not an IPv6 address"),
            "write an address like [::1] or a range like [fd00::/8]".into(),
        )),
        Err(_) if numeric || bits.is_some() => Err((
            format!("`{text}` is not an IPv4 address"),
            "write an address like 127.0.0.1 or a range like 10.0.0.0/8".into(),
        )),
        Err(_) => parse_host(text),
    }
}

fn parse_net(text: &str, addr: IpAddr, bits: Option<&str>) -> Result<Net, (String, String)> {
    let width: u8 = if addr.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => width,
        Some(bits) => bits
            .parse::<u8>()
            .ok()
            .filter(|bits| *bits <= width)
            .ok_or_else(|| {
                let help = format!("write a number of bits from 0 to {width} behind the slash");
                (format!("`{text}` is not a range of addresses"), help)
            })?,
    };
    // A rule for ::ffff:10.0.0.0/104 is one for 10.0.0.0/8.
    let mapped = match addr {
        IpAddr::V6(v6) if bits >= 96 => v6.to_ipv4_mapped().map(|v4| (IpAddr::V4(v4), bits - 96)),
        _ => None,
    };
    let (canonical, bits) = mapped.unwrap_or((addr, bits));
    let net = Net::of(canonical, bits);
    if net.first != Net::of(canonical, if canonical.is_ipv4() { 32 } else { 128 }).first {
        let first = match net.v6 {
            false => IpAddr::V4(Ipv4Addr::from_bits(net.first as u32)),
            true => IpAddr::V6(Ipv6Addr::from_bits(net.first)),
        };
        let message = format!("`{text}` has bits set behind the first {bits}");
        return Err((
            message,
            format!("write {first}/{bits}, or {canonical} for the one address"),
        ));
    }
    Ok(net)
}

fn parse_host(text: &str) -> Result<Target, (String, String)> {
    let lower = text.to_ascii_lowercase();
    let (below, name) = match lower.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, lower.as_str()),
    };
    if name.contains('*') || name.contains('?') {
        let message = format!("`{text}` has a star inside of a host name");
        return Err((
            message,
            "write *. in front of a name for everything below it: *.example.com".into(),
        ));
    }
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(inner)
            && !label.starts_with('-')
    };
    if name.len() > 253 || !name.split('.').all(label) {
        let message = format!("`{text}` is not a host name");
        let help =
            "write a name like api.example.com; a name with other letters in its xn-- form".into();
        return Err((message, help));
    }
    Ok(match below {
        true => Target::Below(name.to_owned()),
        false => Target::Host(name.to_owned()),
    })
}

/// An entry of the index: the ports, whose rule, and what it says.
type Entry = (RangeInclusive<u16>, usize, Verdict);

/// Rules by what they match.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetIndex {
    any: Vec<Entry>,
    hosts: HashMap<String, Vec<Entry>>,
    below: HashMap<String, Vec<Entry>>,
    nets: HashMap<Net, Vec<Entry>>,
    /// Which lengths of ranges occur, so that an address is looked up once for each.
    bits: Vec<(bool, u8)>,
    unix_paths: Judged,
    unix_abstract: Judged,
}

impl NetIndex {
    pub(crate) fn new(rules: &[(NetPattern, Verdict)]) -> Result<Self, globset::Error> {
        let mut index = NetIndex::default();
        let (mut paths, mut names) = (Vec::new(), Vec::new());
        for (n, (pattern, verdict)) in rules.iter().enumerate() {
            match pattern {
                NetPattern::Inet { target, ports } => {
                    index.add(target, (ports.clone(), n, *verdict))
                }
                NetPattern::UnixPath(glob) => {
                    paths.extend(glob.globs.iter().map(|glob| (glob.clone(), *verdict, n)));
                }
                NetPattern::UnixAbstract(globs) => {
                    names.extend(globs.iter().map(|glob| (glob.clone(), *verdict, n)));
                }
            }
        }
        index.unix_paths = Judged::new(&paths)?;
        index.unix_abstract = Judged::new(&names)?;
        Ok(index)
    }

    fn add(&mut self, target: &Target, entry: Entry) {
        match target {
            Target::Any => self.any.push(entry),
            Target::Host(name) => self.hosts.entry(name.clone()).or_default().push(entry),
            Target::Below(name) => self.below.entry(name.clone()).or_default().push(entry),
            Target::Net(net) => {
                if !self.bits.contains(&(net.v6, net.bits)) {
                    self.bits.push((net.v6, net.bits));
                }
                self.nets.entry(*net).or_default().push(entry);
            }
        }
    }

    /// Calls with each rule that matches a connect.
    pub(crate) fn each_connect(&self, to: &Endpoint<'_>, mut found: impl FnMut(usize, Verdict)) {
        let port = to.addr.port();
        let mut take = |entries: &[Entry]| each_at(port, entries, &mut found);
        take(&self.any);
        let mut buffer = [0; 256];
        if let Some(host) = to.host.and_then(|host| lower(host, &mut buffer)) {
            if let Some(entries) = self.hosts.get(host) {
                take(entries);
            }
            let mut rest = host;
            while let Some((_, parent)) = rest.split_once('.') {
                if let Some(entries) = self.below.get(parent) {
                    take(entries);
                }
                rest = parent;
            }
        }
        self.each_net(routed(to.addr), take);
    }

    /// Calls with each rule that matches a bind. The address is one of this machine, and is judged as it is given.
    pub(crate) fn each_bind(&self, at: &Endpoint<'_>, mut found: impl FnMut(usize, Verdict)) {
        let port = at.addr.port();
        let mut take = |entries: &[Entry]| each_at(port, entries, &mut found);
        take(&self.any);
        self.each_net(at.addr.ip().to_canonical(), take);
    }

    fn each_net(&self, addr: IpAddr, mut take: impl FnMut(&[Entry])) {
        for &(v6, bits) in self.bits.iter().filter(|(v6, _)| *v6 == addr.is_ipv6()) {
            let net = Net::of(addr, bits);
            debug_assert_eq!(net.v6, v6);
            if let Some(entries) = self.nets.get(&net) {
                take(entries);
            }
        }
    }

    pub(crate) fn strictest_unix(&self, socket: UnixSocket<'_>) -> Option<Verdict> {
        let (globs, name) = self.unix(socket);
        globs.strictest(&Candidate::from_bytes(name))
    }

    pub(crate) fn each_unix(&self, socket: UnixSocket<'_>, found: impl FnMut(usize)) {
        let (globs, name) = self.unix(socket);
        globs.each_match(&Candidate::from_bytes(name), found);
    }

    fn unix<'n>(&self, socket: UnixSocket<'n>) -> (&Judged, &'n [u8]) {
        match socket {
            UnixSocket::Path(path) => (&self.unix_paths, path),
            UnixSocket::Abstract(name) => (&self.unix_abstract, name),
        }
    }
}

fn each_at(port: u16, entries: &[Entry], found: &mut impl FnMut(usize, Verdict)) {
    for (_, n, verdict) in entries.iter().filter(|(ports, ..)| ports.contains(&port)) {
        found(*n, *verdict);
    }
}

/// Where a connect really goes: IPv4 in IPv6 clothes is IPv4, and Linux takes the unspecified address for this machine.
fn routed(addr: SocketAddr) -> IpAddr {
    match addr.ip().to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        addr => addr,
    }
}

/// A host name in small letters without the dot of the root. What is longer than the buffer is no host name.
fn lower<'b>(host: &str, buffer: &'b mut [u8; 256]) -> Option<&'b str> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let buffer = buffer.get_mut(..host.len())?;
    buffer.copy_from_slice(host.as_bytes());
    buffer.make_ascii_lowercase();
    str::from_utf8(buffer).ok()
}
