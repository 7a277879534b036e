//! Whether work on broken nodes may begin: not while so many are broken that the cause is not the nodes. What has begun goes on.

use super::Deliverer;
use crate::fact::{Fact, Facts, NoticeKind, RepairStop};
use crate::pipeline::event::{InstanceId, Notice};
use crate::pipeline::interruption::{Action, Interrupter};
use crate::pipeline::node::handled::message_of;
use crate::pipeline::node::mark::{is_going, is_repaired, newest_copy};
use crate::pipeline::node::{Brake, Node, Share};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Interval in which work that waits to begin looks at what else is broken.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The Nodes on which work of one kind does not begin, by the reason.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    held: BTreeMap<RepairStop, (HashSet<Arc<str>>, Share)>,
    /// The numbers that were told.
    told: BTreeMap<RepairStop, usize>,
}

impl Repairs {
    /// Returns whether the work on the Node does not begin, and notes that.
    pub fn hold(&mut self, brake: &Brake, node: &Node) -> bool {
        let stopped = brake.stops(node);
        if let Some((why, share)) = stopped {
            let (nodes, of) = self.held.entry(why).or_insert_with(|| (HashSet::new(), share));
            nodes.insert(Arc::clone(&node.uid));
            *of = share;
        }
        stopped.is_some()
    }

    /// Tells what was held since the last time, if that has changed.
    pub fn tell(&mut self, kind: NoticeKind, facts: &Facts) {
        let held = std::mem::take(&mut self.held);
        for why in RepairStop::ALL {
            let (nodes, share) = held.get(&why).map(|(nodes, share)| (nodes.len(), *share)).unwrap_or_default();
            let before = self.told.insert(why, nodes).unwrap_or_default();
            if nodes != before {
                facts.emit(&Fact::RepairsHeld { kind, why, nodes, before, share: (share.broken, share.of) });
            }
        }
    }
}

/// The instances of which EC2 has last listed failing status checks; `None` until it was asked for the first time.
#[derive(Debug)]
pub struct FailingChecks(Mutex<Option<HashSet<InstanceId>>>);

impl FailingChecks {
    /// None, before EC2 was asked, if it ever `is_asked`.
    #[must_use]
    pub fn new(is_asked: bool) -> Self {
        Self(Mutex::new((!is_asked).then(HashSet::new)))
    }

    /// Notes EC2's answer.
    pub(super) fn answered(&self, failing: HashSet<InstanceId>) {
        *self.0.lock() = Some(failing);
    }

    /// Notes that EC2 gave no answer: the last one counts, or none.
    pub(super) fn not_answered(&self) {
        self.0.lock().get_or_insert_default();
    }
}

impl Deliverer {
    /// Counts the broken Nodes, whoever says that they are: those that work has begun on, however they go now; and those that have a
    /// condition or a failing check on which work begins and that don't go for another reason. Whether for too long does not matter, since
    /// what has one cause comes a little apart.
    pub(super) fn brake(&self) -> Brake {
        let Interrupter { policy, index, .. } = &*self.interrupter;
        let rules: Vec<_> = policy.conditions.iter().filter(|rule| rule.action != Action::Report).collect();
        let counts = repairs(policy.actions.of(NoticeKind::StatusCheck));
        let checks = self.failing.0.lock().clone().filter(|_| counts).unwrap_or_default();
        let is_broken = |node: &Node| {
            let shows = || checks.contains(&node.instance) || rules.iter().any(|rule| node.has_condition(&rule.name));
            is_repaired(node) || !is_going(node) && shows()
        };
        index.count_ours(|nodes| Brake::of(nodes, is_broken))
    }

    /// Whether all that says which Nodes are broken was heard, since the start.
    pub(super) fn knows_broken(&self) -> bool {
        !repairs(self.interrupter.policy.actions.of(NoticeKind::StatusCheck)) || self.failing.0.lock().is_some()
    }

    /// Waits until work that waits to begin is not to begin any more: nothing of it is on the Node, and what it is for is over, as
    /// `is_given` says, or so many nodes are broken that the cause is not the nodes.
    pub(super) async fn not_to_begin(&self, node: &Node, notice: &Notice, is_given: impl Fn(&Node) -> bool) {
        if notice.is_withdrawn() {
            return pending().await;
        }
        let index = &self.interrupter.index;
        let unbegun = |known: &&Arc<Node>| message_of(known, &notice.identity).is_none();
        let is_over = |known: Option<&Arc<Node>>| known.filter(unbegun).filter(|known| !is_given(known)).map(drop);
        loop {
            tokio::select! {
                biased;
                () = index.until_node(node, is_over) => return,
                () = sleep(LOOK_AGAIN) => {}
            }
            let Some(known) = index.newest(node) else { continue };
            if self.begins_repair(&known, notice) && unbegun(&&known) && self.brake().stops(&known).is_some() {
                return;
            }
        }
    }

    /// Whether the notice would begin a repair of the Node, rather than report or go on. What AWS announces is no repair, and has no brake.
    pub(super) fn begins_repair(&self, node: &Node, notice: &Notice) -> bool {
        notice.kind().is_repair()
            && repairs(self.interrupter.policy.action(notice))
            && !notice.is_withdrawn()
            && newest_copy(node, notice.key()).is_none()
    }
}

/// Whether the action is work on the Node.
const fn repairs(action: Action) -> bool {
    matches!(action, Action::Cordon | Action::Drain | Action::Replace)
}
