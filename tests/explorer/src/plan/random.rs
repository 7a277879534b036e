//! The plan that a seed stands for.

use super::added::is_said;
use super::{
    Budget, CRITICAL, End, Flags, Kind, NodePlan, Notice, Owner, Plan, PodKind, PodPlan, Source, Span, Target, Teller,
    Trouble,
};
use ebbtide_sim::fault::Fault;
use ebbtide_sim::messages::Wrapping;
use fastrand::Rng;
use std::time::Duration;

/// Seconds in which everything that is planned begins; faults end a little later.
pub(super) const BUSY: u64 = 120;

const OPERATIONS: [&str; 18] = [
    "*",
    "*",
    "*",
    "create pods/eviction",
    "delete pods",
    "list pods",
    "patch nodes",
    "get nodes",
    "list nodes",
    "watch nodes",
    "watch pods",
    "ReceiveMessage",
    "DeleteMessageBatch",
    "ChangeMessageVisibilityBatch",
    "RecordLifecycleActionHeartbeat",
    "CompleteLifecycleAction",
    "DescribeLifecycleHooks",
    "DescribeInstances",
];

/// Bodies that are no messages, or none that concern us.
const GARBAGE: [&str; 6] = [
    "",
    "not JSON",
    "[]",
    r#"{"detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","id":"x","time":"2026-11-21T12:00:00Z","detail":{"instance-id":"i-0"}}"#,
    r#"{"Type":"Notification","Message":"{\"Type\":\"Notification\",\"Message\":\"{}\"}"}"#,
    r#"{"Event":"autoscaling:TEST_NOTIFICATION","Service":"AWS Auto Scaling"}"#,
];

/// Flags that change nothing that the oracle judges.
const OTHERS: [&[&str]; 12] = [
    &["--complete-after", "10s"],
    &["--wait-for-volumes", "0s"],
    &["--taint", "going=soon:NoSchedule"],
    &["--exclude-from-load-balancers"],
    &["--events", "none"],
    &["--events", "lifecycle"],
    &["--delay", "spot=20s"],
    &["--hold", "both"],
    &["--cluster-name", "blue"],
    &["--out-of-service-taint"],
    &["--registration-grace", "5s"],
    &["--wave", "topology.kubernetes.io/zone=1"],
];

pub(super) fn chance(rng: &mut Rng, percent: u8) -> bool {
    rng.u8(..100) < percent
}

pub(super) fn one<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

pub(super) fn some<T>(rng: &mut Rng, percent: u8, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    chance(rng, percent).then(|| make(rng))
}

pub(super) fn many<T>(rng: &mut Rng, range: std::ops::Range<usize>, mut make: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    (0..rng.usize(range)).map(|_| make(rng)).collect()
}

impl Plan {
    /// Returns the plan that a seed stands for.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        // Most worlds are small: many small ones meet more than few large ones.
        let nodes = match rng.u16(..1000) {
            0..5 => 10..51,
            5..80 => 4..9,
            _ => 1..4,
        };
        let nodes = many(rng, nodes, node);
        let notices = 1..nodes.len() * 3 + 2;
        let mut notices = many(rng, notices, |rng| notice(rng, nodes.len()));
        let calm = chance(rng, 20);
        let faults = if calm { Vec::new() } else { many(rng, 1..8, span) };
        let ends = if chance(rng, 30) { 0..1 } else { 0..4 };
        let count = one(rng, &[1, 1, 1, 2, 2, 2, 3]);
        let replicas = (0..count).map(|_| many(rng, ends.clone(), end)).collect();
        let clock_ahead = some(rng, 10, |rng| rng.i64(0..200)).unwrap_or_default();
        let mut flags = flags(rng);
        if chance(rng, 30) {
            flags.source = Source::Both;
            tellers(rng, &mut notices);
        }
        let deployments = Vec::new();
        let mut plan =
            Self { seed, flags, disobeys: |_| (), clock_ahead, replicas, nodes, deployments, notices, faults };
        plan.add();
        plan.add_hooks();
        plan.add_looks();
        plan.add_limits();
        plan.add_pools();
        plan.add_tiers();
        plan.add_deployments();
        plan.lose_nodes();
        plan.make_stubborn();
        plan.add_outages();
        plan
    }
}

/// Lets Nodes tell of some notices: each of one of its kind, because there is one annotation for each kind, and two notices of a kind
/// within two minutes are the same for a Node.
fn tellers(rng: &mut Rng, notices: &mut Vec<Notice>) {
    let of = |notice: &Notice| (notice.target, std::mem::discriminant(&notice.kind));
    let mut said = Vec::new();
    for notice in notices.iter_mut() {
        let own = of(notice);
        if !is_said(notice) || said.contains(&own) {
            continue;
        }
        notice.teller = one(rng, &[Teller::Queue, Teller::Node, Teller::Node, Teller::Both]);
        if notice.teller != Teller::Queue {
            said.push(own);
            notice.age = 0;
            notice.taken_back = some(rng, 25, |rng| rng.u64(1..200));
        }
        if notice.teller == Teller::Node {
            notice.copies.clear();
        }
    }
    notices.retain(|notice| notice.teller != Teller::Queue || !said.contains(&of(notice)));
}

fn flags(rng: &mut Rng) -> Flags {
    let others = many(rng, 0..3, |rng| rng.usize(..OTHERS.len()));
    let mut others: Vec<&[&str]> = others.into_iter().map(|n| OTHERS[n]).collect();
    others.sort_unstable();
    others.dedup_by_key(|flag| flag[0]);
    Flags {
        rebalance_drains: rng.bool(),
        ready: chance(rng, 30),
        evict_daemonsets: chance(rng, 30),
        keep_empty_dir: chance(rng, 20),
        keep_unmanaged: chance(rng, 20),
        respect: chance(rng, 40),
        leave_pods: chance(rng, 15),
        tiers: &[],
        surge: None,
        heartbeat: some(rng, 30, |rng| one(rng, &["off", "5s", "20s"])),
        pod_grace: some(rng, 15, |rng| rng.u64(1..100)),
        drain_timeout: some(rng, 50, |rng| rng.u64(60..400)),
        // A world with the default takes long, and shows no more.
        uncordon_after: some(rng, 90, |_| 60),
        on_failed: some(rng, 40, |rng| one(rng, &["leave", "abandon"])),
        source: Source::Queue,
        before: None,
        condition: None,
        shift: false,
        looks: false,
        node_hook: None,
        limit: None,
        shapes: false,
        others: others.concat(),
    }
}

fn node(rng: &mut Rng) -> NodePlan {
    NodePlan {
        ignored: chance(rng, 5),
        cordoned: chance(rng, 5),
        joins: some(rng, 10, |rng| rng.u64(..BUSY)),
        uncordoned: some(rng, 10, |rng| (rng.u64(..BUSY), rng.bool())),
        lost: None,
        pods: many(rng, 0..4, pod),
    }
}

fn pod(rng: &mut Rng) -> PodPlan {
    const NO_DISRUPTION: [(&str, &str); 4] = [
        ("ebbtide/ignore", "true"),
        ("ebbtide/ignore", "false"),
        ("karpenter.sh/do-not-disrupt", "true"),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ];
    use PodKind::{Bare, Claim, Daemon, EmptyDir, Finished, Mirror, Web};
    PodPlan {
        kind: one(rng, &[Web, Web, Web, Web, Bare, Daemon, Mirror, EmptyDir, Finished, Claim]),
        grace: one(rng, &[1, 10, 30, 30, 60, 300]),
        takes: some(rng, 90, |rng| one(rng, &[0, 0, 1, 5, 20, 70])),
        priority: if chance(rng, 15) { CRITICAL } else { 0 },
        asks: some(rng, 15, |rng| one(rng, &NO_DISRUPTION)),
        budget: match rng.u8(..100) {
            0..8 => Budget::Never,
            8..15 => Budget::Opens(rng.u64(..BUSY)),
            15..30 => Budget::Shared,
            _ => Budget::Free,
        },
        comes: some(rng, 20, |rng| rng.u64(..BUSY)),
        returns: None,
    }
}

fn notice(rng: &mut Rng, nodes: usize) -> Notice {
    let target = match rng.u8(..100) {
        0..5 => Target::Unregistered,
        5..10 => Target::OtherCluster,
        10..15 => Target::Untagged,
        _ => Target::Node(rng.usize(..nodes)),
    };
    let kind = match rng.u8(..100) {
        0..22 => Kind::Spot(one(rng, &["terminate", "terminate", "stop", "hibernate"])),
        22..32 => Kind::Rebalance,
        32..40 => Kind::State(one(rng, &["stopping", "shutting-down", "stopped", "terminated", "pending"])),
        40..50 => Kind::Change(
            one(rng, &["INSTANCE_RETIREMENT", "INSTANCE_REBOOT_MAINTENANCE", "INSTANCE_STOP"]),
            rng.i64(-60..900),
        ),
        50..55 => Kind::Reservation(rng.u64(10..600)),
        55..90 => {
            let owner = match rng.u8(..100) {
                0..8 => Owner::Others,
                8..16 => Owner::Early(rng.u64(1..100)),
                _ => Owner::Us,
            };
            let wrapping = one(rng, &[Wrapping::Event, Wrapping::Event, Wrapping::Sns, Wrapping::Bare]);
            Kind::Terminate(one(rng, &[30, 60, 120, 300, 600]), wrapping, owner)
        }
        90..95 => Kind::Launch(one(rng, &[30, 120, 600])),
        _ => Kind::Garbage(one(rng, &GARBAGE)),
    };
    Notice {
        at: rng.u64(..BUSY),
        kind,
        target,
        age: some(rng, 20, |rng| one(rng, &[1, 30, 100, 130, 1000])).unwrap_or_default(),
        copies: if chance(rng, 25) { many(rng, 1..3, |rng| rng.u64(..90)) } else { Vec::new() },
        real: chance(rng, 85),
        teller: Teller::Queue,
        taken_back: None,
        lag: 0,
        called_off: None,
        hook: None,
        proof: None,
    }
}

pub(super) fn span(rng: &mut Rng) -> Span {
    let from = rng.u64(..BUSY);
    let trouble = match rng.u8(..100) {
        0..14 => Trouble::StaleCache,
        14..16 => Trouble::Overload,
        16..20 => Trouble::BrokenWatches,
        20..25 => Trouble::Duplicates,
        _ => {
            let time = Duration::from_millis(one(rng, &[0, 1, 5, 50, 700, 4000, 20_000]));
            let fault = match rng.u8(..10) {
                0 => Fault::Throttle,
                1 => Fault::ThrottleFor(rng.u32(1..20)),
                2 => Fault::Status(one(rng, &[500, 503])),
                3 => Fault::Hang,
                4 => Fault::Disconnect,
                5 => Fault::LostResponse,
                6 => one(rng, &[Fault::CloseWatch, Fault::ExpireWatch]),
                7 => Fault::Late(time),
                _ => Fault::Slow(time),
            };
            Trouble::Calls(one(rng, &OPERATIONS), fault, one(rng, &[5, 20, 50, 100]))
        }
    };
    Span { from, to: from + one(rng, &[1, 10, 40, 100]), trouble }
}

fn end(rng: &mut Rng) -> End {
    End {
        moment: if rng.bool() { rng.u64(1..60) } else { rng.u64(1..400) },
        turns: one(rng, &[0, 0, 1, 2, 3, 5, 9, 20]),
        ordered: chance(rng, 30),
        down: one(rng, &[0, 1, 10, 35, 100]),
    }
}
