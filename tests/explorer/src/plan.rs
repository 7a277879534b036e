//! The plan of a world: all that happens in it but for the service's own acts. A plan comes from one number, and can be made smaller.

use ebbtide_sim::fault::Fault;
use ebbtide_sim::messages::Wrapping;
use fastrand::Rng;
use std::fmt;
use std::time::Duration;

/// Seconds in which everything that is planned begins; faults end a little later.
const BUSY: u64 = 120;

/// All that happens in a world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all random numbers in the service and in the simulation.
    pub seed: u64,
    /// The settings of all replicas.
    pub flags: Flags,
    /// Seconds by which the machine's clock is ahead.
    pub clock_ahead: i64,
    /// For each replica the ends of its processes, one after the other.
    pub replicas: Vec<Vec<End>>,
    /// The Nodes.
    pub nodes: Vec<NodePlan>,
    /// What is sent to the queue.
    pub notices: Vec<Notice>,
    /// What goes wrong.
    pub faults: Vec<Span>,
}

/// The settings that the explorer chooses from.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Flags {
    /// `--on rebalance=drain`.
    pub rebalance_drains: bool,
    /// `--on asg-launch=ready`.
    pub ready: bool,
    /// `--evict-daemonsets`.
    pub evict_daemonsets: bool,
    /// `--keep-empty-dir`.
    pub keep_empty_dir: bool,
    /// `--keep-unmanaged`.
    pub keep_unmanaged: bool,
    /// `--respect-do-not-disrupt`.
    pub respect: bool,
    /// `--at-deadline leave`.
    pub leave_pods: bool,
    /// `--heartbeat`, but for `auto`.
    pub heartbeat: Option<&'static str>,
    /// `--pod-grace`.
    pub pod_grace: Option<u64>,
    /// `--drain-timeout` for all kinds.
    pub drain_timeout: Option<u64>,
    /// `--uncordon-after`, but for the default of 20 minutes.
    pub uncordon_after: Option<u64>,
    /// `--on-failed-drain`, but for `continue`.
    pub on_failed: Option<&'static str>,
    /// Flags that need nothing of the oracle.
    pub others: Vec<&'static str>,
}

/// One Node and its pods.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Whether it has `ebbtide/ignore`.
    pub ignored: bool,
    /// Whether somebody cordoned it long ago.
    pub cordoned: bool,
    /// Second at which it registers, if not before everything.
    pub joins: Option<u64>,
    /// Second at which somebody uncordons it by hand, and whether with `ebbtide/ignore`.
    pub uncordoned: Option<(u64, bool)>,
    /// Its pods.
    pub pods: Vec<PodPlan>,
}

/// One pod.
#[derive(Clone, Copy, Debug)]
pub struct PodPlan {
    /// What it is.
    pub kind: PodKind,
    /// Its grace period in seconds.
    pub grace: u64,
    /// Seconds that its containers take to stop; for ever without.
    pub takes: Option<u64>,
    /// Whether its priority is that of critical pods.
    pub critical: bool,
    /// An annotation that asks not to disturb it.
    pub asks: Option<(&'static str, &'static str)>,
    /// Its budget.
    pub budget: Budget,
    /// Second at which it is bound to the node, unless that is cordoned; from the beginning on without.
    pub comes: Option<u64>,
}

/// Kinds of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodKind {
    /// Of a `ReplicaSet`.
    Web,
    /// Without a controller.
    Bare,
    /// Of a DaemonSet.
    Daemon,
    /// The mirror of a static pod.
    Mirror,
    /// With an emptyDir volume.
    EmptyDir,
    /// Its containers have ended.
    Finished,
    /// With a volume that must be detached.
    Claim,
}

/// Budgets of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// None.
    Free,
    /// Never allows an eviction.
    Never,
    /// Allows evictions from this second on.
    Opens(u64),
    /// One for all such pods, of which one may be missing.
    Shared,
}

/// A message, or several copies of it.
#[derive(Clone, Debug)]
pub struct Notice {
    /// Second at which it is sent.
    pub at: u64,
    /// What it says.
    pub kind: Kind,
    /// The instance that it names.
    pub target: Target,
    /// Seconds by which it is back-dated.
    pub age: u64,
    /// Delays of its copies, in seconds: they come in any order.
    pub copies: Vec<u64>,
    /// Whether the capacity goes as the notice says.
    pub real: bool,
}

/// Whose instance a notice names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// That of the n-th Node.
    Node(usize),
    /// Ours by its tag, without a Node.
    Unregistered,
    /// Of a cluster that its tags name.
    OtherCluster,
    /// Without tags and without a Node.
    Untagged,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A spot warning, with its action.
    Spot(&'static str),
    /// A rebalance recommendation.
    Rebalance,
    /// A state change to this state.
    State(&'static str),
    /// A scheduled change of this code, which begins so many seconds after the notice.
    Change(&'static str, i64),
    /// A capacity reservation takes the instance after so many seconds.
    Reservation(u64),
    /// A terminating hook with this timeout.
    Terminate(u64, Wrapping, Owner),
    /// A launching hook with this timeout.
    Launch(u64),
    /// A body that is no message.
    Garbage(&'static str),
}

/// Who completes a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Ebbtide.
    Us,
    /// Others: a name of `--ignore-hook`.
    Others,
    /// Ebbtide, but somebody else completes it after so many seconds.
    Early(u64),
}

/// The end of a process: at a moment of a call, and some turns of the scheduler later.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Number of moments of calls since the process began.
    pub moment: u64,
    /// Number of the scheduler's turns after it.
    pub turns: u8,
    /// Whether it is an ordered shutdown.
    pub ordered: bool,
    /// Seconds until the next process begins.
    pub down: u64,
}

/// A fault for some time.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First second.
    pub from: u64,
    /// Last second.
    pub to: u64,
    /// What goes wrong.
    pub trouble: Trouble,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// Calls of this operation meet this fault with this probability in a hundred.
    Calls(&'static str, Fault, u8),
    /// Lists come from a cache that stands still.
    StaleCache,
    /// Lists that no cache may answer are refused.
    Overload,
    /// Running watches break.
    BrokenWatches,
    /// Messages are delivered, and stay visible.
    Duplicates,
}

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
    &["--settle", "1s"],
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
];

fn chance(rng: &mut Rng, percent: u8) -> bool {
    rng.u8(..100) < percent
}

fn one<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

fn some<T>(rng: &mut Rng, percent: u8, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    chance(rng, percent).then(|| make(rng))
}

fn many<T>(rng: &mut Rng, range: std::ops::Range<usize>, mut make: impl FnMut(&mut Rng) -> T) -> Vec<T> {
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
        let notices = many(rng, notices, |rng| notice(rng, nodes.len()));
        let calm = chance(rng, 20);
        let faults = if calm { Vec::new() } else { many(rng, 1..8, span) };
        let ends = if chance(rng, 30) { 0..1 } else { 0..4 };
        let count = one(rng, &[1, 1, 1, 2, 2, 2, 3]);
        let replicas = (0..count).map(|_| many(rng, ends.clone(), end)).collect();
        let clock_ahead = some(rng, 10, |rng| rng.i64(0..200)).unwrap_or_default();
        Self { seed, flags: flags(rng), clock_ahead, replicas, nodes, notices, faults }
    }

    /// Returns the second from which on nothing new happens, and nothing goes wrong.
    #[must_use]
    pub fn calm_from(&self) -> u64 {
        let sent =
            self.notices.iter().map(|notice| notice.at + notice.copies.iter().max().copied().unwrap_or_default());
        sent.chain(self.faults.iter().map(|span| span.to)).max().unwrap_or_default()
    }

    /// Returns the longest time between two heartbeats.
    #[must_use]
    pub fn longest_beat(&self) -> Duration {
        let timeouts = self.notices.iter().map(|notice| match notice.kind {
            Kind::Terminate(timeout, ..) | Kind::Launch(timeout) => timeout,
            _ => 0,
        });
        Duration::from_secs(timeouts.max().unwrap_or_default() / 2 + 10)
    }

    /// Returns plans with one thing less.
    #[must_use]
    pub fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            all.push(plan);
        };
        for of in [2, 4] {
            // Halves first: a long story becomes short in few steps.
            for part in 0..of {
                let drop = |len: usize, n: usize| len >= of && n * of / len == part;
                let len = self.notices.len();
                if len >= of {
                    with(&|plan| plan.notices = kept(&plan.notices, |n| !drop(len, n)));
                }
            }
        }
        for n in 0..self.notices.len() {
            with(&|plan| drop(plan.notices.remove(n)));
            if !self.notices[n].copies.is_empty() {
                with(&|plan| plan.notices[n].copies.clear());
            }
            if self.notices[n].age > 0 {
                with(&|plan| plan.notices[n].age = 0);
            }
        }
        for n in 0..self.faults.len() {
            with(&|plan| _ = plan.faults.remove(n));
        }
        if self.replicas.len() > 1 {
            for n in 0..self.replicas.len() {
                with(&|plan| drop(plan.replicas.remove(n)));
            }
        }
        for n in 0..self.replicas.len() {
            for end in 0..self.replicas[n].len() {
                with(&|plan| _ = plan.replicas[n].remove(end));
            }
        }
        if self.nodes.len() > 1 {
            for n in 0..self.nodes.len() {
                with(&|plan| plan.remove_node(n));
            }
        }
        for n in 0..self.nodes.len() {
            for pod in 0..self.nodes[n].pods.len() {
                with(&|plan| _ = plan.nodes[n].pods.remove(pod));
            }
            with(&|plan| plan.nodes[n] = NodePlan { pods: plan.nodes[n].pods.clone(), ..plain() });
        }
        for n in 0..self.flags.others.len() {
            if self.flags.others[n].starts_with("--") {
                let values = self.flags.others[n + 1..].iter().take_while(|value| !value.starts_with("--")).count();
                with(&|plan| drop(plan.flags.others.drain(n..=n + values)));
            }
        }
        with(&|plan| plan.flags = Flags { others: plan.flags.others.clone(), ..Flags::default() });
        with(&|plan| plan.clock_ahead = 0);
        all
    }

    fn remove_node(&mut self, n: usize) {
        self.nodes.remove(n);
        self.notices.retain(|notice| notice.target != Target::Node(n));
        for notice in &mut self.notices {
            if let Target::Node(of) = &mut notice.target
                && *of > n
            {
                *of -= 1;
            }
        }
    }

    /// Returns the size of the plan, which shrinking must reduce.
    #[must_use]
    pub fn size(&self) -> usize {
        format!("{self:?}").len()
    }
}

fn kept<T: Clone>(all: &[T], keep: impl Fn(usize) -> bool) -> Vec<T> {
    all.iter().enumerate().filter(|(n, _)| keep(*n)).map(|(_, one)| one.clone()).collect()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, flags, clock_ahead, replicas, nodes, notices, faults } = self;
        writeln!(f, "seed {seed}, clock {clock_ahead} s ahead, {flags:?}")?;
        replicas.iter().try_for_each(|ends| writeln!(f, "replica {ends:?}"))?;
        nodes.iter().try_for_each(|node| writeln!(f, "{node:?}"))?;
        notices.iter().try_for_each(|notice| writeln!(f, "{notice:?}"))?;
        faults.iter().try_for_each(|span| writeln!(f, "{span:?}"))
    }
}

impl Flags {
    /// Returns the command line.
    #[must_use]
    pub fn args(&self) -> Vec<String> {
        let mut args: Vec<String> = self.others.iter().map(|&flag| flag.to_owned()).collect();
        let switches = [
            (self.evict_daemonsets, "--evict-daemonsets"),
            (self.keep_empty_dir, "--keep-empty-dir"),
            (self.keep_unmanaged, "--keep-unmanaged"),
            (self.respect, "--respect-do-not-disrupt"),
            (self.leave_pods, "--at-deadline=leave"),
            (self.rebalance_drains, "--on=rebalance=drain"),
            (self.ready, "--on=asg-launch=ready"),
        ];
        args.extend(switches.into_iter().filter(|(on, _)| *on).map(|(_, flag)| flag.to_owned()));
        args.extend(self.heartbeat.map(|how| format!("--heartbeat={how}")));
        args.extend(self.pod_grace.map(|grace| format!("--pod-grace={grace}s")));
        args.extend(self.drain_timeout.map(|time| format!("--drain-timeout={time}s")));
        args.extend(self.uncordon_after.map(|time| format!("--uncordon-after={time}s")));
        args.extend(self.on_failed.map(|how| format!("--on-failed-drain={how}")));
        args
    }
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
        heartbeat: some(rng, 30, |rng| one(rng, &["off", "5s", "20s"])),
        pod_grace: some(rng, 15, |rng| rng.u64(1..100)),
        drain_timeout: some(rng, 50, |rng| rng.u64(60..400)),
        // A world with the default takes long, and shows no more.
        uncordon_after: some(rng, 90, |_| 60),
        on_failed: some(rng, 40, |rng| one(rng, &["leave", "abandon"])),
        others: others.concat(),
    }
}

fn plain() -> NodePlan {
    NodePlan { ignored: false, cordoned: false, joins: None, uncordoned: None, pods: Vec::new() }
}

fn node(rng: &mut Rng) -> NodePlan {
    NodePlan {
        ignored: chance(rng, 5),
        cordoned: chance(rng, 5),
        joins: some(rng, 10, |rng| rng.u64(..BUSY)),
        uncordoned: some(rng, 10, |rng| (rng.u64(..BUSY), rng.bool())),
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
        critical: chance(rng, 15),
        asks: some(rng, 15, |rng| one(rng, &NO_DISRUPTION)),
        budget: match rng.u8(..100) {
            0..8 => Budget::Never,
            8..15 => Budget::Opens(rng.u64(..BUSY)),
            15..30 => Budget::Shared,
            _ => Budget::Free,
        },
        comes: some(rng, 20, |rng| rng.u64(..BUSY)),
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
    }
}

fn span(rng: &mut Rng) -> Span {
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
