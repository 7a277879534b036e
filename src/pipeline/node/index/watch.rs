//! The watch that keeps the index current.
//!
//! ```text
//!                 all Nodes have arrived, by a watch
//!                 with initial events or by a list
//!            ┌───────────────────────────────────────────┐
//!            │                                           ▼    the server ends the watch
//!        Syncing { oldest, arriving }            Synced { version } ──┐ regularly: continue
//!   at first ▲ │ ▲                                       │   ▲        │ from the version
//!            │ └─┘ a failure: oldest = NEWEST            │   └────────┘
//!            └───────────────────────────────────────────┘
//!               a failure, or a version that is too old: oldest = version
//!               quiet, while a caller waits: oldest = NEWEST
//! ```
//!
//! A watch with initial events delivers the Nodes one by one, so that 15,000 Nodes take no more memory than one while they arrive.
//! A server without that feature (not always enabled before Kubernetes 1.34) is asked for a list. A dead connection ends by the
//! client's read timeout, which bookmarks keep from expiring on a quiet watch.

use super::Index;
use super::table::{NodesByName, keyed, remove_if};
use crate::clients::gate::{Backoff, Category, KubeError};
use crate::clients::watch;
use crate::clients::watch::{StartPacer, WatchError, WatchUpdate};
use crate::fact::{Fact, Facts, RecordedNotice, WatchedResource};
use crate::pipeline::node::agent_notices::differs;
use crate::pipeline::node::record::{NoticeRecord, Work};
use crate::pipeline::node::{Node, NodeApi, TrimmedNode};
use kube::api::{ListParams, ObjectList, VersionMatch};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

/// Timeout for all Nodes to arrive, by a list or by a watch.
pub(super) const SYNC_TIMEOUT: Duration = Duration::from_mins(1);

/// The resource version of any state in the API server's cache. Kubelets start with it as well: a storm of restarts must not read etcd.
const ANY_CACHED: &str = "0";

/// The resource version of the newest state, which an outdated cache can't serve.
const NEWEST: &str = "";

/// The watch of all Nodes.
pub(super) struct NodeWatch {
    index: Index,
    api: NodeApi,
    facts: Facts,
    /// UIDs of the Nodes whose unread annotations were reported.
    unread: HashSet<Arc<str>>,
    /// The Nodes with notices on record as they were reported, by UID.
    recorded: HashMap<Arc<str>, Arc<Node>>,
    /// Completed when the index first holds all Nodes.
    first_sync: Option<oneshot::Sender<()>>,
    phase: Phase,
    initial_events: InitialEvents,
    backoff: Backoff,
    pace: StartPacer,
}

/// The phase of the watch.
enum Phase {
    /// The index may lack Nodes. The Nodes that have arrived so far become visible when all have.
    Syncing {
        /// Resource version that the Nodes must not be older than.
        oldest: String,
        arriving: NodesByName,
    },
    /// The index holds all Nodes, up to this resource version.
    Synced { version: String },
}

impl NodeWatch {
    pub(super) fn new(index: Index, api: NodeApi, facts: Facts, synced: oneshot::Sender<()>) -> Self {
        Self {
            index,
            api,
            facts,
            unread: HashSet::new(),
            recorded: HashMap::new(),
            first_sync: Some(synced),
            phase: Phase::syncing(ANY_CACHED.to_owned()),
            initial_events: InitialEvents::default(),
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
            pace: StartPacer::default(),
        }
    }

    /// Runs forever.
    pub(super) async fn run(mut self) {
        loop {
            if let Phase::Syncing { oldest, .. } = &self.phase
                && !self.initial_events.worth_trying()
            {
                let asked = Instant::now();
                match list(&self.api, oldest).await {
                    Ok(list) => self.listed(list, asked),
                    Err(error) => {
                        self.failed(&error);
                        sleep(self.backoff.step()).await;
                        continue;
                    }
                }
            }
            self.pace.turn().await;
            let ended = self.follow().await;
            if let Some(error) = self.ended(ended) {
                self.failed(&error);
                sleep(self.backoff.step()).await;
            }
        }
    }

    fn listed(&mut self, list: ObjectList<TrimmedNode>, asked: Instant) {
        self.sync(list.items.into_iter().filter_map(|object| self.index.read(object)).map(keyed).collect(), asked);
        if let Some(version) = list.metadata.resource_version {
            self.phase = Phase::Synced { version };
        }
    }

    /// Follows one watch to its end. While syncing, the watch begins with all Nodes and must have delivered them in time.
    async fn follow(&mut self) -> Result<(), WatchError> {
        let (params, from) = match &mut self.phase {
            Phase::Synced { version } => (watch::params(), version.clone()),
            Phase::Syncing { oldest, arriving } => {
                *arriving = BTreeMap::new();
                (watch::params().initial_events(), oldest.clone())
            }
        };
        let (api, index, asked) = (self.api.clone(), self.index.clone(), Instant::now());
        let synced = AtomicBool::new(self.phase.is_synced());
        let see = |seen, version| {
            self.see(seen, version, asked);
            synced.store(self.phase.is_synced(), Ordering::Relaxed);
        };
        let late = async {
            sleep(SYNC_TIMEOUT).await;
            if synced.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            ended = watch::follow("nodes", api.watch(&params, &from), see) => ended,
            () = index.is_behind(|| synced.load(Ordering::Relaxed)) => {
                // Its cache may be behind, too.
                self.phase = Phase::syncing(NEWEST.to_owned());
                Err(WatchError::TooOld)
            }
            () = late => Err(WatchError::Failed(KubeError::timed_out("watch", "nodes", "", SYNC_TIMEOUT))),
        }
    }

    /// Takes an update of the watch that was `asked` for at this time.
    fn see(&mut self, seen: WatchUpdate<TrimmedNode>, version: String, asked: Instant) {
        let arriving = match &mut self.phase {
            Phase::Synced { version: known } => {
                *known = version;
                self.backoff.reset();
                self.apply(seen);
                return self.index.showed(Instant::now());
            }
            Phase::Syncing { arriving, .. } => arriving,
        };
        match seen {
            WatchUpdate::Applied(object) => arriving.extend(self.index.read(object).map(keyed)),
            WatchUpdate::Deleted(object) => {
                if let Some(gone) = self.index.read(object) {
                    drop(remove_if(arriving, &gone.name, &gone.uid));
                }
            }
            WatchUpdate::Bookmark => {}
            WatchUpdate::InitialListDone => {
                let nodes = mem::take(arriving);
                self.sync(nodes, asked);
                self.initial_events = InitialEvents::default();
                self.phase = Phase::Synced { version };
            }
        }
    }

    /// Applies one event to the index.
    fn apply(&mut self, seen: WatchUpdate<TrimmedNode>) {
        let (mut marked, mut turned, mut reports, mut moved) = (false, false, false, false);
        let (mut current, mut gone) = (None, None);
        let mut nodes = self.index.0.nodes.lock();
        let before = nodes.len();
        match seen {
            WatchUpdate::Applied(object) => {
                if let Some(node) = self.index.read(object) {
                    report_unread(&mut self.unread, &self.facts, &node);
                    marked = node.record.is_held();
                    reports = differs(nodes.named(&node.name).map(AsRef::as_ref), &node);
                    turned = node.ready && nodes.named(&node.name).is_none_or(|known| !known.ready);
                    if marked && nodes.named(&node.name).is_some_and(|known| has_new_drain(&node, known)) {
                        self.index.marked_elsewhere();
                    }
                    moved = self.index.moves_places(nodes.named(&node.name), &node);
                    let name = Arc::clone(&node.name);
                    nodes.apply(node, true);
                    current = nodes.named(&name).cloned();
                }
            }
            WatchUpdate::Deleted(object) => {
                if let (Some(name), Some(uid)) = (object.metadata.name, object.metadata.uid) {
                    nodes.remove(&name, &uid);
                    self.unread.remove(&*uid);
                    gone = self.recorded.remove(&*uid);
                    (turned, moved) = (true, !self.index.0.labels.is_empty());
                }
            }
            WatchUpdate::Bookmark | WatchUpdate::InitialListDone => {}
        }
        let after = nodes.len();
        drop(nodes);
        self.index.0.places.send_if_modified(|()| moved);
        self.index.0.marks.send_if_modified(|()| marked);
        self.index.0.reports.send_if_modified(|()| reports);
        self.index.0.turns.send_if_modified(|()| turned);
        if after != before {
            self.facts.emit(&Fact::NodesKnown { nodes: after });
        }
        if let Some(node) = current {
            self.report_record(&node);
        }
        if let Some(node) = gone {
            self.report_released(&node);
        }
    }

    /// Replaces the Nodes of the index by those of a list or watch that was `asked` for at this time.
    fn sync(&mut self, nodes: NodesByName, asked: Instant) {
        self.unread.retain(|uid| nodes.values().any(|node| node.uid == *uid));
        for node in nodes.values() {
            report_unread(&mut self.unread, &self.facts, node);
        }
        self.index.0.nodes.lock().replace_all(nodes);
        self.facts.emit(&Fact::NodesSynced { nodes: self.index.len() });
        self.index.set_live(true);
        self.index.showed(asked);
        self.index.0.places.send_replace(());
        self.index.0.marks.send_replace(());
        self.index.0.reports.send_replace(());
        self.index.0.turns.send_replace(());
        let held = self.index.marked();
        let uids: HashSet<_> = held.iter().map(|node| &node.uid).collect();
        let released: Vec<_> = self.recorded.extract_if(|uid, _| !uids.contains(uid)).collect();
        for (_, node) in released {
            self.report_released(&node);
        }
        for node in &held {
            self.report_record(node);
        }
        if let Some(synced) = self.first_sync.take() {
            let _ = synced.send(());
        }
    }

    /// Emits that the Node is gone, or has nothing on record any more.
    fn report_released(&self, node: &Node) {
        self.facts.emit(&Fact::NodeRecorded { on: node.named(), notices: &[], blocked: None });
    }

    /// Emits what the Node has on record, unless that was emitted before.
    fn report_record(&mut self, node: &Arc<Node>) {
        let is_held = node.record.is_held();
        let known = if is_held {
            self.recorded.insert(Arc::clone(&node.uid), Arc::clone(node))
        } else {
            self.recorded.remove(&node.uid)
        };
        let is_new =
            |known: &Arc<Node>| !known.record.notices().eq(node.record.notices()) || known.draining != node.draining;
        if !known.as_ref().map_or(is_held, is_new) {
            return;
        }
        let notices: Vec<_> = node.record.notices().filter_map(|(_, notice)| named(notice)).collect();
        let blocked = node.draining.as_ref().filter(|condition| condition.is_blocked);
        let blocked = blocked.map(|condition| &*condition.message);
        self.facts.emit(&Fact::NodeRecorded { on: node.named(), notices: &notices, blocked });
    }

    /// Decides how to continue after a watch. Returns the error if the watch failed.
    fn ended(&mut self, ended: Result<(), WatchError>) -> Option<KubeError> {
        let (error, cut) = match (ended, &self.phase) {
            // The server ends each watch after some minutes.
            (Ok(()), Phase::Synced { .. }) => return None,
            (Ok(()), Phase::Syncing { .. }) => (KubeError::cut_short("watch", "nodes"), true),
            (Err(WatchError::TooOld), _) => {
                // Not reported, because nothing failed. But a Node may be missing until all have arrived again.
                self.index.set_live(false);
                self.resync();
                return None;
            }
            (Err(WatchError::Failed(error)), phase) => {
                let cut = error.category == Category::TimedOut || phase.has_arriving();
                (error, cut)
            }
        };
        if !self.phase.is_synced() && self.initial_events.failed(&error, cut) {
            self.facts.emit(&Fact::ListsNotStreamed { resource: WatchedResource::Nodes, error: &error });
            return None;
        }
        Some(error)
    }

    /// Reports a failure and syncs again.
    fn failed(&mut self, error: &KubeError) {
        self.index.set_live(false);
        self.facts.emit(&Fact::WatchFailed { resource: WatchedResource::Nodes, error });
        self.resync();
    }

    /// Begins to sync again, not older than what is known. A sync that failed is repeated with the newest state: the cache may be
    /// unable to answer for the version that was asked.
    fn resync(&mut self) {
        let oldest = match &mut self.phase {
            Phase::Synced { version } => mem::take(version),
            Phase::Syncing { .. } => NEWEST.to_owned(),
        };
        self.phase = Phase::syncing(oldest);
    }
}

/// Returns the notice as facts name it; `None` for an unknown kind.
fn named(notice: &NoticeRecord) -> Option<RecordedNotice<'_>> {
    let (since, deadline, is_open) = (notice.since, notice.ends.or(notice.deadline), notice.work == Work::Open);
    Some(RecordedNotice { kind: notice.kind()?, message: &notice.message, since, deadline, is_open })
}

/// Emits, once for each Node, that it has more annotations than are read.
fn report_unread(reported: &mut HashSet<Arc<str>>, facts: &Facts, node: &Node) {
    if node.unread > 0 && reported.insert(Arc::clone(&node.uid)) {
        facts.emit(&Fact::AnnotationsUnread { on: node.named(), count: node.unread });
    }
}

impl Phase {
    fn syncing(oldest: String) -> Self {
        Self::Syncing { oldest, arriving: BTreeMap::new() }
    }

    const fn is_synced(&self) -> bool {
        matches!(self, Self::Synced { .. })
    }

    /// Returns whether some, but not all, Nodes have arrived.
    fn has_arriving(&self) -> bool {
        matches!(self, Self::Syncing { arriving, .. } if !arriving.is_empty())
    }
}

/// Whether a watch with initial events is worth trying.
#[derive(Debug, Default)]
struct InitialEvents {
    /// The server does not support them.
    refused: bool,
    /// Number of watches that ended before all Nodes had arrived.
    cuts: u32,
}

impl InitialEvents {
    /// Maximum number of incomplete watches. A proxy may cut long answers, and a list is shorter.
    const MAX_CUTS: u32 = 3;

    const fn worth_trying(&self) -> bool {
        !self.refused && self.cuts < Self::MAX_CUTS
    }

    /// Records a watch that ended before all Nodes had arrived. Returns whether the server lacks the feature, which is not a failure.
    fn failed(&mut self, error: &KubeError, cut: bool) -> bool {
        // The feature is disabled or unknown.
        self.refused = matches!(error.status, 400 | 422);
        self.cuts += u32::from(cut);
        self.refused
    }
}

async fn list(api: &NodeApi, oldest: &str) -> Result<ObjectList<TrimmedNode>, KubeError> {
    let params = match oldest {
        NEWEST => ListParams::default(),
        version => ListParams::default().at(version).matching(VersionMatch::NotOlderThan),
    };
    watch::list(api, WatchedResource::Nodes, &params, SYNC_TIMEOUT).await
}
/// Whether the Node is drained for a notice for which it was not when it was `known`.
fn has_new_drain(node: &Node, known: &Node) -> bool {
    node.record.notices().any(|(key, notice)| notice.is_drain() && known.record.notice(key).is_none())
}
