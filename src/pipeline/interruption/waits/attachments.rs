//! The attachments of volumes to Nodes, kept current by one watch that lives only while somebody waits.

use crate::clients::answers::Denials;
use crate::clients::gate::{Backoff, Category, KubeError};
use crate::clients::trimmed::Trimmed;
use crate::clients::watch::{self as client, StartPacer, WatchError, WatchUpdate};
use crate::fact::{Fact, Facts, TaskKind, WatchedResource};
use crate::pipeline::interruption::{Seat, Slots};
use crate::runtime::task::Tasks;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{ApiResource, ListParams};
use kube::{Api, Client};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

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
    /// None for a volume that a pod's spec contains: it goes with the pod.
    #[serde(default)]
    persistent_volume_name: Option<String>,
}

/// The volumes attached to each Node, by the names of the attachments.
type ByNode = HashMap<String, HashMap<String, String>>;

/// What is known of the attachments.
#[derive(Debug, Default)]
enum KnownAttachments {
    /// Nothing yet.
    #[default]
    Nothing,
    All(ByNode),
    /// We have no right to see them.
    Denied,
}

/// The attachments. All who wait share one watch.
pub struct Attachments {
    api: Api<TrimmedAttachment>,
    facts: Facts,
    watches: Slots<(), watch::Sender<KnownAttachments>, ()>,
    denial: Arc<Denials>,
}

/// A share in the watch. Dropping the last share ends the watch.
pub(super) struct WatchShare(Seat<(), watch::Sender<KnownAttachments>, ()>);

impl Attachments {
    /// The attachments that `client` sees. Nothing is asked before somebody waits.
    #[must_use]
    pub fn new(client: Client, tasks: Tasks, facts: Facts) -> Self {
        let api = Api::all_with(client, &ApiResource::erase::<VolumeAttachment>(&()));
        Self { api, facts, watches: Slots::new(tasks, TaskKind::AttachmentWatch), denial: Arc::default() }
    }

    /// Remembers that a right is missing without which nothing is waited for.
    pub(super) fn deny(&self) {
        self.denial.note(());
    }

    /// Returns a share in the watch; `None` without the right to see attachments.
    pub(super) fn join(&self) -> Option<WatchShare> {
        if self.denial.is_recent(&()) {
            return None;
        }
        let (api, facts, denial) = (self.api.clone(), self.facts.clone(), Arc::clone(&self.denial));
        let work = |known: Arc<watch::Sender<KnownAttachments>>, _stop| async move {
            run(&api, &facts, &known).await;
            // Only a denial ends it.
            denial.note(());
            known.send_replace(KnownAttachments::Denied);
        };
        Some(WatchShare(self.watches.join((), watch::Sender::default, work).0))
    }
}

impl WatchShare {
    /// Returns the volumes that are attached to the Node, once they are known; `None` without the right to see them.
    pub(super) async fn of(&self, node: &str) -> Option<BTreeSet<String>> {
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

    /// Waits until no volume but these is attached to the Node. Calls `says` with those that are left. Returns whether that was seen:
    /// the right may be taken away.
    pub(super) async fn until_none(&self, node: &str, but: &BTreeSet<String>, says: impl Fn(&[&str])) -> bool {
        let none = |known: &KnownAttachments| {
            let KnownAttachments::All(nodes) = known else { return matches!(known, KnownAttachments::Denied) };
            let all: BTreeSet<&str> =
                nodes.get(node).into_iter().flat_map(HashMap::values).map(String::as_str).collect();
            let left: Vec<_> = all.into_iter().filter(|volume| !but.contains(*volume)).collect();
            if !left.is_empty() {
                says(&left);
            }
            left.is_empty()
        };
        let mut known = self.0.shared().subscribe();
        // The sender lives as long as the share.
        known.wait_for(none).await.is_ok_and(|known| matches!(&*known, KnownAttachments::All(_)))
    }
}

/// Lists and watches, until aborted or denied.
async fn run(api: &Api<TrimmedAttachment>, facts: &Facts, known: &watch::Sender<KnownAttachments>) {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    let mut pace = StartPacer::default();
    loop {
        let (nodes, mut version) = match list(api).await {
            Ok(listed) => listed,
            Err(error) => {
                facts.emit(&Fact::WatchFailed { resource: WatchedResource::VolumeAttachments, error: &error });
                if error.category == Category::Denied {
                    return;
                }
                sleep(backoff.step()).await;
                continue;
            }
        };
        known.send_replace(KnownAttachments::All(nodes));
        loop {
            pace.turn().await;
            let from = version.clone();
            let see = |seen, at| {
                backoff.reset();
                version = at;
                known.send_if_modified(|known| apply(known, seen));
            };
            match client::follow("volumeattachments", api.watch(&client::params(), &from), see).await {
                // The server ends each watch after some minutes.
                Ok(()) => {}
                Err(WatchError::TooOld) => break,
                Err(WatchError::Failed(error)) => {
                    facts.emit(&Fact::WatchFailed { resource: WatchedResource::VolumeAttachments, error: &error });
                    if error.category == Category::Denied {
                        return;
                    }
                    sleep(backoff.step()).await;
                }
            }
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

async fn list(api: &Api<TrimmedAttachment>) -> Result<(ByNode, String), KubeError> {
    let listed = timeout(LIST_TIMEOUT, api.list(&ListParams::default())).await;
    let listed = listed.map_err(|_| KubeError::timed_out("list", "volumeattachments", "", LIST_TIMEOUT))?;
    let listed = listed.map_err(|error| KubeError::new("list", "volumeattachments", "", &error))?;
    let mut nodes = ByNode::new();
    listed.items.into_iter().for_each(|attachment| insert(&mut nodes, attachment));
    Ok((nodes, listed.metadata.resource_version.unwrap_or_default()))
}
