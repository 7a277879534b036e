//! The pool of capacity that a Node's instance comes from, by the labels of the Node.

use crate::fact::PoolRef;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Labels with the name of a group of nodes, of EKS, Karpenter, eksctl and kOps; the first that a Node has counts.
const GROUPS: [&str; 4] = [
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "kops.k8s.io/instancegroup",
];

/// Number of pools from which those without a Node are forgotten.
const MAX_IDLE: usize = 256;

/// A pool of capacity. A part that no label names is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pool {
    instance_type: Box<str>,
    zone: Box<str>,
    group: Box<str>,
}

impl Pool {
    /// Returns the pool that the labels name. Without a label for the group, that is the pool of the settings, if the Node is in one.
    #[must_use]
    pub fn of(labels: &BTreeMap<String, String>, of_settings: Option<&str>) -> Self {
        let value = |key: &str| labels.get(key).map_or("", String::as_str).into();
        let group = GROUPS.into_iter().find(|key| labels.contains_key(*key));
        Self {
            instance_type: value("node.kubernetes.io/instance-type"),
            zone: value("topology.kubernetes.io/zone"),
            group: group.map_or_else(|| of_settings.unwrap_or_default().into(), value),
        }
    }

    /// Returns the pool for facts.
    #[must_use]
    pub fn named(&self) -> PoolRef<'_> {
        PoolRef { instance_type: &self.instance_type, zone: &self.zone, group: &self.group }
    }
}

/// The pools of all Nodes, each once: a fleet has few.
#[derive(Debug, Default)]
pub(super) struct Pools(HashSet<Arc<Pool>>);

impl Pools {
    /// Returns the same pool, shared with the other Nodes that have it.
    pub(super) fn share(&mut self, pool: Arc<Pool>) -> Arc<Pool> {
        if let Some(known) = self.0.get(&pool) {
            return Arc::clone(known);
        }
        if self.0.len() >= MAX_IDLE {
            self.0.retain(|known| Arc::strong_count(known) > 1);
        }
        self.0.insert(Arc::clone(&pool));
        pool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_named_by_labels_and_shared() {
        let labels =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let spot = labels(&[
            ("node.kubernetes.io/instance-type", "m7g.large"),
            ("topology.kubernetes.io/zone", "eu-west-1a"),
            ("eks.amazonaws.com/nodegroup", "blue"),
            ("alpha.eksctl.io/nodegroup-name", "other"),
        ]);
        let pool = Pool::of(&spot, Some("gpu"));
        assert_eq!(pool.named(), PoolRef { instance_type: "m7g.large", zone: "eu-west-1a", group: "blue" });
        assert_eq!(Pool::of(&labels(&[]), None), Pool::default());
        assert_eq!(Pool::of(&labels(&[]), Some("gpu")).named().group, "gpu");
        let mut pools = Pools::default();
        let first = pools.share(Arc::new(pool.clone()));
        assert!(Arc::ptr_eq(&first, &pools.share(Arc::new(pool))));
        for n in 0..1000 {
            drop(pools.share(Arc::new(Pool::of(&labels(&[("topology.kubernetes.io/zone", &n.to_string())]), None))));
        }
        assert!(pools.0.len() <= MAX_IDLE && pools.0.contains(&first), "those that no Node has are forgotten");
    }
}
