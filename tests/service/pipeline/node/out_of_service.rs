//! The taint `out-of-service`: set when EC2 has stopped the instance, removed when the Node is back.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::marks;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::messages;
use std::time::Duration;
use tokio::time::sleep;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";

#[tokio::test(start_paused = true)]
async fn the_taint_waits_for_ec2s_confirmation_and_is_removed_after_the_reboot() {
    for state in ["stopped", "terminated"] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&["--out-of-service-taint"]).await;
        stage.set_ready(0, false);
        let at = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::state_change("s", &instance(0), state, at));
        sleep(s(60)).await;
        assert_eq!(stage.taints(0), Vec::<String>::new(), "EC2 says that it runs");
        assert!(stage.calls("DescribeInstances") > 5 && stage.world.aws.sqs.in_flight() == 1);
        stage.world.aws.ec2.set_state(&instance(0), state);
        stage.until_handled(s(12)).await;
        assert_eq!(stage.taints(0), [OUT_OF_SERVICE]);
        assert!(stage.cordoned(0));
        assert_eq!(stage.calls("create pods/eviction"), 0, "there is nobody to stop them");
        stage.reboot(0).await;
        stage.until("taken back", s(3), || stage.taints(0).is_empty()).await;
        assert!(!stage.cordoned(0));
        stage.no_trace(0);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_taint_unless_ec2_confirms_the_stop_and_the_flag_is_set() {
    for (flags, within) in [(&["--out-of-service-taint"][..], 122), (&[], 2)] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(flags).await;
        if flags.is_empty() {
            stage.world.aws.ec2.set_state(&instance(0), "stopped");
        }
        let at = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::state_change("s", &instance(0), "stopped", at));
        stage.until_handled(s(within)).await;
        assert_eq!((stage.taints(0), stage.cordoned(0)), (Vec::new(), false), "{flags:?}");
        stage.no_trace(0);
        stage.rest(&[&replica]).await;
    }
}

/// With `--require-tag` the Node of a terminated instance gets the taint, too.
#[tokio::test(start_paused = true)]
async fn the_taint_is_set_with_require_tag() {
    for state in ["stopped", "terminated"] {
        let stage = Stage::new(1, 0);
        let replica = stage.start(&["--require-tag", "--out-of-service-taint"]).await;
        stage.world.aws.ec2.set_state(&instance(0), state);
        stage.world.kube.set_ready(&node(0), false);
        let now = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::state_change("s", &instance(0), state, now));
        stage.until_handled(s(200)).await;
        let taints = stage.world.kube.node(&node(0)).unwrap().spec.unwrap().taints.unwrap_or_default();
        assert!(taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service"), "{state}: {taints:?}");
        stage.rest(&[&replica]).await;
    }
}

/// The taint, which evicts all pods, is removed when the Node is back, even if another notice keeps its cordon.
#[tokio::test(start_paused = true)]
async fn the_taint_is_removed_when_the_instance_is_back() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--out-of-service-taint", "--uncordon-after", "0s"]).await;
    stage.world.aws.ec2.set_state(&instance(0), "stopped");
    stage.world.kube.set_ready(&node(0), false);
    stage.world.aws.sqs.send(messages::state_change("s", &instance(0), "stopped", stage.world.clock.now()));
    stage.until_handled(s(60)).await;
    sleep(s(60)).await;
    stage.world.aws.ec2.set_state(&instance(0), "running");
    stage.world.kube.reboot(&node(0));
    sleep(s(1)).await;
    // A recommendation arrives after the boot, and before the Node is Ready.
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    stage.until_handled(s(60)).await;
    stage.world.kube.set_ready(&node(0), true);
    sleep(s(60)).await;
    let taints = stage.world.kube.node(&node(0)).unwrap().spec.unwrap().taints.unwrap_or_default();
    assert!(
        !taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service"),
        "a running node keeps {taints:?}; {:?}",
        marks(&stage, 0)
    );
    stage.rest(&[&replica]).await;
}

/// The patch with the taint succeeds only after the instance is running again.
#[tokio::test(start_paused = true)]
async fn the_taint_is_not_set_on_a_node_that_is_back() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--out-of-service-taint"]).await;
    stage.world.aws.ec2.set_state(&instance(0), "stopped");
    stage.world.kube.set_ready(&node(0), false);
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(503)));
    stage.world.aws.sqs.send(messages::state_change("s", &instance(0), "stopped", stage.world.clock.now()));
    sleep(s(50)).await;
    stage.world.aws.ec2.set_state(&instance(0), "running");
    stage.world.kube.reboot(&node(0));
    stage.world.kube.set_ready(&node(0), true);
    sleep(s(2)).await;
    stage.world.faults.clear();
    let mut seen = false;
    for _ in 0..400 {
        sleep(Duration::from_millis(50)).await;
        let taints = stage.world.kube.node(&node(0)).unwrap().spec.unwrap().taints.unwrap_or_default();
        seen |= taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service");
    }
    assert!(!seen, "NoExecute on a running node\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_denied_taint_of_the_settings_leaves_the_one_for_pods_that_must_move() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--taint", "going=soon:NoSchedule", "--out-of-service-taint"]).await;
    stage.set_ready(0, false);
    stage.world.aws.ec2.set_state(&instance(0), "stopped");
    let denied = "ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: no";
    stage.world.faults.add(Rule::on("patch nodes", Fault::Refuse(422, denied)).times(1));
    let at = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::state_change("s", &instance(0), "stopped", at));
    stage.until_handled(s(60)).await;
    assert_eq!(stage.taints(0), [OUT_OF_SERVICE]);
    assert!(stage.cordoned(0));
    stage.rest(&[&replica]).await;
}
