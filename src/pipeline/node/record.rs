//! What Ebbtide has recorded on a Node, parsed once for each version of the Node. Pure.
//!
//! Three kinds of annotations record a notice under its key: `notice` while it is planned or holds the Node, `handled` once it needs nothing
//! more, and `withdrawn` once AWS has cancelled it. They are the states of one record, which will be one annotation.
//!
//! ```text
//!            plan                  cordon                       drained, or given up
//!   (none) ───────▶ planned, kept ────────▶ holds the Node, kept ────────▶ holds the Node ──▶ (none)
//!      │                                      released for any reason: ─────────────────────▶ (none)
//!      └── cordon ───────────────────────────────────────────────────────▶ holds the Node
//! ```

mod kept;
mod notice;
mod withdrawal;

pub(super) use kept::KeptChange;
pub(super) use notice::UNKNOWN_BOOT;
pub use notice::{HookState, NoticeRecord, Place, RETURN_BEFORE_START, ReturnSign, TERMINATION_GRACE, whole_seconds};
pub use withdrawal::Withdrawal;

use super::names::MAX_OF_A_PREFIX;
use crate::fact::NoticeKind;
use crate::pipeline::event::NoticeKey;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Prefix of the annotation of a notice that holds the Node, or of a planned change: `ebbtide/notice.<key>`.
pub(super) const NOTICE_PREFIX: &str = "ebbtide/notice.";

/// Prefix of the annotation of a cancelled notice: `ebbtide/withdrawn.<key>`. Its value is a [`Withdrawal`].
pub(super) const WITHDRAWN_PREFIX: &str = "ebbtide/withdrawn.";

/// Prefix of the annotation of a notice that needs nothing more: `ebbtide/handled.<key>`. Its value is the start of the change, the end of
/// the block, or the time that the instance's metadata name.
pub(super) const HANDLED_PREFIX: &str = "ebbtide/handled.";

/// Name of the annotation that lists the changes to undo.
pub(super) const UNDO_ANNOTATION: &str = "ebbtide/undo";

/// Number of characters of a key.
const KEY_LENGTH: usize = 16;

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

/// What Ebbtide has changed on the Node besides its annotations, so that nothing is removed that was there before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Undo {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) cordon: bool,
    /// Whether another controller or a user removed the cordon, and Ebbtide restored it.
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

    /// Returns all notices by their keys: those that hold the Node, and planned changes.
    pub(super) fn all(&self) -> impl Iterator<Item = (NoticeKey, &NoticeRecord)> {
        self.notices.iter().map(|(key, notice)| (*key, notice))
    }

    /// Returns the notices that hold the Node, by their keys.
    pub fn notices(&self) -> impl Iterator<Item = (NoticeKey, &NoticeRecord)> {
        self.all().filter(|(_, notice)| !notice.planned)
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
        self.notices().any(|(_, notice)| notice.is_drain() && !notice.is_of_repair())
    }

    /// Whether a message has announced that a group terminates the Node's instance.
    #[must_use]
    pub fn is_termination_announced(&self) -> bool {
        self.notices().any(|(_, notice)| notice.is_of(NoticeKind::AsgTerminate) && !notice.is_hint_of_termination())
    }

    /// Returns the notice with this key, if it holds the Node.
    #[must_use]
    pub fn notice(&self, key: NoticeKey) -> Option<&NoticeRecord> {
        self.known(key).filter(|notice| !notice.planned)
    }

    /// Returns the notice with this key, whether it holds the Node or is planned.
    #[must_use]
    pub fn known(&self, key: NoticeKey) -> Option<&NoticeRecord> {
        self.all().find(|(known, _)| *known == key).map(|(_, notice)| notice)
    }

    /// Returns the place in its wave of the drain for the notice with this key.
    #[must_use]
    pub fn place(&self, key: NoticeKey) -> Option<Place> {
        self.notice(key)?.place
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
        self.known(key).map(|known| &*known.message)
    }

    /// Returns AWS's time of the cancellation of the notice with this key, if it is recorded.
    #[must_use]
    pub fn withdrawn_at(&self, key: NoticeKey) -> Option<Timestamp> {
        Withdrawal::read(self.text(&name(WITHDRAWN_PREFIX, key))?).map(|withdrawal| withdrawal.at)
    }

    /// Returns the recorded cancellations, by the names of their annotations.
    pub(super) fn withdrawals(&self) -> impl Iterator<Item = (&String, Withdrawal)> {
        self.with_prefix(WITHDRAWN_PREFIX).filter_map(|(name, text)| Some((name, Withdrawal::read(text)?)))
    }

    /// Returns for which time the notice with this key needs nothing more, if that is recorded: empty for a notice without one.
    #[must_use]
    pub fn handled(&self, key: NoticeKey) -> Option<&str> {
        self.text(&name(HANDLED_PREFIX, key))
    }

    /// Returns what Ebbtide has changed on the Node.
    #[must_use]
    pub const fn undo(&self) -> &Undo {
        &self.undo
    }

    /// Whether the Node has as many notices in this state as it may have, planned or holding it, or their annotations are as long. Neither
    /// takes the room of the other: an attacker can have a hundred changes planned.
    pub(super) fn is_full_of(&self, planned: bool) -> bool {
        let annotations = keyed(&self.texts, NOTICE_PREFIX);
        let of_state = annotations.filter(|(key, _)| self.known(*key).is_some_and(|notice| notice.planned == planned));
        are_full(of_state.map(|(_, text)| NOTICE_PREFIX.len() + KEY_LENGTH + text.len()))
    }

    /// Whether the Node has as many annotations with this prefix as it may have, or as long ones.
    pub(super) fn is_full(&self, prefix: &'static str) -> bool {
        are_full(self.with_prefix(prefix).map(|(name, text)| name.len() + text.len()))
    }

    /// Returns the annotation with this prefix that gives way to `name`: that with the earliest time, if the Node has as many as it may have,
    /// and not `name`.
    pub(super) fn crowded_out(&self, prefix: &'static str, name: &str) -> Option<&String> {
        let oldest = self.with_prefix(prefix).min_by_key(|(_, time)| *time).map(|(name, _)| name);
        oldest.filter(|_| self.is_full(prefix) && !self.has(name))
    }
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
