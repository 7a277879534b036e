//! Deployments: a controller that rolls them out, and replaces pods, as far as a drain meets that.

use super::kubelet::Due;
use super::object::Object;
use super::pod::Pod;
use super::route::Resource;
use super::state::State;
use super::store::Key;
use k8s_openapi::api::apps::v1;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A Deployment to add: [`Deployment::of`] a pod, then its differences from an ordinary one.
#[derive(Clone, Debug)]
pub struct Deployment {
    name: String,
    pod: Pod,
    strategy: Value,
    starts_in: Option<Duration>,
}

impl Deployment {
    /// Returns a Deployment of pods like this one, with the default strategy, whose new pods are Ready 5 s after they were bound.
    #[must_use]
    pub fn of(name: &str, pod: Pod) -> Self {
        let pod = pod.labels([("app", name)]);
        let strategy =
            json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "25%", "maxUnavailable": "25%" } });
        Self { name: name.to_owned(), pod, strategy, starts_in: Some(Duration::from_secs(5)) }
    }

    /// Sets its strategy.
    #[must_use]
    pub fn strategy(mut self, strategy: Value) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets `maxSurge` and `maxUnavailable` of its rollouts; without, its strategy is `Recreate`.
    #[must_use]
    pub fn rolling(self, bounds: Option<(u32, u32)>) -> Self {
        self.strategy(match bounds {
            Some((surge, unavailable)) => json!({
                "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable },
            }),
            None => json!({ "type": "Recreate" }),
        })
    }

    /// Sets the time from the binding of a new pod to its readiness; with `None` it is never Ready.
    #[must_use]
    pub fn starts_in(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.starts_in = after.into();
        self
    }
}

/// A Deployment, as its controller knows it.
#[derive(Debug)]
pub(super) struct Rollout {
    pod: Pod,
    starts_in: Option<Duration>,
    /// Number of its current ReplicaSet.
    revision: u32,
    template: Value,
}

impl Rollout {
    fn replica_set(&self, name: &str) -> String {
        format!("{name}-{}", self.revision)
    }
}

impl State {
    /// Adds a Deployment with a Ready pod on each of these nodes. Returns the pods' names.
    pub fn add_deployment(&mut self, deployment: Deployment, nodes: &[&str]) -> Vec<String> {
        let Deployment { name, pod, strategy, starts_in } = deployment;
        let key = Key::new(&pod.namespace, &name);
        let template = json!({ "metadata": { "labels": pod.labels }, "spec": { "containers": [] } });
        let object = json!({
            "metadata": { "name": name, "namespace": pod.namespace, "uid": format!("deployment-{name}"), "generation": 1 },
            "spec": {
                "replicas": nodes.len(), "selector": { "matchLabels": { "app": name } }, "strategy": strategy,
                "template": template,
            },
            "status": {},
        });
        let Value::Object(object) = object else { unreachable!("a Deployment is an object") };
        let object = Object::from_value(Resource::Deployments, object).expect("a Deployment must be valid");
        self.rollouts.insert(key.clone(), Rollout { pod: pod.clone(), starts_in, revision: 1, template });
        self.put(Resource::Deployments, object);
        self.add_replica_set(&key);
        let of_node = |node: &&str| Pod {
            node: Some((*node).to_owned()),
            ..pod.clone().owner("ReplicaSet", &format!("{name}-1"))
        };
        let pods: Vec<Pod> = nodes.iter().map(of_node).collect();
        let names = pods.into_iter().map(|pod| self.create_pod(pod)).collect();
        self.roll_out(&key);
        names
    }

    fn add_replica_set(&mut self, key: &Key) {
        let Some(rollout) = self.rollouts.get(key) else { return };
        let name = rollout.replica_set(&key.name);
        let object = json!({ "metadata": {
            "name": name, "namespace": key.namespace, "uid": format!("replicaset-{name}"),
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": key.name, "uid": format!("deployment-{}", key.name),
                "controller": true,
            }],
        } });
        let Value::Object(object) = object else { unreachable!("a ReplicaSet is an object") };
        let object = Object::from_value(Resource::ReplicaSets, object).expect("a ReplicaSet must be valid");
        self.put(Resource::ReplicaSets, object);
    }

    /// Has the controller of a changed Deployment act.
    pub fn deployment_changed(&mut self, deployment: &Object) {
        let observed = deployment.field("status")["observedGeneration"].as_i64().unwrap_or_default();
        if deployment.meta.generation.unwrap_or_default() > observed {
            self.at(Instant::now(), Due::RolledOut { deployment: deployment.key() });
        }
    }

    /// Has the controller of a pod's Deployment act, if the pod is of one.
    pub fn pod_of_deployment_changed(&mut self, key: &Key) {
        if let Some((deployment, _)) = self.rollout_of(key) {
            self.at(Instant::now(), Due::RolledOut { deployment });
        }
    }

    /// Has a pod of a Deployment start, which was bound now.
    pub fn start_pod(&mut self, key: &Key) {
        let starts_in = self.rollout_of(key).and_then(|(_, rollout)| rollout.starts_in);
        if let Some(after) = starts_in {
            self.at(Instant::now() + after, Due::Started { key: key.clone() });
        }
    }

    fn rollout_of(&self, pod: &Key) -> Option<(Key, &Rollout)> {
        let owner = self.lives.get(pod)?.pod.owner.as_ref().filter(|owner| owner.kind == "ReplicaSet")?;
        let (name, _) = owner.name.rsplit_once('-')?;
        let key = Key::new(&pod.namespace, name);
        self.rollouts.get(&key).map(|rollout| (key, rollout))
    }

    /// Makes a pod Ready, unless it was asked to stop.
    pub fn started(&mut self, key: &Key) {
        let Some(object) = self.store.get(Resource::Pods, key).filter(|pod| !pod.is_terminating()).cloned() else {
            return;
        };
        let Some(life) = self.lives.get_mut(key) else { return };
        life.pod.ready = true;
        let ready = life.pod.object(&key.name, object.uid(), self.clock.now());
        let created = object.meta.creation_timestamp.clone();
        self.put(Resource::Pods, ready.with_meta(|meta| meta.creation_timestamp = created));
        self.pod_of_deployment_changed(key);
    }

    /// Takes the next step of a rollout: new pods within `maxSurge`, fewer old ones within `maxUnavailable`; and writes the status.
    pub fn roll_out(&mut self, key: &Key) {
        let Some(object) = self.store.get(Resource::Deployments, key).cloned() else { return };
        let deployment: v1::Deployment = object.typed(Resource::Deployments);
        let spec = deployment.spec.unwrap_or_default();
        let template = object.field("spec")["template"].clone();
        let Some(rollout) = self.rollouts.get_mut(key) else { return };
        if template != rollout.template && !spec.paused.unwrap_or_default() {
            rollout.template = template;
            rollout.revision += 1;
            self.add_replica_set(key);
        }
        let desired = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
        let (surge, unavailable) = bounds(&object.field("spec")["strategy"], desired);
        let (new, old) = self.pods_of(key);
        let wanted = desired.saturating_sub(new.len()).min((desired + surge).saturating_sub(new.len() + old.len()));
        for _ in 0..wanted {
            let Some(rollout) = self.rollouts.get(key) else { return };
            let owned = rollout.pod.clone().owner("ReplicaSet", &rollout.replica_set(&key.name));
            self.place(Pod { node: None, name: None, ready: false, ..owned });
        }
        let available = new.iter().chain(&old).filter(|pod| pod.facts.ready).count();
        let mut may_go = available.saturating_sub(desired.saturating_sub(unavailable));
        for pod in &old {
            if pod.facts.ready && may_go == 0 {
                continue;
            }
            may_go -= usize::from(pod.facts.ready);
            self.end_by_controller(&pod.key());
        }
        let (new, old) = self.pods_of(key);
        let ready = new.iter().chain(&old).filter(|pod| pod.facts.ready).count();
        let status = json!({
            "observedGeneration": object.meta.generation, "replicas": new.len() + old.len(), "updatedReplicas": new.len(),
            "readyReplicas": ready, "availableReplicas": ready,
        });
        let Some(object) = self.store.get(Resource::Deployments, key).cloned() else { return };
        self.put(Resource::Deployments, (*object).clone().with_field("status", &status));
    }

    /// Returns the pods of the current ReplicaSet, and those of older ones, without those that terminate.
    fn pods_of(&self, key: &Key) -> (Vec<Arc<Object>>, Vec<Arc<Object>>) {
        let current = self.rollouts.get(key).map(|rollout| rollout.replica_set(&key.name)).unwrap_or_default();
        let pods = self.store.in_namespace(Resource::Pods, &key.namespace);
        let pods = pods.filter(|pod| !pod.is_terminating() && !pod.is_finished());
        let of_it = pods.filter(|pod| self.rollout_of(&pod.key()).is_some_and(|(other, _)| other == *key)).cloned();
        of_it.partition(|pod| {
            let owner = self.lives.get(&pod.key()).and_then(|life| life.pod.owner.as_ref());
            owner.is_some_and(|owner| owner.name == current)
        })
    }
}

/// Returns `maxSurge` and `maxUnavailable` of a strategy.
fn bounds(strategy: &Value, desired: usize) -> (usize, usize) {
    if strategy["type"] == "Recreate" {
        return (0, desired);
    }
    let count = |field: &str, round_up: bool| match &strategy["rollingUpdate"][field] {
        Value::String(percent) => {
            let percent: usize = percent.trim_end_matches('%').parse().unwrap_or_default();
            if round_up { (desired * percent).div_ceil(100) } else { desired * percent / 100 }
        }
        count => usize::try_from(count.as_u64().unwrap_or(1)).unwrap_or(usize::MAX),
    };
    (count("maxSurge", true), count("maxUnavailable", false))
}
