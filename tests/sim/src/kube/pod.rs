//! Builder for the simulation's pods.

use super::object::Object;
use super::route::Resource;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// A pod to add: [`Pod::on`] a node, then its differences from an ordinary, running pod of a ReplicaSet.
#[derive(Clone, Debug)]
pub struct Pod {
    pub(super) node: Option<String>,
    pub(super) name: Option<String>,
    pub(super) namespace: String,
    pub(super) owner: Option<Owner>,
    pub(super) mirror: bool,
    pub(super) grace: Duration,
    pub(super) phase: String,
    pub(super) stops_in: Option<Duration>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) priority: i32,
    pub(super) ready: bool,
    pub(super) emptydir: bool,
    pub(super) claim: Option<String>,
    pub(super) address: Option<String>,
    pub(super) finalizer: Option<String>,
    pub(super) placement: Placement,
    pub(super) replaced_after: Option<Duration>,
    pub(super) hangs: bool,
}

/// How the pods that replace this one get their node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The scheduler binds them to a node that accepts them.
    #[default]
    Scheduled,
    /// They tolerate every taint, and come back to their node, also while it is cordoned.
    TolerateAll,
    /// Their controller has written the node's name, and the scheduler is not asked.
    ByName,
}

/// The same builder, under the name of what it describes.
pub type PodSpec = Pod;

/// The controller that owns a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub kind: String,
    pub name: String,
}

impl Pod {
    /// Returns a running, Ready pod on this node, in namespace `default`, owned by the ReplicaSet `web`, with a grace period
    /// of 30 s, whose containers stop at once when asked to.
    #[must_use]
    pub fn on(node: &str) -> Self {
        Self {
            node: Some(node.to_owned()),
            name: None,
            namespace: "default".to_owned(),
            owner: Some(Owner { kind: "ReplicaSet".to_owned(), name: "web".to_owned() }),
            mirror: false,
            grace: Duration::from_secs(30),
            phase: "Running".to_owned(),
            stops_in: Some(Duration::ZERO),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            priority: 0,
            ready: true,
            emptydir: false,
            claim: None,
            address: None,
            finalizer: None,
            placement: Placement::Scheduled,
            replaced_after: None,
            hangs: false,
        }
    }

    /// Returns a Pending pod without a node, as if no node had room for it.
    #[must_use]
    pub fn unscheduled() -> Self {
        Self { node: None, ..Self::on("").phase("Pending") }
    }

    /// Sets its name. The default is its owner's name and five characters, as a ReplicaSet names its pods.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets its namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// Sets the controller that owns it.
    #[must_use]
    pub fn owner(mut self, kind: &str, name: &str) -> Self {
        self.owner = Some(Owner { kind: kind.to_owned(), name: name.to_owned() });
        self
    }

    /// Makes the DaemonSet `agent` its owner.
    #[must_use]
    pub fn daemonset(self) -> Self {
        self.owner("DaemonSet", "agent")
    }

    /// Makes this StatefulSet its owner; the pod's name should end in its ordinal.
    #[must_use]
    pub fn statefulset(self, name: &str) -> Self {
        self.owner("StatefulSet", name)
    }

    /// Makes it the mirror of a static pod: owned by its node, and recreated as soon as it is gone.
    #[must_use]
    pub fn mirror(mut self) -> Self {
        let node = self.node.clone().unwrap_or_default();
        self.mirror = true;
        self.annotation("kubernetes.io/config.mirror", "0123456789abcdef").owner("Node", &node)
    }

    /// Removes its owner.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.owner = None;
        self
    }

    /// Adds labels.
    #[must_use]
    pub fn labels<'a>(mut self, labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.labels.extend(labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
        self
    }

    /// Adds annotations.
    #[must_use]
    pub fn annotations<'a>(mut self, annotations: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.annotations.extend(annotations.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
        self
    }

    fn annotation(self, key: &str, value: &str) -> Self {
        self.annotations([(key, value)])
    }

    /// Sets its `terminationGracePeriodSeconds`.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets its priority; from 2,000,000,000 on the pod is critical to the system.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets its phase: `Running`, `Pending`, `Succeeded` or `Failed`. Only a running pod is Ready.
    #[must_use]
    pub fn phase(mut self, phase: &str) -> Self {
        phase.clone_into(&mut self.phase);
        self.ready = phase == "Running";
        self
    }

    /// Makes it running, but not Ready.
    #[must_use]
    pub fn not_ready(mut self) -> Self {
        self.ready = false;
        self
    }

    /// Sets the time from its deletion to the end of its containers, if the grace period is not shorter. With `None` the
    /// containers never stop by themselves: the pod hangs until the grace period ends.
    #[must_use]
    pub fn stops_in(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.stops_in = after.into();
        self
    }

    /// Adds an `emptyDir` volume, whose content is lost with the pod.
    #[must_use]
    pub fn emptydir(mut self) -> Self {
        self.emptydir = true;
        self
    }

    /// Adds a volume with this claim: its PersistentVolume `pv-CLAIM` is attached to the pod's node, and detached some time after the last
    /// pod there that uses it is gone.
    #[must_use]
    pub fn claim(mut self, name: &str) -> Self {
        self.claim = Some(name.to_owned());
        self
    }

    /// Sets its address.
    #[must_use]
    pub fn address(mut self, ip: &str) -> Self {
        self.address = Some(ip.to_owned());
        self
    }

    /// Adds a finalizer: the pod stays when its containers have ended, until somebody removes the finalizer.
    #[must_use]
    pub fn finalizer(mut self, name: &str) -> Self {
        self.finalizer = Some(name.to_owned());
        self
    }

    /// Says how the pods that replace it get their node.
    #[must_use]
    pub const fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Makes its controller replace it and its successors so long after their termination began, whatever [`super::Kube::replace`] says
    /// of others.
    #[must_use]
    pub const fn replaced_after(mut self, after: Duration) -> Self {
        self.replaced_after = Some(after);
        self
    }

    /// Returns the pod that replaces this one, with the given name or a new one.
    pub(super) fn replacement(&self, name: Option<String>) -> Self {
        let node = self.node.clone().filter(|_| self.placement != Placement::Scheduled);
        Self { name, node, ..self.clone() }
    }

    /// Makes it hang in its termination: its kubelet never reports its end.
    #[must_use]
    pub fn hangs(mut self) -> Self {
        self.hangs = true;
        self
    }

    /// Returns the prefix of a generated name.
    pub(super) fn base_name(&self) -> &str {
        self.owner.as_ref().map_or("pod", |owner| owner.name.as_str())
    }

    /// Returns whether its owner is of this kind.
    pub(super) fn is_owned_by(&self, kind: &str) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.kind == kind)
    }

    /// Returns the object as the API server stores it.
    pub(super) fn object(&self, name: &str, uid: &str, now: Timestamp) -> Object {
        let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut metadata = json!({
            "name": name, "namespace": self.namespace, "uid": uid, "creationTimestamp": now,
        });
        if !self.labels.is_empty() {
            metadata["labels"] = json!(self.labels);
        }
        if !self.annotations.is_empty() {
            metadata["annotations"] = json!(self.annotations);
        }
        if let Some(finalizer) = &self.finalizer {
            metadata["finalizers"] = json!([finalizer]);
        }
        if let Some(owner) = &self.owner {
            metadata["ownerReferences"] = json!([{
                "apiVersion": if owner.kind == "Node" { "v1" } else { "apps/v1" }, "kind": owner.kind,
                "name": owner.name, "uid": format!("{}-{}", owner.kind.to_lowercase(), owner.name), "controller": true,
            }]);
        }
        let mut spec = json!({
            "containers": [{ "name": "main", "image": "registry.example/main:1" }],
            "terminationGracePeriodSeconds": self.grace.as_secs(),
            "priority": self.priority,
        });
        if let Some(node) = &self.node {
            spec["nodeName"] = json!(node);
        }
        if self.placement == Placement::TolerateAll {
            spec["tolerations"] = json!([{ "operator": "Exists" }]);
        }
        if self.emptydir {
            spec["volumes"] = json!([{ "name": "scratch", "emptyDir": {} }]);
        }
        if let Some(claim) = &self.claim {
            spec["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
        }
        let mut object = Map::new();
        object.insert("metadata".to_owned(), metadata);
        object.insert("spec".to_owned(), spec);
        object.insert("status".to_owned(), self.status(&now));
        Object::from_value(Resource::Pods, object).expect("a pod of the simulation must be valid")
    }

    fn status(&self, now: &str) -> Value {
        let truth = |yes: bool| if yes { "True" } else { "False" };
        let mut conditions = vec![json!({ "type": "PodScheduled", "status": truth(self.node.is_some()) })];
        if self.node.is_some() {
            conditions.push(json!({ "type": "Ready", "status": truth(self.ready) }));
        }
        let mut status = json!({ "phase": self.phase, "conditions": conditions });
        if self.node.is_some() {
            status["startTime"] = json!(now);
        }
        if let Some(ip) = &self.address {
            status["podIP"] = json!(ip);
            status["podIPs"] = json!([{ "ip": ip }]);
        }
        status
    }
}
