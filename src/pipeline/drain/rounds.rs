//! The rounds of a drain. Each lists the node's pods and waits for the departures that the list asks for.
//!
//! ```text
//!   list ──▶ start departures ──▶ wait ──┬─ all departed, no pod left in a new list ──▶ Drained: end
//!    ▲                                   ├─ likewise, but for the pod of this process ─▶ OwnPodLeft ─┐
//!    │                                   ├─ all departed ──────────────────────────────▶ Departed ───┤
//!    │                                   ├─ a pod's grace period is over, or long over ▶ Overdue ────┤
//!    │                                   ├─ the node's end is near, some pods come back ▶ LastCall ──┤
//!    │                                   └─ the watch may have missed events ──────────▶ WatchGap ───┤
//!    └──────────────────────────────────── pause ────────────────────────────────────────────────────┘
//! ```
//!
//! The first list may come from a cache, so it never ends a drain. A later list can also end it as [`RoundsEnd::NodeDead`], when the
//! kubelet has been silent for too long to wait for its pods ([`silence`](super::silence)).

use super::context::Drain;
use super::deadline::Deadline;
use super::departures::Departures;
use super::evict::Evictions;
use super::grace::REMOVAL_TIME;
use super::list::Freshness;
use super::own_pod::OwnPod;
use super::pod_watch::WatchGaps;
use super::returns::Returns;
use super::select::{FirstDaemons, Selection};
use super::silence::{PodsLeft, Silence};
use super::wire::PodId;
use super::{DrainTerms, Drainer};
use crate::clients::gate::Backoff;
use crate::fact::Fact;
use crate::runtime::clock::until;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// Interval between rounds, after the first two. A pod that tolerates the cordon and returns is evicted again, but not in a tight
/// loop.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between rounds while only the pod of this process is left, because a budget keeps it.
const OWN_POD_INTERVAL: Duration = Duration::from_secs(5);

/// Interval between the lists of overdue pods, and its maximum.
const OVERDUE_INTERVAL: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(1));

impl Drain<'_> {
    /// Waits until the drain gives up these pods, because the Node's kubelet is silent.
    async fn kubelet_given_up(&self, left: Option<PodsLeft>) {
        let Drainer { index, clock, .. } = self.drainer;
        let Some(left) = left else { return std::future::pending().await };
        let silence = index.until_node(self.node, |known| Silence::of(known?)).await;
        match silence.over(&left, clock.timestamp_of(self.begun)) {
            // The API server writes whole seconds.
            Some(over) => sleep_until(clock.instant_of(over) + REMOVAL_TIME).await,
            None => std::future::pending().await,
        }
    }
}

/// The rounds of one drain.
pub(super) struct Rounds<'a> {
    evictions: &'a Evictions<'a>,
    departures: Departures<'a>,
    gaps: WatchGaps,
    own_pod: &'a watch::Sender<OwnPod>,
    /// The pods of each `DaemonSet` to evict: those of the first list that shows any. The first list of all may be from before they came.
    daemons: FirstDaemons,
    returns: Returns,
    /// Required freshness of the next list.
    freshness: Freshness,
    round: u32,
    overdue_interval: Backoff,
    /// The earliest time of the next list of overdue pods.
    overdue_list_at: Instant,
}

/// The end of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundsEnd {
    /// No pod that must leave is left, or a dry run has tried all evictions.
    Drained,
    /// The kubelet won't report the end of the pods that are left.
    NodeDead,
    /// The pods that are left are stuck, and a lifecycle hook no longer waits for them.
    Stuck,
}

/// The end of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// A new list showed no pod that must leave, or a dry run has tried all evictions.
    Drained,
    /// A new list showed no pod that must leave, except the pod of this process. Its turn has come.
    OwnPodLeft,
    /// All departures have ended. A newer list shows whether pods are left.
    Departed,
    /// The watch may have missed departures. A list shows them.
    WatchGap,
    /// A pod is still there after its grace period, or the drain gives up the pods of a silent kubelet. A list shows their current state.
    Overdue,
    /// The node's end is so near that the pods that were left alone, because they come back, are evicted once more.
    LastCall,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(evictions: &'a Evictions<'a>, gaps: WatchGaps, own_pod: &'a watch::Sender<OwnPod>) -> Self {
        Self {
            evictions,
            departures: Departures::new(evictions),
            gaps,
            own_pod,
            daemons: FirstDaemons::new(),
            returns: Returns::default(),
            freshness: Freshness::Cached,
            round: 0,
            overdue_interval: OVERDUE_INTERVAL,
            overdue_list_at: Instant::now(),
        }
    }

    /// Runs rounds until one ends drained, or the node is dead.
    pub(super) async fn run(&mut self) -> RoundsEnd {
        loop {
            let (selection, version) = self.list().await;
            if self.is_dead(&selection) {
                return RoundsEnd::NodeDead;
            }
            if self.report_stuck(&selection) {
                return RoundsEnd::Stuck;
            }
            let end = self.depart(selection).await;
            if end == RoundEnd::Drained {
                return RoundsEnd::Drained;
            }
            self.pause(end).await;
            // The list that ends the drain must show pods that were bound just before the cordon; and a pod that a list does not
            // show is gone only if the list is not older than the one that showed it.
            let drain = self.evictions.drain;
            let node = drain.drainer.index.newest(drain.node).filter(|node| node.cordoned);
            let cordoned = node.as_ref().map(|node| &*node.resource_version);
            self.freshness = Freshness::next(&version, self.evictions.watch_share.version(), cordoned);
            self.round += 1;
        }
    }

    /// Lists the pods, and returns the selection and the list's version. Departures continue meanwhile: their calls hold places in the gate
    /// that the list may need.
    async fn list(&mut self) -> (Selection, String) {
        let evictions = self.evictions;
        let (mut selection, version) = tokio::select! {
            biased;
            never = self.departures.proceed() => match never {},
            listed = Box::pin(evictions.list(self.freshness.clone())) => listed,
        };
        selection.keep_new_daemons(&mut self.daemons);
        self.leave_returning(&mut selection);
        evictions.drain.recorder.listed(&selection);
        let (DrainTerms { pod_grace, .. }, clock) = (evictions.drain.terms, evictions.drain.drainer.clock);
        evictions
            .drain
            .deadlines
            .change_pods(|pods| pods.list(&selection, pod_grace, Instant::now(), |ends| clock.instant_of(ends)));
        if self.round == 0 {
            self.report_begun(&selection, selection.longest_grace(pod_grace));
        }
        (selection, version)
    }

    /// Leaves alone the pods that have come back too often, and reports them.
    fn leave_returning(&mut self, selection: &mut Selection) {
        let Drain { drainer, node, .. } = self.evictions.drain;
        let known = drainer.index.newest(node).filter(|node| node.cordoned && self.freshness != Freshness::Cached);
        let cordon = known.map(|node| node.record.undo().restored);
        for departure in self.returns.keep(selection, cordon, Instant::now()) {
            let (on, pod) = (node.named(), departure.pod.named());
            drainer.facts.emit(&Fact::PodComesBack { on, pod, tolerates: departure.tolerates_cordon });
        }
    }

    /// Returns whether the kubelet is silent and the drain gives up the pods that a newer list shows. A pod whose eviction fails holds the
    /// drain, because its end is unknown.
    fn is_dead(&self, selection: &Selection) -> bool {
        let Drain { drainer, node, recorder, begun, .. } = self.evictions.drain;
        let over = || {
            let known = drainer.index.newest(node)?;
            Silence::of(&known)?.over(&PodsLeft::of(selection)?, drainer.clock.timestamp_of(*begun))
        };
        self.freshness != Freshness::Cached
            && over().is_some_and(|over| over <= drainer.clock.now())
            && !recorder.is_failing()
    }

    /// Reports the pods that are stuck on a Node whose kubelet lives. Returns whether a lifecycle hook waits only for them, and no longer.
    fn report_stuck(&self, selection: &Selection) -> bool {
        let Drain { drainer, node, recorder, plan, .. } = self.evictions.drain;
        if selection.terminating.is_empty() || drainer.index.newest(node).is_none_or(|known| !known.ready) {
            return false;
        }
        let now = drainer.clock.now();
        for departure in &selection.terminating {
            if let Some(by) = departure.stuck(now) {
                recorder.stuck(&departure.pod, by.into());
            }
        }
        self.freshness != Freshness::Cached && selection.is_stuck(now) && plan.borrow().hooks_end().is_some()
    }

    /// Starts the departures that the list asks for, and waits until all have ended, or the watch may have missed some.
    async fn depart(&mut self, mut selection: Selection) -> RoundEnd {
        let newer = self.freshness != Freshness::Cached;
        let dry_run = self.evictions.drain.drainer.dry_run;
        let drained = selection.is_drained() && newer;
        let own_pod = selection.own_pod.take();
        let own_pod_left = own_pod.is_some() && !dry_run;
        self.own_pod.send_modify(|own| {
            own.departure = own_pod;
            own.is_last &= drained;
        });
        let left = PodsLeft::of(&selection);
        let clock = &self.evictions.drain.drainer.clock;
        let stuck_at = selection.stuck_next(clock.now()).map(|at| clock.instant_of(at));
        self.departures.update(selection, newer);
        let (evictions, list_at) = (self.evictions, self.overdue_list_at);
        let overdue = async {
            tokio::select! {
                biased;
                () = evictions.overdue.notified() => {}
                () = evictions.drain.kubelet_given_up(left) => {}
            }
            sleep_until(list_at).await;
        };
        let grace = self.returns.last_call_grace(evictions.drain.terms.pod_grace);
        let (stays, last_call) = (grace.is_some(), |end: Deadline| grace?.signal_by(end));
        tokio::select! {
            biased;
            () = self.departures.all_gone() => match drained {
                _ if dry_run => RoundEnd::Drained,
                false => RoundEnd::Departed,
                true if own_pod_left => RoundEnd::OwnPodLeft,
                true => RoundEnd::Drained,
            },
            () = self.gaps.next() => RoundEnd::WatchGap,
            () = until(stuck_at) => RoundEnd::Overdue,
            () = overdue => {
                self.overdue_list_at = Instant::now() + self.overdue_interval.step();
                RoundEnd::Overdue
            }
            () = evictions.drain.reached(last_call), if stays => {
                self.returns.call_last();
                RoundEnd::LastCall
            }
        }
    }

    async fn pause(&mut self, end: RoundEnd) {
        let pause = match end {
            RoundEnd::OwnPodLeft => {
                self.own_pod.send_modify(|own| own.is_last = true);
                OWN_POD_INTERVAL
            }
            RoundEnd::Departed if self.round > 1 => ROUND_INTERVAL,
            _ => Duration::ZERO,
        };
        tokio::select! {
            biased;
            never = self.departures.proceed() => match never {},
            () = sleep(pause) => {}
        }
    }

    fn report_begun(&self, selection: &Selection, longest_grace: Option<(&PodId, Duration)>) {
        let drain = self.evictions.drain;
        let end = drain.end();
        let until = end.at().saturating_duration_since(Instant::now());
        drain.drainer.facts.emit(&Fact::DrainBegun {
            on: drain.node.named(),
            pods: selection.evict.len() + selection.terminating.len() + selection.finished.len(),
            left_alone: selection.left_alone.len(),
            until,
            hard: end.is_hard(),
        });
        if let Some((pod, grace)) = longest_grace
            && grace + REMOVAL_TIME > until
        {
            let of_hook = drain.plan.borrow().hooks_end().is_some();
            let (on, pod) = (drain.node.named(), pod.named());
            drain.drainer.facts.emit(&Fact::GraceTooLong { on, pod, grace, until, of_hook });
        }
    }
}
