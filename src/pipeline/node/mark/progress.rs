//! How a drain progresses, as its notice's record shows: a deadline that moves, and a place in a wave.

use super::{Mark, Node, NoticeRecord, Place, guarded, name_of, text, whole_seconds};
use crate::pipeline::event::NoticeKey;
use crate::pipeline::node::record::{TERMINATION_GRACE, UNKNOWN_BOOT};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum time from now to the end of a drain: the longest life of a lifecycle hook, and the longest `--drain-timeout`, with a margin
/// for clocks. A later one is not Ebbtide's: an attacker who can write a Node may name any time.
const MAX_AHEAD: Duration = Duration::from_hours(49);

impl Place {
    /// Returns the patch that writes the place in the record of the notice with this key; `None` if the record has it already, or is not on
    /// the Node. `ends` is the time to which the drain's end moves with that: its deadline, or the latest end of one that waits.
    #[must_use]
    pub fn patch(self, node: &Node, key: NoticeKey, ends: Option<Timestamp>) -> Option<Value> {
        let place = match self {
            Self::Evicts(since) => Some(Self::Evicts(whole_seconds(since))),
            other => Some(other),
        };
        let known = node.record.notice(key).filter(|known| known.is_drain() && known.place != place)?;
        let record = match (self, ends) {
            (Self::Evicts(_), Some(ends)) => known.with_deadline(ends),
            (Self::Waits, Some(ends)) => known.with_end(ends),
            _ => known.clone(),
        };
        Some(rewritten(node, key, &NoticeRecord { place, ..record }))
    }
}

/// Returns the drain's place in its wave, by the record of the notice with this key.
#[must_use]
pub fn place_of(node: &Node, key: NoticeKey) -> Option<Place> {
    node.record.notice(key)?.place
}

/// Returns the time and the start of the change by the record of the notice with this key, if a copy that is newer than `at` has left it:
/// another replica received it.
#[must_use]
pub fn newer_start(node: &Node, key: NoticeKey, at: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let notice = node.record.notice(key)?;
    let since = notice.since.filter(|since| *since > at)?;
    Some((since, notice.start?))
}

/// Returns the start of the change by the record, or the plan, of the notice with this key.
#[must_use]
pub fn start_of(node: &Node, key: NoticeKey) -> Option<Timestamp> {
    node.record.notice_and_plan(key).find_map(|known| known.start)
}

/// Returns AWS's time of the newest copy in the record or the plan of the notice with this key, if its start is not `start`: a copy with
/// the same start announces nothing new, and its work may have to be taken over.
#[must_use]
pub fn newest_announced(node: &Node, key: NoticeKey, start: Option<Timestamp>) -> Option<Timestamp> {
    node.record.notice_and_plan(key).filter(|known| !known.starts_at(start)).filter_map(|known| known.since).max()
}

/// Returns the end of the drain for the notice with this key.
#[must_use]
pub fn end_of(node: &Node, key: NoticeKey) -> Option<Timestamp> {
    node.record.notice(key)?.end()
}

/// Returns whether the record of the notice with this key was written since the Node's last restart.
#[must_use]
pub fn marked_since_boot(node: &Node, key: NoticeKey) -> bool {
    node.record.notice(key).is_some_and(|notice| notice.is_since_boot(&node.boot))
}

/// As [`marked_since_boot`], or whether a restart proves nothing about the drain.
#[must_use]
pub fn mark_stands(node: &Node, key: NoticeKey) -> bool {
    node.record.notice(key).is_some_and(|notice| notice.stands(&node.boot))
}

/// Returns whether the Node has restarted since the record of the notice with this key, after which its instance can return.
#[must_use]
pub fn may_be_back(node: &Node, key: NoticeKey) -> bool {
    node.record.notice(key).is_some_and(|notice| notice.may_be_back(&node.boot))
}

/// Returns whether the Node may have come back before the record of the notice with this key.
#[must_use]
pub fn is_of_unknown_boot(node: &Node, key: NoticeKey) -> bool {
    node.record.notice(key).is_some_and(NoticeRecord::is_of_unknown_boot)
}

/// Returns the deadline of the drain for the notice with this key; `None` if its change starts at another time than `start`.
#[must_use]
pub fn deadline_of(node: &Node, key: NoticeKey, start: Option<Timestamp>) -> Option<Timestamp> {
    node.record.notice(key).filter(|notice| notice.starts_at(start))?.deadline
}

/// Returns the deadlines of drains for which lifecycle hooks wait, with the names of their marks.
pub fn hook_ends(node: &Node) -> impl Iterator<Item = (&String, Timestamp)> {
    let waiting = node.record.notices().filter(|(_, notice)| notice.has_hook());
    waiting.filter_map(|(name, notice)| Some((name, notice.deadline?)))
}

impl Mark {
    /// Sets that evictions wait for a place in the Node's wave, or for the end of a zonal shift.
    #[must_use]
    pub const fn in_wave(mut self) -> Self {
        self.notice.place = Some(Place::Waits);
        self
    }

    /// Sets that the Node may have come back already, so that its present boot may be the return.
    #[must_use]
    pub fn of_unknown_boot(mut self) -> Self {
        UNKNOWN_BOOT.clone_into(&mut self.notice.boot);
        self
    }

    /// Sets whether no lifecycle hook waits for the drain, though the kind has one.
    #[must_use]
    pub const fn with_hookless(mut self, hookless: bool) -> Self {
        self.notice.hookless = hookless;
        self
    }
}

/// Returns whether the Node is drained for another reason than that it is unhealthy.
#[must_use]
pub fn is_leaving(node: &Node) -> bool {
    node.record.notices().any(|(_, notice)| notice.is_drain() && !notice.is_of_repair())
}

/// Returns whether work on the Node has begun because it is unhealthy: its group may terminate the instance for that as well.
#[must_use]
pub fn is_repaired(node: &Node) -> bool {
    node.record.notices().any(|(_, notice)| notice.is_of_repair())
}

/// How far a Node is in its wave, by the marks of all its drains. Those that evict without a place, such as for spot warnings, come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaveState {
    /// Evictions have begun; since when, if the Node has a place.
    Evicts(Option<Timestamp>),
    /// Evictions wait; since AWS's time of the first notice.
    Waits(Option<Timestamp>),
}

/// Returns how far the Node is in its wave, and until when its records show that: a drain that no replica records as over ends a while after its deadline.
/// `None` if the Node is not drained, or left to its owner, or if its marks name a later end than a drain can have.
#[must_use]
pub fn wave_state(node: &Node, now: Timestamp) -> Option<(WaveState, Timestamp)> {
    let latest = now.checked_add(MAX_AHEAD).unwrap_or(Timestamp::MAX);
    let state = |mark: &NoticeRecord| {
        let until = mark.deadline.max(mark.deadline.and(mark.ends))?.checked_add(TERMINATION_GRACE).ok()?;
        let state = match mark.place {
            Some(Place::Over) => return None,
            Some(Place::Waits) => WaveState::Waits(mark.since),
            Some(Place::Evicts(since)) => WaveState::Evicts(Some(since)),
            None => WaveState::Evicts(None),
        };
        (until > now && until <= latest).then_some((state, until))
    };
    let order = |state: &WaveState| match state {
        WaveState::Evicts(since) => (false, *since),
        WaveState::Waits(since) => (true, *since),
    };
    let all = node.record.notices().filter_map(|(_, mark)| state(mark));
    all.min_by_key(|(state, _)| order(state)).filter(|_| !node.ignored)
}

/// Returns a function that takes the versions of a Node in order, and returns whether one so far had the record of the notice with this key.
pub fn has_had_mark(key: NoticeKey) -> impl FnMut(&Node) -> bool {
    let mut has_had = false;
    move |node| {
        has_had |= node.record.notice(key).is_some();
        has_had
    }
}

/// Returns the patch that moves the deadline in the record of the notice with this key to `at`; `None` if it is that time.
pub(in crate::pipeline::node) fn end(node: &Node, key: NoticeKey, at: Timestamp) -> Option<Value> {
    let is_other = |deadline: Timestamp| deadline != whole_seconds(at);
    let notice = node.record.notice(key).filter(|notice| notice.deadline.is_some_and(is_other))?;
    Some(rewritten(node, key, &notice.with_deadline(at)))
}

/// As [`end`], of the record of a hook that is completed now: a restart from now on is the return, and none before. A cordon without a
/// drain gets no deadline, or its Node would count as drained.
pub(in crate::pipeline::node) fn complete(node: &Node, key: NoticeKey, at: Timestamp) -> Option<Value> {
    let known = node.record.notice(key)?;
    let record = if known.is_drain() { known.with_deadline(at) } else { known.clone() };
    Some(rewritten(node, key, &NoticeRecord { boot: node.boot.to_string(), completed: true, ..record }))
}

/// Returns the patch that records that a restart to this boot was no return, because the hook of the notice with this key has waited
/// after it; `None` if the record has it.
pub(in crate::pipeline::node) fn still_waits(node: &Node, key: NoticeKey, boot: &str) -> Option<Value> {
    let waits = |notice: &&NoticeRecord| notice.has_hook() && notice.is_before_boot(&node.boot) && *node.boot == *boot;
    let notice = node.record.notice(key).filter(waits)?;
    Some(rewritten(node, key, &NoticeRecord { boot: boot.to_owned(), ..notice.clone() }))
}

/// Returns the patch that puts the end of the drain in the record of the notice with this key off to `at`; `None` if it is no earlier.
pub(in crate::pipeline::node) fn put_off(node: &Node, key: NoticeKey, at: Timestamp) -> Option<Value> {
    let notice = node.record.notice(key).filter(|notice| notice.end() < Some(at))?;
    Some(rewritten(node, key, &notice.with_end(at)))
}

fn rewritten(node: &Node, key: NoticeKey, notice: &NoticeRecord) -> Value {
    guarded(node, &json!({ name_of(key): text(notice) }), &json!({}), json!({}))
}

#[cfg(test)]
mod tests {
    use super::super::MarkSettings;
    use super::*;
    use crate::fact::NoticeKind;

    fn at(second: u8) -> Timestamp {
        format!("2026-11-21T12:00:{second:02}Z").parse().unwrap()
    }

    fn apply(node: &mut Node, patch: impl Fn(&Node) -> Option<Value>) {
        for (key, value) in patch(node).unwrap()["metadata"]["annotations"].as_object().unwrap() {
            node.record.insert(key.clone(), value.as_str().unwrap());
        }
    }

    #[test]
    fn evictions_that_have_begun_go_on_when_the_mark_is_written_again() {
        let mut node = Node::for_tests("node-1");
        let settings = MarkSettings::default();
        let mark = |start| {
            Mark::new(NoticeKey::of("a"), "rebalance", at(9), "m")
                .with_deadline(Some(at(50)))
                .with_start(Some(at(start)), false)
        };
        apply(&mut node, |node| mark(30).in_wave().patch(node, &settings));
        apply(&mut node, |node| mark(31).in_wave().patch(node, &settings));
        assert_eq!(place_of(&node, NoticeKey::of("a")), Some(Place::Waits), "AWS has revised the notice");
        apply(&mut node, |node| Place::Evicts(at(10)).patch(node, NoticeKey::of("a"), None));
        apply(&mut node, |node| mark(32).in_wave().patch(node, &settings));
        assert_eq!(place_of(&node, NoticeKey::of("a")), Some(Place::Evicts(at(10))));
        node.boot = "another".into();
        apply(&mut node, |node| mark(32).in_wave().patch(node, &settings));
        assert_eq!(place_of(&node, NoticeKey::of("a")), Some(Place::Waits), "the node has restarted");
    }

    #[test]
    fn a_drain_that_waits_for_a_place_again_keeps_its_deadline_and_says_how_long_it_may_take() {
        let mut node = Node::for_tests("node-1");
        let mark = Mark::new(NoticeKey::of("a"), "rebalance", at(9), "m").with_deadline(Some(at(50)));
        apply(&mut node, |node| mark.patch(node, &MarkSettings::default()));
        let later = at(50) + Duration::from_mins(5);
        apply(&mut node, |node| Place::Waits.patch(node, NoticeKey::of("a"), Some(later)));
        assert_eq!(
            (end_of(&node, NoticeKey::of("a")), deadline_of(&node, NoticeKey::of("a"), None)),
            (Some(later), Some(at(50)))
        );
    }

    #[test]
    fn a_cordon_for_a_hook_is_no_drain_after_its_completion() {
        let mut node = Node::for_tests("node-1");
        let settings = MarkSettings::default();
        let mark = |name: &str| Mark::new(NoticeKey::of(name), NoticeKind::AsgTerminate.as_str(), at(9), "m");
        apply(&mut node, |node| mark("cordon").patch(node, &settings));
        apply(&mut node, |node| mark("drain").with_deadline(Some(at(50))).patch(node, &settings));
        node.boot = "another".into();
        for name in ["cordon", "drain"] {
            apply(&mut node, |node| complete(node, NoticeKey::of(name), at(20)));
            assert_eq!(node.record.notice(NoticeKey::of(name)).unwrap().boot, "another", "{name}");
        }
        assert_eq!(node.record.notice(NoticeKey::of("cordon")).unwrap().deadline, None);
        assert_eq!(node.record.notice(NoticeKey::of("drain")).unwrap().deadline, Some(at(20)));
    }

    #[test]
    fn a_mark_says_how_far_its_drain_is_in_the_wave() {
        let mut node = Node::for_tests("node-1");
        let mark = |name: &str, second| {
            Mark::new(NoticeKey::of(name), "rebalance", at(second), "m").with_deadline(Some(at(50)))
        };
        assert_eq!(wave_state(&node, at(0)), None);
        assert_eq!(Place::Waits.patch(&node, NoticeKey::of("a"), None), None, "no mark");
        let settings = MarkSettings::default();
        apply(&mut node, |node| mark("a", 9).in_wave().patch(node, &settings));
        assert!(node.record.texts()[&name_of(NoticeKey::of("a"))].contains(r#""wave":"waits""#), "{:?}", node.record);
        apply(&mut node, |node| mark("b", 3).in_wave().patch(node, &settings));
        let until = at(50) + TERMINATION_GRACE;
        assert_eq!(wave_state(&node, at(59)), Some((WaveState::Waits(Some(at(3))), until)), "the first counts");
        assert_eq!(wave_state(&node, until), None, "nobody has noted the end");
        assert_eq!(
            (place_of(&node, NoticeKey::of("a")), place_of(&node, NoticeKey::of("c"))),
            (Some(Place::Waits), None)
        );

        let moved = at(50) + Duration::from_mins(5);
        let evicts = Place::Evicts(at(10));
        apply(&mut node, |node| evicts.patch(node, NoticeKey::of("a"), Some(moved)));
        assert_eq!(
            (evicts.patch(&node, NoticeKey::of("a"), Some(moved)), place_of(&node, NoticeKey::of("a"))),
            (None, Some(evicts))
        );
        let state = Some((WaveState::Evicts(Some(at(10))), moved + TERMINATION_GRACE));
        assert_eq!(wave_state(&node, until), state, "with its deadline");
        apply(&mut node, |node| mark("spot", 20).patch(node, &settings));
        assert_eq!(wave_state(&node, at(20)), Some((WaveState::Evicts(None), until)), "it waits for nobody");
        for name in ["a", "spot"] {
            apply(&mut node, |node| Place::Over.patch(node, NoticeKey::of(name), None));
        }
        assert_eq!(wave_state(&node, at(20)).unwrap().0, WaveState::Waits(Some(at(3))));
        node.ignored = true;
        assert_eq!(wave_state(&node, at(20)), None, "its owner has it");
        node.ignored = false;
        node.record.edit(|texts| texts.retain(|name, _| *name == name_of(NoticeKey::of("b"))));
        for (days, holds) in [(2, true), (3, false)] {
            let ends = at(0) + Duration::from_hours(days * 24);
            apply(&mut node, |node| end(node, NoticeKey::of("b"), ends));
            assert_eq!(wave_state(&node, at(20)).is_some(), holds, "{days}");
        }
    }
}
