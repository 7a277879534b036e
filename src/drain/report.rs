//! What a drain did: which pods went, which stayed, and why.

use super::select::{Pod, Selection};
use crate::fact::{Fact, Facts};
use crate::node::Node;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is left that had to go.
    Drained,
    /// At its deadline a budget still forbade an eviction.
    Blocked,
    /// At its deadline pods were still on their way out.
    TimedOut,
    /// At its deadline the API server had not let it do its work.
    Failed,
    /// The Node was deleted, and its pods with it.
    NodeGone,
}

impl Outcome {
    /// A fixed word for metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Blocked => "blocked",
            Self::TimedOut => "timed-out",
            Self::Failed => "failed",
            Self::NodeGone => "node-gone",
        }
    }

    /// Whether the node has nothing left that had to go.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Drained | Self::NodeGone)
    }
}

/// Where one pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not answered yet.
    Waiting,
    /// A budget refuses; what the API server says of it.
    Refused(Arc<str>),
    /// Its eviction fails for another reason.
    Failing(Arc<str>),
    /// Evicted, or deleted by somebody: its containers are ending.
    Going,
    /// Gone.
    Gone,
}

/// What a drain did.
#[derive(Clone, Debug)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Every pod that had to go, and where it stands.
    pub pods: BTreeMap<Pod, Standing>,
    /// How many pods were left alone: of DaemonSets, static, our own.
    pub left_alone: usize,
    /// What kept the drain from listing pods, if it could not at its end.
    pub error: Option<Arc<str>>,
}

impl Report {
    /// How many pods are gone.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.pods.values().filter(|standing| **standing == Standing::Gone).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} pods gone", self.gone(), self.pods.len())?;
        for (pod, standing) in &self.pods {
            match standing {
                Standing::Gone => {}
                Standing::Waiting => write!(f, "; {pod} was not reached")?,
                Standing::Refused(by) => write!(f, "; {pod} is blocked: {by}")?,
                Standing::Failing(why) => write!(f, "; {pod} could not be evicted: {why}")?,
                Standing::Going => write!(f, "; {pod} is still terminating")?,
            }
        }
        if let Some(error) = &self.error {
            write!(f, "; {error}")?;
        }
        Ok(())
    }
}

/// The drain's own record, written by the futures of its pods, read when it ends, however it ends.
/// Dropped, it tells of each pod that was still blocked that it no longer is: nobody waits for it any more.
pub(super) struct Board<'a> {
    node: &'a Node,
    facts: &'a Facts,
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    pods: BTreeMap<Pod, Standing>,
    left_alone: usize,
    error: Option<Arc<str>>,
}

impl<'a> Board<'a> {
    pub(super) fn new(node: &'a Node, facts: &'a Facts) -> Self {
        Self { node, facts, written: Mutex::default() }
    }

    /// Notes where a pod stands, and tells when it is blocked, and when it no longer is.
    pub(super) fn set(&self, pod: &Pod, standing: Standing) {
        let mut written = self.lock();
        let place = written.pods.entry(pod.clone()).or_insert(Standing::Waiting);
        let before = std::mem::replace(place, standing.clone());
        drop(written);
        let named = (&*self.node.name, self.node.instance.as_str());
        match (before, standing) {
            (Standing::Refused(_), Standing::Refused(_)) => {}
            (_, Standing::Refused(by)) => {
                let (node, instance) = named;
                self.facts.emit(&Fact::PodBlocked { node, instance, pod: &pod.to_string(), by: &by });
            }
            (Standing::Refused(_), _) => self.unblocked(pod),
            _ => {}
        }
    }

    fn unblocked(&self, pod: &Pod) {
        let (node, instance) = (&*self.node.name, self.node.instance.as_str());
        self.facts.emit(&Fact::PodUnblocked { node, instance, pod: &pod.to_string() });
    }

    /// Follows a list: pods it shows for the first time wait, pods that are on their way are going, pods it no longer shows are gone.
    pub(super) fn shown(&self, selection: &Selection) {
        let Selection { evict, going, finished, stay } = selection;
        let all: HashSet<&Pod> = evict.iter().chain(going).chain(finished).collect();
        let mut written = self.lock();
        written.error = None;
        written.left_alone = stay.len();
        for pod in evict.iter().chain(finished) {
            written.pods.entry(pod.clone()).or_insert(Standing::Waiting);
        }
        let gone: Vec<Pod> = written.pods.keys().filter(|pod| !all.contains(pod)).cloned().collect();
        drop(written);
        for pod in going {
            self.set(pod, Standing::Going);
        }
        for pod in &gone {
            self.set(pod, Standing::Gone);
        }
    }

    /// Notes, or takes back, what keeps the drain from listing.
    pub(super) fn failing(&self, error: Option<Arc<str>>) {
        self.lock().error = error;
    }

    /// What it all says at the deadline.
    pub(super) fn outcome_at_deadline(&self) -> Outcome {
        let written = self.lock();
        let any = |wanted: fn(&Standing) -> bool| written.pods.values().any(wanted);
        if any(|standing| matches!(standing, Standing::Refused(_))) {
            Outcome::Blocked
        } else if written.error.is_some()
            || any(|standing| matches!(standing, Standing::Failing(_) | Standing::Waiting))
        {
            Outcome::Failed
        } else {
            Outcome::TimedOut
        }
    }

    pub(super) fn report(&self, outcome: Outcome) -> Report {
        let written = self.lock();
        Report { outcome, pods: written.pods.clone(), left_alone: written.left_alone, error: written.error.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Board<'_> {
    fn drop(&mut self) {
        for (pod, standing) in &self.lock().pods {
            if matches!(standing, Standing::Refused(_)) {
                self.unblocked(pod);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Pod {
        Pod { namespace: "default".into(), name: name.into(), uid: name.into(), grace: None }
    }

    fn node() -> Node {
        Node {
            name: "node-1".into(),
            uid: "u-1".into(),
            resource_version: "7".into(),
            instance: crate::event::InstanceId::new("i-0123456789abcdef0").unwrap(),
            cordoned: false,
            ready: true,
            annotations: BTreeMap::new(),
        }
    }

    #[test]
    fn the_report_names_who_blocked() {
        let facts = Facts::to(Vec::new());
        let node = node();
        let board = Board::new(&node, &facts);
        board.set(&pod("a"), Standing::Gone);
        board.set(&pod("b"), Standing::Refused("The disruption budget web needs 2 healthy pods".into()));
        board.set(&pod("c"), Standing::Going);
        assert_eq!(board.outcome_at_deadline(), Outcome::Blocked);
        assert_eq!(
            board.report(Outcome::Blocked).to_string(),
            "1 of 3 pods gone; default/b is blocked: The disruption budget web needs 2 healthy pods; \
             default/c is still terminating"
        );
    }

    #[test]
    fn at_the_deadline_the_worst_counts() {
        let facts = Facts::to(Vec::new());
        let node = node();
        let board = Board::new(&node, &facts);
        assert_eq!(board.outcome_at_deadline(), Outcome::TimedOut);
        board.set(&pod("a"), Standing::Going);
        assert_eq!(board.outcome_at_deadline(), Outcome::TimedOut);
        board.set(&pod("b"), Standing::Failing("denied".into()));
        assert_eq!(board.outcome_at_deadline(), Outcome::Failed);
        board.set(&pod("c"), Standing::Refused("budget".into()));
        assert_eq!(board.outcome_at_deadline(), Outcome::Blocked);
    }
}
