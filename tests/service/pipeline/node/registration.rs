//! Instances without a Node: how long a notice waits until they register.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::{TAG, TO_POOL, marks};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_node_that_registers_late_is_drained() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let replica = stage.start(&[]).await;
    stage.spot(5);
    let token = stage.terminate(5, s(300), Wrapping::Event);
    sleep(s(20)).await;
    assert_eq!(stage.world.aws.sqs.in_flight(), 2, "held");
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.world.kube.add_pod(Pod::on(&node(5)).named("early"));
    stage.until_handled(s(10)).await;
    assert!(stage.cordoned(5));
    assert_eq!(stage.world.kube.pods_on(&node(5)).len(), 0);
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_never_joined_does_not_block_its_hook() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let replica = stage.start(&[]).await;
    let token = stage.terminate(5, s(300), Wrapping::Event);
    sleep(s(29)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    stage.until_handled(s(5)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_terminated_in_the_warm_pool_is_not_waited_for() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let replica = stage.start(&[]).await;
    let token = stage.terminate_between(5, s(300), Wrapping::Event, ("WarmPool", "EC2"));
    stage.until_handled(s(2)).await;
    stage.completed_once(&token);
    replica.ended_as("asg-terminate", "nothing-to-drain", 1);
    stage.rest(&[&replica]).await;
}

/// The Node registers after the time of its notice.
#[tokio::test(start_paused = true)]
async fn a_node_that_registers_late_keeps_its_mark() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[("aws-node-termination-handler/managed", "true")]);
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    stage.terminate_between(5, s(600), Wrapping::Event, TO_POOL);
    sleep(s(10)).await;
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.world.kube.add_pod(Pod::on(&node(5)).named("slow").grace(s(300)).stops_in(s(60)));
    sleep(s(10)).await;
    let (cordoned, marks) = (stage.cordoned(5), marks(&stage, 5));
    assert!(cordoned && marks.len() == 2, "cordoned {cordoned} {marks:?}\n{}", stage.story());
    stage.until_handled(s(600)).await;
    stage.rest(&[&replica]).await;
}

/// The Node registers when the change is near enough for its drain.
#[tokio::test(start_paused = true)]
async fn the_time_for_the_drain_of_a_change_begins_when_it_is_near() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let flags = ["--when", "scheduled-change=600s-before", "--drain-timeout", "scheduled-change=5m"];
    let replica = stage.start(&flags).await;
    let told = stage.world.clock.elapsed();
    stage.health(5, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), stage.world.clock.now() + s(700), "upcoming");
    sleep(s(150)).await;
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.world.kube.add_pod(Pod::on(&node(5)).named("web-5-0"));
    stage.block(5);
    stage.until_handled(s(300)).await;
    let ended = stage.world.clock.elapsed() - told;
    assert!((s(400)..s(405)).contains(&ended), "{ended:?}");
    replica.ended_once("scheduled-change", "blocked");
    stage.rest(&[&replica]).await;
}

/// One replica waits for the Node of a change, and another learns that AWS has called the change off.
#[tokio::test(start_paused = true)]
async fn a_node_that_registers_after_its_change_is_called_off_stays_as_it_is() {
    const CODE: &str = "AWS_EC2_INSTANCE_STOP_SCHEDULED";
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let (other, begin) = (stage.with_own_queue(), stage.world.clock.now() + s(300));
    let replicas = [stage.start(&[]).await, other.start(&[]).await];
    stage.health(5, ("h", CODE), begin, "upcoming");
    sleep(s(30)).await;
    other.health(5, ("h", CODE), begin, "closed");
    sleep(s(30)).await;
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.world.kube.add_pod(Pod::on(&node(5)).named("web"));
    stage.until_handled(s(30)).await;
    other.until_handled(s(30)).await;
    sleep(s(60)).await;
    assert!(!stage.cordoned(5) && stage.notices(5).is_empty(), "{}", stage.story());
    stage.rest(&replicas.each_ref()).await;
}

/// Then it is called off for nobody.
#[tokio::test(start_paused = true)]
async fn a_change_of_an_instance_that_never_registers_can_be_called_off() {
    const CODE: &str = "AWS_EC2_INSTANCE_STOP_SCHEDULED";
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let replica = stage.start(&[]).await;
    let begin = stage.world.clock.now() + s(24 * 3600);
    stage.health(5, ("h", CODE), begin, "closed");
    stage.until_handled(s(1000)).await;
    replica.ended_once("scheduled-change", "withdrawn");
    stage.rest(&[&replica]).await;
}
