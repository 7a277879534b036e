//! Whether a notice is late: its instance has already come back. Pure.

use super::decisions::comes_back;
use super::times::SHUTDOWN_TIME;
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::{Detail, Hook, InstanceAction, Notice, NoticeKey, NoticeTime, ScheduledChange};
use crate::pipeline::node::Node;
use crate::pipeline::node::record::{NoticeRecord, RETURN_BEFORE_START, ReturnSign, Work};
use crate::pipeline::node::release::{LATE_AFTER, booted_after, is_back, restarted_after};
use crate::runtime::clock::Clock;
use jiff::Timestamp;
use tokio::time::Instant;

/// Whether a restart at this time counts as the return from the announced event. A spot instance that restarts before its stop is stopped
/// all the same, and so is one whose retirement is ahead.
#[must_use]
pub fn returns_by_boot(notice: &Notice, at: Timestamp) -> bool {
    !matches!(notice.detail, Detail::Spot { .. })
        && comes_back(&notice.detail) == Some(ReturnSign::Boot)
        && returns_from(notice).is_none_or(|from| from <= at)
}

/// Returns the time from which on a restart counts as the return from a change whose start is known.
fn returns_from(notice: &Notice) -> Option<Timestamp> {
    notice.start()?.checked_sub(RETURN_BEFORE_START).ok()
}

/// Whether the notice's lifecycle action may be over, with the instance back from it: the Node has restarted since, or has only flapped.
/// Only AWS knows. `waited` is the time of the last accepted heartbeat, when the instance still waited.
#[must_use]
pub fn may_be_over(notice: &Notice, node: &Node, waited: Option<Timestamp>) -> bool {
    let is_known_to_aws = |hook: &Hook| hook.token.is_some() && !hook.is_test();
    notice.hook().is_some_and(is_known_to_aws)
        && comes_back(&notice.detail) == Some(ReturnSign::Boot)
        && node.ready
        && (restarted_after(node, last_known(notice, waited)) || node.may_be_back(notice.key()))
}

/// Returns the last time at which the announced event was still ahead: the notice's, or an accepted heartbeat's.
fn last_known(notice: &Notice, waited: Option<Timestamp>) -> Timestamp {
    waited.map_or(notice.at(), |waited| waited.max(notice.at()))
}

/// Whether the Node no longer has the condition that the notice reports, which it had when it was `known`. Another Node of the instance never
/// had it.
#[must_use]
pub fn is_healthy_again(notice: &Notice, node: &Node, known: &Node) -> bool {
    matches!(&notice.detail, Detail::Condition(name) if known.has_condition(name) && !node.has_condition(name))
}

/// Whether the Node shows that AWS has moved or cancelled the change since this copy of the notice.
#[must_use]
pub fn is_superseded(notice: &Notice, node: &Node) -> bool {
    // Only scheduled changes are revised by later copies, and only AWS's own times order them.
    let changes = matches!((&notice.detail, notice.time), (Detail::ScheduledChange(_), NoticeTime::Announced(_)));
    // A copy with the same start announces nothing new, and its work may have to be taken over.
    let differs = |(key, known): &(NoticeKey, &NoticeRecord)| {
        known.work == Work::Withdrawn || *key == notice.key() && !known.starts_at(notice.start())
    };
    let newest = node.record.of(notice).filter(differs).and_then(|(_, known)| known.since);
    changes && newest.is_some_and(|at| at > notice.at())
}

/// Whether the instance has already come back from the announced event, or a newer copy of the notice has left its mark. `waited` is the
/// time of the last accepted heartbeat.
#[must_use]
pub fn is_late(
    notice: &Notice,
    node: &Node,
    deadline: Deadline,
    clock: &Clock,
    now: Instant,
    waited: Option<Timestamp>,
) -> bool {
    let key = notice.key();
    let kept_until = || notice.hook().and_then(|_| node.record.notice(key)?.end()).map(|end| clock.instant_of(end));
    let ends_at = match &notice.detail {
        Detail::StateChange { .. } => Some(clock.notice_instant(notice.at()) + SHUTDOWN_TIME),
        // It begins at once, and its deadline is always now.
        Detail::Spot { action: InstanceAction::Hibernate } => Some(clock.notice_instant(notice.at())),
        // AWS sends the event again after the change, with a newer time.
        Detail::ScheduledChange(ScheduledChange { start: Some(start), .. }) => Some(clock.instant_of(*start)),
        // Another hook keeps this drain running; only its own end stops it.
        _ if comes_back(&notice.detail).is_none() => deadline.latest_end(),
        // A replica that was killed may have given the hook's drain more time.
        _ => deadline.capacity_ends().map(|at| at.max(kept_until().unwrap_or(at))),
    };
    let passed = ends_at.is_some_and(|at| now > at + LATE_AFTER);
    // A Node that flaps during a long drain carries the mark of this boot.
    let awaits_boot = comes_back(&notice.detail) == Some(ReturnSign::Boot) && node.has_notice_since_boot(key);
    // Another replica may receive a copy right after the restart, before or after the mark is removed.
    let begins = match &notice.detail {
        Detail::Spot { action: InstanceAction::Hibernate } | Detail::StateChange { .. } => Some(notice.at()),
        _ => notice.start(),
    };
    // Without a known start, a restart after the announcement counts as the return. An instance that waits at a hook has not left yet.
    let waits = notice.hook().is_some() && node.record.notice(key).is_some();
    let ahead = last_known(notice, waited);
    let announced = Some(ahead).filter(|at| returns_by_boot(notice, *at) && !waits);
    let returns_from = returns_from(notice).or(begins).into_iter().chain(announced).min();
    let has_booted = returns_from.is_some_and(|at| booted_after(node, at));
    let is_back = has_booted || is_back(node, key, notice.start(), clock.timestamp_of(now));
    is_superseded(notice, node)
        || node.ready && !awaits_boot && (is_back || passed && restarted_after(node, begins.unwrap_or(ahead)))
}
