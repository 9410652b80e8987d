//! As much of DNS messages as an answerer for three types of records needs. Pure; whatever bytes come in.

use std::net::IpAddr;

/// How long an answer may be kept, in seconds.
pub(super) const TTL: u32 = 10;
/// So many addresses always fit into a datagram that every client takes.
pub(super) const ADDRESSES_MAX: usize = 8;
/// The longest name that is written out.
const NAME_MAX: usize = 253;

const HEADER: usize = 12;
const RESPONSE: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const RECURSION_DESIRED: u16 = 0x0100;
const RECURSION_AVAILABLE: u16 = 0x0080;
const INTERNET: u16 = 1;
const A: u16 = 1;
const PTR: u16 = 12;
const AAAA: u16 = 28;

/// A question.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Query {
    id: u16,
    flags: u16,
    /// The question as it was asked.
    wire: Vec<u8>,
    pub(super) asks: Asks,
}

/// What is asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// The IPv4 addresses of a name.
    Four(String),
    /// The IPv6 addresses of a name.
    Six(String),
    /// The name of an address.
    NameOf(IpAddr),
    /// Something else about a name.
    Else(String),
    /// Nothing that makes sense.
    Nonsense,
}

/// How a question is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// With these addresses, all of the kind that was asked for.
    Addresses(Vec<IpAddr>),
    /// With a name.
    Name(String),
    /// There is such a name, but no such record.
    Nothing,
    /// There is no such name.
    NoSuchName,
    /// Not now.
    Failure,
    /// The question makes no sense.
    BadForm,
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

impl Query {
    /// Reads a message. None if it is no question at all, and deserves no answer.
    pub(super) fn parse(bytes: &[u8]) -> Option<Query> {
        let (id, flags) = (number(bytes, 0)?, number(bytes, 2)?);
        let count = number(bytes, 4)?;
        if bytes.len() < HEADER || flags & RESPONSE != 0 {
            return None;
        }
        let (wire, asks) = (flags & OPCODE == 0 && count == 1)
            .then(|| question(&bytes[HEADER..]))
            .flatten()
            .unwrap_or((Vec::new(), Asks::Nonsense));
        Some(Query {
            id,
            flags,
            wire,
            asks,
        })
    }

    /// The message that answers it.
    pub(super) fn answer(&self, reply: &Reply) -> Vec<u8> {
        let code = match reply {
            Reply::Addresses(_) | Reply::Name(_) | Reply::Nothing => 0,
            Reply::BadForm => 1,
            Reply::Failure => 2,
            Reply::NoSuchName => 3,
        };
        let records: Vec<Vec<u8>> = match reply {
            Reply::Addresses(addresses) => addresses
                .iter()
                .take(ADDRESSES_MAX)
                .map(|address| match address {
                    IpAddr::V4(ip) => record(A, &ip.octets()),
                    IpAddr::V6(ip) => record(AAAA, &ip.octets()),
                })
                .collect(),
            Reply::Name(name) => vec![record(PTR, &encode(name))],
            _ => Vec::new(),
        };
        let flags = RESPONSE | RECURSION_AVAILABLE | self.flags & RECURSION_DESIRED | code;
        let questions = u16::from(!self.wire.is_empty());
        let mut message = Vec::new();
        for word in [self.id, flags, questions, records.len() as u16, 0, 0] {
            message.extend(word.to_be_bytes());
        }
        message.extend(&self.wire);
        message.extend(records.concat());
        message
    }
}

/// The question behind a header, and what it asks. None if it cannot be read.
fn question(bytes: &[u8]) -> Option<(Vec<u8>, Asks)> {
    let (name, length) = name(bytes)?;
    let (kind, class) = (number(bytes, length)?, number(bytes, length + 2)?);
    let asks = match kind {
        _ if class != INTERNET => Asks::Else(name),
        A => Asks::Four(name),
        AAAA => Asks::Six(name),
        PTR => reversed(&name).map_or(Asks::Else(name), Asks::NameOf),
        _ => Asks::Else(name),
    };
    Some((bytes[..length + 4].to_vec(), asks))
}

/// A name in lower case and without its last dot, and how long it is in the message. There is nothing before a question
/// that it could refer to, so every length is a length.
fn name(bytes: &[u8]) -> Option<(String, usize)> {
    let (mut name, mut at) = (String::new(), 0);
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        match length {
            0 => return Some((name, at)),
            1..=63 => {
                let label = bytes.get(at..at + length)?;
                if !name.is_empty() {
                    name.push('.');
                }
                for byte in label {
                    let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
                    // Anything else is in no host's name. It is kept apart from every name that is one.
                    name.push(if plain {
                        char::from(byte.to_ascii_lowercase())
                    } else {
                        '?'
                    });
                }
                at += length;
            }
            _ => return None,
        }
        if name.len() > NAME_MAX {
            return None;
        }
    }
}

/// Whether it can be the name of a host, and nothing that a resolver would take for an address.
pub(super) fn is_host(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    !name.is_empty()
        && !name.contains('?')
        && last.starts_with(|c: char| c.is_ascii_alphabetic())
        && !last.starts_with("0x")
}

/// The address in a name for the way back.
fn reversed(name: &str) -> Option<IpAddr> {
    if let Some(parts) = name.strip_suffix(".in-addr.arpa") {
        let mut bytes = [0; 4];
        let mut parts = parts.split('.');
        for byte in bytes.iter_mut().rev() {
            *byte = parts.next()?.parse().ok()?;
        }
        return parts.next().is_none().then(|| bytes.into());
    }
    let parts = name.strip_suffix(".ip6.arpa")?;
    let mut address = 0u128;
    let mut count = 0;
    for part in parts.rsplit('.') {
        let digit = u128::from_str_radix(part, 16).ok()?;
        if part.len() != 1 || count == 32 {
            return None;
        }
        address = address << 4 | digit;
        count += 1;
    }
    (count == 32).then(|| std::net::Ipv6Addr::from(address).into())
}

fn encode(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// A record about the name in the question.
fn record(kind: u16, data: &[u8]) -> Vec<u8> {
    const THE_QUESTION: [u8; 2] = [0xc0, HEADER as u8];
    let mut record = THE_QUESTION.to_vec();
    record.extend(kind.to_be_bytes());
    record.extend(INTERNET.to_be_bytes());
    record.extend(TTL.to_be_bytes());
    record.extend((data.len() as u16).to_be_bytes());
    record.extend(data);
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ask(name: &str, kind: u16) -> Vec<u8> {
        let mut bytes = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        bytes.extend(encode(name));
        bytes.extend([kind.to_be_bytes(), 1u16.to_be_bytes()].concat());
        bytes
    }

    #[test]
    fn questions() {
        let asks = |name: &str, kind| Query::parse(&ask(name, kind)).unwrap().asks;
        assert_eq!(
            asks("Api.Example.COM", A),
            Asks::Four("api.example.com".into())
        );
        assert_eq!(asks("x", AAAA), Asks::Six("x".into()));
        assert_eq!(asks("x", 65), Asks::Else("x".into()));
        let back = asks("7.0.18.198.in-addr.arpa", PTR);
        assert_eq!(back, Asks::NameOf([198, 18, 0, 7].into()));
        let six = format!("1{}.ip6.arpa", ".0".repeat(31));
        assert_eq!(asks(&six, PTR), Asks::NameOf("::1".parse().unwrap()));
        assert_eq!(
            asks("7.0.18.in-addr.arpa", PTR),
            Asks::Else("7.0.18.in-addr.arpa".into())
        );
        // A label with a dot inside is not two labels.
        let dotted = asks("evil/github", A);
        assert_eq!(dotted, Asks::Four("evil?github".into()));
    }

    #[test]
    fn what_makes_no_sense() {
        let nonsense = |bytes: &[u8]| Query::parse(bytes).unwrap().asks == Asks::Nonsense;
        let mut pointer = ask("x", A);
        pointer[12] = 0xc0;
        pointer[13] = 12;
        assert!(nonsense(&pointer), "a name that refers to itself");
        assert!(nonsense(&ask("x", A)[..14]));
        assert!(nonsense(&ask(&["abcdefgh"; 40].join("."), A)));
        let mut two = ask("x", A);
        two[5] = 2;
        assert!(nonsense(&two));
        let mut update = ask("x", A);
        update[2] = 5 << 3;
        assert!(nonsense(&update));
        let mut response = ask("x", A);
        response[2] |= 0x80;
        assert_eq!(Query::parse(&response), None);
        assert_eq!(Query::parse(b"short"), None);
    }

    #[test]
    fn hosts() {
        for name in ["a.example", "x-1", "_dmarc.example.com", "a.b.c.d"] {
            assert!(is_host(name), "{name}");
        }
        for name in [
            "",
            "1.2.3.4",
            "127.1",
            "0x7f.1",
            "a.0x7f",
            "a?b.com",
            "2130706433",
        ] {
            assert!(!is_host(name), "{name}");
        }
    }

    #[test]
    fn the_longest_answer_fits_a_datagram() {
        let name = [&"a".repeat(61)[..]; 4].join(".");
        let query = Query::parse(&ask(&name, AAAA)).unwrap();
        let answer = query.answer(&Reply::Addresses(vec!["::1".parse().unwrap(); 20]));
        assert!(answer.len() <= 512, "{}", answer.len());
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Some(query) = Query::parse(&bytes) {
                for reply in [Reply::Nothing, Reply::BadForm, Reply::Name("a.b".into())] {
                    prop_assert!(query.answer(&reply).len() >= HEADER);
                }
            }
        }

        #[test]
        fn no_change_of_a_question_does_harm(at in 0usize..40, to in any::<u8>(), cut in 0usize..60) {
            let mut bytes = ask("some.longer.name.example", A);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
            bytes.truncate(cut);
            if let Some(query) = Query::parse(&bytes) {
                query.answer(&Reply::Nothing);
            }
        }
    }
}
