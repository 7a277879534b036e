//! The order of calls, and the limit.

use super::places::{CUT_INTERVAL, FIRST_BACKOFF, Waiters};
use super::*;
use crate::clients::gate::{AwsClass, Class};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use tokio::sync::mpsc;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const MOMENT: Duration = Duration::from_millis(1);

fn narrow<C: CallClass>(limit: f64) -> Admitter {
    let admitter = Admitter::new::<C>();
    admitter.0.places.lock().limit = limit;
    admitter
}

/// Whether nobody has a place, waits for one, or is counted.
fn is_empty(admitter: &Admitter) -> bool {
    let state = admitter.0.places.lock();
    state.in_flight == 0
        && state.waiting.iter().all(Waiters::is_empty)
        && admitter.0.calls.iter().all(|calls| *calls.borrow() == 0)
}

fn polled<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    use futures_util::FutureExt;
    future.now_or_never()
}

/// Fills a gate of one place, lets calls of the given classes and deadlines queue, then frees place after place and tells
/// who came in which order.
async fn order<C: CallClass>(calls: &[(C, Duration)]) -> Vec<(C, Duration)> {
    let admitter = narrow::<C>(1.0);
    let begun = Instant::now();
    let held = admitter.enter(0, begun).await;
    let (told, mut order) = mpsc::unbounded_channel();
    let waiting = calls.iter().map(|(class, by)| {
        let (admitter, told) = (admitter.clone(), told.clone());
        async move {
            let _turn = admitter.admit(*class, begun + *by).await;
            told.send((*class, *by)).unwrap();
        }
    });
    let mut all = Box::pin(futures_util::future::join_all(waiting));
    assert!(polled(&mut all).is_none());
    drop(held);
    all.await;
    assert!(is_empty(&admitter));
    order.close();
    let mut seen = Vec::new();
    while let Some(call) = order.recv().await {
        seen.push(call);
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn cordons_go_before_lists_and_evictions() {
    let calls = [Class::Background, Class::Evict, Class::List, Class::Cordon, Class::Urgent, Class::Cordon];
    let seen = order(&calls.map(|class| (class, s(1)))).await;
    let seen: Vec<_> = seen.into_iter().map(|(class, _)| class).collect();
    let expected = [Class::Urgent, Class::Cordon, Class::Cordon, Class::List, Class::Background];
    assert_eq!(seen.iter().filter(|class| **class != Class::Evict).copied().collect::<Vec<_>>(), expected);
    assert!(
        seen.iter().position(|class| *class == Class::Evict) > seen.iter().rposition(|class| *class == Class::Cordon)
    );
}

#[tokio::test(start_paused = true)]
async fn completions_go_before_heartbeats_and_those_that_expire_first_before_others() {
    let seen = order(&[
        (AwsClass::Heartbeat, s(300)),
        (AwsClass::Heartbeat, s(20)),
        (AwsClass::Complete, s(900)),
        (AwsClass::Heartbeat, s(30)),
        (AwsClass::Complete, s(500)),
        (AwsClass::Describe, s(5)),
    ])
    .await;
    let expected = [
        (AwsClass::Describe, s(5)),
        (AwsClass::Complete, s(500)),
        (AwsClass::Complete, s(900)),
        (AwsClass::Heartbeat, s(20)),
        (AwsClass::Heartbeat, s(30)),
        (AwsClass::Heartbeat, s(300)),
    ];
    assert_eq!(seen, expected);
}

#[tokio::test(start_paused = true)]
async fn no_class_starves() {
    let mut calls = vec![(Class::Cordon, s(1)); 20];
    calls.push((Class::List, s(1)));
    let seen = order(&calls).await;
    let turn = seen.iter().position(|(class, _)| *class == Class::List);
    assert_eq!(turn, Some(MAX_PASSED_OVER as usize), "{seen:?}");
}

/// Lists that hang hold all common places, and urgent calls come without end.
#[tokio::test(start_paused = true)]
async fn no_privileged_class_starves_in_the_reserve() {
    let admitter = narrow::<Class>(4.0);
    let by = Instant::now() + s(60);
    let mut hang = Vec::new();
    for _ in 0..4 {
        hang.push(admitter.admit(Class::List, by).await);
    }
    let mut held = Some(admitter.admit(Class::Urgent, by).await);
    let mut cordon = Box::pin(admitter.admit(Class::Cordon, by));
    assert!(polled(&mut cordon).is_none());
    for _ in 0..=MAX_PASSED_OVER {
        let mut next = Box::pin(admitter.admit(Class::Urgent, by));
        assert!(polled(&mut next).is_none());
        drop(held.take());
        if polled(&mut cordon).is_some() {
            return;
        }
        held = polled(&mut next);
    }
    panic!("the cordon has no place");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_waits_for_cordons_that_queue_or_are_in_flight() {
    let admitter = narrow::<Class>(2.0);
    let by = Instant::now() + s(60);
    let first = admitter.admit(Class::Cordon, by).await;
    let list = admitter.admit(Class::List, by).await;
    let mut second = Box::pin(admitter.admit(Class::Cordon, by));
    assert!(polled(&mut second).is_none());
    let mut evict = Box::pin(admitter.admit(Class::Evict, by));
    assert!(polled(&mut evict).is_none());
    drop(first);
    let second = polled(&mut second).expect("the cordon has the place");
    drop(list);
    assert!(polled(&mut evict).is_none(), "there is room, but a cordon is in flight");
    assert!(polled(&mut Box::pin(admitter.admit(Class::Urgent, by))).is_some(), "what is urgent waits for nobody");
    drop(second);
    assert!(polled(&mut evict).is_some());
    drop(evict);
    assert!(is_empty(&admitter));
}

/// Counts how often a future was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_waits_for_cordons_sleeps_until_there_are_none() {
    let admitter = narrow::<Class>(2.0);
    let by = Instant::now() + s(60);
    let mut cordon = admitter.admit(Class::Cordon, by).await;
    let woken = Arc::new(Woken::default());
    let mut evict = pin!(admitter.admit(Class::Evict, by));
    let waker = Waker::from(Arc::clone(&woken));
    let mut poll = || evict.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    // There is always one: a storm's notices come one by one, and thousands of evictions may wait.
    for _ in 0..100 {
        cordon = admitter.admit(Class::Cordon, by).await;
    }
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    drop(cordon);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(poll().is_ready());
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_queues_gives_way_to_a_cordon_that_comes_later() {
    let admitter = narrow::<Class>(2.0);
    let by = Instant::now() + s(60);
    let lists = [admitter.admit(Class::List, by).await, admitter.admit(Class::List, by).await];
    let mut evict = Box::pin(admitter.admit(Class::Evict, by));
    assert!(polled(&mut evict).is_none());
    let mut cordon = Box::pin(admitter.admit(Class::Cordon, by));
    assert!(polled(&mut cordon).is_none());
    drop(lists);
    assert!(polled(&mut evict).is_none(), "it had a place, and gave it back");
    drop(polled(&mut cordon).expect("the cordon has a place"));
    assert!(polled(&mut evict).is_some());
    drop(evict);
    assert!(is_empty(&admitter));
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_hangs_stops_no_eviction_for_longer_than_five_seconds() {
    let admitter = narrow::<Class>(2.0);
    let by = Instant::now() + s(60);
    let _hangs = admitter.admit(Class::Cordon, by).await;
    let mut evict = Box::pin(admitter.admit(Class::Evict, by));
    assert!(polled(&mut evict).is_none());
    tokio::time::advance(s(5) - MOMENT).await;
    assert!(polled(&mut evict).is_none());
    tokio::time::advance(MOMENT).await;
    assert!(polled(&mut evict).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_throttled_call_waits_as_it_was_asked_to_within_its_time() {
    for (asked, by, waits) in [(s(7), s(60), s(7)), (s(7), s(8), s(2)), (s(3600), s(7200), s(10))] {
        let admitter = narrow::<AwsClass>(1.0);
        let by = Instant::now() + by;
        let throttled = admitter.admit(AwsClass::Heartbeat, by).await;
        let mut answered = Box::pin(throttled.finish(Some(Category::Throttled), Some(asked)));
        assert!(polled(&mut answered).is_none());
        let mut next = Box::pin(admitter.admit(AwsClass::Complete, by));
        tokio::time::advance(waits.checked_sub(MOMENT).unwrap()).await;
        assert!(polled(&mut answered).is_none() && polled(&mut next).is_none(), "{asked:?} {waits:?}");
        tokio::time::advance(MOMENT).await;
        assert!(polled(&mut answered).is_some() && polled(&mut next).is_some(), "{asked:?} {waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_to_call_the_api_server_again_holds_nobody_up() {
    let admitter = narrow::<Class>(1.0);
    let by = Instant::now() + s(60);
    let throttled = admitter.admit(Class::Evict, by).await;
    let mut answered = Box::pin(throttled.finish(Some(Category::Throttled), Some(s(7))));
    assert!(polled(&mut answered).is_none());
    assert!(polled(&mut Box::pin(admitter.admit(Class::List, by))).is_some());
}

#[tokio::test(start_paused = true)]
async fn what_presses_has_places_that_others_cannot_take() {
    let admitter = narrow::<Class>(8.0);
    let by = Instant::now() + s(60);
    let mut hang = Vec::new();
    for _ in 0..8 {
        hang.push(admitter.admit(Class::Evict, by).await);
    }
    let mut list = Box::pin(admitter.admit(Class::List, by));
    assert!(polled(&mut list).is_none());
    let urgent = polled(&mut Box::pin(admitter.admit(Class::Urgent, by))).expect("a place beyond the limit");
    let cordon = polled(&mut Box::pin(admitter.admit(Class::Cordon, by))).expect("another");
    let mut late = Box::pin(admitter.admit(Class::Urgent, by));
    assert!(polled(&mut late).is_none(), "not without end");
    drop(urgent);
    drop(polled(&mut late).expect("the next that presses"));
    drop(cordon);
    assert!(polled(&mut list).is_none(), "the others still fill their places");
    hang.pop();
    assert!(polled(&mut list).is_some());
}

#[tokio::test(start_paused = true)]
async fn where_nobody_says_how_long_the_time_doubles_until_a_call_is_answered_well() {
    let admitter = Admitter::new::<AwsClass>();
    let by = Instant::now() + s(3600);
    let kept = async |failed| {
        admitter.0.places.lock().limit = 2.0;
        // Two at a time: the second says nothing new.
        let turns = [admitter.admit(AwsClass::Heartbeat, by).await, admitter.admit(AwsClass::Heartbeat, by).await];
        tokio::time::advance(MOMENT).await;
        let begun = Instant::now();
        let [one, other] = turns.map(|turn| turn.finish(failed, None));
        tokio::join!(one, other);
        begun.elapsed()
    };
    let throttled = Some(Category::Throttled);
    for least in [250, 500, 1000, 2000, 2000, 2000].map(|step| Duration::from_millis(step / 2)) {
        let kept = kept(throttled).await;
        assert!(kept >= least && kept <= least * 2 + MOMENT, "{kept:?} {least:?}");
    }
    assert_eq!(kept(Some(Category::Unavailable)).await, Duration::ZERO);
    assert!(kept(throttled).await >= AwsClass::MAX_BACKOFF / 2, "a failure is no sign that it is over");
    assert_eq!(kept(None).await, Duration::ZERO);
    assert!(kept(throttled).await <= FIRST_BACKOFF + MOMENT);
}

#[tokio::test(start_paused = true)]
async fn callers_who_give_up_leave_no_hole() {
    let admitter = narrow::<Class>(1.0);
    let by = Instant::now() + s(60);
    let held = admitter.admit(Class::List, by).await;
    let mut given_up = Box::pin(admitter.admit(Class::Urgent, by));
    let mut patient = Box::pin(admitter.admit(Class::List, by));
    assert!(polled(&mut given_up).is_none() && polled(&mut patient).is_none());
    // While it waits, …
    drop(given_up);
    drop(held);
    let turn = polled(&mut patient).expect("the place is free");
    // … when it was given a place and has not looked, …
    let mut given_up = Box::pin(admitter.admit(Class::Urgent, by));
    assert!(polled(&mut given_up).is_none());
    drop(turn);
    assert_eq!(admitter.0.places.lock().in_flight, 1);
    drop(given_up);
    assert!(is_empty(&admitter));
    // … while it lets others go first, …
    let cordon = admitter.admit(Class::Cordon, by).await;
    let mut given_up = Box::pin(admitter.admit(Class::Evict, by));
    assert!(polled(&mut given_up).is_none());
    drop((given_up, cordon));
    assert!(is_empty(&admitter));
    // … and while it keeps its place.
    let turn = admitter.admit(Class::Cordon, by).await;
    let mut given_up = Box::pin(turn.finish(Some(Category::Throttled), None));
    assert!(polled(&mut given_up).is_none());
    assert!(!is_empty(&admitter));
    drop(given_up);
    assert!(is_empty(&admitter));
}

#[tokio::test(start_paused = true)]
async fn overload_narrows_the_gate_once_a_second_and_success_widens_it() {
    let admitter = narrow::<Class>(9.0);
    // Its deadline has come, so it keeps its place no longer.
    let answer = async |failed| admitter.admit(Class::List, Instant::now()).await.finish(failed, None).await;
    let limit = || admitter.0.places.lock().limit;
    answer(Some(Category::Throttled)).await;
    answer(Some(Category::Throttled)).await;
    assert!((limit() - 6.0).abs() < f64::EPSILON);
    tokio::time::advance(CUT_INTERVAL).await;
    answer(Some(Category::Throttled)).await;
    assert!((limit() - 4.0).abs() < f64::EPSILON);
    let mut full = Vec::new();
    for _ in 0..4 {
        full.push(admitter.admit(Class::List, Instant::now()).await);
    }
    full.pop().expect("four were taken").finish(None, None).await;
    assert!((limit() - 4.25).abs() < f64::EPSILON);
}
