//! What is read of the cluster and of AWS, each at most once. Only reads: get, list, and Describe calls.

use super::budget::Budget;
use crate::cli::settings::Settings;
use crate::clients::connect::Clients;
use crate::clients::gate::{CALL_TIMEOUT, Call, Class, Gate, KubeError};
use crate::commands::test_message::{Sources, brief};
use crate::fact::Facts;
use crate::pipeline::drain::pods_of;
use crate::pipeline::event::{Hook, InstanceId};
use crate::pipeline::interruption::{HookTimes, Hooks};
use crate::pipeline::node::{Asked, Fate, Node, Owner, node_api};
use crate::runtime::clock::Clock;
use crate::runtime::task::Tasks;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::ListParams;
use std::collections::HashMap;
use tokio::time::Instant;

/// A list comes in pages of so many.
const PAGE: u32 = 500;

/// Reads.
pub(super) struct Look<'a> {
    pub clients: &'a Clients,
    pub clock: Clock,
    facts: Facts,
    gate: Gate,
    settings: &'a Settings,
    owner: Owner,
    hooks: Hooks,
    nodes: Option<HashMap<InstanceId, Node>>,
    known: Option<Node>,
}

impl<'a> Look<'a> {
    pub fn new(clients: &'a Clients, clock: Clock, settings: &'a Settings) -> Self {
        let facts = Facts::to(Vec::new());
        let tasks = Tasks::new(facts.clone());
        Self {
            clients,
            clock,
            gate: Gate::new(facts.clone()),
            settings,
            owner: Owner::new(clients.aws.ec2.clone(), settings.managed_tag.clone(), &tasks, facts.clone()),
            hooks: Hooks::new(clients.aws.autoscaling.clone(), Gate::new(facts.clone())),
            facts,
            nodes: None,
            known: None,
        }
    }

    /// Returns the clients for a test message.
    pub fn sources(&self) -> Sources<'_> {
        Sources { clients: self.clients, facts: &self.facts, gate: &self.gate, selector: &self.settings.node_selector }
    }

    /// A Node that was read already.
    pub fn know(&mut self, node: Node) {
        self.known = Some(node);
    }

    /// The instance's Node.
    pub async fn node_of(&mut self, instance: &InstanceId) -> Result<Option<Node>, KubeError> {
        if let Some(known) = self.known.as_ref().filter(|known| known.instance == *instance) {
            return Ok(Some(known.clone()));
        }
        if self.nodes.is_none() {
            let api = node_api(self.clients.kube.clone());
            let objects = self.all("nodes", "", &api, &ListParams::default()).await?;
            let nodes = objects.into_iter().filter_map(|node| Node::from_wire(node, &self.settings.node_selector));
            self.nodes = Some(nodes.map(|node| (node.instance.clone(), node)).collect());
        }
        Ok(self.nodes.as_ref().and_then(|nodes| nodes.get(instance)).cloned())
    }

    /// The pods of a node that the settings choose.
    pub async fn pods(&self, node: &str) -> Result<Vec<Pod>, KubeError> {
        let params = pods_of(node, self.settings.pod_selector.as_deref());
        self.all("pods", node, &Api::all(self.clients.kube.clone()), &params).await
    }

    /// Every disruption budget.
    pub async fn budgets(&self) -> Result<Vec<Budget>, KubeError> {
        let api: Api<PodDisruptionBudget> = Api::all(self.clients.kube.clone());
        let all = self.all("poddisruptionbudgets", "", &api, &ListParams::default()).await?;
        Ok(all.into_iter().map(Budget::of).collect())
    }

    /// What EC2 says of an instance.
    pub async fn fate(&self, instance: &InstanceId) -> Result<Fate, String> {
        self.owner.ask_anew(instance).await.map_err(|error| match error {
            Asked::Failed(error) => brief(&error),
            Asked::Unanswered(error) => error.to_string(),
        })
    }

    /// A hook's times.
    pub async fn times(&self, hook: &Hook) -> Result<HookTimes, String> {
        self.hooks.times(hook).await.map_err(|error| brief(&error))
    }

    async fn all<K>(
        &self,
        resource: &'static str,
        subject: &str,
        api: &Api<K>,
        params: &ListParams,
    ) -> Result<Vec<K>, KubeError>
    where
        K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        let mut found = Vec::new();
        let mut params = params.clone().limit(PAGE);
        loop {
            let call = Call { verb: "list", resource, subject };
            let page = self.gate.kube(call, Class::List, Instant::now() + CALL_TIMEOUT, || api.list(&params)).await?;
            found.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(found),
            }
        }
    }
}
