//! The judge: invariants over what the simulation recorded. It knows the plan and the documents, and nothing of the service, but how it
//! reads what it has recorded.
//!
//! Every rule looks at the moment at which it can be broken: a call arrives, or has had its effect. Times are in milliseconds since the
//! world began; a deadline is taken at the earliest time that the documents allow, so that no judgement is too hard.

mod collected;
mod ends;
mod hints;
mod hooks;
pub mod limits;
mod outages;
mod plans;
mod pods;
mod records;
mod repairs;
mod rest;
mod returns;
mod surges;
mod tiers;
mod waves;

use crate::plan::{Flags, Kind, Owner, Plan, PodKind, PodPlan, Source};
use ebbtide_sim::World;
use ebbtide_sim::calls::{Call, Moment};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tiers::Tier;
use tokio::sync::watch;

/// Tolerance of times in milliseconds: timers have a granularity, and marks whole seconds.
const SLACK: i64 = 1_500;

/// Tolerance if the machine's clock is wrong: docs/developers/design.md, rule 13.
const WRONG_CLOCK: i64 = 6_500;

/// Maximum number of moments of calls in a second. More are a loop without a pause, in which time stands still.
const MAX_MOMENTS: u32 = 20_000;

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The rule.
    pub rule: &'static str,
    /// Time and circumstances.
    pub text: String,
}

/// A notice that was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its number in the plan.
    pub notice: usize,
    /// Time of the first copy.
    pub at: i64,
    /// Messages that carry it, and have not been deleted.
    pub open: BTreeSet<String>,
    /// All messages that carry it.
    pub messages: Vec<String>,
    /// The lifecycle action that it is about.
    pub token: Option<String>,
}

/// What the oracle remembers.
#[derive(Debug, Default)]
pub struct Seen {
    /// Notices in the order of their sending.
    pub sent: Vec<Sent>,
    /// Tokens of lifecycle actions of which no message tells, by notice.
    pub waiting: BTreeMap<usize, String>,
    /// Number of processes that live.
    pub alive: u32,
    /// Number of processes that were started.
    pub starts: u32,
    /// Nodes that somebody uncordoned or excluded, since when.
    pub let_go: BTreeMap<usize, i64>,
    /// Last starts of the Nodes, as the Ready condition or the boot ID shows them.
    pub started: BTreeMap<usize, i64>,
    /// Last restarts, as the boot ID shows them.
    pub booted: BTreeMap<usize, i64>,
    /// Ends of the Nodes' instances.
    pub gone: BTreeMap<usize, i64>,
    /// Notices that Nodes have taken back, since when.
    pub taken_back: BTreeMap<usize, i64>,
    /// Notices that AWS shows, in worlds with limits.
    pub shown: BTreeSet<usize>,
    /// Messages that call notices off.
    pub called_off: BTreeMap<usize, String>,
    /// When these messages were deleted.
    done: BTreeMap<usize, i64>,
    /// Zonal shifts whose end has been sent.
    pub shift_over: BTreeSet<usize>,
    /// When the first message of a zonal shift was deleted.
    noted: BTreeMap<usize, i64>,
    /// Nodes that were cordoned after the last patch.
    cordoned: BTreeSet<usize>,
    /// Nodes that hints alone held cordoned after the last patch, and since when they were as many as may be.
    hinted: BTreeSet<String>,
    full_of_hints: Option<i64>,
    /// Nodes with a mark of a condition.
    repaired: BTreeSet<usize>,
    /// When EC2 was first asked to reboot each instance.
    rebooted: BTreeMap<String, i64>,
    /// Nodes whose deletion the API server was asked for last, and the rule by which each should stay.
    deleting: BTreeMap<usize, Option<Broken>>,
    /// Since when Nodes have the out-of-service taint.
    tainted: BTreeMap<usize, i64>,
    /// When the deletion of each deleted Node began.
    collected: Vec<i64>,
    /// The notices that Nodes keep as plans.
    plans: BTreeMap<usize, BTreeSet<usize>>,
    /// What happened besides calls.
    pub notes: Vec<(Duration, String)>,
    /// The first rule that was broken.
    pub broken: Option<Broken>,
    /// The last second, and its number of moments.
    pace: (i64, u32),
    deleted: usize,
    /// When a message was first named by a mark.
    marked: BTreeMap<String, i64>,
    tried: BTreeMap<String, i64>,
    /// First completions, by the action's token.
    completing: BTreeMap<String, i64>,
    /// First evictions from the Nodes.
    begun: BTreeSet<usize>,
    /// Tiers of the Nodes' pods whose turn has come.
    turns: BTreeSet<(usize, Tier)>,
    /// The restarts of each Deployment, and the times that they note in its template.
    restarts: BTreeMap<usize, Vec<(i64, Timestamp)>>,
    refused: BTreeMap<String, u32>,
    /// Number of accepted evictions and deletions that were judged.
    ended: usize,
    /// Number of successors of pods that were evicted since their Node's cordon.
    evicted_again: BTreeMap<String, usize>,
    /// When the API server was called about Nodes and pods while it was away.
    called_away: Vec<i64>,
    /// The last ten seconds with a try to end a pod, and the number of tries.
    tries: BTreeMap<String, (i64, u32)>,
}

/// The judge of one world.
#[derive(Debug)]
pub struct Oracle {
    world: World,
    plan: Plan,
    seen: Mutex<Seen>,
    /// The nodes of the Deployments' first pods.
    pub placed: Mutex<BTreeMap<String, usize>>,
    /// Number of moments of calls so far.
    pub moments: watch::Sender<u64>,
}

/// The times at which a drain may end.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    hard: Option<i64>,
    soft: Option<i64>,
}

impl Oracle {
    /// Begins to watch a world.
    #[must_use]
    pub fn watching(world: &World, plan: &Plan) -> Arc<Self> {
        let (world, plan) = (world.clone(), plan.clone());
        let (seen, placed, moments) = (Mutex::default(), Mutex::default(), watch::Sender::new(0));
        let oracle = Arc::new(Self { world, plan, seen, placed, moments });
        let judge = Arc::downgrade(&oracle);
        oracle.world.calls.observe(move |moment, call| {
            if let Some(oracle) = judge.upgrade() {
                oracle.look(moment, call);
                oracle.moments.send_modify(|moments| *moments += 1);
            }
        });
        oracle
    }

    /// Returns what was seen.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }

    /// Notes something besides calls, for the story.
    pub fn note(&self, text: String) {
        self.seen().notes.push((self.world.clock.elapsed(), text));
    }

    /// Says that a rule was broken, unless one was before.
    pub fn breaks(&self, rule: &'static str, text: impl Into<String>) {
        let mut seen = self.seen();
        self.broke(&mut seen, rule, text);
    }

    fn broke(&self, seen: &mut Seen, rule: &'static str, text: impl Into<String>) {
        let (at, text) = (self.world.clock.elapsed(), text.into());
        let text = format!("{:.3}s {text}", at.as_secs_f64());
        seen.notes.push((at, format!("BROKEN: {rule}")));
        seen.broken.get_or_insert(Broken { rule, text });
    }

    fn slack(&self) -> i64 {
        if self.plan.clock_ahead == 0 { SLACK } else { WRONG_CLOCK }
    }

    fn now(&self) -> i64 {
        ms(self.world.clock.elapsed())
    }

    fn look(&self, moment: Moment, call: &Call) {
        let seen = &mut self.seen();
        let second = self.now() / 1000;
        seen.pace = if seen.pace.0 == second { (second, seen.pace.1 + 1) } else { (second, 0) };
        if seen.pace.1 == MAX_MOMENTS {
            self.broke(seen, "no storm of calls", format!("{} {}", call.operation, call.subject));
            panic!("time must not stand still");
        }
        if moment == Moment::Arrived && seen.alive == 0 {
            self.broke(seen, "no call without a process", format!("{} {}", call.operation, call.subject));
        }
        if moment == Moment::Arrived {
            self.notes_absence(seen, &call.operation);
        }
        match (moment, call.operation.as_str()) {
            (Moment::Arrived, "create pods/eviction") => self.ends_pod(seen, call, false),
            (Moment::Arrived, "delete pods") => self.ends_pod(seen, call, true),
            (Moment::Arrived, "patch nodes") => self.patches(seen, call),
            (Moment::Served, "patch nodes") => {
                self.marks(seen, call);
                self.plans(seen, call);
                self.repairs(seen, call);
                self.uncordons(seen, call);
                self.hints(seen);
                self.records(seen, call);
                self.taints(seen, call);
            }
            (Moment::Arrived, "delete nodes") => self.deletes_node(seen, call),
            (Moment::Served, "delete nodes") => self.deleted_node(seen, call),
            (Moment::Served, "create pods/eviction" | "delete pods") => self.ended_pods(seen),
            (Moment::Arrived, operation) if self.is_needless(operation) => {
                self.broke(seen, "no call to AWS without a queue but those about a hook that is named", operation);
            }
            (Moment::Arrived, "RecordLifecycleActionHeartbeat") => self.beats(seen, call),
            (Moment::Answered, "RecordLifecycleActionHeartbeat") if call.status == 400 && call.fault.is_none() => {
                self.refused(seen, call);
            }
            (Moment::Served, "patch deployments") => self.restarts(seen, call),
            (Moment::Arrived, "RebootInstances") => self.reboots(seen, call),
            (Moment::Arrived, "CompleteLifecycleAction") => self.completes(seen, call),
            (Moment::Served, "CompleteLifecycleAction") => self.completed(seen, call),
            (Moment::Served, "DeleteMessage" | "DeleteMessageBatch") => self.deletes(seen),
            _ => {}
        }
    }

    /// Whether a call to AWS serves nothing that the settings ask for.
    fn is_needless(&self, operation: &str) -> bool {
        const ABOUT_HOOKS: [&str; 4] = [
            "DescribeAutoScalingInstances",
            "DescribeLifecycleHooks",
            "RecordLifecycleActionHeartbeat",
            "CompleteLifecycleAction",
        ];
        let is_asked_for = self.plan.flags.node_hook.is_some() && ABOUT_HOOKS.contains(&operation);
        self.plan.flags.source == Source::Nodes && !operation.contains(' ') && !is_asked_for
    }
}

/// Returns whether a drain waits for a pod: docs/draining.md, "Which pods are evicted"; docs/settings.md, "Drain".
fn leaves(pod: &PodPlan, flags: &Flags) -> bool {
    match pod.kind {
        PodKind::Web | PodKind::Claim | PodKind::Finished => true,
        PodKind::Mirror => false,
        PodKind::Daemon => flags.evict_daemonsets,
        PodKind::EmptyDir => !flags.keep_empty_dir,
        PodKind::Bare => !flags.keep_unmanaged,
    }
}

fn asks(pod: &PodPlan, flags: &Flags) -> bool {
    match pod.asks {
        Some(("ebbtide/ignore", value)) => value == "true",
        Some(_) => flags.respect,
        None => false,
    }
}

/// Returns whether a restart shows that the instance has come back: docs/draining.md, "Undo".
fn comes_back(kind: Kind) -> bool {
    match kind {
        Kind::Change(..) | Kind::Rebalance => true,
        Kind::Spot(action) => action != "terminate",
        Kind::State(state) => matches!(state, "stopping" | "stopped"),
        _ => false,
    }
}

/// Returns whether a notice leads to a drain: docs/settings.md, "Notices"; docs/events.md, "Kinds"; docs/repair.md.
fn drains(kind: Kind, flags: &Flags) -> bool {
    match kind {
        Kind::Spot(_) | Kind::Change(..) | Kind::Reservation(_) => true,
        Kind::Rebalance => flags.rebalance_drains,
        Kind::State(state) => matches!(state, "stopping" | "shutting-down"),
        Kind::Terminate(_, _, owner) => owner != Owner::Others,
        Kind::Condition => flags.condition.is_some_and(|(_, action)| matches!(action, "drain" | "reboot")),
        Kind::Launch(_) | Kind::Shift(..) | Kind::Garbage(_) => false,
    }
}

/// Returns the number of the Node with this name; `None` of that of the replicas' own pods.
fn numbered(node: &str) -> Option<usize> {
    node.strip_prefix("node-")?.parse().ok()
}

const fn s(seconds: u64) -> i64 {
    seconds.cast_signed() * 1000
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Whether this annotation records a notice that holds its Node: docs/marks.md, "Marks on the Node".
fn holds(name: &str, text: &str) -> bool {
    name.starts_with("ebbtide/notice.") && !remembers(name, text) && !text.contains("\"work\":\"planned\"")
}

/// Whether this annotation records a notice that needs nothing more and does not hold its Node, or that AWS has cancelled.
fn remembers(name: &str, text: &str) -> bool {
    let works = ["\"work\":\"handled\"", "\"work\":\"withdrawn\""];
    name.starts_with("ebbtide/notice.") && works.iter().any(|work| text.contains(work))
}
