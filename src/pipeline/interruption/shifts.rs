//! The zones from which traffic is shifted away, by the notes on Nodes.

use super::policy::ShiftedResources;
use crate::pipeline::node::shift::{Shift, holding_back, notes_shift, shifts};
use crate::pipeline::node::{Index, Node};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum interval between reads of the Nodes' notes: a thousand drains may start at once.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Returns the shifts of these resources that count at `now`, by these Nodes' notes.
#[must_use]
pub fn shifts_of(resources: &ShiftedResources, nodes: &[Arc<Node>], now: Timestamp) -> Vec<Shift> {
    shifts(nodes, now).into_iter().filter(|shift| resources.has(&shift.resource)).collect()
}

/// The zonal shifts that count.
#[derive(Debug)]
pub struct Shifts {
    index: Index,
    resources: ShiftedResources,
    known: Mutex<Option<(Instant, Vec<Shift>)>>,
}

impl Shifts {
    /// The shifts of these resources.
    #[must_use]
    pub fn new(index: &Index, resources: ShiftedResources) -> Self {
        Self { index: index.clone(), resources, known: Mutex::default() }
    }

    /// Returns the shift away from another zone for which a drain of the Node waits.
    #[must_use]
    pub fn holding_back(&self, node: &Node, now: Timestamp) -> Option<Shift> {
        if self.resources == ShiftedResources::None {
            return None;
        }
        let mut known = self.known.lock();
        if known.as_ref().is_none_or(|(read_at, _)| read_at.elapsed() >= READ_EVERY) {
            *known = Some((Instant::now(), shifts_of(&self.resources, &self.index.all_that(notes_shift), now)));
        }
        let (_, shifts) = known.as_ref()?;
        holding_back(node, shifts).filter(|shift| shift.until > now).cloned()
    }
}
