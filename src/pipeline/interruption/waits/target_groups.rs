//! The target groups that an instance or its pods may be registered with. AWS has no call for the groups of a target, so all groups of the
//! cluster and of the instance's Auto Scaling group are searched, once for all notices of some minutes.

use super::service_groups::ServiceGroups;
use super::target_group::{Source, TargetGroup};
use crate::clients::answers::{Answers, DENIAL_KEPT, Denials, FAILURE_KEPT};
use crate::clients::gate::{AwsClass, AwsError, Backoff, Call, Category, Class, Failure, Gate, KubeError, Operation};
use crate::clients::trimmed::Trimmed;
use crate::fact::{Fact, Facts};
use crate::pipeline::event::InstanceId;
use crate::pipeline::interruption::group_lookup::GroupLookup;
use crate::pipeline::node::OwnerLookup;
use aws_sdk_autoscaling::Client;
use kube::Api;
use kube::api::{ApiResource, ListParams};
use kube::core::GroupVersionKind;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time for which found target groups are kept.
const KEPT: Duration = Duration::from_mins(5);

/// Maximum time of a search: a completion waits for it.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);

const DESCRIBE_GROUPS: Operation = Operation::new("autoscaling", "DescribeAutoScalingGroups");

/// A `TargetGroupBinding` of the AWS Load Balancer Controller, on the wire.
type Binding = Trimmed<Spec, IgnoredAny>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    /// The controller's webhook fills it in if the binding has only a name.
    #[serde(default, rename = "targetGroupARN")]
    target_group_arn: String,
    #[serde(default)]
    target_type: String,
    /// The role for a target group of another account, which Ebbtide does not take.
    #[serde(default)]
    iam_role_arn_to_assume: String,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct FoundGroups {
    /// The groups; none if they could not be found.
    pub groups: Arc<[TargetGroup]>,
    /// Whether another search may find more, because this one failed for now.
    pub may_be_more: bool,
}

/// A search for target groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Search {
    /// Those of all bindings.
    Bindings,
    /// Those with the tags of the cluster's Services.
    Services,
    /// Those of the Auto Scaling group of this name.
    Group(String),
}

/// Finds target groups.
pub struct TargetGroups {
    bindings: Api<Binding>,
    kube_gate: Gate,
    services: ServiceGroups,
    client: Client,
    gate: Gate<AwsClass>,
    facts: Facts,
    /// What searches have found, each with the time for which it is kept.
    found: Answers<Search, (FoundGroups, Duration)>,
    /// Finds the Auto Scaling groups of instances that no hook names.
    group_lookup: Option<GroupLookup>,
    lookup_denial: Denials,
}

/// Why a search failed.
enum SearchError {
    Kube(KubeError),
    Aws(AwsError),
}

impl SearchError {
    const fn category(&self) -> Category {
        match self {
            Self::Kube(error) => error.category,
            Self::Aws(error) => error.category,
        }
    }
}

impl Failure for SearchError {
    fn wait(&self, delay: Duration) -> Duration {
        match self {
            Self::Kube(error) => error.wait(delay),
            Self::Aws(error) => error.wait(delay),
        }
    }
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kube(error) => error.fmt(f),
            Self::Aws(error) => error.fmt(f),
        }
    }
}

impl TargetGroups {
    /// Searches with these clients. Makes no call before an interruption needs one.
    #[must_use]
    pub fn new(
        (kube, kube_gate): (kube::Client, Gate),
        client: Client,
        elb: aws_sdk_elasticloadbalancingv2::Client,
        owner: OwnerLookup,
        facts: Facts,
    ) -> Self {
        let kind = GroupVersionKind::gvk("elbv2.k8s.aws", "v1beta1", "TargetGroupBinding");
        let bindings = Api::all_with(kube, &ApiResource::from_gvk(&kind));
        let gate = Gate::new(facts.clone());
        Self {
            bindings,
            kube_gate,
            services: ServiceGroups::new(elb, owner, facts.clone()),
            client,
            gate,
            facts,
            found: Answers::default(),
            group_lookup: None,
            lookup_denial: Denials::default(),
        }
    }

    /// Also finds the groups of instances that no hook names.
    #[must_use]
    pub fn with_group_lookup(self, group_lookup: GroupLookup) -> Self {
        Self { group_lookup: Some(group_lookup), ..self }
    }

    /// Returns the target groups of all bindings, of the cloud provider's Services, and of the instance's Auto Scaling group: `hook_group`,
    /// if a hook names it. Searches that fail for some seconds are reported, and their groups left out.
    pub async fn of(&self, instance: &InstanceId, hook_group: Option<&str>) -> FoundGroups {
        let by_group = async {
            let group = match hook_group {
                Some(group) => Ok(Some(group.to_owned())),
                None => self.group_of(instance).await,
            };
            match group {
                Ok(Some(group)) => self.cached(Search::Group(group)).await,
                Ok(None) => FoundGroups { groups: Arc::default(), may_be_more: false },
                Err(may_be_more) => FoundGroups { groups: Arc::default(), may_be_more },
            }
        };
        let (bindings, services) = (self.cached(Search::Bindings), self.cached(Search::Services));
        let (by_group, services, bindings) = futures_util::future::join3(by_group, services, bindings).await;
        // One group may be found in several ways: the last one counts.
        let found = [by_group, services, bindings];
        let all = found.iter().flat_map(|found| found.groups.iter());
        let all: BTreeMap<&str, &TargetGroup> = all.map(|group| (&*group.arn, group)).collect();
        let groups = all.into_values().cloned().collect();
        FoundGroups { groups, may_be_more: found.iter().any(|found| found.may_be_more) }
    }

    /// Returns the instance's Auto Scaling group, or whether another try may find one.
    async fn group_of(&self, instance: &InstanceId) -> Result<Option<String>, bool> {
        let Some(group_lookup) = &self.group_lookup else { return Ok(None) };
        if self.lookup_denial.is_recent(&()) {
            return Err(false);
        }
        match group_lookup.find(instance).await {
            Ok(found) => Ok(found.map(|found| found.group)),
            Err(error) => {
                let may_be_more = !is_final(error.category);
                // Reported once for the instances of a storm.
                if error.category != Category::Denied || !self.lookup_denial.is_recent(&()) {
                    if error.category == Category::Denied {
                        self.lookup_denial.note(());
                    }
                    self.failed(&SearchError::Aws(error));
                }
                Err(may_be_more)
            }
        }
    }

    /// Returns what was found, or searches. Only the first of several callers asks; the others wait for its answer.
    async fn cached(&self, search: Search) -> FoundGroups {
        let ask = || async {
            match self.search(&search).await {
                Ok(found) => (FoundGroups { groups: found.into(), may_be_more: false }, KEPT),
                Err(error) => {
                    self.failed(&error);
                    let denied = error.category() == Category::Denied;
                    let found = FoundGroups { groups: Arc::default(), may_be_more: !is_final(error.category()) };
                    (found, if denied { DENIAL_KEPT } else { FAILURE_KEPT })
                }
            }
        };
        self.found.get(search.clone(), |(_, kept)| *kept, ask).await.0
    }

    fn failed(&self, error: &SearchError) {
        self.facts.emit(&Fact::LoadBalancerFailed { category: error.category(), error });
    }

    async fn search(&self, search: &Search) -> Result<Vec<TargetGroup>, SearchError> {
        let by = Instant::now() + SEARCH_TIMEOUT;
        let search = || {
            Box::pin(async move {
                match search {
                    Search::Bindings => self.of_bindings(by).await.map_err(SearchError::Kube),
                    Search::Services => self.services.find(by).await.map_err(SearchError::Aws),
                    Search::Group(group) => self.of_group(group, by).await.map_err(SearchError::Aws),
                }
            })
        };
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
        backoff.retry(Some(by), search, |error| !is_final(error.category())).await
    }

    async fn of_bindings(&self, by: Instant) -> Result<Vec<TargetGroup>, KubeError> {
        let call = Call { verb: "list", resource: "targetgroupbindings", subject: "" };
        let params = ListParams::default();
        let listed = match self.kube_gate.kube(call, Class::List, by, || self.bindings.list(&params)).await {
            Ok(listed) => listed,
            // The cluster has no AWS Load Balancer Controller.
            Err(error) if error.category == Category::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let group = |binding: Binding| {
            let Spec { target_group_arn, target_type, iam_role_arn_to_assume } = binding.spec;
            let (namespace, name) = (binding.metadata.namespace?.into(), binding.metadata.name?.into());
            let from = Source::Binding { namespace, name, pods: target_type == "ip" };
            let ours = !target_group_arn.is_empty() && iam_role_arn_to_assume.is_empty();
            ours.then(|| TargetGroup { arn: target_group_arn.into(), from })
        };
        Ok(listed.items.into_iter().filter_map(group).collect())
    }

    async fn of_group(&self, group: &str, by: Instant) -> Result<Vec<TargetGroup>, AwsError> {
        let request = self.client.describe_auto_scaling_groups().auto_scaling_group_names(group);
        let answer = self.gate.aws(DESCRIBE_GROUPS, group, AwsClass::Describe, by, || request.send()).await?;
        let mut arns = Vec::new();
        for found in answer.auto_scaling_groups.unwrap_or_default() {
            arns.extend(found.target_group_arns.unwrap_or_default());
            // The newer list of the same, if a group was attached by it.
            let sources = found.traffic_sources.unwrap_or_default().into_iter();
            arns.extend(sources.filter_map(|source| source.identifier.filter(|arn| arn.contains(":targetgroup/"))));
        }
        arns.sort_unstable();
        arns.dedup();
        let of_group = |arn: String| TargetGroup { arn: arn.into(), from: Source::Group(group.into()) };
        Ok(arns.into_iter().map(of_group).collect())
    }
}

/// Whether a retry does not help.
const fn is_final(category: Category) -> bool {
    matches!(category, Category::Denied | Category::Invalid | Category::NotFound)
}
