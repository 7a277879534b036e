//! What is waited for between a drain and the completion of its hook.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::aws::GroupSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

/// Returns a world of one node with a pod that has a volume, which is detached this long after the pod is gone.
fn with_volume(detached_after: Option<Duration>) -> Stage {
    let stage = Stage::new(1, 0);
    stage.world.kube.detach_after(detached_after);
    stage.world.kube.add_pod(Pod::on(&node(0)).statefulset("db").named("db-0").claim("data-db-0").stops_in(s(2)));
    stage
}

/// Returns when the action was completed.
fn completed_at(stage: &Stage, token: &str) -> Duration {
    stage.completed_once(token);
    stage.world.aws.autoscaling.action(token).unwrap().completions[0].0
}

/// Returns whether so many waits for volumes have ended like this.
fn waited(replica: &Replica, outcome: &str, times: u32) -> bool {
    let metric = format!("ebbtide_waits_seconds_count{{outcome=\"{outcome}\",wait=\"volumes\"}}");
    (replica.metric(&metric) - f64::from(times)).abs() < 0.5
}

#[tokio::test(start_paused = true)]
async fn a_hook_is_completed_when_the_volumes_are_detached() {
    let stage = with_volume(Some(s(20)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    let at = completed_at(&stage, &token);
    assert!((s(22)..s(24)).contains(&at), "{at:?}");
    assert!(waited(&replica, "met", 1));
    replica.ended_once("asg-terminate", "drained");
    assert_eq!(stage.calls("list volumeattachments"), 1);
    stage.rest(&[&replica]).await;
    assert_eq!(stage.world.kube.attachments(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_leaked_attachment_holds_no_hook_longer_than_the_user_says() {
    for (flags, waits) in [(&[][..], 60), (&["--wait-for-volumes", "10s"], 10), (&["--wait-for-volumes", "0s"], 0)] {
        let stage = with_volume(None);
        let replica = stage.start(flags).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        stage.until_handled(s(90)).await;
        let at = completed_at(&stage, &token);
        assert!((s(2 + waits)..s(4 + waits)).contains(&at), "{flags:?}: {at:?}");
        assert!(waited(&replica, "time-over", u32::from(waits > 0)));
        replica.ended_once("asg-terminate", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_in_time_for_the_hook() {
    let stage = with_volume(None);
    let replica = stage.start(&["--wait-for-volumes", "1h"]).await;
    let token = stage.terminate(0, s(900), Wrapping::Event);
    stage.until_handled(s(950)).await;
    // The timeout less the margin: the pod, which is gone, needs no more time.
    let at = completed_at(&stage, &token);
    assert!((s(865)..s(875)).contains(&at), "{at:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_a_pod_that_stays_is_not_waited_for() {
    let stage = with_volume(Some(s(5)));
    stage.world.kube.add_pod(Pod::on(&node(0)).daemonset().named("cache").claim("cache"));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    let at = completed_at(&stage, &token);
    assert!((s(7)..s(9)).contains(&at), "{at:?}");
    assert_eq!(stage.world.kube.attachments(), ["csi-pv-cache-node-0"]);
    assert!(waited(&replica, "met", 1) && stage.calls("get persistentvolumeclaims") == 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn where_nothing_is_to_be_waited_for_nothing_is_asked() {
    let stage = Stage::new(1, 2);
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    assert!(completed_at(&stage, &token) < s(4));
    stage.world.kube.add_node(&node(1), &instance(1));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("db").claim("data"));
    stage.spot(1);
    stage.until_handled(s(30)).await;
    assert_eq!((stage.calls("list volumeattachments"), stage.calls("get persistentvolumeclaims")), (0, 0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_delays_nothing() {
    let stage = with_volume(None);
    stage.world.kube.deny("list volumeattachments");
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    assert!(completed_at(&stage, &token) < s(4));
    assert!(waited(&replica, "denied", 1));
    stage.world.kube.add_node(&node(1), &instance(1));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("db-1").claim("data-db-1"));
    let token = stage.terminate(1, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    stage.completed_once(&token);
    assert_eq!(stage.calls("list volumeattachments"), 1, "a storm asks once");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn failed_calls_are_repeated_within_the_wait() {
    let stage = with_volume(Some(s(20)));
    stage.world.faults.add(Rule::on("list volumeattachments", Fault::Status(503)).times(2));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    let at = completed_at(&stage, &token);
    assert!((s(22)..s(24)).contains(&at), "{at:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_takes_the_wait_over() {
    let stage = with_volume(Some(s(40)));
    let first = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(20)).await;
    let second = stage.start(&[]).await;
    let (exit, ..) = first.stop().await;
    assert_eq!(exit, ebbtide::service::Exit::Clean);
    stage.until_handled(s(60)).await;
    let at = completed_at(&stage, &token);
    assert!((s(42)..s(44)).contains(&at), "{at:?}");
    stage.rest(&[&second]).await;
}

/// Somebody else completes the hook meanwhile.
#[tokio::test(start_paused = true)]
async fn the_end_of_the_action_ends_the_wait() {
    let stage = with_volume(None);
    let replica = stage.start(&["--wait-for-volumes", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(20)).await;
    stage.world.aws.autoscaling.complete(&token, ebbtide_sim::aws::HookResult::Continue);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// Fifty hooks share one watch.
#[tokio::test(start_paused = true)]
async fn a_storm_shares_one_watch() {
    let stage = Stage::new(50, 0);
    stage.world.kube.detach_after(Some(s(10)));
    for n in 0..50 {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("db-{n}")).claim(&format!("data-{n}")));
    }
    let replica = stage.start(&[]).await;
    let tokens: Vec<_> = (0..50).map(|n| stage.terminate(n, s(300), Wrapping::Event)).collect();
    stage.until_handled(s(60)).await;
    for token in &tokens {
        stage.completed_once(token);
    }
    assert!(waited(&replica, "met", 50));
    assert!(stage.calls("list volumeattachments") <= 3, "{}", stage.calls("list volumeattachments"));
    assert_eq!(stage.calls("list pods"), 50 * 3);
    stage.rest(&[&replica]).await;
}

/// A storm of a thousand hooks, with volumes and a target group to be waited for: at most two more calls a notice than without.
#[tokio::test(start_paused = true)]
async fn waits_for_volumes_and_load_balancers_cost_a_storm_at_most_two_calls_a_notice() {
    let storm = async |flags: &'static [&'static str]| {
        let stage = Stage::new(1000, 0);
        stage.world.kube.detach_after(Some(s(10)));
        let web = stage.world.aws.elb.add_group("web", s(60));
        for n in 0..1000 {
            stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("db-{n}")).claim(&format!("data-{n}")));
            stage.world.aws.elb.register(&web, &instance(n), 80);
        }
        let spec = GroupSpec { target_groups: vec![web], ..GroupSpec::default() };
        stage.world.aws.autoscaling.put_group("group", spec);
        let replica = stage.start(flags).await;
        let tokens: Vec<_> = (0..1000).map(|n| stage.terminate(n, s(600), Wrapping::Event)).collect();
        stage.until_handled(s(500)).await;
        for token in &tokens {
            stage.completed_once(token);
        }
        stage.rest(&[&replica]).await;
        // What goes with the time that messages are held has its own pace.
        let other = ["ReceiveMessage", "ChangeMessageVisibilityBatch", "RecordLifecycleActionHeartbeat"];
        stage.world.calls.tally().values().sum::<usize>() - other.map(|call| stage.calls(call)).iter().sum::<usize>()
    };
    let without = storm(&["--wait-for-volumes", "0s"]).await;
    let with = storm(&["--wait-for-load-balancers", "deregister"]).await;
    assert!(with <= without + 2 * 1000, "{with} calls, {without} without");
}

/// Returns a world of one node whose waits never end by themselves: a leaked attachment, and a target that stays.
fn endless() -> Stage {
    let stage = with_volume(None);
    let web = stage.world.aws.elb.add_group("web", s(60));
    stage.world.aws.elb.register(&web, &instance(0), 80);
    stage.world.aws.autoscaling.put_group("group", GroupSpec { target_groups: vec![web], ..GroupSpec::default() });
    stage
}

const ENDLESS: [&[&str]; 4] = [
    &["--wait-for-volumes", "2h"],
    &["--wait-for-volumes", "0s", "--wait-for-load-balancers", "wait"],
    &["--wait-for-volumes", "0s", "--hold", "before-completion"],
    &["--wait-for-volumes", "0s", "--complete-after", "2h"],
];

/// The times of the hook can't be read at first: until then its deadline is assumed at 50 minutes.
#[tokio::test(start_paused = true)]
async fn a_deadline_that_moves_nearer_ends_every_wait_earlier() {
    for flags in ENDLESS {
        let stage = endless();
        // A wait for load balancers ends after six minutes, but later than the hook.
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(800)).stops_in(s(700)));
        stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
        let replica = stage.start(flags).await;
        let token = stage.terminate(0, s(1050), Wrapping::Event);
        sleep(s(720)).await;
        assert!(stage.world.aws.autoscaling.action(&token).unwrap().completions.is_empty(), "{flags:?}");
        stage.world.faults.clear();
        stage.until_handled(s(330)).await;
        let at = completed_at(&stage, &token);
        assert!((s(1010)..s(1040)).contains(&at), "{flags:?}: {at:?}");
        replica.ended_once("asg-terminate", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_in_any_wait_is_fast_and_the_next_replica_goes_on() {
    for flags in ENDLESS {
        let stage = endless();
        let flags = [flags, &["--drain-timeout", "asg-terminate=100s"]].concat();
        let first = stage.start(&flags).await;
        let token = stage.terminate(0, s(100), Wrapping::Event);
        sleep(s(20)).await;
        let (exit, took, _) = first.stop().await;
        assert_eq!((exit, took < s(5)), (ebbtide::service::Exit::Clean, true), "{flags:?}: {took:?}");
        assert!(stage.world.aws.autoscaling.action(&token).unwrap().completions.is_empty(), "{flags:?}");
        let second = stage.start(&flags).await;
        stage.until_handled(s(150)).await;
        let at = completed_at(&stage, &token);
        assert!((s(85)..s(95)).contains(&at), "{flags:?}: {at:?}");
        stage.rest(&[&second]).await;
    }
}

/// The hook's times are known some minutes after the drain: that gives the volumes no more time.
#[tokio::test(start_paused = true)]
async fn a_deadline_that_moves_does_not_begin_the_time_of_a_wait_anew() {
    let stage = with_volume(None);
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
    let replica = stage.start(&["--wait-for-volumes", "400s"]).await;
    let token = stage.terminate(0, s(1800), Wrapping::Event);
    sleep(s(20)).await;
    stage.world.faults.clear();
    stage.until_handled(s(2000)).await;
    let at = completed_at(&stage, &token);
    assert!((s(400)..s(420)).contains(&at), "{at:?}");
    stage.rest(&[&replica]).await;
}
