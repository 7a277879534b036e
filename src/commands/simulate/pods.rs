//! A node's pods: which ones go, when, and what holds them back. Pure.

use super::budget::{Budget, holding};
use super::reasons::span;
use super::view::{BudgetView, Hold, Moment, PodView, StayView, Turn};
use crate::pipeline::drain::{
    Deadline, Departure, DrainTerms, GIVEN_UP_AFTER, Grace, MAX_ADDED_GRACE, MAX_OF_OWNER, RUNNING_GIVEN_UP_AFTER,
    Selection, SelectionRules, StayReason, Tier, Tiers, TrimmedPod, outlook, select,
};
use crate::runtime::clock::Clock;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// The time of a drain.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrainSpan {
    pub begun: Instant,
    pub end: Deadline,
}

/// The times of one pod's end.
#[derive(Clone, Copy)]
struct PodTimes {
    evicted_by: Option<Moment>,
    grace: Duration,
    deleted_at: Option<Moment>,
}

impl PodTimes {
    const fn until(evicted_by: Option<Moment>, grace: Duration) -> Self {
        Self { evicted_by, grace, deleted_at: None }
    }
}

/// A node's pods, selected as by the drain, with their budgets.
pub(super) struct PodList<'a> {
    pods: HashMap<String, Pod>,
    selection: Selection,
    budgets: &'a [Budget],
    terms: DrainTerms,
    /// Whether the user has chosen the tiers.
    has_own_tiers: bool,
}

impl<'a> PodList<'a> {
    pub fn new(pods: Vec<Pod>, budgets: &'a [Budget], rules: &SelectionRules, terms: DrainTerms) -> Self {
        // A drain reads less of a pod than a budget does.
        let read = |pod: &Pod| serde_json::to_value(pod).ok().and_then(|pod| serde_json::from_value(pod).ok());
        let trimmed: Vec<TrimmedPod> = pods.iter().filter_map(read).collect();
        let selection = select(trimmed, rules);
        let pods = pods.into_iter().filter_map(|pod| Some((pod.metadata.uid.clone()?, pod))).collect();
        Self { pods, selection, budgets, terms, has_own_tiers: rules.tiers != Tiers::default() }
    }

    /// Returns the pods whose Deployments may be restarted first.
    pub fn may_surge(&self) -> impl Iterator<Item = &Departure> {
        self.selection.evict.iter().filter(|departure| departure.replica_set.is_some())
    }

    /// Returns the longest grace period of the pods that the drain waits for; `None` without any.
    pub fn longest_grace(&self) -> Option<Duration> {
        self.selection.longest_grace(self.terms.pod_grace).map(|(_, grace)| grace)
    }

    /// Returns the pods that leave, in their order.
    pub fn pods(&self, span: DrainSpan, clock: &Clock, moment: impl Fn(Instant) -> Moment) -> Vec<PodView> {
        let Self { selection, terms: DrainTerms { at_deadline, pod_grace, .. }, .. } = self;
        let DrainSpan { begun, end } = span;
        let seen = outlook(&selection.evict, begun, end, *pod_grace, *at_deadline, |time| clock.instant_of(time));
        let mut departures: Vec<_> = selection.evict.iter().zip(seen).collect();
        departures.sort_by_key(|(departure, seen)| {
            (departure.tier, seen.evicted_by.is_none(), seen.evicted_by, departure.pod.clone())
        });
        let mut views: Vec<_> = departures
            .into_iter()
            .map(|(departure, seen)| {
                let evicted_by = seen.evicted_by.map(&moment);
                let deleted_at = seen.deleted_at.map(&moment);
                self.pod(departure, Turn::Tier(departure.tier), PodTimes { evicted_by, grace: seen.grace, deleted_at })
            })
            .collect();
        if let Some(own) = &selection.own_pod {
            let grace: Grace = own.grace_with(*pod_grace);
            let last = grace.signal_by(end).unwrap_or(end.at()).max(begun);
            views.push(self.pod(own, Turn::Own, PodTimes::until(Some(moment(last)), grace.at(last, end))));
        }
        let grace = |departure: &Departure| departure.grace_with(*pod_grace).at(begun, end);
        let going = selection
            .terminating
            .iter()
            .map(|departure| self.pod(departure, Turn::Going, PodTimes::until(None, grace(departure))));
        let finished = selection.finished.iter().map(|departure| {
            self.pod(departure, Turn::Finished, PodTimes::until(Some(moment(begun)), grace(departure)))
        });
        views.extend(going.chain(finished));
        views
    }

    fn pod(&self, departure: &Departure, tier: Turn, times: PodTimes) -> PodView {
        let budgets = self.holding(departure).into_iter().map(|budget| Hold::Budget(budget.name.clone()));
        let annotation = departure.protection.map(|protection| Hold::Annotation(protection.annotation));
        PodView {
            namespace: departure.pod.namespace.to_string(),
            name: departure.pod.name.to_string(),
            tier,
            evicted_by: times.evicted_by,
            grace_seconds: times.grace.as_secs(),
            deleted_at: times.deleted_at,
            held_back_by: annotation.into_iter().chain(budgets).collect(),
        }
    }

    fn holding(&self, departure: &Departure) -> Vec<&'a Budget> {
        self.pods.get(&*departure.pod.uid).map(|pod| holding(pod, self.budgets)).unwrap_or_default()
    }

    /// Returns a note about a grace period that gets only a part of its time from a hook.
    pub fn room(&self, DrainSpan { begun, end }: DrainSpan) -> Option<String> {
        let (pod, grace) = self.selection.longest_grace(self.terms.pod_grace)?;
        let is_cut = end.has_room() && grace > MAX_ADDED_GRACE && begun + grace > end.at();
        is_cut.then(|| {
            format!(
                "{pod} has a grace period of {}, but a hook waits for {} at most; --drain-timeout asg-terminate gives it more",
                span(grace),
                span(MAX_ADDED_GRACE)
            )
        })
    }

    /// Returns a note about the time that each tier of pods has, if the user has chosen the tiers.
    pub fn shares(&self, DrainSpan { begun, end }: DrainSpan) -> Option<String> {
        let tiers: BTreeSet<Tier> = self.selection.evict.iter().map(|departure| departure.tier).collect();
        let is_chosen = self.has_own_tiers;
        let number = u32::try_from(tiers.len()).ok().filter(|number| is_chosen && *number > 1)?;
        let share = end.at().saturating_duration_since(begun) / number;
        let names = tiers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Some(format!(
            "{number} tiers of pods (--priority-tier) share the time to the deadline, {} each: {names}; one that is gone \
             sooner leaves its time to the others",
            span(share)
        ))
    }

    /// Returns a note about the time at which a hook no longer waits for pods that do not stop.
    pub fn stuck(&self, DrainSpan { end, .. }: DrainSpan, clock: &Clock) -> Option<String> {
        let waited = |length: SignedDuration| span(length.unsigned_abs());
        let Selection { evict, terminating, .. } = &self.selection;
        if !matches!(end, Deadline::Hook(_)) || evict.is_empty() && terminating.is_empty() {
            return None;
        }
        let now = clock.now();
        let are_stuck = terminating.iter().filter_map(|departure| Some((&departure.pod, departure.stuck(now)?)));
        let bound = format!(
            "a pod that is there {} after its grace period, or {} while its containers run, is stuck, and the hook waits no longer for it",
            waited(GIVEN_UP_AFTER),
            waited(RUNNING_GIVEN_UP_AFTER),
        );
        let named = are_stuck.map(|(pod, why)| format!("{pod} waits for {why}"));
        Some([bound].into_iter().chain(named).collect::<Vec<_>>().join("; "))
    }

    /// Returns a note about the pods that may come back to the cordoned Node, if there are any.
    pub fn come_back(&self) -> Option<String> {
        let pods = self.selection.evict.iter().filter(|departure| departure.tolerates_cordon);
        let names: Vec<_> = pods.map(|departure| departure.pod.to_string()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "what tolerates the cordon may come back; a pod that has done so {MAX_OF_OWNER} times stays then, and holds up nothing: {}",
                names.join(", ")
            )
        })
    }

    /// The pods that stay.
    pub fn stay(&self) -> Vec<StayView> {
        let stay = self.selection.left_alone.iter().map(|(pod, why)| StayView {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            why: match why {
                StayReason::DaemonSet => "its DaemonSet would recreate it",
                StayReason::CsiDriver => "a CSI driver: it unmounts the volumes of the others",
                StayReason::Mirror => "static: the kubelet runs it",
                StayReason::EmptyDir => "it has an emptyDir volume (--keep-empty-dir)",
                StayReason::Unmanaged => "it has no controller (--keep-unmanaged)",
                StayReason::ComesBack => "it comes back to the cordoned node",
                StayReason::Finished => "its containers have ended; a finalizer keeps its object",
            },
        });
        let mut stay: Vec<_> = stay.collect();
        stay.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        stay
    }

    /// The budgets of pods that are evicted.
    pub fn budgets(&self) -> Vec<BudgetView> {
        let evicted: Vec<&Departure> = self.selection.evict.iter().chain(self.selection.own_pod.as_deref()).collect();
        let covered = |budget: &Budget| {
            let pods = evicted.iter().filter_map(|departure| self.pods.get(&*departure.pod.uid));
            pods.filter(|pod| budget.covers(pod)).count()
        };
        let blocks = |budget: &Budget| {
            let is = |held: &&Budget| std::ptr::eq(*held, budget);
            evicted.iter().any(|departure| self.holding(departure).iter().any(is))
        };
        let views = self.budgets.iter().map(|budget| BudgetView {
            namespace: budget.namespace.clone(),
            name: budget.name.clone(),
            allows: budget.allows,
            pods: covered(budget),
            blocks: blocks(budget),
        });
        let mut views: Vec<_> = views.filter(|budget| budget.pods > 0).collect();
        views.sort_by(|a, b| (!a.blocks, &a.namespace, &a.name).cmp(&(!b.blocks, &b.namespace, &b.name)));
        views
    }
}
