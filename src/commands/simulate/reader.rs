//! Reads of the cluster and of AWS. Only get, list and Describe calls.

use super::budget::Budget;
use crate::cli::settings::Settings;
use crate::clients::connect::Clients;
use crate::clients::gate::{AwsError, CALL_TIMEOUT, Gate, KubeError};
use crate::commands::cluster::list_all;
use crate::commands::test_message::{Sources, brief};
use crate::fact::{Fact, Facts, Replacement, Subscriber};
use crate::pipeline::drain::{Departure, DeploymentReader, Foreseen, pods_of};
use crate::pipeline::event::{Detail, Hook, InstanceId, Notice};
use crate::pipeline::interruption::{
    GroupLookup, Groups, HookTimes, Hooks, ShiftedResources, TargetGroup, TargetGroups, is_too_late, replaceable,
    shifts_of,
};
use crate::pipeline::node::shift::{Shift, holding_back};
use crate::pipeline::node::{ClusterNames, InstanceRecord, Node, OwnerLookup, node_api};
use crate::runtime::clock::Clock;
use crate::runtime::task::Tasks;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::ListParams;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// A question that AWS has not answered. Displayed in brief, as a part of a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{}", brief(.0))]
pub(super) struct UnansweredQuestion(Arc<AwsError>);

impl From<AwsError> for UnansweredQuestion {
    fn from(error: AwsError) -> Self {
        Self(Arc::new(error))
    }
}

/// Failed questions about target groups.
#[derive(Default)]
struct Failures(Mutex<Vec<String>>);

impl Subscriber for Failures {
    fn note(&self, fact: &Fact<'_>) {
        if let Fact::LoadBalancerFailed { error, .. } = fact {
            self.0.lock().push(error.to_string());
        }
    }
}

/// The cluster's Nodes, and what they note.
struct Nodes {
    by_instance: HashMap<InstanceId, Arc<Node>>,
    /// The zonal shifts that count.
    shifts: Vec<Shift>,
}

/// Reads from the cluster and from AWS.
pub(super) struct Reader<'a> {
    clients: &'a Clients,
    pub clock: Clock,
    facts: Facts,
    gate: Gate,
    settings: &'a Settings,
    owner: OwnerLookup,
    /// An instance of this cluster, with the cluster's name in its tags.
    example: Arc<OnceLock<InstanceId>>,
    hooks: Hooks,
    group_lookup: GroupLookup,
    groups: Groups,
    /// The labels of Nodes that the waits read.
    labels: Vec<Box<str>>,
    nodes: Option<Nodes>,
    made_for: Option<Arc<Node>>,
}

impl<'a> Reader<'a> {
    pub fn new(clients: &'a Clients, clock: Clock, settings: &'a Settings) -> Self {
        let facts = Facts::to(Vec::new());
        let tasks = Tasks::new(facts.clone());
        let example = Arc::new(OnceLock::new());
        let known = Arc::clone(&example);
        let cluster = ClusterNames::new(settings.cluster_name.clone(), move || known.get().cloned());
        let Settings { managed_tag, .. } = settings;
        let group_lookup = GroupLookup::new(clients.aws.autoscaling.clone(), &tasks, facts.clone());
        Self {
            clients,
            clock,
            gate: Gate::new(facts.clone()),
            settings,
            owner: OwnerLookup::new(clients.aws.ec2.clone(), managed_tag.clone(), cluster, &tasks, facts.clone()),
            example,
            hooks: Hooks::new(clients.aws.autoscaling.clone(), Gate::new(facts.clone()), group_lookup.clone()),
            group_lookup,
            groups: Groups::new(clients.aws.autoscaling.clone(), Gate::new(facts.clone()), facts.clone()),
            facts,
            labels: settings.labels(),
            nodes: None,
            made_for: None,
        }
    }

    /// Returns the clients for a test message.
    pub fn sources(&self) -> Sources<'_> {
        let (scope, labels) = (&self.settings.scope, &self.labels[..]);
        Sources { clients: self.clients, facts: &self.facts, gate: &self.gate, scope, labels }
    }

    /// Keeps a Node that was read already.
    pub fn know(&mut self, node: Node) {
        self.made_for = Some(Arc::new(node));
    }

    /// Returns the instance's Node.
    pub async fn node_of(&mut self, instance: &InstanceId) -> Result<Option<Arc<Node>>, KubeError> {
        if let Some(node) = self.made_for.as_ref().filter(|node| node.instance == *instance) {
            return Ok(Some(Arc::clone(node)));
        }
        Ok(self.nodes().await?.by_instance.get(instance).map(Arc::clone))
    }

    /// Returns the zonal shift for which a drain of the Node waits if it has time. Any Node may note it.
    pub async fn shift(&mut self, node: &Node) -> Result<Option<Shift>, KubeError> {
        if self.settings.policy().waits.zonal_shift == ShiftedResources::None {
            return Ok(None);
        }
        Ok(holding_back(node, &self.nodes().await?.shifts).cloned())
    }

    /// Returns the cluster's Nodes, which are listed once.
    async fn nodes(&mut self) -> Result<&Nodes, KubeError> {
        let nodes = match self.nodes.take() {
            Some(nodes) => nodes,
            None => self.listed().await?,
        };
        Ok(self.nodes.insert(nodes))
    }

    async fn listed(&self) -> Result<Nodes, KubeError> {
        let (scope, policy) = (&self.settings.scope, self.settings.policy());
        let is_used = |key: &str| self.labels.iter().any(|label| **label == *key);
        let api = node_api(self.clients.kube.clone());
        let objects = list_all(&self.gate, "nodes", "", &api, ListParams::default()).await?;
        let nodes = objects.into_iter();
        let nodes = nodes.filter_map(|node| Node::from_wire(node, scope, is_used, &policy.conditions, &[]));
        let mut nodes: Vec<_> = nodes.map(Arc::new).collect();
        // Of several Nodes of an instance the index returns the one that is Ready.
        nodes.sort_by_key(|node| (node.ready, node.ready_since));
        let shifts = shifts_of(&policy.waits.zonal_shift, &nodes, self.clock.now());
        let by_instance: HashMap<_, _> = nodes.into_iter().map(|node| (node.instance.clone(), node)).collect();
        if let Some(instance) = by_instance.keys().next() {
            let _ = self.example.set(instance.clone());
        }
        Ok(Nodes { by_instance, shifts })
    }

    /// Returns what would be done for a pod of this Node before its eviction, if anything.
    pub async fn foresee(&self, departure: &Departure, node: &Node) -> Result<Option<Foreseen>, KubeError> {
        let listed = if self.nodes.is_none() { Some(self.listed().await?) } else { None };
        let nodes = self.nodes.as_ref().or(listed.as_ref()).into_iter().flat_map(|nodes| nodes.by_instance.values());
        let drained = nodes.filter(|node| node.record.is_drained()).map(|node| Arc::clone(&node.name));
        let drained: HashSet<_> = drained.chain([Arc::clone(&node.name)]).collect();
        let by = Instant::now() + CALL_TIMEOUT;
        let (client, gate, rules) = (&self.clients.kube, &self.gate, &self.settings.selection_rules);
        let reader = DeploymentReader { client, gate, departure, rules, by };
        reader.foresee(|name| drained.contains(name), self.clock.now()).await
    }

    /// Returns the pods of a node that the settings select.
    pub async fn pods(&self, node: &str) -> Result<Vec<Pod>, KubeError> {
        let params = pods_of(node, self.settings.pod_selector.as_deref());
        list_all(&self.gate, "pods", node, &Api::all(self.clients.kube.clone()), params).await
    }

    /// Returns every disruption budget.
    pub async fn budgets(&self) -> Result<Vec<Budget>, KubeError> {
        let api: Api<PodDisruptionBudget> = Api::all(self.clients.kube.clone());
        let all = list_all(&self.gate, "poddisruptionbudgets", "", &api, ListParams::default()).await?;
        Ok(all.into_iter().map(Budget::of).collect())
    }

    /// Returns EC2's answer about an instance.
    pub async fn record(&self, instance: &InstanceId) -> Result<InstanceRecord, UnansweredQuestion> {
        Ok(self.owner.ask_anew(instance).await?)
    }

    /// Returns the instances of a capacity reservation.
    pub async fn in_reservation(&self, reservation: &str) -> Result<Vec<InstanceId>, UnansweredQuestion> {
        self.owner.in_reservation(reservation).await.map_err(UnansweredQuestion::from)
    }

    /// Returns the target groups that may list this instance or its pods, and what could not be asked.
    pub async fn target_groups(&self, instance: &InstanceId, hook: Option<&Hook>) -> (Vec<TargetGroup>, Vec<String>) {
        let failures = Arc::new(Failures::default());
        let facts = Facts::to(vec![Arc::clone(&failures) as Arc<dyn Subscriber>]);
        let (kube, aws) = ((self.clients.kube.clone(), self.gate.clone()), &self.clients.aws);
        // The instance has a Node here.
        let _ = self.example.set(instance.clone());
        let groups = TargetGroups::new(kube, aws.autoscaling.clone(), aws.elb.clone(), self.owner.clone(), facts)
            .with_group_lookup(self.group_lookup.clone());
        let found = groups.of(instance, hook.map(|hook| &*hook.group)).await;
        let failures = std::mem::take(&mut *failures.0.lock());
        (found.groups.to_vec(), failures)
    }

    /// Returns a hook's times.
    pub async fn times(&self, hook: &Hook) -> Result<HookTimes, UnansweredQuestion> {
        self.hooks.times(hook).await.map_err(UnansweredQuestion)
    }

    /// Returns whether the instance of this Node would be replaced before its drain, or why not.
    pub async fn replacement(&self, notice: &Notice, node: &Node, until: Instant) -> Result<(), Replacement> {
        let policy = self.settings.policy();
        if is_too_late(node, until) {
            return Err(Replacement::TooLate);
        }
        if let Detail::AsgTerminate(hook) = &notice.detail {
            let group = self.groups.get(&hook.group, Duration::MAX).await?;
            return if group.suspends(&["Launch"]) { Err(Replacement::Suspended) } else { Ok(()) };
        }
        let group = self.owner.group_of(&notice.instance).await.map_err(|_| Replacement::Unknown)?;
        let group = self.groups.get(&group.ok_or(Replacement::NoGroup)?, Duration::MAX).await?;
        replaceable(&group, notice.instance.as_str(), |hook| policy.completes(hook))?;
        if policy.dry_run { Err(Replacement::DryRun) } else { Ok(()) }
    }
}
