//! Reports each ignored Node and annotation once in the Node's life: an attacker who can patch the Node could change it every second.

use crate::fact::{Fact, Facts};
use crate::pipeline::node::{Index, Node};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of refused annotations that are reported for one Node.
const MAX_OF_A_NODE: usize = 8;

/// Maximum number of new notices that one Node may begin in [`BEGUN_SPAN`]: as many as it may plan at a time.
const MAX_BEGUN: usize = 64;

/// Time for which a notice that a Node has begun counts.
const BEGUN_SPAN: Duration = Duration::from_hours(1);

/// Decides whether a Node is heeded, and reports what is refused.
#[derive(Debug)]
pub struct NodeRefusals {
    index: Index,
    facts: Facts,
    /// What has been reported, by the Node's UID.
    reported: Mutex<HashMap<Arc<str>, ReportedRefusals>>,
}

/// What has been reported about a Node, and what it began.
#[derive(Debug, Default)]
struct ReportedRefusals {
    is_twin: bool,
    is_held: bool,
    annotations: BTreeSet<String>,
    /// When the Node began new notices.
    begun: VecDeque<Instant>,
}

impl NodeRefusals {
    /// Returns the refusals for this index's Nodes, with nothing reported yet.
    #[must_use]
    pub fn new(index: Index, facts: Facts) -> Self {
        Self { index, facts, reported: Mutex::default() }
    }

    /// Returns whether the Node's notices, plans and conditions are acted on: only if no other Node of its instance is Ready, or, if none
    /// is, was Ready later. Whatever registers a Node chooses the Node's instance ID. Reports a refusal once.
    pub(super) fn heeds(&self, node: &Node) -> bool {
        let is_current = self.index.get(&node.instance).is_none_or(|current| current.uid == node.uid);
        let is_heeded = is_current && self.index.others(node).iter().all(|other| !other.ready);
        if !is_heeded && self.is_new(node, |reported| !std::mem::replace(&mut reported.is_twin, true)) {
            self.facts.emit(&Fact::TwinRefused { on: node.named() });
        }
        is_heeded
    }

    /// Returns whether work on a new agent notice, plan or condition of the Node may begin, and counts it: an attacker who can write the
    /// Node can name another time each second. Reports once that it may not begin yet.
    pub(super) fn admits(&self, node: &Node) -> bool {
        let now = Instant::now();
        let mut admits = false;
        let note = |reported: &mut ReportedRefusals| {
            reported.begun.retain(|begun| now.duration_since(*begun) < BEGUN_SPAN);
            admits = reported.begun.len() < MAX_BEGUN;
            if admits {
                reported.begun.push_back(now);
            }
            !admits && !std::mem::replace(&mut reported.is_held, true)
        };
        if self.is_new(node, note) {
            self.facts.emit(&Fact::AgentNoticesHeld { on: node.named() });
        }
        admits
    }

    /// Reports once that this annotation of the Node is no valid notice.
    pub(super) fn refuse(&self, node: &Node, annotation: &str, error: &dyn fmt::Display) {
        let note = |ReportedRefusals { annotations, .. }: &mut ReportedRefusals| {
            annotations.len() < MAX_OF_A_NODE && annotations.insert(annotation.to_owned())
        };
        if self.is_new(node, note) {
            self.facts.emit(&Fact::AgentNoticeRefused { on: node.named(), annotation, error });
        }
    }

    /// Returns `note`'s answer for what was reported about the Node. Forgets deleted Nodes whenever twice as many are known.
    fn is_new(&self, node: &Node, note: impl FnOnce(&mut ReportedRefusals) -> bool) -> bool {
        let mut reported = self.reported.lock();
        if !reported.contains_key(&node.uid) && reported.len().is_power_of_two() {
            let known: BTreeSet<_> = self.index.all_that(|_| true).iter().map(|node| Arc::clone(&node.uid)).collect();
            reported.retain(|uid, _| known.contains(uid));
        }
        note(reported.entry(Arc::clone(&node.uid)).or_default())
    }
}
