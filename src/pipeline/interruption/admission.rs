//! Whether a notice may have its node drained: within the maximum number of drains, or once AWS confirms it.

use super::completion::KeptHook;
use super::confirmation::Proof;
use super::draining::Admitted;
use super::step::Finding;
use super::waits::Waiting;
use super::{Case, Interrupter, NoticeOutcome, Verify, WaitLog};
use crate::clients::gate::Category;
use crate::fact::{Fact, Unusual, Wait, WaitOutcome};
use crate::pipeline::event::Notice;
use crate::pipeline::node::Node;
use crate::pipeline::node::mark::{is_drained, is_drained_for, start_of};
use std::collections::HashSet;
use std::future::pending;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

impl Case {
    /// Waits until the notice is admitted, which `admitted` then holds: there is room, or AWS has confirmed it.
    pub(super) async fn admit(
        &self,
        node: Option<Arc<Node>>,
        until: Instant,
        hook: Option<&KeptHook>,
        log: &WaitLog,
        admitted: &mut Option<Admitted>,
    ) -> Finding {
        let Self { interrupter, notice, .. } = self;
        let (verify, identity) = (interrupter.policy.admission.verify, notice.identity.to_string());
        let proof =
            Proof::of(notice, verify).filter(|_| verify == Verify::Never || interrupter.policy.admission.asks_aws);
        let proof = proof.map(|proof| proof.of_known(node.as_ref().and_then(|node| start_of(node, &identity))));
        // A message names the token; without it Auto Scaling itself has shown that the instance waits.
        let is_shown = notice.hook().is_some_and(|hook| hook.token.is_none());
        let must_be_confirmed = verify == Verify::Always && proof.is_some() && !is_shown;
        // A revision was confirmed before it was taken up, if it had to be.
        if admitted.is_some() {
            return Finding::Admitted;
        }
        // What has left its mark was admitted before: a takeover goes on.
        let is_marked = |node: &Arc<Node>| is_drained_for(node, &identity, notice.start());
        if !notice.is_withdrawn() && node.as_ref().is_some_and(is_marked) {
            *admitted = Some(interrupter.draining.admit_anyway(&notice.instance));
            return Finding::Admitted;
        }
        match self.enter() {
            Ok(entered) if !must_be_confirmed => {
                *admitted = Some(entered);
                return Finding::Admitted;
            }
            Ok(_) => {}
            Err(drains) => self.is_unusual(Unusual::TooManyDrains, Some(drains)),
        }
        let waiting = Waiting::new(self, log, Wait::Admission, until);
        let (unproven, crowded_out) = (OnceLock::new(), CancellationToken::new());
        let waits_unproven = || {
            unproven.get_or_init(|| interrupter.draining.wait_unproven(&notice.instance, notice.kind(), &crowded_out));
        };
        let confirmed = async {
            match &proof {
                _ if is_shown => {}
                // Its capacity goes by itself.
                Some(_) if verify == Verify::Never => {}
                Some(proof) => {
                    self.confirmed(proof, must_be_confirmed, |reason| waiting.says(reason), waits_unproven).await;
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
                waiting.says(
                    "more nodes are drained than --max-draining allows, and AWS is not asked to confirm such a notice",
                );
            }
            loop {
                interrupter.draining.changed().await;
                // Room admits only what AWS has not denied.
                let is_denied = proof.is_some() && unproven.get().is_some();
                if !is_denied && let Ok(entered) = self.enter() {
                    return entered;
                }
            }
        };
        let gone = async {
            let Some(node) = node else { return pending().await };
            interrupter.drainer.missing(&node).await;
            node
        };
        let over = hook.map(KeptHook::over).unwrap_or_default();
        let (outcome, finding) = tokio::select! {
            biased;
            gone = gone => (WaitOutcome::CalledOff, Finding::NodeGone(gone, NoticeOutcome::NothingToDrain)),
            () = confirmed => {
                *admitted = Some(interrupter.draining.admit_anyway(&notice.instance));
                (WaitOutcome::Met, Finding::Admitted)
            }
            entered = room => {
                *admitted = Some(entered);
                (WaitOutcome::Met, Finding::Admitted)
            }
            () = crowded_out.cancelled() => {
                waiting.says("too many notices wait that AWS has not confirmed");
                (WaitOutcome::CutShort, Finding::NotAdmitted)
            }
            () = over.cancelled() => (WaitOutcome::CutShort, Finding::NotAdmitted),
            () = sleep_until(until) => (WaitOutcome::TimeOver, Finding::NotAdmitted),
        };
        waiting.end(outcome);
        finding
    }

    /// Waits for a copy that revises the notice and may be taken up: a drain for which there was no room is changed, and called off, as
    /// AWS says, and not by any message.
    pub(super) async fn revised(&self, newest: &mut watch::Receiver<Arc<Notice>>) -> Arc<Notice> {
        loop {
            let copy = Arc::clone(&newest.borrow_and_update());
            let accepted = async {
                if Arc::ptr_eq(&copy, &self.notice) {
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
            while verify == Verify::Always || !draining.had_room(&copy.instance) {
                draining.changed().await;
            }
        };
        tokio::select! {
            biased;
            () = had_room => {}
            () = self.confirmed(&proof, true, drop, || {}) => {}
        }
    }

    /// Takes a place among the nodes that are drained.
    ///
    /// # Errors
    /// The number of nodes that are drained, and its maximum.
    fn enter(&self) -> Result<Admitted, (usize, usize)> {
        let Self { interrupter, notice, .. } = self;
        let Some(limit) = interrupter.policy.admission.max_draining else {
            return Ok(interrupter.draining.admit_anyway(&notice.instance));
        };
        let at_most = limit.of(interrupter.index.len());
        let marked = || -> HashSet<_> {
            let drained = interrupter.index.all_that(is_drained);
            drained.into_iter().map(|node| node.instance.clone()).chain(interrupter.index.let_go()).collect()
        };
        interrupter.draining.admit(&notice.instance, at_most, marked).map_err(|draining| (draining, at_most))
    }

    /// Waits until AWS confirms the notice. Asks at once, and then less and less often: what EC2 and Auto Scaling say follows the event
    /// after a while.
    async fn confirmed(&self, proof: &Proof, is_usual: bool, says: impl Fn(String), was_denied: impl Fn()) {
        let Self { interrupter, notice, .. } = self;
        let mut told: Option<Category> = None;
        let mut denials = 0;
        for questions in 1.. {
            match interrupter.confirmations.shows(&notice.instance, proof).await {
                Ok(true) => return,
                Ok(false) => {
                    was_denied();
                    says(format!("AWS has not confirmed that {}", proof.expected()));
                    denials += 1;
                    if is_usual && denials == 2 {
                        self.is_unusual(Unusual::NotConfirmed, None);
                    }
                }
                Err(error) => {
                    says(format!("AWS was asked whether {}, and did not answer", proof.expected()));
                    let category = error.category();
                    if told.replace(category) != Some(category) {
                        self.tell(&Fact::ConfirmationFailed { about: self.about(), category, error: &error });
                    }
                }
            }
            interrupter.confirmations.next_turn(questions).await;
        }
    }

    fn is_unusual(&self, why: Unusual, drains: Option<(usize, usize)>) {
        self.tell(&Fact::NoticeUnusual { about: self.about(), why, drains });
    }
}
