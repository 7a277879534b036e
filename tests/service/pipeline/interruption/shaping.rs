//! The limit that a queue has by default: it holds back what AWS denies, and loses nothing real.

use super::admission::{MARKED, VERIFIED, request, untouched, unusual};
use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::ops::Range;
use tokio::time::sleep;

/// Spot warnings about these nodes. `MARKED` is how EC2 shows a real one.
fn warn(stage: &Stage, nodes: Range<usize>, code: &str) {
    for n in nodes {
        request(stage, n, code);
        stage.spot(n);
    }
}

fn cordoned(stage: &Stage, nodes: Range<usize>) -> usize {
    nodes.filter(|n| stage.cordoned(*n)).count()
}

fn drained_spots(replica: &Replica) -> f64 {
    replica.metric("ebbtide_notices_total{kind=\"spot\",outcome=\"drained\"}")
}

/// Pods that stop after some seconds: drains run for as long.
fn stage(nodes: usize) -> Stage {
    let stage = Stage::new(nodes, 0);
    for n in 0..nodes {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}")).stops_in(s(20)));
    }
    stage
}

#[tokio::test(start_paused = true)]
async fn a_real_storm_is_drained_at_once_in_a_few_calls() {
    let stage = stage(200);
    let replica = stage.start(&[]).await;
    warn(&stage, 0..200, MARKED);
    stage.until("all are cordoned", s(5), || cordoned(&stage, 0..200) == 200).await;
    let calls = stage.calls("DescribeSpotInstanceRequests") + stage.calls("DescribeInstances");
    assert!(calls <= 8, "{calls} calls confirm 150 notices");
    stage.until_handled(s(100)).await;
    replica.all_ended("spot", &[("drained", 200)]);
    unusual(&replica, "unconfirmed", 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_real_storm_is_drained_in_time_whatever_keeps_aws_from_its_word() {
    let refused = |fault: Fault| vec![Rule::on("DescribeSpotInstanceRequests", fault)];
    for (code, faults) in [
        // The interruption is shown half a minute late.
        ("fulfilled", vec![]),
        ("fulfilled", refused(Fault::Throttle)),
        (MARKED, refused(Fault::Throttle)),
        (MARKED, refused(Fault::Status(403))),
        (MARKED, refused(Fault::Status(500))),
        (MARKED, refused(Fault::Hang)),
    ] {
        let stage = stage(60);
        let replica = stage.start(&[]).await;
        for rule in faults {
            stage.world.faults.add(rule);
        }
        let told_at = stage.world.clock.now();
        warn(&stage, 0..60, code);
        sleep(s(30)).await;
        for n in 0..60 {
            stage.world.aws.ec2.set_spot_request(&instance(n), MARKED, "terminate", told_at);
        }
        sleep(s(30)).await;
        stage.world.faults.clear();
        stage.until_handled(s(58)).await;
        replica.all_ended("spot", &[("drained", 60)]);
        stage.rest(&[&replica]).await;
    }
}

/// AWS's guide, "State changes for a Spot request": an interruption for lack of capacity has its last status from the warning on.
#[tokio::test(start_paused = true)]
async fn each_status_of_an_interruption_confirms_a_warning_and_no_other_does() {
    for (code, is_confirmed) in [
        ("marked-for-termination", true),
        ("marked-for-stop", true),
        ("marked-for-stop-by-experiment", true),
        ("instance-terminated-no-capacity", true),
        ("instance-terminated-by-price", true),
        ("instance-terminated-launch-group-constraint", true),
        ("instance-terminated-by-experiment", true),
        ("instance-terminated-by-user", false),
        ("instance-terminated-by-schedule", false),
        ("request-canceled-and-instance-running", false),
        ("fulfilled", false),
    ] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&VERIFIED).await;
        request(&stage, 0, code);
        stage.spot(0);
        stage.until_handled(s(200)).await;
        assert_eq!(stage.cordoned(0), is_confirmed, "{code}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_missing_is_told_once_and_holds_for_half_a_minute_at_most() {
    let stage = stage(40);
    stage.world.faults.add(Rule::on("DescribeSpotInstanceRequests", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    warn(&stage, 0..40, MARKED);
    stage.until("all are cordoned", s(31), || cordoned(&stage, 0..40) == 40).await;
    let line = "ebbtide_retries_total{category=\"denied\",step=\"confirm\"}";
    assert!((replica.metric(line) - 1.0).abs() < 0.1, "{} times told", replica.metric(line));
    stage.until_handled(s(60)).await;
    replica.all_ended("spot", &[("drained", 40)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_forged_storm_is_held_to_a_quarter_of_the_nodes() {
    let stage = stage(40);
    let replica = stage.start(&[]).await;
    warn(&stage, 0..40, "fulfilled");
    stage.until_handled(s(130)).await;
    assert_eq!(cordoned(&stage, 0..40), 10, "a quarter");
    replica.all_ended("spot", &[("drained", 10), ("not-admitted", 30)]);
    unusual(&replica, "not-confirmed", 30);
    stage.rest(&[&replica]).await;
}

/// Each gives its places before it sees the other's marks.
#[tokio::test(start_paused = true)]
async fn two_replicas_give_a_forged_storm_a_quarter_each_at_most() {
    let stage = stage(40);
    let (one, other) = (stage.start(&[]).await, stage.start(&[]).await);
    warn(&stage, 0..40, "fulfilled");
    stage.until_handled(s(130)).await;
    let cordoned = cordoned(&stage, 0..40);
    assert!((10..=20).contains(&cordoned), "{cordoned}");
    stage.rest(&[&one, &other]).await;
}

/// Without the rights to keep a hook alive and to ask about its instance, its timeout is all the time that there is.
#[tokio::test(start_paused = true)]
async fn a_hook_that_no_heartbeat_keeps_alive_is_drained_within_its_timeout() {
    for timeout in [60, 300] {
        let stage = stage(4);
        stage.block(0);
        for call in ["RecordLifecycleActionHeartbeat", "DescribeAutoScalingInstances"] {
            stage.world.faults.add(Rule::on(call, Fault::Status(403)));
        }
        let replica = stage.start(&[]).await;
        let terminate = |n: usize, group: &str, timeout| {
            stage.world.aws.autoscaling.add_hook(group, "hook", HookSpec::terminating(s(timeout)));
            let token = stage.world.aws.autoscaling.begin(group, "hook", &instance(n));
            let (names, at) = ((group, "hook", token.as_str()), stage.world.clock.now());
            stage.world.aws.sqs.send(messages::lifecycle(Wrapping::Event, true, names, &instance(n), at));
        };
        terminate(0, "large", 7200);
        stage.until("there is no room", s(10), || stage.cordoned(0)).await;
        terminate(1, "small", timeout);
        stage.until("it is cordoned", s(timeout / 4 + 2), || stage.cordoned(1)).await;
        let drained = "ebbtide_notices_total{kind=\"asg-terminate\",outcome=\"drained\"}";
        stage.until("it is drained", s(25), || replica.metric(drained) > 0.5).await;
        stage.until_handled(s(7300)).await;
        stage.rest(&[&replica]).await;
    }
}

/// Marks stay on the drained nodes until they are gone.
#[tokio::test(start_paused = true)]
async fn only_running_drains_hold_room() {
    let stage = stage(8);
    let replica = stage.start(&[]).await;
    warn(&stage, 0..2, MARKED);
    stage.until("two are drained", s(60), || drained_spots(&replica) > 1.5).await;
    assert_eq!(cordoned(&stage, 0..2), 2);
    warn(&stage, 2..4, "fulfilled");
    stage.until("two others are drained", s(60), || drained_spots(&replica) > 3.5).await;
    assert_eq!(stage.calls("DescribeSpotInstanceRequests"), 0);
    stage.rest(&[&replica]).await;
}

/// An attacker can't make AWS silent, but an outage can follow its answer.
#[tokio::test(start_paused = true)]
async fn a_denial_counts_until_aws_has_been_silent_for_half_a_minute() {
    let stage = stage(4);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    stage.until("the first is cordoned", s(10), || stage.cordoned(0)).await;
    warn(&stage, 1..2, "fulfilled");
    sleep(s(20)).await;
    untouched(&stage, 1);
    stage.world.faults.add(Rule::on("DescribeSpotInstanceRequests", Fault::Status(500)));
    sleep(s(24)).await;
    untouched(&stage, 1);
    stage.until("AWS has been silent", s(20), || stage.cordoned(1)).await;
    unusual(&replica, "unconfirmed", 1);
    stage.world.faults.clear();
    stage.until_handled(s(7200)).await;
    stage.rest(&[&replica]).await;
}

/// The drains end, and their room is free; the attacker sends again, also about others.
#[tokio::test(start_paused = true)]
async fn after_a_denial_room_alone_admits_nothing_that_aws_can_confirm() {
    let stage = stage(12);
    let replica = stage.start(&[]).await;
    warn(&stage, 0..8, "fulfilled");
    for round in 0..9 {
        sleep(s(10)).await;
        for n in 3..12 {
            request(&stage, n, "fulfilled");
            let id = format!("forged-{round}-{n}");
            stage.world.aws.sqs.send(messages::spot(&id, &instance(n), stage.world.clock.now()));
        }
    }
    assert_eq!(cordoned(&stage, 0..12), 3, "a quarter");
    // A real one is confirmed, and drained.
    warn(&stage, 11..12, MARKED);
    sleep(s(6)).await;
    assert!(stage.cordoned(11), "{}", stage.story());
    stage.until("the real one is drained", s(40), || stage.world.kube.pods_on(&node(11)).is_empty()).await;
    stage.until_handled(s(130)).await;
    assert_eq!(cordoned(&stage, 0..12), 4);
    // Ten minutes later the room counts again.
    sleep(s(610)).await;
    warn(&stage, 4..5, "fulfilled");
    stage.until("it is drained", s(40), || stage.world.kube.pods_on(&node(4)).is_empty()).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// Nothing that AWS could say would let them continue.
#[tokio::test(start_paused = true)]
async fn what_aws_cannot_confirm_has_no_limit() {
    let stage = stage(8);
    let replica = stage.start(&[]).await;
    let now = stage.world.clock.now();
    for n in 0..8 {
        let id = format!("reservation-{n}");
        stage.world.aws.sqs.send(messages::capacity_reservation(&id, &instance(n), now, now + s(120)));
    }
    stage.until("all are cordoned", s(5), || cordoned(&stage, 0..8) == 8).await;
    unusual(&replica, "too-many-drains", 0);
    stage.until_handled(s(60)).await;
    replica.all_ended("capacity-reservation", &[("drained", 8)]);
    stage.rest(&[&replica]).await;
}

/// But one that is dated back deletes no pod at once.
#[tokio::test(start_paused = true)]
async fn a_late_notice_that_aws_cannot_confirm_waits_for_a_quarter_of_what_is_left() {
    let stage = Stage::new(4, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let now = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::capacity_reservation("r", &instance(0), now - s(80), now + s(40)));
    sleep(s(9)).await;
    untouched(&stage, 0);
    stage.until("the pod is deleted", s(30), || stage.world.kube.pods_on(&node(0)).is_empty()).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// A recommendation has time: it waits for room, and is drained without in the end.
#[tokio::test(start_paused = true)]
async fn recommendations_are_drained_a_quarter_of_the_nodes_at_a_time() {
    let stage = stage(8);
    let replica = stage.start(&["--on", "rebalance=drain"]).await;
    for n in 0..8 {
        stage.rebalance(n);
    }
    for round in 1..=4 {
        sleep(s(15)).await;
        assert_eq!(cordoned(&stage, 0..8), 2 * round);
        stage.until("there is room", s(10), || cordoned(&stage, 0..8) > 2 * round || round == 4).await;
    }
    stage.until_handled(s(60)).await;
    replica.all_ended("rebalance", &[("drained", 8)]);
    stage.rest(&[&replica]).await;
}

/// A warning that is dated back may have pods deleted at once that a budget protects.
#[tokio::test(start_paused = true)]
async fn a_late_warning_deletes_no_pod_before_aws_has_had_time_for_its_word() {
    for (age, code, fault, after, within) in [
        (119, MARKED, None, 0, Some(3)),
        (119, "fulfilled", None, 25, None),
        (170, "fulfilled", None, 25, None),
        // A quarter of what is left, but two seconds at least.
        (100, MARKED, Some(Fault::Status(403)), 4, Some(15)),
        (119, MARKED, Some(Fault::Disconnect), 1, Some(4)),
        (170, "fulfilled", Some(Fault::Throttle), 1, Some(4)),
        (70, "fulfilled", Some(Fault::Throttle), 9, Some(25)),
    ] {
        let stage = Stage::new(4, 1);
        stage.block(0);
        let replica = stage.start(&[]).await;
        if let Some(fault) = fault {
            stage.world.faults.add(Rule::on("DescribeSpotInstanceRequests", fault));
        }
        let warned = stage.world.clock.now() - s(age);
        stage.world.aws.ec2.set_spot_request(&instance(0), code, "terminate", warned);
        stage.spot_of_age(0, s(age));
        sleep(s(after)).await;
        if after > 0 {
            untouched(&stage, 0);
        }
        if let Some(within) = within {
            let is_gone = || stage.world.kube.pods_on(&node(0)).is_empty();
            stage.until("the pod is deleted", s(within), is_gone).await;
        }
        unusual(&replica, "late", 1);
        stage.world.faults.clear();
        stage.until_handled(s(125)).await;
        stage.rest(&[&replica]).await;
    }
}

/// It warns of an end that has begun.
#[tokio::test(start_paused = true)]
async fn a_forged_hibernation_is_denied_within_the_limit() {
    let stage = Stage::new(4, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    request(&stage, 0, "fulfilled");
    let body = messages::spot("s", &instance(0), stage.world.clock.now()).replace("\"terminate\"", "\"hibernate\"");
    stage.world.aws.sqs.send(body);
    sleep(s(20)).await;
    untouched(&stage, 0);
    stage.until_handled(s(125)).await;
    replica.ended_once("spot", "not-admitted");
    stage.rest(&[&replica]).await;
}

/// EC2 shows it some seconds later, by the instance's state or by its request.
#[tokio::test(start_paused = true)]
async fn a_real_hibernation_that_aws_shows_late_is_drained() {
    for by_request in [true, false] {
        let stage = Stage::new(4, 1);
        let replica = stage.start(&[]).await;
        request(&stage, 0, "fulfilled");
        let warned = stage.world.clock.now();
        let body = messages::spot("s", &instance(0), warned).replace("\"terminate\"", "\"hibernate\"");
        stage.world.aws.sqs.send(body);
        sleep(s(35)).await;
        untouched(&stage, 0);
        if by_request {
            stage.world.aws.ec2.set_spot_request(&instance(0), "marked-for-stop", "hibernate", warned);
        } else {
            stage.world.aws.ec2.set_state(&instance(0), "stopping");
        }
        stage.until("drained", s(10), || stage.world.kube.pods_on(&node(0)).is_empty()).await;
        stage.until_handled(s(60)).await;
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// With this time for drains each message that is older has none left.
#[tokio::test(start_paused = true)]
async fn hooks_that_are_dated_back_pass_no_limit_before_aws_has_answered() {
    let stage = Stage::new(8, 1);
    let replica = stage.start(&["--drain-timeout", "asg-terminate=1m"]).await;
    sleep(s(600)).await;
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(3600)));
    for n in 0..8 {
        let token = format!("00000000-0000-4000-8000-{n:012}");
        stage.world.aws.autoscaling.join("group", &instance(n));
        let at = stage.world.clock.now() - s(120);
        let body = messages::lifecycle(Wrapping::Event, true, ("group", "hook", &token), &instance(n), at);
        stage.world.aws.sqs.send(body);
    }
    stage.until_handled(s(200)).await;
    assert_eq!(cordoned(&stage, 0..8), 2, "a quarter\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The first message leaves hours, and takes the room.
#[tokio::test(start_paused = true)]
async fn a_revision_that_is_late_waits_for_aws() {
    let stage = Stage::new(4, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let event = ("c", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED");
    stage.health(0, event, stage.world.clock.now() + s(6 * 3600), "upcoming");
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    stage.health(0, event, stage.world.clock.now() + s(20), "upcoming");
    sleep(s(25)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 1, "{}", stage.story());
    unusual(&replica, "late", 1);
    stage.unblock(0);
    stage.until_handled(s(600)).await;
    stage.rest(&[&replica]).await;
}
