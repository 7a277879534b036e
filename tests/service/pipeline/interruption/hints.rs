//! Hints for whole clusters: a cordon takes capacity at once, and a hint only says that it may go.

use crate::harness::{Stage, instance, s};
use ebbtide_sim::messages;
use tokio::time::sleep;

const GROUP: &str = "eks.amazonaws.com/nodegroup";

fn cordoned(stage: &Stage, nodes: usize) -> Vec<usize> {
    (0..nodes).filter(|n| stage.cordoned(*n)).collect()
}

#[tokio::test(start_paused = true)]
async fn hints_for_all_nodes_take_a_fifth_of_them() {
    let stage = Stage::new(23, 0);
    let replica = stage.start(&[]).await;
    for n in 0..23 {
        stage.rebalance(n);
    }
    stage.until_handled(s(30)).await;
    assert_eq!(cordoned(&stage, 23).len(), 4);
    replica.all_ended("rebalance", &[("cordoned", 4), ("reported", 19)]);
    // The same again: those that are held count as held, and go on.
    (0..23).for_each(|n| drop(stage.rebalance(n)));
    stage.until_handled(s(30)).await;
    assert_eq!(cordoned(&stage, 23).len(), 4);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn when_a_hint_is_over_another_node_may_be_held() {
    let stage = Stage::new(5, 0);
    let replica = stage.start(&[]).await;
    stage.rebalance(0);
    stage.until_handled(s(30)).await;
    stage.rebalance(1);
    stage.until_handled(s(30)).await;
    assert_eq!(cordoned(&stage, 5), [0]);
    sleep(s(1205)).await;
    assert_eq!(cordoned(&stage, 5), [0_usize; 0], "nothing has followed for twenty minutes");
    stage.rebalance(1);
    stage.until_handled(s(30)).await;
    assert_eq!(cordoned(&stage, 5), [1]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_counts_for_itself() {
    let stage = Stage::new(30, 0);
    (0..30).for_each(|n| stage.label(n, GROUP, if n < 10 { "small" } else { "large" }));
    let replica = stage.start(&[]).await;
    (0..10).for_each(|n| drop(stage.rebalance(n)));
    stage.until_handled(s(30)).await;
    assert_eq!(cordoned(&stage, 30).len(), 2, "six of all might be held");
    (10..30).for_each(|n| drop(stage.rebalance(n)));
    stage.until_handled(s(30)).await;
    assert_eq!(cordoned(&stage, 30).len(), 6);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_replicas_that_cordon_at_once_the_later_gives_back() {
    let stage = Stage::new(5, 0);
    let other = stage.with_own_queue();
    let replicas = [stage.start(&[]).await, other.start(&[]).await];
    let now = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::rebalance("later", &instance(0), now));
    other.world.aws.sqs.send(messages::rebalance("earlier", &instance(1), now - s(5)));
    stage.until("both are cordoned", s(5), || cordoned(&stage, 5) == [0, 1]).await;
    stage.until("the later is given back", s(5), || cordoned(&stage, 5) == [1]).await;
    stage.until_handled(s(30)).await;
    stage.no_trace(0);
    replicas[0].all_ended("rebalance", &[("reported", 1)]);
    replicas[1].all_ended("rebalance", &[("cordoned", 1)]);
    assert!((replicas[0].released("over-limit") - 1.0).abs() < f64::EPSILON);
    stage.rest(&[&replicas[0], &replicas[1]]).await;
}

/// What goes for certain, or takes no new pods already, costs nothing when it is cordoned.
#[tokio::test(start_paused = true)]
async fn a_cordon_that_takes_nothing_is_not_limited() {
    let stage = Stage::new(5, 0);
    (0..2).for_each(|n| stage.set_cordon(n, true));
    let replica = stage.start(&["--on", "spot=cordon"]).await;
    (0..2).for_each(|n| drop(stage.rebalance(n)));
    (2..5).for_each(|n| drop(stage.spot(n)));
    stage.until_handled(s(30)).await;
    assert_eq!(cordoned(&stage, 5), [0, 1, 2, 3, 4]);
    replica.all_ended("rebalance", &[("cordoned", 2)]);
    replica.all_ended("spot", &[("cordoned", 3)]);
    stage.rest(&[&replica]).await;
}

/// A broken node, and one whose end AWS has set, is no hint: what beyond the limit was only reported would never be cordoned.
#[tokio::test(start_paused = true)]
async fn only_recommendations_are_limited() {
    let stage = Stage::new(10, 0);
    let flags = ["--on", "scheduled-change=cordon", "--on-condition", "KernelReady=False:30s=cordon"];
    let replica = stage.with_both("a", &flags).await;
    (0..4).for_each(|n| drop(stage.schedule_reboot(n)));
    stage.until_handled(s(30)).await;
    replica.all_ended("scheduled-change", &[("cordoned", 4)]);
    // The brake leaves two of ten to repairs.
    for n in 4..6 {
        stage.set_condition(n, "KernelReady", "False", 0);
        stage.until("cordoned", s(50), || stage.cordoned(n)).await;
    }
    replica.all_ended("node-condition", &[("cordoned", 2)]);
    // They are not schedulable for another reason, and hold nothing of the fifth of the four that are left.
    (6..8).for_each(|n| drop(stage.rebalance(n)));
    stage.until_handled(s(30)).await;
    replica.all_ended("rebalance", &[("cordoned", 1), ("reported", 1)]);
    assert_eq!(cordoned(&stage, 6), [0, 1, 2, 3, 4, 5]);
    stage.rest(&[&replica]).await;
}

/// A drain for a hint is the user's wish: it moves the pods first, and waves limit it.
#[tokio::test(start_paused = true)]
async fn drains_are_not_limited() {
    let stage = Stage::new(5, 1);
    let replica = stage.start(&["--on", "rebalance=drain"]).await;
    (0..5).for_each(|n| drop(stage.rebalance(n)));
    stage.until_handled(s(120)).await;
    assert_eq!(cordoned(&stage, 5).len(), 5);
    stage.rest(&[&replica]).await;
}

/// A node that is cordoned for another reason takes no part in the limit, until that reason has ended.
#[tokio::test(start_paused = true)]
async fn a_node_that_loses_its_other_reason_stays_cordoned_for_a_hint_within_the_limit_only() {
    for is_full in [true, false] {
        let stage = Stage::new(5, 0);
        let replica = stage.with_both("a", &["--on-condition", "KernelReady=False:30s=cordon"]).await;
        stage.set_condition(1, "KernelReady", "False", 0);
        stage.until("cordoned", s(50), || stage.cordoned(1)).await;
        stage.rebalance(1);
        stage.until_handled(s(30)).await;
        if is_full {
            stage.rebalance(0);
            stage.until_handled(s(30)).await;
        }
        assert_eq!(stage.notices(1).len(), 2);
        stage.set_condition(1, "KernelReady", "True", 0);
        stage.until("healthy", s(50), || stage.notices(1).len() < 2).await;
        assert_eq!(cordoned(&stage, 5), [usize::from(!is_full)]);
        if is_full {
            stage.no_trace(1);
        }
        stage.rest(&[&replica]).await;
    }
}
