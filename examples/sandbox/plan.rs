//! The cluster's nodes, the events planned for each, and the expected results.

mod programme;

use ebbtide_sim::World;
use ebbtide_sim::aws::{GroupSpec, HookSpec};
use ebbtide_sim::kube::{Limit, Pod};
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;

/// Auto Scaling group of the cluster's nodes. Its hooks notify the queue.
pub const GROUP: &str = "workers";
/// Hook that waits for terminating instances to be drained.
pub const TERMINATING: &str = "drain";
/// Hook that waits for launched instances to be ready.
pub const LAUNCHING: &str = "launch";
/// Another cluster's group. EventBridge sends its events to every queue of the account.
pub const OTHER_GROUP: &str = "other-workers";

/// An instance of another cluster.
pub const OTHER: (&str, &str) = ("elsewhere", "i-0ffffffffffffff01");
/// An instance that has just been launched.
pub const NEW: (&str, &str) = ("newcomer", "i-0ffffffffffffff02");

/// The Node of the cluster without a queue.
pub const QUEUELESS: (&str, &str) = ("no-queue", "i-0ffffffffffffff03");

/// The pod with a volume.
pub const STORE: &str = "store-0";
/// Time from that pod's end until its volume is detached.
pub const DETACHED: Duration = Duration::from_secs(4);

/// Deregistration delay of the target group.
pub const DRAINING: Duration = Duration::from_secs(5);

/// Heartbeat timeout of the hooks: the shortest that AWS allows, so that heartbeats are needed.
const HOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// The cluster and the storm over it.
#[derive(Debug)]
pub struct Plan {
    /// The nodes, sorted by name.
    pub nodes: Vec<Member>,
    /// Seed for the order of the storm.
    pub seed: u64,
}

/// One node of the cluster.
#[derive(Debug)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its instance.
    pub instance: String,
    /// Time that each of its pods takes to stop.
    pub pods: Vec<Duration>,
    /// Part that the node plays in the storm.
    pub part: Part,
}

/// A node's part in the storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its group terminates it.
    Terminated(Wrapping),
    /// Its group terminates it, and a budget holds one of its pods back for some seconds.
    HeldBack,
    /// Its group terminates it, and a budget holds one of its pods back for good.
    Stuck,
    /// A spot warning is read late, and a budget holds one of its pods back for good.
    Doomed,
    /// A spot warning, delivered twice.
    Redelivered,
    /// A spot warning, and then its group terminates it.
    Twofold,
    /// A spot warning.
    Spot,
    /// A rebalance recommendation.
    Rebalanced,
    /// Its group terminates it, and one of its pods has a volume.
    Attached,
    /// Its group terminates it, and a target group sends it traffic.
    Balanced,
    /// A user stops it, and a controller has to release it before its pods are evicted.
    Stopping,
    /// Scheduled maintenance, announced by one Health event about several nodes.
    Maintained,
    /// A capacity reservation takes it back.
    Reclaimed,
    /// A spot warning that the node's agent has read in the instance's metadata; no message comes.
    Announced,
    /// Nothing.
    Spared,
}

/// The parts of the first nodes: every part occurs.
const FIRST: [Part; crate::MIN_NODES as usize] = [
    Part::Terminated(Wrapping::Event),
    Part::HeldBack,
    Part::Stuck,
    Part::Doomed,
    Part::Redelivered,
    Part::Twofold,
    Part::Attached,
    Part::Balanced,
    Part::Rebalanced,
    Part::Stopping,
    Part::Maintained,
    Part::Maintained,
    Part::Maintained,
    Part::Reclaimed,
    Part::Announced,
    Part::Spared,
];

/// The parts of all further nodes, repeated. There are no rebalance recommendations: the storm leaves few nodes schedulable, and
/// recommendations may cordon only a fifth of these.
const FURTHER: [Part; 11] = [
    Part::Terminated(Wrapping::Event),
    Part::Spot,
    Part::Terminated(Wrapping::Sns),
    Part::Maintained,
    Part::Maintained,
    Part::Maintained,
    Part::Stopping,
    Part::Reclaimed,
    Part::Spared,
    Part::Terminated(Wrapping::Bare),
    Part::Spared,
];

impl Part {
    /// Returns the notices about the node: the kind and outcome of each.
    pub fn notices(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Terminated(_) | Self::HeldBack | Self::Attached | Self::Balanced => &[("asg-terminate", "drained")],
            Self::Stuck => &[("asg-terminate", "blocked")],
            Self::Redelivered => &[("spot", "drained"), ("spot", "joined")],
            Self::Twofold => &[("spot", "drained"), ("asg-terminate", "drained")],
            Self::Spot | Self::Doomed | Self::Announced => &[("spot", "drained")],
            Self::Rebalanced => &[("rebalance", "cordoned")],
            Self::Stopping => &[("state-change", "drained")],
            Self::Maintained => &[("scheduled-change", "drained")],
            Self::Reclaimed => &[("capacity-reservation", "drained")],
            Self::Spared => &[],
        }
    }

    /// Returns whether a lifecycle hook waits for the node.
    pub fn has_hook(self) -> bool {
        self.notices().iter().any(|(kind, _)| *kind == "asg-terminate")
    }

    /// Returns the expected outcome of the node's drain, if there is one.
    pub fn drain(self) -> Option<&'static str> {
        match self {
            Self::Rebalanced | Self::Spared => None,
            Self::Stuck => Some("blocked"),
            _ => Some("drained"),
        }
    }

    /// Returns whether one notice leads to one undisturbed drain, without a note for other sources of the same notice.
    pub fn is_undisturbed(self) -> bool {
        let waits = matches!(self, Self::Attached | Self::Balanced | Self::Stopping);
        let noted = matches!(self, Self::Maintained | Self::Announced);
        self.drain() == Some("drained") && self.notices().len() == 1 && self.budget().is_none() && !waits && !noted
    }

    /// Returns the name of the budget that allows no disruption, and of the StatefulSet with the one pod that it protects.
    pub fn budget(self) -> Option<&'static str> {
        match self {
            Self::HeldBack => Some("orders"),
            Self::Stuck => Some("ledger"),
            Self::Doomed => Some("cache"),
            _ => None,
        }
    }

    /// Returns how many pods the node has for its part.
    pub fn special_pods(self) -> usize {
        usize::from(self.budget().is_some() || self == Self::Attached)
    }

    /// Returns how many evictable pods are left at the end, of `pods` and the pod with a budget.
    pub fn pods_left(self, pods: usize) -> usize {
        match self {
            Self::Rebalanced | Self::Spared => pods,
            Self::Stuck => 1,
            _ => 0,
        }
    }
}

impl Plan {
    /// Plans a cluster of `nodes` nodes, at least one for each part.
    pub fn new(nodes: usize, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let digits = nodes.to_string().len();
        let parts = FIRST.into_iter().chain(FURTHER.into_iter().cycle());
        let member = |(number, part): (usize, Part)| Member {
            name: format!("node-{number:0digits$}"),
            instance: format!("i-{:013x}{number:04x}", rng.u64(0x1_0000_0000..0x7_ffff_ffff_ffff)),
            pods: (0..rng.usize(2..=4)).map(|_| Duration::from_millis(rng.u64(1_000..4_000))).collect(),
            part,
        };
        Self { nodes: (1..).zip(parts).take(nodes).map(member).collect(), seed }
    }

    /// Returns the nodes with this part.
    pub fn with(&self, part: Part) -> impl Iterator<Item = &Member> {
        self.nodes.iter().filter(move |member| member.part == part)
    }

    /// Returns whether the cluster has too many nodes to report on each.
    pub fn is_large(&self) -> bool {
        self.nodes.len() > 24
    }

    /// Returns the nodes to report on.
    pub fn shown(&self) -> &[Member] {
        if self.is_large() { &self.nodes[..FIRST.len()] } else { &self.nodes }
    }

    /// Creates the cluster in the simulated world.
    pub fn build(&self, world: &World) {
        world.aws.autoscaling.add_hook(GROUP, TERMINATING, HookSpec::terminating(HOOK_TIMEOUT));
        world.aws.autoscaling.add_hook(GROUP, LAUNCHING, HookSpec::launching(HOOK_TIMEOUT));
        world.aws.autoscaling.add_hook(OTHER_GROUP, TERMINATING, HookSpec::terminating(HOOK_TIMEOUT));
        world.kube.detach_after(Some(DETACHED));
        let web = world.aws.elb.add_group("web", DRAINING);
        let spec = GroupSpec { target_groups: vec![web.clone()], ..GroupSpec::default() };
        world.aws.autoscaling.put_group(GROUP, spec);
        let managed = [("aws-node-termination-handler/managed", "")];
        for (_, instance) in [OTHER, NEW] {
            world.aws.ec2.put(instance, &[]);
        }
        for Member { name, instance, pods, part } in &self.nodes {
            world.aws.ec2.put(instance, &managed);
            world.kube.add_node(name, instance);
            world.kube.add_pod(Pod::on(name).named(&format!("agent-{name}")).namespace("kube-system").daemonset());
            let number = name.trim_start_matches("node-");
            for (stops_in, letter) in pods.iter().zip('a'..) {
                world.kube.add_pod(Pod::on(name).named(&format!("web-{number}{letter}")).stops_in(*stops_in));
            }
            if *part == Part::Balanced {
                world.aws.elb.register(&web, instance, 80);
            }
            if *part == Part::Attached {
                let pod = Pod::on(name).named(STORE).statefulset("store").claim("data-store-0");
                world.kube.add_pod(pod.stops_in(Duration::from_secs(1)));
            }
            if let Some(app) = part.budget() {
                let pod = Pod::on(name).named(&format!("{app}-0")).statefulset(app).labels([("app", app)]);
                world.kube.add_pod(pod.stops_in(Duration::from_secs(2)));
                world.kube.add_budget("default", app, [("app", app)], Limit::MinAvailable(1));
            }
        }
    }
}
