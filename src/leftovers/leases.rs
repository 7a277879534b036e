//! Collects leaked Leases of deleted Nodes, for `--collect-leases`.
//!
//! A kubelet that outlives its Node creates its Lease in `kube-node-lease` again, without an owner, so nothing ever collects the Lease.
//! Ebbtide does, seldom, in calls of the lowest priority.
//!
//! A Lease is leaked if it is a kubelet's own, has no owner, has not been renewed for an hour, and the API server reports that there is no
//! Node of its name. The deletion names the UID and the version that were read: a kubelet that returns in between renews the Lease and
//! keeps it.

use super::collector::{CollectError, Leftovers};
use crate::clients::gate::{CALL_TIMEOUT, Call, Category, Class, Gate, KubeError};
use crate::clients::trimmed::{self, Bare, Trimmed};
use crate::fact::{Fact, Facts};
use crate::runtime::clock::Clock;
use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ApiResource, DeleteParams, ListParams, Preconditions};
use kube::{Api, Client};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// Namespace of the kubelets' Leases.
pub const NODE_LEASES: &str = "kube-node-lease";

/// Minimum time since the last renewal of a leaked Lease. The Node of a fresher one may register again.
const MIN_IDLE: SignedDuration = SignedDuration::from_hours(1);

/// Interval between scans. Leaked Leases do no harm for some time.
const SCAN_INTERVAL: Duration = Duration::from_mins(10);

/// Number of Leases on a page.
const PAGE_SIZE: u32 = 500;

/// The Leases of kubelets.
pub struct Leases {
    leases: Api<NodeLease>,
    nodes: Api<Bare>,
    gate: Gate,
    clock: Clock,
    facts: Facts,
    dry_run: bool,
    /// The Leases that a dry run has reported, by UID.
    reported: HashSet<String>,
}

/// A Lease with the fields that are read.
type NodeLease = Trimmed<NodeLeaseSpec, IgnoredAny>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeLeaseSpec {
    holder_identity: Option<String>,
    renew_time: Option<MicroTime>,
}

/// A Lease that is leaked if it has no Node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suspect {
    name: String,
    uid: String,
    version: String,
    renewed: Timestamp,
}

/// The end of a suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuspectEnd {
    /// The Lease was deleted; in a dry run it would have been.
    Deleted,
    /// The Lease has a Node, or was renewed or deleted meanwhile.
    Kept,
}

impl Leftovers for Leases {
    fn interval(&self) -> Duration {
        SCAN_INTERVAL
    }

    fn scan(&mut self) -> BoxFuture<'_, Result<(), CollectError>> {
        Box::pin(async { Ok(self.collect().await?) })
    }
}

impl Leases {
    /// Returns the Leases that `client` reaches through `gate`.
    #[must_use]
    pub fn new(client: &Client, gate: Gate, clock: Clock, facts: Facts, dry_run: bool) -> Self {
        Self {
            leases: Api::namespaced_with(client.clone(), NODE_LEASES, &ApiResource::erase::<Lease>(&())),
            nodes: Api::all_with(client.clone(), &ApiResource::erase::<Node>(&())),
            gate,
            clock,
            facts,
            dry_run,
            reported: HashSet::new(),
        }
    }

    /// Deletes all leaked Leases.
    async fn collect(&mut self) -> Result<(), KubeError> {
        let suspects = self.suspects().await?;
        self.reported.retain(|uid| suspects.iter().any(|suspect| suspect.uid == *uid));
        let mut failed = None;
        for suspect in suspects {
            match self.delete_if_leaked(&suspect).await {
                Ok(SuspectEnd::Kept) => {}
                Ok(SuspectEnd::Deleted) => self.report(&suspect),
                // The server is busy or does not answer, so the other deletions wait for the next scan.
                Err(error) if error.category.is_away() => return Err(error),
                // A Lease that can't be deleted does not stop the scan, and one error stands for all.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Returns all Leases that are leaked if they have no Node.
    async fn suspects(&self) -> Result<Vec<Suspect>, KubeError> {
        let mut suspects = Vec::new();
        let mut params = ListParams::default().limit(PAGE_SIZE);
        loop {
            let call = Call { verb: "list", resource: "leases", subject: NODE_LEASES };
            let page = self.call(call, || self.leases.list(&params)).await?;
            let now = self.clock.now();
            suspects.extend(page.items.into_iter().filter_map(|lease| suspect(lease, now)));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(suspects),
            }
        }
    }

    async fn delete_if_leaked(&self, suspect: &Suspect) -> Result<SuspectEnd, KubeError> {
        if self.has_node(&suspect.name).await? {
            return Ok(SuspectEnd::Kept);
        }
        let preconditions =
            Preconditions { uid: Some(suspect.uid.clone()), resource_version: Some(suspect.version.clone()) };
        let params =
            DeleteParams { dry_run: self.dry_run, preconditions: Some(preconditions), ..DeleteParams::default() };
        let call = Call { verb: "delete", resource: "leases", subject: &suspect.name };
        match self.call(call, || self.leases.delete(&suspect.name, &params)).await {
            Ok(_) => Ok(SuspectEnd::Deleted),
            Err(error) if matches!(error.category, Category::Conflict | Category::NotFound) => Ok(SuspectEnd::Kept),
            Err(error) => Err(error),
        }
    }

    /// Whether there is a Node of this name. Our index has only EC2 instances, and may be stale.
    async fn has_node(&self, name: &str) -> Result<bool, KubeError> {
        let call = Call { verb: "get", resource: "nodes", subject: name };
        Ok(self.call(call, || trimmed::find(&self.nodes, "nodes", name)).await?.is_some())
    }

    async fn call<T, F>(&self, call: Call<'_>, request: impl FnOnce() -> F) -> Result<T, KubeError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        self.gate.kube(call, Class::Background, Instant::now() + CALL_TIMEOUT, request).await
    }

    fn report(&mut self, suspect: &Suspect) {
        let idle = self.clock.now().duration_since(suspect.renewed).unsigned_abs();
        let dry_run = self.dry_run;
        // A dry run finds the Lease again in each scan.
        if !dry_run || self.reported.insert(suspect.uid.clone()) {
            self.facts.emit(&Fact::LeaseCollected { lease: &suspect.name, idle, dry_run });
        }
    }
}

/// Returns the Lease as a suspect, if it is a kubelet's own, has no owner, and is not in use.
fn suspect(lease: NodeLease, now: Timestamp) -> Option<Suspect> {
    let metadata = lease.metadata;
    if metadata.owner_references.is_some_and(|owners| !owners.is_empty()) || metadata.deletion_timestamp.is_some() {
        return None;
    }
    let name = metadata.name?;
    // The holder of a kubelet's Lease has the Node's name. Other Leases here belong to other programs.
    if lease.spec.holder_identity? != name {
        return None;
    }
    let renewed = lease.spec.renew_time?.0;
    let leaked = now.duration_since(renewed) > MIN_IDLE;
    leaked.then_some(Suspect { name, uid: metadata.uid?, version: metadata.resource_version?, renewed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn judged(change: impl FnOnce(&mut Value)) -> Option<Suspect> {
        let mut wire = json!({
            "metadata": { "name": "node-1", "uid": "u-1", "resourceVersion": "7" },
            "spec": { "holderIdentity": "node-1", "leaseDurationSeconds": 40, "renewTime": "2026-11-21T10:59:59.999999Z" },
        });
        change(&mut wire);
        suspect(serde_json::from_value(wire).unwrap(), "2026-11-21T12:00:00Z".parse().unwrap())
    }

    #[test]
    fn only_an_idle_lease_of_a_kubelet_without_an_owner_is_suspect() {
        let suspect = judged(|_| {}).unwrap();
        assert_eq!((&*suspect.name, &*suspect.uid, &*suspect.version), ("node-1", "u-1", "7"));
        let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u-0" }]);
        let table: [(&str, &str, Value); 8] = [
            ("metadata", "ownerReferences", owner),
            ("metadata", "deletionTimestamp", json!("2026-11-21T11:59:00Z")),
            ("metadata", "uid", Value::Null),
            ("metadata", "resourceVersion", Value::Null),
            ("spec", "holderIdentity", json!("kwok-controller")),
            ("spec", "holderIdentity", Value::Null),
            ("spec", "renewTime", Value::Null),
            ("spec", "renewTime", json!("2026-11-21T11:00:00.000000Z")),
        ];
        for (part, field, value) in table {
            assert_eq!(judged(|wire| wire[part][field] = value.clone()), None, "{field}: {value}");
        }
        assert_eq!(judged(|wire| wire["spec"]["renewTime"] = json!("2027-01-01T00:00:00Z")), None, "the future");
        assert_eq!(judged(|wire| drop(wire.as_object_mut().unwrap().remove("spec"))), None);
        assert!(judged(|wire| wire["metadata"]["ownerReferences"] = json!([])).is_some());
    }
}
