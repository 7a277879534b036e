//! The calls that write Events and the condition.

use super::state::{Announcement, Record};
use super::text::{event_name, eviction_blocked, reason};
use super::waits::WaitsEnd;
use super::{BlockedPod, DrainEnd, ObjectRef, Scope};
use crate::clients::gate::{Backoff, Call, Category, Class, Gate, KubeError};
use crate::fact::{DrainOutcome, EventReason, Fact, Facts, condition};
use crate::runtime::clock::Clock;
use crate::runtime::random;
use k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{ApiResource, Object, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Class of these calls: the last.
const CLASS: Class = Class::Background;

/// Deadline of a call, from now. It is late, so that other calls of the class go first.
const CALL_DEADLINE: Duration = Duration::from_hours(1);

/// Delay before a failed call is made once more, with jitter.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Maximum delay, if the server asks for more.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Reporting component of Events.
const COMPONENT: &str = "ebbtide";

/// A part of an answer that is not parsed: a Node has 20 KiB.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Unread {}

/// Writes Events and conditions to the API server.
pub(super) struct EventApi {
    scope: Scope,
    client: Client,
    nodes: Api<Object<Unread, Unread>>,
    gate: Gate,
    clock: Clock,
    facts: Facts,
    instance: String,
}

impl EventApi {
    /// `instance` is this process's name in Events.
    pub(super) fn new(scope: Scope, client: Client, gate: Gate, clock: Clock, facts: Facts, instance: String) -> Self {
        let nodes = Api::all_with(client.clone(), &ApiResource::erase::<Node>(&()));
        Self { scope, client, nodes, gate, clock, facts, instance }
    }

    /// Writes an announcement about a Node, one call after the other. A call that fails does not stop the next one. Returns the new
    /// record, and the errors.
    pub(super) async fn write(
        &self,
        node: &ObjectRef,
        announcement: Announcement,
        mut record: Record,
    ) -> (Record, Vec<KubeError>) {
        let mut errors = Vec::new();
        let mut done = |answer: Result<(), KubeError>| match answer {
            Ok(()) => true,
            Err(error) => {
                // Not found: the object and the reader of its Events are gone.
                errors.extend(Some(error).filter(|error| error.category != Category::NotFound));
                false
            }
        };
        match announcement {
            Announcement::Begun { message } => {
                let name = event_name(&node.name, random::u64());
                let kind = ("Normal", EventReason::Draining);
                if self.scope.has_all() && done(self.create(node, &name, kind, &message).await) {
                    record.event = Some(name);
                }
                let set =
                    Condition { status: "True", changes: !record.condition, reason: "Draining", message: &message };
                let stages = [(condition::IN_PROGRESS, true), (condition::DRAINED, false)];
                record.condition |= self.scope.has_all() && done(self.set(node, set, &stages).await);
            }
            Announcement::Blocked { message, first, until } => {
                let name = event_name(&node.name, random::u64());
                let kind = ("Warning", EventReason::DrainBlocked);
                if done(self.create(node, &name, kind, &message).await) {
                    record.event = Some(name);
                }
                let set = Condition {
                    status: "True",
                    changes: !record.condition,
                    reason: condition::BLOCKED,
                    message: &message,
                };
                record.condition |= done(self.set(node, set, &[]).await);
                let BlockedPod { pod, reason } = first;
                let message = eviction_blocked(&node.name, &reason, &until);
                let name = event_name(&pod.name, random::u64());
                done(self.create(&pod, &name, ("Warning", EventReason::EvictionBlocked), &message).await);
            }
            Announcement::Waiting { message } => {
                let kind = ("Normal", EventReason::Waiting);
                // Another wait has begun later.
                if let Some(name) = &record.event {
                    done(self.update(node, name, kind, &message).await);
                } else {
                    let name = event_name(&node.name, random::u64());
                    record.event = done(self.create(node, &name, kind, &message).await).then_some(name);
                }
                let set =
                    Condition { status: "True", changes: !record.condition, reason: "Waiting", message: &message };
                record.condition |= done(self.set(node, set, &[]).await);
            }
            Announcement::Waited(WaitsEnd { message, drain_follows, timed_out }) => {
                if let Some(name) = record.event.take() {
                    let kind = (if timed_out { "Warning" } else { "Normal" }, EventReason::WaitEnded);
                    done(self.update(node, &name, kind, &message).await);
                }
                // The end of the drain settles the condition.
                if record.condition && drain_follows {
                    let set = Condition { status: "True", changes: false, reason: "Draining", message: &message };
                    done(self.set(node, set, &[]).await);
                } else if record.condition {
                    let set = Condition { status: "False", changes: true, reason: "WaitEnded", message: &message };
                    record.condition &= !done(self.set(node, set, &[]).await);
                }
            }
            Announcement::Ended { end, report, has_condition, is_notable } => {
                let is_success = matches!(end, DrainEnd::Of(outcome) if outcome.is_success());
                let kind = (if is_success { "Normal" } else { "Warning" }, EventReason::DrainEnded);
                if let Some(name) = record.event.take() {
                    done(self.update(node, &name, kind, &report).await);
                } else if self.scope.has_all() || is_notable {
                    done(self.create(node, &event_name(&node.name, random::u64()), kind, &report).await);
                }
                // A deleted Node has no condition.
                let wanted = has_condition || record.condition || self.scope.has_lifecycle();
                if wanted && end != DrainEnd::Of(DrainOutcome::NodeGone) {
                    let set =
                        Condition { status: "False", changes: true, reason: &reason(end.as_str()), message: &report };
                    let stages = [(condition::IN_PROGRESS, false), (condition::DRAINED, is_success)];
                    record.condition &= !done(self.set(node, set, &stages).await);
                }
            }
            Announcement::Returned => {
                let message = "the node is in use again";
                let set = Condition { status: "False", changes: false, reason: "Returned", message };
                done(self.set(node, set, &[(condition::DRAINED, false)]).await);
            }
        }
        (record, errors)
    }

    async fn create(
        &self,
        about: &ObjectRef,
        name: &str,
        (severity, reason): (&str, EventReason),
        message: &str,
    ) -> Result<(), KubeError> {
        let namespaced = Some(&about.namespace).filter(|namespace| !namespace.is_empty()).map(ToString::to_string);
        let now = Time(self.clock.now());
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(about.events_namespace().to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some(about.kind.to_owned()),
                name: Some(about.name.to_string()),
                namespace: namespaced,
                uid: Some(about.uid.to_string()),
                ..ObjectReference::default()
            },
            type_: Some(severity.to_owned()),
            reason: Some(reason.as_str().to_owned()),
            message: Some(message.to_owned()),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            source: Some(EventSource { component: Some(COMPONENT.to_owned()), ..EventSource::default() }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), about.events_namespace());
        let call = Call { verb: "create", resource: "events", subject: name };
        let params = PostParams::default();
        match self.call(call, || api.create(&params, &event)).await {
            // The name is unique: the first try succeeded, and its answer was lost.
            Err(error) if error.category == Category::Conflict => {}
            answer => drop(answer?),
        }
        self.facts.emit(&Fact::EventWritten { reason });
        Ok(())
    }

    /// Updates the Node's Event, whose count becomes 2.
    async fn update(
        &self,
        node: &ObjectRef,
        name: &str,
        (severity, reason): (&str, EventReason),
        message: &str,
    ) -> Result<(), KubeError> {
        let last = Time(self.clock.now());
        let patch = Patch::Merge(json!({
            "count": 2, "type": severity, "reason": reason.as_str(), "message": message, "lastTimestamp": last,
        }));
        let api: Api<Event> = Api::namespaced(self.client.clone(), node.events_namespace());
        let call = Call { verb: "patch", resource: "events", subject: name };
        let params = PatchParams::default();
        self.call(call, || api.patch(name, &params, &patch)).await.map(drop)
    }

    /// Sets the condition, and those of KEP-5683 if they are wanted: `stages` are their types and statuses.
    async fn set(&self, node: &ObjectRef, condition: Condition<'_>, stages: &[(&str, bool)]) -> Result<(), KubeError> {
        let now = Time(self.clock.now());
        let mut conditions = vec![condition.json(condition::DRAINING, &now)];
        for (kind, status) in stages.iter().filter(|_| self.scope.has_lifecycle()) {
            let status = if *status { "True" } else { "False" };
            conditions.push(Condition { status, changes: true, ..condition }.json(kind, &now));
        }
        // With its UID: a new Node of the same name refuses the patch.
        let patch =
            Patch::Strategic(json!({ "metadata": { "uid": &*node.uid }, "status": { "conditions": conditions } }));
        let call = Call { verb: "patch", resource: "nodes/status", subject: &node.name };
        let params = PatchParams::default();
        self.call(call, || self.nodes.patch_status(&node.name, &params, &patch)).await.map(drop)
    }

    /// Makes a call, and makes it once more if the error may be temporary.
    async fn call<T, F>(&self, call: Call<'_>, request: impl Fn() -> F) -> Result<T, KubeError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let first = match self.gate.kube(call, CLASS, Instant::now() + CALL_DEADLINE, &request).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if matches!(first.category, Category::NotFound | Category::Denied | Category::Invalid | Category::Conflict) {
            return Err(first);
        }
        let delay = Backoff::new(RETRY_DELAY, MAX_RETRY_DELAY).step();
        sleep(first.retry_after.map_or(delay, |asked| asked.clamp(delay, MAX_RETRY_DELAY))).await;
        self.gate.kube(call, CLASS, Instant::now() + CALL_DEADLINE, &request).await
    }
}

/// The new condition of the Node.
#[derive(Clone, Copy)]
struct Condition<'a> {
    status: &'static str,
    /// Whether the status was another before, as far as this process knows.
    changes: bool,
    reason: &'a str,
    message: &'a str,
}

impl Condition<'_> {
    /// Returns the condition of this type.
    fn json(&self, kind: &str, now: &Time) -> Value {
        let Self { status, changes, reason, message } = self;
        let mut condition =
            json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now });
        if *changes {
            condition["lastTransitionTime"] = json!(now);
        }
        condition
    }
}

impl ObjectRef {
    /// Returns the namespace of Events about the object: `default`, if the object has none.
    fn events_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}
