//! Pods that a drain evicts, and pods that it leaves.

use crate::drains::{CRITICAL, left, pod};
use crate::harness::{Stage, node, s};
use ebbtide_sim::kube::Pod;

#[tokio::test(start_paused = true)]
async fn daemonset_mirror_and_finished_pods_do_not_hold_up_a_drain() {
    let stage = Stage::new(1, 1);
    let kube = &stage.world.kube;
    kube.add_pod(Pod::on(&node(0)).named("agent").daemonset());
    kube.add_pod(Pod::on(&node(0)).named("static").mirror());
    kube.add_pod(Pod::on(&node(0)).named("job").phase("Succeeded"));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    let mut left: Vec<_> = kube.pods_on(&node(0)).into_iter().filter_map(|pod| pod.metadata.name).collect();
    left.sort();
    assert_eq!(left, ["agent", "static"]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn flags_like_kubectls_select_the_pods() {
    let table: [(&[&str], &[&str]); 4] = [
        (&[], &[]),
        (&["--pod-selector", "app=web"], &["bare", "plain", "scratch", "scratch-done"]),
        (&["--keep-empty-dir"], &["scratch"]),
        (&["--keep-unmanaged"], &["bare"]),
    ];
    for (flags, stay) in table {
        let stage = Stage::new(1, 0);
        let kube = &stage.world.kube;
        kube.add_pod(pod("plain"));
        kube.add_pod(pod("web").labels([("app", "web")]));
        kube.add_pod(pod("scratch").emptydir());
        kube.add_pod(pod("bare").bare());
        kube.add_pod(pod("scratch-done").emptydir().phase("Succeeded"));
        kube.add_pod(pod("bare-done").bare().phase("Failed").labels([("app", "web")]));
        let replica = stage.start(flags).await;
        stage.spot(0);
        stage.until_handled(s(20)).await;
        assert_eq!(left(&stage), stay, "{flags:?}");
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_of_daemonsets_stay_by_default() {
    let stage = Stage::new(1, 1);
    stage.world.kube.add_pod(pod("agent").daemonset().priority(CRITICAL));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(10)).await;
    assert_eq!(left(&stage), ["agent"]);
    stage.rest(&[&replica]).await;
}
