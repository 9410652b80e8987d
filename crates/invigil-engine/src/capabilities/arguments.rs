//! From JSON to typed arguments; an error always names the field.

use std::time::Duration;

use invigil_schema::OsText;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{DEFAULT_TIMEOUT, Invalid, MAX_TIMEOUT};

/// Reads the arguments of a capability.
pub(super) fn parse<T: DeserializeOwned>(args: &Value) -> Result<T, Invalid> {
    if !args.is_object() {
        return Err(Invalid::new("arguments", "an object is needed"));
    }
    serde_path_to_error::deserialize(args).map_err(|error| {
        let path = error.path().to_string();
        let why = error.into_inner().to_string();
        // What serde says of text of the operating system names a type of ours.
        let why = match why.starts_with("data did not match any variant") {
            true => "text is needed, or an object with `base64`".to_owned(),
            false => why,
        };
        match (path.as_str(), between_ticks(&why)) {
            (".", Some(field)) => Invalid::new(field, why.clone()),
            (".", None) => Invalid::new("arguments", why),
            (_, Some(field)) if why.starts_with("missing field") => {
                Invalid::new(format!("{path}.{field}"), why.clone())
            }
            _ => Invalid::new(path, why),
        }
    })
}

/// Serde names a field that is missing or unknown between backticks.
fn between_ticks(text: &str) -> Option<&str> {
    text.split('`').nth(1)
}

/// Refuses what is not between the two.
pub(super) fn in_range<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), Invalid> {
    if value < least || value > most {
        let why = format!("{value} is out of range: from {least} to {most}");
        return Err(Invalid::new(field, why));
    }
    Ok(())
}

/// Refuses a path that cannot be one.
pub(super) fn path(field: &str, path: &OsText) -> Result<(), Invalid> {
    text(field, path.as_bytes())?;
    if path.as_bytes().is_empty() {
        return Err(Invalid::new(field, "the path is empty"));
    }
    Ok(())
}

/// Refuses a zero byte, which ends every text of the kernel.
pub(super) fn text(field: &str, bytes: &[u8]) -> Result<(), Invalid> {
    if bytes.contains(&0) {
        return Err(Invalid::new(field, "it contains a zero byte"));
    }
    Ok(())
}

/// Refuses a time-out that is none.
pub(super) fn timeout(seconds: Option<f64>) -> Result<(), Invalid> {
    match seconds {
        Some(seconds) if !seconds.is_finite() || seconds <= 0.0 => Err(Invalid::new(
            "timeout",
            format!("{seconds} is out of range: more than 0 seconds are needed"),
        )),
        Some(seconds) => in_range("timeout", seconds, 0.0, MAX_TIMEOUT.as_secs_f64()),
        None => Ok(()),
    }
}

/// The time-out that was asked for, which is valid.
pub(super) fn timeout_or_default(seconds: Option<f64>) -> Duration {
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .unwrap_or(DEFAULT_TIMEOUT)
}
