//! One node from its first notice to the end of its last: which notifications were sent, and which follow. Pure.

use super::event::{About, Pool};
use super::notification::BlockedPod;
use super::phases::Phases;
use crate::fact::{Action, NoticeKind, NoticeOutcome, NotificationPhase};
use std::time::Duration;
use tokio::time::Instant;

/// What is done to a node. Each work has its own notifications: a node that was cordoned may have to be drained later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Work {
    Drain,
    Cordon,
    Launch,
}

impl Work {
    pub(super) const ALL: [Self; 3] = [Self::Drain, Self::Cordon, Self::Launch];

    /// Returns the work of an action that changes something.
    pub(super) const fn of(action: Action) -> Option<Self> {
        match action {
            Action::Drain | Action::Reboot | Action::Replace => Some(Self::Drain),
            Action::Cordon => Some(Self::Cordon),
            Action::Ready => Some(Self::Launch),
            Action::Report | Action::Ignore => None,
        }
    }
}

/// What an outcome means to a receiver of notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// Nothing: another replica continues the work, or the instance isn't ours.
    Silent,
    /// There was nothing to do. It matters if an earlier phase was sent.
    Settled,
    /// The work was done.
    Done,
    /// The work was not done.
    Failed,
}

impl Verdict {
    pub(super) const fn on(outcome: NoticeOutcome) -> Self {
        match outcome {
            NoticeOutcome::Drained | NoticeOutcome::NodeDead | NoticeOutcome::Cordoned | NoticeOutcome::Ready => {
                Self::Done
            }
            NoticeOutcome::NothingToDrain
            | NoticeOutcome::Withdrawn
            | NoticeOutcome::Stale
            | NoticeOutcome::Excluded => Self::Settled,
            NoticeOutcome::Reported
            | NoticeOutcome::Ignored
            | NoticeOutcome::NotOurs
            | NoticeOutcome::Planned
            | NoticeOutcome::HandedOver => Self::Silent,
            failure if failure.is_failure() => Self::Failed,
            _ => Self::Silent,
        }
    }
}

/// The end of a notice.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub kind: NoticeKind,
    pub outcome: NoticeOutcome,
    pub took: Duration,
    pub waited: Box<str>,
}

/// The time in which nothing of a node is sent: others may follow, and a storm reports all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub until: Instant,
    /// Whether the Node was cordoned meanwhile, so that another receiver takes the notice for sent.
    pub is_cordoned: bool,
}

/// One node.
#[derive(Debug)]
pub(super) struct Episode {
    /// The first notice.
    pub about: About,
    pub action: Action,
    pub pool: Pool,
    pub begun: Instant,
    pub deadline: Option<(Instant, bool)>,
    /// Whether `ebbtide send` made a notice.
    pub is_test: bool,
    /// Whether an earlier receiver of the message may have sent notifications.
    pub is_again: bool,
    /// The phases that the user wants.
    pub chosen: Phases,
    /// The phases that were sent, here or by an earlier receiver.
    pub sent: Phases,
    /// Whether the storm reports it instead.
    pub is_folded: bool,
    /// The messages of the notices that are being acted on.
    running: Vec<Box<str>>,
    pub hold: Option<Hold>,
    /// The pods that were held back when the drain became blocked; none while it is not.
    pub blocked: Vec<BlockedPod>,
    pub report: Option<Box<str>>,
    /// The end that matters most.
    pub end: Option<End>,
}

impl Episode {
    pub(super) fn new(about: About, action: Action, deadline: Option<(Instant, bool)>) -> Self {
        Self {
            running: vec![about.message.clone()],
            about,
            action,
            pool: Pool::default(),
            begun: Instant::now(),
            deadline,
            is_test: false,
            is_again: false,
            chosen: Phases::NONE,
            sent: Phases::NONE,
            is_folded: false,
            hold: None,
            blocked: Vec::new(),
            report: None,
            end: None,
        }
    }

    /// Returns what a person calls it.
    pub(super) fn name(&self) -> &str {
        self.about.node.as_ref().unwrap_or(&self.about.instance)
    }

    /// Whether a notice of this message is being worked on.
    pub(super) fn runs(&self, message: &str) -> bool {
        self.running.iter().any(|known| **known == *message)
    }

    /// Whether all its notices have ended.
    pub(super) const fn is_over(&self) -> bool {
        self.running.is_empty()
    }

    /// Takes a further notice. Sent phases stay sent, even if the first notices have ended: AWS announces one end in several ways.
    pub(super) fn join(&mut self, about: About, action: Action, deadline: Option<(Instant, bool)>) {
        if self.is_over() {
            let sent = self.sent;
            *self = Self { sent, chosen: self.chosen, ..Self::new(about, action, deadline) };
            return;
        }
        if !self.runs(&about.message) {
            self.running.push(about.message);
        }
        self.about.node = self.about.node.take().or(about.node);
        self.deadline = match (self.deadline, deadline) {
            // Of two of a kind the earlier one; a hard one before any other.
            (Some(known), Some(new)) => Some(if (!new.1, new.0) < (!known.1, known.0) { new } else { known }),
            (known, new) => known.or(new),
        };
    }

    /// Returns the first blocked pods, and the number of the others.
    pub(super) fn blocked(&self, most: usize) -> (Vec<BlockedPod>, usize) {
        let first = self.blocked.iter().take(most).cloned().collect();
        (first, self.blocked.len().saturating_sub(most))
    }

    /// A notice ended. Of several ends the one that matters most is kept.
    pub(super) fn ends(&mut self, message: &str, node: Option<Box<str>>, end: End) {
        self.running.retain(|known| **known != *message);
        self.about.node = self.about.node.take().or(node);
        let kept = self.end.as_ref().map(|kept| Verdict::on(kept.outcome));
        if kept.is_none_or(|kept| kept < Verdict::on(end.outcome)) {
            self.end = Some(end);
        }
        if self.is_over() {
            self.blocked.clear();
        }
    }

    /// Whether this phase is to be sent now, if there is a reason to.
    pub(super) const fn wants(&self, phase: NotificationPhase) -> bool {
        self.chosen.has(phase) && !self.sent.has(phase) && !self.is_folded && self.hold.is_none()
    }

    /// Whether there is a reason to send this phase. `pages`: an end matters only if an alert may be open.
    pub(super) fn calls_for(&self, phase: NotificationPhase, pages: bool) -> bool {
        let verdict = self.end.as_ref().map(|end| Verdict::on(end.outcome));
        match phase {
            NotificationPhase::Notice => !self.is_over() || verdict >= Some(Verdict::Done),
            NotificationPhase::Blocked => !self.blocked.is_empty(),
            NotificationPhase::Failed => verdict == Some(Verdict::Failed),
            NotificationPhase::Done => match verdict.filter(|_| self.is_over()) {
                Some(Verdict::Done | Verdict::Settled) if pages => !self.sent.is_empty() || self.is_again,
                Some(Verdict::Done) => true,
                Some(Verdict::Settled) => !self.sent.is_empty(),
                _ => false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_told_as_one() {
        for outcome in NoticeOutcome::ALL {
            assert_eq!(Verdict::on(outcome) == Verdict::Failed, outcome.is_failure(), "{outcome}");
        }
        for outcome in [NoticeOutcome::NotOurs, NoticeOutcome::Ignored, NoticeOutcome::HandedOver] {
            assert_eq!(Verdict::on(outcome), Verdict::Silent);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_hard_deadline_is_shown() {
        let about = |message: &str| About {
            kind: NoticeKind::Spot,
            instance: "i-1".into(),
            node: None,
            message: message.into(),
        };
        let at = |seconds| Instant::now() + Duration::from_secs(seconds);
        let mut episode = Episode::new(about("a"), Action::Drain, Some((at(60), false)));
        episode.join(about("b"), Action::Drain, Some((at(120), true)));
        assert_eq!(episode.deadline, Some((at(120), true)));
        episode.join(about("c"), Action::Drain, Some((at(90), true)));
        episode.join(about("d"), Action::Drain, Some((at(30), false)));
        assert_eq!(episode.deadline, Some((at(90), true)));
    }
}
