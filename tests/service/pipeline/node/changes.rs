//! Scheduled changes that AWS puts off, calls off or repeats.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::messages;
use tokio::time::sleep;

const RETIREMENT: (&str, &str) = ("h", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED");
const REBOOT: (&str, &str) = ("h", "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED");

/// Returns the starts in the marks of node 0.
fn starts(stage: &Stage) -> Vec<String> {
    stage.notices(0).iter().map(|notice| notice["start"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_put_off_during_the_drain_moves_the_deadline() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let begun = stage.world.clock.now();
    stage.health(0, RETIREMENT, begun + s(1800), "upcoming");
    sleep(s(600)).await;
    assert!(stage.cordoned(0));
    stage.health(0, RETIREMENT, begun + s(3600), "upcoming");
    sleep(s(1800)).await;
    assert_eq!(
        stage.world.kube.pods_on(&node(0)).len(),
        1,
        "the budget holds after the first start\n{}",
        stage.story()
    );
    assert_eq!(starts(&stage), [(begun + s(3600)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()]);
    stage.until_handled(s(1800)).await;
    assert_eq!(stage.world.kube.pods().len(), 0, "deleted before the second");
    replica.all_ended("scheduled-change", &[("drained", 1), ("joined", 1)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_put_off_after_the_drain_moves_the_start_on_the_node() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let begun = stage.world.clock.now();
    stage.health(0, REBOOT, begun + s(86_400), "upcoming");
    stage.until_handled(s(30)).await;
    sleep(s(60)).await;
    stage.health(0, REBOOT, begun + s(2 * 86_400), "upcoming");
    stage.until_handled(s(30)).await;
    assert_eq!(starts(&stage), [(begun + s(2 * 86_400)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()]);
    assert!(stage.cordoned(0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_called_off_gives_the_node_back() {
    for during_the_drain in [true, false] {
        let stage = Stage::new(1, 1);
        if during_the_drain {
            stage.block(0);
        }
        let replica = stage.start(&[]).await;
        let start = stage.world.clock.now() + s(86_400);
        stage.health(0, RETIREMENT, start, "upcoming");
        sleep(s(120)).await;
        assert!(stage.cordoned(0));
        stage.health(0, RETIREMENT, start, "closed");
        stage.until_handled(s(10)).await;
        sleep(s(120)).await;
        assert!(!stage.cordoned(0), "during the drain: {during_the_drain}\n{}", stage.story());
        stage.no_trace(0);
        let expected = if during_the_drain { "joined" } else { "drained" };
        let mut outcomes = [(expected, 1), ("withdrawn", 1)];
        outcomes.sort_unstable();
        replica.all_ended("scheduled-change", &outcomes);
        stage.rest(&[&replica]).await;
    }
}

/// Another cluster's instances are in every queue: nobody asks EC2 about them for the end of a change.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_over_elsewhere_costs_no_call() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.health(7, RETIREMENT, stage.world.clock.now(), "closed");
    stage.until_handled(s(10)).await;
    assert_eq!((stage.calls("DescribeInstances"), stage.calls("patch nodes")), (0, 0));
    replica.ended_once("scheduled-change", "withdrawn");
    stage.rest(&[&replica]).await;
}

/// A replica releases the Node while another one drains it, or waits before that.
#[tokio::test(start_paused = true)]
async fn a_drain_ends_when_another_replica_takes_the_mark_back() {
    for flags in [&[][..], &["--delay", "scheduled-change=10m"]] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(flags).await;
        stage.health(0, RETIREMENT, stage.world.clock.now() + s(86_400), "upcoming");
        sleep(s(60)).await;
        stage.world.kube.update_node(&node(0), |node| {
            node.metadata.annotations.get_or_insert_default().retain(|key, _| !key.starts_with("ebbtide/"));
            node.metadata.labels.get_or_insert_default().retain(|key, _| !key.starts_with("ebbtide/"));
            node.spec.get_or_insert_default().unschedulable = None;
        });
        stage.until_handled(s(5)).await;
        sleep(s(60)).await;
        assert!(!stage.cordoned(0), "{}", stage.story());
        stage.no_trace(0);
        replica.ended_once("scheduled-change", "uncordoned");
        stage.rest(&[&replica]).await;
    }
}

/// The kubelet comes back before anybody has missed it, so that the Ready condition stays as it was.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_sent_again_after_a_fast_reboot_does_not_cordon_the_node_for_good() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let start = stage.world.clock.now() + s(60);
    stage.health(0, REBOOT, start, "upcoming");
    stage.until_handled(s(30)).await;
    sleep(s(60)).await;
    stage.world.kube.reboot(&node(0));
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    sleep(s(1800)).await;
    stage.health(0, REBOOT, start, "open");
    stage.until_handled(s(30)).await;
    replica.all_ended("scheduled-change", &[("drained", 1), ("stale", 1)]);
    assert!(!stage.cordoned(0), "{}", stage.story());
    // A later change is another one.
    stage.health(0, ("later", REBOOT.1), stage.world.clock.now() + s(3600), "upcoming");
    stage.until_handled(s(30)).await;
    assert!(stage.cordoned(0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_the_settings_name_drains_the_node_until_aws_closes_it() {
    const DEGRADED: &str = "AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED";
    let stage = Stage::new(2, 1);
    let replica =
        stage.start(&["--on", "scheduled-change=ignore", "--health-issue", &format!("{DEGRADED}=drain")]).await;
    stage.fault(0, DEGRADED, "open");
    stage.fault(1, "AWS_EC2_API_ISSUE", "open");
    stage.until_handled(s(30)).await;
    assert_eq!((stage.cordoned(0), stage.cordoned(1)), (true, false));
    assert_eq!((stage.ends_of("web-0-0").len(), stage.ends_of("web-1-0").len()), (1, 0));
    replica.all_ended("scheduled-change", &[("drained", 1), ("ignored", 1)]);
    sleep(s(3600)).await;
    stage.fault(0, DEGRADED, "closed");
    stage.until_handled(s(30)).await;
    assert!(!stage.cordoned(0));
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

/// Patience with a change is over, and a drain goes on for another notice, when AWS puts the change off.
#[tokio::test(start_paused = true)]
async fn the_old_start_of_a_change_that_was_put_off_ends_no_drain() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let flags = ["--on", "rebalance=drain", "--drain-timeout", "scheduled-change=60s"];
    let replica = stage.start(&flags).await;
    let start = stage.world.clock.now() + s(1200);
    stage.rebalance(0);
    stage.health(0, RETIREMENT, start, "upcoming");
    sleep(s(300)).await;
    stage.health(0, RETIREMENT, start + s(86_400), "upcoming");
    sleep(s(1000)).await;
    assert!(stage.world.kube.evictions().is_empty(), "{}", stage.story());
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// Messages don't keep their order.
#[tokio::test(start_paused = true)]
async fn an_announcement_older_than_its_withdrawal_does_nothing() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let (announced, start) = (stage.world.clock.now(), stage.world.clock.now() + s(86_400));
    let older = messages::scheduled_change(RETIREMENT.0, RETIREMENT.1, &[&instance(0)], announced, start);
    sleep(s(5)).await;
    stage.health(0, RETIREMENT, start, "closed");
    stage.until_handled(s(10)).await;
    stage.world.aws.sqs.send(older);
    stage.until_handled(s(60)).await;
    assert!(!stage.cordoned(0) && stage.world.kube.evictions().is_empty(), "{}", stage.story());
    replica.all_ended("scheduled-change", &[("stale", 1), ("withdrawn", 1)]);
    // Later than what counts as a late copy.
    sleep(s(1000)).await;
    stage.health(0, RETIREMENT, start, "upcoming");
    stage.until_handled(s(60)).await;
    assert!(stage.cordoned(0), "AWS has announced it again");
    stage.rest(&[&replica]).await;
}

/// A deletion that fails is retried until the node goes; not if it stays after all.
#[tokio::test(start_paused = true)]
async fn a_pod_is_no_longer_deleted_when_the_change_is_called_off() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", "rebalance=30m"]).await;
    stage.rebalance(0);
    let start = stage.world.clock.now() + s(300);
    stage.health(0, RETIREMENT, start, "upcoming");
    stage.world.faults.add(Rule::on("delete pods", Fault::Status(500)));
    stage.until("a failed deletion", s(300), || stage.calls("delete pods") > 0).await;
    stage.health(0, RETIREMENT, start, "closed");
    stage.until("the withdrawal", s(10), || stage.world.aws.sqs.deleted().len() >= 2).await;
    sleep(s(20)).await;
    stage.world.faults.clear();
    let tried = stage.calls("delete pods");
    sleep(s(300)).await;
    assert_eq!(stage.calls("delete pods"), tried, "{}", stage.story());
    assert!(stage.ends_of("web-0-0").is_empty(), "its budget protects it");
    stage.unblock(0);
    stage.until_handled(s(120)).await;
    assert_eq!(stage.ends_of("web-0-0").len(), 1);
    stage.rest(&[&replica]).await;
}
