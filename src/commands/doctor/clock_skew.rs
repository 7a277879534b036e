//! The difference between our clock and the API server's. Pure.
//!
//! A deadline is a time of AWS plus a duration, and our clock decides when it is reached. A clock that is slow by more than a deadline's
//! margin makes Ebbtide act too late: the margin is 2 s for a pod's grace period, up to 30 s for a hook. A fast clock shortens drains.

use super::check::{Area, Check};
use super::readings::{ApiServer, Reading};
use crate::runtime::clock::ahead_of;
use jiff::SignedDuration;

/// Maximum skew without a finding: the margin of the tightest deadline.
const MAX_OK: SignedDuration = SignedDuration::from_secs(2);

/// Maximum skew that is only a warning: the margin of the widest deadline.
const MAX_WARNING: SignedDuration = SignedDuration::from_secs(30);

/// Judges the skew.
#[must_use]
pub fn judge(server: &Reading<ApiServer>) -> Check {
    let (area, name) = (Area::Clock, "skew");
    let Ok(ApiServer { date, asked_at, answered_at, .. }) = server else {
        return area.skipped(name, "The API server's time is not known.");
    };
    let Some(date) = *date else { return area.skipped(name, "The API server's answer has no Date.") };
    let (least, most) = ahead_of(date, *asked_at, *answered_at).into_inner();
    let (ahead, behind) = (least, -most);
    let (skew, word, comes) = if ahead > behind { (ahead, "ahead of", "early") } else { (behind, "behind", "late") };
    if skew <= MAX_OK {
        return area.ok(name, "at most 2 s between our clock and the API server's");
    }
    let found = format!(
        "Our clock is {} s {word} the API server's: Ebbtide's deadlines come {comes} by as much.",
        skew.as_secs()
    );
    let remedy = "Set this node's clock by a time server (chrony, with Amazon's at 169.254.169.123), and check the API server's.";
    if skew > MAX_WARNING { area.failure(name, found, remedy) } else { area.warning(name, found, remedy) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Status;
    use jiff::Timestamp;

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
            let server =
                Ok(ApiServer { version: "v1.34".into(), date: Some(date), asked_at: before, answered_at: after });
            assert_eq!(judge(&server).status, status, "{date} {before} {after}");
        }
        let silent = Ok(ApiServer { version: "v1.34".into(), date: None, asked_at: at(0, 0), answered_at: at(0, 0) });
        assert_eq!(judge(&silent).status, Status::Skipped);
    }
}
