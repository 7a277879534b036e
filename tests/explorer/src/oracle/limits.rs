//! Rules about the limits for who may write to the queue: docs/security.md, "Limits".

use super::{Oracle, Seen, Sent, holds};
use crate::plan::{Kind, Target};

/// Calls by which AWS confirms notices: docs/security.md, "Limits".
pub const CONFIRMATIONS: [&str; 4] =
    ["DescribeInstances", "DescribeSpotInstanceRequests", "DescribeAutoScalingInstances", "DescribeInstanceStatus"];

impl Oracle {
    /// Whether a notice may end without a drain, because AWS does not show it, or may not have answered.
    pub(super) fn may_be_refused(&self, sent: &Sent) -> bool {
        let flags = &self.plan.flags;
        // The default limit loses nothing because AWS is silent.
        let is_silent = || flags.limit.is_some() && CONFIRMATIONS.iter().any(|operation| self.may_fail(operation));
        flags.asks_aws() && (self.plan.notices[sent.notice].proof.is_none() || is_silent())
    }

    /// Whether AWS shows a reason to drain the node.
    fn is_shown(&self, seen: &Seen, node: usize) -> bool {
        seen.shown.iter().any(|notice| self.plan.notices[*notice].target == Target::Node(node))
    }

    /// Of what AWS does not show, no more is drained at once than the limit allows, and nothing if all is verified. Judged without
    /// faults, because who can't write marks counts less.
    pub(super) fn exceeds_limit(&self, seen: &Seen, node: usize) -> Option<String> {
        let (max, verifies) = self.plan.flags.limit.filter(|_| self.plan.faults.is_empty())?;
        if self.is_shown(seen, node) {
            return None;
        }
        // A reservation's end is shown by an instance that stops, and a recommendation by nothing.
        let has_sign = |sent: &Sent| self.plan.notices[sent.notice].kind != Kind::Rebalance;
        if verifies && self.drains_of(seen, node).all(has_sign) {
            return Some(format!("node-{node}, of which AWS shows nothing"));
        }
        let counts = |other: &usize| {
            let is_over = seen.let_go.contains_key(other) || seen.booted.contains_key(other);
            !is_over && self.stands(Target::Node(*other)) && !self.is_shown(seen, *other) && self.is_marked(*other)
        };
        let others: Vec<usize> = seen.begun.iter().copied().filter(|other| *other != node).filter(counts).collect();
        // Each replica counts the marks of the others.
        let max = usize::try_from(max).unwrap_or(usize::MAX) * self.plan.replicas.len();
        (others.len() >= max).then(|| format!("node-{node} beside {others:?}"))
    }

    fn is_marked(&self, node: usize) -> bool {
        let annotations = self.world.kube.node(&format!("node-{node}")).and_then(|node| node.metadata.annotations);
        annotations.is_some_and(|all| all.iter().any(|(key, mark)| holds(key, mark)))
    }
}
