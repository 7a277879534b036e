//! Admits a notice to the cordon and drain of its node: within the maximum number of drains, or once AWS confirms it.

use super::completion::KeptHook;
use super::confirmation::{Proof, SPOT_TOLERANCE};
use super::draining::{DrainPlace, UnprovenWait};
use super::known::Progress;
use super::waits::ActiveWait;
use super::{Case, Interrupter, NoticeOutcome, Verify, WaitLog};
use crate::clients::gate::Category;
use crate::fact::{Fact, Unusual, Wait, WaitOutcome};
use crate::pipeline::event::{Detail, InstanceId, Notice, ScheduledChange};
use crate::pipeline::node::Node;
use std::collections::HashSet;
use std::future::pending;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Time in which AWS's confirmation of a revised notice is not urgent.
const REVISION_PATIENCE: Duration = Duration::from_hours(1);

impl Case {
    /// Waits until the notice is admitted, because there is room or AWS confirms it. `admitted` holds its place then.
    pub(super) async fn admit(
        &self,
        node: Option<Arc<Node>>,
        until: Instant,
        hook: Option<&KeptHook>,
        log: &WaitLog,
        admitted: &mut Option<DrainPlace>,
    ) -> Progress {
        let Self { interrupter, notice, .. } = self;
        let (verify, key) = (interrupter.policy.admission.verify, notice.key());
        let proof =
            Proof::of(notice, verify).filter(|_| verify == Verify::Never || interrupter.policy.admission.asks_aws);
        let start = node.as_ref().and_then(|node| node.record.live(key)?.start);
        let proof = proof.map(|proof| proof.of_known(start));
        // A hook without a token is not from a message: Auto Scaling itself has shown that the instance waits.
        let is_shown = notice.hook().is_some_and(|hook| hook.token.is_none());
        let must_be_confirmed = verify == Verify::Always && proof.is_some() && !is_shown;
        // A revision that needed confirmation was confirmed before it was taken up.
        if admitted.is_some() {
            return Progress::Admitted;
        }
        if node.as_ref().is_some_and(|node| self.was_admitted(node)) {
            *admitted = Some(interrupter.draining.admit_anyway(&notice.instance));
            return Progress::Admitted;
        }
        match if must_be_confirmed { self.has_room().map(|()| None) } else { self.enter().map(Some) } {
            Ok(Some(entered)) => {
                *admitted = Some(entered);
                return Progress::Admitted;
            }
            Ok(None) => {}
            Err(drains) => self.is_unusual(Unusual::TooManyDrains, Some(drains)),
        }
        let waiting = ActiveWait::new(self, log, Wait::Admission, until);
        let (unproven, crowded_out) = (OnceLock::new(), CancellationToken::new());
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
            match &proof {
                _ if is_shown => {}
                // Its capacity ends in any case.
                Some(_) if verify == Verify::Never => {}
                Some(proof) => {
                    let set_reason = |reason: String| waiting.set_reason(reason);
                    self.confirmed(proof, must_be_confirmed, until, set_reason, waits_unproven).await;
                }
                None => {
                    waits_unproven();
                    pending::<()>().await;
                }
            }
        };
        let room = async {
            if must_be_confirmed {
                return pending().await;
            }
            if proof.is_none() {
                waiting.set_reason(
                    "more nodes are drained than --max-draining allows, and AWS is not asked to confirm such a notice",
                );
            }
            // Room admits only what AWS has not denied.
            let is_denied = || proof.is_some() && unproven.get().is_some();
            while !is_denied() {
                interrupter.draining.changed().await;
                if !is_denied()
                    && let Ok(entered) = self.enter()
                {
                    return entered;
                }
            }
            interrupter.draining.pass_on();
            pending().await
        };
        let gone = async {
            let Some(node) = node else { return pending().await };
            interrupter.drainer.missing(&node).await;
            node
        };
        let (outcome, progress) = tokio::select! {
            biased;
            gone = gone => (WaitOutcome::CalledOff, Progress::Gone(gone, NoticeOutcome::NothingToDrain)),
            () = confirmed => {
                *admitted = Some(interrupter.draining.admit_anyway(&notice.instance));
                (WaitOutcome::Met, Progress::Admitted)
            }
            entered = room => {
                *admitted = Some(entered);
                (WaitOutcome::Met, Progress::Admitted)
            }
            () = crowded_out.cancelled() => {
                waiting.set_reason("too many notices wait that AWS has not confirmed");
                (WaitOutcome::CutShort, Progress::Ended(NoticeOutcome::NotAdmitted))
            }
            () = KeptHook::over(hook) => (WaitOutcome::CutShort, Progress::Ended(NoticeOutcome::NotAdmitted)),
            () = sleep_until(until) => (WaitOutcome::TimeOver, Progress::Ended(NoticeOutcome::NotAdmitted)),
        };
        waiting.end(outcome);
        progress
    }

    /// Whether the notice has left its mark before a takeover. A notice with an earlier deadline than the mark's is not the one that left
    /// it.
    fn was_admitted(&self, node: &Node) -> bool {
        let Self { interrupter, notice, .. } = self;
        let Interrupter { policy, clock, .. } = &**interrupter;
        let key = notice.key();
        let is_hard = matches!(notice.detail, Detail::ScheduledChange(ScheduledChange { hard: true, .. }));
        let is_earlier = || {
            let deadline = policy.deadline(notice, Some(node), None, clock, Instant::now()).at();
            let least = clock.timestamp_of(deadline + SPOT_TOLERANCE);
            matches!(notice.detail, Detail::Spot { .. })
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
        let Interrupter { policy, draining, .. } = &*self.interrupter;
        let (verify, needed) = (policy.admission.verify, policy.is_wary() && policy.admits(copy));
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

    /// Takes a place among the nodes being drained.
    ///
    /// # Errors
    /// The number of nodes being drained, and its maximum.
    fn enter(&self) -> Result<DrainPlace, (usize, usize)> {
        let Self { interrupter, notice, .. } = self;
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
    /// As of [`Case::enter`].
    fn has_room(&self) -> Result<(), (usize, usize)> {
        let (draining, instance) = (&self.interrupter.draining, &self.notice.instance);
        self.at_most()
            .map_or(Ok(()), |max| draining.has_room(instance, max, || self.marked()).map_err(|drains| (drains, max)))
    }

    /// Returns the maximum number of nodes being drained, if there is one.
    fn at_most(&self) -> Option<usize> {
        self.interrupter.policy.admission.max_draining.map(|limit| limit.of(self.interrupter.index.len()))
    }

    /// Returns the instances whose nodes are being drained, by their marks.
    fn marked(&self) -> HashSet<InstanceId> {
        let index = &self.interrupter.index;
        index
            .all_that(|node| node.record.is_drained())
            .into_iter()
            .map(|node| node.instance.clone())
            .chain(index.released())
            .collect()
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
                    set_reason(format!("AWS was asked whether {}, and did not answer", proof.expected()));
                    let category = error.category;
                    if reported.replace(category) != Some(category) {
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
