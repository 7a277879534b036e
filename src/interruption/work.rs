//! What is done for one notice, from the question whose instance it is to its outcome.

use super::plan::{self, Action, HookTimes, Policy};
use super::{Armed, Case, Done, Draining, Hooks, Outcome, Seat, Slots};
use crate::clock::Clock;
use crate::drain::{Deadline, Drainer, Report};
use crate::event::{Detail, InstanceState, Notice};
use crate::fact::{Fact, Facts};
use crate::gate::Backoff;
use crate::node::mark::{Mark, Marked, Marker};
use crate::node::{Index, Node, Owner, Ownership, owned_by_fate, owned_without_asking};
use crate::task::{Died, Ending, Tasks};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// All that interruptions need of the world.
pub struct Interrupter {
    /// What the user decided.
    pub policy: Policy,
    /// Wall time.
    pub clock: Clock,
    /// Where facts go.
    pub facts: Facts,
    /// Starts tasks.
    pub tasks: Tasks,
    /// The Nodes.
    pub index: Index,
    /// Whose the others are.
    pub owner: Owner,
    /// Cordons.
    pub marker: Marker,
    /// Drains.
    pub drainer: Arc<Drainer>,
    /// Completes hooks and keeps them alive.
    pub hooks: Hooks,
    /// The drains that run, one a node.
    pub drains: Slots<Arc<str>, Deadlines, Arc<Report>>,
}

/// What an interruption shares with the messages that it answers.
#[derive(Debug)]
pub struct Shared {
    /// How long they may be made invisible at a time; the interruption may want it shorter.
    pub pace: watch::Sender<Duration>,
    /// Whether one of them came from the hook itself: then it is meant for us, whatever the others say.
    pub direct: AtomicBool,
}

impl Shared {
    /// What an interruption begins with.
    #[must_use]
    pub fn new(visibility: Duration) -> Self {
        Self { pace: watch::Sender::new(visibility), direct: AtomicBool::new(false) }
    }
}

impl Ending for Arc<Report> {
    fn failed(&self) -> bool {
        !self.outcome.is_success()
    }
}

/// The deadlines of the interruptions that joined a drain; the earliest counts.
#[derive(Debug)]
pub struct Deadlines {
    earliest: watch::Sender<Deadline>,
    all: Mutex<BTreeMap<u64, Deadline>>,
}

impl Deadlines {
    fn new(first: Deadline) -> Self {
        Self { earliest: watch::Sender::new(first), all: Mutex::default() }
    }

    fn add(self: &Arc<Self>, deadline: Deadline) -> Joined {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let id = all.last_key_value().map_or(0, |(id, _)| id + 1);
        all.insert(id, deadline);
        self.settle(&all);
        Joined { deadlines: Arc::clone(self), id }
    }

    fn settle(&self, all: &BTreeMap<u64, Deadline>) {
        // With nobody left the drain is on its way out, and its last deadline stands.
        if let Some(earliest) = Deadline::earliest(all.values().copied()) {
            self.earliest.send_if_modified(|current| std::mem::replace(current, earliest) != earliest);
        }
    }
}

/// An interruption's own deadline in a drain, for as long as it has joined.
struct Joined {
    deadlines: Arc<Deadlines>,
    id: u64,
}

impl Drop for Joined {
    fn drop(&mut self) {
        let mut all = self.deadlines.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.id);
        self.deadlines.settle(&all);
    }
}

impl Interrupter {
    /// Acts on one notice until it has ended, or until `stop`. `shared` tells how short the message's visibility must be.
    pub async fn act(
        self: Arc<Self>,
        notice: Arc<Notice>,
        message: Arc<str>,
        shared: Arc<Shared>,
        stop: CancellationToken,
    ) -> Outcome {
        let begun = Instant::now();
        let node = self.index.get(&notice.instance);
        let case = Case { interrupter: Arc::clone(&self), notice, message, node };
        let outcome = self.outcome(case.clone(), &shared, &stop).await;
        case.tell(&Fact::NoticeEnded { about: case.about(), outcome: outcome.as_str(), took: begun.elapsed() });
        outcome
    }

    async fn outcome(&self, case: Case, shared: &Shared, stop: &CancellationToken) -> Outcome {
        let action = self.policy.actions.of(case.notice.kind());
        if action == Action::Ignore {
            return Outcome::Ignored;
        }
        if self.is_others(&case.notice) {
            return Outcome::NotOurs;
        }
        let owned = tokio::select! {
            biased;
            () = stop.cancelled() => return Outcome::HandedOver,
            owned = self.whose(&case, &shared.direct) => owned,
        };
        match owned {
            None => return Outcome::Failed,
            Some(Ownership::Foreign) => return Outcome::NotOurs,
            Some(Ownership::Ours) => {}
        }
        if action == Action::Report {
            return Outcome::Reported;
        }
        if nothing_left(&case) {
            return Outcome::NothingToDrain;
        }
        let times = tokio::select! {
            biased;
            () = stop.cancelled() => return Outcome::HandedOver,
            times = self.hook_times(&case, action) => times,
        };
        if let Some(times) = times {
            shared.pace.send_replace(times.visibility());
        }
        let armed = self.arm(case, action, times);
        let mut draining = armed.pre_drain();
        let worked = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            outcome = draining.work(action) => Some(outcome),
        };
        let done = match worked {
            None => draining.early_exit(Outcome::HandedOver).await,
            Some(Outcome::Crashed) => draining.early_exit(Outcome::Crashed).await,
            Some(outcome) if action == Action::Drain => draining.post_drain(outcome, stop).await,
            // Any other action never touched the hook.
            Some(outcome) => Done(outcome),
        };
        done.0
    }

    /// Whether the hook is one that others complete.
    fn is_others(&self, notice: &Notice) -> bool {
        match &notice.detail {
            Detail::AsgTerminate(hook) | Detail::AsgLaunch(hook) => self.policy.ignored_hooks.contains(&hook.name),
            _ => false,
        }
    }

    /// Whose the instance is; `None` when that could not be found out in time.
    async fn whose(&self, case: &Case, direct: &AtomicBool) -> Option<Ownership> {
        let notice = &*case.notice;
        let ours =
            |node: bool| owned_without_asking(node || direct.load(Ordering::Acquire), notice, self.policy.require_tag);
        if let Some(owned) = ours(case.node.is_some()) {
            return Some(owned);
        }
        let give_up = self.deadline(notice, None).at.max(Instant::now() + OWNER_PATIENCE);
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(20));
        let ask = async {
            // An index that is blind knows nothing of a Node that came meanwhile.
            self.index.live().await;
            loop {
                if let Some(owned) = ours(self.index.get(&notice.instance).is_some()) {
                    return owned;
                }
                match self.owner.ask(&notice.instance).await {
                    // A copy which says that the hook is meant for us may have come while we asked.
                    Ok(fate) => return ours(false).unwrap_or_else(|| owned_by_fate(fate)),
                    Err(error) => {
                        let category = error.category().as_str();
                        self.facts.emit(&Fact::OwnerUnknown { about: case.about(), category, error: &error });
                    }
                }
                sleep(backoff.step()).await;
            }
        };
        timeout_at(give_up, ask).await.ok()
    }

    async fn hook_times(&self, case: &Case, action: Action) -> Option<HookTimes> {
        let Detail::AsgTerminate(hook) = &case.notice.detail else { return None };
        if action != Action::Drain {
            return None;
        }
        Some(self.hooks.times(hook).await.unwrap_or_else(|error| {
            self.facts.emit(&Fact::HookUnknown { about: case.about(), error: &*error });
            HookTimes::UNKNOWN
        }))
    }

    fn arm(&self, case: Case, action: Action, times: Option<HookTimes>) -> Armed {
        let deadline = self.deadline(&case.notice, times);
        let until = Some(deadline.at.saturating_duration_since(Instant::now()));
        let about = case.about();
        self.facts.emit(&Fact::NoticeBegun { about, action: action.as_str(), until, hard: deadline.hard });
        let begun = self.clock.notice_instant(case.notice.at);
        Armed { case, deadline, hook: times.map(|times| (times, begun)) }
    }

    fn deadline(&self, notice: &Notice, times: Option<HookTimes>) -> Deadline {
        let at = self.clock.notice_instant(notice.at);
        let hook = times.map(|times| (times, self.policy.heartbeats));
        let instant = |time| self.clock.instant_of(time);
        plan::deadline(&notice.detail, at, Instant::now(), self.policy.drain_timeout, hook, instant)
    }

    /// Joins the node's drain, or starts it.
    fn join_drain(&self, node: &Arc<Node>, deadline: Deadline) -> (Seat<Arc<str>, Deadlines, Arc<Report>>, bool) {
        let drainer = Arc::clone(&self.drainer);
        self.drains.join(
            Arc::clone(&node.name),
            || Deadlines::new(deadline),
            // A drain that nobody waits for any more has no report to make: it is aborted where it stands.
            |deadlines, _stop| {
                let node = Arc::clone(node);
                async move { Arc::new(drainer.run(&node, deadlines.earliest.subscribe()).await) }
            },
        )
    }
}

/// A question to EC2 is asked for at least so long, even when the notice's own time is up.
const OWNER_PATIENCE: Duration = Duration::from_secs(30);

/// Whether the instance runs no more, so that there is nothing to evict.
fn nothing_left(case: &Case) -> bool {
    matches!(case.notice.detail, Detail::StateChange { state: InstanceState::Stopped | InstanceState::Terminated })
}

impl Draining {
    /// Finds the node, cordons it, drains it. May be cancelled at any await.
    async fn work(&mut self, action: Action) -> Outcome {
        let Some(node) = self.find().await else { return Outcome::NothingToDrain };
        self.case.node = Some(Arc::clone(&node));
        match self.cordon(&node).await {
            Some(Marked::Cordoned { .. }) => {}
            Some(Marked::Gone) => return Outcome::NothingToDrain,
            None => return Outcome::Failed,
        }
        if action == Action::Cordon {
            return Outcome::Cordoned;
        }
        self.drain(&node).await
    }

    /// The instance's Node; where it has none, waits for it, as long as that is worth it.
    async fn find(&self) -> Option<Arc<Node>> {
        let Case { interrupter, notice, .. } = &self.case;
        if let Some(node) = interrupter.index.get(&notice.instance) {
            return Some(node);
        }
        // While the index is blind, the time that is granted for registration does not run.
        timeout_at(self.deadline.at, interrupter.index.live()).await.ok()?;
        if let Some(node) = interrupter.index.get(&notice.instance) {
            return Some(node);
        }
        let now = Instant::now();
        let give_up = match notice.detail {
            Detail::AsgTerminate(_) => self.deadline.at.min(now + interrupter.policy.registration_grace),
            _ => self.deadline.at,
        };
        let at_most = give_up.saturating_duration_since(now);
        self.case.tell(&Fact::NodeAwaited { about: self.case.about(), at_most });
        timeout_at(give_up, interrupter.index.until(&notice.instance, |node| node.map(Arc::clone))).await.ok()
    }

    /// Cordons, again and again until the deadline. `None` when that failed.
    async fn cordon(&self, node: &Node) -> Option<Marked> {
        let Case { interrupter, notice, message, .. } = &self.case;
        let about = self.case.about();
        let identity = notice.identity.to_string();
        let at = interrupter.clock.timestamp_of(self.deadline.at);
        let mark = Mark::new(&identity, notice.kind().as_str(), Some(at), message);
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            let error = match interrupter.marker.cordon(node, &mark, self.deadline.at).await {
                Ok(marked) => {
                    if let Marked::Cordoned { already } = marked {
                        self.case.tell(&Fact::NodeCordoned { about, already });
                    }
                    return Some(marked);
                }
                Err(error) => error,
            };
            self.case.tell(&Fact::CordonFailed { about, category: error.category.as_str(), error: &error });
            let wait = backoff.step();
            if Instant::now() + wait >= self.deadline.at {
                return None;
            }
            sleep(wait).await;
        }
    }

    async fn drain(&self, node: &Arc<Node>) -> Outcome {
        let interrupter = &self.case.interrupter;
        let (seat, joined) = interrupter.join_drain(node, self.deadline);
        if joined {
            self.case.tell(&Fact::DrainJoined { about: self.case.about() });
        }
        let _deadline = seat.shared().add(self.deadline);
        match seat.ended().await {
            Ok(report) => report.outcome.into(),
            Err(Died::Panicked | Died::Cancelled) => Outcome::Crashed,
        }
    }
}
