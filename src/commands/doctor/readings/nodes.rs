//! The Nodes of the cluster.

use crate::pipeline::event::InstanceId;
use std::collections::BTreeSet;

/// The cluster's Nodes, by their provider IDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
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
    /// Whether all Nodes were listed.
    pub complete: bool,
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
    /// Adds the types of a Node's conditions, and the keys of its labels.
    pub fn tell(&mut self, conditions: impl IntoIterator<Item = String>, labels: impl IntoIterator<Item = String>) {
        self.conditions.extend(conditions);
        self.labels.extend(labels);
    }

    /// Adds a Node by its name and its provider ID.
    pub fn add(&mut self, name: String, provider_id: Option<&str>) {
        let Some(provider_id) = provider_id.filter(|id| !id.is_empty()) else {
            return self.without_provider.push(name);
        };
        let mut parts = provider_id.strip_prefix("aws://").unwrap_or_default().rsplit('/');
        let (instance, zone) = (parts.next().and_then(InstanceId::new), parts.next().unwrap_or_default());
        let Some(instance) = instance else {
            return self.foreign.push(ForeignNode { name, provider_id: provider_id.to_owned() });
        };
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
