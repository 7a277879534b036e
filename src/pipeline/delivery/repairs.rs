//! Whether work on broken nodes may begin: not while so many are broken that the cause is not the nodes. What has begun goes on.

use super::Deliverer;
use crate::fact::{Fact, Facts, NoticeKind, RepairStop};
use crate::pipeline::event::Notice;
use crate::pipeline::interruption::Action;
use crate::pipeline::node::mark::newest_copy;
use crate::pipeline::node::{Brake, Node, Share};
use std::collections::BTreeMap;

/// The notices of one kind whose work does not begin, by the reason.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    held: BTreeMap<RepairStop, (usize, Share)>,
    /// The numbers that were told.
    told: BTreeMap<RepairStop, usize>,
}

impl Repairs {
    /// Returns whether the work on the Node does not begin, and notes that.
    pub fn hold(&mut self, brake: &Brake, node: &Node) -> bool {
        let stopped = brake.stops(node);
        if let Some((why, share)) = stopped {
            let (nodes, of) = self.held.entry(why).or_insert((0, share));
            *nodes += 1;
            *of = share;
        }
        stopped.is_some()
    }

    /// Tells what was held since the last time, if that has changed.
    pub fn tell(&mut self, kind: NoticeKind, facts: &Facts) {
        let held = std::mem::take(&mut self.held);
        for why in RepairStop::ALL {
            let (nodes, share) = held.get(&why).copied().unwrap_or_default();
            let before = self.told.insert(why, nodes).unwrap_or_default();
            if nodes != before {
                facts.emit(&Fact::RepairsHeld { kind, why, nodes, before, share: (share.broken, share.of) });
            }
        }
    }
}

impl Deliverer {
    /// Whether the notice would begin work on the Node, rather than report or go on.
    pub(super) fn begins_repair(&self, node: &Node, notice: &Notice) -> bool {
        let acts = matches!(self.interrupter.policy.action(notice), Action::Cordon | Action::Drain | Action::Replace);
        acts && !notice.is_withdrawn() && newest_copy(node, &notice.identity.to_string()).is_none()
    }
}
