//! Ids that people type and that become directory names, so they are checked before they are anything else.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

/// The id of a run: 1 to 128 ASCII letters, digits, `_` and `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct RunId(String);

/// Why a text is not a run id. The checks are made in this order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunIdError {
    /// Nothing was given.
    #[error("the run id is empty")]
    Empty,
    /// Colons separate prefixes in decision values such as `allow:read_file`.
    #[error("the run id {0:?} contains ':', which separates prefixes in decisions")]
    Colon(String),
    /// Anything that is not a letter, a digit, `_` or `-`.
    #[error(
        "the run id {id:?} contains {bad:?}; only ASCII letters, digits, '_' and '-' are allowed"
    )]
    Character {
        /// What was given.
        id: String,
        /// The first character that is not allowed.
        bad: char,
    },
    /// More than 128 characters.
    #[error("the run id has {0} characters; at most {max} are allowed", max = RunId::MAX_LEN)]
    TooLong(usize),
    /// `last` names the newest run on every command line.
    #[error("the run id \"last\" is reserved: it names the newest run")]
    Reserved,
}

impl RunId {
    /// The longest id.
    pub const MAX_LEN: usize = 128;
    /// The word that names the newest run wherever a run is asked for.
    pub const LAST: &'static str = "last";

    /// Checks a text.
    pub fn new(id: impl Into<String>) -> Result<Self, RunIdError> {
        let id = id.into();
        if id.is_empty() {
            return Err(RunIdError::Empty);
        }
        if id.contains(':') {
            return Err(RunIdError::Colon(id));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if let Some(bad) = id.chars().find(|&c| !allowed(c)) {
            return Err(RunIdError::Character { id, bad });
        }
        if id.len() > Self::MAX_LEN {
            return Err(RunIdError::TooLong(id.len()));
        }
        if id == Self::LAST {
            return Err(RunIdError::Reserved);
        }
        Ok(RunId(id))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for RunId {
    type Err = RunIdError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        RunId::new(s)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RunId::new(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl JsonSchema for RunId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RunId".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The id of a run.",
            "type": "string",
            "pattern": "^[A-Za-z0-9_-]{1,128}$",
            "not": { "const": Self::LAST },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_id_has_its_own_error() {
        let error = |id: &str| RunId::new(id).unwrap_err();
        assert_eq!(error(""), RunIdError::Empty);
        assert_eq!(error("a:b/c"), RunIdError::Colon("a:b/c".into()));
        for (id, bad) in [
            ("../x", '.'),
            ("a b", ' '),
            ("é", 'é'),
            ("a\0", '\0'),
            ("a/b", '/'),
        ] {
            let id = id.to_owned();
            assert_eq!(error(&id), RunIdError::Character { id, bad });
        }
        assert_eq!(error(&"a".repeat(129)), RunIdError::TooLong(129));
        assert_eq!(error("last"), RunIdError::Reserved);
        assert!(RunId::new("a".repeat(128)).is_ok());
        assert!(RunId::new("run_0193-X").is_ok());
    }
}
