//! What Ebbtide has recorded on a Node, parsed once for each version of the Node. Pure.
//!
//! One annotation has a notice under its key, in all of its states ([`Work`]). Open and ended work holds the Node. A change that several
//! sources report under ids of their own has the record of the first, which the others join ([`Sources`]). Each row is a transition, and nothing
//! else changes the state of a record that can be read:
//!
//! ```text
//! from                     by                                              to
//! (none), planned          plan, also for another time                     planned
//! handled                  plan, by a newer copy, for another time         planned
//! (none), planned, open    cordon, also for another time                   open
//! handled                  cordon, for another time                        open
//! handled                  cordon, by a replica that is late               ended
//! withdrawn                cordon, or plan, by a newer copy                open, planned
//! open, by the agent       cordon for the hook that it had announced       (none): the hook's record has its place in the wave
//! open                     the end of its work                             ended
//! (none)                   the same, without a cordon                      handled
//! planned                  the end of the work that the plan started       handled
//! ended                    cordon, for another time                        open
//! open                     released: expired, returned                     (none); handled, if a source that joined repeats it
//! open                     uncordoned by a user for good                   handled; (none), if its hook waits
//! ended                    released, for whatever reason                   handled
//! all, and (none)          AWS's message cancels it, unless it is newer    withdrawn
//! planned, open, ended     the same, while the agent still reports it      the same, under the agent's key
//! handled                  its source no longer reports it                 (none)
//! open, ended              the same                                        (none), if no other source has reported it; ended: open, if one has
//! handled, withdrawn       crowded out by newer ones of its state          (none)
//! withdrawn                another cancellation, two weeks later           (none)
//! ```
//!
//! A record that can't be read holds the Node until a user removes or uncordons it. During a drain the first uncordon is undone, because a
//! controller may have made it ([`Undo::restored`]).

mod boot;
mod kept;
mod notice;
mod source;
mod withdrawal;

pub(super) use boot::Boot;
pub(super) use kept::KeptChange;
pub use notice::{
    HookState, NoticeRecord, Place, RETURN_BEFORE_START, ReturnSign, TERMINATION_GRACE, Work, whole_seconds,
};
pub use source::{Source, Sources};
pub use withdrawal::Withdrawal;

use super::names::{MAX_OF_A_PREFIX, id_of};
use crate::fact::NoticeKind;
use crate::pipeline::event::{Identity, InstanceId, Notice, NoticeKey};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Prefix of the annotation of a notice: `ebbtide/notice.<key>`. Its value is a [`NoticeRecord`].
pub(super) const NOTICE_PREFIX: &str = "ebbtide/notice.";

/// Name of the annotation that lists the changes to undo.
pub(super) const UNDO_ANNOTATION: &str = "ebbtide/undo";

/// Number of characters of a key.
const KEY_LENGTH: usize = 16;

/// Maximum age of a message: SQS keeps none for longer. After it no older copy of a withdrawn notice comes.
const MAX_MESSAGE_AGE: SignedDuration = SignedDuration::from_hours(14 * 24);

/// Number of bytes of annotations of one kind from which on there is no room for another: 64 of AWS's own names take less.
const MAX_BYTES_OF_A_PREFIX: usize = 32 * 1024;

/// All that Ebbtide, its agent, and users have recorded on a Node under Ebbtide's prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The annotations by name, as they are written.
    texts: BTreeMap<String, String>,
    /// The notices. A slice, because a map would take room for eleven.
    notices: Box<[(NoticeKey, NoticeRecord)]>,
    undo: Undo,
}

/// A change of the record of a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordChange {
    /// The notice.
    pub key: NoticeKey,
    /// What is left of it, if anything.
    pub left: Option<NoticeRecord>,
}

impl RecordChange {
    /// The source whose notice has the key `source` leaves the record with this key.
    pub fn leaves((key, known): (NoticeKey, &NoticeRecord), source: NoticeKey) -> Self {
        Self { key, left: Some(NoticeRecord { also: known.also.without(source), ..known.clone() }) }
    }

    /// Whether the notice with this key no longer holds the Node.
    pub fn releases(&self, key: NoticeKey) -> bool {
        self.key == key && !self.left.as_ref().is_some_and(|left| left.work.holds())
    }
}

/// What Ebbtide has changed on the Node besides its annotations, so that nothing is removed that was there before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Undo {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) cordon: bool,
    /// Whether another controller or a user removed the cordon, and Ebbtide restored it: the next removal ends the notices.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
    /// Taints as `kubectl` writes them, without the time that Kubernetes adds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) taints: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) labels: Vec<String>,
}

impl Record {
    /// Parses the annotations under Ebbtide's prefix.
    #[must_use]
    pub fn read(texts: BTreeMap<String, String>) -> Self {
        let notices = keyed(&texts, NOTICE_PREFIX).map(|(key, text)| (key, NoticeRecord::read(text))).collect();
        let undo = texts.get(UNDO_ANNOTATION).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        Self { texts, notices, undo }
    }

    /// Returns the annotations as the parsed values are written: the same as were read, unless others have edited them.
    #[must_use]
    pub fn written(&self) -> BTreeMap<String, String> {
        let notices = self
            .all()
            .filter(|(_, notice)| !notice.is_unreadable())
            .map(|(key, notice)| (name(NOTICE_PREFIX, key), text(notice)));
        let undo = self.texts.contains_key(UNDO_ANNOTATION).then(|| (UNDO_ANNOTATION.to_owned(), text(&self.undo)));
        let mut written = self.texts.clone();
        written.extend(notices.chain(undo));
        written
    }

    /// Returns the text of the annotation with this name.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    /// Whether the Node has an annotation with this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.texts.contains_key(name)
    }

    /// Returns the annotations with this prefix, by name.
    pub(super) fn with_prefix(&self, prefix: &'static str) -> impl Iterator<Item = (&String, &String)> {
        with_prefix(&self.texts, prefix)
    }

    /// Returns all records of notices by their keys.
    pub(super) fn all(&self) -> impl Iterator<Item = (NoticeKey, &NoticeRecord)> {
        self.notices.iter().map(|(key, notice)| (*key, notice))
    }

    /// Returns the notices that hold the Node, by their keys.
    pub fn notices(&self) -> impl Iterator<Item = (NoticeKey, &NoticeRecord)> {
        self.all().filter(|(_, notice)| notice.work.holds())
    }

    /// Whether a notice holds the Node.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.notices().next().is_some()
    }

    /// Whether the Node is drained for a notice, whenever the drain's deadline is: that comes from the message.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.notices().any(|(_, notice)| notice.is_drain())
    }

    /// Whether the Node is drained for another reason than that it is unhealthy.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.notices().any(|(_, notice)| notice.is_drain() && !notice.kind().is_some_and(NoticeKind::is_repair))
    }

    /// Whether a message has announced that a group terminates the Node's instance.
    #[must_use]
    pub fn is_termination_announced(&self) -> bool {
        self.notices().any(|(_, notice)| notice.is_of(NoticeKind::AsgTerminate) && !notice.is_hint_of_termination())
    }

    /// Returns the notice with this key, if it holds the Node.
    #[must_use]
    pub fn notice(&self, key: NoticeKey) -> Option<&NoticeRecord> {
        self.get(key).filter(|notice| notice.work.holds())
    }

    /// Returns the notice with this key, if it holds the Node or is planned.
    #[must_use]
    pub fn live(&self, key: NoticeKey) -> Option<&NoticeRecord> {
        self.get(key).filter(|notice| notice.work.is_live())
    }

    /// Returns the record of the notice with this key, in whatever state.
    #[must_use]
    pub fn get(&self, key: NoticeKey) -> Option<&NoticeRecord> {
        self.all().find(|(known, _)| *known == key).map(|(_, notice)| notice)
    }

    /// Returns the record of this notice, whichever source has reported it first, with its key. An own one that is about what AWS has changed
    /// since gives way to one of another source that is live, or over for the same time.
    #[must_use]
    pub fn of(&self, notice: &Notice) -> Option<(NoticeKey, &NoticeRecord)> {
        let (key, named) = (notice.key(), notice.named_time());
        let own = self.get(key).map(|known| (key, known));
        let gives_way = own.is_some_and(|(_, known)| match known.work {
            Work::Withdrawn => known.since <= Some(whole_seconds(notice.at())) || !known.starts_at(notice.start()),
            Work::Handled => !known.is_over(named),
            _ => false,
        });
        // EC2 lists for days, as cancelled, what was cancelled, by an id of its own.
        let is_listed = notice.identity.ec2_id().is_some();
        let start = notice.start().filter(|_| !(is_listed && notice.is_withdrawn()) && notice.is_listed_by_ec2());
        let other = || self.of_other(key, start, is_listed, &notice.instance);
        let is_current = |known: &NoticeRecord| known.work.is_live() || known.is_over(named);
        if gives_way { other().filter(|(_, known)| is_current(known)).or(own) } else { own.or_else(other) }
    }

    /// Returns the record of another source of the notice with this key, with its own: one that the source has joined, or of a change with the
    /// same start. Health's events of one start are different changes. `is_listed`: the key is of the id that EC2 lists.
    pub(super) fn of_other(
        &self,
        key: NoticeKey,
        start: Option<Timestamp>,
        is_listed: bool,
        instance: &InstanceId,
    ) -> Option<(NoticeKey, &NoticeRecord)> {
        let start = start.map(whole_seconds);
        let is_by_start = |(other, known): (NoticeKey, &NoticeRecord)| {
            let is_same = known.is_of(NoticeKind::ScheduledChange) && known.start.map(whole_seconds) == start;
            start.is_some() && is_same && (is_listed || known.is_over(start) || is_of_listed(other, known, instance))
        };
        let is_same = |of: &(NoticeKey, &NoticeRecord)| of.0 != key && (of.1.also.has(key) || is_by_start(*of));
        self.all().filter(is_same).max_by_key(|(_, known)| (known.work.is_live(), known.also.has(key)))
    }

    /// Returns the deadline of the drain for the notice with this key; `None` if its change starts at another time than `start`.
    #[must_use]
    pub fn deadline(&self, key: NoticeKey, start: Option<Timestamp>) -> Option<Timestamp> {
        self.notice(key).filter(|notice| notice.starts_at(start))?.deadline
    }

    /// Returns the changes that the Node keeps, because no message will: until they are near, and until the work on them has ended.
    pub fn kept(&self) -> impl Iterator<Item = &NoticeRecord> {
        self.all().map(|(_, notice)| notice).filter(|notice| notice.kept.is_some())
    }

    /// Returns the id that stands for a message in the record of the notice with this key: a replica that continues with the notice writes
    /// the same, so that it is recognized.
    #[must_use]
    pub fn message(&self, key: NoticeKey) -> Option<&str> {
        self.live(key).map(|known| &*known.message)
    }

    /// Returns the recorded cancellations, by the keys of their notices.
    pub(super) fn withdrawals(&self) -> impl Iterator<Item = (NoticeKey, Withdrawal)> {
        self.all().filter_map(|(key, notice)| Some((key, Withdrawal::recorded(notice)?)))
    }

    /// Returns what Ebbtide has changed on the Node.
    #[must_use]
    pub const fn undo(&self) -> &Undo {
        &self.undo
    }

    /// Whether the Node has as many notices in this state as it may have, or their annotations are as long.
    pub(super) fn is_full_of(&self, work: Work) -> bool {
        let annotations = keyed(&self.texts, NOTICE_PREFIX);
        let shares_room =
            |key| self.get(key).is_some_and(|notice| notice.work.shares_room(work) && !notice.is_unreadable());
        let sharing = annotations.filter(|(key, _)| shares_room(*key));
        are_full(sharing.map(|(_, text)| NOTICE_PREFIX.len() + KEY_LENGTH + text.len()))
    }

    /// Whether the Node has as many annotations with this prefix as it may have, or as long ones.
    pub(super) fn is_full(&self, prefix: &'static str) -> bool {
        are_full(self.with_prefix(prefix).map(|(name, text)| name.len() + text.len()))
    }

    /// Returns the annotations that write these changes. With a state that only remembers, some of what is remembered goes: old cancellations,
    /// and the earliest notice if there are as many as the Node may have.
    pub(super) fn annotations(&self, changes: &[RecordChange]) -> Map<String, Value> {
        let left = || changes.iter().filter_map(|change| Some((change.key, change.left.as_ref()?)));
        let is_old = |known: &Withdrawal| {
            let mut withdrawn = left().filter(|(_, left)| left.work == Work::Withdrawn);
            withdrawn.any(|(_, left)| left.since.is_some_and(|at| at.duration_since(known.at) > MAX_MESSAGE_AGE))
        };
        let old = self.withdrawals().filter(|(_, known)| is_old(known)).map(|(key, _)| key);
        let forgotten = old.chain(left().filter_map(|(key, left)| self.crowded_out(left.work, key)));
        let removed = forgotten.map(|key| (name(NOTICE_PREFIX, key), Value::Null));
        let values = changes.iter().map(|RecordChange { key, left }| {
            (name(NOTICE_PREFIX, *key), left.as_ref().map_or(Value::Null, |left| text(left).into()))
        });
        removed.chain(values).collect()
    }

    /// Returns the notice that no longer holds the Node and gives way to that with this key in the same state: the earliest, if the Node has
    /// as many as it may have.
    pub(super) fn crowded_out(&self, work: Work, key: NoticeKey) -> Option<NoticeKey> {
        let is_new = self.get(key).is_none_or(|known| known.work != work);
        let is_full = !work.is_live() && is_new && self.is_full_of(work);
        let sharing = self.all().filter(|(_, notice)| is_full && notice.work == work);
        sharing.min_by_key(|(_, notice)| notice.since).map(|(key, _)| key)
    }
}

/// Whether this record has its key from EC2's id of the change, which the metadata have too, and not from Health's ARN.
pub(super) fn is_of_listed(key: NoticeKey, known: &NoticeRecord, instance: &InstanceId) -> bool {
    let kept = known.kept.iter().map(|kept| &*kept.event);
    let mut ids = [id_of(&known.message)].into_iter().chain(kept);
    ids.any(|id| Identity::of_change(id.to_owned(), instance.clone()).key() == key && !id.starts_with("arn:"))
}

/// Returns the changes with which a source joins the record that has this key; `None` if it has joined it, or if as many have as may. What
/// the source had on record before is over.
pub(super) fn joining(
    record: &Record,
    (key, known): (NoticeKey, &NoticeRecord),
    source: Source,
) -> Option<Vec<RecordChange>> {
    let own = record.get(source.key).filter(|own| !own.work.is_live());
    let own = own.map(|_| RecordChange { key: source.key, left: None });
    let left = Some(NoticeRecord { also: known.also.with(source)?, ..known.clone() });
    Some(own.into_iter().chain([RecordChange { key, left }]).collect())
}

/// Whether annotations of these sizes are as many as a Node may have of a kind, or as long.
fn are_full(sizes: impl Iterator<Item = usize>) -> bool {
    let (count, bytes) = sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size));
    count >= MAX_OF_A_PREFIX || bytes >= MAX_BYTES_OF_A_PREFIX
}

/// Returns a function that takes the records of a Node in the order of its versions, and returns whether the notice with this key has held
/// one of them.
pub fn has_had(key: NoticeKey) -> impl FnMut(&Record) -> bool {
    let mut has_had = false;
    move |record| {
        has_had |= record.notice(key).is_some();
        has_had
    }
}

/// Formats the value of an annotation. This can't fail: no map has keys that are not strings.
pub(super) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Returns the name of the annotation with this prefix for the notice with this key.
pub(super) fn name(prefix: &str, key: NoticeKey) -> String {
    format!("{prefix}{key}")
}

/// Returns the annotations with this prefix by the keys in their names. One with another name is not Ebbtide's.
fn keyed<'a>(
    texts: &'a BTreeMap<String, String>,
    prefix: &'static str,
) -> impl Iterator<Item = (NoticeKey, &'a String)> {
    with_prefix(texts, prefix).filter_map(move |(name, text)| Some((NoticeKey::read(&name[prefix.len()..])?, text)))
}

fn with_prefix<'a>(
    texts: &'a BTreeMap<String, String>,
    prefix: &'static str,
) -> impl Iterator<Item = (&'a String, &'a String)> {
    let from = texts.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
    from.take_while(move |(name, _)| name.starts_with(prefix))
}

#[cfg(test)]
impl Record {
    /// Returns the annotations.
    pub(crate) const fn texts(&self) -> &BTreeMap<String, String> {
        &self.texts
    }

    /// Changes the annotations as `edit` does.
    pub(crate) fn edit(&mut self, edit: impl FnOnce(&mut BTreeMap<String, String>)) {
        edit(&mut self.texts);
        *self = Self::read(std::mem::take(&mut self.texts));
    }

    /// Writes the annotation.
    pub(crate) fn insert(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.edit(|texts| drop(texts.insert(name.into(), text.into())));
    }

    /// Revises the record of the notice with this key as `change` does, which must change something.
    pub(crate) fn revise(&mut self, key: NoticeKey, change: impl FnOnce(&NoticeRecord) -> Option<NoticeRecord>) {
        let revised = change(self.notice(key).unwrap()).unwrap();
        self.insert(name(NOTICE_PREFIX, key), text(&revised));
    }

    /// Removes the annotation.
    pub(crate) fn remove(&mut self, name: &str) {
        self.edit(|texts| drop(texts.remove(name)));
    }
}

#[cfg(test)]
mod tests;
