//! What a notice leads to and by when: the user's policy, and the arithmetic of deadlines and heartbeats. Pure.

use crate::pipeline::drain::Deadline;
use crate::pipeline::event::{Detail, InstanceAction, Kind, Notice};
use crate::pipeline::node::mark::Extras;
use std::time::Duration;
use tokio::time::Instant;

pub use crate::fact::Action;

/// One setting for each kind of notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerKind<T>([T; Kind::ALL.len()]);

impl<T: Copy> PerKind<T> {
    /// The same for all.
    #[must_use]
    pub const fn all(value: T) -> Self {
        Self([value; Kind::ALL.len()])
    }

    /// The kind's.
    #[must_use]
    pub const fn of(&self, kind: Kind) -> T {
        self.0[kind as usize]
    }

    /// Sets the kind's.
    pub const fn set(&mut self, kind: Kind, value: T) {
        self.0[kind as usize] = value;
    }
}

/// Which action each kind leads to.
pub type Actions = PerKind<Action>;

impl Default for Actions {
    fn default() -> Self {
        let mut actions = Self::all(Action::Drain);
        actions.set(Kind::Rebalance, Action::Cordon);
        actions.set(Kind::AsgLaunch, Action::Ignore);
        actions
    }
}

/// What becomes of a lifecycle hook whose node could not be made what the hook waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailed {
    /// It is completed with CONTINUE.
    Continue,
    /// It is completed with ABANDON.
    Abandon,
    /// It is left to its own timeout.
    Leave,
}

/// When heartbeats go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeats {
    /// Where the completion may fall after the hook's expiry.
    Auto,
    /// Never.
    Off,
    /// Always, at this interval.
    Every(Duration),
}

/// What the user decided about interruptions.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Which action each kind leads to.
    pub actions: Actions,
    /// How long a drain may take: lengthens a hook's, shortens others'.
    pub drain_timeout: PerKind<Option<Duration>>,
    /// How long after the notice evictions begin.
    pub delay: PerKind<Option<Duration>>,
    /// When a cordon that nothing has followed is taken back: by default after 20 minutes for `rebalance=cordon`.
    pub uncordon_after: Option<Duration>,
    /// What a mark brings with it beside the cordon.
    pub extras: Extras,
    /// Whether a node whose instance is gone gets the taint that lets its pods be moved.
    pub out_of_service_taint: bool,
    /// What becomes of a terminating hook whose drain did not succeed.
    pub on_failed_drain: OnFailed,
    /// What becomes of a launch hook whose node did not become Ready.
    pub on_failed_launch: OnFailed,
    /// How long a hook's completion is held back after a drain.
    pub complete_after: Duration,
    /// Taints that a launched node must have lost, by key.
    pub startup_taints: Vec<String>,
    /// When heartbeats go out.
    pub heartbeats: Heartbeats,
    /// How long a terminating instance of ours may take to register as a Node.
    pub registration_grace: Duration,
    /// Whether only the managed tag makes an instance ours.
    pub require_tag: bool,
    /// Hooks that others complete.
    pub ignored_hooks: Vec<String>,
    /// Whether to change nothing.
    pub dry_run: bool,
}

/// How long a recommended cordon stands, if nothing follows.
const RECOMMENDED: Duration = Duration::from_mins(20);

impl Policy {
    /// How long a mark of this kind stands, where it is taken back at all.
    #[must_use]
    pub fn stands(&self, kind: Kind) -> Option<Duration> {
        let action = self.actions.of(kind);
        match self.uncordon_after {
            None => (kind == Kind::Rebalance && action == Action::Cordon).then_some(RECOMMENDED),
            Some(Duration::ZERO) => None,
            given => given.filter(|_| kind == Kind::Rebalance || action == Action::Cordon),
        }
    }

    /// When evictions begin for a notice of time `at`: after the user's delay, but at most half of the time to the deadline goes by
    /// so. `None` where they begin at once.
    #[must_use]
    pub fn drains_from(&self, notice: &Notice, at: Instant, now: Instant, deadline: Instant) -> Option<Instant> {
        let half = now + deadline.saturating_duration_since(now) / 2;
        let from = at + self.delay.of(notice.kind())?;
        Some(from.min(half)).filter(|from| *from > now)
    }
}

/// A lifecycle hook's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookTimes {
    /// A heartbeat, or the action's begin, keeps it alive for so long.
    pub heartbeat: Duration,
    /// How long a drain may take by default.
    pub window: Duration,
}

impl HookTimes {
    /// What is assumed where the hook can't be looked up: AWS's shortest timeout for heartbeats, and all that this timeout's global
    /// limit allows for the drain.
    pub const UNKNOWN: Self = Self { heartbeat: Duration::from_secs(30), window: Duration::from_mins(50) };

    /// The times of a hook with this heartbeat timeout.
    #[must_use]
    pub const fn of(heartbeat: Duration) -> Self {
        Self { heartbeat, window: heartbeat }
    }

    /// How long the action can be kept alive at all: 48 h, or 100 timeouts if that is less.
    #[must_use]
    pub fn life(self) -> Duration {
        Duration::from_hours(48).min(self.heartbeat * 100)
    }

    /// What is kept free before an expiry: a tenth of the timeout, within 3 and 30 s.
    #[must_use]
    pub fn margin(self) -> Duration {
        (self.heartbeat / 10).clamp(Duration::from_secs(3), Duration::from_secs(30))
    }

    /// How long a message is made invisible at a time, so that a killed process's work is taken up before the hook expires.
    #[must_use]
    pub fn visibility(self) -> Duration {
        let third = Duration::from_secs(self.heartbeat.as_secs() / 3);
        third.clamp(Duration::from_secs(10), Duration::from_secs(30))
    }
}

/// A spot instance has 120 s from the notice; a capacity reservation's too, where its notice names no time.
const TWO_MINUTES: Duration = Duration::from_mins(2);

/// How long a drain may take that nothing else bounds: as long as a lifecycle hook's default.
const PATIENCE: Duration = Duration::from_hours(1);

/// How long an instance that is going down by itself is drained. EC2 tells no time.
const GOING_DOWN: Duration = Duration::from_mins(2);

/// When the drain for a notice must be over.
///
/// `at` is the notice's time and `now` the present; `instant` turns a time that AWS names into an instant. A `drain_timeout` lengthens
/// a hook's drain within the hook's life; everywhere else it shortens.
#[must_use]
pub fn deadline(
    detail: &Detail,
    at: Instant,
    now: Instant,
    drain_timeout: Option<Duration>,
    hook: Option<(HookTimes, Heartbeats)>,
    instant: impl Fn(jiff::Timestamp) -> Instant,
) -> Deadline {
    let shortened = |hard: Instant| {
        let hard = Deadline::hard(hard);
        drain_timeout.map_or(hard, |timeout| hard.or_earlier(Deadline::soft(now + timeout)))
    };
    match detail {
        Detail::AsgTerminate(_) | Detail::AsgLaunch(_) => {
            let (times, heartbeats) = hook.unwrap_or((HookTimes::UNKNOWN, Heartbeats::Auto));
            of_hook(at, drain_timeout, times, heartbeats)
        }
        Detail::Spot { action: InstanceAction::Hibernate } => Deadline::hard(now),
        Detail::Spot { .. } => shortened(at + TWO_MINUTES),
        Detail::CapacityReservation { terminates_at } => shortened(terminates_at.map_or(at + TWO_MINUTES, instant)),
        Detail::Rebalance => Deadline::soft(now + drain_timeout.unwrap_or(PATIENCE)),
        Detail::StateChange { .. } => Deadline::soft(now + drain_timeout.map_or(GOING_DOWN, |t| t.min(GOING_DOWN))),
        Detail::ScheduledChange(change) => {
            let patience = Deadline::soft(now + drain_timeout.unwrap_or(PATIENCE));
            // A start that has passed is no deadline any more: the change is under way, or was put off.
            let start = change.start.map(instant).filter(|start| *start > now);
            let start = start.map(|start| if change.hard { Deadline::hard(start) } else { Deadline::soft(start) });
            start.map_or(patience, |start| patience.or_earlier(start))
        }
    }
}

fn of_hook(at: Instant, drain_timeout: Option<Duration>, times: HookTimes, heartbeats: Heartbeats) -> Deadline {
    let bearable = if heartbeats == Heartbeats::Off { times.heartbeat } else { times.life() };
    let wanted = drain_timeout.unwrap_or(times.window);
    let at = at + wanted.min(bearable).saturating_sub(times.margin());
    // With less than the hook's own time it is only our patience that ends.
    if wanted < times.window.min(bearable) { Deadline::soft(at) } else { Deadline::hard(at) }
}

/// When the next heartbeat is due for a hook that expires at `expires`.
///
/// `finish` is the latest moment at which the completion is expected. A beat goes out at half-time where the completion may
/// fall too late for the expiry, else at the last good moment, which is reached only when the completion is late after all.
#[must_use]
fn next_beat(heartbeats: Heartbeats, expires: Instant, times: HookTimes, finish: Instant) -> Option<Instant> {
    let last = |before: Duration| expires.checked_sub(before).unwrap_or(expires);
    match heartbeats {
        Heartbeats::Off => None,
        // An interval longer than the hook bears would let it expire.
        Heartbeats::Every(interval) => Some(last(times.heartbeat) + interval.min(times.heartbeat - times.margin())),
        Heartbeats::Auto if finish > last(times.margin()) => Some(last(times.heartbeat / 2)),
        Heartbeats::Auto => Some(last(times.margin())),
    }
}

/// The same for an action that began at `begun`; `None`, too, when no beat keeps it alive any longer.
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
    use crate::pipeline::event::{Hook, InstanceState, ScheduledChange};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn hook() -> Detail {
        let name = || "x".to_owned();
        Detail::AsgTerminate(Hook { group: name(), name: name(), token: name(), pool: None, direct: false })
    }

    /// The deadline in seconds after the notice, which is 10 s old, and whether it is hard.
    fn table(detail: &Detail, timeout: Option<u64>, beat: u64, heartbeats: Heartbeats) -> (u64, bool) {
        let at = Instant::now();
        let now = at + s(10);
        let noon: jiff::Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let instant = |time: jiff::Timestamp| match Duration::try_from(time.duration_since(noon)) {
            Ok(ahead) => now + ahead,
            Err(_) => at,
        };
        let times = Some((HookTimes::of(s(beat)), heartbeats));
        let deadline = deadline(detail, at, now, timeout.map(s), times, instant);
        ((deadline.at - at).as_secs(), deadline.is_hard())
    }

    #[test]
    fn a_hook_has_its_timeout_less_a_margin() {
        let auto = |timeout, beat| table(&hook(), timeout, beat, Heartbeats::Auto);
        assert_eq!(auto(None, 30), (27, true));
        assert_eq!(auto(None, 3600), (3570, true));
        assert_eq!(auto(Some(600), 60), (594, true), "lengthened");
        assert_eq!(auto(Some(100_000), 60), (5994, true), "at most 100 timeouts");
        assert_eq!(auto(Some(1_000_000), 7200), (172_770, true), "at most 48 h");
        assert_eq!(auto(Some(40), 60), (34, false), "shortened: our patience");
        assert_eq!(
            table(&hook(), Some(600), 60, Heartbeats::Off),
            (54, true),
            "nothing lengthens it without heartbeats"
        );
    }

    #[test]
    fn the_other_kinds() {
        let of = |detail: &Detail, timeout| table(detail, timeout, 60, Heartbeats::Auto);
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
            Detail::ScheduledChange(ScheduledChange { code: String::new(), start, hard })
        };
        let of = |detail: &Detail, timeout| table(detail, timeout, 60, Heartbeats::Auto);
        assert_eq!(of(&change(Some("2026-11-21T12:10:00Z"), true), None), (610, true));
        assert_eq!(of(&change(Some("2026-11-21T12:10:00Z"), false), None), (610, false));
        assert_eq!(of(&change(Some("2026-11-21T12:10:00Z"), true), Some(60)), (70, false));
        assert_eq!(of(&change(Some("2026-11-28T12:00:00Z"), true), None), (3610, false));
        assert_eq!(of(&change(Some("2026-11-21T11:00:00Z"), true), None), (3610, false), "it has begun already");
        assert_eq!(of(&change(None, false), None), (3610, false));
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
}
