//! The Nodes of the cluster.

use crate::pipeline::event::InstanceId;
use crate::pipeline::node::NodeScope;
use crate::pipeline::node::record::Record;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The cluster's Nodes, by their provider IDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// The pools of the settings.
    pub scope: NodeScope,
    /// The EC2 instances that are Nodes.
    pub instances: Vec<InstanceId>,
    /// The names of these Nodes.
    pub names: Vec<String>,
    /// The regions of these instances, each once.
    pub regions: Vec<String>,
    /// The names of Nodes without a provider ID.
    pub without_provider: Vec<String>,
    /// The Nodes that are not EC2 instances.
    pub foreign: Vec<ForeignNode>,
    /// The types of the conditions that any Node has.
    pub conditions: BTreeSet<String>,
    /// The keys of the labels that any Node has.
    pub labels: BTreeSet<String>,
    /// The labels of each EC2 instance that another controller drains, too.
    pub drained_by: BTreeMap<Controller, Vec<BTreeMap<String, String>>>,
    /// The names of the EC2 instances' Nodes by their pool, if there are pools.
    pub by_pool: BTreeMap<Option<Arc<str>>, Vec<String>>,
    /// Whether all Nodes were listed.
    pub complete: bool,
}

/// A controller that drains the Nodes it manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// EKS Auto Mode, whose Nodes carry Karpenter's labels as well.
    AutoMode,
    /// Karpenter.
    Karpenter,
    /// Managed node groups of EKS.
    ManagedNodeGroups,
}

impl Controller {
    /// Returns the controller of a Node with these labels.
    fn of(labels: &BTreeMap<String, String>) -> Option<Self> {
        match labels {
            auto if auto.get("eks.amazonaws.com/compute-type").is_some_and(|of| of == "auto") => Some(Self::AutoMode),
            karpenter if karpenter.contains_key("karpenter.sh/nodepool") => Some(Self::Karpenter),
            group if group.contains_key("eks.amazonaws.com/nodegroup") => Some(Self::ManagedNodeGroups),
            _ => None,
        }
    }

    /// Returns the name for a reader.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AutoMode => "EKS Auto Mode",
            Self::Karpenter => "Karpenter",
            Self::ManagedNodeGroups => "EKS managed node groups",
        }
    }

    /// Returns the label selector that leaves its Nodes out.
    pub const fn selector(self) -> &'static str {
        match self {
            Self::AutoMode => "eks.amazonaws.com/compute-type!=auto",
            Self::Karpenter => "!karpenter.sh/nodepool",
            Self::ManagedNodeGroups => "!eks.amazonaws.com/nodegroup",
        }
    }
}

/// A Node that is not an EC2 instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignNode {
    /// The Node's name.
    pub name: String,
    /// The Node's provider ID.
    pub provider_id: String,
}

impl Nodes {
    /// Adds the types of a Node's conditions.
    pub fn add_conditions(&mut self, conditions: impl IntoIterator<Item = String>) {
        self.conditions.extend(conditions);
    }

    /// Adds a Node by its name, its provider ID and its labels.
    pub fn add(&mut self, name: String, provider_id: Option<&str>, labels: BTreeMap<String, String>) {
        self.labels.extend(labels.keys().cloned());
        let Some(provider_id) = provider_id.filter(|id| !id.is_empty()) else {
            return self.without_provider.push(name);
        };
        let mut parts = provider_id.strip_prefix("aws://").unwrap_or_default().rsplit('/');
        let (instance, zone) = (parts.next().and_then(InstanceId::new), parts.next().unwrap_or_default());
        let Some(instance) = instance else {
            return self.foreign.push(ForeignNode { name, provider_id: provider_id.to_owned() });
        };
        if !self.scope.pools.is_empty() {
            let pool = self.scope.pool_of(&labels, &Record::default());
            self.by_pool.entry(pool).or_default().push(name.clone());
        }
        if let Some(controller) = Controller::of(&labels) {
            self.drained_by.entry(controller).or_default().push(labels);
        }
        self.instances.push(instance);
        self.names.push(name);
        let region = region_of(zone);
        if !region.is_empty() && !self.regions.contains(&region) {
            self.regions.push(region);
        }
    }
}

/// Returns the region of a zone: everything up to the first number, as in eu-west-1a, us-gov-west-1a and the local zone
/// us-west-2-lax-1a.
pub fn region_of(zone: &str) -> String {
    let named = zone.find(|c: char| c.is_ascii_digit()).unwrap_or(zone.len());
    let number = zone[named..].find(|c: char| !c.is_ascii_digit()).unwrap_or(zone.len() - named);
    zone[..named + number].to_owned()
}
