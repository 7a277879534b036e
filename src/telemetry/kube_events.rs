//! Facts as Kubernetes Events, and as the Node's condition `EbbtideDraining`.
//!
//! [`Events`] takes note and returns at once; [`Teller`], a task, writes. An undisturbed drain costs no call. One that is blocked
//! for [`BLOCKED_FOR`] costs five at most: an Event on its Node and one on a pod, the condition, and at its end a patch for the
//! Node's Event and one for the condition. What can't be written is left out and told as a fact: nothing ever waits for it.

mod story;
mod words;
mod write;

use crate::clients::gate::{Category, Gate, KubeError};
use crate::fact::{DrainOutcome, Fact, Facts, OnNode, OnPod, Subscriber};
use crate::runtime::clock::Clock;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use kube::Client;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use story::{Drain, Phase, Written};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use words::{LONGEST, bounded};
use write::Writer;

/// A drain that is blocked for less is not worth an Event: most budgets let a pod go as soon as another is ready.
pub const BLOCKED_FOR: Duration = Duration::from_secs(5);

/// So many facts wait at most for the task: a thousand nodes blocked at once, by a few pods each.
const BUFFER: usize = 4096;

/// So many Nodes are told of at once, the calls of each one after the other: fewer than the gate has places at its narrowest, so that a server which does not answer Events
/// holds no drain up.
const AT_ONCE: usize = 3;

/// Of so many drains is something known at most.
const MOST_DRAINS: usize = 10_000;

/// Of a drain whose end was dropped nothing need be known so long after its deadline.
const STALE: Duration = Duration::from_mins(10);

/// What was dropped is told once in so long.
const DROPS_TOLD_EVERY: Duration = Duration::from_mins(1);

/// That something is denied is told once in so long: it stays so until somebody changes a role.
const DENIALS_TOLD_EVERY: Duration = Duration::from_mins(10);

/// What holds a pod back is said in so many bytes at most.
const LONGEST_BY: usize = 256;

/// Which drains are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those that are blocked.
    Blocked,
    /// All.
    All,
}

/// An object that is told of. Only a pod has a namespace.
#[derive(Debug)]
struct Subject {
    kind: &'static str,
    namespace: Box<str>,
    name: Box<str>,
    uid: Arc<str>,
}

/// A pod that is held back, and by what.
#[derive(Debug)]
struct Held {
    pod: Subject,
    by: Box<str>,
}

/// A fact that matters here, in values of its own. `node` alone is a UID.
#[derive(Debug)]
enum News {
    Begun { node: Subject, pods: usize, until: Until },
    Blocked { node: Subject, held: Held, until: Until, at: Instant },
    Unblocked { node: Arc<str>, pod: Arc<str> },
    Ended { node: Subject, end: DrainEnd, report: String, told: bool },
    Left { node: Arc<str> },
}

/// The end of a drain, as its Node's condition names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainEnd {
    /// The drain itself ended.
    Of(DrainOutcome),
    /// The marks were removed from the Node, so that nothing drains it any more.
    Released,
    /// The Node or the settings exclude the Node now.
    Excluded,
}

impl DrainEnd {
    /// The end as a fixed word.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Of(outcome) => outcome.as_str(),
            Self::Released => "released",
            Self::Excluded => "excluded",
        }
    }
}

/// A drain's deadline.
#[derive(Clone, Copy, Debug)]
struct Until {
    at: Instant,
    hard: bool,
}

/// Takes note of what is to be told.
#[derive(Debug)]
pub struct Events {
    news: mpsc::Sender<News>,
    dropped: Arc<AtomicUsize>,
}

/// What [`Events`] has noted and nobody has written yet.
#[derive(Debug)]
pub struct Noted {
    news: mpsc::Receiver<News>,
    dropped: Arc<AtomicUsize>,
}

/// A subscriber, and what its [`Teller`] reads.
#[must_use]
pub fn events() -> (Events, Noted) {
    let (sender, news) = mpsc::channel(BUFFER);
    let dropped = Arc::new(AtomicUsize::new(0));
    (Events { news: sender, dropped: Arc::clone(&dropped) }, Noted { news, dropped })
}

impl Subscriber for Events {
    fn note(&self, fact: &Fact<'_>) {
        let Some(news) = News::of(fact) else { return };
        if self.news.try_send(news).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl News {
    fn of(fact: &Fact<'_>) -> Option<Self> {
        let now = Instant::now();
        let until = |left: Duration, hard: bool| Until { at: now.checked_add(left).unwrap_or(now), hard };
        Some(match *fact {
            Fact::DrainBegun { on, pods, until: left, hard, .. } => {
                Self::Begun { node: Subject::node(on), pods, until: until(left, hard) }
            }
            Fact::PodBlocked { on, pod, by, until: left, hard } => {
                let held = Held { pod: Subject::pod(pod), by: bounded(&by, LONGEST_BY).into() };
                Self::Blocked { node: Subject::node(on), held, until: until(left, hard), at: now }
            }
            Fact::PodUnblocked { on, pod } => Self::Unblocked { node: on.uid.into(), pod: pod.uid.into() },
            Fact::DrainEnded { on, outcome, report, told, .. } => Self::Ended {
                node: Subject::node(on),
                end: DrainEnd::Of(outcome),
                report: bounded(report, LONGEST),
                told,
            },
            // A drain that nobody brought to its end has left the condition as it was.
            Fact::NodeReleased { on, told: true, .. } => Self::Ended {
                node: Subject::node(on),
                end: DrainEnd::Released,
                report: "no notice holds the node any more: its marks were taken back".to_owned(),
                told: true,
            },
            Fact::DrainForgone { on } => Self::Ended {
                node: Subject::node(on),
                end: DrainEnd::Excluded,
                report: "the node is to be left alone, as it says itself, or the settings do".to_owned(),
                told: true,
            },
            Fact::DrainLeft { on } => Self::Left { node: on.uid.into() },
            _ => return None,
        })
    }
}

impl Subject {
    fn node(OnNode { node, uid, .. }: OnNode<'_>) -> Self {
        Self { kind: "Node", namespace: "".into(), name: node.into(), uid: uid.into() }
    }

    fn pod(OnPod { namespace, name, uid }: OnPod<'_>) -> Self {
        Self { kind: "Pod", namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }
}

/// Whose story was told, what is written since, and what could not be.
type Told = (Arc<str>, Written, Vec<KubeError>);

/// Writes Events and conditions, for as long as the service lives.
pub struct Teller {
    scope: Scope,
    noted: Noted,
    facts: Facts,
    clock: Clock,
    writer: Arc<Writer>,
    /// By the Node's UID.
    drains: HashMap<Arc<str>, Drain>,
    /// Who may have been blocked for long enough, and when; in that order.
    timers: VecDeque<(Instant, Arc<str>)>,
    /// Of whom there is something to be told.
    queue: VecDeque<Arc<str>>,
    telling: FuturesUnordered<BoxFuture<'static, Told>>,
    drops_told_at: Option<Instant>,
    denials_told_at: HashMap<&'static str, Instant>,
}

impl Teller {
    /// Tells what was `noted`, through `client` and `gate`. `instance` is this process's name in Events.
    #[must_use]
    pub fn new(
        scope: Scope,
        noted: Noted,
        (client, gate): (Client, Gate),
        clock: Clock,
        facts: Facts,
        instance: String,
    ) -> Self {
        let writer = Arc::new(Writer::new(client, gate, clock, facts.clone(), instance));
        Self {
            scope,
            noted,
            facts,
            clock,
            writer,
            drains: HashMap::new(),
            timers: VecDeque::new(),
            queue: VecDeque::new(),
            telling: FuturesUnordered::new(),
            drops_told_at: None,
            denials_told_at: HashMap::new(),
        }
    }

    /// Tells, until nobody notes any more; or, once `stop` is cancelled, until what was noted by then is told.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            self.begin();
            self.tell_drops();
            let idle = self.telling.is_empty() && self.noted.news.is_empty();
            let timer = self.timers.front().map(|(at, _)| *at);
            let drops = self.drops_told_at.map(|at| at + DROPS_TOLD_EVERY).filter(|_| self.noted.has_dropped());
            tokio::select! {
                biased;
                Some((node, written, failed)) = self.telling.next() => self.told(&node, written, &failed),
                news = self.noted.news.recv() => match news {
                    Some(news) => self.take(news),
                    None => return,
                },
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => self.timer(),
                () = sleep_until(drops.unwrap_or_else(Instant::now)), if drops.is_some() => {}
                () = stop.cancelled(), if idle => return,
            }
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Begun { node, pods, until } => {
                let all = self.scope == Scope::All;
                let Some(drain) = self.drain_of(node, until, all) else { return };
                drain.begins(all.then_some(pods), until);
                let uid = Arc::clone(&drain.node.uid);
                self.queue.push_back(uid);
            }
            News::Blocked { node, held, until, at } => {
                let Some(drain) = self.drain_of(node, until, true) else { return };
                if let Some(due) = drain.holds(held, until, at) {
                    let uid = Arc::clone(&drain.node.uid);
                    self.timers.push_back((due, uid));
                }
            }
            News::Unblocked { node, pod } => {
                if let Some(drain) = self.drains.get_mut(&node) {
                    drain.lets_go(&pod);
                }
            }
            News::Ended { node, end, report, told } => {
                let wanted = told || self.scope == Scope::All;
                let until = Until { at: Instant::now(), hard: true };
                let Some(drain) = self.drain_of(node, until, wanted) else { return };
                drain.ends(end, report, told);
                let uid = Arc::clone(&drain.node.uid);
                self.queue.push_back(uid);
            }
            News::Left { node } => {
                let Some(drain) = self.drains.get_mut(&node) else { return };
                drain.is_left();
                self.forget(&node);
            }
        }
    }

    /// The drain of a Node; one that is not known only where it is `wanted`, and unless too many are known already.
    fn drain_of(&mut self, node: Subject, until: Until, wanted: bool) -> Option<&mut Drain> {
        if !wanted {
            return self.drains.get_mut(&node.uid);
        }
        if !self.drains.contains_key(&node.uid) && self.drains.len() >= MOST_DRAINS {
            let now = Instant::now();
            self.drains.retain(|_, drain| drain.written.is_none() || drain.until.at + STALE > now);
            if self.drains.len() >= MOST_DRAINS {
                self.noted.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        Some(self.drains.entry(Arc::clone(&node.uid)).or_insert_with(|| Drain::new(node, until)))
    }

    /// Somebody may have been blocked for long enough.
    fn timer(&mut self) {
        let Some((at, node)) = self.timers.pop_front() else { return };
        if self.drains.get_mut(&node).is_some_and(|drain| drain.is_due(at)) {
            self.queue.push_back(node);
        }
    }

    /// Begins to tell as much as may be told at once.
    fn begin(&mut self) {
        while self.telling.len() < AT_ONCE {
            let Some(node) = self.queue.pop_front() else { return };
            let Some(drain) = self.drains.get_mut(&node) else { continue };
            let Some((story, written)) = drain.story(self.scope, self.clock) else {
                self.forget(&node);
                continue;
            };
            let (writer, subject) = (Arc::clone(&self.writer), Arc::clone(&drain.node));
            let tell = async move {
                let (written, failed) = writer.tell(&subject, story, written).await;
                (node, written, failed)
            };
            self.telling.push(tell.boxed());
        }
    }

    fn told(&mut self, node: &Arc<str>, written: Written, failed: &[KubeError]) {
        for error in failed {
            self.failed(error);
        }
        let Some(drain) = self.drains.get_mut(node) else { return };
        drain.written = Some(written);
        if drain.has_more() {
            self.queue.push_back(Arc::clone(node));
        } else {
            self.forget(node);
        }
    }

    /// Drops what is known of a drain that is over, unless a story of it is still being told.
    fn forget(&mut self, node: &Arc<str>) {
        if self.drains.get(node).is_some_and(|drain| drain.phase != Phase::Runs && drain.written.is_some()) {
            self.drains.remove(node);
        }
    }

    fn failed(&mut self, error: &KubeError) {
        let now = Instant::now();
        if error.category == Category::Denied {
            let told_at = self.denials_told_at.get(error.resource);
            if told_at.is_some_and(|at| now - *at < DENIALS_TOLD_EVERY) {
                return;
            }
            self.denials_told_at.insert(error.resource, now);
        }
        self.facts.emit(&Fact::TellingFailed { category: error.category, error });
    }

    fn tell_drops(&mut self) {
        let now = Instant::now();
        if !self.noted.has_dropped() || self.drops_told_at.is_some_and(|at| now - at < DROPS_TOLD_EVERY) {
            return;
        }
        self.drops_told_at = Some(now);
        let dropped = self.noted.dropped.swap(0, Ordering::Relaxed);
        self.facts.emit(&Fact::TellingDropped { count: dropped });
    }
}

impl Noted {
    fn has_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tokio::time::timeout;

    const ON: OnNode<'_> = OnNode { node: "node-1", uid: "u-1", instance: "i-1" };

    /// Keeps what was told of failures.
    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Subscriber for Heard {
        fn note(&self, fact: &Fact<'_>) {
            let text = match fact {
                Fact::TellingFailed { category, error } => format!("{category}: {error}"),
                Fact::TellingDropped { count } => format!("{count} dropped"),
                _ => return,
            };
            self.0.lock().unwrap().push(text);
        }
    }

    fn teller(noted: Noted, heard: Arc<Heard>) -> Teller {
        let facts = Facts::to(vec![heard]);
        let world = ebbtide_sim::World::new(1);
        let calls = (world.kube.client(), Gate::new(facts.clone()));
        Teller::new(Scope::Blocked, noted, calls, Clock::showing(world.clock.now()), facts, "test".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_is_dropped_and_counted_once_a_minute() {
        let (events, noted) = events();
        let overflow = |by: usize| (0..BUFFER + by).for_each(|_| events.note(&Fact::DrainLeft { on: ON }));
        overflow(7);
        // What is of no interest takes no room, and is not counted.
        events.note(&Fact::Ready);
        let heard = Arc::new(Heard::default());
        let running = teller(noted, Arc::clone(&heard)).run(CancellationToken::new());
        tokio::pin!(running);
        let told = || heard.0.lock().unwrap().clone();
        assert!(timeout(Duration::from_secs(1), running.as_mut()).await.is_err());
        assert_eq!(told(), ["7 dropped"]);
        overflow(3);
        assert!(timeout(Duration::from_secs(58), running.as_mut()).await.is_err());
        assert_eq!(told().len(), 1, "not yet again");
        assert!(timeout(Duration::from_secs(2), running.as_mut()).await.is_err());
        assert_eq!(told()[1], "3 dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn drains_whose_end_was_dropped_are_forgotten_in_time() {
        let (_, noted) = events();
        let mut teller = teller(noted, Arc::default());
        let block = |teller: &mut Teller, n: usize| {
            let uid = n.to_string();
            let pod = OnPod { namespace: "default", name: "web", uid: "p" };
            let on = OnNode { uid: &uid, ..ON };
            let fact = Fact::PodBlocked { on, pod, by: "budget", until: Duration::from_mins(2), hard: true };
            teller.take(News::of(&fact).unwrap());
        };
        (0..=MOST_DRAINS).for_each(|n| block(&mut teller, n));
        assert_eq!((teller.drains.len(), teller.noted.dropped.load(Ordering::Relaxed)), (MOST_DRAINS, 1));
        tokio::time::advance(Duration::from_mins(12)).await;
        block(&mut teller, MOST_DRAINS);
        assert_eq!((teller.drains.len(), teller.noted.dropped.load(Ordering::Relaxed)), (1, 1));
        let uid = MOST_DRAINS.to_string();
        teller.take(News::of(&Fact::DrainLeft { on: OnNode { uid: &uid, ..ON } }).unwrap());
        assert!(teller.drains.is_empty(), "nothing is known of what was left");
    }

    #[test]
    fn every_subscriber_hears() {
        let (first, second) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
        let facts = Facts::to(vec![Arc::clone(&first) as _]);
        let both = facts.with(Arc::clone(&second) as _);
        facts.emit(&Fact::TellingFailed { category: Category::Denied, error: &"1" });
        both.emit(&Fact::TellingFailed { category: Category::Invalid, error: &"2" });
        assert_eq!(*first.0.lock().unwrap(), ["denied: 1", "invalid: 2"]);
        assert_eq!(*second.0.lock().unwrap(), ["invalid: 2"]);
    }
}
