//! One notice's story: the steps that the service would take, narrated.

use super::pods::{DrainSpan, PodList};
use super::reader::Reader;
use super::reasons;
use super::target_groups;
use super::view::{
    BeginView, DeadlineView, EndView, HookView, MarksView, Moment, NodeView, NoticeView, OwnerView, Place, PodView,
    WaitView,
};
use super::waits as planned;
use crate::cli::settings::Settings;
use crate::clients::gate::KubeError;
use crate::fact::Wait;
use crate::pipeline::drain::{Deadline, Remaining};
use crate::pipeline::event::{Detail, Hook, Notice};
use crate::pipeline::interruption::{
    Action, AwaitedNode, Completion, HookEnding, HookTimes, Known, KnownHook, NoticeOutcome, Owner, Policy, Progress,
    QuietTime, Step, Steps, Target, Waits, due_beat,
};
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::shift::Shift;
use crate::pipeline::node::{Node, Ownership, owned_by_record, owned_without_asking};
use crate::runtime::clock::Clock;
use jiff::Unit;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of heartbeats whose times are given.
const MAX_BEATS: usize = 5;

/// Message id in the marks of a notice that is only simulated.
const MESSAGE: &str = "simulated";

/// A notice, and what has been found out about it.
pub(super) struct Narration<'a> {
    notice: &'a Notice,
    node: Option<Arc<Node>>,
    /// The zonal shift for which its drain waits if it has time.
    shift: Option<Shift>,
    /// The reason why the hook's times are only assumed.
    assumed: Option<String>,
    /// The times of the hook, if the notice has one to complete.
    times: Option<HookTimes>,
    settings: &'a Settings,
    /// The policy of the Node's pool.
    policy: &'a Policy,
    clock: Clock,
    action: Action,
    view: NoticeView,
}

impl<'a> Narration<'a> {
    pub fn new(
        notice: &'a Notice,
        (node, shift): (Option<Arc<Node>>, Option<Shift>),
        settings: &'a Settings,
        clock: Clock,
    ) -> Self {
        let policy = settings.policies.of_node(node.as_deref());
        let action = policy.action(notice);
        let in_seconds = notice.at().duration_since(clock.now()).as_secs();
        let view = NoticeView {
            kind: notice.kind(),
            summary: reasons::summary(&notice.detail),
            instance: notice.instance.to_string(),
            identity: notice.identity.to_string(),
            test: notice.is_test(),
            time: Some(Moment { at: notice.at(), in_seconds }),
            node: node.as_deref().map(NodeView::of),
            owner: None,
            action,
            setting: reasons::setting(notice, action),
            ends: None,
            waits: None,
            deadline: None,
            hook: None,
            marks: None,
            evictions_begin: None,
            pods: Vec::new(),
            stay: Vec::new(),
            budgets: Vec::new(),
            target_groups: Vec::new(),
            planned_waits: Vec::new(),
            notes: Vec::new(),
        };
        Self { notice, node, shift, assumed: None, times: None, settings, policy, clock, action, view }
    }

    fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Narrates the notice's steps as far as their findings are known now.
    pub async fn into_view(mut self, reader: &Reader<'_>) -> Result<NoticeView, KubeError> {
        let node = self.node.clone();
        let (policy, clock, notice) = (self.policy(), self.clock, self.notice);
        let steps = Steps { policy, clock, notice, message: MESSAGE };
        let mut begun = Instant::now();
        let mut known = Known { node: node.clone(), is_shifted: self.shift.is_some(), ..Known::received(begun) };
        loop {
            // After the waits, whose time does not pass here.
            let now = begun.max(Instant::now());
            let progress = match steps.next(&known, now) {
                Step::FindOwner { .. } => {
                    let owned = self.whose(reader).await;
                    if owned.is_none() {
                        self.note("the rest assumes that the instance is ours");
                    }
                    known.owner = Owner::Found(owned.unwrap_or(Ownership::Ours));
                    continue;
                }
                Step::MarkOutOfService { mark, .. } => {
                    self.out_of_service(&mark);
                    Progress::Ended(NoticeOutcome::NothingToDrain)
                }
                Step::Begin(hook) => {
                    self.times = match hook {
                        Some(hook) => Some(reader.times(hook).await.unwrap_or_else(|error| {
                            self.assumed = Some(error.to_string());
                            HookTimes::UNKNOWN
                        })),
                        None => None,
                    };
                    let deadline = policy.deadline(notice, node.as_deref(), self.times, &clock, now);
                    known.hook = self.times.map(|times| KnownHook { deadline, times });
                    self.begin(deadline, None);
                    Progress::Begun
                }
                Step::AskHook(node) => Progress::Waiting(node),
                Step::AwaitReady { until } => {
                    let Some(node) = node.clone().filter(|node| policy.in_service(notice, node)) else {
                        self.awaits_ready(until);
                        return Ok(self.view);
                    };
                    Progress::Found(node)
                }
                Step::ReleaseMarks { .. } => Progress::Released(true),
                Step::FindNode(search) => match (search.awaits, &node) {
                    (AwaitedNode::None, Some(node)) => Progress::Found(Arc::clone(node)),
                    (AwaitedNode::None, None) => Progress::NoNode,
                    (AwaitedNode::Registered(until), _) => {
                        self.awaits_node(until);
                        return Ok(self.view);
                    }
                    (AwaitedNode::Successor(_), _) => Progress::NoNodeInTime,
                },
                Step::Plan { .. } => {
                    self.note(&reasons::planned(notice, policy));
                    Progress::Ended(NoticeOutcome::Planned)
                }
                Step::Admit { patience, .. } => {
                    if let Some(condition) = reasons::admitted(notice, policy, patience) {
                        self.note(&condition);
                    }
                    Progress::Admitted
                }
                Step::Cordon { target, mark } => {
                    self.view.marks = Some(self.marks(&target.node, &mark));
                    Progress::Cordoned(target)
                }
                Step::Delay { target, waits } => {
                    Progress::Delayed(self.delayed(reader, target, waits, &mut begun).await)
                }
                Step::Drain { target, quiet } => {
                    self.settled(quiet, &mut begun);
                    self.drained(reader, begun, &target).await?;
                    let (groups, failures) = target_groups::of(notice, policy, &self.view.pods, reader).await;
                    self.view.target_groups = groups;
                    self.view.notes.extend(failures);
                    let planned = planned::after(policy, notice, &target.node, (begun, target.deadline), &self.clock);
                    self.view.planned_waits.extend(planned);
                    return Ok(self.view);
                }
                Step::EndWork(outcome) => Progress::Ended(outcome),
                Step::Wait(_) => Progress::Waited,
                Step::Remedy { remedy, .. } => Progress::Remedied(remedy),
                Step::EndHook(HookEnding::Complete(_) | HookEnding::Leave) => Progress::HookEnded(known.outcome),
                Step::EndHook(HookEnding::LeaveUnproven) => {
                    self.note("its lifecycle hook is left alone: the instance may belong to another cluster; tag it with its cluster, or give --managed-tag a value");
                    Progress::HookEnded(NoticeOutcome::NotOurs)
                }
                Step::End(outcome) => {
                    self.ends(outcome);
                    return Ok(self.view);
                }
            };
            known.advance(progress, now);
        }
    }

    /// Narrates the wait for the end of the burst of notices, and when that has `begun`.
    fn settled(&mut self, quiet: Option<QuietTime>, begun: &mut Instant) {
        let Some(QuietTime { quiet, .. }) = quiet else { return };
        *begun = Instant::now() + quiet;
        self.view.evictions_begin =
            Some(BeginView { moment: self.moment(*begun), why: "the quiet time, if no other drain begins" });
    }

    /// Narrates the waits before evictions, and when those have `begun` at the latest. Returns the target with its deadline then.
    async fn delayed(&mut self, reader: &Reader<'_>, target: Target, mut waits: Waits, begun: &mut Instant) -> Target {
        if let Some(until) = waits.until(Wait::Replacement)
            && let Err(reason) = reader.replacement(self.notice, &target.node, until).await
        {
            let forgone = planned::forgone(Place::BeforeEvictions, Wait::Replacement, reasons::forgone(reason));
            self.view.planned_waits.push(forgone);
            waits.remove(Wait::Replacement);
        }
        let shift = self.shift.as_ref().filter(|_| waits.until(Wait::ZonalShift).is_some());
        if let Some(shift) = shift {
            planned::end_with(shift, &mut waits, &self.clock);
            self.view.notes.push(reasons::counts(shift));
        }
        let Some(until) = waits.end() else { return target };
        *begun = until;
        self.view.planned_waits.extend(planned::before(&waits, shift));
        let only_delayed = waits.iter().all(|(wait, _)| wait == Wait::Delay);
        let why = if only_delayed { "--delay" } else { "at the latest, after the waits" };
        self.view.evictions_begin = Some(BeginView { moment: self.moment(until), why });
        let deadline = planned::put_off(self.notice, &self.clock, target.deadline, &waits);
        if deadline != target.deadline {
            self.begin(deadline, None);
            self.note(reasons::put_off(waits.until(Wait::Wave).is_some()));
        }
        Target { deadline, ..target }
    }

    fn ends(&mut self, outcome: NoticeOutcome) {
        let excluded_by = self.view.node.as_ref().and_then(|node| node.excluded_by);
        let why = match outcome {
            NoticeOutcome::NotOurs if self.view.owner.as_ref().is_some_and(|owner| owner.ours.is_none()) => {
                "nothing proves that the instance is this cluster's".to_owned()
            }
            NoticeOutcome::NotOurs if self.view.owner.is_some() => "the instance is not this cluster's".to_owned(),
            NoticeOutcome::Excluded => format!("the Node is excluded by {}", excluded_by.unwrap_or_default()),
            outcome => reasons::ended(outcome, self.notice),
        };
        self.view.ends = Some(EndView { outcome, why });
    }

    fn begin(&mut self, deadline: Deadline, longest_grace: Option<Duration>) {
        let times = self.times;
        let is_forced = reasons::is_forced(self.notice, self.policy(), times, &self.clock);
        let why = reasons::deadline(self.notice, self.policy(), times, longest_grace, &self.clock);
        self.view.deadline = Some(DeadlineView {
            moment: self.moment(deadline.at()),
            hard: deadline.is_hard() && !is_forced,
            why: if is_forced { format!("{why}; --at-timeout deletes what is left before it") } else { why },
        });
        self.view.hook = self.notice.hook().zip(times).map(|(hook, times)| self.hook(hook, times, deadline));
    }

    fn note(&mut self, note: &str) {
        self.view.notes.push(note.to_owned());
    }

    fn moment(&self, at: Instant) -> Moment {
        moment(&self.clock, at)
    }

    /// Finds out which cluster owns the instance, if EC2 answers.
    async fn whose(&mut self, reader: &Reader<'_>) -> Option<Ownership> {
        let require_tag = self.policy().require_tag;
        let has_node = self.node.is_some();
        let (owned, why) = match owned_without_asking(has_node, require_tag) {
            Some(owned) => (Some(owned), "the instance has a Node in this cluster".to_owned()),
            None => match reader.record(&self.notice.instance).await {
                Ok(record) => {
                    let direct = self.notice.hook().is_some_and(|hook| hook.direct);
                    let owned = owned_by_record(record, has_node, direct, self.notice);
                    let why = reasons::owner(record, owned, &self.settings.managed_tag, (has_node, require_tag));
                    (Some(owned), why)
                }
                Err(error) => (None, format!("EC2 could not be asked: {error}")),
            },
        };
        let ours = owned.and_then(|owned| match owned {
            Ownership::Ours => Some(true),
            Ownership::Foreign => Some(false),
            Ownership::Unproven { .. } => None,
        });
        self.view.owner = Some(OwnerView { ours, why });
        owned
    }

    fn hook(&self, hook: &Hook, times: HookTimes, deadline: Deadline) -> HookView {
        let policy = self.policy();
        let detail = &self.notice.detail;
        let (well, badly) = match detail {
            Detail::AsgLaunch(_) => (NoticeOutcome::Ready, NoticeOutcome::NotReady),
            _ => (NoticeOutcome::Drained, NoticeOutcome::Blocked),
        };
        let begun = self.clock.notice_instant(self.notice.at());
        let beats = if policy.dry_run { Vec::new() } else { beats(policy, begun, times, deadline.at()) };
        let named = |outcome| policy.completion(outcome, detail, false).map(Completion::as_str);
        HookView {
            group: hook.group.clone(),
            name: hook.name.clone(),
            heartbeat_timeout_seconds: times.heartbeat.as_secs(),
            assumed_because: self.assumed.clone(),
            heartbeats: beats.len(),
            first_heartbeats: beats.into_iter().take(MAX_BEATS).map(|at| self.moment(at)).collect(),
            after_success: named(well),
            after_failure: named(badly),
            held_back_seconds: policy.waits.complete_after.as_secs(),
        }
    }

    /// A launched instance, whose Node is not in service yet.
    fn awaits_ready(&mut self, until: Instant) {
        let taints = &self.policy().startup_taints;
        let names = taints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let without = if names.is_empty() { String::new() } else { format!(", without the taints {names}") };
        let then = match self.policy().completion(NoticeOutcome::NotReady, &self.notice.detail, false) {
            Some(completion) => format!("not-ready: the hook is completed with {}", completion.as_str()),
            None => "not-ready: the hook is left to its own timeout".to_owned(),
        };
        let what = format!("its Node is Ready{without}");
        self.view.waits = Some(WaitView { what, until: self.moment(until), then });
    }

    /// An instance that has no Node yet, or none any more.
    fn awaits_node(&mut self, until: Instant) {
        let nothing = NoticeOutcome::NothingToDrain.as_str();
        let completed = self.view.hook.as_ref().and_then(|hook| hook.after_success);
        let then = match completed {
            Some(result) => format!("{nothing}: the hook is completed with {result}"),
            None => nothing.to_owned(),
        };
        let what = "the instance registers as a Node".to_owned();
        self.view.waits = Some(WaitView { what, until: self.moment(until), then });
    }

    /// The taint of a Node whose instance is gone.
    fn out_of_service(&mut self, mark: &Mark) {
        if let Some(node) = self.node.clone() {
            self.view.marks = Some(self.marks(&node, mark));
            self.note("the marks are written once EC2 confirms that the instance is stopped or terminated");
        }
    }

    fn marks(&self, node: &Node, mark: &Mark) -> MarksView {
        let patch = mark.patch(node, &self.policy().mark_settings).unwrap_or_default();
        let stands = self.policy().stands(self.notice.kind(), self.action).filter(|_| self.action == Action::Cordon);
        MarksView::of(&patch, node, stands.map(|stands| self.moment(Instant::now() + stands)))
    }

    async fn drained(&mut self, reader: &Reader<'_>, begun: Instant, target: &Target) -> Result<(), KubeError> {
        let pods = reader.pods(&target.node.name).await?;
        let budgets = match reader.budgets().await {
            Ok(budgets) => budgets,
            Err(error) => {
                self.note(&format!("the budgets could not be read: {error}"));
                Vec::new()
            }
        };
        let listed = PodList::new(pods, &budgets, &self.settings.selection_rules, self.policy.drain);
        let longest_grace = listed.longest_grace();
        let pods = longest_grace.map_or_else(Remaining::default, Remaining::of);
        let span = DrainSpan { begun, end: target.deadline.lengthened(pods) };
        if span.end != target.deadline {
            self.begin(span.end, longest_grace);
        }
        let moment = |at| moment(&self.clock, at);
        self.view.pods = listed.pods(span, &self.clock, moment);
        self.view.stay = listed.stay();
        self.view.budgets = listed.budgets();
        let bounds = [listed.shares(span), listed.room(span), listed.come_back(), listed.stuck(span, &self.clock)];
        for bound in bounds.into_iter().flatten() {
            self.note(&bound);
        }
        for departure in listed.may_surge() {
            let Some(time) = departure.surge_time(begun, span.end, self.policy.drain) else { continue };
            let foreseen = reader.foresee(departure, &target.node).await;
            if let Some(note) = reasons::surge(&departure.pod, foreseen, time) {
                self.note(&note);
            }
        }
        let held = |pod: &&PodView| !pod.held_back_by.is_empty();
        if self.view.pods.iter().any(|pod| held(&pod) && pod.deleted_at.is_none()) {
            self.note(&reasons::held_for_good(span.end.is_hard()));
        }
        Ok(())
    }
}

fn moment(clock: &Clock, at: Instant) -> Moment {
    let at = clock.timestamp_of(at);
    let away = at.duration_since(clock.now()).round(Unit::Second).unwrap_or_default();
    Moment { at: at.round(Unit::Second).unwrap_or(at), in_seconds: away.as_secs() }
}

/// Returns the heartbeats of a hook whose action began at `begun`, if the work takes until `finish`.
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
