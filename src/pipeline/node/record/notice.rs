//! What a Node records of one notice.

use super::boot::Boot;
use super::kept::KeptChange;
use super::source::Sources;
use crate::fact::{NoticeKind, UndoReason};
use crate::pipeline::node::names::is_from_node;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// Grace period after a notice's deadline, after which an instance that still runs was kept.
pub const TERMINATION_GRACE: Duration = Duration::from_mins(1);

/// Time before the start of a change from which on a restart is the return from it: clocks differ. An earlier one proves nothing, because
/// even the reboot for which AWS asks is done only when AWS itself reboots, or when the instance is stopped and started.
pub const RETURN_BEFORE_START: Duration = Duration::from_mins(1);

/// The version of the form of records. One of another version is [unreadable](NoticeRecord::is_unreadable).
const VERSION: u8 = 1;

/// The record of one notice. One without `until` and without a return sign stays until the Node is released for another reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct NoticeRecord {
    /// The version of its form; 0 of one that can't be read.
    pub(in crate::pipeline::node) v: u8,
    pub(in crate::pipeline::node) kind: String,
    /// AWS's time of the newest copy of the notice, in whole seconds.
    pub since: Option<Timestamp>,
    /// Deadline of the drain, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// End of a drain that continues after its deadline: a lifecycle hook leaves room for the longest grace period of a pod, or for a wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::pipeline::node) ends: Option<Timestamp>,
    /// Start of the announced change, if AWS names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Timestamp>,
    /// Whether the capacity ends with the change.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hard: bool,
    /// The state of the lifecycle hook, if the kind has one.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::pipeline::node) hook: HookState,
    /// Id of the message that announced the notice; the change or the reservation that EC2 lists, if none did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The sources that assert the notice besides the one with this message.
    #[serde(skip_serializing_if = "Sources::is_empty")]
    pub(in crate::pipeline::node) also: Sources,
    /// How far the work on it is.
    #[serde(skip_serializing_if = "is_default")]
    pub work: Work,
    /// The time that the notice names, if it is not the start of a change: the end of a block, or the time in the instance's metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::pipeline::node) named: Option<Timestamp>,
    /// What makes the notice again, while the Node keeps it: its message is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::pipeline::node) kept: Option<Box<KeptChange>>,
    /// The Node's boot at the time of the record. Another one ends the notice, from its start on, if the instance returns from it.
    #[serde(skip_serializing_if = "Boot::is_empty")]
    pub boot: Boot,
    /// The sign that the instance has returned, if it can return.
    #[serde(skip_serializing_if = "Option::is_none", rename = "back")]
    pub(in crate::pipeline::node) return_sign: Option<ReturnSign>,
    /// Expiry, where nothing else shows that the instance stays: of a recommendation, of a cordon without a drain, and of a drain that
    /// `--uncordon-after` ends. It moves with the drain's end.
    #[serde(skip_serializing_if = "Option::is_none", rename = "until")]
    pub(in crate::pipeline::node) expires: Option<Timestamp>,
    /// The pool of Nodes in whose settings the work began, if it is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::pipeline::node) pool: Option<Box<str>>,
    /// The drain's place in its wave; `None` of a drain that has begun without one.
    #[serde(skip_serializing_if = "Option::is_none", rename = "wave", deserialize_with = "lenient")]
    pub place: Option<Place>,
}

/// How far the work on a notice is, and with that whether the notice holds the Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// The Node keeps the notice until its change is near, and is not held by it.
    Planned,
    /// The Node is cordoned, and drained if the record has a deadline.
    #[default]
    Open,
    /// Nothing is left to do, and the Node stays cordoned.
    Ended,
    /// Nothing is left to do, and the Node is not held. What reports the notice may continue to report it.
    Handled,
    /// AWS has cancelled the notice, whose older copies may still come.
    Withdrawn,
}

impl Work {
    /// Whether it holds the Node.
    #[must_use]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Open | Self::Ended)
    }

    /// Whether the notice holds the Node, or will.
    #[must_use]
    pub const fn is_live(self) -> bool {
        self.holds() || matches!(self, Self::Planned)
    }

    /// Whether these take room from each other: an attacker can have a hundred changes planned, and as many withdrawn.
    pub(super) const fn shares_room(self, other: Self) -> bool {
        self as u8 == other as u8 || self.holds() && other.holds()
    }
}

/// The state of the lifecycle hook for whose action a Node is drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HookState {
    /// It waits, as far as is known.
    #[default]
    Waits,
    /// None was announced, or AWS does not know it.
    None,
    /// Ebbtide has completed it: a restart since then is the instance's return.
    Completed,
}

impl HookState {
    /// Whether it waits.
    #[must_use]
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::Waits)
    }
}

/// The sign that a Node's instance has returned from the announced interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReturnSign {
    /// The Node is Ready with another boot ID.
    Boot,
    /// The Node is Ready with another boot ID, or became Ready after the deadline: a hibernated instance keeps its boot ID.
    Ready,
}

/// The place of a drain in the wave of its Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Evictions wait.
    Waits,
    /// Evictions have had a place since this time.
    Evicts(Timestamp),
    /// The drain has ended, whether or not the record stays.
    Over,
}

impl Place {
    fn read(text: &str) -> Option<Self> {
        match text {
            "waits" => Some(Self::Waits),
            "over" => Some(Self::Over),
            since => since.parse().ok().map(Self::Evicts),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waits => f.write_str("waits"),
            Self::Evicts(since) => write!(f, "{}", whole_seconds(*since)),
            Self::Over => f.write_str("over"),
        }
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads a place. A text that a user has edited beyond parsing is none, as in a drain that has begun without one.
fn lenient<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Place>, D::Error> {
    Ok(Place::read(&String::deserialize(from)?))
}

impl NoticeRecord {
    /// Returns the record of a notice of this kind.
    #[must_use]
    pub(in crate::pipeline::node) fn new(kind: String, since: Timestamp, message: String) -> Self {
        Self { v: VERSION, kind, since: Some(whole_seconds(since)), message, ..Self::default() }
    }

    /// Reads the value of an annotation.
    pub(super) fn read(text: &str) -> Self {
        serde_json::from_str(text).ok().filter(|notice: &Self| notice.v == VERSION).unwrap_or_default()
    }

    /// Whether it can't be read: a user has edited it, or another version has written it. It holds the Node, no room and no place, is never
    /// rewritten, and stays until a user removes it or uncordons the Node.
    #[must_use]
    pub const fn is_unreadable(&self) -> bool {
        self.v != VERSION
    }

    /// Returns the end of the drain: its deadline, or the time to which it was put off.
    #[must_use]
    pub fn end(&self) -> Option<Timestamp> {
        self.ends.max(self.deadline)
    }

    /// Returns the latest time of the instance's termination, if it is terminated.
    pub(in crate::pipeline::node) fn terminates_at(&self) -> Option<Timestamp> {
        self.end().max(self.since)?.checked_add(TERMINATION_GRACE).ok()
    }

    /// Whether it is the record of a drain, and not of a cordon alone.
    #[must_use]
    pub const fn is_drain(&self) -> bool {
        self.deadline.is_some()
    }

    /// Whether a lifecycle hook waits for the drain. To be asked of a record that holds the Node.
    #[must_use]
    pub fn has_hook(&self) -> bool {
        self.is_of(NoticeKind::AsgTerminate) && self.hook.is_waiting()
    }

    /// Returns the kind of the notice; `None` of a record that a user has edited, or that names a kind of another version.
    #[must_use]
    pub fn kind(&self) -> Option<NoticeKind> {
        NoticeKind::ALL.into_iter().find(|kind| self.is_of(*kind))
    }

    /// Whether it is of a notice of this kind.
    #[must_use]
    pub fn is_of(&self, kind: NoticeKind) -> bool {
        self.kind == kind.as_str()
    }

    /// Whether only the Node's agent, or a condition of the Node, has reported the notice.
    #[must_use]
    pub fn is_only_reported(&self) -> bool {
        is_from_node(&self.message) && self.also.is_empty()
    }

    /// Whether it is the agent's notice of a termination: a hint, which knows neither the lifecycle hook nor its timeout. The record of the
    /// hook's message, which is about the same end, replaces it in one patch and continues in its place in the wave, whichever came first.
    pub(in crate::pipeline::node) fn is_hint_of_termination(&self) -> bool {
        self.is_of(NoticeKind::AsgTerminate) && is_from_node(&self.message)
    }

    /// Whether the notice names this time as the start of its change.
    #[must_use]
    pub fn starts_at(&self, start: Option<Timestamp>) -> bool {
        self.start == start.map(whole_seconds)
    }

    /// Whether the record was written in this boot of the Node, or a restart proves nothing about the drain: a hook keeps an instance that
    /// would return.
    #[must_use]
    pub fn stands(&self, boot: &str) -> bool {
        !self.boot.is_empty() && self.boot == self.boot_on(boot)
    }

    /// Whether the Node, which has this boot now, has restarted since the record, but too early for that to be the return from its change.
    pub(in crate::pipeline::node) fn has_restarted_early(&self, boot: &str, now: Timestamp) -> bool {
        self.is_ahead(now) && self.return_sign.is_some() && self.boot.is_before(boot)
    }

    /// Whether a restart at this time is too early to be the return from the change.
    pub(in crate::pipeline::node) fn is_ahead(&self, now: Timestamp) -> bool {
        self.start.and_then(|start| start.checked_sub(RETURN_BEFORE_START).ok()).is_some_and(|from| now < from)
    }

    /// Returns the boot of the record when it is written again on a Node with this boot. The record of a hook whose instance returns keeps its
    /// own: only AWS knows whether a restart was the return.
    pub(in crate::pipeline::node) fn boot_on(&self, boot: &str) -> Boot {
        let returns = self.is_of(NoticeKind::AsgTerminate) && self.return_sign == Some(ReturnSign::Boot);
        if returns && !self.boot.is_empty() { self.boot.clone() } else { Boot::new(boot) }
    }

    /// Returns the record of a drain that has this place; `None` if it has it already, or is none. `ends` is the time to which the drain's
    /// end moves with that: its deadline, or the latest end of one that waits.
    #[must_use]
    pub fn placed(&self, place: Place, ends: Option<Timestamp>) -> Option<Self> {
        let place = match place {
            Place::Evicts(since) => Place::Evicts(whole_seconds(since)),
            other => other,
        };
        let record = match (place, ends) {
            (Place::Evicts(_), Some(ends)) => with_deadline(self, ends),
            (Place::Waits, Some(ends)) => with_end(self, ends),
            _ => self.clone(),
        };
        (self.is_drain() && self.place != Some(place)).then_some(Self { place: Some(place), ..record })
    }

    /// Returns the record of a drain whose deadline moves to `at`, while its change stays where it is: `start` is AWS's. `None` if it is that time, or the record is of no drain.
    #[must_use]
    pub fn moved(&self, at: Timestamp) -> Option<Self> {
        let moves = self.deadline.is_some_and(|deadline| deadline != whole_seconds(at));
        moves.then(|| with_deadline(self, at))
    }

    /// Returns the record of a drain whose end is put off to `at`; `None` if it is no earlier.
    #[must_use]
    pub fn put_off(&self, at: Timestamp) -> Option<Self> {
        (self.end() < Some(at)).then(|| with_end(self, at))
    }

    /// Returns the record of a notice whose hook is completed in this boot of the Node: a restart from now on is the return, and none
    /// before. A cordon without a drain gets no deadline, or its Node would count as drained.
    #[must_use]
    pub fn completed(&self, at: Timestamp, boot: &str) -> Self {
        let record = if self.is_drain() { with_deadline(self, at) } else { self.clone() };
        Self { boot: Boot::new(boot), hook: HookState::Completed, ..record }
    }

    /// Returns the record of a notice for which the restart to this boot was no return: its hook has waited since, or its change stands.
    #[must_use]
    pub fn in_boot(&self, boot: &str) -> Self {
        Self { boot: Boot::new(boot), ..self.clone() }
    }

    /// Returns the record of a notice for which nothing is left to do, as long as it names the same time: ended if it holds the Node, handled
    /// otherwise.
    #[must_use]
    pub(in crate::pipeline::node) fn ended(&self) -> Self {
        if self.work.holds() {
            Self { work: Work::Ended, kept: None, ..self.clone() }
        } else {
            Self { work: Work::Handled, ..self.remembered() }
        }
    }

    /// Returns what is left of the record when it no longer holds the Node for this reason, if anything: what has ended, or a user has ended,
    /// stays so. Of open work whose hook waits nothing is left: the next receiver of its message must complete it.
    #[must_use]
    pub(in crate::pipeline::node) fn released(&self, reason: UndoReason) -> Option<Self> {
        let is_by_user = reason == UndoReason::Uncordoned && !self.has_hook() && !self.is_unreadable();
        // A source that joined, and continues to report the notice, starts nothing again.
        (self.work == Work::Ended || is_by_user || self.also.repeat())
            .then(|| Self { work: Work::Handled, ..self.remembered() })
    }

    /// Whether nothing is left to do for the notice that names this time.
    #[must_use]
    pub(in crate::pipeline::node) fn is_over(&self, named: Option<Timestamp>) -> bool {
        matches!(self.work, Work::Ended | Work::Handled) && self.named.or(self.start) == named.map(whole_seconds)
    }

    /// Returns what a record keeps that no longer holds the Node: what it is about.
    pub(in crate::pipeline::node) fn remembered(&self) -> Self {
        let Self { kind, message, also, named, .. } = self.clone();
        Self {
            v: VERSION,
            kind,
            since: self.since,
            start: self.start.map(whole_seconds),
            message,
            also,
            named,
            ..Self::default()
        }
    }
}

/// Returns the record with this deadline, which is the end of the drain.
fn with_deadline(record: &NoticeRecord, at: Timestamp) -> NoticeRecord {
    NoticeRecord { deadline: Some(whole_seconds(at)), ends: None, ..with_end(record, at) }
}

/// Returns the record of a drain that continues until then, whatever its deadline. Its expiry counts from that end, as it did from the one
/// before.
fn with_end(record: &NoticeRecord, at: Timestamp) -> NoticeRecord {
    let at = whole_seconds(at);
    let by = record.end().map_or(SignedDuration::ZERO, |before| at.duration_since(before));
    let expires = record.expires.map(|expires| expires.checked_add(by).unwrap_or(expires));
    NoticeRecord { ends: Some(at), expires, ..record.clone() }
}

/// Returns the time as records have it: fractions of a second only make an annotation harder to read.
#[must_use]
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: u8) -> Timestamp {
        format!("2026-11-21T12:{minute:02}:00Z").parse().unwrap()
    }

    fn hook(deadline: Option<u8>) -> NoticeRecord {
        NoticeRecord {
            kind: NoticeKind::AsgTerminate.as_str().to_owned(),
            deadline: deadline.map(at),
            boot: Boot::new("boot-1"),
            ..NoticeRecord::default()
        }
    }

    #[test]
    fn a_drain_that_waits_for_a_place_again_keeps_its_deadline_and_says_how_long_it_may_take() {
        let waits = hook(Some(50)).placed(Place::Waits, Some(at(55))).unwrap();
        assert_eq!((waits.end(), waits.deadline), (Some(at(55)), Some(at(50))));
        assert_eq!(hook(None).placed(Place::Waits, Some(at(55))), None, "it is no drain");
    }

    #[test]
    fn a_cordon_for_a_hook_is_no_drain_after_its_completion() {
        for (before, after) in [(None, None), (Some(50), Some(at(20)))] {
            let done = hook(before).completed(at(20), "another");
            assert_eq!((done.deadline, done.boot.is("another"), done.has_hook()), (after, true, false));
        }
    }

    #[test]
    fn only_a_restart_before_the_last_minute_is_early() {
        let sign = Some(ReturnSign::Boot);
        let change = NoticeRecord { start: Some(at(50)), return_sign: sign, ..hook(Some(50)) };
        assert!(change.has_restarted_early("another", at(48)));
        assert!(!change.has_restarted_early("another", at(49)) && !change.has_restarted_early("boot-1", at(48)));
        assert!(!change.in_boot("another").has_restarted_early("another", at(48)), "it is known");
        assert!(!hook(Some(50)).has_restarted_early("another", at(0)), "its instance does not return");
    }

    #[test]
    fn an_end_is_only_put_off() {
        assert_eq!(hook(Some(50)).put_off(at(50)), None);
        let put_off = hook(Some(50)).put_off(at(51)).unwrap();
        assert_eq!((put_off.end(), put_off.deadline), (Some(at(51)), Some(at(50))));
        assert_eq!(put_off.moved(at(50)), None);
        assert_eq!(put_off.moved(at(49)).unwrap().end(), Some(at(49)), "a deadline that moves is the end");
    }
}
