//! Pods leave tier after tier: docs/draining.md, "Order" and "Tiers by priority".

use super::{Oracle, Seen, s};
use crate::plan::{CRITICAL, PodKind, PodPlan};
use std::collections::BTreeMap;

/// The tiers without `--priority-tier`.
const DEFAULT: &[i32] = &[0, CRITICAL];

/// Maximum time from a pod's first eviction to its deletion, and the time kept free for its end: docs/deadlines.md, "At a hard deadline".
const EVICTION: i64 = s(10);
const REMOVAL: i64 = s(2);

/// A tier, in the order in which they leave: whether it has the pods of DaemonSets, and the priority from which it begins.
pub(super) type Tier = (bool, i32);

impl Oracle {
    fn tier(&self, pod: &PodPlan) -> Tier {
        let tiers = if self.plan.flags.tiers.is_empty() { DEFAULT } else { self.plan.flags.tiers };
        match pod.kind {
            PodKind::Daemon => (true, 0),
            _ => (false, *tiers.iter().rev().find(|from| **from <= pod.priority).unwrap_or(&tiers[0])),
        }
    }

    /// Returns the longest grace period of each tier of pods that the Node has, or may get.
    pub(super) fn graces(&self, node: usize) -> BTreeMap<Tier, i64> {
        let mut graces = BTreeMap::new();
        let of_deployments = self.plan.deployments.iter().map(|deployment| &deployment.pod);
        for pod in self.plan.nodes[node].pods.iter().chain(of_deployments) {
            let longest: &mut i64 = graces.entry(self.tier(pod)).or_default();
            // What a rollout ends has its own.
            *longest = self.grace(pod).max(s(pod.grace)).max(*longest);
        }
        graces
    }

    pub(super) fn grace(&self, pod: &PodPlan) -> i64 {
        s(self.plan.flags.pod_grace.unwrap_or(pod.grace))
    }

    /// Returns why it is too early for the first eviction of a tier: pods of one before it are left, and its share of the time has not begun.
    /// The share is counted from the earliest begin, and as if all tiers but the first that is left had gone at once.
    pub(super) fn is_early(&self, seen: &mut Seen, node: usize, pod: &PodPlan) -> Option<String> {
        let tier = self.tier(pod);
        if !seen.turns.insert((node, tier)) {
            return None;
        }
        let (begun, end) = self.earliest(seen, node)?;
        let left = self.left(node);
        // One that comes later may find that the turn of its tier is over.
        let first = left.iter().filter_map(|name| self.pod(name)).filter(|(_, pod)| pod.comes.is_none());
        let first = first.map(|(_, pod)| self.tier(pod)).filter(|before| *before < tier).min()?;
        let graces = self.graces(node);
        let tiers = i64::try_from(graces.range(first..).count()).unwrap_or(i64::MAX);
        let share = begun + (end - begun) / tiers.max(1);
        // Where the end has come nearer, a tier begins in time for its pods and later ones.
        let needed = graces.range(tier..).map(|(_, grace)| EVICTION + grace).sum::<i64>() + REMOVAL;
        let from = share.min(end - needed);
        (self.now() + self.slack() < from).then(|| format!("{pod:?} before {from}, while {left:?} are left"))
    }
}
