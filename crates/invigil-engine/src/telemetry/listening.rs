//! TCP ports that somebody listens at.

use std::net::{IpAddr, Ipv6Addr};

use invigil_schema::ListeningPort;

use super::tree::{Tree, words};

/// More than these are not shown.
const MOST: usize = 256;

/// By port and address. The kernel lists those who listen before all connections, so that only they are read.
pub(super) fn ports(proc: &mut Tree) -> Vec<ListeningPort> {
    let mut ports = Vec::new();
    for table in [c"net/tcp", c"net/tcp6"] {
        let mut heading = true;
        // Without a network, or without a protocol, there is no table.
        let _ = proc.lines(table, |line| {
            if std::mem::take(&mut heading) {
                return true;
            }
            let port = listening(line);
            ports.extend(port);
            port.is_some() && ports.len() < MOST
        });
    }
    ports.sort_unstable();
    ports.dedup();
    ports
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
