//! Evictions and deletions: preconditions, time and grace period of a pod's termination.

use super::object::Object;
use super::refusal::Refusal;
use super::route::Resource;
use super::state::State;
use super::store::Key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Way in which a pod was terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// With the eviction subresource, which respects budgets.
    Eviction,
    /// With a deletion, which ignores budgets.
    Delete,
}

/// An accepted eviction or deletion of a pod, other than a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Time since the world's start.
    pub at: Duration,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// Name of its node; empty if it had none.
    pub node: String,
    /// Requested grace period in seconds; `None` for the pod's own.
    pub grace: Option<i64>,
    /// Eviction or deletion.
    pub by: By,
}

/// Body of a deletion, or `deleteOptions` of an eviction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DeleteOptions {
    grace_period_seconds: Option<i64>,
    preconditions: Option<Preconditions>,
    dry_run: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// Body of an eviction. Unknown fields are ignored, as by the real server: an eviction with a misspelt `deleteOptions`
/// is an eviction without options.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EvictionBody {
    api_version: Option<String>,
    metadata: EvictionName,
    delete_options: Option<DeleteOptions>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct EvictionName {
    name: Option<String>,
}

impl DeleteOptions {
    pub fn or_dry_run(mut self, dry_run: bool) -> Self {
        if dry_run {
            self.dry_run = Some(vec!["All".to_owned()]);
        }
        self
    }

    pub fn is_dry_run(&self) -> bool {
        self.dry_run.as_ref().is_some_and(|stages| stages.iter().any(|stage| stage == "All"))
    }

    /// Returns whether the object meets the caller's preconditions.
    pub fn check(&self, resource: Resource, object: &Object) -> Result<(), Refusal> {
        let Some(wanted) = &self.preconditions else {
            return Ok(());
        };
        let differs = |wanted: &Option<String>, is: &str| wanted.as_ref().filter(|wanted| *wanted != is).cloned();
        if let Some(uid) = differs(&wanted.uid, object.uid()) {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been \
                 deleted and then recreated",
                object.uid()
            );
            return Err(Refusal::conflict(resource, object.name(), &why));
        }
        if let Some(version) = differs(&wanted.resource_version, &object.version.to_string()) {
            let why = format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record \
                 ({}). The object might have been modified",
                object.version
            );
            return Err(Refusal::conflict(resource, object.name(), &why));
        }
        Ok(())
    }
}

impl EvictionBody {
    /// Returns the options, after checking that the eviction is about this pod.
    pub fn options(self, name: &str) -> Result<DeleteOptions, Refusal> {
        if self.api_version.is_some_and(|version| version != "policy/v1") {
            return Err(Refusal::new(400, "the API version in the data does not match the expected API version"));
        }
        if self.metadata.name.is_some_and(|named| named != name) {
            return Err(Refusal::new(400, "name in URL does not match name in Eviction object"));
        }
        Ok(self.delete_options.unwrap_or_default())
    }
}

impl State {
    /// Evicts a pod, in the order of the real server: the budget is charged before the UID is checked.
    pub fn evict(&mut self, key: &Key, options: &DeleteOptions) -> Result<(), Refusal> {
        if self.terminating.contains(&key.namespace) {
            return Err(Refusal::namespace_terminating(Resource::Pods, &key.name, &key.namespace));
        }
        let missing = || Refusal::not_found(Resource::Pods, &key.name);
        let pod = Arc::clone(self.store.get(Resource::Pods, key).ok_or_else(missing)?);
        let harmless = pod.is_finished() || pod.is_terminating() || pod.facts.phase == "Pending";
        if !harmless {
            self.charge_budget(&pod, options.is_dry_run())?;
        }
        self.end_pod(key, options, By::Eviction).map(drop)
    }

    /// Deletes a pod, regardless of budgets; returns its new state.
    pub fn delete_pod(&mut self, key: &Key, options: &DeleteOptions) -> Result<Arc<Object>, Refusal> {
        self.end_pod(key, options, By::Delete)
    }

    /// Deletes a pod as a controller does, which is no eviction and no call of a client.
    pub fn end_by_controller(&mut self, key: &Key) {
        let evicted = self.evicted.len();
        let _ = self.end_pod(key, &DeleteOptions::default(), By::Delete);
        self.evicted.truncate(evicted);
    }

    fn end_pod(&mut self, key: &Key, options: &DeleteOptions, by: By) -> Result<Arc<Object>, Refusal> {
        let missing = || Refusal::not_found(Resource::Pods, &key.name);
        let pod = Arc::clone(self.store.get(Resource::Pods, key).ok_or_else(missing)?);
        options.check(Resource::Pods, &pod)?;
        if options.is_dry_run() {
            return Ok(pod);
        }
        self.evicted.push(Evicted {
            at: self.clock.elapsed(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: pod.uid().to_owned(),
            node: pod.facts.node.clone().unwrap_or_default(),
            grace: options.grace_period_seconds,
            by,
        });
        // A pod that has ended, or was never started, has nothing to stop.
        let stopped = pod.is_finished() || pod.facts.node.is_none();
        let asked = options.grace_period_seconds.map(|grace| if grace < 0 { 1 } else { grace });
        let grace = if stopped { 0 } else { asked.unwrap_or(pod.facts.grace) };
        if grace == 0 && (stopped || asked.is_some() || !pod.is_terminating()) {
            self.finish(&pod, key);
            return Ok(pod);
        }
        let Some(ends) = self.new_end(&pod, asked, grace) else {
            return Ok(pod);
        };
        let mut ending = pod.with_meta(|meta| {
            meta.deletion_timestamp = Some(Time(ends));
            meta.deletion_grace_period_seconds = Some(grace);
        });
        if by == By::Eviction {
            ending = mark_disrupted(ending);
        }
        let ending = self.put(Resource::Pods, ending);
        self.stop(&ending, Duration::from_secs(grace.unsigned_abs()));
        self.pod_ends(key);
        Ok(ending)
    }

    /// Returns when a pod's grace period ends. A terminating pod can only be hurried, and its period still counts from the
    /// start of its termination; `None` if nothing changes.
    fn new_end(&self, pod: &Object, asked: Option<i64>, grace: i64) -> Option<jiff::Timestamp> {
        let seconds = Duration::from_secs(grace.unsigned_abs());
        let Some(Time(ends)) = &pod.meta.deletion_timestamp else {
            return Some(self.clock.now() + seconds);
        };
        let before = pod.meta.deletion_grace_period_seconds.unwrap_or_default();
        let shorter = asked.is_some_and(|asked| asked < before);
        shorter.then(|| *ends - Duration::from_secs(before.unsigned_abs()) + seconds)
    }
}

/// Adds the reason for the termination to the pod's status.
fn mark_disrupted(pod: Object) -> Object {
    let mut status = pod.field("status");
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    });
    if let Some(conditions) = status["conditions"].as_array_mut() {
        conditions.retain(|condition| condition["type"] != "DisruptionTarget");
        conditions.push(condition);
    }
    pod.with_field("status", &status)
}
