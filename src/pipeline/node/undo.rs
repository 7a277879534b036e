//! Takes marks back when they are over: after `--uncordon-after`, and when a Node is back after a restart.
//!
//! All that it needs to know stands on the Nodes, so it does not matter which replica left a mark, nor whether it still lives. Two
//! replicas that see the same do no harm: the second patch meets a conflict, reads afresh and finds nothing to do.

use super::release::Over;
use super::{Index, Marker, Node};
use crate::clients::gate::{Backoff, CALL_TIMEOUT};
use crate::fact::{Fact, Facts};
use crate::runtime::clock;
use crate::runtime::clock::Clock;
use crate::runtime::random;
use futures_util::StreamExt;
use jiff::Timestamp;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Looked at most so often: a storm's marks change by the hundred.
const PAUSE: Duration = Duration::from_secs(1);

/// A cordon that somebody took away is given up after so long. A drain sets it again at once, if that was not meant.
const MEANT: Duration = Duration::from_secs(30);

/// What failed is tried again after 5 s, and then ever later.
const AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));

/// So many Nodes at a time: nobody waits for it.
const AT_ONCE: usize = 8;

/// Takes marks back.
pub struct Undo {
    /// The Nodes.
    pub index: Index,
    /// Writes to them.
    pub marker: Marker,
    /// Wall time, in which marks say when they are over.
    pub clock: Clock,
    /// Where facts go.
    pub facts: Facts,
}

impl Undo {
    /// Works as long as the service does.
    pub async fn run(self) {
        let mut news = self.index.marks();
        let mut memory = Memory::default();
        loop {
            // What a blind index shows may be long over.
            self.index.live().await;
            news.mark_unchanged();
            let next = self.look(&mut memory).await;
            tokio::select! {
                biased;
                () = clock::until(next) => {}
                // The sender lives in the index.
                _ = news.changed() => {}
            }
            // With a bit of chance, so that another replica's patch is seen before ours is sent.
            sleep(random::jittered(PAUSE, 0.5..1.5)).await;
        }
    }

    /// Takes back what is over, and says when to look again.
    async fn look(&self, memory: &mut Memory) -> Option<Instant> {
        let (now, wall) = (Instant::now(), self.clock.now());
        let mut next: Vec<Instant> = Vec::new();
        let mut over: Vec<(Arc<Node>, Find)> = Vec::new();
        let marked = self.index.marked();
        memory.keep(&marked, now);
        for node in marked {
            let (found, then) = Over::at(&node, wall);
            let free_at = memory.uncordoned.get(&node.uid).map(|since| *since + MEANT);
            let find: Option<Find> = if found.is_some() {
                Some(|current, wall| Over::at(current, wall).0)
            } else if free_at.is_some_and(|at| at <= now) {
                Some(|current, _| Over::uncordoned(current))
            } else {
                None
            };
            let not_before = memory.failed.get(&node.uid).map(|(at, _)| *at).filter(|at| *at > now);
            match (find, not_before) {
                (Some(find), None) => over.push((node, find)),
                (Some(_), Some(at)) => next.push(at),
                (None, _) => next.extend(then.map(|at| self.clock.instant_of(at)).into_iter().chain(free_at)),
            }
        }
        let released = futures_util::stream::iter(over).map(|(node, find)| async move {
            let worked = self.release(Arc::clone(&node), find).await;
            (node, worked)
        });
        let released: Vec<_> = released.buffer_unordered(AT_ONCE).collect().await;
        for (node, worked) in released {
            if worked {
                memory.failed.remove(&node.uid);
            } else {
                let (at, backoff) =
                    memory.failed.entry(Arc::clone(&node.uid)).or_insert_with(|| (now, Backoff::new(AGAIN.0, AGAIN.1)));
                *at = Instant::now() + backoff.step();
                next.push(*at);
            }
        }
        next.into_iter().min()
    }

    /// Takes back what `find` finds on the Node as it is then. Tells whether that worked.
    async fn release(&self, node: Arc<Node>, find: Find) -> bool {
        let over = |current: &Node| find(current, self.clock.now());
        match self.marker.release(&node, Instant::now() + CALL_TIMEOUT, over).await {
            Ok(None) => true,
            Ok(Some((Over { why, .. }, uncordoned))) => {
                let (on, why, told) = (node.named(), why, node.draining);
                self.facts.emit(&Fact::NodeReleased { on, why, uncordoned, has_condition: told });
                true
            }
            Err(error) => {
                let category = error.category;
                self.facts.emit(&Fact::ReleaseFailed { on: node.named(), category, error: &error });
                false
            }
        }
    }
}

/// What is known of marked Nodes, by their UID.
#[derive(Default)]
struct Memory {
    /// Whose cordon was taken away, and since when.
    uncordoned: HashMap<Arc<str>, Instant>,
    /// Where taking back failed, and when it may be tried again.
    failed: HashMap<Arc<str>, (Instant, Backoff)>,
}

impl Memory {
    /// Forgets what is no longer so, and notes whose cordon was taken away.
    fn keep(&mut self, marked: &[Arc<Node>], now: Instant) {
        let taken = marked.iter().filter(|node| Over::uncordoned(node).is_some());
        let since = |node: &Arc<Node>| self.uncordoned.get(&node.uid).copied().unwrap_or(now);
        self.uncordoned = taken.map(|node| (Arc::clone(&node.uid), since(node))).collect();
        let there: HashSet<&Arc<str>> = marked.iter().map(|node| &node.uid).collect();
        self.failed.retain(|uid, _| there.contains(uid));
    }
}

/// What is over on a Node at a time.
type Find = fn(&Node, Timestamp) -> Option<Over>;
