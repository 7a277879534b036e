//! Writes marks on Nodes, and takes them back.

use super::mark::{Extras, Mark, recordon};
use super::release::Over;
use super::{Index, Node, NodeApi};
use crate::clients::gate::{Backoff, Call, Category, Class, Gate, KubeError};
use kube::api::{Patch, PatchParams};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Turns that are over are swept out when so many, or a doubling of it, have gathered: a few bytes each.
const SWEPT_AT: usize = 256;

/// A writer waits no longer for another of the same Node, who may be waiting for an answer that does not come.
const TURN: Duration = Duration::from_secs(1);

/// What the patch found and did.
#[derive(Clone, Debug)]
pub enum Marked {
    /// The Node is cordoned and carries the mark.
    Cordoned {
        /// Whether it was cordoned before us.
        already: bool,
    },
    /// The Node is not there any more.
    Gone,
}

/// Writes marks. One at a time for a Node, so that notices of one process don't run into each other's versions.
#[derive(Clone)]
pub struct Marker {
    api: NodeApi,
    index: Index,
    gate: Gate,
    extras: Arc<Extras>,
    dry_run: bool,
    turns: Turns,
}

/// By a Node's name, the lock that a writer of it takes.
type Turns = Arc<Mutex<HashMap<Arc<str>, Weak<tokio::sync::Mutex<()>>>>>;

impl Marker {
    /// Patches by way of `api`; with `dry_run` the API server checks the patch and stores nothing.
    #[must_use]
    pub fn new(api: NodeApi, index: Index, gate: Gate, extras: Extras, dry_run: bool) -> Self {
        Self { api, index, gate, extras: Arc::new(extras), dry_run, turns: Arc::default() }
    }

    /// Cordons the Node and leaves the mark, in one patch. A conflict is met by a fresh read, at once.
    ///
    /// # Errors
    /// What the API server said, when it was something else than a conflict. Trying again is up to the caller.
    pub async fn cordon(&self, node: &Node, mark: &Mark, by: Instant) -> Result<Marked, KubeError> {
        let mut already = false;
        let wrote = self.write(node, Class::Cordon, by, |current| {
            already = current.cordoned;
            mark.patch(current, &self.extras)
        });
        let there = wrote.await?;
        Ok(if there { Marked::Cordoned { already } } else { Marked::Gone })
    }

    /// Cordons the Node again. Tells whether that was needed: what we knew of it may have been old, and it may be gone.
    ///
    /// # Errors
    /// As [`Marker::cordon`].
    pub async fn recordon(&self, node: &Node, by: Instant) -> Result<bool, KubeError> {
        let mut needed = false;
        let wrote = self.write(node, Class::Cordon, by, |current| {
            needed = !current.cordoned;
            needed.then(|| recordon(current))
        });
        let there = wrote.await?;
        Ok(there && needed)
    }

    /// Takes back what `over` names on the Node as it is then. Tells what was taken back, and whether that uncordoned the Node.
    ///
    /// # Errors
    /// As [`Marker::cordon`].
    pub async fn release(
        &self,
        node: &Node,
        by: Instant,
        over: impl Fn(&Node) -> Option<Over>,
    ) -> Result<Option<(Over, bool)>, KubeError> {
        let mut released = None;
        let wrote = self.write(node, Class::List, by, |current| {
            // After a conflict it may turn out that another replica has done it.
            released = None;
            let over = over(current)?;
            let (patch, uncordons) = over.patch(current);
            released = Some((over, uncordons));
            Some(patch)
        });
        let there = wrote.await?;
        Ok(released.filter(|_| there))
    }

    /// Patches the Node with what `patch` makes of its newest state, if anything. Tells whether the Node is there.
    async fn write(
        &self,
        node: &Node,
        class: Class,
        by: Instant,
        mut patch: impl FnMut(&Node) -> Option<Value>,
    ) -> Result<bool, KubeError> {
        let turn = self.turn(&node.name);
        // One at a time saves conflicts, but is not needed: the version in the patch guards it. So nobody waits long for another.
        let _turn = timeout(TURN, turn.lock()).await;
        // Somebody before us in this turn may have left a newer version.
        let known = self.index.get(&node.instance).filter(|known| known.uid == node.uid);
        let mut current = known.map_or_else(|| node.clone(), |known| Node::clone(&known));
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        while let Some(value) = patch(&current) {
            let params = PatchParams { dry_run: self.dry_run, ..PatchParams::default() };
            let patch = Patch::Merge(value);
            let call = Call { verb: "patch", resource: "nodes", subject: &node.name };
            match self.gate.kube(call, class, by, || self.api.patch(&node.name, &params, &patch)).await {
                Ok(patched) => {
                    if let Some(patched) = self.index.read(patched).filter(|_| !self.dry_run) {
                        self.index.put(patched);
                    }
                    return Ok(true);
                }
                Err(error) if error.category == Category::Conflict => match self.read(&node.name, class, by).await? {
                    // The watch may be behind for long, and nobody is to act on what is known to be old.
                    Some(fresh) if fresh.uid == node.uid => {
                        self.index.put(fresh.clone());
                        current = fresh;
                    }
                    _ => return Ok(false),
                },
                Err(error) if error.category == Category::NotFound => return Ok(false),
                Err(error) => return Err(error),
            }
            sleep(backoff.step()).await;
        }
        // It is as it should be: we, or another replica, did it before.
        Ok(true)
    }

    async fn read(&self, name: &str, class: Class, by: Instant) -> Result<Option<Node>, KubeError> {
        let call = Call { verb: "get", resource: "nodes", subject: name };
        let found = self.gate.kube(call, class, by, || self.api.get_opt(name)).await?;
        Ok(found.and_then(|found| self.index.read(found)))
    }

    fn turn(&self, name: &Arc<str>) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(name).and_then(Weak::upgrade) {
            return turn;
        }
        if turns.len() >= SWEPT_AT && turns.len().is_power_of_two() {
            turns.retain(|_, turn| turn.strong_count() > 0);
        }
        let turn = Arc::default();
        turns.insert(Arc::clone(name), Arc::downgrade(&turn));
        turn
    }
}
