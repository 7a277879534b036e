//! The report of a drain: which pods have left, which stayed, and why.

use super::wire::{PodAddresses, PodId};
use crate::fact::DrainOutcome;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The state of one pod in a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    /// The eviction was not sent, or not answered.
    Waiting,
    /// A budget, or an annotation of the pod, holds the pod; which, in a sentence.
    Refused(Arc<str>),
    /// The eviction fails for another reason.
    Failing(Arc<str>),
    /// The containers are stopping.
    Terminating(RemovalCause),
    /// The pod is still there although its grace period is long over; why it is held, in a sentence.
    Stuck(RemovalCause, Arc<str>),
    /// The pod is gone.
    Gone(RemovalCause),
}

impl PodState {
    /// Returns what holds the pod back, if something does.
    pub(super) const fn held_by(&self) -> Option<&Arc<str>> {
        match self {
            Self::Refused(by) | Self::Stuck(_, by) => Some(by),
            Self::Waiting | Self::Failing(_) | Self::Terminating(_) | Self::Gone(_) => None,
        }
    }
}

/// The cause of a pod's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalCause {
    /// Its eviction.
    Evicted,
    /// Its deletion before a hard deadline, with the reason that held back its eviction.
    Deleted(Arc<str>),
    /// A user or another controller removed it, or it ended by itself.
    Other,
}

/// The report of a drain.
#[derive(Clone, Debug)]
pub struct Report {
    /// The outcome.
    pub outcome: DrainOutcome,
    /// The state of every pod that had to leave.
    pub pods: BTreeMap<PodId, PodState>,
    /// Number of pods that the drain left alone: `DaemonSet` pods, static pods, and those that the settings keep.
    pub left_alone: usize,
    /// Of those, the pods that come back to the cordoned Node whenever they are evicted.
    pub come_back: Vec<PodId>,
    /// The error of the latest list, if it failed.
    pub error: Option<Arc<str>>,
    /// The addresses of the pods that had to leave, if they are noted.
    pub addresses: PodAddresses,
}

impl Report {
    /// Returns the number of pods that are gone.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.pods.values().filter(|state| matches!(state, PodState::Gone(_))).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} pods gone", self.gone(), self.pods.len())?;
        for (pod, state) in &self.pods {
            match state {
                PodState::Gone(RemovalCause::Evicted | RemovalCause::Other) => {}
                PodState::Gone(RemovalCause::Deleted(by)) => {
                    write!(f, "; {pod} was deleted before the deadline: {by}")?;
                }
                PodState::Waiting => write!(f, "; {pod} was not reached")?,
                PodState::Refused(by) | PodState::Stuck(_, by) => write!(f, "; {pod} is held back: {by}")?,
                PodState::Failing(why) => write!(f, "; {pod} could not be evicted: {why}")?,
                PodState::Terminating(RemovalCause::Deleted(by)) => {
                    write!(f, "; {pod} was deleted before the deadline and is still terminating: {by}")?;
                }
                PodState::Terminating(_) => write!(f, "; {pod} is still terminating")?,
            }
        }
        for pod in &self.come_back {
            write!(f, "; {pod} comes back to the cordoned node, and stays")?;
        }
        if self.left_alone > 0 {
            write!(f, "; {} left alone", self.left_alone)?;
        }
        if let Some(error) = &self.error {
            write!(f, "; {error}")?;
        }
        Ok(())
    }
}
