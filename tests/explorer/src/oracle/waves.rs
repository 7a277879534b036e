//! Rules about drains that have time, and wait for others: docs/waits.md, "Waves" and "Zonal shifts". Judged without faults, because
//! who can't see the Nodes or write to them may drain too many.

use super::{Oracle, Seen};
use crate::plan::{Kind, Owner, Plan, Source, Target};

/// Time that is kept free before a hard deadline, besides grace periods.
const KEPT_FREE: i64 = 12_000;

impl Oracle {
    /// Returns a node whose place in the wave is taken, although this one needs it. All nodes are in one zone.
    pub(super) fn ahead_in_wave(&self, seen: &Seen, node: usize) -> Option<usize> {
        if !self.plan.flags.others.contains(&"--wave") || !self.sees_all() {
            return None;
        }
        let is_drained = |other: usize| {
            let is_taken_back = self.drains_of(seen, other).all(|sent| self.is_taken_back(seen, sent));
            let is_over = seen.let_go.contains_key(&other) || seen.booted.contains_key(&other) || is_taken_back;
            !is_over && self.stands(Target::Node(other)) && !self.left(other).is_empty()
        };
        let mut others = seen.begun.iter().copied().filter(|other| *other != node);
        others.find(|other| self.has_time(seen, node) && self.has_time(seen, *other) && is_drained(*other))
    }

    /// Returns the shift for whose end the node's drain waits.
    pub(super) fn shifted(&self, seen: &Seen, node: usize) -> Option<usize> {
        let away = |notice: usize| match self.plan.notices[notice].kind {
            Kind::Shift(zone, _) => Some(zone),
            _ => None,
        };
        let (zone, _) = Plan::place(node);
        // In the zone itself drains go on.
        let is_away = (0..self.plan.notices.len()).any(|notice| away(notice) == Some(zone));
        if !self.plan.flags.shift || is_away || !self.sees_all() || !self.has_time(seen, node) {
            return None;
        }
        // Whoever waits for something else already, or is drained, does not wait for it, too.
        let is_before = |at: i64| self.drains_of(seen, node).all(|sent| self.begins(sent) > at + 2_000);
        let mut noted = seen.noted.iter().filter(|(shift, at)| !seen.shift_over.contains(shift) && is_before(**at));
        let shift = noted.next().map(|(shift, _)| *shift);
        shift.filter(|_| self.is_noted())
    }

    /// Whether some Node carries the note of a shift: those that did may be gone.
    fn is_noted(&self) -> bool {
        let annotations = self.world.kube.nodes().into_iter().filter_map(|node| node.metadata.annotations);
        annotations.into_iter().flatten().any(|(name, _)| name.starts_with("ebbtide/shift."))
    }

    fn sees_all(&self) -> bool {
        self.plan.faults.is_empty() && self.plan.clock_ahead == 0
    }

    /// Whether all drains of the node have time to wait.
    fn has_time(&self, seen: &Seen, node: usize) -> bool {
        // Before a hard deadline the grace periods of the pods are kept free, tier after tier, and some time more.
        let room = self.graces(node).values().sum::<i64>() + KEPT_FREE;
        // Without a queue nobody knows of a group's hook, nor of its timeout.
        let flags = &self.plan.flags;
        let knows_hooks = flags.source != Source::Nodes || flags.drain_timeout.is_some();
        self.drains_of(seen, node).all(|sent| {
            let (ends, begins) = (self.ends(seen, sent), self.begins(sent));
            let first = ends.hard.map(|end| end - room).into_iter().chain(ends.soft).min().unwrap_or_default();
            let waits = matches!(
                self.plan.notices[sent.notice].kind,
                Kind::Rebalance | Kind::Change(..) | Kind::Condition | Kind::Terminate(_, _, Owner::Us)
            );
            let waits = waits && (knows_hooks || !matches!(self.plan.notices[sent.notice].kind, Kind::Terminate(..)));
            waits && self.ended(sent).is_none() && self.now() + self.slack() < begins + (first - begins) / 2
        })
    }
}
