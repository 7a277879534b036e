//! Deadlines: evictions first, deletions in time before a hard deadline, and no deletion at a soft one.

use crate::drains::{DELETE, add, blocked_pods, deleted, deleted_in_time, ended, held, rebalance};
use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{By, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use k8s_openapi::api::core::v1::Pod as FullPod;
use kube::api::DeleteParams;
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_blocked_pod_is_deleted_in_the_last_twenty_seconds_of_a_spot_notice() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    stage.spot_of_age(0, s(100));
    sleep(Duration::from_millis(4900)).await;
    assert!(stage.tries_of("held").len() >= 3, "{}", stage.story());
    assert_eq!(stage.calls(DELETE), 0, "a quarter of the time belongs to evictions");
    stage.until_handled(s(15)).await;
    let grace = deleted_in_time(&stage, "held", s(20));
    assert!(grace >= 12, "as much of its 30 s as there is: {grace}");
    assert_eq!(stage.calls(DELETE), 1);
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_blocked_pod_is_deleted_as_late_as_its_grace_period_allows() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(87)).await;
    assert_eq!(stage.calls(DELETE), 0);
    assert_eq!(blocked_pods(&replica), 1);
    stage.until_handled(s(33)).await;
    let grace = deleted_in_time(&stage, "held", s(120));
    assert!((29..=30).contains(&grace), "its own: {grace}");
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_longer_than_the_time_is_shortened_with_the_eviction() {
    let stage = Stage::new(1, 0);
    add(&stage, "slow", s(300));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(120)).await;
    let ends = stage.ends_of("slow");
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0].by, By::Eviction);
    assert!(matches!(ends[0].grace, Some(117..=118)), "{ends:?}");
    assert_eq!((stage.calls("create pods/eviction"), stage.calls(DELETE)), (1, 0));
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_by_others_with_a_long_grace_period_is_hurried_once() {
    let stage = Stage::new(1, 0);
    add(&stage, "slow", s(900));
    add(&stage, "quick", s(40));
    let replica = stage.start(&[]).await;
    let pods: kube::Api<FullPod> = kube::Api::namespaced(stage.world.kube.client(), "default");
    for name in ["slow", "quick"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    sleep(s(10)).await;
    stage.spot(0);
    stage.until_handled(s(120)).await;
    let ours = |name| stage.ends_of(name).into_iter().skip(1).map(|end| (end.by, end.grace)).collect::<Vec<_>>();
    assert!(matches!(ours("slow").as_slice(), [(By::Delete, Some(116..=118))]), "{:?}", ours("slow"));
    assert_eq!(ours("quick"), [], "in time by itself");
    assert_eq!(stage.calls("create pods/eviction"), 0);
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_never_deletes_past_a_budget() {
    let stage = held(s(30));
    add(&stage, "slow", s(600));
    let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", "rebalance=60s"]).await;
    rebalance(&stage, 0);
    sleep(s(59)).await;
    assert_eq!((stage.world.aws.sqs.in_flight(), blocked_pods(&replica)), (1, 1));
    stage.until_handled(s(2)).await;
    assert_eq!(stage.calls(DELETE), 0);
    assert_eq!(stage.ends_of("held"), []);
    let graces: Vec<_> = stage.ends_of("slow").into_iter().map(|end| end.grace).collect();
    assert_eq!(graces, [None], "its own: the node does not go away");
    assert!(stage.has_pod("held") && stage.has_pod("slow"));
    replica.ended_once("rebalance", "blocked");
    stage.rest(&[&replica]).await;
    assert!(stage.has_pod("held") && stage.calls(DELETE) == 0);
}

#[tokio::test(start_paused = true)]
async fn at_deadline_leave_leaves_blocked_pods() {
    let stage = held(s(30));
    let replica = stage.start(&["--at-deadline", "leave"]).await;
    stage.spot(0);
    sleep(s(119)).await;
    assert_eq!(blocked_pods(&replica), 1);
    stage.until_handled(s(2)).await;
    assert!(stage.has_pod("held"));
    assert_eq!((stage.ends_of("held").len(), stage.calls(DELETE)), (0, 0));
    replica.ended_once("spot", "blocked");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn with_no_time_left_evictions_come_first_and_then_deletions_with_a_second_of_grace() {
    let hibernate = json!({ "instance-id": instance(0), "instance-action": "hibernate" });
    let (kind, now) = ("EC2 Spot Instance Interruption Warning", Duration::ZERO);
    for (age, action) in [(now, Some(hibernate)), (s(119), None), (s(170), None)] {
        let stage = held(s(30));
        add(&stage, "free", s(300));
        stage.world.kube.add_pod(Pod::on(&node(0)).named("critical").priority(2_000_000_000));
        let replica = stage.start(&[]).await;
        match &action {
            Some(hibernate) => {
                let at = stage.world.clock.now();
                stage.world.aws.ec2.set_spot_request(&instance(0), "marked-for-stop", "hibernate", at);
                stage.world.aws.sqs.send(messages::event("aws.ec2", kind, "hibernate", at, hibernate))
            }
            None => stage.spot_of_age(0, age),
        };
        stage.until_handled(s(4)).await;
        let ends = |name| stage.ends_of(name).into_iter().map(|end| (end.by, end.grace)).collect::<Vec<_>>();
        assert_eq!(ends("free"), [(By::Eviction, Some(1))], "{age:?}");
        assert_eq!(ends("held"), [(By::Delete, Some(1))], "{age:?}");
        assert_eq!(ends("critical"), [(By::Eviction, Some(1))], "{age:?}");
        assert_eq!(deleted_in_time(&stage, "held", s(3)), 1);
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_notice_after_its_deadline_still_ends_the_pods_of_both_tiers() {
    let stage = Stage::new(1, 1);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("critical").priority(2_000_000_000));
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.spot_of_age(0, s(130));
    sleep(s(10)).await;
    let all = ended(&stage);
    assert!(all.len() == 2 && all.iter().all(|(_, at, grace, _)| *at <= 2 && *grace == Some(1)), "{all:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn each_kind_has_its_own_timeout() {
    let stage = Stage::new(3, 1);
    (0..3).for_each(|n| stage.block(n));
    let timeouts = ["--drain-timeout", "5m", "--drain-timeout", "rebalance=45s,asg-terminate=90s"];
    let flags = ["--on", "rebalance=drain", "--at-deadline", "leave", "--max-draining=none"];
    let replica = stage.start(&[&flags[..], timeouts.as_slice()].concat()).await;
    let first = rebalance(&stage, 0);
    let token = stage.terminate(1, s(60), Wrapping::Event);
    let now = stage.world.clock.now();
    let code = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED";
    let last = messages::scheduled_change("h", code, &[&instance(2)], now, now + s(86400));
    let last = stage.world.aws.sqs.send(last);
    sleep(s(44)).await;
    assert_eq!(stage.world.aws.sqs.deleted().len(), 0);
    stage.until("the recommendation's end", s(2), || deleted(&stage, &first)).await;
    // The deadline of a hook has a margin of a tenth of its timeout.
    sleep(s(37)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    stage.until("the hook's end", s(2), || stage.calls("CompleteLifecycleAction") == 1).await;
    stage.completed_once(&token);
    sleep(s(213)).await;
    assert!(!deleted(&stage, &last));
    stage.until_handled(s(4)).await;
    for kind in ["rebalance", "asg-terminate", "scheduled-change"] {
        replica.ended_once(kind, "blocked");
    }
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_deletion_is_retried_until_the_deadline() {
    let stage = held(s(30));
    stage.world.faults.add(Rule::on(DELETE, Fault::Status(500)).times(3));
    stage.world.faults.add(Rule::on(DELETE, Fault::Throttle).times(3));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(120)).await;
    assert_eq!(stage.calls(DELETE), 7);
    let grace = deleted_in_time(&stage, "held", s(120));
    assert!((10..30).contains(&grace), "what is left of its time: {grace}");
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;

    let stage = held(s(30));
    stage.world.faults.add(Rule::on(DELETE, Fault::Status(500)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(119)).await;
    assert_eq!(stage.world.aws.sqs.in_flight(), 1);
    stage.until_handled(s(2)).await;
    let tries = stage.world.calls.of(DELETE);
    assert!((8..40).contains(&tries.len()), "{}", stage.story());
    assert!(tries.last().is_some_and(|last| last.at >= s(115)), "up to the end: {tries:?}");
    replica.ended_once("spot", "blocked");
    stage.rest(&[&replica]).await;
    assert_eq!(stage.world.calls.of(DELETE).len(), tries.len(), "and not after it");
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_eviction_does_not_delay_the_deletion() {
    for age in [s(0), s(100), s(112), s(116)] {
        let stage = held(s(30));
        stage.world.faults.add(Rule::on("create pods/eviction", Fault::Hang));
        let replica = stage.start(&[]).await;
        stage.spot_of_age(0, age);
        stage.until_handled(s(121)).await;
        deleted_in_time(&stage, "held", s(120) - age);
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// Evictions yield to a cordon that hangs, for five seconds. Then the pod must be told to stop.
#[tokio::test(start_paused = true)]
async fn an_eviction_that_begins_when_its_pod_must_be_told_is_given_its_time() {
    let stage = Stage::new(2, 0);
    stage.world.kube.add_pod(Pod::on(&node(1)).named("pod").grace(s(120 - 2 - 5)));
    stage.world.faults.add(Rule::on("patch nodes", Fault::Slow(s(20))).subject("node-0").times(1));
    let replica = stage.start(&[]).await;
    (0..2).for_each(|n| drop(stage.spot(n)));
    stage.until_handled(s(130)).await;
    assert_eq!(stage.calls("delete pods"), 0, "{}", stage.story());
    stage.rest(&[&replica]).await;
}
