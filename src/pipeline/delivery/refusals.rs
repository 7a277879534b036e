//! What a Node carries that is not acted on, told once for as long as the Node exists: whoever may write the Node may change it every second.

use crate::fact::{Fact, Facts};
use crate::pipeline::node::{Index, Node};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of annotations of one Node of which is told that they are refused.
const MAX_OF_A_NODE: usize = 8;

/// Maximum number of new notices that one Node may begin in [`BEGUN_SPAN`]: as many as it may plan at a time.
const MAX_BEGUN: usize = 64;

/// Time for which a notice that a Node has begun counts.
const BEGUN_SPAN: Duration = Duration::from_hours(1);

/// Decides whether a Node is heeded, and tells what is refused.
#[derive(Debug)]
pub struct NodeRefusals {
    index: Index,
    facts: Facts,
    /// What was told, by the Node's UID.
    told: Mutex<HashMap<Arc<str>, Told>>,
}

/// What was told of a Node, and what it began.
#[derive(Debug, Default)]
struct Told {
    is_twin: bool,
    is_held: bool,
    annotations: BTreeSet<String>,
    /// When the Node began new notices.
    begun: VecDeque<Instant>,
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

    /// Returns whether work on something new that the Node says, plans or shows may begin, and counts it: who may write the Node may say
    /// another time each second. If it may not begin yet, tells so once.
    pub(super) fn admits(&self, node: &Node) -> bool {
        let now = Instant::now();
        let mut admits = false;
        let note = |told: &mut Told| {
            told.begun.retain(|begun| now.duration_since(*begun) < BEGUN_SPAN);
            admits = told.begun.len() < MAX_BEGUN;
            if admits {
                told.begun.push_back(now);
            }
            !admits && !std::mem::replace(&mut told.is_held, true)
        };
        if self.is_new(node, note) {
            self.facts.emit(&Fact::AgentNoticesHeld { on: node.named() });
        }
        admits
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

    /// Returns what `note` returns for what was told of the Node. Forgets Nodes that are gone whenever twice as many are known.
    fn is_new(&self, node: &Node, note: impl FnOnce(&mut Told) -> bool) -> bool {
        let mut told = self.told.lock();
        if !told.contains_key(&node.uid) && told.len().is_power_of_two() {
            let known: BTreeSet<_> = self.index.all_that(|_| true).iter().map(|node| Arc::clone(&node.uid)).collect();
            told.retain(|uid, _| known.contains(uid));
        }
        note(told.entry(Arc::clone(&node.uid)).or_default())
    }
}
