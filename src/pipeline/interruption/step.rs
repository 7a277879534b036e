//! The types of the steps of a notice.

use super::limits::Patience;
use super::{Completion, NoticeOutcome};
use crate::fact::{Remedy, Wait};
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::Hook;
use crate::pipeline::node::Node;
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::record::NoticeRecord;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The next step for a notice. Those with a time end then, whatever they have reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<'a> {
    /// Find out which cluster owns the instance.
    FindOwner {
        /// The deadline of the search.
        by: Instant,
    },
    /// Taint the Node of an instance that no longer runs, once EC2 confirms that.
    MarkOutOfService {
        /// The mark with the taint. Boxed, as all that is large: a step is as large as its largest.
        mark: Box<Mark>,
        /// The deadline of the attempt.
        by: Instant,
    },
    /// Start the work: look up the times of this hook, if the notice has one to complete, report the start, and keep the hook alive.
    Begin(Option<&'a Hook>),
    /// Wait until the launched instance's Node is in service, or excluded.
    AwaitReady {
        /// The deadline of the wait.
        until: Instant,
    },
    /// Find the instance's Node.
    FindNode(NodeSearch),
    /// Ask AWS whether the lifecycle action is over, because the Node may have come back from it.
    AskHook(Arc<Node>),
    /// Remove the marks that the notice ends: those from before the warm pool, or that of a notice which AWS has withdrawn.
    ReleaseMarks {
        /// The Node.
        node: Arc<Node>,
        /// The deadline of the attempt.
        by: Instant,
    },
    /// Keep the notice on the Node, without a cordon, until the announced change is near.
    Plan {
        /// The Node.
        node: Arc<Node>,
        /// The notice.
        plan: Box<NoticeRecord>,
        /// The deadline of the attempt.
        by: Instant,
    },
    /// Wait until the notice is admitted: until fewer nodes are being drained, or AWS confirms it.
    Admit {
        /// The Node; `None` if the notice only has a hook to complete.
        node: Option<Arc<Node>>,
        /// The latest end.
        until: Instant,
        /// How long AWS's word is waited for, if the notice continues without it.
        patience: Option<Patience>,
    },
    /// Cordon the Node and leave the notice's mark on it.
    Cordon {
        /// The Node.
        target: Target,
        /// The mark.
        mark: Box<Mark>,
    },
    /// Wait before evictions start.
    Delay {
        /// The Node.
        target: Target,
        /// The waits.
        waits: Waits,
    },
    /// Drain the Node.
    Drain {
        /// The Node.
        target: Target,
        /// The wait for the end of the burst of notices, if others of it may not be cordoned yet.
        quiet: Option<QuietTime>,
    },
    /// End the work with this outcome. What is left is the hook.
    EndWork(NoticeOutcome),
    /// Wait between the work and the hook's completion.
    Wait(Waits),
    /// End the repair of the drained Node.
    Remedy {
        /// What is done about its instance.
        remedy: Remedy,
        /// The latest end of the wait for it.
        until: Instant,
    },
    /// End the hook's keeping.
    EndHook(HookEnding),
    /// Stop, with this outcome of the notice.
    End(NoticeOutcome),
}

/// A search for an instance's Node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSearch {
    /// The Node that is waited for, if there is none.
    pub awaits: AwaitedNode,
    /// The latest end, if the watch of Nodes is silent.
    pub by: Instant,
}

/// The Node that a search waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum AwaitedNode {
    /// None: one that has not registered is not waited for.
    None,
    /// Any that registers until this time.
    Registered(Instant),
    /// Another than this one, which is gone: a Node that is deleted while its kubelet runs registers again.
    Successor(Arc<Node>),
}

/// The wait for the end of a burst of notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuietTime {
    /// The time without a notice.
    pub quiet: Duration,
    /// Maximum wait.
    pub at_most: Duration,
}

/// The end of a hook's keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookEnding {
    /// It is completed.
    Complete(Completion),
    /// It is left to its own timeout.
    Leave,
    /// It is left to its own timeout, because its instance may belong to another cluster.
    LeaveUnproven,
}

/// The Node to work on.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The Node.
    pub node: Arc<Node>,
    /// The deadline of its drain; leaves some time, even if the notice's own deadline has passed.
    pub deadline: Deadline,
}

/// The waits at one place, side by side, each with its latest end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits(Vec<(Wait, Instant)>);

impl Waits {
    /// Adds a wait.
    pub fn add(&mut self, wait: Wait, until: Instant) {
        self.0.push((wait, until));
    }

    /// Removes a wait.
    pub fn remove(&mut self, wait: Wait) {
        self.0.retain(|(other, _)| *other != wait);
    }

    /// Returns the latest end of a wait, if it is one of them.
    #[must_use]
    pub fn until(&self, wait: Wait) -> Option<Instant> {
        self.iter().find(|(other, _)| *other == wait).map(|(_, until)| until)
    }

    /// Returns the latest end of the waits for other drains or zones, which put off a hook's time for the drain.
    #[must_use]
    pub fn put_off_until(&self) -> Option<Instant> {
        self.until(Wait::Wave).or_else(|| self.until(Wait::ZonalShift))
    }

    /// Whether there is nothing to wait for.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the waits.
    pub fn iter(&self) -> impl Iterator<Item = (Wait, Instant)> {
        self.0.iter().copied()
    }

    /// Returns the waits, each with its end at `last` at the latest, even if that has passed; those that put off a hook's end with their own latest end.
    #[must_use]
    pub fn within(&self, last: Option<Instant>, last_in_wave: Option<Instant>) -> Self {
        let last = |wait| if matches!(wait, Wait::Wave | Wait::ZonalShift) { last_in_wave } else { last };
        let within = |(wait, until): (Wait, Instant)| (wait, last(wait).map_or(until, |last| until.min(last)));
        Self(self.iter().map(within).collect())
    }

    /// Returns the time at which the last of them is over.
    #[must_use]
    pub fn end(&self) -> Option<Instant> {
        self.iter().map(|(_, until)| until).max()
    }
}
