//! Nodes cordoned because of hints, whose instances may be interrupted or not. Hints can come for a whole cluster at once, so they may cordon
//! at most a fifth of the nodes.

use crate::pipeline::node::{FullOfHints, HintedNodes, Index, Node};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time for which a count is kept: a storm asks a thousand times.
const COUNT_KEPT: Duration = Duration::from_secs(1);

/// Nodes that are cordoned, or about to be, because of hints.
#[derive(Debug, Default)]
pub struct Hints(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    counted: Option<(Instant, HintedNodes)>,
    /// The groups of the nodes that are about to be cordoned, by UID.
    seats: HashMap<Arc<str>, Box<str>>,
}

impl Hints {
    /// Returns a seat for the node.
    ///
    /// # Errors
    /// Hints already hold the maximum number of nodes.
    pub(super) fn seat(&self, index: &Index, node: &Node) -> Result<HintSeat<'_>, FullOfHints> {
        let now = Instant::now();
        let mut state = self.0.lock();
        let State { counted, seats } = &mut *state;
        if counted.as_ref().is_none_or(|(at, _)| now >= *at + COUNT_KEPT) {
            *counted = Some((now, count(index)));
        }
        if let Some(full) = counted.as_ref().and_then(|(_, counted)| counted.full(node, seats)) {
            return Err(full);
        }
        let limits = counted.as_ref().map_or([0; 2], |(_, counted)| counted.limits(node));
        seats.insert(Arc::clone(&node.uid), node.pool.named().group.into());
        Ok(HintSeat { hints: self, uid: Arc::clone(&node.uid), limits })
    }
}

/// A node that is about to be cordoned for a hint. It counts while this lives.
pub(super) struct HintSeat<'a> {
    hints: &'a Hints,
    uid: Arc<str>,
    limits: [usize; 2],
}

impl HintSeat<'_> {
    /// Whether the node is beyond the limits, because another replica's nodes came first. Nodes that leave for other reasons take no seat
    /// away.
    pub(super) fn is_late(&self, index: &Index, node: &Node) -> bool {
        count(index).is_late(node, self.limits)
    }
}

impl Drop for HintSeat<'_> {
    fn drop(&mut self) {
        self.hints.0.lock().seats.remove(&self.uid);
    }
}

fn count(index: &Index) -> HintedNodes {
    index.count_ours(|nodes| HintedNodes::of(nodes))
}
