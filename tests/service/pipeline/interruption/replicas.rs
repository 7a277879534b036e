//! Two replicas, each with messages of its own about the same Nodes: what one has left on a Node counts for the other.

use crate::drains::{ended, held, terminate};
use crate::harness::{Stage, instance, node, s};
use ebbtide::fact::TaskKind;
use ebbtide_sim::aws::HookResult;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{By, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::sleep;

const RETIREMENT: (&str, &str) = ("h", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED");

#[tokio::test(start_paused = true)]
async fn of_two_hooks_the_latest_counts_whoever_received_it() {
    for short_first in [true, false] {
        let one = held(s(30));
        let other = one.with_own_queue();
        let (first, second) = (one.start(&[]).await, other.start(&[]).await);
        let (short, long) = if short_first {
            (terminate(&one, "short", s(60)), terminate(&other, "long", s(1200)))
        } else {
            let long = terminate(&other, "long", s(1200));
            (terminate(&one, "short", s(60)), long)
        };
        sleep(s(1165)).await;
        assert!(ended(&one).is_empty(), "nothing is deleted in spite of the budget: {:?}", ended(&one));
        one.until_handled(s(70)).await;
        other.until_handled(s(5)).await;
        let deletions: Vec<_> = ended(&one).into_iter().filter(|(.., by)| *by == By::Delete).collect();
        assert_eq!(deletions.len(), 1, "{deletions:?}");
        assert_eq!(deletions[0].2, Some(30), "all of its grace period");
        one.completed_once(&short);
        one.completed_once(&long);
        one.rest(&[&first, &second]).await;
    }
}

/// Another program completes the hook of one replica: the instance waits for that of the other.
#[tokio::test(start_paused = true)]
async fn the_end_of_one_replica_s_hook_is_not_that_of_the_other_s() {
    let one = held(s(30));
    let other = one.with_own_queue();
    let (first, second) = (one.start(&[]).await, other.start(&[]).await);
    let short = terminate(&one, "short", s(60));
    let long = terminate(&other, "long", s(1200));
    sleep(s(100)).await;
    one.world.aws.autoscaling.complete(&short, HookResult::Continue);
    one.until_handled(s(100)).await;
    assert!(ended(&one).is_empty(), "nothing is deleted in spite of the budget: {:?}", ended(&one));
    other.until_handled(s(1140)).await;
    assert_eq!(ended(&one), [("held".to_owned(), 1198, Some(30), By::Delete)]);
    one.completed_once(&long);
    one.rest(&[&first, &second]).await;
}

/// The default of a hook's life is shorter.
#[tokio::test(start_paused = true)]
async fn a_hook_whose_times_become_known_late_keeps_the_instance_for_the_other_replica_too() {
    // During the drain, or before it.
    for flags in [&[][..], &["--delay", "asg-terminate=5m"]] {
        let one = held(s(30));
        let other = one.with_own_queue();
        let (first, second) = (one.start(flags).await, other.start(&[]).await);
        one.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(500)));
        let long = terminate(&one, "long", s(7200));
        sleep(s(20)).await;
        one.world.faults.clear();
        let short = terminate(&other, "short", s(300));
        sleep(s(3600)).await;
        assert!(ended(&one).is_empty(), "nothing is deleted in spite of the budget: {:?}", ended(&one));
        one.unblock(0);
        one.until_handled(s(60)).await;
        other.until_handled(s(60)).await;
        one.completed_once(&long);
        one.completed_once(&short);
        one.rest(&[&first, &second]).await;
    }
}

/// AWS tells the other replica that the instance does not wait at the hook of its message.
#[tokio::test(start_paused = true)]
async fn a_made_up_hook_puts_off_no_end_of_the_other_replica_s() {
    let one = held(s(30));
    let other = one.with_own_queue();
    let flags = ["--max-draining", "1"];
    let (first, second) = (one.start(&flags).await, other.start(&flags).await);
    let (made_up, at) = (("group", "made-up", "token"), one.world.clock.now() - s(1200));
    other.world.aws.sqs.send(messages::lifecycle(Wrapping::Event, true, made_up, &instance(0), at));
    one.until("marked", s(10), || one.cordoned(0)).await;
    let token = terminate(&one, "real", s(900));
    one.until_handled(s(940)).await;
    assert_eq!(ended(&one)[0], ("held".to_owned(), 898, Some(30), By::Delete));
    one.completed_once(&token);
    other.until_handled(s(60)).await;
    one.rest(&[&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_put_off_moves_the_deadline_of_the_other_replica_s_drain() {
    let one = Stage::new(1, 1);
    let other = one.with_own_queue();
    one.block(0);
    let (first, second) = (one.start(&[]).await, other.start(&[]).await);
    let begun = one.world.clock.now();
    one.health(0, RETIREMENT, begun + s(1800), "upcoming");
    sleep(s(600)).await;
    assert!(one.cordoned(0));
    other.health(0, RETIREMENT, begun + s(3600), "upcoming");
    sleep(s(1800)).await;
    assert_eq!(one.world.kube.pods_on(&node(0)).len(), 1, "the budget holds after the first start\n{}", one.story());
    one.until_handled(s(1800)).await;
    other.until_handled(s(1800)).await;
    assert_eq!(one.world.kube.pods().len(), 0, "deleted before the second");
    first.all_ended("scheduled-change", &[("drained", 1)]);
    second.all_ended("scheduled-change", &[("drained", 1)]);
    one.rest(&[&first, &second]).await;
}

/// AWS confirms it to the other replica first. Without a pause this one would hear of it again and again.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_put_off_is_heard_of_once_while_aws_is_asked() {
    let one = Stage::new(1, 1);
    let other = one.with_own_queue();
    one.block(0);
    let flags = ["--verify", "always"];
    let (first, second) = (one.start(&flags).await, other.start(&flags).await);
    let begun = one.world.clock.now();
    let schedule = |start| one.world.aws.ec2.schedule(&instance(0), ("change-0", "instance-retirement"), start);
    schedule(begun + s(1800));
    one.health(0, RETIREMENT, begun + s(1800), "upcoming");
    sleep(s(600)).await;
    assert!(one.cordoned(0));
    schedule(begun + s(3600));
    other.health(0, RETIREMENT, begun + s(3600), "upcoming");
    sleep(s(1800)).await;
    assert_eq!(one.world.kube.pods_on(&node(0)).len(), 1, "the budget holds after the first start\n{}", one.story());
    one.until_handled(s(1800)).await;
    other.until_handled(s(1800)).await;
    first.all_ended("scheduled-change", &[("drained", 1)]);
    second.all_ended("scheduled-change", &[("drained", 1)]);
    one.rest(&[&first, &second]).await;
}

/// Half of the nodes go, and each replica receives half of the messages.
#[tokio::test(start_paused = true)]
async fn evictions_wait_for_the_cordons_of_the_other_replica() {
    for (quiet_time, twice) in [(s(1), false), (s(0), true)] {
        let one = Stage { quiet_time, ..Stage::new(40, 0) };
        let other = one.with_own_queue();
        one.world.kube.replace(Duration::ZERO);
        for n in (0..40).flat_map(|n| std::iter::repeat_n(n, 3)) {
            one.world.kube.add_pod(Pod::on(&node(n)).owner("ReplicaSet", "web").stops_in(s(2)));
        }
        let (first, second) = (one.start(&[]).await, other.start(&[]).await);
        for n in (0..20).step_by(2) {
            one.spot(n);
        }
        // The other's messages begin to come when the first's quiet time is almost over.
        for n in (20..40).step_by(2) {
            sleep(Duration::from_millis(if n == 20 { 800 } else { 40 })).await;
            other.spot(n);
        }
        one.until_handled(s(60)).await;
        other.until_handled(s(60)).await;
        let moved_again = one.world.kube.evictions().len() - 20 * 3;
        assert_eq!(moved_again > 0, twice, "{quiet_time:?}: {moved_again} pods evicted twice");
        one.rest(&[&first, &second]).await;
    }
}

/// The instance is ended by somebody else: both actions are over, whoever hears of it first.
#[tokio::test(start_paused = true)]
async fn pods_are_told_to_stop_when_both_replicas_hooks_are_over() {
    let one = held(s(30));
    let other = one.with_own_queue();
    let (first, second) = (one.start(&[]).await, other.start(&[]).await);
    let (a, b) = (terminate(&one, "a", s(600)), terminate(&other, "b", s(700)));
    sleep(s(100)).await;
    one.world.aws.autoscaling.complete(&a, HookResult::Continue);
    one.world.aws.autoscaling.complete(&b, HookResult::Continue);
    sleep(s(450)).await;
    assert!(!ended(&one).is_empty(), "{}", one.story());
    one.rest(&[&first, &second]).await;
}

/// "Leave this node": the first removal of the cordon may be a mistake, the second is meant, whichever replica restored it.
#[tokio::test(start_paused = true)]
async fn two_uncordons_end_the_drains_of_both_replicas() {
    for hook_in_both in [true, false] {
        let one = held(s(30));
        let other = one.with_own_queue();
        let flags = ["--on", "rebalance=drain"];
        let (first, second) = (one.start(&flags).await, other.start(&flags).await);
        if hook_in_both {
            terminate(&one, "a", s(600));
        } else {
            one.rebalance(0);
        }
        terminate(&other, "b", s(600));
        sleep(s(60)).await;
        one.set_cordon(0, false);
        one.until("cordoned again", s(3), || one.cordoned(0)).await;
        sleep(s(5)).await;
        one.set_cordon(0, false);
        one.until_handled(s(15)).await;
        other.until_handled(s(5)).await;
        one.unblock(0);
        sleep(s(60)).await;
        assert!(!one.cordoned(0) && ended(&one).is_empty(), "{:?}\n{}", ended(&one), one.story());
        one.rest(&[&first, &second]).await;
    }
}

/// SQS delivers a message at least once: a copy may come when the message was deleted and the node was given back.
#[tokio::test(start_paused = true)]
async fn a_copy_that_comes_after_a_user_has_ended_the_drain_starts_nothing_in_another_replica() {
    let stage = held(s(30));
    let first = stage.start(&[]).await;
    let message = messages::rebalance("event-1", &instance(0), stage.world.clock.now());
    stage.world.aws.sqs.send(message.clone());
    stage.until("cordoned", s(20), || stage.cordoned(0)).await;
    stage.until_handled(s(5)).await;
    stage.set_cordon(0, false);
    stage.until("released", s(60), || stage.notices(0).is_empty()).await;
    drop(first.stop().await);
    let second = stage.start(&[]).await;
    stage.world.aws.sqs.send(message);
    stage.until_handled(s(60)).await;
    sleep(s(60)).await;
    assert!(!stage.cordoned(0), "{}", stage.story());
    stage.rebalance(0);
    stage.until("cordoned for another one", s(20), || stage.cordoned(0)).await;
    stage.until_handled(s(5)).await;
    stage.rest(&[&second]).await;
}

/// Another mark keeps the cordon.
#[tokio::test(start_paused = true)]
async fn a_change_called_off_in_the_other_replica_s_message_deletes_nothing() {
    let one = held(s(30));
    let other = one.with_own_queue();
    let flags = ["--uncordon-after", "0s"];
    let (first, second) = (one.start(&flags).await, other.start(&flags).await);
    let start = one.world.clock.now() + s(1800);
    one.rebalance(0);
    sleep(s(10)).await;
    one.health(0, RETIREMENT, start, "upcoming");
    sleep(s(100)).await;
    other.health(0, RETIREMENT, start, "closed");
    other.until_handled(s(10)).await;
    one.until_handled(s(10)).await;
    sleep(s(3600)).await;
    assert!(ended(&one).is_empty(), "{:?}", ended(&one));
    first.ended_once("scheduled-change", "withdrawn");
    one.rest(&[&first, &second]).await;
}

/// A replica is killed, AWS closes the event, and the killed one's message comes back.
#[tokio::test(start_paused = true)]
async fn an_announcement_that_comes_back_after_its_withdrawal_does_nothing() {
    let one = held(s(30));
    let other = one.with_own_queue();
    let (first, second) = (one.start(&[]).await, other.start(&[]).await);
    let start = one.world.clock.now() + s(1800);
    one.health(0, RETIREMENT, start, "upcoming");
    sleep(s(45)).await;
    drop(first.kill().await);
    sleep(s(1)).await;
    other.health(0, RETIREMENT, start, "closed");
    other.until_handled(s(10)).await;
    assert!(!one.cordoned(0));
    let third = one.start(&[]).await;
    one.until_handled(s(60)).await;
    sleep(s(3600)).await;
    assert!(ended(&one).is_empty() && !one.cordoned(0), "{:?}", ended(&one));
    third.ended_once("scheduled-change", "stale");
    one.rest(&[&second, &third]).await;
}

/// SQS hides no message for longer than 12 h: the long hook's leaves the first replica, whose drain goes on for the short one. The second
/// has a copy of it.
#[tokio::test(start_paused = true)]
async fn a_hook_whose_message_has_left_a_replica_still_counts_there() {
    const HOUR: u64 = 3600;
    let one = held(s(30));
    let other = one.with_own_queue();
    let (first, second) = (one.start(&[]).await, other.start(&[]).await);
    let (long, at) = (terminate(&one, "long", s(13 * HOUR)), one.world.clock.now());
    sleep(s(11 * HOUR + 2700)).await;
    other.world.aws.sqs.send(messages::lifecycle(Wrapping::Event, true, ("group", "long", &long), &instance(0), at));
    let short = terminate(&one, "short", s(300));
    sleep(s(60)).await;
    assert_eq!(first.tasks.alive(TaskKind::Interruption), 2);
    one.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)));
    sleep(s(600)).await;
    assert_eq!((first.tasks.alive(TaskKind::Interruption), second.tasks.alive(TaskKind::Interruption)), (1, 1));
    sleep(s(HOUR - 300)).await;
    assert!(ended(&one).is_empty(), "nothing is deleted in spite of the budget: {:?}", ended(&one));
    one.world.faults.clear();
    one.until_handled(s(800)).await;
    other.until_handled(s(100)).await;
    let begins: Vec<_> = ended(&one).into_iter().map(|(_, at, ..)| at).collect();
    assert!(!begins.is_empty() && begins.iter().all(|at| *at > 13 * HOUR - 100), "{begins:?}");
    one.completed(&long);
    one.completed_once(&short);
    one.rest(&[&first, &second]).await;
}
