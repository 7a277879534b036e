//! Simulated AWS and Kubernetes, as services under the real SDK clients.
//!
//! ```text
//!            real aws-sdk clients ─▶ HttpConnector ─┐             ┌─▶ aws/  sqs · autoscaling · ec2
//!                                                    ├─▶ fault ─▶──┤
//!            real kube client ────▶ tower Service ──┘     │       └─▶ kube/ nodes · pods · budgets · watches
//!                                                          └─▶ calls: every call, for tests to count
//! ```
//!
//! Nothing here restates an interface of Ebbtide's: the wire is faked, not the clients. All waiting is on tokio's
//! clock, so that under a paused clock 48 hours pass in milliseconds; bound to loopback ports ([`loopback`]) the same
//! services run in real time.

pub mod aws;
pub mod calls;
pub mod clock;
pub mod fault;
pub mod kube;
pub mod loopback;
pub mod messages;

/// One simulated region and one simulated cluster, with one clock, one fault plan and one record of calls.
#[derive(Clone, Debug)]
pub struct World {
    /// Wall time of the simulation.
    pub clock: clock::Clock,
    /// Planned faults; empty at first.
    pub faults: fault::Faults,
    /// All calls that arrived, in order.
    pub calls: calls::Calls,
    /// SQS, Auto Scaling and EC2.
    pub aws: aws::Aws,
    /// The API server, with a kubelet and a disruption controller behind it.
    pub kube: kube::Kube,
}

impl World {
    /// Creates an empty world. `seed` decides everything random, in the services and in the fault plan.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_clock(clock::Clock::new(), seed)
    }

    /// Does the same with this clock: a world with the same wall times, too, each time.
    #[must_use]
    pub fn with_clock(clock: clock::Clock, seed: u64) -> Self {
        let calls = calls::Calls::new(clock);
        let faults = fault::Faults::new(seed);
        let edge = fault::Edge::new(calls.clone(), faults.clone());
        Self {
            clock,
            aws: aws::Aws::new(clock, edge.clone(), seed),
            kube: kube::Kube::new(clock, edge, seed),
            faults,
            calls,
        }
    }

    /// Forgets what was over before a time since the world's start, and frees its memory: calls, deliveries, messages that left the
    /// queue, lifecycle actions, evictions, and Events, which a real API server forgets after an hour. A watch that is not up to date must
    /// begin anew, as after [`kube::Kube::compact`]. For worlds that run for weeks.
    pub fn forget_before(&self, time: std::time::Duration) {
        self.calls.forget_before(time);
        self.aws.sqs.forget_before(time);
        self.aws.autoscaling.forget_before(time);
        self.kube.forget_before(time);
    }
}
