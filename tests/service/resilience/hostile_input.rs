//! Malformed messages, absurd pods and absurd annotations: each costs only itself.

use crate::harness::{Stage, instance, node, s};
use crate::proxy::start_behind;
use ebbtide::fact::TaskKind;
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages;
use http_body_util::Full;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn malformed_messages_are_counted_and_deleted() {
    let stage = Stage::new(3, 1);
    let sqs = &stage.world.aws.sqs;
    let huge = "x".repeat(200_000);
    let poison = ["", "not json", "[]", "{}", "null", r#"{"source":"aws.ec2"}"#, "{\"detail\":", "\u{0}\u{1}", &huge];
    for (n, body) in poison.iter().enumerate() {
        sqs.send(*body);
        if n < 3 {
            stage.spot(n);
        }
    }
    sqs.send(r#"{"Event":"autoscaling:TEST_NOTIFICATION","Service":"AWS Auto Scaling"}"#);
    let replica = stage.start(&[]).await;
    stage.until_handled(s(20)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    let counted: f64 = ["not-json", "unknown-shape", "missing-field", "bad-value"]
        .map(|reason| replica.metric(&format!("ebbtide_messages_malformed_total{{reason=\"{reason}\"}}")))
        .iter()
        .sum();
    assert!((counted - poison.len() as f64).abs() < f64::EPSILON, "{counted}");
    let ignored = replica.metric("ebbtide_messages_ignored_total{reason=\"test-notification\"}");
    assert!((ignored - 1.0).abs() < f64::EPSILON);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_an_absurd_grace_period_delays_no_other() {
    let stage = Stage::new(1, 3);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("absurd").stops_in(s(1)));
    stage.world.kube.update_pod("default", "absurd", |pod| {
        pod.spec.get_or_insert_default().termination_grace_period_seconds = Some(5_000_000_000);
    });
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.evictions().len(), 4);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_endless_grace_period_does_not_panic() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("endless"));
    stage.world.kube.update_pod("default", "endless", |pod| {
        pod.spec.get_or_insert_default().termination_grace_period_seconds = Some(i64::MAX);
    });
    let _replica = start_behind(&stage, &["--on", "rebalance=drain"], move |request| {
        request.uri().path().ends_with("/eviction").then(|| {
            let said = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}"#;
            http::Response::builder().status(201).body(Full::new(said.into())).unwrap()
        })
    })
    .await;
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    sleep(s(60)).await;
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 1, "panicked, and was received again");
}

/// Annotations of ours with values that we never write.
#[tokio::test(start_paused = true)]
async fn absurd_annotations_cause_few_patches() {
    let stage = Stage::new(2, 1);
    for (n, value) in [
        (0, "{\"v\":1,\"kind\":\"spot\",\"until\":\"9999-12-30T22:00:00Z\",\"boot\":\"\"}"),
        (1, "{\"v\":1,\"kind\":\"spot\",\"until\":\"-009999-01-02T01:59:59Z\",\"since\":null}"),
    ] {
        stage.world.kube.update_node(&node(n), |node| {
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert("ebbtide/notice.0123456789abcdef".into(), value.into());
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

/// One message names thousands of instances, and one of them is ours: more than are acted on at once.
#[tokio::test(start_paused = true)]
async fn a_message_of_thousands_of_instances_is_worked_on_in_portions() {
    const INSTANCES: usize = 9_000;
    let stage = Stage::new(2, 1);
    let replica = stage.start(&[]).await;
    let ids: Vec<String> = (1..INSTANCES).map(|n| instance(100 + n)).chain([instance(0)]).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let now = stage.world.clock.now();
    let code = "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED";
    stage.world.aws.sqs.send(messages::scheduled_change("many", code, &ids, now, now + s(86_400)));
    stage.until("some are acted on", s(5), || replica.tasks.alive(TaskKind::Interruption) > 0).await;
    let mut most = 0;
    stage
        .until("every message deleted", s(60), || {
            most = most.max(replica.tasks.alive(TaskKind::Interruption));
            stage.world.aws.sqs.deleted().len() == 1
        })
        .await;
    assert!((1..=1_000).contains(&most), "{most} at once");
    replica.all_ended("scheduled-change", &[("drained", 1), ("not-ours", INSTANCES - 1)]);
    assert!(stage.calls("DescribeInstances") < 2 * INSTANCES / 199, "{}", stage.calls("DescribeInstances"));
    stage.rest(&[&replica]).await;
}
