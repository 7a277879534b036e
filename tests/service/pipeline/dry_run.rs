//! `--dry-run`: the service decides as always, and changes nothing.

use crate::harness::{Stage, node, s};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing() {
    let stage = Stage::new(1, 2);
    let replica = stage.start(&["--dry-run"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    assert!(!stage.cordoned(0));
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 2);
    assert_eq!(stage.calls("create pods/eviction"), 2, "the API server was asked whether it would");
    assert_eq!(stage.world.aws.autoscaling.action(&token).unwrap().completions, []);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_does_not_wait_for_pods_to_go() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("going").grace(s(300)).stops_in(s(250)));
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(stage.world.kube.client(), "default");
    pods.delete("going", &kube::api::DeleteParams::default()).await.unwrap();
    let replica = stage.start(&["--dry-run"]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    stage.until_handled(s(30)).await;
    stage.rest(&[&replica]).await;
}
