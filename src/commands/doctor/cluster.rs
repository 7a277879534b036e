//! Nodes that no notice can be matched with; pods that no budget spreads out, and budgets that can't be met. Pure.

use super::check::{Area, Check, count, few};
use super::read::Seen;
use crate::pipeline::event::InstanceId;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use std::collections::BTreeMap;
use std::time::Duration;

/// The cluster's Nodes, as far as their provider IDs go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// The EC2 instances that are Nodes.
    pub instances: Vec<InstanceId>,
    /// Regions that these instances are in, each once.
    pub regions: Vec<String>,
    /// Nodes without a provider ID.
    pub without: Vec<String>,
    /// Nodes whose provider ID is not an EC2 instance's, with it.
    pub foreign: Vec<(String, String)>,
    /// Whether these are all.
    pub all: bool,
}

impl Nodes {
    /// Takes a Node by its name and its provider ID.
    pub fn add(&mut self, name: String, provider: Option<&str>) {
        let Some(provider) = provider.filter(|id| !id.is_empty()) else { return self.without.push(name) };
        let mut parts = provider.strip_prefix("aws://").unwrap_or_default().rsplit('/');
        let (instance, zone) = (parts.next().and_then(InstanceId::new), parts.next().unwrap_or_default());
        let Some(instance) = instance else { return self.foreign.push((name, provider.to_owned())) };
        self.instances.push(instance);
        let region = region_of(zone);
        if !region.is_empty() && !self.regions.contains(&region) {
            self.regions.push(region);
        }
    }
}

/// The region of a zone: all up to its first number. eu-west-1a and us-gov-west-1a, and the local zone us-west-2-lax-1a.
fn region_of(zone: &str) -> String {
    let named = zone.find(|c: char| c.is_ascii_digit()).unwrap_or(zone.len());
    let number = zone[named..].find(|c: char| !c.is_ascii_digit()).unwrap_or(zone.len() - named);
    zone[..named + number].to_owned()
}

/// The pods that a drain would move, by who made them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workloads {
    /// By namespace, kind and name of the owner.
    pub owners: BTreeMap<(String, String, String), Owned>,
    /// The pod with the longest grace period.
    pub longest_grace: Option<(String, Duration)>,
    /// Whether all pods were listed.
    pub all: bool,
}

/// What one owner has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// How many pods.
    pub pods: usize,
    /// The labels of one of them.
    pub labels: BTreeMap<String, String>,
}

/// The disruption budgets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budgets {
    /// Each.
    pub budgets: Vec<Budget>,
    /// Whether all were listed.
    pub all: bool,
}

/// A disruption budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whose pods it is about.
    ///
    /// `None` is about no pod, `Some` of nothing about all of the namespace.
    pub selector: Option<LabelSelector>,
    /// How many pods there are to be.
    pub expected: i32,
    /// How many must be healthy.
    pub desired: i32,
    /// Whether a controller has looked at it as it is now.
    pub current: bool,
}

impl Budget {
    /// All pods must be healthy at all times: no eviction can ever be granted.
    fn never_met(&self) -> bool {
        self.current && self.expected > 0 && self.desired >= self.expected
    }

    fn covers(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.namespace == namespace
            && self
                .selector
                .clone()
                .is_some_and(|selector| Selector::try_from(selector).is_ok_and(|it| it.matches(labels)))
    }
}

/// What is found of them.
#[must_use]
pub fn judge(seen: &Seen) -> Vec<Check> {
    let area = Area::Cluster;
    // Where nobody answers, that was said once.
    if seen.server.as_ref().is_err_and(|failed| !failed.answered()) {
        return Vec::new();
    }
    let mut checks = match &seen.nodes {
        Ok(nodes) => judge_nodes(nodes, seen.region.as_deref()),
        Err(failed) => vec![area.skipped("nodes", &failed.what)],
    };
    match (&seen.workloads, &seen.budgets) {
        (Ok(workloads), Ok(budgets)) => {
            checks.extend(judge_budgets(workloads, budgets));
            checks.push(unprotected(workloads, budgets));
        }
        (_, Err(failed)) => checks.push(area.unread("budgets", failed, "list of poddisruptionbudgets in policy")),
        (Err(failed), _) => checks.push(area.skipped("budgets", &failed.what)),
    }
    checks
}

fn judge_nodes(nodes: &Nodes, region: Option<&str>) -> Vec<Check> {
    let (area, name) = (Area::Cluster, "nodes");
    let mut checks = Vec::new();
    let ec2 = nodes.instances.len();
    if !nodes.without.is_empty() {
        checks.push(area.warning(
            name,
            format!(
                "{} no provider ID, and no notice can find them: {}.",
                count(nodes.without.len(), "node has", "nodes have"),
                few(&nodes.without)
            ),
            "Their kubelet or cloud controller must set it: aws:///ZONE/INSTANCE-ID (the kubelet's --provider-id).",
        ));
    }
    if let Some((_, provider)) = nodes.foreign.first() {
        let names: Vec<&str> = nodes.foreign.iter().map(|(name, _)| name.as_str()).collect();
        let found = format!(
            "{} no EC2 instance, such as {provider}: {}",
            count(names.len(), "node is", "nodes are"),
            few(&names)
        );
        // Fargate's and other clouds' nodes are not AWS's to interrupt.
        checks.push(area.ok(name, found));
    }
    if ec2 == 0 && nodes.all {
        checks.push(area.failure(
            name,
            "No node is an EC2 instance: no notice can be about this cluster.",
            "Check that KUBECONFIG, or the pod, is of the cluster that is meant.",
        ));
    } else if let Some(other) = nodes.regions.iter().find(|found| region.is_some_and(|region| region != **found)) {
        checks.push(area.failure(
            name,
            format!("The nodes are in {other}, and AWS is asked in {}.", region.unwrap_or_default()),
            format!("Set AWS_REGION={other}, and give a queue of that region: EC2 and Auto Scaling are asked there."),
        ));
    } else {
        let all = if nodes.all { "" } else { ", and more that were not listed" };
        checks.push(area.ok(name, format!("{} EC2{all}", count(ec2, "node is on", "nodes are on"))));
    }
    checks
}

fn judge_budgets(workloads: &Workloads, Budgets { budgets, all }: &Budgets) -> Vec<Check> {
    let (area, name) = (Area::Cluster, "budgets");
    let mut checks = Vec::new();
    let never: Vec<&Budget> = budgets.iter().filter(|budget| budget.never_met()).collect();
    let named = |budget: &&Budget| format!("{}/{}", budget.namespace, budget.name);
    if let Some(first) = never.first() {
        let names: Vec<String> = never.iter().map(named).collect();
        checks.push(area.warning(
            name,
            format!("{} no pod go, ever: {}. Their pods block drains, and are deleted only at a hard deadline.", count(names.len(), "budget lets", "budgets let"), few(&names)),
            format!(
                "Let one pod go at a time, and run two where one is too few:\n  kubectl -n {} patch pdb {} --type merge \\\n    \
                 -p '{{\"spec\": {{\"minAvailable\": null, \"maxUnavailable\": 1}}}}'",
                first.namespace, first.name
            ),
        ));
    }
    let twice: Vec<String> = workloads
        .owners
        .iter()
        .filter(|((namespace, ..), owned)| {
            budgets.iter().filter(|budget| budget.covers(namespace, &owned.labels)).count() > 1
        })
        .map(|((namespace, _, owner), _)| format!("{namespace}/{owner}"))
        .collect();
    if !twice.is_empty() {
        checks.push(area.warning(
            name,
            format!(
                "Two budgets are about the same pods of {}: the API server then refuses every eviction.",
                few(&twice)
            ),
            "Take one of them away; kubectl get pdb -A shows all.",
        ));
    }
    if budgets.is_empty() {
        checks.push(area.ok(name, "none"));
    } else if checks.is_empty() {
        let budgets = count(budgets.len(), "budget", "budgets");
        let more = if *all { "" } else { "; there are more, which were not listed" };
        checks.push(area.ok(name, format!("{budgets}, each can let a pod go{more}")));
    }
    checks
}

/// Workloads of several pods that no budget is about: worth knowing, and nothing wrong.
fn unprotected(workloads: &Workloads, Budgets { budgets, all }: &Budgets) -> Check {
    // What is not listed may be about any of them.
    if !all {
        return Area::Cluster.skipped("workloads", "Not all budgets were listed.");
    }
    let bare: Vec<String> = workloads
        .owners
        .iter()
        .filter(|((namespace, ..), owned)| {
            owned.pods > 1 && !budgets.iter().any(|budget| budget.covers(namespace, &owned.labels))
        })
        .map(|((namespace, _, owner), _)| format!("{namespace}/{owner}"))
        .collect();
    let all = if workloads.all { "" } else { " (of the pods that were listed)" };
    let found = if bare.is_empty() {
        format!("every workload of several pods has a budget{all}")
    } else {
        let have = count(bare.len(), "workload of several pods has", "workloads of several pods have");
        format!("{have} no budget, so all of a node's pods of it go at once: {}{all}", few(&bare))
    };
    Area::Cluster.ok("workloads", found)
}

#[cfg(test)]
mod tests;
