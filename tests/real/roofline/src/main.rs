//! The roofline: a bare client that knows the nodes already and drains them as fast as the API server allows.
//!
//! The client has no queue, no notices, no index, no budgets and no deadlines. It patches every node, then lists the pods of each
//! node, then evicts every pod, with 64 calls at a time. Its time is the API server's time, the lower bound with which
//! `tests/real/storm` compares the service.
//!
//! Standard input holds the names of the nodes, one a line; `KUBECONFIG` names the cluster. The API server's audit log has the time
//! of each call.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Config};
use std::io::Read;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of concurrent calls, which is also the service's initial limit.
const IN_FLIGHT: usize = 64;

/// Pause before an eviction is repeated that a busy API server refused. The fleet has no budgets.
const AGAIN: Duration = Duration::from_millis(50);

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut names = String::new();
    std::io::stdin().read_to_string(&mut names)?;
    let names: Vec<&str> = names.split_whitespace().collect();
    let mut config = Config::infer().await?;
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::all(client.clone());

    let began = now();
    stream::iter(&names).map(Ok).try_for_each_concurrent(IN_FLIGHT, |name| cordon(&nodes, name)).await?;
    let found: Vec<_> = stream::iter(&names)
        .map(|name| list(&pods, name))
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<Vec<_>>()
        .await?
        .into_iter()
        .flatten()
        .collect();
    stream::iter(&found).map(Ok).try_for_each_concurrent(IN_FLIGHT, |pod| evict(&client, pod)).await?;
    println!("{}", serde_json::json!({ "began": began, "ended": now(), "nodes": names.len(), "pods": found.len() }));
    Ok(())
}

async fn cordon(nodes: &Api<Node>, name: &str) -> Result<(), Error> {
    let patch = Patch::Merge(serde_json::json!({ "spec": { "unschedulable": true } }));
    nodes.patch_metadata(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn list(pods: &Api<Pod>, node: &str) -> Result<Vec<PartialObjectMeta<Pod>>, Error> {
    let params = ListParams::default().fields(&format!("spec.nodeName={node}")).match_any();
    Ok(pods.list_metadata(&params).await?.items)
}

async fn evict(client: &Client, pod: &PartialObjectMeta<Pod>) -> Result<(), Error> {
    let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else { return Ok(()) };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    loop {
        match pods.evict(name, &Default::default()).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 429 => tokio::time::sleep(AGAIN).await,
            Err(error) => return Err(format!("evict {namespace}/{name}: {error}").into()),
        }
    }
}

/// Returns the seconds since the epoch, comparable with times of the audit log.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
