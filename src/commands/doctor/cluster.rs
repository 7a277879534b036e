//! The cluster's Nodes, pods and disruption budgets. Pure.

use super::aws_calls::for_load_balancers;
use super::check::{Area, Check, count, few};
use super::policies;
use super::readings::{
    Agents, BudgetState, Budgets, MetadataOptions, NodeInstance, Nodes, PodOwner, Readings, Workload, Workloads,
};
use crate::cli::settings::Settings;
use crate::pipeline::interruption::ForLoadBalancers;
use kube::core::{Selector, SelectorExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl BudgetState {
    /// Whether all pods must be healthy at all times, so that no eviction can be granted.
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

/// Judges Nodes, pods and budgets.
#[must_use]
pub fn judge(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let area = Area::Cluster;
    // The check of the API server has reported it already.
    if readings.server.as_ref().is_err_and(|error| !error.answered()) {
        return Vec::new();
    }
    let mut checks = match &readings.nodes {
        Ok(nodes) => {
            let named =
                [judge_conditions(settings, nodes), judge_waves(settings, nodes), judge_controllers(settings, nodes)];
            let all = judge_nodes(nodes, readings.region.as_deref());
            all.into_iter().chain(named.into_iter().flatten()).chain(judge_pools(settings, nodes)).collect()
        }
        Err(error) => vec![area.skipped("nodes", &error.message)],
    };
    match &readings.instances {
        Ok(instances) => {
            let first = instances.first().map_or(&[][..], |instance| &instance.clusters);
            checks.push(judge_name(settings, first));
            checks.extend(load_balancers(settings, first));
            checks.extend(judge_metadata(instances));
        }
        // The check of the call reports it otherwise.
        Err(_) if !settings.sources.ask_aws() => checks.push(unknown_metadata()),
        Err(_) => {}
    }
    checks.push(policies::judge(settings, readings));
    match (&readings.workloads, &readings.budgets) {
        (Ok(workloads), Ok(budgets)) => {
            checks.extend(judge_budgets(workloads, budgets));
            checks.push(unprotected(workloads, budgets));
        }
        (_, Err(error)) => checks.push(area.unread("budgets", error, "list of poddisruptionbudgets in policy")),
        (Err(error), _) => checks.push(area.skipped("budgets", &error.message)),
    }
    checks.extend(match (&readings.agents, &readings.nodes) {
        (Some(Ok(agents)), Ok(nodes)) => judge_agents(settings, agents, nodes),
        (Some(Err(error)), _) => vec![area.unread("agents", error, "list of pods")],
        (Some(_), Err(error)) => vec![area.skipped("agents", &error.message)],
        (None, _) => Vec::new(),
    });
    checks
}

/// Judges what distinguishes an instance without a Node from those of other clusters.
fn judge_name(settings: &Settings, found: &[String]) -> Check {
    let (area, name) = (Area::Cluster, "name");
    match (&settings.cluster_name, found.first()) {
        (Some(wanted), Some(other)) if !found.contains(wanted) => area.failure(
            name,
            format!("--cluster-name is {wanted}, but the tags of a node's instance name {other}: hooks of instances without a Node are left alone."),
            format!("Set --cluster-name {other}, or leave it out to take it from the tags."),
        ),
        (Some(wanted), None) => area.ok(name, format!("{wanted}, by --cluster-name; no tag of a node's instance names it")),
        (Some(wanted), Some(_)) => area.ok(name, format!("{wanted}, by --cluster-name and by the tags of a node's instance")),
        (None, Some(found)) => area.ok(name, format!("{found}, by the tags of a node's instance")),
        (None, None) if settings.managed_tag.value.is_some() => {
            area.ok(name, "no tag of a node's instance names it, so the managed tag alone decides which instances are ours")
        }
        (None, None) => area.ok(
            name,
            "no tag of a node's instance names it, and the managed tag has no value: hooks of instances without a Node that are over 15 minutes old are left alone",
        ),
    }
}

/// Returns which load balancers the settings wait for, and which not; `found` is the cluster's name in tags.
fn load_balancers(settings: &Settings, found: &[String]) -> Option<Check> {
    if for_load_balancers(settings) == ForLoadBalancers::Nothing {
        return None;
    }
    let of_services = if settings.cluster_name.is_some() || !found.is_empty() {
        "target groups are found by bindings, Services and Auto Scaling groups"
    } else {
        "target groups are found by bindings and Auto Scaling groups, but not by the tags of Services, without --cluster-name"
    };
    let classic = if settings.policy().waits.complete_after.is_zero() {
        "classic load balancers are not waited for; --complete-after would give them time"
    } else {
        "classic load balancers have the time of --complete-after"
    };
    Some(Area::Cluster.ok("load-balancers", format!("{of_services}; {classic}")))
}

/// Judges whether pods get an answer of the metadata service, and with it the credentials of the node's role.
fn judge_metadata(instances: &[NodeInstance]) -> Option<Check> {
    let (area, name) = (Area::Cluster, "hop-limit");
    let known: Vec<_> = instances.iter().filter_map(|instance| Some((instance, instance.metadata?))).collect();
    let open = |metadata: &MetadataOptions| metadata.on && (metadata.without_token || metadata.hop_limit > 1);
    let reached: Vec<_> = known.iter().filter(|(_, metadata)| open(metadata)).collect();
    let Some((first, metadata)) = reached.first() else {
        let closed = count(known.len(), "instance", "instances");
        let found = format!("the metadata of {closed} of nodes answer no pod of another network than the node's");
        return (!known.is_empty()).then(|| area.ok(name, found));
    };
    let why = if metadata.without_token {
        "asks for no token".to_owned()
    } else {
        format!("has a metadata hop limit of {}", metadata.hop_limit)
    };
    let found = format!(
        "The metadata of {} of {} answer pods: {} {why}. Every pod on such a node can get the credentials of the node's role.",
        reached.len(),
        count(known.len(), "node's instance", "nodes' instances"),
        first.id
    );
    Some(area.warning(
        name,
        found,
        "Ask for tokens, with a hop limit of 1, in the launch template: pods on the node's network still get an answer.\n\
         Ebbtide's agents are there with agent.hostNetwork=true, a service that uses the instances' role with hostNetwork=true.\n\
         Where other pods need the role, keep the address from the rest: examples/metadata-networkpolicy.yaml.",
    ))
}

/// Returns the check of metadata options that a service without AWS can't read.
fn unknown_metadata() -> Check {
    let why = "With --source nodes alone Ebbtide needs no right to describe instances, so it does not know which pods their metadata answer.";
    let remedy = "To check it yourself, with credentials that may describe instances: each HttpTokens should be required, each hop limit 1.\n  \
                  aws ec2 describe-instances --query 'Reservations[].Instances[].[InstanceId,MetadataOptions.HttpTokens,MetadataOptions.HttpPutResponseHopLimit]' --output text";
    Area::Cluster.skipped("hop-limit", why).remedied(remedy)
}

fn judge_nodes(nodes: &Nodes, region: Option<&str>) -> Vec<Check> {
    let (area, name) = (Area::Cluster, "nodes");
    let mut checks = Vec::new();
    let ec2 = nodes.instances.len();
    if !nodes.without_provider.is_empty() {
        checks.push(area.warning(
            name,
            format!(
                "{} no provider ID, so no notice can be matched with them: {}.",
                count(nodes.without_provider.len(), "node has", "nodes have"),
                few(&nodes.without_provider)
            ),
            "Their kubelet or cloud controller must set it: aws:///ZONE/INSTANCE-ID (the kubelet's --provider-id).",
        ));
    }
    if let Some(first) = nodes.foreign.first() {
        let names: Vec<&str> = nodes.foreign.iter().map(|node| node.name.as_str()).collect();
        let found = format!(
            "{} no EC2 instance, such as {}: {}",
            count(names.len(), "node is", "nodes are"),
            first.provider_id,
            few(&names)
        );
        // EC2 does not interrupt the nodes of Fargate and of other clouds.
        checks.push(area.ok(name, found));
    }
    if ec2 == 0 && nodes.complete {
        checks.push(area.failure(
            name,
            "No node is an EC2 instance: no notice can be about this cluster.",
            "Check that KUBECONFIG, or the pod, belongs to the right cluster.",
        ));
    } else if let Some(other) = nodes.regions.iter().find(|found| region.is_some_and(|region| region != **found)) {
        checks.push(area.failure(
            name,
            format!("The nodes are in {other}, and calls to AWS go to {}.", region.unwrap_or_default()),
            format!("Set AWS_REGION={other}, and give a queue of that region: EC2 and Auto Scaling are called there."),
        ));
    } else {
        let all = if nodes.complete { "" } else { ", and more that were not listed" };
        checks.push(area.ok(name, format!("{} EC2{all}", count(ec2, "node is on", "nodes are on"))));
    }
    checks
}

/// Names the nodes that another controller drains, too, and the setting that leaves them to it.
fn judge_controllers(settings: &Settings, nodes: &Nodes) -> Option<Check> {
    let selector = &settings.scope.selector;
    let (mut found, mut selectors) = (Vec::new(), Vec::new());
    for (controller, labels) in &nodes.drained_by {
        let ours = labels.iter().filter(|labels| selector.matches(labels)).count();
        if ours > 0 {
            found.push(format!("{} of {}", count(ours, "node", "nodes"), controller.name()));
            selectors.push(controller.selector());
        }
    }
    let now = selector.to_string();
    let all: Vec<&str> = Some(&*now).filter(|now| !now.is_empty()).into_iter().chain(selectors).collect();
    (!found.is_empty()).then(|| {
        let found = found.join(", ");
        let of = format!("{found}: that drains them, too. To leave them to it: --node-selector '{}'", all.join(","));
        Area::Cluster.ok("controllers", of)
    })
}

/// Judges which nodes are in each pool.
fn judge_pools(settings: &Settings, nodes: &Nodes) -> Option<Check> {
    if settings.scope.pools.is_empty() {
        return None;
    }
    let (area, name) = (Area::Cluster, "pools");
    let pools = settings.scope.pools.iter().map(|pool| Some(&pool.name)).chain([None]);
    let in_pool = |pool: Option<&Arc<str>>| nodes.by_pool.get(&pool.cloned()).map_or(&[][..], Vec::as_slice);
    let without: Vec<_> = pools.clone().flatten().filter(|pool| in_pool(Some(pool)).is_empty()).collect();
    if let Some(first) = without.first().filter(|_| nodes.complete) {
        return Some(area.warning(
            name,
            format!("{} no node, so what they set has no effect: {}.", count(without.len(), "pool selects", "pools select"), few(&without)),
            format!("Compare the labels of nodes with its node-selector, and with the pools before it, because the first that selects a node counts: kubectl get nodes --show-labels. Or remove --pool {first}."),
        ));
    }
    let of_pool = |pool: Option<&Arc<str>>| {
        let nodes = in_pool(pool);
        let name = pool.map_or("none", |name| name);
        let names = if nodes.is_empty() { String::new() } else { format!(" ({})", few(nodes)) };
        format!("{name}: {}{names}", count(nodes.len(), "node", "nodes"))
    };
    Some(area.ok(name, pools.map(of_pool).collect::<Vec<_>>().join("; ")))
}

/// Judges whether each EC2 instance has an agent that can do its work.
fn judge_agents(settings: &Settings, agents: &Agents, nodes: &Nodes) -> Vec<Check> {
    let (area, name) = (Area::Cluster, "agents");
    if !(agents.complete && nodes.complete) {
        return vec![area.skipped(name, "Not all nodes and pods were listed.")];
    }
    let (with, without): (Vec<&String>, Vec<&String>) =
        nodes.names.iter().partition(|node| agents.by_node.contains_key(*node));
    if with.is_empty() && !without.is_empty() {
        return vec![without_agents(settings)];
    }
    let mut checks = Vec::new();
    if !without.is_empty() {
        let found = format!(
            "{} no agent, so what their metadata announce is not seen: {}.",
            count(without.len(), "node has", "nodes have"),
            few(&without)
        );
        let remedy = "Find out why: a node without room, a taint that agent.tolerations leaves out, or agent.nodeSelector:\n  \
                      kubectl describe daemonset --all-namespaces --selector app.kubernetes.io/name=ebbtide";
        checks.push(area.warning(name, found, remedy));
    }
    let unready: Vec<_> = with.iter().filter_map(|node| agents.by_node.get(*node)).filter(|pod| !pod.ready).collect();
    if let Some(first) = unready.first() {
        let names: Vec<String> = unready.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
        let found = format!(
            "{} not ready: they can't read the metadata, or can't patch their Nodes: {}.",
            count(names.len(), "agent is", "agents are"),
            few(&names)
        );
        checks.push(area.warning(
            name,
            found,
            format!("See its log:\n  kubectl -n {} logs {}", first.namespace, first.name),
        ));
    }
    if checks.is_empty() {
        checks.push(area.ok(name, format!("{} an agent that is ready", count(with.len(), "node has", "nodes have"))));
    }
    checks
}

/// Judges that no agent runs, which is right for a service that only repairs nodes.
fn without_agents(settings: &Settings) -> Check {
    let (area, name) = (Area::Cluster, "agents");
    let remedy = "Run them, with agent.enabled: true in the chart. Pods of your own that run `ebbtide agent` need the label ebbtide/agent: \"true\".";
    let sources = settings.sources;
    match (settings.policy().conditions.is_empty(), sources.queue, sources.ec2) {
        (true, false, false) => {
            area.failure(name, "No agent runs: the Nodes report nothing, and no node is ever drained.", remedy)
        }
        (true, ..) => area.warning(name, "No agent runs: the Nodes report nothing, and only AWS gives notices.", remedy),
        (false, true, _) => area.ok(name, "none runs, and conditions need none: other notices come from AWS"),
        (false, false, true) => area.ok(name, "none runs, and conditions need none: they and what EC2 lists are acted on; what the metadata alone announce, such as a spot interruption, is not seen"),
        (false, false, false) => area.ok(name, "none runs, and conditions need none: only they are acted on; what the metadata announce, such as a spot interruption, is not seen"),
    }
}

/// Judges whether any Node has the conditions that are acted on.
fn judge_conditions(settings: &Settings, nodes: &Nodes) -> Option<Check> {
    let rules = settings.policy().conditions.iter();
    let types = rules.map(|rule| rule.name.split_once('=').map_or(&*rule.name, |(kind, _)| kind));
    judge_named("conditions", types, &nodes.conditions, nodes, |missing| {
        let named = if missing.len() == 1 { "condition" } else { "conditions" };
        (
            format!(
                "No node has the {named} {} of --on-condition: mistyped, or not written by anything.",
                few(missing)
            ),
            "Correct the name, or run what writes it, such as the EKS node monitoring agent. A writer that adds it only to unhealthy nodes is fine. What a node has:\n  \
             kubectl describe node NODE",
        )
    })
}

/// Judges whether any Node has the labels of the waves.
fn judge_waves(settings: &Settings, nodes: &Nodes) -> Option<Check> {
    let labels = settings.all_policies().flat_map(|policy| &policy.waits.waves).map(|wave| &*wave.label);
    judge_named("waves", labels, &nodes.labels, nodes, |missing| {
        let named = if missing.len() == 1 { "label" } else { "labels" };
        (
            format!("--wave names the {named} {}, which no node has: no drain is held back by that.", few(missing)),
            "Correct the label, or label the nodes. What they have:\n  kubectl get nodes --show-labels",
        )
    })
}

/// Judges whether any Node has what the settings name.
fn judge_named<'a>(
    name: &'static str,
    named: impl Iterator<Item = &'a str>,
    known: &BTreeSet<String>,
    nodes: &Nodes,
    warning: impl FnOnce(&[&str]) -> (String, &'static str),
) -> Option<Check> {
    let area = Area::Cluster;
    let named: Vec<&str> = named.collect::<BTreeSet<_>>().into_iter().collect();
    // Without Nodes nothing is mistyped.
    if named.is_empty() || nodes.instances.is_empty() {
        return None;
    }
    let missing: Vec<&str> = named.iter().copied().filter(|name| !known.contains(*name)).collect();
    if missing.is_empty() {
        return Some(area.ok(name, format!("found on nodes: {}", few(&named))));
    }
    if !nodes.complete {
        return Some(area.skipped(name, "Not all nodes were listed."));
    }
    let (found, remedy) = warning(&missing);
    Some(area.warning(name, found, remedy))
}

fn judge_budgets(workloads: &Workloads, Budgets { budgets, complete }: &Budgets) -> Vec<Check> {
    let (area, name) = (Area::Cluster, "budgets");
    let mut checks = Vec::new();
    let never: Vec<&BudgetState> = budgets.iter().filter(|budget| budget.never_met()).collect();
    if let Some(first) = never.first() {
        let names: Vec<String> = never.iter().map(|budget| format!("{}/{}", budget.namespace, budget.name)).collect();
        checks.push(area.warning(
            name,
            format!("{} never allow an eviction: {}. Their pods block drains, and are deleted only near a hard deadline.", count(names.len(), "budget can", "budgets can"), few(&names)),
            format!(
                "Allow one unavailable pod, and run two replicas if one is not enough:\n  kubectl -n {} patch pdb {} --type merge \\\n    \
                 -p '{{\"spec\": {{\"minAvailable\": null, \"maxUnavailable\": 1}}}}'",
                first.namespace, first.name
            ),
        ));
    }
    let covering = |owner: &PodOwner, workload: &Workload| {
        budgets.iter().filter(|budget| budget.covers(&owner.namespace, &workload.labels)).count()
    };
    let twice = workloads.names(|owner, workload| covering(owner, workload) > 1);
    if !twice.is_empty() {
        checks.push(area.warning(
            name,
            format!("Two budgets select the same pods of {}: the API server then refuses every eviction.", few(&twice)),
            "Delete one of them; kubectl get pdb -A lists all.",
        ));
    }
    if budgets.is_empty() {
        checks.push(area.ok(name, "none"));
    } else if checks.is_empty() {
        let budgets = count(budgets.len(), "budget", "budgets");
        let more = if *complete { "" } else { "; there are more, which were not listed" };
        checks.push(area.ok(name, format!("{budgets}, each can allow an eviction{more}")));
    }
    checks
}

/// Reports workloads of several pods without a budget. That is worth knowing, but no problem.
fn unprotected(workloads: &Workloads, Budgets { budgets, complete }: &Budgets) -> Check {
    // A budget that was not listed may select any of the workloads.
    if !complete {
        return Area::Cluster.skipped("workloads", "Not all budgets were listed.");
    }
    let bare = workloads.names(|owner, workload| {
        workload.pods > 1 && !budgets.iter().any(|budget| budget.covers(&owner.namespace, &workload.labels))
    });
    let all = if workloads.complete { "" } else { " (of the pods that were listed)" };
    let found = if bare.is_empty() {
        format!("every workload of several pods has a budget{all}")
    } else {
        let have = count(bare.len(), "workload of several pods has", "workloads of several pods have");
        format!("{have} no budget, so a drain evicts all of a node's pods of it at once: {}{all}", few(&bare))
    };
    Area::Cluster.ok("workloads", found)
}

impl Workloads {
    /// Returns the names of the workloads that match, as NAMESPACE/NAME.
    fn names(&self, matches: impl Fn(&PodOwner, &Workload) -> bool) -> Vec<String> {
        let matching = self.workloads.iter().filter(|(owner, workload)| matches(owner, workload));
        matching.map(|(owner, _)| format!("{}/{}", owner.namespace, owner.name)).collect()
    }
}

#[cfg(test)]
mod tests;
