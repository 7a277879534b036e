use super::*;
use crate::fact::{Action, DrainOutcome, HeartbeatResult, NodeRef, NoticeKind, NoticeOutcome, NoticeRef, PodRef, Wait};

fn history() -> History {
    History::new(Clock::showing("2026-11-23T10:00:00Z".parse().unwrap()), "replica", false)
}

fn about<'a>(instance: &'a str, node: &'a str, message: &'a str) -> NoticeRef<'a> {
    NoticeRef { kind: NoticeKind::AsgTerminate, instance, node: Some(node), message }
}

/// Notes facts about one interruption whose names are as long as they can be.
fn note_worst(history: &History, number: usize, long: &str) {
    let (instance, node) = (format!("i-{number:017x}"), format!("{number}{long}"));
    let message = format!("{number}{long}");
    let about = about(&instance, &node, &message);
    let on = NodeRef { node: &node, uid: &node, instance: &instance };
    let until = Duration::from_mins(2);
    history.note(&Fact::NoticeBegun {
        about,
        action: Action::Drain,
        until: Some(until),
        hard: true,
        again: false,
        pool: None,
    });
    history.note(&Fact::WaitBegun { about, on: Some(on), wait: Wait::Volumes, reason: long, at_most: until });
    history.note(&Fact::DrainBegun { on, pods: 9, left_alone: 9, until, hard: true });
    for pod in 0..20 {
        let name = format!("{pod}{long}");
        let pod = PodRef { namespace: long, name: &name, uid: &name };
        history.note(&Fact::PodBlocked { on, pod, by: long, until, hard: true });
    }
    history.note(&Fact::Heartbeat { about, result: HeartbeatResult::Failed(Category::Throttled), error: Some(&long) });
}

fn end(history: &History, number: usize, long: &str, outcome: NoticeOutcome) {
    let (instance, node) = (format!("i-{number:017x}"), format!("{number}{long}"));
    let message = format!("{number}{long}");
    let on = NodeRef { node: &node, uid: &node, instance: &instance };
    let took = Duration::from_secs(9);
    let (outcome_of_drain, left) = (DrainOutcome::Blocked, Duration::ZERO);
    history.note(&Fact::DrainEnded {
        on,
        outcome: outcome_of_drain,
        gone: 1,
        took,
        left,
        hard: true,
        report: &long,
        come_back: 0,
        has_condition: false,
    });
    history.note(&Fact::NoticeEnded { about: about(&instance, &node, &message), outcome, took, waited: long });
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_whatever_comes() {
    let history = history();
    let long = "ü".repeat(5_000);
    for number in 0..9_000 {
        note_worst(&history, number, &long);
        let inner = history.inner.lock();
        assert!(inner.state.size() <= MAX_BYTES, "after {number}");
        if number % 1000 == 0 {
            inner.state.check();
        }
    }
    let kept = history.report(Since::Ever, 0).0.interruptions.len();
    assert!((4_000..9_000).contains(&kept), "{kept} interruptions fit");
    for number in 0..9_000 {
        end(&history, number, &long, NoticeOutcome::Blocked);
        if number % 1000 == 0 {
            history.inner.lock().state.check();
        }
    }
    let inner = history.inner.lock();
    inner.state.check();
    assert_eq!(inner.state.running(), 0);
    drop(inner);
    let report = history.report(Since::Ever, 0).0;
    let storm = &report.storms[0];
    assert_eq!((storm.failures.len(), storm.notices), (20, 9_000));
    assert_eq!(report.interruptions.len(), 0, "the storm is one entry");
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_not_named_are_counted() {
    let history = history();
    note_worst(&history, 1, "x");
    let row = || history.report(Since::Ever, 0).0.interruptions.remove(0).drains.remove(0);
    let before = row();
    assert!(before.blocked.len() > 1, "{before:?}");
    assert_eq!(before.blocked.len() + before.blocked_more, 20);
    let on = NodeRef { node: "1x", uid: "1x", instance: "i-00000000000000001" };
    for pod in 0..20 {
        let name = format!("{pod}x");
        history.note(&Fact::PodUnblocked { on, pod: PodRef { namespace: "x", name: &name, uid: &name } });
    }
    assert_eq!((row().blocked.len(), row().blocked_more), (0, 0));
}

/// A reader that was away too long is told, and asks for everything.
#[tokio::test(start_paused = true)]
async fn changes_are_known_for_a_while() {
    let history = history();
    let (_, early) = history.report(Since::Ever, 0);
    for number in 0..6_000 {
        note_worst(&history, number, "x");
        end(&history, number, "x", NoticeOutcome::Drained);
    }
    assert!(!history.is_known(early));
    assert!(history.is_known(history.revision()));
    assert!(!history.is_known(history.revision() + 1), "of another process");
}

#[tokio::test(start_paused = true)]
async fn the_newest_time_of_a_moved_deadline_is_shown() {
    let history = history();
    note_worst(&history, 1, "x");
    let on = NodeRef { node: "1x", uid: "1x", instance: "i-00000000000000001" };
    history.note(&Fact::DrainDeadlineMoved { on, until: Duration::from_mins(10), hard: false });
    history.note(&Fact::DrainAbandoned { on });
    let drain = history.report(Since::Ever, 0).0.interruptions.remove(0).drains.remove(0);
    assert_eq!((drain.deadline, drain.hard), ("2026-11-23T10:10:00Z".parse().unwrap(), false));
    assert_eq!(drain.outcome.as_deref(), Some("abandoned"));
}

/// What has ended is as small as what runs.
#[tokio::test(start_paused = true)]
async fn an_ended_interruption_is_bounded_too() {
    let history = history();
    let long = "ü".repeat(5_000);
    note_worst(&history, 1, &long);
    end(&history, 1, &long, NoticeOutcome::Blocked);
    history.inner.lock().state.check();
    assert_eq!(history.report(Since::Ever, 0).0.interruptions.len(), 1);
}

fn begin_drain(history: &History, n: usize) {
    let (instance, node, message) = (format!("i-{n}"), format!("node-{n}"), format!("m-{n}"));
    let about = about(&instance, &node, &message);
    let until = Some(Duration::from_mins(2));
    history.note(&Fact::NoticeBegun { about, action: Action::Drain, until, hard: true, again: false, pool: None });
    let on = NodeRef { node: &node, uid: &node, instance: &instance };
    history.note(&Fact::DrainBegun { on, pods: 9, left_alone: 0, until: Duration::from_mins(2), hard: true });
}

#[tokio::test(start_paused = true)]
async fn all_goes_as_it_should_is_not_said_of_what_fails() {
    let history = history();
    history.note(&Fact::Ready);
    begin_drain(&history, 1);
    let (a, long) = (about("i-1", "node-1", "m-1"), "the API server says no");
    for _ in 0..30 {
        history.note(&Fact::Heartbeat {
            about: a,
            result: HeartbeatResult::Failed(Category::Denied),
            error: Some(&long),
        });
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let (report, _) = history.report(Since::Ever, 0);
    assert!(report.interruptions[0].problem.is_some());
    assert!(
        !report.health.text.contains("All goes as it should"),
        "{} / {:?}",
        report.health.text,
        report.interruptions[0].problem
    );
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_ended_badly_while_its_notice_runs_has_trouble() {
    let history = history();
    history.note(&Fact::Ready);
    begin_drain(&history, 1);
    let on = NodeRef { node: "node-1", uid: "node-1", instance: "i-1" };
    let took = Duration::from_mins(2);
    history.note(&Fact::DrainEnded {
        on,
        outcome: DrainOutcome::Blocked,
        gone: 1,
        took,
        left: Duration::ZERO,
        hard: true,
        report: &"1 of 9 pods gone",
        come_back: 0,
        has_condition: false,
    });
    let (report, _) = history.report(Since::Ever, 0);
    assert!(!report.health.text.contains("All goes as it should"), "{}", report.health.text);
}

#[tokio::test(start_paused = true)]
async fn all_failures_of_the_last_hour_are_counted() {
    let history = history();
    history.note(&Fact::Ready);
    for n in 0..150 {
        begin_drain(&history, n);
    }
    for n in 0..150 {
        let (instance, node, message) = (format!("i-{n}"), format!("node-{n}"), format!("m-{n}"));
        let about = about(&instance, &node, &message);
        history.note(&Fact::NoticeEnded {
            about,
            outcome: NoticeOutcome::Blocked,
            took: Duration::from_secs(9),
            waited: "",
        });
    }
    let (report, _) = history.report(Since::Ever, 0);
    assert!(report.health.text.starts_with("150 interruptions failed"), "{}", report.health.text);
    assert_eq!(report.day.failed.iter().sum::<u32>(), 150);
}

#[tokio::test(start_paused = true)]
async fn the_first_line_counts_the_drains_of_all_replicas() {
    let (one, two) = (history(), history());
    one.note(&Fact::Ready);
    two.note(&Fact::Ready);
    begin_drain(&one, 1);
    for n in 2..7 {
        begin_drain(&two, n);
    }
    let (mut all, _) = one.report(Since::Ever, 0);
    all.add(two.report(Since::Ever, 0).0);
    assert_eq!(all.interruptions.len(), 6);
    assert_eq!(all.health.text, "6 nodes are being drained. All goes as it should.");
}

#[tokio::test(start_paused = true)]
async fn all_is_not_well_if_a_replica_is_silent() {
    let one = history();
    one.note(&Fact::Ready);
    let (mut all, _) = one.report(Since::Ever, 0);
    all.add_silent("10.0.0.2:8081", "no answer within 2s");
    assert_eq!(all.health.text, "1 of 2 replicas does not answer. What they hold is not shown.");
    assert_eq!(all.health.state, report::State::Unready);
}

#[tokio::test(start_paused = true)]
async fn counts_of_a_hostile_replica_do_not_overflow() {
    let one = history();
    let (mut all, _) = one.report(Since::Ever, 0);
    let mut other = all.clone();
    all.day.notices.iter_mut().for_each(|it| *it = 1);
    other.day.notices.iter_mut().for_each(|it| *it = u32::MAX);
    all.add(other);
    assert_eq!(all.day.notices[0], u32::MAX);
}
