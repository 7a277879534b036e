//! Deletion of messages: after the last interruption, in batches, and retried entry by entry.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_health_event_is_deleted_only_after_its_last_drain() {
    let stage = Stage::new(3, 1);
    stage.world.kube.add_pod(Pod::on(&node(2)).named("slow").grace(s(600)).stops_in(s(400)));
    let replica = stage.start(&["--max-draining=none"]).await;
    let now = stage.world.clock.now();
    let affected: Vec<String> = (0..3).map(instance).collect();
    let affected: Vec<&str> = affected.iter().map(String::as_str).collect();
    let code = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED";
    stage.world.aws.sqs.send(messages::scheduled_change("h", code, &affected, now, now + s(86400)));
    sleep(s(399)).await;
    assert_eq!(stage.world.kube.pods().len(), 1, "two are drained, the third waits for its pod");
    assert_eq!(stage.world.aws.sqs.deleted().len(), 0);
    stage.until_handled(s(5)).await;
    assert_eq!(stage.world.aws.sqs.deleted().len(), 1);
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 1, "held all the time");
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
async fn a_refused_deletion_is_counted_and_retried() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("DeleteMessageBatch", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(30)).await;
    let told = replica.metric("ebbtide_retries_total{category=\"denied\",step=\"delete\"}");
    assert!((told - 1.0).abs() < f64::EPSILON, "{told}");
    stage.world.faults.clear();
    stage.until_handled(s(10)).await;
    stage.rest(&[&replica]).await;
}
