//! Receives: readiness, long polls on an empty queue, and batches on a full one.

use crate::harness::{Stage, s};
use ebbtide_sim::fault::{Fault, Rule};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn the_service_is_ready_at_once_on_an_empty_queue() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let begun = Instant::now();
    stage.until("ready", s(30), || replica.metric("ebbtide_ready ") > 0.5).await;
    assert!(begun.elapsed() < s(1), "{:?}", begun.elapsed());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_queue_costs_one_call_in_twenty_seconds() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    sleep(s(2000)).await;
    let receives = stage.calls("ReceiveMessage");
    assert!((100..=101).contains(&receives), "{receives}");
    assert!(replica.metrics.render(&replica.tasks).contains("ebbtide_ready 1"));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_backlog_is_received_at_once_and_handled_in_batches() {
    let stage = Stage::new(200, 1);
    for n in 0..200 {
        stage.spot(n);
    }
    let replica = stage.start(&[]).await;
    stage.until_handled(s(60)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    let receives = stage.calls("ReceiveMessage");
    assert!((20..=32).contains(&receives), "{receives} receives for 200 messages");
    let deletes = stage.calls("DeleteMessageBatch");
    assert!((20..=24).contains(&deletes), "{deletes} calls for 200 deletions");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn no_receive_begins_after_the_shutdown() {
    let stage = Stage::new(0, 0);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)));
    // The long poll that has begun ends after 20 s; then receives fail, with a pause of half a second or more before the next.
    let failed = || stage.world.calls.of("ReceiveMessage").iter().any(|call| call.status == 500);
    stage.until("a receive fails", s(30), failed).await;
    let receives = stage.calls("ReceiveMessage");
    replica.stop().await;
    assert_eq!(stage.calls("ReceiveMessage"), receives);
}
