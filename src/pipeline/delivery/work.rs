//! The work on an offer, until its notice has ended and that is noted.

use super::offers::{Done, Offer, Offers, Origin, Source};
use super::{Verdict, verdict};
use crate::clients::gate::CALL_TIMEOUT;
use crate::fact::{Fact, NoticeKind, NoticeRef};
use crate::pipeline::event::{Identity, Notice};
use crate::pipeline::interruption::NoticeOutcome;
use crate::pipeline::node::Node;
use crate::pipeline::node::agent_notices::is_reported;
use crate::pipeline::node::handled::Standing;
use crate::pipeline::node::is_from_node;
use crate::pipeline::node::record::NoticeRecord;
use tokio::time::Instant;

impl Offers {
    /// Works on a notice until it has ended, and removes its plan. Returns its version, and whether it needs nothing more of this process.
    pub(super) async fn work(&self, source: &dyn Source, offer: Offer) -> Done {
        let still = |node: &Node| source.still(&offer, node);
        let Offer { node, notice, message, origin, standing, cut } = &offer;
        let plan = match origin {
            Origin::Plan(plan) => Some(plan),
            Origin::Ec2 => None,
        };
        let version = notice.version();
        let mut outcome = None;
        if *standing != Standing::Announced {
            if plan.is_none() && !notice.is_withdrawn() {
                let (kind, instance) = (notice.kind(), notice.instance.as_str());
                self.interrupter
                    .facts
                    .emit(&Fact::NoticeListed { about: NoticeRef { kind, instance, node: Some(&node.name), message } });
            }
            let copy = self.interruptions.join(notice.clone(), message);
            // Without its plan or its entry in EC2's list, pending work is dropped.
            let end = tokio::select! {
                biased;
                end = self.interruptions.ended(&copy) => Some(end),
                () = self.brake.dropped_before_start(node, notice, still) => None,
                () = cut.cancelled() => None,
            };
            copy.leave().await;
            let Some(end) = end else { return (version, false) };
            // A notice that has not ended is tried again at the next scan.
            if verdict([end]) != Verdict::Delete {
                return (version, false);
            }
            outcome = end.ok();
        }
        let is_withdrawn = match outcome {
            Some(NoticeOutcome::Withdrawn) => !notice.is_withdrawn(),
            // Another replica, which has the turn, removed the marks.
            Some(NoticeOutcome::Uncordoned) => {
                plan.is_some_and(|plan| is_from_node(&plan.message))
                    && self.interrupter.index.newest(node).is_some_and(|node| !is_reported(&node, &notice.identity))
            }
            _ => false,
        };
        if is_withdrawn {
            // The withdrawal has removed the annotations. The notice may be announced again.
            self.interruptions.outcomes.forget(&notice.identity);
            return (version, false);
        }
        if outcome.is_some_and(|outcome| self.is_tried_again(notice, outcome)) {
            return (version, false);
        }
        // There may be room at a later scan, while EC2 or the Node still reports the notice. A message comes once.
        let listed = notice.identity.ec2_id();
        let is_of_message =
            plan.is_some_and(|plan| !is_from_node(&plan.message) && listed.as_deref() != Some(&*plan.message));
        if outcome == Some(NoticeOutcome::NotAdmitted) && !is_of_message {
            return (version, false);
        }
        // EC2 has listed a newer version meanwhile, which this work was for too.
        if plan.is_none() && !still(node) {
            return (version, true);
        }
        let is_settled = self.settle(node, (notice, message), plan, outcome).await;
        // A plan stays on the Node for as long as it is needed; a dry run stores none, and would plan for ever.
        let is_planned = outcome == Some(NoticeOutcome::Planned) && !self.interrupter.policy.dry_run;
        (version, is_settled && !is_planned)
    }

    /// Whether work that failed, or for which there was no room, is tried again: the change is still ahead, or the Node or EC2 continues to
    /// report the notice. Its plan or its source stays.
    pub(super) fn is_tried_again(&self, notice: &Notice, outcome: NoticeOutcome) -> bool {
        let is_ahead = || notice.start().is_some_and(|start| start > self.interrupter.clock.now());
        let is_repeated = notice.kind().is_repair() || matches!(notice.identity, Identity::Agent { .. });
        matches!(outcome, NoticeOutcome::Failed | NoticeOutcome::NotAdmitted)
            && !notice.is_withdrawn()
            && (is_repeated || is_ahead())
    }

    /// Notes on the Node that the notice has ended. `outcome` is `None` if a message announced it too. Returns whether that is done.
    async fn settle(
        &self,
        node: &Node,
        (notice, message): (&Notice, &str),
        plan: Option<&NoticeRecord>,
        outcome: Option<NoticeOutcome>,
    ) -> bool {
        let marker = &self.interrupter.marker;
        let by = Instant::now() + CALL_TIMEOUT;
        let mut written = Ok(true);
        if let Some(listed) = notice.identity.ec2_id().filter(|_| outcome.is_none_or(is_work)) {
            // Plans created from messages don't appear in EC2's list or in agent notices.
            if plan.is_none_or(|plan| plan.message == listed || is_from_node(&plan.message)) {
                // Another replica's answer may be older, and still show the check as failing since then.
                written = if !notice.is_withdrawn() || notice.kind() == NoticeKind::StatusCheck {
                    marker.end(node, notice, message, plan, by).await
                } else {
                    marker.forget_end(node, notice, by).await
                };
            }
        }
        if let Some(plan) = plan.filter(|_| written.is_ok() && outcome != Some(NoticeOutcome::Planned)) {
            written = marker.plan(node, plan, false, by).await;
        }
        if let Err(error) = &written {
            self.interrupter.facts.emit(&Fact::ReleaseFailed { on: node.named(), category: error.category, error });
        }
        written.is_ok()
    }
}

/// Whether the notice was worked on to its end.
pub(super) const fn is_work(outcome: NoticeOutcome) -> bool {
    use NoticeOutcome::{Crashed, Excluded, HandedOver, Ignored, NotAdmitted, NotOurs, Planned, Reported};
    !matches!(outcome, Crashed | HandedOver | Planned | Ignored | Reported | NotOurs | Excluded | NotAdmitted)
}
