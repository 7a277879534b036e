//! What the limits for who may write to the queue cost honest notices: some seconds, while AWS shows the same.

use super::admission::{LIMITED, MARKED, VERIFIED, request, unusual};
use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::sleep;

const RETIREMENT: (&str, &str) = ("c-0", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED");

/// EC2 marks the requests some seconds after the warnings. Recommendations about the same instances can't be confirmed at all.
#[tokio::test(start_paused = true)]
async fn a_mass_interruption_crowds_out_none_of_its_own_warnings() {
    let stage = Stage::new(600, 0);
    let replica = stage.start(&LIMITED).await;
    for n in 0..600 {
        request(&stage, n, "fulfilled");
        stage.spot(n);
    }
    sleep(s(1)).await;
    for n in 0..600 {
        stage.rebalance(n);
    }
    sleep(s(2)).await;
    (0..600).for_each(|n| request(&stage, n, MARKED));
    stage.until("all are cordoned", s(60), || (0..600).all(|n| stage.cordoned(n))).await;
    (0..600).for_each(|n| stage.world.kube.remove_node(&node(n)));
    stage.until_handled(s(7200)).await;
    replica.ended_as("spot", "not-admitted", 0);
    stage.rest(&[&replica]).await;
}

/// The right to see what EC2 lists is granted hours after a message has told of a change that is ahead.
#[tokio::test(start_paused = true)]
async fn a_change_ahead_waits_for_a_right_that_is_granted_late() {
    for when in [&[][..], &["--when", "scheduled-change=4h-before"]] {
        let stage = Stage::new(1, 1);
        let start = stage.world.clock.now() + s(6 * 3600);
        stage.world.aws.ec2.schedule(&instance(0), ("change-0", "instance-retirement"), start);
        stage.world.faults.add(Rule::on("DescribeInstanceStatus", Fault::Status(403)));
        let replica = stage.start(&[&VERIFIED[..], when].concat()).await;
        stage.health(0, RETIREMENT, start, "upcoming");
        sleep(s(4 * 3600)).await;
        assert!(!stage.cordoned(0));
        stage.world.faults.clear();
        stage.until("drained", s(600), || stage.world.kube.pods().is_empty()).await;
        stage.until_handled(s(60)).await;
        replica.ended_as("scheduled-change", "drained", 1);
        stage.rest(&[&replica]).await;
    }
}

/// What goes in two minutes is asked for every five seconds, also after calls that fail.
#[tokio::test(start_paused = true)]
async fn a_proof_that_comes_late_is_seen_at_once() {
    for (shown, fails) in [(36, false), (66, false), (16, true)] {
        let stage = Stage::new(1, 1);
        if fails {
            stage.world.faults.add(Rule::on("DescribeSpotInstanceRequests", Fault::Throttle));
        }
        request(&stage, 0, if fails { MARKED } else { "fulfilled" });
        let replica = stage.start(&VERIFIED).await;
        let told_at = stage.world.clock.now();
        stage.spot(0);
        sleep(s(shown)).await;
        assert!(!stage.cordoned(0));
        stage.world.faults.clear();
        stage.world.aws.ec2.set_spot_request(&instance(0), MARKED, "terminate", told_at);
        stage.until("cordoned", s(8), || stage.cordoned(0)).await;
        stage.until_handled(s(60)).await;
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// Auto Scaling is slow, and EC2 is not.
#[tokio::test(start_paused = true)]
async fn a_spot_warning_does_not_wait_for_the_proof_of_a_hook() {
    let stage = Stage::new(2, 1);
    stage.world.faults.add(Rule::on("DescribeAutoScalingInstances", Fault::Slow(s(9))));
    request(&stage, 0, MARKED);
    let replica = stage.start(&VERIFIED).await;
    let token = stage.terminate(1, s(300), Wrapping::Event);
    stage.spot(0);
    stage.until("cordoned", s(3), || stage.cordoned(0)).await;
    assert!(!stage.cordoned(1));
    stage.until_handled(s(120)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// Returns a world in which a message calls a change off, of which EC2 has confirmed the begin, while its node is drained.
async fn called_off_in_mid_drain() -> (Stage, Replica) {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("web").grace(s(60)).stops_in(s(20)));
    let start = stage.world.clock.now() + s(3000);
    stage.world.aws.ec2.schedule(&instance(0), ("change-0", "instance-retirement"), start);
    let replica = stage.start(&VERIFIED).await;
    stage.health(0, RETIREMENT, start, "upcoming");
    sleep(s(5)).await;
    stage.health(0, RETIREMENT, start, "closed");
    (stage, replica)
}

/// EC2 says so when the drain has ended.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_called_off_during_its_drain_leaves_no_cordon() {
    let (stage, replica) = called_off_in_mid_drain().await;
    sleep(s(25)).await;
    assert!(stage.cordoned(0) && stage.world.kube.pods().is_empty());
    stage.world.aws.ec2.close("change-0", "Canceled");
    stage.until("undone", s(60), || !stage.cordoned(0)).await;
    stage.until_handled(s(60)).await;
    replica.ended_as("scheduled-change", "withdrawn", 1);
    stage.rest(&[&replica]).await;
}

/// Somebody knows the ARN of a change. The drain counts as what it was.
#[tokio::test(start_paused = true)]
async fn a_drain_has_ended_though_a_forged_end_of_its_change_has_come() {
    let (stage, replica) = called_off_in_mid_drain().await;
    stage.until_handled(s(2 * 3600)).await;
    assert!(stage.cordoned(0));
    replica.ended_as("scheduled-change", "drained", 1);
    replica.ended_as("scheduled-change", "not-admitted", 0);
    stage.rest(&[&replica]).await;
}

/// To give a node back takes no place of those that are drained.
#[tokio::test(start_paused = true)]
async fn what_is_taken_back_needs_no_room() {
    let stage = Stage::new(3, 1);
    let replica = stage.with_both("a", &["--verify", "always", "--max-draining", "1", "--on", "rebalance=drain"]).await;
    stage.until("its turn", s(5), || stage.world.kube.leases("ebbtide").len() == 1).await;
    let said = format!("{{\"what\":\"rebalance\",\"at\":\"{}\"}}", stage.world.clock.now());
    stage.annotate(0, "ebbtide/says.rebalance", &said);
    stage.until("drained", s(30), || stage.world.kube.pods_on(&node(0)).is_empty()).await;
    request(&stage, 1, MARKED);
    stage.spot(1);
    stage.until("drained", s(30), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.world.kube.update_node(&node(0), |node| {
        node.metadata.annotations.get_or_insert_default().remove("ebbtide/says.rebalance");
    });
    stage.until("given back", s(60), || !stage.cordoned(0)).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// The wait takes nothing of the time that the settings give a drain.
#[tokio::test(start_paused = true)]
async fn who_gets_room_late_has_time_for_the_drain() {
    let stage = Stage::new(2, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("web-0"));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("web-1").grace(s(300)).stops_in(s(120)));
    let replica = stage.start(&LIMITED).await;
    for n in 0..2 {
        stage.rebalance(n);
        sleep(s(5)).await;
    }
    sleep(s(59 * 60)).await;
    stage.world.kube.remove_node(&node(0));
    stage.until_handled(s(600)).await;
    replica.all_ended("rebalance", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

/// Its mark goes when it is back.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_restarted_makes_room_at_once() {
    let stage = Stage::new(2, 1);
    let replica = stage.start(&LIMITED).await;
    stage.schedule_reboot(0);
    stage.until_handled(s(60)).await;
    stage.rebalance(1);
    sleep(s(30)).await;
    assert!(!stage.cordoned(1));
    stage.reboot(0).await;
    stage.until("the next has room", s(30), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_confirmed_takes_no_place_before() {
    let stage = Stage::new(4, 0);
    let replica = stage.start(&[&VERIFIED[..], &["--max-draining", "2"]].concat()).await;
    for n in 0..2 {
        request(&stage, n, MARKED);
        stage.spot(n);
        sleep(Duration::from_millis(10)).await;
    }
    stage.until_handled(s(60)).await;
    unusual(&replica, "too-many-drains", 0);
    replica.all_ended("spot", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

/// A node of no Auto Scaling group: AWS knows no action of the token, and shows no end of the instance either.
#[tokio::test(start_paused = true)]
async fn a_forged_hook_of_an_instance_in_no_group_overrides_no_budget() {
    for denied in [false, true] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let token = "00000000-0000-4000-8000-000000000000";
        stage.world.aws.autoscaling.add_hook("group", "hook", ebbtide_sim::aws::HookSpec::terminating(s(60)));
        if denied {
            stage.world.faults.add(Rule::on("DescribeAutoScalingInstances", Fault::Status(403)));
        }
        let replica = stage.start(&["--max-draining", "2", "--drain-timeout", "600s"]).await;
        let at = stage.world.clock.now() - s(30);
        stage.world.aws.sqs.send(messages::lifecycle(
            Wrapping::Event,
            true,
            ("group", "hook", token),
            &instance(0),
            at,
        ));
        stage.until_handled(s(4000)).await;
        assert!(stage.has_pod("web-0-0"), "{denied}: the budget holds\n{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}
