//! Whose clock is right. Pure.
//!
//! A deadline is AWS's time plus something, met by our clock. Slow by more than what is kept free before it, we come too late: 2 s
//! before a pod's grace period must begin, up to 30 s before a hook expires. Fast by as much, we give drains that much less.

use super::check::{Area, Check, Read};
use jiff::{SignedDuration, Timestamp};

/// What the API server said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its version.
    pub version: String,
    /// Its clock, in whole seconds, where it told.
    pub date: Option<Timestamp>,
    /// Ours before the question and after the answer.
    pub ours: (Timestamp, Timestamp),
}

/// What is kept free before the tightest deadline.
const TOLERATED: SignedDuration = SignedDuration::from_secs(2);

/// What is kept free before the widest.
const BEARABLE: SignedDuration = SignedDuration::from_secs(30);

/// What is found of it.
#[must_use]
pub fn judge(server: &Read<Server>) -> Check {
    let (area, name) = (Area::Clock, "skew");
    let Ok(Server { date, ours: (before, after), .. }) = server else {
        return area.skipped(name, "The API server did not tell its time.");
    };
    let Some(date) = *date else { return area.skipped(name, "The API server's answer has no Date.") };
    // The date is cut to a second, and was written some time between question and answer.
    let ahead = before.duration_since(date) - SignedDuration::from_secs(1);
    let behind = date.duration_since(*after);
    let (skew, word) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    if skew <= TOLERATED {
        return area.ok(name, "none to speak of, beside the API server's");
    }
    let found = format!(
        "Our clock is {} s {word} the API server's: deadlines are met as much too {}.",
        skew.as_secs(),
        if word == "behind" { "late" } else { "early" }
    );
    let remedy = "Set this node's clock by a time server (chrony, with Amazon's at 169.254.169.123), and check the API server's.";
    if skew > BEARABLE { area.failure(name, found, remedy) } else { area.warning(name, found, remedy) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Status;

    #[test]
    fn a_second_is_no_skew_and_half_a_minute_is_too_much() {
        let at = |seconds: i64, millis: i64| {
            Timestamp::from_millisecond(1_790_000_000_000 + seconds * 1000 + millis).unwrap()
        };
        for (date, before, after, status) in [
            (at(0, 0), at(0, 900), at(0, 990), Status::Ok),
            (at(0, 0), at(0, 0), at(0, 1), Status::Ok),
            (at(0, 0), at(3, 0), at(3, 10), Status::Ok),
            (at(0, 0), at(3, 10), at(3, 20), Status::Warning),
            (at(0, 0), at(31, 0), at(31, 10), Status::Warning),
            (at(0, 0), at(31, 10), at(31, 20), Status::Failure),
            (at(2, 0), at(0, 0), at(0, 0), Status::Ok),
            (at(3, 0), at(0, 0), at(0, 0), Status::Warning),
            (at(31, 0), at(0, 0), at(0, 0), Status::Failure),
            // A slow answer says nothing.
            (at(3, 0), at(0, 0), at(3, 0), Status::Ok),
        ] {
            let server = Ok(Server { version: "v1.34".into(), date: Some(date), ours: (before, after) });
            assert_eq!(judge(&server).status, status, "{date} {before} {after}");
        }
        let silent = Ok(Server { version: "v1.34".into(), date: None, ours: (at(0, 0), at(0, 0)) });
        assert_eq!(judge(&silent).status, Status::Skipped);
    }
}
