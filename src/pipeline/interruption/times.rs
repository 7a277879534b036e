//! Times of hooks, deadlines of notices, and heartbeats: arithmetic. Pure.

use super::policy::{Heartbeats, Policy};
use crate::pipeline::drain::{Deadline, HookEnd, Remaining};
use crate::pipeline::event::{Detail, InstanceAction, NoticeKind};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time kept free before the expiry of a hook.
pub const MAX_MARGIN: Duration = Duration::from_secs(30);

/// Minimum drain time under a terminating hook, if the user sets none: heartbeats extend the hook. A short timeout shows how soon the group
/// gives up a dead handler, not how long a disruption budget blocks.
pub const MIN_HOOK_DRAIN: Duration = Duration::from_mins(15);

/// The times of a lifecycle hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookTimes {
    /// Time for which the action lives after its start or a heartbeat.
    pub heartbeat: Duration,
    /// The hook's own time: a shorter drain ends at a soft deadline, not with the capacity.
    pub window: Duration,
    /// Whether the times are assumed, because the hook could not be looked up.
    pub assumed: bool,
    /// When the action expires, if AWS denies the heartbeats that would keep it alive for longer.
    pub expires: Option<Instant>,
}

impl HookTimes {
    /// The times assumed if the hook can't be looked up: AWS's shortest heartbeat timeout, and the longest drain that the limit for
    /// this timeout allows.
    pub const UNKNOWN: Self =
        Self { heartbeat: Duration::from_secs(30), window: Duration::from_mins(50), assumed: true, expires: None };

    /// The times of a hook with this heartbeat timeout.
    #[must_use]
    pub const fn of(heartbeat: Duration) -> Self {
        Self { heartbeat, window: heartbeat, assumed: false, expires: None }
    }

    /// Maximum life of the action: 48 h, or 100 timeouts if that is less.
    #[must_use]
    pub fn life(self) -> Duration {
        Duration::from_hours(48).min(self.heartbeat * 100)
    }

    /// Time for which the action lives without heartbeats. An unknown one may live no longer than a spot instance.
    #[must_use]
    pub fn lives_without_heartbeats(self) -> Duration {
        if self.assumed { WARNING_TIME } else { self.heartbeat }
    }

    /// Time kept free before an expiry: a tenth of the timeout, within 3 and 30 s.
    #[must_use]
    pub fn margin(self) -> Duration {
        (self.heartbeat / 10).clamp(Duration::from_secs(3), MAX_MARGIN)
    }

    /// Visibility timeout of the hook's message, so that another replica takes up a killed process's work before the hook expires.
    #[must_use]
    pub fn visibility(self) -> Duration {
        let third = Duration::from_secs(self.heartbeat.as_secs() / 3);
        third.clamp(Duration::from_secs(10), Duration::from_secs(30))
    }

    /// Returns the time that a hook for notices of this kind gives a drain or a launch, with these settings.
    #[must_use]
    pub fn room(self, kind: NoticeKind, drain_timeout: Option<Duration>, heartbeats: Heartbeats) -> HookRoom {
        let by_default = if kind == NoticeKind::AsgLaunch { self.window } else { self.window.max(MIN_HOOK_DRAIN) };
        let limit = if heartbeats == Heartbeats::Off { self.heartbeat } else { self.life() };
        let wanted = drain_timeout.unwrap_or(by_default.min(limit));
        let drain = wanted.min(limit).saturating_sub(self.margin());
        let at_most = limit.saturating_sub(self.margin());
        let hard = wanted >= self.window.min(limit);
        let grace_from = (drain_timeout.is_none() && !self.assumed).then_some(wanted);
        HookRoom { wanted, limit, drain, at_most, hard, grace_from, assumed: self.assumed }
    }
}

/// The time that a lifecycle hook gives a drain, from the start of its action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookRoom {
    /// The time that the settings ask for, or else the hook's default.
    pub wanted: Duration,
    /// The time after which the hook expires in any case.
    pub limit: Duration,
    /// The time for the drain: what is wanted, within the limit, less the margin.
    pub drain: Duration,
    /// Maximum time for a drain with heartbeats: the limit, less the margin.
    pub at_most: Duration,
    /// Whether the capacity ends with that time. A time shorter than the hook's own is a soft limit.
    pub hard: bool,
    /// Whether the hook's own time is unknown.
    pub assumed: bool,
    /// The time after which the longest grace period of a pod still fits, [`MAX_ADDED_GRACE`](crate::pipeline::drain::MAX_ADDED_GRACE) at
    /// most; `None` if the user has set the time.
    pub grace_from: Option<Duration>,
}

impl HookRoom {
    /// Returns the time for the drain of a node with this longest grace period of a pod.
    #[must_use]
    pub fn drain_for(self, longest_grace: Duration) -> Duration {
        let begun = Instant::now();
        self.deadline(begun).lengthened(Remaining::of(longest_grace)).at() - begun
    }

    /// Returns the deadline of a drain for an action that started at `begun`.
    fn deadline(self, begun: Instant) -> Deadline {
        if !self.hard {
            return Deadline::soft(begun + self.drain);
        }
        Deadline::Hook(HookEnd {
            ends: begun + self.drain,
            latest: begun + self.at_most,
            grace_from: self.grace_from.map(|from| begun + from),
            assumed: self.assumed,
        })
    }
}

/// What bounds the work under a hook, whatever its times are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookTerms {
    /// The notice's kind.
    pub kind: NoticeKind,
    /// The time that the user gives drains of this kind.
    pub drain_timeout: Option<Duration>,
    /// When heartbeats are sent.
    pub heartbeats: Heartbeats,
    /// The notice's time. A hook without a message was found then, and its action may have started before.
    pub found: Instant,
    /// The time since which the event is known.
    pub since: Instant,
}

impl HookTerms {
    /// Returns the start of the life of a hook with these times, which lives for at least one timeout after it was found.
    #[must_use]
    pub fn life_begins(self, times: HookTimes) -> Instant {
        let latest = (self.found + times.heartbeat).checked_sub(times.life());
        latest.map_or(self.since, |latest| latest.max(self.since))
    }

    /// Returns the end of that life.
    #[must_use]
    pub fn life_ends(self, times: HookTimes) -> Instant {
        self.life_begins(times) + times.life()
    }

    /// Returns the deadline of the work under a hook with these times.
    #[must_use]
    pub fn deadline(self, times: HookTimes) -> Deadline {
        let room = times.room(self.kind, self.drain_timeout, self.heartbeats);
        self.within_life(room.deadline(self.found), times)
    }

    /// Returns the deadline, bounded by the hook's life, or by its earlier expiry if AWS denies heartbeats.
    #[must_use]
    pub fn within_life(self, deadline: Deadline, times: HookTimes) -> Deadline {
        let Deadline::Hook(end) = deadline else { return deadline };
        let over = times.expires.map_or(self.life_ends(times), |expires| expires.min(self.life_ends(times)));
        let latest = over.checked_sub(times.margin()).unwrap_or(self.life_begins(times)).min(end.latest);
        Deadline::Hook(HookEnd { ends: end.ends.min(latest), latest, ..end })
    }
}

impl Policy {
    /// Returns the time that a hook with these times gives a drain for a notice of this kind.
    #[must_use]
    pub fn hook_room(&self, kind: NoticeKind, times: HookTimes) -> HookRoom {
        times.room(kind, self.drain_timeout.of(kind), self.heartbeats)
    }
}

/// Time between EC2's warning and the end of the instance, for spot instances and for capacity reservations without a time.
pub const WARNING_TIME: Duration = Duration::from_mins(2);

/// Time between an instance's state change and its end: an assumption, because EC2 names no time.
pub(super) const SHUTDOWN_TIME: Duration = Duration::from_mins(2);

/// Maximum duration of a drain that nothing else bounds: the default of a lifecycle hook.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_hours(1);

/// Returns when the drain for a notice must be over.
///
/// `at` is the notice's time and `now` the present; `instant` turns a time that AWS names into an instant. The times of a hook are not
/// known yet. A `drain_timeout` lengthens a hook's drain within the hook's life; for all other notices it shortens the drain.
#[must_use]
pub fn deadline(
    detail: &Detail,
    at: Instant,
    now: Instant,
    drain_timeout: Option<Duration>,
    instant: impl Fn(jiff::Timestamp) -> Instant,
) -> Deadline {
    let shortened = |hard: Instant| {
        let hard = Deadline::hard(hard);
        drain_timeout.map_or(hard, |timeout| hard.or_earlier(Deadline::soft(now + timeout)))
    };
    match detail {
        Detail::AsgTerminate(_) | Detail::AsgLaunch(_) => {
            HookTimes::UNKNOWN.room(detail.kind(), drain_timeout, Heartbeats::Auto).deadline(at)
        }
        Detail::Spot { action: InstanceAction::Hibernate } => Deadline::hard(now),
        Detail::Spot { .. } => shortened(at + WARNING_TIME),
        Detail::CapacityReservation { terminates_at } => shortened(terminates_at.map_or(at + WARNING_TIME, instant)),
        // The group's hook has a timeout, but the instance metadata don't include it.
        Detail::Rebalance
        | Detail::AsgTermination { .. }
        | Detail::Condition(_)
        | Detail::StatusCheck(_)
        | Detail::TakenBack(_) => Deadline::soft(now + drain_timeout.unwrap_or(DEFAULT_DRAIN_TIMEOUT)),
        Detail::StateChange { .. } => {
            Deadline::soft(now + drain_timeout.map_or(SHUTDOWN_TIME, |timeout| timeout.min(SHUTDOWN_TIME)))
        }
        Detail::ScheduledChange(change) => {
            let patience = Deadline::soft(now + drain_timeout.unwrap_or(DEFAULT_DRAIN_TIMEOUT));
            // A start that has passed is no deadline: the change is in progress, or was postponed.
            let start = change.start.map(instant).filter(|start| *start > now);
            let start = start.map(|start| if change.hard { Deadline::hard(start) } else { Deadline::soft(start) });
            start.map_or(patience, |start| patience.or_earlier(start))
        }
    }
}

/// Returns when the next heartbeat is due for a hook that expires at `expires`.
///
/// `finish` is the latest time at which the completion is expected. If the completion may come after the expiry, the beat is sent at
/// half-time. Otherwise it is sent at the last safe time, which only a late completion reaches.
#[must_use]
fn next_beat(heartbeats: Heartbeats, expires: Instant, times: HookTimes, finish: Instant) -> Option<Instant> {
    let last = |before: Duration| expires.checked_sub(before).unwrap_or(expires);
    match heartbeats {
        Heartbeats::Off => None,
        // A longer interval would let the hook expire.
        Heartbeats::Every(interval) => Some(last(times.heartbeat) + interval.min(times.heartbeat - times.margin())),
        Heartbeats::Auto if finish > last(times.margin()) => Some(last(times.heartbeat / 2)),
        Heartbeats::Auto => Some(last(times.margin())),
    }
}

/// Returns when the next heartbeat is due for an action that started at `begun`; `None` also when no beat can extend it any more.
#[must_use]
pub fn due_beat(
    heartbeats: Heartbeats,
    begun: Instant,
    expires: Instant,
    times: HookTimes,
    finish: Instant,
) -> Option<Instant> {
    next_beat(heartbeats, expires, times, finish).filter(|due| *due < begun + times.life())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::event::{InstanceState, ScheduledChange};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The terms of a hook that was found at this time, and whose termination was known since then.
    fn terms(since: Instant, found: Instant, drain_timeout: Option<u64>, heartbeats: Heartbeats) -> HookTerms {
        HookTerms { kind: NoticeKind::AsgTerminate, drain_timeout: drain_timeout.map(s), heartbeats, found, since }
    }

    /// The deadline in seconds after the notice, which is 10 s old, and whether it is hard.
    fn table(detail: &Detail, timeout: Option<u64>) -> (u64, bool) {
        let at = Instant::now();
        let now = at + s(10);
        let noon: jiff::Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let instant = |time: jiff::Timestamp| match Duration::try_from(time.duration_since(noon)) {
            Ok(ahead) => now + ahead,
            Err(_) => at,
        };
        let deadline = deadline(detail, at, now, timeout.map(s), instant);
        ((deadline.at() - at).as_secs(), deadline.is_hard())
    }

    #[test]
    fn a_hook_has_its_timeout_less_a_margin() {
        let of = |timeout, beat, heartbeats| {
            let at = Instant::now();
            let deadline = terms(at, at, timeout, heartbeats).deadline(HookTimes::of(s(beat)));
            ((deadline.at() - at).as_secs(), deadline.is_hard())
        };
        let auto = |timeout, beat| of(timeout, beat, Heartbeats::Auto);
        assert_eq!(auto(None, 30), (897, true), "a quarter of an hour at least");
        assert_eq!(auto(None, 900), (870, true));
        assert_eq!(auto(None, 3600), (3570, true));
        assert_eq!(of(None, 60, Heartbeats::Off), (54, true), "which heartbeats carry");
        assert_eq!(auto(Some(300), 300), (270, true), "the user's word counts");
        assert_eq!(auto(Some(600), 60), (594, true), "lengthened");
        assert_eq!(auto(Some(100_000), 60), (5994, true), "at most 100 timeouts");
        assert_eq!(auto(Some(1_000_000), 7200), (172_770, true), "at most 48 h");
        assert_eq!(auto(Some(40), 60), (34, false), "shortened: our patience");
        assert_eq!(of(Some(600), 60, Heartbeats::Off), (54, true), "nothing lengthens it without heartbeats");
    }

    #[test]
    fn the_other_kinds() {
        let of = table;
        let spot = |action| Detail::Spot { action };
        assert_eq!(of(&spot(InstanceAction::Terminate), None), (120, true));
        assert_eq!(of(&spot(InstanceAction::Stop), Some(60)), (70, false));
        assert_eq!(of(&spot(InstanceAction::Stop), Some(600)), (120, true), "a timeout does not lengthen it");
        assert_eq!(of(&spot(InstanceAction::Hibernate), None), (10, true));
        assert_eq!(of(&Detail::Rebalance, None), (3610, false));
        assert_eq!(of(&Detail::Rebalance, Some(60)), (70, false));
        assert_eq!(of(&Detail::StateChange { state: InstanceState::Stopping }, None), (130, false));
        assert_eq!(of(&Detail::CapacityReservation { terminates_at: None }, None), (120, true));
        let named = "2026-11-21T12:05:00Z".parse().ok();
        assert_eq!(of(&Detail::CapacityReservation { terminates_at: named }, None), (310, true));
    }

    #[test]
    fn a_scheduled_change_is_drained_now_and_ends_at_its_start() {
        let change = |start: Option<&str>, hard| {
            let start = start.map(|start| start.parse().unwrap());
            Detail::ScheduledChange(ScheduledChange {
                code: String::new(),
                start,
                hard,
                withdrawn: false,
                is_issue: false,
            })
        };
        let of = table;
        assert_eq!(of(&change(Some("2026-11-21T12:10:00Z"), true), None), (610, true));
        assert_eq!(of(&change(Some("2026-11-21T12:10:00Z"), false), None), (610, false));
        assert_eq!(of(&change(Some("2026-11-21T12:10:00Z"), true), Some(60)), (70, false));
        assert_eq!(of(&change(Some("2026-11-28T12:00:00Z"), true), None), (3610, false));
        assert_eq!(of(&change(Some("2026-11-21T11:00:00Z"), true), None), (3610, false), "it has begun already");
        assert_eq!(of(&change(None, false), None), (3610, false));
    }

    #[test]
    fn the_life_of_a_hook_that_is_found_later_counts_from_what_was_known_before() {
        let (since, times) = (Instant::now(), HookTimes::of(s(30)));
        // The end and the latest end, in seconds after the find, of a drain of 45 minutes.
        let plan = |known_for: u64| {
            let found = since + s(known_for);
            let deadline = terms(since, found, Some(2700), Heartbeats::Auto).deadline(times);
            let Deadline::Hook(end) = deadline else { panic!() };
            ((end.ends - found).as_secs(), (end.latest - found).as_secs())
        };
        assert_eq!(plan(0), (2697, 2997));
        assert_eq!(plan(100), (2697, 2897));
        assert_eq!(plan(1200), (1797, 1797), "a takeover: the life is 50 minutes");
        assert_eq!(plan(3600), (27, 27), "it began after that, and lives for a timeout at least");
        let soft = Deadline::soft(since + s(9000));
        assert_eq!(terms(since, since, None, Heartbeats::Auto).within_life(soft, times), soft);
    }

    #[test]
    fn without_heartbeats_the_life_ends_at_the_expiry() {
        let begun = Instant::now();
        let times = HookTimes { expires: Some(begun + s(400)), ..HookTimes::of(s(300)) };
        let deadline = terms(begun, begun, None, Heartbeats::Auto).deadline(times);
        let Deadline::Hook(end) = deadline else { panic!() };
        assert_eq!((end.ends - begun, end.latest - begun), (s(370), s(370)));
    }

    #[test]
    fn a_beat_goes_out_only_where_the_completion_may_come_too_late() {
        let now = Instant::now();
        let times = HookTimes::of(s(60));
        let next = |heartbeats, finish: u64| {
            next_beat(heartbeats, now + s(60), times, now + s(finish)).map(|at| (at - now).as_secs())
        };
        assert_eq!(next(Heartbeats::Auto, 54), Some(54), "in time: a beat only if it is late after all");
        assert_eq!(next(Heartbeats::Auto, 55), Some(30), "too late: at half-time");
        assert_eq!(next(Heartbeats::Every(s(20)), 1), Some(20));
        assert_eq!(next(Heartbeats::Every(s(120)), 1), Some(54), "never too late for the hook");
        assert_eq!(next(Heartbeats::Off, 500), None);
    }

    #[test]
    fn no_beat_is_due_when_none_keeps_the_action_alive() {
        let (begun, times) = (Instant::now(), HookTimes::of(s(60)));
        let due = |sent: Duration| {
            let expires = begun + sent + s(60);
            due_beat(Heartbeats::Every(s(20)), begun, expires, times, begun + times.life() * 2)
        };
        assert_eq!(due(Duration::ZERO), Some(begun + s(20)));
        assert_eq!(due(times.life() - s(21)), Some(begun + times.life() - s(1)));
        assert_eq!(due(times.life() - s(20)), None);
    }
}
