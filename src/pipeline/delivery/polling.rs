//! Polls EC2 for scheduled changes, ending Capacity Blocks and failing status checks, because EventBridge's delivery is best effort.

use super::Deliverer;
use crate::clients::gate::{AwsError, Backoff, Category};
use crate::fact::Fact;
use crate::pipeline::event::{Notice, NoticeKind};
use crate::pipeline::interruption::Action;
use crate::pipeline::node::{Listing, passing_checks};
use crate::runtime::random;
use futures_util::future::join3;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::sleep;

/// First wait after a failed poll; later ones are longer, up to the interval.
const FIRST_RETRY: Duration = Duration::from_secs(5);

/// Maximum interval between polls for ending Capacity Blocks: an instance may be launched ten minutes before its termination starts.
const MAX_BLOCK_INTERVAL: Duration = Duration::from_mins(5);

/// The settings of the EC2 polls.
#[derive(Clone, Debug)]
pub struct PollSettings {
    /// The EC2 calls.
    pub listing: Listing,
    /// Interval between two polls of a kind.
    pub interval: Duration,
}

/// EC2's newest answers, by question.
#[derive(Debug, Default)]
pub(super) struct Answers {
    changes: Mutex<Vec<Notice>>,
    blocks: Mutex<Vec<Notice>>,
    checks: Mutex<Vec<Notice>>,
}

#[derive(Clone, Copy)]
enum Question {
    Changes,
    Blocks,
    Checks,
}

impl Answers {
    /// Returns the notices of all answers.
    pub fn notices(&self) -> Vec<Notice> {
        let of = |answer: &Mutex<Vec<Notice>>| answer.lock().clone();
        [of(&self.changes), of(&self.blocks), of(&self.checks)].concat()
    }

    fn set(&self, question: Question, notices: Vec<Notice>) {
        let answer = match question {
            Question::Changes => &self.changes,
            Question::Blocks => &self.blocks,
            Question::Checks => &self.checks,
        };
        *answer.lock() = notices;
    }
}

impl Deliverer {
    /// Keeps the answers current. Each question has its own loop, so that a permission missing for one doesn't stop the others. Runs until
    /// aborted.
    pub(super) async fn poll(&self, polling: &PollSettings, answers: &Answers) {
        let repeat = |question| self.repeat(polling, question, answers);
        join3(repeat(Question::Changes), repeat(Question::Blocks), repeat(Question::Checks)).await;
    }

    async fn repeat(&self, polling: &PollSettings, question: Question, answers: &Answers) {
        let kind = match question {
            Question::Changes => NoticeKind::ScheduledChange,
            Question::Blocks => NoticeKind::CapacityReservation,
            Question::Checks => NoticeKind::StatusCheck,
        };
        if self.interrupter.policy.actions.of(kind) == Action::Ignore {
            return;
        }
        let interval = match question {
            Question::Changes | Question::Checks => polling.interval,
            Question::Blocks => polling.interval.min(MAX_BLOCK_INTERVAL),
        };
        let mut backoff = Backoff::new(FIRST_RETRY.min(interval), interval);
        let mut reported: Option<Category> = None;
        loop {
            let wait = match self.ask(polling, question).await {
                Ok(notices) => {
                    answers.set(question, notices);
                    reported = None;
                    backoff.reset();
                    random::jittered(interval, 0.9..1.0)
                }
                Err(error) => {
                    let category = error.category;
                    // Once: a missing permission would be reported for ever.
                    if reported.replace(category) != Some(category) {
                        self.facts.emit(&Fact::PollFailed { category, error: &error });
                    }
                    if category == Category::Denied { interval } else { backoff.step() }
                }
            };
            sleep(wait).await;
        }
    }

    async fn ask(
        &self,
        PollSettings { listing, interval }: &PollSettings,
        question: Question,
    ) -> Result<Vec<Notice>, AwsError> {
        let now = self.interrupter.clock.now();
        match question {
            Question::Changes => listing.changes(now).await,
            Question::Checks => {
                let mut checks = listing.status_checks(now).await.inspect_err(|_| self.failing.not_answered())?;
                let passing = passing_checks(&self.interrupter.index.marked(), &checks, now);
                self.failing.answered(std::mem::take(&mut checks.failing));
                Ok([checks.notices, passing].concat())
            }
            Question::Blocks => {
                // Including blocks for which the next poll might be too late.
                let until = now.checked_add(*interval * 2).unwrap_or(now);
                let mut notices = Vec::new();
                for block in listing.ending_blocks(now, until).await? {
                    notices.extend(block.notices(self.interrupter.owner.in_reservation(&block.reservation).await?));
                }
                Ok(notices)
            }
        }
    }
}
