//! Nodes that are deleted during their drain, or register again under the same name.

use crate::drains::{add, ended, held};
use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn deletion_of_the_node_ends_its_drain() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(30)).await;
    stage.world.kube.remove_node(&node(0));
    stage.until_handled(s(5)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn deletion_of_the_node_ends_its_drain_before_its_pods_are_collected() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(30)).await;
    // The API server deletes the Node at once, and its pods 40 s later.
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(stage.world.kube.client());
    nodes.delete(&node(0), &kube::api::DeleteParams::default()).await.unwrap();
    stage.until_handled(s(5)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 1);
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// Something on the way, or an API server in start, may answer 404: only its own word and the watch together end a notice.
#[tokio::test(start_paused = true)]
async fn a_404_to_the_cordon_ends_nothing_while_the_node_is_there() {
    for times in [1, 5] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&[]).await;
        stage.world.faults.add(Rule::on("patch nodes", Fault::Status(404)).times(times));
        stage.world.faults.add(Rule::on("get nodes", Fault::Status(404)).times(times - 1));
        let token = stage.terminate(0, s(600), Wrapping::Event);
        stage.until_handled(s(60)).await;
        replica.ended_once("asg-terminate", "drained");
        stage.completed_once(&token);
        assert!(stage.cordoned(0) && !stage.has_pod("web-0-0"), "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_404_of_something_else_proves_no_deletion() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(30)).await;
    stage.world.faults.add(Rule::on("get nodes", Fault::Status(404)));
    stage.world.kube.remove_node(&node(0));
    sleep(s(30)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0, "{}", stage.story());
    stage.world.faults.clear();
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// The API server has deleted the Node, and the watch does not show that yet.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_before_its_cordon_has_nothing_to_drain() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Late(s(1))).times(1));
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(Duration::from_millis(500)).await;
    stage.world.kube.remove_node(&node(0));
    stage.until_handled(s(30)).await;
    replica.ended_once("asg-terminate", "nothing-to-drain");
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_registers_again_with_new_pods_is_drained() {
    for replaced in [false, true] {
        let stage = held(s(30));
        let replica = stage.start(&[]).await;
        let token = stage.terminate(0, s(3600), Wrapping::Event);
        sleep(s(10)).await;
        stage.world.kube.remove_node(&node(0));
        if replaced {
            sleep(s(1)).await;
            stage.world.kube.add_node(&node(0), &instance(0));
            add(&stage, "held", s(30));
            add(&stage, "new", s(30));
        }
        // The same instance under a new Node is still terminated: its new pods are evicted.
        if replaced {
            stage.until("the new Node's drain", s(5), || stage.cordoned(0)).await;
            stage.unblock(0);
        }
        stage.until_handled(s(if replaced { 60 } else { 5 })).await;
        stage.completed_once(&token);
        replica.ended_once("asg-terminate", "drained");
        stage.rest(&[&replica]).await;
        assert_eq!(stage.world.kube.evictions().len(), if replaced { 2 } else { 0 });
        assert_eq!(stage.cordoned(0), replaced);
        assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_notice_for_a_new_node_of_the_same_name_drains_it() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(30)).await;
    stage.world.faults.add(Rule::on("get nodes", Fault::Slow(s(5))).times(1));
    stage.world.kube.remove_node(&node(0));
    stage.world.kube.add_node(&node(0), &instance(1));
    stage.world.aws.ec2.put(&instance(1), &[("aws-node-termination-handler/managed", "true")]);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("new").labels([("app", "node-0")]));
    sleep(s(1)).await;
    let token = stage.terminate(1, s(600), Wrapping::Event);
    sleep(s(10)).await;
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0, "completed while a pod runs\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_new_healthy_node_of_the_same_name_are_not_evicted() {
    for get_takes in [s(0), s(5)] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(&[]).await;
        stage.terminate(0, s(600), Wrapping::Event);
        sleep(s(30)).await;
        stage.world.faults.add(Rule::on("get nodes", Fault::Slow(get_takes)).times(1));
        stage.world.kube.remove_node(&node(0));
        stage.world.kube.add_node(&node(0), &instance(1));
        stage.world.kube.add_pod(Pod::on(&node(0)).named("new"));
        sleep(s(30)).await;
        assert_eq!(ended(&stage), [], "{get_takes:?}\n{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_registers_again_with_its_old_pods_is_still_drained() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(200)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(30)).await;
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(stage.world.kube.client());
    nodes.delete(&node(0), &kube::api::DeleteParams::default()).await.unwrap();
    stage.world.kube.add_node(&node(0), &instance(0));
    stage.until_handled(s(300)).await;
    stage.completed_once(&token);
    let at = stage.world.calls.of("CompleteLifecycleAction")[0].at;
    assert!(at >= s(200), "completed at {at:?} while its pod runs until 200 s; cordoned: {}", stage.cordoned(0));
    stage.rest(&[&replica]).await;
}

/// The watch shows the Node's end, but not that the Node registers again.
#[tokio::test(start_paused = true)]
async fn a_node_that_registers_again_behind_a_silent_watch_is_drained() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(10)).await;
    stage.world.kube.remove_node(&node(0));
    sleep(s(1)).await;
    stage.world.kube.interrupt_watches(Interrupt::Freeze);
    stage.world.kube.add_node(&node(0), &instance(0));
    add(&stage, "new", s(30));
    stage.until("the new Node's cordon", s(10), || stage.cordoned(0)).await;
    stage.unblock(0);
    stage.until_handled(s(180)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0);
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// The Node is deleted by hand during its drain, and registers again.
#[tokio::test(start_paused = true)]
async fn a_node_that_registers_again_is_drained_before_its_hook_is_completed() {
    let stage = Stage::slow(s(300));
    let replica = stage.start(&["--drain-timeout", "20m"]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(30)).await;
    stage.world.kube.remove_node(&node(0));
    stage.world.kube.add_node(&node(0), &instance(0));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("again").grace(s(30)).stops_in(s(20)));
    sleep(s(10)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    let pods = stage.world.kube.pods_on(&node(0)).len();
    assert!(
        action.completions.is_empty() || pods == 0,
        "{:?} with {pods} pods; cordoned {}; drained {}",
        action.completions,
        stage.cordoned(0),
        replica.metric("ebbtide_notices_total{kind=\"asg-terminate\",outcome=\"drained\"}")
    );
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}
