//! What the user decided about interruptions. Pure.

use crate::pipeline::event::{Kind, Notice};
use crate::pipeline::node::mark::MarkSettings;
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
    pub extras: MarkSettings,
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
