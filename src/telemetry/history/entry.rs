//! The history's entry for one interruption, in [`MAX_SIZE`] bytes at most: names are cut, and items beyond that are only counted.

use super::report;
use crate::fact::{
    Action, CompletionResult, DrainOutcome, HeartbeatResult, NodeRef, NoticeKind, NoticeOutcome, NoticeRef, Wait,
};
use crate::telemetry::bounded::bounded;
use jiff::Timestamp;
use std::fmt::Display;
use std::sync::Arc;

/// Maximum size of an interruption with its drain, in bytes.
pub(super) const MAX_SIZE: usize = 1024;

/// Maximum size of the drain's part.
const MAX_DRAIN_SIZE: usize = 512;

/// Maximum length of the name of a Node. EC2's have 50 characters at most, unless the user chose them.
pub(super) const MAX_NODE: usize = 96;

/// Maximum length of an instance's id.
pub(super) const MAX_INSTANCE: usize = 32;

/// Maximum length of a message's id.
pub(super) const MAX_MESSAGE: usize = 48;

/// Maximum length of the name of a pod with its namespace.
const MAX_POD: usize = 80;

/// Maximum length of the report of a drain's end, when nothing else is kept of the drain.
pub(super) const MAX_REPORT: usize = 240;

/// Maximum length of the other texts.
const MAX_TEXT: usize = 120;

/// One interruption.
#[derive(Debug)]
pub(super) struct Entry {
    pub kind: NoticeKind,
    pub action: Option<Action>,
    pub instance: Arc<str>,
    pub node: Option<Box<str>>,
    pub message: Box<str>,
    pub since: Timestamp,
    pub deadline: Option<Deadline>,
    pub copies: u32,
    pub waits: Vec<RunningWait>,
    pub heartbeats: Option<report::Heartbeats>,
    pub hook: Option<Hook>,
    pub problem: Option<Box<str>>,
    /// Whether it waits because AWS denies it.
    pub is_denied: bool,
    /// `None` while it runs.
    pub end: Option<Box<End>>,
    /// The number of the storm that it belongs to.
    pub storm: Option<u64>,
    /// When it changed last, by the history's count of changes.
    pub revision: u64,
}

/// The end of an interruption.
#[derive(Debug)]
pub(super) struct End {
    pub at: Timestamp,
    pub outcome: NoticeOutcome,
    pub waited: Box<str>,
    pub drains: Vec<Drain>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub at: Timestamp,
    pub hard: bool,
}

/// The end of a lifecycle hook.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hook {
    Open,
    Completed(CompletionResult),
    Left,
    Failed,
}

#[derive(Debug)]
pub(super) struct RunningWait {
    pub wait: Wait,
    reason: Box<str>,
    since: Timestamp,
    until: Timestamp,
}

/// The drain of one Node.
#[derive(Debug)]
pub(super) struct Drain {
    pub uid: Box<str>,
    node: Box<str>,
    since: Timestamp,
    pub deadline: Deadline,
    pub pods: usize,
    pub gone: usize,
    left_alone: usize,
    pub is_blocked: bool,
    /// The pods that are held back.
    blocked: Vec<BlockedPod>,
    blocked_more: usize,
    /// `None` while it runs.
    pub outcome: Option<Outcome>,
    report: Box<str>,
}

#[derive(Debug)]
struct BlockedPod {
    pod: Box<str>,
    by: Box<str>,
    since: Timestamp,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Of(DrainOutcome),
    /// Nothing in this process waited for it any more.
    Abandoned,
}

impl Entry {
    /// The entry of a notice that runs.
    pub(super) fn new(about: &NoticeRef<'_>, since: Timestamp) -> Self {
        let has_hook = matches!(about.kind, NoticeKind::AsgTerminate | NoticeKind::AsgLaunch);
        Self {
            kind: about.kind,
            action: None,
            instance: bounded(&about.instance, MAX_INSTANCE).into(),
            node: about.node.map(|node| bounded(&node, MAX_NODE).into()),
            message: bounded(&about.message, MAX_MESSAGE).into(),
            since,
            deadline: None,
            copies: 0,
            waits: Vec::new(),
            heartbeats: None,
            hook: has_hook.then_some(Hook::Open),
            problem: None,
            is_denied: false,
            end: None,
            storm: None,
            revision: 0,
        }
    }

    /// Whether this is the interruption of the notice.
    pub(super) fn is(&self, about: &NoticeRef<'_>) -> bool {
        self.kind == about.kind
            && (*self.message == *about.message
                || about.message.len() > MAX_MESSAGE && *self.message == *bounded(&about.message, MAX_MESSAGE))
    }

    pub(super) fn end(&self) -> Option<&End> {
        self.end.as_deref()
    }

    /// Whether it has ended, and not been left to another replica.
    pub(super) fn is_settled(&self) -> bool {
        self.end().is_some_and(|end| !matches!(end.outcome, NoticeOutcome::HandedOver | NoticeOutcome::Crashed))
    }

    /// The name that users see.
    pub(super) fn name(&self) -> &str {
        self.node.as_deref().unwrap_or(&self.instance)
    }

    pub(super) fn names_node(&mut self, node: Option<&str>) {
        if let (None, Some(node)) = (&self.node, node) {
            self.node = Some(bounded(&node, MAX_NODE).into());
        }
    }

    pub(super) fn fails(&mut self, problem: &dyn Display) {
        self.problem = Some(bounded(problem, MAX_TEXT).into());
    }

    pub(super) fn beats(&mut self, result: HeartbeatResult, at: Timestamp) {
        let beats = self.heartbeats.get_or_insert(report::Heartbeats { sent: 0, failed: 0, last: None });
        match result {
            HeartbeatResult::Sent => {
                beats.sent += 1;
                beats.last = Some(at);
                self.problem = None;
            }
            HeartbeatResult::Over => {}
            HeartbeatResult::Failed(_) => beats.failed += 1,
        }
    }

    pub(super) fn waits(&mut self, wait: Wait, reason: &str, since: Timestamp, until: Timestamp) {
        let since = self.waits.iter().find(|running| running.wait == wait).map_or(since, |running| running.since);
        self.waits_no_more(wait);
        self.waits.push(RunningWait { wait, reason: bounded(&reason, MAX_TEXT).into(), since, until });
    }

    pub(super) fn waits_no_more(&mut self, wait: Wait) {
        self.waits.retain(|running| running.wait != wait);
    }

    /// Ends the interruption: what only matters while it runs is forgotten.
    pub(super) fn ends(&mut self, at: Timestamp, outcome: NoticeOutcome, waited: &str, drains: Vec<Drain>) {
        self.waits = Vec::new();
        if !outcome.is_failure() {
            self.problem = None;
        }
        let waited = bounded(&waited, MAX_TEXT).into();
        self.end = Some(Box::new(End { at, outcome, waited, drains }));
    }

    /// Returns its size in bytes, without that of drains that run.
    pub(super) fn size(&self) -> usize {
        let text = |text: &Option<Box<str>>| text.as_deref().map_or(0, str::len);
        let waits: usize = self.waits.iter().map(|wait| size_of::<RunningWait>() + wait.reason.len()).sum();
        let end = self
            .end()
            .map_or(0, |end| size_of::<End>() + end.waited.len() + end.drains.iter().map(Drain::size).sum::<usize>());
        size_of::<Self>()
            + self.instance.len()
            + self.message.len()
            + text(&self.node)
            + text(&self.problem)
            + waits
            + end
    }

    /// Returns the entry as a report has it. `drains` are those of its instance that run.
    pub(super) fn report(&self, id: String, replica: &str, drains: &[Drain]) -> report::Interruption {
        let drains = self.end().map_or(drains, |end| &end.drains);
        let drain_runs = drains.iter().any(|drain| drain.outcome.is_none());
        let phase = match &self.end {
            Some(_) => "ended",
            None if drain_runs => "draining",
            None if !self.waits.is_empty() => "waiting",
            None if !drains.is_empty() => "completing",
            None => "received",
        };
        report::Interruption {
            id,
            replica: replica.to_owned(),
            message: self.message.to_string(),
            kind: self.kind.to_string(),
            action: self.action.map(|action| action.to_string()),
            instance: self.instance.to_string(),
            node: self.node.as_deref().map(ToOwned::to_owned),
            copies: self.copies,
            since: self.since,
            deadline: self.deadline.map(|deadline| deadline.at),
            hard: self.deadline.is_some_and(|deadline| deadline.hard),
            phase: phase.to_owned(),
            drains: drains.iter().map(Drain::report).collect(),
            waits: self.waits.iter().map(RunningWait::report).collect(),
            heartbeats: self.heartbeats,
            hook: self.hook.map(|hook| hook.as_str().to_owned()),
            problem: self.problem.as_deref().map(ToOwned::to_owned),
            ended: self.end().map(|end| report::End {
                at: end.at,
                outcome: end.outcome.to_string(),
                failed: end.outcome.is_failure(),
                report: end.drains.iter().map(|drain| &*drain.report).collect::<Vec<_>>().join("; "),
                waited: end.waited.to_string(),
            }),
        }
    }
}

impl Hook {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Completed(result) => result.as_str(),
            Self::Left => "left",
            Self::Failed => "failed",
        }
    }
}

impl RunningWait {
    fn report(&self) -> report::Wait {
        let Self { wait, reason, since, until } = self;
        report::Wait { wait: wait.to_string(), reason: reason.to_string(), since: *since, until: *until }
    }
}

impl Drain {
    pub(super) fn new(on: &NodeRef<'_>, since: Timestamp, deadline: Deadline, pods: usize, left_alone: usize) -> Self {
        Self {
            uid: bounded(&on.uid, MAX_MESSAGE).into(),
            node: bounded(&on.node, MAX_NODE).into(),
            since,
            deadline,
            pods,
            gone: 0,
            left_alone,
            is_blocked: false,
            blocked: Vec::new(),
            blocked_more: 0,
            outcome: None,
            report: "".into(),
        }
    }

    /// Notes that a pod is held back.
    pub(super) fn holds(&mut self, pod: &dyn Display, by: &str, since: Timestamp) {
        let (pod, by) = (bounded(pod, MAX_POD), bounded(&by, MAX_TEXT));
        if self.blocked.is_empty() || self.size() + size_of::<BlockedPod>() + pod.len() + by.len() <= MAX_DRAIN_SIZE {
            self.blocked.push(BlockedPod { pod: pod.into(), by: by.into(), since });
        } else {
            self.blocked_more += 1;
        }
    }

    /// Notes that a pod is no longer held back.
    pub(super) fn frees(&mut self, pod: &dyn Display) {
        let pod = bounded(pod, MAX_POD);
        match self.blocked.iter().position(|blocked| *blocked.pod == *pod) {
            Some(found) => drop(self.blocked.remove(found)),
            None => self.blocked_more = self.blocked_more.saturating_sub(1),
        }
    }

    pub(super) fn ends(&mut self, outcome: Outcome, report: &dyn Display) {
        (self.is_blocked, self.blocked, self.blocked_more) = (false, Vec::new(), 0);
        self.outcome = Some(outcome);
        self.report = bounded(report, MAX_REPORT).into();
    }

    /// Returns the pod that has been held back for longest of those that are named, and what holds it.
    pub(super) fn held(&self) -> Option<(&str, &str)> {
        self.blocked.first().map(|held| (&*held.pod, &*held.by))
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Returns its size in bytes.
    pub(super) fn size(&self) -> usize {
        let blocked = |blocked: &BlockedPod| size_of::<BlockedPod>() + blocked.pod.len() + blocked.by.len();
        let texts = self.uid.len() + self.node.len() + self.report.len();
        size_of::<Self>() + texts + self.blocked.iter().map(blocked).sum::<usize>()
    }

    fn report(&self) -> report::Drain {
        report::Drain {
            node: self.node.to_string(),
            since: self.since,
            deadline: self.deadline.at,
            hard: self.deadline.hard,
            pods: self.pods,
            gone: self.gone,
            left_alone: self.left_alone,
            blocked: self.blocked.iter().map(|blocked| blocked.report(self.deadline.hard)).collect(),
            blocked_more: self.blocked_more,
            outcome: self.outcome.map(|outcome| outcome.as_str().to_owned()),
        }
    }
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Of(outcome) => outcome.as_str(),
            Self::Abandoned => "abandoned",
        }
    }
}

impl BlockedPod {
    fn report(&self, hard: bool) -> report::BlockedPod {
        let (pod, by) = (self.pod.to_string(), self.by.to_string());
        report::BlockedPod { advice: advice(&by, hard), pod, by, since: self.since }
    }
}

/// Returns what the user can do about a pod that is held back. The API server's own message names what holds it.
fn advice(by: &str, hard: bool) -> String {
    let remedy = if by.contains("unhealthyPodEvictionPolicy") {
        "Set unhealthyPodEvictionPolicy: AlwaysAllow in the budget, or have more of its pods Ready."
    } else if by.contains("disruption budget") {
        "Make another pod of the budget Ready elsewhere, or relax the budget."
    } else if by.contains("more than one PodDisruptionBudget") {
        "Leave one budget that selects the pod."
    } else if by.contains("failed calling webhook") {
        "Repair the webhook, or exclude evictions from its configuration."
    } else if by.contains("admission webhook") || by.contains("ValidatingAdmissionPolicy") {
        "Do what the webhook or policy asks for, or exclude the pod from it."
    } else if by.contains("its termination") {
        return "Look at the pod's events, and at the kubelet, the runtime and the volumes of the node. A hook's drain gives it up 5 minutes after its end was due, or 15 while containers run.".to_owned();
    } else {
        "Remove what holds the pod, or delete the pod."
    };
    let end = if hard {
        "Shortly before the deadline the pod is deleted, unless --at-deadline=leave."
    } else {
        "At the deadline the drain ends, and the pod stays."
    };
    format!("{remedy} {end}")
}
