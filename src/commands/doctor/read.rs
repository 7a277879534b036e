//! Reading all that is judged: the calls, several at once, each with its timeout and all with one.

mod aws;
mod here;
mod kube;

use super::aws_calls;
use super::aws_calls::{Trial, Tried};
use super::check::{Area, Check, Failed, Read};
use super::clock_skew::Server;
use super::cluster::{Budgets, Nodes, Workloads};
use super::credentials::Identity;
use super::groups;
use super::groups::Groups;
use super::permissions;
use super::permissions::{BUDGETS, Need};
use super::queue;
use super::queue::Attributes;
use super::rules::Rules;
use crate::cli::settings::Settings;
use crate::clients::connect::{Aws, Ways};
use crate::clients::gate;
use crate::clients::gate::{Call, Category, Class, Gate};
use crate::fact::Facts;
use crate::pipeline::event::InstanceId;
use crate::runtime::clock::Clock;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::collections::HashSet;
use std::time::Duration;
use tokio::join;
use tokio::time::{Instant, timeout_at};

/// One call is waited for no longer: a set-up in which an answer takes more is not healthy.
const ONE: Duration = Duration::from_secs(3);

/// All of them together; the longest chain is of three.
const ALL: Duration = Duration::from_secs(9);

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many pages of a list.
    pub pages: usize,
    /// How many groups' hooks.
    pub groups: usize,
    /// How many rules.
    pub rules: usize,
    /// On how many groups' hooks the calls are tried that keep and complete actions.
    pub trials: usize,
}

impl Extent {
    /// For somebody who waits for the answer: as much as the time allows.
    pub const WHOLE: Self = Self { pages: 1000, groups: 200, rules: 100, trials: 200 };

    /// For the service's start, which has more to do: no list of a large cluster whole, and hardly
    /// a call whose rate heartbeats share: it has just taken over messages.
    pub const START: Self = Self { pages: 20, groups: 20, rules: 20, trials: 2 };
}

/// What calls are made with.
#[derive(Clone)]
pub struct Ask {
    /// The clients, or what is said in the place of all that they would be asked.
    aws: Result<Aws, Check>,
    cluster: Result<::kube::Client, Check>,
    gate: Gate,
    clock: Clock,
    extent: Extent,
    by: Instant,
    /// Calls that are meant to be refused would look like trouble in the metrics: nobody hears of them.
    nobody: Facts,
}

impl Ask {
    /// From now on, for some seconds.
    #[must_use]
    pub fn new(ways: Ways, gate: Gate, clock: Clock, extent: Extent) -> Self {
        let aws = ways.aws.map_err(|error| Area::Credentials.unconnected(&error));
        let cluster = ways.kube.map_err(|error| Area::Permissions.unconnected(&error));
        Self { aws, cluster, gate, clock, extent, by: Instant::now() + ALL, nobody: Facts::to(Vec::new()) }
    }

    fn clients(&self) -> Read<&Aws> {
        self.aws.as_ref().map_err(|line| unknown(&line.found))
    }

    fn cluster(&self) -> Read<::kube::Client> {
        self.cluster.clone().map_err(|line| unknown(&line.found))
    }

    fn until(&self) -> Instant {
        self.by.min(Instant::now() + ONE)
    }

    async fn aws<T, E, F>(
        &self,
        operation: (&'static str, &'static str),
        subject: &str,
        request: impl FnOnce() -> F,
    ) -> Read<T>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let limit = self.until().saturating_duration_since(Instant::now());
        if limit.is_zero() {
            return Err(late(&format!("{}:{}", operation.0, operation.1)));
        }
        let answer = gate::aws(&self.nobody, operation, subject, limit, request).await;
        answer.map_err(|error| timely(error.into(), &format!("{}:{}", operation.0, operation.1)))
    }

    async fn kube<T, F>(&self, verb: &'static str, resource: &'static str, request: impl FnOnce() -> F) -> Read<T>
    where
        F: Future<Output = Result<T, ::kube::Error>>,
    {
        let (until, call) = (self.until(), Call { verb, resource, subject: "" });
        match timeout_at(until, self.gate.kube(call, Class::Background, until, request)).await {
            Ok(answer) => answer.map_err(|error| timely(error.into(), &format!("{verb} {resource}"))),
            Err(_) => Err(late(&format!("{verb} {resource}"))),
        }
    }
}

fn late(what: &str) -> Failed {
    Failed { category: Category::TimedOut, what: format!("{what}: no answer within {} s", ONE.as_secs()) }
}

/// A limit that was cut by what went before reads like 2.9999986 s.
fn timely(failed: Failed, what: &str) -> Failed {
    if failed.category == Category::TimedOut { late(what) } else { failed }
}

/// All that was read, or why not.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What is said in the place of all that AWS would be asked, where there is no way to it.
    pub no_aws: Option<Check>,
    /// The same for the API server.
    pub no_cluster: Option<Check>,
    /// The region that AWS is asked in.
    pub region: Option<String>,
    /// Who we are.
    pub identity: Read<Identity>,
    /// The queue's attributes.
    pub queue: Read<Attributes>,
    /// The rules that send to the queue.
    pub rules: Read<Rules>,
    /// The groups of the cluster's nodes.
    pub groups: Read<Groups>,
    /// Whether a service that is ready is here.
    pub ready_here: bool,
    /// What calls of the service would be answered.
    pub trials: Vec<Trial>,
    /// What the API server says of itself.
    pub server: Read<Server>,
    /// Who we are to it.
    pub who: Option<String>,
    /// What we may do there.
    pub reviews: Vec<(Need, Read<bool>)>,
    /// The Nodes.
    pub nodes: Read<Nodes>,
    /// The pods, by who made them.
    pub workloads: Read<Workloads>,
    /// The budgets.
    pub budgets: Read<Budgets>,
}

/// Reads everything.
pub async fn see(settings: &Settings, ask: &Ask) -> Seen {
    let queue = async {
        let attributes = aws::attributes(ask, &settings.queue_url).await;
        let rules = match queue::arn(attributes.as_ref().ok(), &settings.queue_url) {
            Some(arn) => aws::rules(ask, &arn).await,
            None => Err(unknown("The queue's ARN is not known, so its rules can't be looked up.")),
        };
        (attributes, rules)
    };
    let cluster = async {
        let nodes = kube::nodes(ask).await;
        let instances: HashSet<&str> =
            nodes.iter().flat_map(|nodes| &nodes.instances).map(InstanceId::as_str).collect();
        let groups = match &nodes {
            // Without a Node no group would be known as this cluster's, and that there is none would be untrue.
            Err(_) if settings.managed_tag.value.is_none() => {
                Err(unknown("The Nodes could not be listed, so their groups are not known."))
            }
            _ => aws::groups(ask, &settings.managed_tag, &instances).await,
        };
        let trials = lifecycle(settings, ask, &groups).await;
        (nodes, groups, trials)
    };
    let may = async {
        let needs = permissions::needs(settings).into_iter().chain([BUDGETS]);
        let reviews = kube::reviews(ask, needs.collect()).await;
        // A service without these rights should not ask in vain: each refusal is in the API server's audit log.
        let refused = |what| Failed { category: Category::Denied, what: format!("Not allowed to list {what}.") };
        let budgets = async {
            if !permissions::allowed(&reviews, &BUDGETS) {
                return Err(refused("poddisruptionbudgets"));
            }
            kube::budgets(ask).await
        };
        let workloads = async {
            if !permissions::lists_pods(&reviews) {
                return Err(refused("pods"));
            }
            kube::workloads(ask).await
        };
        let (budgets, workloads) = join!(budgets, workloads);
        (reviews, budgets, workloads)
    };
    let messages = async {
        let on = queue::arn(None, &settings.queue_url).unwrap_or_else(|| settings.queue_url.clone());
        let (delete, extend) = join!(aws::delete(ask, &settings.queue_url), aws::extend(ask, &settings.queue_url));
        [(Tried::Delete, delete), (Tried::Extend, extend)]
            .map(|(tried, answer)| Trial { tried, answers: vec![(on.clone(), answer)] })
    };
    let (
        identity,
        (queue, rules),
        (nodes, groups, hooks),
        (reviews, budgets, workloads),
        messages,
        instances,
        server,
        who,
        ready_here,
    ) = join!(
        aws::identity(ask),
        Box::pin(queue),
        Box::pin(cluster),
        Box::pin(may),
        Box::pin(messages),
        aws::instances(ask),
        kube::server(ask),
        kube::who(ask),
        here::ready(ask, settings.admin_address),
    );
    let mut trials = Vec::from(messages);
    trials.push(Trial { tried: Tried::Instances, answers: vec![(String::new(), instances)] });
    trials.extend(hooks);
    Seen {
        no_aws: ask.aws.as_ref().err().cloned(),
        no_cluster: ask.cluster.as_ref().err().cloned(),
        region: ask.aws.as_ref().ok().and_then(Aws::region).map(str::to_owned),
        identity,
        queue,
        rules,
        groups,
        ready_here,
        trials,
        server,
        who,
        reviews,
        nodes,
        workloads,
        budgets,
    }
}

/// Tries the calls about lifecycle hooks on each group, because a policy may ask for a tag that one of them lacks.
async fn lifecycle(settings: &Settings, ask: &Ask, groups: &Read<Groups>) -> Vec<Trial> {
    let Ok(groups) = groups else { return Vec::new() };
    let described =
        groups.groups.iter().map(|group| (group.name.clone(), group.hooks.as_ref().map(drop).map_err(Clone::clone)));
    let described: Vec<_> = described.collect();
    let mut trials = Vec::new();
    if !described.is_empty() {
        trials.push(Trial { tried: Tried::Hooks, answers: described });
    }
    if !aws_calls::lifecycle(settings) {
        return trials;
    }
    let mut hooks = groups::to_try(settings, groups);
    hooks.truncate(ask.extent.trials);
    if hooks.is_empty() {
        return trials;
    }
    let (beats, completions) = join!(
        aws::each(&hooks, |(group, hook)| aws::heartbeat(ask, group, hook)),
        aws::each(&hooks, |(group, hook)| aws::complete(ask, group, hook)),
    );
    let named = |answers: Vec<Read<()>>| hooks.iter().map(|(group, _)| group.clone()).zip(answers).collect();
    trials.push(Trial { tried: Tried::Heartbeat, answers: named(beats) });
    trials.push(Trial { tried: Tried::Complete, answers: named(completions) });
    trials
}

/// What was read when the time is up counts: `None` is the end of it. The first must have been read.
fn so_far<T>(read: usize, next: Read<T>) -> Read<Option<T>> {
    match next {
        Err(failed) if read > 0 && failed.category == Category::TimedOut => Ok(None),
        next => next.map(Some),
    }
}

fn unknown(what: &str) -> Failed {
    Failed { category: Category::NotFound, what: what.to_owned() }
}
