//! Admits a notice to the cordon and drain of its node: within the maximum number of drains, or once AWS confirms it.

use super::completion::KeptHook;
use super::confirmation::{Proof, SPOT_TOLERANCE};
use super::draining::{DrainPlace, UnprovenWait};
use super::known::Progress;
use super::limits::{Admission, DrainLimit, Patience};
use super::waits::ActiveWait;
use super::{Case, Interrupter, NoticeOutcome, Verify, WaitLog};
use crate::clients::gate::Category;
use crate::fact::{Fact, Unusual, Wait, WaitOutcome};
use crate::pipeline::event::{Detail, InstanceId, Notice, ScheduledChange};
use crate::pipeline::node::Node;
use crate::pipeline::node::record::{NoticeRecord, Work};
use std::collections::HashSet;
use std::future::pending;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

/// Time in which AWS's confirmation of a revised notice is not urgent.
const REVISION_PATIENCE: Duration = Duration::from_hours(1);

/// Minimum time for which AWS's denial of a notice counts if it then no longer answers: some turns of questions.
const DENIAL_COUNTS: Duration = Duration::from_secs(30);

/// A notice before its admission.
struct Applicant<'a> {
    case: &'a Case,
    /// The Node; `None` if the notice only has a hook to complete.
    node: Option<Arc<Node>>,
    /// AWS's evidence, if there is any.
    proof: Option<Proof>,
    /// Whether Auto Scaling itself has shown that the instance waits.
    is_shown: bool,
    patience: Option<Patience>,
}

impl<'a> Applicant<'a> {
    fn new(case: &'a Case, node: Option<Arc<Node>>, patience: Option<Patience>) -> Self {
        let Case { policy, notice, .. } = case;
        let (Admission { verify, asks_aws, .. }, key) = (policy.admission, notice.key());
        let proof = Proof::of(notice, verify).filter(|_| verify == Verify::Never || asks_aws);
        let start = node.as_ref().and_then(|node| node.record.live(key)?.start);
        let proof = proof.map(|proof| proof.of_known(start));
        // A hook without a token is not from a message.
        let is_shown = notice.hook().is_some_and(|hook| hook.token.is_none());
        Self { case, node, proof, is_shown, patience }
    }

    /// Whether room alone does not admit it: always, because it is late, or because AWS has lately denied others, which may be forged.
    fn needs_word(&self) -> bool {
        let is_wary = self.limits().verify == Verify::Always || self.case.interrupter.draining.was_denied_lately();
        (is_wary && self.proof.is_some() || self.is_late()) && !self.is_shown
    }

    fn is_late(&self) -> bool {
        self.patience.is_some_and(|patience| patience.is_late)
    }

    fn limits(&self) -> Admission {
        self.case.policy.admission
    }

    /// Returns a place if the notice needs neither room nor AWS's word, or there is room. Reports what is unusual about it.
    fn at_once(&self) -> Option<DrainPlace> {
        let Case { interrupter, notice, .. } = self.case;
        let is_shaping = self.limits().limit == DrainLimit::Shaping;
        let was_admitted = || self.node.as_ref().is_some_and(|node| self.case.was_admitted(node));
        // A recommendation has time to wait for room; what AWS can't confirm otherwise has no limit.
        let is_unlimited = is_shaping && self.proof.is_none() && !notice.kind().is_hint() && !self.is_late();
        if is_unlimited || was_admitted() {
            return Some(interrupter.draining.admit_anyway(&notice.instance));
        }
        match if self.needs_word() { self.has_room().map(|()| None) } else { self.enter().map(Some) } {
            Ok(Some(entered)) => return Some(entered),
            Ok(None) if self.is_late() => self.case.is_unusual(Unusual::Late, None),
            // AWS takes many at once, and confirms them.
            Err(_) if is_shaping => {}
            Ok(None) => {}
            Err(drains) => self.case.is_unusual(Unusual::TooManyDrains, Some(drains)),
        }
        None
    }

    /// Waits for a place: until there is room, AWS confirms the notice, or its patience ends.
    ///
    /// # Errors
    /// How far the notice has come without one.
    async fn wait(
        &self,
        until: Instant,
        hook: Option<&KeptHook>,
        log: &WaitLog,
        was_denied: impl Fn(),
    ) -> Result<DrainPlace, Progress> {
        let Self { case, proof, patience, is_shown, .. } = self;
        let Case { interrupter, notice, .. } = case;
        let waiting = ActiveWait::new(case, log, Wait::Admission, until);
        let (unproven, crowded_out) = (OnceLock::new(), CancellationToken::new());
        let denied = watch::Sender::new(());
        let waits_unproven = || {
            unproven.get_or_init(|| {
                let wait = UnprovenWait {
                    instance: notice.instance.clone(),
                    kind: notice.kind(),
                    ease: proof.as_ref().map(Proof::ease),
                    end: crowded_out.clone(),
                };
                interrupter.draining.wait_unproven(wait, interrupter.index.len())
            });
        };
        let confirmed = async {
            match proof {
                _ if *is_shown => {}
                // Its capacity ends in any case.
                Some(_) if self.limits().verify == Verify::Never => {}
                Some(proof) => {
                    let set_reason = |reason: String| waiting.set_reason(reason);
                    let was_denied = || {
                        was_denied();
                        waits_unproven();
                        interrupter.draining.was_denied();
                        denied.send_replace(());
                    };
                    // What continues without AWS's word is asked about in each turn.
                    let by = patience.map_or(until, |_| Instant::now());
                    let is_usual = self.needs_word() || patience.is_some();
                    case.confirmed(proof, is_usual, by, set_reason, was_denied).await;
                }
                None => {
                    waits_unproven();
                    pending::<()>().await;
                }
            }
        };
        let room = async {
            if proof.is_none() {
                waiting.set_reason(
                    "more nodes are drained than --max-draining allows, and AWS is not asked to confirm such a notice",
                );
            }
            // Room admits only what AWS has not denied.
            let is_denied = || proof.is_some() && unproven.get().is_some();
            while !is_denied() && !self.needs_word() {
                interrupter.draining.changed().await;
                if is_denied() || self.needs_word() {
                    interrupter.draining.pass_on();
                } else if let Ok(entered) = self.enter() {
                    return entered;
                }
            }
            pending().await
        };
        let out_of_patience = async {
            let Some(Patience { at_most, .. }) = *patience else { return pending().await };
            let (mut denials, mut end) = (denied.subscribe(), Instant::now() + at_most);
            while let Ok(Ok(())) = timeout_at(end, denials.changed()).await {
                end = end.max(Instant::now() + DENIAL_COUNTS);
            }
        };
        let gone = async {
            let Some(node) = &self.node else { return pending().await };
            interrupter.drainer.missing(node).await;
            Arc::clone(node)
        };
        let anyway = || Ok(interrupter.draining.admit_anyway(&notice.instance));
        let not_admitted = || Err(Progress::Ended(NoticeOutcome::NotAdmitted));
        let (outcome, place) = tokio::select! {
            biased;
            gone = gone => (WaitOutcome::CalledOff, Err(Progress::Gone(gone, NoticeOutcome::NothingToDrain))),
            () = confirmed => (WaitOutcome::Met, anyway()),
            entered = room => (WaitOutcome::Met, Ok(entered)),
            () = out_of_patience => {
                case.is_unusual(Unusual::Unconfirmed, None);
                (WaitOutcome::TimeOver, anyway())
            }
            () = crowded_out.cancelled() => {
                waiting.set_reason("too many notices wait that AWS has not confirmed");
                (WaitOutcome::CutShort, not_admitted())
            }
            () = KeptHook::over(hook) => (WaitOutcome::CutShort, not_admitted()),
            () = sleep_until(until) => (WaitOutcome::TimeOver, not_admitted()),
        };
        waiting.end(outcome);
        place
    }

    /// Takes a place among the nodes being drained.
    ///
    /// # Errors
    /// The number of nodes being drained, and its maximum.
    fn enter(&self) -> Result<DrainPlace, (usize, usize)> {
        let Case { interrupter, notice, .. } = self.case;
        match self.at_most() {
            None => Ok(interrupter.draining.admit_anyway(&notice.instance)),
            Some(max) => {
                interrupter.draining.admit(&notice.instance, max, || self.marked()).map_err(|drains| (drains, max))
            }
        }
    }

    /// Whether there is a place.
    ///
    /// # Errors
    /// As of [`Applicant::enter`].
    fn has_room(&self) -> Result<(), (usize, usize)> {
        let (draining, instance) = (&self.case.interrupter.draining, &self.case.notice.instance);
        self.at_most()
            .map_or(Ok(()), |max| draining.has_room(instance, max, || self.marked()).map_err(|drains| (drains, max)))
    }

    /// Returns the maximum number of nodes being drained, if there is one.
    fn at_most(&self) -> Option<usize> {
        self.limits().limit.at_most().map(|limit| limit.of(self.case.interrupter.index.len()))
    }

    /// Returns the instances whose nodes are being drained, by their marks. With the user's limit those that have been drained count, too.
    fn marked(&self) -> HashSet<InstanceId> {
        let Interrupter { index, clock, .. } = &*self.case.interrupter;
        let instances = |nodes: Vec<Arc<Node>>| nodes.into_iter().map(|node| node.instance.clone());
        if self.limits().limit == DrainLimit::Shaping {
            let now = clock.now();
            let runs = |known: &NoticeRecord| known.is_drain() && known.work == Work::Open && known.end() > Some(now);
            return instances(index.all_that(|node| node.record.notices().any(|(_, known)| runs(known)))).collect();
        }
        instances(index.all_that(|node| node.record.is_drained())).chain(index.released()).collect()
    }
}

impl Case {
    /// Waits until the notice is admitted, because there is room, AWS confirms it, or its `patience` ends. `admitted` holds its place then.
    /// Calls `was_denied` each time that AWS denies it.
    pub(super) async fn admit(
        &self,
        node: Option<Arc<Node>>,
        (until, patience): (Instant, Option<Patience>),
        hook: Option<&KeptHook>,
        log: &WaitLog,
        admitted: &mut Option<DrainPlace>,
        was_denied: impl Fn(),
    ) -> Progress {
        let applicant = Applicant::new(self, node, patience);
        // A revision may have made it late. Where the user's settings need AWS's word for a revision, it was there before this.
        if admitted.is_some() && !applicant.is_late() {
            return Progress::Admitted;
        }
        *admitted = match applicant.at_once() {
            Some(place) => Some(place),
            None => match applicant.wait(until, hook, log, was_denied).await {
                Ok(place) => Some(place),
                Err(progress) => return progress,
            },
        };
        Progress::Admitted
    }

    /// Whether the notice has left its mark before a takeover. A notice with an earlier deadline than the mark's is not the one that left
    /// it.
    fn was_admitted(&self, node: &Node) -> bool {
        let Self { interrupter, policy, notice, .. } = self;
        let clock = &interrupter.clock;
        let key = notice.key();
        let is_hard = matches!(notice.detail, Detail::ScheduledChange(ScheduledChange { hard: true, .. }));
        let is_earlier = || {
            let deadline = policy.deadline(notice, Some(node), None, clock, Instant::now()).at();
            let least = clock.timestamp_of(deadline + SPOT_TOLERANCE);
            matches!(notice.detail, Detail::Spot { .. } | Detail::CapacityReservation { .. })
                && node.record.deadline(key, None).is_some_and(|marked| marked > least)
        };
        let mut drains =
            node.record.notice(key).into_iter().filter(|known| known.is_drain() && known.starts_at(notice.start()));
        !notice.is_withdrawn() && drains.any(|known| known.hard || !is_hard) && !is_earlier()
    }

    /// Waits for a copy that revises the notice and may be taken up. A drain beyond the maximum is changed or called off only with AWS's
    /// confirmation, not by any message.
    pub(super) async fn revised(&self, newest: &mut watch::Receiver<Arc<Notice>>) -> Arc<Notice> {
        loop {
            let copy = Arc::clone(&newest.borrow_and_update());
            let accepted = async {
                if !copy.revises(&self.notice) {
                    return pending().await;
                }
                self.accepts(&copy).await;
            };
            tokio::select! {
                biased;
                Ok(()) = newest.changed() => {}
                () = accepted => return copy,
            }
        }
    }

    async fn accepts(&self, copy: &Notice) {
        let (policy, draining) = (&self.policy, &self.interrupter.draining);
        let (verify, needed) = (policy.admission.verify, policy.admission.is_wary() && policy.admits(copy));
        let Some(proof) = Proof::of(copy, verify).filter(|_| needed) else { return };
        let proof = proof.of_known(self.notice.start());
        let had_room = async {
            match verify {
                Verify::Always => pending().await,
                _ => draining.until_room_of(&copy.instance).await,
            }
        };
        tokio::select! {
            biased;
            () = had_room => {}
            () = self.confirmed(&proof, true, Instant::now() + REVISION_PATIENCE, drop, || {}) => {}
        }
    }

    /// Waits until AWS confirms the notice, which must happen before `by`. Asks at once, then at growing intervals: EC2 and Auto Scaling
    /// show an event some time after its message.
    async fn confirmed(
        &self,
        proof: &Proof,
        is_usual: bool,
        by: Instant,
        set_reason: impl Fn(String),
        was_denied: impl Fn(),
    ) {
        let Self { interrupter, notice, .. } = self;
        let mut reported: Option<Category> = None;
        let mut denials = 0;
        for questions in 1.. {
            match interrupter.confirmations.shows(&notice.instance, proof).await {
                Ok(true) => return,
                Ok(false) => {
                    was_denied();
                    set_reason(format!("AWS has not confirmed that {}", proof.expected()));
                    denials += 1;
                    if is_usual && denials == 2 {
                        self.is_unusual(Unusual::NotConfirmed, None);
                    }
                }
                Err(error) => {
                    let category = error.category;
                    let answer =
                        if category == Category::Denied { "the right is missing" } else { "it did not answer" };
                    set_reason(format!("AWS was asked whether {}, and {answer}", proof.expected()));
                    let is_known = category == Category::Denied && !interrupter.confirmations.is_first_denial(proof);
                    if reported.replace(category) != Some(category) && !is_known {
                        self.emit(&Fact::ConfirmationFailed { about: self.about(), category, error: &error });
                    }
                }
            }
            interrupter.confirmations.next_turn(questions, by).await;
        }
    }

    fn is_unusual(&self, why: Unusual, drains: Option<(usize, usize)>) {
        self.emit(&Fact::NoticeUnusual { about: self.about(), why, drains });
    }
}
