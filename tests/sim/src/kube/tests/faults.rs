//! Planned faults, as a client sees them.

use super::{Bench, seconds, status, web};
use crate::fault::{Fault, Rule};
use futures_util::TryStreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};

#[tokio::test(start_paused = true)]
async fn an_overloaded_server_answers_plain_text_with_retry_after() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1));
    let eviction = || Rule::on("create pods/eviction", Fault::ThrottleFor(7)).subject("default/web-1").times(1);
    bench.faults.add(eviction());
    let (head, body) = bench.raw("POST", "/api/v1/namespaces/default/pods/web-1/eviction", "{}").await;
    assert_eq!((head.status.as_u16(), head.headers["retry-after"].as_bytes()), (429, &b"7"[..]));
    assert_eq!((head.headers["content-type"].as_bytes(), body.is_null()), (&b"text/plain; charset=utf-8"[..], true));
    bench.faults.add(eviction());
    let refused = bench.evict("web-1").await.expect_err("it must be refused");
    assert_eq!((refused.code, refused.message.as_str()), (429, "Too many requests, please try again later."));
    bench.evict("web-1").await.expect("the fault must be over");
}

#[tokio::test(start_paused = true)]
async fn a_call_with_a_lost_answer_has_its_effect_and_a_broken_call_has_none() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1));
    bench.kube.add_pod(web(2));
    let evict = |name: &'static str| {
        let pods = bench.pods();
        async move { pods.evict(name, &kube::api::EvictParams::default()).await }
    };
    bench.faults.add(Rule::on("create pods/eviction", Fault::Disconnect).times(1));
    assert!(matches!(evict("web-1").await, Err(kube::Error::Service(_))));
    assert!(bench.is_there("web-1"));
    bench.faults.add(Rule::on("create pods/eviction", Fault::LostResponse).times(1));
    assert!(matches!(evict("web-1").await, Err(kube::Error::Service(_))));
    assert!(!bench.is_there("web-1"));
    bench.faults.add(Rule::on("create pods/eviction", Fault::Status(503)).times(1));
    assert_eq!(evict("web-2").await.map_err(status).expect_err("it must be refused").reason, "ServiceUnavailable");
    bench.faults.add(Rule::on("create pods/eviction", Fault::Hang).times(1));
    assert!(tokio::time::timeout(seconds(3600), evict("web-2")).await.is_err());
    assert!(bench.is_there("web-2"));
}

#[tokio::test(start_paused = true)]
async fn a_panic_hits_the_caller_and_the_client_survives() {
    let bench = Bench::with_nodes(1);
    bench.faults.add(Rule::on("list nodes", Fault::Panic).times(1));
    let nodes = bench.nodes();
    let caller = tokio::spawn(async move { nodes.list(&ListParams::default()).await });
    assert!(caller.await.expect_err("it must have panicked").is_panic());
    assert_eq!(bench.nodes().list(&ListParams::default()).await.expect("the list must succeed").items.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn watch_faults_end_or_expire_watches_and_spare_lists() {
    let bench = Bench::with_nodes(1);
    bench.faults.add(Rule::on("watch nodes", Fault::CloseWatch).times(1));
    bench.faults.add(Rule::on("*", Fault::ExpireWatch));
    let watch = || async {
        let watch = bench.nodes().watch(&WatchParams::default(), "0").await.expect("the watch must start");
        watch.try_collect::<Vec<_>>().await.expect("it must end cleanly")
    };
    assert!(watch().await.is_empty());
    let expired = watch().await;
    assert!(matches!(expired.as_slice(), [WatchEvent::Error(status)] if status.code == 410));
    assert_eq!(bench.nodes().list(&ListParams::default()).await.expect("the list must succeed").items.len(), 1);
}

#[test]
fn the_runtime_ends_with_timers_and_watches_open() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("the runtime must start");
    let (kept, tasks) = runtime.block_on(async {
        let bench = Bench::with_nodes(1);
        bench.kube.add_pod(web(1).stops_in(None));
        bench.evict("web-1").await.expect("it must be accepted");
        let watch = bench.nodes().watch(&WatchParams::default(), "0").await.expect("the watch must start");
        drop(watch);
        let tasks = tokio::runtime::Handle::current().metrics();
        drop(bench);
        // The client's own worker and the kubelets end once nothing uses them.
        tokio::time::sleep(seconds(1)).await;
        ((), tasks.num_alive_tasks())
    });
    assert_eq!((kept, tasks), ((), 0));
}
