//! Target groups: what is waited for after a drain, and what is deregistered.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::aws::{Deregistration, GroupSpec, HookResult};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::sleep;

pub const WAIT: [&str; 2] = ["--wait-for-load-balancers", "wait"];
pub const DEREGISTER: [&str; 2] = ["--wait-for-load-balancers", "deregister"];
/// The drain of a hook ends before the longest wait for load balancers.
const SHORT: [&str; 2] = ["--drain-timeout", "asg-terminate=100s"];

/// Returns a world of these nodes, with an Auto Scaling group whose target group `web`, with this delay, lists them on two ports; and
/// the target group's ARN.
fn behind(nodes: usize, delay: Duration) -> (Stage, String) {
    with_pods(nodes, 1, delay)
}

/// As [`behind`], with this many pods on each node.
fn with_pods(nodes: usize, pods: usize, delay: Duration) -> (Stage, String) {
    let stage = Stage::new(nodes, pods);
    let arn = stage.world.aws.elb.add_group("web", delay);
    for n in 0..nodes {
        stage.world.aws.elb.register(&arn, &instance(n), 30_080);
        stage.world.aws.elb.register(&arn, &instance(n), 30_443);
        stage.world.aws.autoscaling.join("group", &instance(n));
    }
    let spec = GroupSpec { target_groups: vec![arn.clone()], ..GroupSpec::default() };
    stage.world.aws.autoscaling.put_group("group", spec);
    (stage, arn)
}

/// Returns when the action was completed.
pub fn completed_at(stage: &Stage, token: &str) -> Duration {
    stage.completed_once(token);
    stage.world.aws.autoscaling.action(token).unwrap().completions[0].0
}

/// Asserts that so many waits have ended like this.
pub fn waited(replica: &Replica, outcome: &str, times: u32) {
    let metric = format!("ebbtide_waits_seconds_count{{outcome=\"{outcome}\",wait=\"load-balancers\"}}");
    let ended = replica.metric(&metric);
    assert!((ended - f64::from(times)).abs() < 0.5, "{ended} waits ended as {outcome}, not {times}");
}

pub const LOOK: &str = "DescribeTargetHealth";

#[tokio::test(start_paused = true)]
async fn a_hook_is_completed_when_no_target_group_lists_the_instance() {
    let (stage, web) = behind(1, s(30));
    let replica = stage.start(&WAIT).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(20)).await;
    assert!(stage.world.aws.autoscaling.action(&token).unwrap().completions.is_empty(), "it is registered");
    // The controller has seen the label.
    stage.world.aws.elb.deregister(&web, &instance(0));
    stage.until_handled(s(90)).await;
    let at = completed_at(&stage, &token);
    assert!((s(50)..s(66)).contains(&at), "{at:?}");
    waited(&replica, "met", 1);
    replica.ended_once("asg-terminate", "drained");
    assert_eq!(stage.calls("DeregisterTargets"), 0);
    assert!(stage.calls(LOOK) <= 10, "{}", stage.calls(LOOK));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_setting_nothing_is_asked() {
    let (stage, _) = behind(1, s(30));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    assert!(completed_at(&stage, &token) < s(4));
    let calls = [
        "DescribeAutoScalingGroups",
        LOOK,
        "list targetgroupbindings",
        "DescribeInstances",
        "DescribeTargetGroups",
        "DescribeTags",
    ];
    assert_eq!(calls.map(|call| stage.calls(call)), [0; 6]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_no_group_lists_is_not_waited_for() {
    let (stage, web) = behind(2, s(30));
    let replica = stage.start(&WAIT).await;
    stage.world.aws.elb.set_state(&web, &instance(0), 30_080, Some("unused"));
    stage.world.aws.elb.set_state(&web, &instance(0), 30_443, Some("unused"));
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    assert!(completed_at(&stage, &token) < s(4));
    waited(&replica, "not-needed", 1);
    assert_eq!((stage.calls(LOOK), stage.calls("DescribeAutoScalingGroups")), (1, 1));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_target_that_stays_holds_no_hook_longer_than_six_minutes() {
    let (stage, _) = behind(1, s(30));
    let replica = stage.start(&WAIT).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.until_handled(s(500)).await;
    let at = completed_at(&stage, &token);
    assert!((s(362)..s(364)).contains(&at), "{at:?}");
    waited(&replica, "time-over", 1);
    assert!((25..60).contains(&stage.calls(LOOK)), "{}", stage.calls(LOOK));
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_in_time_for_the_hook() {
    let (stage, _) = behind(1, s(30));
    let replica = stage.start(&[&WAIT[..], &SHORT].concat()).await;
    let token = stage.terminate(0, s(100), Wrapping::Event);
    stage.until_handled(s(150)).await;
    let at = completed_at(&stage, &token);
    assert!((s(85)..s(95)).contains(&at), "{at:?}");
    waited(&replica, "time-over", 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_instance_is_deregistered_on_all_ports_when_its_drain_begins() {
    let (stage, web) = behind(1, s(30));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(60)).stops_in(s(20)));
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(90)).await;
    let deregistered = stage.world.aws.elb.deregistered();
    assert!(
        deregistered.iter().all(|Deregistration { at, group, .. }| *at < s(3) && *group == web),
        "{deregistered:?}"
    );
    assert_eq!(deregistered.iter().map(|gone| gone.port).collect::<Vec<_>>(), [30_080, 30_443]);
    let at = completed_at(&stage, &token);
    assert!((s(30)..s(47)).contains(&at), "{at:?}");
    waited(&replica, "met", 1);
    assert_eq!(stage.calls("DeregisterTargets"), 1, "what drains is not deregistered again");
    stage.rest(&[&replica]).await;
}

/// A spot warning has no hook to complete: there is nothing that could wait.
/// The call that began with the drain is answered after the drain's end.
#[tokio::test(start_paused = true)]
async fn an_instance_is_deregistered_once_though_its_drain_ends_first() {
    let (stage, _) = behind(1, s(10));
    stage.world.faults.add(Rule::on("DeregisterTargets", Fault::Slow(s(4))));
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    assert_eq!(stage.calls("DeregisterTargets"), 1);
    stage.rest(&[&replica]).await;
}

/// The drain ends while its deregistration waits for others to share the call.
#[tokio::test(start_paused = true)]
async fn a_deregistration_that_ends_with_its_drain_is_asked_for_again_at_once() {
    for stops in (0..2000).step_by(100).map(Duration::from_millis) {
        let (stage, _) = with_pods(1, 0, s(5));
        stage.world.kube.add_pod(Pod::on(&node(0)).named("web").stops_in(stops));
        let replica = stage.start(&DEREGISTER).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        stage.until_handled(s(60)).await;
        let deregistered = stage.world.aws.elb.deregistered();
        assert!(deregistered.iter().all(|gone| gone.at < s(4)), "{stops:?}: {deregistered:?}");
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_spot_instance_is_deregistered_and_not_waited_for() {
    let (stage, web) = behind(1, s(300));
    let replica = stage.start(&DEREGISTER).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.aws.elb.registered(&web), Vec::<String>::new());
    waited(&replica, "met", 0);
    assert_eq!(stage.calls("DescribeAutoScalingInstances"), 1);
    stage.rest(&[&replica]).await;
    let stage = behind(1, s(300)).0;
    let replica = stage.start(&WAIT).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!((stage.calls(LOOK), stage.calls("list targetgroupbindings")), (0, 0));
    stage.rest(&[&replica]).await;
}

/// Its drain ends before AWS has answered a single call.
#[tokio::test(start_paused = true)]
async fn an_empty_spot_instance_is_deregistered_too() {
    let (stage, web) = with_pods(1, 0, s(300));
    let replica = stage.start(&DEREGISTER).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.aws.elb.registered(&web), Vec::<String>::new());
    stage.rest(&[&replica]).await;
}

/// Nobody would register it again.
#[tokio::test(start_paused = true)]
async fn an_instance_that_comes_back_is_not_deregistered() {
    let (stage, web) = behind(2, s(30));
    let replica = stage.start(&[&DEREGISTER[..], &["--on", "rebalance=drain"]].concat()).await;
    let now = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::rebalance("r-1", &instance(0), now));
    stage.until_handled(s(30)).await;
    assert!(stage.world.aws.elb.registered(&web).contains(&instance(0)));
    assert_eq!(stage.calls("DeregisterTargets"), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_asks_and_changes_nothing() {
    let (stage, web) = behind(1, s(30));
    let replica = stage.start(&[&DEREGISTER[..], &["--dry-run"]].concat()).await;
    stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    assert!(stage.world.aws.elb.registered(&web).contains(&instance(0)));
    assert_eq!((stage.calls(LOOK), stage.calls("DescribeAutoScalingGroups")), (0, 0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn evictions_that_wait_keep_the_instance_registered() {
    let (stage, web) = behind(1, s(30));
    let replica = stage.start(&[&DEREGISTER[..], &["--delay", "asg-terminate=60s"]].concat()).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(50)).await;
    assert!(stage.world.aws.elb.registered(&web).contains(&instance(0)));
    stage.until_handled(s(90)).await;
    stage.completed_once(&token);
    assert!(stage.world.aws.elb.deregistered().iter().all(|gone| gone.at > s(60)));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_delays_nothing_and_is_asked_for_once() {
    for denied in [LOOK, "DeregisterTargets"] {
        let (stage, _) = behind(3, s(30));
        stage.world.faults.add(Rule::on(denied, Fault::Status(403)));
        let replica = stage.start(&DEREGISTER).await;
        for n in 0..3 {
            let token = stage.terminate(n, s(300), Wrapping::Event);
            let sent = stage.world.clock.elapsed();
            stage.until_handled(s(30)).await;
            assert!(completed_at(&stage, &token) - sent < s(5));
        }
        waited(&replica, "denied", 3);
        assert_eq!(stage.calls(denied), 1, "{denied}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_search_that_is_denied_leaves_out_what_it_would_find() {
    let (stage, _) = behind(2, s(30));
    stage.world.faults.add(Rule::on("DescribeAutoScalingGroups", Fault::Status(403)));
    let replica = stage.start(&WAIT).await;
    for n in 0..2 {
        let token = stage.terminate(n, s(300), Wrapping::Event);
        stage.until_handled(s(30)).await;
        stage.completed_once(&token);
    }
    waited(&replica, "not-needed", 2);
    assert_eq!(stage.calls("DescribeAutoScalingGroups"), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn throttled_and_failing_calls_are_repeated_within_the_wait() {
    for fault in [Fault::Throttle, Fault::Status(503), Fault::Disconnect, Fault::LostResponse] {
        let (stage, _) = behind(1, s(30));
        for call in ["DescribeAutoScalingGroups", LOOK, "DeregisterTargets"] {
            stage.world.faults.add(Rule::on(call, fault).times(2));
        }
        let replica = stage.start(&DEREGISTER).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        stage.until_handled(s(120)).await;
        let at = completed_at(&stage, &token);
        assert!((s(30)..s(80)).contains(&at), "{fault:?}: {at:?}");
        waited(&replica, "met", 1);
        stage.rest(&[&replica]).await;
    }
}

/// A state that the SDK does not know, and an answer without a state, say nothing of traffic.
#[tokio::test(start_paused = true)]
async fn what_an_answer_does_not_say_is_waited_for() {
    for state in [Some("levitating"), None] {
        let (stage, web) = behind(1, s(30));
        stage.world.aws.elb.set_state(&web, &instance(0), 30_080, state);
        stage.world.aws.elb.set_state(&web, &instance(0), 30_443, Some("unused"));
        let replica = stage.start(&WAIT).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        sleep(s(30)).await;
        assert!(stage.world.aws.autoscaling.action(&token).unwrap().completions.is_empty(), "{state:?}");
        stage.world.aws.elb.set_state(&web, &instance(0), 30_080, Some("unused"));
        stage.until_handled(s(30)).await;
        stage.completed_once(&token);
        waited(&replica, "met", 1);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_group_that_is_deleted_ends_the_wait() {
    let (stage, web) = behind(1, s(30));
    let replica = stage.start(&WAIT).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(20)).await;
    stage.world.aws.elb.remove_group(&web);
    stage.until_handled(s(30)).await;
    stage.completed_once(&token);
    waited(&replica, "met", 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_takes_the_wait_over() {
    let (stage, _) = behind(1, s(60));
    let first = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(20)).await;
    let second = stage.start(&DEREGISTER).await;
    let (exit, ..) = first.stop().await;
    assert_eq!(exit, ebbtide::service::Exit::Clean);
    stage.until_handled(s(90)).await;
    let at = completed_at(&stage, &token);
    assert!((s(60)..s(80)).contains(&at), "{at:?}");
    assert_eq!(stage.calls("DeregisterTargets"), 1);
    stage.rest(&[&second]).await;
}

/// Somebody else completes the hook meanwhile.
#[tokio::test(start_paused = true)]
async fn the_end_of_the_action_ends_the_wait() {
    let (stage, _) = behind(1, s(30));
    let replica = stage.start(&WAIT).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(20)).await;
    stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_does_not_delay_the_shutdown() {
    let (stage, _) = behind(1, s(300));
    let replica = stage.start(&DEREGISTER).await;
    stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(20)).await;
    let (exit, took, tasks) = replica.stop().await;
    assert_eq!(exit, ebbtide::service::Exit::Clean);
    assert!(took < s(3), "{took:?}");
    tasks.gone(ebbtide::fact::TaskKind::transient).await;
}

/// Returns a world of one node with a pod of namespace `shop` and one that stays; and the target group that both are in by their
/// addresses.
fn of_pods() -> (Stage, String) {
    let stage = Stage::new(1, 0);
    let shop = Pod::on(&node(0)).namespace("shop").named("shop-0").address("10.0.0.7").stops_in(s(2));
    stage.world.kube.add_pod(shop);
    stage.world.kube.add_pod(Pod::on(&node(0)).namespace("shop").daemonset().named("agent").address("10.0.0.1"));
    // In the node's network, as the one that stays: the address remains in use.
    stage.world.kube.add_pod(Pod::on(&node(0)).namespace("shop").named("proxy").address("10.0.0.1"));
    let arn = stage.world.aws.elb.add_group("shop", s(30));
    for address in ["10.0.0.1", "10.0.0.7", "10.0.0.9"] {
        stage.world.aws.elb.register(&arn, address, 8080);
    }
    stage.world.kube.bind_target_group("shop", "shop", &arn, "ip");
    (stage, arn)
}

#[tokio::test(start_paused = true)]
async fn the_addresses_of_drained_pods_are_waited_for_and_left_to_the_controller() {
    let (stage, shop) = of_pods();
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(20)).await;
    assert!(stage.world.aws.autoscaling.action(&token).unwrap().completions.is_empty(), "it is registered");
    stage.world.aws.elb.deregister(&shop, "10.0.0.7");
    stage.until_handled(s(90)).await;
    let at = completed_at(&stage, &token);
    assert!((s(50)..s(66)).contains(&at), "{at:?}");
    waited(&replica, "met", 1);
    assert_eq!((stage.calls("DeregisterTargets"), stage.calls("list targetgroupbindings")), (0, 1));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn groups_of_pods_elsewhere_are_not_looked_at() {
    let (stage, shop) = of_pods();
    stage.world.kube.bind_target_group("other", "other", &shop, "ip");
    stage.world.kube.add_node(&node(1), &instance(1));
    stage.world.kube.add_pod(Pod::on(&node(1)).namespace("jobs").named("job").address("10.0.0.9"));
    let replica = stage.start(&WAIT).await;
    let token = stage.terminate(1, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    stage.completed_once(&token);
    waited(&replica, "not-needed", 1);
    assert_eq!(stage.calls(LOOK), 0);
    stage.rest(&[&replica]).await;
}

/// The binding of a Service of node ports: the instance itself is the target, and its controller deregisters it, too.
#[tokio::test(start_paused = true)]
async fn an_instance_is_found_by_a_binding() {
    let stage = Stage::new(1, 1);
    let arn = stage.world.aws.elb.add_group("web", s(30));
    stage.world.aws.elb.register(&arn, &instance(0), 30_080);
    stage.world.kube.bind_target_group("shop", "web", &arn, "instance");
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    let at = completed_at(&stage, &token);
    assert!((s(30)..s(47)).contains(&at), "{at:?}");
    waited(&replica, "met", 1);
    stage.rest(&[&replica]).await;
}

/// Its controller deregisters it all the same.
#[tokio::test(start_paused = true)]
async fn without_the_right_to_deregister_a_binding_is_waited_for() {
    let stage = Stage::new(1, 1);
    let arn = stage.world.aws.elb.add_group("web", s(30));
    stage.world.aws.elb.register(&arn, &instance(0), 30_080);
    stage.world.kube.bind_target_group("shop", "web", &arn, "instance");
    is_awaited_without_the_right_to_deregister(&stage, &arn).await;
}

/// Asserts that the first instance of the target group is waited for, though a denied deregistration is left to the group's controller.
pub async fn is_awaited_without_the_right_to_deregister(stage: &Stage, arn: &str) {
    stage.world.faults.add(Rule::on("DeregisterTargets", Fault::Status(403)));
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(10)).await;
    stage.world.aws.elb.deregister(arn, &instance(0));
    stage.until_handled(s(60)).await;
    assert!(completed_at(stage, &token) > s(40));
    waited(&replica, "met", 1);
    assert_eq!(stage.calls("DeregisterTargets"), 1);
    stage.rest(&[&replica]).await;
}

/// The node is excluded, so that the controller does not register it again.
#[tokio::test(start_paused = true)]
async fn the_node_is_excluded_from_load_balancers() {
    for flags in [WAIT, DEREGISTER] {
        let (stage, _) = behind(1, s(30));
        let replica = stage.start(&flags).await;
        stage.terminate(0, s(300), Wrapping::Event);
        sleep(s(1)).await;
        let labels = stage.world.kube.node(&node(0)).unwrap().metadata.labels.unwrap_or_default();
        assert!(labels.contains_key("node.kubernetes.io/exclude-from-external-load-balancers"), "{flags:?}");
        stage.until_handled(s(400)).await;
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_list_of_bindings_leaves_the_auto_scaling_group() {
    let (stage, _) = behind(1, s(30));
    stage.world.kube.deny("list targetgroupbindings");
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(90)).await;
    stage.completed_once(&token);
    waited(&replica, "met", 1);
    stage.rest(&[&replica]).await;
}

/// A hundred nodes in three target groups that take as long as a deregistration's default: one call a notice and less.
#[tokio::test(start_paused = true)]
async fn a_storm_shares_searches_looks_and_deregistrations() {
    const NODES: usize = 100;
    let (stage, web) = behind(NODES, s(300));
    let more = ["api", "admin"].map(|name| stage.world.aws.elb.add_group(name, s(300)));
    let target_groups: Vec<_> = more.iter().chain([&web]).cloned().collect();
    stage.world.aws.autoscaling.put_group("group", GroupSpec { target_groups, ..GroupSpec::default() });
    for n in 0..NODES {
        for arn in &more {
            stage.world.aws.elb.register(arn, &instance(n), 30_081);
        }
    }
    let replica = stage.start(&DEREGISTER).await;
    let tokens: Vec<_> = (0..NODES).map(|n| stage.terminate(n, s(3600), Wrapping::Event)).collect();
    stage.until_handled(s(500)).await;
    for token in &tokens {
        assert!(completed_at(&stage, token) > s(300));
    }
    waited(&replica, "met", 100);
    assert_eq!((stage.calls("DescribeAutoScalingGroups"), stage.calls("list targetgroupbindings")), (1, 1));
    assert!(stage.calls("DeregisterTargets") <= 3 * 10, "{}", stage.calls("DeregisterTargets"));
    assert!(stage.calls(LOOK) <= NODES, "{}", stage.calls(LOOK));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_does_not_list_the_instance_is_looked_at_once() {
    let (stage, web) = behind(1, s(30));
    let spec = |target_groups| GroupSpec { target_groups, ..GroupSpec::default() };
    let other = stage.world.aws.elb.add_group("other", s(30));
    stage.world.aws.autoscaling.put_group("group", spec(vec![web.clone(), other]));
    let replica = stage.start(&WAIT).await;
    stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(60)).await;
    stage.world.aws.elb.deregister(&web, &instance(0));
    stage.until_handled(s(90)).await;
    let looks = |name: &str| stage.world.calls.of(LOOK).iter().filter(|call| call.subject.contains(name)).count();
    assert!(looks("other") <= 2 && looks("web") > 4, "{} {}", looks("other"), looks("web"));
    stage.rest(&[&replica]).await;
}

/// Returns a world of one node in the target groups `web` and `api`, and their ARNs.
fn behind_two(nodes: usize) -> (Stage, String, String) {
    let (stage, web) = behind(nodes, s(30));
    let api = stage.world.aws.elb.add_group("api", s(30));
    for n in 0..nodes {
        stage.world.aws.elb.register(&api, &instance(n), 30_081);
    }
    let spec = GroupSpec { target_groups: vec![api.clone(), web.clone()], ..GroupSpec::default() };
    stage.world.aws.autoscaling.put_group("group", spec);
    (stage, web, api)
}

/// A binding has a mistyped ARN, or one of another account.
#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_looked_at_stops_no_other() {
    for status in [400, 403] {
        let (stage, web, _) = behind_two(2);
        stage.world.faults.add(Rule::on(LOOK, Fault::Status(status)).subject("api"));
        let replica = stage.start(&DEREGISTER).await;
        for n in 0..2 {
            let token = stage.terminate(n, s(300), Wrapping::Event);
            let sent = stage.world.clock.elapsed();
            stage.until_handled(s(90)).await;
            let took = completed_at(&stage, &token) - sent;
            assert!((s(30)..s(50)).contains(&took), "{status}: {took:?}");
        }
        waited(&replica, "met", 2);
        assert!(stage.world.aws.elb.registered(&web).is_empty());
        stage.rest(&[&replica]).await;
    }
}

/// The looks at one group are never answered.
#[tokio::test(start_paused = true)]
async fn a_group_that_does_not_answer_delays_no_other() {
    for fault in [Fault::Hang, Fault::Throttle] {
        let (stage, web, _) = behind_two(1);
        stage.world.faults.add(Rule::on(LOOK, fault).subject("api"));
        let replica = stage.start(&[&DEREGISTER[..], &SHORT].concat()).await;
        let token = stage.terminate(0, s(100), Wrapping::Event);
        sleep(s(10)).await;
        assert!(stage.world.aws.elb.registered(&web).is_empty(), "{fault:?}");
        stage.until_handled(s(150)).await;
        stage.completed_once(&token);
        waited(&replica, "time-over", 1);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deregistration_that_is_denied_leaves_out_its_group_alone() {
    let (stage, web, api) = behind_two(1);
    stage.world.faults.add(Rule::on("DeregisterTargets", Fault::Status(403)).subject("api"));
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(90)).await;
    let at = completed_at(&stage, &token);
    assert!((s(30)..s(50)).contains(&at), "{at:?}");
    assert_eq!([&web, &api].map(|arn| stage.world.aws.elb.registered(arn).len()), [0, 1]);
    waited(&replica, "met", 1);
    stage.rest(&[&replica]).await;
}

/// AWS refuses a whole call because of one of its targets.
#[tokio::test(start_paused = true)]
async fn a_refused_batch_is_tried_again_one_by_one() {
    let (stage, web) = behind(3, s(30));
    stage.world.faults.add(Rule::on("DeregisterTargets", Fault::Status(400)).times(1));
    let replica = stage.start(&DEREGISTER).await;
    for n in 0..3 {
        stage.terminate(n, s(300), Wrapping::Event);
    }
    stage.until_handled(s(90)).await;
    assert_eq!((stage.world.aws.elb.registered(&web).len(), stage.calls("DeregisterTargets")), (0, 4));
    waited(&replica, "met", 3);
    stage.rest(&[&replica]).await;
}

/// The group is gone, or the instance is not what AWS calls a target.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_deregistered_is_not_asked_for_again_and_again() {
    for status in [400, 404] {
        let (stage, _) = behind(1, s(30));
        stage.world.faults.add(Rule::on("DeregisterTargets", Fault::Status(status)));
        let replica = stage.start(&DEREGISTER).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        stage.until_handled(s(400)).await;
        stage.completed_once(&token);
        // When the drain begins, and when it is over.
        assert_eq!(stage.calls("DeregisterTargets"), 2, "after {status}");
        waited(&replica, "time-over", 1);
        stage.rest(&[&replica]).await;
    }
}

/// The first looks don't wait for each other; later ones are paced.
#[tokio::test(start_paused = true)]
async fn a_node_with_many_groups_leaves_them_at_once() {
    let (stage, web) = behind(1, s(30));
    let mut groups = vec![web];
    for n in 0..19 {
        let arn = stage.world.aws.elb.add_group(&format!("group-{n}"), s(30));
        stage.world.aws.elb.register(&arn, &instance(0), 80);
        groups.push(arn);
    }
    let spec = GroupSpec { target_groups: groups, ..GroupSpec::default() };
    stage.world.aws.autoscaling.put_group("group", spec);
    let replica = stage.start(&DEREGISTER).await;
    sleep(s(60)).await;
    let sent = stage.world.clock.elapsed();
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(90)).await;
    assert_eq!(stage.world.aws.elb.deregistered().len(), 21);
    let last = stage.world.aws.elb.deregistered().iter().map(|gone| gone.at).max().unwrap() - sent;
    assert!(last < s(2), "{last:?}");
    // The burst, then two a second.
    let took = completed_at(&stage, &token) - sent;
    assert!(stage.calls(LOOK) <= 22 + usize::try_from(took.as_secs()).unwrap() * 2, "{}", stage.calls(LOOK));
    stage.rest(&[&replica]).await;
}
