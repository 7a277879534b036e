//! What awaits a pod that goes, as its drain would be if it began now and nothing disturbed it. Pure.

use super::deadline::Deadline;
use super::grace::AtDeadline;
use super::select::{Leaver, Tier};
use super::tier::begins_by;
use std::time::Duration;
use tokio::time::Instant;

/// What awaits one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Its eviction is tried at the latest then; never, where it asks for peace and nothing presses.
    pub evicted_by: Option<Instant>,
    /// The grace period that it is given then.
    pub grace: Duration,
    /// It is deleted then, if it could not be evicted before.
    pub deleted_at: Option<Instant>,
}

/// What awaits each of `leavers`, in a drain that begins at `begun` and has until `end`.
#[must_use]
pub fn outlook(
    leavers: &[Leaver],
    (begun, end): (Instant, Deadline),
    wanted: Option<Duration>,
    at_deadline: AtDeadline,
) -> Vec<Outlook> {
    let any = Tier::ALL.map(|tier| leavers.iter().any(|leaver| leaver.tier == tier));
    let of = |leaver: &Leaver| {
        let grace = leaver.grace_with(wanted);
        let turn = begins_by(leaver.tier, any, begun, end.at());
        let evicted_by = match leaver.peace {
            Some(_) => grace.peace_until(end).map(|until| until.max(turn)),
            None => Some(turn),
        };
        let deleted_at = match at_deadline {
            AtDeadline::Delete => evicted_by.and_then(|tried| grace.deleted_at(end, tried)),
            AtDeadline::Leave => None,
        };
        Outlook { evicted_by, grace: grace.at(evicted_by.unwrap_or(begun), end), deleted_at }
    };
    leavers.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::select::Pod;
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn leaver(tier: Tier, grace: i64, peace: Option<&'static str>) -> Leaver {
        let pod = Pod { namespace: "default".into(), name: "web".into(), uid: "u".into() };
        Leaver { pod, grace: Some(grace), tier, peace, ends: None }
    }

    /// Seconds from now: evicted, grace, deleted.
    fn seen(leavers: &[Leaver], end: Deadline, now: Instant, at: AtDeadline) -> Vec<(Option<u64>, u64, Option<u64>)> {
        let from_now = |at: Instant| (at - now).as_secs();
        let all = outlook(leavers, (now, end), None, at).into_iter();
        all.map(|pod| (pod.evicted_by.map(from_now), pod.grace.as_secs(), pod.deleted_at.map(from_now))).collect()
    }

    #[test]
    fn a_hard_deadline_presses_each_pod_in_its_turn() {
        let now = Instant::now();
        let leavers = [
            leaver(Tier::Ordinary, 30, None),
            leaver(Tier::Critical, 300, None),
            leaver(Tier::Ordinary, 30, Some("x")),
        ];
        let hard = Deadline::hard(now + s(120));
        let expected = [(Some(0), 30, Some(88)), (Some(60), 58, Some(70)), (Some(78), 30, Some(88))];
        assert_eq!(seen(&leavers, hard, now, AtDeadline::Delete), expected);
        let kept = expected.map(|(evicted, grace, _)| (evicted, grace, None));
        assert_eq!(seen(&leavers, hard, now, AtDeadline::Leave), kept);
    }

    #[test]
    fn a_soft_deadline_presses_nobody() {
        let now = Instant::now();
        let leavers = [leaver(Tier::Ordinary, 300, None), leaver(Tier::Daemon, 30, Some("x"))];
        let soft = Deadline::soft(now + s(120));
        assert_eq!(seen(&leavers, soft, now, AtDeadline::Delete), [(Some(0), 300, None), (None, 30, None)]);
    }
}
