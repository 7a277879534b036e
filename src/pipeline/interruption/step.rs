//! The types of the steps: the next step, its result, and the state of the world when it is chosen.

use super::times::HookTimes;
use super::{Completion, NoticeOutcome};
use crate::fact::Wait;
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::Hook;
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::record::NoticeRecord;
use crate::pipeline::node::{Node, Ownership};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The next step for a notice.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<'a> {
    /// Find out which cluster owns the instance.
    FindOwner {
        /// The deadline of the search.
        by: Instant,
    },
    /// Taint the Node of an instance that no longer runs, once EC2 confirms that.
    MarkOutOfService {
        /// The mark with the taint.
        mark: Mark,
        /// The deadline of the attempt.
        by: Instant,
    },
    /// Look up the times of the lifecycle hook.
    LookUpHook(&'a Hook),
    /// Start the work: report it, and keep the hook alive.
    Begin {
        /// The deadline of the work.
        deadline: Deadline,
        /// The times of the hook, if the notice has one to complete.
        times: Option<HookTimes>,
    },
    /// Wait until the launched instance's Node is in service, or excluded.
    AwaitReady {
        /// The deadline of the wait.
        until: Instant,
    },
    /// Remove the marks that the notice ends: those from before the warm pool, or that of a notice which AWS has withdrawn.
    ReleaseMarks {
        /// The Node.
        node: Arc<Node>,
        /// The deadline of the attempt.
        by: Instant,
    },
    /// Find the instance's Node, without waiting for one that has not registered.
    FindNode {
        /// The deadline of the search.
        by: Instant,
    },
    /// Wait until the instance registers as a Node.
    AwaitNode {
        /// The end of the wait.
        until: Instant,
        /// The latest end, if the watch of Nodes is silent.
        by: Instant,
    },
    /// Ask AWS whether the lifecycle action is over, because the Node may have come back from it.
    AskHook(Arc<Node>),
    /// Keep the notice on the Node, without a cordon, until the announced change is near.
    Plan {
        /// The Node.
        node: Arc<Node>,
        /// The notice.
        plan: NoticeRecord,
        /// The deadline of the attempt.
        by: Instant,
    },
    /// Wait until the notice is admitted: until fewer nodes are being drained, or AWS confirms it.
    Admit {
        /// The Node; `None` if the notice only has a hook to complete.
        node: Option<Arc<Node>>,
        /// The latest end.
        until: Instant,
    },
    /// Cordon the Node and leave the notice's mark on it.
    Cordon {
        /// The Node.
        target: Target,
        /// The mark.
        mark: Mark,
    },
    /// Wait before evictions start.
    Delay {
        /// The Node.
        target: Target,
        /// The waits.
        waits: Waits,
    },
    /// Wait before evictions until no more notices come.
    Settle {
        /// The Node.
        target: Target,
        /// The time without a notice.
        quiet: Duration,
        /// Maximum wait.
        at_most: Duration,
    },
    /// Drain the Node.
    Drain(Target),
    /// Wait for another Node of the same instance: a Node that is deleted while its kubelet runs registers again. The time is the latest end
    /// of the wait, if the watch of Nodes is silent.
    AwaitSuccessor(Arc<Node>, Instant),
    /// Wait between the work, which ended with this outcome, and the hook's completion.
    Wait(Waits, NoticeOutcome),
    /// Complete the hook.
    Complete(Completion),
    /// Leave the hook to its own timeout.
    LeaveHook,
    /// Leave the hook of an instance that may belong to another cluster.
    LeaveUnprovenHook,
    /// Stop, with this outcome of the notice.
    End(NoticeOutcome),
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

/// The result of a step.
#[derive(Clone, Debug)]
pub enum Finding {
    /// The notice has been received.
    Received,
    /// The owner of the instance; `None` if it was not found in time.
    Owner(Option<Ownership>),
    /// The attempt to mark the Node as out of service is over.
    OutOfService,
    /// The times of the hook.
    HookTimes(HookTimes),
    /// The work has started, or its deadline has moved during the wait for a launched instance.
    Begun,
    /// The launched instance's Node, in service or excluded; `None` if neither was so in time.
    Launched(Option<Arc<Node>>),
    /// Whether the marks that the notice ends were removed.
    MarksReleased(bool),
    /// The instance's Node.
    Node(Arc<Node>),
    /// The instance has no Node now.
    NoNode,
    /// The instance has got no Node in time.
    NoNodeInTime,
    /// The watch of Nodes has shown nothing in time.
    NodesUnknown,
    /// The Node, and whether AWS reports that the lifecycle action is over.
    HookAsked(Arc<Node>, bool),
    /// Whether the Node keeps the notice until the announced change is near.
    Planned(bool),
    /// The notice may have its Node cordoned and drained.
    Admitted,
    /// There was no room until the end, and AWS did not confirm the notice.
    NotAdmitted,
    /// The Node carries the mark and is cordoned.
    Cordoned(Target),
    /// The wait before evictions is over.
    Delayed(Target),
    /// The Node is gone; the outcome is the notice's, unless another Node takes its place.
    NodeGone(Arc<Node>, NoticeOutcome),
    /// The work has ended.
    Ended(NoticeOutcome),
    /// The waits before the completion are over.
    Waited,
    /// The deadline has moved during the waits before the completion.
    DeadlineMoved,
    /// Whether the hook was completed.
    Completed(bool),
    /// The hook is left to its own timeout.
    HookLeft,
}

/// The state of the world when a step is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Present<'a> {
    /// The time.
    pub now: Instant,
    /// The instance's Node, if it has one.
    pub node: Option<&'a Node>,
    /// The deadline of the work, if the hook's times or the pods have moved it since the start.
    pub deadline: Option<Deadline>,
    /// Whether traffic is shifted away from a zone other than the found Node's.
    pub shifted: bool,
    /// When AWS last accepted a heartbeat for the notice's hook, as far as this process knows.
    pub waited: Option<Timestamp>,
}
