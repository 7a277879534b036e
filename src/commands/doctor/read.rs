//! Reading all values: the calls run at the same time, each with its timeout, and all with one deadline.

mod aws;
mod here;
mod kube;
mod trials;

#[cfg(test)]
pub(super) use trials::{ALL as CALLS, Trial};

use super::arn::queue_arn;
use super::readings::{
    AccessReview, Agents, Budgets, CallTrial, EventRules, NodeInstance, Nodes, Permission, Policies, QueueAttributes,
    ReadError, Reading, Readings, ScalingGroups, TrialAnswer, Workloads,
};
use super::{permissions, rules};
use crate::cli::settings::Settings;
use crate::clients::connect::{AvailableClients, AwsClients};
use crate::clients::gate;
use crate::clients::gate::{Call, Category, Class, Gate, Operation};
use crate::fact::Facts;
use crate::pipeline::event::InstanceId;
use crate::runtime::clock::Clock;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use futures_util::future::OptionFuture;
use std::collections::HashSet;
use std::time::Duration;
use tokio::join;
use tokio::time::{Instant, timeout_at};

/// Timeout of one call. An answer takes no longer in a healthy set-up.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout of all calls together. The longest chain, of the queue's rules, has four calls.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(9);

/// The amount of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Maximum number of pages of a list.
    pub pages: usize,
    /// Maximum number of groups whose hooks are read.
    pub groups: usize,
    /// Maximum number of rules that are read.
    pub rules: usize,
    /// Maximum number of groups on whose hooks lifecycle calls are tried.
    pub trials: usize,
    /// Maximum number of instances whose description is read.
    pub instances: usize,
    /// Whether agents are looked for.
    pub agents: bool,
}

impl Extent {
    /// For `ebbtide doctor`: as much as the time allows.
    pub const WHOLE: Self = Self { pages: 1000, groups: 200, rules: 100, trials: 200, instances: 10_000, agents: true };

    /// For the start of the service, which is busy: no whole list of a large cluster, and few calls whose rate limit heartbeats share. Agents
    /// of the same release are only starting, too.
    pub const START: Self = Self { pages: 20, groups: 20, rules: 20, trials: 2, instances: 200, agents: false };
}

/// The clients and limits of the calls.
#[derive(Clone)]
pub struct Probe {
    /// The clients, or the error's text.
    aws: Result<AwsClients, String>,
    cluster: Result<::kube::Client, String>,
    gate: Gate,
    clock: Clock,
    extent: Extent,
    deadline: Instant,
    /// Facts without subscribers: calls that are meant to fail would count as errors in the metrics.
    no_facts: Facts,
}

impl Probe {
    /// Returns a probe whose total timeout begins now.
    #[must_use]
    pub fn new(clients: AvailableClients, gate: Gate, clock: Clock, extent: Extent) -> Self {
        let aws = clients.aws.map_err(|error| error.to_string());
        let cluster = clients.kube.map_err(|error| error.to_string());
        let deadline = Instant::now() + TOTAL_TIMEOUT;
        Self { aws, cluster, gate, clock, extent, deadline, no_facts: Facts::to(Vec::new()) }
    }

    fn clients(&self) -> Reading<&AwsClients> {
        self.aws.as_ref().map_err(|error| unknown(error))
    }

    fn cluster(&self) -> Reading<::kube::Client> {
        self.cluster.clone().map_err(|error| unknown(&error))
    }

    fn call_deadline(&self) -> Instant {
        self.deadline.min(Instant::now() + READ_TIMEOUT)
    }

    async fn aws<T, E, F>(&self, operation: Operation, subject: &str, request: impl FnOnce() -> F) -> Reading<T>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let limit = self.call_deadline().saturating_duration_since(Instant::now());
        let call = operation.to_string();
        if limit.is_zero() {
            return Err(timed_out(&call));
        }
        let answer = gate::aws(&self.no_facts, operation, subject, limit, request).await;
        answer.map_err(|error| with_round_timeout(error.into(), &call))
    }

    async fn kube<T, F>(&self, verb: &'static str, resource: &'static str, request: impl FnOnce() -> F) -> Reading<T>
    where
        F: Future<Output = Result<T, ::kube::Error>>,
    {
        let (until, call) = (self.call_deadline(), Call { verb, resource, subject: "" });
        match timeout_at(until, self.gate.kube(call, Class::Background, until, request)).await {
            Ok(answer) => answer.map_err(|error| with_round_timeout(error.into(), &format!("{verb} {resource}"))),
            Err(_) => Err(timed_out(&format!("{verb} {resource}"))),
        }
    }
}

fn timed_out(call: &str) -> ReadError {
    ReadError::new(Category::TimedOut, format!("{call}: no answer within {} s", READ_TIMEOUT.as_secs()))
}

/// Replaces the text of a timeout: one that earlier calls have shortened reads like 2.9999986 s.
fn with_round_timeout(error: ReadError, call: &str) -> ReadError {
    if error.category == Category::TimedOut { timed_out(call) } else { error }
}

/// Reads all values.
pub async fn read(settings: &Settings, probe: &Probe) -> Readings {
    let of_queue = Box::pin(of_queue(settings, probe));
    let of_groups = Box::pin(of_groups(settings, probe));
    let of_aws = async { join!(aws::identity(probe), of_queue, of_groups, trials::of_account(settings, probe)) };
    let of_cluster = async { join!(kube::server(probe), kube::username(probe), Box::pin(permitted(settings, probe))) };
    let (of_aws, of_cluster, ready_here) = join!(of_aws, of_cluster, here::ready(probe, settings.admin_address));
    let (identity, (queue, rules), (nodes, instances, groups, of_groups), trials) = of_aws;
    let (server, username, PermittedReadings { reviews, workloads, budgets, marks, policies, agents }) = of_cluster;
    Readings {
        no_aws: probe.aws.as_ref().err().cloned(),
        no_cluster: probe.cluster.as_ref().err().cloned(),
        region: probe.aws.as_ref().ok().and_then(AwsClients::region).map(str::to_owned),
        identity,
        queue,
        rules,
        groups,
        ready_here,
        trials: [trials, of_groups].concat(),
        server,
        username,
        reviews,
        nodes,
        instances,
        workloads,
        budgets,
        marks,
        policies,
        agents,
    }
}

/// Reads the queue, then its rules.
async fn of_queue(settings: &Settings, probe: &Probe) -> (Reading<QueueAttributes>, Reading<EventRules>) {
    if !settings.sources.queue {
        let none = || unknown("There is no queue.");
        return (Err(none()), Err(none()));
    }
    let attributes = aws::attributes(probe, &settings.queue_url).await;
    let rules = match queue_arn(attributes.as_ref().ok(), &settings.queue_url) {
        Some(arn) => aws::rules(probe, &arn, &rules::events(settings)).await,
        None => Err(unknown("The queue's ARN is not known, so its rules can't be looked up.")),
    };
    (attributes, rules)
}

/// Reads the Nodes, then their instances and groups, then makes the calls about the groups.
async fn of_groups(
    settings: &Settings,
    probe: &Probe,
) -> (Reading<Nodes>, Reading<Vec<NodeInstance>>, Reading<ScalingGroups>, Vec<CallTrial>) {
    let nodes = kube::nodes(settings, probe).await;
    let ids: HashSet<&str> = nodes.iter().flat_map(|nodes| &nodes.instances).map(InstanceId::as_str).collect();
    let instances = async {
        match nodes.as_ref().map_or(&[][..], |nodes| &nodes.instances) {
            [] => Err(unknown("No Node is known whose instance could be described.")),
            all => aws::described(probe, &all[..all.len().min(probe.extent.instances)]).await,
        }
    };
    let groups = async {
        match &nodes {
            // Without Nodes no group would be found, and a report of no groups would be wrong.
            Err(_) if settings.managed_tag.value.is_none() => {
                Err(unknown("The Nodes could not be listed, so their groups are not known."))
            }
            _ => aws::groups(probe, &settings.managed_tag, &ids).await,
        }
    };
    let (instances, groups) = join!(instances, groups);
    let trials = trials::of_groups(settings, probe, &groups).await;
    (nodes, instances, groups, trials)
}

/// The permissions, and what they allow to be read.
struct PermittedReadings {
    reviews: Vec<AccessReview>,
    workloads: Reading<Workloads>,
    budgets: Reading<Budgets>,
    marks: Vec<TrialAnswer>,
    policies: Reading<Option<Policies>>,
    agents: Option<Reading<Agents>>,
}

async fn permitted(settings: &Settings, probe: &Probe) -> PermittedReadings {
    let needed = permissions::needed(settings).into_iter().chain(permissions::OF_DOCTOR);
    let reviews = kube::reviews(probe, needed.collect()).await;
    // A list without permission is not tried: each refusal is an entry in the API server's audit log.
    let check = |allowed: bool, resource: &str| {
        let forbidden = || ReadError::new(Category::Denied, format!("Not allowed to list {resource}."));
        allowed.then_some(()).ok_or_else(forbidden)
    };
    let may_list = |list: &Permission| check(permissions::allowed(&reviews, list), list.resource);
    let may_list_pods = || check(permissions::lists_pods(&reviews), "pods");
    let budgets = async {
        may_list(&permissions::LIST_BUDGETS)?;
        kube::budgets(probe).await
    };
    let policies = async {
        may_list(&permissions::LIST_POLICIES)?;
        may_list(&permissions::LIST_BINDINGS)?;
        kube::policies(probe).await
    };
    let workloads = async {
        may_list_pods()?;
        kube::workloads(probe).await
    };
    let agents = OptionFuture::from((settings.sources.nodes && probe.extent.agents).then_some(async {
        may_list_pods()?;
        kube::agents(probe).await
    }));
    let marks = OptionFuture::from(permissions::patches_nodes(&reviews).then(|| kube::mark_trials(settings, probe)));
    let (budgets, policies, workloads, agents, marks) = join!(budgets, policies, workloads, agents, marks);
    PermittedReadings { reviews, workloads, budgets, marks: marks.unwrap_or_default(), policies, agents }
}

/// Returns a page, or `None` if it timed out and earlier pages were read: then the list ends there.
fn page_in_time<T>(earlier: usize, page: Reading<T>) -> Reading<Option<T>> {
    match page {
        Err(error) if earlier > 0 && error.category == Category::TimedOut => Ok(None),
        page => page.map(Some),
    }
}

fn unknown(message: &str) -> ReadError {
    ReadError::new(Category::NotFound, message)
}
