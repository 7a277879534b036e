//! The same storm without a service: bare clients know the work beforehand, and make the fewest calls that do it.
//!
//! The roofline is the cost of the simulation and the clients alone. It has no watch, ownership, annotations, deadlines or retries, and
//! reads answers only as far as the next call needs them.

use crate::harness::{Stage, instance, node, s};
use crate::meter::{Cost, Meter};
use crate::mix;
use crate::mix::{PODS, Work};
use aws_sdk_sqs::types::DeleteMessageBatchRequestEntry;
use ebbtide::clients::connect::Clients;
use ebbtide::runtime::Clock;
use futures_util::{StreamExt, stream};
use http::Request;
use kube::core::request::Request as Path;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;
use std::collections::BTreeMap;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// Number of receives, and of deletes, in flight: the same as the service's receives.
const LANES: usize = 8;

/// Number of calls to the API server in flight: the number with which the service begins.
const IN_FLIGHT: usize = 64;

/// Fields read from a list of pods.
#[derive(Deserialize)]
struct Pods {
    items: Vec<Pod>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Named,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

struct Bare<'a> {
    clients: Clients,
    url: String,
    places: Semaphore,
    work: &'a BTreeMap<String, Work>,
}

/// Does the work of a storm over `nodes` nodes.
pub async fn run(nodes: usize) -> Cost {
    let stage = mix::stage(nodes);
    let work = mix::send(&stage, nodes);
    let bare = Bare {
        clients: stage.clients(Clock::showing(stage.world.clock.now())),
        url: stage.world.aws.sqs.queue_url(),
        places: Semaphore::new(IN_FLIGHT),
        work: &work,
    };
    let meter = Meter::start();
    let done = stream::iter(0..work.len().div_ceil(10))
        .map(|_| bare.receive())
        .buffer_unordered(LANES)
        .flat_map(stream::iter)
        .map(|(id, receipt)| bare.work(id, receipt))
        .buffer_unordered(work.len());
    let deleted = done.chunks(10).map(|receipts| bare.delete(receipts)).buffer_unordered(LANES);
    deleted.collect::<Vec<()>>().await;
    let cost = meter.stop();
    check(&stage, nodes);
    cost
}

impl Bare<'_> {
    async fn receive(&self) -> Vec<(String, String)> {
        let receive = self.clients.aws.sqs.receive_message().queue_url(&self.url).max_number_of_messages(10);
        let messages = receive.visibility_timeout(300).send().await.expect("the receive must work").messages;
        let ids = messages.into_iter().flatten().map(|message| (message.message_id, message.receipt_handle));
        ids.map(|(id, receipt)| (id.expect("a message has an id"), receipt.expect("a message has a receipt"))).collect()
    }

    /// Returns the receipt handle when the work is done.
    async fn work(&self, id: String, receipt: String) -> String {
        let Work { cordon, drain, token } = &self.work[&id];
        if let Some(n) = *cordon {
            let patch = json!({ "metadata": { "annotations": { "bare": id } }, "spec": { "unschedulable": true } });
            let patch = Path::new("/api/v1/nodes").patch(
                &node(n),
                &kube::api::PatchParams::default(),
                &kube::api::Patch::Merge(patch),
            );
            self.call::<IgnoredAny>(patch.expect("a patch is a request")).await;
            if *drain {
                self.drain(n).await;
            }
            if let Some(token) = token {
                let complete =
                    self.clients.aws.autoscaling.complete_lifecycle_action().auto_scaling_group_name("group");
                let complete =
                    complete.lifecycle_hook_name("hook").lifecycle_action_token(token).instance_id(instance(n));
                complete.lifecycle_action_result("CONTINUE").send().await.expect("the completion must work");
            }
        }
        receipt
    }

    async fn drain(&self, n: usize) {
        let evictions = self.pods(n, Some("0")).await.into_iter().map(|pod| async move {
            let body = json!({
                "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": "default" },
            });
            let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
            let evict = Request::post(path).header("content-type", "application/json");
            self.call::<IgnoredAny>(evict.body(body.to_string().into_bytes()).expect("an eviction is a request")).await;
        });
        futures_util::future::join_all(evictions).await;
        sleep(s(2)).await;
        assert_eq!(self.pods(n, None).await, Vec::<String>::new(), "the pods must be gone");
    }

    async fn pods(&self, n: usize, version: Option<&str>) -> Vec<String> {
        let version = version.map_or_else(String::new, |version| format!("&resourceVersion={version}"));
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}{version}", node(n));
        let list = Request::get(path).body(Vec::new()).expect("a list is a request");
        self.call::<Pods>(list).await.items.into_iter().map(|pod| pod.metadata.name).collect()
    }

    async fn call<T: DeserializeOwned>(&self, request: Request<Vec<u8>>) -> T {
        let _place = self.places.acquire().await.expect("nobody closes it");
        self.clients.kube.request(request).await.expect("the call must work")
    }

    async fn delete(&self, receipts: Vec<String>) {
        let entry = |(n, receipt): (usize, String)| {
            DeleteMessageBatchRequestEntry::builder().id(n.to_string()).receipt_handle(receipt).build()
        };
        let entries: Result<Vec<_>, _> = receipts.into_iter().enumerate().map(entry).collect();
        let delete = self.clients.aws.sqs.delete_message_batch().queue_url(&self.url);
        let deleted = delete.set_entries(Some(entries.expect("entries are whole"))).send().await;
        assert!(deleted.expect("the deletion must work").failed.is_empty());
    }
}

/// Checks that the roofline did the same work as the service.
fn check(stage: &Stage, nodes: usize) {
    assert!(stage.world.aws.sqs.is_empty());
    let made = stage.world.calls.tally();
    let exact = mix::exact(nodes);
    for same in ["patch nodes", "list pods", "create pods/eviction", "CompleteLifecycleAction"] {
        let expected = exact.iter().find(|(call, _)| *call == same).map_or(0, |(_, count)| *count);
        assert_eq!(made.get(same).copied().unwrap_or_default(), expected, "{same}");
    }
    let drained = exact.iter().find(|(call, _)| *call == "list pods").map_or(0, |(_, count)| count / 2);
    assert_eq!(stage.world.kube.evictions().len(), drained * PODS);
}
