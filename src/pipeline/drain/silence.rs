//! How long a drain waits for the pods of a node whose kubelet is silent and doesn't report their end. Pure.

use super::select::Selection;
use super::stuck::after;
use crate::pipeline::node::Node;
use jiff::{SignedDuration, Timestamp};

/// Time after which a Node that is not Ready counts as dead. A kubelet that restarts is silent for less.
const DEAD_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// Maximum wait for a pod that was deleted or evicted after the silence began: its kubelet does not know of that, and runs no grace period.
const MAX_UNHEARD: SignedDuration = SignedDuration::from_mins(3);

/// Maximum wait, from the beginning of the silence, for a pod that was deleted before: its containers may still be stopping.
const MAX_HEARD: SignedDuration = SignedDuration::from_mins(10);

/// The silence of a kubelet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    since: Timestamp,
    /// Whether the kubelet reports nothing: one that reports its Node as not Ready may run grace periods.
    complete: bool,
}

/// The pods of a node that a drain waits for.
#[derive(Debug)]
pub(super) struct PodsLeft {
    /// Whether some of them don't terminate yet.
    evicts: bool,
    /// The times of the deletion and of the end of the grace period of each that terminates.
    terminating: Vec<(Timestamp, Timestamp)>,
}

impl PodsLeft {
    /// Returns the pods that a drain with this selection waits for; `None` without any, or with the pod of this process, which runs.
    pub(super) fn of(selection: &Selection) -> Option<Self> {
        if selection.own_pod.is_some() || selection.is_drained() {
            return None;
        }
        let times = selection.terminating.iter().filter_map(|departure| Some((departure.deleted?, departure.ends?)));
        Some(Self { evicts: !selection.evict.is_empty(), terminating: times.collect() })
    }
}

impl Silence {
    /// Returns the silence of the Node's kubelet; `None` if the Node is Ready.
    pub(super) fn of(node: &Node) -> Option<Self> {
        Some(Self { since: node.ready_since.filter(|_| !node.ready)?, complete: node.silent })
    }

    /// Returns the time from which a drain that began at `begun` no longer waits for these pods; `None` if it waits for as long as one
    /// can't be evicted.
    pub(super) fn over(self, pods: &PodsLeft, begun: Timestamp) -> Option<Timestamp> {
        let Self { since, complete } = self;
        if pods.evicts && !complete {
            return None;
        }
        let unevicted = pods.evicts.then(|| after(since.max(begun), MAX_UNHEARD));
        let terminating = pods.terminating.iter().map(|&(deleted, ends)| match complete {
            true if deleted < since => ends.min(after(since, MAX_HEARD)),
            true => ends.min(after(deleted, MAX_UNHEARD)),
            false => ends,
        });
        terminating.chain(unevicted).chain([after(since, DEAD_AFTER)]).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_what_a_silent_kubelet_does_not_do() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        for (complete, evicts, terminating, over) in [
            // The silence began at 1000, the drain at 900; times of the deletion and of the end.
            (true, false, vec![(1010, 1040)], Some(1060)),
            (true, false, vec![(1010, 1100)], Some(1100)),
            (true, false, vec![(1010, 4610)], Some(1190)),
            (true, false, vec![(990, 1050)], Some(1060)),
            (true, false, vec![(400, 8000)], Some(1600)),
            (true, false, vec![(1010, 4610), (400, 8000)], Some(1600)),
            (true, true, vec![], Some(1180)),
            (true, true, vec![(1100, 4700)], Some(1280)),
            (false, false, vec![(1010, 4610)], Some(4610)),
            (false, true, vec![], None),
        ] {
            let terminating: Vec<_> = terminating.iter().map(|&(deleted, ends)| (at(deleted), at(ends))).collect();
            let silence = Silence { since: at(1000), complete };
            let pods = PodsLeft { evicts, terminating };
            assert_eq!(silence.over(&pods, at(900)), over.map(at), "{complete} {pods:?}");
        }
        let pods = PodsLeft { evicts: true, terminating: Vec::new() };
        assert_eq!(Silence { since: at(1000), complete: true }.over(&pods, at(5000)), Some(at(5180)));
    }
}
