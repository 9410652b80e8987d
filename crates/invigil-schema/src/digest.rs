//! SHA-256 digests as values: 32 bytes in memory, 64 lower-case hexadecimal digits in text.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A SHA-256 digest: of a record, a blob, a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest([u8; 32]);

/// The text is not 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 lower-case hexadecimal digits")]
pub struct ParseDigestError;

impl Digest {
    /// What comes before the first record of a chain.
    pub const ZERO: Digest = Digest([0; 32]);

    /// Wraps the output of a hash function.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Digest(bytes)
    }

    /// The raw bytes, as they enter the next hash of a chain.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 digits, without allocating.
    #[inline]
    pub fn to_hex(&self) -> [u8; 64] {
        // Arithmetic without branches or a table: the compiler does sixteen digits at once.
        let digit = |nibble: u8| nibble + b'0' + u8::from(nibble > 9) * (b'a' - b'9' - 1);
        let mut hex = [0; 64];
        for (pair, byte) in hex.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            *pair = [digit(byte >> 4), digit(byte & 15)];
        }
        hex
    }

    /// Reads exactly 64 lower-case digits. Upper case is refused: one digest has one spelling.
    pub fn from_hex(hex: &[u8]) -> Result<Self, ParseDigestError> {
        let hex: &[u8; 64] = hex.try_into().map_err(|_| ParseDigestError)?;
        let digit = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(ParseDigestError),
        };
        let mut bytes = [0; 32];
        for (byte, &[high, low]) in bytes.iter_mut().zip(hex.as_chunks::<2>().0) {
            *byte = digit(high)? << 4 | digit(low)?;
        }
        Ok(Digest(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = self.to_hex();
        f.pad(str::from_utf8(&hex).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Digest::from_hex(s.as_bytes())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Digest {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Digest".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A SHA-256 digest.",
            "type": "string",
            "pattern": "^[0-9a-f]{64}$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_there_and_back() {
        let digest = Digest::from_bytes(std::array::from_fn(|i| i as u8 * 7));
        let text = digest.to_string();
        assert!(text.starts_with("00070e15"));
        assert_eq!(text.parse(), Ok(digest));
    }

    #[test]
    fn one_spelling_only() {
        let good = "a".repeat(64);
        assert!(good.parse::<Digest>().is_ok());
        for bad in [
            good.to_uppercase(),
            good[1..].to_owned(),
            format!("{good}a"),
            "g".repeat(64),
        ] {
            assert_eq!(bad.parse::<Digest>(), Err(ParseDigestError), "{bad}");
        }
    }
}
