//! The facts that change metrics. Every fact is named, so that none is forgotten.

use super::{All, MIN_OFTEN_RECEIVES};
use crate::fact::{
    Category, DeadlineType, Fact, HookFailure, LeaseEnd, MalformedReason, MessageCount, MessageRelease, NodeRefusal,
    NotificationResult, ReceiveOrder, label,
};

impl All {
    #[allow(clippy::too_many_lines, reason = "an arm for each fact")]
    pub(super) fn note(&self, fact: &Fact<'_>) {
        let message = |count: MessageCount| self.messages.with_label_values(&[count.as_str()]).inc();
        let hook = |failure: HookFailure| self.completions.with_label_values(&[failure.as_str()]).inc();
        let retried =
            |step: &str, category: &Category| self.retries.with_label_values(&[step, category.as_str()]).inc();
        let notified = |result: NotificationResult, count: usize| {
            let count = u64::try_from(count).unwrap_or(u64::MAX);
            self.notifications.with_label_values(&[result.as_str()]).inc_by(count);
        };
        let traces = |result: &str, count: usize| {
            self.traces.with_label_values(&[result]).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        };
        // No series without an election: no replica has the turn then, and none needs it.
        let turn = |ours: bool| self.nodes_turn.with_label_values::<&str>(&[]).set(i64::from(ours));
        let refused = |what: NodeRefusal| self.node_refusals.with_label_values(&[what.as_str()]).inc();
        match fact {
            Fact::MessageReceived { receives, age, .. } => {
                message(MessageCount::Received);
                if let Some(age) = age {
                    let receive = match receives {
                        0 | 1 => ReceiveOrder::First,
                        2..MIN_OFTEN_RECEIVES => ReceiveOrder::Again,
                        MIN_OFTEN_RECEIVES.. => ReceiveOrder::Often,
                    };
                    self.message_age.with_label_values(&[receive.as_str()]).observe(age.as_secs_f64());
                }
            }
            Fact::MessageMalformed { reason, .. } => {
                self.messages_malformed.with_label_values(&[reason.as_str()]).inc();
            }
            Fact::EntityUnreadable { .. } => {
                self.messages_malformed.with_label_values(&[MalformedReason::BadEntity.as_str()]).inc();
            }
            Fact::MessageIgnored { reason, .. } => self.messages_ignored.with_label_values(&[reason.as_str()]).inc(),
            Fact::MessageDeleted { .. } => message(MessageCount::Deleted),
            // One whose lease is lost was counted as such.
            Fact::MessageReleased { why: MessageRelease::Lost, .. } => {}
            Fact::MessageReleased { .. } => message(MessageCount::Released),
            Fact::MessageLeft { .. } => message(MessageCount::Left),
            // One that is too old is released next, or left, and counted then.
            Fact::MessageLeaseEnded { why: LeaseEnd::Lost | LeaseEnd::Away, .. } => message(MessageCount::LeaseEnded),
            Fact::ReceiveFailed { category, .. } => self.receive_failures.with_label_values(&[category.as_str()]).inc(),
            Fact::NoticeJoined { about } => self.notices.with_label_values(&[about.kind.as_str(), "joined"]).inc(),
            Fact::NoticeEnded { about, outcome, took, .. } => {
                self.notices.with_label_values(&[about.kind.as_str(), outcome.as_str()]).inc();
                self.notice_duration.with_label_values(&[about.kind.as_str()]).observe(took.as_secs_f64());
            }
            Fact::OwnerUnknown { category, .. } | Fact::ReservationUnknown { category, .. } => {
                retried("owner", category);
            }
            Fact::PollFailed { category, .. } => retried("poll", category),
            Fact::NodesTurn { ours } => turn(*ours),
            Fact::NodesTurnUnknown { category, .. } => {
                turn(false);
                retried("nodes-turn", category);
            }
            Fact::ConfirmationFailed { category, .. } => retried("confirm", category),
            Fact::ZonalShift { until, .. } => {
                self.zonal_shifts.with_label_values(&[if until.is_some() { "began" } else { "ended" }]).inc();
            }
            Fact::NoticeUnusual { why, .. } => self.unusual.with_label_values(&[why.as_str()]).inc(),
            Fact::RepairsHeld { kind, why, nodes, .. } => {
                let held = self.repairs_held.with_label_values(&[kind.as_str(), why.as_str()]);
                held.set(i64::try_from(*nodes).unwrap_or(i64::MAX));
            }
            Fact::CordonFailed { category, .. } => retried("cordon", category),
            Fact::MarksDenied { category, .. } => retried("marks", category),
            Fact::MessageRetried { step, category, .. } => retried(step.as_str(), category),
            Fact::DrainRetried { step, category, .. } => retried(step.as_str(), category),
            Fact::Eviction { result, .. } => self.evictions.with_label_values(&[label(*result, "evicted")]).inc(),
            Fact::Deletion { result, .. } => self.deletions.with_label_values(&[label(*result, "deleted")]).inc(),
            Fact::UndoRefused { .. } => refused(NodeRefusal::Undo),
            Fact::AgentNoticeRefused { .. } => refused(NodeRefusal::AgentNotice),
            Fact::TwinRefused { .. } => refused(NodeRefusal::Twin),
            Fact::AnnotationsUnread { .. } => refused(NodeRefusal::Unread),
            Fact::AgentNoticesHeld { .. } => refused(NodeRefusal::Held),
            Fact::NodeReleased { why, .. } => self.releases.with_label_values(&[why.as_str()]).inc(),
            Fact::ReleaseFailed { category, .. } => retried("release", category),
            Fact::LeaseCollected { dry_run: false, .. } => self.leases_collected.inc(),
            Fact::CollectFailed { category, .. } => retried("collect", category),
            Fact::EventWritten { .. } => self.events.with_label_values(&["written"]).inc(),
            Fact::KubeEventFailed { category, .. } => self.events.with_label_values(&[category.as_str()]).inc(),
            Fact::KubeEventsDropped { .. } => self.events.with_label_values(&["dropped"]).inc(),
            Fact::TracesSent { count } => traces("sent", *count),
            Fact::TracesLost { count, .. } => traces("lost", *count),
            Fact::NotificationSent { .. } => notified(NotificationResult::Sent, 1),
            Fact::NotificationRetried { category, .. } => retried("notify", category),
            Fact::NotificationFailed { result, .. } => notified(*result, 1),
            Fact::NotificationFolded { .. } => notified(NotificationResult::Folded, 1),
            Fact::NotificationsDropped { count } => notified(NotificationResult::Dropped, *count),
            Fact::PodBlocked { .. } => self.pods_blocked.inc(),
            Fact::PodUnblocked { .. } => self.pods_blocked.dec(),
            // A Node that was cordoned before is no measure of our delay.
            Fact::NodeCordoned { about, after, already: false } => {
                self.cordon_delay.with_label_values(&[about.kind.as_str()]).observe(after.as_secs_f64());
            }
            Fact::DrainEnded { outcome, took, left, hard, .. } => {
                let deadline = DeadlineType::of(*hard).as_str();
                self.drain_duration.with_label_values(&[deadline, outcome.as_str()]).observe(took.as_secs_f64());
                self.drain_time_left.with_label_values(&[deadline]).observe(left.as_secs_f64());
            }
            Fact::Heartbeat { result, .. } => self.heartbeats.with_label_values(&[result.as_str()]).inc(),
            Fact::HookCompleted { result, .. } => self.completions.with_label_values(&[result.as_str()]).inc(),
            Fact::CompletionRetried { category, .. } => {
                hook(HookFailure::Retried);
                retried("complete", category);
            }
            // One that is over was completed, perhaps by another replica, or has expired before it was found.
            Fact::HookNotFound { why, .. } if !why.is_usual() => hook(HookFailure::NotFound),
            Fact::HookLeft { .. } => hook(HookFailure::Left),
            Fact::CompletionFailed { .. } => hook(HookFailure::Failed),
            Fact::AwsCall { service, operation, result, took } => {
                self.aws_calls.with_label_values(&[*service, operation, label(*result, "ok")]).inc();
                self.aws_call_duration.with_label_values(&[service, operation]).observe(took.as_secs_f64());
            }
            Fact::KubeCall { verb, resource, result, took } => {
                self.kube_calls.with_label_values(&[*verb, resource, label(*result, "ok")]).inc();
                self.kube_call_duration.with_label_values(&[verb, resource]).observe(took.as_secs_f64());
            }
            Fact::WatchFailed { resource, .. } => self.watch_failures.with_label_values(&[resource.as_str()]).inc(),
            Fact::ChecksEnded { counts } => {
                for (status, number) in counts {
                    self.checks.with_label_values(&[status.as_str()]).set(i64::try_from(*number).unwrap_or(i64::MAX));
                }
            }
            Fact::WaitEnded { wait, outcome, took, .. } => {
                self.wait_duration.with_label_values(&[wait.as_str(), outcome.as_str()]).observe(took.as_secs_f64());
            }
            Fact::Replacement { result, .. } => self.replacements.with_label_values(&[result.as_str()]).inc(),
            Fact::TaskPanicked { .. } => self.panics.inc(),
            Fact::NodesSynced { nodes } | Fact::NodesKnown { nodes } => {
                self.nodes.set(i64::try_from(*nodes).unwrap_or(i64::MAX));
            }
            Fact::ClockSkewed { ahead } => self.clock_ahead.set(ahead.as_secs()),
            Fact::Ready => self.ready.set(1),
            Fact::ShutdownBegun { .. } => self.ready.set(0),
            Fact::Started { .. }
            | Fact::Checked { .. }
            | Fact::ClockStepped { .. }
            | Fact::ListsNotStreamed { .. }
            | Fact::AdminListening { .. }
            | Fact::StatusListening { .. }
            | Fact::StatusFailed { .. }
            | Fact::LogFilterChanged { .. }
            | Fact::NoticeBegun { .. }
            | Fact::NoticeRetried { .. }
            | Fact::NodeAwaited { .. }
            | Fact::NoticeListed { .. }
            | Fact::NoticeAnnotated { .. }
            | Fact::ZonalShiftFailed { .. }
            | Fact::AgentStarted { .. }
            | Fact::AgentWrote { .. }
            | Fact::AgentWriteFailed { .. }
            | Fact::MetadataFailed { .. }
            | Fact::MetadataAnswer
            | Fact::ChangePlanned { .. }
            | Fact::CordonForgone { .. }
            | Fact::CordonLimited { .. }
            | Fact::NodeOutOfService { .. }
            | Fact::PodComesBack { .. }
            | Fact::NodeRecordoned { .. }
            | Fact::ReleaseDeferred { .. }
            | Fact::RestartUnjudged { .. }
            | Fact::LaunchAwaited { .. }
            | Fact::LeavingNode { .. }
            | Fact::ReplacementFailed { .. }
            | Fact::DrainAbandoned { .. }
            | Fact::DrainExcluded { .. }
            | Fact::WaitBegun { .. }
            | Fact::LoadBalancerFailed { .. }
            | Fact::TargetsDeregistered { .. }
            | Fact::WaitChanged { .. }
            | Fact::WaitAbandoned { .. }
            | Fact::DrainBegun { .. }
            | Fact::DrainProgress { .. }
            | Fact::NodeRecorded { .. }
            | Fact::DrainDeadlineMoved { .. }
            | Fact::GraceTooLong { .. }
            | Fact::DrainJoined { .. }
            | Fact::HookUnknown { .. }
            | Fact::HeartbeatsDenied { .. }
            | Fact::HookFound { .. }
            | Fact::HookNotFound { .. }
            | Fact::HookSearchFailed { .. }
            | Fact::HookUnproven { .. }
            | Fact::DryRun { .. }
            | Fact::TestNotice { .. }
            | Fact::CollectorTurn { .. }
            | Fact::MessageLeaseEnded { .. }
            | Fact::NodeCordoned { .. }
            | Fact::LeaseCollected { dry_run: true, .. }
            | Fact::ShutdownEnded { .. } => {}
        }
    }
}
