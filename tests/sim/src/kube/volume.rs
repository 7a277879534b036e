//! Volumes: claims, and the controller that attaches their volumes to nodes.

use super::kubelet::Due;
use super::object::Object;
use super::pod::Pod;
use super::route::Resource;
use super::state::State;
use super::store::Key;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Returns the name of the volume that a claim is bound to.
fn volume_of(claim: &str) -> String {
    format!("pv-{claim}")
}

fn attachment(volume: &str, node: &str) -> Key {
    Key::cluster(&format!("csi-{volume}-{node}"))
}

impl State {
    /// Binds the pod's claim, and attaches its volume to the pod's node, at once.
    pub fn attach(&mut self, pod: &Pod) {
        let (Some(claim), Some(node)) = (&pod.claim, &pod.node) else { return };
        let volume = volume_of(claim);
        let bound = json!({
            "metadata": { "name": claim, "namespace": pod.namespace, "uid": self.uuid() },
            "spec": { "volumeName": volume }, "status": { "phase": "Bound" },
        });
        if self.store.get(Resource::Claims, &Key::new(&pod.namespace, claim)).is_none() {
            self.put(Resource::Claims, object(Resource::Claims, bound));
        }
        let key = attachment(&volume, node);
        if self.store.get(Resource::Attachments, &key).is_none() {
            let attached = json!({
                "metadata": { "name": key.name, "uid": self.uuid() },
                "spec": { "attacher": "ebs.csi.aws.com", "nodeName": node, "source": { "persistentVolumeName": volume } },
                "status": { "attached": true },
            });
            self.put(Resource::Attachments, object(Resource::Attachments, attached));
            self.report_volumes(node);
        }
    }

    /// Writes the volumes that are attached to a node into its status.
    fn report_volumes(&mut self, node: &str) {
        let Some(object) = self.store.get(Resource::Nodes, &Key::cluster(node)) else { return };
        // The name ends with the node's: those of the other nodes need not be parsed.
        let end = format!("-{node}");
        let attached = self.store.all(Resource::Attachments).filter(|attachment| attachment.name().ends_with(&end));
        let specs = attached.map(|attachment| attachment.field("spec")).filter(|spec| spec["nodeName"] == node);
        let names = specs.map(|spec| spec["source"]["persistentVolumeName"].clone());
        let attached: Vec<_> = names.map(|name| json!({ "name": name, "devicePath": "" })).collect();
        let mut status = object.field("status");
        status["volumesAttached"] = json!(attached);
        let changed = Object::clone(object).with_field("status", &status);
        self.put(Resource::Nodes, changed);
    }

    /// Begins to detach the volume of a pod that is gone.
    pub fn release_volume(&mut self, key: &Key) {
        let Some(after) = self.detach_after else { return };
        let Some(Pod { claim: Some(claim), node: Some(node), .. }) = self.lives.get(key).map(|life| &life.pod) else {
            return;
        };
        let due = Due::Detached { volume: volume_of(claim), node: node.clone() };
        self.at(Instant::now() + after, due);
    }

    /// Removes a volume's attachment, unless a pod on the node uses the volume.
    pub fn detach(&mut self, volume: &str, node: &str) {
        let uses = |pod: &Pod| pod.claim.as_deref().is_some_and(|claim| volume_of(claim) == volume);
        let on_node = |pod: &Pod| pod.node.as_deref() == Some(node);
        if !self.lives.values().any(|life| on_node(&life.pod) && uses(&life.pod)) {
            self.remove(Resource::Attachments, &attachment(volume, node));
            self.report_volumes(node);
        }
    }
}

fn object(resource: Resource, value: Value) -> Object {
    let Value::Object(value) = value else { unreachable!("it is written as an object") };
    Object::from_value(resource, value).expect("an object of the simulation must be valid")
}
