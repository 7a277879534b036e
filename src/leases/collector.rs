//! Collects the Leases of Nodes that are gone, where `--collect-leases` asks for it.
//!
//! A kubelet that outlives its Node makes its Lease in `kube-node-lease` again, and this time without an owner, so that nothing
//! ever collects it. Here is who does: one replica at a time ([`turn`]), seldom, in calls that let all others go first.
//!
//! A Lease is leaked if it is a kubelet's own, has no owner, has not been renewed for an hour, and if the API server says that
//! there is no Node of its name. It is deleted as it was seen, by its UID and version: a kubelet that comes back in between renews it,
//! and keeps it.

use crate::clients::gate::{Backoff, CALL_TIMEOUT, Call, Category, Class, Gate, KubeError};
use crate::clients::trimmed::{Bare, Trimmed};
use crate::fact::{Fact, Facts};
use crate::leases::turn::{Taken, Turn};
use crate::runtime::clock::Clock;
use crate::runtime::random;
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
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

/// Where kubelets keep their Leases.
pub const NODE_LEASES: &str = "kube-node-lease";

/// A Lease that was renewed within this is left: its Node may be about to register again.
const IDLE: SignedDuration = SignedDuration::from_hours(1);

/// Looked at so often: leaked Leases do no harm for a while.
const EVERY: Duration = Duration::from_mins(10);

/// The first look is within this: replicas that start together should not ask together.
const FIRST: Duration = Duration::from_secs(5);

/// What failed is tried again after 5 s, and then ever later.
const AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));

/// Leases in one answer.
const PAGE: u32 = 500;

/// Collects Leases.
pub struct Collector {
    leases: Api<Seen>,
    nodes: Api<Bare>,
    gate: Gate,
    clock: Clock,
    facts: Facts,
    /// Whose turn it is; a dry run, which writes nothing, needs none.
    turn: Option<Turn>,
    /// What a dry run has told of already, by UID.
    told: HashSet<String>,
}

/// What is read of a Lease.
type Seen = Trimmed<Spec, IgnoredAny>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    holder_identity: Option<String>,
    renew_time: Option<MicroTime>,
}

/// A Lease that may be leaked: whether it is, its Node tells.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suspect {
    name: String,
    uid: String,
    version: String,
    renewed: Timestamp,
}

/// What became of a suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It was deleted; in a dry run it would have been.
    Deleted,
    /// Its Node is there, or it was renewed or deleted meanwhile.
    Left,
}

impl Collector {
    /// Collects by way of `client` and `gate`; by turns, or, without one, in a dry run.
    #[must_use]
    pub fn new(client: &Client, gate: Gate, clock: Clock, facts: Facts, turn: Option<Turn>) -> Self {
        Self {
            leases: Api::namespaced_with(client.clone(), NODE_LEASES, &ApiResource::erase::<Lease>(&())),
            nodes: Api::all_with(client.clone(), &ApiResource::erase::<Node>(&())),
            gate,
            clock,
            facts,
            turn,
            told: HashSet::new(),
        }
    }

    /// Works until it is told to stop, and then gives its turn back.
    pub async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.work() => {}
        }
        if let Some(turn) = self.turn {
            // Nothing is lost if that fails: the turn ends by itself.
            let _ = turn.give_back().await;
        }
    }

    async fn work(&mut self) {
        sleep(random::jittered(FIRST, 0.0..1.0)).await;
        let mut backoff = Backoff::new(AGAIN.0, AGAIN.1);
        loop {
            let begun = Instant::now();
            let every = random::jittered(EVERY, 0.9..1.0);
            let next = match self.once().await {
                Ok(look_at) => {
                    backoff.reset();
                    look_at.map_or(begun + every, |at| at.min(begun + every))
                }
                Err(error) => {
                    self.facts.emit(&Fact::CollectFailed { category: error.category, error: &error });
                    Instant::now() + backoff.step()
                }
            };
            sleep_until(next).await;
        }
    }

    /// Looks once, if it is our turn. Says when another's turn may be over.
    async fn once(&mut self) -> Result<Option<Instant>, KubeError> {
        let Some(turn) = &mut self.turn else {
            return self.pass().await.map(|()| None);
        };
        let had = turn.is_ours();
        match turn.take().await? {
            Taken::Theirs { until } => {
                if had {
                    self.facts.emit(&Fact::CollectorTurn { ours: false });
                }
                Ok(Some(until))
            }
            Taken::Ours { until } => {
                if !had {
                    self.facts.emit(&Fact::CollectorTurn { ours: true });
                }
                // What is left to do when the turn ends, the next look does.
                timeout_at(until, self.pass()).await.unwrap_or(Ok(())).map(|()| None)
            }
        }
    }

    /// Deletes what is leaked.
    async fn pass(&mut self) -> Result<(), KubeError> {
        let suspects = self.suspects().await?;
        self.told.retain(|uid| suspects.iter().any(|suspect| suspect.uid == *uid));
        let mut failed = None;
        for suspect in suspects {
            match self.judge(&suspect).await {
                Ok(Verdict::Left) => {}
                Ok(Verdict::Deleted) => self.tell(&suspect),
                // The server has enough to do, or does not answer: later.
                Err(error) if of_the_server(error.category) => return Err(error),
                // One that can't be deleted must not keep the others; and one failure says what is wrong with all.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// All Leases that look leaked by themselves.
    async fn suspects(&self) -> Result<Vec<Suspect>, KubeError> {
        let mut suspects = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
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

    async fn judge(&self, suspect: &Suspect) -> Result<Verdict, KubeError> {
        if self.has_node(&suspect.name).await? {
            return Ok(Verdict::Left);
        }
        let preconditions =
            Preconditions { uid: Some(suspect.uid.clone()), resource_version: Some(suspect.version.clone()) };
        let params = DeleteParams {
            dry_run: self.turn.is_none(),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let call = Call { verb: "delete", resource: "leases", subject: &suspect.name };
        match self.call(call, || self.leases.delete(&suspect.name, &params)).await {
            Ok(_) => Ok(Verdict::Deleted),
            Err(error) if matches!(error.category, Category::Conflict | Category::NotFound) => Ok(Verdict::Left),
            Err(error) => Err(error),
        }
    }

    /// Whether there is a Node of this name. Only the API server's own word says that there is none: not a proxy's, and not our index,
    /// which knows EC2 instances alone and may be behind.
    async fn has_node(&self, name: &str) -> Result<bool, KubeError> {
        let call = Call { verb: "get", resource: "nodes", subject: name };
        let ask = || async {
            match self.nodes.get(name).await {
                Ok(_) => Ok(true),
                Err(kube::Error::Api(status))
                    if status.reason == "NotFound"
                        && status.details.as_ref().is_some_and(|said| said.kind == "nodes") =>
                {
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        };
        self.call(call, ask).await
    }

    async fn call<T, F>(&self, call: Call<'_>, request: impl FnOnce() -> F) -> Result<T, KubeError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        self.gate.kube(call, Class::Background, Instant::now() + CALL_TIMEOUT, request).await
    }

    fn tell(&mut self, suspect: &Suspect) {
        let idle = self.clock.now().duration_since(suspect.renewed).unsigned_abs();
        let dry_run = self.turn.is_none();
        // A dry run finds it again at each look.
        if !dry_run || self.told.insert(suspect.uid.clone()) {
            self.facts.emit(&Fact::LeaseCollected { lease: &suspect.name, idle, dry_run });
        }
    }
}

/// A Lease that is a kubelet's own, has no owner, and is not in use.
fn suspect(lease: Seen, now: Timestamp) -> Option<Suspect> {
    let metadata = lease.metadata;
    if metadata.owner_references.is_some_and(|owners| !owners.is_empty()) || metadata.deletion_timestamp.is_some() {
        return None;
    }
    let name = metadata.name?;
    // Kubelets hold their Leases under their Nodes' names. Whatever else is kept here is somebody else's.
    if lease.spec.holder_identity? != name {
        return None;
    }
    let renewed = lease.spec.renew_time?.0;
    let leaked = now.duration_since(renewed) > IDLE;
    leaked.then_some(Suspect { name, uid: metadata.uid?, version: metadata.resource_version?, renewed })
}

/// Whether a failure is about the server, and not about what it was asked.
const fn of_the_server(category: Category) -> bool {
    matches!(category, Category::Throttled | Category::Unavailable | Category::TimedOut | Category::Unreachable)
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
