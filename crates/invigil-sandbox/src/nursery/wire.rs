//! What a nursery is told of a copy that it is to make. Both sides are the same program, on the same machine.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::birth::{Birth, LIMITS};
use crate::filter::Trap;
use crate::sys;

/// The longest message: a filter has at most 4,096 instructions of 8 bytes, a path as many bytes.
pub(super) const LONGEST: usize = 64 * 1024;

/// Words of eight bytes in front of the path and the filter.
const WORDS: usize = 6 + 2 * LIMITS;

/// A birth as bytes and descriptors.
pub(super) fn packed(birth: &Birth<'_>) -> (Vec<u8>, Vec<RawFd>) {
    let cwd = birth.cwd.to_bytes_with_nul();
    let mut descriptors = vec![birth.status, birth.go];
    descriptors.extend(birth.ruleset.map(|(ruleset, _)| ruleset));
    descriptors.extend(birth.streams.into_iter().flatten());
    let streams = birth.streams.iter().enumerate();
    let mut words = vec![
        match birth.trap {
            None => 0,
            Some(Trap::Notify) => 1,
            Some(Trap::Trace) => 2,
        },
        birth.gives_up_capabilities.into(),
        birth
            .ruleset
            .map_or(0, |(_, flags)| 1 | u64::from(flags) << 1),
        streams.fold(0, |bits, (n, stream)| {
            bits | u64::from(stream.is_some()) << n
        }),
        sys::signals_of(&birth.mask),
        cwd.len() as u64,
    ];
    for limit in birth.limits {
        words.extend([limit.is_some().into(), limit.unwrap_or_default()]);
    }
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    bytes.extend_from_slice(cwd);
    for op in birth.program {
        bytes.extend(op.code.to_ne_bytes());
        bytes.extend([op.jt, op.jf]);
        bytes.extend(op.k.to_ne_bytes());
    }
    (bytes, descriptors)
}

/// What was told. The path is where it was told, and nowhere else; all else is the same in many orders.
pub(super) struct Order<'a> {
    cwd: &'a CStr,
    limits: [Option<u64>; LIMITS],
    trap: Option<Trap>,
    gives_up_capabilities: bool,
    ruleset: Option<(RawFd, u32)>,
    program: Vec<libc::sock_filter>,
    streams: [Option<RawFd>; 3],
    mask: libc::sigset_t,
    status: RawFd,
    go: RawFd,
}

impl<'a> Order<'a> {
    /// Back from bytes and descriptors. None if that is not what they are.
    pub(super) fn unpacked(bytes: &'a [u8], descriptors: &[OwnedFd]) -> Option<Order<'a>> {
        let (words, rest) = bytes.split_at_checked(8 * WORDS)?;
        let mut words = words.as_chunks().0.iter().copied().map(u64::from_ne_bytes);
        let mut word = || words.next();
        let mut descriptors = descriptors.iter().map(AsRawFd::as_raw_fd);
        let (status, go) = (descriptors.next()?, descriptors.next()?);
        let trap = match word()? {
            0 => None,
            1 => Some(Trap::Notify),
            2 => Some(Trap::Trace),
            _ => return None,
        };
        let gives_up_capabilities = word()? != 0;
        let rules = word()?;
        let ruleset = match rules & 1 {
            0 => None,
            _ => Some((descriptors.next()?, u32::try_from(rules >> 1).ok()?)),
        };
        let given = word()?;
        let mut streams = [None; 3];
        for (n, stream) in streams.iter_mut().enumerate() {
            if given >> n & 1 == 1 {
                *stream = Some(descriptors.next()?);
            }
        }
        let mask = sys::mask_of(word()?);
        let (cwd, program) = rest.split_at_checked(usize::try_from(word()?).ok()?)?;
        let mut limits = [None; LIMITS];
        for limit in &mut limits {
            let (there, most) = (word()?, word()?);
            *limit = (there != 0).then_some(most);
        }
        let (program, []) = program.as_chunks() else {
            return None;
        };
        let op = |&[c0, c1, jt, jf, k0, k1, k2, k3]: &[u8; 8]| libc::sock_filter {
            code: u16::from_ne_bytes([c0, c1]),
            jt,
            jf,
            k: u32::from_ne_bytes([k0, k1, k2, k3]),
        };
        Some(Order {
            cwd: CStr::from_bytes_with_nul(cwd).ok()?,
            limits,
            trap,
            gives_up_capabilities,
            ruleset,
            program: program.iter().map(op).collect(),
            streams,
            mask,
            status,
            go,
        })
    }

    /// What the copy does to itself.
    pub(super) fn birth(&self) -> Birth<'_> {
        Birth {
            cwd: self.cwd,
            limits: self.limits,
            trap: self.trap,
            gives_up_capabilities: self.gives_up_capabilities,
            ruleset: self.ruleset,
            program: &self.program,
            streams: self.streams,
            mask: self.mask,
            status: self.status,
            go: self.go,
        }
    }
}
