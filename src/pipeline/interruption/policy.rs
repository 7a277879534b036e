//! The user's policy for interruptions. Pure.

use super::limits::{Admission, AtMost};
use super::settling::MAX_SETTLE;
use crate::pipeline::drain::{AtDeadline, DrainTerms};
use crate::pipeline::event::{Detail, Notice, NoticeKind};
use crate::pipeline::node::label::KeyPattern;
use crate::pipeline::node::mark::MarkSettings;
use crate::pipeline::node::shift::ZONE_LABEL;
use crate::pipeline::node::{ConditionRule, WorkSign};
use clap::ValueEnum;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub use crate::fact::Action;

/// A setting with a value for each kind of notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerKind<T>([T; NoticeKind::ALL.len()]);

impl<T: Copy> PerKind<T> {
    /// The same value for all kinds.
    #[must_use]
    pub const fn all(value: T) -> Self {
        Self([value; NoticeKind::ALL.len()])
    }

    /// Returns the kind's value.
    #[must_use]
    pub const fn of(&self, kind: NoticeKind) -> T {
        self.0[kind as usize]
    }

    /// Sets the kind's value.
    pub const fn set(&mut self, kind: NoticeKind, value: T) {
        self.0[kind as usize] = value;
    }
}

/// A limit on the drains that can wait, among the Nodes with the same value of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    /// The label.
    pub label: Box<str>,
    /// Maximum number of the Nodes with one value that are drained at the same time; a share is of all Nodes with that value.
    pub at_most: AtMost,
}

/// The action for each kind.
pub type Actions = PerKind<Action>;

impl Actions {
    /// Whether a kind has this action.
    #[must_use]
    pub fn have(&self, action: Action) -> bool {
        self.0.contains(&action)
    }

    /// Returns the actions of all kinds, and those of faults, which have their own by code.
    pub fn with_faults<'a>(&'a self, health_issues: &'a BTreeMap<String, Action>) -> impl Iterator<Item = Action> + 'a {
        self.0.iter().chain(health_issues.values()).copied()
    }
}

impl Default for Actions {
    fn default() -> Self {
        let mut actions = Self::all(Action::Drain);
        actions.set(NoticeKind::Rebalance, Action::Cordon);
        actions.set(NoticeKind::AsgLaunch, Action::Ignore);
        actions.set(NoticeKind::NodeCondition, Action::Ignore);
        actions.set(NoticeKind::StatusCheck, Action::Report);
        actions
    }
}

/// The completion of a lifecycle hook after work that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailed {
    /// Complete it with CONTINUE.
    Continue,
    /// Complete it with ABANDON.
    Abandon,
    /// Leave it to its own timeout.
    Leave,
}

/// The treatment of a terminating hook whose Node a user has uncordoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnUncordon {
    /// Leave it to its own timeout.
    Leave,
    /// Keep it alive until its deadline, and complete it then as after a failed drain.
    AtDeadline,
}

/// The treatment of load balancers when an instance is terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ForLoadBalancers {
    /// Nothing.
    #[value(name = "off")]
    Nothing,
    /// A hook's completion waits until no target group lists the instance.
    Wait,
    /// The same, and the instance is deregistered when its drain starts.
    Deregister,
}

/// When heartbeats are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeats {
    /// When the completion may come after the hook's expiry.
    Auto,
    /// Never.
    Off,
    /// Always, at this interval.
    Every(Duration),
}

/// The hold points of the interruptions of one kind of notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Before evictions start.
    pub before_drain: bool,
    /// Before the hook is completed.
    pub before_completion: bool,
}

/// The resources whose zonal shift counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShiftedResources {
    /// None: drains wait for no shift.
    #[default]
    None,
    /// All that events name.
    Any,
    /// Those with these ARNs.
    Named(Vec<Box<str>>),
}

impl ShiftedResources {
    /// Whether the shift of this resource counts.
    #[must_use]
    pub fn has(&self, resource: &str) -> bool {
        match self {
            Self::None => false,
            Self::Any => true,
            Self::Named(names) => names.iter().any(|name| **name == *resource),
        }
    }
}

/// What is waited for before evictions, and between a drain and the hook's completion.
#[derive(Clone, Debug)]
pub struct WaitPolicy {
    /// Time between the notice and the first evictions.
    pub delay: PerKind<Option<Duration>>,
    /// Maximum number of replacements of one group at the same time.
    pub max_replacements: AtMost,
    /// Whether an unhealthy node whose group was not asked to launch another first is terminated after its drain.
    pub terminate_first: bool,
    /// The waves, by label. Those of all labels that a Node has hold.
    pub waves: Vec<Wave>,
    /// Whether the waves are a pool's own, which count only its Nodes.
    pub own_waves: bool,
    /// The resources whose zonal shift holds back drains in other zones.
    pub zonal_shift: ShiftedResources,
    /// The hold points.
    pub hold: PerKind<Holds>,
    /// Wait between a drain and the hook's completion.
    pub complete_after: Duration,
    /// Maximum wait between a drain and the hook's completion for the volumes of the drained pods to be detached.
    pub volumes: Duration,
    /// The treatment of load balancers when an instance is terminated.
    pub load_balancers: ForLoadBalancers,
}

/// Source of the names of lifecycle hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookSource {
    /// Messages: each names its hook and its action.
    Messages,
    /// A setting: the terminating hook of this name, in each group.
    Setting(String),
    /// Nothing: no hook is completed.
    None,
}

/// The user's policy for interruptions of the Nodes of a pool, or of those that are in none.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The name of the pool, if it is of one.
    pub pool: Option<Arc<str>>,
    /// The action for each kind.
    pub actions: Actions,
    /// The Node conditions that are acted on. The action for their kind is the most far-reaching of theirs.
    pub conditions: Arc<[ConditionRule]>,
    /// The actions for faults that AWS Health reports, by code. Others are ignored.
    pub health_issues: BTreeMap<String, Action>,
    /// Time before a scheduled change at which its Node is drained; `None` drains at once.
    pub lead: Option<Duration>,
    /// Maximum duration of a drain: lengthens a hook's, shortens all others.
    pub drain_timeout: PerKind<Option<Duration>>,
    /// The treatment of pods when the time of a drain ends but the capacity does not.
    pub at_timeout: PerKind<AtDeadline>,
    /// Limits on notices, against an attacker who can write to the queue.
    pub admission: Admission,
    /// The waits before evictions and completions.
    pub waits: WaitPolicy,
    /// Interval at which EC2 is asked about status checks, if it is.
    pub ec2_poll_interval: Option<Duration>,
    /// Time without a new drain notice after which evictions start: [`QUIET_TIME`](super::QUIET_TIME), save in tests.
    pub settle: Duration,
    /// Time after which to undo a cordon that no interruption followed: by default 20 minutes for `rebalance=cordon`.
    pub uncordon_after: Option<Duration>,
    /// The signs that another tool works on a Node: a cordon that expires stays meanwhile.
    pub work_signs: Arc<[WorkSign]>,
    /// Taints and labels that come with each mark, besides the cordon.
    pub mark_settings: MarkSettings,
    /// Whether the Node of an instance that is gone gets the taint that lets its pods be moved.
    pub out_of_service_taint: bool,
    /// The completion of a terminating hook after a drain that failed.
    pub on_failed_drain: OnFailed,
    /// The treatment of a terminating hook whose Node a user has uncordoned.
    pub on_uncordon: OnUncordon,
    /// The completion of a launch hook whose Node did not become Ready.
    pub on_failed_launch: OnFailed,
    /// Taints that a new Node must have lost.
    pub startup_taints: Vec<KeyPattern>,
    /// When heartbeats are sent.
    pub heartbeats: Heartbeats,
    /// Maximum time for which a terminating instance of ours may take to register as a Node.
    pub registration_grace: Duration,
    /// Whether only the managed tag makes an instance ours.
    pub require_tag: bool,
    /// Hooks that other programs complete.
    pub ignored_hooks: Vec<String>,
    /// Source of the names of lifecycle hooks.
    pub hooks: HookSource,
    /// The treatment of pods.
    pub drain: DrainTerms,
    /// Whether to change nothing.
    pub dry_run: bool,
}

/// Default time after which to undo a rebalance cordon that no interruption followed.
const DEFAULT_UNCORDON_AFTER: Duration = Duration::from_mins(20);

impl Policy {
    /// Returns the action for the notice.
    #[must_use]
    pub fn action(&self, notice: &Notice) -> Action {
        match &notice.detail {
            Detail::ScheduledChange(change) if change.is_issue => {
                self.health_issues.get(&change.code).copied().unwrap_or(Action::Ignore)
            }
            Detail::Condition(name) => {
                let rule = self.conditions.iter().find(|rule| *rule.name == **name);
                rule.map_or(Action::Ignore, |rule| rule.action)
            }
            _ => self.actions.of(notice.kind()),
        }
    }

    /// Returns when work on the notice starts, if the settings delay it until shortly before the change. A retirement is never delayed,
    /// because the instance's host is already failing.
    #[must_use]
    pub fn acts_from(&self, notice: &Notice) -> Option<Timestamp> {
        let Detail::ScheduledChange(change) = &notice.detail else { return None };
        let retires = change.code.split('_').any(|word| word == "RETIREMENT");
        change.start?.checked_sub(self.lead.filter(|_| !retires)?).ok()
    }

    /// Returns the name of the terminating hook that is kept alive and completed for agent notices, which don't name one.
    #[must_use]
    pub fn node_hook(&self) -> Option<&str> {
        if let HookSource::Setting(name) = &self.hooks { Some(name) } else { None }
    }

    /// Whether a terminating hook of this name is completed after a drain.
    #[must_use]
    pub fn completes(&self, hook: &str) -> bool {
        let is_ours = match &self.hooks {
            HookSource::Messages => true,
            HookSource::Setting(name) => name == hook,
            HookSource::None => false,
        };
        is_ours && !self.ignored_hooks.iter().any(|ignored| ignored == hook)
    }

    /// Whether some notice has one of these actions.
    #[must_use]
    pub fn has_any(&self, wanted: &[Action]) -> bool {
        let of_conditions = self.conditions.iter().map(|rule| rule.action);
        self.actions.with_faults(&self.health_issues).chain(of_conditions).any(|action| wanted.contains(&action))
    }

    /// Returns the labels that waits read: those of the waves and of zones.
    #[must_use]
    pub fn labels(&self) -> Vec<Box<str>> {
        let zone = (self.waits.zonal_shift != ShiftedResources::None).then(|| ZONE_LABEL.into());
        self.waits.waves.iter().map(|wave| wave.label.clone()).chain(zone).collect()
    }

    /// Returns the time after which to remove the mark of a notice of this kind with this action, if that is set.
    #[must_use]
    pub fn stands(&self, kind: NoticeKind, action: Action) -> Option<Duration> {
        match self.uncordon_after {
            None => (kind == NoticeKind::Rebalance && action == Action::Cordon).then_some(DEFAULT_UNCORDON_AFTER),
            Some(Duration::ZERO) => None,
            given => given.filter(|_| kind == NoticeKind::Rebalance || action == Action::Cordon),
        }
    }

    /// Returns the quiet time before evictions, and its maximum: less if little time is left to the deadline. `None` if evictions start at
    /// once.
    #[must_use]
    pub fn settles(&self, now: Instant, deadline: Instant) -> Option<(Duration, Duration)> {
        let spared = deadline.saturating_duration_since(now) / 20;
        let (quiet, at_most) = (self.settle.min(spared), MAX_SETTLE.min(spared));
        (!quiet.is_zero()).then_some((quiet, at_most))
    }
}
