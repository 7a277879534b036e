//! What the API server is asked, and how.

use super::super::check::{Failed, Read};
use super::super::clock_skew::Server;
use super::super::cluster::{Budget, Budgets, Nodes, Workloads};
use super::super::permissions::Need;
use super::{Ask, so_far};
use crate::clients::gate::Category;
use crate::clients::trimmed::Trimmed;
use crate::pipeline::drain::MIRROR_ANNOTATION;
use futures_util::StreamExt;
use futures_util::stream;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{ApiResource, ListParams, PostParams};
use kube::{Api, Resource};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::time::Duration;

/// So many objects a page. One of Nodes is about a megabyte of text, for a moment; the service checks its set-up with what it has.
const PAGE: u32 = 100;

/// So many questions at once.
const AT_ONCE: usize = 8;

/// What kube's client makes of an answer's text.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

/// Its version and its time, which everybody who has credentials may ask for.
pub async fn server(ask: &Ask) -> Read<Server> {
    let client = ask.cluster()?;
    let before = ask.clock.now();
    let request = http::Request::get("/version").body(kube::client::Body::empty());
    let request = request.map_err(|error| super::unknown(&error.to_string()))?;
    let (date, body) = ask
        .kube("get", "version", || async move {
            let answer = client.send(request).await?;
            let date = answer.headers().get(http::header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
            let refused = answer.status();
            let body = answer.into_body().collect_bytes().await?;
            if refused.is_success() { Ok((date, body)) } else { Err(status(refused, &body)) }
        })
        .await?;
    let after = ask.clock.now();
    let version: Version = serde_json::from_slice(&body).map_err(|_| Failed {
        category: Category::Invalid,
        what: "What answers is no API server; check KUBECONFIG.".to_owned(),
    })?;
    Ok(Server { version: version.git_version, date: date.and_then(|date| timestamp(&date)), ours: (before, after) })
}

fn timestamp(date: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}

fn status(code: http::StatusCode, body: &[u8]) -> kube::Error {
    let text = String::from_utf8_lossy(body);
    let status = serde_json::from_slice(body).unwrap_or_else(|_| kube::core::Status::failure(&text, "Unknown"));
    kube::Error::Api(Box::new(status.with_code(code.as_u16())))
}

/// Who we are to it, as servers since Kubernetes 1.28 tell.
pub async fn who(ask: &Ask) -> Option<String> {
    let api: Api<SelfSubjectReview> = Api::all(ask.cluster().ok()?);
    let review = SelfSubjectReview::default();
    let params = PostParams::default();
    let answer = ask.kube("create", "selfsubjectreviews", || api.create(&params, &review)).await.ok()?;
    answer.status?.user_info?.username
}

/// What we may do there, asked one by one.
pub async fn reviews(ask: &Ask, needs: Vec<Need>) -> Vec<(Need, Read<bool>)> {
    let reviewed = |need: Need| async move {
        let may = review(ask, &need).await;
        (need, may)
    };
    stream::iter(needs).map(reviewed).buffered(AT_ONCE).collect().await
}

async fn review(ask: &Ask, need: &Need) -> Read<bool> {
    let api: Api<SelfSubjectAccessReview> = Api::all(ask.cluster()?);
    let (resource, sub) = need.resource.split_once('/').map_or((need.resource, None), |(r, sub)| (r, Some(sub)));
    let attributes = ResourceAttributes {
        group: Some(need.group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: sub.map(str::to_owned),
        verb: Some(need.verb.to_owned()),
        // The API server takes what is empty for all.
        namespace: Some(need.namespace.clone()),
        name: Some(need.name.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let params = PostParams::default();
    let answer = ask.kube("create", "selfsubjectaccessreviews", || api.create(&params, &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Goes through a list, page by page, and says whether it came to the end. What was read when the time is up counts.
async fn pages<K: Resource<DynamicType = ()>, P, U>(
    ask: &Ask,
    name: &'static str,
    mut each: impl FnMut(Trimmed<P, U>),
) -> Read<bool>
where
    Trimmed<P, U>: Clone + std::fmt::Debug + DeserializeOwned + Resource<DynamicType = ApiResource>,
{
    let api: Api<Trimmed<P, U>> = Api::all_with(ask.cluster()?, &ApiResource::erase::<K>(&()));
    let mut params = ListParams::default().limit(PAGE);
    for page in 0..ask.extent.pages {
        let Some(page) = so_far(page, ask.kube("list", name, || api.list(&params)).await)? else { return Ok(false) };
        page.items.into_iter().for_each(&mut each);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(true),
        }
    }
    Ok(false)
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Provided {
    #[serde(default, rename = "providerID")]
    provider_id: Option<String>,
}

/// All Nodes.
pub async fn nodes(ask: &Ask) -> Read<Nodes> {
    let mut nodes = Nodes::default();
    nodes.all = pages::<Node, Provided, IgnoredAny>(ask, "nodes", |node| {
        nodes.add(node.metadata.name.unwrap_or_default(), node.spec.provider_id.as_deref());
    })
    .await?;
    Ok(nodes)
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Running {
    #[serde(default)]
    termination_grace_period_seconds: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Phase {
    #[serde(default)]
    phase: String,
}

/// All pods that a drain would move, by who made them.
pub async fn workloads(ask: &Ask) -> Read<Workloads> {
    let mut workloads = Workloads::default();
    workloads.all = pages::<Pod, Running, Phase>(ask, "pods", |pod| add(&mut workloads, pod)).await?;
    Ok(workloads)
}

fn add(workloads: &mut Workloads, pod: Trimmed<Running, Phase>) {
    let meta = pod.metadata;
    let mirror = meta.annotations.is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION));
    let owner = meta.owner_references.unwrap_or_default().into_iter().find(|owner| owner.controller == Some(true));
    let daemon = owner.as_ref().is_some_and(|owner| owner.kind == "DaemonSet");
    if mirror || daemon || matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
        return;
    }
    let (namespace, name) = (meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default());
    let grace = Duration::from_secs(pod.spec.termination_grace_period_seconds.unwrap_or(30));
    if workloads.longest_grace.as_ref().is_none_or(|(_, longest)| grace > *longest) {
        workloads.longest_grace = Some((format!("pod {namespace}/{name}"), grace));
    }
    let labels = meta.labels.unwrap_or_default();
    let (kind, owner) = owner.map_or_else(|| ("Pod".to_owned(), name), |owner| (owner.kind, owner.name));
    // People know the Deployment, whose ReplicaSet has its name and this hash.
    let owner = match labels.get("pod-template-hash") {
        Some(hash) if kind == "ReplicaSet" => owner.trim_end_matches(hash.as_str()).trim_end_matches('-').to_owned(),
        _ => owner,
    };
    let owned = workloads.owners.entry((namespace, kind, owner)).or_default();
    owned.pods += 1;
    owned.labels = labels;
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Selected {
    #[serde(default)]
    selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Counted {
    #[serde(default)]
    expected_pods: i32,
    #[serde(default)]
    desired_healthy: i32,
    #[serde(default)]
    observed_generation: i64,
}

/// All disruption budgets.
pub async fn budgets(ask: &Ask) -> Read<Budgets> {
    let mut budgets = Budgets::default();
    budgets.all = pages::<PodDisruptionBudget, Selected, Counted>(ask, "poddisruptionbudgets", |budget| {
        let generation = budget.metadata.generation.unwrap_or_default().max(1);
        budgets.budgets.push(Budget {
            namespace: budget.metadata.namespace.unwrap_or_default(),
            name: budget.metadata.name.unwrap_or_default(),
            selector: budget.spec.selector,
            expected: budget.status.expected_pods,
            desired: budget.status.desired_healthy,
            // What no controller has looked at says nothing.
            current: budget.status.observed_generation >= generation,
        });
    })
    .await?;
    Ok(budgets)
}
