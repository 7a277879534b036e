//! Validation of each flag, with all problems so far.

use super::{MAX_LEAD, SettingsError};
use crate::cli::flags::{MAX_DRAIN, PoolFlag, Problem, up_to};
use crate::cli::text::did_you_mean;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, Actions, OnFailed, PerKind, Policy, WARNING_TIME};
use crate::pipeline::node::PerPool;
use crate::pipeline::node::label::{KeyPattern, Taint};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Returns the host suffix of a well-known partition.
fn host_of(partition: &str) -> Option<&'static str> {
    match partition {
        "aws" | "aws-us-gov" => Some("amazonaws.com"),
        "aws-cn" => Some("amazonaws.com.cn"),
        _ => None,
    }
}

/// Checks that a text is the URL of a standard queue.
fn check_queue_url(url: &str) -> Result<(), String> {
    if url.is_empty() {
        return Err("is missing; give the queue's URL, or set EBBTIDE_QUEUE_URL".to_owned());
    }
    if let Some(arn) = url.strip_prefix("arn:") {
        let parts: Vec<&str> = arn.split(':').collect();
        let hint = match parts.as_slice() {
            [partition, "sqs", region, account, name] => host_of(partition)
                .map(|host| format!("; for this queue it is https://sqs.{region}.{host}/{account}/{name}")),
            _ => None,
        };
        return Err(format!("\"{url}\" is an ARN; give the queue's URL{}", hint.unwrap_or_default()));
    }
    let parsed = url.parse::<http::Uri>().ok().filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
    match parsed {
        None => Err(format!(
            "\"{url}\" is not a URL; the SQS console shows the URL, such as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
        )),
        Some(uri) if uri.path().trim_matches('/').is_empty() => {
            Err(format!("\"{url}\" names no queue; the path must be /ACCOUNT/NAME"))
        }
        // SQS asks for this suffix, and allows it for no other queue.
        Some(uri) if uri.path().strip_suffix(".fifo").is_some() => Err(format!(
            "\"{url}\" is a FIFO queue, which hands out no other message of a group while one is worked on: one long drain would hold \
             back every notice after it; give a standard queue"
        )),
        Some(_) => Ok(()),
    }
}

/// How the problem of a flag begins that has no effect because another is not set.
const NO_EFFECT: &str = "has no effect without ";

/// The problems so far.
#[derive(Default)]
pub(super) struct Problems {
    all: Vec<Problem>,
    /// Number of those of single values. They come first.
    refused: usize,
}

/// Takes over the problems of a pool that are about what it has for itself: the rest is right for other Nodes. Forgets that a flag has no
/// effect for these, if it has one in the pool.
pub(super) fn take_of_pool(problems: &mut Problems, pool: &PoolFlag, of_pool: Problems) {
    let is_idle = |flag: &str| of_pool.all.iter().any(|it| it.flag == flag && it.what.starts_with(NO_EFFECT));
    problems.all.retain(|Problem { flag, what }| !what.starts_with(NO_EFFECT) || pool.has(flag) || is_idle(flag));
    for Problem { flag, what } in of_pool.all.into_iter().filter(|problem| pool.has(&problem.flag)) {
        problems.add("--pool", format!("{}: {flag}: {what}", pool.pool.name));
    }
}

impl Problems {
    /// Begins with the values that their flags have refused.
    pub(super) fn of(refused: Vec<Problem>) -> Self {
        Self { refused: refused.len(), all: refused }
    }

    /// Adds a problem of a flag, unless its value was refused: then nothing is known about it.
    pub(super) fn add(&mut self, flag: &'static str, what: impl Into<String>) {
        if !self.has_refused(flag) {
            self.all.push(Problem { flag: flag.to_owned(), what: what.into() });
        }
    }

    /// Whether a value of the flag was refused.
    pub(super) fn has_refused(&self, flag: &str) -> bool {
        self.all[..self.refused].iter().any(|problem| problem.flag == flag)
    }

    /// Returns the value, if there is one, and else adds the problem.
    pub(super) fn read<T>(&mut self, flag: &'static str, read: Result<T, impl fmt::Display>) -> Option<T> {
        read.map_err(|error| self.add(flag, error.to_string())).ok()
    }

    /// Ends the validation.
    ///
    /// # Errors
    /// All problems.
    pub(super) fn end(self) -> Result<(), SettingsError> {
        if self.all.is_empty() { Ok(()) } else { Err(SettingsError(self.all)) }
    }

    pub(super) fn queue_url(&mut self, url: Option<String>) -> String {
        let url = url.unwrap_or_default();
        self.read("--queue-url", check_queue_url(&url));
        url
    }

    pub(super) fn actions(&mut self, flags: &[String]) -> Actions {
        let mut actions = Actions::default();
        for (kind, action) in self.by_kind("--on", flags, "spot=drain") {
            if let Some(action) = self.action(kind, action) {
                actions.set(kind, action);
            }
        }
        actions
    }

    /// Reads the actions for faults, `CODE=ACTION`.
    pub(super) fn health_issues(&mut self, flags: &[String]) -> BTreeMap<String, Action> {
        let flag = "--health-issue";
        let allowed = [Action::Drain, Action::Replace, Action::Cordon, Action::Report];
        let mut actions = BTreeMap::new();
        for pair in flags {
            let (code, action) = pair.split_once('=').unwrap_or((pair, ""));
            let is_code =
                code.starts_with("AWS_EC2_") && code.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'0'..=b'9' | b'_'));
            match allowed.into_iter().find(|known| known.as_str() == action).filter(|_| is_code) {
                None if !is_code => self.add(flag, format!("\"{code}\" is no code of an EC2 fault; write it as AWS does, in capitals and whole, like AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED")),
                None => self.add(flag, format!("\"{pair}\" is not CODE=ACTION; write it like AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED=cordon, with one of drain, replace, cordon, report")),
                Some(action) if actions.insert(code.to_owned(), action).is_some() => {
                    self.add(flag, format!("\"{code}\" is given twice; remove one"));
                }
                Some(_) => {}
            }
        }
        actions
    }

    /// Reads values for one kind each, `KIND=VALUE`.
    pub(super) fn by_kind<'a>(
        &mut self,
        flag: &'static str,
        flags: &'a [String],
        example: &str,
    ) -> Vec<(NoticeKind, &'a str)> {
        let mut found: Vec<(NoticeKind, &str)> = Vec::new();
        for pair in flags {
            let Some((kind, value)) = pair.split_once('=') else {
                self.add(flag, format!("\"{pair}\" names no kind; write it like {example}"));
                continue;
            };
            let Some(kind) = NoticeKind::ALL.into_iter().find(|known| known.as_str() == kind) else {
                let kinds = NoticeKind::ALL.map(NoticeKind::as_str);
                let near = did_you_mean(kind, &kinds);
                self.add(flag, format!("\"{kind}\" is not a kind; the kinds are {}{near}", kinds.join(", ")));
                continue;
            };
            if found.iter().any(|(before, _)| *before == kind) {
                self.add(flag, format!("\"{kind}\" is given twice; remove one"));
            }
            found.push((kind, value));
        }
        found
    }

    /// Reads one value for all kinds, and others for single kinds.
    pub(super) fn drain_timeouts(&mut self, flags: &[String]) -> PerKind<Option<Duration>> {
        let flag = "--drain-timeout";
        let (some, all) = self.one_for_all(flag, flags);
        let mut timeouts = PerKind::all(all.and_then(|text| self.read(flag, up_to(MAX_DRAIN)(&text))));
        for (kind, text) in self.by_kind(flag, &some, "asg-terminate=30m") {
            let timeout = self.read(flag, up_to(MAX_DRAIN)(text));
            if matches!(kind, NoticeKind::Spot | NoticeKind::StateChange) && timeout > Some(WARNING_TIME) {
                self.add(flag, format!("{kind}={text} has no effect: AWS gives two minutes; set less, or remove it"));
            }
            timeouts.set(kind, timeout);
        }
        timeouts
    }

    /// Splits values for single kinds from the one for all kinds.
    pub(super) fn one_for_all(&mut self, flag: &'static str, flags: &[String]) -> (Vec<String>, Option<String>) {
        let (some, all): (Vec<String>, Vec<String>) = flags.iter().cloned().partition(|text| text.contains('='));
        if all.len() > 1 {
            self.add(flag, format!("{} are values for all kinds; remove all but one", all.join(" and ")));
        }
        (some, all.into_iter().next())
    }

    /// Reads how long before a scheduled change its Node is drained; `None` for at once.
    pub(super) fn lead(&mut self, flags: &[String]) -> Option<Duration> {
        let flag = "--when";
        let mut lead = None;
        for (kind, text) in self.by_kind(flag, flags, "scheduled-change=2h-before") {
            if kind != NoticeKind::ScheduledChange {
                self.add(flag, format!("{kind} is always acted on now; only scheduled-change can wait"));
            }
            lead = match text.strip_suffix("-before") {
                None if text == "now" => None,
                None => {
                    self.add(flag, format!("\"{text}\" is not a time; write now, or a duration such as 2h-before"));
                    None
                }
                Some(text) => self.read(flag, up_to(MAX_LEAD)(text)),
            };
        }
        lead
    }

    /// Adds a problem if EC2 is polled for kinds that are ignored.
    pub(super) fn idle_polls(&mut self, interval: Option<Duration>, policies: &PerPool<Policy>) {
        let polled = [NoticeKind::ScheduledChange, NoticeKind::CapacityReservation, NoticeKind::StatusCheck];
        let acts = |kind| policies.iter().any(|(_, policy)| policy.actions.of(kind) != Action::Ignore);
        let ignored = !polled.into_iter().any(acts);
        self.idle(
            "--ec2-poll-interval",
            interval.is_some() && ignored,
            "--on scheduled-change=drain, or --on capacity-reservation=drain",
        );
    }

    /// Reports settings of launches that nothing waits for.
    pub(super) fn idle_launches(&mut self, taints: &[KeyPattern], on_failed: OnFailed, actions: Actions) {
        let ready = actions.of(NoticeKind::AsgLaunch) == Action::Ready;
        let idle = !taints.is_empty() && !ready && !actions.have(Action::Replace);
        self.idle("--startup-taint", idle, "--on asg-launch=ready, or the action replace");
        self.idle("--on-failed-launch", on_failed == OnFailed::Abandon && !ready, "--on asg-launch=ready");
    }

    /// Reports taints that are given twice.
    pub(super) fn same_taints(&mut self, taints: &[Taint]) {
        for (n, taint) in taints.iter().enumerate() {
            if taints[..n].iter().any(|known| known.key == taint.key && known.effect == taint.effect) {
                self.add("--taint", format!("\"{}\" is given twice for {}; remove one", taint.key, taint.effect));
            }
        }
    }

    /// Reports a flag that has no effect because another is not set, unless that is set wrongly.
    pub(super) fn idle(&mut self, flag: &'static str, idle: bool, without: &str) {
        let is_reported = without.starts_with("--on ") && self.all.iter().any(|problem| problem.flag == "--on");
        if idle && !is_reported {
            self.add(flag, format!("{NO_EFFECT}{without}; set both, or neither"));
        }
    }

    /// Reports a flag for which replicas must know their own pods.
    pub(super) fn without_own_pod(&mut self, flag: &'static str, missing: bool) {
        // One flag without the other is reported already.
        if missing && self.all.iter().all(|problem| !problem.flag.starts_with("--pod-na")) {
            self.add(
                flag,
                "needs --pod-namespace and --pod-name, because replicas elect the collector; set both from the downward API",
            );
        }
    }

    fn action(&mut self, kind: NoticeKind, action: &str) -> Option<Action> {
        if kind == NoticeKind::NodeCondition {
            self.add("--on", format!("{kind} has an action for each condition; write --on-condition TYPE=STATUS:TOLERATION=ACTION instead"));
            return None;
        }
        let found = kind.actions().iter().copied().find(|known| known.as_str() == action);
        if found.is_none() {
            let names: Vec<_> = kind.actions().iter().map(|action| action.as_str()).collect();
            let near = did_you_mean(action, &names);
            self.add(
                "--on",
                format!("\"{kind}={action}\" is not possible; for {kind} choose one of {}{near}", names.join(", ")),
            );
        }
        found
    }

    pub(super) fn own_pod(&mut self, namespace: Option<String>, name: Option<String>) -> Option<(String, String)> {
        match (namespace, name) {
            (Some(namespace), Some(name)) => Some((namespace, name)),
            (None, None) => None,
            (Some(_), None) => {
                self.add("--pod-name", "is missing, but --pod-namespace is set; set both, or neither");
                None
            }
            (None, Some(_)) => {
                self.add("--pod-namespace", "is missing, but --pod-name is set; set both, or neither");
                None
            }
        }
    }
}
