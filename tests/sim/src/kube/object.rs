//! An object as the server keeps it: its metadata typed, the rest as JSON text.
//!
//! Most writes of a drain change metadata only, and most reads want the text, so neither parses nor writes the rest
//! again; a simulated cluster has a hundred thousand of these.

use super::route::Resource;
use super::store::Key;
use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// How an object is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As it is.
    Full,
    /// As `PartialObjectMetadata`.
    Partial,
    /// An Event, in the words of `events.k8s.io/v1`.
    EventsV1,
}

/// What the simulation itself wants to know of an object, read once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// A pod's node.
    pub node: Option<String>,
    /// A pod's phase.
    pub phase: String,
    /// A pod's or a node's Ready condition.
    pub ready: bool,
    /// A pod's own grace period.
    pub grace: i64,
    /// A node's cordon.
    pub cordoned: bool,
    /// Whether a node has a taint that keeps pods away.
    pub tainted: bool,
    /// Whether a node has the taint that says that it is gone for good.
    pub out_of_service: bool,
}

/// One version of an object; never changed, only replaced.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub meta: ObjectMeta,
    pub version: u64,
    pub facts: Facts,
    meta_text: Bytes,
    /// All top-level fields but `apiVersion`, `kind` and `metadata`.
    rest: BTreeMap<String, Bytes>,
}

fn text(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("an object of the simulation must be JSON").into()
}

impl Object {
    /// Reads an object; fails where its metadata is not metadata.
    pub fn from_value(resource: Resource, mut value: Map<String, Value>) -> Result<Self, serde_json::Error> {
        let meta: ObjectMeta = serde_json::from_value(value.remove("metadata").unwrap_or_else(|| Map::new().into()))?;
        value.remove("apiVersion");
        value.remove("kind");
        let facts = facts(resource, &value);
        let rest = value.into_iter().map(|(field, value)| (field, text(&value))).collect();
        Ok(Self::new(meta, facts, rest))
    }

    /// From the typed form.
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

    /// The same with other metadata.
    #[must_use]
    pub fn with_meta(&self, change: impl FnOnce(&mut ObjectMeta)) -> Self {
        let mut meta = self.meta.clone();
        change(&mut meta);
        Self::new(meta, self.facts.clone(), self.rest.clone())
    }

    /// The same with another top-level field, of which the simulation knows no [`Facts`].
    #[must_use]
    pub fn with_field(mut self, field: &str, value: &Value) -> Self {
        self.rest.insert(field.to_owned(), text(value));
        self
    }

    /// As JSON, with the resource's kind.
    pub fn value(&self, resource: Resource) -> Map<String, Value> {
        let mut value = Map::new();
        value.insert("apiVersion".to_owned(), resource.api_version().into());
        value.insert("kind".to_owned(), resource.kind().into());
        value.insert("metadata".to_owned(), parse(&self.meta_text));
        value.extend(self.rest.iter().map(|(field, value)| (field.clone(), parse(value))));
        value
    }

    /// One top-level field, as JSON.
    pub fn field(&self, field: &str) -> Value {
        self.rest.get(field).map(|value| parse(value)).unwrap_or_default()
    }

    /// In the typed form.
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

    /// Whether its containers have ended for good.
    pub fn is_finished(&self) -> bool {
        matches!(self.facts.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether it says the same as another version, but for the version itself.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        let mut meta = self.meta.clone();
        meta.resource_version.clone_from(&other.meta.resource_version);
        meta == other.meta && self.rest == other.rest
    }

    /// Writes it out.
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
