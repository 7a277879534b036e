//! Ownership: instances of other clusters are never touched, and their messages are deleted.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::TAG;
use ebbtide_sim::aws::{ActionState, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::sleep;

const COMPLETE: &str = "CompleteLifecycleAction";

#[tokio::test(start_paused = true)]
async fn another_clusters_hook_is_never_touched() {
    let stage = Stage::new(1, 1);
    stage.world.aws.ec2.put(&instance(7), &[("kubernetes.io/cluster/other", "owned")]);
    let replica = stage.start(&[]).await;
    let token = stage.terminate(7, s(60), Wrapping::Event);
    stage.until_handled(s(10)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert_eq!((action.beats.len(), action.completions.len()), (0, 0));
    assert_eq!(stage.calls("DescribeInstances"), 1);
    stage.rest(&[&replica]).await;
}

/// Somebody has terminated an instance of the group: its Node is gone by now, and the group waits at the hook all the same.
#[tokio::test(start_paused = true)]
async fn the_hook_of_a_terminated_instance_is_completed_if_its_tags_name_this_cluster() {
    let stage = Stage::new(1, 0);
    let value = format!("{TAG}=blue");
    let replica = stage.start(&["--managed-tag", &value]).await;
    let mut tokens = Vec::new();
    for (n, tag) in [(5, "blue"), (6, "green")] {
        stage.world.aws.ec2.put(&instance(n), &[(TAG, tag)]);
        stage.world.aws.ec2.set_state(&instance(n), "terminated");
        stage.world.aws.sqs.send(messages::state_change("e", &instance(n), "terminated", stage.world.clock.now()));
        tokens.push(stage.terminate(n, s(600), Wrapping::Event));
    }
    stage.until_handled(s(60)).await;
    stage.completed_once(&tokens[0]);
    assert_eq!(stage.world.aws.autoscaling.action(&tokens[1]).unwrap().completions, [], "another cluster's");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_ec2_does_not_know_is_not_ours() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.spot(9);
    stage.until_handled(s(10)).await;
    let ended = replica.metric("ebbtide_notices_total{kind=\"spot\",outcome=\"not-ours\"}");
    assert!((ended - 1.0).abs() < f64::EPSILON);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn hooks_of_eks_are_left_to_eks() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    for hook in ["Terminate-LC-Hook", "Launch-LC-Hook"] {
        stage.world.aws.autoscaling.add_hook("eks", hook, HookSpec::terminating(s(60)));
        let token = stage.world.aws.autoscaling.begin("eks", hook, &instance(0));
        let at = stage.world.clock.now();
        let body = messages::lifecycle(Wrapping::Event, true, ("eks", hook, &token), &instance(0), at);
        stage.world.aws.sqs.send(body);
        stage.until_handled(s(10)).await;
        let action = stage.world.aws.autoscaling.action(&token).unwrap();
        assert_eq!((action.beats.len(), action.completions.len()), (0, 0), "{hook}");
    }
    assert!(!stage.cordoned(0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn many_foreign_instances_are_looked_up_in_batches_and_once() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    for n in 1000..1300 {
        stage.spot(n);
    }
    stage.until_handled(s(30)).await;
    let asked = stage.calls("DescribeInstances");
    assert!((2..=5).contains(&asked), "{asked} questions for 300 instances, at most 200 each");
    for n in 1000..1300 {
        stage.world.aws.sqs.send(messages::rebalance(&format!("again-{n}"), &instance(n), stage.world.clock.now()));
    }
    stage.until_handled(s(20)).await;
    assert_eq!(stage.calls("DescribeInstances"), asked, "the answers are remembered");
    stage.rest(&[&replica]).await;
}

/// Many clusters may use the managed tag without a value. What the hook itself tells this queue is meant for this cluster; SNS with raw
/// delivery gives the same body to the queues of all.
#[tokio::test(start_paused = true)]
async fn a_hook_that_notifies_this_queue_itself_settles_whose_instance_it_is() {
    let stage = Stage::new(1, 0);
    for n in 5..9 {
        let tags: &[_] = match n {
            7 => &[("other", "")],
            8 => &[(TAG, ""), ("kubernetes.io/cluster/green", "owned")],
            _ => &[(TAG, "")],
        };
        stage.world.aws.ec2.put(&instance(n), tags);
        stage.world.aws.ec2.age(&instance(n), Duration::from_hours(1));
    }
    let replica = stage.start(&["--registration-grace", "5s", "--cluster-name", "blue"]).await;
    let (by_hook, unmanaged, greens) = (5, 7, 8);
    let ours = stage.terminate(by_hook, s(300), Wrapping::Bare);
    let mut others =
        vec![stage.terminate(unmanaged, s(300), Wrapping::Bare), stage.terminate(greens, s(300), Wrapping::Bare)];
    let by_topic = stage.world.aws.autoscaling.begin("group", "hook", &instance(6));
    let (names, now) = (("group", "hook", &*by_topic), stage.world.clock.now());
    stage.world.aws.sqs.send_by_topic(messages::lifecycle(Wrapping::Bare, true, names, &instance(6), now));
    others.push(by_topic.clone());
    stage.until_handled(s(60)).await;
    stage.completed_once(&ours);
    for token in others {
        assert_eq!(stage.world.aws.autoscaling.action(&token).unwrap().completions, [], "{token}");
    }
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn require_tag_checks_every_instance() {
    let stage = Stage::new(2, 1);
    stage.world.aws.ec2.put(&instance(1), &[(TAG, "blue")]);
    let replica = stage.start(&["--require-tag", "--managed-tag", &format!("{TAG}=blue")]).await;
    stage.spot(0);
    stage.spot(1);
    let token = stage.terminate(0, s(300), Wrapping::Bare);
    stage.until_handled(s(30)).await;
    assert_eq!((stage.cordoned(0), stage.cordoned(1)), (false, true));
    assert_eq!(stage.world.aws.autoscaling.action(&token).unwrap().completions, []);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn while_ec2_gives_no_answer_the_message_is_held() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[("other", "")]);
    stage.world.faults.add(Rule::on("DescribeInstances", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    stage.terminate(5, s(300), Wrapping::Event);
    sleep(s(60)).await;
    assert_eq!(stage.world.aws.sqs.in_flight(), 1);
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0, "it might be another's");
    stage.world.faults.clear();
    stage.until_handled(s(30)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_direct_copy_of_the_notice_settles_whose_instance_it_is() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    stage.world.aws.ec2.age(&instance(5), Duration::from_hours(1));
    let replica = stage.start(&["--registration-grace", "5s"]).await;
    sleep(s(1)).await;
    stage.world.faults.add(Rule::on("DescribeInstances", Fault::Slow(Duration::from_millis(300))));
    let token = stage.terminate(5, s(300), Wrapping::Event);
    stage.send_terminate(5, &token, Wrapping::Bare);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// Breaks the watch of Nodes, and adds a Node meanwhile.
async fn blind(stage: &Stage) {
    sleep(s(30)).await;
    stage.world.faults.add(Rule::on("watch nodes", Fault::Status(500)));
    stage.world.kube.interrupt_watches(Interrupt::Break);
    sleep(s(5)).await;
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.world.kube.add_pod(Pod::on(&node(5)).named("late"));
    sleep(s(5)).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_of_nodes_no_instance_is_taken_for_another_clusters() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    blind(&stage).await;
    stage.world.aws.ec2.put(&instance(5), &[("other", "")]);
    stage.spot(5);
    sleep(s(20)).await;
    assert_eq!(stage.world.aws.sqs.in_flight(), 1, "held");
    stage.world.faults.clear();
    stage.until_handled(s(60)).await;
    assert!(stage.cordoned(5));
    assert_eq!(stage.world.kube.pods_on(&node(5)).len(), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_of_nodes_no_hook_is_completed_before_its_drain() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    blind(&stage).await;
    let token = stage.terminate(5, s(3600), Wrapping::Bare);
    sleep(s(120)).await;
    assert_eq!(stage.calls(COMPLETE), 0);
    stage.world.faults.clear();
    stage.until_handled(s(60)).await;
    assert_eq!(stage.world.kube.pods_on(&node(5)).len(), 0);
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// Nobody knows whether its instance has a Node.
#[tokio::test(start_paused = true)]
async fn a_hook_is_no_success_if_the_watch_of_nodes_fails_until_its_end() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let replica = stage.start(&["--on-failed-drain", "leave"]).await;
    blind(&stage).await;
    let token = stage.terminate(5, s(900), Wrapping::Bare);
    stage.until_handled(s(920)).await;
    assert_eq!(stage.results(&token), Vec::<String>::new());
    replica.ended_once("asg-terminate", "failed");
    stage.world.faults.clear();
    stage.rest(&[&replica]).await;
}

/// The watch is open, but shows nothing any more, and a Node registers.
async fn silent(stage: &Stage) {
    sleep(s(30)).await;
    stage.world.kube.interrupt_watches(Interrupt::Freeze);
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.world.kube.add_pod(Pod::on(&node(5)).named("late"));
    sleep(s(5)).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_takes_no_instance_for_another_clusters() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    silent(&stage).await;
    stage.world.aws.ec2.put(&instance(5), &[("other", "")]);
    stage.spot(5);
    stage.until_handled(s(10)).await;
    assert!(stage.cordoned(5));
    assert_eq!(stage.world.kube.pods_on(&node(5)).len(), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_completes_no_hook_before_its_drain() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let replica = stage.start(&["--registration-grace", "10s"]).await;
    silent(&stage).await;
    let token = stage.terminate(5, s(3600), Wrapping::Bare);
    stage.until_handled(s(20)).await;
    assert!(stage.cordoned(5));
    assert_eq!(stage.world.kube.pods_on(&node(5)).len(), 0);
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// A quiet watch is begun anew once, for all; not for instances that their tags give to another cluster.
#[tokio::test(start_paused = true)]
async fn an_absence_is_confirmed_once_for_many_notices() {
    for (tags, watches) in [(&[("other", "")][..], 1), (&[("kubernetes.io/cluster/other", "owned")], 0)] {
        let stage = Stage::new(1, 0);
        stage.world.aws.ec2.put(&instance(0), &[("kubernetes.io/cluster/ours", "owned")]);
        for n in 5..60 {
            stage.world.aws.ec2.put(&instance(n), tags);
        }
        let replica = stage.start(&["--cluster-name", "ours"]).await;
        sleep(s(30)).await;
        let before = stage.calls("watch nodes");
        for n in 5..60 {
            stage.spot(n);
        }
        stage.until_handled(s(10)).await;
        replica.all_ended("spot", &[("not-ours", 55)]);
        assert_eq!(stage.calls("watch nodes") - before, watches, "{tags:?}");
        stage.rest(&[&replica]).await;
    }
}

/// EC2 does not return an instance yet that was launched a second ago.
#[tokio::test(start_paused = true)]
async fn an_instance_that_ec2_does_not_know_yet_may_be_ours() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--on", "asg-launch=ready"]).await;
    sleep(s(1)).await;
    stage.world.aws.autoscaling.add_hook("group", "launch", HookSpec::launching(s(300)));
    let token = stage.world.aws.autoscaling.begin("group", "launch", &instance(5));
    let now = stage.world.clock.now();
    let body = messages::lifecycle(Wrapping::Event, false, ("group", "launch", &token), &instance(5), now);
    stage.world.aws.sqs.send(body);
    sleep(s(3)).await;
    stage.world.aws.ec2.put(&instance(5), &[("aws-node-termination-handler/managed", "true")]);
    sleep(s(60)).await;
    stage.world.kube.add_node(&node(5), &instance(5));
    sleep(s(30)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(
        matches!(action.state, ActionState::Completed { .. }),
        "{action:?}; deleted {:?}",
        stage.world.aws.sqs.deleted()
    );
    stage.rest(&[&replica]).await;
}

const CLUSTER_TAGS: [(&str, &str, &str); 3] = [
    ("kubernetes.io/cluster/mine", "kubernetes.io/cluster/other", "owned"),
    ("eks:cluster-name", "eks:cluster-name", ""),
    ("aws:eks:cluster-name", "aws:eks:cluster-name", ""),
];

/// Every cluster of an account gets every event, and NTH's tag has no value: completing the hook of another cluster's instance would
/// end it in the middle of its drain there.
#[tokio::test(start_paused = true)]
async fn a_tag_that_names_another_cluster_is_heeded_before_the_managed_tag() {
    for (mine, other, value) in CLUSTER_TAGS {
        let said = |name: &'static str| if value.is_empty() { name } else { value };
        for flags in [&[][..], &["--cluster-name", "mine"]] {
            let stage = Stage::new(1, 1);
            let ec2 = &stage.world.aws.ec2;
            ec2.put(&instance(0), &[(TAG, ""), (mine, said("mine"))]);
            ec2.put(&instance(7), &[(TAG, ""), (other, said("other"))]);
            let replica = stage.start(&[flags, &["--registration-grace", "5s"]].concat()).await;
            let token = stage.terminate(7, s(60), Wrapping::Event);
            stage.until_handled(s(10)).await;
            let action = stage.action(&token);
            assert_eq!((action.beats.len(), action.completions.len()), (0, 0), "{mine} {flags:?}");
            replica.ended_once("asg-terminate", "not-ours");
            // The name is learned from one of our own instances, in the same call.
            assert_eq!(stage.calls("DescribeInstances"), 1);
            ec2.put(&instance(8), &[(TAG, ""), (mine, said("mine"))]);
            ec2.age(&instance(8), Duration::from_hours(30));
            let token = stage.terminate(8, s(60), Wrapping::Event);
            stage.until_handled(s(10)).await;
            stage.completed_once(&token);
            stage.rest(&[&replica]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_of_an_instance_that_nothing_proves_ours_is_completed_only_if_it_is_young() {
    for (hours, completes) in [(0, true), (1, false)] {
        let stage = Stage::new(1, 1);
        stage.world.aws.ec2.put(&instance(7), &[(TAG, "")]);
        stage.world.aws.ec2.age(&instance(7), Duration::from_hours(hours));
        let replica = stage.start(&["--registration-grace", "5s"]).await;
        let token = stage.terminate(7, s(60), Wrapping::Event);
        stage.until_handled(s(10)).await;
        assert_eq!(stage.results(&token).len(), usize::from(completes), "{hours}");
        replica.ended_once("asg-terminate", if completes { "nothing-to-drain" } else { "not-ours" });
        stage.rest(&[&replica]).await;
    }
}

/// Some nodes of a cluster may be tagged with its name, and others not: an untagged one tells nothing.
#[tokio::test(start_paused = true)]
async fn an_untagged_node_does_not_make_tagged_instances_foreign() {
    let stage = Stage::new(1, 1);
    stage.world.aws.ec2.put(&instance(0), &[(TAG, "")]);
    stage.world.aws.ec2.put(&instance(7), &[(TAG, ""), ("kubernetes.io/cluster/mine", "owned")]);
    let replica = stage.start(&["--registration-grace", "5s"]).await;
    let token = stage.terminate(7, s(60), Wrapping::Event);
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_managed_tag_with_a_value_proves_that_an_old_instance_is_ours() {
    let stage = Stage::new(1, 1);
    stage.world.aws.ec2.put(&instance(7), &[(TAG, "blue")]);
    stage.world.aws.ec2.age(&instance(7), Duration::from_hours(30));
    let replica = stage.start(&["--managed-tag", &format!("{TAG}=blue"), "--registration-grace", "5s"]).await;
    let token = stage.terminate(7, s(60), Wrapping::Event);
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}
