//! Shutdown: messages are released, and the process ends in time, even if calls hang.

use crate::harness::{Stage, node, s};
use ebbtide::service::Exit;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn messages_received_during_the_shutdown_are_released() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    let stopping = tokio::spawn(replica.stop());
    sleep(Duration::from_millis(500)).await;
    // The long poll that is still in flight returns this message.
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
    sleep(s(5)).await;
    let (exit, took, tasks) = replica.stop().await;
    assert_eq!(exit, Exit::Aborted, "it says that it cut work off");
    assert!(took <= s(10), "{took:?}");
    tasks.gone(|_| true).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_aborts() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(5)).await;
    stage.world.faults.add(Rule::on("ChangeMessageVisibilityBatch", Fault::Hang));
    let (exit, took, tasks) = replica.stop_then_abort(s(1)).await;
    assert_eq!(exit, Exit::Aborted);
    assert!(took < s(2), "{took:?}");
    tasks.gone(|_| true).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_permanent_task_ends_the_service_in_order() {
    for place in ["ReceiveMessage", "watch nodes"] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(200)));
        let replica = stage.start(&[]).await;
        let token = stage.terminate(0, s(600), Wrapping::Event);
        sleep(s(30)).await;
        stage.world.faults.add(Rule::on(place, Fault::Panic).times(1));
        stage.world.kube.interrupt_watches(Interrupt::Close);
        let (exit, tasks) = replica.ended().await;
        assert_eq!(exit, Exit::TaskEnded, "{place}");
        tasks.gone(|_| true).await;
        assert_eq!(stage.world.aws.sqs.visible(), 1, "released for the next process");
        let second = stage.start(&[]).await;
        stage.until_handled(s(300)).await;
        stage.completed_once(&token);
        stage.rest(&[&second]).await;
    }
}
