//! Samples of notifications: for the check of templates, and for `ebbtide notify --test`. All are marked as tests.

use super::NotifySettings;
use super::notification::{BlockedPod, Notification, VERSION};
use crate::fact::{NoticeKind, NotificationPhase};
use crate::telemetry::history::report::{Failure, Slowest, Storm};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

/// Returns samples of every phase: about a fully known node, about a barely known one, and about a storm.
#[must_use]
pub fn all() -> Vec<Notification> {
    let now = Timestamp::UNIX_EPOCH;
    let of = |sample: fn(NotificationPhase, Timestamp) -> Notification| {
        NotificationPhase::ALL.into_iter().map(move |phase| sample(phase, now))
    };
    of(of_node).chain(of(of_unknown)).chain(of(of_storm)).collect()
}

/// Returns the sample to send for a phase.
#[must_use]
pub fn to_send(phase: NotificationPhase, now: Timestamp, settings: &NotifySettings) -> Notification {
    let (cluster, replica) = (settings.cluster.clone(), settings.replica.clone());
    Notification { cluster, replica, ..of_node(phase, now) }
}

fn of_node(phase: NotificationPhase, now: Timestamp) -> Notification {
    let is_end = matches!(phase, NotificationPhase::Done | NotificationPhase::Failed);
    let blocked = BlockedPod {
        node: "sample-node".to_owned(),
        pod: "default/sample-0".to_owned(),
        by: "The disruption budget sample needs 1 healthy pods and has 1 currently".to_owned(),
    };
    let what = match phase {
        NotificationPhase::Notice => "would be drained now.",
        NotificationPhase::Blocked => "would be blocked by default/sample-0.",
        NotificationPhase::Done => "would be drained by now: 3 of 3 pods gone.",
        NotificationPhase::Failed => "would not be drained in time: 2 of 3 pods gone.",
    };
    let outcome = if phase == NotificationPhase::Failed { "blocked" } else { "drained" };
    let report = if phase == NotificationPhase::Failed { "2 of 3 pods gone" } else { "3 of 3 pods gone" };
    Notification {
        version: VERSION,
        id: format!("test/{}/{phase}", now.as_second()),
        key: "ebbtide/test".to_owned(),
        phase,
        test: true,
        time: now,
        title: format!("[test] {phase}: sample-node"),
        text: format!("This is a test of Ebbtide's notifications, and nothing has happened. Node sample-node {what}"),
        cluster: None,
        replica: "ebbtide".to_owned(),
        kind: Some(NoticeKind::Spot.as_str()),
        action: Some("drain"),
        instance: Some("i-00000000000000000".to_owned()),
        node: Some("sample-node".to_owned()),
        instance_type: Some("m7g.large".to_owned()),
        zone: Some("eu-west-1a".to_owned()),
        group: Some("sample-group".to_owned()),
        trace_id: None,
        message: Some("00000000-0000-0000-0000-000000000000".to_owned()),
        since: Some(now),
        deadline: (!is_end).then_some(now + SignedDuration::from_secs(120)),
        hard: !is_end,
        blocked: if phase == NotificationPhase::Blocked { vec![blocked] } else { Vec::new() },
        blocked_more: 0,
        outcome: is_end.then_some(outcome),
        seconds: is_end.then_some(42.0),
        report: is_end.then(|| report.to_owned()),
        waited: is_end.then(|| "volumes: met".to_owned()),
        storm: None,
        folded: BTreeMap::new(),
    }
}

/// A Node without labels, or none at all, and a notice without a deadline.
fn of_unknown(phase: NotificationPhase, now: Timestamp) -> Notification {
    Notification {
        node: None,
        instance_type: None,
        zone: None,
        group: None,
        deadline: None,
        hard: false,
        report: None,
        waited: None,
        ..of_node(phase, now)
    }
}

fn of_storm(phase: NotificationPhase, now: Timestamp) -> Notification {
    let kind = NoticeKind::Spot.as_str().to_owned();
    let failed = phase == NotificationPhase::Failed;
    let is_over = failed || phase == NotificationPhase::Done;
    let failure = Failure { node: "sample-node".to_owned(), kind: kind.clone(), outcome: "blocked".to_owned() };
    let storm = Storm {
        id: "ebbtide/storm-0".to_owned(),
        replica: "ebbtide".to_owned(),
        since: now,
        until: None,
        notices: 100,
        running: if is_over { 0 } else { 100 },
        ended: if is_over { 100 } else { 0 },
        in_time: if is_over { 100 - usize::from(failed) } else { 0 },
        failed: usize::from(failed),
        kinds: [(kind, 100)].into(),
        slowest: is_over.then(|| Slowest { node: "sample-node".to_owned(), seconds: 42.0 }),
        failures: if failed { vec![failure] } else { Vec::new() },
        failures_more: 0,
    };
    let none = of_node(phase, now);
    Notification {
        title: format!("[test] {phase}: 100 notices"),
        text: "This is a test of Ebbtide's notifications, and nothing has happened.".to_owned(),
        kind: None,
        action: None,
        instance: None,
        node: None,
        instance_type: None,
        zone: None,
        group: None,
        trace_id: None,
        message: None,
        deadline: None,
        hard: false,
        outcome: None,
        seconds: None,
        report: None,
        waited: None,
        storm: Some(storm),
        ..none
    }
}
