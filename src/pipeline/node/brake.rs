//! When many nodes are unhealthy at once, the cause lies elsewhere, and draining them does not help. Pure.

use super::Node;
use crate::fact::RepairStop;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Divisor of the share of nodes, in a group, a zone or the cluster, that may be unhealthy: a fifth.
const ONE_OF: usize = 5;

/// The share of unhealthy nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Number of unhealthy nodes.
    pub unhealthy: usize,
    /// Number of nodes.
    pub of: usize,
}

impl Share {
    fn add(&mut self, is_unhealthy: bool) {
        self.unhealthy += usize::from(is_unhealthy);
        self.of += 1;
    }

    /// Whether more than a fifth, rounded up, is unhealthy: one node always may be.
    const fn is_over(self) -> bool {
        self.unhealthy > self.of.div_ceil(ONE_OF)
    }

    /// Whether a fifth or more is unhealthy.
    const fn is_hit(self) -> bool {
        self.unhealthy > 0 && self.unhealthy * ONE_OF >= self.of
    }
}

/// The shares of unhealthy nodes, by group and zone.
#[derive(Debug, Default)]
pub struct Brake {
    all: Share,
    groups: BTreeMap<Box<str>, Share>,
    zones: BTreeMap<Box<str>, Share>,
}

impl Brake {
    /// Counts the nodes.
    pub fn of<'a>(nodes: impl Iterator<Item = &'a Arc<Node>>, is_unhealthy: impl Fn(&Node) -> bool) -> Self {
        let mut brake = Self::default();
        for node in nodes {
            let (is_unhealthy, pool) = (is_unhealthy(node), node.pool.named());
            brake.all.add(is_unhealthy);
            for (shares, name) in [(&mut brake.groups, pool.group), (&mut brake.zones, pool.zone)] {
                match shares.get_mut(name) {
                    Some(share) => share.add(is_unhealthy),
                    None if name.is_empty() => {}
                    None => shares.entry(name.into()).or_default().add(is_unhealthy),
                }
            }
        }
        brake
    }

    /// Returns why work on the Node must not begin, with the share of unhealthy nodes or zones; `None` if it may.
    #[must_use]
    pub fn stops(&self, node: &Node) -> Option<(RepairStop, Share)> {
        let group = self.groups.get(node.pool.named().group).copied().unwrap_or_default();
        let hit = self.zones.values().filter(|zone| zone.is_hit()).count();
        let zones = Share { unhealthy: hit, of: self.zones.len() };
        let is_wide = hit >= 2 && 2 * hit > zones.of;
        let all = [
            (RepairStop::Zones, zones, is_wide),
            (RepairStop::Group, group, group.is_over()),
            (RepairStop::Cluster, self.all, self.all.is_over()),
        ];
        all.into_iter().find(|(.., stops)| *stops).map(|(why, share, _)| (why, share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::node::pool::Pool;

    /// Returns what stops the work on a node, if these numbers of nodes are broken and whole, by group and zone.
    fn stops(of: &[(&str, &str, usize, usize)]) -> Option<(RepairStop, usize, usize)> {
        let mut nodes = Vec::new();
        for (group, zone, broken, whole) in of {
            let labels = [("eks.amazonaws.com/nodegroup", group), ("topology.kubernetes.io/zone", zone)];
            let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
            let labels = labels.map(|(key, value)| (key.to_owned(), (*value).to_owned())).collect();
            for n in 0..broken + whole {
                let mut node = Node::for_tests(if n < *broken { "broken" } else { "whole" });
                node.pool = Arc::new(Pool::of(&labels, None));
                nodes.push(Arc::new(node));
            }
        }
        let stopped = Brake::of(nodes.iter(), |node| &*node.name == "broken").stops(&nodes[0]);
        stopped.map(|(why, share)| (why, share.unhealthy, share.of))
    }

    #[test]
    fn a_fifth_of_a_group_may_be_broken_and_one_node_always() {
        assert_eq!(stops(&[("a", "", 1, 0), ("b", "", 0, 9)]), None, "the only node");
        assert_eq!(stops(&[("a", "", 1, 4), ("b", "", 0, 9)]), None);
        assert_eq!(stops(&[("a", "", 2, 3), ("b", "", 0, 9)]), Some((RepairStop::Group, 2, 5)));
        assert_eq!(stops(&[("a", "", 20, 80)]), None);
        assert_eq!(stops(&[("a", "", 21, 79)]), Some((RepairStop::Group, 21, 100)));
        assert_eq!(stops(&[("b", "", 1, 8), ("a", "", 2, 3)]), None, "another group is stopped");
    }

    #[test]
    fn a_fifth_of_all_nodes_may_be_broken() {
        assert_eq!(stops(&[("", "", 2, 8)]), None, "without a group");
        assert_eq!(stops(&[("", "", 3, 7)]), Some((RepairStop::Cluster, 3, 10)));
        let each = ["a", "b", "c", "d"].map(|group| (group, "", 1, 1));
        assert_eq!(stops(&each), Some((RepairStop::Cluster, 4, 8)), "one of each group");
    }

    #[test]
    fn more_than_half_of_the_zones_with_a_fifth_of_their_nodes_broken_are_too_many() {
        let zones = |broken: [usize; 3], of: usize| {
            let of = broken.iter().zip(["x", "y", "z"]).map(|(broken, zone)| ("a", zone, *broken, of - broken));
            stops(&of.collect::<Vec<_>>())
        };
        assert_eq!(zones([2, 0, 0], 10), None);
        assert_eq!(zones([2, 2, 0], 10), Some((RepairStop::Zones, 2, 3)), "a seventh of all");
        assert_eq!(zones([2, 1, 0], 10), None, "one of ten in the second zone");
        assert_eq!(zones([1, 0, 0], 1), None);
        assert_eq!(stops(&[("a", "x", 2, 8)]), None, "one zone");
        assert_eq!(stops(&[("a", "x", 1, 4), ("a", "y", 1, 4)]), Some((RepairStop::Zones, 2, 2)));
        let four = [("a", "w", 1, 4), ("a", "x", 1, 4), ("a", "y", 0, 5), ("a", "z", 0, 5)];
        assert_eq!(stops(&four), None, "half");
    }
}
