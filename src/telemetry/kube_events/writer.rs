//! The task that writes Events and conditions, a few Nodes at a time.

use super::api::EventApi;
use super::state::{DrainState, Phase, Record};
use super::waits::AnnouncementState;
use super::{Backlog, DrainDeadline, DrainEvent, ObjectRef, Scope};
use crate::clients::gate::{Category, Gate, KubeError};
use crate::fact::{Fact, Facts};
use crate::runtime::clock::Clock;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use kube::Client;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Maximum number of Nodes that are written about at once, with one call after the other each: fewer than the gate has places at
/// its narrowest, so that a server which does not answer Events delays no drain.
const MAX_CONCURRENT_NODES: usize = 3;

/// Maximum number of drains tracked.
const MAX_DRAINS: usize = 10_000;

/// Maximum number of Nodes whose waits are announced at the same time. The waits of a storm are alike, and the log has them all.
const MAX_ANNOUNCED_WAITS: usize = 50;

/// Time after a drain's deadline after which its state may be dropped: the fact of its end was lost.
const STALE_AFTER: Duration = Duration::from_mins(10);

/// Interval between facts about dropped facts.
const DROP_REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// Interval between facts about a denied resource, which stays denied until a user changes a role.
const DENIAL_REPORT_INTERVAL: Duration = Duration::from_mins(10);

/// Writes Events and conditions, for as long as the service lives.
pub struct EventWriter {
    scope: Scope,
    backlog: Backlog,
    facts: Facts,
    clock: Clock,
    api: Arc<EventApi>,
    /// The tracked drains, by the Node's UID.
    drains: HashMap<Arc<str>, DrainState>,
    /// The Nodes whose waits are announced, and some more.
    announced_waits: HashSet<Arc<str>>,
    /// The times at which a wait will have lasted for long enough to be announced, in order.
    timers: VecDeque<(Instant, Arc<str>)>,
    /// The Nodes with something to write.
    queue: VecDeque<Arc<str>>,
    writes: FuturesUnordered<BoxFuture<'static, Write>>,
    drops_reported_at: Option<Instant>,
    /// By resource.
    denials_reported_at: HashMap<&'static str, Instant>,
}

/// A finished write about one Node.
struct Write {
    node_uid: Arc<str>,
    record: Record,
    errors: Vec<KubeError>,
}

impl EventWriter {
    /// A writer of the facts in `backlog`. `instance` is this process's name in Events.
    #[must_use]
    pub fn new(
        scope: Scope,
        backlog: Backlog,
        client: Client,
        gate: Gate,
        clock: Clock,
        facts: Facts,
        instance: String,
    ) -> Self {
        let api = Arc::new(EventApi::new(scope, client, gate, clock, facts.clone(), instance));
        Self {
            scope,
            backlog,
            facts,
            clock,
            api,
            drains: HashMap::new(),
            announced_waits: HashSet::new(),
            timers: VecDeque::new(),
            queue: VecDeque::new(),
            writes: FuturesUnordered::new(),
            drops_reported_at: None,
            denials_reported_at: HashMap::new(),
        }
    }

    /// Writes until there is no subscriber any more or, once `stop` is cancelled, until the backlog is empty.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            self.begin_writes();
            self.report_drops();
            let idle = self.writes.is_empty() && self.backlog.receiver.is_empty();
            let timer = self.timers.front().map(|(at, _)| *at);
            let drops = self.drops_reported_at.map(|at| at + DROP_REPORT_INTERVAL);
            let drops = drops.filter(|_| self.backlog.has_dropped());
            tokio::select! {
                biased;
                Some(write) = self.writes.next() => self.finish(write),
                event = self.backlog.receiver.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => self.timer(),
                () = sleep_until(drops.unwrap_or_else(Instant::now)), if drops.is_some() => {}
                () = stop.cancelled(), if idle => return,
            }
        }
    }

    fn take(&mut self, event: DrainEvent) {
        match event {
            DrainEvent::Begun { node, pods, deadline } => {
                let all = self.scope.has_all();
                let Some(drain) = self.drain_of(node, deadline, all) else { return };
                drain.begin(all.then_some(pods), deadline);
                let uid = Arc::clone(&drain.node.uid);
                self.queue.push_back(uid);
            }
            DrainEvent::Blocked { node, pods, deadline } => {
                let Some(drain) = self.drain_of(node, deadline, true) else { return };
                drain.block(pods, deadline);
                let uid = Arc::clone(&drain.node.uid);
                self.queue.push_back(uid);
            }
            DrainEvent::Unblocked { node_uid } => {
                if let Some(drain) = self.drains.get_mut(&node_uid) {
                    drain.unblock();
                }
            }
            DrainEvent::Ended { node, end, report, has_condition, is_notable } => {
                let wanted = has_condition || is_notable || self.scope.has_all();
                let deadline = DrainDeadline { at: Instant::now(), is_hard: true };
                let Some(drain) = self.drain_of(node, deadline, wanted) else { return };
                drain.end(end, report, has_condition, is_notable);
                let uid = Arc::clone(&drain.node.uid);
                self.queue.push_back(uid);
            }
            DrainEvent::Returned { node } => {
                let deadline = DrainDeadline { at: Instant::now(), is_hard: false };
                let wanted = self.scope.has_lifecycle();
                let Some(state) = self.state_of(node, Phase::Ended, deadline, wanted).filter(|_| wanted) else {
                    return;
                };
                state.come_back();
                let uid = Arc::clone(&state.node.uid);
                self.queue.push_back(uid);
            }
            DrainEvent::WaitBegun { node, wait } => {
                // A drain of the Node may follow, or be over.
                let deadline = DrainDeadline { at: wait.until, is_hard: false };
                let Some(state) = self.state_of(node, Phase::Ended, deadline, true) else { return };
                let (due, uid) = (state.waits.begin(wait), Arc::clone(&state.node.uid));
                self.timers.push_back((due, uid));
            }
            DrainEvent::WaitEnded { node_uid, key, outcome, how } => {
                let Some(state) = self.drains.get_mut(&node_uid) else { return };
                state.waits.end(&key, outcome, how);
                self.queue.push_back(node_uid);
            }
            DrainEvent::WaitAbandoned { node_uid, key } => {
                let Some(state) = self.drains.get_mut(&node_uid) else { return };
                state.waits.abandon(&key);
                self.forget(&node_uid);
            }
            DrainEvent::Abandoned { node_uid } => {
                let Some(drain) = self.drains.get_mut(&node_uid) else { return };
                drain.abandon();
                self.forget(&node_uid);
            }
        }
    }

    /// Returns the drain of a Node. An unknown drain is tracked if `wanted`, unless there are too many.
    fn drain_of(&mut self, node: ObjectRef, deadline: DrainDeadline, wanted: bool) -> Option<&mut DrainState> {
        self.state_of(node, Phase::Running, deadline, wanted)
    }

    /// The same, in this phase if it was unknown.
    fn state_of(
        &mut self,
        node: ObjectRef,
        phase: Phase,
        deadline: DrainDeadline,
        wanted: bool,
    ) -> Option<&mut DrainState> {
        if !wanted {
            return self.drains.get_mut(&node.uid);
        }
        if !self.drains.contains_key(&node.uid) && self.drains.len() >= MAX_DRAINS {
            let now = Instant::now();
            self.drains.retain(|_, drain| drain.record.is_none() || drain.deadline.at + STALE_AFTER > now);
            if self.drains.len() >= MAX_DRAINS {
                self.backlog.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        Some(self.drains.entry(Arc::clone(&node.uid)).or_insert_with(|| DrainState::new(node, phase, deadline)))
    }

    /// Queues the Node of the first timer, if its waits are to be announced.
    fn timer(&mut self) {
        let Some((at, node)) = self.timers.pop_front() else { return };
        if self.drains.get(&node).is_some_and(|state| state.waits.is_due(at)) {
            self.decide(&node, at);
        }
        if self.drains.get(&node).is_some_and(|state| state.waits.has_more()) {
            self.queue.push_back(node);
        }
    }

    /// Decides whether the Node's waits, which are due at `at`, are announced.
    fn decide(&mut self, node: &Arc<str>, at: Instant) {
        let (announced, drains) = (&mut self.announced_waits, &mut self.drains);
        if announced.len() >= MAX_ANNOUNCED_WAITS {
            announced.retain(|node| drains.get(node).is_some_and(|state| state.waits.is_announced()));
        }
        let announcement = if announced.contains(node) || announced.len() < MAX_ANNOUNCED_WAITS {
            AnnouncementState::Next
        } else {
            AnnouncementState::Never
        };
        if announcement == AnnouncementState::Next {
            announced.insert(Arc::clone(node));
        }
        if let Some(state) = drains.get_mut(node) {
            state.waits.decide(at, announcement);
        }
    }

    /// Begins as many writes as may run at once.
    fn begin_writes(&mut self) {
        while self.writes.len() < MAX_CONCURRENT_NODES {
            let Some(node_uid) = self.queue.pop_front() else { return };
            let Some(drain) = self.drains.get_mut(&node_uid) else { continue };
            let Some((announcement, record)) = drain.next_announcement(self.scope, self.clock) else {
                self.forget(&node_uid);
                continue;
            };
            let (api, node) = (Arc::clone(&self.api), Arc::clone(&drain.node));
            let write = async move {
                let (record, errors) = api.write(&node, announcement, record).await;
                Write { node_uid, record, errors }
            };
            self.writes.push(write.boxed());
        }
    }

    fn finish(&mut self, Write { node_uid, record, errors }: Write) {
        for error in &errors {
            self.report_error(error);
        }
        let Some(drain) = self.drains.get_mut(&node_uid) else { return };
        drain.record = Some(record);
        if drain.has_more() {
            self.queue.push_back(node_uid);
        } else {
            self.forget(&node_uid);
        }
    }

    /// Drops the state of a drain that is over, unless a write about it is under way.
    fn forget(&mut self, node: &Arc<str>) {
        let is_over = |drain: &DrainState| drain.phase != Phase::Running && drain.waits.is_over();
        if self.drains.get(node).is_some_and(|drain| is_over(drain) && drain.record.is_some()) {
            self.drains.remove(node);
        }
    }

    fn report_error(&mut self, error: &KubeError) {
        let now = Instant::now();
        if error.category == Category::Denied {
            let reported_at = self.denials_reported_at.get(error.resource);
            if reported_at.is_some_and(|at| now - *at < DENIAL_REPORT_INTERVAL) {
                return;
            }
            self.denials_reported_at.insert(error.resource, now);
        }
        self.facts.emit(&Fact::KubeEventFailed { category: error.category, error });
    }

    fn report_drops(&mut self) {
        let now = Instant::now();
        if !self.backlog.has_dropped() || self.drops_reported_at.is_some_and(|at| now - at < DROP_REPORT_INTERVAL) {
            return;
        }
        self.drops_reported_at = Some(now);
        let dropped = self.backlog.dropped.swap(0, Ordering::Relaxed);
        self.facts.emit(&Fact::KubeEventsDropped { count: dropped });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::{HeldPod, NodeRef, PodRef, Subscriber};
    use crate::telemetry::kube_events::{MAX_BACKLOG, Scope, event_subscriber};
    use parking_lot::Mutex;
    use tokio::time::timeout;

    const ON: NodeRef<'_> = NodeRef { node: "node-1", uid: "u-1", instance: "i-1" };

    /// Keeps the facts about failures, as text.
    #[derive(Default)]
    struct Failures(Mutex<Vec<String>>);

    impl Subscriber for Failures {
        fn note(&self, fact: &Fact<'_>) {
            let text = match fact {
                Fact::KubeEventFailed { category, error } => format!("{category}: {error}"),
                Fact::KubeEventsDropped { count } => format!("{count} dropped"),
                _ => return,
            };
            self.0.lock().push(text);
        }
    }

    fn writer(backlog: Backlog, failures: Arc<Failures>) -> EventWriter {
        let facts = Facts::to(vec![failures]);
        let world = ebbtide_sim::World::new(1);
        let gate = Gate::new(facts.clone());
        let clock = Clock::showing(world.clock.now());
        EventWriter::new(Scope::Blocked, backlog, world.kube.client(), gate, clock, facts, "test".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_is_dropped_and_counted_once_a_minute() {
        let (subscriber, backlog) = event_subscriber();
        let overflow =
            |by: usize| (0..MAX_BACKLOG + by).for_each(|_| subscriber.note(&Fact::DrainAbandoned { on: ON }));
        overflow(7);
        // Other facts take no room, and are not counted.
        subscriber.note(&Fact::Ready);
        let failures = Arc::new(Failures::default());
        let running = writer(backlog, Arc::clone(&failures)).run(CancellationToken::new());
        tokio::pin!(running);
        let reported = || failures.0.lock().clone();
        assert!(timeout(Duration::from_secs(1), running.as_mut()).await.is_err());
        assert_eq!(reported(), ["7 dropped"]);
        overflow(3);
        assert!(timeout(Duration::from_secs(58), running.as_mut()).await.is_err());
        assert_eq!(reported().len(), 1, "not yet again");
        assert!(timeout(Duration::from_secs(2), running.as_mut()).await.is_err());
        assert_eq!(reported()[1], "3 dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn drains_whose_end_was_dropped_are_forgotten_in_time() {
        let (_, backlog) = event_subscriber();
        let mut writer = writer(backlog, Arc::default());
        let block = |writer: &mut EventWriter, n: usize| {
            let uid = n.to_string();
            let pod = HeldPod { pod: PodRef { namespace: "default", name: "web", uid: "p" }, by: "budget" };
            let on = NodeRef { uid: &uid, ..ON };
            let fact = Fact::DrainBlocked { on, pods: &[pod], until: Duration::from_mins(2), hard: true };
            writer.take(DrainEvent::of(&fact).unwrap());
        };
        let tracked = |writer: &EventWriter| (writer.drains.len(), writer.backlog.dropped.load(Ordering::Relaxed));
        (0..=MAX_DRAINS).for_each(|n| block(&mut writer, n));
        assert_eq!(tracked(&writer), (MAX_DRAINS, 1));
        tokio::time::advance(Duration::from_mins(12)).await;
        block(&mut writer, MAX_DRAINS);
        assert_eq!(tracked(&writer), (1, 1));
        let uid = MAX_DRAINS.to_string();
        writer.take(DrainEvent::of(&Fact::DrainAbandoned { on: NodeRef { uid: &uid, ..ON } }).unwrap());
        assert!(writer.drains.is_empty(), "an abandoned drain is not tracked");
    }

    #[test]
    fn every_subscriber_is_notified() {
        let (first, second) = (Arc::new(Failures::default()), Arc::new(Failures::default()));
        let facts = Facts::to(vec![Arc::clone(&first) as _]);
        let both = facts.with(Arc::clone(&second) as _);
        facts.emit(&Fact::KubeEventFailed { category: Category::Denied, error: &"1" });
        both.emit(&Fact::KubeEventFailed { category: Category::Invalid, error: &"2" });
        assert_eq!(*first.0.lock(), ["denied: 1", "invalid: 2"]);
        assert_eq!(*second.0.lock(), ["invalid: 2"]);
    }
}
