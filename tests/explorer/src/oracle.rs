//! The judge: invariants over what the simulation recorded. It knows the plan and the documents, and nothing of the service.
//!
//! Every rule looks at the moment at which it can be broken: a call arrives, or has had its effect. Times are in milliseconds since the
//! world began; a deadline is taken at the earliest time that the documents allow, so that no judgement is too hard.

use crate::plan::{Flags, Kind, NodePlan, Owner, Plan, PodKind, PodPlan, Target, Trouble};
use ebbtide_sim::World;
use ebbtide_sim::aws::ActionState;
use ebbtide_sim::calls::{Call, Moment};
use ebbtide_sim::kube::By;
use ebbtide_sim::messages::Wrapping;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Tolerance of times in milliseconds: timers have a granularity, and marks whole seconds.
const SLACK: i64 = 1_500;

/// Tolerance if the machine's clock is wrong: docs/design.md, rule 12.
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
    /// Number of processes that live.
    pub alive: u32,
    /// Nodes that somebody uncordoned or excluded, since when.
    pub let_go: BTreeMap<usize, i64>,
    /// Last starts of the Nodes, as the Ready condition or the boot ID shows them.
    pub started: BTreeMap<usize, i64>,
    /// Last restarts, as the boot ID shows them.
    pub booted: BTreeMap<usize, i64>,
    /// Ends of the Nodes' instances.
    pub gone: BTreeMap<usize, i64>,
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
    refused: BTreeMap<String, u32>,
}

/// The judge of one world.
#[derive(Debug)]
pub struct Oracle {
    world: World,
    plan: Plan,
    seen: Mutex<Seen>,
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
        let oracle = Arc::new(Self { world, plan, seen: Mutex::default(), moments: watch::Sender::new(0) });
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
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
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
        match (moment, call.operation.as_str()) {
            (Moment::Arrived, "create pods/eviction") => self.ends_pod(seen, call, false),
            (Moment::Arrived, "delete pods") => self.ends_pod(seen, call, true),
            (Moment::Arrived, "patch nodes") => self.patches(seen, call),
            (Moment::Served, "patch nodes") => self.marks(seen, call),
            (Moment::Arrived, "RecordLifecycleActionHeartbeat") => self.beats(seen, call),
            (Moment::Answered, "RecordLifecycleActionHeartbeat") if call.status == 400 && call.fault.is_none() => {
                self.refused(seen, call);
            }
            (Moment::Arrived, "CompleteLifecycleAction") => self.completes(seen, call),
            (Moment::Served, "CompleteLifecycleAction") => self.completed(seen, call),
            (Moment::Served, "DeleteMessage" | "DeleteMessageBatch") => self.deletes(seen),
            _ => {}
        }
    }
}

/// Pods and Nodes.
impl Oracle {
    /// docs/draining.md, "Which pods are evicted", "At a hard deadline", "Pods that must not be disturbed"; docs/events.md.
    fn ends_pod(&self, seen: &mut Seen, call: &Call, deletes: bool) {
        let (now, flags) = (self.now(), &self.plan.flags);
        let name = call.subject.trim_start_matches("default/");
        let Some((node, pod)) = self.pod(name) else {
            return self.broke(seen, "no end of a pod that nobody planned", &call.subject);
        };
        let tried = *seen.tried.entry(name.to_owned()).or_insert(now);
        if !self.is_drained(seen, node) {
            return self.broke(seen, "no eviction from a node that no notice names", &call.subject);
        }
        if pod.kind != PodKind::Finished && !leaves(pod, flags) {
            return self.broke(seen, "no eviction of a pod that must stay", format!("{name} {pod:?}"));
        }
        let hard = self.hard_ends(seen, node);
        let grace = ms(Duration::from_secs(flags.pod_grace.unwrap_or(pod.grace)));
        let object = self.world.kube.pod("default", name);
        let ending = object.as_ref().and_then(|pod| pod.metadata.deletion_timestamp.as_ref());
        if asks(pod, flags)
            && pod.kind != PodKind::Finished
            && ending.is_none()
            && !hard.iter().any(|end| now + self.slack() >= end - grace - 12_000)
        {
            let text = format!("{name} {pod:?}, hard deadlines {hard:?}");
            return self.broke(seen, "no eviction of a pod that asks not to be disturbed", text);
        }
        let cordoned = self.world.kube.node(&format!("node-{node}")).and_then(|node| node.spec?.unschedulable);
        if cordoned == Some(false) && hard.is_empty() && !seen.let_go.contains_key(&node) {
            return self.broke(seen, "no eviction before the cordon", name);
        }
        // A terminating pod may be hurried, and a finished one is only removed. One that has just gone has no budget.
        if !deletes || pod.kind == PodKind::Finished || object.is_none() {
            return;
        }
        let fair = |end: i64| tried + ((end - tried) / 4).clamp(500, 10_000);
        let in_time = |end: &i64| now + self.slack() >= (end - grace - 2_000).max(fair(*end));
        if flags.leave_pods || !(hard.iter().any(in_time) || ending.is_some() && !hard.is_empty()) {
            let text = format!("{name} {pod:?}, first tried at {tried}, hard deadlines {hard:?}");
            self.broke(seen, "no budget overridden before a hard deadline", text);
        }
    }

    /// docs/draining.md, "Marks on the Node"; docs/settings.md, "Notices".
    fn patches(&self, seen: &mut Seen, call: &Call) {
        let node = call.subject.trim_start_matches("node-").split('/').next().and_then(|n| n.parse().ok());
        let is_marked = |sent: &Sent| {
            let notice = &self.plan.notices[sent.notice];
            Some(notice.target) == node.map(Target::Node) && !matches!(notice.kind, Kind::Garbage(_))
        };
        if !seen.sent.iter().any(is_marked) {
            self.broke(seen, "no mark on a node that no notice names", &call.subject);
        }
    }

    /// Notes the messages that the Node's marks name: docs/draining.md, "Marks on the Node".
    fn marks(&self, seen: &mut Seen, call: &Call) {
        let node = self.world.kube.node(call.subject.split('/').next().unwrap_or_default());
        let annotations = node.and_then(|node| node.metadata.annotations).unwrap_or_default();
        for mark in annotations.iter().filter(|(key, _)| key.starts_with("ebbtide/notice.")).map(|(_, mark)| mark) {
            let sent = seen.sent.iter().flat_map(|sent| &sent.messages);
            for message in sent.filter(|message| mark.contains(message.as_str())) {
                seen.marked.entry(message.clone()).or_insert(self.now());
            }
        }
    }

    fn pod(&self, name: &str) -> Option<(usize, &PodPlan)> {
        let (node, number) = name.strip_prefix("pod-")?.split_once('-')?;
        let node = node.parse().ok()?;
        Some((node, self.plan.nodes.get(node)?.pods.get(number.parse::<usize>().ok()?)?))
    }

    fn is_drained(&self, seen: &Seen, node: usize) -> bool {
        !self.plan.nodes[node].ignored && self.drains_of(seen, node).next().is_some()
    }

    /// Returns the notices that have this Node drained.
    fn drains_of<'a>(&'a self, seen: &'a Seen, node: usize) -> impl Iterator<Item = &'a Sent> {
        seen.sent.iter().filter(move |sent| {
            let notice = &self.plan.notices[sent.notice];
            notice.target == Target::Node(node) && drains(notice.kind, &self.plan.flags)
        })
    }

    /// Returns the earliest times at which a notice's drain may end: docs/draining.md, "Deadlines".
    fn ends(&self, sent: &Sent) -> Ends {
        let notice = &self.plan.notices[sent.notice];
        let event = sent.at - s(notice.age);
        let patience = self.plan.flags.drain_timeout.map(s);
        let shortened = |hard| Ends { hard: Some(hard), soft: patience.map(|time| sent.at + time) };
        let soft = |at| Ends { hard: None, soft: Some(at) };
        match notice.kind {
            Kind::Spot("hibernate") => shortened(sent.at),
            Kind::Spot(_) => shortened(event + s(120)),
            Kind::Reservation(after) => shortened(event + s(after)),
            Kind::Rebalance => soft(sent.at + patience.unwrap_or(s(3600))),
            Kind::State(_) => soft(sent.at + patience.unwrap_or(s(120)).min(s(120))),
            Kind::Change(code, after) => {
                let soft = soft(sent.at + patience.unwrap_or(s(3600)));
                let start = event + after * 1000;
                match start > sent.at {
                    // Read late, it has begun already.
                    true if code.contains("RETIREMENT") || code.contains("STOP") => Ends { hard: Some(start), ..soft },
                    true => Ends { soft: Some(start.min(soft.soft.unwrap_or(start))), hard: None },
                    false => soft,
                }
            }
            Kind::Terminate(timeout, ..) => {
                let off = self.plan.flags.heartbeat == Some("off");
                let window = s(timeout);
                let limit = if off { window } else { window * 100 };
                let wanted = patience.unwrap_or(window);
                let margin = (window / 10).clamp(3_000, 30_000);
                let end = event + wanted.min(limit) - margin;
                // If the timeout can't be read, it counts as 30 s.
                let unknown = event + wanted.min(if off { s(30) } else { s(3000) }) - 3_000;
                Ends { hard: (wanted >= window.min(limit)).then_some(end), soft: Some(end.min(unknown)) }
            }
            Kind::Launch(_) | Kind::Garbage(_) => Ends::default(),
        }
    }

    /// Returns the earliest hard deadlines of a Node's drain. A lifecycle action that has ended is one: docs/draining.md, "Lifecycle
    /// hooks".
    fn hard_ends(&self, seen: &Seen, node: usize) -> Vec<i64> {
        let of = |sent: &Sent| self.ends(sent).hard.into_iter().chain(self.ended(sent));
        self.drains_of(seen, node).flat_map(of).collect()
    }

    /// Returns when the notice's lifecycle action ended, if it has.
    fn ended(&self, sent: &Sent) -> Option<i64> {
        match self.world.aws.autoscaling.action(sent.token.as_ref()?)?.state {
            ActionState::Waiting { .. } => None,
            ActionState::Completed { at, .. } | ActionState::Expired { at } => Some(ms(at)),
        }
    }

    /// Returns the pods that a drain of this Node has still to wait for.
    fn left(&self, node: usize) -> Vec<String> {
        let pods = self.world.kube.pods_on(&format!("node-{node}")).into_iter();
        let names = pods.filter_map(|pod| pod.metadata.name);
        let waited = |name: &String| {
            self.pod(name).is_some_and(|(_, pod)| pod.kind != PodKind::Finished && leaves(pod, &self.plan.flags))
        };
        names.filter(waited).collect()
    }

    /// Returns whether the node has started since an interruption that should be over (docs/draining.md, "a late notice"), or since
    /// one from which it comes back ("Undo").
    fn is_late(&self, seen: &Seen, sent: &Sent, node: usize) -> bool {
        let notice = &self.plan.notices[sent.notice];
        let event = sent.at - s(notice.age);
        let (begins, goes) = match notice.kind {
            Kind::Change(_, after) => (event + after * 1000, Some(event + after * 1000)),
            Kind::State(_) => (event, Some(event + s(120))),
            _ => (event, self.ends(sent).hard),
        };
        let started = seen.started.get(&node).copied().unwrap_or_default();
        // What has started again was not terminated, whatever was told.
        let returns = comes_back(notice.kind) || matches!(notice.kind, Kind::State(_));
        if returns && seen.booted.get(&node).is_some_and(|at| *at > sent.at) {
            return true;
        }
        goes.is_some_and(|at| self.now() + self.slack() > at + s(60)) && started + self.slack() >= begins
    }

    /// Returns why a notice's drain is not over, if it is not.
    fn not_over(&self, seen: &Seen, sent: &Sent) -> Option<String> {
        let notice = &self.plan.notices[sent.notice];
        let Target::Node(node) = notice.target else { return None };
        let let_go = self.plan.nodes[node].ignored || seen.let_go.contains_key(&node);
        let left = self.left(node);
        if let_go || left.is_empty() || self.ended(sent).is_some() || self.is_late(seen, sent, node) {
            return None;
        }
        let text =
            || format!("{notice:?}, pods left {left:?}, {:?}, hard {:?}", self.ends(sent), self.hard_ends(seen, node));
        (!self.may_be_over(seen, sent, node)).then(text)
    }

    /// Returns whether the notice's drain may have ended with pods that are left.
    fn may_be_over(&self, seen: &Seen, sent: &Sent, node: usize) -> bool {
        let first = self.hard_ends(seen, node).into_iter().chain(self.ends(sent).soft).min();
        first.is_some_and(|end| self.now() + self.slack() >= end)
    }
}

/// Lifecycle hooks and messages.
impl Oracle {
    fn sent_for<'a>(seen: &'a Seen, token: &str) -> Option<&'a Sent> {
        seen.sent.iter().find(|sent| sent.token.as_deref() == Some(token))
    }

    /// Returns why a hook is not ours to touch: docs/settings.md, "Notices"; docs/design.md, rule 4.
    fn not_ours(&self, sent: Option<&Sent>) -> Option<&'static str> {
        let Some(sent) = sent else { return Some("nobody told of it") };
        let notice = &self.plan.notices[sent.notice];
        // A hook that notifies this queue itself makes the instance ours: docs/developers/decisions.md.
        let direct = matches!(notice.kind, Kind::Terminate(_, Wrapping::Bare, _));
        match (notice.kind, notice.target) {
            (_, Target::OtherCluster) if !direct => Some("it is of another cluster"),
            (_, Target::Untagged) if !direct => Some("nothing shows that it is ours"),
            (Kind::Terminate(_, _, Owner::Others), _) => Some("others complete it"),
            (Kind::Launch(_), _) if !self.plan.flags.ready => Some("launches are ignored"),
            // An instance without a Node is not excluded: docs/draining.md, "By hand". A Node that joins later may not be seen yet.
            (_, Target::Node(node))
                if self.ignored_since(node).is_some_and(|at| at <= sent.at) && self.stands(notice.target) =>
            {
                Some("its Node is ignored")
            }
            // Two processes may hold a message that SQS delivers twice.
            _ if sent.open.is_empty()
                && !self.plan.faults.iter().any(|span| matches!(span.trouble, Trouble::Duplicates)) =>
            {
                Some("its messages have been deleted")
            }
            _ => None,
        }
    }

    /// docs/design.md, rule 1: a heartbeat has an owner, which holds a message.
    fn beats(&self, seen: &mut Seen, call: &Call) {
        if let Some(why) = self.not_ours(Self::sent_for(seen, &call.subject)) {
            self.broke(seen, "no heartbeat without an owner", format!("{} {why}", call.subject));
        }
        if self.plan.flags.heartbeat == Some("off") {
            self.broke(seen, "no heartbeat without an owner", "--heartbeat off");
        }
    }

    /// A heartbeat after the end of its action is refused, and whoever was told so sends no other.
    fn refused(&self, seen: &mut Seen, call: &Call) {
        let Some(sent) = Self::sent_for(seen, &call.subject) else { return };
        let told: u32 = sent.messages.iter().map(|message| self.world.aws.sqs.receives(message)).sum();
        let refused = seen.refused.entry(call.subject.clone()).or_default();
        *refused += 1;
        if *refused > told {
            let text = format!("{}: {refused} were refused, and its messages were received {told} times", call.subject);
            self.broke(seen, "no heartbeat after the action's end", text);
        }
    }

    /// docs/draining.md, "Lifecycle hooks"; docs/settings.md, "Lifecycle hooks".
    fn completes(&self, seen: &mut Seen, call: &Call) {
        let sent = Self::sent_for(seen, &call.subject).cloned();
        if let Some(why) = self.not_ours(sent.as_ref()) {
            return self.broke(seen, "no completion of a hook that is not ours", format!("{} {why}", call.subject));
        }
        let Some(sent) = sent else { return };
        let kind = self.plan.notices[sent.notice].kind;
        if let (Kind::Terminate(..), Some(why)) = (kind, self.not_over(seen, &sent)) {
            self.broke(seen, "no completion while a pod could be evicted", why);
        }
    }

    /// docs/settings.md, "Lifecycle hooks": `--on-failed-drain`, `asg-launch=ready`.
    fn completed(&self, seen: &mut Seen, call: &Call) {
        let Some(action) = self.world.aws.autoscaling.action(&call.subject) else { return };
        let Some(sent) = Self::sent_for(seen, &call.subject).cloned() else { return };
        let Some((_, result)) = action.completions.last() else { return };
        let notice = &self.plan.notices[sent.notice];
        let Target::Node(node) = notice.target else { return };
        let on_failed = self.plan.flags.on_failed;
        let left = self.left(node);
        let wrong = match notice.kind {
            Kind::Terminate(..) if result == "ABANDON" => on_failed != Some("abandon"),
            // An action whose own time is over: as late as that, it may also be one of a node that has come back.
            Kind::Terminate(timeout, ..) if notice.age >= timeout => false,
            Kind::Terminate(..) if self.is_late(seen, &sent, node) => false,
            Kind::Terminate(..) => {
                !left.is_empty() && on_failed.is_some() && self.ended(&sent).is_none_or(|at| at == self.now())
            }
            // It had its effect before, and the answer was lost.
            Kind::Launch(_) if self.ended(&sent).is_some_and(|at| at < self.now()) => false,
            Kind::Launch(_) => {
                let known = self.world.kube.node(&format!("node-{node}"));
                let conditions = known.and_then(|node| node.status?.conditions).unwrap_or_default();
                let ready = conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
                // Its instance may end while the call is on its way.
                let just_gone = seen.gone.get(&node).is_some_and(|at| at + self.slack() >= self.now());
                result != "CONTINUE" || !ready && !just_gone
            }
            _ => true,
        };
        if wrong {
            let text = format!("{result} for {notice:?}, pods left {left:?}");
            self.broke(seen, "a hook gets the result that the settings say", text);
        }
    }

    /// docs/design.md, rule 3, and docs/events.md: a message is deleted when all its notices have ended.
    fn deletes(&self, seen: &mut Seen) {
        let deleted = self.world.aws.sqs.deleted();
        for message in &deleted[seen.deleted..] {
            let Some(place) = seen.sent.iter().position(|sent| sent.open.contains(message)) else { continue };
            let sent = seen.sent[place].clone();
            let kind = self.plan.notices[sent.notice].kind;
            if let (true, Some(why)) = (drains(kind, &self.plan.flags), self.not_over(seen, &sent)) {
                self.broke(seen, "no message deleted before its drain ended", why);
            } else if let Some(why) = self.hook_left(seen, &sent) {
                self.broke(seen, "no message deleted before its hook was completed", why);
            }
            seen.sent[place].open.remove(message);
        }
        seen.deleted = deleted.len();
    }

    /// Returns why a hook that we should have completed waits on, if it does.
    fn hook_left(&self, seen: &Seen, sent: &Sent) -> Option<String> {
        let notice = &self.plan.notices[sent.notice];
        let waits = sent.token.is_some() && self.ended(sent).is_none();
        let ours = matches!(notice.kind, Kind::Terminate(..)) && self.not_ours(Some(sent)).is_none();
        let left = match notice.target {
            Target::Node(node) => {
                let let_go = self.plan.nodes[node].ignored || seen.let_go.contains_key(&node);
                let_go || self.plan.flags.on_failed == Some("leave") && self.may_be_over(seen, sent, node)
            }
            // While EC2 does not answer, the times of the hook are not known, and the shortest is assumed.
            _ => notice.age > 0,
        };
        (waits && ours && !left).then(|| format!("{notice:?}"))
    }

    /// Returns how long a mark that expires may stand: `--uncordon-after`, docs/settings.md.
    #[must_use]
    pub fn expiry(&self) -> Option<Duration> {
        let cordons = |sent: &Sent| {
            let notice = &self.plan.notices[sent.notice];
            !self.plan.flags.rebalance_drains && notice.kind == Kind::Rebalance && self.stands(notice.target)
        };
        let after = Duration::from_secs(self.plan.flags.uncordon_after.unwrap_or(20 * 60) + 120);
        self.seen().sent.iter().any(cordons).then_some(after)
    }

    /// Returns how long it takes until a failed removal of marks is tried again, if there are marks.
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        let annotations = |n| self.world.kube.node(&format!("node-{n}")).and_then(|node| node.metadata.annotations);
        let marks = (0..self.plan.nodes.len()).filter_map(annotations).flat_map(BTreeMap::into_keys);
        marks.into_iter().any(|key| key.starts_with("ebbtide/notice.")).then_some(Duration::from_mins(6))
    }

    /// Returns when the Node that is ignored joined.
    fn ignored_since(&self, node: usize) -> Option<i64> {
        let NodePlan { ignored, joins, .. } = &self.plan.nodes[node];
        ignored.then(|| joins.map_or(0, s))
    }

    fn stands(&self, target: Target) -> bool {
        matches!(target, Target::Node(n) if self.world.kube.node(&format!("node-{n}")).is_some())
    }

    /// Judges the world at its end.
    pub fn judge_end(&self) {
        let seen = &mut self.seen();
        let (lost, dead) = (self.world.aws.sqs.expired(), self.world.aws.sqs.dead_letters());
        let open = seen.sent.iter().filter(|sent| !sent.open.is_empty()).count();
        if !lost.is_empty() || !dead.is_empty() || open > 0 {
            self.broke(seen, "no message lost", format!("expired {lost:?}, dead letters {dead:?}, open {open}"));
        }
        for (n, plan) in self.plan.nodes.iter().enumerate() {
            self.judge_marks(seen, n, plan);
        }
        if self.plan.faults.is_empty() && self.plan.replicas.iter().all(Vec::is_empty) {
            self.judge_calm(seen);
        }
    }

    /// No mark stays on a Node that stays: docs/draining.md, "Undo".
    fn judge_marks(&self, seen: &mut Seen, n: usize, plan: &NodePlan) {
        let Some(node) = self.world.kube.node(&format!("node-{n}")) else { return };
        if plan.ignored || seen.let_go.contains_key(&n) {
            return;
        }
        let booted = seen.booted.get(&n).copied().unwrap_or_default();
        // A mark that is set after the restart waits for the next: a lost or late message, or an API server that refused the mark.
        let joined = plan.joins.map_or(0, s);
        let marked = |sent: &Sent| sent.messages.iter().filter_map(|message| seen.marked.get(message)).min();
        let over = |sent: &Sent| match self.plan.notices[sent.notice].kind {
            Kind::Rebalance if !self.plan.flags.rebalance_drains => true,
            Kind::Launch(_)
            | Kind::Garbage(_)
            | Kind::State("pending" | "terminated")
            | Kind::Terminate(_, _, Owner::Others) => true,
            kind => comes_back(kind) && marked(sent).is_some_and(|at| booted > *at.max(&joined)),
        };
        let of_node = |sent: &&Sent| self.plan.notices[sent.notice].target == Target::Node(n);
        if !seen.sent.iter().filter(of_node).all(over) || self.plan.flags.others.contains(&"--out-of-service-taint") {
            return;
        }
        let mut marks = node.metadata.annotations.unwrap_or_default();
        marks.retain(|key, _| key.starts_with("ebbtide/") && key != "ebbtide/booted");
        let cordoned = node.spec.and_then(|spec| spec.unschedulable).unwrap_or_default();
        if !marks.is_empty() || cordoned != plan.cordoned {
            self.broke(seen, "no mark on a node that stays", format!("node-{n}: {marks:?}, cordoned {cordoned}"));
        }
    }

    /// Without faults every hook of ours is completed in time, and a process evicts no pod twice: docs/design.md, rules 1 and 11.
    fn judge_calm(&self, seen: &mut Seen) {
        for sent in seen.sent.clone() {
            let notice = &self.plan.notices[sent.notice];
            let left = match notice.target {
                Target::Node(n) => {
                    let let_go = self.plan.nodes[n].ignored || seen.let_go.contains_key(&n);
                    let_go || self.plan.flags.on_failed == Some("leave") || notice.age > 0
                }
                _ => notice.age > 0,
            };
            let action = sent.token.as_ref().and_then(|token| self.world.aws.autoscaling.action(token));
            let expired = action.is_some_and(|action| matches!(action.state, ActionState::Expired { .. }));
            let open = Sent { open: sent.messages.iter().cloned().collect(), ..sent };
            let ours = matches!(notice.kind, Kind::Terminate(..)) && self.not_ours(Some(&open)).is_none();
            if ours && expired && !left {
                self.broke(seen, "a hook is completed in time", format!("{notice:?}"));
            }
        }
        let mut evicted = BTreeSet::new();
        let evictions = self.world.kube.evictions();
        let mut evictions = evictions.iter().filter(|end| end.by == By::Eviction);
        if let Some(again) = evictions.find(|end| !evicted.insert(&end.uid))
            && self.plan.replicas.len() == 1
        {
            self.broke(seen, "no pod is evicted twice", format!("{again:?}"));
        }
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

/// Returns whether a notice leads to a drain: docs/settings.md, "Notices"; docs/events.md, "Kinds".
fn drains(kind: Kind, flags: &Flags) -> bool {
    match kind {
        Kind::Spot(_) | Kind::Change(..) | Kind::Reservation(_) => true,
        Kind::Rebalance => flags.rebalance_drains,
        Kind::State(state) => matches!(state, "stopping" | "shutting-down"),
        Kind::Terminate(_, _, owner) => owner != Owner::Others,
        Kind::Launch(_) | Kind::Garbage(_) => false,
    }
}

const fn s(seconds: u64) -> i64 {
    seconds.cast_signed() * 1000
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
