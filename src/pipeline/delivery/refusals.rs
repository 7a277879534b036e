//! What a Node carries that is not acted on, told once for as long as the Node exists: whoever may write the Node may change it every second.

use crate::fact::{Fact, Facts};
use crate::pipeline::node::{Index, Node};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

/// Maximum number of annotations of one Node of which is told that they are refused.
const MAX_OF_A_NODE: usize = 8;

/// Decides whether a Node is heeded, and tells what is refused.
#[derive(Debug)]
pub struct NodeRefusals {
    index: Index,
    facts: Facts,
    /// What was told, by the Node's UID.
    told: Mutex<HashMap<Arc<str>, Told>>,
}

/// What was told of a Node.
#[derive(Debug, Default)]
struct Told {
    is_twin: bool,
    annotations: BTreeSet<String>,
}

impl NodeRefusals {
    /// Returns refusals of Nodes of this index, of which nothing was told yet.
    #[must_use]
    pub fn new(index: Index, facts: Facts) -> Self {
        Self { index, facts, told: Mutex::default() }
    }

    /// Returns whether what the Node says, plans and shows is acted on: no other Node of its instance is Ready, nor, if none is, was so
    /// later. Whoever registers a Node chooses its instance. If it is not acted on, tells so once.
    pub(super) fn heeds(&self, node: &Node) -> bool {
        let is_current = self.index.get(&node.instance).is_none_or(|current| current.uid == node.uid);
        let speaks = is_current && self.index.others(node).iter().all(|other| !other.ready);
        if !speaks && self.is_new(node, |told| !std::mem::replace(&mut told.is_twin, true)) {
            self.facts.emit(&Fact::TwinRefused { on: node.named() });
        }
        speaks
    }

    /// Tells once that what the Node says in this annotation is no notice.
    pub(super) fn refuse(&self, node: &Node, annotation: &str, error: &dyn fmt::Display) {
        let note = |Told { annotations, .. }: &mut Told| {
            annotations.len() < MAX_OF_A_NODE && annotations.insert(annotation.to_owned())
        };
        if self.is_new(node, note) {
            self.facts.emit(&Fact::AgentNoticeRefused { on: node.named(), annotation, error });
        }
    }

    /// Returns what `note` returns for what was told of the Node. Forgets Nodes that are gone when another is refused.
    fn is_new(&self, node: &Node, note: impl FnOnce(&mut Told) -> bool) -> bool {
        let mut told = self.told.lock();
        if !told.contains_key(&node.uid) {
            let known: BTreeSet<_> = self.index.all_that(|_| true).iter().map(|node| Arc::clone(&node.uid)).collect();
            told.retain(|uid, _| known.contains(uid));
        }
        note(told.entry(Arc::clone(&node.uid)).or_default())
    }
}
