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

    /// RFC 3339, always of this length: `2026-11-15T21:18:01.123456Z`.
    pub(crate) fn to_text(self) -> [u8; 27] {
        let (seconds, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = date(days);
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        for (place, mut number) in [
            (0..4, year),
            (5..7, month),
            (8..10, day),
            (11..13, second / 3600),
            (14..16, second / 60 % 60),
            (17..19, second % 60),
            (20..26, micros),
        ] {
            for digit in text[place].iter_mut().rev() {
                *digit += (number % 10) as u8;
                number /= 10;
            }
        }
        text
    }

    /// How long after `earlier`, or zero if it was not.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Year, month and day of a number of days since 1970. Years are counted from March, so that the leap day is the last
/// of its year and every month begins at a fixed day.
fn date(days: u64) -> (u64, u64, u64) {
    // Since 0000-03-01, in eras of 400 years, which all have the same number of days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
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
        f.pad(str::from_utf8(&self.to_text()).map_err(|_| fmt::Error)?)
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

    #[test]
    fn every_day_has_its_date() {
        // More than the 400 years after which the calendar repeats.
        for day in 0..150_000 {
            let stamp = Timestamp::from_micros(
                day * 86_400_000_000 + day * 12_345_678_901 % 86_400_000_000,
            );
            let expected = humantime::format_rfc3339_micros(stamp.into());
            assert_eq!(stamp.to_string(), expected.to_string());
        }
    }
}
