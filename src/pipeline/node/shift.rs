//! Zonal shifts: traffic is shifted away from an Availability Zone. One replica receives the message, and all must know it, even after a
//! restart. So the shift is recorded on a few Nodes, which every replica watches anyway. Pure.

use super::Node;
use super::patch::guarded;
use super::record::{name, text};
use crate::pipeline::event::{NoticeKey, ZonalShift};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Name of the label with the id of a Node's Availability Zone, which AWS's cloud provider sets. Names of zones differ between accounts.
pub const ZONE_LABEL: &str = "topology.k8s.aws/zone-id";

/// Prefix of the annotation: `ebbtide/shift.<id>`.
const SHIFT_PREFIX: &str = "ebbtide/shift.";

/// Maximum time for which a shift counts after its last event. No event announces that a manual shift has expired, and events are best
/// effort.
const MAX_SHIFT: Duration = Duration::from_hours(6);

/// Time for which the record of an ended shift is kept, so that a late copy of an older event starts nothing.
const KEPT_FOR: Duration = Duration::from_hours(24);

/// Maximum difference between AWS's clock and ours.
const CLOCKS_APART: Duration = Duration::from_mins(5);

/// Maximum number of Nodes that carry the record: in different zones, so that some of them stay.
const CARRIERS: usize = 3;

/// A shift, as Nodes record it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Shift {
    /// The time until which it counts.
    pub until: Timestamp,
    /// Id of the zone.
    pub away_from: String,
    /// The resource whose traffic is shifted.
    pub resource: String,
    /// AWS's time of the newest event about it.
    at: Timestamp,
}

impl Shift {
    /// Returns the shift of this resource that the event announces.
    #[must_use]
    pub fn of(event: &ZonalShift, resource: &str) -> Self {
        let until = if event.begins { event.at.checked_add(MAX_SHIFT).unwrap_or(event.at) } else { event.at };
        Self { until, away_from: event.away_from.clone(), resource: resource.to_owned(), at: event.at }
    }

    /// Returns the shifts that the Node records. An annotation that a user has edited beyond parsing is ignored.
    fn all(node: &Node) -> impl Iterator<Item = (&String, Self)> {
        let noted = node.record.with_prefix(SHIFT_PREFIX);
        noted.filter_map(|(name, value)| Some((name, serde_json::from_str(value).ok()?)))
    }

    /// Returns the order of events by age. At equal times the end is newer, because EventBridge's times are whole seconds.
    fn order(&self) -> (Timestamp, bool) {
        (self.at, self.until <= self.at)
    }

    /// Whether the Node records this shift.
    #[must_use]
    pub fn is_noted(&self, node: &Node) -> bool {
        Self::all(node).any(|(_, known)| known == *self)
    }

    fn key(&self) -> String {
        name(SHIFT_PREFIX, NoticeKey::of(&format!("{}/{}", self.away_from, self.resource)))
    }

    /// Whether an event can have announced this by `now`: an attacker who can write Nodes can record any time.
    fn is_possible(&self, now: Timestamp) -> bool {
        let latest = now.checked_add(CLOCKS_APART).unwrap_or(now);
        self.at <= latest && self.until <= self.at.checked_add(MAX_SHIFT).unwrap_or(self.at)
    }

    /// Returns the patch that records the shift; `None` if the Node has that of a newer event, or no room.
    #[must_use]
    pub fn patch(&self, node: &Node, now: Timestamp) -> Option<Value> {
        let key = self.key();
        let known =
            Self::all(node).find(|(name, known)| **name == key && known.is_possible(now)).map(|(_, known)| known);
        let has_room = node.record.has(&key) || !node.record.is_full(SHIFT_PREFIX);
        if known.is_some_and(|known| known.order() >= self.order()) || !has_room {
            return None;
        }
        let is_old = |known: &Self| known.until.checked_add(KEPT_FOR).is_ok_and(|until| until < self.at);
        let old = Self::all(node).filter(|(_, known)| is_old(known)).map(|(name, _)| (name.clone(), Value::Null));
        let mut annotations: Map<String, Value> = old.collect();
        annotations.insert(key, json!(text(self)));
        Some(guarded(node, &annotations.into(), &json!({}), json!({})))
    }

    /// Returns the Nodes that are to record it: those that do, and the first of each zone by name.
    #[must_use]
    pub fn carriers(&self, nodes: &[Arc<Node>]) -> Vec<Arc<Node>> {
        let key = self.key();
        let mut first: BTreeMap<&str, &Arc<Node>> = BTreeMap::new();
        for node in nodes {
            let known = first.entry(zone_of(node).unwrap_or_default()).or_insert(node);
            if node.name < known.name {
                *known = node;
            }
        }
        let first: Vec<_> = first.into_values().take(CARRIERS).collect();
        let carries = |node: &&Arc<Node>| node.record.has(&key) || first.iter().any(|it| it.uid == node.uid);
        nodes.iter().filter(carries).map(Arc::clone).collect()
    }
}

/// Returns the shifts that count at `now`, as these Nodes record them. A resource has one at a time: the one that began last, because no
/// event announces that a manual one has expired.
#[must_use]
pub fn shifts(nodes: &[Arc<Node>], now: Timestamp) -> Vec<Shift> {
    let mut newest: BTreeMap<&String, Shift> = BTreeMap::new();
    let possible = nodes.iter().flat_map(|node| Shift::all(node)).filter(|(_, shift)| shift.is_possible(now));
    for (name, shift) in possible {
        let known = newest.entry(name).or_insert_with(|| shift.clone());
        if known.order() < shift.order() {
            *known = shift;
        }
    }
    let counting = newest.into_values().filter(|shift| shift.until > now);
    let mut of: BTreeMap<String, Shift> = BTreeMap::new();
    for shift in counting {
        let newest = of.entry(shift.resource.clone()).or_insert_with(|| shift.clone());
        if newest.at < shift.at {
            *newest = shift;
        }
    }
    of.into_values().collect()
}

/// Whether the Node records a shift.
#[must_use]
pub fn notes_shift(node: &Node) -> bool {
    node.record.with_prefix(SHIFT_PREFIX).next().is_some()
}

/// Returns the shift that lasts longest of those for which a drain of the Node waits: all are away from other zones.
#[must_use]
pub fn holding_back<'a>(node: &Node, shifts: &'a [Shift]) -> Option<&'a Shift> {
    let zone = zone_of(node)?;
    let is_away = shifts.iter().any(|shift| shift.away_from == zone);
    shifts.iter().max().filter(|_| !is_away)
}

fn zone_of(node: &Node) -> Option<&str> {
    node.labels.get(ZONE_LABEL).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGINS: &str = "2026-11-25T01:00:00Z";

    /// A time after all events that are told here: messages come late.
    const LATER: &str = "2026-11-28T00:00:00Z";

    fn told(at: &str, begins: bool) -> Shift {
        away_from("use1-az1", "arn:cluster", at, begins)
    }

    fn away_from(zone: &str, resource: &str, at: &str, begins: bool) -> Shift {
        let at = at.parse().unwrap();
        Shift::of(&ZonalShift { away_from: zone.to_owned(), resources: Vec::new(), at, begins }, resource)
    }

    fn node(name: &str, zone: &str) -> Node {
        let mut node = Node::for_tests(name);
        node.uid = format!("uid-{name}").into();
        node.labels.insert(ZONE_LABEL.to_owned(), zone.to_owned());
        node
    }

    fn apply(node: &mut Node, shift: &Shift) -> bool {
        let Some(patch) = shift.patch(node, LATER.parse().unwrap()) else { return false };
        for (name, value) in patch["metadata"]["annotations"].as_object().unwrap() {
            match value.as_str() {
                Some(value) => node.record.insert(name.clone(), value),
                None => node.record.remove(name),
            }
        }
        true
    }

    fn active(node: &Node, now: &str) -> usize {
        shifts(&[Arc::new(node.clone())], now.parse().unwrap()).len()
    }

    #[test]
    fn a_shift_counts_until_its_end_is_told_or_for_six_hours() {
        let mut node = node("a", "use1-az2");
        assert!(apply(&mut node, &told(BEGINS, true)));
        assert_eq!((active(&node, "2026-11-25T01:00:00Z"), active(&node, "2026-11-25T06:59:59Z")), (1, 1));
        assert_eq!(active(&node, "2026-11-25T07:00:00Z"), 0);
        assert!(apply(&mut node, &told("2026-11-25T02:00:00Z", false)));
        assert_eq!(active(&node, "2026-11-25T02:00:00Z"), 0);
        assert!(!apply(&mut node, &told("2026-11-25T01:30:00Z", true)), "an older event that comes late");
        assert!(apply(&mut node, &told("2026-11-27T01:30:00Z", true)), "the next");
        assert_eq!((node.record.texts().len(), active(&node, "2026-11-27T02:00:00Z")), (1, 1));
    }

    #[test]
    fn of_one_second_the_end_counts_whatever_comes_first() {
        for begins in [[true, false], [false, true]] {
            let mut node = node("a", "use1-az2");
            let applied = begins.map(|begins| apply(&mut node, &told(BEGINS, begins)));
            assert_eq!((applied, active(&node, BEGINS)), ([true, begins[0]], 0));
            let noted = [true, false].map(|begins| told(BEGINS, begins).is_noted(&node));
            assert_eq!(noted, [false, true]);
        }
        // Two Nodes note different events of one second.
        let (mut one, mut other) = (node("a", "use1-az2"), node("b", "use1-az3"));
        apply(&mut one, &told(BEGINS, true));
        apply(&mut other, &told(BEGINS, false));
        for nodes in [[&one, &other], [&other, &one]] {
            let nodes = nodes.map(|node| Arc::new(node.clone()));
            assert_eq!(shifts(&nodes, BEGINS.parse().unwrap()), []);
        }
    }

    #[test]
    fn the_newest_shift_of_a_resource_ends_the_one_before() {
        let mut noting = node("a", "use1-az3");
        let later = "2026-11-25T02:00:00Z";
        let (first, second) = (told(BEGINS, true), away_from("use1-az2", "arn:cluster", later, true));
        let other = away_from("use1-az3", "arn:other", BEGINS, true);
        for shift in [&second, &first, &other] {
            assert!(apply(&mut noting, shift));
        }
        let now = "2026-11-25T03:00:00Z".parse().unwrap();
        assert_eq!(shifts(&[Arc::new(noting.clone())], now), [second.clone(), other.clone()]);
        // Which of them ended without a word is not known.
        apply(&mut noting, &away_from("use1-az2", "arn:cluster", "2026-11-25T02:30:00Z", false));
        assert_eq!(shifts(&[Arc::new(noting)], now), [first, other]);
    }

    #[test]
    fn only_drains_in_other_zones_are_held_back() {
        let shifts = [told(BEGINS, true)];
        assert_eq!(holding_back(&node("a", "use1-az1"), &shifts), None);
        assert_eq!(holding_back(&node("b", "use1-az2"), &shifts), Some(&shifts[0]));
        assert_eq!(holding_back(&Node::for_tests("c"), &shifts), None, "of no known zone");
        assert_eq!(holding_back(&node("b", "use1-az2"), &[]), None);
    }

    #[test]
    fn one_node_of_each_zone_notes_it_and_whoever_did_before() {
        let names = |nodes: &[Arc<Node>]| nodes.iter().map(|node| node.name.to_string()).collect::<Vec<_>>();
        let mut all: Vec<_> = (0..12).map(|n| node(&format!("n{n:02}"), &format!("use1-az{}", 4 - n / 3))).collect();
        let shift = told(BEGINS, true);
        let of = |all: &[Node]| names(&shift.carriers(&all.iter().cloned().map(Arc::new).collect::<Vec<_>>()));
        assert_eq!(of(&all), ["n03", "n06", "n09"]);
        apply(&mut all[11], &shift);
        assert_eq!(of(&all), ["n03", "n06", "n09", "n11"]);
    }

    #[test]
    fn a_note_from_the_future_hides_no_shift() {
        let (mut one, mut other) = (node("a", "use1-az2"), node("b", "use1-az3"));
        let shift = told(BEGINS, true);
        let forged = Shift { at: "9999-01-01T00:00:00Z".parse().unwrap(), ..told(BEGINS, false) };
        one.record.insert(shift.key(), text(&forged));
        assert!(apply(&mut other, &shift));
        let nodes = [&one, &other].map(|node| Arc::new(node.clone()));
        assert_eq!(shifts(&nodes, BEGINS.parse().unwrap()), std::slice::from_ref(&shift));
        assert!(apply(&mut one, &shift), "it gives way to what an event tells");
        assert_eq!(active(&one, BEGINS), 1);
    }

    #[test]
    fn what_nobody_may_have_written_holds_back_nothing() {
        let mut node = node("a", "use1-az2");
        for value in [
            "",
            "{",
            "[]",
            r#"{"until":"2999-01-01T00:00:00Z","away_from":"x","resource":"y","at":"2026-11-25T01:00:00Z"}"#,
            r#"{"until":"2026-11-25T03:00:00Z","away_from":"x","resource":"y","at":"2026-11-25T02:05:01Z"}"#,
        ] {
            node.record.insert("ebbtide/shift.0", value);
            assert_eq!(active(&node, "2026-11-25T02:00:00Z"), 0, "{value}");
        }
    }
}
