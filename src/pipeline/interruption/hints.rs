//! Nodes cordoned because of hints, whose instances may be interrupted or not. Hints can come for a whole cluster at once, so they may cordon
//! at most a fifth of the nodes.

use crate::pipeline::node::{FullOfHints, HintedNodes, Index, Node};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

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

impl State {
    /// Counts the nodes, unless the last count is kept. Returns the time from which on another is made.
    fn count(&mut self, index: &Index, now: Instant) -> Instant {
        let (at, _) = match self.counted.take() {
            Some(counted) if now < counted.0 + COUNT_KEPT => self.counted.insert(counted),
            _ => self.counted.insert((now, index.count_ours(|nodes| HintedNodes::of(nodes)))),
        };
        *at + COUNT_KEPT
    }
}

impl Hints {
    /// Returns a seat for the node.
    ///
    /// # Errors
    /// Hints already hold the maximum number of nodes.
    pub(super) fn seat(&self, index: &Index, node: &Node) -> Result<HintSeat<'_>, FullOfHints> {
        let now = Instant::now();
        let mut state = self.0.lock();
        state.count(index, now);
        let State { counted, seats } = &mut *state;
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
    /// away. Waits for the first count from now on, which is made for all nodes together: a count for each would take a storm of hints the
    /// square of its nodes.
    pub(super) async fn is_late(&self, index: &Index, node: &Node) -> bool {
        let asked = Instant::now();
        loop {
            let next = {
                let mut state = self.hints.0.lock();
                let next = state.count(index, Instant::now());
                if let Some((_, counted)) = state.counted.as_ref().filter(|(at, _)| *at >= asked) {
                    return counted.is_late(node, self.limits);
                }
                next
            };
            sleep_until(next).await;
        }
    }
}

impl Drop for HintSeat<'_> {
    fn drop(&mut self) {
        self.hints.0.lock().seats.remove(&self.uid);
    }
}
