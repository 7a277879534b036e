//! Removes marks when they are due: after `--uncordon-after`, when a Node has returned after a restart, and when a user has uncordoned it.
//!
//! A Node that restarts before an announced change is not due for that alone: `restarts` asks EC2.
//!
//! All that a removal needs is on the Node, so it does not matter which replica wrote a mark, or whether that replica still lives.
//! Two replicas that release the same Node do no harm: the second patch meets a conflict, reads the Node again and finds nothing to
//! do.

use super::release::NodeRelease;
use super::restarts::{Restarts, early_restart};
use super::{Index, Marker, Node};
use crate::clients::gate::{Backoff, CALL_TIMEOUT};
use crate::fact::{Fact, Facts};
use crate::runtime::clock;
use crate::runtime::clock::Clock;
use crate::runtime::random;
use futures_util::StreamExt;
use jiff::Timestamp;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Mean interval between scans of marked Nodes: a storm changes marks by the hundred.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Grace period between the removal of a cordon by a user or controller and the removal of the marks. A drain that regards the removal as
/// a mistake restores the cordon sooner.
const UNCORDON_GRACE: Duration = Duration::from_secs(30);

/// Maximum time until the first scan, which waits for a server's time: a clock that is ahead would remove marks too early.
const FIRST_SCAN_TIMEOUT: Duration = Duration::from_mins(5);

/// Wait between tries of a release that fails.
const RETRY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));

/// Maximum number of concurrent releases. No interruption waits for them.
const MAX_CONCURRENT: usize = 8;

/// Removes marks from Nodes.
pub struct NodeReleaser {
    /// The Nodes.
    pub index: Index,
    /// Patches the Nodes.
    pub marker: Marker,
    /// Wall time: marks state their expiry in it.
    pub clock: Clock,
    /// Judges restarts that came before the start of a change.
    pub restarts: Restarts,
    /// Receives facts.
    pub facts: Facts,
}

/// Returns the marks of a Node that are due.
type ReleaseRule = fn(&Node, Timestamp) -> Option<NodeRelease>;

impl NodeReleaser {
    /// Runs until aborted.
    pub async fn run(self) {
        let mut changes = self.index.marks();
        let mut history = ReleaseHistory::default();
        self.clock.trusted(FIRST_SCAN_TIMEOUT).await;
        loop {
            // An index that is not current may show marks that were removed long ago.
            self.index.live().await;
            changes.mark_unchanged();
            let next = self.scan(&mut history).await;
            tokio::select! {
                biased;
                () = clock::until(next) => {}
                // The sender lives in the index.
                _ = changes.changed() => {}
            }
            // Jittered, so that a replica sees the patch of another before it sends its own.
            sleep(random::jittered(SCAN_INTERVAL, 0.5..1.5)).await;
        }
    }

    /// Removes the marks that are due, and returns the time of the next scan.
    async fn scan(&self, history: &mut ReleaseHistory) -> Option<Instant> {
        let (now, wall) = (Instant::now(), self.clock.now());
        let mut next: Vec<Instant> = Vec::new();
        let mut due: Vec<(Arc<Node>, ReleaseRule)> = Vec::new();
        let mut restarted: Vec<Arc<Node>> = Vec::new();
        let marked = self.index.marked();
        history.update(&marked, now);
        for node in marked {
            let schedule = NodeRelease::schedule(&node, wall);
            if schedule.is_kept {
                self.report_kept(&node, history);
            } else {
                history.kept.remove(&node.uid);
            }
            let uncordon_ends = history.uncordoned.get(&node.uid).map(|since| *since + UNCORDON_GRACE);
            let rule: Option<ReleaseRule> = if schedule.due.is_some() {
                Some(|current, wall| NodeRelease::schedule(current, wall).due)
            } else if uncordon_ends.is_some_and(|at| at <= now) {
                Some(|current, _| NodeRelease::after_uncordon(current))
            } else {
                None
            };
            let early = early_restart(&node, wall);
            next.extend(early.filter(|from| *from > wall).map(|from| self.clock.instant_of(from)));
            let retry_at = history.failed.get(&node.uid).map(|(at, _)| *at).filter(|at| *at > now);
            match (rule, retry_at) {
                (Some(rule), None) => due.push((node, rule)),
                (Some(_), Some(at)) => next.push(at),
                (None, None) if early.is_some_and(|from| from <= wall) => restarted.push(node),
                (None, Some(at)) if early.is_some() => next.push(at),
                (None, _) => {
                    next.extend(schedule.next.map(|at| self.clock.instant_of(at)).into_iter().chain(uncordon_ends));
                }
            }
        }
        let releases = futures_util::stream::iter(due).map(|(node, rule)| async move {
            let succeeded = self.release(Arc::clone(&node), rule).await;
            (node, succeeded)
        });
        let mut releases: Vec<_> = releases.buffer_unordered(MAX_CONCURRENT).collect().await;
        releases.extend(self.restarts.judge(restarted).await);
        for (node, succeeded) in releases {
            if succeeded {
                history.failed.remove(&node.uid);
            } else {
                let (at, backoff) = history.failed.entry(Arc::clone(&node.uid)).or_insert_with(|| (now, RETRY));
                *at = Instant::now() + backoff.step();
                next.push(*at);
            }
        }
        next.into_iter().min()
    }

    /// Reports, once each time, that expired marks stay because another tool works on the Node.
    fn report_kept(&self, node: &Node, history: &mut ReleaseHistory) {
        if let Some(sign) = &node.work_sign
            && history.kept.insert(Arc::clone(&node.uid))
        {
            self.facts.emit(&Fact::ReleaseDeferred { on: node.named(), sign });
        }
    }

    /// Removes the marks that `rule` returns for the Node's newest state. Returns whether that succeeded.
    async fn release(&self, node: Arc<Node>, rule: ReleaseRule) -> bool {
        let due = |current: &Node| rule(current, self.clock.now());
        match self.marker.release(&node, Instant::now() + CALL_TIMEOUT, due).await {
            Ok(None) => true,
            Ok(Some(released)) => {
                released.report(&node, |fact| self.facts.emit(fact));
                true
            }
            Err(error) => {
                let category = error.category;
                self.facts.emit(&Fact::ReleaseFailed { on: node.named(), category, error: &error });
                false
            }
        }
    }
}

/// The history of marked Nodes, by their UID.
#[derive(Default)]
struct ReleaseHistory {
    /// Nodes whose cordon a user or controller has removed, and the time at which that was seen.
    uncordoned: HashMap<Arc<str>, Instant>,
    /// Nodes whose release failed, and the time of the next try.
    failed: HashMap<Arc<str>, (Instant, Backoff)>,
    /// Nodes whose expired marks stay because another tool works on them.
    kept: HashSet<Arc<str>>,
}

impl ReleaseHistory {
    /// Forgets Nodes that are no longer marked, and records removed cordons.
    fn update(&mut self, marked: &[Arc<Node>], now: Instant) {
        let uncordoned = marked.iter().filter(|node| NodeRelease::after_uncordon(node).is_some());
        let since = |node: &Arc<Node>| self.uncordoned.get(&node.uid).copied().unwrap_or(now);
        self.uncordoned = uncordoned.map(|node| (Arc::clone(&node.uid), since(node))).collect();
        let uids: HashSet<&Arc<str>> = marked.iter().map(|node| &node.uid).collect();
        self.failed.retain(|uid, _| uids.contains(uid));
        self.kept.retain(|uid| uids.contains(uid));
    }
}
