//! A Node, trimmed to what is used: an API server's Node of 20 KiB becomes some hundred bytes.

use crate::event::InstanceId;
use k8s_openapi::api::core::v1::Node as FullNode;
use kube::api::{ApiResource, Object};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The annotations and labels of Ebbtide's own: the only ones kept.
const OURS: &str = "ebbtide/";

/// A Node of this cluster that is an EC2 instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its UID: a Node that is deleted and registers again is another one.
    pub uid: Arc<str>,
    /// The version that a patch must still find.
    pub resource_version: Box<str>,
    /// The instance it runs on.
    pub instance: InstanceId,
    /// Whether pods are kept from being scheduled onto it.
    pub cordoned: bool,
    /// Whether its Ready condition is True.
    pub ready: bool,
    /// Its annotations under `ebbtide/`.
    pub annotations: BTreeMap<String, String>,
}

/// A client for [`TrimmedNode`]s.
pub type NodeApi = Api<TrimmedNode>;

/// What is read of a Node on the wire; all else is skipped while parsing.
pub type TrimmedNode = Object<Spec, Status>;

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
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(default, rename = "providerID")]
    provider_id: Option<String>,
    #[serde(default)]
    unschedulable: bool,
}

/// The part of a Node's status that is used.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Condition {
    r#type: String,
    status: String,
}

impl Node {
    /// Takes what is used of a Node; `None` for one that is not an EC2 instance.
    #[must_use]
    pub fn from_wire(object: TrimmedNode) -> Option<Self> {
        let instance = object.spec.provider_id.as_deref().and_then(instance_of)?;
        let mut annotations = object.metadata.annotations.unwrap_or_default();
        annotations.retain(|key, _| key.starts_with(OURS));
        let conditions = object.status.unwrap_or_default().conditions;
        Some(Self {
            name: object.metadata.name?.into(),
            uid: object.metadata.uid?.into(),
            resource_version: object.metadata.resource_version?.into(),
            instance,
            cordoned: object.spec.unschedulable,
            ready: conditions.iter().any(|condition| condition.r#type == "Ready" && condition.status == "True"),
            annotations,
        })
    }
}

/// The instance id at the end of `aws:///ZONE/INSTANCE-ID`.
fn instance_of(provider_id: &str) -> Option<InstanceId> {
    InstanceId::new(provider_id.strip_prefix("aws://")?.rsplit('/').next()?)
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
                "annotations": { "ebbtide/notice.a": "{}", "other/thing": "long" },
            },
            "spec": spec,
            "status": { "conditions": [{ "type": "Ready", "status": "True" }], "images": [{ "names": ["skipped"] }] },
        });
        Node::from_wire(serde_json::from_value(wire).unwrap())
    }

    #[test]
    fn keeps_what_is_used() {
        let node =
            node(&json!({ "providerID": "aws:///eu-west-1a/i-0123456789abcdef0", "unschedulable": true })).unwrap();
        assert_eq!(&*node.name, "ip-10-0-0-1");
        assert_eq!(node.instance.as_str(), "i-0123456789abcdef0");
        assert!(node.cordoned && node.ready);
        assert_eq!(node.annotations.into_keys().collect::<Vec<_>>(), ["ebbtide/notice.a"]);
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
