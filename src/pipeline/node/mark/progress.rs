//! How a drain goes on, as its notice's mark says: a deadline that moves, and a place in a wave.

use super::{
    Mark, Node, NoticeAnnotation, ReturnSign, UNKNOWN_BOOT, guarded, mark_and_plan, mark_of, name_of, notices, text,
    whole_seconds,
};
use crate::fact::NoticeKind;
use crate::pipeline::event::NoticeKey;
use crate::pipeline::node::release::TERMINATION_GRACE;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// Maximum time from now to the end of a drain: the longest life of a lifecycle hook, and the longest `--drain-timeout`, with a margin
/// for clocks. A mark that names a later one is none of ours: whoever may write a Node may name any time.
const MAX_AHEAD: Duration = Duration::from_hours(49);

/// How far a drain is in the wave of its Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Evictions wait.
    Waits,
    /// Evictions have had a place since this time.
    Evicts(Timestamp),
    /// The drain has ended, whether or not the mark stays.
    Over,
}

impl Place {
    pub(super) fn read(written: &str) -> Option<Self> {
        match written {
            "waits" => Some(Self::Waits),
            "over" => Some(Self::Over),
            since => since.parse().ok().map(Self::Evicts),
        }
    }

    /// Returns the patch that writes the place in the mark of the notice with this identity; `None` if the mark says it already, or is
    /// not on the Node. `ends` is the time to which the drain's end moves with that: its deadline, or the latest end of one that waits.
    #[must_use]
    pub fn patch(self, node: &Node, key: NoticeKey, ends: Option<Timestamp>) -> Option<Value> {
        let known = mark_of(node, key).filter(|mark| mark.deadline.is_some())?;
        let wave = self.to_string();
        if known.wave == wave {
            return None;
        }
        let mark = match (self, ends) {
            (Self::Evicts(_), Some(ends)) => known.with_deadline(ends),
            (Self::Waits, Some(ends)) => known.with_end(ends),
            _ => known,
        };
        Some(rewritten(node, key, &NoticeAnnotation { wave, ..mark }))
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

/// Returns what a mark becomes that is written now, maybe again: evictions that have begun since the Node's last restart go on.
pub(super) fn going_on(mark: NoticeAnnotation, known: Option<&NoticeAnnotation>, node: &Node) -> NoticeAnnotation {
    let evicts = |known: &&NoticeAnnotation| {
        known.boot == *node.boot && matches!(Place::read(&known.wave), Some(Place::Evicts(_)))
    };
    let wave = known.filter(evicts).map(|known| known.wave.clone());
    let first = if mark.boot.is_empty() { &*node.boot } else { &*mark.boot };
    let boot = known.map_or(first, |known| known.boot_on(node)).to_owned();
    NoticeAnnotation { wave: wave.unwrap_or(mark.wave), boot, ..mark }
}

/// Returns the place that the mark of the notice with this identity says.
#[must_use]
pub fn place_of(node: &Node, key: NoticeKey) -> Option<Place> {
    Place::read(&mark_of(node, key)?.wave)
}

/// Returns the begin of the change by the mark of the notice with this identity, if a copy that is newer than `at` has left it: another
/// replica received it.
#[must_use]
pub fn newer_start(node: &Node, key: NoticeKey, at: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let mark = mark_of(node, key)?;
    let since = mark.since.filter(|since| *since > at)?;
    Some((since, mark.start?))
}

/// Returns the begin of the change by the mark, or the plan, of the notice with this identity.
#[must_use]
pub fn start_of(node: &Node, key: NoticeKey) -> Option<Timestamp> {
    mark_and_plan(node, key).find_map(|told| told.start)
}

/// Returns AWS's time of the newest copy that has left the mark or the plan of the notice with this identity, and names another begin
/// than `start`: a copy that names the same one says nothing new, and its work may have to be taken over.
#[must_use]
pub fn newest_told(node: &Node, key: NoticeKey, start: Option<Timestamp>) -> Option<Timestamp> {
    let told = mark_and_plan(node, key).filter(|told| told.start != start.map(whole_seconds));
    told.filter_map(|told| told.since).max()
}

/// Returns the end of the drain for the notice with this identity, by its mark on the Node.
#[must_use]
pub fn end_of(node: &Node, key: NoticeKey) -> Option<Timestamp> {
    let mark = mark_of(node, key)?;
    mark.ends.max(mark.deadline)
}

/// Returns whether the notice with this identity has left its mark since the Node's last restart.
#[must_use]
pub fn marked_since_boot(node: &Node, key: NoticeKey) -> bool {
    mark_of(node, key).is_some_and(|mark| !mark.boot.is_empty() && *mark.boot == *node.boot)
}

/// As [`marked_since_boot`], or whether a restart says nothing about the drain: a hook keeps an instance that would return.
#[must_use]
pub fn mark_stands(node: &Node, key: NoticeKey) -> bool {
    mark_of(node, key).is_some_and(|mark| !mark.boot.is_empty() && mark.boot == mark.boot_on(node))
}

/// Returns whether the Node has restarted since the mark of the notice with this identity, after which its instance can return.
#[must_use]
pub fn may_be_back(node: &Node, key: NoticeKey) -> bool {
    mark_of(node, key).is_some_and(|mark| mark.return_sign.is_some() && mark.is_before_boot(node))
}

/// Returns whether the mark of the notice with this identity says that the Node may have come back before it.
#[must_use]
pub fn is_of_unknown_boot(node: &Node, key: NoticeKey) -> bool {
    mark_of(node, key).is_some_and(|mark| mark.boot == UNKNOWN_BOOT)
}

/// Returns the deadline of the drain for the notice with this identity, by its mark on the Node; `None` if its change begins at
/// another time than `start`.
#[must_use]
pub fn deadline_of(node: &Node, key: NoticeKey, start: Option<Timestamp>) -> Option<Timestamp> {
    mark_of(node, key).filter(|mark| mark.start == start.map(whole_seconds))?.deadline
}

/// Returns the deadlines of drains for which lifecycle hooks wait, by their marks on the Node, with the marks' names.
pub fn hook_ends(node: &Node) -> impl Iterator<Item = (&String, Timestamp)> {
    notices(node).filter(|(_, mark)| mark.has_hook()).filter_map(|(name, mark)| Some((name, mark.deadline?)))
}

impl Mark {
    /// Says that evictions wait for a place in the Node's wave, or for the end of a zonal shift.
    #[must_use]
    pub fn in_wave(mut self) -> Self {
        self.notice.wave = Place::Waits.to_string();
        self
    }

    /// Says that the Node may have come back already, so that nobody knows whether its present boot is the return.
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

impl NoticeAnnotation {
    /// The mark with this deadline, which is the end of the drain.
    fn with_deadline(self, at: Timestamp) -> Self {
        Self { deadline: Some(whole_seconds(at)), ends: None, ..self.expiring_from(at) }
    }

    /// The mark of a drain that goes on until then, whatever its deadline.
    fn with_end(self, at: Timestamp) -> Self {
        Self { ends: Some(whole_seconds(at)), ..self.expiring_from(at) }
    }

    /// The mark whose expiry counts from this end of the drain, as it did from the one before.
    fn expiring_from(self, end: Timestamp) -> Self {
        let by = self.ends.max(self.deadline).map(|before| whole_seconds(end).duration_since(before));
        let moved = |at: Timestamp| by.and_then(|by| at.checked_add(by).ok()).unwrap_or(at);
        Self { expires: self.expires.map(moved), ..self }
    }

    /// Whether a lifecycle hook waits for the drain.
    pub(in crate::pipeline::node) fn has_hook(&self) -> bool {
        self.kind == NoticeKind::AsgTerminate.as_str() && !self.hookless && !self.completed
    }

    /// Whether the Node has restarted since the mark.
    pub(in crate::pipeline::node) fn is_before_boot(&self, node: &Node) -> bool {
        !self.boot.is_empty() && !node.boot.is_empty() && *self.boot != *node.boot
    }

    /// The boot ID of the mark when it is written again. One of a hook whose instance returns keeps its own: only AWS knows whether a
    /// restart was the return.
    pub(super) fn boot_on<'a>(&'a self, node: &'a Node) -> &'a str {
        let returns = self.kind == NoticeKind::AsgTerminate.as_str() && self.return_sign == Some(ReturnSign::Boot);
        if returns && !self.boot.is_empty() { &self.boot } else { &node.boot }
    }

    /// Whether the notice says that the node is broken, and AWS announces nothing.
    pub(in crate::pipeline::node) fn is_of_repair(&self) -> bool {
        NoticeKind::ALL.into_iter().any(|kind| kind.is_repair() && kind.as_str() == self.kind)
    }
}

/// Returns whether the Node is drained for another reason than that it is broken.
#[must_use]
pub fn is_going(node: &Node) -> bool {
    notices(node).any(|(_, mark)| mark.deadline.is_some() && !mark.is_of_repair())
}

/// Returns whether work on the Node has begun because it is broken: its instance may go for that, too, in the hands of its group.
#[must_use]
pub fn is_repaired(node: &Node) -> bool {
    notices(node).any(|(_, mark)| mark.is_of_repair())
}

/// How far a Node is in its wave, by the marks of all its drains. Those that evict without a place, such as for spot warnings, come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaveState {
    /// Evictions have begun; since when, if the Node has a place.
    Evicts(Option<Timestamp>),
    /// Evictions wait; since AWS's time of the first notice.
    Waits(Option<Timestamp>),
}

/// Returns how far the Node is in its wave, and until when its marks say so: what nobody notes as over ends a while after its deadline.
/// `None` if the Node is not drained, or left to its owner, or if its marks name a later end than a drain can have.
#[must_use]
pub fn wave_state(node: &Node, now: Timestamp) -> Option<(WaveState, Timestamp)> {
    let latest = now.checked_add(MAX_AHEAD).unwrap_or(Timestamp::MAX);
    let state = |mark: NoticeAnnotation| {
        let until = mark.deadline.max(mark.deadline.and(mark.ends))?.checked_add(TERMINATION_GRACE).ok()?;
        let state = match Place::read(&mark.wave) {
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
    let all = notices(node).filter_map(|(_, mark)| state(mark));
    all.min_by_key(|(state, _)| order(state)).filter(|_| !node.ignored)
}

/// Returns a function that says of each Node that it is shown, in order, whether one so far has carried the mark of the notice with this
/// key.
pub fn has_had_mark(key: NoticeKey) -> impl FnMut(&Node) -> bool {
    let mut has_had = false;
    move |node| {
        has_had |= mark_of(node, key).is_some();
        has_had
    }
}

/// Returns the patch that moves the deadline in the mark of the notice with this identity to `at`; `None` if it names that time.
pub(in crate::pipeline::node) fn end(node: &Node, key: NoticeKey, at: Timestamp) -> Option<Value> {
    let is_other = |deadline: Timestamp| deadline != whole_seconds(at);
    let mark = mark_of(node, key).filter(|mark| mark.deadline.is_some_and(is_other))?;
    Some(rewritten(node, key, &mark.with_deadline(at)))
}

/// As [`end`], of the mark of a hook that is completed now: a restart from now on is the return, and none before. A cordon without a
/// drain gets no deadline, or its Node would count as drained.
pub(in crate::pipeline::node) fn complete(node: &Node, key: NoticeKey, at: Timestamp) -> Option<Value> {
    let known = mark_of(node, key)?;
    let mark = if known.deadline.is_some() { known.with_deadline(at) } else { known };
    Some(rewritten(node, key, &NoticeAnnotation { boot: node.boot.to_string(), completed: true, ..mark }))
}

/// Returns the patch that says that a restart to this boot was no return, because the hook of the notice with this identity has waited
/// after it; `None` if the mark says it.
pub(in crate::pipeline::node) fn still_waits(node: &Node, key: NoticeKey, boot: &str) -> Option<Value> {
    let waits = |mark: &NoticeAnnotation| mark.has_hook() && mark.is_before_boot(node) && *node.boot == *boot;
    let mark = mark_of(node, key).filter(waits)?;
    Some(rewritten(node, key, &NoticeAnnotation { boot: boot.to_owned(), ..mark }))
}

/// Returns the patch that puts the end of the drain in the mark of the notice with this identity off to `at`; `None` if it names no earlier
/// time.
pub(in crate::pipeline::node) fn put_off(node: &Node, key: NoticeKey, at: Timestamp) -> Option<Value> {
    let mark = mark_of(node, key).filter(|mark| mark.ends.max(mark.deadline) < Some(at))?;
    Some(rewritten(node, key, &mark.with_end(at)))
}

fn rewritten(node: &Node, key: NoticeKey, mark: &NoticeAnnotation) -> Value {
    guarded(node, &json!({ name_of(key): text(mark) }), &json!({}), json!({}))
}

#[cfg(test)]
mod tests {
    use super::super::MarkSettings;
    use super::*;

    fn at(second: u8) -> Timestamp {
        format!("2026-11-21T12:00:{second:02}Z").parse().unwrap()
    }

    fn apply(node: &mut Node, patch: impl Fn(&Node) -> Option<Value>) {
        for (key, value) in patch(node).unwrap()["metadata"]["annotations"].as_object().unwrap() {
            node.annotations.insert(key.clone(), value.as_str().unwrap().to_owned());
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
            assert_eq!(mark_of(&node, NoticeKey::of(name)).unwrap().boot, "another", "{name}");
        }
        assert_eq!(mark_of(&node, NoticeKey::of("cordon")).unwrap().deadline, None);
        assert_eq!(mark_of(&node, NoticeKey::of("drain")).unwrap().deadline, Some(at(20)));
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
        assert!(node.annotations[&name_of(NoticeKey::of("a"))].contains(r#""wave":"waits""#), "{:?}", node.annotations);
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
        node.annotations.retain(|name, _| *name == name_of(NoticeKey::of("b")));
        for (days, holds) in [(2, true), (3, false)] {
            let ends = at(0) + Duration::from_hours(days * 24);
            apply(&mut node, |node| end(node, NoticeKey::of("b"), ends));
            assert_eq!(wave_state(&node, at(20)).is_some(), holds, "{days}");
        }
    }
}
