//! Marks that notices leave on a Node: written in one patch, next to the writes of others, and only if they are true.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::{EXCLUDE, marks};
use ebbtide::fact::TaskKind;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use serde_json::json;
use tokio::time::sleep;

const PATCH: &str = "patch nodes";

#[tokio::test(start_paused = true)]
async fn one_patch_writes_all_marks() {
    let stage = Stage::new(1, 1);
    let flags = ["--taint", "going=soon:NoSchedule", "--taint", "a.b/c:NoExecute", "--exclude-from-load-balancers"];
    let replica = stage.start(&flags).await;
    let since = stage.world.clock.now();
    let boot = stage.world.kube.node(&node(0)).unwrap().status.unwrap().node_info.unwrap().boot_id;
    let message = stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!((stage.calls(PATCH), stage.calls("patch nodes/status")), (1, 0), "{}", stage.story());
    assert!(stage.cordoned(0));
    assert_eq!(stage.taints(0), ["a.b/c:NoExecute", "going=soon:NoSchedule"]);
    assert_eq!(stage.labelled(0, "ebbtide/kind").as_deref(), Some("spot"));
    assert_eq!(stage.labelled(0, EXCLUDE).as_deref(), Some("true"));
    let (since, deadline) = (since.to_string(), (since + s(120)).to_string());
    let notice =
        json!({ "v": 1, "kind": "spot", "since": since, "deadline": deadline, "message": message, "boot": boot });
    assert_eq!(stage.notices(0), [notice]);
    let undo = json!({ "cordon": true, "taints": ["going=soon:NoSchedule", "a.b/c:NoExecute"], "labels": [EXCLUDE] });
    let annotations = stage.annotations(0);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&annotations["ebbtide/undo"]).unwrap(), undo);
    assert_eq!(annotations.len(), 2, "{annotations:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_annotation_names_the_message_of_the_notice() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let message = stage.spot(0);
    stage.until_handled(s(30)).await;
    let annotations = stage.world.kube.node("node-0").unwrap().metadata.annotations.unwrap();
    let notices: Vec<_> = annotations.iter().filter(|(key, _)| key.starts_with("ebbtide/notice.")).collect();
    assert_eq!(notices.len(), 1, "{annotations:?}");
    let mark: serde_json::Value = serde_json::from_str(notices[0].1).unwrap();
    assert_eq!((mark["kind"].as_str(), mark["message"].as_str()), (Some("spot"), Some(message.as_str())));
    assert_eq!(annotations.get("ebbtide/undo").map(String::as_str), Some("{\"cordon\":true}"));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_humans_cordon_is_not_marked_as_ours() {
    let stage = Stage::new(1, 1);
    stage.world.kube.update_node(&node(0), |node| node.spec.get_or_insert_default().unschedulable = Some(true));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    let annotations = stage.world.kube.node(&node(0)).unwrap().metadata.annotations.unwrap();
    assert!(!annotations.contains_key("ebbtide/cordoned"), "{annotations:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_write_is_kept_and_the_cordon_succeeds() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    // The watch lags behind the other writer: our patch meets a newer version.
    stage.world.faults.add(Rule::on("patch nodes", Fault::Slow(s(0))));
    stage.world.kube.interrupt_watches(Interrupt::Freeze);
    stage.world.kube.update_node(&node(0), |node| {
        node.metadata.labels.get_or_insert_default().insert("rival".to_owned(), "was-here".to_owned());
    });
    stage.spot(0);
    stage.until("cordoned", s(20), || stage.cordoned(0)).await;
    let labels = stage.world.kube.node(&node(0)).unwrap().metadata.labels.unwrap();
    assert_eq!(labels.get("rival").map(String::as_str), Some("was-here"));
    assert!(stage.calls("get nodes") >= 1, "a conflict is met by a fresh read\n{}", stage.story());
    stage.until_handled(s(130)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn taints_written_by_others_at_the_same_time_are_kept() {
    let stage = Stage::new(30, 1);
    // Others write between our read and our patch, three times on each node, and once right after it.
    stage.world.kube.rival_taints(3);
    stage.world.kube.taint_cordoned();
    let replica = stage.start(&["--taint", "going=soon:NoSchedule", "--taint", "leave:PreferNoSchedule"]).await;
    for n in 0..30 {
        stage.spot(n);
    }
    stage.until_handled(s(30)).await;
    let expected = [
        "going=soon:NoSchedule",
        "leave:PreferNoSchedule",
        "node.kubernetes.io/unschedulable:NoSchedule",
        "rival-0:NoSchedule",
        "rival-1:NoSchedule",
        "rival-2:NoSchedule",
    ];
    for n in 0..30 {
        assert!(stage.cordoned(n));
        assert_eq!(stage.taints(n), expected, "node {n}");
    }
    let conflicts = stage.world.calls.of(PATCH).iter().filter(|call| call.status == 409).count();
    assert_eq!((conflicts, stage.calls(PATCH), stage.calls("get nodes")), (90, 120, 90), "a fresh read for each");
    assert_eq!(stage.world.kube.pods().len(), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn taints_of_others_stay_when_ours_are_removed() {
    let stage = Stage::new(150, 0);
    let replica = stage.start(&["--taint", "going=soon:NoSchedule", "--uncordon-after", "5m"]).await;
    for n in 0..30 {
        stage.rebalance(n);
    }
    stage.until_handled(s(30)).await;
    stage.world.kube.rival_taints(2);
    sleep(s(310)).await;
    for n in 0..30 {
        assert!(!stage.cordoned(n));
        assert_eq!(stage.taints(n), ["rival-0:NoSchedule", "rival-1:NoSchedule"], "node {n}");
        stage.no_trace(n);
    }
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn marks_that_were_there_before_are_never_removed() {
    let stage = Stage::new(2, 0);
    // A taint of others with the same key and effect, and one that equals ours.
    stage.taint(0, "going", "theirs", "NoSchedule");
    stage.taint(1, "going", "soon", "NoSchedule");
    for n in 0..2 {
        stage.set_cordon(n, true);
        stage.label(n, EXCLUDE, "true");
    }
    let before: Vec<_> = (0..2).map(|n| stage.taints(n)).collect();
    let flags = ["--taint", "going=soon:NoSchedule", "--exclude-from-load-balancers", "--uncordon-after", "5m"];
    let replica = stage.start(&flags).await;
    for n in 0..2 {
        stage.rebalance(n);
    }
    stage.until_handled(s(10)).await;
    assert_eq!((0..2).map(|n| stage.notices(n).len()).collect::<Vec<_>>(), [1, 1]);
    sleep(s(310)).await;
    for (n, before) in before.iter().enumerate() {
        assert!(stage.cordoned(n));
        assert_eq!(stage.taints(n), *before);
        assert_eq!(stage.labelled(n, EXCLUDE).as_deref(), Some("true"));
        stage.no_trace(n);
    }
    stage.rest(&[&replica]).await;
}

/// Gives each of two replicas ten of the next twenty messages: a receive returns ten, and the next two receives fail.
fn other_half_to_the_other(stage: &Stage) {
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)).times(2));
}

#[tokio::test(start_paused = true)]
async fn two_replicas_mark_for_two_notices_at_once() {
    let stage = Stage::new(30, 1);
    (30..150).for_each(|n| stage.world.kube.add_node(&node(n), &instance(n)));
    let flags = ["--taint", "going=soon:NoSchedule"];
    let (first, second) = (stage.start(&flags).await, stage.start(&flags).await);
    sleep(s(1)).await;
    // From now on neither replica sees the writes of the other.
    stage.world.kube.interrupt_watches(Interrupt::Freeze);
    for ten in [0..10, 10..20, 20..30] {
        other_half_to_the_other(&stage);
        ten.clone().for_each(|n| drop(stage.spot(n)));
        ten.for_each(|n| drop(stage.rebalance(n)));
        sleep(s(5)).await;
    }
    stage.until_handled(s(30)).await;
    let by = [&first, &second].map(|replica| replica.tasks.started(TaskKind::Interruption));
    assert_eq!(by, [30, 30]);
    assert!(stage.calls("get nodes") >= 10, "they met: {}", stage.calls("get nodes"));
    let undo = json!({ "cordon": true, "taints": ["going=soon:NoSchedule"] });
    for n in 0..30 {
        assert!(stage.cordoned(n));
        let mut kinds: Vec<_> = stage.notices(n).into_iter().map(|notice| notice["kind"].clone()).collect();
        kinds.sort_by_key(ToString::to_string);
        assert_eq!(kinds, ["rebalance", "spot"], "node {n}");
        assert_eq!(stage.taints(n), ["going=soon:NoSchedule"]);
        let annotations = stage.annotations(n);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&annotations["ebbtide/undo"]).unwrap(), undo);
    }
    assert_eq!(stage.world.kube.pods().len(), 0);
    stage.rest(&[&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lagging_watch_of_the_other_replicas_cordon_is_not_taken_for_an_uncordon() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(200)).stops_in(s(100)));
    let (first, second) = (stage.start(&[]).await, stage.start(&[]).await);
    sleep(s(1)).await;
    stage.world.kube.interrupt_watches(Interrupt::Freeze);
    other_half_to_the_other(&stage);
    let token = stage.terminate(0, s(600), Wrapping::Event);
    (1..20).for_each(|_| drop(stage.send_terminate(0, &token, Wrapping::Event)));
    sleep(s(60)).await;
    let by = [&first, &second].map(|replica| replica.tasks.started(TaskKind::Interruption));
    assert_eq!(by, [1, 1]);
    assert_eq!(stage.results(&token), Vec::<String>::new(), "the pod is still there\n{}", stage.story());
    stage.until_handled(s(60)).await;
    for replica in [&first, &second] {
        replica.ended_as("asg-terminate", "uncordoned", 0);
        replica.ended_as("asg-terminate", "drained", 1);
    }
    stage.rest(&[&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_throttled_mark_does_not_delay_that_of_another_notice() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::ThrottleFor(60)).times(1));
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    sleep(s(1)).await;
    stage.spot(0);
    sleep(s(40)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// Somebody removes our taint again and again; `ebbtide/undo` names it once.
#[tokio::test(start_paused = true)]
async fn the_undo_annotation_does_not_grow() {
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

/// The label `ebbtide/kind` shows the newest notice, even after another one has been released.
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

const DENIED: &str = "nodes \"node-0\" is forbidden: ValidatingAdmissionPolicy 'ebbtide-service' with binding 'ebbtide-service' denied \
                      request: the service of Ebbtide may add the taints of settings.taint only";

#[tokio::test(start_paused = true)]
async fn a_denied_taint_costs_neither_the_cordon_nor_the_drain() {
    let stage = Stage::new(1, 3);
    let replica = stage.start(&["--taint", "going=soon:NoSchedule", "--exclude-from-load-balancers"]).await;
    stage.world.faults.add(Rule::on(PATCH, Fault::Refuse(403, DENIED)).times(1));
    stage.spot(0);
    stage.until_handled(s(60)).await;
    assert!(stage.cordoned(0));
    assert_eq!((stage.taints(0), stage.labelled(0, EXCLUDE)), (Vec::new(), None));
    assert_eq!(stage.annotations(0)["ebbtide/undo"], "{\"cordon\":true}", "nothing else is undone");
    assert_eq!(stage.notices(0).len(), 1);
    assert_eq!(stage.world.kube.pods().len(), 0, "the node is drained");
    let answers: Vec<_> = stage.world.calls.of(PATCH).iter().map(|call| call.status).collect();
    assert_eq!(answers, [403, 200], "{}", stage.story());
    assert!(replica.metric("ebbtide_retries_total{category=\"denied\",step=\"marks\"}") > 0.5);
    assert!(
        replica.metric("ebbtide_retries_total{category=\"denied\",step=\"cordon\"}") < 0.5,
        "the cordon did not fail"
    );
    stage.rest(&[&replica]).await;
}

/// Another tool's webhook, with a status of its own.
#[tokio::test(start_paused = true)]
async fn a_denied_cordon_is_forgone_and_the_node_drained() {
    let stage = Stage::new(1, 3);
    let replica = stage.start(&["--taint", "going=soon:NoSchedule"]).await;
    stage
        .world
        .faults
        .add(Rule::on(PATCH, Fault::Refuse(400, "admission webhook \"keep.example\" denied the request: no")));
    stage.spot(0);
    stage.until("drained", s(120), || stage.world.kube.pods().is_empty()).await;
    assert!(!stage.cordoned(0));
    stage.world.faults.clear();
    stage.until_handled(s(130)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_denied_removal_of_marks_is_tried_again_whole() {
    let stage = Stage::new(10, 0);
    let replica = stage.start(&["--taint", "going=soon:NoSchedule", "--uncordon-after", "5m"]).await;
    stage.rebalance(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.taints(0), ["going=soon:NoSchedule"]);
    stage.world.faults.add(Rule::on(PATCH, Fault::Refuse(403, DENIED)));
    sleep(s(360)).await;
    assert!(stage.cordoned(0), "a taint that stays without a record stays for good");
    assert_eq!((stage.taints(0).len(), stage.notices(0).len()), (1, 1));
    let tries = replica.metric("ebbtide_retries_total{category=\"denied\",step=\"release\"}");
    assert!((2.0..10.0).contains(&tries), "{tries}: each try is counted, and none hurries");
    stage.world.faults.clear();
    stage.until("released", s(330), || !stage.cordoned(0)).await;
    assert_eq!(stage.taints(0), [""; 0]);
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}
