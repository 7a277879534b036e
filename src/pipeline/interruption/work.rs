//! What is done for one notice, from the question whose instance it is to its outcome.

use super::deadlines::DrainSeat;
use super::decisions::runs_no_more;
use super::policy::{Action, HookTimes, Policy};
use super::{Armed, Case, Deadlines, Done, Hooks, Outcome, Slots};
use crate::clients::gate::Backoff;
use crate::fact::{Fact, Facts};
use crate::pipeline::drain::{Deadline, Drainer, Report};
use crate::pipeline::event::{Detail, Notice};
use crate::pipeline::node::{Fate, Index, Marker, Node, Owner, Ownership, owned_by_fate, owned_without_asking};
use crate::runtime::clock::Clock;
use crate::runtime::task::Tasks;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// The drains that run, one a Node, by its UID.
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
        case.tell(&Fact::NoticeEnded { about: case.about(), outcome, took: begun.elapsed() });
        outcome
    }

    async fn outcome(&self, case: Case, shared: &Shared, stop: &CancellationToken) -> Outcome {
        let action = self.policy.actions.of(case.notice.kind());
        if let Some(settled) = self.policy.settled(&case.notice) {
            return settled;
        }
        let owned = tokio::select! {
            biased;
            () = stop.cancelled() => return Outcome::HandedOver,
            // What calls is boxed, here and in what follows: an interruption mostly waits, and would hold room for its calls.
            owned = Box::pin(self.whose(&case, &shared.direct)) => owned,
        };
        match owned {
            None => return Outcome::Failed,
            Some(Ownership::Foreign) => return Outcome::NotOurs,
            Some(Ownership::Ours) => {}
        }
        if action == Action::Report {
            return Outcome::Reported;
        }
        if let Some(node) = case.excluded_node() {
            case.tell_forgone(&node);
            return Outcome::Excluded;
        }
        if runs_no_more(&case.notice.detail) {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Outcome::HandedOver,
                () = Box::pin(self.put_out_of_service(&case)) => return Outcome::NothingToDrain,
            }
        }
        let times = tokio::select! {
            biased;
            () = stop.cancelled() => return Outcome::HandedOver,
            times = Box::pin(self.hook_times(&case)) => times,
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
            Some(outcome) if matches!(action, Action::Drain | Action::Ready) => {
                draining.post_drain(outcome, stop).await
            }
            // Any other action never touched the hook.
            Some(outcome) => Done(outcome),
        };
        done.0
    }

    /// Whose the instance is; `None` when that could not be found out in time.
    async fn whose(&self, case: &Case, direct: &AtomicBool) -> Option<Ownership> {
        let notice = &*case.notice;
        let ours =
            |node: bool| owned_without_asking(node || direct.load(Ordering::Acquire), notice, self.policy.require_tag);
        if let Some(owned) = ours(case.node.is_some()) {
            return Some(owned);
        }
        let visible_by = self.clock.notice_instant(notice.at) + VISIBLE_AFTER;
        let give_up = self.deadline(notice, None).at.max(Instant::now() + OWNER_PATIENCE);
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(20));
        let ask = async {
            // An index that is blind knows nothing of a Node that came meanwhile.
            self.index.live().await;
            loop {
                if let Some(owned) = ours(self.index.get(&notice.instance).is_some()) {
                    return owned;
                }
                let launching = matches!(notice.detail, Detail::AsgLaunch(_)) && Instant::now() < visible_by;
                let asked = if launching {
                    self.owner.ask_anew(&notice.instance).await
                } else {
                    self.owner.ask(&notice.instance).await
                };
                match asked {
                    Ok(Fate::Unknown) if launching => {}
                    // A copy which says that the hook is meant for us may have come while we asked.
                    Ok(fate) => {
                        let has_node = self.index.get(&notice.instance).is_some();
                        return ours(false).unwrap_or_else(|| owned_by_fate(fate, has_node));
                    }
                    Err(error) => {
                        let category = error.category();
                        self.facts.emit(&Fact::OwnerUnknown { about: case.about(), category, error: &error });
                    }
                }
                sleep(backoff.step()).await;
            }
        };
        timeout_at(give_up, ask).await.ok()
    }

    async fn hook_times(&self, case: &Case) -> Option<HookTimes> {
        let hook = self.policy.touched_hook(&case.notice)?;
        Some(self.hooks.times(hook).await.unwrap_or_else(|error| {
            self.facts.emit(&Fact::HookUnknown { about: case.about(), error: &*error });
            HookTimes::UNKNOWN
        }))
    }

    fn arm(&self, case: Case, action: Action, times: Option<HookTimes>) -> Armed {
        let deadline = self.deadline(&case.notice, times);
        let until = Some(deadline.at.saturating_duration_since(Instant::now()));
        let about = case.about();
        self.facts.emit(&Fact::NoticeBegun { about, action, until, hard: deadline.is_hard() });
        let begun = self.clock.notice_instant(case.notice.at);
        Armed { case, deadline, hook: times.map(|times| (times, begun)) }
    }

    pub(super) fn deadline(&self, notice: &Notice, times: Option<HookTimes>) -> Deadline {
        self.policy.deadline(notice, times, &self.clock)
    }

    /// Joins the node's drain, or starts it.
    pub(super) fn join_drain(&self, node: &Arc<Node>, deadline: Deadline) -> (DrainSeat, bool) {
        let drainer = Arc::clone(&self.drainer);
        self.drains.join(
            Arc::clone(&node.uid),
            || Deadlines::new(deadline),
            // A drain that nobody waits for any more has no report to make: it is aborted where it stands.
            |deadlines, _stop| {
                let node = Arc::clone(node);
                async move { Arc::new(drainer.run(&node, deadlines.plan(), deadlines.progress()).await) }
            },
        )
    }
}

/// EC2 is eventually consistent: an instance that is being launched may be unknown for so long.
const VISIBLE_AFTER: Duration = Duration::from_mins(1);

/// A question to EC2 is asked for at least so long, even when the notice's own time is up.
const OWNER_PATIENCE: Duration = Duration::from_secs(30);
