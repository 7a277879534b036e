//! Messages that somebody has made so that the limits take them for others, or AWS's word for theirs.

use super::admission::{LIMITED, MARKED, VERIFIED, request, untouched};
use crate::harness::{Stage, instance, node, s};
use crate::nodes::TO_POOL;
use ebbtide_sim::aws::{HookResult, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::messages::{self, Wrapping};
use jiff::Timestamp;
use std::time::Duration;
use tokio::time::sleep;

const RETIREMENT: &str = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED";
const STOP: &str = "AWS_EC2_INSTANCE_STOP_SCHEDULED";
const TEST_TOKEN: &str = "ebbtide-test-1";
const ANY_TOKEN: &str = "00000000-0000-4000-8000-000000000000";
const BLOCK: &str = "cr-0123456789abcdef0";

fn now(stage: &Stage) -> Timestamp {
    stage.world.clock.now()
}

fn drained(stage: &Stage, n: usize) -> bool {
    stage.world.kube.pods_on(&node(n)).is_empty()
}

/// No call shows the interruption of such a reservation, and its deadline is hard.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_aws_does_not_show_to_be_interrupted_overrides_no_budget_if_all_are_verified() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&VERIFIED).await;
    let body = messages::capacity_reservation("r-0", &instance(0), now(&stage), now(&stage) + s(2));
    stage.world.aws.sqs.send(body);
    stage.until_handled(s(200)).await;
    untouched(&stage, 0);
    replica.ended_once("capacity-reservation", "not-admitted");
    stage.rest(&[&replica]).await;
}

/// A mark says that AWS has been asked before: not that of a cordon which a message of another kind has set, whatever its id.
#[tokio::test(start_paused = true)]
async fn a_cordon_opens_no_door_for_a_drain_with_the_same_identity() {
    let flags = [&VERIFIED[..], &["--max-draining", "1"]].concat();
    let stage = Stage::new(2, 1);
    stage.block(0);
    stage.block(1);
    stage.world.aws.autoscaling.join("group", &instance(0));
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(900)));
    let replica = stage.start(&flags).await;
    for (n, id) in [(0, "group/hook/token"), (1, "x")] {
        stage.world.aws.sqs.send(messages::rebalance(id, &instance(n), now(&stage)));
    }
    sleep(s(30)).await;
    stage.send_terminate(0, "token", Wrapping::Event);
    request(&stage, 1, "fulfilled");
    stage.world.aws.sqs.send(messages::spot("x", &instance(1), now(&stage)));
    stage.until_handled(s(1000)).await;
    assert!(stage.has_pod("web-0-0") && stage.has_pod("web-1-0"), "{}", stage.story());
    replica.ended_once("asg-terminate", "not-admitted");
    replica.ended_once("spot", "not-admitted");
    stage.rest(&[&replica]).await;
}

/// A drain is counted by its mark, and a node carries 64.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_full_of_cordons_counts_when_it_is_drained() {
    let stage = Stage::new(15, 1);
    (0..3).for_each(|n| stage.block(n));
    let replica = stage.start(&["--max-draining", "1"]).await;
    for n in 0..3 {
        for mark in 0..64 {
            stage.world.aws.sqs.send(messages::rebalance(&format!("r-{n}-{mark}"), &instance(n), now(&stage)));
        }
    }
    stage.until("all are cordoned", s(120), || (0..3).all(|n| stage.notices(n).len() == 64)).await;
    for n in 0..3 {
        let body = messages::spot(&format!("h-{n}"), &instance(n), now(&stage));
        stage.world.aws.sqs.send(body.replace("\"terminate\"", "\"hibernate\""));
        sleep(s(10)).await;
    }
    stage.until_handled(s(120)).await;
    assert_eq!((0..3).filter(|n| drained(&stage, *n)).count(), 1, "{}", stage.story());
    assert!((0..3).all(|n| stage.notices(n).len() <= 64));
    stage.rest(&[&replica]).await;
}

/// Nobody has announced the change, and the sender of its end is that of its begin.
#[tokio::test(start_paused = true)]
async fn changes_that_are_called_off_make_no_room_for_the_next() {
    let stage = Stage::new(10, 1);
    (0..10).for_each(|n| stage.block(n));
    let replica = stage.start(&["--max-draining", "1"]).await;
    for n in 0..10 {
        let (id, start) = (format!("c-{n}"), now(&stage) + s(3));
        stage.health(n, (&id, RETIREMENT), start, "upcoming");
        sleep(s(8)).await;
        stage.health(n, (&id, RETIREMENT), start, "closed");
        sleep(s(8)).await;
    }
    let gone = (0..10).filter(|n| drained(&stage, *n)).count();
    assert!(gone <= 1, "{gone} of 10 nodes are drained within 160 s\n{}", stage.story());
    drop(replica);
}

/// EC2 lists no change that begins in a month, so that it does not list it any more.
#[tokio::test(start_paused = true)]
async fn a_change_is_not_called_off_by_another_begin() {
    let stage = Stage::new(1, 1);
    let start = now(&stage) + s(3000);
    stage.world.aws.ec2.schedule(&instance(0), ("change-0", "instance-retirement"), start);
    let replica = stage.start(&VERIFIED).await;
    stage.health(0, ("c-0", RETIREMENT), start, "upcoming");
    stage.until_handled(s(60)).await;
    stage.health(0, ("c-0", RETIREMENT), start + s(30 * 24 * 3600), "closed");
    sleep(s(600)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.world.aws.ec2.close("change-0", "Canceled");
    stage.until("it is called off", s(60), || !stage.cordoned(0)).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// Until it is near, its plan says when it begins.
#[tokio::test(start_paused = true)]
async fn a_planned_change_is_not_called_off_by_another_begin() {
    let stage = Stage::new(1, 1);
    let start = now(&stage) + s(3000);
    stage.world.aws.ec2.schedule(&instance(0), ("change-0", "instance-stop"), start);
    let replica = stage.start(&[&VERIFIED[..], &["--when", "scheduled-change=10m-before"]].concat()).await;
    stage.health(0, ("c-0", STOP), start, "upcoming");
    stage.until_handled(s(60)).await;
    untouched(&stage, 0);
    stage.health(0, ("c-0", STOP), start + s(30 * 24 * 3600), "closed");
    stage.until("it is drained when it is near", s(2600), || drained(&stage, 0)).await;
    stage.until_handled(s(7200)).await;
    stage.rest(&[&replica]).await;
}

/// Somebody has made it up, and its plan is on the Node. EC2 is asked until the begin, and not for ever.
#[tokio::test(start_paused = true)]
async fn a_planned_change_that_ec2_never_lists_is_forgotten_after_its_begin() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[&VERIFIED[..], &["--when", "scheduled-change=10m-before"]].concat()).await;
    stage.health(0, ("c-0", STOP), now(&stage) + s(3000), "upcoming");
    stage.until("planned", s(60), || !stage.plans(0).is_empty()).await;
    stage.until_handled(s(60)).await;
    sleep(s(2900)).await;
    assert_eq!(stage.plans(0).len(), 1, "EC2 may still list it");
    stage.until("forgotten", s(7200), || stage.plans(0).is_empty()).await;
    let asked = stage.calls("DescribeInstanceStatus");
    sleep(s(3600)).await;
    assert_eq!(stage.calls("DescribeInstanceStatus"), asked, "{}", stage.story());
    untouched(&stage, 0);
    stage.rest(&[&replica]).await;
}

/// Its drain is going on, and may be called off as little.
#[tokio::test(start_paused = true)]
async fn a_drain_is_not_called_off_by_another_begin() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let start = now(&stage) + s(3000);
    stage.world.aws.ec2.schedule(&instance(0), ("change-0", "instance-retirement"), start);
    let replica = stage.start(&VERIFIED).await;
    stage.health(0, ("c-0", RETIREMENT), start, "upcoming");
    stage.until("it is confirmed", s(10), || stage.cordoned(0)).await;
    stage.health(0, ("c-0", RETIREMENT), start + s(30 * 24 * 3600), "closed");
    sleep(s(300)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    drop(replica);
}

/// AWS names the begin of each change.
#[tokio::test(start_paused = true)]
async fn a_change_without_a_begin_is_not_confirmed_by_one_that_is_far_ahead() {
    let stage = Stage::new(1, 1);
    let ahead = now(&stage) + s(14 * 86_400);
    stage.world.aws.ec2.schedule(&instance(0), ("change-0", "instance-stop"), ahead);
    let replica = stage.start(&[&VERIFIED[..], &["--when", "scheduled-change=2h-before"]].concat()).await;
    let body = messages::scheduled_change("f", STOP, &[&instance(0)], now(&stage), ahead);
    stage.world.aws.sqs.send(body.replace("\"startTime\"", "\"started\""));
    sleep(s(600)).await;
    untouched(&stage, 0);
    // It begins now.
    stage.world.aws.ec2.schedule(&instance(0), ("change-0", "instance-stop"), now(&stage));
    stage.until("it is confirmed", s(60), || stage.cordoned(0)).await;
    drop(replica);
}

/// The block ends, but not as early as the message says.
#[tokio::test(start_paused = true)]
async fn a_block_that_ends_later_confirms_no_earlier_end() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let ends = now(&stage) + s(65 * 60);
    stage.world.aws.ec2.reserve(&instance(0), BLOCK);
    stage.world.aws.ec2.add_reservation(BLOCK, true, "p5.48xlarge", ends);
    let replica = stage.start(&VERIFIED).await;
    let early = now(&stage) + s(30 * 60 + 1);
    stage.world.aws.sqs.send(messages::capacity_block("e", BLOCK, now(&stage), early));
    sleep(s(120)).await;
    untouched(&stage, 0);
    // The instances of UltraServers are terminated an hour before, and those of others half an hour.
    stage.world.aws.sqs.send(messages::capacity_block("u", BLOCK, now(&stage), ends));
    stage.until_handled(s(300)).await;
    untouched(&stage, 0);
    sleep(s(20 * 60)).await;
    stage.world.aws.sqs.send(messages::capacity_block("f", BLOCK, now(&stage), ends));
    stage.until("the real end is confirmed", s(60), || stage.cordoned(0)).await;
    drop(replica);
}

/// With each notice that AWS denies, the one that has waited longest for room would go.
#[tokio::test(start_paused = true)]
async fn forged_notices_of_an_instance_do_not_crowd_out_its_honest_one() {
    let stage = Stage::new(2, 1);
    let replica = stage.start(&LIMITED).await;
    stage.spot(0);
    stage.until("the first is drained", s(20), || drained(&stage, 0)).await;
    stage.world.aws.sqs.send(messages::rebalance("honest", &instance(1), now(&stage)));
    sleep(s(10)).await;
    request(&stage, 1, "fulfilled");
    for n in 0..20 {
        stage.world.aws.sqs.send(messages::spot(&format!("f-{n}"), &instance(1), now(&stage)));
        sleep(s(1)).await;
    }
    sleep(s(200)).await;
    untouched(&stage, 1);
    stage.world.kube.remove_node(&node(0));
    stage.until("there is room for the honest one", s(60), || drained(&stage, 1)).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// EC2 marks the request some seconds after its warning. Others say that the instance hibernates, or are dated back, which AWS never shows.
#[tokio::test(start_paused = true)]
async fn forged_warnings_do_not_crowd_out_the_real_one_before_aws_shows_it() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&VERIFIED).await;
    request(&stage, 0, "fulfilled");
    stage.spot(0);
    sleep(s(2)).await;
    for n in 0..20 {
        let at = now(&stage) - s(if n % 2 == 0 { 3600 } else { 0 });
        let body = messages::spot(&format!("f-{n}"), &instance(0), at);
        let body = if n % 2 == 0 { body } else { body.replace("\"terminate\"", "\"hibernate\"") };
        stage.world.aws.sqs.send(body);
        sleep(Duration::from_millis(200)).await;
    }
    request(&stage, 0, MARKED);
    stage.until("the real one is drained", s(20), || drained(&stage, 0)).await;
    drop(replica);
}

/// It is a hint that an instance comes out of its warm pool, and Auto Scaling knows nothing of it.
#[tokio::test(start_paused = true)]
async fn a_forged_launch_from_a_warm_pool_uncordons_nothing() {
    for is_denied in [false, true] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(&["--on", "asg-launch=ready"]).await;
        stage.terminate(0, s(600), Wrapping::Event);
        stage.until("cordoned", s(10), || stage.cordoned(0)).await;
        stage.world.aws.autoscaling.add_hook("group", "launch", HookSpec::launching(s(300)));
        let names = ("group", "launch", ANY_TOKEN);
        let way = ("WarmPool", "AutoScalingGroup");
        let body = messages::lifecycle_between(Wrapping::Event, false, names, &instance(0), now(&stage), way);
        if is_denied {
            stage.world.faults.add(Rule::on("RecordLifecycleActionHeartbeat", Fault::Status(403)));
        }
        stage.world.aws.sqs.send(body);
        sleep(s(60)).await;
        assert!(stage.cordoned(0), "denied: {is_denied}\n{}", stage.story());
        drop(replica);
    }
}

/// The text is dropped once it is read, so padding takes no room: a spot warning after such messages is received at once.
#[tokio::test(start_paused = true)]
async fn padded_messages_do_not_stop_the_receipt() {
    for (padded, size) in [(70, 250_000), (20, 1_000_000)] {
        let stage = Stage::new(2, 1);
        stage.block(0);
        let replica = stage.start(&["--on", "rebalance=drain"]).await;
        let padding = format!("\"padding\":\"{}\",\"detail\":", "x".repeat(size));
        for n in 0..padded {
            let body = messages::rebalance(&format!("r-{n}"), &instance(0), now(&stage));
            stage.world.aws.sqs.send(body.replacen("\"detail\":", &padding, 1));
        }
        sleep(s(30)).await;
        assert_eq!(stage.world.aws.sqs.in_flight(), padded, "all are held");
        stage.spot(1);
        stage.until("cordoned", s(2), || stage.cordoned(1)).await;
        stage.unblock(0);
        stage.until_handled(s(60)).await;
        replica.all_ended("rebalance", &[("drained", padded)]);
        stage.rest(&[&replica]).await;
    }
}

/// Auto Scaling says that the instance waits, and not at which hook, nor since when.
#[tokio::test(start_paused = true)]
async fn a_forged_hook_of_an_instance_that_waits_presses_no_drain() {
    let others = [("other", "hook", 0), ("other", "hook", 7200)];
    let of_group = [("group", "hook", 7200), ("group", "hook", 0), ("group", "short", 2900)];
    let cases = [&others[..], &of_group].concat().into_iter();
    for ((group, hook, age), token) in cases.flat_map(|case| [(case, ANY_TOKEN), (case, TEST_TOKEN)]) {
        let stage = Stage::new(1, 1);
        stage.block(0);
        stage.world.aws.autoscaling.add_hook("other", "hook", HookSpec::terminating(s(30)));
        stage.world.aws.autoscaling.add_hook("group", "short", HookSpec::terminating(s(30)));
        let fault = if hook == "short" { Fault::Throttle } else { Fault::Slow(s(5)) };
        stage.world.faults.add(Rule::on("RecordLifecycleActionHeartbeat", fault));
        let replica = stage.start(&VERIFIED).await;
        let names = (group, hook, token);
        let token = stage.terminate(0, s(3600), Wrapping::Event);
        stage.until("it is confirmed", s(20), || stage.cordoned(0)).await;
        let body = messages::lifecycle(Wrapping::Event, true, names, &instance(0), now(&stage) - s(age));
        stage.world.aws.sqs.send(body);
        sleep(s(2400)).await;
        assert!(stage.has_pod("web-0-0"), "{names:?} {age}: a budget is overridden\n{}", stage.story());
        stage.unblock(0);
        stage.until("drained", s(60), || drained(&stage, 0)).await;
        stage.until("completed", s(60), || !stage.action(&token).completions.is_empty()).await;
        stage.completed_once(&token);
        stage.until_handled(s(3600)).await;
        stage.rest(&[&replica]).await;
    }
}

/// A hook whose message is read late is kept alive and completed all the same.
#[tokio::test(start_paused = true)]
async fn an_old_message_of_a_real_hook_is_proven_by_its_first_heartbeat() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(900)));
    let token = stage.world.aws.autoscaling.begin("group", "hook", &instance(0));
    stage.send_terminate(0, &token, Wrapping::Event);
    sleep(s(800)).await;
    let replica = stage.start(&VERIFIED).await;
    stage.until_handled(s(200)).await;
    assert!(drained(&stage, 0), "the hook's end is hard\n{}", stage.story());
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// Within the limit nothing is confirmed. The instance is in service, and Auto Scaling knows no action of the token. A copy comes to
/// another replica, which finds the mark.
#[tokio::test(start_paused = true)]
async fn a_forged_hook_within_the_limit_overrides_no_budget() {
    let cases = [(7200, ANY_TOKEN, false), (0, ANY_TOKEN, false), (7200, TEST_TOKEN, false), (0, TEST_TOKEN, false)];
    let denied = [(7200, ANY_TOKEN, true), (0, ANY_TOKEN, true)];
    let cases = [&cases[..], &denied].concat().into_iter();
    let flags = [&["--max-draining", "1"][..], &["--max-draining", "1", "--drain-timeout", "300s"]];
    for ((age, token, is_denied), flags) in cases.flat_map(|case| flags.map(|flags| (case, flags))) {
        let stage = Stage::new(2, 1);
        stage.block(0);
        stage.world.aws.autoscaling.join("group", &instance(0));
        stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(300)));
        let there = stage.with_own_queue();
        if is_denied {
            stage.world.faults.add(Rule::on("RecordLifecycleActionHeartbeat", Fault::Status(403)));
        }
        let (replica, other) = (stage.start(flags).await, there.start(flags).await);
        let names = ("group", "hook", token);
        let body = messages::lifecycle(Wrapping::Event, true, names, &instance(0), now(&stage) - s(age));
        stage.world.aws.sqs.send(body.clone());
        stage.until("marked", s(30), || stage.cordoned(0)).await;
        there.world.aws.sqs.send(body);
        stage.until_handled(s(4000)).await;
        there.until_handled(s(4000)).await;
        let case = format!("{age} {token} {is_denied} {flags:?}");
        assert!(stage.has_pod("web-0-0"), "{case}: a budget is overridden\n{}", stage.story());
        stage.rest(&[&replica, &other]).await;
    }
}

/// By default messages within the limit are trusted, also that of a forged hook. AWS's answer to its first heartbeat, that there is no such action
/// or that the heartbeat is denied, must not delete at once what a real hook would have left its time; nor may its end come before a heartbeat.
#[tokio::test(start_paused = true)]
async fn an_answer_that_a_hook_never_was_hurries_no_drain() {
    let [plain, short] = [&[][..], &["--drain-timeout", "asg-terminate=300s"]];
    let cases = [0, 30, 205, 805, 7200].into_iter().flat_map(|age| {
        [ANY_TOKEN, TEST_TOKEN].into_iter().flat_map(move |token| {
            [(plain, false), (plain, true), (short, false)].map(move |(flags, denied)| (age, token, flags, denied))
        })
    });
    for (age, token, flags, is_denied) in cases {
        let stage = Stage::new(2, 1);
        stage.block(0);
        stage.world.aws.autoscaling.join("group", &instance(0));
        stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(300)));
        if is_denied {
            stage.world.faults.add(Rule::on("RecordLifecycleActionHeartbeat", Fault::Status(403)));
        }
        let replica = stage.start(flags).await;
        let names = ("group", "hook", token);
        let body = messages::lifecycle(Wrapping::Event, true, names, &instance(0), now(&stage) - s(age));
        stage.world.aws.sqs.send(body);
        stage.until_handled(s(8000)).await;
        let case = format!("{age} {token} {flags:?} {is_denied}");
        assert!(stage.has_pod("web-0-0"), "{case}: a budget is overridden\n{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// The hook is real, but heartbeats are denied: the drain ends before the hook times out, whether or not the instance can be looked up.
#[tokio::test(start_paused = true)]
async fn a_real_hook_without_the_right_to_heartbeats_is_drained_in_time() {
    for search in [None, Some(Fault::Status(403)), Some(Fault::Throttle)] {
        let stage = Stage::new(2, 1);
        stage.block(0);
        stage.world.faults.add(Rule::on("RecordLifecycleActionHeartbeat", Fault::Status(403)));
        if let Some(fault) = search {
            stage.world.faults.add(Rule::on("DescribeAutoScalingInstances", fault));
        }
        let replica = stage.start(&[]).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        stage.until_handled(s(300)).await;
        assert!(drained(&stage, 0), "{search:?}: deleted before the hook expires\n{}", stage.story());
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

/// An action that has ended before its first heartbeat still ends the drain: the instance is on its way out.
#[tokio::test(start_paused = true)]
async fn an_action_that_others_have_completed_before_its_first_heartbeat_ends_the_drain() {
    let stage = Stage::new(2, 1);
    stage.block(0);
    let token = stage.terminate(0, s(300), Wrapping::Event);
    let replica = stage.start(&[]).await;
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
    stage.until_handled(s(200)).await;
    assert!(drained(&stage, 0), "AWS has confirmed the end\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The hooks of instances that would return, with an old date: AWS does not say whether their nodes, which became Ready since, are back.
#[tokio::test(start_paused = true)]
async fn forged_hooks_of_instances_that_may_be_back_make_no_room_one_after_the_other() {
    let stage = Stage::new(4, 1);
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(60)));
    for n in 0..4 {
        stage.world.aws.autoscaling.join("group", &instance(n));
        stage.set_ready(n, false);
        stage.set_ready(n, true);
    }
    stage.world.faults.add(Rule::on("RecordLifecycleActionHeartbeat", Fault::Status(403)));
    stage.world.faults.add(Rule::on("CompleteLifecycleAction", Fault::Status(403)));
    let replica = stage.start(&["--max-draining", "1", "--drain-timeout", "asg-terminate=1m"]).await;
    for n in 0..4 {
        let (token, at) = (ANY_TOKEN.replace("0-0000", &format!("0-000{n}")), now(&stage) - s(600));
        let names = ("group", "hook", token.as_str());
        stage.world.aws.sqs.send(messages::lifecycle_between(Wrapping::Event, true, names, &instance(n), at, TO_POOL));
        sleep(s(200)).await;
    }
    let gone = (0..4).filter(|n| drained(&stage, *n)).count();
    assert!(gone <= 1, "{gone} of 4 nodes are drained\n{}", stage.story());
    stage.until_handled(s(4000)).await;
    stage.rest(&[&replica]).await;
}

/// Its node is not Ready for a moment, which says nothing of its return.
#[tokio::test(start_paused = true)]
async fn a_forged_hook_of_an_instance_that_flaps_overrides_no_budget() {
    let stage = Stage::new(2, 1);
    stage.block(0);
    stage.world.aws.autoscaling.join("group", &instance(0));
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(300)));
    let replica = stage.start(&["--max-draining", "1"]).await;
    let names = ("group", "hook", ANY_TOKEN);
    let body = messages::lifecycle_between(Wrapping::Event, true, names, &instance(0), now(&stage), TO_POOL);
    stage.world.aws.sqs.send(body);
    stage.until("marked", s(30), || stage.cordoned(0)).await;
    sleep(s(10)).await;
    stage.set_ready(0, false);
    sleep(s(5)).await;
    stage.set_ready(0, true);
    stage.until_handled(s(4000)).await;
    assert!(stage.has_pod("web-0-0"), "a budget is overridden\n{}", stage.story());
    stage.rest(&[&replica]).await;
}
