//! Trials of the service's own calls to AWS, each in a form that cannot have an effect: a row of a table for each call.

use super::super::arn::queue_arn;
use super::super::aws_calls::{for_load_balancers, lifecycle, reboots, replaces};
use super::super::groups::trial_hook;
use super::super::readings::{CallTrial, Reading, ScalingGroup, ScalingGroups, TrialAnswer};
use super::Probe;
use super::aws::each;
use crate::cli::settings::Settings;
use crate::clients::connect::AwsClients;
use crate::clients::gate::Operation;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, ForLoadBalancers, name_of};
use aws_sdk_elasticloadbalancingv2::types::TargetDescription;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use std::collections::BTreeSet;

/// A lifecycle action token, and a receipt handle, that AWS never issued.
const INVALID: &str = "00000000-0000-0000-0000-000000000000";

/// The effect of a denial of either call for replacements.
const UNREPLACED: &str = "nodes are drained without a replacement first";

/// The effect of a denial of either call for the target groups of Services.
const SERVICES_MISSED: &str = "target groups of the cloud provider's Services are not waited for";

/// A row of the table.
pub struct Trial {
    /// The name of its check.
    pub name: &'static str,
    /// The IAM action.
    pub action: Operation,
    /// The effect of its denial.
    pub without: &'static str,
    /// Whether the service makes the call with these settings.
    needed: fn(&Settings) -> bool,
    /// The objects that it is tried on.
    on: Objects,
    /// Makes the call about one of them; `None` if its answer has been read already.
    make: Option<Make>,
}

/// Makes a call about an object.
type Make = for<'a> fn(&'a Probe, Operation, &'a Object) -> BoxFuture<'a, Reading<()>>;

/// The objects that a call is tried on: each of them where an IAM policy may require a tag that only some carry.
#[derive(Clone, Copy)]
enum Objects {
    Queue,
    /// Any object, which errors name like this.
    Any(&'static str),
    Groups,
    /// A hook of each group.
    Hooks,
    TargetGroups,
    ListOfGroups,
    /// An instance of each group.
    Instances,
}

/// An object of a call.
struct Object {
    /// Its name in the finding; empty for any object.
    subject: String,
    /// Its name in errors.
    name: String,
    /// What the request names: the queue's URL, the hook, the target group's ARN or the instance.
    id: String,
    /// The answer about it, if it has been read already.
    known: Reading<()>,
}

impl Object {
    fn new(subject: &str, name: &str, id: &str) -> Self {
        Self { subject: subject.to_owned(), name: name.to_owned(), id: id.to_owned(), known: Ok(()) }
    }

    fn read<T>(subject: &str, answer: &Reading<T>) -> Self {
        Self { known: answer.as_ref().map(drop).map_err(Clone::clone), ..Self::new(subject, "", "") }
    }
}

/// Sends a request for its error alone: any other answer means that the call is allowed.
fn make<'a, F, T, E>(
    probe: &'a Probe,
    operation: Operation,
    object: &'a Object,
    send: impl FnOnce(&AwsClients, &Object) -> F + Send + 'a,
) -> BoxFuture<'a, Reading<()>>
where
    F: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    async move {
        let clients = probe.clients()?;
        probe.aws(operation, &object.name, || send(clients, object)).await.map(drop)
    }
    .boxed()
}

/// The [`Make`] of this request.
macro_rules! request {
    (|$aws:ident, $object:pat_param| $request:expr) => {
        Some(|probe, operation, object| make(probe, operation, object, |$aws, $object| $request.send()))
    };
}

/// All calls, in the order of the output.
pub const ALL: [Trial; 17] = [
    Trial {
        name: "delete",
        action: Operation::new("sqs", "DeleteMessage"),
        without: "messages come back until they expire",
        needed: |settings| settings.sources.queue,
        on: Objects::Queue,
        make: request!(|aws, queue| aws.sqs.delete_message_batch().queue_url(&queue.id).set_entries(deletion())),
    },
    Trial {
        name: "extend",
        action: Operation::new("sqs", "ChangeMessageVisibility"),
        without: "other replicas receive a message while it is being worked on",
        needed: |settings| settings.sources.queue,
        on: Objects::Queue,
        make: request!(|aws, queue| {
            aws.sqs.change_message_visibility_batch().queue_url(&queue.id).set_entries(extension())
        }),
    },
    Trial {
        name: "instances",
        action: Operation::new("ec2", "DescribeInstances"),
        without: "instances without a Node can't be distinguished from those of other clusters",
        needed: |settings| settings.sources.ask_aws(),
        on: Objects::Any("any instance"),
        make: request!(|aws, _| aws.ec2.describe_instances().dry_run(true)),
    },
    Trial {
        name: "scheduled-changes",
        action: Operation::new("ec2", "DescribeInstanceStatus"),
        without: "EC2's list of scheduled changes neither finds unannounced changes nor confirms a notice",
        needed: |settings| listed(settings, NoticeKind::ScheduledChange) || polls(settings, NoticeKind::StatusCheck),
        on: Objects::Any("any instance"),
        make: request!(|aws, _| aws.ec2.describe_instance_status().dry_run(true)),
    },
    Trial {
        name: "reservations",
        action: Operation::new("ec2", "DescribeCapacityReservations"),
        without: "EC2's list of Capacity Blocks neither finds unannounced ends nor confirms a notice",
        needed: |settings| listed(settings, NoticeKind::CapacityReservation),
        on: Objects::Any("any reservation"),
        make: request!(|aws, _| aws.ec2.describe_capacity_reservations().dry_run(true)),
    },
    Trial {
        name: "spot-requests",
        action: Operation::new("ec2", "DescribeSpotInstanceRequests"),
        without: "no spot warning is confirmed: beyond a quarter of the nodes it waits for 30 s, and beyond a limit of yours it leads to no drain",
        needed: |settings| confirms(settings, NoticeKind::Spot),
        on: Objects::Any("any spot request"),
        make: request!(|aws, _| aws.ec2.describe_spot_instance_requests().dry_run(true)),
    },
    Trial {
        name: "members",
        action: Operation::new("autoscaling", "DescribeAutoScalingInstances"),
        without: "lifecycle hooks are neither found for terminations that Nodes report (--node-hook) nor confirmed",
        needed: |settings| confirms(settings, NoticeKind::AsgTerminate) || settings.sources.hooks,
        on: Objects::Any("any instance"),
        make: request!(|aws, _| aws.autoscaling.describe_auto_scaling_instances().max_records(1)),
    },
    Trial {
        name: "target-health",
        action: Operation::new("elasticloadbalancing", "DescribeTargetHealth"),
        without: "hooks are completed while load balancers still send traffic",
        needed: |settings| for_load_balancers(settings) != ForLoadBalancers::Nothing,
        on: Objects::Any("any target group"),
        make: request!(|aws, _| aws.elb.describe_target_health().target_group_arn(unknown_target_group(aws))),
    },
    Trial {
        name: "target-groups",
        action: Operation::new("elasticloadbalancing", "DescribeTargetGroups"),
        without: SERVICES_MISSED,
        needed: |settings| for_load_balancers(settings) != ForLoadBalancers::Nothing,
        on: Objects::Any("all target groups"),
        make: request!(|aws, _| aws.elb.describe_target_groups().page_size(1)),
    },
    Trial {
        name: "target-group-tags",
        action: Operation::new("elasticloadbalancing", "DescribeTags"),
        without: SERVICES_MISSED,
        needed: |settings| for_load_balancers(settings) != ForLoadBalancers::Nothing,
        on: Objects::Any("any target group"),
        make: request!(|aws, _| aws.elb.describe_tags().resource_arns(unknown_target_group(aws))),
    },
    Trial {
        name: "hooks",
        action: Operation::new("autoscaling", "DescribeLifecycleHooks"),
        without: "every hook is treated as one with a timeout of 30 s",
        needed: |_| true,
        on: Objects::Groups,
        make: None,
    },
    Trial {
        name: "heartbeat",
        action: Operation::new("autoscaling", "RecordLifecycleActionHeartbeat"),
        without: "hooks expire during a drain",
        needed: lifecycle,
        on: Objects::Hooks,
        make: request!(|aws, Object { name: group, id: hook, .. }| {
            let request = aws.autoscaling.record_lifecycle_action_heartbeat().lifecycle_action_token(INVALID);
            request.auto_scaling_group_name(group).lifecycle_hook_name(hook)
        }),
    },
    Trial {
        name: "complete",
        action: Operation::new("autoscaling", "CompleteLifecycleAction"),
        without: "instances wait for the hook's timeout after each drain",
        needed: lifecycle,
        on: Objects::Hooks,
        make: request!(|aws, Object { name: group, id: hook, .. }| {
            let request = aws.autoscaling.complete_lifecycle_action().lifecycle_action_token(INVALID);
            request.auto_scaling_group_name(group).lifecycle_hook_name(hook).lifecycle_action_result("CONTINUE")
        }),
    },
    Trial {
        name: "deregister",
        action: Operation::new("elasticloadbalancing", "DeregisterTargets"),
        without: "instances stay registered until they are gone",
        needed: |settings| for_load_balancers(settings) == ForLoadBalancers::Deregister,
        on: Objects::TargetGroups,
        make: request!(|aws, group| {
            aws.elb.deregister_targets().target_group_arn(&group.id).targets(unknown_target())
        }),
    },
    Trial {
        name: "groups",
        action: Operation::new("autoscaling", "DescribeAutoScalingGroups"),
        without: UNREPLACED,
        needed: replaces,
        on: Objects::ListOfGroups,
        make: None,
    },
    Trial {
        name: "replace",
        action: Operation::new("autoscaling", "SetInstanceHealth"),
        without: UNREPLACED,
        needed: replaces,
        on: Objects::Instances,
        // A health that does not exist.
        make: request!(|aws, it| aws.autoscaling.set_instance_health().instance_id(&it.id).health_status("None")),
    },
    Trial {
        name: "reboot",
        action: Operation::new("ec2", "RebootInstances"),
        without: "unhealthy nodes are drained, and stay",
        needed: reboots,
        on: Objects::Instances,
        make: request!(|aws, it| aws.ec2.reboot_instances().instance_ids(&it.id).dry_run(true)),
    },
];

/// Returns a batch with one deletion, which fails. Its builder can't fail, because no field is missing.
fn deletion() -> Option<Vec<DeleteMessageBatchRequestEntry>> {
    let entry = DeleteMessageBatchRequestEntry::builder().id("none").receipt_handle(INVALID);
    entry.build().ok().map(|entry| vec![entry])
}

/// Returns a batch with one extension, which fails, as [`deletion`] does.
fn extension() -> Option<Vec<ChangeMessageVisibilityBatchRequestEntry>> {
    let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id("none").receipt_handle(INVALID);
    entry.visibility_timeout(30).build().ok().map(|entry| vec![entry])
}

/// Returns the ARN of a target group that does not exist, which only the right to ask finds out.
fn unknown_target_group(aws: &AwsClients) -> String {
    let region = aws.region().unwrap_or_default();
    format!("arn:aws:elasticloadbalancing:{region}:000000000000:targetgroup/ebbtide/0000000000000000")
}

/// Returns an instance that does not exist.
fn unknown_target() -> TargetDescription {
    TargetDescription::builder().id("i-00000000000000000").build()
}

/// Whether the settings lead to polls of EC2 about this kind.
fn polls(settings: &Settings, kind: NoticeKind) -> bool {
    settings.ec2_poll_interval.is_some() && settings.acts_on(kind, |action| action != Action::Ignore)
}

/// Whether the settings lead to calls that confirm notices of this kind.
fn confirms(settings: &Settings, kind: NoticeKind) -> bool {
    settings.policy().admission.may_ask() && settings.acts_on(kind, Action::drains)
}

/// Whether the settings lead to calls for EC2's list of this kind.
fn listed(settings: &Settings, kind: NoticeKind) -> bool {
    polls(settings, kind) || confirms(settings, kind)
}

/// Tries the calls that are not about groups.
pub async fn of_account(settings: &Settings, probe: &Probe) -> Vec<CallTrial> {
    let url = &settings.queue_url;
    let objects = |on| match on {
        Objects::Queue => vec![Object::new(queue_arn(None, url).as_ref().unwrap_or(url), url, url)],
        Objects::Any(name) => vec![Object::new("", name, "")],
        _ => Vec::new(),
    };
    tried(settings, probe, objects).await
}

/// Tries the calls about these groups.
pub async fn of_groups(settings: &Settings, probe: &Probe, groups: &Reading<ScalingGroups>) -> Vec<CallTrial> {
    let all = || groups.iter().flat_map(|groups| &groups.groups);
    let most = probe.extent.trials;
    let hook = |it: &ScalingGroup| Some(Object::new(&it.name, &it.name, trial_hook(settings, it)?));
    let instance = |it: &ScalingGroup| {
        let (instance, _) = it.state.members.first_key_value()?;
        Some(Object::new(&it.name, instance, instance))
    };
    let objects = |on| match on {
        Objects::Queue | Objects::Any(_) => Vec::new(),
        Objects::ListOfGroups => vec![Object::read("", groups)],
        Objects::Groups => all().map(|group| Object::read(&group.name, &group.hooks)).collect(),
        Objects::Hooks => all().filter_map(hook).take(most).collect(),
        Objects::Instances => all().filter_map(instance).take(most).collect(),
        Objects::TargetGroups => {
            let arns: BTreeSet<&String> = all().flat_map(|group| &group.target_groups).collect();
            arns.into_iter().take(most).map(|arn| Object::new(name_of(arn), name_of(arn), arn)).collect()
        }
    };
    tried(settings, probe, objects).await
}

/// Tries the calls that the settings need, each on all its objects.
async fn tried(settings: &Settings, probe: &Probe, objects: impl Fn(Objects) -> Vec<Object>) -> Vec<CallTrial> {
    let needed = ALL.iter().filter(|row| (row.needed)(settings));
    let trials = needed.map(|row| (row, objects(row.on))).filter(|(_, objects)| !objects.is_empty());
    let trials = trials.map(async |(&Trial { name, action, without, make, .. }, objects)| {
        let answer = async |object| match make {
            Some(make) => make(probe, action, object).await,
            None => object.known.clone(),
        };
        let answers = each(&objects, answer).await;
        let answers = objects.into_iter().zip(answers);
        let answers = answers.map(|(object, answer)| TrialAnswer { subject: object.subject, answer });
        CallTrial { name, action, without, answers: answers.collect() }
    });
    join_all(trials).await
}
