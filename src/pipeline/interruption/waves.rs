//! Waves limit the number of nodes with one value of a label that are drained at the same time, counted over all replicas by the marks on
//! the Nodes. A mark records that evictions wait, that they have a place, or that the drain is over.
//!
//! Nodes get places in the order of their notices; a node ahead that doesn't take a free place is passed over. A place is taken first and
//! checked afterwards: if two replicas take the last one at the same time, both know which must give it back.

use super::policy::Wave;
use crate::pipeline::node::wave::{WaveState, wave_state};
use crate::pipeline::node::{Index, Node};
use crate::runtime::clock::Clock;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::watch;

/// The nodes of some waves, by the index.
#[derive(Debug)]
pub struct Waves {
    index: Index,
    waves: Vec<Wave>,
    /// The pools whose Nodes count together.
    pools: Vec<Option<Arc<str>>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Names of the Nodes whose places this process is writing now.
    claims: HashSet<Arc<str>>,
    /// The nodes of each label's values; read again after a change.
    lines: Vec<HashMap<Box<str>, Line>>,
    /// The time at which an entry expires without a change.
    until: Option<Timestamp>,
    changes: watch::Receiver<()>,
}

/// The nodes with one value of a label.
#[derive(Debug, Default)]
struct Line {
    /// The number of all nodes.
    nodes: usize,
    /// Nodes whose evictions have started: the time of their place, if they have one, and their names.
    evicting: Vec<(Option<Timestamp>, Arc<str>)>,
    /// Nodes that wait, in order: AWS's time of the notice, and the name.
    waiting: Vec<(Option<Timestamp>, Arc<str>)>,
}

/// Whether a node has its turn.
#[derive(Debug)]
pub(super) enum Turn<'a> {
    /// It takes a place, which counts while this lives.
    Now(PlaceClaim<'a>),
    /// It waits.
    Later {
        /// Why.
        reason: String,
        /// Whether there is a free place, which is for a node ahead.
        has_room: bool,
        /// The time of the next check, if nothing changes.
        look_again: Option<Timestamp>,
    },
}

impl Waves {
    /// These waves of the Nodes in this index that are in one of these pools; `None` are those in no pool.
    #[must_use]
    pub fn new(index: &Index, waves: Vec<Wave>, pools: Vec<Option<Arc<str>>>) -> Self {
        let mut changes = index.places();
        changes.mark_changed();
        let state = State { claims: HashSet::new(), lines: Vec::new(), until: None, changes };
        Self { index: index.clone(), waves, pools, state: Mutex::new(state) }
    }

    /// Returns whether the Node has its turn in each of its waves. With `passing`, nodes ahead that have taken no place don't count.
    pub(super) fn turn(&self, node: &Node, clock: Clock, passing: bool) -> Turn<'_> {
        let mut state = self.read(clock.now());
        let (mut full, mut behind) = (None, None);
        for (wave, lines) in self.waves.iter().zip(&state.lines) {
            let Some((value, line)) = node.labels.get(&*wave.label).and_then(|value| lines.get_key_value(&**value))
            else {
                continue;
            };
            // The Node has a place for another notice.
            if line.evicting.iter().any(|(_, name)| *name == node.name) {
                continue;
            }
            let at_most = wave.at_most.of(line.nodes);
            // The index doesn't show a place yet that is being written.
            let is_claimed = |name: &Arc<str>| *name != node.name && state.claims.contains(name);
            let drained = line.evicting.len() + line.waiting.iter().filter(|(_, name)| is_claimed(name)).count();
            let free = at_most.saturating_sub(drained);
            let before = line.waiting.iter().take_while(|(_, name)| *name != node.name);
            let before = before.filter(|(_, name)| !is_claimed(name)).count();
            let reason = || {
                let label = &wave.label;
                let first = line.evicting.first().map(|(_, name)| format!(", such as {name}")).unwrap_or_default();
                let place = before + 1;
                format!(
                    "number {place} in line: {drained} of at most {at_most} nodes with {label}={value} are drained{first}"
                )
            };
            if free == 0 {
                full.get_or_insert_with(reason);
            } else if before >= free && !passing {
                behind.get_or_insert_with(reason);
            }
        }
        let has_room = full.is_none();
        if let Some(reason) = full.or(behind) {
            return Turn::Later { reason, has_room, look_again: state.until };
        }
        state.claims.insert(Arc::clone(&node.name));
        Turn::Now(PlaceClaim { waves: self, node: Arc::clone(&node.name) })
    }

    /// Whether the Node may keep the place that it took at `at`: fewer nodes took theirs before than there are places.
    pub(super) fn keeps(&self, node: &Node, at: Timestamp, clock: Clock) -> bool {
        let state = self.read(clock.now());
        let own = (Some(at), Arc::clone(&node.name));
        self.waves.iter().zip(&state.lines).all(|(wave, lines)| {
            let line = node.labels.get(&*wave.label).and_then(|value| lines.get(&**value));
            line.is_none_or(|line| {
                let before = line.evicting.iter().filter(|other| other.1 != own.1 && **other < own).count();
                before < wave.at_most.of(line.nodes)
            })
        })
    }

    fn read(&self, now: Timestamp) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        // The sender lives in the index.
        let has_changed = state.changes.has_changed().unwrap_or(true);
        if has_changed || state.until.is_some_and(|until| until <= now) {
            state.changes.mark_unchanged();
            let nodes = self.index.all_that(|node| !node.labels.is_empty() && self.pools.contains(&node.node_pool));
            (state.lines, state.until) = lines(&self.waves, &nodes, now);
        }
        state
    }
}

/// Returns the nodes of each label's values, and the time at which the first entry expires.
fn lines(waves: &[Wave], nodes: &[Arc<Node>], now: Timestamp) -> (Vec<HashMap<Box<str>, Line>>, Option<Timestamp>) {
    let mut lines: Vec<HashMap<Box<str>, Line>> = waves.iter().map(|_| HashMap::new()).collect();
    let mut first: Option<Timestamp> = None;
    for node in nodes {
        let state = wave_state(node, now);
        if let Some((_, until)) = state {
            first = Some(first.map_or(until, |first| first.min(until)));
        }
        for (wave, lines) in waves.iter().zip(&mut lines) {
            let Some(value) = node.labels.get(&*wave.label) else { continue };
            let line = lines.entry(value.as_str().into()).or_default();
            line.nodes += 1;
            match state {
                Some((WaveState::Evicts(since), _)) => line.evicting.push((since, Arc::clone(&node.name))),
                Some((WaveState::Waits(since), _)) => line.waiting.push((since, Arc::clone(&node.name))),
                None => {}
            }
        }
    }
    lines.iter_mut().flat_map(HashMap::values_mut).for_each(|line| line.waiting.sort_unstable());
    (lines, first)
}

/// A Node whose place is being written. Its place counts while this lives.
#[derive(Debug)]
pub(super) struct PlaceClaim<'a> {
    waves: &'a Waves,
    node: Arc<str>,
}

impl Drop for PlaceClaim<'_> {
    fn drop(&mut self) {
        let mut state = self.waves.state.lock();
        state.claims.remove(&self.node);
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::AtMost;
    use super::*;

    const NOW: &str = "2026-11-21T12:00:00Z";

    /// A Node in a zone, whose mark says this of its wave.
    fn node(name: &str, zone: &str, wave: &str) -> Node {
        let mut node = Node::for_tests(name);
        node.labels.insert("zone".to_owned(), zone.to_owned());
        if wave != "-" {
            let mark = format!(
                r#"{{"v":1,"kind":"rebalance","since":"{NOW}","deadline":"2026-11-21T13:00:00Z","message":"m","wave":"{wave}"}}"#
            );
            node.record.insert("ebbtide/notice.0123456789abcdef", mark);
        }
        node
    }

    fn waves(index: &Index, at_most: AtMost) -> Waves {
        Waves::new(index, vec![Wave { label: "zone".into(), at_most }], vec![None])
    }

    fn clock() -> Clock {
        Clock::showing(NOW.parse().unwrap())
    }

    /// Whether each of the Nodes has its turn, one asked after the other, and whether there is room for a node ahead.
    fn turns(nodes: &[Node], at_most: AtMost, passing: bool) -> Vec<Result<(), bool>> {
        let index = Index::for_tests(&["zone"], nodes.to_vec());
        let known = waves(&index, at_most);
        let turn = |node: &Node| match known.turn(node, clock(), passing) {
            Turn::Now(_) => Ok(()),
            Turn::Later { has_room, .. } => Err(has_room),
        };
        nodes.iter().map(turn).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_on_in_order_while_there_are_places() {
        let waiting = || ["a", "b", "c"].map(|name| node(name, "1", "waits")).to_vec();
        let one = AtMost::Number(1);
        assert_eq!(turns(&waiting(), one, false), [Ok(()), Err(true), Err(true)]);
        assert_eq!(turns(&waiting(), AtMost::Percent(67), false), [Ok(()), Ok(()), Err(true)], "of three nodes");
        assert_eq!(turns(&waiting(), one, true), [Ok(()); 3], "each passes over the others");
        for (wave, counts) in [("", true), (NOW, true), ("over", false), ("-", false)] {
            let with = [waiting(), vec![node("d", "1", wave)]].concat();
            let first = turns(&with, one, false)[0];
            assert_eq!(first, if counts { Err(false) } else { Ok(()) }, "{wave:?}");
            assert_eq!(turns(&with, one, true)[1].is_err(), counts, "nobody passes over a drain: {wave:?}");
        }
        let elsewhere = [waiting(), vec![node("d", "2", NOW)]].concat();
        assert_eq!(turns(&elsewhere, one, false)[0], Ok(()), "in another zone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_being_written_counts() {
        let nodes = ["a", "b"].map(|name| node(name, "1", "waits"));
        let known = waves(&Index::for_tests(&["zone"], nodes.clone()), AtMost::Number(1));
        let turn = |n: usize| known.turn(&nodes[n], clock(), true);
        let Turn::Now(claims) = turn(0) else { panic!("the first has its turn") };
        assert!(matches!(turn(1), Turn::Later { has_room: false, .. }));
        drop(claims);
        assert!(matches!(turn(1), Turn::Now(_)));
    }

    /// Replicas that have taken places without having seen each other give back as many as are too many, whatever their clocks say.
    #[tokio::test(start_paused = true)]
    async fn of_places_taken_together_as_many_are_kept_as_there_are() {
        for at_most in 1..5 {
            let taken = ["12:00:03", "11:59:58", "12:00:03", "12:00:00"].map(|at| format!("2026-11-21T{at}Z"));
            let nodes: Vec<_> = ["a", "b", "c", "d"].iter().zip(&taken).map(|(name, at)| node(name, "1", at)).collect();
            let known = waves(&Index::for_tests(&["zone"], nodes.clone()), AtMost::Number(at_most));
            let keeps = |(node, at): (&Node, &String)| known.keeps(node, at.parse().unwrap(), clock());
            let kept: Vec<_> = nodes.iter().zip(&taken).filter(|it| keeps(*it)).map(|(node, _)| &*node.name).collect();
            let all = ["b", "d", "a", "c"];
            assert!(
                kept.len() == at_most.min(4) && all[..kept.len()].iter().all(|name| kept.contains(name)),
                "{kept:?}"
            );
        }
    }
}
