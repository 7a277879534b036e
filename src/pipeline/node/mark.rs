//! The marks that notices leave on a Node: the cordon, taints, labels, and an annotation for each notice. Pure.
//!
//! The annotation of a notice says that the notice holds the Node. One annotation more lists the changes that Ebbtide made to the
//! Node, so that nothing is removed that was there before. Both are on the Node, so any replica can undo the work of another, also
//! after a restart.

mod hint;
mod limit;
mod progress;

pub use hint::is_told_to_terminate;
pub(super) use limit::{crowded_out, hinted_since, is_drained_since, is_full};
pub use limit::{is_drained, is_drained_for};
pub use progress::{
    Place, WaveState, deadline_of, end_of, has_had_mark, hook_ends, is_going, is_of_unknown_boot, is_repaired,
    mark_stands, marked_since_boot, may_be_back, newer_start, newest_told, place_of, start_of, wave_state,
};
pub(super) use progress::{complete, end, put_off, still_waits};

use super::Node;
use super::names::{EXCLUDE_LABEL, OWN_PREFIX};
use crate::pipeline::event::NoticeKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Prefix of the annotation of a notice: `ebbtide/notice.<id>`.
pub(super) const NOTICE_PREFIX: &str = "ebbtide/notice.";

/// Prefix of the annotation of a planned change: `ebbtide/planned.<id>`.
pub(super) const PLAN_PREFIX: &str = "ebbtide/planned.";

/// Prefix of the annotation that a withdrawn notice leaves: `ebbtide/withdrawn.<id>`. An older copy may come later.
pub(super) const WITHDRAWN_PREFIX: &str = "ebbtide/withdrawn.";

/// Prefix of the annotation of a notice that needs nothing any more: `ebbtide/handled.<id>`. Its value is the begin of the change, the
/// end of the block, or the time that the Node names.
pub(super) const HANDLED_PREFIX: &str = "ebbtide/handled.";

/// Name of the annotation that lists the changes to undo.
pub(super) const UNDO_ANNOTATION: &str = "ebbtide/undo";

/// Name of the annotation that a restart leaves which the Node's Ready condition does not show. Its value is the time at which the
/// restart was seen.
pub(super) const BOOTED_ANNOTATION: &str = "ebbtide/booted";

/// Name of the label with the kind of the Node's newest notice.
pub(super) const KIND_LABEL: &str = "ebbtide/kind";

/// The settings of every mark.
#[derive(Clone, Debug, Default)]
pub struct MarkSettings {
    /// Taints that a mark adds.
    pub taints: Vec<Taint>,
    /// Keys of the taints that a mark added with earlier settings.
    pub former_taints: Vec<String>,
    /// Whether a mark keeps load balancers away.
    pub exclude_from_load_balancers: bool,
}

impl MarkSettings {
    /// Divides what a Node lists into what a mark may have put there, by these or earlier settings, and the rest, which is to stay:
    /// whoever may annotate a Node may list the taints and labels of others.
    pub(super) fn divide(&self, listed: UndoAnnotation) -> (UndoAnnotation, Vec<String>) {
        let out_of_service = written(&out_of_service());
        let is_own_taint = |taint: &String| {
            let key = taint.split(['=', ':']).next().unwrap_or_default();
            *taint == out_of_service
                || self.taints.iter().any(|own| own.key == key)
                || self.former_taints.iter().any(|own| own == key)
                || key.starts_with(OWN_PREFIX)
        };
        let is_own_label = |label: &String| label == EXCLUDE_LABEL || label.starts_with(OWN_PREFIX);
        let (taints, other_taints): (Vec<_>, Vec<_>) = listed.taints.into_iter().partition(is_own_taint);
        let (labels, other_labels): (Vec<_>, Vec<_>) = listed.labels.into_iter().partition(is_own_label);
        (UndoAnnotation { taints, labels, ..listed }, [other_taints, other_labels].concat())
    }
}

/// The boot ID in the mark of a Node that may have come back before it: each boot counts as one after it.
const UNKNOWN_BOOT: &str = "?";

/// The mark of one notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    key: String,
    notice: NoticeAnnotation,
    out_of_service: bool,
    again: bool,
}

/// The value of a notice's annotation. An annotation of which `until` and `back` are not set stays until the Node is released for
/// another reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct NoticeAnnotation {
    pub kind: String,
    /// AWS's time of the notice.
    pub since: Option<Timestamp>,
    /// Deadline of the drain, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// End of a drain that goes on after the deadline: a lifecycle hook leaves room for the longest grace period of a pod, or for a wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends: Option<Timestamp>,
    /// Begin of the announced change, if AWS names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Timestamp>,
    /// Whether the capacity ends with that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hard: bool,
    /// Whether no lifecycle hook waits for the drain, though the kind has one: nobody has told of it, or AWS does not know it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hookless: bool,
    /// Whether Ebbtide has completed the hook: a restart since then is the instance's return.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub completed: bool,
    /// The message that brought the notice; the change or the reservation that EC2 lists, if none did.
    pub message: String,
    /// The message that has told what only the Node had said before.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub told: String,
    /// The Node's boot ID at the time of the mark. Another one ends the notice.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// The sign that the instance has returned, if it can return.
    #[serde(skip_serializing_if = "Option::is_none", rename = "back")]
    pub return_sign: Option<ReturnSign>,
    /// Expiry of a mark that no interruption followed.
    #[serde(skip_serializing_if = "Option::is_none", rename = "until")]
    pub expires: Option<Timestamp>,
    /// How far the drain is in its wave, as [`Place`] writes it; empty if it has begun without a place.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub wave: String,
}

/// The sign by which a Node shows that its instance has returned from the announced interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReturnSign {
    /// The Node is Ready with another boot ID.
    Boot,
    /// The Node is Ready with another boot ID, or became Ready after the deadline: a hibernated instance keeps its boot ID.
    Ready,
}

/// The value of the annotation that lists the changes to undo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct UndoAnnotation {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cordon: bool,
    /// Whether the cordon was removed by somebody, and restored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
    /// Taints as `kubectl` writes them, without the time that Kubernetes adds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

impl Mark {
    /// Returns the mark of the notice with this identity. `since` is AWS's time of the notice.
    ///
    /// The annotation's name is made from the identity alone, so that each replica and each redelivery writes the same one. The
    /// name contains a hash, because it has at most 63 characters and an ARN has more.
    #[must_use]
    pub fn new(key: NoticeKey, kind: &str, since: Timestamp, message: &str) -> Self {
        let key = name_of(key);
        let (kind, message) = (kind.to_owned(), message.to_owned());
        let since = Some(whole_seconds(since));
        let notice = NoticeAnnotation { kind, since, message, ..NoticeAnnotation::default() };
        Self { key, notice, out_of_service: false, again: false }
    }

    /// Sets the drain's deadline.
    #[must_use]
    pub fn with_deadline(mut self, at: Option<Timestamp>) -> Self {
        self.notice.deadline = at.map(whole_seconds);
        self
    }

    /// Sets the begin of the announced change, and whether the capacity ends with it.
    #[must_use]
    pub fn with_start(mut self, at: Option<Timestamp>, hard: bool) -> Self {
        (self.notice.start, self.notice.hard) = (at.map(whole_seconds), hard);
        self
    }

    /// Sets the time at which the mark is removed if no interruption has followed.
    #[must_use]
    pub fn with_expiry(mut self, at: Option<Timestamp>) -> Self {
        self.notice.expires = at.map(whole_seconds);
        self
    }

    /// Sets the sign at which the mark is removed, if the instance can return.
    #[must_use]
    pub fn with_return_sign(mut self, sign: Option<ReturnSign>) -> Self {
        self.notice.return_sign = sign;
        self
    }

    /// Says that a drain that is over begins anew, and with it its wait.
    #[must_use]
    pub const fn again(mut self) -> Self {
        self.again = true;
        self
    }

    /// Adds the taint that lets the pods of a stopped or terminated instance move.
    #[must_use]
    pub fn with_out_of_service_taint(mut self) -> Self {
        self.out_of_service = true;
        self
    }

    /// Returns the patch that writes the mark; `None` if the Node has all of it.
    #[must_use]
    pub fn patch(&self, node: &Node, settings: &MarkSettings) -> Option<Value> {
        if self.is_needless(node) {
            return None;
        }
        let missing = self.missing_taints(node, settings);
        let unlabelled = settings.exclude_from_load_balancers && !node.labels.contains_key(EXCLUDE_LABEL);
        // A mark from before a restart of the node is about to be removed, so it must be written again; and so must one of a change that
        // was put off, and of a hook that AWS does not know.
        let known = node.annotations.get(&self.key).map(|value| read(value));
        let is_over = |mark: &NoticeAnnotation| Place::read(&mark.wave) == Some(Place::Over);
        let says = |mark: &NoticeAnnotation| (mark.start, mark.hookless);
        let stands = |mark: &NoticeAnnotation| mark.boot == mark.boot_on(node) && says(mark) == says(&self.notice);
        let marked = known.as_ref().is_some_and(|mark| stands(mark) && !(self.again && is_over(mark)));
        // The Node is drained for others, too, and carries no more marks.
        let is_full = !node.annotations.contains_key(&self.key) && is_full(node, NOTICE_PREFIX);
        // The mark of a drain, by which drains are counted, takes the place of one that only holds a cordon.
        let crowded_out = self.crowds_out(node).filter(|_| is_full);
        let unmarkable = is_full && crowded_out.is_none();
        if node.cordoned && (marked || unmarkable) && missing.is_empty() && !unlabelled {
            return None;
        }
        // Without a notice, the annotation is a leftover that says nothing about the Node's state now.
        let mut undo = if is_marked(node) { undo(node) } else { UndoAnnotation::default() };
        if !node.cordoned {
            (undo.cordon, undo.restored) = (true, false);
        }
        let mut labels = json!({ KIND_LABEL: self.notice.kind });
        if unlabelled {
            labels[EXCLUDE_LABEL] = json!("true");
            add(&mut undo.labels, EXCLUDE_LABEL.to_owned());
        }
        let mut spec = json!({ "unschedulable": true });
        if !missing.is_empty() {
            missing.iter().map(written).for_each(|taint| add(&mut undo.taints, taint));
            let all: Vec<&Taint> = node.taints.iter().chain(&missing).collect();
            spec["taints"] = json!(all);
        }
        let mut notice = progress::going_on(self.notice.clone(), known.as_ref(), node);
        notice.told = self.told(node, known);
        let mut annotations = json!({ UNDO_ANNOTATION: text(&undo) });
        self.adopt(node, &mut annotations, &mut notice);
        if let Some(other) = crowded_out {
            annotations[other] = Value::Null;
        }
        if !unmarkable {
            annotations[&self.key] = text(&notice).into();
        }
        Some(guarded(node, &annotations, &labels, spec))
    }

    /// Returns the taints that the Node lacks. A taint of the same key and effect belongs to somebody else, whatever its value.
    fn missing_taints(&self, node: &Node, settings: &MarkSettings) -> Vec<Taint> {
        let wanted = settings.taints.iter().cloned().chain(self.out_of_service.then(out_of_service));
        let has = |taint: &Taint| node.taints.iter().any(|has| has.key == taint.key && has.effect == taint.effect);
        wanted.filter(|taint| !has(taint)).collect()
    }
}

/// Returns the name of the annotation with this prefix for the notice with this key.
pub(super) fn key_of(prefix: &str, key: NoticeKey) -> String {
    format!("{prefix}{key}")
}

/// Returns AWS's time of the newest copy of the notice with this identity that has left a mark on the Node, in whole seconds.
#[must_use]
pub fn newest_copy(node: &Node, key: NoticeKey) -> Option<Timestamp> {
    mark_of(node, key)?.since
}

/// Returns the names of the marks on the Node.
pub fn mark_names(node: &Node) -> impl Iterator<Item = &String> {
    node.annotations.keys().filter(|key| key.starts_with(NOTICE_PREFIX))
}

/// Returns the name of the mark of the notice with this identity.
#[must_use]
pub fn name_of(key: NoticeKey) -> String {
    key_of(NOTICE_PREFIX, key)
}

/// Returns the names of the mark and of the plan of the notice with this identity. Their values have fields in common.
pub(super) fn names_of(key: NoticeKey) -> [String; 2] {
    [name_of(key), key_of(PLAN_PREFIX, key)]
}

/// Returns the mark, and then the plan, of the notice with this identity, as far as the Node carries them.
pub(super) fn mark_and_plan(node: &Node, key: NoticeKey) -> impl Iterator<Item = NoticeAnnotation> {
    names_of(key).into_iter().filter_map(|name| Some(read(node.annotations.get(&name)?)))
}

/// Returns the time at which AWS has withdrawn the notice with this identity, if the Node knows of that.
#[must_use]
pub fn withdrawn_at(node: &Node, key: NoticeKey) -> Option<Timestamp> {
    node.annotations.get(&key_of(WITHDRAWN_PREFIX, key))?.parse().ok()
}

pub(super) fn mark_of(node: &Node, key: NoticeKey) -> Option<NoticeAnnotation> {
    node.annotations.get(&name_of(key)).map(|value| read(value))
}

/// Returns the taint that lets the pods of a stopped or terminated instance move, defined by Kubernetes.
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

/// Formats a taint as `kubectl` does.
#[must_use]
pub fn written(Taint { key, value, effect, .. }: &Taint) -> String {
    match value.as_deref() {
        None | Some("") => format!("{key}:{effect}"),
        Some(value) => format!("{key}={value}:{effect}"),
    }
}

/// Returns whether a cordon of the Node was removed before, and restored, by whichever replica.
#[must_use]
pub fn is_restored(node: &Node) -> bool {
    undo(node).restored
}

/// Returns the patch that cordons the Node again. This cordon is Ebbtide's, whoever set the one that was removed.
pub(super) fn recordon(node: &Node) -> Value {
    let mut undo = undo(node);
    (undo.cordon, undo.restored) = (true, true);
    guarded(node, &json!({ UNDO_ANNOTATION: text(&undo) }), &json!({}), json!({ "unschedulable": true }))
}

/// Returns whether the Node carries a mark of a drain that it did not carry when it was `known`.
pub(super) fn has_new_drain(node: &Node, known: &Node) -> bool {
    notices(node).any(|(name, mark)| mark.deadline.is_some() && !known.annotations.contains_key(name))
}

/// Returns whether the Node carries the annotation of a notice.
#[must_use]
pub fn is_marked(node: &Node) -> bool {
    mark_names(node).next().is_some()
}

/// Returns the annotations of notices on the Node, by name. An annotation that somebody has edited beyond parsing has the default
/// value, which nothing ends.
pub(super) fn notices(node: &Node) -> impl Iterator<Item = (&String, NoticeAnnotation)> {
    let marks = node.annotations.iter().filter(|(key, _)| key.starts_with(NOTICE_PREFIX));
    marks.map(|(key, value)| (key, read(value)))
}

/// Returns the time as marks say it: fractions of a second only make the annotation harder to read.
#[must_use]
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

pub(super) fn read(value: &str) -> NoticeAnnotation {
    serde_json::from_str(value).unwrap_or_default()
}

pub(super) fn undo(node: &Node) -> UndoAnnotation {
    node.annotations.get(UNDO_ANNOTATION).and_then(|value| serde_json::from_str(value).ok()).unwrap_or_default()
}

/// Formats the value of an annotation. This can't fail: no map has keys that are not strings.
pub(super) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Returns a merge patch that applies only to this version of the Node, and not to another Node of its name.
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
mod tests;
