//! Which marks on a Node are over, and how they are taken back. Pure.

use super::Node;
use super::mark::{Back, KIND, Notice, UNDO, guarded, notices, out_of_service, text, undo, written};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Map, Value, json};

pub use crate::fact::UndoReason as Why;

/// Marks that are to be taken back from a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    keys: Vec<String>,
    /// Why.
    pub why: Why,
}

impl Over {
    /// The marks that are over at `now`, if any; else when the next will be, if that is known.
    ///
    /// A Node that carries `ebbtide/ignore` is left to its owner.
    #[must_use]
    pub fn at(node: &Node, now: Timestamp) -> (Option<Self>, Option<Timestamp>) {
        if node.ignored {
            return (None, None);
        }
        let back = |notice: &Notice| {
            let again = !notice.boot.is_empty() && !node.boot.is_empty() && *notice.boot != *node.boot;
            // A kubelet that was frozen is late, and its Node not Ready for a while. One that is late before the deadline only flaps.
            let resumed = node.ready_since > notice.deadline.max(notice.since);
            node.ready
                && match notice.back {
                    // Restarted before its end it goes all the same; if it is there long after that, it has been kept.
                    None => again && goes_at(notice).is_some_and(|at| at < now),
                    Some(Back::Boot) => again,
                    Some(Back::Ready) => again || resumed,
                }
        };
        let expired = |notice: &Notice| notice.until.is_some_and(|until| until <= now);
        let all: Vec<_> = notices(node).collect();
        let over = Self::of(&all, Why::Rebooted, back).or_else(|| Self::of(&all, Why::Expired, expired));
        let last = |notice: &Notice| notice.until.into_iter().chain(goes_at(notice).filter(|at| *at >= now)).min();
        let next = all.iter().filter_map(|(_, notice)| last(notice)).min();
        (over, next)
    }

    /// All marks, if the Node carries any, is not cordoned, and its cordon was ours: somebody has taken that away.
    #[must_use]
    pub fn uncordoned(node: &Node) -> Option<Self> {
        let taken = !node.ignored && !node.cordoned && undo(node).cordon;
        if taken { Self::of(&notices(node).collect::<Vec<_>>(), Why::Uncordoned, |_| true) } else { None }
    }

    /// The marks of notices of this kind.
    #[must_use]
    pub fn of_kind(node: &Node, kind: &str, why: Why) -> Option<Self> {
        Self::of(&notices(node).collect::<Vec<_>>(), why, |notice| notice.kind == kind)
    }

    fn of(all: &[(&String, Notice)], why: Why, over: impl Fn(&Notice) -> bool) -> Option<Self> {
        let over = all.iter().filter(|(_, notice)| over(notice));
        let keys: Vec<_> = over.map(|(key, _)| (*key).clone()).collect();
        (!keys.is_empty()).then_some(Self { keys, why })
    }

    /// The patch that takes them back, and whether it uncordons the Node.
    pub(super) fn patch(&self, node: &Node) -> (Value, bool) {
        let mut annotations: Map<String, Value> = self.keys.iter().map(|key| (key.clone(), Value::Null)).collect();
        let mut undo = undo(node);
        let left = notices(node).filter(|(key, _)| !self.keys.contains(key)).map(|(_, notice)| notice);
        if let Some(newest) = left.max_by_key(|notice| notice.since) {
            // Another notice holds the Node; but with its instance back the Node is in service, whoever holds it.
            let out_of_service = written(&out_of_service());
            let mut spec = json!({});
            if self.why == Why::Rebooted && undo.taints.contains(&out_of_service) {
                let kept: Vec<&Taint> = node.taints.iter().filter(|taint| written(taint) != out_of_service).collect();
                spec["taints"] = json!(kept);
                undo.taints.retain(|taint| *taint != out_of_service);
                annotations.insert(UNDO.to_owned(), json!(text(&undo)));
            }
            let labels = json!({ KIND: newest.kind });
            return (guarded(node, &annotations.into(), &labels, spec), false);
        }
        annotations.insert(UNDO.to_owned(), Value::Null);
        let mut labels: Map<String, Value> = undo.labels.iter().map(|label| (label.clone(), Value::Null)).collect();
        labels.insert(KIND.to_owned(), Value::Null);
        let mut spec = json!({});
        if undo.cordon {
            spec["unschedulable"] = Value::Null;
        }
        let kept: Vec<&Taint> = node.taints.iter().filter(|taint| !undo.taints.contains(&written(taint))).collect();
        if kept.len() < node.taints.len() {
            spec["taints"] = json!(kept);
        }
        (guarded(node, &annotations.into(), &labels.into(), spec), undo.cordon && node.cordoned)
    }
}

/// So long after a notice's deadline its instance is gone, if it goes.
const GONE_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// When the instance of this notice is gone, if it goes.
fn goes_at(notice: &Notice) -> Option<Timestamp> {
    let at = notice.deadline.max(notice.since)?;
    at.checked_add(GONE_AFTER).ok()
}
