//! Interruptions by kind and pool of capacity: which pool is interrupted most? Bounded: pools beyond [`MAX_POOLS`] count together.

use crate::fact::{NoticeKind, PoolRef};
use std::collections::HashMap;

/// Maximum number of pools that are counted alone, each for each kind.
const MAX_POOLS: usize = 100;

/// Maximum length of a part of a pool's name. A label has 63 characters at most.
const MAX_PART: usize = 63;

/// The name of all other pools, and of parts that no label names.
const OTHER: &str = "other";
const UNKNOWN: &str = "unknown";

/// A pool of capacity, and the kind of notice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey {
    /// The kind of notice.
    pub kind: NoticeKind,
    /// The instance type.
    pub instance_type: Box<str>,
    /// The availability zone.
    pub zone: Box<str>,
    /// The group of Nodes.
    pub group: Box<str>,
}

/// Counts by pool.
#[derive(Debug, Default)]
pub struct Pools(HashMap<PoolKey, u64>);

impl Pools {
    /// Counts an interruption. Returns the pool that it counts for.
    pub fn count(&mut self, kind: NoticeKind, pool: Option<PoolRef<'_>>) -> PoolKey {
        let part = |part: &str| match part {
            "" => UNKNOWN.into(),
            part => part[..part.floor_char_boundary(MAX_PART)].into(),
        };
        let PoolRef { instance_type, zone, group } = pool.unwrap_or(PoolRef { instance_type: "", zone: "", group: "" });
        let mut key = PoolKey { kind, instance_type: part(instance_type), zone: part(zone), group: part(group) };
        if self.0.len() >= MAX_POOLS && !self.0.contains_key(&key) {
            key = PoolKey { kind, instance_type: OTHER.into(), zone: OTHER.into(), group: OTHER.into() };
        }
        *self.0.entry(key.clone()).or_default() += 1;
        key
    }

    /// Returns at most this number of pools, the most interrupted first.
    #[must_use]
    pub fn most(&self, number: usize) -> Vec<(&PoolKey, u64)> {
        let mut all: Vec<_> = self.0.iter().map(|(key, count)| (key, *count)).collect();
        all.sort_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.cmp(b)));
        all.truncate(number);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_beyond_the_bound_count_together() {
        let mut pools = Pools::default();
        for n in 0..1000 {
            let zone = format!("zone-{n}");
            let pool = PoolRef { instance_type: "m7g.large", zone: &zone, group: "" };
            for kind in [NoticeKind::Spot, NoticeKind::Rebalance] {
                pools.count(kind, Some(pool));
            }
        }
        let most = pools.most(usize::MAX);
        assert_eq!(most.iter().map(|(_, count)| count).sum::<u64>(), 2000);
        assert_eq!(most.len(), MAX_POOLS + 2, "the others, for each kind");
        assert_eq!((&*most[0].0.zone, most[0].1), (OTHER, 950));
        assert_eq!(&*most[5].0.group, UNKNOWN);
        assert_eq!(pools.most(3).len(), 3);
    }
}
