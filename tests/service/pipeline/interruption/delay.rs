//! `--delay`: the Node is cordoned at once, and drained later.

use crate::drains::ended;
use crate::harness::{Stage, instance, node, s};
use crate::nodes::marks;
use ebbtide_sim::kube::{By, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_delay_cordons_at_once_and_evicts_later() {
    // A delay takes at most half of the time to the deadline.
    for (delay, first) in [("spot=20s", 20), ("spot=10m", 60)] {
        let stage = Stage::new(1, 2);
        let replica = stage.start(&["--delay", delay]).await;
        let begun = stage.world.clock.elapsed();
        stage.spot(0);
        stage.until("cordoned", s(1), || stage.cordoned(0)).await;
        stage.until_handled(s(100)).await;
        let after = stage.first_eviction(0).unwrap().saturating_sub(begun);
        assert!(after >= s(first) && after < s(first + 1), "{delay}: {after:?}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_notice_without_a_delay_does_not_wait_for_a_delayed_one() {
    let stage = Stage::new(1, 2);
    let replica = stage.start(&["--on", "rebalance=drain", "--delay", "rebalance=10m"]).await;
    stage.rebalance(0);
    sleep(s(60)).await;
    assert_eq!((stage.cordoned(0), stage.world.kube.evictions().len()), (true, 0));
    stage.spot(0);
    // The drain is for both.
    stage.until_handled(s(10)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    assert_eq!(stage.world.kube.evictions().len(), 2);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_delay_that_has_passed_on_arrival_is_skipped() {
    let stage = Stage::new(1, 1);
    let at = stage.world.clock.now();
    stage.world.aws.ec2.interrupt(&instance(0), at);
    stage.world.aws.sqs.send(messages::spot("old", &instance(0), at));
    sleep(s(60)).await;
    let replica = stage.start(&["--delay", "spot=30s"]).await;
    stage.until_handled(s(5)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_delayed_spot_warning_brings_its_deadline_to_a_running_drain() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(1000)).stops_in(None));
    let replica = stage.start(&["--delay", "spot=50s"]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(10)).await;
    stage.spot(0);
    sleep(s(125)).await;
    let all = ended(&stage);
    assert!(
        all.iter().any(|(_, at, grace, by)| *by == By::Delete && *at <= 12 && grace.unwrap_or(0) >= 115),
        "{all:?}"
    );
    stage.rest(&[&replica]).await;
}

/// Somebody uncordons the Node during the delay: the drain must not cordon it again without a mark.
#[tokio::test(start_paused = true)]
async fn a_node_uncordoned_during_the_delay_is_not_left_cordoned_without_a_mark() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--on", "rebalance=drain", "--delay", "rebalance=5m", "--uncordon-after", "10m"]).await;
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    sleep(s(60)).await;
    stage.world.kube.update_node(&node(0), |node| node.spec.get_or_insert_default().unschedulable = None);
    sleep(s(60)).await;
    let mid = (stage.cordoned(0), marks(&stage, 0));
    stage.until_handled(s(400)).await;
    let pods = stage.world.kube.pods_on(&node(0)).len();
    sleep(s(3 * 3600)).await;
    assert!(
        !(stage.cordoned(0) && marks(&stage, 0).is_empty()),
        "in the delay {mid:?}; {pods} pods left; hours later cordoned without a mark"
    );
    stage.rest(&[&replica]).await;
}

/// The Node is deleted during the delay.
#[tokio::test(start_paused = true)]
async fn deletion_of_the_node_during_the_delay_completes_the_hook() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--delay", "asg-terminate=20m"]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(10)).await;
    stage.world.kube.remove_node(&node(0));
    sleep(s(60)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(!action.completions.is_empty(), "{:?}", action.completions);
    stage.rest(&[&replica]).await;
}
