//! How far a Node is in its wave, as its records show it to every replica. Pure.

use super::Node;
use super::record::{NoticeRecord, Place, TERMINATION_GRACE};
use jiff::Timestamp;
use std::time::Duration;

/// Maximum time from now to the end of a drain: the longest life of a lifecycle hook, and the longest `--drain-timeout`, with a margin
/// for clocks. A later one is not Ebbtide's: an attacker who can write a Node may name any time.
const MAX_AHEAD: Duration = Duration::from_hours(49);

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

#[cfg(test)]
mod tests {
    use super::super::mark::{Mark, MarkSettings};
    use super::super::record::{NOTICE_PREFIX, name};
    use super::*;
    use crate::pipeline::event::NoticeKey;

    fn at(second: u8) -> Timestamp {
        format!("2026-11-21T12:00:{second:02}Z").parse().unwrap()
    }

    fn mark(node: &mut Node, mark: &Mark) {
        let patch = mark.patch(node, &MarkSettings::default()).unwrap();
        for (key, value) in patch["metadata"]["annotations"].as_object().unwrap() {
            node.record.insert(key.clone(), value.as_str().unwrap());
        }
    }

    #[test]
    fn a_record_says_how_far_its_drain_is_in_the_wave() {
        let mut node = Node::for_tests("node-1");
        let of = |name: &str, second| {
            Mark::new(NoticeKey::of(name), "rebalance", at(second), "m").with_deadline(Some(at(50)))
        };
        let [a, b, spot] = ["a", "b", "spot"].map(NoticeKey::of);
        assert_eq!(wave_state(&node, at(0)), None);
        mark(&mut node, &of("a", 9).in_wave());
        assert!(node.record.texts()[&name(NOTICE_PREFIX, a)].contains(r#""wave":"waits""#), "{:?}", node.record);
        mark(&mut node, &of("b", 3).in_wave());
        let until = at(50) + TERMINATION_GRACE;
        assert_eq!(wave_state(&node, at(59)), Some((WaveState::Waits(Some(at(3))), until)), "the first counts");
        assert_eq!(wave_state(&node, until), None, "nobody has noted the end");
        assert_eq!(
            (node.record.notice(a).unwrap().place, node.record.notice(spot).and_then(|known| known.place)),
            (Some(Place::Waits), None)
        );

        let moved = at(50) + Duration::from_mins(5);
        let evicts = Place::Evicts(at(10));
        node.record.revise(a, |record| record.placed(evicts, Some(moved)));
        let known = node.record.notice(a).unwrap();
        assert_eq!((known.placed(evicts, Some(moved)), known.place), (None, Some(evicts)));
        let state = Some((WaveState::Evicts(Some(at(10))), moved + TERMINATION_GRACE));
        assert_eq!(wave_state(&node, until), state, "with its deadline");
        mark(&mut node, &of("spot", 20));
        assert_eq!(wave_state(&node, at(20)), Some((WaveState::Evicts(None), until)), "it waits for nobody");
        for key in [a, spot] {
            node.record.revise(key, |record| record.placed(Place::Over, None));
        }
        assert_eq!(wave_state(&node, at(20)).unwrap().0, WaveState::Waits(Some(at(3))));
        node.ignored = true;
        assert_eq!(wave_state(&node, at(20)), None, "its owner has it");
        node.ignored = false;
        node.record.edit(|texts| texts.retain(|known, _| *known == name(NOTICE_PREFIX, b)));
        for (days, holds) in [(2, true), (3, false)] {
            node.record.revise(b, |record| record.moved(at(0) + Duration::from_hours(days * 24)));
            assert_eq!(wave_state(&node, at(20)).is_some(), holds, "{days}");
        }
    }
}
