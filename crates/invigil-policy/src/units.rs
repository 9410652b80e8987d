//! Durations and sizes as people write them.

use std::time::Duration;

use crate::error::Flaw;
use crate::syntax::Text;

/// `30m`, `1h 30m`, `500ms`.
pub(crate) fn duration(text: &Text<'_>) -> Result<Duration, Flaw> {
    let help = "write a number and a unit: \"90s\", \"30m\", \"1h 30m\"";
    match humantime::parse_duration(text.text) {
        Ok(Duration::ZERO) => {
            let message = "a time of nothing lets nothing run";
            Err(Flaw::new(
                text.span.clone(),
                message,
                "no time at all",
                help,
            ))
        }
        Ok(duration) => Ok(duration),
        Err(error) => {
            let message = format!("`{}` is not a duration: {error}", text.text);
            Err(Flaw::new(
                text.span.clone(),
                message,
                "not a duration",
                help,
            ))
        }
    }
}

/// `64MiB`, `4GB`, `512 KiB`. A unit is needed: a bare number would be read as bytes by some and as more by others.
pub(crate) fn size(text: &Text<'_>) -> Result<u64, Flaw> {
    let flaw = |message: String| {
        let help =
            "write a whole number and a unit: \"512KiB\", \"64MiB\", \"4GiB\", \"10GB\", \"4096B\"";
        Flaw::new(text.span.clone(), message, "not a size", help)
    };
    let trimmed = text.text.trim();
    let digits = trimmed.len()
        - trimmed
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .len();
    let (number, unit) = trimmed.split_at(digits);
    let factor = match unit.trim() {
        "B" => Some(1),
        "KB" | "kB" => Some(1_000),
        "MB" => Some(1_000_000),
        "GB" => Some(1_000_000_000),
        "TB" => Some(1_000_000_000_000),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        "TiB" => Some(1_u64 << 40),
        _ => None,
    };
    let Some(factor) = factor else {
        return Err(flaw(format!("`{}` has no unit of bytes", text.text)));
    };
    match number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
    {
        Some(0) => Err(flaw(format!("`{}` is no room for anything", text.text))),
        Some(bytes) => Ok(bytes),
        None => Err(flaw(format!("`{}` is not a size", text.text))),
    }
}

/// `2.50`, `10`: an amount of money with at most six digits behind the point, in millionths.
pub(crate) fn amount(text: &Text<'_>) -> Result<u64, Flaw> {
    let (whole, part) = text.text.split_once('.').unwrap_or((text.text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = (!whole.is_empty() && digits(whole) && digits(part) && part.len() <= 6)
        .then(|| format!("{whole}{part:0<6}").parse::<u64>().ok())
        .flatten();
    match parsed {
        Some(millionths) if millionths > 0 => Ok(millionths),
        _ => {
            let message = format!("`{}` is not an amount", text.text);
            let help = "write an amount above nothing: \"2.50\", \"10\"";
            Err(Flaw::new(text.span.clone(), message, "not an amount", help))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Text<'_> {
        Text {
            text,
            span: 0..text.len(),
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(size(&text("64MiB")), Ok(64 << 20));
        assert_eq!(size(&text("4 GB")), Ok(4_000_000_000));
        assert_eq!(size(&text("1B")), Ok(1));
        for bad in [
            "64",
            "",
            "MiB",
            "1.5GiB",
            "64mib",
            "-1MiB",
            "0KiB",
            "99999999999TiB",
        ] {
            assert!(size(&text(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn amounts() {
        assert_eq!(amount(&text("2.50")), Ok(2_500_000));
        assert_eq!(amount(&text("10")), Ok(10_000_000));
        assert_eq!(amount(&text("0.000001")), Ok(1));
        for bad in [
            "",
            "0",
            ".5",
            "-1",
            "1e3",
            "1.2345678",
            "$2",
            "99999999999999999",
        ] {
            assert!(amount(&text(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration(&text("1h 30m")), Ok(Duration::from_secs(5400)));
        assert!(duration(&text("0s")).is_err());
        assert!(duration(&text("30")).is_err());
    }
}
