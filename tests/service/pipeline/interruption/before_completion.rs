//! Waits before a completion: who wants the node to stay, volumes that are being detached, missing rights, throttled searches.

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

/// Returns a world of one node whose Auto Scaling group has a target group that lists it, and the target group's ARN.
fn behind(delay: Duration) -> (Stage, String) {
    let stage = Stage::new(1, 1);
    let arn = stage.world.aws.elb.add_group("web", delay);
    stage.world.aws.elb.register(&arn, &instance(0), 30_080);
    stage.world.aws.autoscaling.join("group", &instance(0));
    let spec = GroupSpec { target_groups: vec![arn.clone()], ..GroupSpec::default() };
    stage.world.aws.autoscaling.put_group("group", spec);
    (stage, arn)
}

fn completed_at(stage: &Stage, token: &str) -> Duration {
    stage.completed_once(token);
    stage.action(token).completions[0].0
}

fn waited(replica: &Replica, wait: &str, outcome: &str) -> bool {
    replica.metric(&format!("ebbtide_waits_seconds_count{{outcome=\"{outcome}\",wait=\"{wait}\"}}")) > 0.5
}

async fn until_held(stage: &Stage, point: &str) {
    let holds = || stage.held(0).as_deref() == Some(point);
    stage.until("the hold", s(3000), holds).await;
}

/// docs/waits.md: "`kubectl uncordon` and `ebbtide/ignore` end a hold as they end a drain"; then the hook is left. The hold before
/// the completion goes on, new pods come to the node that somebody wants to keep, and at the end Ebbtide completes the hook: the
/// instance ends with them.
#[tokio::test(start_paused = true)]
async fn an_uncordon_ends_a_hold_before_the_completion_and_leaves_the_hook() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--hold", "before-completion"]).await;
    let token = stage.terminate(0, s(900), Wrapping::Event);
    until_held(&stage, "before-completion").await;
    for _ in 0..2 {
        sleep(s(10)).await;
        stage.set_cordon(0, false);
    }
    sleep(s(5)).await;
    assert!(!stage.cordoned(0));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("new"));
    sleep(s(1000)).await;
    assert_eq!(stage.results(&token), Vec::<String>::new(), "somebody wants the node to stay");
    stage.rest(&[&replica]).await;
}

/// The same with `ebbtide/ignore`: "You complete the hooks" (docs/draining.md, By hand).
#[tokio::test(start_paused = true)]
async fn a_node_that_is_ignored_in_a_hold_before_the_completion_keeps_its_hook() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--hold", "before-completion"]).await;
    let token = stage.terminate(0, s(900), Wrapping::Event);
    until_held(&stage, "before-completion").await;
    stage.annotate(0, "ebbtide/ignore", "true");
    stage.set_cordon(0, false);
    sleep(s(1000)).await;
    assert_eq!(stage.results(&token), Vec::<String>::new(), "its owner completes the hook");
    stage.rest(&[&replica]).await;
}

/// And with a wait that is on by default: somebody ignores and uncordons the node while its volumes are waited for.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_ignored_while_volumes_are_waited_for_keeps_its_hook() {
    let stage = with_volume(None);
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(20)).await;
    stage.annotate(0, "ebbtide/ignore", "true");
    stage.set_cordon(0, false);
    sleep(s(700)).await;
    assert_eq!(stage.results(&token), Vec::<String>::new(), "its owner completes the hook");
    stage.rest(&[&replica]).await;
}

/// The hook must wait until the attachment is deleted. Kubernetes' attach-detach controller takes a volume out of the Node's
/// `volumesAttached` before it begins to detach it (reconciler: "mark volume as detached and update the node status" comes first), and
/// the kubelet takes it out of `volumesInUse` at the unmount: if another pod is drained after that, no wait is made at all, because
/// only the Node's status decides whether there are volumes.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_being_detached_at_the_end_of_the_drain_is_waited_for() {
    let stage = with_volume(Some(s(50)));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(60)).stops_in(s(20)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(10)).await;
    assert!(!stage.has_pod("db-0") && stage.has_pod("slow"));
    stage.world.kube.update_node(&node(0), |node| {
        let status = node.status.get_or_insert_default();
        (status.volumes_attached, status.volumes_in_use) = (None, None);
    });
    stage.until_handled(s(120)).await;
    let at = completed_at(&stage, &token);
    assert!(at >= s(50), "completed at {at:?} with an attached volume");
    stage.rest(&[&replica]).await;
}

/// docs/waits.md: "Without its right a wait ends as `denied` at once". Without that to read claims it asks again and again until its
/// cap, and logs each time.
#[tokio::test(start_paused = true)]
async fn without_the_right_to_claims_the_wait_for_volumes_ends_at_once() {
    let stage = with_volume(Some(s(5)));
    stage.world.kube.add_pod(Pod::on(&node(0)).daemonset().named("cache").claim("cache"));
    stage.world.kube.deny("get persistentvolumeclaims");
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(200)).await;
    let at = completed_at(&stage, &token);
    let asked = stage.calls("get persistentvolumeclaims");
    assert!(at < s(15) && asked == 1, "completed at {at:?}, after {asked} denied calls");
    stage.rest(&[&replica]).await;
}

/// The same for the right to watch attachments: the first list is all that is ever known, so each hook is held to the cap, though the
/// volume is detached after seconds.
#[tokio::test(start_paused = true)]
async fn without_the_right_to_watch_attachments_the_wait_for_volumes_ends_at_once() {
    let stage = with_volume(Some(s(10)));
    stage.world.kube.deny("watch volumeattachments");
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(200)).await;
    let at = completed_at(&stage, &token);
    assert!(at < s(30), "completed at {at:?}; the volume was detached at 12 s");
    stage.rest(&[&replica]).await;
}

/// A search for target groups that AWS throttles for some seconds, as in any storm, ends the wait as `not-needed` and completes the
/// hook at once, for all notices of half a minute: of six minutes it waits for none, with the instance still in its target group.
#[tokio::test(start_paused = true)]
async fn a_throttled_search_for_target_groups_does_not_end_the_wait() {
    let (stage, web) = behind(s(30));
    stage.world.faults.add(Rule::on("DescribeAutoScalingGroups", Fault::Throttle));
    let replica = stage.start(&["--wait-for-load-balancers", "wait"]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(12)).await;
    stage.world.faults.clear();
    sleep(s(20)).await;
    let (early, not_needed) = (stage.results(&token), waited(&replica, "load-balancers", "not-needed"));
    stage.world.aws.elb.deregister(&web, &instance(0));
    stage.until_handled(s(120)).await;
    stage.rest(&[&replica]).await;
    assert!(
        early.is_empty() && !not_needed,
        "completed with the instance registered: {early:?}, not needed: {not_needed}"
    );
}

/// One throttled call, and a spot instance is never deregistered, though its drain takes another 40 s.
#[tokio::test(start_paused = true)]
async fn one_throttled_call_does_not_leave_a_spot_instance_registered() {
    let (stage, _) = behind(s(30));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(60)).stops_in(s(40)));
    stage.world.faults.add(Rule::on("DescribeAutoScalingInstances", Fault::Throttle).times(1));
    let replica = stage.start(&["--wait-for-load-balancers", "deregister"]).await;
    stage.spot(0);
    stage.until_handled(s(120)).await;
    stage.rest(&[&replica]).await;
    assert_eq!(stage.world.aws.elb.deregistered().len(), 1, "{}", stage.story());
}

/// Somebody has uncordoned the node, and `--on-uncordon at-deadline` keeps the hook. The condition and the Event say that the node waits
/// for `--complete-after`, a setting that is not set.
#[tokio::test(start_paused = true)]
async fn the_wait_after_an_uncordon_names_its_own_setting() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "10m", "--on-uncordon", "at-deadline"]).await;
    stage.terminate(0, s(60), Wrapping::Event);
    for _ in 0..2 {
        sleep(s(20)).await;
        stage.set_cordon(0, false);
    }
    sleep(s(60)).await;
    let said = stage.condition_text(0);
    stage.until_handled(s(600)).await;
    stage.rest(&[&replica]).await;
    assert!(!said.contains("--complete-after"), "{said}");
}
