//! Patches: merge and strategic merge.

use serde_json::{Map, Value};

/// Type of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// RFC 7386: maps are merged, `null` deletes, all else is replaced.
    Merge,
    /// As a merge patch, except that some lists are merged by a key of their elements.
    Strategic,
}

impl Kind {
    pub fn of(content_type: &str) -> Option<Self> {
        match content_type {
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            _ => None,
        }
    }
}

/// Applies a patch to an object.
pub(super) fn apply(kind: Kind, object: &mut Map<String, Value>, patch: Map<String, Value>) {
    merge(kind, object, patch, "");
}

fn merge(kind: Kind, into: &mut Map<String, Value>, patch: Map<String, Value>, path: &str) {
    if kind == Kind::Strategic && patch.get("$patch").is_some_and(|directive| directive == "replace") {
        into.clear();
    }
    for (field, value) in patch {
        if kind == Kind::Strategic && field.starts_with('$') {
            continue;
        }
        let path = format!("{path}/{field}");
        match value {
            Value::Null => {
                into.remove(&field);
            }
            Value::Object(patch) => {
                let inner = into.entry(field).or_insert(Value::Null);
                if !inner.is_object() {
                    *inner = Map::new().into();
                }
                if let Value::Object(inner) = inner {
                    merge(kind, inner, patch, &path);
                }
            }
            Value::Array(patch) => {
                let key = if kind == Kind::Strategic { merge_key(&path) } else { None };
                match (key, into.get_mut(&field)) {
                    (Some(key), Some(Value::Array(list))) => merge_list(list, patch, key, &path),
                    (Some(_), _) => {
                        let plain = |element: &Value| element.get("$patch").is_none();
                        into.insert(field, patch.into_iter().filter(plain).collect());
                    }
                    (None, _) => {
                        into.insert(field, patch.into());
                    }
                }
            }
            other => {
                into.insert(field, other);
            }
        }
    }
}

/// Returns the merge key of a list. Lists without a key, among them taints, are replaced as a whole.
fn merge_key(path: &str) -> Option<&'static str> {
    match path {
        "/status/conditions" | "/status/addresses" => Some("type"),
        "/metadata/ownerReferences" => Some("uid"),
        _ => None,
    }
}

fn merge_list(list: &mut Vec<Value>, patch: Vec<Value>, key: &str, path: &str) {
    if patch.iter().any(|element| element["$patch"] == "replace") {
        list.clear();
    }
    for element in patch {
        let directive = element.get("$patch").and_then(Value::as_str).map(str::to_owned);
        let place = list.iter().position(|old| old[key] == element[key]);
        match (directive.as_deref(), place, element) {
            (Some("delete"), Some(place), _) => drop(list.remove(place)),
            (Some(_), _, _) => {}
            (None, Some(place), Value::Object(element)) => {
                if let Value::Object(old) = &mut list[place] {
                    merge(Kind::Strategic, old, element, path);
                }
            }
            (None, _, element) => list.push(element),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, apply};
    use serde_json::{Value, json};

    fn patched(kind: Kind, object: &Value, patch: &Value) -> Value {
        let mut object = object.as_object().cloned().expect("the object must be one");
        apply(kind, &mut object, patch.as_object().cloned().expect("the patch must be an object"));
        object.into()
    }

    #[test]
    fn a_merge_replaces_lists_and_deletes_by_null() {
        let object = json!({ "a": 1, "b": { "c": 2, "d": 3 }, "list": [1, 2] });
        let patch = json!({ "a": null, "b": { "c": 4, "e": null }, "list": [3], "new": { "x": null, "y": 1 } });
        let expected = json!({ "b": { "c": 4, "d": 3 }, "list": [3], "new": { "y": 1 } });
        assert_eq!(patched(Kind::Merge, &object, &patch), expected);
    }

    #[test]
    fn a_strategic_merge_merges_conditions_by_type_and_replaces_taints() {
        let object = json!({
            "spec": { "taints": [{ "key": "old" }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "Up" }, { "type": "Disk" }] },
        });
        let patch = json!({
            "spec": { "taints": [{ "key": "new" }] },
            "status": { "conditions": [
                { "type": "Ready", "status": "False" }, { "type": "Disk", "$patch": "delete" }, { "type": "Draining" },
            ] },
        });
        let expected = json!({
            "spec": { "taints": [{ "key": "new" }] },
            "status": { "conditions": [
                { "type": "Ready", "status": "False", "reason": "Up" }, { "type": "Draining" },
            ] },
        });
        assert_eq!(patched(Kind::Strategic, &object, &patch), expected);
    }
}
