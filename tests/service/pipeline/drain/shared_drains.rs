//! Notices that share the drain of a Node: one drain, the nearest deadline, and an end for each notice.

use crate::drains::{DELETE, add, blocked_pods, deleted, deleted_in_time, ended, held, rebalance};
use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{By, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn four_notices_for_one_node_make_one_drain() {
    let stage = Stage::new(1, 4);
    let replica = stage.start(&["--on", "rebalance=drain"]).await;
    let (sqs, now) = (&stage.world.aws.sqs, stage.world.clock.now());
    sqs.send(messages::rebalance("r", &instance(0), now));
    stage.spot(0);
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sqs.send(messages::state_change("s", &instance(0), "shutting-down", now));
    stage.until_handled(s(60)).await;
    assert_eq!(stage.calls("create pods/eviction"), 4, "one eviction a pod\n{}", stage.story());
    assert_eq!(stage.world.kube.evictions().len(), 4);
    assert_eq!(stage.calls("list pods"), 2, "one drain");
    assert_eq!(stage.calls("patch nodes"), 4, "each leaves its mark, and none runs into another");
    assert_eq!(stage.world.aws.sqs.deleted().len(), 4);
    stage.completed_once(&token);
    assert_eq!(stage.calls("CompleteLifecycleAction"), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_spot_warning_hurries_the_pods_of_a_lifecycle_drain_once() {
    let stage = Stage::new(1, 0);
    add(&stage, "slow", s(600));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(60)).await;
    let ends: Vec<_> = stage.ends_of("slow").into_iter().map(|end| (end.by, end.grace)).collect();
    assert_eq!(ends, [(By::Eviction, None)]);
    stage.spot(0);
    stage.until_handled(s(120)).await;
    let ends = stage.ends_of("slow");
    assert_eq!((ends.len(), ends[1].by), (2, By::Delete), "{ends:?}");
    assert!(matches!(ends[1].grace, Some(116..=118)), "{ends:?}");
    assert_eq!((stage.calls(DELETE), stage.tries_of("slow").len()), (1, 1));
    stage.completed_once(&token);
    replica.ended_once("spot", "drained");
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_earlier_deadline_applies_to_a_pod_that_is_already_blocked() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(300)).await;
    stage.spot(0);
    sleep(s(87)).await;
    assert_eq!(stage.calls(DELETE), 0);
    stage.until_handled(s(33)).await;
    let grace = deleted_in_time(&stage, "held", s(420));
    assert!((29..=30).contains(&grace), "{grace}");
    stage.completed_once(&token);
    replica.ended_once("spot", "drained");
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_ends_its_own_notice_only() {
    for spot_after in [s(0), s(20)] {
        let stage = held(s(30));
        let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", "rebalance=30s"]).await;
        let first = rebalance(&stage, 0);
        sleep(spot_after).await;
        let second = stage.spot(0);
        sleep(s(29) - spot_after).await;
        assert!(!deleted(&stage, &first));
        stage.until("the first ended", s(2), || deleted(&stage, &first)).await;
        replica.ended_once("rebalance", "blocked");
        assert!(!deleted(&stage, &second) && stage.has_pod("held"));
        let tries = stage.tries_of("held").len();
        sleep(s(20)).await;
        assert!(stage.tries_of("held").len() > tries, "the second goes on");
        assert_eq!(blocked_pods(&replica), 1);
        stage.until_handled(s(70) + spot_after).await;
        let grace = deleted_in_time(&stage, "held", spot_after + s(120));
        assert!((29..=30).contains(&grace), "{grace}");
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_just_before_a_hard_one_shortens_no_grace_period() {
    let stage = held(s(30));
    add(&stage, "slow", s(300));
    let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", "rebalance=115s"]).await;
    rebalance(&stage, 0);
    stage.spot(0);
    stage.until_handled(s(121)).await;
    let grace = deleted_in_time(&stage, "held", s(120));
    assert!((29..=30).contains(&grace), "its own: {grace}");
    let slow = stage.ends_of("slow");
    assert!(slow.len() <= 2 && slow.last().is_some_and(|end| matches!(end.grace, Some(117..=118))), "{slow:?}");
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_shortly_before_a_hard_one_leaves_the_full_grace_period() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", "rebalance=115s"]).await;
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    stage.spot(0);
    sleep(s(130)).await;
    let all = ended(&stage);
    assert!(all.len() == 1 && all[0].2.unwrap_or(30) >= 29, "{all:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_spot_warning_whose_mark_fails_still_hurries_a_running_drain() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(1000)).stops_in(None));
    let replica = stage.start(&[]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(10)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)));
    stage.spot(0);
    sleep(s(125)).await;
    assert!(ended(&stage).iter().any(|(_, _, _, by)| *by == By::Delete), "never hurried: {:?}", ended(&stage));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_notice_with_a_past_soft_deadline_does_not_disturb_a_spot_drain() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "asg-terminate=20s"]).await;
    stage.spot(0);
    sleep(s(86)).await;
    stage.world.aws.autoscaling.add_hook("group", "hook", ebbtide_sim::aws::HookSpec::terminating(s(300)));
    let token = stage.world.aws.autoscaling.begin("group", "hook", &instance(0));
    let at = stage.world.clock.now() - s(100);
    stage.world.aws.sqs.send(messages::lifecycle(Wrapping::Event, true, ("group", "hook", &token), &instance(0), at));
    sleep(s(50)).await;
    let all = ended(&stage);
    assert!(all.len() == 1 && all[0].2.unwrap_or(30) >= 29, "{all:?} lists: {}", stage.calls("list pods"));
    stage.rest(&[&replica]).await;
}

/// The timeout of a spot notice ends before the instance does; a hook keeps the drain running, and pods are still deleted in time.
#[tokio::test(start_paused = true)]
async fn the_end_of_capacity_counts_after_its_notice_has_ended() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "spot=60s"]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.spot(0);
    stage.until_handled(s(130)).await;
    assert_eq!(ended(&stage), [("web-0-0".to_owned(), 88, Some(30), By::Delete)]);
    replica.ended_once("spot", "blocked");
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// A notice after its deadline does not cut off the deletion that it has just caused in a running drain.
#[tokio::test(start_paused = true)]
async fn a_notice_after_its_deadline_does_not_cut_off_a_running_drain() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(60)).await;
    stage.spot_of_age(0, s(125));
    stage.until_handled(s(5)).await;
    assert_eq!(ended(&stage).last().map(|(_, _, grace, by)| (*grace, *by)), Some((Some(1), By::Delete)));
    let drains = replica.metric("ebbtide_drain_duration_seconds_count{deadline=\"hard\",outcome=\"drained\"}");
    assert!((drains - 1.0).abs() < f64::EPSILON, "one drain: {drains}");
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}
