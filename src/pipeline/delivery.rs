//! What becomes of a message: joins its notices, keeps its lease meanwhile, and consumes its receipt.
//!
//! A message is deleted only when each of its notices has ended. Whatever else happens (shutdown, a lost lease, the end of the time
//! that SQS allows, a panic), is one path: its interruptions are left, which stops what nobody else holds, and it is released.

use crate::fact::{About, Category, Fact, Facts, MessageRelease};
use crate::pipeline::event;
use crate::pipeline::event::{Identity, Notice, Parsed};
use crate::pipeline::interruption::{Interrupter, Outcome, Seat, Shared, Slots};
use crate::pipeline::queue::{LeaseEnd, Message, Queue, VISIBILITY};
use crate::runtime::task::TaskError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// After a panic the message rests for so long, or the next receiver would panic at once, until the dead-letter queue has it.
const AFTER_CRASH: Duration = Duration::from_secs(10);

/// How much of an unreadable message is logged.
const EXCERPT: usize = 200;

/// A notice that has ended is remembered for so long: copies that come late are answered with what became of the first.
const REMEMBERED: Duration = Duration::from_mins(15);

/// A few hundred bytes each.
const MOST_REMEMBERED: usize = 8192;

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All its notices have ended.
    Delete,
    /// Somebody else goes on, after so long.
    Release(Duration),
}

/// The verdict on a message, from how its notices ended.
pub fn verdict(ends: impl IntoIterator<Item = Result<Outcome, TaskError>>) -> Verdict {
    ends.into_iter().fold(Verdict::Delete, |verdict, end| match (verdict, end) {
        (_, Err(_) | Ok(Outcome::Crashed)) => Verdict::Release(AFTER_CRASH),
        (Verdict::Delete, Ok(Outcome::HandedOver)) => Verdict::Release(Duration::ZERO),
        (verdict, Ok(_)) => verdict,
    })
}

/// The interruptions that run, one for each identity.
pub type Interruptions = Slots<Identity, Shared, Outcome>;

/// Takes messages to their end.
pub struct Deliverer {
    /// Where messages came from.
    pub queue: Queue,
    /// Where their notices go.
    pub interruptions: Interruptions,
    /// What acts on notices.
    pub interrupter: Arc<Interrupter>,
    /// Where facts go.
    pub facts: Facts,
    /// Notices that have ended.
    pub ended: Ended,
}

/// Notices that ended for good within the last minutes, each since its first copy ended.
#[derive(Debug, Default)]
pub struct Ended(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    outcomes: HashMap<Arc<Identity>, (Outcome, Instant)>,
    /// The same in the order of their times, for what is full must not be searched for each notice that ends.
    order: VecDeque<(Arc<Identity>, Instant)>,
}

impl Memory {
    /// Forgets what is old.
    fn sweep(&mut self, now: Instant) {
        while let Some((identity, _)) = self.order.pop_front_if(|(_, at)| now - *at >= REMEMBERED) {
            self.outcomes.remove(&identity);
        }
    }
}

impl Ended {
    fn get(&self, identity: &Identity) -> Option<Outcome> {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.outcomes.get(identity).filter(|(_, at)| at.elapsed() < REMEMBERED).map(|(outcome, _)| *outcome)
    }

    fn remember(&self, identity: &Identity, outcome: Outcome) {
        // What is another's costs no call to find out again, and what was given up has not ended.
        if matches!(outcome, Outcome::HandedOver | Outcome::Crashed | Outcome::NotOurs | Outcome::Ignored) {
            return;
        }
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        ended.sweep(now);
        // Copies that waited together end together, and are one notice.
        if ended.outcomes.len() < MOST_REMEMBERED && !ended.outcomes.contains_key(identity) {
            let identity = Arc::new(identity.clone());
            ended.order.push_back((Arc::clone(&identity), now));
            ended.outcomes.insert(identity, (outcome, now));
        }
    }
}

/// A notice's place in a message: being acted on, or ended before this copy came.
enum Place {
    Seat(Identity, Seat<Identity, Shared, Outcome>),
    Ended(Outcome),
}

/// Why the work on a message ended.
enum End {
    Verdict(Verdict),
    Lease(LeaseEnd),
    Shutdown,
}

impl Deliverer {
    /// Takes one message to its end: deleted, released, or left to become visible by itself.
    pub async fn deliver(&self, mut message: Message, stop: CancellationToken) {
        if stop.is_cancelled() {
            return self.release(message, Duration::ZERO, MessageRelease::Shutdown).await;
        }
        let notices = match event::parse(&message.body) {
            Parsed::Notices(notices) => notices,
            Parsed::Ignored(why) => {
                self.facts.emit(&Fact::MessageIgnored { message: &message.id, reason: why });
                return self.delete(message).await;
            }
            Parsed::Malformed(error) => {
                self.facts.emit(&Fact::MessageMalformed {
                    message: &message.id,
                    reason: error.reason,
                    error: &error,
                    excerpt: &excerpt(&message.body),
                });
                return self.delete(message).await;
            }
        };
        // It has said what it had to say, and is held for as long as a drain takes.
        message.body = String::new();
        let places: Vec<_> = notices.into_iter().map(|notice| self.join(notice, &message.id)).collect();
        let visibility = watch::Sender::new(VISIBILITY);
        let pace = visibility.subscribe();
        let end = tokio::select! {
            biased;
            () = stop.cancelled() => End::Shutdown,
            verdict = self.all_ended(&places, &visibility) => End::Verdict(verdict),
            end = message.lease.kept(&self.queue, &message.id, pace) => End::Lease(end),
        };
        // Before the message goes: what nobody else holds has stopped, heartbeats with it, when the next receiver begins.
        futures_util::future::join_all(places.into_iter().map(Place::leave)).await;
        match end {
            End::Verdict(Verdict::Delete) => self.delete(message).await,
            End::Verdict(Verdict::Release(after)) => self.release(message, after, MessageRelease::HandedOver).await,
            End::Shutdown => self.release(message, Duration::ZERO, MessageRelease::Shutdown).await,
            End::Lease(end) => {
                self.facts.emit(&Fact::MessageLeaseEnded { message: &message.id, why: end });
                if end == LeaseEnd::TooOld {
                    self.release(message, Duration::ZERO, MessageRelease::TooOld).await;
                }
            }
        }
    }

    fn join(&self, notice: Notice, message: &Arc<str>) -> Place {
        let ended = self.ended.get(&notice.identity);
        let notice = Arc::new(notice);
        if let Some(outcome) = ended {
            self.tell_joined(&notice, message);
            return Place::Ended(outcome);
        }
        if notice.is_test() {
            let (kind, instance) = (notice.kind(), notice.instance.as_str());
            self.facts.emit(&Fact::TestNotice { about: About { kind, instance, node: None, message } });
        }
        let (seat, joined) = self.interruptions.join(
            notice.identity.clone(),
            || Shared::new(VISIBILITY),
            |shared, stop| Arc::clone(&self.interrupter).act(Arc::clone(&notice), Arc::clone(message), shared, stop),
        );
        if notice.hook().is_some_and(|hook| hook.direct) {
            seat.shared().direct.store(true, Ordering::Release);
        }
        if joined {
            self.tell_joined(&notice, message);
        }
        Place::Seat(notice.identity.clone(), seat)
    }

    fn tell_joined(&self, notice: &Notice, message: &str) {
        let (kind, instance) = (notice.kind(), notice.instance.as_str());
        self.facts.emit(&Fact::NoticeJoined { about: About { kind, instance, node: None, message } });
    }

    /// Waits until every notice has ended; meanwhile the shortest visibility that any of them wants is passed on.
    async fn all_ended(&self, places: &[Place], visibility: &watch::Sender<Duration>) -> Verdict {
        let ends: FuturesUnordered<_> = places.iter().map(|place| self.ended(place, visibility)).collect();
        verdict(ends.collect::<Vec<_>>().await)
    }

    async fn ended(&self, place: &Place, visibility: &watch::Sender<Duration>) -> Result<Outcome, TaskError> {
        let (identity, seat) = match place {
            Place::Seat(identity, seat) => (identity, seat),
            Place::Ended(outcome) => return Ok(*outcome),
        };
        let mut pace = seat.shared().pace.subscribe();
        let ended = seat.ended();
        tokio::pin!(ended);
        loop {
            let wanted = *pace.borrow_and_update();
            visibility.send_if_modified(|current| {
                let shorter = wanted < *current;
                *current = wanted.min(*current);
                shorter
            });
            tokio::select! {
                biased;
                end = &mut ended => {
                    if let Ok(outcome) = end {
                        self.ended.remember(identity, outcome);
                    }
                    return end;
                }
                Ok(()) = pace.changed() => {}
            }
        }
    }

    fn tell_left(&self, message: &str, category: Category, error: &dyn std::fmt::Display) {
        self.facts.emit(&Fact::MessageLeft { message, category, error });
    }

    async fn delete(&self, message: Message) {
        let id = Arc::clone(&message.id);
        // Boxed, as what follows: for most of its time a message is held.
        match Box::pin(self.queue.delete(message)).await {
            Ok(()) => self.facts.emit(&Fact::MessageDeleted { message: &id }),
            Err(error) => self.tell_left(&id, error.category, &error),
        }
    }

    async fn release(&self, message: Message, after: Duration, why: MessageRelease) {
        let id = Arc::clone(&message.id);
        match Box::pin(self.queue.release(message, after)).await {
            Ok(()) => self.facts.emit(&Fact::MessageReleased { message: &id, why }),
            Err(error) => self.tell_left(&id, error.category, &error),
        }
    }
}

impl Place {
    async fn leave(self) {
        if let Self::Seat(_, seat) = self {
            seat.leave().await;
        }
    }
}

/// The beginning of a body, on one line.
fn excerpt(body: &str) -> String {
    let mut excerpt: String = body.chars().take(EXCERPT).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if body.chars().nth(EXCERPT).is_some() {
        excerpt.push('…');
    }
    excerpt
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[test]
    fn a_message_is_deleted_only_when_all_its_notices_have_ended() {
        use Outcome::{Blocked, Crashed, Drained, Failed, HandedOver, NotOurs};
        let table: [(&[Result<Outcome, TaskError>], Verdict); 7] = [
            (&[Ok(Drained)], Verdict::Delete),
            (&[Ok(Drained), Ok(NotOurs)], Verdict::Delete),
            (&[Ok(Blocked), Ok(Failed)], Verdict::Delete),
            (&[Ok(Drained), Ok(HandedOver)], Verdict::Release(Duration::ZERO)),
            (&[Ok(HandedOver), Ok(Drained)], Verdict::Release(Duration::ZERO)),
            (&[Ok(HandedOver), Ok(Crashed), Ok(Drained)], Verdict::Release(AFTER_CRASH)),
            (&[Err(TaskError::Panicked), Ok(HandedOver)], Verdict::Release(AFTER_CRASH)),
        ];
        for (ends, expected) in table {
            assert_eq!(verdict(ends.iter().copied()), expected, "{ends:?}");
        }
    }

    impl Ended {
        /// How many are remembered, and in how many places of the order.
        fn len(&self) -> (usize, usize) {
            let ended = self.0.lock().unwrap();
            (ended.outcomes.len(), ended.order.len())
        }
    }

    fn event(n: usize) -> Identity {
        Identity::Event(n.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn copies_that_end_are_remembered_once() {
        let ended = Ended::default();
        ended.remember(&event(0), Outcome::Drained);
        advance(REMEMBERED / 2).await;
        for _ in 0..3 {
            ended.remember(&event(0), Outcome::Drained);
        }
        assert_eq!(ended.len(), (1, 1));
        advance(REMEMBERED / 2).await;
        assert_eq!(ended.get(&event(0)), None, "its time runs from the first");
        ended.remember(&event(0), Outcome::Blocked);
        assert_eq!((ended.get(&event(0)), ended.len()), (Some(Outcome::Blocked), (1, 1)), "then it is new");
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_is_forgotten_first() {
        let ended = Ended::default();
        for n in 0..3 {
            ended.remember(&event(n), Outcome::Drained);
            advance(REMEMBERED / 4).await;
        }
        // It does not make the first any younger.
        ended.remember(&event(0), Outcome::Drained);
        advance(REMEMBERED / 4).await;
        ended.remember(&event(3), Outcome::Drained);
        let known = |ended: &Ended| (0..4).filter(|n| ended.get(&event(*n)).is_some()).collect::<Vec<_>>();
        assert_eq!((known(&ended), ended.len()), (vec![1, 2, 3], (3, 3)));
        advance(REMEMBERED / 4).await;
        ended.remember(&event(3), Outcome::Drained);
        assert_eq!((known(&ended), ended.len()), (vec![2, 3], (2, 2)));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_many_are_remembered() {
        let ended = Ended::default();
        for n in 0..=MOST_REMEMBERED {
            for _copy in 0..2 {
                ended.remember(&event(n), Outcome::Drained);
            }
        }
        assert_eq!(ended.len(), (MOST_REMEMBERED, MOST_REMEMBERED));
        assert_eq!((ended.get(&event(0)), ended.get(&event(MOST_REMEMBERED))), (Some(Outcome::Drained), None));
        advance(REMEMBERED).await;
        ended.remember(&event(MOST_REMEMBERED), Outcome::Drained);
        assert_eq!(ended.len(), (1, 1), "there is room again");
    }

    #[test]
    fn an_excerpt_is_bounded_and_on_one_line() {
        assert_eq!(excerpt("a\nb\u{0}c"), "a b c");
        assert_eq!(excerpt(&"ü".repeat(500)).chars().count(), EXCERPT + 1);
    }
}
