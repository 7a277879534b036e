//! What notices leave on a Node: the cordon, taints, labels, and an annotation for each notice; and how it is taken back. Pure.
//!
//! An annotation of its own for each notice tells who holds the Node; one for all tells what of the rest is ours, so that nothing is
//! taken back that was there before. So any replica can undo what another did, also after a restart.

use super::Node;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Annotations that tell which notices hold a Node: `ebbtide/notice.<id>`.
const NOTICE: &str = "ebbtide/notice.";

/// The annotation that says what of a Node's state is ours to take back.
pub(super) const UNDO: &str = "ebbtide/undo";

/// The label that says why the Node goes: the kind of its newest notice.
pub(super) const KIND: &str = "ebbtide/kind";

/// The annotation by which a Node's owner says that it is to be left alone.
pub(super) const IGNORE: &str = "ebbtide/ignore";

/// The label that keeps load balancers from sending traffic to a Node; a field of Kubernetes' own API.
pub(super) const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// What every notice's mark brings with it, as the user decided.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Taints.
    pub taints: Vec<Taint>,
    /// Whether load balancers are kept away.
    pub exclude_from_load_balancers: bool,
}

/// What one notice writes on its Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    key: String,
    notice: Notice,
    out_of_service: bool,
}

/// The value of a notice's annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Notice {
    pub kind: String,
    /// When AWS says that it happened.
    pub since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    message: String,
    /// The Node's boot ID then: with another, the notice is over.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// How it shows that the instance has come back from what was announced, if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back: Option<Back>,
    /// When it is over by itself, if nothing has followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// How a Node shows that its instance has come back from what was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Back {
    /// It is Ready with another boot ID.
    Boot,
    /// So, or it has become Ready again after the deadline: an instance that was hibernated has the boot ID of before.
    Ready,
}

/// What is ours to take back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Undo {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cordon: bool,
    /// As `kubectl` writes them, so without the time that Kubernetes adds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

impl Mark {
    /// The mark of the notice with this identity, of AWS's time `since`.
    ///
    /// The key is made from the identity alone, so that each replica and each redelivery writes the same one. It is a hash,
    /// because an annotation's name has at most 63 characters and an ARN has more.
    #[must_use]
    pub fn new(identity: &str, kind: &str, since: Timestamp, message: &str) -> Self {
        let mut key = NOTICE.to_owned();
        for byte in &Sha256::digest(identity.as_bytes())[..8] {
            // Writing to a String can't fail.
            let _ = write!(key, "{byte:02x}");
        }
        let (kind, message) = (kind.to_owned(), message.to_owned());
        let notice = Notice { kind, since: Some(whole_seconds(since)), message, ..Notice::default() };
        Self { key, notice, out_of_service: false }
    }

    /// The drain's deadline, if there is to be a drain.
    #[must_use]
    pub fn with_deadline(mut self, at: Option<Timestamp>) -> Self {
        self.notice.deadline = at.map(whole_seconds);
        self
    }

    /// The mark is taken back at this time, if no other holds the Node.
    #[must_use]
    pub fn until(mut self, at: Option<Timestamp>) -> Self {
        self.notice.until = at.map(whole_seconds);
        self
    }

    /// The instance may come back from what is announced, and the mark is taken back then.
    #[must_use]
    pub fn back(mut self, back: Option<Back>) -> Self {
        self.notice.back = back;
        self
    }

    /// The instance is gone: the mark brings the taint that lets its pods be moved.
    #[must_use]
    pub fn out_of_service(mut self) -> Self {
        self.out_of_service = true;
        self
    }

    /// The patch that leaves the mark; `None` where all of it is there already.
    #[must_use]
    pub fn patch(&self, node: &Node, extras: &Extras) -> Option<Value> {
        let missing = self.missing_taints(node, extras);
        let unlabelled = extras.exclude_from_load_balancers && !node.labels.contains_key(EXCLUDE);
        // One that was left before a restart of the node is about to be taken back: it must be written anew.
        let marked = node.annotations.get(&self.key).is_some_and(|value| read(value).boot == *node.boot);
        if node.cordoned && marked && missing.is_empty() && !unlabelled {
            return None;
        }
        // Without a notice it is what somebody has left of an earlier one, and says nothing of what is there now.
        let mut undo = if is_marked(node) { undo(node) } else { Undo::default() };
        undo.cordon |= !node.cordoned;
        let mut labels = json!({ KIND: self.notice.kind });
        if unlabelled {
            labels[EXCLUDE] = json!("true");
            add(&mut undo.labels, EXCLUDE.to_owned());
        }
        let mut spec = json!({ "unschedulable": true });
        if !missing.is_empty() {
            missing.iter().map(written).for_each(|taint| add(&mut undo.taints, taint));
            let all: Vec<&Taint> = node.taints.iter().chain(&missing).collect();
            spec["taints"] = json!(all);
        }
        let mut notice = self.notice.clone();
        notice.boot = node.boot.to_string();
        let annotations = json!({ &self.key: text(&notice), UNDO: text(&undo) });
        Some(guarded(node, &annotations, &labels, spec))
    }

    /// The taints that the Node does not have. One of the same key and effect is somebody's, whatever its value.
    fn missing_taints(&self, node: &Node, extras: &Extras) -> Vec<Taint> {
        let wanted = extras.taints.iter().cloned().chain(self.out_of_service.then(out_of_service));
        let has = |taint: &Taint| node.taints.iter().any(|has| has.key == taint.key && has.effect == taint.effect);
        wanted.filter(|taint| !has(taint)).collect()
    }
}

/// The taint that lets the pods of a Node that is gone be moved; a field of Kubernetes' own API.
pub(super) fn out_of_service() -> Taint {
    Taint {
        key: "node.kubernetes.io/out-of-service".to_owned(),
        value: Some("nodeshutdown".to_owned()),
        effect: "NoExecute".to_owned(),
        time_added: None,
    }
}

fn add(list: &mut Vec<String>, entry: String) {
    if !list.contains(&entry) {
        list.push(entry);
    }
}

/// A taint as `kubectl` writes it.
#[must_use]
pub fn written(Taint { key, value, effect, .. }: &Taint) -> String {
    match value.as_deref() {
        None | Some("") => format!("{key}:{effect}"),
        Some(value) => format!("{key}={value}:{effect}"),
    }
}

/// The patch that cordons the Node again. Whoever made the cordon that was taken away: this one is ours.
pub(super) fn recordon(node: &Node) -> Value {
    let mut undo = undo(node);
    undo.cordon = true;
    guarded(node, &json!({ UNDO: text(&undo) }), &json!({}), json!({ "unschedulable": true }))
}

/// Whether any notice has left its mark.
pub(super) fn is_marked(node: &Node) -> bool {
    node.annotations.keys().any(|key| key.starts_with(NOTICE))
}

/// The notices that hold a Node. One that can't be read holds it for ever: somebody has edited it.
pub(super) fn notices(node: &Node) -> impl Iterator<Item = (&String, Notice)> {
    let marks = node.annotations.iter().filter(|(key, _)| key.starts_with(NOTICE));
    marks.map(|(key, value)| (key, read(value)))
}

/// Nobody wants to read more.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

pub(super) fn read(value: &str) -> Notice {
    serde_json::from_str(value).unwrap_or_default()
}

pub(super) fn undo(node: &Node) -> Undo {
    node.annotations.get(UNDO).and_then(|value| serde_json::from_str(value).ok()).unwrap_or_default()
}

/// JSON in an annotation. It can't fail: there are no maps with keys that are no strings.
pub(super) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A merge patch that holds only for the Node as it was read, and not for another of its name.
pub(super) fn guarded(node: &Node, annotations: &Value, labels: &Value, spec: Value) -> Value {
    let mut metadata = json!({ "uid": *node.uid, "resourceVersion": *node.resource_version });
    for (field, entries) in [("annotations", annotations), ("labels", labels)] {
        if entries.as_object().is_some_and(|entries| !entries.is_empty()) {
            metadata[field] = entries.clone();
        }
    }
    let mut patch = json!({ "metadata": metadata });
    if spec.as_object().is_some_and(|spec| !spec.is_empty()) {
        patch["spec"] = spec;
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::super::release::{Over, Why};
    use super::*;
    use crate::pipeline::node::label::taint;
    use serde_json::Map;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn mark(identity: &str, kind: &str) -> Mark {
        Mark::new(identity, kind, at("2026-11-21T12:00:00Z"), "m-1")
    }

    /// The Node after a patch, as an API server would merge it.
    fn patched(node: &Node, patch: &Value) -> Node {
        let mut node = node.clone();
        let entries = |field: &str| patch["metadata"][field].as_object().cloned().unwrap_or_default();
        let merge = |into: &mut std::collections::BTreeMap<String, String>, from: Map<String, Value>| {
            for (key, value) in from {
                match value.as_str() {
                    Some(text) => into.insert(key, text.to_owned()),
                    None => into.remove(&key),
                };
            }
        };
        merge(&mut node.annotations, entries("annotations"));
        merge(&mut node.labels, entries("labels"));
        if let Some(unschedulable) = patch["spec"].get("unschedulable") {
            node.cordoned = unschedulable == true;
        }
        if let Some(taints) = patch["spec"].get("taints") {
            node.taints = serde_json::from_value(taints.clone()).unwrap();
        }
        node
    }

    #[test]
    fn one_patch_says_it_all() {
        let mark = mark("12345678-1234", "spot").with_deadline(Some(at("2026-11-21T12:02:00Z")));
        assert_eq!(
            mark.patch(&Node::for_tests("node-1"), &Extras::default()),
            Some(json!({
                "metadata": {
                    "uid": "u-1",
                    "resourceVersion": "7",
                    "annotations": {
                        "ebbtide/notice.c4587662074a6477": "{\"kind\":\"spot\",\"since\":\"2026-11-21T12:00:00Z\",\
                            \"deadline\":\"2026-11-21T12:02:00Z\",\"message\":\"m-1\",\"boot\":\"boot-1\"}",
                        "ebbtide/undo": "{\"cordon\":true}",
                    },
                    "labels": { "ebbtide/kind": "spot" },
                },
                "spec": { "unschedulable": true },
            }))
        );
    }

    #[test]
    fn what_was_there_before_is_never_taken_back() {
        let mut node = Node::for_tests("node-1");
        node.cordoned = true;
        node.labels.insert(EXCLUDE.to_owned(), String::new());
        let rival = taint("going=theirs:NoSchedule").unwrap();
        node.taints = Box::new([rival.clone()]);
        let taints = vec![taint("going=ours:NoSchedule").unwrap(), taint("going=ours:NoExecute").unwrap()];
        let extras = Extras { taints, exclude_from_load_balancers: true };
        let mark = mark("a", "rebalance").until(Some(at("2026-11-21T12:20:00Z")));
        let marked = patched(&node, &mark.patch(&node, &extras).unwrap());
        let named: Vec<_> = marked.taints.iter().map(|taint| (taint.value.as_deref(), &*taint.effect)).collect();
        assert_eq!(named, [(Some("theirs"), "NoSchedule"), (Some("ours"), "NoExecute")]);
        assert_eq!(marked.annotations[UNDO], "{\"taints\":[\"going=ours:NoExecute\"]}");
        assert_eq!(mark.patch(&marked, &extras), None, "nothing is said twice");
        let rebooted = Node { boot: "boot-2".into(), ..marked.clone() };
        assert!(mark.patch(&rebooted, &extras).is_some(), "what is about to be taken back is left anew");

        let (over, _) = Over::at(&marked, at("2026-11-21T12:20:00Z"));
        let (patch, uncordons) = over.unwrap().patch(&marked);
        let released = patched(&marked, &patch);
        assert!(!uncordons && released.cordoned);
        assert_eq!(*released.taints, [rival]);
        assert_eq!((released.annotations, released.labels), (node.annotations, node.labels));
    }

    #[test]
    fn a_node_is_released_when_the_last_notice_is_over() {
        let node = Node::for_tests("node-1");
        let extras = Extras { taints: vec![taint("a:NoSchedule").unwrap()], exclude_from_load_balancers: true };
        let hint = mark("a", "rebalance").until(Some(at("2026-11-21T12:20:00Z")));
        let marked = patched(&node, &hint.patch(&node, &extras).unwrap());
        assert_eq!(Over::at(&marked, at("2026-11-21T12:19:59Z")), (None, Some(at("2026-11-21T12:20:00Z"))));
        let both = patched(&marked, &mark("b", "spot").back(Some(Back::Boot)).patch(&marked, &extras).unwrap());

        let over = Over::at(&both, at("2026-11-21T12:20:00Z")).0.unwrap();
        assert_eq!(over.why, Why::Expired);
        let (patch, uncordons) = over.patch(&both);
        let mut held = patched(&both, &patch);
        assert!(!uncordons && held.cordoned && held.labels[KIND] == "spot", "the other notice holds it");

        held.boot = "boot-2".into();
        held.ready = false;
        assert_eq!(Over::at(&held, at("2026-11-21T13:00:00Z")), (None, None), "not Ready yet");
        held.ready = true;
        let over = Over::at(&held, at("2026-11-21T13:00:00Z")).0.unwrap();
        assert_eq!(over.why, Why::Rebooted);
        let (patch, uncordons) = over.patch(&held);
        let released = patched(&held, &patch);
        assert!(uncordons && !released.cordoned && released.taints.is_empty());
        assert!(released.annotations.is_empty() && released.labels.is_empty());

        held.boot = "boot-1".into();
        assert_eq!(Over::at(&held, at("2026-11-21T13:00:00Z")), (None, None));
        let frozen = patched(
            &node,
            &mark("h", "spot")
                .back(Some(Back::Ready))
                .with_deadline(Some(at("2026-11-21T12:00:00Z")))
                .patch(&node, &extras)
                .unwrap(),
        );
        let resumed = Node { ready_since: Some(at("2026-11-21T12:30:00Z")), ..frozen.clone() };
        assert_eq!(Over::at(&frozen, at("2026-11-21T13:00:00Z")), (None, None));
        assert_eq!(Over::at(&resumed, at("2026-11-21T13:00:00Z")).0.unwrap().why, Why::Rebooted);

        assert_eq!(Over::uncordoned(&held), None);
        held.cordoned = false;
        assert_eq!(Over::uncordoned(&held).unwrap().why, Why::Uncordoned);

        held.boot = "boot-2".into();
        held.ignored = true;
        assert_eq!(Over::at(&held, at("2026-11-21T13:00:00Z")), (None, None), "left to its owner");
        assert_eq!(Over::uncordoned(&held), None);
    }

    #[test]
    fn a_mark_that_was_edited_holds_its_node() {
        let mut node = Node::for_tests("node-1");
        node.annotations.insert(format!("{NOTICE}x"), "{ not JSON".to_owned());
        node.boot = "boot-2".into();
        assert_eq!(Over::at(&node, at("2026-11-21T12:00:00Z")), (None, None));
    }

    #[test]
    fn the_taint_for_a_node_that_is_gone_comes_with_its_own_mark() {
        let node = Node::for_tests("node-1");
        let mark = mark("a", "state-change").out_of_service();
        let marked = patched(&node, &mark.patch(&node, &Extras::default()).unwrap());
        let named: Vec<_> =
            marked.taints.iter().map(|taint| (&*taint.key, taint.value.as_deref(), &*taint.effect)).collect();
        assert_eq!(named, [("node.kubernetes.io/out-of-service", Some("nodeshutdown"), "NoExecute")]);
    }
}
