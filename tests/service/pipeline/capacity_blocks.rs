//! The end of a Capacity Block: the event names the reservation, EC2 its instances.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages;
use tokio::time::sleep;

const BLOCK: &str = "cr-0123456789abcdef0";

/// Returns a world of three nodes, of which the first two run in the block, with another cluster's instance.
fn reserved() -> Stage {
    let stage = Stage::new(3, 1);
    stage.world.aws.ec2.put(&instance(7), &[("kubernetes.io/cluster/other", "owned")]);
    for n in [0, 1, 7] {
        stage.world.aws.ec2.reserve(&instance(n), BLOCK);
    }
    stage.world.aws.ec2.add_reservation(BLOCK, true, "p5.48xlarge", stage.world.clock.now() + s(2400));
    stage
}

fn warn(stage: &Stage) {
    let now = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::capacity_block("e", BLOCK, now, now + s(2400)));
}

#[tokio::test(start_paused = true)]
async fn its_instances_are_drained_before_their_termination() {
    let stage = reserved();
    stage.block(0);
    let replica = stage.start(&["--max-draining=none"]).await;
    warn(&stage);
    sleep(s(500)).await;
    let left = |n| stage.world.kube.pods_on(&node(n)).len();
    assert_eq!((left(0), left(1), left(2)), (1, 0, 1), "{}", stage.story());
    assert_eq!((stage.cordoned(0), stage.cordoned(1), stage.cordoned(2)), (true, true, false));
    stage.until_handled(s(100)).await;
    assert_eq!(left(0), 0, "deleted before the terminations begin");
    replica.all_ended("capacity-reservation", &[("drained", 2), ("not-ours", 1)]);
    // One call for the reservation; what it says of the instance without a Node is known then.
    assert_eq!(stage.calls("DescribeInstances"), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_ec2_that_does_not_answer_is_asked_again_while_the_message_is_held() {
    let stage = reserved();
    stage.world.faults.add(Rule::on("DescribeInstances", Fault::Throttle).times(8));
    let replica = stage.start(&[]).await;
    warn(&stage);
    stage.until("cordoned", s(200), || stage.cordoned(0) && stage.cordoned(1)).await;
    stage.until_handled(s(60)).await;
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_block_without_instances_needs_nothing() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    warn(&stage);
    stage.until_handled(s(10)).await;
    let ignored = "ebbtide_messages_ignored_total{reason=\"empty-reservation\"}";
    assert!((replica.metric(ignored) - 1.0).abs() < f64::EPSILON);
    stage.rest(&[&replica]).await;
}

/// Nothing but the next warning announces that a block was extended.
#[tokio::test(start_paused = true)]
async fn a_block_that_was_extended_is_drained_again_before_its_new_end() {
    let stage = reserved();
    let replica = stage.start(&[]).await;
    warn(&stage);
    stage.until_handled(s(600)).await;
    assert!(stage.cordoned(0) && stage.world.kube.pods_on(&node(0)).is_empty());
    // The user has extended it, and takes the nodes back.
    for n in [0, 1] {
        stage.set_cordon(n, false);
        stage.until("the user keeps it", s(60), || stage.notices(n).is_empty()).await;
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("new-{n}")));
    }
    sleep(s(24 * 3600)).await;
    assert!(!stage.cordoned(0) && stage.has_pod("new-0"));
    warn(&stage);
    stage.until_handled(s(600)).await;
    assert!(stage.cordoned(0) && !stage.has_pod("new-0") && !stage.has_pod("new-1"), "{}", stage.story());
    stage.rest(&[&replica]).await;
}
