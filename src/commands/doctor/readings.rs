//! The values that the doctor reads and judges. `read` makes them; the judges take them.

mod agents;
mod nodes;
mod policies;

pub use agents::{AgentPod, Agents};
pub use nodes::Nodes;
#[cfg(test)]
pub use nodes::region_of;
pub use policies::{Policies, Policy};

use crate::clients::gate::{AwsError, Category, KubeError, Operation, SigningFailure};
use crate::pipeline::interruption::Group;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// A value that was read, or the reason why it was not.
pub type Reading<T> = Result<T, ReadError>;

/// The reason why a value could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// The error's category.
    pub category: Category,
    /// One sentence.
    pub message: String,
    /// Set if a call to AWS could not be signed.
    pub unsigned: Option<SigningFailure>,
}

impl ReadError {
    /// Returns an error of this category.
    #[must_use]
    pub fn new(category: Category, message: impl Into<String>) -> Self {
        Self { category, message: message.into(), unsigned: None }
    }

    /// Whether a permission is missing.
    #[must_use]
    pub fn denied(&self) -> bool {
        self.category == Category::Denied
    }

    /// Whether the server answered what was asked. A refusal is an answer, but not one of credentials that have expired.
    #[must_use]
    pub fn answered(&self) -> bool {
        !self.category.may_pass()
    }
}

impl From<AwsError> for ReadError {
    fn from(error: AwsError) -> Self {
        Self { category: error.category, message: error.to_string(), unsigned: error.unsigned }
    }
}

impl From<KubeError> for ReadError {
    fn from(error: KubeError) -> Self {
        Self::new(error.category, error.to_string())
    }
}

/// All values that are read.
#[derive(Clone, Debug)]
pub struct Readings {
    /// Why there is no client for AWS, if there is none.
    pub no_aws: Option<String>,
    /// Why there is no client for the API server, if there is none.
    pub no_cluster: Option<String>,
    /// The region of the calls to AWS.
    pub region: Option<String>,
    /// The caller's identity at AWS.
    pub identity: Reading<CallerIdentity>,
    /// The queue's attributes.
    pub queue: Reading<QueueAttributes>,
    /// The rules that send to the queue.
    pub rules: Reading<EventRules>,
    /// The Auto Scaling groups of the cluster's nodes.
    pub groups: Reading<ScalingGroups>,
    /// Whether a service on this machine is ready.
    pub ready_here: bool,
    /// The service's own calls to AWS, made without an effect.
    pub trials: Vec<CallTrial>,
    /// The API server's version and time.
    pub server: Reading<ApiServer>,
    /// The caller's name at the API server.
    pub username: Option<String>,
    /// The API server's answers about permissions.
    pub reviews: Vec<AccessReview>,
    /// The cluster's Nodes.
    pub nodes: Reading<Nodes>,
    /// The instances of Nodes, in the order of the Nodes.
    pub instances: Reading<Vec<NodeInstance>>,
    /// The cluster's pods, by owner.
    pub workloads: Reading<Workloads>,
    /// The cluster's disruption budgets.
    pub budgets: Reading<Budgets>,
    /// Dry runs of what marks put on a Node.
    pub marks: Vec<TrialAnswer>,
    /// The chart's admission policies; `None` if the API server has no such policies.
    pub policies: Reading<Option<Policies>>,
    /// The agents, if Nodes are a source and the agents have had time to start.
    pub agents: Option<Reading<Agents>>,
}

/// EC2's description of a Node's instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInstance {
    /// Its ID.
    pub id: String,
    /// The names of clusters in its tags.
    pub clusters: Vec<String>,
    /// The reach of its metadata service, if EC2 reports it.
    pub metadata: Option<MetadataOptions>,
}

/// The reach of an instance's metadata service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataOptions {
    /// Whether it is enabled.
    pub on: bool,
    /// Whether it answers without a token. The hop limit applies to tokens only.
    pub without_token: bool,
    /// Maximum number of hops of the answer with a token. A pod on a network of its own is one hop away from the node's.
    pub hop_limit: i32,
}

/// The answer of STS about the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerIdentity {
    /// The account.
    pub account: String,
    /// The ARN of the role's session or of the user.
    pub arn: String,
}

/// The queue's attributes, under SQS's names.
pub type QueueAttributes = BTreeMap<String, String>;

/// The EventBridge rules whose target is the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRules {
    /// The rules that could be described.
    pub rules: Vec<EventRule>,
    /// The first error of a rule that could not be read, or whose pattern could not be tested.
    pub unread: Option<ReadError>,
    /// Whether all is known: the list was not cut off, and nothing is `unread`.
    pub complete: bool,
}

/// An EventBridge rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRule {
    /// The rule's name.
    pub name: String,
    /// The rule's ARN.
    pub arn: String,
    /// Whether the rule is enabled.
    pub enabled: bool,
    /// The events that its pattern matches, of those that were tried; none of a schedule.
    pub sends: Reading<Vec<SentEvent>>,
}

/// An event that a rule's pattern matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentEvent {
    /// The event, with only the fields that all events of its kind share.
    pub event: Value,
    /// Another field on which the pattern has a condition, so that the rule may not send all events of the kind.
    pub narrows: Option<String>,
}

impl EventRule {
    /// Returns how the rule sends this event, if it does.
    #[must_use]
    pub fn sends(&self, event: &Value) -> Option<&SentEvent> {
        self.sends.iter().flatten().find(|sent| sent.event == *event)
    }
}

/// The Auto Scaling groups of the cluster's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScalingGroups {
    /// The groups whose hooks were read.
    pub groups: Vec<ScalingGroup>,
    /// The number of further groups.
    pub more: usize,
    /// Whether all groups of the account were listed.
    pub complete: bool,
}

/// An Auto Scaling group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalingGroup {
    /// The group's name.
    pub name: String,
    /// Whether capacity rebalancing is on.
    pub rebalances: bool,
    /// Whether the group keeps an instance whose terminating hook is abandoned.
    pub retains: bool,
    /// The group's state, as far as replacements need it; without its hooks.
    pub state: Group,
    /// The ARNs of the target groups that its instances are registered with.
    pub target_groups: Vec<String>,
    /// The group's lifecycle hooks.
    pub hooks: Reading<Vec<HookConfig>>,
}

/// The configuration of a lifecycle hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookConfig {
    /// The hook's name.
    pub name: String,
    /// Whether the hook is for terminations; otherwise it is for launches.
    pub terminating: bool,
    /// The heartbeat timeout.
    pub heartbeat: Duration,
    /// Whether an action without a completion ends with CONTINUE.
    pub continues: bool,
    /// The ARN of the hook's notification target.
    pub notifies: Option<String>,
    /// The ARN of the role with which Auto Scaling notifies the target.
    pub notifying_role: Option<String>,
}

/// The answers to one of the service's calls, made without an effect, for each subject that it was tried on.
#[derive(Clone, Debug)]
pub struct CallTrial {
    /// The name of its check.
    pub name: &'static str,
    /// The IAM action.
    pub action: Operation,
    /// The effect of its denial.
    pub without: &'static str,
    /// The answers.
    pub answers: Vec<TrialAnswer>,
}

/// The answer to a call about one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialAnswer {
    /// The queue or the group, or what a mark puts on a Node.
    pub subject: String,
    /// The refusal, if the call was refused.
    pub answer: Reading<()>,
}

/// The API server's version and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// The version.
    pub version: String,
    /// The server's time in whole seconds, if its answer has one.
    pub date: Option<Timestamp>,
    /// Our time before the request.
    pub asked_at: Timestamp,
    /// Our time after the answer.
    pub answered_at: Timestamp,
}

/// A permission in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resource with its subresource, such as `pods/eviction`.
    pub resource: &'static str,
    /// The verb.
    pub verb: &'static str,
    /// The namespace; empty for all namespaces and for cluster-scoped resources.
    pub namespace: String,
    /// The object's name; empty for all objects.
    pub name: &'static str,
    /// The effect of its absence.
    pub without: &'static str,
}

/// The API server's answer about one permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessReview {
    /// The permission.
    pub permission: Permission,
    /// Whether it is granted.
    pub allowed: Reading<bool>,
}

/// The pods that a drain would evict, by owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workloads {
    /// The workloads, by owner.
    pub workloads: BTreeMap<PodOwner, Workload>,
    /// The pod with the longest grace period.
    pub longest_grace: Option<PodGrace>,
    /// Whether all pods were listed.
    pub complete: bool,
}

/// The owner of pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodOwner {
    /// The owner's namespace.
    pub namespace: String,
    /// The owner's kind.
    pub kind: String,
    /// The owner's name.
    pub name: String,
}

/// The pods of one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The number of pods.
    pub pods: usize,
    /// The labels of one of them.
    pub labels: BTreeMap<String, String>,
}

/// A pod's grace period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGrace {
    /// The pod, for people.
    pub pod: String,
    /// The grace period.
    pub period: Duration,
}

/// The cluster's disruption budgets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budgets {
    /// The budgets.
    pub budgets: Vec<BudgetState>,
    /// Whether all budgets were listed.
    pub complete: bool,
}

/// A disruption budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BudgetState {
    /// The budget's namespace.
    pub namespace: String,
    /// The budget's name.
    pub name: String,
    /// The selector of its pods. `None` selects no pod; an empty selector selects all pods of the namespace.
    pub selector: Option<LabelSelector>,
    /// The number of pods that it expects.
    pub expected: i32,
    /// The number of pods that must be healthy.
    pub desired: i32,
    /// Whether the status is for the current version of the budget.
    pub current: bool,
}
