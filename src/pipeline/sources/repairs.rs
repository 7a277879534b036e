//! Holds back repairs while too many nodes are unhealthy for the nodes to be the cause. Started repairs continue.

use crate::fact::{Fact, Facts, NoticeKind, RepairStop};
use crate::pipeline::event::{InstanceId, Notice};
use crate::pipeline::interruption::{Action, Interrupter, Policy};
use crate::pipeline::node::{Brake, Node, Share};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Interval at which pending work counts the unhealthy nodes again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The Nodes whose repairs of one kind are held back, by reason.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    held: BTreeMap<RepairStop, (HashSet<Arc<str>>, Share)>,
    /// The numbers last reported.
    reported: BTreeMap<RepairStop, usize>,
}

impl Repairs {
    /// Returns whether the work on the Node is held back, and notes that.
    pub fn hold(&mut self, brake: &Brake, node: &Node) -> bool {
        let stopped = brake.stops(node);
        if let Some((why, share)) = stopped {
            let (nodes, of) = self.held.entry(why).or_insert_with(|| (HashSet::new(), share));
            nodes.insert(Arc::clone(&node.uid));
            *of = share;
        }
        stopped.is_some()
    }

    /// Reports the numbers of Nodes held back since the last report, if they have changed.
    pub fn report(&mut self, kind: NoticeKind, facts: &Facts) {
        let held = std::mem::take(&mut self.held);
        for why in RepairStop::ALL {
            let (nodes, share) = held.get(&why).map(|(nodes, share)| (nodes.len(), *share)).unwrap_or_default();
            let before = self.reported.insert(why, nodes).unwrap_or_default();
            if nodes != before {
                facts.emit(&Fact::RepairsHeld { kind, why, nodes, before, share: (share.unhealthy, share.of) });
            }
        }
    }
}

/// Counts the unhealthy Nodes, and holds back work on them.
pub struct RepairBrake {
    interrupter: Arc<Interrupter>,
    /// The instances with failing status checks by EC2's last answer; `None` before the first poll.
    failing: Mutex<Option<HashSet<InstanceId>>>,
}

impl RepairBrake {
    /// Returns the brake. The failing checks are unknown before the first poll, and none if EC2 is never asked (`is_asked`).
    #[must_use]
    pub fn new(interrupter: Arc<Interrupter>, is_asked: bool) -> Self {
        Self { interrupter, failing: Mutex::new((!is_asked).then(HashSet::new)) }
    }

    /// Notes the instances with failing checks by EC2's answer. Without an answer, the last one counts, or none.
    pub(super) fn checked(&self, answer: Option<HashSet<InstanceId>>) {
        let mut failing = self.failing.lock();
        match answer {
            Some(answer) => *failing = Some(answer),
            None => drop(failing.get_or_insert_default()),
        }
    }

    /// Counts the unhealthy Nodes of all sources: those under repair, whatever their state is now; and those that have a condition or a
    /// failing check that is acted on and are not being terminated for another reason. A condition's duration does not matter, because
    /// failures with one cause are spread over time.
    fn count(&self) -> Brake {
        let (policy, index) = (self.interrupter.policy(), &self.interrupter.index);
        let rules: Vec<_> = policy.conditions.iter().filter(|rule| rule.action != Action::Report).collect();
        let counts = |node: &Node| repairs(self.interrupter.policy_of(Some(node)).actions.of(NoticeKind::StatusCheck));
        let checks = self.failing.lock().clone().unwrap_or_default();
        let is_unhealthy = |node: &Node| {
            let fails = || checks.contains(&node.instance) && counts(node);
            let shows = || fails() || rules.iter().any(|rule| node.has_condition(&rule.name));
            node.record.notices().any(|(_, known)| known.kind().is_some_and(NoticeKind::is_repair))
                || !node.record.is_leaving() && shows()
        };
        index.count_ours(|nodes| Brake::of(nodes, is_unhealthy))
    }

    /// Whether all sources of unhealthy Nodes have answered since the start.
    fn knows_unhealthy(&self) -> bool {
        let repairs = |policy: &Policy| repairs(policy.actions.of(NoticeKind::StatusCheck));
        !self.interrupter.policies.iter().any(|(_, policy)| repairs(policy)) || self.failing.lock().is_some()
    }

    /// Waits until pending work should be dropped: it has not touched the Node, and its cause is gone (`still_reported`) or repairs are held
    /// back.
    pub(super) async fn dropped_before_start(
        &self,
        node: &Node,
        notice: &Notice,
        still_reported: impl Fn(&Node) -> bool,
    ) {
        if notice.is_withdrawn() {
            return pending().await;
        }
        let index = &self.interrupter.index;
        let is_pending = |known: &&Arc<Node>| known.record.message(notice.key()).is_none();
        let is_over =
            |known: Option<&Arc<Node>>| known.filter(is_pending).filter(|known| !still_reported(known)).map(drop);
        loop {
            tokio::select! {
                biased;
                () = index.until_node(node, is_over) => return,
                () = sleep(RECHECK_INTERVAL) => {}
            }
            let Some(known) = index.newest(node) else { continue };
            if self.starts_repair(&known, notice) && is_pending(&&known) && self.count().stops(&known).is_some() {
                return;
            }
        }
    }

    /// Whether the start of a repair is held back: too many nodes are unhealthy, or they can't be counted yet, or the instance is terminated
    /// for another reason.
    pub(super) fn holds_back(
        &self,
        (node, notice): (&Node, &Notice),
        brake: &mut Option<Brake>,
        repairs: &mut Repairs,
    ) -> bool {
        let mut is_held = || repairs.hold(brake.get_or_insert_with(|| self.count()), node);
        self.starts_repair(node, notice) && (!self.knows_unhealthy() || node.record.is_leaving() || is_held())
    }

    /// Whether the notice would start a repair of the Node, rather than report or continue one. AWS's own notices are no repairs, and are
    /// never held back.
    fn starts_repair(&self, node: &Node, notice: &Notice) -> bool {
        notice.kind().is_repair()
            && repairs(self.interrupter.policy_of(Some(node)).action(notice))
            && !notice.is_withdrawn()
            && node.record.notice(notice.key()).is_none()
    }
}

/// Whether the action is work on the Node.
const fn repairs(action: Action) -> bool {
    action.drains() || matches!(action, Action::Cordon)
}
