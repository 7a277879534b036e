//! Reads from the API server.

use super::super::readings::{
    AccessReview, AgentPod, Agents, ApiServer, BudgetState, Budgets, Nodes, Permission, PodGrace, PodOwner, Policies,
    Policy, ReadError, Reading, TrialAnswer, Workloads,
};
use super::{Probe, page_in_time};
use crate::cli::settings::Settings;
use crate::clients::gate::Category;
use crate::clients::server_date;
use crate::clients::trimmed::Trimmed;
use crate::pipeline::drain::MIRROR_ANNOTATION;
use crate::pipeline::node::{Node as MarkedNode, node_api};
use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec,
};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{ApiResource, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use std::time::Duration;
use tokio::try_join;

/// Number of objects on a page. A page of Nodes is about 1 MB of text.
const PAGE_SIZE: u32 = 100;

/// Number of Nodes among which one of EC2 is searched for, to try marks on.
const FIRST_NODES: u32 = 20;

/// Label of the pods of agents. The chart sets it.
const AGENT_LABEL: &str = "ebbtide/agent=true";

/// Label of the chart's admission policies and of their bindings. The chart sets it: its value is what the policy is for.
const POLICY_LABEL: &str = "ebbtide/policy";

/// Maximum number of simultaneous access reviews.
const MAX_CONCURRENT: usize = 8;

/// The answer of /version.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

/// Reads version and time, which every client with credentials may.
pub async fn server(probe: &Probe) -> Reading<ApiServer> {
    let client = probe.cluster()?;
    let asked_at = probe.clock.now();
    let request = http::Request::get("/version").body(kube::client::Body::empty());
    let request = request.map_err(|error| super::unknown(&error.to_string()))?;
    let (date, body) = probe
        .kube("get", "version", || async move {
            let answer = client.send(request).await?;
            let date = answer.headers().get(http::header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
            let code = answer.status();
            let body = answer.into_body().collect_bytes().await?;
            if code.is_success() { Ok((date, body)) } else { Err(status(code, &body)) }
        })
        .await?;
    let answered_at = probe.clock.now();
    let version: Version = serde_json::from_slice(&body).map_err(|_| {
        ReadError::new(Category::Invalid, "The server that answers is not an API server; check KUBECONFIG.")
    })?;
    Ok(ApiServer {
        version: version.git_version,
        date: date.and_then(|date| server_date::parse(&date)),
        asked_at,
        answered_at,
    })
}

fn status(code: http::StatusCode, body: &[u8]) -> kube::Error {
    let text = String::from_utf8_lossy(body);
    let status = serde_json::from_slice(body).unwrap_or_else(|_| kube::core::Status::failure(&text, "Unknown"));
    kube::Error::Api(Box::new(status.with_code(code.as_u16())))
}

/// Reads our user name, which servers report since Kubernetes 1.28.
pub async fn username(probe: &Probe) -> Option<String> {
    let api: Api<SelfSubjectReview> = Api::all(probe.cluster().ok()?);
    let review = SelfSubjectReview::default();
    let params = PostParams::default();
    let answer = probe.kube("create", "selfsubjectreviews", || api.create(&params, &review)).await.ok()?;
    answer.status?.user_info?.username
}

/// Asks for each permission whether we have it.
pub async fn reviews(probe: &Probe, permissions: Vec<Permission>) -> Vec<AccessReview> {
    let review = |permission: Permission| async move {
        let allowed = review(probe, &permission).await;
        AccessReview { permission, allowed }
    };
    stream::iter(permissions).map(review).buffered(MAX_CONCURRENT).collect().await
}

async fn review(probe: &Probe, permission: &Permission) -> Reading<bool> {
    let api: Api<SelfSubjectAccessReview> = Api::all(probe.cluster()?);
    let (resource, sub) =
        permission.resource.split_once('/').map_or((permission.resource, None), |(r, sub)| (r, Some(sub)));
    let attributes = ResourceAttributes {
        group: Some(permission.group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: sub.map(str::to_owned),
        verb: Some(permission.verb.to_owned()),
        // To the API server an empty namespace means all namespaces.
        namespace: Some(permission.namespace.clone()),
        name: Some(permission.name.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let params = PostParams::default();
    let answer = probe.kube("create", "selfsubjectaccessreviews", || api.create(&params, &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Lists all objects with these labels, page by page. Returns whether the list is complete: at the timeout the pages so far count.
async fn pages<K: Resource<DynamicType = ()>, P, U>(
    probe: &Probe,
    name: &'static str,
    labels: &str,
    mut each: impl FnMut(Trimmed<P, U>),
) -> Reading<bool>
where
    Trimmed<P, U>: Clone + std::fmt::Debug + DeserializeOwned + Resource<DynamicType = ApiResource>,
{
    let api: Api<Trimmed<P, U>> = Api::all_with(probe.cluster()?, &ApiResource::erase::<K>(&()));
    let mut params = ListParams::default().labels(labels).limit(PAGE_SIZE);
    for page in 0..probe.extent.pages {
        let Some(page) = page_in_time(page, probe.kube("list", name, || api.list(&params)).await)? else {
            return Ok(false);
        };
        page.items.into_iter().for_each(&mut each);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(true),
        }
    }
    Ok(false)
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeSpec {
    #[serde(default, rename = "providerID")]
    provider_id: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

/// Reads all Nodes.
pub async fn nodes(settings: &Settings, probe: &Probe) -> Reading<Nodes> {
    let mut nodes = Nodes { scope: settings.scope.clone(), ..Nodes::default() };
    nodes.complete = pages::<Node, NodeSpec, NodeStatus>(probe, "nodes", "", |node| {
        let conditions = node.status.conditions.into_iter().map(|condition| condition.r#type);
        nodes.add_conditions(conditions);
        let labels = node.metadata.labels.unwrap_or_default();
        nodes.add(node.metadata.name.unwrap_or_default(), node.spec.provider_id.as_deref(), labels);
    })
    .await?;
    Ok(nodes)
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    termination_grace_period_seconds: Option<u64>,
    #[serde(default)]
    node_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Phase {
    #[serde(default)]
    phase: String,
    #[serde(default)]
    conditions: Vec<Condition>,
}

/// Reads all pods that a drain would evict, by owner.
pub async fn workloads(probe: &Probe) -> Reading<Workloads> {
    let mut workloads = Workloads::default();
    workloads.complete = pages::<Pod, PodSpec, Phase>(probe, "pods", "", |pod| add(&mut workloads, pod)).await?;
    Ok(workloads)
}

fn add(workloads: &mut Workloads, pod: Trimmed<PodSpec, Phase>) {
    let meta = pod.metadata;
    let mirror = meta.annotations.is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION));
    let owner = meta.owner_references.unwrap_or_default().into_iter().find(|owner| owner.controller == Some(true));
    let daemon = owner.as_ref().is_some_and(|owner| owner.kind == "DaemonSet");
    if mirror || daemon || matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
        return;
    }
    let (namespace, name) = (meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default());
    let grace = Duration::from_secs(pod.spec.termination_grace_period_seconds.unwrap_or(30));
    if workloads.longest_grace.as_ref().is_none_or(|longest| grace > longest.period) {
        workloads.longest_grace = Some(PodGrace { pod: format!("pod {namespace}/{name}"), period: grace });
    }
    let labels = meta.labels.unwrap_or_default();
    let (kind, owner) = owner.map_or_else(|| ("Pod".to_owned(), name), |owner| (owner.kind, owner.name));
    // The name of a Deployment's ReplicaSet is the Deployment's name and this hash.
    let name = match labels.get("pod-template-hash") {
        Some(hash) if kind == "ReplicaSet" => owner.trim_end_matches(hash.as_str()).trim_end_matches('-').to_owned(),
        _ => owner,
    };
    let workload = workloads.workloads.entry(PodOwner { namespace, kind, name }).or_default();
    workload.pods += 1;
    workload.labels = labels;
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

/// Reads all agents.
pub async fn agents(probe: &Probe) -> Reading<Agents> {
    let mut agents = Agents::default();
    agents.complete = pages::<Pod, PodSpec, Phase>(probe, "pods", AGENT_LABEL, |pod| {
        let ready = pod.status.conditions.iter().any(|is| is.r#type == "Ready" && is.status == "True");
        let known = agents.by_node.get(&pod.spec.node_name);
        if known.is_none_or(|known| !known.ready) {
            let (namespace, name) = (pod.metadata.namespace.unwrap_or_default(), pod.metadata.name.unwrap_or_default());
            agents.by_node.insert(pod.spec.node_name, AgentPod { namespace, name, ready });
        }
    })
    .await?;
    Ok(agents)
}

/// Reads the chart's admission policies; `None` if the API server has no such policies.
pub async fn policies(probe: &Probe) -> Reading<Option<Policies>> {
    let (mut policies, mut enforced) = (Vec::new(), Vec::new());
    let all = pages::<ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec, IgnoredAny>(
        probe,
        "validatingadmissionpolicies",
        POLICY_LABEL,
        |policy| {
            let kind = policy.metadata.labels.and_then(|mut labels| labels.remove(POLICY_LABEL)).unwrap_or_default();
            let name = policy.metadata.name.unwrap_or_default();
            policies.push(Policy { kind, name, spec: policy.spec });
        },
    );
    let bindings = pages::<ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, IgnoredAny>(
        probe,
        "validatingadmissionpolicybindings",
        POLICY_LABEL,
        |binding| enforced.extend(enforced_by(binding.spec)),
    );
    match try_join!(all, bindings) {
        Ok(_) => Ok(Some(Policies { policies, enforced })),
        Err(error) if error.category == Category::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the name of the policy whose refusals a binding enforces for all objects.
fn enforced_by(binding: ValidatingAdmissionPolicyBindingSpec) -> Option<String> {
    let denies = binding.validation_actions.unwrap_or_default().iter().any(|action| action == "Deny");
    (denies && binding.match_resources.is_none() && binding.param_ref.is_none()).then_some(binding.policy_name?)
}

#[derive(Clone, Debug, Default, Deserialize)]
struct BudgetSpec {
    #[serde(default)]
    selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BudgetStatus {
    #[serde(default)]
    expected_pods: i32,
    #[serde(default)]
    desired_healthy: i32,
    #[serde(default)]
    observed_generation: i64,
}

/// Tries on a Node what marks put there, without an effect. Whether Nodes can be read is another check's.
pub async fn mark_trials(settings: &Settings, probe: &Probe) -> Vec<TrialAnswer> {
    let Ok(client) = probe.cluster() else { return Vec::new() };
    let api = node_api(client);
    let first = ListParams::default().limit(FIRST_NODES);
    let nodes = probe.kube("list", "nodes", || api.list(&first)).await.map(|list| list.items).unwrap_or_default();
    let mut nodes = nodes.into_iter();
    let ours = |node| MarkedNode::from_wire(node, &settings.scope, |_| false, &[], &[]);
    let Some(node) = nodes.find_map(ours) else { return Vec::new() };
    let name = &*node.name;
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    let policy = settings.policy();
    let trial = async |(subject, patch): (String, Value)| {
        let patch = Patch::Merge(patch);
        let answer = probe.kube("patch", "nodes", || api.patch(name, &params, &patch)).await.map(drop);
        TrialAnswer { subject, answer }
    };
    let trials = policy.mark_settings.trials(&node, policy.out_of_service_taint || settings.collect_nodes);
    stream::iter(trials).map(trial).buffered(MAX_CONCURRENT).collect().await
}

/// Reads all disruption budgets.
pub async fn budgets(probe: &Probe) -> Reading<Budgets> {
    let mut budgets = Budgets::default();
    budgets.complete =
        pages::<PodDisruptionBudget, BudgetSpec, BudgetStatus>(probe, "poddisruptionbudgets", "", |budget| {
            let generation = budget.metadata.generation.unwrap_or_default().max(1);
            budgets.budgets.push(BudgetState {
                namespace: budget.metadata.namespace.unwrap_or_default(),
                name: budget.metadata.name.unwrap_or_default(),
                selector: budget.spec.selector,
                expected: budget.status.expected_pods,
                desired: budget.status.desired_healthy,
                current: budget.status.observed_generation >= generation,
            });
        })
        .await?;
    Ok(budgets)
}
