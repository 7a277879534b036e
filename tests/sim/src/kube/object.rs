//! An object as the server keeps it: its metadata typed, the rest as JSON text.
//!
//! Most writes of a drain change metadata only, and most reads need the text, so neither parses or writes the rest
//! again: a simulated cluster has a hundred thousand objects.

use super::route::Resource;
use super::store::Key;
use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Format in which to write an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The object itself.
    Full,
    /// As `PartialObjectMetadata`.
    Partial,
    /// An Event in the format of `events.k8s.io/v1`.
    EventsV1,
}

/// Fields that the simulation itself needs, parsed once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// Pod: its node.
    pub node: Option<String>,
    /// Pod: its phase.
    pub phase: String,
    /// Pod or node: its Ready condition.
    pub ready: bool,
    /// Pod: its own grace period.
    pub grace: i64,
    /// Node: its cordon.
    pub cordoned: bool,
    /// Node: whether a taint keeps pods away.
    pub tainted: bool,
    /// Node: whether the out-of-service taint is set.
    pub out_of_service: bool,
}

/// One version of an object. Immutable: a write replaces it.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub meta: ObjectMeta,
    pub version: u64,
    pub facts: Facts,
    meta_text: Bytes,
    /// All top-level fields except `apiVersion`, `kind` and `metadata`.
    rest: BTreeMap<String, Bytes>,
}

fn text(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("an object of the simulation must be JSON").into()
}

impl Object {
    /// Parses an object; fails if its metadata is invalid.
    pub fn from_value(resource: Resource, mut value: Map<String, Value>) -> Result<Self, serde_json::Error> {
        let meta: ObjectMeta = serde_json::from_value(value.remove("metadata").unwrap_or_else(|| Map::new().into()))?;
        value.remove("apiVersion");
        value.remove("kind");
        let facts = facts(resource, &value);
        let rest = value.into_iter().map(|(field, value)| (field, text(&value))).collect();
        Ok(Self::new(meta, facts, rest))
    }

    /// Converts from the typed form.
    pub fn of(resource: Resource, typed: &impl Serialize) -> Self {
        match serde_json::to_value(typed) {
            Ok(Value::Object(value)) => Self::from_value(resource, value).expect("a typed object must have metadata"),
            other => unreachable!("a typed object must be a JSON object, not {other:?}"),
        }
    }

    fn new(meta: ObjectMeta, facts: Facts, rest: BTreeMap<String, Bytes>) -> Self {
        let version = meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0);
        Self { meta_text: text(&meta), meta, version, facts, rest }
    }

    /// Returns the object with other metadata.
    #[must_use]
    pub fn with_meta(&self, change: impl FnOnce(&mut ObjectMeta)) -> Self {
        let mut meta = self.meta.clone();
        change(&mut meta);
        Self::new(meta, self.facts.clone(), self.rest.clone())
    }

    /// Returns the object with another top-level field that has no influence on [`Facts`].
    #[must_use]
    pub fn with_field(mut self, field: &str, value: &Value) -> Self {
        self.rest.insert(field.to_owned(), text(value));
        self
    }

    /// Returns the object as JSON, with the resource's kind.
    pub fn value(&self, resource: Resource) -> Map<String, Value> {
        let mut value = Map::new();
        value.insert("apiVersion".to_owned(), resource.api_version().into());
        value.insert("kind".to_owned(), resource.kind().into());
        value.insert("metadata".to_owned(), parse(&self.meta_text));
        value.extend(self.rest.iter().map(|(field, value)| (field.clone(), parse(value))));
        value
    }

    /// Returns one top-level field as JSON.
    pub fn field(&self, field: &str) -> Value {
        self.rest.get(field).map(|value| parse(value)).unwrap_or_default()
    }

    /// Converts to the typed form.
    pub fn typed<T: DeserializeOwned>(&self, resource: Resource) -> T {
        serde_json::from_value(self.value(resource).into()).expect("a stored object must have its resource's type")
    }

    pub fn key(&self) -> Key {
        Key::new(self.meta.namespace.as_deref().unwrap_or_default(), self.name())
    }

    pub fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    pub fn is_terminating(&self) -> bool {
        self.meta.deletion_timestamp.is_some()
    }

    /// Returns whether the pod's containers have ended for good.
    pub fn is_finished(&self) -> bool {
        matches!(self.facts.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Returns whether two versions are equal except for their resourceVersion.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        let mut meta = self.meta.clone();
        meta.resource_version.clone_from(&other.meta.resource_version);
        meta == other.meta && self.rest == other.rest
    }

    /// Writes the object.
    pub fn write(&self, out: &mut Vec<u8>, resource: Resource, form: Form) {
        let (kind, api_version) = match form {
            Form::Full => (resource.kind(), resource.api_version()),
            Form::Partial => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
            Form::EventsV1 => (resource.kind(), "events.k8s.io/v1".to_owned()),
        };
        out.extend_from_slice(format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":"#).as_bytes());
        out.extend_from_slice(&self.meta_text);
        for (field, value) in self.rest.iter().filter(|_| form != Form::Partial) {
            let field = if form == Form::EventsV1 { super::event::to_events_v1(field) } else { field };
            out.extend_from_slice(format!(r#","{field}":"#).as_bytes());
            out.extend_from_slice(value);
        }
        out.push(b'}');
    }
}

fn parse(text: &[u8]) -> Value {
    serde_json::from_slice(text).expect("a stored field must be JSON")
}

fn facts(resource: Resource, value: &Map<String, Value>) -> Facts {
    let at = |path: &str| value.get(path.split('/').next()?)?.pointer(&path[path.find('/')?..]);
    let text = |path| at(path).and_then(Value::as_str).map(str::to_owned);
    let list = |path| at(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let ready = list("status/conditions").iter().any(|entry| entry["type"] == "Ready" && entry["status"] == "True");
    match resource {
        Resource::Pods => Facts {
            node: text("spec/nodeName"),
            phase: text("status/phase").unwrap_or_default(),
            ready,
            grace: at("spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(30),
            ..Facts::default()
        },
        Resource::Nodes => {
            let taints = list("spec/taints");
            Facts {
                ready,
                cordoned: at("spec/unschedulable").and_then(Value::as_bool).unwrap_or(false),
                tainted: taints.iter().any(|taint| taint["effect"] != "PreferNoSchedule"),
                out_of_service: taints.iter().any(|taint| taint["key"] == "node.kubernetes.io/out-of-service"),
                ..Facts::default()
            }
        }
        _ => Facts::default(),
    }
}
