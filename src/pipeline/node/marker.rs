//! Writes marks on Nodes, and removes them.

use super::hinted::HintedNodes;
use super::hold::HoldChange;
use super::mark::{Mark, MarkSettings, recordon};
use super::patch::{Extent, recorded};
use super::plan;
use super::record::{NoticeRecord, RecordChange};
use super::release::NodeRelease;
use super::{Index, Node, NodeApi};
use super::{handled, hold};
use crate::clients::gate::{Backoff, Call, Category, Class, Gate, KubeError};
use crate::clients::trimmed;
use crate::fact::{Fact, HoldPoint};
use crate::pipeline::event::{Notice, NoticeKey};
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::iter;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Timeout for the lock of a Node, whose holder may wait for an answer that does not come.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time until the watch shows a deletion that the API server has reported.
const GONE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of characters reported of the entries that a Node lists for removal and keeps.
const MAX_LISTED: usize = 256;

/// The outcome of cordoning a Node.
#[derive(Clone, Debug)]
pub enum CordonOutcome {
    /// The Node is cordoned and carries the mark.
    Cordoned {
        /// Whether the Node was cordoned before.
        already: bool,
        /// What admission has denied, if anything.
        denied: Option<Denied>,
    },
    /// The notice is over, as the Node shows by now.
    Late,
    /// The Node has the record of another source about the same change by now.
    OfAnother,
    /// A user has excluded the Node.
    Excluded,
    /// The Node no longer exists.
    NodeGone,
}

/// Marks that were removed.
#[derive(Clone, Debug)]
pub struct Released {
    /// The marks.
    pub release: NodeRelease,
    /// Whether their removal uncordoned the Node.
    pub uncordoned: bool,
    /// Entries that the Node listed for removal, and keeps.
    left: Vec<String>,
}

/// A part of a mark that admission has denied. The cordon and the record were written without it.
#[derive(Clone, Debug)]
pub struct Denied {
    error: Box<KubeError>,
    /// The extent that was written.
    extent: Extent,
}

impl Denied {
    /// Whether the taint that lets the pods of a stopped or terminated instance move is a part of it.
    #[must_use]
    pub fn has_out_of_service(&self) -> bool {
        self.extent < Extent::OutOfService
    }

    /// Emits the refusal.
    pub fn report(&self, node: &Node, emit: impl Fn(&Fact<'_>)) {
        emit(&Fact::MarksDenied { on: node.named(), category: self.error.category, error: &*self.error });
    }
}

impl Released {
    /// Emits what was removed from the Node, and what was left there.
    pub fn report(&self, node: &Node, emit: impl Fn(&Fact<'_>)) {
        let (on, why, has_condition) = (node.named(), self.release.reason, node.draining.is_some());
        emit(&Fact::NodeReleased { on, why, uncordoned: self.uncordoned, has_condition });
        if !self.left.is_empty() {
            let listed: String = self.left.join(", ").chars().take(MAX_LISTED).collect();
            emit(&Fact::UndoRefused { on, entries: self.left.len(), listed: &listed });
        }
    }
}

/// The result of a patch of a Node.
struct Written {
    /// Whether the Node exists.
    exists: bool,
    /// What admission has denied, if anything.
    denied: Option<Denied>,
}

/// Writes and removes marks. Clones share the locks of Nodes.
#[derive(Clone)]
pub struct Marker {
    api: NodeApi,
    index: Index,
    gate: Gate,
    settings: Arc<MarkSettings>,
    dry_run: bool,
    locks: Arc<NodeLocks>,
}

impl Marker {
    /// Returns a marker that patches Nodes through `api`. With `dry_run` the API server checks each patch and stores nothing.
    #[must_use]
    pub fn new(api: NodeApi, index: Index, gate: Gate, settings: MarkSettings, dry_run: bool) -> Self {
        Self { api, index, gate, settings: Arc::new(settings), dry_run, locks: Arc::default() }
    }

    /// Cordons the Node and writes the mark, in one patch, unless the newest state of the Node is excluded or `is_late`. After a conflict the
    /// Node is read and patched again, at once.
    ///
    /// # Errors
    /// The API server's answer, unless it is a conflict. The caller retries.
    pub async fn cordon(
        &self,
        node: &Node,
        mark: &Mark,
        by: Instant,
        is_late: impl Fn(&Node) -> bool,
    ) -> Result<CordonOutcome, KubeError> {
        let (mut already, mut forgone) = (false, None);
        let write = self.write_to(node, Class::Cordon, by, |current, extent| {
            already = current.cordoned;
            let late = || is_late(current).then_some(CordonOutcome::Late);
            let another = || mark.is_of_another(current).then_some(CordonOutcome::OfAnother);
            forgone = current.is_excluded().then_some(CordonOutcome::Excluded).or_else(late).or_else(another);
            if forgone.is_some() { None } else { mark.patch_to(current, &self.settings, extent) }
        });
        let Written { exists, denied } = write.await?;
        let cordoned = || if exists { CordonOutcome::Cordoned { already, denied } } else { CordonOutcome::NodeGone };
        Ok(forgone.unwrap_or_else(cordoned))
    }

    /// Cordons the Node again, unless a user has excluded it. Returns whether that was needed: the caller's state of the Node may be old.
    ///
    /// # Errors
    /// As [`Marker::cordon`].
    pub async fn recordon(&self, node: &Node, by: Instant) -> Result<bool, KubeError> {
        let mut needed = false;
        let write = self.write(node, Class::Cordon, by, |current| {
            needed = !current.cordoned && !current.ignored;
            needed.then(|| recordon(current))
        });
        let exists = write.await?;
        Ok(exists && needed)
    }

    /// Removes the marks that `due` returns for the newest state of the Node, in one patch: admission that denies a part of it denies all, because
    /// what stays without a record would stay for good. Returns the marks that were removed.
    ///
    /// # Errors
    /// As [`Marker::cordon`].
    pub async fn release(
        &self,
        node: &Node,
        by: Instant,
        due: impl Fn(&Node) -> Option<NodeRelease>,
    ) -> Result<Option<Released>, KubeError> {
        let mut released = None;
        let write = self.write(node, Class::List, by, |current| {
            // After a conflict, another replica may have removed them.
            released = None;
            let is_full = || {
                let hinted = self.index.count_ours(|nodes| HintedNodes::of(nodes));
                hinted.full(current, &HashMap::new()).is_some()
            };
            let release = due(current)?.within_limit_of_hints(current, is_full);
            let patch = release.patch(current, &self.settings);
            released = Some(Released { release, uncordoned: patch.uncordons, left: patch.left });
            Some(patch.body)
        });
        let exists = write.await?;
        Ok(released.filter(|_| exists))
    }

    /// Revises the record of the notice with this key, if it holds the Node, to what `change` returns for the newest state, if anything.
    /// Returns whether the Node exists.
    ///
    /// # Errors
    /// As [`Marker::cordon`].
    pub async fn revise(
        &self,
        node: &Node,
        key: NoticeKey,
        (class, by): (Class, Instant),
        change: impl Fn(&NoticeRecord, &Node) -> Option<NoticeRecord>,
    ) -> Result<bool, KubeError> {
        let patch = |current: &Node| {
            let known = current.record.notice(key).filter(|known| !known.is_unreadable())?;
            let record = change(known, current)?;
            Some(recorded(current, &[RecordChange { key, left: Some(record) }]))
        };
        self.write(node, class, by, patch).await
    }

    /// Writes the plan on the Node, or removes it. Returns whether the Node exists.
    ///
    /// # Errors
    /// As [`Marker::cordon`].
    pub async fn plan(&self, node: &Node, plan: &NoticeRecord, write: bool, by: Instant) -> Result<bool, KubeError> {
        let patch = |current: &Node| if write { plan::patch(plan, current) } else { plan::removal(plan, current) };
        self.write(node, Class::List, by, patch).await
    }

    /// Records on the Node that its interruption is held at this point, or no longer is. Evictions don't wait for this call. Returns whether
    /// the Node exists.
    ///
    /// # Errors
    /// As [`Marker::cordon`].
    pub async fn hold(
        &self,
        node: &Node,
        point: HoldPoint,
        change: HoldChange,
        by: Instant,
    ) -> Result<bool, KubeError> {
        self.write(node, Class::List, by, |current| hold::patch(current, point, change)).await
    }

    /// Records on the Node that a notice needs nothing more: `message` is the id of its message, or what stands for one, and `plan` the change
    /// that the Node no longer keeps. Returns whether the Node exists.
    ///
    /// # Errors
    /// As [`Marker::cordon`].
    pub async fn end(
        &self,
        node: &Node,
        notice: &Notice,
        message: &str,
        plan: Option<&NoticeRecord>,
        by: Instant,
    ) -> Result<bool, KubeError> {
        self.write(node, Class::List, by, |current| handled::patch(current, notice, message, plan)).await
    }

    /// Removes the record that a notice needs nothing more. Returns whether the Node exists.
    ///
    /// # Errors
    /// As [`Marker::cordon`].
    pub async fn forget_end(&self, node: &Node, notice: &Notice, by: Instant) -> Result<bool, KubeError> {
        self.write(node, Class::List, by, |current| handled::removal(current, notice)).await
    }

    /// Patches the Node with what `patch` returns for its newest state, if anything. Returns whether the Node exists.
    ///
    /// # Errors
    /// As [`Marker::cordon`].
    pub async fn note(
        &self,
        node: &Node,
        by: Instant,
        patch: impl FnMut(&Node) -> Option<Value>,
    ) -> Result<bool, KubeError> {
        self.write(node, Class::List, by, patch).await
    }

    async fn write(
        &self,
        node: &Node,
        class: Class,
        by: Instant,
        mut patch: impl FnMut(&Node) -> Option<Value>,
    ) -> Result<bool, KubeError> {
        self.write_to(node, class, by, |current, _| patch(current)).await.map(|written| written.exists)
    }

    /// Patches the Node with what `patch` returns for its newest state and this extent, if anything. If admission denies that, such as a taint that
    /// the policy does not know, patches the Node to a smaller extent: the cordon and the record must not be lost with it. The Node counts as
    /// deleted only if both the API server's answer to a GET and the watch show it.
    async fn write_to(
        &self,
        node: &Node,
        class: Class,
        by: Instant,
        mut patch: impl FnMut(&Node, Extent) -> Option<Value>,
    ) -> Result<Written, KubeError> {
        let lock = self.locks.of(&node.name);
        // The lock saves conflicts, but is not needed: the version in the patch guards it.
        let _guard = timeout(LOCK_TIMEOUT, lock.lock()).await;
        // The lock's previous holder may have stored a newer version.
        let mut current = self.index.newest(node).map_or_else(|| node.clone(), |known| Node::clone(&known));
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let (mut extent, mut denied) = (Extent::Whole, None);
        while let Some(value) = patch(&current, extent) {
            let error = match self.patch(&node.name, class, by, &value).await {
                Ok(()) => return Ok(Written { exists: true, denied }),
                Err(error) => error,
            };
            if error.is_by_admission() {
                let mut others = iter::successors(extent.smaller(), |extent| extent.smaller());
                let Some(smaller) = others.find(|smaller| patch(&current, *smaller).as_ref() != Some(&value)) else {
                    return Err(error);
                };
                extent = smaller;
                denied = Some(Denied { error: Box::new(error), extent });
                continue;
            }
            if !matches!(error.category, Category::Conflict | Category::NotFound) {
                return Err(error);
            }
            // A Node that others write without a pause must not delay the next ones.
            if Instant::now() >= by {
                return Err(error);
            }
            match self.read(&node.name, class, by).await? {
                // The watch may lag for long, and no task should act on a state that is known to be old.
                Some(fresh) if fresh.uid == node.uid => {
                    self.index.put(fresh.clone());
                    current = fresh;
                }
                _ if self.shows_gone(node).await => return Ok(Written { exists: false, denied }),
                _ => return Err(error),
            }
            sleep(backoff.step()).await;
        }
        // Nothing to patch: this or another replica has done it before.
        Ok(Written { exists: true, denied })
    }

    /// Patches the Node once.
    async fn patch(&self, name: &str, class: Class, by: Instant, value: &Value) -> Result<(), KubeError> {
        let params = PatchParams { dry_run: self.dry_run, ..PatchParams::default() };
        let patch = Patch::Merge(value);
        let call = Call { verb: "patch", resource: "nodes", subject: name };
        let patched = self.gate.kube(call, class, by, || self.api.patch(name, &params, &patch)).await?;
        if let Some(patched) = self.index.read(patched).filter(|_| !self.dry_run) {
            self.index.put(patched);
        }
        Ok(())
    }

    /// Returns whether the watch shows that the Node is deleted, after the API server has reported it.
    async fn shows_gone(&self, node: &Node) -> bool {
        let gone = self.index.until_node(node, |known| known.is_none().then_some(()));
        timeout(GONE_TIMEOUT, gone).await.is_ok() && self.index.is_live()
    }

    async fn read(&self, name: &str, class: Class, by: Instant) -> Result<Option<Node>, KubeError> {
        let call = Call { verb: "get", resource: "nodes", subject: name };
        let found = self.gate.kube(call, class, by, || trimmed::find(&self.api, "nodes", name)).await?;
        Ok(found.and_then(|found| self.index.read(found)))
    }
}

/// A lock for each Node by name, so that the notices of one process don't conflict with each other.
#[derive(Debug, Default)]
struct NodeLocks(Mutex<HashMap<Arc<str>, Weak<tokio::sync::Mutex<()>>>>);

impl NodeLocks {
    /// Minimum number of entries at which unused ones are removed; then at each doubling. An entry takes a few bytes.
    const CLEANUP_FROM: usize = 256;

    fn of(&self, name: &Arc<str>) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock();
        if let Some(lock) = locks.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() >= Self::CLEANUP_FROM && locks.len().is_power_of_two() {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::default();
        locks.insert(Arc::clone(name), Arc::downgrade(&lock));
        lock
    }
}
