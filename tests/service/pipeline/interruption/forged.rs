//! What somebody who may write to the queue, and only that, gets out of the limits: nothing.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::messages::{self, Wrapping};
use jiff::Timestamp;
use tokio::time::sleep;

use super::admission::{LIMITED, MARKED, VERIFIED, request, untouched, unusual};

const RETIREMENT: &str = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED";
const BLOCK: &str = "cr-0123456789abcdef0";
const FORGED: &str = "00000000-0000-4000-8000-000000000000";

fn drained(stage: &Stage, n: usize) -> bool {
    stage.world.kube.pods_on(&node(n)).is_empty()
}

/// A warning of a hibernation has its deadline now, so its node counts no more when its pods are deleted.
#[tokio::test(start_paused = true)]
async fn a_maximum_of_one_is_not_a_node_after_the_other() {
    let stage = Stage::new(10, 1);
    for n in 0..10 {
        stage.block(n);
    }
    let replica = stage.start(&["--max-draining", "1"]).await;
    for n in 0..10 {
        let body = messages::spot(&format!("h-{n}"), &instance(n), stage.world.clock.now());
        stage.world.aws.sqs.send(body.replace("\"terminate\"", "\"hibernate\""));
        sleep(s(10)).await;
    }
    stage.until_handled(s(120)).await;
    let gone = (0..10).filter(|n| drained(&stage, *n)).count();
    assert!(gone <= 1, "{gone} of 10 nodes are drained within 100 s, and 9 budgets overridden\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The same with the warnings of a termination, dated back by as much as they may be.
#[tokio::test(start_paused = true)]
async fn warnings_that_are_dated_back_make_their_own_room() {
    let stage = Stage::new(10, 1);
    for n in 0..10 {
        stage.block(n);
    }
    let replica = stage.start(&["--max-draining", "1"]).await;
    for n in 0..10 {
        stage.world.aws.ec2.set_spot_request(&instance(n), "fulfilled", "terminate", stage.world.clock.now());
        stage.spot_of_age(n, s(170));
        sleep(s(10)).await;
    }
    stage.until_handled(s(120)).await;
    let gone = (0..10).filter(|n| drained(&stage, *n)).count();
    assert!(gone <= 1, "{gone} of 10 nodes are drained within 100 s\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// EC2 is silent for longer than a queue leaves a message with its receiver, and the change is two weeks ahead.
#[tokio::test(start_paused = true)]
async fn a_change_that_was_not_admitted_is_not_noted_as_handled() {
    let stage = Stage::new(1, 1);
    let start = stage.world.clock.now() + s(14 * 24 * 3600);
    stage.world.aws.ec2.schedule(&instance(0), ("change-0", "instance-retirement"), start);
    stage.world.faults.add(Rule::on("DescribeInstanceStatus", Fault::Status(500)));
    let flags = [&VERIFIED[..], &["--ec2-poll-interval", "5m"]].concat();
    let replica = stage.start(&flags).await;
    let now = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::scheduled_change("c-0", RETIREMENT, &[&instance(0)], now, start));
    stage.until_handled(s(12 * 3600)).await;
    untouched(&stage, 0);
    stage.world.faults.clear();
    stage.until("what EC2 lists is acted on", s(3600), || drained(&stage, 0)).await;
    stage.rest(&[&replica]).await;
}

/// A hook of an instance that has no Node yet is completed without a question.
#[tokio::test(start_paused = true)]
async fn a_forged_hook_of_an_instance_without_a_node_is_not_completed() {
    let stage = Stage::new(1, 1);
    let other = instance(1);
    stage.world.aws.ec2.put(&other, &[("aws-node-termination-handler/managed", "true")]);
    stage.world.aws.autoscaling.add_hook("group", "launch", HookSpec::launching(s(3600)));
    stage.world.aws.autoscaling.begin("group", "launch", &other);
    let replica = stage.start(&VERIFIED).await;
    let now = stage.world.clock.now();
    let names = ("group", "launch", FORGED);
    stage.world.aws.sqs.send(messages::lifecycle(Wrapping::Event, true, names, &other, now));
    stage.until_handled(s(4000)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0, "AWS confirms no termination\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn what_aws_has_denied_does_not_go_on_when_a_call_fails() {
    let stage = Stage::new(2, 1);
    let replica = stage.start(&LIMITED).await;
    stage.spot(0);
    stage.until("the first is drained", s(20), || drained(&stage, 0)).await;
    request(&stage, 1, "fulfilled");
    stage.spot(1);
    sleep(s(10)).await;
    stage.world.faults.add(Rule::on("DescribeSpotInstanceRequests", Fault::Status(500)));
    stage.world.faults.add(Rule::on("DescribeInstances", Fault::Status(500)));
    sleep(s(10)).await;
    stage.world.kube.remove_node(&node(0));
    stage.until_handled(s(200)).await;
    untouched(&stage, 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_confirmed_is_told_though_the_second_call_fails() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&VERIFIED).await;
    request(&stage, 0, "fulfilled");
    stage.world.faults.add(Rule::on("DescribeSpotInstanceRequests", Fault::Status(500)).after(1).times(1));
    stage.spot(0);
    stage.until_handled(s(200)).await;
    untouched(&stage, 0);
    unusual(&replica, "not-confirmed", 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn notices_of_one_instance_share_one_question() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&VERIFIED).await;
    request(&stage, 0, "fulfilled");
    for n in 0..1000 {
        let now = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::spot(&format!("f-{n}"), &instance(0), now));
    }
    stage.until_handled(s(200)).await;
    untouched(&stage, 0);
    let calls = stage.calls("DescribeSpotInstanceRequests") + stage.calls("DescribeInstances");
    assert!(calls <= 60, "{calls} calls about one instance in two minutes");
    stage.rest(&[&replica]).await;
}

/// 203 messages name 100 nodes each. All wait unconfirmed, and none keeps a real one waiting.
#[tokio::test(start_paused = true)]
async fn forged_notices_of_many_instances_hold_no_places_that_others_need() {
    let stage = Stage::new(102, 1);
    let replica = stage.start(&["--max-draining", "1", "--verify", "unusual"]).await;
    stage.spot(101);
    stage.until("the first is drained", s(20), || drained(&stage, 101)).await;
    let (now, instances) = (stage.world.clock.now(), (0..100).map(instance).collect::<Vec<_>>());
    let named: Vec<&str> = instances.iter().map(AsRef::as_ref).collect();
    for n in 0..203 {
        let body = messages::scheduled_change(&format!("flood-{n}"), RETIREMENT, &named, now, now + s(14 * 24 * 3600));
        stage.world.aws.sqs.send(body);
    }
    sleep(s(60)).await;
    // The second instance that it names needs a permit.
    let start = stage.world.clock.now() + s(3000);
    for n in [99, 100] {
        stage.world.aws.ec2.schedule(&instance(n), (&format!("real-{n}"), "instance-retirement"), start);
    }
    let body =
        messages::scheduled_change("real", RETIREMENT, &[named[99], &instance(100)], stage.world.clock.now(), start);
    stage.world.aws.sqs.send(body);
    stage.until("the real ones are drained", s(120), || drained(&stage, 99) && drained(&stage, 100)).await;
    assert_eq!((0..99).filter(|n| drained(&stage, *n)).count(), 0);
    drop(replica);
}

/// A process holds at most 8,000 messages at once, and each of these would wait for an hour.
#[tokio::test(start_paused = true)]
async fn forged_messages_without_number_do_not_stop_the_receipt() {
    let stage = Stage::new(3, 1);
    let replica = stage.start(&LIMITED).await;
    stage.spot(0);
    stage.until("the first is drained", s(20), || drained(&stage, 0)).await;
    for n in 0..20_000 {
        let now = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::rebalance(&format!("r-{n}"), &instance(1), now));
    }
    sleep(s(60)).await;
    request(&stage, 2, MARKED);
    stage.spot(2);
    stage.until("the real one is drained", s(60), || drained(&stage, 2)).await;
    untouched(&stage, 1);
    drop(replica);
}

/// The identity of a block's end is known before its message, and its time is not part of it.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_block_that_is_dated_ahead_does_not_take_the_place_of_the_real_one() {
    for forged_first in [true, false] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        stage.world.aws.ec2.reserve(&instance(0), BLOCK);
        let replica = stage.start(&[]).await;
        let now = stage.world.clock.now();
        let end = |at| messages::capacity_block("e", BLOCK, at, now + s(2400));
        let mut ends = [end(now + s(1000)), end(now)];
        if !forged_first {
            ends.reverse();
        }
        for end in ends {
            stage.world.aws.sqs.send(end);
            sleep(s(10)).await;
        }
        stage.until_handled(s(590)).await;
        assert!(drained(&stage, 0), "before the terminations begin, after ten minutes");
        replica.ended_as("capacity-reservation", "drained", 1);
        stage.rest(&[&replica]).await;
    }
}

/// Somebody knows the ARN of a change.
#[tokio::test(start_paused = true)]
async fn a_confirmed_drain_is_neither_put_off_nor_called_off_by_a_forged_revision() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let (ec2, start) = (&stage.world.aws.ec2, stage.world.clock.now() + s(3000));
    ec2.schedule(&instance(0), ("change-0", "instance-retirement"), start);
    let replica = stage.start(&VERIFIED).await;
    let send = |start, status| stage.health(0, ("c-0", RETIREMENT), start, status);
    send(start, "upcoming");
    stage.until("it is confirmed", s(10), || stage.cordoned(0)).await;
    sleep(s(10)).await;
    send(start + s(30 * 24 * 3600), "upcoming");
    sleep(s(60)).await;
    send(start - s(2900), "upcoming");
    sleep(s(120)).await;
    send(start, "closed");
    sleep(s(120)).await;
    assert!(stage.cordoned(0) && stage.has_pod("web-0-0"), "{}", stage.story());
    unusual(&replica, "not-confirmed", 3);
    // AWS calls it off.
    ec2.close("change-0", "Canceled");
    send(start, "closed");
    stage.until("it is called off", s(60), || !stage.cordoned(0)).await;
    stage.until_handled(s(60)).await;
    replica.ended_as("scheduled-change", "withdrawn", 1);
    assert!(stage.has_pod("web-0-0"));
    stage.rest(&[&replica]).await;
}

/// A fault is asked of nobody, so it says nothing of the change whose ARN it has.
#[tokio::test(start_paused = true)]
async fn a_forged_fault_neither_ends_the_drain_for_a_change_nor_removes_its_mark() {
    for faults in [&[][..], &["--health-issue", "AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED=report"]] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let (ec2, start) = (&stage.world.aws.ec2, stage.world.clock.now() + s(3000));
        ec2.schedule(&instance(0), ("change-0", "instance-retirement"), start);
        let replica = stage.start(&[&VERIFIED[..], faults].concat()).await;
        stage.health(0, ("c-0", RETIREMENT), start, "upcoming");
        stage.until("it is confirmed", s(10), || stage.cordoned(0)).await;
        let fault = |status: &str| {
            let body = with_arn(&stage, "AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED", start);
            let body = body.replace("\"scheduledChange\"", "\"issue\"");
            stage.world.aws.sqs.send(body.replace("\"upcoming\"", &format!("\"{status}\"")));
        };
        for status in ["open", "closed"] {
            sleep(s(10)).await;
            fault(status);
        }
        sleep(s(60)).await;
        assert!(stage.cordoned(0), "{}", stage.story());
        stage.unblock(0);
        stage.until_handled(s(60)).await;
        replica.ended_as("scheduled-change", "drained", 1);
        fault("closed");
        sleep(s(600)).await;
        assert!(stage.cordoned(0), "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// Returns a message about the first node with this code, and the ARN of the change `c-0`, a retirement.
fn with_arn(stage: &Stage, code: &str, start: Timestamp) -> String {
    let real = messages::scheduled_change("c-0", RETIREMENT, &[&instance(0)], stage.world.clock.now(), start);
    let named = |code: &str| format!("\"eventTypeCode\":\"{code}\"");
    assert!(real.contains(&named(RETIREMENT)), "{real}");
    real.replace(&named(RETIREMENT), &named(code))
}

/// The begin of a change ends the capacity, or it does not: the message alone says so, and the mark that another left does not.
#[tokio::test(start_paused = true)]
async fn a_mark_of_a_reboot_confirms_no_retirement() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let there = stage.with_own_queue();
    let (ec2, start) = (&stage.world.aws.ec2, stage.world.clock.now() + s(900));
    ec2.schedule(&instance(0), ("change-0", "system-reboot"), start);
    let (replica, other) = (stage.start(&VERIFIED).await, there.start(&VERIFIED).await);
    stage.world.aws.sqs.send(with_arn(&stage, "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", start));
    stage.until("it is confirmed", s(10), || stage.cordoned(0)).await;
    there.health(0, ("c-0", RETIREMENT), start, "upcoming");
    sleep(s(899)).await;
    assert!(stage.has_pod("web-0-0"), "a budget is overridden\n{}", stage.story());
    drop((replica, other));
}

/// The drain is over; the mark stays until the change has happened.
#[tokio::test(start_paused = true)]
async fn a_forged_end_of_a_change_removes_no_mark() {
    let stage = Stage::new(1, 1);
    let (ec2, start) = (&stage.world.aws.ec2, stage.world.clock.now() + s(3000));
    ec2.schedule(&instance(0), ("change-0", "instance-retirement"), start);
    let replica = stage.start(&VERIFIED).await;
    stage.health(0, ("c-0", RETIREMENT), start, "upcoming");
    stage.until_handled(s(60)).await;
    stage.health(0, ("c-0", RETIREMENT), start, "closed");
    sleep(s(600)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    ec2.close("change-0", "Canceled");
    stage.until("it is called off", s(60), || !stage.cordoned(0)).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// All annotations of a Node share 256 KiB.
#[tokio::test(start_paused = true)]
async fn a_node_carries_no_more_than_some_marks_whatever_names_it() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--on", "rebalance=drain"]).await;
    for n in 0..300 {
        let now = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::rebalance(&format!("r-{n}"), &instance(0), now));
    }
    stage.until("cordoned", s(20), || stage.cordoned(0)).await;
    sleep(s(60)).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    let marks = stage.notices(0).len();
    assert!(marks <= 64, "{marks} marks");
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    replica.all_ended("rebalance", &[("drained", 300)]);
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// The node is drained for its hook, beyond the maximum and confirmed. A warning that EC2 denies overrides its budget.
#[tokio::test(start_paused = true)]
async fn beyond_the_maximum_a_confirmed_drain_admits_no_other_notice_of_its_node() {
    let stage = Stage::new(2, 1);
    stage.block(1);
    let replica = stage.start(&LIMITED).await;
    stage.spot(0);
    stage.until("the first is cordoned", s(10), || stage.cordoned(0)).await;
    stage.terminate(1, s(3600), Wrapping::Event);
    stage.until("the hook is confirmed", s(20), || stage.cordoned(1)).await;
    request(&stage, 1, "fulfilled");
    stage.spot_of_age(1, s(119));
    sleep(s(60)).await;
    assert!(stage.has_pod("web-1-0"), "a budget is overridden on a forged word\n{}", stage.story());
    drop(replica);
}

/// A replica that takes over does not ask again for what the one before has begun.
#[tokio::test(start_paused = true)]
async fn a_confirmed_drain_goes_on_after_a_takeover_though_aws_is_silent() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let first = stage.start(&VERIFIED).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    stage.until("it is confirmed", s(20), || stage.cordoned(0)).await;
    let killed = first.kill().await;
    killed.gone(|_| true).await;
    stage.world.faults.add(Rule::on("DescribeAutoScalingInstances", Fault::Status(500)));
    let second = stage.start(&VERIFIED).await;
    stage.unblock(0);
    stage.until("the drain goes on", s(300), || drained(&stage, 0)).await;
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&second]).await;
}
