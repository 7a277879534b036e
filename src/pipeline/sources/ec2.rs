//! EC2's lists of scheduled changes, ending Capacity Blocks and failing status checks, polled because EventBridge's delivery is best
//! effort.

use super::offers::{Offer, Origin, Round, Source, each_minute};
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
use futures_util::stream::BoxStream;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// First wait after a failed poll; later ones are longer, up to the interval.
const FIRST_RETRY: Duration = Duration::from_secs(5);

/// Maximum interval between polls for ending Capacity Blocks: an instance may be launched ten minutes before its termination starts.
const MAX_BLOCK_INTERVAL: Duration = Duration::from_mins(5);

/// What EC2 lists.
pub struct Ec2 {
    /// The calls.
    pub listing: Listing,
    /// Interval between two polls of a kind.
    pub interval: Duration,
    /// Acts on notices.
    pub interrupter: Arc<Interrupter>,
    /// Counts the instances whose checks fail.
    pub brake: Arc<RepairBrake>,
    /// EC2's newest answers: changes, blocks and checks.
    pub answers: [Mutex<Vec<Notice>>; 3],
}

impl Source for Ec2 {
    fn rounds(&self) -> BoxStream<'_, Round> {
        let offers = |now| self.listed().into_iter().filter_map(|notice| self.offer(notice, now)).collect();
        each_minute(&self.interrupter).map(move |now| Round::Offers(offers(now))).boxed()
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
        Some(Offer { node, notice, message, origin: Origin::Ec2, standing })
    }

    /// Keeps the answers current. Each question has its own loop, so that a permission missing for one doesn't stop the others. Never ends.
    pub(super) async fn poll(&self) {
        let Self { listing, interval, interrupter, answers: [changes, blocks, checks], .. } = self;
        let now = || interrupter.clock.now();
        join3(
            self.repeat(NoticeKind::ScheduledChange, *interval, changes, || listing.changes(now())),
            self.repeat(NoticeKind::CapacityReservation, MAX_BLOCK_INTERVAL.min(*interval), blocks, || {
                self.blocks(now())
            }),
            self.repeat(NoticeKind::StatusCheck, *interval, checks, || self.checks(now())),
        )
        .await;
    }

    async fn repeat<F: Future<Output = Result<Vec<Notice>, AwsError>>>(
        &self,
        kind: NoticeKind,
        interval: Duration,
        answer: &Mutex<Vec<Notice>>,
        ask: impl Fn() -> F,
    ) {
        let Interrupter { policies, facts, .. } = &*self.interrupter;
        if policies.iter().all(|(_, policy)| policy.actions.of(kind) == Action::Ignore) {
            return pending().await;
        }
        let mut backoff = Backoff::new(FIRST_RETRY.min(interval), interval);
        let mut reported: Option<Category> = None;
        loop {
            let wait = match ask().await {
                Ok(notices) => {
                    *answer.lock() = notices;
                    reported = None;
                    backoff.reset();
                    random::jittered(interval, 0.9..1.0)
                }
                Err(error) => {
                    let category = error.category;
                    // Once: a missing permission would be reported for ever.
                    if reported.replace(category) != Some(category) {
                        facts.emit(&Fact::PollFailed { category, error: &error });
                    }
                    if category == Category::Denied { interval } else { backoff.step() }
                }
            };
            sleep(wait).await;
        }
    }

    /// Returns the failing checks, and the withdrawals of those that pass.
    async fn checks(&self, now: Timestamp) -> Result<Vec<Notice>, AwsError> {
        let mut checks = self.listing.status_checks(now).await.inspect_err(|_| self.brake.checked(None))?;
        let passing = passing_checks(&self.interrupter.index.marked(), &checks, now);
        self.brake.checked(Some(std::mem::take(&mut checks.failing)));
        Ok([checks.notices, passing].concat())
    }

    /// Returns the notices of the blocks that end, including those for which the next poll might be too late.
    async fn blocks(&self, now: Timestamp) -> Result<Vec<Notice>, AwsError> {
        let until = now.checked_add(self.interval * 2).unwrap_or(now);
        let mut notices = Vec::new();
        for block in self.listing.ending_blocks(now, until).await? {
            notices.extend(block.notices(self.interrupter.owner.in_reservation(&block.reservation).await?));
        }
        Ok(notices)
    }
}
