//! A server with a limited number of workers.

use super::*;
use futures_util::future::join_all;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn calls_queue_for_workers_and_watches_take_none() {
    let bench = Bench::new();
    bench.kube.add_node("node-0", "i-0");
    bench.kube.busy(2, Duration::from_millis(20));
    let nodes: Api<v1::Node> = Api::all(bench.client.clone());
    let begun = Instant::now();
    let _watch = nodes.watch(&kube::api::WatchParams::default(), "0").await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let ends = join_all((0..5).map(|_| async {
        nodes.get("node-0").await.unwrap();
        begun.elapsed().as_millis()
    }));
    assert_eq!(ends.await, [20, 20, 40, 40, 60]);
    // A client that hangs up releases its worker.
    let given_up = tokio::time::timeout(Duration::from_millis(10), nodes.get("node-0")).await;
    assert!(given_up.is_err());
    let begun = Instant::now();
    nodes.get("node-0").await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_millis(20));
}
