//! The beginning of a record, read without a parser.

use invigil_schema::Origin;

/// What stands in front of the data of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peek<'a> {
    pub(super) seq: u64,
    pub(super) origin: Origin,
    pub(super) kind: &'a str,
}

impl<'a> Peek<'a> {
    /// Reads a line as Invigil writes it. Nothing if it is spelled in any other way: then a parser has the word.
    pub(super) fn of(line: &'a [u8]) -> Option<Peek<'a>> {
        let (seq, rest) = number(line.strip_prefix(br#"{"seq":"#)?)?;
        let (_, rest) = text(rest.strip_prefix(br#","time":""#)?)?;
        let (_, rest) = number(rest.strip_prefix(br#","mono":"#)?)?;
        let (origin, rest) = text(rest.strip_prefix(br#","origin":""#)?)?;
        let (kind, rest) = text(rest.strip_prefix(br#","kind":""#)?)?;
        rest.starts_with(br#","data":"#).then_some(())?;
        let origin = match origin {
            "kernel" => Origin::Kernel,
            "runtime" => Origin::Runtime,
            "sdk" => Origin::Sdk,
            "client" => Origin::Client,
            "user" => Origin::User,
            _ => return None,
        };
        Some(Peek { seq, origin, kind })
    }
}

/// A number and what follows it.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    let mut number = 0u64;
    for digit in &bytes[..end] {
        number = number
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))?;
    }
    (end > 0).then_some((number, &bytes[end..]))
}

/// A text without anything that is written in another way than it is read, and what follows its closing quote.
fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'"' && *byte != b'\\';
    let end = bytes.iter().position(|byte| !plain(byte))?;
    let (text, rest) = bytes.split_at(end);
    Some((str::from_utf8(text).ok()?, rest.strip_prefix(b"\"")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_as_it_is_written() {
        let line = br#"{"seq":12,"time":"2026-11-15T21:18:01.123456Z","mono":5,"origin":"kernel","kind":"file_op","data":{}"#;
        let peek = Peek::of(line).unwrap();
        assert_eq!(
            (peek.seq, peek.origin, peek.kind),
            (12, Origin::Kernel, "file_op")
        );
    }

    #[test]
    fn other_spellings_are_left_to_a_parser() {
        for line in [
            &br#"{ "seq":1,"time":"t","mono":5,"origin":"kernel","kind":"x","data":1"#[..],
            br#"{"seq":,"time":"t","mono":5,"origin":"kernel","kind":"x","data":1"#,
            br#"{"seq":1,"mono":5,"time":"t","origin":"kernel","kind":"x","data":1"#,
            br#"{"seq":1,"time":"t","mono":5,"origin":"nobody","kind":"x","data":1"#,
            br#"{"seq":1,"time":"t","mono":5,"origin":"kernel","kind":"a\u0062","data":1"#,
            br#"{"seq":99999999999999999999,"time":"t","mono":5,"origin":"kernel","kind":"x","data":1"#,
            b"",
        ] {
            assert_eq!(Peek::of(line), None, "{}", line.escape_ascii());
        }
    }
}
