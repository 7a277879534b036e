//! A Node, trimmed to what is used: an API server's Node of 20 KiB becomes some hundred bytes.

use super::mark;
use crate::clients::trimmed::Trimmed;
use crate::fact::OnNode;
use crate::pipeline::event::InstanceId;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node as FullNode, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ApiResource;
use kube::core::{Selector, SelectorExt};
use kube::{Api, Client};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The annotations and labels of Ebbtide's own: the only ones kept, but for the next.
const OURS: &str = "ebbtide/";

/// The condition that tells people about a drain.
const DRAINING: &str = "EbbtideDraining";

/// A Node of this cluster that is an EC2 instance.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each says something else of the Node")]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its UID: a Node that is deleted and registers again is another one.
    pub uid: Arc<str>,
    /// The version that a patch must still find.
    pub resource_version: Box<str>,
    /// The instance it runs on.
    pub instance: InstanceId,
    /// What its kernel said of itself at its start: another one says that the instance was restarted. Empty before it is known.
    pub boot: Box<str>,
    /// Whether pods are kept from being scheduled onto it.
    pub cordoned: bool,
    /// Whether its Ready condition is True.
    pub ready: bool,
    /// Since when its Ready condition is what it is.
    pub ready_since: Option<Timestamp>,
    /// Whether its condition `EbbtideDraining` is True.
    pub draining: bool,
    /// Whether it carries the annotation `ebbtide/ignore: "true"`.
    pub ignored: bool,
    /// Whether its labels are what `--node-selector` asks for.
    pub selected: bool,
    /// Its taints.
    pub taints: Box<[Taint]>,
    /// Its annotations under `ebbtide/`.
    pub annotations: BTreeMap<String, String>,
    /// Its labels under `ebbtide/`, and the one that keeps load balancers away.
    pub labels: BTreeMap<String, String>,
}

/// A client for [`TrimmedNode`]s.
pub type NodeApi = Api<TrimmedNode>;

/// What is read of a Node on the wire; all else is skipped while parsing.
pub type TrimmedNode = Trimmed<Spec, Status>;

/// A client for Nodes that reads only what is used.
#[must_use]
pub fn node_api(client: Client) -> NodeApi {
    Api::all_with(client, &resource())
}

/// What kube needs to know about Nodes.
#[must_use]
pub fn resource() -> ApiResource {
    ApiResource::erase::<FullNode>(&())
}

/// The part of a Node's spec that is used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(default, rename = "providerID")]
    provider_id: Option<String>,
    #[serde(default)]
    unschedulable: bool,
    #[serde(default)]
    taints: Vec<Taint>,
}

/// The part of a Node's status that is used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
    #[serde(default)]
    node_info: Info,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    r#type: String,
    status: String,
    #[serde(default)]
    last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Info {
    #[serde(default, rename = "bootID")]
    boot_id: String,
}

impl Node {
    /// Takes what is used of a Node, by the labels it is selected by; `None` for one that is not an EC2 instance.
    #[must_use]
    pub fn from_wire(object: TrimmedNode, selector: &Selector) -> Option<Self> {
        let instance = object.spec.provider_id.as_deref().and_then(instance_of)?;
        let annotations = kept(object.metadata.annotations.unwrap_or_default(), |key| key.starts_with(OURS));
        let labels = object.metadata.labels.unwrap_or_default();
        let selected = selector.matches(&labels);
        let labels = kept(labels, |key| key.starts_with(OURS) || key == mark::EXCLUDE);
        let status = object.status;
        let condition = |kind: &str| status.conditions.iter().find(|found| found.r#type == kind);
        let is = |kind: &str| condition(kind).is_some_and(|found| found.status == "True");
        let ready_since = condition("Ready").and_then(|ready| ready.last_transition_time.as_ref()).map(|at| at.0);
        Some(Self {
            name: object.metadata.name?.into(),
            uid: object.metadata.uid?.into(),
            resource_version: object.metadata.resource_version?.into(),
            instance,
            cordoned: object.spec.unschedulable,
            ready: is("Ready"),
            ready_since,
            draining: is(DRAINING),
            boot: status.node_info.boot_id.into(),
            ignored: annotations.get(mark::IGNORE).is_some_and(|value| value == "true"),
            selected,
            taints: object.spec.taints.into(),
            annotations,
            labels,
        })
    }

    /// As facts name it.
    #[must_use]
    pub fn named(&self) -> OnNode<'_> {
        OnNode { node: &self.name, uid: &self.uid, instance: self.instance.as_str() }
    }

    /// Whether notices about it are none of our business: it, or the settings, say so.
    #[must_use]
    pub const fn is_excluded(&self) -> bool {
        self.ignored || !self.selected
    }
}

/// The entries that are used, in a map of their own: one that was emptied keeps its room, half a kilobyte for each Node.
fn kept(all: BTreeMap<String, String>, used: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    all.into_iter().filter(|(key, _)| used(key)).collect()
}

/// The instance id at the end of `aws:///ZONE/INSTANCE-ID`.
fn instance_of(provider_id: &str) -> Option<InstanceId> {
    InstanceId::new(provider_id.strip_prefix("aws://")?.rsplit('/').next()?)
}

#[cfg(test)]
impl Node {
    /// A Ready Node of this name.
    pub(crate) fn for_tests(name: &str) -> Self {
        Self {
            name: name.into(),
            uid: "u-1".into(),
            resource_version: "7".into(),
            instance: InstanceId::new("i-0123456789abcdef0").unwrap(),
            boot: "boot-1".into(),
            cordoned: false,
            ready: true,
            ready_since: None,
            draining: false,
            ignored: false,
            selected: true,
            taints: Box::default(),
            annotations: BTreeMap::new(),
            labels: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(spec: &serde_json::Value) -> Option<Node> {
        let wire = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "ip-10-0-0-1", "uid": "u-1", "resourceVersion": "7",
                "annotations": { "ebbtide/notice.a": "{}", "ebbtide/ignore": "true", "other/thing": "long" },
                "labels": { "ebbtide/kind": "spot", "pool": "blue" },
            },
            "spec": spec,
            "status": {
                "conditions": [{ "type": "Ready", "status": "True" }, { "type": "EbbtideDraining", "status": "False" }],
                "images": [{ "names": ["skipped"] }],
                "nodeInfo": { "bootID": "boot-1", "kernelVersion": "6.12" },
            },
        });
        let selector = [("pool", "blue")].into_iter().collect();
        Node::from_wire(serde_json::from_value(wire).unwrap(), &selector)
    }

    #[test]
    fn keeps_what_is_used() {
        let taint = json!({ "key": "a", "value": "b", "effect": "NoSchedule" });
        let spec =
            json!({ "providerID": "aws:///eu-west-1a/i-0123456789abcdef0", "unschedulable": true, "taints": [taint] });
        let node = node(&spec).unwrap();
        assert_eq!(&*node.name, "ip-10-0-0-1");
        assert_eq!(node.instance.as_str(), "i-0123456789abcdef0");
        assert!(node.cordoned && node.ready && node.ignored && node.selected && !node.draining);
        assert_eq!((&*node.boot, node.taints.len()), ("boot-1", 1));
        assert_eq!(node.annotations.into_keys().collect::<Vec<_>>(), ["ebbtide/ignore", "ebbtide/notice.a"]);
        assert_eq!(node.labels.into_keys().collect::<Vec<_>>(), ["ebbtide/kind"]);
    }

    #[test]
    fn what_is_no_instance_is_no_node() {
        for spec in [
            json!({}),
            json!({ "providerID": "gce:///zone/i-0123456789abcdef0" }),
            json!({ "providerID": "aws:///eu-west-1a/fargate-ip-10-0-0-1" }),
        ] {
            assert_eq!(node(&spec), None, "{spec}");
        }
    }
}
