//! A Node, trimmed to the fields that Ebbtide uses: 20 KiB on the wire become some hundred bytes.

use super::condition::{Condition as Named, ConditionRule};
use super::names::{AGENT_PREFIX, EXCLUDE_LABEL, IGNORE_ANNOTATION, MAX_AGENT_NOTICES, MAX_OF_A_PREFIX, OWN_PREFIX};
use super::node_pool::{NodeScope, PerPool};
use super::pool::Pool;
use super::record::{NOTICE_PREFIX, Record};
use super::work_sign::WorkSign;
use crate::clients::trimmed::Trimmed;
use crate::fact::{NodeRef, condition};
use crate::pipeline::event::{InstanceId, NoticeKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node as FullNode, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ApiResource;
use kube::core::SelectorExt;
use kube::{Api, Client};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A Node of this cluster that is an EC2 instance.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent property of the Node")]
pub struct Node {
    /// Name.
    pub name: Arc<str>,
    /// UID. A Node that is deleted and registers again is another Node.
    pub uid: Arc<str>,
    /// Resource version, which guards patches.
    pub resource_version: Box<str>,
    /// The instance of the Node.
    pub instance: InstanceId,
    /// Time of its registration.
    pub created: Option<Timestamp>,
    /// Whether its deletion was requested, and finalizers keep it.
    pub deleting: bool,
    /// Boot ID: changes when the instance restarts. Empty until the kubelet has reported it.
    pub boot: Box<str>,
    /// Whether the Node is unschedulable.
    pub cordoned: bool,
    /// Whether the Ready condition is True.
    pub ready: bool,
    /// Whether the Ready condition is Unknown: the kubelet is silent.
    pub silent: bool,
    /// Time of the Ready condition's last transition.
    pub ready_since: Option<Timestamp>,
    /// The conditions that the Node has, and for which there is a rule.
    pub conditions: Vec<Named>,
    /// The condition `EbbtideDraining`, if it is True.
    pub draining: Option<DrainCondition>,
    /// Whether volumes are attached to the Node, or its kubelet uses some.
    pub has_volumes: bool,
    /// Whether the Node carries the annotation `ebbtide/ignore: "true"`.
    pub ignored: bool,
    /// The sign that another tool works on the Node, if one stands.
    pub work_sign: Option<WorkSign>,
    /// Whether `--node-selector` selects the Node.
    pub selected: bool,
    /// The pool of capacity that its instance comes from.
    pub pool: Arc<Pool>,
    /// The pool whose settings count, if it is in one.
    pub node_pool: Option<Arc<str>>,
    /// Taints.
    pub taints: Box<[Taint]>,
    /// What is recorded under `ebbtide/`: of each prefix as many annotations as are read.
    pub record: Record,
    /// Number of annotations of a prefix beyond those that are read.
    pub unread: usize,
    /// Labels under `ebbtide/`, the label that keeps load balancers away, and those that waits read.
    pub labels: BTreeMap<String, String>,
}

/// A client for [`TrimmedNode`]s.
pub type NodeApi = Api<TrimmedNode>;

/// A Node on the wire. Fields that Ebbtide does not use are skipped while parsing.
pub type TrimmedNode = Trimmed<Spec, Status>;

/// Returns a client for Nodes that parses only the fields that Ebbtide uses.
#[must_use]
pub fn node_api(client: Client) -> NodeApi {
    Api::all_with(client, &resource())
}

/// Returns the API resource of Nodes.
#[must_use]
pub fn resource() -> ApiResource {
    ApiResource::erase::<FullNode>(&())
}

/// The used fields of a Node's spec.
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

/// The used fields of a Node's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
    #[serde(default)]
    node_info: NodeInfo,
    #[serde(default)]
    volumes_attached: Vec<IgnoredAny>,
    #[serde(default)]
    volumes_in_use: Vec<IgnoredAny>,
}

impl Status {
    /// Whether there is a condition of this type.
    pub(super) fn has_condition(&self, kind: &str) -> bool {
        self.conditions.iter().any(|condition| condition.r#type == kind)
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    r#type: String,
    status: String,
    #[serde(default)]
    last_transition_time: Option<Time>,
    #[serde(default)]
    reason: Option<Box<str>>,
    #[serde(default)]
    message: Option<Box<str>>,
}

impl Condition {
    fn is_of(&self, rule: &ConditionRule) -> bool {
        rule.is_for(&self.r#type, &self.status, self.reason.as_deref().unwrap_or_default())
    }
}

/// The Node's condition that a replica drains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainCondition {
    /// Whether its reason is that pods are held back.
    pub is_blocked: bool,
    /// Its message.
    pub message: Box<str>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeInfo {
    #[serde(default, rename = "bootID")]
    boot_id: String,
}

impl Node {
    /// Returns the trimmed Node; `None` if the Node is not an EC2 instance. `scope` has the Nodes that Ebbtide
    /// acts on, and `used` selects the labels that are used besides Ebbtide's own; `rules` name the conditions that count, `signs` those of other tools' work.
    #[must_use]
    pub fn from_wire(
        object: TrimmedNode,
        scope: &NodeScope,
        used: impl Fn(&str) -> bool,
        rules: &[ConditionRule],
        signs: &[WorkSign],
    ) -> Option<Self> {
        let instance = object.spec.provider_id.as_deref().and_then(instance_of)?;
        let all = object.metadata.annotations.unwrap_or_default();
        let work_sign = signs.iter().find(|sign| sign.stands(&object.spec.taints, &all)).cloned();
        let mut annotations = kept(all, |key| key.starts_with(OWN_PREFIX));
        let unread = remove_excess(&mut annotations);
        let labels = object.metadata.labels.unwrap_or_default();
        let selected = scope.selector.matches(&labels);
        let ignored = annotations.get(IGNORE_ANNOTATION).is_some_and(|value| value == "true");
        let record = Record::read(annotations);
        let node_pool = scope.pool_of(&labels, &record);
        let pool = Arc::new(Pool::of(&labels, node_pool.as_deref()));
        let labels = kept(labels, |key| key.starts_with(OWN_PREFIX) || key == EXCLUDE_LABEL || used(key));
        let status = object.status;
        let condition = |kind: &str| status.conditions.iter().find(|found| found.r#type == kind);
        let is = |kind: &str| condition(kind).is_some_and(|found| found.status == "True");
        let draining = condition(condition::DRAINING).filter(|found| found.status == "True");
        let since = |found: &Condition| found.last_transition_time.as_ref().map(|at| at.0);
        let named = |rule: &ConditionRule| {
            let found = status.conditions.iter().find(|found| {
                let first = rules.iter().find(|rule| found.is_of(rule));
                first.is_some_and(|first| first.name == rule.name)
            })?;
            Some(Named::new(&rule.name, since(found)))
        };
        let ready_since = condition("Ready").and_then(since);
        Some(Self {
            name: object.metadata.name?.into(),
            uid: object.metadata.uid?.into(),
            resource_version: object.metadata.resource_version?.into(),
            instance,
            created: object.metadata.creation_timestamp.map(|at| at.0),
            deleting: object.metadata.deletion_timestamp.is_some(),
            cordoned: object.spec.unschedulable,
            ready: is("Ready"),
            silent: condition("Ready").is_some_and(|found| found.status == "Unknown"),
            ready_since,
            conditions: rules.iter().filter_map(named).collect(),
            draining: draining.map(|found| DrainCondition {
                is_blocked: found.reason.as_deref() == Some(condition::BLOCKED),
                message: found.message.clone().unwrap_or_default(),
            }),
            has_volumes: !status.volumes_attached.is_empty() || !status.volumes_in_use.is_empty(),
            boot: status.node_info.boot_id.into(),
            ignored,
            work_sign,
            selected,
            pool,
            node_pool,
            taints: object.spec.taints.into(),
            record,
            unread,
            labels,
        })
    }

    /// Returns the Node's identity for facts.
    #[must_use]
    pub fn named(&self) -> NodeRef<'_> {
        NodeRef { node: &self.name, uid: &self.uid, instance: self.instance.as_str() }
    }

    /// Returns whether the Node's owner or the settings exclude the Node.
    #[must_use]
    pub const fn is_excluded(&self) -> bool {
        self.ignored || !self.selected
    }

    /// Whether the record of the notice with this key was written since the Node's last restart.
    #[must_use]
    pub fn has_notice_since_boot(&self, key: NoticeKey) -> bool {
        self.record.notice(key).is_some_and(|notice| notice.boot.is(&self.boot))
    }

    /// Whether the Node has restarted since the record of the notice with this key, after which its instance can return.
    #[must_use]
    pub fn may_be_back(&self, key: NoticeKey) -> bool {
        self.record.notice(key).is_some_and(|notice| notice.return_sign.is_some() && notice.boot.is_before(&self.boot))
    }
}

impl<T> PerPool<T> {
    /// Returns the value for this Node; for one that is not known, that for the Nodes that are in no pool.
    #[must_use]
    pub fn of_node(&self, node: Option<&Node>) -> &T {
        self.of(node.and_then(|node| node.node_pool.as_deref()))
    }
}

/// Returns the used entries in a new map: a map that was emptied keeps its capacity, half a kilobyte a Node.
fn kept(all: BTreeMap<String, String>, used: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    all.into_iter().filter(|(key, _)| used(key)).collect()
}

/// Removes the annotations beyond the maximum number of each prefix, the last by name, and returns how many. Names without a dot have no
/// maximum.
fn remove_excess(annotations: &mut BTreeMap<String, String>) -> usize {
    let (before, mut prefix, mut count) = (annotations.len(), String::new(), 0);
    // In their order, those of one prefix come together.
    annotations.retain(|name, _| {
        let Some(end) = name.find('.') else { return true };
        if prefix != name[..=end] {
            (prefix, count) = (name[..=end].to_owned(), 0);
        }
        count += 1;
        let max = match &*prefix {
            AGENT_PREFIX => MAX_AGENT_NOTICES,
            // Planned, holding the Node, handled, and withdrawn.
            NOTICE_PREFIX => 4 * MAX_OF_A_PREFIX,
            _ => MAX_OF_A_PREFIX,
        };
        count <= max
    });
    before - annotations.len()
}

/// Returns the instance ID at the end of `aws:///ZONE/INSTANCE-ID`.
fn instance_of(provider_id: &str) -> Option<InstanceId> {
    InstanceId::new(provider_id.strip_prefix("aws://")?.rsplit('/').next()?)
}

#[cfg(test)]
impl Node {
    /// Returns a Ready Node of this name.
    pub(crate) fn for_tests(name: &str) -> Self {
        Self {
            name: name.into(),
            uid: "u-1".into(),
            resource_version: "7".into(),
            instance: InstanceId::new("i-0123456789abcdef0").unwrap(),
            created: None,
            deleting: false,
            boot: "boot-1".into(),
            cordoned: false,
            ready: true,
            silent: false,
            ready_since: None,
            conditions: Vec::new(),
            draining: None,
            has_volumes: false,
            ignored: false,
            work_sign: None,
            selected: true,
            pool: Arc::default(),
            node_pool: None,
            taints: Box::default(),
            record: Record::default(),
            unread: 0,
            labels: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Selector;
    use serde_json::json;

    fn node(spec: &serde_json::Value) -> Option<Node> {
        let wire = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "ip-10-0-0-1", "uid": "u-1", "resourceVersion": "7", "creationTimestamp": "2026-11-21T10:00:00Z",
                "annotations": { "ebbtide/notice.0123456789abcdef": "{}", "ebbtide/ignore": "true", "other/thing": "long" },
                "labels": { "ebbtide/kind": "spot", "pool": "blue", "zone": "a" },
            },
            "spec": spec,
            "status": {
                "conditions": [{ "type": "Ready", "status": "True" }, { "type": "EbbtideDraining", "status": "False" }],
                "images": [{ "names": ["skipped"] }],
                "volumesAttached": [{ "name": "kubernetes.io/csi/ebs.csi.aws.com^vol-1", "devicePath": "" }],
                "nodeInfo": { "bootID": "boot-1", "kernelVersion": "6.12" },
            },
        });
        let scope = Selector::from_iter([("pool", "blue")]).into();
        Node::from_wire(serde_json::from_value(wire).unwrap(), &scope, |key| key == "zone", &[], &[])
    }

    #[test]
    fn keeps_the_used_fields() {
        let taint = json!({ "key": "a", "value": "b", "effect": "NoSchedule" });
        let spec =
            json!({ "providerID": "aws:///eu-west-1a/i-0123456789abcdef0", "unschedulable": true, "taints": [taint] });
        let node = node(&spec).unwrap();
        assert_eq!(&*node.name, "ip-10-0-0-1");
        assert_eq!(node.instance.as_str(), "i-0123456789abcdef0");
        assert_eq!(node.created, "2026-11-21T10:00:00Z".parse().ok());
        assert!(!node.deleting);
        assert!(
            node.cordoned && node.ready && node.ignored && node.selected && node.has_volumes && node.draining.is_none()
        );
        assert_eq!((&*node.boot, node.taints.len()), ("boot-1", 1));
        assert_eq!(
            node.record.texts().keys().collect::<Vec<_>>(),
            ["ebbtide/ignore", "ebbtide/notice.0123456789abcdef"]
        );
        assert_eq!(node.labels.into_keys().collect::<Vec<_>>(), ["ebbtide/kind", "zone"]);
    }

    #[test]
    fn of_each_prefix_only_so_many_annotations_are_read() {
        let names = |prefix: &str, count: usize| (0..count).map(|n| format!("{prefix}{n:03}")).collect::<Vec<_>>();
        let all = [names("ebbtide/notice.", 128), names("ebbtide/handled.", 200), names(AGENT_PREFIX, 9)].concat();
        let mut read: BTreeMap<_, _> = all.into_iter().map(|name| (name, String::new())).collect();
        read.insert("ebbtide/undo".to_owned(), String::new());
        assert_eq!(remove_excess(&mut read), 137);
        let expected = [names("ebbtide/handled.", 64), names("ebbtide/notice.", 128), names(AGENT_PREFIX, 8)].concat();
        let expected: Vec<_> = expected.into_iter().chain(["ebbtide/undo".to_owned()]).collect();
        assert_eq!(read.into_keys().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_node_that_is_not_an_ec2_instance_is_skipped() {
        for spec in [
            json!({}),
            json!({ "providerID": "gce:///zone/i-0123456789abcdef0" }),
            json!({ "providerID": "aws:///eu-west-1a/fargate-ip-10-0-0-1" }),
        ] {
            assert_eq!(node(&spec), None, "{spec}");
        }
    }
}
