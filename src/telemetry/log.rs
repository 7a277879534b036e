//! Facts as log lines: one line each, with the names as fields.
//!
//! INFO tells the story of one interruption in about eight lines; WARN is worth a look; ERROR is a bug or a promise not kept.

use crate::fact::{About, CheckStatus, Fact, HeartbeatResult, NoticeOutcome, OnNode, Subscriber, label};
use crate::runtime::duration::Words;
use tracing::{debug, error, info, warn};

/// Writes facts to the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

/// A log line with the notice's fields. The field is `message_id`: tracing calls the line's own text `message`.
macro_rules! about {
    ($level:ident, $about:expr, $($rest:tt)*) => {{
        let About { kind, instance, node, message } = $about;
        $level!(kind = kind.as_str(), instance, node, message_id = message, $($rest)*)
    }};
}

/// A log line with the names of a drain's Node.
macro_rules! on {
    ($level:ident, $on:expr, $($rest:tt)*) => {{
        let OnNode { node, instance, .. } = $on;
        $level!(node, instance, $($rest)*)
    }};
}

impl Subscriber for Log {
    #[allow(clippy::too_many_lines, reason = "an arm for each fact, so that none goes unlogged")]
    fn note(&self, fact: &Fact<'_>) {
        match fact {
            Fact::MessageReceived { message, receives, age } => {
                let age = age.map(Words).map(tracing::field::display);
                debug!(message_id = message, receives, age, "message received");
            }
            Fact::MessageMalformed { message, reason, error, excerpt } => {
                warn!(message_id = message, reason = reason.as_str(), error = %error, excerpt, "message can't be read; deleted");
            }
            Fact::MessageIgnored { message, reason } => debug!(message_id = message, reason = reason.as_str(), "message ignored"),
            Fact::MessageDeleted { message } => info!(message_id = message, "message deleted"),
            Fact::MessageReleased { message, why } => info!(message_id = message, why = why.as_str(), "message released"),
            Fact::LeaseEnded { message, why } => warn!(message_id = message, why = why.as_str(), "lease of the message ended"),
            Fact::MessageRetried { message, step, error, .. } => {
                warn!(message_id = message, step = step.as_str(), error = %error, "keeping or deleting the message failed; retried");
            }
            Fact::MessageLeft { message, error, .. } => {
                warn!(message_id = message, error = %error, "message could not be deleted or released; it becomes visible by itself");
            }
        Fact::Started { queue, dry_run } => {
            info!(version = env!("CARGO_PKG_VERSION"), queue, dry_run, "ebbtide starts");
        }
        Fact::AdminListening { address } => info!(%address, "serving /metrics, /readyz and /healthz"),
        Fact::Ready => info!("ready: the Nodes are listed and the queue has answered"),
        Fact::NodesSynced { nodes } => info!(nodes, "Nodes listed"),
        Fact::WatchFailed { resource, error } => warn!(resource = resource.as_str(), error = %error, "list or watch failed; begun again"),
        Fact::ListsNotStreamed { resource, error } => {
            info!(resource = resource.as_str(), error = %error, "the API server streams no lists; asked for lists");
        }
        Fact::ReceiveFailed { error, .. } => warn!(error = %error, "receiving failed; retried"),
        Fact::TellingFailed { error, .. } => {
            warn!(error = %error, "an Event or a condition could not be written; left out");
        }
        Fact::TellingDropped { count } => {
            let error = format_args!("{count} facts came faster than they could be written");
            warn!(%error, "an Event or a condition could not be written; left out");
        }
        Fact::NodeReleased { on, why, uncordoned, .. } => {
            on!(info, on, why = why.as_str(), uncordoned, "marks taken back from the node");
        }
        Fact::ReleaseFailed { on, error, .. } => {
            on!(warn, on, error = %error, "marks can't be taken back from the node; retried");
        }
        Fact::Checked { area, check, status: status @ (CheckStatus::Warning | CheckStatus::Failure), found, remedy } => {
            warn!(area, check, status = status.as_str(), found, remedy, "the set-up has a fault");
        }
        Fact::Checked { area, check, status, found, .. } => debug!(area, check, status = status.as_str(), found, "set-up checked"),
        Fact::ChecksEnded { counts } => {
            let [(_, ok), (_, warnings), (_, failures), (_, skipped)] = counts;
            info!(ok, warnings, failures, skipped, "set-up checked; ebbtide doctor shows all of it");
        }
        Fact::CollectorTurn { ours: true } => info!("this replica collects leaked Leases now"),
        Fact::CollectorTurn { ours: false } => info!("another replica collects leaked Leases now"),
        Fact::LeaseCollected { lease, idle, dry_run: false } => {
            info!(lease, idle = %Words(*idle), "a Lease without a Node deleted from kube-node-lease");
        }
        Fact::LeaseCollected { lease, idle, dry_run: true } => {
            info!(lease, idle = %Words(*idle), would = "delete the Lease, which has no Node", "dry run");
        }
        Fact::CollectFailed { error, .. } => warn!(error = %error, "collecting leaked Leases failed; retried"),
        Fact::TaskPanicked { task } => error!(task = task.as_str(), "a task panicked; please report this with the log"),
        Fact::ShutdownBegun { messages } => info!(messages, "shutdown begins: messages are released"),
        Fact::ShutdownEnded { clean: true, took } => info!(took = %Words(*took), "shutdown ended"),
        Fact::ShutdownEnded { clean: false, took } => {
            warn!(took = %Words(*took), "shutdown cut work off; its messages become visible within 30 s");
        }
        Fact::AwsCall { service, operation, result, took } => {
            debug!(service, operation, outcome = label(*result, "ok"), took = %Words(*took), "call to AWS");
        }
        Fact::KubeCall { verb, resource, result, took } => {
            debug!(verb, resource, outcome = label(*result, "ok"), took = %Words(*took), "call to the API server");
        }
        Fact::NoticeBegun { about, action, until, hard } => {
            let left = until.map(Words).map(tracing::field::display);
            about!(info, about, action = action.as_str(), left, hard, "notice accepted");
        }
        Fact::TestNotice { about } => about!(info, about, "a test: this notice was made by ebbtide send"),
        Fact::NoticeJoined { about } => about!(info, about, "a second copy of the notice joined the first"),
        Fact::NoticeEnded { about, outcome, took } => {
            let (took, word) = (Words(*took), outcome.as_str());
            match outcome {
                failure if failure.is_failure() => about!(warn, about, outcome = word, %took, "notice ended"),
                NoticeOutcome::NotOurs | NoticeOutcome::Ignored => {
                    about!(debug, about, outcome = word, %took, "notice ended");
                }
                _ => about!(info, about, outcome = word, %took, "notice ended"),
            }
        }
        Fact::NodeAwaited { about, at_most } => {
            about!(info, about, at_most = %Words(*at_most), "the instance has no Node yet; waiting for it");
        }
        Fact::OwnerUnknown { about, error, .. } => {
            about!(warn, about, error = %error, "can't find out whose the instance is; retried");
        }
        Fact::NodeCordoned { about, already, .. } => about!(info, about, already, "node cordoned"),
        Fact::CordonFailed { about, error, .. } => {
            about!(warn, about, error = %error, "cordon failed; nothing is evicted before it; retried");
        }
        Fact::NodeOutOfService { about } => {
            about!(info, about, "the instance is gone: its node is tainted out-of-service, and its pods can move");
        }
        Fact::DrainDelayed { about, by } => {
            about!(info, about, by = %Words(*by), "the drain begins later, as the settings say");
        }
        Fact::LaunchAwaited { about, at_most } => {
            about!(info, about, at_most = %Words(*at_most), "waiting for the node to be Ready");
        }
        Fact::CompletionHeld { about, by } => {
            about!(info, about, by = %Words(*by), "drained; the lifecycle action is completed later, as the settings say");
        }
        Fact::HookLeft { about } => {
            about!(warn, about, "the lifecycle action is left to its own timeout");
        }
        Fact::DrainJoined { about } => about!(info, about, "joined the drain that the node has already"),
        Fact::HookUnknown { about, error } => {
            about!(warn, about, error = %error, "can't look the hook's timeout up; assuming AWS's shortest, 30 s");
        }
        Fact::Heartbeat { about, result: HeartbeatResult::Sent, .. } => about!(info, about, "heartbeat sent"),
        Fact::Heartbeat { about, result: HeartbeatResult::Over, .. } => {
            about!(info, about, "AWS says that the lifecycle action is over; heartbeats end");
        }
        Fact::Heartbeat { about, result: HeartbeatResult::Failed(category), error } => {
            let error = error.map(tracing::field::display);
            about!(warn, about, result = category.as_str(), error, "heartbeat failed; retried");
        }
        Fact::HookCompleted { about, result } => about!(info, about, result = result.as_str(), "lifecycle action completed"),
        Fact::CompletionRetried { about, error, .. } => {
            about!(warn, about, error = %error, "completing the lifecycle action failed; retried");
        }
        Fact::CompletionFailed { about, error } => {
            about!(error, about, error = %error, "the lifecycle action could not be completed; its timeout will end it");
        }
        Fact::DryRun { about, instead } => about!(info, about, would = instead, "dry run"),
        Fact::DrainBegun { on, pods, left_alone, until, hard } => {
            on!(info, on, pods, left_alone, left = %Words(*until), hard, "drain begins");
        }
        Fact::Eviction { on, pod, result } => on!(debug, on, %pod, result = label(*result, "evicted"), "eviction answered"),
        Fact::Deletion { on, pod, grace, result: Ok(()) } => {
            on!(warn, on, %pod, grace, "pod deleted, because the deadline takes its node away");
        }
        Fact::Deletion { on, pod, grace, result: Err(category) } => {
 on!(debug, on, %pod, grace, result = category.as_str(), "deletion answered");
 },
        Fact::PodBlocked { on, pod, by, until, hard } => {
            on!(warn, on, %pod, by, left = %Words(*until), hard, "pod is held back");
        }
        Fact::PodUnblocked { on, pod } => on!(debug, on, %pod, "pod no longer held back"),
        Fact::DrainRetried { on, step, error, .. } => on!(warn, on, step = step.as_str(), error = %error, "drain step failed; retried"),
        Fact::NodeRecordoned { on } => {
            on!(warn, on, "somebody took the cordon away in mid-drain; cordoned again, once");
        }
        Fact::LeavingNode { on } => {
            on!(info, on, "all other pods have gone: this process ends, and another replica goes on");
        }
        Fact::DrainEnded { on, outcome, took, report, .. } => {
            let (took, word) = (Words(*took), outcome.as_str());
            if outcome.is_success() {
                on!(info, on, outcome = word, %took, report = %report, "drain ended");
            } else {
                on!(warn, on, outcome = word, %took, report = %report, "drain ended");
            }
        }
            // The first list tells as much; the service writes what is known at any time as a metric.
            Fact::NodesKnown { .. }
            // Only bookkeeping for Events and conditions.
            | Fact::DrainLeft { .. }
            | Fact::DrainForgone { .. }
            | Fact::EventWritten { .. } => {}
        }
    }
}
