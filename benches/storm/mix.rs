//! The messages of a storm: twenty for every twenty nodes, of all kinds and wrappings, with duplicates and noise.

use crate::LATENCY;
use crate::harness::{Stage, instance, s};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::messages::{self, Wrapping};
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of pods on each node.
pub const PODS: usize = 2;

/// Heartbeat timeout of a hook: too long for any heartbeat to become due.
const TIMEOUT: Duration = Duration::from_mins(10);

/// Messages sent about one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Spot,
    /// One event, delivered in two messages.
    SpotTwice,
    /// Cordoned, but not drained.
    Rebalance,
    Hook(Wrapping),
    /// A spot warning, and a termination by the group.
    HookAndSpot,
    Change,
    Stopping,
    Reservation,
    /// Another cluster's instance; the node is untouched.
    Foreign,
    /// Not an event; the node is untouched.
    Poison,
    Quiet,
}

const MIX: [Part; 20] = [
    Part::Spot,
    Part::Hook(Wrapping::Event),
    Part::Rebalance,
    Part::Change,
    Part::Foreign,
    Part::Hook(Wrapping::Sns),
    Part::Reservation,
    Part::SpotTwice,
    Part::Quiet,
    Part::Hook(Wrapping::Event),
    Part::Stopping,
    Part::HookAndSpot,
    Part::Poison,
    Part::Hook(Wrapping::Bare),
    Part::Spot,
    Part::Rebalance,
    Part::Change,
    Part::Hook(Wrapping::Event),
    Part::Reservation,
    Part::Quiet,
];

impl Part {
    fn of(n: usize) -> Self {
        MIX[n % MIX.len()]
    }

    fn is_drained(self) -> bool {
        !matches!(self, Self::Rebalance | Self::Foreign | Self::Poison | Self::Quiet)
    }

    fn has_hook(self) -> bool {
        matches!(self, Self::Hook(_) | Self::HookAndSpot)
    }

    /// Number of patches of the node: one annotation for each notice, none for a copy.
    fn patches(self) -> usize {
        match self {
            Self::Foreign | Self::Poison | Self::Quiet => 0,
            Self::HookAndSpot => 2,
            _ => 1,
        }
    }
}

/// The work for one message, for a client that knows it beforehand.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Node to cordon.
    pub cordon: Option<usize>,
    /// Whether to drain the node.
    pub drain: bool,
    /// Token of the lifecycle action to complete.
    pub token: Option<String>,
}

/// Creates the world of a storm.
pub fn stage(nodes: usize) -> Stage {
    let stage = Stage::new(nodes, PODS);
    for n in (0..nodes).filter(|n| Part::of(*n) == Part::Foreign) {
        stage.world.aws.ec2.put(&foreign(nodes, n), &[]);
    }
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(TIMEOUT));
    stage.world.faults.add(Rule::on("*", Fault::Slow(LATENCY)));
    stage
}

/// Sends everything in a seeded order, keeping each node's messages together. Returns the work for each message.
pub fn send(stage: &Stage, nodes: usize) -> BTreeMap<String, Work> {
    let mut order: Vec<usize> = (0..nodes).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let bodies = order.into_iter().flat_map(|n| bodies(stage, nodes, n));
    bodies.map(|(body, work)| (stage.world.aws.sqs.send(body), work)).collect()
}

fn foreign(nodes: usize, n: usize) -> String {
    instance(nodes + n)
}

fn bodies(stage: &Stage, nodes: usize, n: usize) -> Vec<(String, Work)> {
    let (part, at, of) = (Part::of(n), stage.world.clock.now(), instance(n));
    let id = format!("event-{n}");
    let cordon = Work { cordon: Some(n), ..Work::default() };
    let drain = Work { drain: true, ..cordon.clone() };
    let hook = |wrapping| {
        let token = stage.world.aws.autoscaling.begin("group", "hook", &of);
        let body = messages::lifecycle(wrapping, true, ("group", "hook", &token), &of, at);
        (body, Work { token: Some(token), ..drain.clone() })
    };
    let ec2 = &stage.world.aws.ec2;
    let spot = || {
        ec2.interrupt(&of, at);
        messages::spot(&id, &of, at)
    };
    match part {
        Part::Spot => vec![(spot(), drain)],
        Part::SpotTwice => vec![(spot(), drain), (spot(), Work::default())],
        Part::Rebalance => vec![(messages::rebalance(&id, &of, at), cordon)],
        Part::Hook(wrapping) => vec![hook(wrapping)],
        Part::HookAndSpot => vec![hook(Wrapping::Event), (spot(), cordon)],
        Part::Change => {
            let (code, start) = ("AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", at + s(7 * 24 * 3600));
            ec2.schedule(&of, (&id, "instance-retirement"), start);
            vec![(messages::scheduled_change(&id, code, &[&of], at, start), drain)]
        }
        Part::Stopping => {
            ec2.set_state(&of, "stopping");
            vec![(messages::state_change(&id, &of, "stopping", at), drain)]
        }
        Part::Reservation => vec![(messages::capacity_reservation(&id, &of, at, at + s(120)), drain)],
        Part::Foreign => vec![(messages::spot(&id, &foreign(nodes, n), at), Work::default())],
        Part::Poison => vec![(r#"{"source": "aws.ec2", "detail-type": "EC2 Spot Inst"#.to_owned(), Work::default())],
        Part::Quiet => Vec::new(),
    }
}

/// Calls whose number does not depend on the order of the messages. A call that is missing here must not be made at all.
pub fn exact(nodes: usize) -> Vec<(&'static str, usize)> {
    let parts = || (0..nodes).map(Part::of);
    let drained = parts().filter(|part| part.is_drained()).count();
    vec![
        ("patch nodes", parts().map(Part::patches).sum()),
        // One list when the drain begins, one when it ends.
        ("list pods", 2 * drained),
        ("create pods/eviction", PODS * drained),
        ("CompleteLifecycleAction", parts().filter(|part| part.has_hook()).count()),
        ("DescribeLifecycleHooks", 1),
    ]
}

/// Expected outcomes of notices, by kind.
pub fn outcomes(nodes: usize) -> Vec<(&'static str, Vec<(&'static str, usize)>)> {
    let count = |is: fn(Part) -> bool| (0..nodes).map(Part::of).filter(|part| is(*part)).count();
    let spot = count(|part| matches!(part, Part::Spot | Part::SpotTwice | Part::HookAndSpot));
    let copies = count(|part| part == Part::SpotTwice);
    let foreign = count(|part| part == Part::Foreign);
    vec![
        ("asg-terminate", vec![("drained", count(Part::has_hook))]),
        ("capacity-reservation", vec![("drained", count(|part| part == Part::Reservation))]),
        ("rebalance", vec![("cordoned", count(|part| part == Part::Rebalance))]),
        ("scheduled-change", vec![("drained", count(|part| part == Part::Change))]),
        ("spot", vec![("drained", spot), ("joined", copies), ("not-ours", foreign)]),
        ("state-change", vec![("drained", count(|part| part == Part::Stopping))]),
    ]
}

/// Calls that are batched or that wait: their number depends on timing.
pub const INEXACT: [&str; 8] = [
    "ReceiveMessage",
    "DeleteMessageBatch",
    "DescribeInstances",
    "DescribeInstanceStatus",
    "DescribeSpotInstanceRequests",
    "DescribeAutoScalingInstances",
    "watch nodes",
    "watch pods",
];
