//! `--on KIND=replace`: the Auto Scaling group launches another node before evictions begin.

use crate::harness::{Replica, Stage, instance, node, s};
use crate::nodes::tag;
use ebbtide_sim::World;
use ebbtide_sim::aws::{ActionState, GroupSpec, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

const REPLACE: [&str; 3] = ["--on", "rebalance=replace", "--max-draining=none"];

/// Time from a launch to the Node's registration.
const REGISTERS: Duration = s(40);
/// Time from the registration until the group takes the instance for in service, and terminates the one that it replaces.
const IN_SERVICE: Duration = s(5);
/// Time from then until the Node is Ready.
const READY: Duration = s(25);

/// Replaces unhealthy instances like a group that launches first, until it is dropped.
fn run_group(stage: &Stage) -> JoinSet<()> {
    run_group_with(stage, true)
}

/// As [`run_group`]; without a queue nothing announces its hooks.
fn run_group_with(stage: &Stage, has_queue: bool) -> JoinSet<()> {
    let world = stage.world.clone();
    let mut group = JoinSet::new();
    group.spawn(async move {
        let (mut replacements, mut seen) = (JoinSet::new(), 0);
        loop {
            for old in world.aws.autoscaling.unhealthy().into_iter().skip(seen) {
                seen += 1;
                replacements.spawn(replace(world.clone(), old, 100 + seen, has_queue));
            }
            sleep(s(1)).await;
        }
    });
    group
}

async fn replace(world: World, old: String, new: usize, has_queue: bool) {
    let scaling = &world.aws.autoscaling;
    sleep(REGISTERS).await;
    launch(&world, new);
    sleep(IN_SERVICE).await;
    scaling.change_group("group", |spec| drop(spec.states.insert(old.clone(), "Terminating:Wait".to_owned())));
    let token = scaling.begin("group", "hook", &old);
    let at = world.clock.now();
    if has_queue {
        world.aws.sqs.send(messages::lifecycle(Wrapping::Event, true, ("group", "hook", &token), &old, at));
    }
    sleep(READY).await;
    world.kube.set_ready(&node(new), true);
    while matches!(scaling.action(&token).unwrap().state, ActionState::Waiting { .. }) {
        sleep(s(1)).await;
    }
    scaling.change_group("group", |spec| spec.instances.retain(|id| *id != old));
    let nodes = world.kube.nodes().into_iter();
    let of_it = |node: &k8s_openapi::api::core::v1::Node| {
        node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).is_some_and(|id| id.ends_with(&old))
    };
    nodes.filter(of_it).for_each(|node| world.kube.remove_node(&node.metadata.name.unwrap()));
}

/// Launches an instance, whose Node is not Ready yet.
fn launch(world: &World, new: usize) {
    tag(world, new);
    world.aws.autoscaling.change_group("group", |spec| spec.instances.push(instance(new)));
    world.kube.add_unready_node(&node(new), &instance(new));
}

fn first_eviction(stage: &Stage) -> Option<Duration> {
    stage.world.calls.of("create pods/eviction").first().map(|call| call.at)
}

fn replacements(replica: &Replica, result: &str) -> f64 {
    replica.metric(&format!("ebbtide_replacements_total{{result=\"{result}\"}}"))
}

fn waited(replica: &Replica, outcome: &str) -> f64 {
    replica.metric(&format!("ebbtide_waits_seconds_count{{outcome=\"{outcome}\",wait=\"replacement\"}}"))
}

/// Returns the value of an annotation of the n-th node.
pub fn annotation(stage: &Stage, n: usize, name: &str) -> Option<String> {
    stage.world.kube.node(&node(n))?.metadata.annotations?.remove(name)
}

#[tokio::test(start_paused = true)]
async fn evictions_begin_when_the_new_node_is_ready_and_the_hook_joins() {
    let stage = Stage::with_group(3);
    let group = run_group(&stage);
    let replica = stage.start(&REPLACE).await;
    stage.rebalance(0);
    stage.until("unhealthy", s(2), || stage.world.aws.autoscaling.unhealthy() == [instance(0)]).await;
    assert!(stage.cordoned(0) && annotation(&stage, 0, "ebbtide/replacement").unwrap().contains("\"group\""));
    let asked = stage.world.clock.elapsed();
    stage.until_handled(s(120)).await;
    let after = first_eviction(&stage).unwrap().saturating_sub(asked);
    let ready = REGISTERS + IN_SERVICE + READY;
    assert!(after >= ready - s(1) && after < ready + s(2), "{after:?}\n{}", stage.story());
    assert_eq!(annotation(&stage, 101, "ebbtide/replaces"), Some(instance(0)));
    assert_eq!((stage.calls("SetInstanceHealth"), stage.world.kube.evictions().len()), (1, 2));
    let actions = stage.world.aws.autoscaling.actions();
    assert_eq!(actions.len(), 1);
    stage.completed_once(&actions[0].token);
    replica.ended_once("rebalance", "drained");
    replica.ended_once("asg-terminate", "drained");
    assert!((replacements(&replica, "asked") - 1.0).abs() < 0.5, "once");
    assert!((replacements(&replica, "ready") - 2.0).abs() < 0.5, "for both notices");
    assert!((waited(&replica, "met") - 2.0).abs() < 0.5);
    drop(group);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_never_comes_takes_half_of_the_time() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&REPLACE).await;
    stage.rebalance(0);
    // It is of another group, or not Ready.
    stage.world.kube.add_node(&node(8), &instance(8));
    sleep(s(60)).await;
    launch(&stage.world, 9);
    stage.until_handled(s(2000)).await;
    let at = first_eviction(&stage).unwrap();
    assert!((s(1799)..s(1803)).contains(&at), "{at:?}");
    assert!((replacements(&replica, "late") - 1.0).abs() < 0.5);
    assert!((waited(&replica, "time-over") - 1.0).abs() < 0.5);
    stage.rest(&[&replica]).await;
    assert!(stage.cordoned(0), "its group replaces it some day");
    // The group is looked at once a minute: it may be gone.
    assert!(stage.calls("DescribeAutoScalingGroups") < 40);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_would_not_replace_it_well_is_not_asked() {
    type Change = fn(&Stage);
    let change: [(&str, Change); 10] = [
        ("no-group", |stage| stage.world.aws.ec2.put(&instance(0), &[])),
        ("no-group", |stage| stage.world.aws.autoscaling.delete_group("group")),
        ("no-hook", |stage| stage.world.aws.autoscaling.remove_hook("group", "hook")),
        ("no-hook", |stage| {
            stage.world.aws.autoscaling.remove_hook("group", "hook");
            stage.world.aws.autoscaling.add_hook("group", "Terminate-LC-Hook", HookSpec::terminating(s(300)));
            stage.world.aws.autoscaling.add_hook("group", "launch", HookSpec::launching(s(300)));
        }),
        ("terminates-first", |stage| {
            stage.world.aws.autoscaling.change_group("group", |group| group.maintenance = None);
        }),
        ("terminates-first", |stage| {
            stage.world.aws.autoscaling.change_group("group", |group| group.maintenance = Some((90, 110)));
        }),
        ("suspended", |stage| {
            stage.world.aws.autoscaling.change_group("group", |group| group.suspended.push("Launch".to_owned()));
        }),
        ("at-maximum", |stage| stage.world.aws.autoscaling.change_group("group", |group| group.max = 3)),
        ("protected", |stage| {
            stage.world.aws.autoscaling.change_group("group", |group| group.protected.push(instance(0)));
        }),
        ("not-in-service", |stage| {
            let standby = |group: &mut GroupSpec| drop(group.states.insert(instance(0), "Standby".to_owned()));
            stage.world.aws.autoscaling.change_group("group", standby);
        }),
    ];
    for (reason, change) in change {
        let stage = Stage::with_group(3);
        change(&stage);
        let replica = stage.start(&REPLACE).await;
        stage.rebalance(0);
        stage.until_handled(s(10)).await;
        replica.ended_once("rebalance", "drained");
        assert!((replacements(&replica, reason) - 1.0).abs() < 0.5, "{reason}");
        assert_eq!((stage.calls("SetInstanceHealth"), annotation(&stage, 0, "ebbtide/replacement")), (0, None));
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_less_than_five_minutes_nothing_is_asked() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&["--on", "scheduled-change=replace"]).await;
    let start = stage.world.clock.now() + s(289);
    stage.health(0, ("h", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"), start, "upcoming");
    stage.until_handled(s(10)).await;
    assert!((replacements(&replica, "too-late") - 1.0).abs() < 0.5);
    assert_eq!((stage.calls("DescribeAutoScalingGroups"), stage.calls("DescribeInstances")), (0, 0));
    stage.rest(&[&replica]).await;
}

/// The cordon takes some of the time.
#[tokio::test(start_paused = true)]
async fn five_minutes_are_enough() {
    let stage = Stage::with_group(3);
    stage.world.faults.add(Rule::on("patch nodes", Fault::Slow(s(4))));
    let replica = stage.start(&[&REPLACE[..], &["--drain-timeout", "rebalance=5m"]].concat()).await;
    stage.rebalance(0);
    stage.until("asked", s(20), || stage.calls("SetInstanceHealth") == 1).await;
    stage.until_handled(s(200)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn each_new_node_counts_for_one() {
    let stage = Stage::with_group(20);
    let replica = stage.start(&REPLACE).await;
    stage.rebalance(0);
    stage.rebalance(1);
    stage.until("both asked", s(5), || stage.calls("SetInstanceHealth") == 2).await;
    for (new, evicted) in [(8, 2), (9, 4)] {
        sleep(s(10)).await;
        launch(&stage.world, 100 + new);
        stage.world.kube.set_ready(&node(100 + new), true);
        sleep(s(20)).await;
        assert_eq!(stage.world.kube.evictions().len(), evicted);
    }
    replica.all_ended("rebalance", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

/// The group replaces the instance in any case: an uncordon would only bring pods that are evicted again.
#[tokio::test(start_paused = true)]
async fn a_node_that_its_group_replaces_stays_cordoned() {
    for (replaced, flags) in [(true, &REPLACE[..2]), (false, &["--on", "rebalance=drain"][..])] {
        let stage = Stage::with_group(3);
        let group = run_group(&stage);
        let timing = ["--uncordon-after", "1m", "--drain-timeout", "6m"];
        let replica = stage.start(&[flags, &timing].concat()).await;
        stage.rebalance(0);
        drop(group);
        sleep(s(600)).await;
        assert_eq!(stage.cordoned(0), replaced);
        stage.rest(&[&replica]).await;
    }
}

/// A storm does not double the group: a tenth of it is replaced at a time, by two replicas together.
#[tokio::test(start_paused = true)]
async fn a_storm_replaces_a_tenth_of_the_group_at_a_time() {
    let stage = Stage::with_group(50);
    let group = run_group(&stage);
    let other = stage.with_own_queue();
    let (first, second) = (stage.start(&REPLACE).await, other.start(&REPLACE).await);
    (0..50).for_each(|n| drop(if n % 2 == 0 { &stage } else { &other }.rebalance(n)));
    let scaling = &stage.world.aws.autoscaling;
    let mut most = 0;
    stage
        .until("all replaced", s(1800), || {
            let unhealthy = scaling.unhealthy();
            let replaced = |id: &&String| unhealthy.contains(id);
            scaling.change_group("group", |spec| most = most.max(spec.instances.iter().filter(replaced).count()));
            stage.world.aws.sqs.is_empty() && other.world.aws.sqs.is_empty()
        })
        .await;
    assert_eq!((most, scaling.unhealthy().len(), stage.calls("SetInstanceHealth")), (5, 50, 50));
    first.all_ended("rebalance", &[("drained", 25)]);
    second.all_ended("rebalance", &[("drained", 25)]);
    let calls = stage.calls("DescribeAutoScalingGroups");
    assert!(calls < 150, "{calls}");
    drop(group);
    stage.rest(&[&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_line_for_too_long_is_drained() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&[&REPLACE[..], &["--max-replacements", "1", "--drain-timeout", "20m"]].concat()).await;
    stage.rebalance(0);
    stage.until("asked", s(2), || stage.calls("SetInstanceHealth") == 1).await;
    stage.rebalance(1);
    stage.until_handled(s(700)).await;
    assert_eq!(stage.calls("SetInstanceHealth"), 1);
    assert!((replacements(&replica, "late") - 1.0).abs() < 0.5 && (replacements(&replica, "queued") - 1.0).abs() < 0.5);
    let at = first_eviction(&stage).unwrap();
    assert!((s(599)..s(603)).contains(&at), "{at:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_goes_on_and_asks_no_second_time() {
    for killed in [false, true] {
        let stage = Stage::with_group(3);
        let group = run_group(&stage);
        let first = stage.start(&REPLACE).await;
        stage.rebalance(0);
        sleep(s(20)).await;
        if killed {
            first.kill().await;
        } else {
            assert_eq!(first.stop().await.0, ebbtide::service::Exit::Clean);
        }
        assert_eq!(stage.world.kube.evictions().len(), 0);
        let second = stage.start(&REPLACE).await;
        stage.until_handled(s(120)).await;
        let at = first_eviction(&stage).unwrap();
        assert!(at >= REGISTERS + IN_SERVICE + READY && at < s(75), "{at:?}\n{}", stage.story());
        assert_eq!(stage.calls("SetInstanceHealth"), 1, "{}", stage.story());
        second.ended_once("rebalance", "drained");
        drop(group);
        stage.rest(&[&second]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_spot_warning_ends_the_wait() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&REPLACE).await;
    stage.rebalance(0);
    sleep(s(20)).await;
    assert_eq!(stage.world.kube.evictions().len(), 0);
    stage.spot(0);
    stage.until_handled(s(10)).await;
    assert_eq!(stage.world.kube.evictions().len(), 2);
    replica.ended_once("rebalance", "drained");
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn what_auto_scaling_does_not_accept_is_drained_at_once() {
    for (fault, reason, calls) in
        [(Fault::Status(403), "denied", 1), (Fault::Throttle, "refused", 6), (Fault::Status(503), "refused", 6)]
    {
        let stage = Stage::with_group(3);
        stage.world.faults.add(Rule::on("SetInstanceHealth", fault));
        let replica = stage.start(&REPLACE).await;
        for n in 0..2 {
            stage.rebalance(n);
            stage.until_handled(s(60)).await;
            assert_eq!(annotation(&stage, n, "ebbtide/replacement"), None, "no other waits for it");
        }
        replica.all_ended("rebalance", &[("drained", 2)]);
        assert!((replacements(&replica, reason) - 2.0).abs() < 0.5, "{reason}");
        assert_eq!(stage.calls("SetInstanceHealth"), calls, "{reason}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_auto_scaling_does_not_say_is_drained_at_once() {
    for (operation, reason) in [("DescribeAutoScalingGroups", "denied"), ("DescribeLifecycleHooks", "denied")] {
        let stage = Stage::with_group(3);
        stage.world.faults.add(Rule::on(operation, Fault::Status(403)));
        let replica = stage.start(&REPLACE).await;
        for n in 0..2 {
            stage.rebalance(n);
            stage.until_handled(s(10)).await;
        }
        assert!((replacements(&replica, reason) - 2.0).abs() < 0.5);
        assert!((waited(&replica, "denied") - 2.0).abs() < 0.5);
        assert_eq!((stage.calls(operation), stage.calls("SetInstanceHealth")), (1, 0), "asked and told once");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_deleted_ends_the_wait() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&REPLACE).await;
    stage.rebalance(0);
    sleep(s(20)).await;
    stage.world.aws.autoscaling.delete_group("group");
    stage.until_handled(s(100)).await;
    assert!((replacements(&replica, "no-group") - 1.0).abs() < 0.5);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_asks_for_nothing() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&[&REPLACE[..], &["--dry-run"]].concat()).await;
    stage.rebalance(0);
    stage.until_handled(s(10)).await;
    assert_eq!(stage.calls("SetInstanceHealth"), 0);
    assert!((replacements(&replica, "dry-run") - 1.0).abs() < 0.5);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn somebody_who_uncordons_the_node_ends_the_wait() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&REPLACE).await;
    stage.rebalance(0);
    // The first time might be a mistake.
    for _ in 0..2 {
        sleep(s(10)).await;
        stage.world.kube.update_node(&node(0), |node| node.spec.get_or_insert_default().unschedulable = None);
    }
    stage.until_handled(s(10)).await;
    replica.ended_once("rebalance", "uncordoned");
    stage.rest(&[&replica]).await;
}

/// The group has launched the other node, or launches it now.
#[tokio::test(start_paused = true)]
async fn a_terminating_hook_waits_until_the_group_is_whole() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&["--on", "asg-terminate=replace"]).await;
    let leaves = |spec: &mut GroupSpec| drop(spec.states.insert(instance(0), "Terminating:Wait".to_owned()));
    stage.world.aws.autoscaling.change_group("group", leaves);
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(30)).await;
    launch(&stage.world, 9);
    sleep(s(30)).await;
    assert_eq!(stage.world.kube.evictions().len(), 0);
    stage.world.kube.set_ready(&node(9), true);
    stage.until_handled(s(20)).await;
    stage.completed_once(&token);
    assert!((replacements(&replica, "complete") - 1.0).abs() < 0.5);
    assert_eq!(stage.calls("SetInstanceHealth"), 0, "it is terminated already");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_terminating_hook_of_a_group_that_shrinks_waits_for_nothing() {
    for (timeout, desired, reason) in [(600, 2, "complete"), (200, 3, "too-late")] {
        let stage = Stage::with_group(3);
        stage.world.aws.autoscaling.change_group("group", |spec| spec.desired = desired);
        let replica = stage.start(&["--on", "asg-terminate=replace", "--heartbeat", "off"]).await;
        let token = stage.terminate(0, s(timeout), Wrapping::Event);
        stage.until_handled(s(10)).await;
        stage.completed_once(&token);
        assert!((replacements(&replica, reason) - 1.0).abs() < 0.5);
        stage.rest(&[&replica]).await;
    }
}

/// Each group needs its own tag for the right.
#[tokio::test(start_paused = true)]
async fn a_denial_for_one_group_leaves_another() {
    let stage = Stage::with_group(3);
    let spec = GroupSpec {
        instances: vec![instance(7)],
        desired: 1,
        max: 2,
        maintenance: Some((100, 110)),
        ..GroupSpec::default()
    };
    stage.world.aws.autoscaling.put_group("other", spec);
    stage.world.aws.autoscaling.add_hook("other", "hook", HookSpec::terminating(s(600)));
    let tags = [("aws-node-termination-handler/managed", "true"), ("aws:autoscaling:groupName", "other")];
    stage.world.aws.ec2.put(&instance(7), &tags);
    stage.world.kube.add_node(&node(7), &instance(7));
    stage.world.faults.add(Rule::on("SetInstanceHealth", Fault::Status(403)).times(1));
    let replica = stage.start(&REPLACE).await;
    stage.rebalance(0);
    stage.until_handled(s(30)).await;
    stage.rebalance(7);
    stage.until("the other group asked", s(10), || stage.world.aws.autoscaling.unhealthy() == [instance(7)]).await;
    stage.rebalance(1);
    stage.until("the first not asked again", s(30), || stage.ends_of("web-1-0").len() == 1).await;
    assert_eq!(stage.calls("SetInstanceHealth"), 2);
    stage.until_handled(s(2000)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn what_auto_scaling_or_kubernetes_fails_to_do_is_tried_again_within_the_wait() {
    for (call, why) in [
        ("DescribeAutoScalingGroups", "Auto Scaling has not described group group"),
        ("DescribeLifecycleHooks", "Auto Scaling has not described group group"),
        ("DescribeInstances", "EC2 has not reported the instance's Auto Scaling group"),
        ("patch nodes", "the API server does not take the note about a replacement"),
    ] {
        let stage = Stage::with_group(3);
        let group = run_group(&stage);
        let replica = stage.start(&REPLACE).await;
        let rule = Rule::on(call, Fault::Status(503));
        stage.world.faults.add(if call == "patch nodes" { rule.after(1) } else { rule });
        stage.rebalance(0);
        sleep(s(20)).await;
        assert_eq!(stage.world.kube.evictions().len(), 0, "{call}");
        let events = stage.world.kube.events().into_iter().filter_map(|event| event.message);
        let said: Vec<_> = events.collect();
        assert!(said.iter().any(|said| said.contains(why)), "{call}: {said:?}");
        stage.world.faults.clear();
        stage.until_handled(s(200)).await;
        assert_eq!(stage.calls("SetInstanceHealth"), 1, "{call}");
        assert!((replacements(&replica, "ready") - 2.0).abs() < 0.5, "{call}: for both notices");
        drop(group);
        stage.rest(&[&replica]).await;
    }
}

/// Another replica knows the group as it was before it was asked.
#[tokio::test(start_paused = true)]
async fn what_one_replica_has_asked_for_no_other_takes_back() {
    let stage = Stage::with_group(30);
    let other = stage.with_own_queue();
    let flags = [&REPLACE[..], &["--max-replacements", "2"]].concat();
    let (first, second) = (stage.start(&flags).await, other.start(&flags).await);
    other.rebalance(1);
    stage.until("the first asked for", s(5), || stage.calls("SetInstanceHealth") == 1).await;
    stage.rebalance(0);
    stage.until("the second asked for", s(5), || stage.calls("SetInstanceHealth") == 2).await;
    let noted = annotation(&stage, 0, "ebbtide/replacement");
    other.rebalance(0);
    sleep(s(20)).await;
    assert_eq!((annotation(&stage, 0, "ebbtide/replacement"), noted.is_some()), (noted, true));
    assert_eq!((stage.calls("SetInstanceHealth"), stage.world.kube.evictions().len()), (2, 0));
    stage.until_handled(s(2000)).await;
    other.until_handled(s(100)).await;
    stage.rest(&[&first, &second]).await;
}

/// A spot warning comes between the note on the Node and the call.
#[tokio::test(start_paused = true)]
async fn a_note_without_a_call_does_not_stay() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&REPLACE).await;
    stage.rebalance(0);
    stage.until("the note", s(5), || annotation(&stage, 0, "ebbtide/replacement").is_some()).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.calls("SetInstanceHealth"), 0);
    assert_eq!(annotation(&stage, 0, "ebbtide/replacement"), None);
    stage.rest(&[&replica]).await;
}

/// Its writer is killed before the call, and the node mends itself.
#[tokio::test(start_paused = true)]
async fn a_note_without_a_call_does_not_keep_a_node_that_mends_itself() {
    let stage = Stage::with_group(3);
    let flags = ["--source", "queue,nodes", "--pod-namespace", "ebbtide", "--pod-name", "a"];
    let flags = [&flags[..], &["--on-condition", "KernelReady=False:10m=replace"]].concat();
    let replica = stage.start(&flags).await;
    stage.set_condition(0, "KernelReady", "False", 0);
    stage.until("the note", s(610), || annotation(&stage, 0, "ebbtide/replacement").is_some()).await;
    replica.kill().await;
    assert_eq!(stage.calls("SetInstanceHealth"), 0);
    stage.set_condition(0, "KernelReady", "True", 0);
    let replica = stage.start(&flags).await;
    stage.until("uncordoned", s(180), || !stage.cordoned(0)).await;
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

/// Another notice about the instance comes to another replica, which finds the note before the call.
#[tokio::test(start_paused = true)]
async fn two_replicas_ask_once_and_leave_a_note_of_it() {
    for (later, denied) in [(0, false), (500, false), (0, true), (500, true)] {
        let stage = Stage::with_group(3);
        let other = stage.with_own_queue();
        let (first, second) = (stage.start(&REPLACE).await, other.start(&REPLACE).await);
        if denied {
            stage.world.faults.add(Rule::on("SetInstanceHealth", Fault::Status(403)).times(1));
        }
        stage.rebalance(0);
        sleep(Duration::from_millis(later)).await;
        other.rebalance(0);
        sleep(s(90)).await;
        let is_asked = !stage.world.aws.autoscaling.unhealthy().is_empty();
        assert_eq!(annotation(&stage, 0, "ebbtide/replacement").is_some(), is_asked, "{later} ms, denied: {denied}");
        assert!(denied || is_asked && stage.calls("SetInstanceHealth") == 1, "{later} ms\n{}", stage.story());
        stage.until_handled(s(2000)).await;
        other.until_handled(s(2000)).await;
        stage.rest(&[&first, &second]).await;
    }
}

/// A hook is removed while another replica is about to ask, or has ended before it did.
#[tokio::test(start_paused = true)]
async fn a_fresh_note_is_left_to_its_writer() {
    for asked in [true, false] {
        let stage = Stage::with_group(3);
        let replica = stage.start(&REPLACE).await;
        note(&stage, 0, s(0));
        stage.world.aws.autoscaling.remove_hook("group", "hook");
        stage.rebalance(0);
        sleep(s(20)).await;
        assert!(annotation(&stage, 0, "ebbtide/replacement").is_some(), "asked: {asked}");
        assert_eq!(stage.world.kube.evictions().len(), 0, "asked: {asked}");
        if asked {
            stage.world.aws.autoscaling.fail_health_check(&instance(0));
        }
        sleep(s(60)).await;
        assert_eq!(annotation(&stage, 0, "ebbtide/replacement").is_some(), asked);
        assert_eq!(stage.world.kube.evictions().is_empty(), asked);
        assert_eq!(stage.calls("SetInstanceHealth"), 0);
        stage.until_handled(s(2000)).await;
        stage.rest(&[&replica]).await;
    }
}

/// The call has its effect, though no answer arrives.
#[tokio::test(start_paused = true)]
async fn a_call_that_came_through_without_an_answer_is_waited_for() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&REPLACE).await;
    stage.world.faults.add(Rule::on("SetInstanceHealth", Fault::LostResponse));
    let group = run_group(&stage);
    stage.rebalance(0);
    sleep(s(60)).await;
    assert_eq!((stage.calls("SetInstanceHealth"), stage.world.kube.evictions().len()), (3, 0));
    assert!(annotation(&stage, 0, "ebbtide/replacement").is_some(), "its group replaces it");
    stage.until_handled(s(60)).await;
    assert!((replacements(&replica, "ready") - 2.0).abs() < 0.5, "for both notices");
    drop(group);
    stage.rest(&[&replica]).await;
}

/// Nobody knows then whether the group was asked.
#[tokio::test(start_paused = true)]
async fn while_aws_does_not_answer_the_note_stays() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&REPLACE).await;
    stage.world.faults.add(Rule::on("SetInstanceHealth", Fault::LostResponse));
    stage.rebalance(0);
    stage.until("asked", s(10), || stage.world.aws.autoscaling.unhealthy() == [instance(0)]).await;
    stage.world.faults.add(Rule::on("DescribeAutoScalingGroups", Fault::Status(500)));
    sleep(s(120)).await;
    assert!(annotation(&stage, 0, "ebbtide/replacement").is_some(), "its group replaces it\n{}", stage.story());
    stage.world.faults.clear();
    stage.until_handled(s(2000)).await;
    stage.rest(&[&replica]).await;
}

/// Notes on the Node that its replacement was asked for so long ago.
fn note(stage: &Stage, n: usize, ago: Duration) {
    let note = format!(r#"{{"group":"group","since":"{}"}}"#, stage.world.clock.now() - ago);
    stage.world.kube.update_node(&node(n), |node| {
        node.metadata.annotations.get_or_insert_default().insert("ebbtide/replacement".to_owned(), note);
    });
}

/// A process has crashed between the note and the call, long ago.
#[tokio::test(start_paused = true)]
async fn an_old_note_of_a_healthy_instance_holds_no_place() {
    let stage = Stage::with_group(3);
    note(&stage, 1, s(600));
    let replica = stage.start(&REPLACE).await;
    stage.rebalance(0);
    stage.until("asked", s(10), || stage.world.aws.autoscaling.unhealthy() == [instance(0)]).await;
    stage.until_handled(s(2000)).await;
    stage.rest(&[&replica]).await;
}

/// The group has found the instance unhealthy before the notice came late; another Node was Ready meanwhile, which replaces nothing.
#[tokio::test(start_paused = true)]
async fn an_instance_that_its_group_replaces_already_waits_until_the_group_is_whole() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&REPLACE).await;
    stage.world.aws.autoscaling.fail_health_check(&instance(0));
    stage.world.aws.autoscaling.fail_health_check(&instance(1));
    let at = stage.world.clock.now();
    sleep(s(10)).await;
    launch(&stage.world, 8);
    launch(&stage.world, 9);
    stage.world.kube.set_ready(&node(8), true);
    stage
        .world
        .aws
        .autoscaling
        .change_group("group", |spec| drop(spec.states.insert(instance(1), "Terminating".to_owned())));
    sleep(s(10)).await;
    stage.world.aws.sqs.send(messages::rebalance("rebalance", &instance(0), at));
    sleep(s(60)).await;
    assert_eq!(stage.world.kube.evictions().len(), 0);
    stage.world.kube.set_ready(&node(9), true);
    stage.until_handled(s(30)).await;
    assert_eq!((stage.calls("SetInstanceHealth"), stage.world.kube.evictions().len()), (0, 2));
    stage.rest(&[&replica]).await;
}

/// A node that breaks is replaced: the new one comes first, and the group ends the old one under its hook. A condition that goes back
/// meanwhile changes nothing, because the group has been asked.
#[tokio::test(start_paused = true)]
async fn a_broken_node_is_repaired_by_its_group() {
    for mends in [false, true] {
        let stage = Stage::with_group(3);
        let group = run_group(&stage);
        let flags = ["--source", "queue,nodes", "--pod-namespace", "ebbtide", "--pod-name", "a"];
        let rule = ["--on-condition", "KernelReady=False:10m=replace"];
        let replica = stage.start(&[flags.as_slice(), &rule].concat()).await;
        stage.set_condition(0, "KernelReady", "False", 0);
        stage.until("unhealthy", s(610), || stage.world.aws.autoscaling.unhealthy() == [instance(0)]).await;
        assert!(stage.cordoned(0) && annotation(&stage, 0, "ebbtide/replacement").is_some());
        if mends {
            stage.set_condition(0, "KernelReady", "True", 0);
            sleep(s(20)).await;
            assert!(stage.cordoned(0), "{}", stage.story());
        }
        stage.until("gone", s(300), || stage.world.kube.node(&node(0)).is_none()).await;
        stage.until_handled(s(60)).await;
        assert_eq!(stage.world.kube.evictions().len(), 2);
        assert_eq!(replacements(&replica, "asked").to_string(), "1", "{}", stage.story());
        replica.ended_once("node-condition", "drained");
        drop(group);
        stage.rest(&[&replica]).await;
    }
}

/// Starts a replica without a queue that replaces nodes with this condition. Their agents are silent.
async fn without_queue(stage: &Stage, pod: &str) -> Replica {
    let flags = ["--source", "nodes,ec2", "--ec2-poll-interval", "5m", "--node-hook", "hook"];
    let rule = ["--pod-namespace", "ebbtide", "--pod-name", pod, "--on-condition", "KernelReady=False:10m=replace"];
    (0..3).for_each(|n| stage.world.aws.autoscaling.join("group", &instance(n)));
    stage.start(&[&flags[..], &rule].concat()).await
}

/// Nothing announces the hook at which the group ends the node: Ebbtide has asked for that, and seeks it.
#[tokio::test(start_paused = true)]
async fn without_a_queue_the_hook_of_a_node_that_its_group_replaces_is_completed() {
    // The drain outlasts the hook's timeout, or has ended before the group terminates the instance.
    for (timeout, launches) in [(s(600), true), (s(30), true), (s(600), false)] {
        let stage = Stage::with_group(3);
        stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(timeout));
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(120)));
        let replica = without_queue(&stage, "a").await;
        stage.set_condition(0, "KernelReady", "False", 0);
        stage.until("unhealthy", s(660), || stage.world.aws.autoscaling.unhealthy() == [instance(0)]).await;
        if !launches {
            // The group has no capacity for now: evictions begin at half of the time.
            stage.until("drained", s(2400), || stage.world.kube.pods_on(&node(0)).is_empty()).await;
            sleep(s(600)).await;
        }
        let group = run_group_with(&stage, false);
        stage.until("gone", s(400), || stage.world.kube.node(&node(0)).is_none()).await;
        let actions = stage.world.aws.autoscaling.actions();
        assert_eq!(actions.len(), 1);
        stage.completed_once(&actions[0].token);
        assert!(!stage.has_pod("slow") && stage.ends_of("slow").len() == 1, "{}", stage.story());
        drop(group);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_queue_another_replica_completes_the_hook_that_the_first_has_asked_for() {
    for begun in [false, true] {
        let stage = Stage::with_group(3);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(120)));
        let first = without_queue(&stage, "a").await;
        stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("a")).await;
        stage.set_condition(0, "KernelReady", "False", 0);
        stage.until("unhealthy", s(660), || stage.world.aws.autoscaling.unhealthy() == [instance(0)]).await;
        sleep(s(5)).await;
        let group = run_group_with(&stage, false);
        if begun {
            stage.until("evicted", s(120), || stage.ends_of("slow").len() == 1).await;
        }
        let second = without_queue(&stage, "b").await;
        first.kill().await.gone(|_| true).await;
        stage.until("gone", s(400), || stage.world.kube.node(&node(0)).is_none()).await;
        let actions = stage.world.aws.autoscaling.actions();
        assert_eq!((actions.len(), stage.calls("SetInstanceHealth")), (1, 1));
        stage.completed_once(&actions[0].token);
        assert_eq!(stage.ends_of("slow").len(), 1, "{}", stage.story());
        drop(group);
        stage.rest(&[&second]).await;
    }
}

/// The agent says it as well, before the instance waits at the hook or when it does.
#[tokio::test(start_paused = true)]
async fn without_a_queue_an_agent_that_speaks_changes_nothing() {
    for early in [true, false] {
        let stage = Stage::with_group(3);
        let replica = without_queue(&stage, "a").await;
        stage.set_condition(0, "KernelReady", "False", 0);
        stage.until("unhealthy", s(660), || stage.world.aws.autoscaling.unhealthy() == [instance(0)]).await;
        let group = run_group_with(&stage, false);
        let scaling = &stage.world.aws.autoscaling;
        if !early {
            stage.until("waits", s(120), || !scaling.actions().is_empty()).await;
        }
        stage.says_termination(0);
        stage.until("gone", s(400), || stage.world.kube.node(&node(0)).is_none()).await;
        let actions = scaling.actions();
        assert_eq!((actions.len(), stage.world.kube.evictions().len()), (1, 2), "{}", stage.story());
        stage.completed_once(&actions[0].token);
        drop(group);
        stage.rest(&[&replica]).await;
    }
}

/// A user keeps the node: its hook is left to its timeout, as after each uncordon.
#[tokio::test(start_paused = true)]
async fn without_a_queue_a_user_who_uncordons_is_not_overruled_by_the_hook() {
    let stage = Stage::with_group(3);
    let replica = without_queue(&stage, "a").await;
    stage.set_condition(0, "KernelReady", "False", 0);
    stage.until("unhealthy", s(660), || stage.world.aws.autoscaling.unhealthy() == [instance(0)]).await;
    for _ in 0..2 {
        stage.until("cordoned", s(30), || stage.cordoned(0)).await;
        sleep(s(5)).await;
        stage.set_cordon(0, false);
    }
    stage.until("forgotten", s(60), || annotation(&stage, 0, "ebbtide/replacement").is_none()).await;
    let token = stage.world.aws.autoscaling.begin("group", "hook", &instance(0));
    stage.until("expired", s(700), || matches!(stage.action(&token).state, ActionState::Expired { .. })).await;
    assert!(!stage.cordoned(0) && stage.world.kube.evictions().is_empty(), "{}", stage.story());
    stage.rest(&[&replica]).await;
}
