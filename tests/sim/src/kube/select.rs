//! Label and field selectors, and the part of a resource that a list or a watch sees.

use super::object::Object;
use super::refusal::Refusal;
use super::route::{Call, Resource, Target};
use super::store::Store;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Condition of one requirement on a value that may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    Missing,
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        match self {
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
        }
    }
}

/// All requirements of a selector, each about one label or one field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector(Vec<(String, Test)>);

impl Selector {
    /// Parses `a=b, a==b, a!=b, a in (b, c), a notin (b), a, !a`.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        requirements(text).into_iter().map(requirement).collect::<Option<_>>().map(Self).ok_or_else(|| {
            Refusal::new(400, format!("unable to parse requirement: found '{text}', expected a selector"))
        })
    }

    /// Returns a selector that requires all of these labels to have these values.
    pub fn all_of(labels: &BTreeMap<String, String>) -> Self {
        Self(labels.iter().map(|(key, value)| (key.clone(), Test::In([value.clone()].into()))).collect())
    }

    pub fn holds_for_labels(&self, object: &Object) -> bool {
        let labels = object.meta.labels.as_ref();
        self.0.iter().all(|(key, test)| test.holds(labels.and_then(|labels| labels.get(key)).map(String::as_str)))
    }

    fn holds_for_fields(&self, object: &Object) -> bool {
        self.0.iter().all(|(path, test)| test.holds(Some(field(object, path).as_deref().unwrap_or_default())))
    }

    /// Returns the single value that the selector requires of a field.
    fn value_of(&self, path: &str) -> Option<&str> {
        self.0.iter().find_map(|(asked, test)| match test {
            Test::In(values) if asked == path => values.first().map(String::as_str),
            _ => None,
        })
    }
}

/// Splits at the commas that are not in parentheses.
fn requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let parts = text.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn requirement(text: &str) -> Option<(String, Test)> {
    let set = |values: &str| -> Option<BTreeSet<String>> {
        let values = values.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some(values.split(',').map(|value| value.trim().to_owned()).collect())
    };
    let one = |value: &str| BTreeSet::from([value.trim().to_owned()]);
    let (key, test) = if let Some((key, value)) = text.split_once("!=") {
        (key, Test::NotIn(one(value)))
    } else if let Some((key, values)) = text.split_once(" notin ") {
        (key, Test::NotIn(set(values)?))
    } else if let Some((key, values)) = text.split_once(" in ") {
        (key, Test::In(set(values)?))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Test::In(one(value)))
    } else if let Some(key) = text.strip_prefix('!') {
        (key, Test::Missing)
    } else {
        (text, Test::Exists)
    };
    let key = key.trim();
    (!key.is_empty() && !key.contains([' ', '(', ')'])).then(|| (key.to_owned(), test))
}

fn field<'a>(object: &'a Object, path: &str) -> Option<Cow<'a, str>> {
    match path {
        "metadata.name" => Some(object.name().into()),
        "metadata.namespace" => object.meta.namespace.as_deref().map(Cow::from),
        "spec.nodeName" => object.facts.node.as_deref().map(Cow::from),
        "status.phase" => Some(object.facts.phase.as_str().into()),
        "spec.unschedulable" => Some(object.facts.cordoned.to_string().into()),
        _ => {
            let mut parts = path.split('.');
            let value = object.field(parts.next()?);
            parts.try_fold(&value, |value, part| value.get(part))?.as_str().map(|text| text.to_owned().into())
        }
    }
}

/// Returns the fields that selectors support.
fn is_selectable(resource: Resource, path: &str) -> bool {
    match (resource, path) {
        (_, "metadata.name") => true,
        (_, "metadata.namespace") => resource.is_namespaced(),
        (Resource::Pods, "spec.nodeName" | "status.phase") | (Resource::Nodes, "spec.unschedulable") => true,
        (Resource::Events, path) => path.starts_with("involvedObject.") || ["reason", "type"].contains(&path),
        _ => false,
    }
}

/// The part of a resource that a list or a watch sees.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub resource: Resource,
    namespace: String,
    labels: Selector,
    fields: Selector,
}

impl Scope {
    pub fn of(call: &Call) -> Result<Self, Refusal> {
        let Target::Resource { resource, namespace, .. } = &call.target else {
            return Err(Refusal::no_such_path());
        };
        let labels = Selector::parse(call.asked("labelSelector").unwrap_or_default())?;
        let fields = Selector::parse(call.asked("fieldSelector").unwrap_or_default())?;
        if let Some((path, _)) = fields.0.iter().find(|(path, _)| !is_selectable(*resource, path)) {
            return Err(Refusal::new(400, format!("field label not supported: {path}")));
        }
        Ok(Self { resource: *resource, namespace: namespace.clone(), labels, fields })
    }

    pub fn sees(&self, object: &Object) -> bool {
        (self.namespace.is_empty() || object.meta.namespace.as_deref() == Some(&self.namespace))
            && self.labels.holds_for_labels(object)
            && self.fields.holds_for_fields(object)
    }

    /// Returns whether the selection excludes anything, other than by namespace.
    pub fn selects(&self) -> bool {
        !self.labels.0.is_empty() || !self.fields.0.is_empty()
    }

    /// Returns all selected objects in order. The pods of one node are found without a look at other pods.
    pub fn objects(&self, store: &Store) -> Vec<Arc<Object>> {
        let seen = |object: &&Arc<Object>| self.sees(object);
        if let (Resource::Pods, Some(node)) = (self.resource, self.fields.value_of("spec.nodeName"))
            && !node.is_empty()
        {
            store.pods_on(node).filter(seen).cloned().collect()
        } else if self.namespace.is_empty() {
            store.all(self.resource).filter(seen).cloned().collect()
        } else {
            store.in_namespace(self.resource, &self.namespace).filter(seen).cloned().collect()
        }
    }

    /// Returns all objects that were selected at an earlier version.
    pub fn objects_at(&self, store: &Store, version: u64) -> Vec<Arc<Object>> {
        let at = store.at(self.resource, version).into_values();
        at.filter(|object| self.sees(object)).collect()
    }
}
