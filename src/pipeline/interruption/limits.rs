//! The limits of what a writer to the queue can cause. A limit shapes, and loses no real notice. Pure.

use crate::pipeline::drain::Deadline;
use crate::pipeline::event::{Notice, NoticeKind};
use clap::ValueEnum;
use std::time::Duration;
use tokio::time::Instant;

/// The share of the nodes that are drained at the same time before AWS is asked, in percent.
const SHAPED_AT: usize = 25;

/// Maximum time for which a spot warning waits for AWS's word: a quarter of its two minutes.
const SPOT_PATIENCE: Duration = Duration::from_secs(30);

/// Time before a hard deadline from which on a notice is late: its drain may delete pods at once, whatever their budgets allow.
const LATE: Duration = Duration::from_mins(1);

/// The same for a spot warning, which names no deadline but its own time: fifteen seconds after that.
const LATE_SPOT: Duration = Duration::from_secs(105);

/// Maximum time for which any other notice waits for it: a quarter of the default time of a drain.
const MAX_PATIENCE: Duration = Duration::from_mins(15);

/// Minimum time for AWS's word, whatever deadline a message names.
const LEAST_PATIENCE: Duration = Duration::from_secs(2);

/// Maximum time for which a late notice waits for it.
const LATE_PATIENCE: Duration = Duration::from_secs(10);

/// Which notices AWS must confirm before their nodes are cordoned and drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// All that AWS can confirm.
    Always,
    /// Those beyond the maximum number of drains.
    Unusual,
    /// None.
    Never,
}

/// A limit on a part of a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtMost {
    /// A fixed number.
    Number(usize),
    /// This share of the whole, but at least one.
    Percent(usize),
}

impl AtMost {
    /// Returns the limit for a whole of this size.
    #[must_use]
    pub fn of(self, whole: usize) -> usize {
        match self {
            Self::Number(number) => number,
            Self::Percent(share) => (whole * share / 100).max(1),
        }
    }
}

/// The limit of the nodes that are drained at the same time, unless AWS confirms more. A share is of the cluster's Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainLimit {
    /// None.
    None,
    /// The default where a queue is read, a quarter of the nodes, for notices that AWS can confirm: beyond it they wait only while AWS
    /// denies them, or has had little time to answer. Only running drains count.
    Shaping,
    /// The user's, for all notices: beyond it they wait until there is room or AWS confirms them. A drained node counts until it is gone.
    Strict(AtMost),
}

impl DrainLimit {
    /// Returns the maximum, if there is one.
    #[must_use]
    pub const fn at_most(self) -> Option<AtMost> {
        match self {
            Self::None => None,
            Self::Shaping => Some(AtMost::Percent(SHAPED_AT)),
            Self::Strict(at_most) => Some(at_most),
        }
    }
}

/// Limits on notices, against an attacker who can write to the queue.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// The limit of drains.
    pub limit: DrainLimit,
    /// Which notices AWS must confirm.
    pub verify: Verify,
    /// Whether AWS can be asked: not if agents are the only source of notices.
    pub asks_aws: bool,
}

/// How long a notice waits for AWS's word. While AWS denies it, it waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The time since its arrival.
    pub at_most: Duration,
    /// Whether its time is nearly over, or past: it waits even if there is room.
    pub is_late: bool,
}

impl Admission {
    /// Whether AWS may be asked about notices.
    #[must_use]
    pub fn may_ask(&self) -> bool {
        self.is_wary() || self.limit == DrainLimit::Shaping
    }

    /// Whether the user has chosen that nothing unusual is trusted, because an attacker may be able to write to the queue.
    #[must_use]
    pub fn is_wary(&self) -> bool {
        let is_strict = matches!(self.limit, DrainLimit::Strict(_));
        self.asks_aws && (self.verify == Verify::Always || self.verify == Verify::Unusual && is_strict)
    }

    /// Returns how long the notice waits for AWS's word; `None` if it waits until AWS confirms it. Its work has this deadline, and its hook
    /// lives for this time without heartbeats, which AWS may deny.
    #[must_use]
    pub fn patience(
        &self,
        notice: &Notice,
        deadline: Deadline,
        hook_lives: Option<Duration>,
        now: Instant,
    ) -> Option<Patience> {
        if self.limit != DrainLimit::Shaping {
            return None;
        }
        let until = |end: Instant| end.saturating_duration_since(now);
        let left = until(deadline.at()).min(hook_lives.unwrap_or(Duration::MAX));
        let is_spot = notice.kind() == NoticeKind::Spot;
        // With another notice of the node the drain may have all the time of the capacity.
        let is_late = deadline.capacity_ends().is_some_and(|end| until(end) < if is_spot { LATE_SPOT } else { LATE });
        let most = match (is_late, is_spot) {
            (true, _) => LATE_PATIENCE,
            (false, true) => SPOT_PATIENCE,
            (false, false) => MAX_PATIENCE,
        };
        Some(Patience { at_most: (left / 4).min(most).max(LEAST_PATIENCE), is_late })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::event::{Detail, Identity, InstanceAction, InstanceId, NoticeTime};
    use jiff::Timestamp;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn notice(detail: Detail) -> Notice {
        let instance = InstanceId::new("i-0123456789abcdef0").unwrap();
        let identity = Identity::of_change("event".to_owned(), instance.clone());
        Notice::new(identity, instance, NoticeTime::Announced(Timestamp::UNIX_EPOCH), detail)
    }

    #[test]
    fn a_notice_waits_for_a_quarter_of_its_time_and_a_spot_warning_half_a_minute() {
        let spot = notice(Detail::Spot { action: InstanceAction::Terminate });
        let other = notice(Detail::Rebalance);
        let now = Instant::now();
        let (hard, soft) = (|left| Deadline::hard(now + s(left)), |left| Deadline::soft(now + s(left)));
        // The settings give the drain this time, of that of the capacity.
        let cut = |time, left| hard(left).or_earlier(soft(time));
        let table = [
            // notice, deadline, life of the hook → seconds, late
            (&spot, hard(120), None, 30, false),
            (&spot, hard(108), None, 27, false),
            (&spot, hard(104), None, 10, true),
            (&spot, hard(20), None, 5, true),
            (&spot, hard(0), None, 2, true),
            // A short time of the drain does not hide that the warning is old.
            (&spot, cut(10, 120), None, 2, false),
            (&spot, cut(10, 15), None, 2, true),
            (&other, hard(3600), None, 900, false),
            (&other, hard(59), None, 10, true),
            (&other, cut(20, 59), None, 5, true),
            (&other, soft(3600), None, 900, false),
            (&other, soft(4 * 3600), None, 900, false),
            (&other, soft(20), None, 5, false),
            // A message that is dated back gets no cordon before an answer can have come.
            (&other, soft(0), None, 2, false),
            // AWS may deny the heartbeats that give the drain its quarter of an hour.
            (&other, hard(870), Some(300), 75, false),
            (&other, hard(870), Some(60), 15, false),
            (&other, hard(7200), Some(7200), 900, false),
        ];
        let limits = Admission { limit: DrainLimit::Shaping, verify: Verify::Unusual, asks_aws: true };
        let strict = Admission { limit: DrainLimit::Strict(AtMost::Number(1)), ..limits };
        for (row, (notice, deadline, lives, at_most, is_late)) in table.into_iter().enumerate() {
            let lives = lives.map(s);
            let found = limits.patience(notice, deadline, lives, now);
            assert_eq!(
                found.map(|found| (found.at_most.as_secs(), found.is_late)),
                Some((at_most, is_late)),
                "row {row}"
            );
            assert_eq!(strict.patience(notice, deadline, lives, now), None, "it waits for AWS");
        }
    }
}
