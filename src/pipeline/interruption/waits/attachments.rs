//! The attachments of volumes to Nodes, kept current by one watch that runs only while an interruption, or the deletion of a Node, waits.

use crate::clients::answers::Denials;
use crate::clients::gate::{Category, KubeError};
use crate::clients::trimmed::Trimmed;
use crate::clients::watch::{RetryWatcher, WatchUpdate};
use crate::fact::{Facts, TaskKind, WatchedResource};
use crate::pipeline::interruption::{Seat, Slots};
use crate::runtime::task::Tasks;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ApiResource;
use kube::{Api, Client};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Timeout of the list of all attachments.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// An attachment on the wire.
type TrimmedAttachment = Trimmed<Spec, IgnoredAny>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: String,
    source: Source,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    /// None for a volume that a pod's spec contains: it is deleted with the pod.
    #[serde(default)]
    persistent_volume_name: Option<String>,
}

/// The volumes attached to each Node, by the names of the attachments.
type ByNode = HashMap<String, HashMap<String, String>>;

/// The known attachments.
#[derive(Debug, Default)]
enum KnownAttachments {
    /// Nothing yet.
    #[default]
    Nothing,
    All(ByNode),
    /// The permission to read them is missing.
    Denied,
}

/// The attachments. All that wait share one watch.
pub struct Attachments {
    api: Api<TrimmedAttachment>,
    facts: Facts,
    watches: Slots<(), watch::Sender<KnownAttachments>, ()>,
    denial: Arc<Denials>,
}

/// A share in the watch. Dropping the last share ends the watch.
pub struct WatchShare(Seat<(), watch::Sender<KnownAttachments>, ()>);

impl Attachments {
    /// The attachments that `client` can read. The watch starts with the first wait.
    #[must_use]
    pub fn new(client: Client, tasks: Tasks, facts: Facts) -> Self {
        let api = Api::all_with(client, &ApiResource::erase::<VolumeAttachment>(&()));
        Self { api, facts, watches: Slots::new(tasks, TaskKind::AttachmentWatch), denial: Arc::default() }
    }

    /// Remembers that a permission is missing, so that no interruption waits.
    pub(super) fn deny(&self) {
        self.denial.note(());
    }

    /// Returns a share in the watch; `None` without the permission to read attachments.
    pub fn join(&self) -> Option<WatchShare> {
        if self.denial.is_recent(&()) {
            return None;
        }
        let watcher = RetryWatcher::new(self.api.clone(), WatchedResource::VolumeAttachments, self.facts.clone());
        let denial = Arc::clone(&self.denial);
        let work = |known: Arc<watch::Sender<KnownAttachments>>, _stop| async move {
            run(watcher, &known).await;
            // Only a denial ends it.
            denial.note(());
            known.send_replace(KnownAttachments::Denied);
        };
        Some(WatchShare(self.watches.join((), watch::Sender::default, work).0))
    }
}

impl WatchShare {
    /// Returns the volumes that are attached to the Node, once they are known; `None` without the permission to read them.
    pub async fn of(&self, node: &str) -> Option<BTreeSet<String>> {
        let mut known = self.0.shared().subscribe();
        // The sender lives as long as the share.
        let known = known.wait_for(|known| !matches!(known, KnownAttachments::Nothing)).await.ok()?;
        match &*known {
            KnownAttachments::All(nodes) => {
                Some(nodes.get(node).into_iter().flat_map(HashMap::values).cloned().collect())
            }
            KnownAttachments::Nothing | KnownAttachments::Denied => None,
        }
    }

    /// Waits until no volume except these is attached to the Node. Calls `set_reason` with those that are left. Returns `false` if the
    /// permission was revoked meanwhile.
    pub(super) async fn until_none(&self, node: &str, but: &BTreeSet<String>, set_reason: impl Fn(&[&str])) -> bool {
        let none = |known: &KnownAttachments| {
            let KnownAttachments::All(nodes) = known else { return matches!(known, KnownAttachments::Denied) };
            let all: BTreeSet<&str> =
                nodes.get(node).into_iter().flat_map(HashMap::values).map(String::as_str).collect();
            let left: Vec<_> = all.into_iter().filter(|volume| !but.contains(*volume)).collect();
            if !left.is_empty() {
                set_reason(&left);
            }
            left.is_empty()
        };
        let mut known = self.0.shared().subscribe();
        // The sender lives as long as the share.
        known.wait_for(none).await.is_ok_and(|known| matches!(&*known, KnownAttachments::All(_)))
    }
}

/// Lists and watches, until aborted or denied.
async fn run(mut watcher: RetryWatcher<TrimmedAttachment>, known: &watch::Sender<KnownAttachments>) {
    let passes = |error: &KubeError| error.category != Category::Denied;
    while let Some(listed) = watcher.list(LIST_TIMEOUT, passes).await {
        let mut nodes = ByNode::new();
        listed.items.into_iter().for_each(|attachment| insert(&mut nodes, attachment));
        known.send_replace(KnownAttachments::All(nodes));
        let see = |seen, _: &str| {
            known.send_if_modified(|known| apply(known, seen));
        };
        if !watcher.watch(listed.metadata.resource_version.unwrap_or_default(), see, passes).await {
            return;
        }
    }
}

/// Applies an update; returns whether an attachment is gone.
fn apply(known: &mut KnownAttachments, seen: WatchUpdate<TrimmedAttachment>) -> bool {
    let KnownAttachments::All(nodes) = known else { return false };
    match seen {
        WatchUpdate::Applied(attachment) => {
            insert(nodes, attachment);
            false
        }
        WatchUpdate::Deleted(TrimmedAttachment { metadata, spec, .. }) => {
            let of_node = nodes.get_mut(&spec.node_name);
            of_node.zip(metadata.name).is_some_and(|(of_node, name)| of_node.remove(&name).is_some())
        }
        WatchUpdate::Bookmark | WatchUpdate::InitialListDone => false,
    }
}

fn insert(nodes: &mut ByNode, attachment: TrimmedAttachment) {
    let Spec { node_name, source } = attachment.spec;
    if let (Some(name), Some(volume)) = (attachment.metadata.name, source.persistent_volume_name) {
        nodes.entry(node_name).or_default().insert(name, volume);
    }
}
