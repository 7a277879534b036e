//! Whether a notice may have its node drained: within the maximum number of drains, or once AWS confirms it.

use super::completion::KeptHook;
use super::confirmation::Proof;
use super::draining::Admitted;
use super::step::Finding;
use super::waits::Waiting;
use super::{Case, NoticeOutcome, Verify, WaitLog};
use crate::clients::gate::Category;
use crate::fact::{Fact, Unusual, Wait, WaitOutcome};
use crate::pipeline::node::Node;
use crate::pipeline::node::mark::{is_drained, is_marked_for};
use std::collections::HashSet;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::{Instant, sleep_until};

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
        let verify = interrupter.policy.admission.verify;
        let proof = Proof::of(notice);
        let must_be_confirmed = verify == Verify::Always && proof.is_some();
        // What has left its mark was admitted before: a takeover goes on.
        let identity = notice.identity.to_string();
        if node.as_ref().is_some_and(|node| is_marked_for(node, &identity, notice.start())) {
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
        // Room admits only what AWS has not denied.
        let denied = AtomicBool::new(false);
        let confirmed = async {
            match &proof {
                // Its capacity goes by itself.
                Some(_) if verify == Verify::Never => {}
                Some(proof) => self.confirmed(proof, must_be_confirmed, &waiting, &denied).await,
                None => pending().await,
            }
        };
        let room = async {
            if must_be_confirmed {
                return pending().await;
            }
            if proof.is_none() {
                waiting.says("more nodes are drained than --max-draining allows, and AWS confirms no such notice");
            }
            loop {
                interrupter.draining.changed().await;
                if !denied.load(Ordering::Relaxed)
                    && let Ok(entered) = self.enter()
                {
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
            () = over.cancelled() => (WaitOutcome::CutShort, Finding::NotAdmitted),
            () = sleep_until(until) => (WaitOutcome::TimeOver, Finding::NotAdmitted),
        };
        waiting.end(outcome);
        finding
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
            drained.into_iter().map(|node| node.instance.clone()).collect()
        };
        interrupter.draining.admit(&notice.instance, at_most, marked).map_err(|draining| (draining, at_most))
    }

    /// Waits until AWS confirms the notice. Asks at once, and then less and less often: what EC2 and Auto Scaling say follows the event
    /// after a while.
    async fn confirmed(&self, proof: &Proof, is_usual: bool, waiting: &Waiting<'_>, denied: &AtomicBool) {
        let Self { interrupter, notice, .. } = self;
        let mut told: Option<Category> = None;
        let mut denials = 0;
        for questions in 1.. {
            match interrupter.confirmations.shows(&notice.instance, proof).await {
                Ok(true) => return,
                Ok(false) => {
                    denied.store(true, Ordering::Relaxed);
                    waiting.says(format!("AWS has not confirmed that {}", proof.expected()));
                    denials += 1;
                    if is_usual && denials == 2 {
                        self.is_unusual(Unusual::NotConfirmed, None);
                    }
                }
                Err(error) => {
                    waiting.says(format!("AWS was asked whether {}, and did not answer", proof.expected()));
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
