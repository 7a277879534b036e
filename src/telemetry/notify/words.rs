//! The words of notifications: what a person reads first. Pure.

use super::NotifySettings;
use super::episode::Episode;
use super::format::Format;
use super::notification::{BlockedPod, Notification, VERSION, counts};
use super::storm::FoldedStorm;
use crate::fact::{Action, NotificationPhase};
use crate::runtime::clock::Clock;
use crate::runtime::duration::Words;
use crate::telemetry::history::report;
use crate::telemetry::traces::trace_id;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of blocked pods of one node that are named.
const MAX_BLOCKED: usize = 5;

/// Maximum number of blocked pods that the text names; the list has more.
const MAX_IN_TEXT: usize = 3;

/// Writes notifications in the name of one process.
#[derive(Debug)]
pub(super) struct Writer {
    cluster: Option<String>,
    replica: String,
    traces: bool,
    clock: Clock,
    /// The key of the alert that all storms of the cluster share with `PagerDuty`, so that any replica ends it.
    storm_alert: Option<String>,
}

impl Writer {
    pub(super) fn new(settings: &NotifySettings, clock: Clock) -> Self {
        let NotifySettings { cluster, replica, traces, format, .. } = settings;
        let of_cluster = cluster.as_ref().map(|cluster| format!("/{cluster}")).unwrap_or_default();
        let storm_alert = (*format == Format::PagerDuty).then(|| format!("ebbtide/storm{of_cluster}"));
        Self { cluster: cluster.clone(), replica: replica.clone(), traces: *traces, clock, storm_alert }
    }

    /// Returns an instant as wall time, in whole milliseconds.
    fn time(&self, at: Instant) -> Timestamp {
        let at = self.clock.timestamp_of(at);
        Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at)
    }

    fn empty(&self, phase: NotificationPhase, id: String, key: String) -> Notification {
        Notification {
            version: VERSION,
            id,
            key,
            phase,
            test: false,
            time: self.time(Instant::now()),
            title: String::new(),
            text: String::new(),
            cluster: self.cluster.clone(),
            replica: self.replica.clone(),
            kind: None,
            action: None,
            instance: None,
            node: None,
            instance_type: None,
            zone: None,
            group: None,
            trace_id: None,
            message: None,
            since: None,
            deadline: None,
            hard: false,
            blocked: Vec::new(),
            blocked_more: 0,
            outcome: None,
            seconds: None,
            report: None,
            waited: None,
            storm: None,
            folded: BTreeMap::new(),
        }
    }

    /// Returns the notification about a node.
    pub(super) fn node(&self, phase: NotificationPhase, episode: &Episode) -> Notification {
        let about = &episode.about;
        let id = format!("{}/{}/{phase}", about.instance, about.message);
        let is_end = matches!(phase, NotificationPhase::Done | NotificationPhase::Failed);
        let end = episode.end.as_ref().filter(|_| is_end);
        let (blocked, blocked_more) =
            if phase == NotificationPhase::Blocked { episode.blocked(MAX_BLOCKED) } else { (Vec::new(), 0) };
        let deadline = episode.deadline.filter(|_| !is_end);
        let mut notification = Notification {
            test: episode.is_test,
            kind: Some(about.kind.as_str()),
            action: Some(episode.action.as_str()),
            instance: Some(about.instance.to_string()),
            node: about.node.as_deref().map(str::to_owned),
            instance_type: known(&episode.pool.instance_type),
            zone: known(&episode.pool.zone),
            group: known(&episode.pool.group),
            message: Some(about.message.to_string()),
            trace_id: self.traces.then(|| trace_id(about.as_ref()).to_string()),
            since: Some(self.time(episode.begun)),
            deadline: deadline.map(|(at, _)| self.time(at)),
            hard: deadline.is_some_and(|(_, hard)| hard),
            blocked,
            blocked_more,
            outcome: end.map(|end| end.outcome.as_str()),
            seconds: end.map(|end| seconds(end.took)),
            report: episode.report.as_deref().filter(|_| is_end).map(str::to_owned),
            waited: end.map(|end| end.waited.to_string()).filter(|waited| !waited.is_empty()),
            ..self.empty(phase, id, format!("ebbtide/{}", about.instance))
        };
        notification.title =
            format!("{}{}: {}", test(notification.test), heading(phase, episode.action), episode.name());
        notification.text = text(phase, episode, &notification);
        notification
    }

    /// Returns the notification about a storm, which may be over.
    pub(super) fn storm(&self, phase: NotificationPhase, storm: &FoldedStorm, is_over: bool) -> Notification {
        let storm_id = format!("{}/storm-{}", self.replica, storm.since.as_second());
        let report = storm.report(&storm_id, &self.replica);
        let (since, time) = (report.since, self.time(Instant::now()));
        // Further failures follow the first ones.
        let is_update = phase == NotificationPhase::Failed && !is_over;
        let number = if is_update { format!("-{}", time.as_second()) } else { String::new() };
        let key = match &self.storm_alert {
            Some(alert) if phase != NotificationPhase::Failed => alert.clone(),
            _ => format!("ebbtide/{storm_id}"),
        };
        let title = match phase {
            NotificationPhase::Notice => "Many nodes are interrupted",
            NotificationPhase::Blocked => "Drains of a storm are blocked",
            NotificationPhase::Done => "A storm is over",
            NotificationPhase::Failed if is_update => "Nodes of a storm failed",
            NotificationPhase::Failed => "A storm is over, with failures",
        };
        let (blocked, blocked_more) =
            if phase == NotificationPhase::Blocked { storm.blocked() } else { (Vec::new(), 0) };
        Notification {
            test: storm.is_test,
            time,
            title: format!("{}{title}: {} notices", test(storm.is_test), report.notices),
            text: storm_text(phase, &report, storm.blocked_drains, &blocked, blocked_more),
            since: Some(since),
            blocked,
            blocked_more,
            storm: Some(report),
            ..self.empty(phase, format!("{storm_id}/{phase}{number}"), key)
        }
    }

    /// Returns the end of the alert of a storm that another replica has seen, if storms have one alert.
    pub(super) fn end_of_storms(&self) -> Option<Notification> {
        let alert = self.storm_alert.clone()?;
        let id = format!("{}/{alert}/{}", self.replica, self.time(Instant::now()).as_second());
        let title = "No storm is left".to_owned();
        Some(Notification { title, ..self.empty(NotificationPhase::Done, id, alert) })
    }
}

const fn test(is_test: bool) -> &'static str {
    if is_test { "[test] " } else { "" }
}

/// Returns the text, unless it is empty.
fn known(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn seconds(took: Duration) -> f64 {
    // Milliseconds are fine enough, and short to write.
    Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)).as_secs_f64()
}

const fn heading(phase: NotificationPhase, action: Action) -> &'static str {
    match (phase, action) {
        (NotificationPhase::Notice, Action::Cordon) => "Cordoned",
        (NotificationPhase::Notice, Action::Ready) => "Launching",
        (NotificationPhase::Notice, _) => "Draining",
        (NotificationPhase::Blocked, _) => "Drain blocked",
        (NotificationPhase::Done, Action::Cordon) => "Cordon done",
        (NotificationPhase::Done, Action::Ready) => "Launched",
        (NotificationPhase::Done, _) => "Drained",
        (NotificationPhase::Failed, Action::Ready) => "Launch failed",
        (NotificationPhase::Failed, Action::Cordon) => "Cordon failed",
        (NotificationPhase::Failed, _) => "Drain failed",
    }
}

fn text(phase: NotificationPhase, episode: &Episode, notification: &Notification) -> String {
    let (name, kind) = (episode.name(), episode.about.kind);
    let until = notification.deadline.map(|at| {
        let at = at.strftime("%Y-%m-%dT%H:%M:%SZ");
        if notification.hard { format!("; the node goes at {at}") } else { format!("; until {at}") }
    });
    let until = until.unwrap_or_default();
    let took = episode.end.as_ref().map(|end| Words(end.took).to_string()).unwrap_or_default();
    let report = notification.report.as_ref().map(|report| format!(": {report}")).unwrap_or_default();
    let waited = notification.waited.as_ref().map(|waited| format!("; waits: {waited}")).unwrap_or_default();
    match phase {
        NotificationPhase::Notice => {
            let what = match episode.action {
                Action::Cordon => "gets no new pods",
                Action::Ready => "is launched, and its hook waits until it is Ready",
                _ => "is drained",
            };
            format!("Node {name} {what}, because of a notice of the kind {kind}{until}.")
        }
        NotificationPhase::Blocked => {
            let pods = held_back(&notification.blocked, notification.blocked_more);
            format!("The drain of node {name} ({kind}) is blocked. {pods}{until}.")
        }
        NotificationPhase::Done => {
            let outcome = notification.outcome.unwrap_or_default();
            format!("Node {name} ({kind}): {outcome} after {took}{report}{waited}.")
        }
        NotificationPhase::Failed => {
            let outcome = notification.outcome.unwrap_or_default();
            format!("Node {name} ({kind}) failed: {outcome} after {took}{report}{waited}.")
        }
    }
}

/// Names blocked pods, and what holds them back.
fn held_back(blocked: &[BlockedPod], more: usize) -> String {
    let pods = blocked.iter().take(MAX_IN_TEXT);
    let pods: Vec<String> =
        pods.map(|BlockedPod { pod, by, .. }| format!("{pod} is held back: {}", by.trim_end_matches('.'))).collect();
    let more = more + blocked.len().saturating_sub(MAX_IN_TEXT);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{}{more}", pods.join("; "))
}

fn storm_text(
    phase: NotificationPhase,
    storm: &report::Storm,
    drains: usize,
    blocked: &[BlockedPod],
    more: usize,
) -> String {
    let report::Storm { notices, running, in_time, failed, .. } = storm;
    let begun = format!("{notices} notices ({}) since {}", counts(&storm.kinds), storm.since.strftime("%H:%M:%SZ"));
    match phase {
        NotificationPhase::Notice => format!("{begun}. A further message follows when the storm is over."),
        NotificationPhase::Blocked => {
            format!("{begun}. Blocked drains: {drains}. {}.", held_back(blocked, more))
        }
        NotificationPhase::Done | NotificationPhase::Failed => {
            let names: Vec<String> =
                storm.failures.iter().map(|failure| format!("{} ({})", failure.node, failure.outcome)).collect();
            let others =
                if storm.failures_more > 0 { format!(" and {} more", storm.failures_more) } else { String::new() };
            let names = if names.is_empty() { String::new() } else { format!(": {}{others}", names.join(", ")) };
            let slowest = storm.slowest.as_ref().map(|slowest| {
                let took = Duration::try_from_secs_f64(slowest.seconds).unwrap_or_default();
                format!("; the slowest was {}, after {}", slowest.node, Words(took))
            });
            let rest = if *running > 0 { format!(", {running} still running") } else { String::new() };
            format!("{begun}: {in_time} ended well, {failed} failed{names}{rest}{}.", slowest.unwrap_or_default())
        }
    }
}
