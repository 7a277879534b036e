//! One notice's story: the questions that the service asks about it, in its order.

use super::calls;
use super::look::Look;
use super::pods::Listed;
use super::told::{
    DeadlineTold, EndTold, HookTold, MarksTold, Moment, NodeTold, NoticeTold, OwnerTold, PodTold, WaitTold,
};
use super::why;
use crate::cli::settings::Settings;
use crate::clients::gate::{KubeError, LAST_CALL};
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::{Detail, Hook, Notice};
use crate::pipeline::interruption::{
    Action, Completion, HookTimes, Outcome, Policy, due_beat, is_late, left_for_pool, out_of_service_mark, runs_no_more,
};
use crate::pipeline::node::mark::{Mark, written};
use crate::pipeline::node::{Node, Ownership, owned_by_fate, owned_without_asking};
use crate::runtime::clock::Clock;
use jiff::Unit;
use std::collections::BTreeMap;
use tokio::time::Instant;

/// So many heartbeats are named.
const NAMED: usize = 5;

/// What a mark says of the message that brought its notice.
const MESSAGE: &str = "explained";

/// A notice, and what has been found out about it.
pub(super) struct Story<'a> {
    notice: &'a Notice,
    node: Option<Node>,
    pub settings: &'a Settings,
    clock: Clock,
    action: Action,
    told: NoticeTold,
}

impl<'a> Story<'a> {
    pub fn new(notice: &'a Notice, node: Option<Node>, settings: &'a Settings, clock: Clock) -> Self {
        let action = settings.policy.actions.of(notice.kind());
        let mut told = NoticeTold {
            kind: notice.kind().as_str(),
            says: why::says(&notice.detail),
            instance: notice.instance.to_string(),
            identity: notice.identity.to_string(),
            test: notice.is_test(),
            node: node.as_ref().map(node_told),
            action: action.as_str(),
            ..NoticeTold::default()
        };
        let since = notice.at.duration_since(clock.now()).as_secs();
        told.time = Some(Moment { at: notice.at, in_seconds: since });
        Self { notice, node, settings, clock, action, told }
    }

    pub fn told(self) -> NoticeTold {
        self.told
    }

    fn policy(&self) -> &'a Policy {
        &self.settings.policy
    }

    /// Tells it, from the question whose the instance is to the calls that would be made.
    pub async fn tell(&mut self, look: &Look<'_>) -> Result<(), KubeError> {
        let asked = self.until_work(look).await?;
        self.told.calls = calls::of(&self.told, asked, self.settings);
        Ok(())
    }

    /// What it takes to know whether there is anything to do, and then what that is. Gives what the service would have asked AWS.
    async fn until_work(&mut self, look: &Look<'_>) -> Result<calls::Asked, KubeError> {
        let mut asked = calls::Asked::default();
        if let Some(outcome) = self.policy().settled(self.notice) {
            let why = why::settled(outcome, self.notice);
            return Ok(self.ends(outcome, why, asked));
        }
        asked.owner = self.whose(look).await;
        match self.told.owner.as_ref().and_then(|owner| owner.ours) {
            Some(false) => return Ok(self.ends(Outcome::NotOurs, "another's instance".to_owned(), asked)),
            Some(true) => {}
            None => self.note("what follows holds if the instance is ours"),
        }
        if self.action == Action::Report {
            let why = format!("--on {}=report", self.notice.kind());
            return Ok(self.ends(Outcome::Reported, why, asked));
        }
        if let Some(by) = self.told.node.as_ref().and_then(|node| node.excluded_by) {
            return Ok(self.ends(Outcome::Excluded, format!("the Node is to be left alone: {by}"), asked));
        }
        if runs_no_more(&self.notice.detail) {
            self.out_of_service();
            let why = "the instance runs no more: there is nothing to evict".to_owned();
            return Ok(self.ends(Outcome::NothingToDrain, why, asked));
        }
        let (times, assumed) = match self.policy().touched_hook(self.notice) {
            Some(hook) => {
                asked.hook = true;
                match look.times(hook).await {
                    Ok(times) => (Some(times), None),
                    Err(why) => (Some(HookTimes::UNKNOWN), Some(why)),
                }
            }
            None => (None, None),
        };
        let deadline = self.policy().deadline(self.notice, times, &self.clock);
        self.told.deadline = Some(DeadlineTold {
            moment: self.moment(deadline.at),
            hard: deadline.is_hard(),
            why: why::deadline(self.notice, self.policy(), times, &self.clock),
        });
        if let (Some(hook), Some(times)) = (self.policy().touched_hook(self.notice), times) {
            self.told.hook = Some(self.hook(hook, times, assumed, deadline));
            asked.visibility = Some(times.visibility());
        }
        if self.action == Action::Ready {
            asked.welcomed = self.launched(deadline);
            return Ok(asked);
        }
        let Some(node) = self.node.clone() else {
            self.without_node(deadline);
            return Ok(asked);
        };
        if is_late(self.notice, &node, deadline, &self.clock) {
            let why = "the Node has been Ready again since what the notice announced".to_owned();
            return Ok(self.ends(Outcome::Stale, why, asked));
        }
        let deadline_or_soon = deadline.at_least(Instant::now() + LAST_CALL);
        let mark = self.policy().mark(self.notice, MESSAGE, deadline.at, &self.clock);
        self.told.marks = Some(self.marks(&node, &mark));
        if self.action == Action::Cordon {
            let why = format!("--on {}=cordon: the Node takes no new pods, and none is evicted", self.notice.kind());
            return Ok(self.ends(Outcome::Cordoned, why, asked));
        }
        let (at, now) = (self.clock.notice_instant(self.notice.at), Instant::now());
        let from = self.policy().drains_from(self.notice, at, now, deadline.at);
        self.told.evictions_begin = from.map(|from| self.moment(from));
        self.drained(look, &node, (from.unwrap_or(now), deadline_or_soon)).await?;
        Ok(asked)
    }

    fn ends(&mut self, outcome: Outcome, why: String, asked: calls::Asked) -> calls::Asked {
        self.told.ends = Some(EndTold { outcome: outcome.as_str(), why });
        asked
    }

    fn note(&mut self, note: &str) {
        self.told.notes.push(note.to_owned());
    }

    fn moment(&self, at: Instant) -> Moment {
        moment(&self.clock, at)
    }

    /// Finds out whose the instance is. Tells whether EC2 was asked.
    async fn whose(&mut self, look: &Look<'_>) -> bool {
        let require_tag = self.policy().require_tag;
        let has_node = self.node.is_some();
        let (owner, asked) = match owned_without_asking(has_node, self.notice, require_tag) {
            Some(owned) => {
                let why = if has_node {
                    "the instance has a Node in this cluster"
                } else {
                    "its lifecycle hook notified the queue itself"
                };
                (OwnerTold { ours: Some(owned == Ownership::Ours), why: why.to_owned() }, false)
            }
            None => match look.fate(&self.notice.instance).await {
                Ok(fate) => {
                    let ours = owned_by_fate(fate, has_node) == Ownership::Ours;
                    let why = why::fate(fate, &self.settings.managed_tag, (has_node, require_tag));
                    (OwnerTold { ours: Some(ours), why }, true)
                }
                Err(error) => (OwnerTold { ours: None, why: format!("EC2 could not be asked: {error}") }, true),
            },
        };
        self.told.owner = Some(owner);
        asked
    }

    fn hook(&self, hook: &Hook, times: HookTimes, assumed: Option<String>, deadline: Deadline) -> HookTold {
        let policy = self.policy();
        let detail = &self.notice.detail;
        let (well, badly) = match detail {
            Detail::AsgLaunch(_) => (Outcome::Ready, Outcome::NotReady),
            _ => (Outcome::Drained, Outcome::Blocked),
        };
        let begun = self.clock.notice_instant(self.notice.at);
        let beats = if policy.dry_run { Vec::new() } else { beats(policy, begun, times, deadline.at) };
        let named = |outcome| policy.completion(outcome, detail, false).map(Completion::as_str);
        HookTold {
            group: hook.group.clone(),
            name: hook.name.clone(),
            heartbeat_timeout_seconds: times.heartbeat.as_secs(),
            assumed_because: assumed,
            heartbeats: beats.len(),
            first_heartbeats: beats.into_iter().take(NAMED).map(|at| self.moment(at)).collect(),
            after_success: named(well),
            after_failure: named(badly),
            held_back_seconds: policy.complete_after.as_secs(),
        }
    }

    /// A launched instance: its Node is waited for. Tells whether marks would be taken back from it.
    fn launched(&mut self, deadline: Deadline) -> bool {
        if self.node.as_ref().is_some_and(|node| self.policy().in_service(node)) {
            let why = "the Node is Ready already".to_owned();
            self.told.ends = Some(EndTold { outcome: Outcome::Ready.as_str(), why });
        } else {
            let tainted = !self.policy().startup_taints.is_empty();
            let what = if tainted { "its Node is Ready, without startup taints" } else { "its Node is Ready" };
            let then = match self.policy().completion(Outcome::NotReady, &self.notice.detail, false) {
                Some(completion) => format!("not-ready: the hook is completed with {}", completion.as_str()),
                None => "not-ready: the hook is left to its own timeout".to_owned(),
            };
            self.told.waits = Some(WaitTold { what: what.to_owned(), until: self.moment(deadline.at), then });
        }
        self.node.as_ref().is_some_and(|node| left_for_pool(self.notice, node).is_some())
    }

    /// An instance that has no Node yet, or none any more.
    fn without_node(&mut self, deadline: Deadline) {
        let nothing = Outcome::NothingToDrain;
        let until = self.policy().awaits_node_until(&self.notice.detail, deadline.at, Instant::now());
        if let Some(until) = until {
            let completed = self.told.hook.as_ref().and_then(|hook| hook.after_success);
            let then = match completed {
                Some(result) => format!("{}: the hook is completed with {result}", nothing.as_str()),
                None => nothing.as_str().to_owned(),
            };
            let what = "the instance registers as a Node".to_owned();
            self.told.waits = Some(WaitTold { what, until: self.moment(until), then });
        } else {
            let why = "the instance is terminated in its warm pool, where it is no Node".to_owned();
            self.told.ends = Some(EndTold { outcome: nothing.as_str(), why });
        }
    }

    /// The taint of a Node whose instance is gone.
    fn out_of_service(&mut self) {
        if let Some(node) = self.node.clone().filter(|_| self.policy().out_of_service_taint) {
            let mark = out_of_service_mark(self.notice, MESSAGE);
            self.told.marks = Some(self.marks(&node, &mark));
            self.note("the marks are left once EC2 says that the instance is stopped or terminated");
        }
    }

    fn marks(&self, node: &Node, mark: &Mark) -> MarksTold {
        let patch = mark.patch(node, &self.policy().extras).unwrap_or_default();
        let texts = |field: &str| -> BTreeMap<String, String> {
            let entries = patch["metadata"][field].as_object().cloned().unwrap_or_default();
            let text = |value: serde_json::Value| value.as_str().map(str::to_owned);
            entries.into_iter().filter_map(|(key, value)| Some((key, text(value)?))).collect()
        };
        let taints: Vec<_> = serde_json::from_value(patch["spec"]["taints"].clone()).unwrap_or_default();
        let stands = self.policy().stands(self.notice.kind()).filter(|_| self.action == Action::Cordon);
        MarksTold {
            cordon: patch["spec"]["unschedulable"] == true && !node.cordoned,
            annotations: texts("annotations"),
            labels: texts("labels"),
            taints: taints.iter().filter(|taint| !node.taints.contains(taint)).map(written).collect(),
            taken_back: stands.map(|stands| self.moment(Instant::now() + stands)),
        }
    }

    async fn drained(&mut self, look: &Look<'_>, node: &Node, span: (Instant, Deadline)) -> Result<(), KubeError> {
        let pods = look.pods(&node.name).await?;
        let budgets = match look.budgets().await {
            Ok(budgets) => budgets,
            Err(error) => {
                self.note(&format!("which budgets block is not known: {error}"));
                Vec::new()
            }
        };
        let listed = Listed::new(pods, &budgets, self.settings);
        let moment = |at| moment(&self.clock, at);
        self.told.pods = listed.pods(span, moment);
        self.told.stay = listed.stay();
        self.told.budgets = listed.budgets();
        let held = |pod: &&PodTold| !pod.held_back_by.is_empty();
        if self.told.pods.iter().any(|pod| held(&pod) && pod.deleted_at.is_none()) {
            self.note(&why::held_for_good(span.1.is_hard()));
        }
        Ok(())
    }
}

fn node_told(node: &Node) -> NodeTold {
    let excluded_by = match (node.ignored, node.selected) {
        (true, _) => Some("its annotation ebbtide/ignore"),
        (_, false) => Some("--node-selector"),
        _ => None,
    };
    NodeTold { name: node.name.to_string(), ready: node.ready, cordoned: node.cordoned, excluded_by }
}

fn moment(clock: &Clock, at: Instant) -> Moment {
    let at = clock.timestamp_of(at);
    let away = at.duration_since(clock.now()).round(Unit::Second).unwrap_or_default();
    Moment { at: at.round(Unit::Second).unwrap_or(at), in_seconds: away.as_secs() }
}

/// The heartbeats of a hook whose action began at `begun`, if the work takes until `finish`.
fn beats(policy: &Policy, begun: Instant, times: HookTimes, finish: Instant) -> Vec<Instant> {
    let mut expires = begun + times.heartbeat;
    let now = Instant::now();
    let next = || {
        let due = due_beat(policy.heartbeats, begun, expires, times, finish)?.max(now);
        expires = due + times.heartbeat;
        (due < finish).then_some(due)
    };
    std::iter::from_fn(next).collect()
}
