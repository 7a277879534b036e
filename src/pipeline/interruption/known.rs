//! What is known about a notice: its next step follows from nothing else.

use super::NoticeOutcome;
use super::step::Target;
use super::times::HookTimes;
use crate::fact::Remedy;
use crate::pipeline::drain::Deadline;
use crate::pipeline::node::{Node, Ownership};
use jiff::Timestamp;
use std::sync::Arc;
use tokio::time::Instant;

/// What is known about a notice, and how far the work on it has come.
#[derive(Clone, Debug)]
pub struct Known {
    /// The owner of the instance.
    pub owner: Owner,
    /// How far the work has come.
    pub progress: Progress,
    /// The instance's Node now, if it has one.
    pub node: Option<Arc<Node>>,
    /// Whether traffic was shifted away from a zone other than the Node's when it was found.
    pub is_shifted: bool,
    /// When AWS last accepted a heartbeat for the notice's hook, as far as this process knows.
    pub waited: Option<Timestamp>,
    /// The kept hook, if there is one.
    pub hook: Option<KnownHook>,
    /// The start of a drain's own time: that of the work, later by the wait for its admission. That wait takes time from AWS's deadline only.
    pub since: Instant,
    /// Whether the notice has been admitted.
    pub is_admitted: bool,
    /// Start of the waits before evictions: a deadline that moves doesn't lengthen them.
    pub cordoned: Option<Instant>,
    /// End of the work, and start of the waits before the completion.
    pub worked: Option<Instant>,
    /// The outcome, as far as the work has come.
    pub outcome: NoticeOutcome,
    /// The last remedy that was tried.
    pub remedied: Option<Remedy>,
    /// The number of Nodes that are gone.
    pub gone: usize,
    /// Whether a Node of the instance has had volumes. Its status forgets them before they are detached.
    pub had_volumes: bool,
}

/// What is known about a hook that is kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownHook {
    /// The deadline under it, as its times and the pods have moved it.
    pub deadline: Deadline,
    /// Its times.
    pub times: HookTimes,
}

/// What is known about the owner of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nothing.
    Unknown,
    /// It was not found in time.
    NotFound,
    /// This.
    Found(Ownership),
}

/// How far the work on a notice has come.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// The notice has been received.
    Received,
    /// The work has started: its Node is to be found.
    Begun,
    /// The instance has no Node now.
    NoNode,
    /// The instance has got no Node in time.
    NoNodeInTime,
    /// The watch of Nodes has shown nothing in time.
    NodesUnknown,
    /// The instance's Node; that of a launched one is in service, or excluded.
    Found(Arc<Node>),
    /// The Node, and AWS shows that its instance still waits at the hook.
    Waiting(Arc<Node>),
    /// AWS shows that the lifecycle action is over.
    ActionOver,
    /// Whether the marks that the notice ends were removed.
    Released(bool),
    /// The notice may have its Node cordoned and drained.
    Admitted,
    /// The Node carries the mark and is cordoned.
    Cordoned(Target),
    /// The waits before evictions are over.
    Delayed(Target),
    /// The Node is gone; the outcome is the notice's, unless another Node takes its place.
    Gone(Arc<Node>, NoticeOutcome),
    /// The work has ended.
    Ended(NoticeOutcome),
    /// The waits before the completion are over.
    Waited,
    /// This remedy was tried.
    Remedied(Remedy),
    /// The hook's keeping has ended, with this outcome of the notice.
    HookEnded(NoticeOutcome),
}

impl Known {
    /// What is known when the notice is received.
    #[must_use]
    pub const fn received(now: Instant) -> Self {
        Self {
            owner: Owner::Unknown,
            progress: Progress::Received,
            node: None,
            is_shifted: false,
            waited: None,
            hook: None,
            since: now,
            is_admitted: false,
            cordoned: None,
            worked: None,
            outcome: NoticeOutcome::NothingToDrain,
            remedied: None,
            gone: 0,
            had_volumes: false,
        }
    }

    /// Returns what stays known when the work starts again, because the notice or the time has changed.
    #[must_use]
    pub fn restarted(&self, now: Instant) -> Self {
        let is_ours = self.owner == Owner::Found(Ownership::Ours);
        Self { owner: if is_ours { self.owner } else { Owner::Unknown }, ..Self::received(now) }
    }

    /// Takes the result of a step.
    pub fn advance(&mut self, to: Progress, now: Instant) {
        match &to {
            Progress::Begun => self.since = now,
            Progress::Found(node) => self.had_volumes |= node.has_volumes,
            // Completing an action that is over ends nothing.
            Progress::Admitted | Progress::ActionOver => self.is_admitted = true,
            Progress::Cordoned(_) => _ = self.cordoned.get_or_insert(now),
            Progress::Gone(_, outcome) => {
                (self.outcome, self.cordoned) = (*outcome, None);
                self.gone += 1;
            }
            Progress::Remedied(remedy) => self.remedied = Some(*remedy),
            Progress::Ended(outcome) => {
                self.outcome = *outcome;
                self.worked.get_or_insert(now);
            }
            _ => {}
        }
        self.progress = to;
    }
}
