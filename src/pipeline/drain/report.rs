//! What a drain did: which pods went, which stayed, and why.

use super::deadline::Plan;
use super::select::{Pod, Selection};
use crate::fact::{Fact, Facts};
use crate::pipeline::node::Node;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::time::Instant;

pub use crate::fact::DrainOutcome as Outcome;

/// Where one pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not answered yet.
    Waiting,
    /// A budget refuses, or an annotation of its own; who, in a sentence.
    Refused(Arc<str>),
    /// Its eviction fails for another reason.
    Failing(Arc<str>),
    /// Its containers are ending.
    Going(How),
    /// Gone.
    Gone(How),
}

/// What made a pod go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// Its eviction.
    Evicted,
    /// Its deletion before a hard deadline; why it could not be evicted.
    Deleted(Arc<str>),
    /// Somebody else, or it came to its own end.
    Otherwise,
}

/// What a drain did.
#[derive(Clone, Debug)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Every pod that had to go, and where it stands.
    pub pods: BTreeMap<Pod, Standing>,
    /// How many pods were left alone: of DaemonSets, static, as the settings say.
    pub left_alone: usize,
    /// What kept the drain from listing pods, if it could not at its end.
    pub error: Option<Arc<str>>,
}

impl Report {
    /// How many pods are gone.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.pods.values().filter(|standing| matches!(standing, Standing::Gone(_))).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} pods gone", self.gone(), self.pods.len())?;
        for (pod, standing) in &self.pods {
            match standing {
                Standing::Gone(How::Evicted | How::Otherwise) => {}
                Standing::Gone(How::Deleted(by)) => write!(f, "; {pod} was deleted before the deadline: {by}")?,
                Standing::Waiting => write!(f, "; {pod} was not reached")?,
                Standing::Refused(by) => write!(f, "; {pod} is held back: {by}")?,
                Standing::Failing(why) => write!(f, "; {pod} could not be evicted: {why}")?,
                Standing::Going(How::Deleted(by)) => {
                    write!(f, "; {pod} was deleted before the deadline and is still terminating: {by}")?;
                }
                Standing::Going(_) => write!(f, "; {pod} is still terminating")?,
            }
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

/// How far a drain has come, for those who no longer wait for it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Written>>);

impl Progress {
    /// What the drain would come to, if its deadline were now.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.lock().outcome()
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The drain's own record, written by the futures of its pods, read when it ends, however it ends.
/// Dropped, it tells of each pod that was still held back that it no longer is: nobody waits for it any more.
pub(super) struct Board<'a> {
    node: &'a Node,
    facts: &'a Facts,
    plan: watch::Receiver<Plan>,
    written: Progress,
}

#[derive(Debug, Default)]
struct Written {
    pods: BTreeMap<Pod, Standing>,
    left_alone: usize,
    error: Option<Arc<str>>,
    ended: bool,
}

impl<'a> Board<'a> {
    pub(super) fn new(node: &'a Node, facts: &'a Facts, plan: watch::Receiver<Plan>, written: Progress) -> Self {
        Self { node, facts, plan, written }
    }

    /// Notes where a pod stands, and tells when it is held back, and when it no longer is.
    pub(super) fn set(&self, pod: &Pod, standing: Standing) {
        let mut written = self.lock();
        let place = written.pods.entry(pod.clone()).or_insert(Standing::Waiting);
        let before = std::mem::replace(place, standing.clone());
        drop(written);
        match (before, standing) {
            (Standing::Refused(_), Standing::Refused(_)) => {}
            (_, Standing::Refused(by)) => {
                let end = self.plan.borrow().end();
                let (until, hard) = (end.at().saturating_duration_since(Instant::now()), end.is_hard());
                let (on, pod) = (self.node.named(), pod.named());
                self.facts.emit(&Fact::PodBlocked { on, pod, by: &by, until, hard });
            }
            (Standing::Refused(_), _) => self.unblocked(pod),
            _ => {}
        }
    }

    /// Notes that a try failed for another reason than that somebody holds the pod back; if somebody did, that counts still.
    pub(super) fn failed(&self, pod: &Pod, why: Arc<str>) {
        if !matches!(self.lock().pods.get(pod), Some(Standing::Refused(_))) {
            self.set(pod, Standing::Failing(why));
        }
    }

    /// Notes that a pod is gone, by what made it go.
    pub(super) fn gone(&self, pod: &Pod) {
        let how = match self.lock().pods.get(pod) {
            Some(Standing::Going(how) | Standing::Gone(how)) => how.clone(),
            _ => How::Otherwise,
        };
        self.set(pod, Standing::Gone(how));
    }

    /// What holds a pod back, as it was last told.
    pub(super) fn held_by(&self, pod: &Pod) -> Arc<str> {
        match self.lock().pods.get(pod) {
            Some(Standing::Refused(by) | Standing::Failing(by)) => Arc::clone(by),
            _ => "its eviction was not answered".into(),
        }
    }

    fn unblocked(&self, pod: &Pod) {
        self.facts.emit(&Fact::PodUnblocked { on: self.node.named(), pod: pod.named() });
    }

    /// Follows a list: pods it shows for the first time wait, pods that are on their way are going, pods it no longer shows are gone.
    pub(super) fn shown(&self, selection: &Selection) {
        let Selection { evict, going, finished, stay, ourselves } = selection;
        let pods = || evict.iter().chain(going).chain(finished).map(|leaver| &leaver.pod);
        let all: HashSet<&Pod> = pods().chain(ourselves.as_ref().map(|leaver| &leaver.pod)).collect();
        let mut written = self.lock();
        written.error = None;
        written.left_alone = stay.len();
        for leaver in evict.iter().chain(finished) {
            written.pods.entry(leaver.pod.clone()).or_insert(Standing::Waiting);
        }
        let gone: Vec<Pod> = written.pods.keys().filter(|pod| !all.contains(pod)).cloned().collect();
        let unseen = |pod: &&Pod| !matches!(written.pods.get(*pod), Some(Standing::Going(_)));
        let going: Vec<Pod> = going.iter().map(|leaver| &leaver.pod).filter(unseen).cloned().collect();
        drop(written);
        for pod in &going {
            self.set(pod, Standing::Going(How::Otherwise));
        }
        for pod in &gone {
            self.gone(pod);
        }
    }

    /// Notes, or takes back, what keeps the drain from listing.
    pub(super) fn failing(&self, error: Option<Arc<str>>) {
        self.lock().error = error;
    }

    /// What it all says at the deadline.
    pub(super) fn outcome_at_deadline(&self) -> Outcome {
        self.written.outcome()
    }

    /// Ends the record.
    pub(super) fn report(&self, outcome: Outcome) -> Report {
        let mut written = self.lock();
        written.ended = true;
        let Written { pods, left_alone, error, .. } = &*written;
        Report { outcome, pods: pods.clone(), left_alone: *left_alone, error: error.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock()
    }
}

impl Written {
    fn outcome(&self) -> Outcome {
        let any = |wanted: fn(&Standing) -> bool| self.pods.values().any(wanted);
        if any(|standing| matches!(standing, Standing::Refused(_))) {
            Outcome::Blocked
        } else if self.error.is_some() || any(|standing| matches!(standing, Standing::Failing(_) | Standing::Waiting)) {
            Outcome::Failed
        } else {
            Outcome::TimedOut
        }
    }
}

impl Drop for Board<'_> {
    fn drop(&mut self) {
        let written = self.lock();
        for (pod, standing) in &written.pods {
            if matches!(standing, Standing::Refused(_)) {
                self.unblocked(pod);
            }
        }
        if !written.ended {
            self.facts.emit(&Fact::DrainAbandoned { on: self.node.named() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::deadline::Deadline;
    use super::*;

    fn pod(name: &str) -> Pod {
        Pod { namespace: "default".into(), name: name.into(), uid: name.into() }
    }

    fn board<'a>(node: &'a Node, facts: &'a Facts) -> Board<'a> {
        Board::new(node, facts, watch::channel(Deadline::hard(Instant::now()).into()).1, Progress::default())
    }

    #[test]
    fn the_report_names_who_blocked() {
        let facts = Facts::to(Vec::new());
        let node = Node::for_tests("node-1");
        let board = board(&node, &facts);
        board.gone(&pod("a"));
        board.set(&pod("b"), Standing::Refused("The disruption budget web needs 2 healthy pods".into()));
        board.set(&pod("c"), Standing::Going(How::Evicted));
        assert_eq!(board.outcome_at_deadline(), Outcome::Blocked);
        board.set(&pod("d"), Standing::Going(How::Deleted("The disruption budget db".into())));
        board.gone(&pod("d"));
        assert_eq!(
            board.report(Outcome::Blocked).to_string(),
            "2 of 4 pods gone; default/b is held back: The disruption budget web needs 2 healthy pods; \
             default/c is still terminating; default/d was deleted before the deadline: The disruption budget db"
        );
    }

    #[test]
    fn at_the_deadline_the_worst_counts() {
        let facts = Facts::to(Vec::new());
        let node = Node::for_tests("node-1");
        let board = board(&node, &facts);
        assert_eq!(board.outcome_at_deadline(), Outcome::TimedOut);
        board.set(&pod("a"), Standing::Going(How::Evicted));
        assert_eq!(board.outcome_at_deadline(), Outcome::TimedOut);
        board.set(&pod("b"), Standing::Failing("denied".into()));
        assert_eq!(board.outcome_at_deadline(), Outcome::Failed);
        board.set(&pod("c"), Standing::Refused("budget".into()));
        assert_eq!(board.outcome_at_deadline(), Outcome::Blocked);
    }
}
