//! Delivers a message: joins the interruptions of its notices, keeps its lease, and consumes its receipt.
//!
//! A message is deleted only when each of its notices has ended. All else (shutdown, SQS's time limit, a panic) is one path: the message
//! leaves its interruptions, which stops those that no other message holds, and is released. A lost lease ends only the claim on the
//! deletion: the work continues, and the next receiver of the message joins it, here or at another replica.

mod confirmations;
mod shifts;
mod unclaimed;

pub use unclaimed::Unclaimed;

use super::interruptions::{Interruptions, NoticeCopy};
use crate::clients::gate::{AwsError, Backoff};
use crate::fact::{Category, Fact, Facts, MessageRelease};
use crate::pipeline::event;
use crate::pipeline::event::{CapacityBlock, IgnoreReason, Notice, Notices, Parsed};
use crate::pipeline::interruption::{Interrupter, NoticeOutcome};
use crate::pipeline::queue::{Message, Queue, VISIBILITY_TIMEOUT};
use crate::runtime::task::TaskError;
use futures_util::future::join;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

/// Delay of a message's release after a panic: the next receiver may panic too, until SQS moves the message to the dead-letter queue.
pub(super) const CRASH_DELAY: Duration = Duration::from_secs(10);

/// Maximum number of notices of one message that are worked on at once. A message of 1 MiB names tens of thousands, and a notice takes some
/// kilobytes.
const MAX_AT_ONCE: usize = 1_000;

/// Maximum number of message notices that are worked on at once, besides the first of each message. Each takes as much memory as a held
/// message.
pub const MAX_NOTICES: usize = 4_000;

/// Maximum number of characters that are logged of a malformed message.
const MAX_EXCERPT: usize = 200;

/// The end of a message whose lease is still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Delete it: all its notices have ended.
    Delete,
    /// Release it to another receiver, after this time.
    Release(Duration),
}

/// Returns the verdict on a message from the ends of its notices.
pub fn verdict(ends: impl IntoIterator<Item = Result<NoticeOutcome, TaskError>>) -> Verdict {
    ends.into_iter().fold(Verdict::Delete, |verdict, end| match (verdict, end) {
        (_, Err(_) | Ok(NoticeOutcome::Crashed)) => Verdict::Release(CRASH_DELAY),
        (Verdict::Delete, Ok(NoticeOutcome::HandedOver)) => Verdict::Release(Duration::ZERO),
        (verdict, Ok(_)) => verdict,
    })
}

/// Takes messages to their end.
pub struct Deliverer {
    /// The queue that the messages came from.
    pub queue: Queue,
    /// The interruptions of the messages' notices, and of those from other sources.
    pub interruptions: Arc<Interruptions>,
    /// Acts on notices.
    pub interrupter: Arc<Interrupter>,
    /// Receives facts.
    pub facts: Facts,
    /// Messages that are worked on without a claim.
    pub unclaimed: Unclaimed,
    /// Whether sources other than messages may announce the same notice.
    pub has_other_sources: bool,
    /// A permit for each notice that may be acted on: [`MAX_NOTICES`].
    pub permits: Semaphore,
}

/// The copies of a message's notices.
#[derive(Default)]
struct Copies {
    /// Those that have not ended, by their number.
    open: Mutex<BTreeMap<usize, Arc<NoticeCopy>>>,
    /// The notices that a user ended by an uncordon.
    called_off: Mutex<Vec<Arc<Notice>>>,
    /// Cancelled when the claim on the message is lost.
    lost: CancellationToken,
}

/// The first event that ends the work on a message.
enum DeliveryEnd {
    Verdict(Verdict),
    /// The message was held for almost as long as SQS allows.
    TooOld,
    /// The lease was lost, and so was that of a later receive, which holds the interruptions.
    Superseded,
    Shutdown,
}

impl Deliverer {
    /// Takes one message to its end: deleted, released, or left to become visible by itself.
    pub async fn deliver(&self, mut message: Message, stop: CancellationToken) {
        if stop.is_cancelled() {
            return self.release(message, Duration::ZERO, MessageRelease::Shutdown).await;
        }
        let mut parsed = event::parse(&message.body);
        let mut count = 0;
        match &mut parsed {
            Parsed::Notices(notices) => {
                if let Some(error) = notices.take_unreadable() {
                    self.facts.emit(&Fact::EntityUnreadable { message: &message.id, error: &error });
                }
                if !message.from_role {
                    notices.relayed();
                }
                count = notices.size_hint().0;
            }
            Parsed::Block(_) | Parsed::Shift(_) => {}
            Parsed::Ignored(why) => {
                self.facts.emit(&Fact::MessageIgnored { message: &message.id, reason: *why });
                self.delete(message).await;
                return;
            }
            Parsed::Malformed(error) => {
                self.facts.emit(&Fact::MessageMalformed {
                    message: &message.id,
                    reason: error.reason,
                    error,
                    excerpt: &excerpt(&message.body),
                });
                self.delete(message).await;
                return;
            }
        }
        // The message is held while a drain runs; its text is not needed any more.
        message.drop_body(count);
        let id = Arc::clone(&message.id);
        if let Some(sent) = message.sent {
            parsed.not_after(sent);
        }
        let copies = Copies::default();
        let visibility = watch::Sender::new(VISIBILITY_TIMEOUT);
        let pace = visibility.subscribe();
        let end = tokio::select! {
            biased;
            () = stop.cancelled() => DeliveryEnd::Shutdown,
            verdict = async {
                let notices = match parsed {
                    Parsed::Notices(notices) => notices,
                    Parsed::Block(block) => Box::pin(self.notices_of(&block, &id)).await,
                    Parsed::Shift(shift) => {
                        Box::pin(self.note_shift(&shift, &id)).await;
                        Notices::default()
                    }
                    Parsed::Ignored(_) | Parsed::Malformed(_) => Notices::default(),
                };
                self.all_ended(notices, &id, &copies, &visibility).await
            } => DeliveryEnd::Verdict(verdict),
            end = unclaimed::hold(self, &mut message.lease, &id, pace, &copies.lost) => end,
        };
        // Before the message is released, so that the interruptions that no other message holds, and their heartbeats, have stopped when
        // the next receiver starts.
        let open = copies.open.into_inner();
        let open = open.into_values().filter_map(Arc::into_inner);
        futures_util::future::join_all(open.map(NoticeCopy::leave)).await;
        let called_off = copies.called_off.into_inner();
        match (end, copies.lost.is_cancelled()) {
            (DeliveryEnd::Verdict(Verdict::Delete), true) => {
                Box::pin(self.note_called_off(&id, called_off)).await;
                // If that fails, the next receiver finds nothing to do.
                let _ = Box::pin(self.queue.delete_late(message)).await;
            }
            (DeliveryEnd::Verdict(Verdict::Delete), false) => {
                if !self.delete(message).await {
                    Box::pin(self.note_called_off(&id, called_off)).await;
                }
            }
            (DeliveryEnd::Superseded, _) | (_, true) => {}
            (DeliveryEnd::Verdict(Verdict::Release(after)), _) => {
                self.release(message, after, MessageRelease::HandedOver).await;
            }
            (DeliveryEnd::Shutdown, _) => self.release(message, Duration::ZERO, MessageRelease::Shutdown).await,
            (DeliveryEnd::TooOld, _) => self.release(message, Duration::ZERO, MessageRelease::TooOld).await,
        }
    }

    /// Returns a notice for each instance of the block. Retries until EC2 answers, or the instances are terminated.
    async fn notices_of(&self, block: &CapacityBlock, message: &str) -> Notices {
        let Interrupter { clock, owner, .. } = &*self.interrupter;
        let by = clock.instant_of(block.terminates_at);
        let ask = || owner.in_reservation(&block.reservation);
        let failed = |error: &AwsError| {
            let (reservation, category) = (&*block.reservation, error.category);
            self.facts.emit(&Fact::ReservationUnknown { message, reservation, category, error });
            true
        };
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(20));
        let Ok(instances) = backoff.retry(Some(by), ask, failed).await else { return Notices::default() };
        if instances.is_empty() {
            self.facts.emit(&Fact::MessageIgnored { message, reason: IgnoreReason::EmptyReservation });
        }
        block.notices(instances)
    }

    /// Works on every notice until it has ended, and passes on the shortest visibility timeout that any of them needs. `copies` holds the
    /// notices in progress, so that they can be left in order.
    async fn all_ended(
        &self,
        notices: Notices,
        message: &Arc<str>,
        copies: &Copies,
        visibility: &watch::Sender<Duration>,
    ) -> Verdict {
        // Boxed, because the set of futures has room for one more than it holds.
        let ends = stream::iter(notices.enumerate()).map(|(number, notice)| {
            Box::pin(async move {
                // The first needs none: a message that names one instance must not wait for those that name thousands.
                let _permit = if number > 0 { self.permits.acquire().await.ok() } else { None };
                let polled =
                    Some(&notice).filter(|notice| self.has_other_sources && self.is_announced_first(notice)).cloned();
                let reported = self.has_other_sources.then(|| self.reported_before(&notice, message)).flatten();
                let copy = Arc::new(self.join_listed(notice, message));
                let lock = || copies.open.lock();
                lock().insert(number, Arc::clone(&copy));
                let end = async {
                    tokio::select! {
                        biased;
                        end = self.interruptions.ended(&copy) => end,
                        // The message's next receiver tries again.
                        () = pauses_after(&copy, &copies.lost) => Ok(NoticeOutcome::HandedOver),
                        () = pass_on(&copy, visibility) => pending().await,
                    }
                };
                let end = match reported {
                    Some(reported) => Box::pin(join(end, self.note_confirmation(reported, message))).await.0,
                    None => end.await,
                };
                if let (Some(notice), Ok(outcome)) = (polled, end) {
                    Box::pin(self.note_listed(&notice, message, outcome)).await;
                }
                lock().remove(&number);
                if let (Some(link), Ok(NoticeOutcome::Uncordoned)) = (copy.link(), end) {
                    let notice = Arc::clone(&link.notice.borrow());
                    copies.called_off.lock().push(notice);
                }
                end
            })
        });
        verdict(ends.buffer_unordered(MAX_AT_ONCE).collect::<Vec<_>>().await)
    }

    fn report_left(&self, message: &str, category: Category, error: &dyn std::fmt::Display) {
        self.facts.emit(&Fact::MessageLeft { message, category, error });
    }

    /// Deletes the message. Returns whether it is gone.
    async fn delete(&self, message: Message) -> bool {
        let id = Arc::clone(&message.id);
        // Boxed, like the release: most of the time a message is only held.
        let deleted = Box::pin(self.queue.delete(message)).await;
        match &deleted {
            Ok(()) => self.facts.emit(&Fact::MessageDeleted { message: &id }),
            Err(error) => self.report_left(&id, error.category, error),
        }
        deleted.is_ok()
    }

    async fn release(&self, message: Message, after: Duration, why: MessageRelease) {
        let id = Arc::clone(&message.id);
        match Box::pin(self.queue.release(message, after)).await {
            Ok(()) => self.facts.emit(&Fact::MessageReleased { message: &id, why }),
            Err(error) => self.report_left(&id, error.category, &error),
        }
    }
}

/// Waits until the claim on the message is lost while the work on the notice pauses after a failure.
async fn pauses_after(copy: &NoticeCopy, lost: &CancellationToken) {
    let Some(link) = copy.link() else { return pending().await };
    lost.cancelled().await;
    // The sender lives in the seat.
    let _ = link.pauses.subscribe().wait_for(|pauses| *pauses).await;
}

/// Passes on the visibility timeout that the notice needs, if it is shorter than the one before. Never ends.
async fn pass_on(copy: &NoticeCopy, visibility: &watch::Sender<Duration>) {
    let Some(link) = copy.link() else { return pending().await };
    let mut wanted = link.visibility_timeout.subscribe();
    loop {
        let timeout = *wanted.borrow_and_update();
        visibility.send_if_modified(|current| {
            let is_shorter = timeout < *current;
            *current = timeout.min(*current);
            is_shorter
        });
        // The sender lives in the seat.
        let _ = wanted.changed().await;
    }
}

/// The beginning of a body, on one line.
fn excerpt(body: &str) -> String {
    let mut excerpt: String = body.chars().take(MAX_EXCERPT).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if body.chars().nth(MAX_EXCERPT).is_some() {
        excerpt.push('…');
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_deleted_only_when_all_its_notices_have_ended() {
        use NoticeOutcome::{Blocked, Crashed, Drained, Failed, HandedOver, NotOurs};
        let table: [(&[Result<NoticeOutcome, TaskError>], Verdict); 7] = [
            (&[Ok(Drained)], Verdict::Delete),
            (&[Ok(Drained), Ok(NotOurs)], Verdict::Delete),
            (&[Ok(Blocked), Ok(Failed)], Verdict::Delete),
            (&[Ok(Drained), Ok(HandedOver)], Verdict::Release(Duration::ZERO)),
            (&[Ok(HandedOver), Ok(Drained)], Verdict::Release(Duration::ZERO)),
            (&[Ok(HandedOver), Ok(Crashed), Ok(Drained)], Verdict::Release(CRASH_DELAY)),
            (&[Err(TaskError::Panicked), Ok(HandedOver)], Verdict::Release(CRASH_DELAY)),
        ];
        for (ends, expected) in table {
            assert_eq!(verdict(ends.iter().copied()), expected, "{ends:?}");
        }
    }

    #[test]
    fn an_excerpt_is_bounded_and_on_one_line() {
        assert_eq!(excerpt("a\nb\u{0}c"), "a b c");
        assert_eq!(excerpt(&"ü".repeat(500)).chars().count(), MAX_EXCERPT + 1);
    }
}
