//! Pools of Nodes that have settings of their own, and which Nodes Ebbtide acts on.

use super::record::Record;
use kube::core::{Selector, SelectorExt};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Nodes that have settings of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePool {
    /// The name, which records on Nodes have.
    pub name: Arc<str>,
    /// The labels of its Nodes.
    pub selector: Selector,
}

/// The Nodes that Ebbtide acts on, and their pools in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeScope {
    /// Selects, by label, the Nodes that Ebbtide may act on.
    pub selector: Selector,
    /// The pools. The first that selects a Node counts.
    pub pools: Arc<[NodePool]>,
}

impl From<Selector> for NodeScope {
    /// The selected Nodes, without pools.
    fn from(selector: Selector) -> Self {
        Self { selector, pools: Arc::default() }
    }
}

impl NodeScope {
    /// Returns the pool of a Node with these labels and this record; `None` if it is in none. Work that has begun stays in its pool when the
    /// labels change.
    #[must_use]
    pub fn pool_of(&self, labels: &BTreeMap<String, String>, record: &Record) -> Option<Arc<str>> {
        if self.pools.is_empty() {
            return None;
        }
        let named = |name: &str| self.pools.iter().find(|pool| *pool.name == *name);
        // Work that began in no pool stays in none.
        let begun =
            record.notices().find(|(_, notice)| !notice.is_unreadable()).map(|(_, notice)| notice.pool.as_deref());
        let selected = || self.pools.iter().find(|pool| pool.selector.matches(labels));
        begun.map_or_else(selected, |name| name.and_then(named)).map(|pool| Arc::clone(&pool.name))
    }
}

/// A value for each pool, and one for the Nodes that are in none.
#[derive(Clone, Debug, Default)]
pub struct PerPool<T> {
    rest: T,
    pools: Vec<(Arc<str>, T)>,
}

impl<T> PerPool<T> {
    /// The same value for all Nodes.
    #[must_use]
    pub const fn all(rest: T) -> Self {
        Self { rest, pools: Vec::new() }
    }

    /// Adds the value for a pool.
    #[must_use]
    pub fn with(mut self, pool: Arc<str>, value: T) -> Self {
        self.pools.push((pool, value));
        self
    }

    /// Returns the value for the Nodes of this pool.
    #[must_use]
    pub fn of(&self, pool: Option<&str>) -> &T {
        let own = pool.and_then(|name| self.pools.iter().find(|(known, _)| **known == *name));
        own.map_or(&self.rest, |(_, value)| value)
    }

    /// Returns the value for Nodes that are in no pool.
    #[must_use]
    pub const fn rest(&self) -> &T {
        &self.rest
    }

    /// Changes each value.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(&mut T)) {
        change(&mut self.rest);
        self.pools.iter_mut().for_each(|(_, value)| change(value));
    }

    /// Returns the values, each with its pool; `None` for the Nodes that are in none, which comes first.
    pub fn iter(&self) -> impl Iterator<Item = (Option<&Arc<str>>, &T)> {
        let pools = self.pools.iter().map(|(name, value)| (Some(name), value));
        std::iter::once((None, &self.rest)).chain(pools)
    }

    /// Returns what `map` makes of each value.
    #[must_use]
    pub fn map<U>(&self, mut map: impl FnMut(&T) -> U) -> PerPool<U> {
        let rest = map(&self.rest);
        PerPool { rest, pools: self.pools.iter().map(|(name, value)| (Arc::clone(name), map(value))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::label::selector;
    use super::*;

    fn scope() -> NodeScope {
        let pool =
            |(name, labels): &(&str, &str)| NodePool { name: (*name).into(), selector: selector(labels).unwrap() };
        let pools = [("gpu", "accelerator"), ("web", "tier=web")].iter().map(pool).collect();
        NodeScope { pools, ..NodeScope::default() }
    }

    #[test]
    fn the_first_pool_that_selects_a_node_counts_and_work_stays_in_its_pool() {
        let record = |notices: &[&str]| {
            let text = |(n, rest): (usize, &&str)| {
                (format!("ebbtide/notice.{n:016x}"), format!(r#"{{"v":1,"kind":"spot","since":null{rest}}}"#))
            };
            Record::read(notices.iter().enumerate().map(text).collect())
        };
        let labels = |text: &str| {
            text.split_whitespace()
                .map(|pair| pair.split_once('=').unwrap())
                .map(|(k, v)| (k.into(), v.into()))
                .collect()
        };
        for (node, notices, expected) in [
            ("accelerator=a tier=web", &[][..], Some("gpu")),
            ("tier=web", &[], Some("web")),
            ("tier=db", &[], None),
            ("tier=web", &[r#","pool":"gpu""#], Some("gpu")),
            ("tier=web", &[""], None),
            ("tier=web", &[r#","pool":"removed""#], None),
            ("tier=web", &[r#","pool":"gpu","work":"planned""#], Some("web")),
        ] {
            let found = scope().pool_of(&labels(node), &record(notices));
            assert_eq!(found.as_deref(), expected, "{node} {notices:?}");
        }
        let without = NodeScope::default().pool_of(&labels("tier=web"), &record(&[r#","pool":"gpu""#]));
        assert_eq!(without, None);
    }

    #[test]
    fn a_pool_without_a_value_has_that_of_the_rest() {
        let values = PerPool::all(1).with("gpu".into(), 2);
        assert_eq!([None, Some("gpu"), Some("web")].map(|pool| *values.of(pool)), [1, 2, 1]);
        let doubled = values.map(|value| value * 2);
        assert_eq!(doubled.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [2, 4]);
    }
}
