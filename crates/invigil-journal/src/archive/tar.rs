//! The tar container: ustar headers with one spelling each. A header is refused unless it is, byte for byte, the one
//! that would be written for that name and size.

use super::{ArchiveError, Member};

/// Everything in a tar archive is a multiple of this.
pub(crate) const BLOCK: usize = 512;
/// A tar archive ends in two blocks of zeros.
pub(crate) const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];
/// The largest size that eleven octal digits can write.
const MAX_SIZE: u64 = 0o777_7777_7777;

/// One field of a header.
struct Field {
    at: usize,
    len: usize,
    name: &'static str,
}

const fn field(at: usize, len: usize, name: &'static str) -> Field {
    Field { at, len, name }
}

const NAME: Field = field(0, 100, "name");
const MODE: Field = field(100, 8, "mode");
const UID: Field = field(108, 8, "owner");
const GID: Field = field(116, 8, "group");
const SIZE: Field = field(124, 12, "size");
const MTIME: Field = field(136, 12, "time");
const CHECKSUM: Field = field(148, 8, "checksum");
const TYPE: usize = 156;
const LINK: Field = field(157, 100, "link");
const MAGIC: Field = field(257, 8, "version");
const OWNER: Field = field(265, 32, "owner name");
const GROUP: Field = field(297, 32, "group name");
const DEVICE: Field = field(329, 16, "device");
const PREFIX: Field = field(345, 155, "prefix");
const REST: Field = field(500, 12, "end");

impl Field {
    fn of<'a>(&self, header: &'a [u8; BLOCK]) -> &'a [u8] {
        &header[self.at..self.at + self.len]
    }

    fn put(&self, header: &mut [u8; BLOCK], text: &[u8]) {
        header[self.at..self.at + text.len()].copy_from_slice(text);
    }
}

/// The one header for this name and size; nothing if they do not fit in.
pub(crate) fn header(name: &str, size: u64) -> Option<[u8; BLOCK]> {
    if name.len() > NAME.len || size > MAX_SIZE {
        return None;
    }
    let mut header = [0; BLOCK];
    NAME.put(&mut header, name.as_bytes());
    MODE.put(&mut header, b"0000644");
    UID.put(&mut header, b"0000000");
    GID.put(&mut header, b"0000000");
    SIZE.put(&mut header, format!("{size:011o}").as_bytes());
    MTIME.put(&mut header, b"00000000000");
    header[TYPE] = b'0';
    MAGIC.put(&mut header, b"ustar\x0000");
    DEVICE.put(&mut header, b"0000000\x000000000");
    let sum = format!("{:06o}\0 ", checksum(&header));
    CHECKSUM.put(&mut header, sum.as_bytes());
    Some(header)
}

/// The sum of all bytes, the checksum itself counted as spaces.
fn checksum(header: &[u8; BLOCK]) -> u32 {
    let all: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    let own: u32 = CHECKSUM
        .of(header)
        .iter()
        .map(|&byte| u32::from(byte))
        .sum();
    all - own + 8 * u32::from(b' ')
}

/// How many zeros follow so many bytes.
pub(crate) fn padding(size: u64) -> usize {
    let over = (size % BLOCK as u64) as usize;
    (BLOCK - over) % BLOCK
}

/// What a header says, not yet compared with the one spelling of it.
pub(crate) struct Header {
    raw: [u8; BLOCK],
    offset: u64,
    /// The name.
    pub(crate) name: String,
    /// The size.
    pub(crate) size: u64,
}

impl Header {
    /// Reads a header that stands at `offset` and is not a block of zeros.
    pub(crate) fn read(raw: [u8; BLOCK], offset: u64) -> Result<Header, ArchiveError> {
        let wrong = |what| ArchiveError::TarHeader { offset, what };
        let stated = octal(CHECKSUM.of(&raw)).ok_or(wrong("its checksum is no number"))?;
        if stated != u64::from(checksum(&raw)) {
            return Err(wrong("its checksum is wrong"));
        }
        let name = text(NAME.of(&raw)).ok_or(wrong("its name is not text"))?;
        if let Some(what) = foreign_type(raw[TYPE]) {
            return Err(ArchiveError::MemberType { name, what });
        }
        if MAGIC.of(&raw) != b"ustar\x0000" {
            return Err(wrong("it is not of the ustar format"));
        }
        if let Some(what) = bad_name(&name) {
            return Err(ArchiveError::MemberName { name, what });
        }
        let size = octal(SIZE.of(&raw)).ok_or(wrong("its size is no number"))?;
        Ok(Header {
            raw,
            offset,
            name,
            size,
        })
    }

    /// Compares it with the one spelling. `member` is nothing for the manifest.
    pub(crate) fn check(&self, member: Option<Member>) -> Result<(), ArchiveError> {
        let wrong = |what| ArchiveError::TarHeader {
            offset: self.offset,
            what,
        };
        let right = header(&self.name, self.size).ok_or(wrong("its size is out of range"))?;
        if right == self.raw {
            return Ok(());
        }
        let fields = [
            MODE, UID, GID, MTIME, OWNER, GROUP, DEVICE, LINK, PREFIX, REST, NAME, SIZE, CHECKSUM,
        ];
        let differs = |field: &&Field| field.of(&right) != field.of(&self.raw);
        let field = fields.iter().find(differs).map_or("header", |f| f.name);
        match member {
            Some(member) => Err(ArchiveError::Attribute { member, field }),
            None => Err(wrong("the manifest has not the attributes of a member")),
        }
    }
}

/// The text in front of the first zero byte.
fn text(field: &[u8]) -> Option<String> {
    let end = field
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(field.len());
    str::from_utf8(&field[..end]).ok().map(str::to_owned)
}

/// Octal digits up to a zero byte or a space.
fn octal(field: &[u8]) -> Option<u64> {
    let end = field.iter().position(|&byte| byte == 0 || byte == b' ')?;
    let digits = str::from_utf8(&field[..end]).ok()?;
    if digits.is_empty() || !digits.bytes().all(|byte| matches!(byte, b'0'..=b'7')) {
        return None;
    }
    u64::from_str_radix(digits, 8).ok()
}

fn foreign_type(flag: u8) -> Option<&'static str> {
    Some(match flag {
        b'0' => return None,
        b'1' => "a hard link",
        b'2' => "a symbolic link",
        b'3' | b'4' => "a device",
        b'5' => "a directory",
        b'6' => "a FIFO",
        b'x' | b'g' => "a pax extension",
        b'L' | b'K' | b'S' | b'D' | b'M' | b'V' | b'N' => "a GNU extension",
        0 => "a member of the old tar format",
        _ => "of an unknown type",
    })
}

fn bad_name(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.starts_with('/') {
        return Some("it is absolute");
    }
    for part in name.split('/') {
        match part {
            "" => return Some("it has an empty part"),
            "." => return Some("it is an alias with \".\""),
            ".." => return Some("it leads out with \"..\""),
            _ => {}
        }
    }
    None
}
