//! What a notice leaves on its Node: the cordon and an annotation of its own, in one patch which holds only for the Node as it was
//! read, so that two writers never lose each other's marks.

use super::{Index, Node, NodeApi, trimmed::TrimmedNode};
use crate::gate::{Backoff, Call, Category, Class, Gate, KubeError};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Annotations that tell which notices hold a Node: `ebbtide/notice.<id>`.
const NOTICE: &str = "ebbtide/notice.";

/// Says that the cordon is ours: set only when the Node was not cordoned before.
const CORDONED: &str = "ebbtide/cordoned";

/// Turns that are over are swept out when so many, or a doubling of it, have gathered: a few bytes each.
const SWEPT_AT: usize = 256;

/// What one notice writes on its Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    key: String,
    value: String,
}

impl Mark {
    /// The mark of the notice with this identity.
    ///
    /// The key is made from the identity alone, so that each replica and each redelivery writes the same one. It is a hash,
    /// because an annotation's name has at most 63 characters and an ARN has more.
    #[must_use]
    pub fn new(identity: &str, kind: &str, deadline: Option<jiff::Timestamp>, message: &str) -> Self {
        let mut key = NOTICE.to_owned();
        for byte in &Sha256::digest(identity.as_bytes())[..8] {
            // Writing to a String can't fail.
            let _ = write!(key, "{byte:02x}");
        }
        let deadline = deadline.map(|at| at.to_string());
        Self { key, value: json!({ "kind": kind, "deadline": deadline, "message": message }).to_string() }
    }
}

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
#[derive(Clone, Debug)]
pub struct Marker {
    api: NodeApi,
    index: Index,
    gate: Gate,
    dry_run: bool,
    turns: Turns,
}

/// By a Node's name, the lock that a writer of it takes.
type Turns = Arc<Mutex<HashMap<Arc<str>, Weak<tokio::sync::Mutex<()>>>>>;

impl Marker {
    /// Patches by way of `api`; with `dry_run` the API server checks the patch and stores nothing.
    #[must_use]
    pub fn new(api: NodeApi, index: Index, gate: Gate, dry_run: bool) -> Self {
        Self { api, index, gate, dry_run, turns: Arc::default() }
    }

    /// Cordons the Node and leaves the mark, in one patch. A conflict is met by a fresh read, at once.
    ///
    /// # Errors
    /// What the API server said, when it was something else than a conflict. Trying again is up to the caller.
    pub async fn cordon(&self, node: &Node, mark: &Mark, by: Instant) -> Result<Marked, KubeError> {
        let turn = self.turn(&node.name);
        let _turn = turn.lock().await;
        // Somebody before us in this turn may have left a newer version.
        let known = self.index.get(&node.instance).filter(|known| known.uid == node.uid);
        let mut current = known.map_or_else(|| node.clone(), |known| Node::clone(&known));
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            if current.cordoned && current.annotations.contains_key(&mark.key) {
                // We, or another replica, did it before: nothing to say twice.
                return Ok(Marked::Cordoned { already: true });
            }
            match self.patch(&current, mark, by).await {
                Ok(patched) => {
                    if let Some(patched) = Node::from_wire(patched).filter(|_| !self.dry_run) {
                        self.index.put(patched);
                    }
                    return Ok(Marked::Cordoned { already: current.cordoned });
                }
                Err(error) if error.category == Category::Conflict => match self.read(&current.name, by).await? {
                    Some(fresh) if fresh.uid == node.uid => current = fresh,
                    _ => return Ok(Marked::Gone),
                },
                Err(error) if error.category == Category::NotFound => return Ok(Marked::Gone),
                Err(error) => return Err(error),
            }
            sleep(backoff.step()).await;
        }
    }

    async fn patch(&self, node: &Node, mark: &Mark, by: Instant) -> Result<TrimmedNode, KubeError> {
        let params = PatchParams { dry_run: self.dry_run, ..PatchParams::default() };
        let patch = Patch::Merge(cordon(node, mark));
        let call = Call { verb: "patch", resource: "nodes", subject: &node.name };
        self.gate.kube(call, Class::Cordon, by, self.api.patch(&node.name, &params, &patch)).await
    }

    async fn read(&self, name: &str, by: Instant) -> Result<Option<Node>, KubeError> {
        let call = Call { verb: "get", resource: "nodes", subject: name };
        let found = self.gate.kube(call, Class::Cordon, by, self.api.get_opt(name)).await?;
        Ok(found.and_then(Node::from_wire))
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

/// The patch itself. The UID keeps it from a Node of the same name that registered meanwhile.
fn cordon(node: &Node, mark: &Mark) -> Value {
    let mut annotations = json!({ &mark.key: mark.value });
    if !node.cordoned {
        annotations[CORDONED] = json!("true");
    }
    json!({
        "metadata": { "uid": *node.uid, "resourceVersion": *node.resource_version, "annotations": annotations },
        "spec": { "unschedulable": true },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::InstanceId;

    fn node(cordoned: bool) -> Node {
        Node {
            name: "node-1".into(),
            uid: "u-1".into(),
            resource_version: "7".into(),
            instance: InstanceId::new("i-0123456789abcdef0").unwrap(),
            cordoned,
            ready: true,
            annotations: std::collections::BTreeMap::default(),
        }
    }

    #[test]
    fn one_patch_says_it_all() {
        let deadline = "2026-11-21T12:02:00Z".parse().ok();
        let mark = Mark::new("12345678-1234", "spot", deadline, "m-1");
        assert_eq!(
            cordon(&node(false), &mark),
            json!({
                "metadata": {
                    "uid": "u-1",
                    "resourceVersion": "7",
                    "annotations": {
                        "ebbtide/notice.c4587662074a6477":
                            "{\"deadline\":\"2026-11-21T12:02:00Z\",\"kind\":\"spot\",\"message\":\"m-1\"}",
                        "ebbtide/cordoned": "true",
                    },
                },
                "spec": { "unschedulable": true },
            })
        );
    }

    #[test]
    fn a_cordon_before_ours_is_not_called_ours() {
        let patch = cordon(&node(true), &Mark::new("a", "spot", None, "m-1"));
        assert_eq!(patch["metadata"]["annotations"].get(CORDONED), None);
    }
}
