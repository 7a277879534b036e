//! Watches.

use super::super::Interrupt;
use super::{Bench, Pod, just_after, just_before, seconds, web};
use futures_util::{Stream, TryStreamExt};
use k8s_openapi::api::core::v1;
use kube::ResourceExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use std::pin::Pin;

/// Returns the next event of a watch, in short.
async fn next_event<K: ResourceExt>(stream: &mut Pin<Box<impl Stream<Item = kube::Result<WatchEvent<K>>>>>) -> String {
    match stream.try_next().await {
        Ok(Some(WatchEvent::Added(object))) => format!("added {}", object.name_any()),
        Ok(Some(WatchEvent::Modified(object))) => format!("modified {}", object.name_any()),
        Ok(Some(WatchEvent::Deleted(object))) => format!("deleted {}", object.name_any()),
        Ok(Some(WatchEvent::Bookmark(bookmark))) if bookmark.metadata.annotations.is_empty() => "bookmark".to_owned(),
        Ok(Some(WatchEvent::Bookmark(_))) => "initial list sent".to_owned(),
        Ok(Some(WatchEvent::Error(status))) => format!("error {}", status.code),
        Ok(None) => "end".to_owned(),
        Err(error) => format!("broken: {error}"),
    }
}

/// Returns the next event, or nothing if there is none yet.
async fn at_once<K: ResourceExt>(stream: &mut Pin<Box<impl Stream<Item = kube::Result<WatchEvent<K>>>>>) -> String {
    tokio::time::timeout(std::time::Duration::ZERO, next_event(stream)).await.unwrap_or_default()
}

async fn watch_nodes(
    bench: &Bench,
    params: WatchParams,
    version: &str,
) -> Pin<Box<impl Stream<Item = kube::Result<WatchEvent<v1::Node>>> + use<>>> {
    Box::pin(bench.nodes().watch(&params, version).await.expect("the watch must start"))
}

#[tokio::test(start_paused = true)]
async fn a_watch_sends_existing_objects_and_then_changes() {
    let bench = Bench::with_nodes(2);
    let mut watch = watch_nodes(&bench, WatchParams::default(), "0").await;
    assert_eq!(next_event(&mut watch).await, "added node-0");
    assert_eq!(next_event(&mut watch).await, "added node-1");
    assert_eq!(at_once(&mut watch).await, "");
    bench.kube.set_ready("node-1", false);
    bench.kube.set_ready("node-1", false);
    bench.kube.add_node("node-2", "i-2");
    bench.kube.remove_node("node-0");
    assert_eq!(next_event(&mut watch).await, "modified node-1");
    assert_eq!(next_event(&mut watch).await, "added node-2");
    assert_eq!(next_event(&mut watch).await, "deleted node-0");
    assert_eq!(bench.kube.watches(), 1);
    drop(watch);
    assert_eq!(bench.kube.watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_version_sends_only_later_changes() {
    let bench = Bench::with_nodes(1);
    let version =
        bench.nodes().list(&Default::default()).await.expect("the list must succeed").metadata.resource_version;
    bench.kube.add_node("node-1", "i-1");
    bench.kube.add_pod(web(1));
    let mut watch = watch_nodes(&bench, WatchParams::default(), &version.unwrap_or_default()).await;
    assert_eq!(next_event(&mut watch).await, "added node-1");
    assert_eq!(at_once(&mut watch).await, "");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_at_the_end() {
    let bench = Bench::with_nodes(1);
    let mut watch = watch_nodes(&bench, WatchParams::default().timeout(100), "0").await;
    assert_eq!(next_event(&mut watch).await, "added node-0");
    just_before(seconds(60)).await;
    assert_eq!(at_once(&mut watch).await, "");
    just_after().await;
    assert_eq!(at_once(&mut watch).await, "bookmark");
    just_before(seconds(40)).await;
    assert_eq!(at_once(&mut watch).await, "");
    just_after().await;
    assert_eq!(at_once(&mut watch).await, "bookmark");
    assert_eq!(at_once(&mut watch).await, "end");
    let quiet = WatchParams::default().timeout(100).disable_bookmarks();
    let mut watch = watch_nodes(&bench, quiet, "0").await;
    assert_eq!(next_event(&mut watch).await, "added node-0");
    assert_eq!(next_event(&mut watch).await, "end");
    assert_eq!(bench.calls.of("watch nodes")[1].at, seconds(100));
    assert_eq!(bench.kube.shared.lock().clock.elapsed(), seconds(200));
}

#[tokio::test(start_paused = true)]
async fn objects_that_leave_the_selection_are_deleted_and_those_that_enter_are_added() {
    let bench = Bench::with_nodes(2);
    bench.kube.add_pod(web(1));
    let params = WatchParams::default().fields("spec.nodeName=node-1").labels("app");
    let mut watch = Box::pin(bench.pods().watch_metadata(&params, "0").await.expect("the watch must start"));
    assert_eq!(bench.calls.of("watch pods")[0].subject, "node-1");
    bench.kube.add_pod(Pod::on("node-1").named("db-0"));
    assert_eq!(at_once(&mut watch).await, "");
    let label = |value: Option<&str>| {
        let labels = value.map(|value| [("app".to_owned(), value.to_owned())].into());
        bench.kube.update_pod("default", "db-0", |pod| pod.metadata.labels = labels);
    };
    label(Some("db"));
    assert_eq!(next_event(&mut watch).await, "added db-0");
    label(Some("sql"));
    assert_eq!(next_event(&mut watch).await, "modified db-0");
    label(None);
    assert_eq!(next_event(&mut watch).await, "deleted db-0");
    bench.kube.remove_pod("default", "db-0");
    assert_eq!(at_once(&mut watch).await, "");
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_version_gets_410() {
    let bench = Bench::with_nodes(1);
    let version = bench.kube.node("node-0").and_then(|node| node.metadata.resource_version).unwrap_or_default();
    bench.kube.add_node("node-1", "i-1");
    let mut running = watch_nodes(&bench, WatchParams::default(), &version).await;
    assert_eq!(next_event(&mut running).await, "added node-1");
    bench.kube.compact();
    bench.kube.add_node("node-2", "i-2");
    assert_eq!(next_event(&mut running).await, "added node-2");
    let mut late = watch_nodes(&bench, WatchParams::default(), &version).await;
    assert_eq!(next_event(&mut late).await, "error 410");
    assert_eq!(next_event(&mut late).await, "end");
    let last = bench.kube.node("node-2").and_then(|node| node.metadata.resource_version).unwrap_or_default();
    let mut current = watch_nodes(&bench, WatchParams::default(), &last).await;
    assert_eq!(at_once(&mut current).await, "");
}

#[tokio::test(start_paused = true)]
async fn running_watches_can_be_closed_broken_and_frozen() {
    let bench = Bench::with_nodes(1);
    let mut closed = watch_nodes(&bench, WatchParams::default(), "0").await;
    assert_eq!(next_event(&mut closed).await, "added node-0");
    bench.kube.interrupt_watches(Interrupt::Close);
    assert_eq!(next_event(&mut closed).await, "end");
    let mut broken = watch_nodes(&bench, WatchParams::default(), "0").await;
    assert_eq!(next_event(&mut broken).await, "added node-0");
    bench.kube.interrupt_watches(Interrupt::Break);
    assert!(next_event(&mut broken).await.starts_with("broken"));
    let mut frozen = watch_nodes(&bench, WatchParams::default().timeout(10), "0").await;
    assert_eq!(next_event(&mut frozen).await, "added node-0");
    bench.kube.interrupt_watches(Interrupt::Freeze);
    bench.kube.add_node("node-1", "i-1");
    assert!(tokio::time::timeout(seconds(3600), next_event(&mut frozen)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn after_a_410_a_new_list_shows_what_is_left() {
    let bench = Bench::with_nodes(2);
    let mut listed = Vec::new();
    let mut page = ListParams::default().limit(1);
    let version = loop {
        let part = bench.nodes().list(&page).await.expect("the list must succeed");
        listed.extend(part.items.iter().map(ResourceExt::name_any));
        match part.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break part.metadata.resource_version.unwrap_or_default(),
        }
    };
    assert_eq!(listed, ["node-0", "node-1"]);
    let mut nodes = watch_nodes(&bench, WatchParams::default(), &version).await;
    bench.kube.set_ready("node-0", false);
    assert_eq!(next_event(&mut nodes).await, "modified node-0");
    // The watch ends, and the history that a client needs to continue is gone.
    let seen = bench.kube.node("node-0").and_then(|node| node.metadata.resource_version).unwrap_or_default();
    bench.kube.interrupt_watches(Interrupt::Close);
    assert_eq!(next_event(&mut nodes).await, "end");
    bench.kube.remove_node("node-0");
    bench.kube.compact();
    let mut nodes = watch_nodes(&bench, WatchParams::default(), &seen).await;
    assert_eq!(next_event(&mut nodes).await, "error 410");
    assert_eq!(next_event(&mut nodes).await, "end");
    let again = bench.nodes().list(&ListParams::default()).await.expect("the list must succeed");
    assert_eq!(again.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["node-1"]);
    assert_eq!((bench.calls.count("list nodes"), bench.calls.count("watch nodes")), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn bookmarks_carry_a_client_over_many_ends_of_its_watch() {
    let bench = Bench::with_nodes(1);
    let list = bench.nodes().list(&ListParams::default()).await.expect("the list must succeed");
    let mut version = list.metadata.resource_version.unwrap_or_default();
    let kube = bench.kube.clone();
    let later = async {
        tokio::time::sleep(seconds(48 * 3600)).await;
        kube.add_node("node-1", "i-1");
        std::future::pending::<()>().await;
    };
    let watched = async {
        loop {
            let mut watch = watch_nodes(&bench, WatchParams::default(), &version).await;
            while let Some(event) = watch.try_next().await.expect("the watch must not break") {
                match event {
                    WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                    WatchEvent::Added(node) => return node.name_any(),
                    other => panic!("{other:?}"),
                }
            }
        }
    };
    let added = tokio::select! {
        added = watched => added,
        () = later => unreachable!("it waits for ever"),
    };
    assert_eq!(added, "node-1");
    assert_eq!(bench.calls.count("list nodes"), 1);
    assert_eq!(bench.calls.count("watch nodes"), 48 * 3600 / 290 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_ends_with_a_bookmark() {
    let bench = Bench::with_nodes(1);
    let params = WatchParams::default().initial_events();
    let mut nodes = watch_nodes(&bench, params.clone(), "0").await;
    for expected in ["added node-0", "initial list sent"] {
        assert_eq!(next_event(&mut nodes).await, expected);
    }
    bench.kube.add_node("node-1", "i-1");
    assert_eq!(next_event(&mut nodes).await, "added node-1");
    assert_eq!(bench.calls.count("list nodes"), 0);
    let mut pods =
        Box::pin(Api::<v1::Pod>::all(bench.client.clone()).watch(&params, "0").await.expect("it must start"));
    assert_eq!(next_event(&mut pods).await, "initial list sent");
}
