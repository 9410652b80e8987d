//! TCP ports that somebody listens at.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use invigil_schema::ListeningPort;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::tree::{Tree, words};

/// More than these are not shown.
const MOST: usize = 256;

/// By port and address, as the kernel answers, or else as its tables say.
///
/// The tables have those who listen before all connections, and end here where connections begin. The kernel searches
/// all places where a connection could be before it says that there is none, which takes milliseconds: so it is asked
/// instead where it can be, for those who listen alone.
pub(super) fn ports(proc: &mut Tree, ask: bool) -> Vec<ListeningPort> {
    let mut ports = Vec::new();
    for (family, table) in [
        (AddressFamily::INET, c"net/tcp"),
        (AddressFamily::INET6, c"net/tcp6"),
    ] {
        let before = ports.len();
        if !ask || answered(family, &mut ports).is_err() {
            ports.truncate(before);
            listed(proc, table, &mut ports);
        }
    }
    ports.sort_unstable();
    ports.dedup();
    ports.truncate(MOST);
    ports
}

/// The number of a message that asks for sockets, and of those that end an answer.
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// A request for a whole list.
const DUMP: u16 = 0x301;
const TCP: u8 = 6;
const LISTEN: u32 = 1 << 10;
/// In front of each message: length, number, flags, sequence, sender.
const HEADER: usize = 16;

/// Asks the kernel. Nobody needs rights for it.
fn answered(family: AddressFamily, ports: &mut Vec<ListeningPort>) -> io::Result<()> {
    let protocol = Some(netlink::SOCK_DIAG);
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
    let mut request = [0; HEADER + 56];
    request[..4].copy_from_slice(&(HEADER as u32 + 56).to_ne_bytes());
    request[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    // The family has one byte here, and both have small numbers.
    request[HEADER] = family.as_raw() as u8;
    request[HEADER + 1] = TCP;
    request[HEADER + 4..HEADER + 8].copy_from_slice(&LISTEN.to_ne_bytes());
    send(&socket, &request, SendFlags::empty())?;
    // The answer is there when the question was taken, and each part of it when the one before was.
    let mut buffer = vec![0; 32 * 1024];
    loop {
        let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
        let mut rest = &buffer[..length];
        while let Some((number, body, next)) = message(rest) {
            match number {
                DONE => return Ok(()),
                ERROR => return Err(io::Error::other("the kernel has no answer")),
                _ => ports.extend(told(body)),
            }
            rest = next;
        }
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The first message: its number, what it says, and what follows it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let number = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER..length)?;
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((number, body, next))
}

/// A socket as the kernel tells of it: family, state, two bytes more, two ports, the own address.
fn told(body: &[u8]) -> Option<ListeningPort> {
    let port = u16::from_be_bytes(*body.get(4..)?.first_chunk()?);
    let address = body.get(8..)?;
    let address = match u16::from(*body.first()?) == AddressFamily::INET.as_raw() {
        true => IpAddr::from(*address.first_chunk::<4>()?),
        false => IpAddr::from(*address.first_chunk::<16>()?),
    };
    Some(ListeningPort { port, address })
}

/// Reads a table. Without a network, or without a protocol, there is none.
fn listed(proc: &mut Tree, table: &CStr, ports: &mut Vec<ListeningPort>) {
    let mut heading = true;
    let _ = proc.lines(table, |line| {
        if std::mem::take(&mut heading) {
            return true;
        }
        let port = listening(line);
        ports.extend(port);
        port.is_some()
    });
}

/// A line of the table, if it is of a socket that listens: `0: 0100007F:1F90 00000000:0000 0A …`
fn listening(line: &[u8]) -> Option<ListeningPort> {
    let mut words = words(line);
    let local = str::from_utf8(words.nth(1)?).ok()?;
    if words.nth(1)? != b"0A" {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    Some(ListeningPort {
        port: u16::from_str_radix(port, 16).ok()?,
        address: ip(address)?,
    })
}

/// An address as the kernel writes it: words of 32 bits, each in the order of the machine.
fn ip(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    if text.len() == 8 {
        return Some(IpAddr::from(word(0)?));
    }
    let mut bytes = [0; 16];
    for (at, place) in bytes.chunks_exact_mut(4).enumerate() {
        place.copy_from_slice(&word(at)?);
    }
    Some(IpAddr::from(Ipv6Addr::from(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_what_its_tables_say() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = IpAddr::from([127, 0, 0, 1]);
        let ours = ListeningPort { port, address };
        let mut proc = Tree::open(std::path::Path::new("/proc")).unwrap();
        assert!(ports(&mut proc, false).contains(&ours));
        let mut answer = Vec::new();
        match answered(AddressFamily::INET, &mut answer) {
            Ok(()) => assert!(answer.contains(&ours), "{answer:?}"),
            Err(error) => println!("this kernel cannot be asked: {error}"),
        }
        assert!(ports(&mut proc, true).contains(&ours));
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let of = |text: &str| ip(text).map(|ip| ip.to_string());
        let ours = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        assert_eq!(of(&ours([127, 0, 0, 1])).as_deref(), Some("127.0.0.1"));
        let one = "0".repeat(24) + &ours([0, 0, 0, 1]);
        assert_eq!(of(&one).as_deref(), Some("::1"));
        assert_eq!(of("0100007"), None);
        assert_eq!(of("zzzzzzzz"), None);
    }
}
