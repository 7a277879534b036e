//! The simulation's nodes.

use super::object::Object;
use super::route::Resource;
use super::state::State;
use super::store::Key;
use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use std::collections::BTreeMap;

/// Zone of all instances.
const ZONE: &str = "eu-west-1a";

/// Returns a Ready node for an instance.
pub(super) fn new(state: &mut State, name: &str, instance: &str) -> Object {
    let (uid, boot, machine) = (state.uuid(), state.uuid(), state.uuid());
    let now = state.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let node = json!({
        "metadata": {
            "name": name, "uid": uid, "creationTimestamp": now,
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "m6i.large",
                "topology.kubernetes.io/region": "eu-west-1",
                "topology.kubernetes.io/zone": ZONE,
            },
        },
        "spec": { "providerID": format!("aws:///{ZONE}/{instance}") },
        "status": {
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady",
                "message": "kubelet is posting ready status", "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
            "nodeInfo": {
                "architecture": "amd64", "bootID": boot, "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.12.0", "kubeProxyVersion": "", "kubeletVersion": "v1.33.5",
                "machineID": machine, "operatingSystem": "linux", "osImage": "Bottlerocket OS", "systemUUID": uid,
            },
        },
    });
    let node = node.as_object().cloned().unwrap_or_default();
    Object::from_value(Resource::Nodes, node).expect("a node of the simulation must be valid")
}

/// Sets the Ready condition; a silent kubelet leaves it `Unknown`.
pub(super) fn set_ready(node: &mut v1::Node, ready: bool, now: Timestamp) {
    let (status, reason, message) = if ready {
        ("True", "KubeletReady", "kubelet is posting ready status")
    } else {
        ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    };
    let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
    if conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == status) {
        return;
    }
    conditions.retain(|condition| condition.type_ != "Ready");
    conditions.push(v1::NodeCondition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
}

/// Another writer, which taints nodes at the worst time: between a client's read and its patch.
#[derive(Debug, Default)]
pub(super) struct Rival {
    times: u32,
    /// Number of its writes, by node.
    wrote: BTreeMap<String, u32>,
}

impl Rival {
    /// Returns a rival that taints each node this number of times.
    pub fn tainting(times: u32) -> Self {
        Self { times, wrote: BTreeMap::new() }
    }
}

impl State {
    /// Writes right before a client's patch of a node arrives.
    pub fn rival_writes(&mut self, key: &Key) {
        // Without a rival nothing is noted: nodes come and go for weeks.
        let there = self.store.get(Resource::Nodes, key).filter(|_| self.rival.times > 0);
        let Some(old) = there.cloned() else { return };
        let wrote = self.rival.wrote.entry(key.name.clone()).or_default();
        if *wrote == self.rival.times {
            return;
        }
        let (key, effect) = (format!("rival-{wrote}"), "NoSchedule".to_owned());
        *wrote += 1;
        let mut node: v1::Node = old.typed(Resource::Nodes);
        let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
        taints.push(v1::Taint { key, effect, value: None, time_added: None });
        self.put(Resource::Nodes, Object::of(Resource::Nodes, &node));
    }
}

/// Sets the ID of the running kernel's boot.
pub(super) fn set_boot_id(node: &mut v1::Node, boot_id: &str) {
    if let Some(info) = node.status.as_mut().and_then(|status| status.node_info.as_mut()) {
        boot_id.clone_into(&mut info.boot_id);
    }
}
