//! The calls by which Events and the condition are written.

use super::story::{Story, Written};
use super::words::{event_name, eviction_blocked, reason};
use super::{DrainEnd, Held, Subject};
use crate::clients::gate::{Backoff, Call, Category, Class, Gate, KubeError};
use crate::fact::{DrainOutcome, EventReason, Fact, Facts};
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

/// What all these calls are to the gate: the last in order.
const CLASS: Class = Class::Background;

/// Within the class they come behind those of drains, which name an earlier time.
const PATIENCE: Duration = Duration::from_hours(1);

/// A failed call is made once more, after about so long, and at most so long if the server asks for more.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// The Node's condition.
const CONDITION: &str = "EbbtideDraining";

/// Who we are in Events.
const COMPONENT: &str = "ebbtide";

/// Of an answer nothing is used: a Node has 20 KiB.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Unread {}

/// Writes.
pub(super) struct Writer {
    client: Client,
    nodes: Api<Object<Unread, Unread>>,
    gate: Gate,
    clock: Clock,
    facts: Facts,
    instance: String,
}

impl Writer {
    /// `instance` is this process's name in Events.
    pub(super) fn new(client: Client, gate: Gate, clock: Clock, facts: Facts, instance: String) -> Self {
        let nodes = Api::all_with(client.clone(), &ApiResource::erase::<Node>(&()));
        Self { client, nodes, gate, clock, facts, instance }
    }

    /// Tells a story of a Node, one call after the other; a call that fails keeps none from being made. Gives what is written
    /// then, and what could not be.
    pub(super) async fn tell(&self, node: &Subject, story: Story, mut written: Written) -> (Written, Vec<KubeError>) {
        let mut failed = Vec::new();
        let mut done = |answer: Result<(), KubeError>| match answer {
            Ok(()) => true,
            Err(error) => {
                // Not found: what it is about has gone, and with it those who would read of it.
                failed.extend(Some(error).filter(|error| error.category != Category::NotFound));
                false
            }
        };
        match story {
            Story::Begun { message } => {
                let name = event_name(&node.name, random::u64());
                if done(self.create(node, &name, ("Normal", EventReason::Draining), &message).await) {
                    written.event = Some(name);
                }
                let set =
                    Condition { status: "True", changes: !written.condition, reason: "Draining", message: &message };
                written.condition |= done(self.set(node, set).await);
            }
            Story::Blocked { message, first, until } => {
                let name = event_name(&node.name, random::u64());
                if done(self.create(node, &name, ("Warning", EventReason::DrainBlocked), &message).await) {
                    written.event = Some(name);
                }
                let set =
                    Condition { status: "True", changes: !written.condition, reason: "Blocked", message: &message };
                written.condition |= done(self.set(node, set).await);
                let Held { pod, by } = first;
                let message = eviction_blocked(&node.name, &by, &until);
                let name = event_name(&pod.name, random::u64());
                done(self.create(&pod, &name, ("Warning", EventReason::EvictionBlocked), &message).await);
            }
            Story::Ended { end, report, condition, always } => {
                let went = matches!(end, DrainEnd::Of(outcome) if outcome.is_success());
                let said = (if went { "Normal" } else { "Warning" }, EventReason::DrainEnded);
                if let Some(name) = written.event.take() {
                    done(self.update(node, &name, said, &report).await);
                } else if always {
                    done(self.create(node, &event_name(&node.name, random::u64()), said, &report).await);
                }
                // A Node that is gone has no condition.
                if (condition || written.condition) && end != DrainEnd::Of(DrainOutcome::NodeGone) {
                    let set =
                        Condition { status: "False", changes: true, reason: &reason(end.as_str()), message: &report };
                    written.condition &= !done(self.set(node, set).await);
                }
            }
        }
        (written, failed)
    }

    async fn create(
        &self,
        about: &Subject,
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
            // The name is nobody else's: the first try was answered, and the answer lost.
            Err(error) if error.category == Category::Conflict => {}
            answer => drop(answer?),
        }
        self.facts.emit(&Fact::EventWritten { reason });
        Ok(())
    }

    /// Brings the Node's Event up to date: it has happened twice now.
    async fn update(
        &self,
        node: &Subject,
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

    async fn set(&self, node: &Subject, condition: Condition<'_>) -> Result<(), KubeError> {
        let patch = Patch::Strategic(condition.patch(&node.uid, &Time(self.clock.now())));
        let call = Call { verb: "patch", resource: "nodes/status", subject: &node.name };
        let params = PatchParams::default();
        self.call(call, || self.nodes.patch_status(&node.name, &params, &patch)).await.map(drop)
    }

    /// Makes a call, and makes it once more if that may help.
    async fn call<T, F>(&self, call: Call<'_>, request: impl Fn() -> F) -> Result<T, KubeError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let first = match self.gate.kube(call, CLASS, Instant::now() + PATIENCE, &request).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if matches!(first.category, Category::NotFound | Category::Denied | Category::Invalid | Category::Conflict) {
            return Err(first);
        }
        let wait = Backoff::new(RETRY.0, RETRY.1).step();
        sleep(first.retry_after.map_or(wait, |asked| asked.clamp(wait, RETRY.1))).await;
        self.gate.kube(call, CLASS, Instant::now() + PATIENCE, &request).await
    }
}

/// What the Node's condition is to be.
struct Condition<'a> {
    status: &'static str,
    /// Whether it was another before, as far as we know.
    changes: bool,
    reason: &'a str,
    message: &'a str,
}

impl Condition<'_> {
    /// A patch for this very Node: one of another UID that has taken its name refuses it.
    fn patch(&self, uid: &str, now: &Time) -> Value {
        let Self { status, changes, reason, message } = self;
        let mut condition = json!({ "type": CONDITION, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now });
        if *changes {
            condition["lastTransitionTime"] = json!(now);
        }
        json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } })
    }
}

impl Subject {
    /// Where Events about it belong: those of what is in no namespace are in `default`.
    fn events_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}
