//! What joined the worlds later. It is drawn from a generator of its own, so that a seed keeps the rest of its world, and half of the
//! worlds keep all.

use super::random::{BUSY, chance, many, one, some, span};
use super::{
    AtHook, Budget, CRITICAL, Flags, Kind, NodePlan, Notice, Owner, Plan, PodKind, PodPlan, Source, Target, Teller,
    Trouble,
};
use crate::oracle::limits::CONFIRMATIONS;
use ebbtide_sim::messages::Wrapping;
use fastrand::Rng;

/// Makes the generator differ from that of the rest.
const OTHER: u64 = 0x6164_6465_645f_6c61;

/// The same for hooks, which joined after the others.
const HOOKS: u64 = 0x6e6f_6465_686f_6f6b;

/// The same for what EC2 lists.
const LOOKS: u64 = 0x6c6f_6f6b_735f_6563;

/// The same for limits.
const LIMITS: u64 = 0x6c69_6d69_7473_5f61;

/// The same for the default limit.
const DEFAULT_LIMIT: u64 = 0x6c69_6d69_7473_5f64;

/// The same for pools of nodes.
const POOLS: u64 = 0x706f_6f6c_735f_6f66;

/// A pool whose settings change nothing that the oracle judges: the nodes with an even number, or all but them.
const OWN: [&str; 2] = [
    "even;node-selector=explorer/even;delay=spot=20s;hold=both",
    "odd;node-selector=!explorer/even;delay=spot=15s;hold=none",
];

/// The same for what is forged under it.
const FORGED: u64 = 0x6c69_6d69_7473_5f66;

/// The same for tiers of pods.
const TIERS: u64 = 0x7469_6572_735f_6f66;

/// Values of `--priority-tier`, and the priorities of pods below them, in them, and at their limits.
const PRIORITY_TIERS: [&[i32]; 5] =
    [&[0, 1000, CRITICAL], &[0, 500, 1000, CRITICAL], &[-10, 0], &[1000, CRITICAL], &[0]];
const PRIORITIES: [i32; 8] = [-100, -10, 0, 0, 500, 1000, 1_000_000, CRITICAL];

impl Plan {
    /// Adds what a seed stands for besides the rest.
    pub(super) fn add(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ OTHER);
        if chance(rng, 50) {
            return;
        }
        if chance(rng, 50) {
            self.add_plans(rng);
        }
        if chance(rng, 25) {
            self.only_nodes(rng);
        }
        if chance(rng, 40) {
            self.add_conditions(rng);
        }
        if self.flags.source != Source::Nodes && chance(rng, 30) {
            self.add_shifts(rng);
        }
        // What is new is met by too many faults at first, and calm worlds are judged harder.
        if chance(rng, 30) {
            self.faults.clear();
        }
    }

    /// Lets changes be acted on shortly before they begin, and adds some: that messages and Nodes tell, and that are called off.
    fn add_plans(&mut self, rng: &mut Rng) {
        let before = one(rng, &[30, 120, 300, 600]);
        self.flags.before = Some(before);
        if chance(rng, 70) {
            self.flags.source = Source::Both;
        }
        for _ in 0..rng.usize(1..4) {
            let node = Target::Node(rng.usize(..self.nodes.len()));
            let is_change = |it: &Notice| it.target == node && matches!(it.kind, Kind::Change(..));
            if !self.notices.iter().any(is_change) {
                let mut notice = change(rng, node, self.flags.source);
                // While its drain is due: the hardest time.
                if let (Kind::Change(_, after), Some(_), true) = (notice.kind, notice.taken_back, chance(rng, 50)) {
                    let least = after.unsigned_abs().saturating_sub(before);
                    notice.taken_back = Some(least + rng.u64(1..before + 60));
                }
                self.notices.push(notice);
            }
        }
        for notice in self.notices.iter_mut().filter(|it| matches!(it.kind, Kind::Change(..))) {
            notice.called_off = some(rng, 25, |rng| rng.u64(1..500)).filter(|_| notice.teller != Teller::Node);
            if let (Some(off), Teller::Both) = (notice.called_off, notice.teller) {
                // Its metadata no longer list it either, a little earlier or later.
                notice.called_off = Some(off + notice.lag);
                notice.taken_back = Some((off + notice.lag).saturating_add_signed(one(rng, &[-30, -1, 0, 1, 10, 60])));
            }
        }
    }

    /// Lets nodes break: some go back in time, some later, and some stay broken.
    fn add_conditions(&mut self, rng: &mut Rng) {
        let toleration = one(rng, &[20, 60, 120]);
        let action = one(rng, &["drain", "drain", "reboot", "cordon", "report"]);
        // A reboot needs AWS.
        let action = if action == "reboot" && self.flags.source == Source::Nodes { "drain" } else { action };
        self.flags.condition = Some((toleration, action));
        if self.flags.source == Source::Queue {
            self.flags.source = Source::Both;
        }
        // When a condition began is told by the writer's clock.
        self.clock_ahead = 0;
        if chance(rng, 30) {
            let node = || NodePlan { pods: vec![web()], ..plain_node() };
            self.nodes.resize_with(self.nodes.len().max(10), node);
        }
        for n in 0..self.nodes.len() {
            let mut at = rng.u64(..60);
            for _ in 0..if chance(rng, 30) { rng.usize(1..4) } else { 0 } {
                let lasts = match rng.u8(..3) {
                    0 => Some(rng.u64(1..toleration)),
                    1 => Some(toleration + rng.u64(..200)),
                    _ => None,
                };
                let (kind, target) = (Kind::Condition, Target::Node(n));
                self.notices.push(Notice { at, teller: Teller::Node, taken_back: lasts, ..plain(kind, target) });
                let Some(lasts) = lasts else { break };
                at += lasts + rng.u64(1..30);
            }
        }
    }

    /// Shifts traffic away from zones. Each shift ends: without that a drain may wait for hours.
    fn add_shifts(&mut self, rng: &mut Rng) {
        self.flags.shift = true;
        for _ in 0..rng.usize(1..3) {
            let kind = Kind::Shift(rng.usize(..3), rng.u64(5..600));
            let copies = if chance(rng, 30) { vec![rng.u64(..600)] } else { Vec::new() };
            let at = rng.u64(..BUSY / 2);
            self.notices.push(Notice { at, copies, ..plain(kind, Target::Untagged) });
        }
    }

    /// Names the hook at which instances wait whose termination their Nodes tell: most do, some later, elsewhere or nowhere.
    pub(super) fn add_hooks(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ HOOKS);
        if self.flags.source != Source::Nodes || chance(rng, 30) {
            return;
        }
        let timeout = one(rng, &[30, 60, 120, 300, 600]);
        self.flags.node_hook = Some(timeout);
        for n in 0..self.nodes.len() {
            let (at, kind) = (rng.u64(..BUSY), Kind::Terminate(timeout, Wrapping::Event, Owner::Us));
            let is_said = |it: &Notice| it.target == Target::Node(n) && matches!(it.kind, Kind::Terminate(..));
            if chance(rng, 50) && !self.notices.iter().any(is_said) {
                self.notices.push(Notice { at, teller: Teller::Node, real: true, ..plain(kind, Target::Node(n)) });
            }
        }
        for notice in self.notices.iter_mut().filter(|it| matches!(it.kind, Kind::Terminate(..))) {
            let owner = some(rng, 10, |rng| Owner::Early(rng.u64(1..100))).unwrap_or(Owner::Us);
            notice.kind = Kind::Terminate(timeout, Wrapping::Event, owner);
            notice.taken_back = notice.taken_back.filter(|_| chance(rng, 30));
            let waits: Option<i64> = some(rng, 90, |rng| one(rng, &[-20, -5, 0, 0, 0, 0, 1, 5, 30, 90, 200]));
            let shown = one(rng, &[0, 0, 0, 5, 50]).min(waits.unwrap_or(50).unsigned_abs());
            notice.hook = Some(AtHook { shown, waits, elsewhere: chance(rng, 10) });
        }
        if !self.faults.is_empty() && chance(rng, 30) {
            let mut span = span(rng);
            if let Trouble::Calls(operation, ..) = &mut span.trouble {
                *operation = "DescribeAutoScalingInstances";
            }
            self.faults.push(span);
        }
    }

    /// Lets EC2 list changes of which nobody tells. Some are called off.
    pub(super) fn add_looks(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ LOOKS);
        if self.flags.source == Source::Nodes || !chance(rng, 15) {
            return;
        }
        self.flags.looks = true;
        for n in 0..self.nodes.len() {
            let target = Target::Node(n);
            let is_change = |it: &Notice| it.target == target && matches!(it.kind, Kind::Change(..));
            if chance(rng, 40) && !self.notices.iter().any(is_change) {
                let notice = change(rng, target, Source::Queue);
                let taken_back = some(rng, 40, |rng| rng.u64(1..1000));
                self.notices.push(Notice { teller: Teller::Looks, copies: Vec::new(), taken_back, ..notice });
            }
        }
    }

    /// Limits what messages can do, and forges some. AWS shows what is true, some of it later.
    pub(super) fn add_limits(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ LIMITS);
        let Flags { source, looks, shift, condition, .. } = self.flags;
        let is_other = source != Source::Queue || looks || shift || condition.is_some() || self.clock_ahead > 0;
        if is_other || !chance(rng, 20) {
            return;
        }
        self.flags.limit = Some((one(rng, &[1, 1, 2, 3]), chance(rng, 40)));
        let is_default = chance(&mut Rng::with_seed(self.seed ^ DEFAULT_LIMIT), 40);
        if is_default {
            (self.flags.limit, self.flags.shapes) = (None, true);
        }
        for notice in &mut self.notices {
            let shows = matches!(notice.kind, Kind::Spot(_) | Kind::State(_) | Kind::Change(..) | Kind::Terminate(..));
            if shows {
                let later = if matches!(notice.kind, Kind::Terminate(..)) { &[0][..] } else { &[0, 0, 1, 5, 20] };
                notice.proof = some(rng, if is_default { 100 } else { 70 }, |rng| one(rng, later));
                notice.real &= notice.proof.is_some();
            }
        }
        if chance(rng, 40) {
            self.faults.clear();
        }
        for span in &mut self.faults {
            if let Trouble::Calls(operation, ..) = &mut span.trouble
                && chance(rng, 30)
            {
                *operation = one(rng, &CONFIRMATIONS);
            }
        }
        if is_default {
            self.forge();
        }
    }

    /// Forges messages under the default limit, most of them of hooks, and denies heartbeats.
    fn forge(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ FORGED);
        if chance(rng, 40) {
            return;
        }
        for notice in self.notices.iter_mut().filter(|notice| notice.proof.is_some()) {
            let share = if matches!(notice.kind, Kind::Terminate(..)) { 50 } else { 20 };
            if chance(rng, share) {
                (notice.proof, notice.real) = (None, false);
            }
        }
        for span in &mut self.faults {
            if let Trouble::Calls(operation, ..) = &mut span.trouble
                && chance(rng, 30)
            {
                *operation = "RecordLifecycleActionHeartbeat";
            }
        }
    }

    /// Gives some nodes settings of their own.
    pub(super) fn add_pools(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ POOLS);
        if chance(rng, 90) {
            return;
        }
        for own in OWN {
            if chance(rng, 60) {
                self.flags.others.extend(["--pool", own]);
            }
        }
    }

    /// Takes the faults from half of the worlds, and from most of those the ends of processes, too. What is new is met by too many faults at
    /// first, and calm worlds are judged harder.
    pub(super) fn calm(&mut self, rng: &mut Rng) {
        if chance(rng, 50) {
            self.faults.clear();
            if chance(rng, 70) {
                self.replicas.iter_mut().for_each(Vec::clear);
            }
        }
    }

    /// Has pods leave in tiers of their own, and keeps some of them from that.
    pub(super) fn add_tiers(&mut self) {
        let rng = &mut Rng::with_seed(self.seed ^ TIERS);
        if !chance(rng, 12) {
            return;
        }
        self.flags.tiers = one(rng, &PRIORITY_TIERS);
        for pod in self.nodes.iter_mut().flat_map(|node| &mut node.pods) {
            pod.priority = one(rng, &PRIORITIES);
            if chance(rng, 25) {
                pod.budget = Budget::Never;
            }
        }
        if chance(rng, 50) {
            self.faults.clear();
        }
    }

    /// Leaves what only Nodes tell, without a queue.
    fn only_nodes(&mut self, rng: &mut Rng) {
        (self.flags.source, self.flags.ready) = (Source::Nodes, false);
        // It is about messages.
        self.flags.others.retain(|flag| *flag != "--out-of-service-taint");
        if self.flags.before.is_none() && chance(rng, 20) {
            self.flags.before = Some(one(rng, &[30, 120, 300]));
        }
        let mut said = Vec::new();
        self.notices.retain_mut(|notice| {
            let own = (notice.target, std::mem::discriminant(&notice.kind));
            if !is_said(notice) || said.contains(&own) {
                return false;
            }
            said.push(own);
            if notice.teller != Teller::Node {
                notice.taken_back = some(rng, 25, |rng| rng.u64(1..200));
            }
            (notice.teller, notice.age, notice.lag, notice.called_off) = (Teller::Node, 0, 0, None);
            notice.copies.clear();
            true
        });
    }
}

/// Whether a Node's metadata tell such a notice: docs/agent.md, "What a Node says".
pub(super) const fn is_said(notice: &Notice) -> bool {
    let has_annotation =
        matches!(notice.kind, Kind::Spot(_) | Kind::Rebalance | Kind::Change(..) | Kind::Terminate(_, _, Owner::Us));
    has_annotation && matches!(notice.target, Target::Node(_))
}

pub(super) const fn plain_node() -> NodePlan {
    NodePlan { ignored: false, cordoned: false, joins: None, uncordoned: None, lost: None, pods: Vec::new() }
}

pub(super) fn web() -> PodPlan {
    let (kind, budget) = (PodKind::Web, Budget::Free);
    PodPlan { kind, grace: 30, takes: Some(1), priority: 0, asks: None, budget, comes: None, returns: None }
}

fn plain(kind: Kind, target: Target) -> Notice {
    let (teller, copies) = (Teller::Queue, Vec::new());
    Notice {
        at: 0,
        kind,
        target,
        age: 0,
        copies,
        real: false,
        teller,
        taken_back: None,
        lag: 0,
        called_off: None,
        hook: None,
        proof: None,
    }
}

fn change(rng: &mut Rng, target: Target, source: Source) -> Notice {
    let after = rng.i64(30..900);
    let codes = ["INSTANCE_REBOOT_MAINTENANCE", "INSTANCE_STOP", "INSTANCE_STOP", "INSTANCE_RETIREMENT"];
    let teller = match source {
        Source::Queue => Teller::Queue,
        _ => one(rng, &[Teller::Queue, Teller::Node, Teller::Both, Teller::Both]),
    };
    Notice {
        at: rng.u64(..BUSY),
        kind: Kind::Change(one(rng, &codes), after),
        copies: if teller != Teller::Node && chance(rng, 25) {
            many(rng, 1..3, |rng| rng.u64(..300))
        } else {
            Vec::new()
        },
        real: chance(rng, 50),
        teller,
        taken_back: if teller == Teller::Queue {
            None
        } else {
            some(rng, 60, |rng| rng.u64(1..after.unsigned_abs() * 2))
        },
        lag: if teller == Teller::Both { one(rng, &[0, 0, 1, 30, 200]) } else { 0 },
        ..plain(Kind::Condition, target)
    }
}
