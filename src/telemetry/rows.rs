//! A row for each fact: its log line, with the names as fields, and what it counts.
//!
//! INFO shows one interruption in about eight lines. WARN needs attention. ERROR is a bug, or a hook that could not be completed.

use super::metrics::{MIN_OFTEN_RECEIVES, Metrics};
use crate::fact::{
    Category, CheckStatus, CollectionStop, DeadlineType, Fact, HeartbeatResult, HookFailure, LeaseEnd, MalformedReason,
    MessageCount, MessageRelease, NodeRef, NodeRefusal, NoticeOutcome, NoticeRef, NotificationResult, ReceiveOrder,
    Remedy, Replacement, Subscriber, SurgeOutcome, Unusual, WaitOutcome, label,
};
use crate::runtime::duration::Words;
use crate::telemetry::traces::trace_id;
use std::sync::Arc;
use tracing::{debug, error, info, warn};

/// Writes facts to the log, and counts them.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Whether lines about a notice name its trace.
    pub traces: bool,
    /// Where facts are counted; the agent, which has metrics of its own, needs no others.
    pub metrics: Option<Arc<Metrics>>,
}

/// A log line with the fields of a drain's Node.
macro_rules! on {
    ($level:ident, $on:expr, $($rest:tt)*) => {{
        let NodeRef { node, instance, .. } = $on;
        $level!(node, instance, $($rest)*)
    }};
}

impl Rows {
    /// Returns rows that are counted in `metrics`.
    #[must_use]
    pub const fn counted(metrics: Arc<Metrics>) -> Self {
        Self { traces: false, metrics: Some(metrics) }
    }
}

impl Subscriber for Rows {
    #[allow(clippy::too_many_lines, reason = "a row for each fact, so that none is forgotten")]
    fn note(&self, fact: &Fact<'_>) {
        if let Some(metrics) = &self.metrics {
            metrics.follow(fact);
        }
        let all = self.metrics.as_ref().map(|metrics| &metrics.all);
        // The metric of this name with these labels, changed by a method of it.
        macro_rules! change {
            ($metric:ident $([$($label:expr),*])?.$method:ident($($value:expr)?)) => {
                if let Some(all) = all {
                    all.$metric$(.with_label_values(&[$(AsRef::<str>::as_ref(&$label)),*] as &[&str]))?.$method($($value)?);
                }
            };
        }
        macro_rules! count {
            ($metric:ident $([$($label:expr),*])?) => { change!($metric$([$($label),*])?.inc()) };
        }
        macro_rules! retried {
            ($step:expr, $category:expr) => { count!(retries[$step, $category.as_str()]) };
        }
        macro_rules! observe {
            ($metric:ident[$($label:expr),*], $took:expr) => { change!($metric[$($label),*].observe($took.as_secs_f64())) };
        }
        // A gauge, or the number of what is counted at once.
        let whole = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let many = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);

        // A line with the notice's fields. The field is `message_id`: tracing calls the line's own text `message`.
        macro_rules! about {
            ($level:ident, $about:expr, $($rest:tt)*) => {{
                let NoticeRef { kind, instance, node, message } = $about;
                let trace_id = self.traces.then(|| trace_id(*$about).to_string());
                $level!(kind = kind.as_str(), instance, node, message_id = message, trace_id, $($rest)*)
            }};
        }

        match fact {
            // The service.
            Fact::Started { queue: "", sources, node_hook, dry_run } => {
                info!(version = env!("CARGO_PKG_VERSION"), source = %sources, node_hook, dry_run, "ebbtide starts, without a queue");
            }
            Fact::Started { queue, sources, dry_run, .. } => {
                info!(version = env!("CARGO_PKG_VERSION"), queue, source = %sources, dry_run, "ebbtide starts");
            }
            Fact::AdminListening { address } => info!(%address, "serving /metrics, /readyz and /healthz"),
            Fact::StatusListening { address } => info!(%address, "serving the status page"),
            // A warning, because a filter may hide less.
            Fact::LogFilterChanged { filter } => warn!(filter, "the filter of the log was changed"),
            Fact::StatusFailed { error } => warn!(%error, "there is no status page"),
            Fact::NodesSynced { nodes } => {
                change!(nodes.set(whole(*nodes)));
                info!(nodes, "Nodes listed");
            }
            Fact::Ready => {
                change!(ready.set(1));
                info!("ready: the Nodes are listed and the queue, if there is one, has answered");
            }
            Fact::WatchFailed { resource, error } => {
                count!(watch_failures[resource.as_str()]);
                warn!(resource = resource.as_str(), %error, "list or watch failed; restarted");
            }
            Fact::ListsNotStreamed { resource, error } => {
                info!(resource = resource.as_str(), %error, "the API server does not stream lists; using ordinary lists");
            }
            Fact::AgentStarted { node } => info!(version = env!("CARGO_PKG_VERSION"), node, "ebbtide agent starts"),
            Fact::AgentWrote { node, kind, text: "" } => {
                info!(node, kind = kind.as_str(), "notice removed from the Node");
            }
            Fact::AgentWrote { node, kind, text } => {
                info!(node, kind = kind.as_str(), text, "notice written to the Node");
            }
            Fact::AgentWriteFailed { node, category, error } => {
                warn!(node, category = category.as_str(), %error, "the Node could not be patched; retried");
            }
            Fact::MetadataFailed { why, again: false } => {
                warn!(reason = why.as_str(), remedy = why.remedy(), "the instance's metadata can't be read; retried");
            }
            Fact::MetadataAnswer => info!("the instance's metadata can be read again"),
            Fact::TaskPanicked { task } => {
                count!(panics);
                error!(task = task.as_str(), "a task panicked; please report this with the log");
            }
            Fact::ShutdownBegun { messages } => {
                change!(ready.set(0));
                info!(messages, "shutdown begins: messages are released");
            }
            Fact::ShutdownEnded { clean: true, took } => info!(took = %Words(*took), "shutdown ended"),
            Fact::ShutdownEnded { clean: false, took } => {
                warn!(took = %Words(*took), "shutdown aborted some work; its messages become visible within 30 s");
            }

            // Messages.
            Fact::ReceiveFailed { category, error } => {
                count!(receive_failures[category.as_str()]);
                warn!(%error, "receiving failed; retried");
            }
            Fact::MessageReceived { message, receives, age } => {
                count!(messages[MessageCount::Received.as_str()]);
                if let Some(age) = age {
                    let receive = match receives {
                        0 | 1 => ReceiveOrder::First,
                        2..MIN_OFTEN_RECEIVES => ReceiveOrder::Again,
                        MIN_OFTEN_RECEIVES.. => ReceiveOrder::Often,
                    };
                    observe!(message_age[receive.as_str()], age);
                }
                let age = age.map(Words).map(tracing::field::display);
                debug!(message_id = message, receives, age, "message received");
            }
            Fact::MessageMalformed { message, reason, error, excerpt } => {
                count!(messages_malformed[reason.as_str()]);
                warn!(message_id = message, reason = reason.as_str(), %error, excerpt, "message can't be read; deleted");
            }
            Fact::EntityUnreadable { message, error } => {
                count!(messages_malformed[MalformedReason::BadEntity.as_str()]);
                warn!(message_id = message, %error, "an instance in the message can't be read; the others are handled");
            }
            Fact::MessageIgnored { message, reason } => {
                count!(messages_ignored[reason.as_str()]);
                debug!(message_id = message, reason = reason.as_str(), "message ignored");
            }
            Fact::MessageDeleted { message } => {
                count!(messages[MessageCount::Deleted.as_str()]);
                info!(message_id = message, "message deleted");
            }
            Fact::MessageReleased { message, why } => {
                // One whose lease is lost was counted as such.
                if *why != MessageRelease::Lost {
                    count!(messages[MessageCount::Released.as_str()]);
                }
                info!(message_id = message, why = why.as_str(), "message released");
            }
            Fact::MessageLeaseEnded { message, why } => {
                // One that is too old is released next, or left, and counted then.
                if matches!(why, LeaseEnd::Lost | LeaseEnd::Away) {
                    count!(messages[MessageCount::LeaseEnded.as_str()]);
                }
                warn!(message_id = message, why = why.as_str(), "lease of the message ended");
            }
            Fact::MessageRetried { message, step, category, error } => {
                retried!(step.as_str(), category);
                warn!(message_id = message, step = step.as_str(), %error, "extending or deleting the message failed; retried");
            }
            Fact::MessageLeft { message, error, .. } => {
                count!(messages[MessageCount::Left.as_str()]);
                warn!(message_id = message, %error, "message could not be deleted or released; it becomes visible by itself");
            }

            // Notices, and the Node of each.
            Fact::NoticeBegun { about, action, until, hard, .. } => {
                let left = until.map(Words).map(tracing::field::display);
                about!(info, about, action = action.as_str(), left, hard, "notice accepted");
            }
            Fact::ClockStepped { by } => warn!(by = %format_args!("{by:#}"), "the machine's clock was set; followed"),
            Fact::ClockSkewed { ahead } => {
                change!(clock_ahead.set(ahead.as_secs()));
                if ahead.is_zero() {
                    info!("the machine's clock is right again");
                } else {
                    warn!(ahead = %format_args!("{ahead:#}"), "the machine's clock is off; using the time of AWS, or without a queue of the API server");
                }
            }
            Fact::TestNotice { about } => about!(info, about, "a test: this notice was made by ebbtide send"),
            Fact::NoticeJoined { about } => {
                count!(notices[about.kind.as_str(), "joined"]);
                about!(info, about, "a second copy of the notice joined the first");
            }
            Fact::NoticeRetried { about, pause } => {
                about!(warn, about, pause = %Words(*pause), "the change is ahead: its notice is kept, and tried again");
            }
            Fact::OwnerUnknown { about, category, error } => {
                retried!("owner", category);
                about!(warn, about, %error, "asking EC2 about the instance failed; retried");
            }
            Fact::ReservationUnknown { message, reservation, category, error } => {
                retried!("owner", category);
                warn!(message_id = message, reservation, %error, "looking up a capacity reservation's instances failed; retried");
            }
            Fact::NoticeUnusual { about, why, drains } => {
                count!(unusual[why.as_str()]);
                match why {
                    Unusual::TooManyDrains => {
                        let (draining, at_most) = drains.unzip();
                        about!(
                            warn,
                            about,
                            draining,
                            at_most,
                            "unusual: more nodes are drained than --max-draining allows"
                        );
                    }
                    Unusual::Late => {
                        about!(warn, about, "unusual: the notice's time is nearly over, or past; AWS is asked first");
                    }
                    Unusual::Unconfirmed => {
                        about!(
                            warn,
                            about,
                            "unusual: AWS has neither confirmed nor denied this notice in time; it is worked on"
                        );
                    }
                    Unusual::NotConfirmed => about!(warn, about, "unusual: AWS does not confirm this notice"),
                }
            }
            Fact::ConfirmationFailed { about, category, error } => {
                retried!("confirm", category);
                if *category == Category::Denied {
                    about!(warn, about, %error, "asking AWS to confirm a notice is not allowed; grant the permission");
                } else {
                    about!(warn, about, %error, "asking AWS to confirm a notice failed; retried");
                }
            }
            Fact::NodeAwaited { about, at_most } => {
                about!(info, about, at_most = %Words(*at_most), "the instance has no Node yet; waiting for it");
            }
            Fact::NoticeListed { about } => about!(info, about, "EC2 lists a notice that no message announced"),
            Fact::NoticeAnnotated { about } => about!(info, about, "notice found on the Node"),
            Fact::AgentNoticeRefused { on, annotation, error } => {
                count!(node_refusals[NodeRefusal::AgentNotice.as_str()]);
                on!(warn, on, annotation, %error, "invalid agent notice ignored; if the agent did not write it, find out who may patch Nodes");
            }
            Fact::TwinRefused { on } => {
                count!(node_refusals[NodeRefusal::Twin.as_str()]);
                on!(
                    warn,
                    on,
                    "another Node has the same instance; this Node's notices, plans and marks are ignored; delete the Node that is not the instance's"
                );
            }
            Fact::AnnotationsUnread { on, count } => {
                count!(node_refusals[NodeRefusal::Unread.as_str()]);
                on!(
                    warn,
                    on,
                    count,
                    "more annotations with one prefix than are read; the others are ignored; find out who may patch Nodes"
                );
            }
            Fact::AgentNoticesHeld { on } => {
                count!(node_refusals[NodeRefusal::Held.as_str()]);
                on!(
                    warn,
                    on,
                    "the agent reports or the Node plans new notices without end; the newest wait; find out who may patch Nodes"
                );
            }
            Fact::UndoRefused { on, entries, listed } => {
                count!(node_refusals[NodeRefusal::Undo.as_str()]);
                on!(
                    warn,
                    on,
                    entries,
                    listed,
                    "ebbtide/undo lists what Ebbtide did not put on the Node: left there; name the key of an earlier --taint in --former-taint, else find out who may patch Nodes"
                );
            }
            Fact::MarksDenied { on, category, error } => {
                retried!("marks", category);
                on!(
                    warn,
                    on,
                    %error,
                    "admission denied taints or labels: the cordon and the record were written without them; name a taint of extra arguments in settings.taint"
                );
            }
            Fact::RepairsHeld { kind, why, nodes, before, share: (unhealthy, of) } => {
                change!(repairs_held[kind.as_str(), why.as_str()].set(whole(*nodes)));
                match (nodes, before) {
                    (_, 0) => {
                        warn!(%kind, %why, nodes, unhealthy, of, "too many nodes are unhealthy; no further repairs start");
                    }
                    (0, _) => info!(%kind, %why, "repairs resumed"),
                    _ => {}
                }
            }
            Fact::ZonalShift { message, away_from, resource, until: Some(until) } => {
                count!(zonal_shifts["began"]);
                info!(message_id = message, away_from, resource, %until, "zonal shift: drains in other zones that have time wait");
            }
            Fact::ZonalShift { message, away_from, resource, until: None } => {
                count!(zonal_shifts["ended"]);
                info!(message_id = message, away_from, resource, "zonal shift is over");
            }
            Fact::ZonalShiftFailed { message, category, error } => {
                warn!(message_id = message, category = category.as_str(), %error, "noting a zonal shift on Nodes failed; retried");
            }
            Fact::NodesTurn { ours: true } => {
                change!(nodes_turn[].set(1));
                info!("this replica now handles notices from Nodes");
            }
            Fact::NodesTurn { ours: false } => {
                change!(nodes_turn[].set(0));
                info!("another replica now handles notices from Nodes");
            }
            Fact::NodesTurnUnknown { category, error } => {
                change!(nodes_turn[].set(0));
                retried!("nodes-turn", category);
                warn!(%error, "election for notices from Nodes failed; retried");
            }
            Fact::PollFailed { category, error } => {
                retried!("poll", category);
                if *category == Category::Denied {
                    warn!(%error, "polling EC2 is not allowed: grant the permission, or unset --ec2-poll-interval");
                } else {
                    warn!(%error, "polling EC2 failed; retried");
                }
            }
            Fact::ChangePlanned { about, start } => {
                about!(info, about, %start, "the change is not near yet; scheduled for later");
            }
            Fact::NodeCordoned { about, already, after } => {
                // A Node that was cordoned before is no measure of our delay.
                if !already {
                    observe!(cordon_delay[about.kind.as_str()], after);
                }
                about!(info, about, already, "node cordoned");
            }
            Fact::CordonFailed { about, category, error } => {
                retried!("cordon", category);
                about!(warn, about, %error, "cordon failed; retried");
            }
            Fact::CordonLimited { about, group, held, of } => {
                about!(warn, about, group, held, of, "not cordoned: hints hold a fifth of the nodes already");
            }
            Fact::CordonForgone { about } => {
                about!(warn, about, "the cordon still fails: pods are evicted without it");
            }
            Fact::NodeOutOfService { about } => {
                about!(info, about, "the instance is gone: its node is tainted out-of-service, and its pods can move");
            }
            Fact::LaunchAwaited { about, at_most } => {
                about!(info, about, at_most = %Words(*at_most), "waiting for the node to be Ready");
            }
            Fact::Replacement { about, group, result } => {
                count!(replacements[result.as_str()]);
                match result {
                    Replacement::Asked => about!(info, about, group, "asked the group for a replacement first"),
                    Replacement::Ready | Replacement::Complete => {
                        about!(info, about, group, result = result.as_str(), "the replacement is Ready");
                    }
                    _ => about!(
                        info,
                        about,
                        group,
                        reason = result.as_str(),
                        "drained without waiting for a replacement"
                    ),
                }
            }
            Fact::Remedy { about, remedy, group, result } => {
                count!(remedies[remedy.as_str(), result.as_str()]);
                let group = Some(*group).filter(|group| !group.is_empty());
                match (remedy, result) {
                    (Remedy::Reboot, Replacement::Asked) => about!(info, about, "rebooting the instance"),
                    (Remedy::Terminate, Replacement::Asked) => {
                        about!(info, about, group, "asked the group to terminate the instance");
                    }
                    _ => about!(
                        warn,
                        about,
                        group,
                        remedy = remedy.as_str(),
                        reason = result.as_str(),
                        "the unhealthy node is drained, and left as it is"
                    ),
                }
            }
            Fact::RebootFailed { about, error } => {
                about!(warn, about, %error, "a call to reboot the instance failed");
            }
            Fact::ReplacementFailed { group, error } => {
                warn!(group, %error, "a call for a replacement failed; if calls keep failing, nodes of the group are drained without");
            }
            Fact::DrainJoined { about } => about!(info, about, "joined the drain that the node already has"),
            Fact::DryRun { about, instead } => about!(info, about, would = instead, "dry run"),
            Fact::NoticeEnded { about, outcome, took, waited } => {
                count!(notices[about.kind.as_str(), outcome.as_str()]);
                observe!(notice_duration[about.kind.as_str()], took);
                let (took, word) = (Words(*took), outcome.as_str());
                let waited = Some(*waited).filter(|waited| !waited.is_empty());
                match outcome {
                    failure if failure.is_failure() => {
                        about!(warn, about, outcome = word, %took, waited, "notice ended");
                    }
                    NoticeOutcome::NotOurs | NoticeOutcome::Ignored => {
                        about!(debug, about, outcome = word, %took, "notice ended");
                    }
                    _ => about!(info, about, outcome = word, %took, waited, "notice ended"),
                }
            }

            // Lifecycle hooks.
            Fact::HookUnknown { about, error } => {
                about!(warn, about, %error, "looking up the hook's timeout failed; assuming AWS's shortest, 30 s");
            }
            Fact::HookSearchFailed { about, error } => {
                about!(warn, about, %error, "searching for the lifecycle hook failed; the drain continues without it, and the search is retried");
            }
            Fact::HookFound { about, group, hook } => {
                about!(info, about, group, hook, "the instance waits at its lifecycle hook, which is kept alive");
            }
            Fact::HookNotFound { about, hook, why } if why.is_usual() => {
                about!(info, about, hook, %why, "no lifecycle hook is left to complete; the drain continues without one");
            }
            // A usual one was completed, perhaps by another replica, or has expired before it was found.
            Fact::HookNotFound { about, hook, why } => {
                count!(completions[HookFailure::NotFound.as_str()]);
                about!(warn, about, hook, %why, "no lifecycle hook of this name keeps the instance; the drain continues without one");
            }
            Fact::Heartbeat { about, result, error } => {
                count!(heartbeats[result.as_str()]);
                match result {
                    HeartbeatResult::Sent => about!(info, about, "heartbeat sent"),
                    HeartbeatResult::Over => {
                        about!(info, about, "AWS reports that the lifecycle action is over; heartbeats end");
                    }
                    HeartbeatResult::Failed(category) => {
                        let error = error.map(tracing::field::display);
                        about!(warn, about, result = category.as_str(), error, "heartbeat failed; retried");
                    }
                }
            }
            Fact::HeartbeatsDenied { about, until } => {
                about!(warn, about, until = %Words(*until), "AWS denies heartbeats; the drain ends in time for the hook's own timeout");
            }
            Fact::WaitBegun { about, wait, reason, at_most, .. } => {
                about!(info, about, wait = wait.as_str(), reason, at_most = %Words(*at_most), "waiting");
            }
            Fact::WaitEnded { about, wait, outcome, took, left, .. } => {
                let wait = wait.as_str();
                observe!(wait_duration[wait, outcome.as_str()], took);
                let took = Words(*took);
                match outcome {
                    WaitOutcome::TimeOver => about!(warn, about, wait, %took, left, "wait timed out"),
                    WaitOutcome::CutShort => about!(info, about, wait, %took, left, "wait cut short"),
                    _ => about!(debug, about, wait, outcome = outcome.as_str(), %took, "wait ended"),
                }
            }
            Fact::LoadBalancerFailed { category: Category::Denied, error } => {
                warn!(%error, "a call about load balancers is not allowed: grant the permission, or set --wait-for-load-balancers=off");
            }
            Fact::LoadBalancerFailed { error, .. } => warn!(%error, "a call about load balancers failed"),
            Fact::TargetsDeregistered { group, targets } => info!(group, targets, "deregistered from the target group"),
            Fact::HookLeft { about } => {
                count!(completions[HookFailure::Left.as_str()]);
                about!(warn, about, "the lifecycle action is left to its own timeout");
            }
            Fact::HookUnproven { about } => {
                let reason = "the instance has no Node here, was launched long ago, and its cluster is unknown";
                about!(warn, about, reason, "the lifecycle hook is left alone; tag the instance, or set --managed-tag");
            }
            Fact::HookCompleted { about, result } => {
                count!(completions[result.as_str()]);
                about!(info, about, result = result.as_str(), "lifecycle action completed");
            }
            Fact::CompletionRetried { about, category, error } => {
                count!(completions[HookFailure::Retried.as_str()]);
                retried!("complete", category);
                about!(warn, about, %error, "completing the lifecycle action failed; retried");
            }
            Fact::CompletionFailed { about, error } => {
                count!(completions[HookFailure::Failed.as_str()]);
                about!(error, about, %error, "the lifecycle action could not be completed; its timeout will end it");
            }

            // Drains and their pods.
            Fact::DrainBegun { on, pods, left_alone, until, hard } => {
                on!(info, on, pods, left_alone, left = %Words(*until), hard, "drain begins");
            }
            Fact::GraceTooLong { on, pod, grace, until, of_hook } => {
                let (grace, left) = (Words(*grace), Words(*until));
                let setting = of_hook.then_some("--drain-timeout asg-terminate");
                on!(warn, on, %pod, %grace, %left, setting, "the pod's grace period does not fit into the drain's time");
            }
            Fact::DrainRetried { on, step, category, error } => {
                retried!(step.as_str(), category);
                on!(warn, on, step = step.as_str(), %error, "drain step failed; retried");
            }
            Fact::NodeRecordoned { on } => on!(warn, on, "the cordon was removed during the drain; restored, once"),
            Fact::Eviction { on, pod, result } => {
                count!(evictions[label(*result, "evicted")]);
                on!(debug, on, %pod, result = label(*result, "evicted"), "eviction answered");
            }
            Fact::PodBlocked { on, pod, by, until, hard } => {
                change!(pods_blocked.inc());
                on!(warn, on, %pod, by, left = %Words(*until), hard, "pod is held back");
            }
            Fact::PodComesBack { on, pod, tolerates } => {
                on!(warn, on, %pod, tolerates, "pod comes back to the cordoned node; left there");
            }
            Fact::DeploymentRestarted { on, deployment, dry_run: false } => {
                on!(info, on, %deployment, "restarted the Deployment, whose ready pods are all on nodes that are being drained");
            }
            Fact::DeploymentRestarted { on, deployment, dry_run: true } => {
                on!(info, on, %deployment, would = "restart the Deployment, whose ready pods are all on nodes that are being drained", "dry run");
            }
            Fact::SurgeEnded { on, deployment, outcome, took, why } => {
                count!(surges[outcome.as_str()]);
                let took = Words(*took);
                match outcome {
                    SurgeOutcome::Ready => {
                        on!(info, on, %deployment, %took, "new pods of the Deployment are Ready; its old ones are evicted");
                    }
                    SurgeOutcome::TimedOut => {
                        on!(warn, on, %deployment, %took, "new pods of the Deployment are not Ready in time; its old ones are evicted");
                    }
                    SurgeOutcome::NoRoom => {
                        on!(info, on, %deployment, why, "the Deployment can't have a new pod before its only ready one is evicted");
                    }
                    SurgeOutcome::Failed => {
                        on!(warn, on, %deployment, why, "can't restart the Deployment; its pods are evicted without");
                    }
                }
            }
            Fact::PodUnblocked { on, pod } => {
                change!(pods_blocked.dec());
                on!(debug, on, %pod, "pod no longer held back");
            }
            Fact::DrainBlocked { on, pods, until, hard } => {
                on!(debug, on, pods = pods.len(), left = %Words(*until), hard, "drain is blocked");
            }
            Fact::DrainUnblocked { on } => on!(debug, on, "drain no longer blocked"),
            Fact::Deletion { on, pod, grace, result } => {
                count!(deletions[label(*result, "deleted")]);
                match result {
                    Ok(()) => on!(warn, on, %pod, grace, "pod deleted, because its node goes at the deadline"),
                    Err(category) => on!(debug, on, %pod, grace, result = category.as_str(), "deletion answered"),
                }
            }
            Fact::LeavingNode { on } => {
                on!(info, on, "all other pods are gone: this process ends, and another replica continues");
            }
            Fact::DrainEnded { on, outcome, took, left, hard, report, .. } => {
                let deadline = DeadlineType::of(*hard).as_str();
                observe!(drain_duration[deadline, outcome.as_str()], took);
                observe!(drain_time_left[deadline], left);
                let (took, word) = (Words(*took), outcome.as_str());
                if outcome.is_success() {
                    on!(info, on, outcome = word, %took, report = %report, "drain ended");
                } else {
                    on!(warn, on, outcome = word, %took, report = %report, "drain ended");
                }
            }
            Fact::NodeReleased { on, why, uncordoned, .. } => {
                count!(releases[why.as_str()]);
                on!(info, on, why = why.as_str(), uncordoned, "marks removed from the node");
            }
            Fact::ReleaseDeferred { on, sign } => {
                on!(info, on, %sign, "another tool works on the node: its expired marks stay for 2 h at most");
            }
            Fact::RestartUnjudged { on, retried: true, error } => {
                on!(warn, on, %error, "EC2 did not show whether the change ahead of the restarted node stands; retried");
            }
            Fact::RestartUnjudged { on, retried: false, error } => {
                on!(warn, on, %error, "EC2 can't show whether the change ahead of the restarted node stands: the node stays cordoned");
            }
            Fact::ReleaseFailed { on, category, error } => {
                retried!("release", category);
                on!(warn, on, %error, "writing or removing marks or notes failed; retried");
            }

            // Events, checks, Leases and calls.
            Fact::KubeEventFailed { category, error } => {
                count!(events[category.as_str()]);
                warn!(%error, "an Event or a condition could not be written; skipped");
            }
            Fact::KubeEventsDropped { count } => {
                count!(events["dropped"]);
                let error = format_args!("{count} facts came faster than they could be written");
                warn!(%error, "an Event or a condition could not be written; skipped");
            }
            Fact::NotificationSent { phase, took } => {
                count!(notifications[NotificationResult::Sent.as_str()]);
                debug!(phase = phase.as_str(), took = %Words(*took), "notification sent");
            }
            Fact::NotificationRetried { category, error } => {
                retried!("notify", category);
                debug!(%error, "sending a notification failed; retried");
            }
            Fact::NotificationFailed { host, result, error, repeated } => {
                count!(notifications[result.as_str()]);
                if *repeated {
                    debug!(host, result = result.as_str(), %error, "a notification was not delivered");
                } else {
                    warn!(host, result = result.as_str(), %error, "a notification was not delivered; not repeated for ten minutes");
                }
            }
            Fact::NotificationFolded { phase } => {
                count!(notifications[NotificationResult::Folded.as_str()]);
                debug!(phase = phase.as_str(), "a notification was left out, and the next one counts it");
            }
            Fact::NotificationsDropped { count } => {
                change!(notifications[NotificationResult::Dropped.as_str()].inc_by(many(*count)));
                warn!(count, "notifications were dropped: facts came too fast, or the process ended");
            }
            Fact::TracesSent { count } => {
                change!(traces["sent"].inc_by(many(*count)));
                debug!(count, "traces sent");
            }
            Fact::TracesLost { host, count, error, repeated } => {
                change!(traces["lost"].inc_by(many(*count)));
                if *repeated {
                    debug!(host, count, %error, "traces were not taken");
                } else {
                    warn!(host, count, %error, "traces were not taken; not repeated for ten minutes");
                }
            }
            Fact::Checked { area, check, status, found, remedy } => match status {
                CheckStatus::Warning | CheckStatus::Failure => {
                    warn!(area, check, status = status.as_str(), found, remedy, "the set-up has a fault");
                }
                CheckStatus::Ok | CheckStatus::Skipped => {
                    debug!(area, check, status = status.as_str(), found, "set-up checked");
                }
            },
            Fact::ChecksEnded { counts } => {
                for (status, number) in counts {
                    change!(checks[status.as_str()].set(whole(*number)));
                }
                let [(_, ok), (_, warnings), (_, failures), (_, skipped)] = counts;
                info!(ok, warnings, failures, skipped, "set-up checked; see ebbtide doctor for details");
            }
            Fact::CollectorTurn { ours: true } => info!("this replica collects what is left of Nodes now"),
            Fact::CollectorTurn { ours: false } => info!("another replica collects what is left of Nodes now"),
            Fact::LeaseCollected { lease, idle, dry_run: false } => {
                count!(leases_collected);
                info!(lease, idle = %Words(*idle), "deleted a Lease without a Node from kube-node-lease");
            }
            Fact::LeaseCollected { lease, idle, dry_run: true } => {
                info!(lease, idle = %Words(*idle), would = "delete the Lease, which has no Node", "dry run");
            }
            Fact::CollectFailed { category, error } => {
                retried!("collect", category);
                warn!(%error, "collecting what is left of Nodes failed; retried");
            }
            Fact::NodeCollected { on, end, silent, has_finalizers, dry_run: false } => {
                count!(nodes_collected);
                let silent = Words(*silent);
                on!(info, on, ec2 = end.as_str(), %silent, has_finalizers, "deleted the Node, whose instance has ended");
            }
            Fact::NodeCollected { on, end, silent, dry_run: true, .. } => {
                let silent = Words(*silent);
                on!(info, on, ec2 = end.as_str(), %silent, would = "delete the Node, whose instance has ended", "dry run");
            }
            Fact::CollectionHeld { why, nodes: 0, .. } => info!(%why, "no Nodes are left for this reason any more"),
            Fact::CollectionHeld { why: CollectionStop::Limit, nodes, before: 0 } => {
                info!(
                    nodes,
                    "at most a fifth of the Nodes is deleted in ten minutes; others whose instances have ended wait"
                );
            }
            Fact::CollectionHeld { why, nodes, before: 0 } => {
                warn!(%why, nodes, "EC2 does not know the instances of Ready Nodes; those that seem to have ended are left");
            }
            Fact::AwsCall { service, operation, result, took } => {
                count!(aws_calls[service, operation, label(*result, "ok")]);
                observe!(aws_call_duration[service, operation], took);
                debug!(service, operation, outcome = label(*result, "ok"), took = %Words(*took), "call to AWS");
            }
            Fact::KubeCall { verb, resource, result, took } => {
                count!(kube_calls[verb, resource, label(*result, "ok")]);
                observe!(kube_call_duration[verb, resource], took);
                debug!(verb, resource, outcome = label(*result, "ok"), took = %Words(*took), "call to the API server");
            }

            // Not logged: `NodesSynced` names the first number of Nodes.
            Fact::NodesKnown { nodes } => change!(nodes.set(whole(*nodes))),
            Fact::EventWritten { .. } => count!(events["written"]),
            // Neither logged nor counted: they serve Events and the history only.
            Fact::MetadataFailed { .. }
            | Fact::CollectionHeld { .. }
            | Fact::DrainProgress { .. }
            | Fact::NodeRecorded { .. }
            | Fact::DrainDeadlineMoved { .. }
            | Fact::DrainAbandoned { .. }
            | Fact::WaitChanged { .. }
            | Fact::WaitAbandoned { .. }
            | Fact::DrainExcluded { .. } => {}
        }
    }
}
