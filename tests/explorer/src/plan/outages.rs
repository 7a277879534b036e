//! Outages, which joined the worlds late: SQS, the API server or credentials are away, or somebody denies evictions. Drawn from a generator
//! of its own, as what was [added](super::added) is.

use super::random::{BUSY, chance, one};
use super::{Kind, Notice, Plan, Source, Span, Trouble};
use ebbtide_sim::fault::Fault;
use fastrand::Rng;

/// Makes the generator differ from that of the rest.
const OUTAGES: u64 = 0x6f75_7461_6765_735f;

/// Second from which on a replica that has begun with the world knows its Nodes. What happens to one that can't read them is another story.
const STARTED: u64 = 10;

/// Denials of evictions, with the codes and words of admission webhooks and policies. The last webhook does not answer.
const DENIALS: [Fault; 6] = [
    Fault::Refuse(400, "admission webhook \"drainer.strimzi.io\" denied the request: the pod will be rolled"),
    Fault::Refuse(403, "admission webhook \"validate.kyverno.svc\" denied the request: keep"),
    Fault::Refuse(500, "admission webhook \"gatekeeper\" denied the request: keep"),
    Fault::Refuse(
        422,
        "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'all' denied request: no",
    ),
    Fault::Refuse(
        403,
        "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'all' denied request: no",
    ),
    Fault::Refuse(500, "Internal error occurred: failed calling webhook \"kyverno.svc\": failed to call webhook: EOF"),
];

/// What SQS answers while it is away, if it does.
const SQS_FAULTS: [Fault; 6] =
    [Fault::Status(500), Fault::Status(503), Fault::Status(403), Fault::Status(400), Fault::Hang, Fault::Disconnect];

/// What the API server answers while it is away, if it does.
const API_FAULTS: [Fault; 5] =
    [Fault::Status(500), Fault::Status(503), Fault::Hang, Fault::Disconnect, Fault::Throttle];

impl Plan {
    /// Adds an outage to some worlds, and seldom two. Half of these worlds have no other fault: they are judged harder.
    pub(super) fn add_outages(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ OUTAGES);
        if !chance(rng, 25) {
            return;
        }
        if chance(rng, 50) {
            self.faults.clear();
            self.replicas.iter_mut().for_each(Vec::clear);
            if chance(rng, 50) {
                self.replicas.truncate(1);
            }
        }
        for _ in 0..one(rng, &[1, 1, 1, 2]) {
            let (trouble, lasts) = match rng.u8(..100) {
                0..30 if self.flags.source != Source::Nodes => {
                    (Trouble::Sqs(one(rng, &SQS_FAULTS)), one(rng, &[10, 25, 40, 60]))
                }
                0..60 => {
                    // Beyond the timeouts of the shortest hooks, and beyond the two minutes after which a message is given back.
                    (Trouble::Away(one(rng, &API_FAULTS), rng.bool()), one(rng, &[10, 30, 70, 100, 150, 200]))
                }
                60..80 => (Trouble::Expired, rng.u64(1..40)),
                _ => {
                    let denied = Trouble::Calls("create pods/eviction", one(rng, &DENIALS), one(rng, &[50, 100]));
                    (denied, one(rng, &[10, 40, 100, 300]))
                }
            };
            let from = self.outage_begins(rng);
            self.faults.push(Span { from, to: from + lasts, trouble });
        }
    }

    /// Returns the second at which an outage begins: mostly at about the time of a notice, and rather of a hook's, whose drain it may cost.
    fn outage_begins(&self, rng: &mut Rng) -> u64 {
        let is_hook = |notice: &&Notice| matches!(notice.kind, Kind::Terminate(..));
        let hooks: Vec<_> = self.notices.iter().filter(is_hook).map(|notice| notice.at).collect();
        let all: Vec<_> = self.notices.iter().map(|notice| notice.at).collect();
        let times = if hooks.is_empty() || chance(rng, 20) { all } else { hooks };
        if times.is_empty() || chance(rng, 20) {
            return rng.u64(STARTED..BUSY);
        }
        (one(rng, &times) + rng.u64(..30)).saturating_sub(8).max(STARTED)
    }
}
