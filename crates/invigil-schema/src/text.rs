//! Text of the operating system: arguments and paths, which are bytes and only usually UTF-8.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes that are usually text. Written as a JSON string when they are UTF-8 and as `{"base64": "…"}` when they are
/// not, so that the exact bytes can always be had back.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OsText(Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Wire<'a> {
    Text(Cow<'a, str>),
    Bytes { base64: String },
}

impl OsText {
    /// The exact bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// For people: what is not UTF-8 is shown as U+FFFD.
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl From<Vec<u8>> for OsText {
    fn from(bytes: Vec<u8>) -> Self {
        OsText(bytes)
    }
}

impl From<&str> for OsText {
    fn from(text: &str) -> Self {
        OsText(text.into())
    }
}

#[cfg(unix)]
impl From<&OsStr> for OsText {
    fn from(text: &OsStr) -> Self {
        OsText(std::os::unix::ffi::OsStrExt::as_bytes(text).to_vec())
    }
}

#[cfg(unix)]
impl From<OsString> for OsText {
    fn from(text: OsString) -> Self {
        OsText(std::os::unix::ffi::OsStringExt::into_vec(text))
    }
}

impl fmt::Debug for OsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Serialize for OsText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Wire::Bytes {
                base64: STANDARD.encode(&self.0),
            }
            .serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for OsText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Wire::deserialize(deserializer)? {
            Wire::Text(text) => Ok(OsText(text.into_owned().into_bytes())),
            Wire::Bytes { base64 } => match STANDARD.decode(base64) {
                Ok(bytes) => Ok(OsText(bytes)),
                Err(error) => Err(de::Error::custom(error)),
            },
        }
    }
}

impl JsonSchema for OsText {
    fn schema_name() -> Cow<'static, str> {
        "OsText".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Text of the operating system; the object form holds bytes that are not UTF-8.",
            "oneOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": { "base64": { "type": "string", "contentEncoding": "base64" } },
                    "required": ["base64"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_string_comes_back(bytes: Vec<u8>) {
            let text = OsText::from(bytes);
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<OsText>(&json).unwrap(), text);
        }
    }

    #[test]
    fn utf8_is_a_plain_string() {
        assert_eq!(
            serde_json::to_string(&OsText::from("über")).unwrap(),
            "\"über\""
        );
        let bytes = OsText::from(vec![b'a', 0xff]);
        assert_eq!(
            serde_json::to_string(&bytes).unwrap(),
            r#"{"base64":"Yf8="}"#
        );
    }
}
