//! Durations as people write and read them: `30s`, `5m`, `1h 30m`.

use std::fmt;
use std::time::Duration;

/// Displays a duration, such as `1h 2m 3s`: in whole seconds from 10 s on, otherwise in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Words(pub Duration);

/// Maximum duration shown with milliseconds.
const MAX_WITH_MILLIS: Duration = Duration::from_millis(9_999);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(duration) = *self;
        let rounded = if duration.as_millis() <= MAX_WITH_MILLIS.as_millis() {
            Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
        } else {
            Duration::from_secs(duration.as_secs())
        };
        let words = humantime::format_duration(rounded).to_string();
        f.write_str(&words.replace("days", "d").replace("day", "d"))
    }
}

/// The reason why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is not a duration.
    #[error("\"{0}\" is not a duration; write it as 30s, 5m, 1h30m or 2d")]
    Malformed(String),
    /// The duration has a fraction of a second.
    #[error("\"{0}\" is finer than a second; write whole seconds, such as 30s")]
    Fraction(String),
}

/// Reads a duration in whole seconds: `30s`, `5m`, `1h30m`.
///
/// # Errors
/// The reason, with how to write a duration.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration.subsec_nanos() == 0 => Ok(duration),
        Ok(_) => Err(DurationError::Fraction(text.to_owned())),
        Err(_) => Err(DurationError::Malformed(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (millis, text) in [
            (0, "0s"),
            (250, "250ms"),
            (9_999, "9s 999ms"),
            (119_700, "1m 59s"),
            (7_200_000, "2h"),
            (86_400_000, "1d"),
            (176_400_000, "2d 1h"),
        ] {
            assert_eq!(Words(Duration::from_millis(millis)).to_string(), text);
        }
    }

    #[test]
    fn durations_are_read_in_whole_seconds() {
        assert_eq!(parse("1h30m"), Ok(Duration::from_mins(90)));
        assert_eq!(parse("500ms"), Err(DurationError::Fraction("500ms".to_owned())));
        assert_eq!(parse("soon"), Err(DurationError::Malformed("soon".to_owned())));
    }
}
