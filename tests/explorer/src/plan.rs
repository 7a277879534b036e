//! The plan of a world: all that happens in it but for the service's own acts. A plan comes from one number, and can be made smaller.

mod added;
mod deployments;
mod losses;
mod outages;
mod random;
mod smaller;
mod stubborn;

pub use deployments::DeploymentPlan;
pub use losses::Loss;

use ebbtide_sim::fault::Fault;
use ebbtide_sim::kube::Placement;
use ebbtide_sim::messages::Wrapping;
use std::fmt;

/// All that happens in a world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all random numbers in the service and in the simulation.
    pub seed: u64,
    /// The settings of all replicas, as the judge knows them.
    pub flags: Flags,
    /// What the replicas make of the settings without the judge's knowledge: nothing, but where the judge itself is tested.
    pub disobeys: fn(&mut Flags),
    /// Seconds by which the machine's clock is ahead.
    pub clock_ahead: i64,
    /// For each replica the ends of its processes, one after the other.
    pub replicas: Vec<Vec<End>>,
    /// The Nodes.
    pub nodes: Vec<NodePlan>,
    /// The Deployments.
    pub deployments: Vec<DeploymentPlan>,
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
    /// `--priority-tier`, in ascending order; empty for the default.
    pub tiers: &'static [i32],
    /// `--surge`, in seconds.
    pub surge: Option<u64>,
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
    /// `--source`.
    pub source: Source,
    /// `--when scheduled-change=…-before`, in seconds.
    pub before: Option<u64>,
    /// Toleration in seconds and action of the rule of `--on-condition`.
    pub condition: Option<(u64, &'static str)>,
    /// `--zonal-shift any`.
    pub shift: bool,
    /// Whether the replicas look at what EC2 lists.
    pub looks: bool,
    /// Timeout in seconds of the hook that `--node-hook` names, if it is set.
    pub node_hook: Option<u64>,
    /// `--max-draining`, and whether all that AWS can confirm is verified.
    pub limit: Option<(u64, bool)>,
    /// Whether the queue's default limit holds.
    pub shapes: bool,
    /// Flags that need nothing of the oracle.
    pub others: Vec<&'static str>,
}

/// What gives notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The queue.
    #[default]
    Queue,
    /// The queue and the Nodes.
    Both,
    /// The Nodes alone.
    Nodes,
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
    /// How it is lost, if it is.
    pub lost: Option<Loss>,
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
    /// Its priority.
    pub priority: i32,
    /// An annotation that asks not to disturb it.
    pub asks: Option<(&'static str, &'static str)>,
    /// Its budget.
    pub budget: Budget,
    /// Second at which it is bound to the node, unless that is cordoned; from the beginning on without.
    pub comes: Option<u64>,
    /// How its successors get to the same node, cordoned or not, and how many milliseconds after its termination began.
    pub returns: Option<(Placement, u64)>,
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
    /// Two, which the API server refuses to evict with a failure.
    Several,
}

/// A message, or several copies of it, or what a Node says.
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
    /// Who tells of it.
    pub teller: Teller,
    /// Seconds after which the Node takes it back.
    pub taken_back: Option<u64>,
    /// Seconds by which the message of a change is later than the Node's word about it.
    pub lag: u64,
    /// Seconds after which AWS calls the change off by a message.
    pub called_off: Option<u64>,
    /// What the group does with the instance that a Node says is terminated, if `--node-hook` is set.
    pub hook: Option<AtHook>,
    /// Seconds after its message from which on AWS shows the same, in worlds with limits: without, it is forged, or AWS shows no such thing.
    pub proof: Option<u64>,
}

/// How a group terminates an instance.
#[derive(Clone, Copy, Debug)]
pub struct AtHook {
    /// Seconds after the Node's word from which on Auto Scaling shows that it terminates the instance.
    pub shown: u64,
    /// Seconds after the Node's word at which the instance begins to wait at a hook, if it does.
    pub waits: Option<i64>,
    /// Whether that is another hook than the named one.
    pub elsewhere: bool,
}

/// Who tells of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// A message.
    Queue,
    /// The Node, by the agent's annotation.
    Node,
    /// Both at the same time.
    Both,
    /// EC2, which lists it, and tells nobody.
    Looks,
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
    /// The Node's condition, until it takes that back.
    Condition,
    /// Traffic is shifted away from this zone, for so many seconds.
    Shift(usize, u64),
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
    /// All calls to SQS meet this fault.
    Sqs(Fault),
    /// All calls to the API server meet this fault, and whether running watches break, too.
    Away(Fault, bool),
    /// AWS calls the credentials expired that it has given out, and gives out the same.
    Expired,
}

/// Minimum priority of critical pods.
pub const CRITICAL: i32 = 2_000_000_000;

/// The calls to SQS.
pub const SQS: [&str; 3] = ["ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"];

impl Trouble {
    /// Whether calls of this operation may fail.
    #[must_use]
    pub fn meets(self, operation: &str) -> bool {
        match self {
            Self::Calls(met, ..) => met == "*" || met == operation,
            Self::Sqs(_) => SQS.contains(&operation),
            Self::Away(..) => operation.contains(' '),
            Self::Expired => !operation.contains(' '),
            Self::StaleCache | Self::Overload | Self::BrokenWatches | Self::Duplicates => false,
        }
    }

    /// Whether it is an outage that the documents promise to bear, or somebody who denies evictions. Nothing of it has an effect that is
    /// not told.
    #[must_use]
    pub const fn is_outage(self) -> bool {
        matches!(self, Self::Sqs(_) | Self::Away(..) | Self::Expired | Self::Calls(_, Fault::Refuse(..), _))
    }
}

impl Plan {
    /// Returns the second from which on nothing new happens, and nothing goes wrong.
    #[must_use]
    pub fn calm_from(&self) -> u64 {
        let planned = |notice: &Notice| match notice.kind {
            Kind::Change(_, after) if self.flags.before.is_some() => u64::try_from(after).ok(),
            Kind::Condition => self.flags.condition.map(|(toleration, _)| toleration),
            Kind::Shift(_, after) => Some(after),
            _ => None,
        };
        let sent = self.notices.iter().map(|notice| {
            let waits = notice.hook.and_then(|hook| u64::try_from(hook.waits?).ok());
            let later = [Some(notice.lag), notice.taken_back, notice.called_off, planned(notice), waits, notice.proof];
            let copies = notice.copies.iter().map(|after| notice.lag + after);
            notice.at + later.into_iter().flatten().chain(copies).max().unwrap_or_default()
        });
        // A hook is sought for a while longer, and EC2 is looked at after a while.
        let search = if self.flags.looks { 80 } else { 0 }.max(if self.flags.node_hook.is_some() { 40 } else { 0 });
        let lost = self.nodes.iter().filter_map(|node| Some(self.collected_by(node.lost?)));
        sent.chain(self.faults.iter().map(|span| span.to)).chain(lost).max().unwrap_or_default() + search
    }

    /// Returns the dimensions that few worlds have, and that this one has.
    #[must_use]
    pub fn rare(&self) -> Vec<&'static str> {
        let pods = || self.nodes.iter().flat_map(|node| &node.pods);
        let any = |is: fn(&Trouble) -> bool| self.faults.iter().any(|span| is(&span.trouble));
        let is_made_up = |it: &Notice| it.proof.is_none() && matches!(it.kind, Kind::Terminate(..) | Kind::Spot(_));
        let all = [
            ("returns", pods().any(|pod| pod.returns.is_some())),
            ("graces", pods().any(|pod| pod.grace >= stubborn::LONG)),
            ("budgets", pods().any(|pod| pod.budget == Budget::Several)),
            ("sqs", any(|trouble| matches!(trouble, Trouble::Sqs(_)))),
            ("away", any(|trouble| matches!(trouble, Trouble::Away(..)))),
            ("expired", any(|trouble| matches!(trouble, Trouble::Expired))),
            ("refusals", any(|trouble| matches!(trouble, Trouble::Calls(_, Fault::Refuse(..), _)))),
            ("reboots", self.flags.condition.is_some_and(|(_, action)| action == "reboot")),
            ("surge", !self.deployments.is_empty()),
            ("collected", self.nodes.iter().any(|node| node.lost.is_some())),
            ("tiers", !self.flags.tiers.is_empty()),
            ("pools", self.flags.others.contains(&"--pool")),
            ("forged", self.flags.shapes && self.notices.iter().any(is_made_up)),
        ];
        all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    }

    /// Whether nothing goes wrong but outages, and no process ends.
    #[must_use]
    pub fn has_only_outages(&self) -> bool {
        self.faults.iter().all(|span| span.trouble.is_outage()) && self.replicas.iter().all(Vec::is_empty)
    }

    /// Returns the seconds for which a hook may live because of a long grace period: docs/deadlines.md, "Deadlines".
    #[must_use]
    pub fn longest_life(&self) -> u64 {
        let is_long = self.nodes.iter().flat_map(|node| &node.pods).any(|pod| pod.grace >= stubborn::LONG);
        let lives = self.notices.iter().map(|notice| match notice.kind {
            // By default a grace period adds two hours at most: docs/deadlines.md, "A hook's room for grace periods".
            Kind::Terminate(timeout, ..) => (timeout * 100).min(timeout.max(900) + 2 * 3600),
            _ => 0,
        });
        lives.filter(|_| is_long).max().unwrap_or_default()
    }

    /// Returns the zone of a node, of three, and its group, of two.
    #[must_use]
    pub fn place(node: usize) -> (usize, usize) {
        (node % 3, node % 2)
    }

    /// Whether the nodes are in different zones and in groups. All that a wave is judged by are in one zone.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.flags.condition.is_some() && !self.flags.others.contains(&"--wave")
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, flags, disobeys: _, clock_ahead, replicas, nodes, deployments, notices, faults } = self;
        writeln!(f, "seed {seed}, clock {clock_ahead} s ahead, {flags:?}")?;
        replicas.iter().try_for_each(|ends| writeln!(f, "replica {ends:?}"))?;
        nodes.iter().try_for_each(|node| writeln!(f, "{node:?}"))?;
        deployments.iter().try_for_each(|deployment| writeln!(f, "{deployment:?}"))?;
        notices.iter().try_for_each(|notice| writeln!(f, "{notice:?}"))?;
        faults.iter().try_for_each(|span| writeln!(f, "{span:?}"))
    }
}

impl Flags {
    /// Whether the replicas ask AWS to confirm messages. Some messages are forged then.
    #[must_use]
    pub const fn asks_aws(&self) -> bool {
        self.limit.is_some() || self.shapes
    }

    /// Returns the command line.
    #[must_use]
    pub fn args(&self) -> Vec<String> {
        // What is about hooks is refused where none is completed.
        let about_hooks = self.source != Source::Nodes || self.node_hook.is_some();
        let is_meant = |flags: &&[&str]| about_hooks || flags[0] != "--complete-after";
        let others = self.others.chunk_by(|_, next| !next.starts_with("--")).filter(is_meant).flatten();
        let mut args: Vec<String> = others.map(|&flag| flag.to_owned()).collect();
        let switches = [
            (self.evict_daemonsets, "--evict-daemonsets"),
            (self.keep_empty_dir, "--keep-empty-dir"),
            (self.keep_unmanaged, "--keep-unmanaged"),
            (self.respect, "--respect-do-not-disrupt"),
            (self.leave_pods, "--at-deadline=leave"),
            (self.rebalance_drains, "--on=rebalance=drain"),
            (self.ready, "--on=asg-launch=ready"),
            (self.shift, "--zonal-shift=any"),
            (self.node_hook.is_some(), "--node-hook=drain"),
        ];
        args.extend(switches.into_iter().filter(|(on, _)| *on).map(|(_, flag)| flag.to_owned()));
        let source: &[&str] = match (self.source, self.looks) {
            (Source::Queue, false) => &[],
            (Source::Queue, true) => &["--ec2-poll-interval=1m"],
            (Source::Both, false) => &["--source", "queue,nodes", "--pod-namespace=ebbtide"],
            (Source::Both, true) => {
                &["--source", "queue,nodes,ec2", "--ec2-poll-interval=1m", "--pod-namespace=ebbtide"]
            }
            (Source::Nodes, _) => &["--source", "nodes", "--pod-namespace=ebbtide"],
        };
        args.extend(source.iter().map(|&flag| flag.to_owned()));
        let is_elected = self.source == Source::Queue && self.collect_nodes();
        args.extend(is_elected.then(|| "--pod-namespace=ebbtide".to_owned()));
        let rule = |(toleration, action)| format!("--on-condition=KernelReady=False:{toleration}s={action}");
        args.extend(self.condition.map(rule));
        args.extend(self.before.map(|before| format!("--when=scheduled-change={before}s-before")));
        args.extend(self.heartbeat.filter(|_| about_hooks).map(|how| format!("--heartbeat={how}")));
        args.extend(self.pod_grace.map(|grace| format!("--pod-grace={grace}s")));
        args.extend(self.surge.map(|time| format!("--surge={time}s")));
        let tiers: Vec<String> = self.tiers.iter().map(i32::to_string).collect();
        args.extend((!tiers.is_empty()).then(|| format!("--priority-tier={}", tiers.join(","))));
        args.extend(self.drain_timeout.map(|time| format!("--drain-timeout={time}s")));
        args.extend(self.uncordon_after.map(|time| format!("--uncordon-after={time}s")));
        args.extend(self.on_failed.filter(|_| about_hooks).map(|how| format!("--on-failed-drain={how}")));
        match self.limit {
            Some((max, all)) => {
                args.push(format!("--max-draining={max}"));
                args.extend(all.then(|| "--verify=always".to_owned()));
            }
            // With the default limit AWS must show what is real.
            None if !self.shapes => args.push("--max-draining=none".to_owned()),
            None => {}
        }
        args
    }
}
