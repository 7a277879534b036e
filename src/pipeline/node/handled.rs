//! Notices that EC2 lists, or that Nodes give: how a Node shows that one was acted on, by whichever message or replica. Pure.
//!
//! EC2 lists a change for weeks, and its mark may go before: by an uncordon, or after a restart. An annotation stays and says that the
//! notice needs nothing any more, so that it is acted on once.

use super::Node;
use super::mark::{
    HANDLED_PREFIX, NOTICE_PREFIX, crowded_out, guarded, key_of, mark_and_plan, names_of, notices, whole_seconds,
};
use super::names::id_of;
use super::plan::{Plan, plan_key};
use crate::pipeline::event::{Detail, Identity, Notice};
use jiff::Timestamp;
use serde_json::{Value, json};

/// What a Node shows about a notice that EC2 lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was done yet, or not all.
    Open,
    /// A message told of it: its mark or its plan is on the Node.
    Told,
    /// The Node keeps it until the change is near, or it needs nothing any more.
    Settled,
}

/// A notice that a Node gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNotice {
    /// The notice.
    pub notice: Notice,
    /// What its mark has in place of a message.
    pub message: String,
}

/// What is known about the notice of a message that EC2 lists as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownNotice {
    /// Nothing is left to do.
    Handled,
    /// It is the notice with this identity, which was acted on first.
    Same(Identity),
}

/// Returns what the Node shows about `notice`, which EC2 lists, or which the Node itself gives. `own` is what its mark has in place of a
/// message.
#[must_use]
pub fn standing(node: &Node, notice: &Notice, own: Option<&str>) -> Standing {
    let key = notice.key();
    let is_there = |prefix: &str| node.annotations.contains_key(&key_of(prefix, key));
    if notice.is_withdrawn() {
        let has_trace =
            is_there(NOTICE_PREFIX) || is_there(HANDLED_PREFIX) || node.annotations.contains_key(&plan_key(key));
        return if has_trace { Standing::Open } else { Standing::Settled };
    }
    let start = start_of(notice);
    // The work for the begin that AWS named before, or its plan, must hear of this one, whoever else has told of it.
    let mut known = mark_and_plan(node, key).filter_map(|told| told.start);
    if start.is_some() && known.any(|known| Some(whole_seconds(known)) != start) {
        return Standing::Open;
    }
    let handled = key_of(HANDLED_PREFIX, key);
    // A message has another identity for the same change.
    let is_same = |key: &String| *key == handled || key.starts_with(HANDLED_PREFIX) && notice.is_listed_by_ec2();
    if node.annotations.iter().any(|(key, text)| is_same(key) && *text == value(notice)) {
        return Standing::Settled;
    }
    let is_own = |plan: &Plan| notice.identity.ec2_id().as_deref() == Some(&*plan.event);
    let plans = || Plan::all(node).filter(|plan| Some(whole_seconds(plan.start)) == start);
    if plans().any(|plan| is_own(&plan)) {
        return Standing::Settled;
    }
    let told = brought_by_other(node, notice, own) || plans().next().is_some();
    if told { Standing::Told } else { Standing::Open }
}

/// Whether a mark on the Node is that of a message, or of another source, about the same announcement as `notice`. `own` is what the
/// mark has of this source in place of a message.
fn brought_by_other(node: &Node, notice: &Notice, own: Option<&str>) -> bool {
    let key = key_of(NOTICE_PREFIX, notice.key());
    let start = start_of(notice);
    let mut marks = notices(node).filter(|(_, mark)| mark.kind == notice.kind().as_str());
    marks.any(|(name, mark)| {
        let same = *name == key || mark.start.is_some() && mark.start == start;
        // EC2's list and a Node name a change alike, and neither has a receipt: whoever takes over goes on with the other's work.
        same && own.map(id_of) != Some(id_of(&mark.message))
    })
}

/// Returns what is known about the notice of a message, if it was acted on first because EC2 lists it.
#[must_use]
pub fn known(node: &Node, notice: &Notice) -> Option<KnownNotice> {
    let start = Some(start_of(notice)?);
    let is_handled = |key: &String, text: &String| key.starts_with(HANDLED_PREFIX) && *text == value(notice);
    match (&notice.identity, &notice.detail) {
        (
            Identity::HealthEvent { instance, .. } | Identity::Ec2Event { instance, .. },
            Detail::ScheduledChange(change),
        ) => {
            let key = notice.key();
            let keys = names_of(key);
            if keys.iter().any(|key| node.annotations.contains_key(key)) {
                return None;
            }
            if !change.withdrawn && node.annotations.iter().any(|(key, text)| is_handled(key, text)) {
                return Some(KnownNotice::Handled);
            }
            let listed = |id: String| Identity::of_change(id, instance.clone());
            // The mark of a listed change names that change in place of a message.
            let marks = notices(node).filter(|(_, mark)| mark.kind == notice.kind().as_str() && mark.start == start);
            let mut marks = marks.map(|(key, mark)| (key, listed(id_of(&mark.message).to_owned())));
            let marked = marks.find(|(key, listed)| **key == key_of(NOTICE_PREFIX, listed.key()));
            let plans = || Plan::all(node).filter(|plan| Some(whole_seconds(plan.start)) == start);
            let planned = || plans().map(|plan| listed(plan.event)).find(|listed| listed.ec2_id().is_some());
            marked.map(|(_, listed)| listed).or_else(planned).map(KnownNotice::Same)
        }
        (Identity::Block { .. }, _) => {
            let handled = node.annotations.get_key_value(&key_of(HANDLED_PREFIX, notice.key()));
            let handled = handled.is_some_and(|(key, text)| is_handled(key, text));
            (handled && !brought_by_other(node, notice, notice.identity.ec2_id().as_deref()))
                .then_some(KnownNotice::Handled)
        }
        _ => None,
    }
}

/// Returns the patch that notes that the notice needs nothing any more, or that removes the note; `None` if nothing is to be changed.
#[must_use]
pub(super) fn patch(node: &Node, notice: &Notice, write: bool) -> Option<Value> {
    let key = key_of(HANDLED_PREFIX, notice.key());
    let wanted = write.then(|| value(notice));
    let is_new = node.annotations.get(&key) != wanted.as_ref();
    let other = crowded_out(node, HANDLED_PREFIX, &key).filter(|_| write);
    let mut notes = json!({ key: wanted });
    if let Some(other) = other {
        notes[other] = Value::Null;
    }
    is_new.then(|| guarded(node, &notes, &json!({}), json!({})))
}

/// Returns what the mark or the plan of the notice with this identity has in place of a message, if the Node carries one: whoever goes on
/// with the notice writes the same, by which it is known again.
#[must_use]
pub fn message_of(node: &Node, identity: &Identity) -> Option<String> {
    mark_and_plan(node, identity.key()).next().map(|told| told.message)
}

/// Whether the Node notes that some notice needs nothing any more.
pub(super) fn has_notes(node: &Node) -> bool {
    node.annotations.keys().any(|key| key.starts_with(HANDLED_PREFIX))
}

/// Whether the Node notes that exactly this notice needs nothing any more.
#[must_use]
pub fn is_handled(node: &Node, notice: &Notice) -> bool {
    let note = node.annotations.get(&key_of(HANDLED_PREFIX, notice.key()));
    note.is_some_and(|note| *note == value(notice))
}

/// Returns what is known about the notice of a message that is the same as `said`, which the Node gives.
#[must_use]
pub fn known_as(node: &Node, said: &Notice) -> Option<KnownNotice> {
    let key = key_of(NOTICE_PREFIX, said.key());
    if is_handled(node, said) {
        return Some(KnownNotice::Handled);
    }
    node.annotations.contains_key(&key).then(|| KnownNotice::Same(said.identity.clone()))
}

/// Returns the begin of the announced change, the end of the block, or the time that the Node names, in whole seconds: AWS may move it.
fn start_of(notice: &Notice) -> Option<Timestamp> {
    let at = match &notice.identity {
        Identity::Block { ends, .. } => *ends,
        Identity::Agent { at, .. } => *at,
        _ => notice.start(),
    };
    at.map(whole_seconds)
}

fn value(notice: &Notice) -> String {
    start_of(notice).map(|start| start.to_string()).unwrap_or_default()
}
