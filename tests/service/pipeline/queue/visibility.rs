//! Visibility of messages: extended during the work, and given up in time.

use crate::harness::{Stage, s};
use ebbtide::fact::TaskKind;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

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
async fn a_message_is_handed_over_before_twelve_hours_are_over() {
    let stage = Stage::slow(HOUR * 14);
    let flags = ["--drain-timeout", "20h"];
    let (first, second) = (stage.start(&flags).await, stage.start(&flags).await);
    let token = stage.terminate(0, s(7200), Wrapping::Event);
    stage.until_handled(HOUR * 14 + s(10)).await;
    let received: Vec<u64> = stage.world.aws.sqs.receive_log().iter().map(|received| received.at.as_secs()).collect();
    assert_eq!(received.len(), 2, "{received:?}");
    assert!((42_600..42_610).contains(&received[1]), "at 11 h 50: {received:?}");
    stage.completed_once(&token);
    // The new owner does not know the last heartbeat, and sends one at once; the others come once per half timeout.
    let beats = stage.world.aws.autoscaling.action(&token).unwrap().beats;
    let close = beats.windows(2).filter(|pair| pair[1].saturating_sub(pair[0]) < s(3000)).count();
    assert!(close <= 1, "{beats:?}");
    assert_eq!(stage.world.kube.evictions().len(), 1, "the pod that was on its way was not evicted again");
    stage.rest(&[&first, &second]).await;
}

/// It is the claim on the deletion alone. Work that ended with it stopped every drain and every heartbeat when SQS was away for 30 s, and
/// nobody else could receive the message meanwhile.
#[tokio::test(start_paused = true)]
async fn work_goes_on_when_the_lease_is_lost() {
    let stage = Stage::slow(s(100));
    let replica = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(1)).await;
    stage.world.faults.add(Rule::on("ChangeMessageVisibilityBatch", Fault::Status(500)));
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)));
    sleep(s(30)).await;
    assert!(replica.metric("ebbtide_messages_total{outcome=\"lease-ended\"}") > 0.0);
    assert_eq!((replica.tasks.alive(TaskKind::Heartbeat), replica.tasks.alive(TaskKind::Drain)), (1, 1));
    assert_eq!(stage.world.aws.sqs.visible(), 1);
    stage.world.faults.clear();
    stage.until("received again", s(6), || stage.world.aws.sqs.receive_log().len() == 2).await;
    stage.until_handled(s(120)).await;
    stage.completed_once(&token);
    assert_eq!(stage.calls("create pods/eviction"), 1, "the second receive has joined");
    replica.all_ended("asg-terminate", &[("drained", 1), ("joined", 1)]);
    stage.rest(&[&replica]).await;
}

/// One call that SQS answers late must not take all the time that is left.
#[tokio::test(start_paused = true)]
async fn an_extension_that_hangs_is_tried_again_and_counts_when_answered_late() {
    let extension = |fault| Rule::on("ChangeMessageVisibilityBatch", fault);
    for (timeout, faults) in [
        (s(300), extension(Fault::Hang).times(2)),
        (s(30), extension(Fault::Hang).times(1)),
        // Each answer comes later than the next try begins, but in time.
        (s(300), extension(Fault::Slow(s(5)))),
    ] {
        let stage = Stage::slow(s(100));
        let replica = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
        let token = stage.terminate(0, timeout, Wrapping::Event);
        sleep(s(1)).await;
        stage.world.faults.add(faults);
        stage.until_handled(s(120)).await;
        stage.completed_once(&token);
        assert_eq!(stage.world.aws.sqs.receive_log().len(), 1, "{timeout:?}: nobody else received it");
        stage.rest(&[&replica]).await;
    }
}

/// The extension has reached SQS, and its answer has not reached us: without a release the message would be hidden for 30 s.
#[tokio::test(start_paused = true)]
async fn a_message_whose_lease_is_lost_is_released() {
    let stage = Stage::slow(s(100));
    let replica = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(1)).await;
    let lost = Rule::on("ChangeMessageVisibilityBatch", Fault::LostResponse);
    stage.world.faults.add(lost);
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)));
    let ended = || replica.metric("ebbtide_messages_total{outcome=\"lease-ended\"}") > 0.0;
    stage.until("lost", s(40), ended).await;
    stage.world.faults.clear();
    // It is received again before its visibility timeout ends.
    stage.until("released", s(10), || stage.world.aws.sqs.receive_log().len() == 2).await;
    stage.until_handled(s(120)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// What a proxy or an endpoint answers to a whole call says nothing about a receipt.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_whole_call_loses_no_lease() {
    for status in [400, 404, 413] {
        let stage = Stage::slow(s(100));
        let replica = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        sleep(s(1)).await;
        stage.world.faults.add(Rule::on("ChangeMessageVisibilityBatch", Fault::Status(status)).times(3));
        stage.until_handled(s(120)).await;
        assert_eq!(stage.world.aws.sqs.receive_log().len(), 1, "{status}\n{}", stage.story());
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}
