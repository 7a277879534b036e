//! Pods that are hard to drain, which joined the worlds late: they come back to their node, have long grace periods, or two budgets. Drawn
//! from a generator of its own, as what was [added](super::added) is.

use super::random::{chance, one};
use super::{Budget, Plan, PodKind, PodPlan};
use ebbtide_sim::kube::Placement;
use fastrand::Rng;

/// Makes the generator differ from that of the rest.
const STUBBORN: u64 = 0x7374_7562_626f_726e;

/// Shortest of the long grace periods, in seconds.
pub(super) const LONG: u64 = 2 * 3600;

/// Long grace periods in seconds: databases and queues have hours, some operators a week.
const GRACES: [u64; 3] = [LONG, 24 * 3600, 7 * 24 * 3600];

impl Plan {
    /// Makes some pods hard to drain: those of the controllers that write a template for many.
    pub(super) fn make_stubborn(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ STUBBORN);
        let (return_, wait, are_counted_twice) = (chance(rng, 7), chance(rng, 5), chance(rng, 4));
        let is_owned = |pod: &&mut PodPlan| matches!(pod.kind, PodKind::Web | PodKind::EmptyDir | PodKind::Claim);
        for pod in self.nodes.iter_mut().flat_map(|node| &mut node.pods).filter(is_owned) {
            if return_ && chance(rng, 50) {
                let placement = one(rng, &[Placement::TolerateAll, Placement::TolerateAll, Placement::ByName]);
                pod.returns = Some((placement, one(rng, &[5, 5, 300, 3000, 8000])));
            }
            if wait && chance(rng, 50) {
                (pod.grace, pod.takes) = (one(rng, &GRACES), one(rng, &[Some(0), Some(5), Some(70), Some(2000), None]));
            }
            if are_counted_twice && chance(rng, 50) {
                pod.budget = Budget::Several;
            }
        }
    }
}
