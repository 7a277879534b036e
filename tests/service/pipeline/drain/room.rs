//! Room for the pods that are left: the grace period of one that is gone puts off no end, and nobody is cut because another has gone
//! (operators of message brokers give their pods a week).

use crate::drains::{CRITICAL, add, end_of, ended, held, pod, terminate};
use crate::harness::{Stage, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::By;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const WEEK: Duration = s(604_800);

/// The default of a hook's drain: 15 minutes.
const DEFAULT: u64 = 900;

/// The default of a hook's drain, and the longest room for a grace period.
const LONGEST: u64 = DEFAULT + 7200;

/// Returns a world of one node with the pod `held`, whose budget allows no eviction, and the pod `queue` with a grace period of a week,
/// which takes this long to stop.
fn with_queue(held_grace: Duration, takes: Option<Duration>) -> Stage {
    let stage = held(held_grace);
    stage.world.kube.add_pod(pod("queue").grace(WEEK).stops_in(takes));
    stage
}

/// Returns when the action was completed.
fn completed_at(stage: &Stage, token: &str) -> Duration {
    stage.completed_once(token);
    stage.action(token).completions[0].0
}

/// Collects the lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn with(&self, part: &str) -> Vec<String> {
        let all = self.0.lock();
        String::from_utf8_lossy(&all).lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_that_a_pod_has_had_puts_off_no_end() {
    let stage = with_queue(s(30), Some(s(60)));
    let replica = stage.start(&[]).await;
    let token = terminate(&stage, "hook", s(300));
    sleep(s(890)).await;
    assert!(stage.has_pod("held") && !stage.has_pod("queue"), "{:?}", ended(&stage));
    stage.until_handled(s(45)).await;
    // 15 minutes, and the grace period of the pod that is left; 2 s for its removal.
    assert_eq!((end_of(&stage, "held").by, end_of(&stage, "held").grace), (By::Delete, Some(30)));
    assert_eq!(end_of(&stage, "held").at.as_secs(), DEFAULT - 2);
    assert!((s(DEFAULT + 28)..=s(DEFAULT + 30)).contains(&completed_at(&stage, &token)), "{}", stage.story());
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_adds_two_hours_at_most_and_the_log_says_how_to_give_it_more() {
    let lines = Lines::default();
    let log = lines.clone();
    let _log = tracing::subscriber::set_default(
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone()).finish(),
    );
    let stage = with_queue(s(30), None);
    let replica = stage.start(&[]).await;
    let token = terminate(&stage, "hook", s(300));
    sleep(s(1)).await;
    let warnings = lines.with("the pod's grace period does not fit into the drain's time");
    let [warning] = &*warnings else { panic!("{warnings:?}") };
    for part in ["WARN", "default/queue", "2h 15m", "--drain-timeout asg-terminate"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    sleep(s(LONGEST - 5)).await;
    assert!(stage.has_pod("queue"));
    stage.until_handled(s(6)).await;
    assert!(!stage.has_pod("queue"));
    assert_eq!((end_of(&stage, "queue").by, end_of(&stage, "queue").grace), (By::Eviction, Some(8098)));
    assert!((s(LONGEST - 2)..=s(LONGEST)).contains(&completed_at(&stage, &token)), "{}", stage.story());
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// Two message brokers on nodes that go together: the budget keeps one of them, for as long as it keeps any other pod.
#[tokio::test(start_paused = true)]
async fn a_budget_holds_a_pod_with_a_week_of_grace_as_long_as_any_other() {
    let stage = held(WEEK);
    let replica = stage.start(&[]).await;
    let token = terminate(&stage, "hook", s(300));
    sleep(s(DEFAULT - 4)).await;
    assert!(stage.ends_of("held").is_empty(), "{:?}", ended(&stage));
    sleep(s(4)).await;
    let end = end_of(&stage, "held");
    assert_eq!((end.at.as_secs(), end.by, end.grace), (DEFAULT - 2, By::Delete, Some(7200)));
    stage.until_handled(s(7205)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// The kubelet needs some seconds for a pod that has used its whole grace period, and one that hangs is given up as such.
#[tokio::test(start_paused = true)]
async fn a_drain_leaves_time_for_the_end_of_a_long_grace_period() {
    for (pod, outcome, over) in [
        (pod("db").grace(s(1800)).stops_in(s(1799)), "drained", 1799..1802),
        (pod("db").grace(s(1800)).hangs(), "stuck", 1800 + 300..1800 + 900 + 30),
    ] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(pod);
        let replica = stage.start(&["--complete-after", "5m"]).await;
        let token = terminate(&stage, "hook", s(300));
        stage.until_handled(s(3300)).await;
        replica.ended_once("asg-terminate", outcome);
        let waits = if outcome == "drained" { 300 } else { 0 };
        let completed = completed_at(&stage, &token).as_secs();
        assert!((over.start + waits..over.end + waits).contains(&completed), "{completed}");
        stage.rest(&[&replica]).await;
    }
}

/// Somebody has bound a pod to the node long after the drain's own time, when the long pod stops.
#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_late_has_its_grace_period() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(pod("queue").grace(WEEK).stops_in(s(2400)));
    let replica = stage.start(&[]).await;
    let token = terminate(&stage, "hook", s(300));
    sleep(s(2399)).await;
    add(&stage, "late", s(300));
    stage.until_handled(s(310)).await;
    let end = end_of(&stage, "late");
    assert_eq!((end.by, end.grace), (By::Eviction, None), "{:?}", ended(&stage));
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// The end moves nearer when the pod is gone for which it was put off, but not into the grace period of another.
#[tokio::test(start_paused = true)]
async fn a_pod_has_its_whole_grace_period_when_another_goes_late() {
    let stage = with_queue(s(600), Some(s(2400)));
    let replica = stage.start(&[]).await;
    let token = terminate(&stage, "hook", s(300));
    sleep(s(2409)).await;
    assert!(stage.ends_of("held").is_empty(), "{:?}", ended(&stage));
    sleep(s(2)).await;
    let end = end_of(&stage, "held");
    assert_eq!((end.at.as_secs(), end.by, end.grace), (2410, By::Delete, Some(600)));
    sleep(s(597)).await;
    assert!(stage.has_pod("held") && stage.results(&token).is_empty());
    stage.until_handled(s(5)).await;
    assert_eq!(stage.ends_of("held").len(), 1, "its grace period is not shortened");
    assert!((s(3010)..=s(3012)).contains(&completed_at(&stage, &token)), "{}", stage.story());
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_holds_for_a_quarter_of_an_hour_however_short_the_hook_unless_the_user_says_less() {
    // With a time that the user has chosen, the grace period lies within that time, less the margin.
    for (flags, deleted_at) in [(&[][..], DEFAULT - 2), (&["--drain-timeout", "asg-terminate=300s"], 270 - 30 - 2)] {
        let stage = held(s(30));
        let replica = stage.start(flags).await;
        let token = terminate(&stage, "hook", s(300));
        stage.until_handled(s(935)).await;
        assert_eq!(ended(&stage), [("held".to_owned(), deleted_at, Some(30), By::Delete)], "{flags:?}");
        stage.completed_once(&token);
        replica.ended_once("asg-terminate", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// An ordinary pod is blocked, and the end comes nearer: the critical pod has its share of what is left, and both have their grace
/// periods.
#[tokio::test(start_paused = true)]
async fn tiers_share_what_is_left_when_the_end_has_come_nearer() {
    let stage = with_queue(s(600), Some(s(60)));
    stage.world.kube.add_pod(pod("dns").priority(CRITICAL).grace(s(300)).stops_in(None));
    let replica = stage.start(&[]).await;
    let token = terminate(&stage, "hook", s(300));
    sleep(s(700)).await;
    assert!(stage.ends_of("dns").is_empty() && stage.ends_of("held").is_empty(), "{:?}", ended(&stage));
    stage.until_handled(s(805)).await;
    let (web, dns) = (end_of(&stage, "held"), end_of(&stage, "dns"));
    assert_eq!((web.at.as_secs(), web.by, web.grace), (DEFAULT - 2, By::Delete, Some(600)));
    assert_eq!((dns.by, dns.grace), (By::Eviction, None), "its own");
    // Half of the 25 minutes, or of those that were left when the end came nearer.
    assert!((s(750)..s(785)).contains(&dns.at), "{dns:?}");
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// An ordinary pod stops by itself some time after the one for which the end was put off.
#[tokio::test(start_paused = true)]
async fn critical_pods_follow_ordinary_ones_when_the_end_has_come_nearer() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(pod("queue").grace(WEEK).stops_in(s(2400)));
    stage.world.kube.add_pod(pod("slow").grace(s(3000)).stops_in(s(2500)));
    stage.world.kube.add_pod(pod("dns").priority(CRITICAL).grace(s(300)).stops_in(None));
    let replica = stage.start(&[]).await;
    let token = terminate(&stage, "hook", s(300));
    stage.until_handled(s(2805)).await;
    assert_eq!(
        ended(&stage),
        [
            ("queue".to_owned(), 0, Some(8098), By::Eviction),
            ("slow".to_owned(), 0, None, By::Eviction),
            ("dns".to_owned(), 2500, None, By::Eviction),
        ],
        "{}",
        stage.story()
    );
    assert!((s(2800)..=s(2802)).contains(&completed_at(&stage, &token)), "{}", stage.story());
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// The API server is away while the long pod stops: the end moves by that time, and not for the pod that is gone then.
#[tokio::test(start_paused = true)]
async fn an_absence_of_the_api_server_keeps_no_room_for_a_pod_that_is_gone() {
    let stage = with_queue(s(30), Some(s(60)));
    let replica = stage.start(&[]).await;
    let token = terminate(&stage, "hook", s(300));
    sleep(s(20)).await;
    for operation in ["patch nodes", "get nodes", "list pods", "create pods/eviction", "delete pods"] {
        stage.world.faults.add(Rule::on(operation, Fault::Status(503)));
    }
    sleep(s(20)).await;
    stage.world.faults.clear();
    stage.until_handled(s(935)).await;
    let end = end_of(&stage, "held");
    assert!((s(DEFAULT - 2 + 12)..=s(DEFAULT - 2 + 25)).contains(&end.at), "{end:?}");
    assert_eq!((end.by, end.grace), (By::Delete, Some(30)));
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// Two replicas know of each other's hooks by their marks.
#[tokio::test(start_paused = true)]
async fn replicas_put_off_no_end_for_each_other_when_the_pod_is_gone() {
    let one = with_queue(s(30), Some(s(60)));
    let other = one.with_own_queue();
    let (first, second) = (one.start(&[]).await, other.start(&[]).await);
    let tokens = [terminate(&one, "a", s(300)), terminate(&other, "b", s(300))];
    one.until_handled(s(935)).await;
    other.until_handled(s(5)).await;
    let mut deletions: Vec<_> = ended(&one).into_iter().filter(|(.., by)| *by == By::Delete).collect();
    deletions.dedup();
    assert_eq!(deletions, [("held".to_owned(), DEFAULT - 2, Some(30), By::Delete)]);
    for token in &tokens {
        one.completed_once(token);
    }
    one.rest(&[&first, &second]).await;
}

/// A replica takes over when only the long pod keeps the hook, and later that pod goes.
#[tokio::test(start_paused = true)]
async fn a_takeover_keeps_the_room_and_ends_it_with_its_pod() {
    let stage = with_queue(s(600), Some(s(2400)));
    let first = stage.start(&[]).await;
    let token = terminate(&stage, "hook", s(300));
    sleep(s(1800)).await;
    let second = stage.start(&[]).await;
    first.kill().await;
    sleep(s(595)).await;
    assert!(stage.ends_of("held").is_empty(), "{:?}", ended(&stage));
    sleep(s(17)).await;
    let end = end_of(&stage, "held");
    assert_eq!((end.at.as_secs(), end.by, end.grace), (2410, By::Delete, Some(600)));
    stage.until_handled(s(605)).await;
    assert_eq!((stage.ends_of("held").len(), stage.ends_of("queue").len()), (1, 1), "{:?}", ended(&stage));
    stage.completed_once(&token);
    second.ended_once("asg-terminate", "drained");
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_cuts_no_grace_period() {
    let stage = Stage::new(1, 0);
    add(&stage, "queue", WEEK);
    let replica = stage.start(&["--on", "rebalance=drain"]).await;
    stage.rebalance(0);
    sleep(s(3595)).await;
    assert!(!stage.world.aws.sqs.is_empty(), "it is patient for an hour");
    stage.until_handled(s(10)).await;
    replica.ended_once("rebalance", "timed-out");
    stage.rest(&[&replica]).await;
    sleep(s(LONGEST)).await;
    let end = end_of(&stage, "queue");
    assert_eq!((end.by, end.grace, stage.has_pod("queue")), (By::Eviction, None, true));
}
