//! The work on one notice: executes its steps, and owns the heartbeat of its hook meanwhile.

use super::completion::KeptHook;
use super::draining::DrainPlace;
use super::hook::Trust;
use super::node_work::EarlySeat;
use super::policy::Policy;
use super::retry;
use super::settling::NoticeBurst;
use super::step::{Finding, Present, Step};
use super::steps::Sequence;
use super::times::HookTimes;
use super::{
    Attachments, Case, Confirmations, DrainingNodes, Groups, Hints, Hooks, LoadBalancers, MessageLink, NoticeOutcome,
    Shifts, Slots, WaitLog, Waves,
};
use crate::clients::gate::LAST_CALL;
use crate::fact::{Fact, Facts, HoldPoint, HookLack, WaitOutcome};
use crate::pipeline::drain::{Deadline, Deadlines, Drainer, Report};
use crate::pipeline::event::{Detail, Hook};
use crate::pipeline::node::{Index, Marker, Node, OwnerLookup};
use crate::runtime::clock::Clock;
use crate::runtime::task::Tasks;
use futures_util::future::join4;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Acts on notices: the parts that all interruptions use.
pub struct Interrupter {
    /// The user's decisions.
    pub policy: Policy,
    /// Wall time.
    pub clock: Clock,
    /// Takes facts.
    pub facts: Facts,
    /// Starts tasks.
    pub tasks: Tasks,
    /// The Nodes.
    pub index: Index,
    /// Finds the owner of an instance without a Node.
    pub owner: OwnerLookup,
    /// Cordons Nodes.
    pub marker: Marker,
    /// Drains Nodes.
    pub drainer: Arc<Drainer>,
    /// Completes hooks and keeps them alive.
    pub hooks: Hooks,
    /// The current burst of notices.
    pub settling: NoticeBurst,
    /// The nodes being drained.
    pub draining: Arc<DrainingNodes>,
    /// The nodes cordoned because of hints.
    pub hints: Hints,
    /// The places in the waves.
    pub waves: Waves,
    /// The zones from which traffic is shifted away.
    pub shifts: Shifts,
    /// Asks AWS to confirm notices.
    pub confirmations: Confirmations,
    /// Requests replacements from Auto Scaling groups.
    pub groups: Groups,
    /// The volumes that are attached to Nodes.
    pub attachments: Attachments,
    /// The target groups of instances, if the settings ask for them.
    pub load_balancers: Option<LoadBalancers>,
    /// The running drains, by the UID of their Node.
    pub drains: Slots<Arc<str>, Deadlines, Arc<Report>>,
}

impl Interrupter {
    /// Works on one notice until it has ended, or until `stop`. Restarts when AWS has revised the notice, and when wall time has jumped: the
    /// deadlines were computed before. Failed work is tried again while its change is ahead.
    pub async fn act(
        self: Arc<Self>,
        message: Arc<str>,
        link: Arc<MessageLink>,
        stop: CancellationToken,
    ) -> NoticeOutcome {
        let mut newest = link.notice.subscribe();
        let notice = Arc::clone(&newest.borrow());
        let node = self.index.get(&notice.instance);
        let case = Case { interrupter: self, notice, message, node, drained_addresses: Arc::default() };
        let settled = case.interrupter.policy.settled(&case.notice);
        let clock = case.interrupter.clock;
        let mut jumped = pin!(clock.jumped());
        let (interrupter, instance) = (Arc::clone(&case.interrupter), case.notice.instance.clone());
        // Boxed: it mostly waits. Without a Node there is nothing to write.
        let mut probe = Box::pin(async move {
            let node = interrupter.index.until(&instance, |known| known.map(Arc::clone)).await;
            interrupter.drainer.probe(&node).await
        });
        let absent = case.interrupter.drainer.gate.absence().total();
        let mut interruption = Interruption {
            case,
            link,
            hook: None,
            begun: Instant::now(),
            has_begun: false,
            waited: WaitLog::default(),
            admitted: None,
            absent,
        };
        let (mut ended, mut pause, mut pauses) = (None, None, retry::PAUSES);
        let outcome = loop {
            let case = interruption.case.clone();
            let link = Arc::clone(&interruption.link);
            tokio::select! {
                biased;
                // A notice that the policy settles needs no other receiver.
                () = stop.cancelled(), if settled.is_none() => break NoticeOutcome::HandedOver,
                () = &mut jumped => jumped.set(clock.jumped()),
                copy = case.revised(&mut newest) => interruption.case.notice = copy,
                never = case.follow_revisions(&link) => match never {},
                never = &mut probe => match never {},
                outcome = interruption.work(pause.take()) => {
                    // An unconfirmed revision doesn't change the outcome.
                    let outcome = ended.take().filter(|_| outcome == NoticeOutcome::NotAdmitted).unwrap_or(outcome);
                    let now = clock.now();
                    pause = retry::pause_after(outcome, &interruption.case.notice, now, &mut pauses);
                    if let Some(pause) = pause {
                        interruption.end_try(outcome, pause);
                        continue;
                    }
                    let copy = Arc::clone(&newest.borrow_and_update());
                    if !copy.revises(&interruption.case.notice) {
                        break outcome;
                    }
                    // The copy came during the work, and still waits for AWS's confirmation.
                    (interruption.case.notice, interruption.admitted, ended) = (copy, None, Some(outcome));
                }
            }
        };
        // The end of the last try has been reported.
        let is_over = outcome == NoticeOutcome::HandedOver && *interruption.link.pauses.borrow();
        let begun = interruption.begun;
        let (case, waited) = interruption.end().await;
        if !is_over {
            case.emit(&Fact::NoticeEnded { about: case.about(), outcome, took: begun.elapsed(), waited: &waited });
        }
        outcome
    }
}

/// A notice in progress. Owns its hook, and so the heartbeat: neither a panic nor a cancelled future leaves one behind.
struct Interruption {
    case: Case,
    link: Arc<MessageLink>,
    /// The hook to complete, once the work has started.
    hook: Option<KeptHook>,
    /// The start of this try.
    begun: Instant,
    /// Whether the work has started before.
    has_begun: bool,
    /// How its waits ended.
    waited: WaitLog,
    /// Its place among the nodes being drained.
    admitted: Option<DrainPlace>,
    /// The sum of the absences of the API server before the work.
    absent: Duration,
}

impl Interruption {
    /// Executes the notice's steps, after this pause. May be cancelled at any await.
    async fn work(&mut self, pause: Option<Duration>) -> NoticeOutcome {
        let is_kept = match pause {
            Some(pause) => Box::pin(retry::kept_within(&self.case, pause)).await,
            None => false,
        };
        if self.link.pauses.send_replace(false) {
            self.begun = Instant::now();
        }
        if is_kept { NoticeOutcome::Uncordoned } else { self.run().await }
    }

    /// Reports that a try has failed, and gives up its place: the next one starts anew after this pause.
    fn end_try(&mut self, outcome: NoticeOutcome, pause: Duration) {
        let (about, took, waited) = (self.case.about(), self.begun.elapsed(), std::mem::take(&mut self.waited));
        self.case.emit(&Fact::NoticeEnded { about, outcome, took, waited: &waited.into_text() });
        self.case.emit(&Fact::NoticeRetried { about, pause });
        (self.admitted, self.has_begun) = (None, false);
        self.link.pauses.send_replace(true);
    }

    /// Executes the notice's steps, and starts them again without the hook if the instance does not wait at it. May be cancelled at any
    /// await.
    async fn run(&mut self) -> NoticeOutcome {
        loop {
            match self.steps().await {
                Ok(outcome) => return outcome,
                Err(lack) => self.forget_hook(&lack),
            }
        }
    }

    fn forget_hook(&mut self, why: &HookLack) {
        let Case { notice, .. } = &self.case;
        let hook = notice.hook().map_or("", |hook| &hook.name);
        self.case.emit(&Fact::HookNotFound { about: self.case.about(), hook, why });
        let without = notice.revised(notice.time, Detail::AsgTermination { sought: false });
        (self.case.notice, self.hook) = (Arc::new(without), None);
    }

    /// Executes the notice's steps.
    ///
    /// # Errors
    /// Why the instance does not wait at the hook.
    async fn steps(&mut self) -> Result<NoticeOutcome, HookLack> {
        let Case { interrupter, notice, message, .. } = self.case.clone();
        let mut sequence = Sequence::new(&interrupter.policy, interrupter.clock, &notice, &message);
        let mut finding = Finding::Received;
        let mut early = None;
        // Until its own cordon, so that the evictions from nodes cordoned before wait for it.
        let mut arriving = (interrupter.policy.action(&notice).drains() && self.case.node.is_some())
            .then(|| interrupter.settling.cordoning(interrupter.policy.settle));
        loop {
            let node = interrupter.index.get(&notice.instance);
            let present = self.present(node.as_deref(), &finding);
            let step = sequence.next(finding, present);
            drop(node);
            // A seat in a running drain is only for the steps on its Node.
            if !matches!(step, Step::Cordon { .. } | Step::Delay { .. } | Step::Settle { .. } | Step::Drain(_)) {
                early = None;
            }
            if !matches!(
                step,
                Step::FindOwner { .. }
                    | Step::LookUpHook(_)
                    | Step::Begin { .. }
                    | Step::FindNode { .. }
                    | Step::Cordon { .. }
            ) {
                drop(arriving.take());
            }
            // No later wait continues a dropped one.
            if matches!(step, Step::Drain(_) | Step::Complete(_) | Step::LeaveHook | Step::End(_)) {
                let drains = matches!(step, Step::Drain(_));
                let outcome = if drains { WaitOutcome::CutShort } else { WaitOutcome::CalledOff };
                self.case.end_dropped(&self.waited, outcome);
            }
            let lack = KeptHook::not_found(self.hook.as_ref());
            finding = tokio::select! {
                biased;
                lack = lack => return Err(lack),
                found = self.execute(step, &mut early) => match found {
                    ControlFlow::Continue(finding) => finding,
                    ControlFlow::Break(outcome) => return Ok(outcome),
                },
            };
            self.note(&finding);
        }
    }

    /// Executes a step, and returns its result or the end.
    async fn execute(&mut self, step: Step<'_>, early: &mut Option<EarlySeat>) -> ControlFlow<NoticeOutcome, Finding> {
        let case = &self.case;
        if matches!(step, Step::Complete(_) | Step::LeaveHook | Step::End(_)) {
            case.end_waits(&self.waited).await;
        }
        // Futures that make calls are boxed, here and below: an interruption mostly waits, and would reserve memory for its calls.
        ControlFlow::Continue(match step {
            Step::FindOwner { by } => Box::pin(case.find_owner(&self.link, by)).await,
            Step::MarkOutOfService { mark, by } => Box::pin(case.mark_out_of_service(&mark, by)).await,
            Step::LookUpHook(hook) => Box::pin(self.look_up(hook)).await,
            Step::Begin { deadline, times } => self.begin(deadline, times),
            Step::AwaitReady { until } => Box::pin(case.await_ready(until, self.hook.as_ref())).await,
            Step::ReleaseMarks { node, by } => Box::pin(case.release_marks(&node, by)).await,
            Step::FindNode { by } => case.find_node(by).await,
            Step::AwaitNode { until, by } => {
                self.unless_over(Box::pin(case.await_node(until, by)), Duration::ZERO, Finding::NoNodeInTime).await
            }
            Step::AskHook(node) => Box::pin(self.ask_hook(node)).await,
            Step::Plan { node, plan, by } => Box::pin(case.plan(&node, &plan, by)).await,
            Step::Admit { node, until } => {
                Box::pin(case.admit(node, until, self.hook.as_ref(), &self.waited, &mut self.admitted)).await
            }
            Step::Cordon { target, mark } => {
                // The drain continues to try it.
                let forgone = Finding::Cordoned(target.clone());
                self.unless_over(Box::pin(case.cordon(target, &mark, early)), LAST_CALL, forgone).await
            }
            Step::Delay { target, waits } => {
                Box::pin(case.delay(&target, &waits, self.hook.as_ref(), early, &self.waited)).await
            }
            Step::Settle { target, quiet, at_most } => case.settle(target, quiet, at_most, early.is_some()).await,
            Step::Drain(target) => {
                let deregistration = case.start_deregistration();
                // At the same time as the drain: no eviction waits for these.
                let (found, (), (), ()) = join4(
                    case.drain(&target, self.hook.as_ref(), early.take()),
                    case.end_hold(&self.waited, HoldPoint::BeforeDrain, true),
                    case.end_note(&self.waited),
                    case.note_evictions(target.deadline),
                )
                .await;
                case.end_place(true).await;
                if let Some(deregistration) = deregistration {
                    case.end_deregistration(deregistration, &found, target.deadline.at()).await;
                }
                found
            }
            Step::AwaitSuccessor(node, by) => case.await_successor(&node, by).await,
            Step::Wait(waits, ended) => {
                case.end_hold(&self.waited, HoldPoint::BeforeDrain, false).await;
                Box::pin(case.wait(&waits, ended, self.hook.as_ref(), &self.waited)).await
            }
            Step::Complete(completion) => Finding::Completed(match &mut self.hook {
                Some(hook) => hook.complete(case, completion).await,
                None => true,
            }),
            Step::LeaveHook => {
                case.emit(&Fact::HookLeft { about: case.about() });
                Finding::HookLeft
            }
            Step::LeaveUnprovenHook => {
                case.emit(&Fact::HookUnproven { about: case.about() });
                Finding::HookLeft
            }
            Step::End(outcome) => {
                if outcome == NoticeOutcome::Excluded {
                    case.forgo_drain();
                }
                return ControlFlow::Break(outcome);
            }
        })
    }

    fn note(&mut self, found: &Finding) {
        match (found, &self.hook) {
            (Finding::Admitted, Some(hook)) => hook.admit(),
            (Finding::Node(node) | Finding::Launched(Some(node)), _) => self.case.node = Some(Arc::clone(node)),
            _ => {}
        }
    }

    /// Returns the state of the world after this finding.
    fn present<'a>(&self, node: Option<&'a Node>, found: &Finding) -> Present<'a> {
        let Interrupter { shifts, clock, .. } = &*self.case.interrupter;
        let shifted = match found {
            Finding::Node(node) => shifts.holding_back(node, clock.now()).is_some(),
            _ => false,
        };
        let deadline = self.hook.as_ref().map(KeptHook::deadline);
        Present { now: Instant::now(), node, deadline, shifted, waited: self.case.waited() }
    }

    /// Does a step, or returns `otherwise` some time (`spared`) after AWS has reported that the lifecycle action is over.
    async fn unless_over(&self, step: impl Future<Output = Finding>, spared: Duration, otherwise: Finding) -> Finding {
        let ended = async {
            KeptHook::over(self.hook.as_ref()).await;
            sleep(spared).await;
        };
        tokio::select! {
            biased;
            found = step => found,
            () = ended => otherwise,
        }
    }

    async fn look_up(&self, hook: &Hook) -> Finding {
        let times = self.case.interrupter.hooks.times(hook).await.unwrap_or_else(|error| {
            self.case.emit(&Fact::HookUnknown { about: self.case.about(), error: &*error });
            HookTimes::UNKNOWN
        });
        self.link.visibility_timeout.send_replace(times.visibility());
        // Until it is proven, the hook's expiry is only a soft deadline.
        let assumed = times.assumed || self.case.trust(hook, times, self.hook.as_ref()) == Trust::Unknown;
        Finding::HookTimes(HookTimes { assumed, ..times })
    }

    async fn ask_hook(&self, node: Arc<Node>) -> Finding {
        let is_over = match &self.hook {
            Some(hook) => hook.is_over(&self.case).await,
            None => false,
        };
        Finding::HookAsked(node, is_over)
    }

    /// Reports the start, and starts the heartbeat.
    fn begin(&mut self, deadline: Deadline, times: Option<HookTimes>) -> Finding {
        let Case { interrupter, notice, .. } = &self.case;
        let action = interrupter.policy.action(notice);
        let until = Some(deadline.at().saturating_duration_since(Instant::now()));
        let (about, hard) = (self.case.about(), deadline.is_hard());
        let pool = self.case.node.as_ref().map(|node| node.pool.named());
        let again = std::mem::replace(&mut self.has_begun, true);
        self.case.emit(&Fact::NoticeBegun { about, action, until, hard, again, pool });
        let before = self.hook.take();
        let kept = notice.hook().zip(times);
        self.hook = kept.map(|kept| KeptHook::keep(&self.case, &self.link, kept, before.as_ref(), self.absent));
        if self.admitted.is_some() {
            self.hook.iter().for_each(KeptHook::admit);
        }
        Finding::Begun
    }

    /// Stops the heartbeat, and returns when no more beats can be sent. Returns how the waits ended, in words.
    async fn end(self) -> (Case, String) {
        if let Some(hook) = self.hook {
            hook.stop().await;
        }
        (self.case, self.waited.into_text())
    }
}
