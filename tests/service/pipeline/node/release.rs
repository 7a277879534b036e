//! Release of Nodes: marks are removed once when their interruption is over, by any replica, and only our own.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::{EXCLUDE, TO_POOL, marks};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Interrupt;
use ebbtide_sim::messages::{self, Wrapping};
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const PATCH: &str = "patch nodes";

#[tokio::test(start_paused = true)]
async fn a_cordon_without_a_later_notice_is_removed_in_time() {
    let table: [(&[&str], Option<u64>); 5] = [
        (&[], Some(1200)),
        (&["--uncordon-after", "5m"], Some(300)),
        (&["--uncordon-after", "0s"], None),
        (&["--on", "rebalance=drain"], None),
        (&["--on", "rebalance=drain", "--drain-timeout", "rebalance=10m", "--uncordon-after", "5m"], Some(900)),
    ];
    for (flags, after) in table {
        let stage = Stage::new(1, 0);
        let replica = stage.start(flags).await;
        let begun = Instant::now();
        stage.rebalance(0);
        stage.until_handled(s(10)).await;
        sleep_until(begun + s(after.unwrap_or(7200) - 1)).await;
        assert!(stage.cordoned(0), "{flags:?}");
        if after.is_some() {
            // The release is delayed by up to 1.5 s of jitter.
            sleep(s(3)).await;
            assert!(!stage.cordoned(0), "{flags:?}");
            stage.no_trace(0);
        }
        stage.rest(&[&replica]).await;
    }
}

/// Whether it is a taint, or an annotation; its key and its value.
type Sign = (bool, &'static str, &'static str);

/// Signs that another tool works on a node.
const WORKS: [Sign; 7] = [
    (true, "karpenter.sh/disrupted", ""),
    (true, "ToBeDeletedByClusterAutoscaler", "1795867200"),
    (true, "medik8s.io/drain", ""),
    (true, "medik8s.io/remediation", "self-node-remediation"),
    (false, "weave.works/kured-reboot-in-progress", "2026-11-21T12:00:00Z"),
    (false, "flatcar-linux-update.v1.flatcar-linux.net/reboot-in-progress", "true"),
    (false, "machineconfiguration.openshift.io/state", "Working"),
];

/// Signs that one wants to, or that it is over.
const WISHES: [Sign; 5] = [
    (true, "DeletionCandidateOfClusterAutoscaler", "1795867200"),
    (false, "weave.works/kured-most-recent-reboot-needed", "2026-11-21T12:00:00Z"),
    (false, "flatcar-linux-update.v1.flatcar-linux.net/reboot-in-progress", "false"),
    (false, "flatcar-linux-update.v1.flatcar-linux.net/reboot-needed", "true"),
    (false, "machineconfiguration.openshift.io/state", "Done"),
];

const EXPIRES: [&str; 4] = ["--on", "spot=cordon", "--uncordon-after", "5m"];

/// Cordons the nodes for five minutes, and puts a sign on each.
async fn cordon_with(stage: &Stage, signs: &[Sign]) -> Instant {
    let begun = Instant::now();
    for (n, (is_taint, key, value)) in signs.iter().enumerate() {
        stage.spot(n);
        if *is_taint { stage.taint(n, key, value, "NoSchedule") } else { stage.annotate(n, key, value) }
    }
    stage.until_handled(s(10)).await;
    assert!((0..signs.len()).all(|n| stage.cordoned(n)));
    begun
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_expires_stays_while_another_tool_works_on_the_node() {
    let stage = Stage::new(WORKS.len(), 0);
    let replicas = [stage.start(&EXPIRES).await, stage.start(&EXPIRES).await];
    let begun = cordon_with(&stage, &WORKS).await;
    sleep_until(begun + s(1800)).await;
    for (n, (is_taint, key, _)) in WORKS.iter().enumerate() {
        assert!(stage.cordoned(n), "{key}");
        if *is_taint {
            stage.untaint(n, key);
        } else {
            stage.annotate(n, key, "Done");
        }
        if !is_taint && !key.contains("openshift") {
            stage.takes_back(n, key);
        }
        stage.until("uncordoned", s(3), || !stage.cordoned(n)).await;
        stage.no_trace(n);
    }
    stage.rest(&[&replicas[0], &replicas[1]]).await;
}

#[tokio::test(start_paused = true)]
async fn the_wish_to_work_on_a_node_keeps_no_cordon() {
    let stage = Stage::new(WISHES.len(), 0);
    let replica = stage.start(&EXPIRES).await;
    let begun = cordon_with(&stage, &WISHES).await;
    sleep_until(begun + s(303)).await;
    for (n, (_, key, value)) in WISHES.iter().enumerate() {
        assert!(!stage.cordoned(n), "{key}={value}");
    }
    stage.rest(&[&replica]).await;
}

/// The tool has died, and its sign stands for ever.
#[tokio::test(start_paused = true)]
async fn work_of_another_tool_keeps_a_cordon_for_two_hours_at_most() {
    let stage = Stage::new(1, 0);
    let first = stage.start(&EXPIRES).await;
    let begun = cordon_with(&stage, &WORKS[..1]).await;
    sleep_until(begun + s(3600)).await;
    // Another replica counts from the same time.
    first.kill().await;
    let replica = stage.start(&EXPIRES).await;
    sleep_until(begun + s(300 + 7200 - 1)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.until("uncordoned", s(5), || !stage.cordoned(0)).await;
    assert_eq!(stage.taints(0), ["karpenter.sh/disrupted:NoSchedule"]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_setting_replaces_the_signs_that_another_tool_works_on_a_node() {
    const OWN: Sign = (false, "example.com/state", "busy");
    for (flag, stay) in [
        ("--keep-cordon-while=example.com/state=busy", [true, false]),
        ("--keep-cordon-while=example.com/state=idle,karpenter.sh/disrupted", [false, true]),
        ("--keep-cordon-while=", [false, false]),
    ] {
        let stage = Stage::new(2, 0);
        let replica = stage.start(&[&EXPIRES[..], &[flag]].concat()).await;
        let begun = cordon_with(&stage, &[OWN, WORKS[0]]).await;
        sleep_until(begun + s(303)).await;
        assert_eq!([0, 1].map(|n| stage.cordoned(n)), stay, "{flag}");
        stage.rest(&[&replica]).await;
    }
}

/// A captured kubelet writes the marks of an interruption that is over, and asks for the removal of the taint that keeps workloads away.
#[tokio::test(start_paused = true)]
async fn what_others_have_put_on_the_node_stays_whatever_the_node_lists() {
    let stage = Stage::new(1, 0);
    for (key, value) in [("quarantine", "ir"), ("dedicated", "payments"), ("going", "soon"), ("once", "")] {
        stage.taint(0, key, value, "NoSchedule");
    }
    stage.label(0, "node-restriction.kubernetes.io/tier", "1");
    let replica = stage.start(&["--taint", "going=now:NoSchedule", "--former-taint", "once"]).await;
    let listed = json!({
        "cordon": true,
        "taints": ["quarantine=ir:NoSchedule", "dedicated=payments:NoSchedule", "going=soon:NoSchedule", "once:NoSchedule"],
        "labels": ["node-restriction.kubernetes.io/tier"],
    });
    stage.annotate(0, "ebbtide/undo", &listed.to_string());
    stage.annotate(0, "ebbtide/notice.0123456789abcdef", r#"{"v":1,"until":"2020-01-01T00:00:00Z"}"#);
    stage.until("released", s(10), || stage.annotations(0).is_empty()).await;
    assert_eq!(stage.taints(0), ["dedicated=payments:NoSchedule", "quarantine=ir:NoSchedule"]);
    assert_eq!(stage.labelled(0, "node-restriction.kubernetes.io/tier").as_deref(), Some("1"));
    assert!((replica.refused("undo") - 1.0).abs() < f64::EPSILON, "told once");
    stage.rest(&[&replica]).await;
}

/// The replica that takes the drain over has its whole time again.
#[tokio::test(start_paused = true)]
async fn a_mark_that_expires_stays_as_long_as_its_drain_and_the_time_after_it() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let flags = ["--on", "rebalance=drain", "--drain-timeout", "rebalance=10m", "--uncordon-after", "5m"];
    let first = stage.start(&flags).await;
    stage.rebalance(0);
    sleep(s(500)).await;
    first.kill().await;
    let second = stage.start(&flags).await;
    sleep(s(550)).await;
    assert!(stage.cordoned(0), "its drain goes on\n{}", stage.story());
    stage.until_handled(s(120)).await;
    second.ended_once("rebalance", "blocked");
    sleep(s(250)).await;
    assert!(stage.cordoned(0), "it has just ended\n{}", stage.story());
    stage.until("expired", s(120), || !stage.cordoned(0)).await;
    stage.rest(&[&second]).await;
}

/// A launch that a message tells late.
#[tokio::test(start_paused = true)]
async fn a_launch_from_the_warm_pool_does_not_end_a_newer_termination() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--on", "asg-launch=ready"]).await;
    let way = ("WarmPool", "AutoScalingGroup");
    let at = stage.world.clock.now();
    sleep(s(60)).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    stage.world.aws.autoscaling.add_hook("group", "launch", HookSpec::launching(s(300)));
    let launch = stage.world.aws.autoscaling.begin("group", "launch", &instance(0));
    let names = ("group", "launch", &*launch);
    stage.world.aws.sqs.send(messages::lifecycle_between(Wrapping::Event, false, names, &instance(0), at, way));
    sleep(s(60)).await;
    assert!(stage.cordoned(0) && stage.results(&token).is_empty(), "{}", stage.story());
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn only_kinds_with_the_action_cordon_are_released() {
    let stage = Stage::new(2, 0);
    let replica = stage.start(&["--on", "asg-terminate=cordon", "--uncordon-after", "5m"]).await;
    stage.terminate(0, s(300), Wrapping::Event);
    stage.spot(1);
    stage.until_handled(s(10)).await;
    assert!(stage.cordoned(0) && stage.cordoned(1));
    sleep(s(310)).await;
    assert!(!stage.cordoned(0));
    sleep(s(7200)).await;
    assert!(stage.cordoned(1), "a drained node is about to go");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_humans_cordon_stays() {
    let stage = Stage::new(1, 0);
    stage.set_cordon(0, true);
    let replica = stage.start(&["--uncordon-after", "5m"]).await;
    stage.rebalance(0);
    stage.until_handled(s(10)).await;
    assert_eq!(stage.notices(0).len(), 1);
    sleep(s(310)).await;
    assert!(stage.cordoned(0));
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cordon_removed_by_a_human_removes_all_other_marks() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--taint", "going=soon:NoSchedule", "--exclude-from-load-balancers"]).await;
    stage.rebalance(0);
    stage.until_handled(s(10)).await;
    // The cordon is removed, and set again before the removal counts.
    stage.set_cordon(0, false);
    sleep(s(20)).await;
    stage.set_cordon(0, true);
    sleep(s(60)).await;
    assert_eq!((stage.notices(0).len(), stage.taints(0).len()), (1, 1));
    stage.set_cordon(0, false);
    sleep(s(28)).await;
    assert_eq!(stage.notices(0).len(), 1);
    sleep(s(6)).await;
    assert_eq!((stage.cordoned(0), stage.taints(0), stage.labelled(0, EXCLUDE)), (false, Vec::new(), None));
    // What a user has ended stays so, whoever receives a copy of the message.
    assert_eq!((stage.notices(0).len(), stage.handled(0), stage.labelled(0, "ebbtide/kind")), (0, 1, None));
    stage.rest(&[&replica]).await;
}

/// Another version of the service has written the record, or a user has edited it: what it means is unknown, so it holds the node.
#[tokio::test(start_paused = true)]
async fn a_record_of_a_later_version_holds_its_node_until_a_user_ends_it() {
    for changed in ["\"v\":9", "\"v\":1,\"hook\":\"later\""] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&[]).await;
        stage.rebalance(0);
        stage.until_handled(s(10)).await;
        let (name, text) =
            stage.annotations(0).into_iter().find(|(name, _)| name.starts_with("ebbtide/notice.")).unwrap();
        let edited = text.replace("\"v\":1", changed);
        stage.annotate(0, &name, &edited);
        // Neither its expiry, nor a restart, nor another notice's end touches it.
        stage.reboot(0).await;
        sleep(s(3600)).await;
        stage.spot(0);
        stage.until_handled(s(130)).await;
        stage.reboot(0).await;
        sleep(s(3600)).await;
        assert_eq!((stage.cordoned(0), stage.annotations(0).remove(&name)), (true, Some(edited)), "{changed}");
        stage.set_cordon(0, false);
        stage.until("the user has ended it", s(60), || !stage.annotations(0).contains_key(&name)).await;
        sleep(s(600)).await;
        assert!(!stage.cordoned(0), "{changed}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_notice_keeps_the_cordon() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--exclude-from-load-balancers"]).await;
    stage.rebalance(0);
    sleep(s(600)).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.notices(0).len(), 2);
    sleep(s(605)).await;
    let kinds: Vec<_> = stage.notices(0).into_iter().map(|notice| notice["kind"].clone()).collect();
    assert_eq!(kinds, ["spot"], "the recommendation's mark is over");
    sleep(s(7200)).await;
    assert!(stage.cordoned(0));
    assert_eq!(stage.labelled(0, "ebbtide/kind").as_deref(), Some("spot"));
    assert_eq!(stage.labelled(0, EXCLUDE).as_deref(), Some("true"));
    stage.reboot(0).await;
    stage.until("uncordoned", s(3), || !stage.cordoned(0)).await;
    assert_eq!(stage.labelled(0, EXCLUDE), None, "what the first notice brought was kept in mind");
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_service_forgets_no_mark() {
    // The second replica starts before the cordon expires, and after that.
    for back_at in [900, 1800] {
        let stage = Stage::new(2, 0);
        stage.set_cordon(1, true);
        let first = stage.start(&[]).await;
        let begun = Instant::now();
        for n in 0..2 {
            stage.rebalance(n);
        }
        stage.until_handled(s(10)).await;
        sleep(s(600)).await;
        first.kill().await;
        sleep_until(begun + s(back_at)).await;
        assert!(stage.cordoned(0));
        // The setting has changed: the annotation counts.
        let second = stage.start(&["--uncordon-after", "0s"]).await;
        sleep_until(begun + s(1199)).await;
        assert!(stage.cordoned(0) || back_at > 1200);
        sleep_until(begun + s(back_at.max(1200) + 3)).await;
        assert!(!stage.cordoned(0), "back at {back_at} s");
        assert!(stage.cordoned(1), "a human's stays");
        for n in 0..2 {
            stage.no_trace(n);
        }
        stage.rest(&[&second]).await;
    }
}

/// Returns the number of accepted patches of Nodes.
fn written(stage: &Stage) -> usize {
    stage.world.calls.of(PATCH).iter().filter(|call| call.status == 200).count()
}

#[tokio::test(start_paused = true)]
async fn two_replicas_release_a_node_once() {
    let stage = Stage::new(100, 0);
    let (first, second) = (stage.start(&[]).await, stage.start(&[]).await);
    for n in 0..20 {
        stage.rebalance(n);
    }
    stage.until_handled(s(10)).await;
    assert_eq!(written(&stage), 20);
    sleep(s(600)).await;
    // From now on neither replica sees the writes of the other: the patches of the slower one meet conflicts.
    stage.world.kube.interrupt_watches(Interrupt::Freeze);
    stage.until("uncordoned", s(605), || (0..20).all(|n| !stage.cordoned(n))).await;
    // A human cordons one Node meanwhile: the slower replica must not take the cordon for ours.
    stage.set_cordon(7, true);
    sleep(s(60)).await;
    assert!(stage.cordoned(7));
    assert_eq!(written(&stage), 40, "one a node\n{}", stage.story());
    let conflicts = stage.calls(PATCH) - 40;
    assert!((1..=20).contains(&conflicts), "both tried, and none again and again: {conflicts}");
    let told = first.released("expired") + second.released("expired");
    assert!((told - 20.0).abs() < f64::EPSILON, "{told} told");
    stage.rest(&[&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_retried() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--uncordon-after", "5m"]).await;
    stage.rebalance(0);
    stage.until_handled(s(10)).await;
    stage.world.faults.add(Rule::on(PATCH, Fault::Status(403)));
    sleep(s(400)).await;
    assert!(stage.cordoned(0));
    let tries = stage.calls(PATCH) - 1;
    assert!((3..=10).contains(&tries), "after 5 s, and then ever later: {tries}");
    stage.world.faults.clear();
    stage.until("uncordoned", s(302), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_from_the_warm_pool_is_released_on_the_same_boot() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--on", "asg-launch=ready", "--taint", "going=soon:NoSchedule"]).await;
    let token = stage.terminate_between(0, s(300), Wrapping::Event, TO_POOL);
    stage.until_handled(s(30)).await;
    stage.completed_once(&token);
    assert_eq!(stage.world.kube.pods().len(), 0);
    stage.set_ready(0, false);
    sleep(s(3600)).await;
    assert!(stage.cordoned(0));
    let token = stage.launch_between(0, s(300), Wrapping::Event, ("WarmPool", "AutoScalingGroup"));
    sleep(s(30)).await;
    assert!(stage.cordoned(0) && stage.results(&token).is_empty());
    stage.set_ready(0, true);
    stage.until_handled(s(2)).await;
    stage.completed_once(&token);
    assert!(!stage.cordoned(0));
    assert_eq!(stage.taints(0), Vec::<String>::new());
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_we_set_again_is_removed_after_the_reboot() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    stage.set_cordon(0, true);
    let replica = stage.start(&["--drain-timeout", "2m"]).await;
    stage.schedule_reboot(0);
    sleep(s(30)).await;
    // The human who cordoned the Node before us uncordons it.
    stage.set_cordon(0, false);
    stage.until("cordoned again", s(2), || stage.cordoned(0)).await;
    stage.until_handled(s(120)).await;
    stage.reboot(0).await;
    stage.until("uncordoned", s(3), || !stage.cordoned(0)).await;
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

/// A human removes his cordon during the drain, and we set it again: the new cordon is ours.
#[tokio::test(start_paused = true)]
async fn a_cordon_that_we_set_again_during_a_drain_is_removed_after_the_reboot() {
    let stage = Stage::slow(s(60));
    stage.world.kube.update_node(&node(0), |node| node.spec.get_or_insert_default().unschedulable = Some(true));
    let replica = stage.start(&[]).await;
    let now = stage.world.clock.now();
    let code = "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED";
    stage.world.aws.sqs.send(messages::scheduled_change("h", code, &[&instance(0)], now, now + s(100)));
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

/// Somebody has removed the notice annotations, and left `ebbtide/undo`: a human's cordon stays.
#[tokio::test(start_paused = true)]
async fn a_stale_undo_annotation_does_not_claim_a_humans_cordon() {
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

/// The API server refuses the release of 20 Nodes, whose status changes all the time.
#[tokio::test(start_paused = true)]
async fn failed_releases_do_not_flood_the_api_server() {
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
        // Each kubelet updates its status every 10 s.
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

/// Two replicas release expired cordons of 40 Nodes while spot warnings for the same Nodes arrive.
#[tokio::test(start_paused = true)]
async fn two_replicas_release_and_mark_nodes_at_once() {
    let stage = Stage::new(40, 0);
    stage.world.kube.taint_cordoned();
    let flags = ["--uncordon-after", "60s", "--taint", "going=soon:NoSchedule"];
    let (a, b) = (stage.start(&flags).await, stage.start(&flags).await);
    for n in 0..40 {
        stage.world.aws.sqs.send(messages::rebalance(&format!("r{n}"), &instance(n), stage.world.clock.now()));
    }
    stage.until_handled(s(30)).await;
    // Spot warnings arrive just as the cordons expire.
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
    // The marks of the spot warnings stay until the reboot.
    sleep(s(200)).await;
    (0..40).for_each(|n| stage.world.kube.reboot(&node(n)));
    sleep(s(30)).await;
    for n in 0..40 {
        let node = stage.world.kube.node(&node(n)).unwrap();
        let left: Vec<_> = marks(&stage, n).into_iter().filter(|mark| !mark.starts_with("ebbtide/booted=")).collect();
        assert!(!stage.cordoned(n) && left.is_empty(), "{n} {left:?}");
        assert!(node.spec.unwrap().taints.unwrap_or_default().iter().all(|t| t.key != "going"));
    }
    stage.rest(&[&a, &b]).await;
}

/// Another controller writes one Node without a pause: every patch of ours is a conflict.
#[tokio::test(start_paused = true)]
async fn a_node_that_always_conflicts_does_not_stop_the_release_of_others() {
    let stage = Stage::new(2, 0);
    let replica = stage.start(&["--uncordon-after", "5m"]).await;
    stage.rebalance(0);
    sleep(s(60)).await;
    stage.rebalance(1);
    stage.until_handled(s(10)).await;
    stage.world.faults.add(Rule::on(PATCH, Fault::Status(409)).subject(node(0)));
    sleep(s(350)).await;
    assert!(stage.cordoned(0) && !stage.cordoned(1), "{}", stage.story());
    stage.world.faults.clear();
    stage.until("it is released, too", s(200), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}
