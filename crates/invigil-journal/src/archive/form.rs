//! The form of a member: JSON without duplicate keys and without depth, whole or a line at a time.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{ArchiveError, MAX_NESTING};

/// How a member is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One JSON document.
    Document,
    /// One JSON document a line.
    Lines,
    /// Any bytes.
    Opaque,
}

/// Checks one JSON document, which begins in line `line` of a member.
pub(crate) fn check(member: &str, line: u64, bytes: &[u8]) -> Result<(), ArchiveError> {
    let flaw = Cell::new(None);
    let walk = Walk {
        depth: 0,
        flaw: &flaw,
    };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let walked = walk.deserialize(&mut reader).and_then(|()| reader.end());
    let Err(error) = walked else {
        return Ok(());
    };
    let line = line + (error.line() as u64).saturating_sub(1);
    let member = member.to_owned();
    Err(match flaw.take() {
        Some(Flaw::Duplicate(key)) => ArchiveError::DuplicateKey { member, line, key },
        Some(Flaw::Deep) => ArchiveError::TooDeep { member, line },
        None => ArchiveError::Json {
            member,
            line,
            what: error.to_string(),
        },
    })
}

enum Flaw {
    Duplicate(String),
    Deep,
}

/// Walks through a value and keeps nothing of it.
#[derive(Clone, Copy)]
struct Walk<'f> {
    /// In how many arrays and objects it is.
    depth: usize,
    flaw: &'f Cell<Option<Flaw>>,
}

impl Walk<'_> {
    fn deeper<E: de::Error>(mut self) -> Result<Self, E> {
        if self.depth == MAX_NESTING {
            self.flaw.set(Some(Flaw::Deep));
            return Err(E::custom("nested too deep"));
        }
        self.depth += 1;
        Ok(self)
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inside = self.deeper()?;
        while items.next_element_seed(inside)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inside = self.deeper()?;
        let mut keys = Keys::default();
        while let Some(key) = entries.next_key_seed(Key)? {
            if let Some(twice) = keys.add(key) {
                self.flaw.set(Some(Flaw::Duplicate(twice.into_owned())));
                return Err(de::Error::custom("duplicate key"));
            }
            entries.next_value_seed(inside)?;
        }
        Ok(())
    }
}

/// The keys of one object, unescaped. Few are compared one by one, many are hashed.
#[derive(Default)]
struct Keys<'de> {
    few: Vec<Cow<'de, str>>,
    many: HashSet<Cow<'de, str>>,
}

impl<'de> Keys<'de> {
    const FEW: usize = 16;

    /// Gives the key back if it is there already.
    fn add(&mut self, key: Cow<'de, str>) -> Option<Cow<'de, str>> {
        if self.few.contains(&key) || self.many.contains(&key) {
            return Some(key);
        }
        if self.few.len() < Self::FEW {
            self.few.push(key);
        } else {
            self.many.insert(key);
        }
        None
    }
}

struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

/// Cuts bytes that come in pieces into lines, newline included.
pub(crate) struct Splitter {
    member: &'static str,
    limit: u64,
    partial: Vec<u8>,
    lines: u64,
}

impl Splitter {
    pub(crate) fn new(member: &'static str, limit: u64) -> Self {
        Splitter {
            member,
            limit,
            partial: Vec::new(),
            lines: 0,
        }
    }

    /// Calls `each` with the number, from 1, and the bytes of every line that is now whole.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(u64, &[u8]) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        while let Some(newline) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(newline + 1);
            bytes = rest;
            self.limit(line.len())?;
            self.lines += 1;
            if self.partial.is_empty() {
                each(self.lines, line)?;
            } else {
                self.partial.extend_from_slice(line);
                each(self.lines, &self.partial)?;
                self.partial.clear();
            }
        }
        self.limit(bytes.len())?;
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    fn limit(&self, more: usize) -> Result<(), ArchiveError> {
        if (self.partial.len() + more) as u64 > self.limit {
            return Err(ArchiveError::DocumentTooLarge {
                member: self.member.to_owned(),
                limit: self.limit,
            });
        }
        Ok(())
    }

    /// How many bytes lie behind the last newline.
    pub(crate) fn unfinished(&self) -> usize {
        self.partial.len()
    }

    /// Nothing may lie behind the last newline.
    pub(crate) fn finish(&self) -> Result<(), ArchiveError> {
        if self.unfinished() == 0 {
            return Ok(());
        }
        Err(ArchiveError::Json {
            member: self.member.to_owned(),
            line: self.lines + 1,
            what: "the last line does not end in a newline".to_owned(),
        })
    }
}

/// Checks a line of a member that has one JSON document a line.
pub(crate) fn check_line(member: &str, number: u64, line: &[u8]) -> Result<(), ArchiveError> {
    check(member, number, line.strip_suffix(b"\n").unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(json: &str) -> Result<(), ArchiveError> {
        check("x", 1, json.as_bytes())
    }

    #[test]
    fn keys_are_compared_after_unescaping() {
        assert!(verdict(r#"{"a":{"a":1},"b":[{"a":1},{"a":2}]}"#).is_ok());
        for twice in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":1}"#,
            r#"[{"b":{"a":1,"c":2,"a":3}}]"#,
        ] {
            let refused = verdict(twice);
            assert!(
                matches!(&refused, Err(ArchiveError::DuplicateKey { key, .. }) if key == "a"),
                "{refused:?}"
            );
        }
        let mut many: Vec<String> = (0..100).map(|n| format!("\"k{n}\":0")).collect();
        assert!(verdict(&format!("{{{}}}", many.join(","))).is_ok());
        many.push("\"k50\":1".into());
        assert!(verdict(&format!("{{{}}}", many.join(","))).is_err());
    }

    #[test]
    fn depth_is_counted_in_both_brackets() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(verdict(&nested(64)).is_ok());
        assert!(matches!(
            verdict(&nested(65)),
            Err(ArchiveError::TooDeep { .. })
        ));
        let objects = |n: usize| format!("{}0{}", r#"{"a":"#.repeat(n), "}".repeat(n));
        assert!(verdict(&objects(64)).is_ok());
        assert!(verdict(&objects(65)).is_err());
        assert!(verdict(&nested(1_000_000)).is_err());
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        let text = b"one\n\ntwo\nthr";
        for size in 1..=text.len() {
            let mut splitter = Splitter::new("x", 100);
            let mut lines = Vec::new();
            for piece in text.chunks(size) {
                let each = |number, line: &[u8]| {
                    lines.push((number, line.to_vec()));
                    Ok(())
                };
                splitter.feed(piece, each).unwrap();
            }
            assert_eq!(splitter.unfinished(), 3);
            assert_eq!(
                lines,
                [
                    (1, b"one\n".to_vec()),
                    (2, b"\n".to_vec()),
                    (3, b"two\n".to_vec())
                ]
            );
        }
    }
}
