//! SQS that throttles, denies or fails.

use crate::harness::{Stage, s};
use ebbtide_sim::fault::{Fault, Rule};
use tokio::time::sleep;

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
    let throttled = || replica.metric("ebbtide_receive_failures_total{category=\"throttled\"}");
    stage.until("a receive is throttled", s(900), || throttled() >= 1.0).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn denied_receives_are_retried_less_often_than_failed_ones() {
    // In ten minutes: waits of 15 to 30 s, or of 2.5 to 5 s.
    for (status, often) in [(403, 19..=41), (503, 120..=241)] {
        let stage = Stage::new(1, 0);
        let replica = stage.start(&[]).await;
        sleep(s(1)).await;
        stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(status)));
        sleep(s(30)).await;
        let before = stage.calls("ReceiveMessage");
        sleep(s(600)).await;
        let calls = stage.calls("ReceiveMessage") - before;
        assert!(often.contains(&calls), "{status}: {calls}");
        stage.world.faults.clear();
        stage.spot(0);
        stage.until_handled(s(60)).await;
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_receive_delays_no_other() {
    let stage = Stage::new(80, 0);
    for n in 0..80 {
        stage.spot(n);
    }
    // Receives grow to eight at once: one is answered late, the others fail.
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Slow(s(8))).after(7).times(1));
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)).after(7).times(7));
    let replica = stage.start(&[]).await;
    stage.until_handled(s(15)).await;
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 80, "none was received twice");
    stage.rest(&[&replica]).await;
}
