//! What notices leave on a Node: in one patch, beside what others write there, and only when it is true.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::EXCLUDE;
use ebbtide::fact::TaskKind;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use serde_json::json;
use tokio::time::sleep;

const PATCH: &str = "patch nodes";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";

#[tokio::test(start_paused = true)]
async fn one_patch_says_it_all() {
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
    let notice = json!({ "kind": "spot", "since": since, "deadline": deadline, "message": message, "boot": boot });
    assert_eq!(stage.notices(0), [notice]);
    let undo = json!({ "cordon": true, "taints": ["going=soon:NoSchedule", "a.b/c:NoExecute"], "labels": [EXCLUDE] });
    let annotations = stage.annotations(0);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&annotations["ebbtide/undo"]).unwrap(), undo);
    assert_eq!(annotations.len(), 2, "{annotations:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn thirty_nodes_and_a_rival_who_taints_them_too() {
    let stage = Stage::new(30, 1);
    // A write by somebody else between our read and our patch, three times on each node, and one right after it.
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
async fn a_rivals_taints_stay_when_ours_are_taken_back() {
    let stage = Stage::new(30, 0);
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
async fn what_was_there_before_us_is_never_taken_back() {
    let stage = Stage::new(2, 0);
    // Another's of the same key and effect, and one that is the same in all.
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

#[tokio::test(start_paused = true)]
async fn an_admission_policy_that_refuses_the_cordon_holds_everything() {
    for (code, category) in [(403, "denied"), (422, "invalid")] {
        let stage = Stage::new(1, 2);
        stage.world.faults.add(Rule::on(PATCH, Fault::Status(code)));
        let replica = stage.start(&[]).await;
        let token = stage.terminate(0, s(600), Wrapping::Event);
        sleep(s(120)).await;
        assert_eq!((stage.calls("list pods"), stage.calls("create pods/eviction")), (0, 0), "{code}");
        assert_eq!((stage.world.aws.sqs.in_flight(), stage.world.aws.sqs.receive_log().len()), (1, 1), "held");
        let tries = stage.calls(PATCH);
        assert!((24..=60).contains(&tries), "one every 2.5 to 5 s: {tries}");
        let told = replica.metric(&format!("ebbtide_retries_total{{category=\"{category}\",step=\"cordon\"}}"));
        assert!((told - tries as f64).abs() < f64::EPSILON, "{told} of {tries}");
        stage.world.faults.clear();
        stage.until_handled(s(15)).await;
        assert_eq!(stage.world.kube.evictions().len(), 2);
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_is_never_accepted_ends_at_the_deadline_without_an_eviction() {
    let stage = Stage::new(1, 2);
    stage.world.faults.add(Rule::on(PATCH, Fault::Status(422)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(45)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    stage.until_handled(s(10)).await;
    assert_eq!((stage.world.kube.pods().len(), stage.calls("create pods/eviction")), (2, 0));
    replica.ended_as("asg-terminate", "failed", 1);
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// Of the next twenty messages each of two replicas has ten: a receive brings ten, and who had the first ten can't have more at once.
fn other_half_to_the_other(stage: &Stage) {
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)).times(2));
}

#[tokio::test(start_paused = true)]
async fn two_replicas_mark_for_two_notices_at_once() {
    let stage = Stage::new(30, 1);
    let flags = ["--taint", "going=soon:NoSchedule"];
    let (first, second) = (stage.start(&flags).await, stage.start(&flags).await);
    sleep(s(1)).await;
    // From now on neither hears of what the other writes.
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
async fn a_replica_that_hears_late_of_the_others_cordon_does_not_take_it_for_an_uncordon() {
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
async fn the_out_of_service_taint_waits_for_ec2s_word_and_goes_with_the_reboot() {
    for state in ["stopped", "terminated"] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&["--out-of-service-taint"]).await;
        stage.set_ready(0, false);
        let at = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::state_change("s", &instance(0), state, at));
        sleep(s(60)).await;
        assert_eq!(stage.taints(0), Vec::<String>::new(), "EC2 says that it runs");
        assert!(stage.calls("DescribeInstances") > 5 && stage.world.aws.sqs.in_flight() == 1);
        stage.world.aws.ec2.set_state(&instance(0), state);
        stage.until_handled(s(12)).await;
        assert_eq!(stage.taints(0), [OUT_OF_SERVICE]);
        assert!(stage.cordoned(0));
        assert_eq!(stage.calls("create pods/eviction"), 0, "there is nobody to stop them");
        stage.reboot(0).await;
        stage.until("taken back", s(3), || stage.taints(0).is_empty()).await;
        assert!(!stage.cordoned(0));
        stage.no_trace(0);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_taint_where_ec2_never_says_so_or_nobody_asked_for_it() {
    for (flags, within) in [(&["--out-of-service-taint"][..], 122), (&[], 2)] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(flags).await;
        if flags.is_empty() {
            stage.world.aws.ec2.set_state(&instance(0), "stopped");
        }
        let at = stage.world.clock.now();
        stage.world.aws.sqs.send(messages::state_change("s", &instance(0), "stopped", at));
        stage.until_handled(s(within)).await;
        assert_eq!((stage.taints(0), stage.cordoned(0)), (Vec::new(), false), "{flags:?}");
        stage.no_trace(0);
        stage.rest(&[&replica]).await;
    }
}
