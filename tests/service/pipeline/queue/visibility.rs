//! The receipt is the only claim: messages are held while they are worked on, and handed over in every other case.

use crate::harness::{Stage, instance, node, s};
use ebbtide::fact::TaskKind;
use ebbtide::service::Exit;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;

const HOUR: Duration = s(3600);

#[tokio::test(start_paused = true)]
async fn a_message_worked_on_for_an_hour_is_never_received_twice() {
    let stage = Stage::slow(HOUR);
    let (first, second) = (stage.start(&[]).await, stage.start(&[]).await);
    let token = stage.terminate(0, s(7200), Wrapping::Event);
    stage.until_handled(HOUR + s(10)).await;
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 1);
    stage.completed_once(&token);
    let extensions = stage.calls("ChangeMessageVisibilityBatch");
    assert!((175..=182).contains(&extensions), "one every 20 s: {extensions}");
    stage.rest(&[&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn before_twelve_hours_are_over_it_is_handed_over_and_goes_on() {
    let stage = Stage::slow(HOUR * 14);
    let flags = ["--drain-timeout", "20h"];
    let (first, second) = (stage.start(&flags).await, stage.start(&flags).await);
    let token = stage.terminate(0, s(7200), Wrapping::Event);
    stage.until_handled(HOUR * 14 + s(10)).await;
    let received: Vec<u64> = stage.world.aws.sqs.receive_log().iter().map(|received| received.at.as_secs()).collect();
    assert_eq!(received.len(), 2, "{received:?}");
    assert!((42_600..42_610).contains(&received[1]), "at 11 h 50: {received:?}");
    stage.completed_once(&token);
    // The new owner can't know of the last beat, and beats at once; apart from that, one in each half-time.
    let beats = stage.world.aws.autoscaling.action(&token).unwrap().beats;
    let close = beats.windows(2).filter(|pair| pair[1].saturating_sub(pair[0]) < s(3000)).count();
    assert!(close <= 1, "{beats:?}");
    assert_eq!(stage.world.kube.evictions().len(), 1, "the pod that was on its way was not evicted again");
    stage.rest(&[&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_ends_in_an_early_exit() {
    let stage = Stage::slow(s(100));
    let replica = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    tokio::time::sleep(s(1)).await;
    stage.world.faults.add(Rule::on("ChangeMessageVisibilityBatch", Fault::Status(500)));
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)));
    tokio::time::sleep(s(28)).await;
    assert_eq!(replica.tasks.alive(TaskKind::Heartbeat), 1);
    tokio::time::sleep(s(2)).await;
    assert_eq!((replica.tasks.alive(TaskKind::Heartbeat), replica.tasks.alive(TaskKind::Drain)), (0, 0));
    assert_eq!(stage.world.aws.sqs.visible(), 1);
    stage.world.faults.clear();
    stage.until_handled(s(120)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn entries_that_fail_alone_are_retried_alone() {
    let stage = Stage::new(25, 1);
    let replica = stage.start(&[]).await;
    for n in 0..25 {
        stage.spot(n);
    }
    stage.until("all received", s(5), || stage.world.aws.sqs.in_flight() == 25).await;
    stage.world.aws.sqs.fail_entries(7);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.aws.sqs.deleted().len(), 25);
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 25);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn throttling_loses_no_message() {
    let stage = Stage::new(20, 1);
    for operation in ["ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"] {
        stage.world.faults.add(Rule::on(operation, Fault::Throttle).chance(0.5).times(40));
    }
    let replica = stage.start(&[]).await;
    for n in 0..20 {
        stage.spot(n);
    }
    stage.until_handled(s(900)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    assert!(replica.metric("ebbtide_receive_failures_total{category=\"throttled\"}") >= 1.0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_is_taken_over_with_nothing_done_twice() {
    let stage = Stage::new(1, 0);
    for pod in ["a", "b", "c"] {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(pod).grace(s(600)).stops_in(s(100)));
    }
    let first = stage.start(&["--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    tokio::time::sleep(s(40)).await;
    let killed = first.kill().await;
    killed.gone(|_| true).await;
    let second = stage.start(&["--drain-timeout", "10m"]).await;
    stage.until_handled(s(120)).await;
    assert_eq!(stage.world.kube.evictions().len(), 3, "no pod was evicted twice");
    assert_eq!(stage.calls("create pods/eviction"), 3);
    assert_eq!(stage.calls("patch nodes"), 1, "the mark was there already");
    stage.completed_once(&token);
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn an_ordered_shutdown_hands_everything_on_at_once() {
    let stage = Stage::slow(s(100));
    let first = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    tokio::time::sleep(s(25)).await;
    let (exit, took, tasks) = first.stop().await;
    assert_eq!(exit, Exit::Clean);
    assert!(took < s(3), "a long poll in flight is given 2 s: {took:?}");
    assert_eq!(stage.world.aws.sqs.visible(), 1, "another replica has it at once");
    tasks.gone(|_| true).await;
    let beats = stage.calls("RecordLifecycleActionHeartbeat");
    tokio::time::sleep(s(60)).await;
    assert_eq!(stage.calls("RecordLifecycleActionHeartbeat"), beats, "nobody beats in between");
    let second = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
    stage.until_handled(s(100)).await;
    stage.completed_once(&token);
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_come_during_the_shutdown_are_released() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    tokio::time::sleep(s(1)).await;
    let stopping = tokio::spawn(replica.stop());
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The long poll that is still in flight answers with it.
    stage.spot(0);
    let (exit, took, tasks) = stopping.await.unwrap();
    assert_eq!(exit, Exit::Clean);
    assert!(took <= s(4), "{took:?}");
    assert_eq!((stage.world.aws.sqs.visible(), stage.calls("patch nodes")), (1, 0));
    tasks.gone(|_| true).await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_within_ten_seconds_whatever_hangs() {
    let stage = Stage::new(3, 1);
    let replica = stage.start(&[]).await;
    for n in 0..3 {
        stage.spot(n);
    }
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Hang));
    stage.world.faults.add(Rule::on("ChangeMessageVisibilityBatch", Fault::Hang));
    tokio::time::sleep(s(5)).await;
    let (exit, took, tasks) = replica.stop().await;
    assert_eq!(exit, Exit::Aborted, "it says that it cut work off");
    assert!(took <= s(10), "{took:?}");
    tasks.gone(|_| true).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_delivered_twice_is_one_interruption() {
    let stage = Stage::slow(s(60));
    let replica = stage.start(&[]).await;
    let body = messages::spot("same", &instance(0), stage.world.clock.now());
    for _ in 0..5 {
        stage.world.aws.sqs.send(body.clone());
    }
    stage.until_handled(s(70)).await;
    assert_eq!(replica.tasks.started(TaskKind::Interruption), 1);
    assert_eq!(stage.calls("create pods/eviction"), 1);
    assert_eq!(stage.world.aws.sqs.deleted().len(), 5);
    stage.rest(&[&replica]).await;
}
