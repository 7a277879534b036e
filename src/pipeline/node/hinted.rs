//! How many nodes are cordoned for hints alone, and how many may be: a hint announces that capacity may end, and a cordon removes it at
//! once. Pure.

use super::Node;
use super::record::NoticeRecord;
use crate::fact::NoticeKind;
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Divisor of the share of nodes that hints may hold: a fifth.
const ONE_OF: usize = 5;

/// The nodes that would be schedulable without hints, in all and by group.
#[derive(Debug, Default)]
pub struct HintedNodes {
    all: Hinted,
    groups: BTreeMap<Box<str>, Hinted>,
}

/// Where hints hold as many nodes as they may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullOfHints {
    /// The name of the group; empty for all nodes.
    pub group: Box<str>,
    /// Number of nodes that hints hold.
    pub held: usize,
    /// Number of nodes that would be schedulable without hints.
    pub of: usize,
}

/// The nodes of a group, or all.
#[derive(Debug, Default)]
struct Hinted {
    /// Number of nodes that would be schedulable.
    of: usize,
    /// Those that hints hold cordoned, by the time of the first hint and their UID.
    held: Vec<(Timestamp, Arc<str>)>,
}

impl Hinted {
    fn add(&mut self, node: &Node, since: Option<Timestamp>) {
        self.of += 1;
        self.held.extend(since.map(|since| (since, Arc::clone(&node.uid))));
    }

    /// Returns how many may be held: a fifth, rounded down, but at least one.
    fn limit(&self) -> usize {
        (self.of / ONE_OF).max(1)
    }

    /// Returns how many are held besides this node and those with a seat.
    fn others(&self, node: &Node, seats: &HashMap<Arc<str>, Box<str>>) -> usize {
        self.held.iter().filter(|(_, uid)| *uid != node.uid && !seats.contains_key(uid)).count()
    }

    /// Whether the nodes held earlier than this one fill the limit, or the limit `before` if that is higher.
    fn is_late(&self, node: &Node, before: usize) -> bool {
        let Some(own) = self.held.iter().find(|(_, uid)| *uid == node.uid) else { return false };
        self.held.iter().filter(|other| *other < own).count() >= self.limit().max(before)
    }
}

impl HintedNodes {
    /// Counts the nodes.
    pub fn of<'a>(nodes: impl Iterator<Item = &'a Arc<Node>>) -> Self {
        let mut counted = Self::default();
        for node in nodes.filter(|node| node.ready) {
            let since = hinted_since(node);
            if node.cordoned && since.is_none() {
                continue;
            }
            counted.all.add(node, since);
            match counted.groups.get_mut(node.pool.named().group) {
                Some(group) => group.add(node, since),
                None => counted.groups.entry(node.pool.named().group.into()).or_default().add(node, since),
            }
        }
        counted
    }

    /// Returns the limit that keeps the node from being held as well, if one does. `seats` are the nodes that are about to be held: their
    /// UIDs and groups.
    #[must_use]
    pub fn full(&self, node: &Node, seats: &HashMap<Arc<str>, Box<str>>) -> Option<FullOfHints> {
        self.of_node(node).find_map(|(group, hinted)| {
            let seated = seats.iter().filter(|(uid, of)| **uid != node.uid && (group.is_empty() || ***of == *group));
            let held = hinted.others(node, seats) + seated.count();
            (held >= hinted.limit()).then_some(FullOfHints { group: group.into(), held, of: hinted.of })
        })
    }

    /// Returns how many nodes may be held, in all and in the node's group.
    #[must_use]
    pub fn limits(&self, node: &Node) -> [usize; 2] {
        let mut limits = self.of_node(node).map(|(_, hinted)| hinted.limit());
        [(); 2].map(|()| limits.next().unwrap_or_default())
    }

    /// Returns whether the node is held beyond the limits, and beyond those `before`, because others were held earlier.
    #[must_use]
    pub fn is_late(&self, node: &Node, before: [usize; 2]) -> bool {
        self.of_node(node).zip(before).any(|((_, hinted), before)| hinted.is_late(node, before))
    }

    /// Returns those that count for the node, by name: all, without one; and its group, if that has others.
    fn of_node(&self, node: &Node) -> impl Iterator<Item = (&str, &Hinted)> {
        let group = self.groups.get_key_value(node.pool.named().group);
        let group = group.filter(|(name, group)| !name.is_empty() && group.of > 1);
        [("", &self.all)].into_iter().chain(group.map(|(name, group)| (&**name, group)))
    }
}

/// Returns since when only hints whose action is no drain hold the Node cordoned; `None` if something else does, or nothing.
fn hinted_since(node: &Node) -> Option<Timestamp> {
    if !node.cordoned || !node.record.undo().cordon {
        return None;
    }
    let since = |notice: &NoticeRecord| is_cordon_for_hint(notice).then(|| notice.since.unwrap_or_default());
    let all = node.record.notices().map(|(_, notice)| since(notice)).collect::<Option<Vec<_>>>()?;
    all.into_iter().min()
}

/// Whether only hints keep the Node cordoned once only these notices are left, and now another reason does.
pub(super) fn is_left_to_hints<'a>(node: &Node, mut left: impl Iterator<Item = &'a NoticeRecord>) -> bool {
    node.cordoned && node.record.undo().cordon && hinted_since(node).is_none() && left.all(is_cordon_for_hint)
}

/// Whether it is the record of a hint whose action is no drain.
fn is_cordon_for_hint(notice: &NoticeRecord) -> bool {
    !notice.is_drain() && notice.kind().is_some_and(NoticeKind::is_hint)
}

#[cfg(test)]
mod tests {
    use super::super::mark::{Mark, MarkSettings};
    use super::super::pool::Pool;
    use super::super::record::Record;
    use super::*;
    use crate::pipeline::event::NoticeKey;

    /// Returns nodes of these groups and numbers, of which so many are held by hints, the first of all since the earliest second.
    fn nodes(groups: &[(&str, usize, usize)]) -> Vec<Arc<Node>> {
        let mut nodes = Vec::new();
        for (group, of, held) in groups {
            for n in 0..*of {
                let mut node = Node::for_tests(&format!("{group}-{n}"));
                node.uid = format!("{group}-{n}").into();
                let labels = [("eks.amazonaws.com/nodegroup".to_owned(), (*group).to_owned())];
                node.pool =
                    Arc::new(Pool::of(&labels.into_iter().filter(|(_, name)| !name.is_empty()).collect(), None));
                let since = Timestamp::from_second(i64::try_from(n).unwrap()).unwrap();
                nodes.push(Arc::new(if n < *held {
                    marked(&node, &Mark::new(NoticeKey::of("x"), "rebalance", since, "m"))
                } else {
                    node
                }));
            }
        }
        nodes
    }

    /// Returns the node as the mark's patch leaves it.
    fn marked(node: &Node, mark: &Mark) -> Node {
        let patch = mark.patch(node, &MarkSettings::default()).unwrap();
        let mut node = node.clone();
        node.cordoned = true;
        let annotations = patch["metadata"]["annotations"].as_object().unwrap();
        let text = |(key, value): (&String, &serde_json::Value)| (key.clone(), value.as_str().unwrap().to_owned());
        node.record = Record::read(annotations.iter().map(text).collect());
        node
    }

    /// Returns the group, the number that is held and that of all, where the last node can't be held, too.
    fn full(nodes: &[Arc<Node>]) -> Option<(String, usize, usize)> {
        let counted = HintedNodes::of(nodes.iter());
        let full = counted.full(nodes.last().unwrap(), &HashMap::new());
        full.map(|FullOfHints { group, held, of }| (group.into(), held, of))
    }

    #[test]
    fn a_fifth_may_be_held_and_one_always() {
        assert_eq!(full(&nodes(&[("", 1, 0)])), None);
        assert_eq!(full(&nodes(&[("", 9, 0)])), None);
        assert_eq!(full(&nodes(&[("", 9, 1)])), Some((String::new(), 1, 9)));
        assert_eq!(full(&nodes(&[("", 10, 1)])), None);
        assert_eq!(full(&nodes(&[("", 10, 2)])), Some((String::new(), 2, 10)));
    }

    #[test]
    fn a_group_counts_for_itself_and_one_node_with_all() {
        assert_eq!(full(&nodes(&[("a", 20, 0), ("b", 5, 1)])), Some(("b".to_owned(), 1, 5)));
        assert_eq!(full(&nodes(&[("a", 20, 1), ("b", 5, 0)])), None, "another group");
        assert_eq!(full(&nodes(&[("a", 20, 4), ("b", 1, 0)])), Some((String::new(), 4, 21)));
        assert_eq!(full(&nodes(&[("a", 20, 3), ("b", 1, 0)])), None);
    }

    #[test]
    fn only_nodes_that_hints_alone_keep_from_being_schedulable_count() {
        let mut nodes = nodes(&[("", 10, 1)]);
        let edit = |node: &mut Arc<Node>, edit: fn(&mut Node)| edit(Arc::make_mut(node));
        edit(&mut nodes[1], |node| node.cordoned = true);
        edit(&mut nodes[2], |node| node.ready = false);
        let drained = Mark::new(NoticeKey::of("y"), "spot", Timestamp::UNIX_EPOCH, "m")
            .with_deadline(Some(Timestamp::UNIX_EPOCH));
        nodes[3] = Arc::new(marked(&nodes[3], &drained));
        assert_eq!(full(&nodes), Some((String::new(), 1, 7)), "one is cordoned by a user, one is away, one is drained");
    }

    #[test]
    fn those_with_a_seat_count_once() {
        let nodes = nodes(&[("a", 10, 1)]);
        let counted = HintedNodes::of(nodes.iter());
        let seats = |of: &[usize]| of.iter().map(|n| (format!("a-{n}").into(), "a".into())).collect();
        assert_eq!(counted.full(&nodes[9], &seats(&[0])), None, "its mark is shown already");
        assert!(counted.full(&nodes[9], &seats(&[5])).is_some());
        assert_eq!(counted.full(&nodes[9], &seats(&[9])), None, "itself");
    }

    #[test]
    fn beyond_the_limit_the_latest_are_late() {
        let nodes = nodes(&[("", 10, 4)]);
        let counted = HintedNodes::of(nodes.iter());
        assert_eq!([0, 1, 2, 3, 4].map(|n| counted.is_late(&nodes[n], [0; 2])), [false, false, true, true, false]);
    }
}
