//! `--source queue,nodes`: a message and a Node tell of the same, and a Node takes back what it has said.

use super::nodes::{MAINTENANCE, SPOT, TERMINATION, outcomes};
use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use jiff::Timestamp;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;

const ZONE: &str = "topology.kubernetes.io/zone";
const WAVES: [&str; 7] = [
    "--wave",
    "topology.kubernetes.io/zone=1",
    "--on",
    "rebalance=drain",
    "--drain-timeout",
    "rebalance=2d",
    "--max-draining=none",
];

const WHEN_NEAR: [&str; 2] = ["--when", "scheduled-change=300s-before"];

/// Has the n-th node say that its group terminates the instance.
fn says_termination(stage: &Stage, n: usize) {
    stage.annotate(n, TERMINATION, "{\"what\":\"terminate\"}");
}

/// Nobody can tell whose instance it is for longer than the drain's patience, and the change is still ahead.
#[tokio::test(start_paused = true)]
async fn a_change_ahead_is_tried_again_after_calls_have_failed_for_long() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_both("a", &["--require-tag"]).await;
    stage.world.faults.add(Rule::on("DescribeInstances", Fault::Status(500)));
    says_stop(&stage, stage.world.clock.now() + s(4 * 3600));
    sleep(s(4000)).await;
    assert!(!stage.cordoned(0));
    replica.ended_as("scheduled-change", "failed", 1);
    stage.world.faults.clear();
    stage.until("drained", s(1200), || stage.world.kube.pods().is_empty()).await;
    stage.until("noted", s(10), || stage.handled(0) == 1).await;
    stage.rest(&[&replica]).await;
}

/// Has the first node say that its instance is stopped then.
fn says_stop(stage: &Stage, begin: Timestamp) {
    let change = format!("{{\"what\":\"instance-stop\",\"at\":\"{begin}\",\"id\":\"instance-event-1\"}}");
    stage.annotate(0, MAINTENANCE, &change);
}

/// Sends AWS's message of the same.
/// EC2 shows what AWS Health sends: it is asked about a change that begins within a minute.
fn sends_stop(stage: &Stage, begin: Timestamp) {
    stage.world.aws.ec2.schedule(&instance(0), ("instance-event-h", "instance-stop"), begin);
    stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), begin, "upcoming");
}

/// Returns a whole second that is so far ahead.
fn ahead_by(stage: &Stage, time: Duration) -> Timestamp {
    Timestamp::from_second((stage.world.clock.now() + time).as_second()).unwrap()
}

async fn in_turn(stage: &Stage, pod: &str) {
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some(pod)).await;
    // Right after a scan, a Node's word waits for the next one.
    sleep(s(1)).await;
}

/// Returns a world of two nodes of a zone, in which a drain that nothing ends has the place of the zone's wave.
async fn wave_that_is_taken(first: &str) -> (Stage, Replica) {
    let stage = Stage::new(2, 1);
    (0..2).for_each(|n| stage.label(n, ZONE, "a"));
    stage.block(0);
    let replica = stage.with_both(first, &WAVES).await;
    in_turn(&stage, first).await;
    stage.rebalance(0);
    stage.until("tried", s(10), || !stage.tries_of("web-0-0").is_empty()).await;
    (stage, replica)
}

/// The Node knows neither hook nor timeout, and half of its hour would end the wave for both.
#[tokio::test(start_paused = true)]
async fn a_hook_s_message_and_its_node_s_word_are_one_notice() {
    for hook_first in [true, false] {
        let (stage, replica) = wave_that_is_taken("a").await;
        let mut token = String::new();
        for hook in [hook_first, !hook_first] {
            if hook {
                token = stage.terminate(1, s(300), Wrapping::Event);
            } else {
                says_termination(&stage, 1);
            }
            stage.until("cordoned", s(10), || stage.cordoned(1)).await;
        }
        sleep(s(2 * 3600)).await;
        assert_eq!(stage.first_eviction(1), None, "{hook_first}");
        assert_eq!((stage.notices(1).len(), stage.notices(1)[0]["wave"].as_str()), (1, Some("waits")));
        stage.unblock(0);
        stage.until_handled(s(60)).await;
        stage.until("noted", s(40), || stage.handled(1) == 1).await;
        stage.completed_once(&token);
        assert_eq!((stage.ends_of("web-1-0").len(), outcomes(&replica, "asg-terminate", "drained")), (1, "1".into()));
        stage.rest(&[&replica]).await;
    }
}

/// The drain goes on in its place, with the hook's deadline.
#[tokio::test(start_paused = true)]
async fn a_hook_that_comes_in_the_middle_of_its_node_s_drain_goes_on_with_it() {
    let stage = Stage::slow(s(60));
    stage.world.kube.add_node(&node(1), &instance(1));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("next").stops_in(s(2)));
    (0..2).for_each(|n| stage.label(n, ZONE, "a"));
    let replica = stage.with_both("a", &WAVES).await;
    in_turn(&stage, "a").await;
    says_termination(&stage, 0);
    stage.until("evicted", s(10), || stage.ends_of("slow").len() == 1).await;
    stage.rebalance(1);
    sleep(s(10)).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until("the hook's mark", s(5), || stage.notices(0)[0]["message"] != "node/termination/").await;
    sleep(s(30)).await;
    assert_eq!((stage.has_pod("slow"), stage.first_eviction(1)), (true, None), "the place is taken");
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    assert_eq!((stage.ends_of("slow").len(), stage.notices(0).len()), (1, 1), "{}", stage.story());
    assert_eq!(outcomes(&replica, "asg-terminate", "drained"), "1");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_whose_node_was_drained_before_waits_for_nothing() {
    let stage = Stage::new(2, 1);
    (0..2).for_each(|n| stage.label(n, ZONE, "a"));
    let replica = stage.with_both("a", &WAVES).await;
    in_turn(&stage, "a").await;
    says_termination(&stage, 0);
    stage.until("noted", s(20), || stage.handled(0) == 1).await;
    stage.block(1);
    stage.rebalance(1);
    stage.until("tried", s(20), || !stage.tries_of("web-1-0").is_empty()).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until("completed", s(10), || !stage.action(&token).completions.is_empty()).await;
    stage.unblock(1);
    stage.until_handled(s(60)).await;
    assert_eq!(stage.notices(0).len(), 1);
    stage.rest(&[&replica]).await;
}

/// One replica has the Node's word, and another receives the hook's message.
#[tokio::test(start_paused = true)]
async fn the_hook_s_replica_goes_on_with_what_another_began_for_the_node() {
    let (stage, first) = wave_that_is_taken("a").await;
    let other = stage.with_own_queue();
    let second = other.with_both("b", &WAVES).await;
    says_termination(&stage, 1);
    stage.until("cordoned", s(10), || stage.cordoned(1)).await;
    let token = other.terminate(1, s(300), Wrapping::Event);
    sleep(s(3600)).await;
    assert_eq!((stage.first_eviction(1), stage.notices(1).len()), (None, 1));
    stage.unblock(0);
    other.until_handled(s(60)).await;
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    assert_eq!((stage.ends_of("web-1-0").len(), stage.handled(1)), (1, 1));
    assert_eq!([&first, &second].map(|it| outcomes(it, "asg-terminate", "drained")), ["0", "1"].map(String::from));
    stage.rest(&[&first, &second]).await;
}

/// Returns a replica of a world whose clock is ahead of that of all others.
async fn ahead(stage: &Stage, seconds: i64, pod: &str) -> (Stage, Replica) {
    let ahead = Stage { world: stage.world.clone(), clock_ahead: std::sync::Arc::default(), ..*stage };
    ahead.clock_ahead.store(seconds, Ordering::Relaxed);
    let replica = ahead.without_queue(pod, &[]).await;
    (ahead, replica)
}

/// What a Node says decides, and no clock.
#[tokio::test(start_paused = true)]
async fn a_replica_whose_clock_is_behind_removes_the_mark_of_one_that_was_ahead() {
    let stage = Stage::new(1, 1);
    let (_, first) = ahead(&stage, 3600, "first").await;
    says_termination(&stage, 0);
    stage.until("noted", s(40), || stage.handled(0) == 1).await;
    first.kill().await.gone(|_| true).await;
    let second = stage.without_queue("second", &[]).await;
    has_its_turn_within(&stage, "second").await;
    stage.takes_back(0, TERMINATION);
    stage.until("uncordoned", s(60), || !stage.cordoned(0)).await;
    stage.until("forgotten", s(60), || stage.handled(0) == 0 && stage.notices(0).is_empty()).await;
    stage.rest(&[&second]).await;
}

async fn has_its_turn_within(stage: &Stage, pod: &str) {
    stage.until("its turn", s(15), || stage.nodes_holder().as_deref() == Some(pod)).await;
}

/// The same in the middle of the drain.
#[tokio::test(start_paused = true)]
async fn a_withdrawal_in_the_middle_of_a_drain_leaves_no_mark_when_clocks_differ() {
    let stage = Stage::slow(s(30));
    let (_, first) = ahead(&stage, 3600, "first").await;
    in_turn(&stage, "first").await;
    says_termination(&stage, 0);
    stage.until("evicted", s(10), || stage.ends_of("slow").len() == 1).await;
    let second = stage.without_queue("second", &[]).await;
    first.kill().await.gone(|_| true).await;
    has_its_turn_within(&stage, "second").await;
    sleep(s(3)).await;
    stage.takes_back(0, TERMINATION);
    stage.until("uncordoned", s(60), || !stage.cordoned(0)).await;
    stage.until("forgotten", s(60), || stage.handled(0) == 0 && stage.notices(0).is_empty()).await;
    stage.rest(&[&second]).await;
}

/// A withdrawal that EC2 has to confirm comes to nothing before the drain ends.
#[tokio::test(start_paused = true)]
async fn a_withdrawal_that_a_drain_outruns_is_carried_out_after_it() {
    let stage = Stage::slow(s(40));
    let begin = ahead_by(&stage, s(7200));
    stage.world.aws.ec2.schedule(&instance(0), ("instance-event-1", "instance-stop"), begin);
    let replica = stage.with_both("a", &["--verify", "always"]).await;
    in_turn(&stage, "a").await;
    says_stop(&stage, begin);
    stage.until("evicted", s(10), || stage.ends_of("slow").len() == 1).await;
    stage.takes_back(0, MAINTENANCE);
    stage.until("drained", s(60), || !stage.has_pod("slow")).await;
    sleep(s(60)).await;
    assert_eq!((stage.cordoned(0), stage.notices(0).len()), (true, 1), "EC2 lists the change");
    stage.world.aws.ec2.close("instance-event-1", "Canceled");
    stage.until("uncordoned", s(120), || !stage.cordoned(0)).await;
    stage.until("forgotten", s(60), || stage.handled(0) == 0 && stage.notices(0).is_empty()).await;
    stage.rest(&[&replica]).await;
}

/// A withdrawal takes time, and what the Node says meanwhile stays.
#[tokio::test(start_paused = true)]
async fn a_late_withdrawal_leaves_what_is_said_again() {
    let stage = Stage::slow(s(60));
    let (_, first) = ahead(&stage, 3600, "first").await;
    in_turn(&stage, "first").await;
    says_termination(&stage, 0);
    stage.until("evicted", s(10), || stage.ends_of("slow").len() == 1).await;
    // The patch that removes the mark conflicts, and is made anew from the newest Node.
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(409)));
    stage.takes_back(0, TERMINATION);
    sleep(s(3)).await;
    stage.world.faults.clear();
    says_termination(&stage, 0);
    stage.until("noted", s(120), || stage.handled(0) == 1).await;
    sleep(s(60)).await;
    assert_eq!((stage.cordoned(0), stage.notices(0).len()), (true, 1), "{}", stage.story());
    stage.rest(&[&first]).await;
}

/// Both sources take the notice up before either sees the other's mark, and the process is killed: each must not leave the rest of the
/// drain to the other.
#[tokio::test(start_paused = true)]
async fn a_drain_of_both_sources_goes_on_after_a_kill() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let first = stage.with_both("a", &[]).await;
    in_turn(&stage, "a").await;
    stage.says_spot(0, 120);
    stage.spot(0);
    stage.until("two marks", s(5), || stage.notices(0).len() == 2).await;
    first.kill().await.gone(|_| true).await;
    let second = stage.with_both("a", &[]).await;
    sleep(s(50)).await;
    assert_eq!(stage.world.aws.sqs.deleted(), Vec::<String>::new(), "{}", stage.story());
    stage.unblock(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.ends_of("web-0-0").len(), 1);
    stage.rest(&[&second]).await;
}

/// The Node's word came first, and a message has told the same since.
#[tokio::test(start_paused = true)]
async fn a_node_does_not_take_back_what_a_message_has_told_too() {
    for (kind, ended) in [(SPOT, false), (SPOT, true), (MAINTENANCE, false), (MAINTENANCE, true)] {
        let stage = Stage::slow(s(40));
        let replica = stage.with_both("a", &[]).await;
        in_turn(&stage, "a").await;
        let begin = ahead_by(&stage, s(1200));
        if kind == SPOT {
            stage.says_spot(0, 121);
        } else {
            says_stop(&stage, begin);
        }
        stage.until("evicted", s(10), || stage.ends_of("slow").len() == 1).await;
        if ended {
            stage.until("noted", s(60), || stage.handled(0) == 1).await;
        }
        if kind == SPOT {
            stage.spot(0);
        } else {
            sends_stop(&stage, begin);
        }
        sleep(s(5)).await;
        stage.takes_back(0, kind);
        stage.until_handled(s(90)).await;
        sleep(s(90)).await;
        assert_eq!((stage.cordoned(0), stage.notices(0).len()), (true, 1), "{kind} {ended}\n{}", stage.story());
        assert_eq!(outcomes(&replica, if kind == SPOT { "spot" } else { "scheduled-change" }, "drained"), "1");
        stage.rest(&[&replica]).await;
    }
}

/// AWS called the change off before, which the Node remembers.
#[tokio::test(start_paused = true)]
async fn a_node_does_not_take_back_what_a_message_has_announced_again() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_both("a", &[]).await;
    in_turn(&stage, "a").await;
    let begin = ahead_by(&stage, s(2 * 3600));
    sends_stop(&stage, begin);
    stage.until_handled(s(60)).await;
    stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), begin, "closed");
    stage.until_handled(s(60)).await;
    stage.until("called off", s(60), || !stage.cordoned(0)).await;
    says_stop(&stage, begin);
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    sends_stop(&stage, begin);
    stage.until_handled(s(60)).await;
    stage.takes_back(0, MAINTENANCE);
    sleep(s(90)).await;
    assert_eq!((stage.cordoned(0), stage.notices(0).len()), (true, 1), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The message has told of a plan, whose mark comes days later.
#[tokio::test(start_paused = true)]
async fn a_node_does_not_take_back_a_plan_of_which_a_message_has_told() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_both("a", &["--when", "scheduled-change=1h-before"]).await;
    in_turn(&stage, "a").await;
    let begin = ahead_by(&stage, s(2 * 3600));
    says_stop(&stage, begin);
    let is_planned = || !stage.plans(0).is_empty();
    stage.until("planned", s(20), is_planned).await;
    sends_stop(&stage, begin);
    stage.until_handled(s(60)).await;
    stage.until("noted", s(2 * 3600), || stage.handled(0) == 1 && !is_planned()).await;
    stage.takes_back(0, MAINTENANCE);
    sleep(s(90)).await;
    assert_eq!((stage.cordoned(0), stage.notices(0).len()), (true, 1), "{}", stage.story());
    assert_eq!(outcomes(&replica, "scheduled-change", "drained"), "1");
    stage.rest(&[&replica]).await;
}

/// What a Node says has the time at which it was read, so an event that is read later is older, and yet no copy that a newer one replaces.
#[tokio::test(start_paused = true)]
async fn a_message_waits_for_the_drain_of_what_another_replica_has_read_later() {
    let stage = Stage::slow(s(60));
    let elsewhere = stage.with_own_queue();
    let begin = ahead_by(&stage, s(1200));
    sends_stop(&stage, begin);
    sleep(s(20)).await;
    let first = elsewhere.with_both("a", &[]).await;
    in_turn(&stage, "a").await;
    says_stop(&stage, begin);
    stage.until("evicted", s(10), || stage.ends_of("slow").len() == 1).await;
    let second = stage.with_both("b", &[]).await;
    sleep(s(30)).await;
    assert!(stage.world.aws.sqs.deleted().is_empty(), "{}", stage.story());
    stage.until_handled(s(60)).await;
    assert!(stage.world.kube.pods_on(&node(0)).is_empty());
    stage.rest(&[&first, &second]).await;
}

/// A message joins what the Node has said, and so does its end; the copy has the message's own name.
#[tokio::test(start_paused = true)]
async fn a_late_copy_of_what_message_and_node_have_called_off_drains_nothing() {
    for flags in [&["--when", "scheduled-change=1h-before"][..], &[]] {
        let stage = Stage::new(1, 1);
        let replica = stage.with_both("a", flags).await;
        in_turn(&stage, "a").await;
        let (begin, at) = (ahead_by(&stage, s(2 * 3600)), stage.world.clock.now());
        says_stop(&stage, begin);
        sleep(s(30)).await;
        sends_stop(&stage, begin);
        stage.until_handled(s(60)).await;
        sleep(s(30)).await;
        stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), begin, "closed");
        stage.takes_back(0, MAINTENANCE);
        stage.until_handled(s(60)).await;
        stage.until("undone", s(60), || !stage.cordoned(0)).await;
        sleep(s(60)).await;
        let ends = stage.ends_of("web-0-0").len();
        let copy =
            messages::scheduled_change("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED", &[&instance(0)], at + s(30), begin);
        stage.world.aws.sqs.send(copy);
        stage.until_handled(s(60)).await;
        sleep(s(3600)).await;
        assert_eq!((stage.cordoned(0), stage.ends_of("web-0-0").len()), (false, ends), "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// What a Node takes back in the middle of the drain that it had planned leaves no note that it needs nothing any more.
#[tokio::test(start_paused = true)]
async fn a_message_is_acted_on_after_its_node_has_taken_back_the_plan_in_the_middle() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.with_both("a", &["--when", "scheduled-change=1h-before"]).await;
    in_turn(&stage, "a").await;
    let begin = ahead_by(&stage, s(3700));
    says_stop(&stage, begin);
    stage.until("tried", s(300), || !stage.tries_of("web-0-0").is_empty()).await;
    stage.takes_back(0, MAINTENANCE);
    stage.until("undone", s(60), || !stage.cordoned(0)).await;
    sleep(s(60)).await;
    assert_eq!(stage.annotations(0).len(), 0, "{:?}", stage.annotations(0));
    stage.unblock(0);
    sends_stop(&stage, begin);
    stage.until_handled(s(60)).await;
    assert_eq!((stage.cordoned(0), stage.ends_of("web-0-0").len()), (true, 1), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// A message and the Node have told of a change at the same time, each has its mark, and a copy of the message has told what the Node says.
#[tokio::test(start_paused = true)]
async fn a_change_that_aws_calls_off_and_its_node_takes_back_leaves_no_mark() {
    for (flags, node_first) in [(&[][..], true), (&[], false), (&["--when", "scheduled-change=1h-before"], true)] {
        let stage = Stage::new(1, 0);
        let replica = stage.with_both("a", flags).await;
        in_turn(&stage, "a").await;
        let begin = ahead_by(&stage, s(2 * 3600));
        says_stop(&stage, begin);
        sends_stop(&stage, begin);
        stage.until_handled(s(60)).await;
        sends_stop(&stage, begin);
        stage.until_handled(s(60)).await;
        assert_eq!(stage.cordoned(0), flags.is_empty(), "{}", stage.story());
        sleep(s(60)).await;
        for by_node in [node_first, !node_first] {
            if by_node {
                stage.takes_back(0, MAINTENANCE);
                sleep(s(60)).await;
            } else {
                stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), begin, "closed");
                stage.until_handled(s(60)).await;
            }
        }
        stage.until("undone", s(60), || !stage.cordoned(0) && stage.left(0).is_empty()).await;
        stage.rest(&[&replica]).await;
    }
}

/// AWS calls the change off, and the metadata change a little later: the node is uncordoned once, and drained once.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_called_off_while_its_node_says_it_stays_until_the_node_takes_it_back() {
    for node_first in [true, false] {
        let stage = Stage::new(1, 1);
        let replica = stage.with_both("a", &[]).await;
        in_turn(&stage, "a").await;
        let begin = ahead_by(&stage, s(2 * 3600));
        if node_first {
            says_stop(&stage, begin);
            stage.until("noted", s(60), || stage.handled(0) == 1).await;
        }
        sends_stop(&stage, begin);
        stage.until_handled(s(60)).await;
        if !node_first {
            says_stop(&stage, begin);
        }
        sleep(s(60)).await;
        assert_eq!(stage.notices(0).len(), 1, "{:?}", stage.annotations(0));
        let patches = stage.calls("patch nodes");
        stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), begin, "closed");
        stage.until_handled(s(60)).await;
        sleep(s(600)).await;
        assert_eq!((stage.cordoned(0), stage.calls("patch nodes")), (true, patches + 1), "{}", stage.story());
        stage.takes_back(0, MAINTENANCE);
        stage.until("released", s(60), || !stage.cordoned(0) && stage.left(0).is_empty()).await;
        sleep(s(600)).await;
        assert_eq!((stage.cordoned(0), stage.ends_of("web-0-0").len()), (false, 1), "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// The replica that goes on takes the Node's word and receives both messages at the same time.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_called_off_before_a_takeover_is_released_when_its_node_takes_it_back() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let first = stage.with_both("a", &[]).await;
    in_turn(&stage, "a").await;
    let begin = ahead_by(&stage, s(3600));
    says_stop(&stage, begin);
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    sends_stop(&stage, begin);
    sleep(s(30)).await;
    first.stop().await;
    stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), begin, "closed");
    sleep(s(30)).await;
    let second = stage.with_both("b", &[]).await;
    sleep(s(60)).await;
    stage.takes_back(0, MAINTENANCE);
    stage.until("released", s(60), || !stage.cordoned(0)).await;
    stage.until_handled(s(60)).await;
    assert!(stage.has_pod("web-0-0"));
    stage.rest(&[&second]).await;
}

/// A replica that was down when the change began learns of it by the Node's plan and by the message, at once.
#[tokio::test(start_paused = true)]
async fn a_message_that_carries_out_its_node_s_plan_can_be_called_off() {
    let stage = Stage::new(1, 1);
    let flags = ["--when", "scheduled-change=30s-before", "--drain-timeout", "scheduled-change=3m"];
    let first = stage.with_both("a", &flags).await;
    in_turn(&stage, "a").await;
    let begin = ahead_by(&stage, s(120));
    says_stop(&stage, begin);
    stage.until("planned", s(10), || !stage.plans(0).is_empty()).await;
    first.kill().await.gone(|_| true).await;
    sleep(s(130)).await;
    let second = stage.with_both("a", &flags).await;
    sleep(s(5)).await;
    sends_stop(&stage, begin);
    stage.until_handled(s(60)).await;
    assert!(stage.cordoned(0) && stage.world.kube.pods_on(&node(0)).is_empty(), "{}", stage.story());
    let is_planned = || !stage.plans(0).is_empty();
    stage.until("carried out", s(300), || !is_planned()).await;
    stage.takes_back(0, MAINTENANCE);
    sleep(s(30)).await;
    assert!(stage.cordoned(0), "the message has told it, too");
    stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), begin, "closed");
    stage.until_handled(s(60)).await;
    assert!(!stage.cordoned(0) && stage.notices(0).is_empty(), "{}", stage.story());
    stage.rest(&[&second]).await;
}

/// Each replica carries out the plan, and only one acts on what the Node takes back: the other sees the cordon go.
#[tokio::test(start_paused = true)]
async fn a_change_that_a_node_takes_back_while_two_replicas_drain_is_drained_for_when_a_message_tells_it() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replicas = [stage.with_both("a", &WHEN_NEAR).await, stage.with_both("b", &WHEN_NEAR).await];
    in_turn(&stage, "a").await;
    let begin = ahead_by(&stage, s(304));
    says_stop(&stage, begin);
    stage.until("both drain", s(290), || stage.world.calls.of("list pods").len() == 2).await;
    stage.takes_back(0, MAINTENANCE);
    stage.until("released", s(10), || !stage.cordoned(0)).await;
    sleep(s(1)).await;
    sends_stop(&stage, begin);
    stage.until("cordoned for the message", s(10), || stage.cordoned(0)).await;
    stage.until_handled(s(400)).await;
    assert!(!stage.has_pod("web-0-0"), "{}", stage.story());
    stage.rest(&[&replicas[0], &replicas[1]]).await;
}

/// Its own mark can't be set either, and its time is short. Which of the two is written first, is drawn.
#[tokio::test(start_paused = true)]
async fn what_a_node_takes_back_ends_no_drain_for_a_hook_whose_mark_is_not_set_yet() {
    for _ in 0..20 {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("stuck").grace(s(300)).stops_in(None));
        let replica = stage.with_both("a", &["--heartbeat=5s", "--drain-timeout=148s"]).await;
        says_stop(&stage, stage.world.clock.now() + s(408));
        sleep(s(4)).await;
        stage.world.faults.add(Rule::on("patch nodes", Fault::Throttle));
        sleep(s(29)).await;
        stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(120)));
        let token = stage.world.aws.autoscaling.begin("group", "hook", &instance(0));
        let (names, at) = (("group", "hook", token.as_str()), stage.world.clock.now() - s(100));
        stage.world.aws.sqs.send(messages::lifecycle(Wrapping::Event, true, names, &instance(0), at));
        sleep(s(3)).await;
        stage.takes_back(0, MAINTENANCE);
        sleep(s(8)).await;
        stage.world.faults.clear();
        stage.until_handled(s(200)).await;
        stage.completed_once(&token);
        replica.ended_as("asg-terminate", "uncordoned", 0);
        stage.rest(&[&replica]).await;
    }
}
