use super::*;
use crate::telemetry::notify::sample;
use tokio::time::advance;

const NOTICE: NotificationPhase = NotificationPhase::Notice;

/// A notification about a node.
fn about(node: &str, phase: NotificationPhase) -> Notification {
    let sample = sample::all().into_iter().find(|sample| sample.phase == phase).unwrap();
    Notification { id: format!("{node}/{phase}"), key: node.to_owned(), ..sample }
}

fn about_storm(phase: NotificationPhase) -> Notification {
    let sample = sample::all().into_iter().find(|sample| sample.phase == phase && sample.storm.is_some()).unwrap();
    Notification { id: format!("storm/{phase}"), key: "storm".to_owned(), ..sample }
}

/// Takes all, and checks that each that was folded is counted.
fn drained(queue: &mut Queue, folded: usize) -> Vec<String> {
    let all: Vec<Notification> = std::iter::from_fn(|| queue.pop()).collect();
    assert_eq!(all.iter().flat_map(|one| one.folded.values()).sum::<usize>(), folded);
    all.into_iter().map(|one| one.id).collect()
}

#[tokio::test(start_paused = true)]
async fn a_receiver_gets_ten_requests_in_any_minute() {
    let mut queue = Queue::new(Format::Json);
    assert_eq!(queue.due(), None);
    let begun = Instant::now();
    let mut times = Vec::new();
    for n in 0..40 {
        // Some pauses, some bursts.
        advance(Duration::from_secs(n % 7)).await;
        queue.push(about(&n.to_string(), Failed));
        advance(queue.due().unwrap().saturating_duration_since(Instant::now())).await;
        queue.pop().unwrap();
        queue.count_request();
        times.push(Instant::now());
    }
    for (n, at) in times.iter().enumerate() {
        let within = times[n..].iter().filter(|other| **other < *at + WINDOW).count();
        assert!(within <= MAX_REQUESTS, "{within}");
    }
    assert!(begun.elapsed() < 4 * WINDOW, "and no fewer than it may: {:?}", begun.elapsed());
}

#[tokio::test]
async fn what_matters_least_is_folded_first_and_all_is_counted() {
    let mut queue = Queue::new(Format::Json);
    let mut folded = Vec::new();
    folded.extend(queue.push(about_storm(Done)));
    for n in 0..5 {
        let node = n.to_string();
        folded.extend([NOTICE, Blocked, Failed].into_iter().flat_map(|phase| queue.push(about(&node, phase))));
    }
    assert_eq!(folded, [NOTICE; 5].into_iter().chain([Blocked]).collect::<Vec<_>>()[..], "the oldest of the least");
    let expected =
        ["storm/done", "0/failed", "1/blocked", "1/failed", "2/blocked", "2/failed", "3/blocked", "3/failed"];
    assert_eq!(drained(&mut queue, 6)[..8], expected, "failures first, but no node's before its earlier ones");
}

#[tokio::test]
async fn only_failures_wait_for_long() {
    let mut queue = Queue::new(Format::Json);
    let folded: usize = (0..1000).map(|n| queue.push(about(&n.to_string(), Failed)).len()).sum();
    assert_eq!((folded, queue.len()), (1000 - MAX_KEPT, MAX_KEPT));
    assert_eq!(queue.push(about("x", NOTICE)), [NOTICE]);
    let first = queue.pop().unwrap();
    assert_eq!((first.id.as_str(), &first.folded["failed"], &first.folded["notice"]), ("744/failed", &744, &1));
    let text = " Left out before this, because of the limit of 10 a minute: 744 failed, 1 notice.";
    assert!(first.text.ends_with(text), "{}", first.text);
    // The receiver did not take it.
    queue.count_again(&first.folded);
    assert_eq!(queue.pop().unwrap().folded["failed"], 744);
    assert!(queue.pop().unwrap().folded.is_empty(), "each is counted once");
}

#[tokio::test]
async fn an_alert_that_was_raised_is_always_resolved() {
    let mut queue = Queue::new(Format::PagerDuty);
    for n in 0..100 {
        assert!(queue.push(about(&n.to_string(), Done)).is_empty());
    }
    for n in 100..120 {
        queue.push(about(&n.to_string(), NOTICE));
    }
    // What waits of an alert that ends is outdated, and so is the end of an alert that is raised again.
    assert_eq!(queue.push(about("115", Done)), [NOTICE]);
    assert_eq!(queue.push(about("7", Failed)), [Done]);
    assert!(queue.push(about_storm(Done)).is_empty());
    let all = drained(&mut queue, 12);
    assert_eq!(all[..2], ["7/failed", "110/notice"], "alerts first");
    assert_eq!(all[10..13], ["storm/done", "0/done", "1/done"]);
    assert_eq!(all.len(), 10 + 101, "no other end was folded");
    for n in 0..1000 {
        queue.push(about(&n.to_string(), Done));
    }
    assert_eq!(queue.len(), MAX_KEPT, "memory is bounded");
}
