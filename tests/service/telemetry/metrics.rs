//! Metrics that the alerts and the dashboard read.

use crate::drains::blocked_pods;
use crate::harness::{Replica, Stage, s};
use ebbtide::fact::{Fact, Facts, HeldPod, NodeRef, PodRef, Subscriber};
use ebbtide::runtime::Tasks;
use ebbtide::telemetry::{Metrics, Rows};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

fn page(metrics: &Metrics) -> String {
    metrics.render(&Tasks::new(Facts::to(Vec::new())))
}

#[tokio::test(start_paused = true)]
async fn drains_are_counted_by_deadline_with_the_time_left() {
    let stage = Stage::new(2, 1);
    let replica = stage.start(&["--drain-timeout", "asg-terminate=100s"]).await;
    stage.spot_of_age(0, s(60));
    stage.terminate(1, s(600), Wrapping::Event);
    stage.until_handled(s(30)).await;
    stage.rest(&[&replica]).await;
    for deadline in ["hard", "soft"] {
        let drains = format!("ebbtide_drain_duration_seconds_count{{deadline=\"{deadline}\",outcome=\"drained\"}}");
        assert!((replica.metric(&drains) - 1.0).abs() < f64::EPSILON, "{}", page(&replica.metrics));
    }
    let left = |deadline| replica.metric(&format!("ebbtide_drain_time_left_seconds_sum{{deadline=\"{deadline}\"}}"));
    assert!((50.0..60.0).contains(&left("hard")), "{}", left("hard"));
    assert!((60.0..70.0).contains(&left("soft")), "{}", left("soft"));
    let cordon = |kind| replica.metric(&format!("ebbtide_cordon_delay_seconds_sum{{kind=\"{kind}\"}}"));
    assert!((60.0..62.0).contains(&cordon("spot")), "from AWS's time on: {}", cordon("spot"));
    assert!((0.0..2.0).contains(&cordon("asg-terminate")), "{}", cordon("asg-terminate"));
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_gives_up_early_counts_under_its_hard_deadline() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "30s"]).await;
    stage.spot(0);
    stage.until_handled(s(40)).await;
    stage.rest(&[&replica]).await;
    let missed = "ebbtide_drain_duration_seconds_count{deadline=\"hard\",outcome=\"blocked\"}";
    assert!((replica.metric(missed) - 1.0).abs() < f64::EPSILON, "{}", page(&replica.metrics));
    let left = replica.metric("ebbtide_drain_time_left_seconds_sum{deadline=\"hard\"}");
    assert!((85.0..=90.0).contains(&left), "until the node goes: {left}");
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_misses_a_hard_deadline_has_no_time_left() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on("node-0").named("stays").grace(s(300)).stops_in(None::<Duration>));
    stage.block(0);
    let replica = stage.start(&["--at-deadline", "leave"]).await;
    stage.spot(0);
    stage.until_handled(s(130)).await;
    stage.rest(&[&replica]).await;
    let missed = "ebbtide_drain_duration_seconds_count{deadline=\"hard\",outcome=\"blocked\"}";
    assert!((replica.metric(missed) - 1.0).abs() < f64::EPSILON, "{}", page(&replica.metrics));
    let nothing_left = "ebbtide_drain_time_left_seconds_bucket{deadline=\"hard\",le=\"0\"}";
    assert!((replica.metric(nothing_left) - 1.0).abs() < f64::EPSILON, "{}", page(&replica.metrics));
}

/// Returns the numbers of drains at risk, by their deadlines.
fn at_risk(replica: &Replica) -> String {
    ["hard", "soft"]
        .map(|deadline| {
            let at_risk = replica.metric(&format!("ebbtide_drains_at_risk{{deadline=\"{deadline}\"}}"));
            format!("{at_risk} {deadline}")
        })
        .join(", ")
}

#[tokio::test(start_paused = true)]
async fn a_blocked_spot_drain_is_at_risk_from_the_half_of_its_time_until_its_pod_is_deleted() {
    let stage = Stage::new(2, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.spot(1);
    sleep(s(59)).await;
    assert_eq!(at_risk(&replica), "0 hard, 0 soft", "{}", page(&replica.metrics));
    // The drain begins with its cordon and the quiet time, a second or two after the notice.
    sleep(s(4)).await;
    assert_eq!(at_risk(&replica), "1 hard, 0 soft", "only the blocked one");
    sleep(s(22)).await;
    assert_eq!(at_risk(&replica), "1 hard, 0 soft", "until the deletion, 30 s before the end");
    sleep(s(6)).await;
    assert_eq!(at_risk(&replica), "0 hard, 0 soft", "{}", stage.story());
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert_eq!(at_risk(&replica), "0 hard, 0 soft");
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_at_risk_by_the_deadline_that_it_has_now() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "asg-terminate=40m", "--at-deadline", "leave"]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(19 * 60)).await;
    assert_eq!(at_risk(&replica), "0 hard, 0 soft");
    sleep(s(90)).await;
    assert_eq!(at_risk(&replica), "0 hard, 1 soft", "{}", page(&replica.metrics));
    stage.spot(0);
    sleep(s(5)).await;
    assert_eq!(at_risk(&replica), "1 hard, 0 soft", "most of the time was over before the earlier end was known");
    stage.until_handled(s(130)).await;
    stage.rest(&[&replica]).await;
    assert_eq!(at_risk(&replica), "0 hard, 0 soft", "blocked at its end: nothing waits for it any more");
}

#[tokio::test(start_paused = true)]
async fn a_short_drain_is_at_risk_only_once_it_has_been_blocked_for_5_s() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "spot=8s"]).await;
    stage.spot(0);
    stage.until("the pod is held back", s(3), || blocked_pods(&replica) > 0).await;
    sleep(Duration::from_millis(4900)).await;
    assert_eq!(at_risk(&replica), "0 hard, 0 soft", "the half is over: {}", page(&replica.metrics));
    sleep(Duration::from_millis(200)).await;
    assert_eq!(at_risk(&replica), "0 hard, 1 soft", "{}", stage.story());
    stage.until_handled(s(5)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_was_given_up_is_forgotten_with_its_pods() {
    let metrics = Arc::new(Metrics::new());
    let rows = Rows::counted(Arc::clone(&metrics));
    let on = NodeRef { node: "node-0", uid: "node-0", instance: "i-0" };
    let pod = HeldPod { pod: PodRef { namespace: "default", name: "web", uid: "web" }, by: "budget" };
    rows.note(&Fact::DrainBegun { on, pods: 1, left_alone: 0, until: s(10), hard: true });
    rows.note(&Fact::DrainBlocked { on, pods: &[pod], until: s(10), hard: true });
    sleep(s(6)).await;
    let at_risk = "ebbtide_drains_at_risk{deadline=\"hard\"} 1";
    assert!(page(&metrics).contains(at_risk), "{}", page(&metrics));
    rows.note(&Fact::DrainAbandoned { on });
    assert!(!page(&metrics).contains(at_risk), "{}", page(&metrics));
}

#[tokio::test]
async fn message_ages_are_separate_by_receipt() {
    let metrics = Arc::new(Metrics::new());
    let rows = Rows::counted(Arc::clone(&metrics));
    for receives in [1, 1, 2, 4, 5, 9] {
        rows.note(&Fact::MessageReceived { message: "m", receives, age: Some(s(90)) });
    }
    let text = page(&metrics);
    for (receipt, times) in [("first", 2), ("again", 2), ("often", 2)] {
        let count = format!("ebbtide_message_age_seconds_count{{receipt=\"{receipt}\"}} {times}");
        let in_a_minute = format!("ebbtide_message_age_seconds_bucket{{receipt=\"{receipt}\",le=\"60\"}} 0");
        assert!(text.contains(&count) && text.contains(&in_a_minute), "{text}");
    }
}

#[tokio::test]
async fn series_that_alerts_need_begin_at_0() {
    let text = page(&Metrics::new());
    for wanted in [
        "ebbtide_ready 0",
        "ebbtide_panics_total 0",
        "ebbtide_drains_at_risk{deadline=\"hard\"} 0",
        "ebbtide_heartbeats_total{result=\"sent\"} 0",
        "ebbtide_heartbeats_total{result=\"denied\"} 0",
        "ebbtide_heartbeats_total{result=\"unreachable\"} 0",
        "ebbtide_completions_total{result=\"failed\"} 0",
        "ebbtide_messages_total{outcome=\"lease-ended\"} 0",
        "ebbtide_messages_malformed_total{reason=\"not-json\"} 0",
        "ebbtide_message_age_seconds_count{receipt=\"often\"} 0",
        "ebbtide_message_age_seconds_bucket{receipt=\"first\",le=\"60\"} 0",
        "ebbtide_drain_duration_seconds_count{deadline=\"hard\",outcome=\"blocked\"} 0",
        "ebbtide_drain_duration_seconds_count{deadline=\"soft\",outcome=\"failed\"} 0",
        "ebbtide_watch_failures_total{resource=\"nodes\"} 0",
    ] {
        assert!(text.lines().any(|line| line == wanted), "{wanted} is missing in\n{text}");
    }
}

#[tokio::test]
async fn the_page_is_readable_for_prometheus() {
    let metrics = Metrics::new();
    let text = metrics.render(&Tasks::new(Facts::to(Vec::new())));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').expect("a sample must have a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    for wanted in ["ebbtide_tasks{kind=\"heartbeat\"} 0", "ebbtide_runtime_workers ", "process_resident_memory_bytes "]
    {
        assert!(text.contains(wanted), "{wanted} is missing");
    }
}
