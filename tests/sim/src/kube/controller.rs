//! The controllers and the scheduler: replace pods, and bind pods to nodes.

use super::kubelet::Due;
use super::object::Object;
use super::pod::Pod;
use super::route::Resource;
use super::state::State;
use super::store::Key;
use k8s_openapi::api::core::v1;
use std::ops::Bound::{Excluded, Unbounded};
use tokio::time::Instant;

/// The taint that follows a cordon.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

impl State {
    /// Increases the number of pods that the pod's controller should have.
    pub fn expect_replica(&mut self, pod: &Pod) {
        if let Some(owner) = &pod.owner {
            *self.replicas.entry((pod.namespace.clone(), owner.clone())).or_default() += 1;
        }
    }

    /// Reacts to the start of a pod's termination. Most controllers replace a pod at once, without waiting until it is gone.
    pub fn pod_ends(&mut self, key: &Key) {
        self.pod_of_deployment_changed(key);
        let Some(life) = self.lives.get_mut(key) else { return };
        let Some(after) = life.pod.replaced_after.or(self.replace_after) else { return };
        let waits = ["StatefulSet", "DaemonSet", "Node"].iter().any(|kind| life.pod.is_owned_by(kind));
        if waits || life.pod.owner.is_none() || life.replaced {
            return;
        }
        life.replaced = true;
        let pod = Box::new(life.pod.replacement(None));
        self.at(Instant::now() + after, Due::Replaced { pod });
    }

    /// Reacts to a pod's removal, for controllers that wait for it or had no warning.
    pub fn pod_gone(&mut self, key: &Key, object: &Object) {
        self.waiting.remove(key);
        self.release_volume(key);
        if object.is_finished() {
            self.lives.remove(key);
            return;
        }
        self.pod_ends(key);
        let Some(life) = self.lives.remove(key) else { return };
        let node = life.pod.node.clone().filter(|node| self.store.get(Resource::Nodes, &Key::cluster(node)).is_some());
        if life.pod.mirror {
            // A static pod itself never ends: its kubelet mirrors it again, with or without controllers.
            if node.is_some() {
                self.create_pod(Pod { name: Some(key.name.clone()), ..life.pod });
            }
            return;
        }
        let Some(after) = life.pod.replaced_after.or(self.replace_after) else { return };
        let pod = if life.pod.is_owned_by("StatefulSet") {
            life.pod.replacement(Some(key.name.clone()))
        } else if life.pod.is_owned_by("DaemonSet") && node.is_some() {
            Pod { name: None, ..life.pod }
        } else {
            return;
        };
        self.at(Instant::now() + after, Due::Replaced { pod: Box::new(pod) });
    }

    /// Adds a controller's new pod, to its designated node or to the next node that accepts it.
    pub fn place(&mut self, pod: Pod) {
        if let Some(node) = &pod.node {
            // One that comes back to its node ends with it.
            if self.store.get(Resource::Nodes, &Key::cluster(node)).is_some() {
                self.create_pod(pod);
            }
            return;
        }
        match self.next_node() {
            Some(node) => {
                let (namespace, name) = (pod.namespace.clone(), self.create_pod(Pod { node: Some(node), ..pod }));
                self.start_pod(&Key::new(&namespace, &name));
                name
            }
            None => {
                let waiting = Pod { node: None, ..pod.clone().phase("Pending") };
                let (namespace, name) = (pod.namespace.clone(), self.create_pod(waiting));
                let key = Key::new(&namespace, &name);
                if let Some(life) = self.lives.get_mut(&key) {
                    life.pod = Pod { name: Some(name.clone()), ..pod };
                }
                self.waiting.insert(key);
                name
            }
        };
    }

    /// Returns the next node, round-robin.
    fn next_node(&mut self) -> Option<String> {
        let after = (Excluded(self.last_placed.as_str()), Unbounded);
        let node = self.open_nodes.range::<str, _>(after).next().or_else(|| self.open_nodes.first())?.clone();
        self.last_placed.clone_from(&node);
        Some(node)
    }

    /// Reacts to a new or changed node.
    pub fn node_changed(&mut self, node: &Object) {
        let name = node.name().to_owned();
        if self.taint_cordoned && self.follow_cordon(node) {
            return;
        }
        let facts = node.facts.clone();
        if facts.ready {
            self.report_stopped(&name);
        } else if facts.out_of_service {
            self.force_terminating(&name);
        }
        if facts.ready && !facts.cordoned && !facts.tainted {
            self.open_nodes.insert(name);
            self.schedule_waiting();
        } else {
            self.open_nodes.remove(&name);
        }
    }

    /// Sets or removes the taint of a cordon. Returns whether it did: that write has then handled the node's change.
    fn follow_cordon(&mut self, node: &Object) -> bool {
        let mut typed: v1::Node = node.typed(Resource::Nodes);
        let spec = typed.spec.get_or_insert_default();
        let mut taints = spec.taints.take().unwrap_or_default();
        let tainted = taints.iter().any(|taint| taint.key == UNSCHEDULABLE);
        if tainted == node.facts.cordoned {
            return false;
        }
        taints.retain(|taint| taint.key != UNSCHEDULABLE);
        if node.facts.cordoned {
            let (key, effect) = (UNSCHEDULABLE.to_owned(), "NoSchedule".to_owned());
            taints.push(v1::Taint { key, effect, ..v1::Taint::default() });
        }
        spec.taints = (!taints.is_empty()).then_some(taints);
        self.put(Resource::Nodes, Object::of(Resource::Nodes, &typed));
        true
    }

    /// Binds each waiting pod to a node.
    fn schedule_waiting(&mut self) {
        while let Some(key) = self.waiting.pop_first() {
            let Some(node) = self.next_node() else { return };
            let (Some(object), Some(life)) = (self.store.get(Resource::Pods, &key), self.lives.get_mut(&key)) else {
                continue;
            };
            life.pod.node = Some(node);
            let pod = life.pod.clone();
            let running = life.pod.object(&key.name, object.uid(), self.clock.now());
            let created = object.meta.creation_timestamp.clone();
            self.put(Resource::Pods, running.with_meta(|meta| meta.creation_timestamp = created));
            self.attach(&pod);
            self.start_pod(&key);
        }
    }
}
