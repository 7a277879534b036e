//! Evictions and deletions: who may end a pod, when, and how long it has.

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

/// How a pod was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By the eviction subresource, which heeds budgets.
    Eviction,
    /// By a deletion, which does not.
    Delete,
}

/// An eviction or deletion of a pod that was accepted, and was no dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// When, since the world began.
    pub at: Duration,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// The node that it was on; empty where it was on none.
    pub node: String,
    /// The grace period that was asked for, in seconds; `None` for the pod's own.
    pub grace: Option<i64>,
    /// How it was ended.
    pub by: By,
}

/// The body of a deletion, or the part of an eviction that says how to delete.
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

/// The body of an eviction. As the real server does, it takes no notice of fields that it does not know: a misspelt
/// `deleteOptions` is an eviction without options.
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

    /// Whether the object is the one that the caller means.
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
    /// The options, once the eviction is found to be about this pod.
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
    /// Evicts a pod, in the order of the real server: the budget is asked, and charged, before the UID is looked at.
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

    /// Deletes a pod, whatever budgets say; answers it as it is then.
    pub fn delete_pod(&mut self, key: &Key, options: &DeleteOptions) -> Result<Arc<Object>, Refusal> {
        self.end_pod(key, options, By::Delete)
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
        // Nobody has to stop a pod that has ended, or was never started.
        let stopped = pod.is_finished() || pod.facts.node.is_none();
        let asked = options.grace_period_seconds.map(|grace| if grace < 0 { 1 } else { grace });
        let grace = if stopped { 0 } else { asked.unwrap_or(pod.facts.grace) };
        if grace == 0 && (stopped || asked.is_some() || !pod.is_terminating()) {
            return Ok(self.remove(Resource::Pods, key).unwrap_or(pod));
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

    /// When a pod's grace period ends. One that ends already is only hurried, and its period still counts from when it
    /// began; `None` where nothing changes.
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

/// Says in the pod's status why it ends.
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
