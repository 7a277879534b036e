//! Heartbeats never leak: a drain fails at each call in turn, in each way.

use crate::harness::{Stage, node, s};
use ebbtide::fact::TaskKind;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

/// The calls at which a drain of a terminating instance can fail.
const PLACES: [&str; 6] =
    ["patch nodes", "list pods", "create pods/eviction", "watch pods", "CompleteLifecycleAction", "DeleteMessageBatch"];

/// Maximum time until the last retry of any call: the life of the hook.
const LONG: Duration = s(7200);

const FLAGS: [&str; 2] = ["--drain-timeout", "200s"];

/// Returns a world with a pod that takes a minute, so that a hook of a minute needs heartbeats.
fn stage() -> Stage {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(60)));
    stage
}

/// Sends ten more copies of the notice, within the first three minutes.
async fn redeliver(stage: &Stage, token: &str) {
    for _ in 0..10 {
        sleep(s(18)).await;
        stage.send_terminate(0, token, Wrapping::Event);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_at_any_call_over_ten_copies_of_the_message() {
    for place in PLACES {
        let stage = stage();
        stage.world.faults.add(Rule::on(place, Fault::Status(500)));
        let replica = stage.start(&FLAGS).await;
        let token = stage.terminate(0, s(60), Wrapping::Event);
        redeliver(&stage, &token).await;
        if place == "DeleteMessageBatch" {
            sleep(s(600)).await;
            assert_eq!(
                replica.tasks.alive(TaskKind::Heartbeat),
                0,
                "{place}: the hook is completed, only the message is left"
            );
            stage.world.faults.clear();
        }
        stage.until_handled(LONG).await;
        stage.beats_apart(&token, s(25));
        if place != "CompleteLifecycleAction" {
            stage.completed_once(&token);
        }
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hang_at_any_call() {
    for place in PLACES {
        let stage = stage();
        stage.world.faults.add(Rule::on(place, Fault::Hang).times(3));
        let replica = stage.start(&FLAGS).await;
        let token = stage.terminate(0, s(60), Wrapping::Event);
        redeliver(&stage, &token).await;
        stage.until_handled(LONG).await;
        stage.beats_apart(&token, s(25));
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_at_any_call() {
    for place in PLACES {
        let stage = stage();
        stage.world.faults.add(Rule::on(place, Fault::Panic).times(2));
        let replica = stage.start(&FLAGS).await;
        let token = stage.terminate(0, s(60), Wrapping::Event);
        stage.until_handled(LONG).await;
        stage.beats_apart(&token, s(25));
        stage.completed_once(&token);
        assert!(replica.metric("ebbtide_panics_total") >= 1.0, "{place}: the panic happened");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_heartbeat_itself() {
    let stage = stage();
    stage.world.faults.add(Rule::on("RecordLifecycleActionHeartbeat", Fault::Panic).times(1));
    let replica = stage.start(&FLAGS).await;
    let token = stage.terminate(0, s(120), Wrapping::Event);
    stage.until_handled(LONG).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_kill_at_any_call() {
    for place in PLACES {
        let stage = stage();
        stage.world.faults.add(Rule::on(place, Fault::Hang));
        let replica = stage.start(&FLAGS).await;
        let token = stage.terminate(0, s(60), Wrapping::Event);
        sleep(s(50)).await;
        let killed = replica.kill().await;
        tokio::time::timeout(s(1), killed.gone(|_| true)).await.expect("every task ends with its owner");
        stage.world.faults.clear();
        let beats = stage.calls("RecordLifecycleActionHeartbeat");
        sleep(s(20)).await;
        assert_eq!(stage.calls("RecordLifecycleActionHeartbeat"), beats, "{place}");
        let second = stage.start(&FLAGS).await;
        stage.until_handled(LONG).await;
        stage.completed_once(&token);
        stage.rest(&[&second]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_at_any_call() {
    for place in PLACES {
        let stage = stage();
        stage.world.faults.add(Rule::on(place, Fault::Hang));
        let replica = stage.start(&FLAGS).await;
        let token = stage.terminate(0, s(60), Wrapping::Event);
        sleep(s(50)).await;
        let (_, took, tasks) = replica.stop().await;
        assert!(took <= s(10), "{place}: {took:?}");
        tasks.gone(|_| true).await;
        stage.world.faults.clear();
        let second = stage.start(&FLAGS).await;
        stage.until_handled(LONG).await;
        stage.completed_once(&token);
        stage.rest(&[&second]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ten_redeliveries_after_panics_double_no_heartbeat() {
    for place in ["patch nodes", "list pods", "create pods/eviction"] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(60)));
        stage.world.faults.add(Rule::on(place, Fault::Panic).times(10));
        let replica = stage.start(&["--drain-timeout", "400s"]).await;
        let token = stage.terminate(0, s(60), Wrapping::Event);
        stage.until_handled(s(7200)).await;
        let id = stage.world.aws.sqs.receive_log()[0].id.clone();
        assert_eq!(stage.world.aws.sqs.receives(&id), 11, "{place}");
        stage.beats_apart(&token, s(25));
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}
