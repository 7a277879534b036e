//! Deployments, and `--surge`, by which they are restarted before their last ready pods leave. Drawn from a generator of its own, as what was
//! [added](super::added) is.

use super::added::web;
use super::random::{chance, one, some};
use super::{Budget, CRITICAL, Plan, PodPlan, Trouble};
use fastrand::Rng;

/// Makes the generator differ from that of the rest.
const SURGE: u64 = 0x7375_7267_655f_6f66;

/// Prefix of the names.
const NAMED: &str = "deployment-";

/// Calls about Deployments.
const CALLS: [&str; 3] = ["get replicasets", "get deployments", "patch deployments"];

/// One Deployment.
#[derive(Clone, Debug)]
pub struct DeploymentPlan {
    /// The nodes of its first pods.
    pub nodes: Vec<usize>,
    /// What its pods are like.
    pub pod: PodPlan,
    /// Seconds from the binding of a new pod to its readiness; without, it is never Ready.
    pub starts: Option<u64>,
    /// `maxSurge` and `maxUnavailable`; without, its strategy is `Recreate`.
    pub rolling: Option<(u32, u32)>,
}

impl DeploymentPlan {
    /// Whether a rollout adds a new pod before it removes the last old one.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let replicas = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.rolling.is_some_and(|(surge, unavailable)| surge > 0 && unavailable < replicas)
    }
}

impl Plan {
    /// Returns the name of a Deployment.
    #[must_use]
    pub fn deployment(number: usize) -> String {
        format!("{NAMED}{number}")
    }

    /// Returns the number of the Deployment with this name, or of that whose pod has it.
    #[must_use]
    pub fn deployment_of(name: &str) -> Option<usize> {
        name.strip_prefix(NAMED)?.split('-').next()?.parse().ok()
    }

    /// Adds Deployments, most of them with one pod, and seldom more on one node than are restarted at once.
    pub(super) fn add_deployments(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ SURGE);
        let there: Vec<usize> = (0..self.nodes.len()).filter(|n| self.nodes[*n].joins.is_none()).collect();
        if there.is_empty() || !chance(rng, 15) {
            return;
        }
        self.flags.surge = some(rng, 90, |rng| one(rng, &[30, 60, 300, 300, 900]));
        if chance(rng, 4) {
            let pod = PodPlan { grace: one(rng, &[10, 30]), ..web() };
            let (nodes, starts) = (vec![one(rng, &there)], Some(one(rng, &[5, 20, 40])));
            let one_of_many = DeploymentPlan { nodes, pod, starts, rolling: Some((1, 0)) };
            self.deployments = vec![one_of_many; rng.usize(21..27)];
            self.faults.clear();
            self.replicas = vec![Vec::new()];
            return;
        }
        for _ in 0..rng.usize(1..4) {
            let pod = PodPlan {
                grace: one(rng, &[1, 10, 30, 30, 60, 300]),
                takes: some(rng, 90, |rng| one(rng, &[0, 1, 5, 20])),
                priority: if chance(rng, 10) { CRITICAL } else { 0 },
                asks: some(rng, 10, |_| ("ebbtide/ignore", "true")),
                budget: if chance(rng, 40) { Budget::Never } else { Budget::Free },
                ..web()
            };
            let deployment = DeploymentPlan {
                nodes: (0..one(rng, &[1, 1, 1, 2, 3])).map(|_| one(rng, &there)).collect(),
                pod,
                starts: some(rng, 75, |rng| one(rng, &[1, 5, 20, 60])),
                rolling: one(rng, &[Some((1, 0)), Some((1, 0)), Some((1, 0)), Some((1, 1)), Some((0, 1)), None]),
            };
            self.deployments.push(deployment);
        }
        self.calm(rng);
        for span in &mut self.faults {
            if let Trouble::Calls(operation, ..) = &mut span.trouble
                && chance(rng, 30)
            {
                *operation = one(rng, &CALLS);
            }
        }
    }
}
