//! EC2's lists of scheduled changes, ending Capacity Blocks and failing status checks, polled because EventBridge's delivery is best
//! effort.

use super::offers::{Offer, Origin, Round, Source, next_round};
use super::repairs::RepairBrake;
use crate::clients::gate::{AwsError, Backoff, Category};
use crate::fact::Fact;
use crate::pipeline::event::{CapacityBlock, Notice, NoticeKind, NoticeTime};
use crate::pipeline::interruption::{Action, Interrupter};
use crate::pipeline::node::handled::standing;
use crate::pipeline::node::{Listing, Node, passing_checks};
use crate::runtime::random;
use futures_util::StreamExt;
use futures_util::future::join3;
use futures_util::stream::{BoxStream, repeat};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

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

/// What EC2 lists.
pub(super) struct Ec2 {
    pub polling: PollSettings,
    pub interrupter: Arc<Interrupter>,
    /// Counts the instances whose checks fail.
    pub brake: Arc<RepairBrake>,
    pub stop: CancellationToken,
    /// EC2's newest answers, by question.
    pub answers: [Mutex<Vec<Notice>>; 3],
}

#[derive(Clone, Copy)]
enum Question {
    Changes,
    Blocks,
    Checks,
}

impl Source for Ec2 {
    fn rounds(&self) -> BoxStream<'_, Round> {
        let round = |()| async {
            next_round(&self.interrupter).await;
            let now = self.interrupter.clock.now();
            let offers = self.listed().into_iter().filter_map(|notice| self.offer(notice, now)).collect();
            Round { offers, ..Round::default() }
        };
        repeat(()).then(round).boxed()
    }

    fn still(&self, Offer { notice, .. }: &Offer, _: &Node) -> bool {
        self.listed().iter().any(|listed| listed.version() == notice.version())
    }
}

impl Ec2 {
    /// Returns the notices of all answers.
    fn listed(&self) -> Vec<Notice> {
        self.answers.iter().flat_map(|answer| answer.lock().clone()).collect()
    }

    /// Returns what is offered for a listed notice, if anything.
    fn offer(&self, mut notice: Notice, now: Timestamp) -> Option<Offer> {
        let node = self.interrupter.index.get(&notice.instance).filter(|node| !node.is_excluded())?;
        if CapacityBlock::warned_of(&notice).is_some_and(|from| from > now) {
            return None;
        }
        let message = Arc::<str>::from(&*notice.identity.ec2_id()?);
        let standing = standing(&node, &notice, Some(&message));
        // Newer than the mark of another replica, whose work this one continues.
        notice.time = NoticeTime::Seen(now);
        let (origin, cut) = (Origin::Ec2, self.stop.clone());
        Some(Offer { node, notice, message, origin, standing, cut })
    }

    /// Keeps the answers current. Each question has its own loop, so that a permission missing for one doesn't stop the others. Runs until
    /// aborted.
    pub(super) async fn poll(&self) {
        join3(self.repeat(Question::Changes), self.repeat(Question::Blocks), self.repeat(Question::Checks)).await;
    }

    async fn repeat(&self, question: Question) {
        let kind = match question {
            Question::Changes => NoticeKind::ScheduledChange,
            Question::Blocks => NoticeKind::CapacityReservation,
            Question::Checks => NoticeKind::StatusCheck,
        };
        if self.interrupter.policy.actions.of(kind) == Action::Ignore {
            return;
        }
        let interval = match question {
            Question::Changes | Question::Checks => self.polling.interval,
            Question::Blocks => self.polling.interval.min(MAX_BLOCK_INTERVAL),
        };
        let mut backoff = Backoff::new(FIRST_RETRY.min(interval), interval);
        let mut reported: Option<Category> = None;
        loop {
            let wait = match self.ask(question).await {
                Ok(notices) => {
                    *self.answers[question as usize].lock() = notices;
                    reported = None;
                    backoff.reset();
                    random::jittered(interval, 0.9..1.0)
                }
                Err(error) => {
                    let category = error.category;
                    // Once: a missing permission would be reported for ever.
                    if reported.replace(category) != Some(category) {
                        self.interrupter.facts.emit(&Fact::PollFailed { category, error: &error });
                    }
                    if category == Category::Denied { interval } else { backoff.step() }
                }
            };
            sleep(wait).await;
        }
    }

    async fn ask(&self, question: Question) -> Result<Vec<Notice>, AwsError> {
        let PollSettings { listing, interval } = &self.polling;
        let now = self.interrupter.clock.now();
        match question {
            Question::Changes => listing.changes(now).await,
            Question::Checks => {
                let mut checks = listing.status_checks(now).await.inspect_err(|_| self.brake.checked(None))?;
                let passing = passing_checks(&self.interrupter.index.marked(), &checks, now);
                self.brake.checked(Some(std::mem::take(&mut checks.failing)));
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
