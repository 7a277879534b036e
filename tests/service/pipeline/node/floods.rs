//! One Node whose annotations somebody writes by the hundred, or again and again.

use crate::harness::{Stage, s};
use crate::nodes::plan;
use crate::pipeline::nodes::{SPOT, outcomes};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn invalid_words_of_a_node_are_told_once() {
    let stage = Stage::new(1, 0);
    let replica = stage.with_both("a", &[]).await;
    let told = |times: f64| (replica.refused("saying") - times).abs() < f64::EPSILON;
    for n in 0..20 {
        stage.annotate(0, SPOT, &format!("\"{n}\""));
        sleep(s(1)).await;
        stage.takes_back(0, SPOT);
        sleep(s(1)).await;
    }
    assert!(told(1.0), "{}", replica.refused("saying"));
    for n in 0..40 {
        let name = format!("ebbtide/says.x{n}");
        stage.annotate(0, &name, "x");
        sleep(s(1)).await;
        stage.takes_back(0, &name);
    }
    assert!(told(8.0), "{}", replica.refused("saying"));
    stage.rest(&[&replica]).await;
}

/// Replaces the plans of node 0 that are not near by those with these names.
fn set_plans(stage: &Stage, names: impl Iterator<Item = String>) {
    let now = stage.world.clock.now();
    stage.world.kube.update_node(&crate::harness::node(0), |node| {
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.retain(|_, record| !record.contains("\"work\":\"planned\""));
        annotations.extend(names.map(|name| plan(now, 0, &name)));
    });
}

#[tokio::test(start_paused = true)]
async fn of_a_nodes_plans_only_so_many_are_acted_on() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.with_both("a", &[]).await;
    set_plans(&stage, (0..300).map(|n| n.to_string()));
    sleep(s(200)).await;
    let running = replica.metric("ebbtide_tasks{kind=\"interruption\"}");
    assert!((running - 64.0).abs() < f64::EPSILON, "{running}\n{}", stage.story());
    // Again and again, and as long as the Node exists.
    for n in 0..5 {
        stage.annotate(0, "ebbtide/notice.999", &n.to_string());
        sleep(s(5)).await;
    }
    assert!((replica.refused("unread") - 1.0).abs() < f64::EPSILON, "{}", replica.refused("unread"));
    drop(replica);
}

#[tokio::test(start_paused = true)]
async fn ever_new_words_of_a_node_wait_and_are_told_once() {
    let stage = Stage::new(2, 0);
    let replica = stage.without_queue("a", &["--on", "spot=report"]).await;
    let reported = || outcomes(&replica, "spot", "reported");
    let first = i64::try_from(s(3600).as_secs()).unwrap();
    for n in 0..100 {
        stage.says_spot(0, first * (n + 1));
        sleep(s(30)).await;
    }
    assert_eq!(reported(), "64", "{}", stage.story());
    // Another Node is not concerned.
    stage.says_spot(1, 120);
    sleep(s(10)).await;
    assert_eq!(reported(), "65");
    // What it says for as long as that is acted on, an hour after the first.
    sleep(s(3600)).await;
    assert_eq!(reported(), "66");
    assert!((replica.refused("often") - 1.0).abs() < f64::EPSILON, "{}", replica.refused("often"));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn ever_new_plans_of_a_node_wait() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.with_both("a", &[]).await;
    for scan in 0..10 {
        set_plans(&stage, (0..20).map(|n| format!("{scan}-{n}")));
        sleep(s(100)).await;
    }
    let running = replica.metric("ebbtide_tasks{kind=\"interruption\"}");
    assert!((running - 64.0).abs() < f64::EPSILON, "{running}\n{}", stage.story());
    assert!((replica.refused("often") - 1.0).abs() < f64::EPSILON, "{}", replica.refused("often"));
    drop(replica);
}
