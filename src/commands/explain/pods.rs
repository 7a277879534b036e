//! A node's pods: which go, when, and who holds them back. Pure.

use super::budget::{Budget, holding};
use super::told::{BudgetTold, Moment, PodTold, StayTold};
use crate::cli::settings::Settings;
use crate::pipeline::drain::{Deadline, Grace, Leaver, Selection, Stays, TrimmedPod, outlook, select};
use k8s_openapi::api::core::v1::Pod;
use std::collections::HashMap;
use tokio::time::Instant;

/// A node's pods, sorted as the drain would, with their budgets.
pub(super) struct Listed<'a> {
    pods: HashMap<String, Pod>,
    selection: Selection,
    budgets: &'a [Budget],
    settings: &'a Settings,
}

impl<'a> Listed<'a> {
    pub fn new(pods: Vec<Pod>, budgets: &'a [Budget], settings: &'a Settings) -> Self {
        // A drain reads less of a pod than a budget does.
        let read = |pod: &Pod| serde_json::to_value(pod).ok().and_then(|pod| serde_json::from_value(pod).ok());
        let trimmed: Vec<TrimmedPod> = pods.iter().filter_map(read).collect();
        let selection = select(trimmed, &settings.choice);
        let pods = pods.into_iter().filter_map(|pod| Some((pod.metadata.uid.clone()?, pod))).collect();
        Self { pods, selection, budgets, settings }
    }

    /// The pods that go, in the order in which they do.
    pub fn pods(&self, (begun, end): (Instant, Deadline), moment: impl Fn(Instant) -> Moment) -> Vec<PodTold> {
        let Self { selection, settings, .. } = self;
        let seen = outlook(&selection.evict, (begun, end), settings.pod_grace, settings.at_deadline);
        let mut leavers: Vec<_> = selection.evict.iter().zip(seen).collect();
        leavers.sort_by_key(|(leaver, seen)| {
            (leaver.tier, seen.evicted_by.is_none(), seen.evicted_by, leaver.pod.clone())
        });
        let mut told: Vec<_> = leavers
            .into_iter()
            .map(|(leaver, seen)| {
                let evicted_by = seen.evicted_by.map(&moment);
                let deleted_at = seen.deleted_at.map(&moment);
                self.told(leaver, leaver.tier.as_str(), (evicted_by, seen.grace.as_secs(), deleted_at))
            })
            .collect();
        if let Some(own) = &selection.ourselves {
            let grace: Grace = own.grace_with(settings.pod_grace);
            let last = grace.told_by(end).unwrap_or(end.at()).max(begun);
            told.push(self.told(own, "own", (Some(moment(last)), grace.at(last, end).as_secs(), None)));
        }
        let grace = |leaver: &Leaver| leaver.grace_with(settings.pod_grace).at(begun, end).as_secs();
        let going = selection.going.iter().map(|leaver| self.told(leaver, "going", (None, grace(leaver), None)));
        let finished = selection
            .finished
            .iter()
            .map(|leaver| self.told(leaver, "finished", (Some(moment(begun)), grace(leaver), None)));
        told.extend(going.chain(finished));
        told
    }

    fn told(
        &self,
        leaver: &Leaver,
        tier: &'static str,
        (evicted_by, grace_seconds, deleted_at): (Option<Moment>, u64, Option<Moment>),
    ) -> PodTold {
        let budgets = self.holding(leaver).into_iter().map(|budget| format!("budget {}", budget.name));
        let annotation = leaver.peace.map(|annotation| format!("annotation {annotation}"));
        PodTold {
            namespace: leaver.pod.namespace.to_string(),
            name: leaver.pod.name.to_string(),
            tier,
            evicted_by,
            grace_seconds,
            deleted_at,
            held_back_by: annotation.into_iter().chain(budgets).collect(),
        }
    }

    fn holding(&self, leaver: &Leaver) -> Vec<&'a Budget> {
        self.pods.get(&*leaver.pod.uid).map(|pod| holding(pod, self.budgets)).unwrap_or_default()
    }

    /// The pods that stay.
    pub fn stay(&self) -> Vec<StayTold> {
        let stay = self.selection.stay.iter().map(|(pod, why)| StayTold {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            why: match why {
                Stays::DaemonSet => "of a DaemonSet, which would put it back",
                Stays::Mirror => "static: the kubelet runs it",
                Stays::EmptyDir => "it has an emptyDir volume (--keep-empty-dir)",
                Stays::Unmanaged => "it has no controller (--keep-unmanaged)",
            },
        });
        let mut stay: Vec<_> = stay.collect();
        stay.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        stay
    }

    /// The budgets of pods that are evicted.
    pub fn budgets(&self) -> Vec<BudgetTold> {
        let evicted: Vec<&Leaver> = self.selection.evict.iter().chain(&self.selection.ourselves).collect();
        let covered = |budget: &Budget| {
            let pods = evicted.iter().filter_map(|leaver| self.pods.get(&*leaver.pod.uid));
            pods.filter(|pod| budget.covers(pod)).count()
        };
        let blocks = |budget: &Budget| {
            let is = |held: &&Budget| std::ptr::eq(*held, budget);
            evicted.iter().any(|leaver| self.holding(leaver).iter().any(is))
        };
        let told = self.budgets.iter().map(|budget| BudgetTold {
            namespace: budget.namespace.clone(),
            name: budget.name.clone(),
            allows: budget.allows,
            pods: covered(budget),
            blocks: blocks(budget),
        });
        let mut told: Vec<_> = told.filter(|budget| budget.pods > 0).collect();
        told.sort_by(|a, b| (!a.blocks, &a.namespace, &a.name).cmp(&(!b.blocks, &b.namespace, &b.name)));
        told
    }
}
