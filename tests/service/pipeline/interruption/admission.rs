//! The limits for who may write to the queue: `--max-draining` and `--verify`.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::aws::{Ec2, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{By, Limit, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use tokio::time::sleep;

pub(super) const MARKED: &str = Ec2::INTERRUPTED;
pub(super) const LIMITED: [&str; 4] = ["--max-draining", "1", "--on", "rebalance=drain"];
pub(super) const VERIFIED: [&str; 2] = ["--verify", "always"];

/// The instance of the n-th node has a spot request with this status.
pub(super) fn request(stage: &Stage, n: usize, code: &str) {
    stage.world.aws.ec2.set_spot_request(&instance(n), code, "terminate", stage.world.clock.now());
}

pub(super) fn untouched(stage: &Stage, n: usize) {
    assert!(!stage.cordoned(n), "node {n} is cordoned\n{}", stage.story());
    assert_eq!(stage.world.kube.pods_on(&node(n)).len(), 1, "node {n} keeps its pod");
}

pub(super) fn unusual(replica: &Replica, reason: &str, times: usize) {
    has(replica, &format!("ebbtide_unusual_notices_total{{reason=\"{reason}\"}} {times}"));
}

fn has(replica: &Replica, line: &str) {
    let text = replica.metrics.render(&replica.tasks);
    assert!(text.lines().any(|shown| shown == line), "{line} is missing in\n{text}");
}

#[tokio::test(start_paused = true)]
async fn beyond_the_maximum_a_spot_warning_is_drained_once_ec2_confirms_it() {
    let stage = Stage::new(3, 1);
    let replica = stage.start(&LIMITED).await;
    stage.spot(0);
    stage.until("the first is cordoned", s(10), || stage.cordoned(0)).await;
    assert_eq!(stage.calls("DescribeSpotInstanceRequests"), 0, "within the maximum nothing is asked");
    for n in [1, 2] {
        request(&stage, n, "fulfilled");
        stage.spot(n);
    }
    sleep(s(30)).await;
    untouched(&stage, 1);
    untouched(&stage, 2);
    unusual(&replica, "too-many-drains", 2);
    request(&stage, 1, MARKED);
    stage.until("EC2 has confirmed the second", s(20), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until_handled(s(120)).await;
    untouched(&stage, 2);
    replica.all_ended("spot", &[("drained", 2), ("not-admitted", 1)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn what_aws_can_not_confirm_waits_until_there_is_room() {
    let stage = Stage::new(2, 1);
    let replica = stage.start(&LIMITED).await;
    for n in [0, 1] {
        let now = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::rebalance(&format!("r-{n}"), &instance(n), now));
        sleep(s(5)).await;
    }
    stage.until("the first is drained", s(60), || stage.world.kube.pods_on(&node(0)).is_empty()).await;
    sleep(s(600)).await;
    untouched(&stage, 1);
    stage.world.kube.remove_node(&node(0));
    stage.until("the second is drained", s(60), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until_handled(s(60)).await;
    replica.all_ended("rebalance", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_is_completed_only_if_its_instance_waits_at_one() {
    let stage = Stage::new(3, 1);
    let replica = stage.start(&LIMITED).await;
    stage.spot(0);
    stage.until("the first is cordoned", s(10), || stage.cordoned(0)).await;
    let token = stage.terminate(1, s(900), Wrapping::Event);
    // A forged one names a hook that there is, and an instance that is in service.
    stage.world.aws.autoscaling.join("group", &instance(2));
    stage.send_terminate(2, "00000000-0000-4000-8000-000000000000", Wrapping::Event);
    stage.until("the second is drained", s(60), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until_handled(s(1000)).await;
    stage.completed_once(&token);
    untouched(&stage, 2);
    replica.all_ended("asg-terminate", &[("drained", 1), ("not-admitted", 1)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_nobody_confirms_is_left_and_not_kept_alive_for_ever() {
    let stage = Stage::new(1, 1);
    let replica =
        stage.start(&[&VERIFIED[..], &["--drain-timeout", "5m", "--on-failed-drain", "continue"]].concat()).await;
    stage.world.faults.add(Rule::on("DescribeAutoScalingInstances", Fault::Status(500)));
    let token = stage.terminate(0, s(60), Wrapping::Event);
    stage.until_handled(s(400)).await;
    untouched(&stage, 0);
    assert!(stage.action(&token).completions.is_empty(), "it would end an instance with its pods");
    replica.ended_once("asg-terminate", "not-admitted");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_forged_warning_overrides_no_budget_if_all_are_verified() {
    let stage = Stage::new(2, 1);
    for n in [0, 1] {
        stage.block(n);
    }
    let replica = stage.start(&VERIFIED).await;
    request(&stage, 0, "fulfilled");
    request(&stage, 1, MARKED);
    stage.spot_of_age(0, s(119));
    stage.spot(1);
    stage.until_handled(s(200)).await;
    untouched(&stage, 0);
    assert_eq!(stage.ends_of("web-1-0")[0].by, By::Delete, "the real one is deleted before its end");
    replica.all_ended("spot", &[("drained", 1), ("not-admitted", 1)]);
    unusual(&replica, "not-confirmed", 1);
    stage.rest(&[&replica]).await;
}

/// An instance that stops is proof enough of a hibernation, whatever its spot request shows.
#[tokio::test(start_paused = true)]
async fn each_kind_has_its_own_proof() {
    let stage = Stage::new(8, 1);
    let (ec2, now) = (&stage.world.aws.ec2, stage.world.clock.now());
    let start = now + s(3600);
    let replica = stage.start(&VERIFIED).await;
    let send = |body| drop(stage.world.aws.sqs.send(body));
    let retirement = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED";
    let (real, forged) = ([0, 2, 4, 6], [1, 3, 5, 7]);
    ec2.set_state(&instance(0), "stopping");
    send(messages::spot("hibernates", &instance(0), now).replace("\"terminate\"", "\"hibernate\""));
    send(messages::spot("forged-spot", &instance(1), now));
    ec2.set_state(&instance(2), "shutting-down");
    send(messages::state_change("s-2", &instance(2), "shutting-down", now));
    send(messages::state_change("s-3", &instance(3), "shutting-down", now));
    ec2.schedule(&instance(4), ("change-4", "instance-retirement"), start);
    send(messages::scheduled_change("c-4", retirement, &[&instance(4)], now, start));
    ec2.schedule(&instance(5), ("change-5", "instance-retirement"), now + s(14 * 24 * 3600));
    send(messages::scheduled_change("c-5", retirement, &[&instance(5)], now, start));
    ec2.reserve(&instance(6), "cr-6");
    ec2.reserve(&instance(7), "cr-7");
    ec2.add_reservation("cr-6", true, "p5.48xlarge", now + s(1800));
    ec2.add_reservation("cr-7", true, "p5.48xlarge", now + s(14 * 24 * 3600));
    send(messages::capacity_block("b-6", "cr-6", now, now + s(1800)));
    send(messages::capacity_block("b-7", "cr-7", now, now + s(1800)));
    stage.until_handled(s(7300)).await;
    for n in forged {
        untouched(&stage, n);
    }
    for n in real {
        assert_eq!(stage.world.kube.pods_on(&node(n)).len(), 0, "node {n} is drained\n{}", stage.story());
    }
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_missing_is_told_and_nothing_is_drained_on_trust() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&VERIFIED).await;
    request(&stage, 0, MARKED);
    stage.world.faults.add(Rule::on("DescribeSpotInstanceRequests", Fault::Status(403)).times(3));
    stage.spot(0);
    sleep(s(2)).await;
    untouched(&stage, 0);
    has(&replica, "ebbtide_retries_total{category=\"denied\",step=\"confirm\"} 1");
    stage.until_handled(s(60)).await;
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_verification_what_goes_by_itself_is_drained_and_the_rest_waits() {
    let stage = Stage::new(3, 1);
    let flags = [&LIMITED[..], &["--verify", "never", "--drain-timeout", "rebalance=5m"]].concat();
    let replica = stage.start(&flags).await;
    stage.spot(0);
    stage.until("the first is cordoned", s(10), || stage.cordoned(0)).await;
    stage.spot(1);
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(2), stage.world.clock.now()));
    stage.until("the second is drained", s(20), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    untouched(&stage, 2);
    assert_eq!(stage.calls("DescribeSpotInstanceRequests"), 0);
    unusual(&replica, "too-many-drains", 2);
    sleep(s(150)).await;
    untouched(&stage, 2);
    stage.world.kube.remove_node(&node(0));
    stage.world.kube.remove_node(&node(1));
    stage.until("there is room", s(60), || stage.world.kube.pods_on(&node(2)).is_empty()).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// The drains of all replicas count; and one that another replica has begun goes on after a takeover, whatever EC2 says.
#[tokio::test(start_paused = true)]
async fn the_drains_of_other_replicas_count() {
    let stage = Stage::new(2, 1);
    stage.block(0);
    let first = stage.start(&LIMITED).await;
    stage.spot(0);
    stage.until("the first is cordoned", s(10), || stage.cordoned(0)).await;
    let killed = first.kill().await;
    killed.gone(|_| true).await;
    let second = stage.start(&LIMITED).await;
    request(&stage, 1, "fulfilled");
    stage.spot(1);
    sleep(s(10)).await;
    untouched(&stage, 1);
    stage.until_handled(s(150)).await;
    assert_eq!(stage.ends_of("web-0-0")[0].by, By::Delete, "the second replica goes on with the first one's drain");
    untouched(&stage, 1);
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_confirmed_in_a_few_calls() {
    let stage = Stage::new(300, 0);
    for n in 0..300 {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}")).stops_in(s(1)));
        request(&stage, n, MARKED);
    }
    let replica = stage.start(&["--max-draining", "10%"]).await;
    for n in 0..300 {
        stage.spot(n);
    }
    stage.until_handled(s(118)).await;
    replica.all_ended("spot", &[("drained", 300)]);
    let calls = stage.calls("DescribeSpotInstanceRequests") + stage.calls("DescribeInstances");
    assert!(calls <= 40, "{calls} calls confirm 270 notices");
    stage.rest(&[&replica]).await;
}

/// Whoever excludes the Node, or takes it away, while its notice waits for admission, ends that.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_or_excluded_is_not_waited_for() {
    let stage = Stage::new(2, 1);
    let budget = Limit::MaxUnavailable(0);
    stage.world.kube.add_budget("default", "none", [("app", "none")], budget);
    let replica = stage.start(&VERIFIED).await;
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(3600)));
    for n in [0, 1] {
        request(&stage, n, "fulfilled");
        stage.spot(n);
    }
    sleep(s(10)).await;
    stage.world.kube.remove_node(&node(0));
    stage.world.kube.update_node(&node(1), |node| {
        node.metadata.annotations.get_or_insert_default().insert("ebbtide/ignore".to_owned(), "true".to_owned());
    });
    request(&stage, 1, MARKED);
    stage.until_handled(s(60)).await;
    replica.all_ended("spot", &[("excluded", 1), ("nothing-to-drain", 1)]);
    stage.rest(&[&replica]).await;
}
