//! Moments on the wall clock, as RFC 3339 text in UTC with microseconds.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A moment on the wall clock, in whole microseconds since 1970. It may jump; nothing is ordered by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

/// The last moment that RFC 3339 can write: 9999-12-31T23:59:59.999999Z.
const MAX_MICROS: u64 = 253_402_300_800 * 1_000_000 - 1;

impl Timestamp {
    /// Microseconds since 1970, bounded to what RFC 3339 can write.
    pub fn from_micros(micros: u64) -> Self {
        Timestamp(micros.min(MAX_MICROS))
    }

    /// Microseconds since 1970.
    pub fn as_micros(self) -> u64 {
        self.0
    }

    /// How long after `earlier`, or zero if it was not.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(since.as_micros().try_into().unwrap_or(u64::MAX))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(stamp: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_micros(stamp.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_micros((*self).into()).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = humantime::parse_rfc3339(&text).map_err(de::Error::custom)?;
        Ok(time.into())
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Wall clock, UTC, microseconds.",
            "type": "string",
            "format": "date-time",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_there_and_back() {
        for micros in [0, 1, 1_794_777_481_123_456, MAX_MICROS, u64::MAX] {
            let stamp = Timestamp::from_micros(micros);
            let json = serde_json::to_string(&stamp).unwrap();
            assert_eq!(
                serde_json::from_str::<Timestamp>(&json).unwrap(),
                stamp,
                "{json}"
            );
        }
        assert_eq!(
            Timestamp::from_micros(1_794_777_481_123_456).to_string(),
            "2026-11-15T21:18:01.123456Z"
        );
    }
}
