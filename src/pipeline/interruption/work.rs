//! The work on one notice: executes its steps, and owns the heartbeat of its hook meanwhile.

use super::completion::KeptHook;
use super::draining::DrainPlace;
use super::hook::Trust;
use super::known::{Known, Progress};
use super::policy::Policy;
use super::remedy::wait_of;
use super::retry;
use super::settling::{CordonGuard, NoticeBurst};
use super::shared_drain::EarlySeat;
use super::step::{AwaitedNode, HookEnding, Step, Waits};
use super::steps::Steps;
use super::times::HookTimes;
use super::{
    Attachments, Case, Confirmations, DrainingNodes, Groups, Hints, Hooks, LoadBalancers, MessageLink, NoticeOutcome,
    Reboots, Shifts, Slots, WaitLog, Waves,
};
use crate::clients::gate::{AbsenceSince, LAST_CALL};
use crate::fact::{Fact, Facts, HoldPoint, HookLack, WaitOutcome};
use crate::pipeline::drain::{Deadlines, Drainer, Report};
use crate::pipeline::event::{Detail, Hook};
use crate::pipeline::node::{Index, Marker, Node, OwnerLookup, PerPool};
use crate::runtime::clock::Clock;
use crate::runtime::task::Tasks;
use futures_util::future::join4;
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Acts on notices: the parts that all interruptions use.
pub struct Interrupter {
    /// The user's decisions, for each pool of Nodes.
    pub policies: PerPool<Arc<Policy>>,
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
    /// The places in the waves, those of each pool that has waves of its own apart.
    pub waves: PerPool<Arc<Waves>>,
    /// The zones from which traffic is shifted away.
    pub shifts: Shifts,
    /// Asks AWS to confirm notices.
    pub confirmations: Confirmations,
    /// Requests replacements from Auto Scaling groups.
    pub groups: Groups,
    /// Reboots instances.
    pub reboots: Reboots,
    /// The volumes that are attached to Nodes.
    pub attachments: Attachments,
    /// The target groups of instances, if the settings ask for them.
    pub load_balancers: Option<LoadBalancers>,
    /// The running drains, by the UID of their Node.
    pub drains: Slots<Arc<str>, Deadlines, Arc<Report>>,
}

impl Interrupter {
    /// Returns what the user has decided about all Nodes, and about those that are in no pool.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.policies.rest()
    }

    /// Returns what the user has decided about this Node, or about an instance whose Node is not known.
    #[must_use]
    pub fn policy_of(&self, node: Option<&Node>) -> &Arc<Policy> {
        self.policies.of_node(node)
    }

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
        let policy = Arc::clone(self.policy_of(node.as_deref()));
        let case = Case { interrupter: self, policy, notice, message, node, drained_addresses: Arc::default() };
        let settled = case.policy.settled(&case.notice);
        let clock = case.interrupter.clock;
        let mut jumped = pin!(clock.jumped());
        let (interrupter, instance) = (Arc::clone(&case.interrupter), case.notice.instance.clone());
        // Boxed: it mostly waits. Without a Node there is nothing to write.
        let mut probe = Box::pin(async move {
            let node = interrupter.index.until(&instance, |known| known.map(Arc::clone)).await;
            interrupter.drainer.probe(&node).await
        });
        let absence = case.interrupter.drainer.gate.absence().since_now();
        let mut interruption = Interruption {
            case,
            link,
            known: Known::received(Instant::now()),
            hook: None,
            begun: Instant::now(),
            has_begun: false,
            waited: WaitLog::default(),
            admitted: None,
            absence,
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

/// Why the steps of a notice start again.
enum Restart {
    /// The instance does not wait at the hook.
    WithoutHook(HookLack),
    /// The Node has registered, and is in a pool with these settings.
    OfPool(Arc<Policy>),
}

/// A notice in progress. Owns its hook, and so the heartbeat: neither a panic nor a cancelled future leaves one behind.
struct Interruption {
    case: Case,
    link: Arc<MessageLink>,
    known: Known,
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
    /// The absences of the API server since the start of the work.
    absence: AbsenceSince,
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

    /// Executes the notice's steps, and starts them again without the hook if the instance does not wait at it, or in the settings of its
    /// Node's pool. May be cancelled at any await.
    async fn run(&mut self) -> NoticeOutcome {
        loop {
            match self.steps().await {
                Ok(outcome) => return outcome,
                Err(Restart::WithoutHook(lack)) => self.forget_hook(&lack),
                Err(Restart::OfPool(policy)) => self.case.policy = policy,
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
    /// Why they start again.
    async fn steps(&mut self) -> Result<NoticeOutcome, Restart> {
        let Case { interrupter, policy, notice, message, .. } = self.case.clone();
        let steps = Steps { policy: &policy, clock: interrupter.clock, notice: &notice, message: &message };
        self.known = self.known.restarted(Instant::now());
        let mut early = None;
        // Until its own cordon, so that the evictions from nodes cordoned before wait for it.
        let arriving = (policy.action(&notice).drains() && self.case.node.is_some())
            .then(|| interrupter.settling.cordoning(policy.settle));
        let arriving = Mutex::new(arriving);
        loop {
            self.observe();
            if let Some(policy) = self.other_policy() {
                return Err(Restart::OfPool(policy));
            }
            let step = steps.next(&self.known, Instant::now());
            // A seat in a running drain is only for the steps on its Node.
            if !matches!(step, Step::Cordon { .. } | Step::Delay { .. } | Step::Drain { .. }) {
                early = None;
            }
            let is_before = match &step {
                Step::FindOwner { .. } | Step::Begin(_) | Step::Cordon { .. } => true,
                // AWS's answer is near.
                Step::Admit { patience, .. } => patience.is_some(),
                Step::FindNode(search) => search.awaits == AwaitedNode::None,
                _ => false,
            };
            if !is_before {
                drop(arriving.lock().take());
            }
            // No later wait continues a dropped one.
            match step {
                Step::Drain { .. } => self.case.end_dropped(&self.waited, WaitOutcome::CutShort),
                Step::EndHook(_) | Step::End(_) => {
                    self.case.end_dropped(&self.waited, WaitOutcome::CalledOff);
                    self.case.end_waits(&self.waited).await;
                }
                _ => {}
            }
            let lack = KeptHook::not_found(self.hook.as_ref());
            tokio::select! {
                biased;
                lack = lack => return Err(Restart::WithoutHook(lack)),
                done = self.execute(step, &mut early, &arriving) => if let ControlFlow::Break(outcome) = done {
                    return Ok(outcome);
                },
            }
        }
    }

    /// Updates what is known about the instance and the hook.
    fn observe(&mut self) {
        let Self { case, known, hook, .. } = self;
        known.node = case.interrupter.index.get(&case.notice.instance);
        known.waited = case.waited();
        known.hook = hook.as_ref().map(KeptHook::known);
    }

    /// Returns the settings of the Node, if they are others: it has registered since the work started. From the cordon on they stay, because
    /// the record names its pool.
    fn other_policy(&self) -> Option<Arc<Policy>> {
        let Case { interrupter, policy, .. } = &self.case;
        let of_node = interrupter.policy_of(Some(self.known.node.as_deref()?));
        (!Arc::ptr_eq(of_node, policy)).then(|| Arc::clone(of_node))
    }

    /// Executes a step. Breaks off with the outcome of the notice.
    async fn execute(
        &mut self,
        step: Step<'_>,
        early: &mut Option<EarlySeat>,
        arriving: &Mutex<Option<CordonGuard<'_>>>,
    ) -> ControlFlow<NoticeOutcome> {
        let case = &self.case;
        // Futures that make calls are boxed, here and below: an interruption mostly waits, and would reserve memory for its calls.
        let progress = match step {
            Step::FindOwner { by } => {
                self.known.owner = Box::pin(case.find_owner(&self.link, by)).await;
                return ControlFlow::Continue(());
            }
            Step::MarkOutOfService { mark, by } => {
                Box::pin(case.mark_out_of_service(&mark, by)).await;
                Progress::Ended(NoticeOutcome::NothingToDrain)
            }
            Step::Begin(hook) => {
                self.begin(hook).await;
                Progress::Begun
            }
            Step::AwaitReady { until } => Box::pin(case.await_ready(until, self.hook.as_ref())).await,
            Step::FindNode(search) => {
                // The drain's own time bounds the other searches.
                let awaits = matches!(search.awaits, AwaitedNode::Registered(_));
                let find = Box::pin(case.find_node(&search));
                if awaits { self.unless_over(find, Duration::ZERO, Progress::NoNodeInTime).await } else { find.await }
            }
            Step::AskHook(node) => match &self.hook {
                Some(hook) if Box::pin(hook.is_over(case)).await => Progress::ActionOver,
                _ => Progress::Waiting(node),
            },
            Step::ReleaseMarks { node, by } => Progress::Released(Box::pin(case.release_marks(&node, by)).await),
            Step::Plan { node, plan, by } => Box::pin(case.plan(&node, &plan, by)).await,
            Step::Admit { node, until, patience } => {
                let (hook, log, admitted) = (self.hook.as_ref(), &self.waited, &mut self.admitted);
                // Evictions elsewhere wait for a cordon, and not for one that AWS denies.
                let was_denied = || drop(arriving.lock().take());
                let asked = Instant::now();
                let progress = Box::pin(case.admit(node, (until, patience), hook, log, admitted, was_denied)).await;
                self.known.since += asked.elapsed();
                progress
            }
            Step::Cordon { target, mark } => {
                // The drain continues to try it.
                let forgone = Progress::Cordoned(target.clone());
                self.unless_over(Box::pin(case.cordon(target, &mark, early)), LAST_CALL, forgone).await
            }
            Step::Delay { target, waits } => {
                Box::pin(case.delay(&target, &waits, self.hook.as_ref(), early, &self.waited)).await
            }
            Step::Drain { target, quiet } => {
                if let Some(quiet) = quiet.filter(|_| early.is_none()) {
                    case.settle(quiet).await;
                }
                let deregistration = case.start_deregistration();
                // At the same time as the drain: no eviction waits for these.
                let (progress, (), (), ()) = join4(
                    case.drain(&target, self.hook.as_ref(), early.take()),
                    Box::pin(case.end_hold(&self.waited, HoldPoint::BeforeDrain, true)),
                    Box::pin(case.end_note(&self.waited)),
                    Box::pin(case.note_evictions(target.deadline)),
                )
                .await;
                case.end_place(true).await;
                if let Some(deregistration) = deregistration {
                    case.end_deregistration(deregistration, &progress, target.deadline.at()).await;
                }
                progress
            }
            Step::EndWork(outcome) => Progress::Ended(outcome),
            Step::Wait(waits) => {
                case.end_hold(&self.waited, HoldPoint::BeforeDrain, false).await;
                let outcome = self.known.outcome;
                Box::pin(case.wait(&waits, outcome, self.hook.as_ref(), &self.waited)).await
            }
            Step::Remedy { remedy, until } => {
                // The node is drained, and others may need its room.
                self.admitted = None;
                let (mut waits, outcome) = (Waits::default(), self.known.outcome);
                waits.add(wait_of(remedy), until);
                match Box::pin(case.wait(&waits, outcome, None, &self.waited)).await {
                    Progress::Waited => Progress::Remedied(remedy),
                    cut => cut,
                }
            }
            Step::EndHook(ending) => self.end_hook(ending).await,
            Step::End(outcome) => {
                if outcome == NoticeOutcome::Excluded {
                    case.forgo_drain();
                }
                return ControlFlow::Break(outcome);
            }
        };
        self.advance(progress);
        ControlFlow::Continue(())
    }

    fn advance(&mut self, progress: Progress) {
        let Self { case, known, hook, .. } = self;
        let Interrupter { shifts, clock, .. } = &*case.interrupter;
        match (&progress, hook) {
            (Progress::Admitted, Some(hook)) => hook.admit(),
            (Progress::Found(node), _) => {
                known.is_shifted = shifts.holding_back(node, clock.now()).is_some();
                case.node = Some(Arc::clone(node));
            }
            _ => {}
        }
        known.advance(progress, Instant::now());
    }

    async fn end_hook(&mut self, ending: HookEnding) -> Progress {
        let Self { case, known, hook, .. } = self;
        let about = case.about();
        Progress::HookEnded(match ending {
            HookEnding::Complete(completion) => {
                let completes = match hook {
                    Some(hook) => hook.complete(case, completion).await,
                    None => true,
                };
                if completes { known.outcome } else { NoticeOutcome::HookFailed }
            }
            HookEnding::Leave => {
                case.emit(&Fact::HookLeft { about });
                known.outcome
            }
            HookEnding::LeaveUnproven => {
                case.emit(&Fact::HookUnproven { about });
                NoticeOutcome::NotOurs
            }
        })
    }

    /// Executes a step, or returns `otherwise` some time (`spared`) after AWS has reported that the lifecycle action is over.
    async fn unless_over(
        &self,
        step: impl Future<Output = Progress>,
        spared: Duration,
        otherwise: Progress,
    ) -> Progress {
        let ended = async {
            KeptHook::over(self.hook.as_ref()).await;
            sleep(spared).await;
        };
        tokio::select! {
            biased;
            progress = step => progress,
            () = ended => otherwise,
        }
    }

    /// Looks up the hook's times, reports the start, and starts the heartbeat.
    async fn begin(&mut self, hook: Option<&Hook>) {
        let kept = match hook {
            Some(hook) => Some((hook, Box::pin(self.look_up(hook)).await)),
            None => None,
        };
        let Case { interrupter, policy, notice, .. } = &self.case;
        let now = Instant::now();
        let node = interrupter.index.get(&notice.instance);
        let times = kept.map(|(_, times)| times);
        let deadline = policy.deadline(notice, node.as_deref(), times, &interrupter.clock, now);
        let until = Some(deadline.at().saturating_duration_since(now));
        let (about, action, hard) = (self.case.about(), policy.action(notice), deadline.is_hard());
        let pool = self.case.node.as_ref().map(|node| node.pool.named());
        let again = std::mem::replace(&mut self.has_begun, true);
        self.case.emit(&Fact::NoticeBegun { about, action, until, hard, again, pool });
        let before = self.hook.take();
        self.hook = kept.map(|kept| KeptHook::keep(&self.case, &self.link, kept, before.as_ref(), &self.absence));
        if self.admitted.is_some() {
            self.hook.iter().for_each(KeptHook::admit);
        }
    }

    /// Returns the hook's times, assumed ones if Auto Scaling does not answer.
    async fn look_up(&self, hook: &Hook) -> HookTimes {
        let times = self.case.interrupter.hooks.times(hook).await.unwrap_or_else(|error| {
            self.case.emit(&Fact::HookUnknown { about: self.case.about(), error: &*error });
            HookTimes::UNKNOWN
        });
        self.link.visibility_timeout.send_replace(times.visibility());
        // Until it is proven, the hook's expiry is only a soft deadline.
        let assumed = times.assumed || self.case.trust(hook, times, self.hook.as_ref()) == Trust::Unknown;
        HookTimes { assumed, ..times }
    }

    /// Stops the heartbeat, and returns when no more beats can be sent. Returns how the waits ended, in words.
    async fn end(self) -> (Case, String) {
        if let Some(hook) = self.hook {
            hook.stop().await;
        }
        (self.case, self.waited.into_text())
    }
}
