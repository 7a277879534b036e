//! Nodes whose kubelets fall silent, and `--collect-nodes`, by which those of terminated instances are deleted. Drawn from a generator of its
//! own, as what was [added](super::added) is.

use super::random::{BUSY, chance, one, some, span};
use super::{Flags, Plan, PodKind, Source, Target, Trouble, stubborn};
use fastrand::Rng;

/// Makes the generator differ from that of the rest.
const LOSSES: u64 = 0x6c6f_7373_6573_5f66;

/// What EC2 shows of lost instances; `None` if it does not know them.
const STATES: [Option<&str>; 6] =
    [Some("terminated"), Some("terminated"), Some("terminated"), Some("stopped"), Some("running"), None];

/// Calls of the replica that deletes Nodes.
const CALLS: [&str; 4] = ["DescribeInstances", "delete nodes", "watch nodes", "update leases"];

/// How a node is lost.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// Second at which its kubelet falls silent.
    pub at: u64,
    /// The state of its instance that EC2 shows; `None` if EC2 does not know it.
    pub state: Option<&'static str>,
    /// Seconds after which EC2 does so.
    pub shown: u64,
    /// Seconds after which the kubelet is back, and the instance runs.
    pub returns: Option<u64>,
}

impl Flags {
    /// Whether Nodes of terminated instances are deleted.
    #[must_use]
    pub fn collect_nodes(&self) -> bool {
        self.others.contains(&"--collect-nodes")
    }
}

impl Plan {
    /// Loses some nodes, and has the Nodes of terminated instances deleted.
    pub(super) fn lose_nodes(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ LOSSES);
        let Flags { source, looks, shift, condition, before, .. } = self.flags;
        // Where nodes that are not Ready count, or what EC2 shows of an instance does, a loss is another story.
        let is_other = source != Source::Queue || looks || shift || condition.is_some() || before.is_some();
        if is_other || self.flags.asks_aws() || self.flags.others.contains(&"--wave") || !chance(rng, 20) {
            return;
        }
        if chance(rng, 90) {
            self.flags.others.push("--collect-nodes");
        }
        self.calm(rng);
        for n in 0..self.nodes.len() {
            let (is_named, node) = (self.notices.iter().any(|it| it.target == Target::Node(n)), &mut self.nodes[n]);
            if node.joins.is_some() || chance(rng, 40) {
                continue;
            }
            // Nobody tells anything of an instance that EC2 does not know.
            let state = one(rng, &STATES).or(is_named.then_some("terminated"));
            let (at, shown) = (rng.u64(..BUSY), one(rng, &[0, 0, 0, 60, 400]));
            let returns = some(rng, 20, |rng| rng.u64(1..900)).filter(|_| state.is_some());
            node.lost = Some(Loss { at, state, shown, returns });
            // A drain that is still going on.
            if let Some(pod) = node.pods.first_mut().filter(|_| chance(rng, 30)) {
                (pod.kind, pod.grace, pod.takes) = (PodKind::Web, stubborn::LONG, None);
            }
            if !self.faults.is_empty() && chance(rng, 50) {
                let (mut span, later) = (span(rng), at + shown + rng.u64(250..700));
                (span.from, span.to) = (span.from + later, span.to + later);
                if let Trouble::Calls(operation, ..) = &mut span.trouble
                    && chance(rng, 50)
                {
                    *operation = one(rng, &CALLS);
                }
                self.faults.push(span);
            }
        }
    }

    /// Returns the second at which the Node of a lost instance is gone at the latest, if it may be deleted: docs/repair.md, "Nodes of terminated
    /// instances".
    #[must_use]
    pub fn collected_by(&self, loss: Loss) -> u64 {
        // Its drain comes first, or an hour of silence; then the scans, and the second answer.
        let first = if loss.state.is_none() { 3600 } else { BUSY + 900 } + loss.shown + 480;
        // Of few nodes, one is deleted in ten minutes. One with volumes waits as long.
        let lost = self.nodes.iter().filter(|node| node.lost.is_some()).count();
        loss.at + loss.returns.unwrap_or_default() + first + 700 * (u64::try_from(lost).unwrap_or_default() + 1)
    }
}
