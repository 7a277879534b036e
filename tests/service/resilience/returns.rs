//! Takeovers, reboots, flaps, late notices, Nodes that go and come back. Each was a fault that a hostile review found.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::aws::{ActionState, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::sleep;

const COMPLETE: &str = "CompleteLifecycleAction";
const BEAT: &str = "RecordLifecycleActionHeartbeat";

/// The n-th node's annotations of ours, each on a line.
fn marks(stage: &Stage, n: usize) -> Vec<String> {
    stage.annotations(n).into_iter().map(|(key, value)| format!("{key}={value}")).collect()
}

/// The first heartbeat after a takeover fails, or does not; the hook is kept either way.
#[tokio::test(start_paused = true)]
async fn a_takeover_survives_one_failed_heartbeat() {
    for fault in [None, Some(Fault::Throttle), Some(Fault::Status(500)), Some(Fault::Disconnect)] {
        let stage = Stage::slow(s(300));
        let flags = ["--drain-timeout", "10m"];
        let replica = stage.start(&flags).await;
        let token = stage.terminate(0, s(60), Wrapping::Event);
        sleep(s(150)).await;
        replica.kill().await;
        if let Some(fault) = fault {
            stage.world.faults.add(Rule::on(BEAT, fault).times(1));
        }
        let second = stage.start(&flags).await;
        stage.until_handled(s(400)).await;
        let action = stage.action(&token);
        assert!(matches!(action.state, ActionState::Completed { .. }), "{fault:?} {action:?}");
        stage.completed_once(&token);
        stage.rest(&[&second]).await;
    }
}

/// The same after an ordered shutdown.
#[tokio::test(start_paused = true)]
async fn an_ordered_takeover_survives_one_throttled_heartbeat() {
    let stage = Stage::slow(s(300));
    let flags = ["--drain-timeout", "10m"];
    let replica = stage.start(&flags).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(150)).await;
    replica.stop().await;
    stage.world.faults.add(Rule::on(BEAT, Fault::Throttle).times(1));
    let second = stage.start(&flags).await;
    stage.until_handled(s(400)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(matches!(action.state, ActionState::Completed { .. }), "{action:?}");
    stage.rest(&[&second]).await;
}

/// Ready flaps while a node drains for the warm pool.
#[tokio::test(start_paused = true)]
async fn a_flap_of_ready_in_mid_drain_leaves_the_mark() {
    let stage = Stage::slow(s(300));
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    stage.terminate_between(0, s(600), Wrapping::Event, ("AutoScalingGroup", "WarmPool"));
    sleep(s(30)).await;
    let before = marks(&stage, 0);
    stage.world.kube.set_ready(&node(0), false);
    sleep(s(20)).await;
    stage.world.kube.set_ready(&node(0), true);
    sleep(s(10)).await;
    let after = marks(&stage, 0);
    let cordoned = stage.cordoned(0);
    let released = replica.metrics.render(&replica.tasks);
    let released: Vec<_> = released.lines().filter(|l| l.contains("released")).map(str::to_owned).collect();
    stage.until_handled(s(600)).await;
    assert!(
        cordoned && before == after,
        "cordoned {cordoned}\n{before:?}\n{after:?}\n{released:?}\nin the end {:?} {}",
        marks(&stage, 0),
        stage.cordoned(0)
    );
    stage.rest(&[&replica]).await;
}

/// The node registers after the notice's time.
#[tokio::test(start_paused = true)]
async fn a_node_that_registers_late_keeps_its_mark() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[("aws-node-termination-handler/managed", "true")]);
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    stage.terminate_between(5, s(600), Wrapping::Event, ("AutoScalingGroup", "WarmPool"));
    sleep(s(10)).await;
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.world.kube.add_pod(Pod::on(&node(5)).named("slow").grace(s(300)).stops_in(s(60)));
    sleep(s(10)).await;
    let (cordoned, marks) = (stage.cordoned(5), marks(&stage, 5));
    assert!(cordoned && marks.len() == 2, "cordoned {cordoned} {marks:?}\n{}", stage.story());
    stage.until_handled(s(600)).await;
    stage.rest(&[&replica]).await;
}

/// A human's cordon, taken away by the human in mid-drain, set again by us: it must be ours then.
#[tokio::test(start_paused = true)]
async fn a_cordon_that_was_set_again_is_ours_to_take_back() {
    let stage = Stage::slow(s(60));
    stage.world.kube.update_node(&node(0), |node| node.spec.get_or_insert_default().unschedulable = Some(true));
    let replica = stage.start(&[]).await;
    let now = stage.world.clock.now();
    let code = "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED";
    stage.world.aws.sqs.send(messages::scheduled_change("h", code, &[&instance(0)], now, now + s(86400)));
    sleep(s(20)).await;
    stage.world.kube.update_node(&node(0), |node| node.spec.get_or_insert_default().unschedulable = None);
    stage.until_handled(s(100)).await;
    assert!(stage.cordoned(0), "set again");
    let held = marks(&stage, 0);
    stage.world.kube.reboot(&node(0));
    sleep(s(60)).await;
    assert!(!stage.cordoned(0), "left cordoned for ever; before the reboot {held:?}, after {:?}", marks(&stage, 0));
    stage.rest(&[&replica]).await;
}

/// A node that reboots while it is drained for a termination stays cordoned and is drained on.
#[tokio::test(start_paused = true)]
async fn a_reboot_in_mid_drain_does_not_free_a_node_that_terminates() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "20m", "--at-deadline", "leave"]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(60)).await;
    stage.world.kube.set_ready(&node(0), false);
    sleep(s(30)).await;
    stage.world.kube.reboot(&node(0));
    stage.world.kube.set_ready(&node(0), true);
    sleep(s(60)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(
        stage.cordoned(0) && action.completions.is_empty(),
        "cordoned {} completions {:?} pods left {} marks {:?}",
        stage.cordoned(0),
        action.completions,
        stage.world.kube.pods_on(&node(0)).len(),
        marks(&stage, 0)
    );
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// EC2 does not know an instance yet that was launched a second ago.
#[tokio::test(start_paused = true)]
async fn an_instance_that_ec2_does_not_know_yet_is_not_anothers() {
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

/// With `--require-tag` a terminated instance's node gets the taint, too.
#[tokio::test(start_paused = true)]
async fn out_of_service_with_require_tag() {
    for state in ["stopped", "terminated"] {
        let stage = Stage::new(1, 0);
        let replica = stage.start(&["--require-tag", "--out-of-service-taint"]).await;
        stage.world.aws.ec2.set_state(&instance(0), state);
        stage.world.kube.set_ready(&node(0), false);
        let now = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::state_change("s", &instance(0), state, now));
        stage.until_handled(s(200)).await;
        let taints = stage.world.kube.node(&node(0)).unwrap().spec.unwrap().taints.unwrap_or_default();
        assert!(taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service"), "{state}: {taints:?}");
        stage.rest(&[&replica]).await;
    }
}

/// With one failure on arrival at its deadline, the most useful thing is still done.
#[tokio::test(start_paused = true)]
async fn one_failed_cordon_at_the_deadline() {
    let stage = Stage::new(1, 2);
    let replica = stage.start(&[]).await;
    let now = stage.world.clock.now();
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)).times(1));
    stage.world.aws.sqs.send(messages::spot("h", &instance(0), now).replace("\"terminate\"", "\"hibernate\""));
    stage.until_handled(s(30)).await;
    assert!(stage.calls("create pods/eviction") > 0 && stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The taint that evicts everything goes when the node comes back, also where another notice holds it.
#[tokio::test(start_paused = true)]
async fn out_of_service_goes_when_the_instance_is_back() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--out-of-service-taint", "--uncordon-after", "0s"]).await;
    stage.world.aws.ec2.set_state(&instance(0), "stopped");
    stage.world.kube.set_ready(&node(0), false);
    stage.world.aws.sqs.send(messages::state_change("s", &instance(0), "stopped", stage.world.clock.now()));
    stage.until_handled(s(60)).await;
    sleep(s(60)).await;
    stage.world.aws.ec2.set_state(&instance(0), "running");
    stage.world.kube.reboot(&node(0));
    sleep(s(1)).await;
    // It boots; before it is Ready a recommendation comes.
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    stage.until_handled(s(60)).await;
    stage.world.kube.set_ready(&node(0), true);
    sleep(s(60)).await;
    let taints = stage.world.kube.node(&node(0)).unwrap().spec.unwrap().taints.unwrap_or_default();
    assert!(
        !taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service"),
        "a running node keeps {taints:?}; {:?}",
        marks(&stage, 0)
    );
    stage.rest(&[&replica]).await;
}

/// What is left of an undo annotation, whose notices somebody took away, must not claim a human's cordon.
#[tokio::test(start_paused = true)]
async fn a_stale_undo_claims_no_humans_cordon() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    stage.world.kube.update_node(&node(0), |node| {
        node.metadata.annotations.get_or_insert_default().insert("ebbtide/undo".into(), "{\"cordon\":true}".into());
        node.spec.get_or_insert_default().unschedulable = Some(true);
    });
    sleep(s(1)).await;
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    stage.until_handled(s(30)).await;
    sleep(s(1300)).await;
    assert!(stage.cordoned(0), "a human's cordon was taken away");
    stage.rest(&[&replica]).await;
}

/// Absurd annotations.
#[tokio::test(start_paused = true)]
async fn absurd_annotations_cost_nothing() {
    let stage = Stage::new(2, 1);
    for (n, value) in [
        (0, "{\"kind\":\"spot\",\"until\":\"9999-12-30T22:00:00Z\",\"boot\":\"\"}"),
        (1, "{\"kind\":\"spot\",\"until\":\"-009999-01-02T01:59:59Z\",\"since\":null}"),
    ] {
        stage.world.kube.update_node(&node(n), |node| {
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert("ebbtide/notice.x".into(), value.into());
            annotations.insert("ebbtide/undo".into(), "{\"cordon\":\"yes\",\"taints\":[1]}".into());
        });
    }
    let replica = stage.start(&[]).await;
    sleep(s(100)).await;
    stage.spot(0);
    stage.until_handled(s(60)).await;
    assert!(stage.calls("patch nodes") < 10, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// A launch hook whose action is over, because the instance died, does not hold its message until the deadline.
#[tokio::test(start_paused = true)]
async fn a_launch_that_is_over_ends() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[("aws-node-termination-handler/managed", "true")]);
    let replica = stage.start(&["--on", "asg-launch=ready", "--drain-timeout", "asg-launch=4h"]).await;
    stage.world.aws.autoscaling.add_hook("group", "launch", HookSpec::launching(s(300)));
    let token = "00000000-0000-0000-0000-000000000000";
    let body =
        messages::lifecycle(Wrapping::Event, false, ("group", "launch", token), &instance(5), stage.world.clock.now());
    stage.world.aws.sqs.send(body);
    sleep(s(600)).await;
    let held = stage.world.aws.sqs.in_flight();
    assert_eq!(
        (stage.calls(BEAT) >= 1, held),
        (true, 0),
        "AWS said that it is over at the first beat; {}",
        stage.calls(COMPLETE)
    );
    stage.rest(&[&replica]).await;
}

/// A hook whose times can't be looked up, and heartbeats that fail for longer than the assumed 30 s.
#[tokio::test(start_paused = true)]
async fn heartbeats_of_an_unknown_hook_are_tried_on() {
    let stage = Stage::slow(s(400));
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
    stage.world.faults.add(Rule::on(BEAT, Fault::Status(503)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(60)).await;
    let beats = stage.calls(BEAT);
    stage.world.faults.clear();
    stage.until_handled(s(500)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(
        matches!(action.state, ActionState::Completed { .. }),
        "{beats} tries in a minute, {} in all {action:?}",
        stage.calls(BEAT)
    );
    stage.rest(&[&replica]).await;
}

/// Somebody uncordons in the delay: the drain must not cordon again without a mark.
#[tokio::test(start_paused = true)]
async fn uncordoned_in_the_delay() {
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

/// A spot warning from before the node's restart, read late.
#[tokio::test(start_paused = true)]
async fn a_warning_from_before_the_restart_harms_nobody() {
    let stage = Stage::new(1, 2);
    let at = stage.world.clock.now();
    sleep(s(700)).await;
    // Stopped at 120 s, started again at 600 s, while no replica ran.
    stage.world.kube.reboot(&node(0));
    stage.world.kube.set_ready(&node(0), false);
    stage.world.kube.set_ready(&node(0), true);
    sleep(s(100)).await;
    stage.block(0);
    stage.world.aws.sqs.send(messages::spot("late", &instance(0), at).replace("\"terminate\"", "\"stop\""));
    let replica = stage.start(&[]).await;
    stage.until_handled(s(60)).await;
    sleep(s(3600)).await;
    let pods = stage.world.kube.pods_on(&node(0)).len();
    assert!(
        pods == 2 && !stage.cordoned(0),
        "{pods} pods left, cordoned {} {:?}",
        stage.cordoned(0),
        stage.world.kube.evictions()
    );
    stage.rest(&[&replica]).await;
}

/// The Node is deleted by hand and registers again, in mid-drain.
#[tokio::test(start_paused = true)]
async fn a_node_that_registers_again_is_drained_too() {
    let stage = Stage::slow(s(300));
    let replica = stage.start(&["--drain-timeout", "20m"]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(30)).await;
    stage.world.kube.remove_node(&node(0));
    stage.world.kube.add_node(&node(0), &instance(0));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("again").grace(s(30)).stops_in(s(20)));
    sleep(s(10)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    let pods = stage.world.kube.pods_on(&node(0)).len();
    assert!(
        action.completions.is_empty() || pods == 0,
        "{:?} with {pods} pods; cordoned {}; drained {}",
        action.completions,
        stage.cordoned(0),
        replica.metric("ebbtide_notices_total{kind=\"asg-terminate\",outcome=\"drained\"}")
    );
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// The same Node in a taint: marks that are refused by the API server while another drains.
#[tokio::test(start_paused = true)]
async fn marks_that_cannot_be_taken_back_are_not_a_flood() {
    let stage = Stage::new(20, 0);
    let replica = stage.start(&["--uncordon-after", "60s"]).await;
    for n in 0..20 {
        stage.world.aws.sqs.send(messages::rebalance(&format!("r{n}"), &instance(n), stage.world.clock.now()));
    }
    stage.until_handled(s(30)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)));
    sleep(s(60)).await;
    let before = stage.calls("patch nodes");
    for round in 0..300 {
        // Each kubelet says every 10 s how it is.
        for n in 0..20 {
            if (round + n) % 10 == 0 {
                stage.world.kube.update_node(&node(n), |node| {
                    let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
                    conditions[0].message = Some(format!("{round}"));
                });
            }
        }
        sleep(s(1)).await;
    }
    let tries = (stage.calls("patch nodes") - before) / 20;
    assert!(tries <= 65, "{tries} tries for each node in 5 minutes");
    stage.world.faults.clear();
    sleep(s(30)).await;
    stage.rest(&[&replica]).await;
}

/// The node goes in the delay.
#[tokio::test(start_paused = true)]
async fn a_node_that_goes_in_the_delay_holds_nothing_up() {
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

/// EC2's word is old when the taint is set at last.
#[tokio::test(start_paused = true)]
async fn out_of_service_is_not_set_on_a_node_that_is_back() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--out-of-service-taint"]).await;
    stage.world.aws.ec2.set_state(&instance(0), "stopped");
    stage.world.kube.set_ready(&node(0), false);
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(503)));
    stage.world.aws.sqs.send(messages::state_change("s", &instance(0), "stopped", stage.world.clock.now()));
    sleep(s(50)).await;
    stage.world.aws.ec2.set_state(&instance(0), "running");
    stage.world.kube.reboot(&node(0));
    stage.world.kube.set_ready(&node(0), true);
    sleep(s(2)).await;
    stage.world.faults.clear();
    let mut seen = false;
    for _ in 0..400 {
        sleep(Duration::from_millis(50)).await;
        let taints = stage.world.kube.node(&node(0)).unwrap().spec.unwrap().taints.unwrap_or_default();
        seen |= taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service");
    }
    assert!(!seen, "NoExecute on a running node\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// A taint of ours that somebody takes away again and again does not grow `ebbtide/undo`.
#[tokio::test(start_paused = true)]
async fn undo_does_not_grow() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--taint", "going=soon:NoSchedule", "--exclude-from-load-balancers"]).await;
    for n in 0..5 {
        stage.world.aws.sqs.send(messages::rebalance(&format!("r{n}"), &instance(0), stage.world.clock.now()));
        stage.until_handled(s(60)).await;
        stage.world.kube.update_node(&node(0), |node| {
            node.spec.get_or_insert_default().taints = None;
            node.metadata
                .labels
                .get_or_insert_default()
                .remove("node.kubernetes.io/exclude-from-external-load-balancers");
        });
        sleep(s(10)).await;
    }
    let undo = marks(&stage, 0).into_iter().find(|mark| mark.starts_with("ebbtide/undo")).unwrap();
    assert!(undo.matches("going").count() == 1, "{undo}");
    stage.rest(&[&replica]).await;
}

/// The label says why the Node goes by its newest notice, also after another was taken back.
#[tokio::test(start_paused = true)]
async fn the_label_names_the_newest_notice_that_is_left() {
    for round in 0..6 {
        let stage = Stage::new(1, 0);
        let replica = stage.start(&["--uncordon-after", "60s", "--on", "rebalance=cordon"]).await;
        let now = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), now));
        stage.until_handled(s(60)).await;
        sleep(s(5)).await;
        let code = "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED";
        stage.world.aws.sqs.send(messages::scheduled_change(
            &format!("h{round}"),
            code,
            &[&instance(0)],
            now,
            now + s(86400),
        ));
        stage.until_handled(s(60)).await;
        sleep(s(5)).await;
        stage.world.aws.sqs.send(messages::spot(&format!("s{round}"), &instance(0), stage.world.clock.now()));
        stage.until_handled(s(60)).await;
        sleep(s(120)).await;
        let label = stage.world.kube.node(&node(0)).unwrap().metadata.labels.unwrap()["ebbtide/kind"].clone();
        assert_eq!(label, "spot", "{round}");
        stage.rest(&[&replica]).await;
    }
}

/// With --on-failed-drain leave, a takeover after the hook's end completes nothing with the wrong word.
#[tokio::test(start_paused = true)]
async fn two_replicas_undo_and_mark_at_once() {
    let stage = Stage::new(40, 0);
    stage.world.kube.taint_cordoned();
    let flags = ["--uncordon-after", "60s", "--taint", "going=soon:NoSchedule"];
    let (a, b) = (stage.start(&flags).await, stage.start(&flags).await);
    for n in 0..40 {
        stage.world.aws.sqs.send(messages::rebalance(&format!("r{n}"), &instance(n), stage.world.clock.now()));
    }
    stage.until_handled(s(30)).await;
    // Just as they expire, spot warnings come.
    sleep(s(59)).await;
    for n in 0..40 {
        stage.spot(n);
        sleep(Duration::from_millis(50)).await;
    }
    stage.until_handled(s(60)).await;
    sleep(s(30)).await;
    let open: Vec<_> = (0..40).filter(|n| !stage.cordoned(*n) || marks(&stage, *n).len() != 2).collect();
    assert!(open.is_empty(), "{open:?}");
    for n in 0..40 {
        let undo = marks(&stage, n).into_iter().find(|mark| mark.starts_with("ebbtide/undo")).unwrap();
        assert!(undo.contains("cordon") && undo.contains("going"), "{undo}");
    }
    // Long after their end they are there still.
    sleep(s(200)).await;
    (0..40).for_each(|n| stage.world.kube.reboot(&node(n)));
    sleep(s(30)).await;
    for n in 0..40 {
        let node = stage.world.kube.node(&node(n)).unwrap();
        assert!(!stage.cordoned(n) && marks(&stage, n).is_empty(), "{n} {:?}", marks(&stage, n));
        assert!(node.spec.unwrap().taints.unwrap_or_default().iter().all(|t| t.key != "going"));
    }
    stage.rest(&[&a, &b]).await;
}

/// What was told of a drain is settled, though it was given up and the Node is left to its owner since.
#[tokio::test(start_paused = true)]
async fn the_condition_does_not_stay_true_for_ever() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let first = stage.start(&[]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(30)).await;
    first.stop().await;
    let draining = || {
        let status = stage.world.kube.node(&node(0)).unwrap().status.unwrap_or_default();
        let mut all = status.conditions.unwrap_or_default().into_iter();
        all.find(|condition| condition.type_ == "EbbtideDraining").map(|condition| condition.status)
    };
    assert_eq!(draining().as_deref(), Some("True"));
    stage.world.kube.update_node(&node(0), |node| {
        node.metadata.annotations.get_or_insert_default().insert("ebbtide/ignore".into(), "true".into());
        node.spec.get_or_insert_default().unschedulable = None;
    });
    let second = stage.start(&[]).await;
    stage.until_handled(s(60)).await;
    stage.until("the condition is settled", s(5), || draining().as_deref() == Some("False")).await;
    stage.rest(&[&second]).await;
}
