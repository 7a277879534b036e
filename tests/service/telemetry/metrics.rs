//! Metrics that the alerts and the dashboard read.

use crate::harness::{Stage, s};
use ebbtide::fact::{Fact, Facts, Subscriber};
use ebbtide::runtime::Tasks;
use ebbtide::telemetry::Metrics;
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
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

#[tokio::test(start_paused = true)]
async fn the_longest_block_of_a_pod_is_measured() {
    let stage = Stage::new(2, 1);
    (0..2).for_each(|n| stage.block(n));
    let replica = stage.start(&[]).await;
    let longest = || replica.metric("ebbtide_pods_blocked_longest_seconds ");
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(100)).await;
    stage.terminate(1, s(3600), Wrapping::Event);
    sleep(s(100)).await;
    assert!((195.0..=200.0).contains(&longest()), "{}", longest());
    stage.unblock(0);
    sleep(s(10)).await;
    assert!((105.0..=110.0).contains(&longest()), "the other one's: {}", longest());
    stage.unblock(1);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert!(longest() < 1.0, "{}", longest());
}

#[tokio::test]
async fn message_ages_are_separate_by_receipt() {
    let metrics = Metrics::new();
    for receives in [1, 1, 2, 4, 5, 9] {
        metrics.note(&Fact::MessageReceived { message: "m", receives, age: Some(s(90)) });
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
        "ebbtide_pods_blocked_longest_seconds 0",
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
