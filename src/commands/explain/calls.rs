//! Which calls would be made, and how many. Pure: counted from what is told.

use super::told::{CallTold, Moment, NoticeTold, PodTold};
use super::why::span;
use crate::cli::settings::Settings;
use crate::pipeline::interruption::Action;
use crate::pipeline::queue::VISIBILITY;
use crate::telemetry::kube_events::Scope;
use std::time::Duration;

/// What the service asks AWS before it acts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// Whose the instance is.
    pub owner: bool,
    /// The hook's times.
    pub hook: bool,
    /// Whether marks of its way into the warm pool are taken back.
    pub welcomed: bool,
    /// For how long the message is made invisible at a time, where not as always.
    pub visibility: Option<Duration>,
}

/// The calls that would be made about a notice.
pub(super) fn of(told: &NoticeTold, asked: Asked, settings: &Settings) -> Vec<CallTold> {
    let mut calls = Calls(Vec::new());
    calls.kubernetes(told, asked, settings);
    calls.aws(told, asked, settings);
    calls.0
}

struct Calls(Vec<CallTold>);

impl Calls {
    fn add(&mut self, to: &'static str, call: &str, (least, most): (usize, Option<usize>), when: impl Into<String>) {
        self.0.push(CallTold { to, call: call.to_owned(), least, most, when: when.into() });
    }

    fn kubernetes(&mut self, told: &NoticeTold, asked: Asked, settings: &Settings) {
        let to = "kubernetes";
        if let Some(marks) = &told.marks {
            let needed = usize::from(!marks.annotations.is_empty());
            let when = match needed {
                0 => "the Node carries the marks already",
                _ => "cordon and all marks in one; again if somebody else writes the Node meanwhile",
            };
            let most = needed + usize::from(marks.taken_back.is_some());
            self.add(to, "patch nodes", (needed, Some(most)), when);
        }
        if asked.welcomed {
            self.add(
                to,
                "patch nodes",
                (0, Some(1)),
                "takes back what was left when the instance went to the warm pool",
            );
        }
        let drains = told.action == Action::Drain.as_str() && told.ends.is_none() && told.node.is_some();
        if !drains {
            return;
        }
        self.add(to, "list pods", (2, None), "at the beginning and at the end; more if pods come meanwhile");
        self.add(to, "watch pods", (0, Some(1)), "one for all drains together");
        let evicted: Vec<&PodTold> = told.pods.iter().filter(|pod| pod.evicted_by.is_some()).collect();
        let refused: Vec<&&PodTold> = evicted.iter().filter(|pod| by_budgets(pod) > 0).collect();
        let when = if refused.is_empty() {
            "one for each pod that is evicted".to_owned()
        } else {
            format!("one for each pod that is evicted; {} refused now, and tried again every 1 to 5 s", refused.len())
        };
        self.add(to, "create pods/eviction", (evicted.len(), evictions(told, &evicted)), when);
        let pressed = evicted.iter().filter(|pod| pod.deleted_at.is_some() && !pod.held_back_by.is_empty()).count();
        if pressed > 0 {
            self.add(to, "delete pods", (0, Some(pressed)), "what is still held back when its grace period just fits");
        }
        let telling = match settings.events {
            _ if settings.policy.dry_run => None,
            Some(Scope::All) => Some("each drain is told of (--events all)"),
            Some(Scope::Blocked) => Some("if the drain is held back for 5 s (--events blocked)"),
            None => None,
        };
        if let Some(when) = telling {
            for call in ["create events", "patch events", "patch nodes/status"] {
                self.add(to, call, (0, None), when);
            }
        }
    }

    fn aws(&mut self, told: &NoticeTold, asked: Asked, settings: &Settings) {
        let to = "aws";
        if asked.owner
            || (told.marks.is_some() && told.ends.as_ref().is_some_and(|end| end.outcome == "nothing-to-drain"))
        {
            self.add(
                to,
                "ec2:DescribeInstances",
                (0, None),
                "whose the instance is, or what became of it; answers are kept for minutes",
            );
        }
        if asked.hook {
            self.add(to, "autoscaling:DescribeLifecycleHooks", (0, Some(1)), "the answer is kept for 10 minutes");
        }
        if let Some(hook) = told.hook.as_ref().filter(|_| !settings.policy.dry_run) {
            // Each comes up to a tenth earlier, so that there is room for more; and one may go out as the work ends.
            let beats = (0, Some(hook.heartbeats + hook.heartbeats / 9 + 1));
            self.add(to, "autoscaling:RecordLifecycleActionHeartbeat", beats, "while the work is going on");
            let least = usize::from(hook.after_failure.is_some());
            self.add(to, "autoscaling:CompleteLifecycleAction", (least, Some(1)), "when the work has ended");
        }
        let last =
            [told.deadline.as_ref().map(|deadline| deadline.moment), told.waits.as_ref().map(|waits| waits.until)];
        let held = last.into_iter().flatten().map(seconds).max().filter(|_| told.ends.is_none());
        if let Some(held) = held {
            let every = asked.visibility.unwrap_or(VISIBILITY) * 2 / 3;
            let most = usize::try_from(held / every.as_secs().max(1)).ok();
            let when = format!("every {} while the message is held", span(every));
            self.add(to, "sqs:ChangeMessageVisibility", (0, most), when);
        }
        self.add(to, "sqs:DeleteMessage", (1, Some(1)), "when every notice in the message has ended");
    }
}

/// How often evictions are tried at the most; not known where a budget lets some of its pods go, or Kubernetes can't tell.
fn evictions(told: &NoticeTold, evicted: &[&PodTold]) -> Option<usize> {
    if told.budgets.iter().any(|budget| !budget.blocks && usize::try_from(budget.allows).is_ok_and(|n| n < budget.pods))
    {
        return None;
    }
    let end = told.deadline.as_ref().map(|deadline| seconds(deadline.moment))?;
    let tries = |pod: &&PodTold| match by_budgets(pod) {
        0 => Some(1),
        1 => {
            let until = pod.deleted_at.map_or(end, seconds);
            // A budget is never asked again within a second; both ends are rounded.
            usize::try_from(until.saturating_sub(pod.evicted_by.map_or(0, seconds)) + 2).ok()
        }
        _ => None,
    };
    evicted.iter().map(tries).sum()
}

/// How many budgets hold the pod back.
fn by_budgets(pod: &PodTold) -> usize {
    pod.held_back_by.iter().filter(|by| by.starts_with("budget ")).count()
}

fn seconds(moment: Moment) -> u64 {
    u64::try_from(moment.in_seconds).unwrap_or(0)
}
