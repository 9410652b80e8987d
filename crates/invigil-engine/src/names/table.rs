//! Which address stands for which name.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::dns::{ADDRESSES_MAX, TTL};

/// 198.18.0.0/15: for measurements between networks, and so in none.
const FOUR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// A network of nobody: "Invigil" in its first bytes.
const SIX: Ipv6Addr = Ipv6Addr::new(0xfd49, 0x6e76, 0x6967, 0x696c, 0, 0, 0, 0);
/// How many addresses there are for one run.
const ENTRIES_MAX: usize = 65_536;

/// Addresses of ours, and what they stand for. They stay for the whole run.
#[derive(Default)]
pub(super) struct Table {
    ours: HashMap<(String, IpAddr), IpAddr>,
    real: HashMap<IpAddr, (String, IpAddr)>,
    /// What names were last found to have, for as long as it is believed.
    fresh: HashMap<String, (Instant, Vec<IpAddr>)>,
}

impl Table {
    /// The name and the real address behind one of ours.
    pub(super) fn find(&self, ours: IpAddr) -> Option<(String, IpAddr)> {
        self.real.get(&ours).cloned()
    }

    /// Our addresses for a name that has just been looked up.
    pub(super) fn fresh(&self, name: &str) -> Option<Vec<IpAddr>> {
        let (since, ours) = self.fresh.get(name)?;
        (since.elapsed() < Duration::from_secs(TTL.into())).then(|| ours.clone())
    }

    /// Takes over what a name was found to have, and gives our addresses for it. None if there is no room.
    pub(super) fn learn(&mut self, name: &str, real: &[IpAddr]) -> Option<Vec<IpAddr>> {
        let kind = |four: bool| {
            let mut found: Vec<IpAddr> = Vec::new();
            for ip in real.iter().map(IpAddr::to_canonical) {
                if ip.is_ipv4() == four && !found.contains(&ip) && found.len() < ADDRESSES_MAX {
                    found.push(ip);
                }
            }
            found
        };
        let mut ours = Vec::new();
        for real in kind(true).into_iter().chain(kind(false)) {
            ours.push(self.stand_in(name, real)?);
        }
        if !ours.is_empty() {
            self.fresh
                .insert(name.to_owned(), (Instant::now(), ours.clone()));
        }
        Some(ours)
    }

    fn stand_in(&mut self, name: &str, real: IpAddr) -> Option<IpAddr> {
        let key = (name.to_owned(), real);
        if let Some(ours) = self.ours.get(&key) {
            return Some(*ours);
        }
        let number = self.ours.len() + 1;
        if number > ENTRIES_MAX {
            return None;
        }
        let ours = match real {
            IpAddr::V4(_) => Ipv4Addr::from_bits(FOUR.to_bits() + number as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(SIX.to_bits() + number as u128).into(),
        };
        self.real.insert(ours, (name.to_owned(), real));
        self.ours.insert(key, ours);
        Some(ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_stands_for_one_name() {
        let mut table = Table::default();
        let one = table
            .learn("a", &[ip("10.0.0.1"), ip("::1"), ip("10.0.0.1")])
            .unwrap();
        assert_eq!(one.len(), 2);
        assert!(one[0].is_ipv4() && one[1].is_ipv6());
        let other = table.learn("b", &[ip("10.0.0.1")]).unwrap();
        assert!(
            !one.contains(&other[0]),
            "the real address is shared, ours is not"
        );
        assert_eq!(table.find(other[0]), Some(("b".into(), ip("10.0.0.1"))));
        assert_eq!(
            table.learn("a", &[ip("10.0.0.1"), ip("::1")]),
            Some(one.clone())
        );
        assert_eq!(table.fresh("a"), Some(one));
        assert_eq!(table.find(ip("198.18.9.9")), None);
    }

    #[test]
    fn there_is_an_end() {
        let mut table = Table::default();
        for i in 0..ENTRIES_MAX {
            assert!(table.learn(&i.to_string(), &[ip("::1")]).is_some());
        }
        assert_eq!(table.learn("more", &[ip("::1")]), None);
        assert!(table.learn("7", &[ip("::1")]).is_some());
        let last = Ipv4Addr::from_bits(FOUR.to_bits() + ENTRIES_MAX as u32);
        assert_eq!(last.octets()[..2], [198, 19]);
    }
}
