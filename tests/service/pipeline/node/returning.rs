//! Lifecycle hooks of instances that come back: from the warm pool, or with another root volume.

use crate::harness::{Stage, node, s};
use ebbtide_sim::aws::HookResult;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use tokio::time::sleep;

const TO_POOL: (&str, &str) = ("AutoScalingGroup", "WarmPool");

/// The drain may go on after the deadline by its mark, to which a short time is not worth a write.
#[tokio::test(start_paused = true)]
async fn a_restart_in_the_last_minute_of_a_drain_is_no_return_from_the_warm_pool() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(60)).stops_in(s(55)));
    let token = stage.terminate_between(0, s(600), Wrapping::Event, TO_POOL);
    sleep(s(598)).await;
    let replica = stage.start(&[]).await;
    sleep(s(35)).await;
    stage.world.kube.reboot(&node(0));
    sleep(s(10)).await;
    assert!(stage.cordoned(0) && stage.has_pod("slow"), "the drain goes on\n{}", stage.story());
    stage.until_handled(s(15)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    stage.reboot(0).await;
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

/// A replica takes over a drain that has more time than the hook had at first, on a Node that has restarted meanwhile.
#[tokio::test(start_paused = true)]
async fn a_drain_that_is_taken_over_after_its_first_deadline_goes_on() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(900)).stops_in(s(890)));
    stage.block(0);
    let first = stage.start(&[]).await;
    let token = stage.terminate_between(0, s(600), Wrapping::Event, TO_POOL);
    sleep(s(40)).await;
    stage.reboot(0).await;
    sleep(s(600)).await;
    assert!(stage.cordoned(0) && stage.results(&token).is_empty(), "{}", stage.story());
    first.kill().await;
    let second = stage.start(&[]).await;
    sleep(s(60)).await;
    assert!(stage.cordoned(0) && stage.results(&token).is_empty(), "{}", stage.story());
    stage.unblock(0);
    stage.until_handled(s(1000)).await;
    stage.completed_once(&token);
    assert!(stage.world.kube.pods().is_empty(), "{}", stage.story());
    second.ended_once("asg-terminate", "drained");
    stage.rest(&[&second]).await;
}

/// The drain is stuck, and somebody completes the action by hand: nobody hears of that before the next heartbeat.
#[tokio::test(start_paused = true)]
async fn a_node_that_came_back_from_a_hook_that_others_completed_is_released_with_its_pods() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let token = stage.replace_root_volume(0, true);
    sleep(s(60)).await;
    stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
    sleep(s(60)).await;
    stage.reboot(0).await;
    stage.until_handled(s(600)).await;
    stage.until("released", s(120), || !stage.cordoned(0)).await;
    assert!(stage.has_pod("web-0-0"), "{}", stage.story());
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

/// The completion is the last call of a replica: its message is taken over when the instance is back.
#[tokio::test(start_paused = true)]
async fn a_node_that_came_back_after_its_replica_was_killed_is_released() {
    let stage = Stage::new(1, 1);
    let first = stage.start(&[]).await;
    let token = stage.terminate_between(0, s(3600), Wrapping::Event, TO_POOL);
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Hang));
    stage.until("completed", s(60), || !stage.results(&token).is_empty()).await;
    first.kill().await;
    stage.world.faults.clear();
    stage.reboot(0).await;
    let second = stage.start(&[]).await;
    stage.until_handled(s(120)).await;
    stage.until("released", s(120), || !stage.cordoned(0)).await;
    stage.no_trace(0);
    stage.rest(&[&second]).await;
}

/// The API server is away when the hook is completed.
#[tokio::test(start_paused = true)]
async fn the_note_that_a_hook_is_completed_is_written_a_little_later() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let token = stage.replace_root_volume(0, true);
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Disconnect));
    stage.until("completed", s(60), || !stage.results(&token).is_empty()).await;
    sleep(s(5)).await;
    stage.world.faults.clear();
    stage.until_handled(s(10)).await;
    stage.reboot(0).await;
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}
