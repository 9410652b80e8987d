//! Rules that name hosts: the run's queries for names are answered by us, with addresses that each stand for one name,
//! and a connection to one of those is judged by that name. See `docs/network.md`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use invigil_policy::{Action, Bounds, Decision as Decided, Endpoint, Policy, Verdict};
use invigil_sandbox::Decision;
use invigil_schema::{AccessDenied, Address, Errno, NetOpKind, ProcessRef};

use super::Rules;
use super::gate::refusal;
use crate::names::Names;

/// No rule is about this address; it is reserved for documentation.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Where policies say nothing of ports, a name counts as allowed if it is allowed at one of these.
const USUAL_PORTS: [u16; 4] = [443, 80, 22, 8080];
const ECONNREFUSED: Errno = Errno(111);

/// The names of one run.
pub(crate) struct Hosts {
    names: Names,
    /// The names of addresses that are written down on this machine, which programs find without asking anybody.
    known: Vec<(IpAddr, String)>,
    /// Who was led to the answerer last.
    asker: Arc<Mutex<Option<ProcessRef>>>,
}

/// What becomes of something on the network.
pub(super) enum Led {
    /// It happens elsewhere.
    Instead(Decision),
    /// It does not happen, or a person is asked. Then this is what may happen, and where.
    Refused(Decided, Decision, SocketAddr),
}

impl Hosts {
    /// Answers queries for names that the policy lets the run reach at some port; tells of those that it does not.
    pub(super) fn start(
        rules: &Arc<Rules>,
        bounds: &Bounds,
        refused: impl Fn(AccessDenied) + Send + Sync + 'static,
    ) -> io::Result<Hosts> {
        let ports: Vec<u16> = match &bounds.ports {
            Some(ranges) => ranges.iter().flat_map(|r| [*r.start(), *r.end()]).collect(),
            None => USUAL_PORTS.into(),
        };
        let asker: Arc<Mutex<Option<ProcessRef>>> = Arc::default();
        let (rules, who) = (Arc::clone(rules), Arc::clone(&asker));
        let allowed = move |host: &str, _: SocketAddr| {
            let decided = may_reach(rules.policy(), host, &ports);
            let process = *who.lock().unwrap_or_else(PoisonError::into_inner);
            if let (Some(decided), Some(process)) = (&decided, process)
                && let Decision::Deny { error, rule, place } = refusal(decided, ECONNREFUSED)
            {
                refused(AccessDenied {
                    process,
                    what: "net.name".into(),
                    target: host.into(),
                    rule,
                    place: place.map(|place| *place),
                    error,
                });
            }
            decided.is_none()
        };
        Ok(Hosts {
            names: Names::start(allowed)?,
            known: written_down(&std::fs::read_to_string("/etc/hosts").unwrap_or_default()),
            asker,
        })
    }

    /// Where a connection or a message goes, if a name has to do with it.
    pub(super) fn lead(
        &self,
        policy: &Policy,
        process: ProcessRef,
        op: NetOpKind,
        address: &Address,
    ) -> Option<Led> {
        if !matches!(op, NetOpKind::Connect | NetOpKind::Send) {
            return None;
        }
        let addr: SocketAddr = match address {
            Address::Inet { ip, port } => (*ip, *port).into(),
            Address::Inet6 { ip, port, .. } => (IpAddr::V6(*ip).to_canonical(), *port).into(),
            _ => return None,
        };
        if self.names.is_dns(addr) {
            *self.asker.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
            return Some(Led::Instead(Decision::Instead {
                to: self.names.answerer(),
                host: None,
            }));
        }
        let Some(named) = self.names.judge(addr) else {
            return self.lead_known(policy, addr);
        };
        // What the name stands for must not be forbidden either: a name can be made to point anywhere.
        let action = Action::Connect(Endpoint {
            addr: named.real,
            host: Some(&named.host),
        });
        // A library that looks for the best of several addresses connects to no port; nothing is sent.
        let probes = addr.port() == 0;
        let decided = match policy.verdict(&action) {
            Verdict::Ask | Verdict::Deny if !probes => Some(policy.decide(&action)),
            _ => None,
        };
        let to = named.real;
        let host = Some(named.host);
        let instead = Decision::Instead { to, host };
        Some(match decided {
            Some(decided) => Led::Refused(decided, instead, to),
            None => Led::Instead(instead),
        })
    }

    /// An address that has a name which the policy allows. Everything else is judged as an address.
    fn lead_known(&self, policy: &Policy, addr: SocketAddr) -> Option<Led> {
        let names = self.known.iter().filter(|(ip, _)| *ip == addr.ip());
        let mut allowed = names.filter(|(_, name)| {
            let host = Some(name.as_str());
            policy.verdict(&Action::Connect(Endpoint { addr, host })) == Verdict::Allow
        });
        let host = Some(allowed.next()?.1.clone());
        Some(Led::Instead(Decision::Instead { to: addr, host }))
    }
}

/// The addresses of `/etc/hosts`.
fn written_down(text: &str) -> Vec<(IpAddr, String)> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let entries = lines.flat_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
        words.filter_map(move |name| Some((address?, name.to_ascii_lowercase())))
    });
    entries.collect()
}

/// The decision on a name that the run may not reach at any port.
fn may_reach(policy: &Policy, host: &str, ports: &[u16]) -> Option<Decided> {
    let action = |port: &u16| {
        Action::Connect(Endpoint {
            addr: SocketAddr::new(NOWHERE, *port),
            host: Some(host),
        })
    };
    let denied = |port| policy.verdict(&action(port)) == Verdict::Deny;
    if ports.iter().any(|port| !denied(port)) {
        return None;
    }
    Some(policy.decide(&action(ports.first().unwrap_or(&USUAL_PORTS[0]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_written_down() {
        let text =
            "127.0.0.1 localhost Here # a remark\n# 10.0.0.1 not\n::1 localhost\nnonsense x\n";
        let name = |ip: &str, name: &str| (ip.parse().unwrap(), name.to_owned());
        assert_eq!(
            written_down(text),
            [
                name("127.0.0.1", "localhost"),
                name("127.0.0.1", "here"),
                name("::1", "localhost")
            ]
        );
    }
}
