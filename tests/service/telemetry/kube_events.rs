//! Kubernetes Events and the Node's condition: written for blocked drains, and settled when they end.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use k8s_openapi::api::core::v1::Event;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Returns the numbers of Event creations, Event patches and status patches.
fn written(stage: &Stage) -> [usize; 3] {
    ["create events", "patch events", "patch nodes/status"].map(|operation| stage.calls(operation))
}

/// Returns status and reason of the n-th node's condition.
fn says(stage: &Stage, n: usize) -> Option<String> {
    let condition = stage.condition(n)?;
    Some(format!("{} {}", condition.status, condition.reason?))
}

/// Returns the one Event about an object of this kind.
fn event_about(stage: &Stage, kind: &str) -> Event {
    let about = |event: &Event| event.involved_object.kind.as_deref() == Some(kind);
    let mut found: Vec<_> = stage.world.kube.events().into_iter().filter(about).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn text(field: Option<&String>) -> &str {
    field.map_or("", String::as_str)
}

/// Starts a replica and a drain under a hook, and waits until a budget blocks the drain.
async fn blocked(stage: &Stage, flags: &[&str]) -> (Replica, String) {
    stage.block(0);
    let replica = stage.start(flags).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    stage.until("a refused eviction", s(5), || stage.calls("create pods/eviction") > 0).await;
    (replica, token)
}

#[tokio::test(start_paused = true)]
async fn the_event_of_a_blocked_drain_names_pods_budgets_and_the_deadline() {
    let stage = Stage::new(1, 5);
    stage.block(0);
    let replica = stage.start(&["--pod-namespace", "kube-system", "--pod-name", "ebbtide-1"]).await;
    let deadline = (stage.world.clock.now() + s(120)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    stage.spot(0);
    sleep(Duration::from_millis(4900)).await;
    assert_eq!(written(&stage), [0, 0, 0], "not before 5 s are over");
    sleep(s(1)).await;
    assert_eq!(written(&stage), [2, 0, 1], "{}", stage.story());

    let told = event_about(&stage, "Node");
    let uid = stage.world.kube.node("node-0").unwrap().metadata.uid;
    assert_eq!((told.involved_object.name.as_deref(), &told.involved_object.uid), (Some("node-0"), &uid));
    assert_eq!(told.metadata.namespace.as_deref(), Some("default"));
    assert_eq!((text(told.type_.as_ref()), text(told.reason.as_ref())), ("Warning", "DrainBlocked"));
    assert_eq!((told.count, text(told.reporting_instance.as_ref())), (Some(1), "ebbtide-1"));
    let said = text(told.message.as_ref());
    for wanted in [
        "default/web-0-0 is held back by: The disruption budget budget-0 needs ",
        "default/web-0-1 by: ",
        "; and 2 more; the node goes at ",
        &deadline,
    ] {
        assert!(said.contains(wanted), "{wanted} is missing in {said}");
    }
    let pod = event_about(&stage, "Pod");
    assert_eq!(text(pod.involved_object.namespace.as_ref()), "default");
    assert_eq!((text(pod.type_.as_ref()), text(pod.reason.as_ref())), ("Warning", "EvictionBlocked"));
    let of_pod = text(pod.message.as_ref());
    assert!(of_pod.contains("budget-0") && of_pod.contains("node-0") && of_pod.contains(&deadline), "{of_pod}");
    assert_eq!(says(&stage, 0).as_deref(), Some("True Blocked"));
    assert_eq!(text(stage.condition(0).unwrap().message.as_ref()), said);

    // Further refusals of the same kind write nothing.
    sleep(s(30)).await;
    assert_eq!(written(&stage), [2, 0, 1]);
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert_eq!(written(&stage), [2, 1, 2], "{}", stage.story());
    let told = event_about(&stage, "Node");
    assert_eq!((text(told.type_.as_ref()), text(told.reason.as_ref())), ("Normal", "DrainEnded"));
    assert_eq!((told.count, text(told.message.as_ref())), (Some(2), "5 of 5 pods gone"));
    assert!(told.last_timestamp > told.first_timestamp, "{told:?}");
    assert_eq!(says(&stage, 0).as_deref(), Some("False Drained"));
    assert!((2.0..2.1).contains(&replica.metric("ebbtide_events_total{result=\"written\"}")));
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_stays_blocked_ends_with_a_warning() {
    let stage = Stage::new(1, 1);
    let (replica, token) = blocked(&stage, &["--drain-timeout", "2m", "--at-deadline", "leave"]).await;
    stage.until_handled(s(130)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
    assert_eq!(written(&stage), [2, 1, 2]);
    let told = event_about(&stage, "Node");
    assert_eq!((text(told.type_.as_ref()), text(told.reason.as_ref())), ("Warning", "DrainEnded"));
    assert!(text(told.message.as_ref()).contains("default/web-0-0 is held back: "), "{told:?}");
    let condition = stage.condition(0).unwrap();
    assert_eq!((condition.status.as_str(), text(condition.reason.as_ref())), ("False", "Blocked"));
    assert_eq!(condition.message, told.message);
}

#[tokio::test(start_paused = true)]
async fn an_undisturbed_drain_writes_nothing() {
    let stage = Stage::new(1, 3);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    stage.rest(&[&replica]).await;
    assert_eq!((written(&stage), stage.condition(0)), ([0, 0, 0], None));
}

#[tokio::test(start_paused = true)]
async fn a_briefly_blocked_drain_writes_nothing() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").stops_in(s(10)));
    let (replica, _) = blocked(&stage, &[]).await;
    // The next eviction, within 3 s, succeeds.
    sleep(Duration::from_millis(1800)).await;
    stage.unblock(0);
    stage.until_handled(s(30)).await;
    stage.rest(&[&replica]).await;
    assert_eq!(written(&stage), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn events_all_writes_every_drain() {
    let stage = Stage::new(2, 2);
    let replica = stage.start(&["--events", "all"]).await;
    stage.spot(1);
    sleep(s(1)).await;
    assert_eq!(written(&stage), [1, 0, 1]);
    assert_eq!(says(&stage, 1).as_deref(), Some("True Draining"));
    let told = event_about(&stage, "Node");
    assert_eq!((text(told.type_.as_ref()), text(told.reason.as_ref())), ("Normal", "Draining"));
    assert!(text(told.message.as_ref()).starts_with("2 pods are being evicted; until "), "{told:?}");
    stage.until_handled(s(30)).await;
    sleep(s(1)).await;
    assert_eq!((written(&stage), says(&stage, 1).as_deref()), ([1, 1, 2], Some("False Drained")));
    assert_eq!(text(event_about(&stage, "Node").message.as_ref()), "2 of 2 pods gone");

    stage.block(0);
    stage.spot(0);
    sleep(s(4)).await;
    let since = stage.condition(0).unwrap().last_transition_time;
    sleep(s(4)).await;
    assert_eq!((written(&stage), says(&stage, 0).as_deref()), ([4, 1, 4], Some("True Blocked")));
    assert_eq!(stage.condition(0).unwrap().last_transition_time, since, "True it was before");
    stage.unblock(0);
    stage.until_handled(s(30)).await;
    stage.rest(&[&replica]).await;
    assert_eq!((written(&stage), says(&stage, 0).as_deref()), ([4, 2, 5], Some("False Drained")));
}

#[tokio::test(start_paused = true)]
async fn events_none_and_dry_run_write_nothing() {
    for flags in [&["--events", "none"][..], &["--dry-run", "--events", "all"]] {
        let stage = Stage::new(1, 1);
        let (replica, _) = blocked(&stage, flags).await;
        sleep(s(10)).await;
        stage.unblock(0);
        stage.until_handled(s(30)).await;
        stage.rest(&[&replica]).await;
        assert_eq!(written(&stage), [0, 0, 0], "{flags:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_condition_of_a_killed_replica_is_settled_by_the_next() {
    let stage = Stage::new(1, 1);
    let (first, token) = blocked(&stage, &[]).await;
    sleep(s(8)).await;
    assert_eq!((written(&stage), says(&stage, 0).as_deref()), ([2, 0, 1], Some("True Blocked")));
    first.kill().await;
    stage.unblock(0);
    let second = stage.start(&[]).await;
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&second]).await;
    assert_eq!(written(&stage), [2, 0, 2], "{}", stage.story());
    assert_eq!(says(&stage, 0).as_deref(), Some("False Drained"));
}

#[tokio::test(start_paused = true)]
async fn an_ordered_shutdown_leaves_the_condition_to_the_next_replica() {
    let stage = Stage::new(1, 1);
    let (first, token) = blocked(&stage, &[]).await;
    sleep(s(8)).await;
    first.stop().await;
    assert_eq!((written(&stage), says(&stage, 0).as_deref()), ([2, 0, 1], Some("True Blocked")));
    // The second replica is blocked, too, and writes two Events of its own. The condition stays True.
    let second = stage.start(&[]).await;
    sleep(s(8)).await;
    assert_eq!((written(&stage), says(&stage, 0).as_deref()), ([4, 0, 2], Some("True Blocked")));
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&second]).await;
    assert_eq!((written(&stage), says(&stage, 0).as_deref()), ([4, 1, 3], Some("False Drained")));
}

#[tokio::test(start_paused = true)]
async fn pending_writes_are_finished_before_the_process_ends() {
    let stage = Stage::new(1, 1);
    let (replica, _) = blocked(&stage, &[]).await;
    sleep(s(8)).await;
    stage.world.faults.add(Rule::on("patch events", Fault::Slow(s(3))));
    stage.unblock(0);
    stage.until_handled(s(30)).await;
    assert_eq!(says(&stage, 0).as_deref(), Some("True Blocked"), "the Event's patch goes first");
    let (_, took, tasks) = replica.stop().await;
    assert!(took > s(2) && took < Duration::from_millis(2600), "after the last receive, and not for long: {took:?}");
    assert_eq!((written(&stage), says(&stage, 0).as_deref()), ([2, 1, 2], Some("False Drained")));
    tasks.gone(|_| true).await;
}

#[tokio::test(start_paused = true)]
async fn denied_or_hanging_writes_delay_no_drain() {
    for fault in [Fault::Status(403), Fault::Hang] {
        let stage = Stage::new(3, 1);
        for operation in ["create events", "patch events", "patch nodes/status"] {
            stage.world.faults.add(Rule::on(operation, fault));
        }
        (0..3).for_each(|n| stage.block(n));
        let replica = stage.start(&["--events", "all", "--max-draining=none"]).await;
        (0..3).for_each(|n| drop(stage.spot(n)));
        sleep(s(10)).await;
        (0..3).for_each(|n| stage.unblock(n));
        let begun = Instant::now();
        stage.until_handled(s(10)).await;
        assert!(begun.elapsed() < s(9), "as without telling: {:?}", begun.elapsed());
        stage.rest(&[&replica]).await;
        if fault == Fault::Hang {
            let told = replica.metric("ebbtide_events_total{result=\"timed-out\"}");
            assert!(told >= 3.0, "{told}");
        } else {
            let told = replica.metric("ebbtide_events_total{result=\"denied\"}");
            assert!((1.9..2.1).contains(&told), "once for Events, once for the condition: {told}");
            assert_eq!(written(&stage), [12, 0, 6], "a denied call is not made again");
        }
        // As soon as writes are allowed, the next drain is written.
        stage.world.faults.clear();
        let before = stage.world.kube.events().len();
        stage.world.kube.add_pod(Pod::on(&node(0)).named("late"));
        stage.world.aws.sqs.send(messages::state_change("again", &instance(0), "stopping", stage.world.clock.now()));
        stage.until_handled(s(30)).await;
        stage.rest(&[&replica]).await;
        assert_eq!(stage.world.kube.events().len(), before + 1, "{}", stage.story());
        assert_eq!(says(&stage, 0).as_deref(), Some("False Drained"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_is_retried_once_without_duplicates() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("create events", Fault::LostResponse).times(1));
    stage.world.faults.add(Rule::on("patch nodes/status", Fault::Status(503)).times(1));
    stage.world.faults.add(Rule::on("patch events", Fault::Status(500)));
    let (replica, _) = blocked(&stage, &[]).await;
    sleep(s(10)).await;
    assert_eq!((written(&stage), says(&stage, 0).as_deref()), ([3, 0, 2], Some("True Blocked")), "{}", stage.story());
    assert_eq!(stage.world.kube.events().len(), 2);
    stage.unblock(0);
    stage.until_handled(s(30)).await;
    stage.rest(&[&replica]).await;
    assert_eq!((written(&stage), says(&stage, 0).as_deref()), ([3, 2, 3], Some("False Drained")));
    let told = replica.metric("ebbtide_events_total{result=\"unavailable\"}");
    assert!((0.9..1.1).contains(&told), "what is made good is not told: {told}");
}

#[tokio::test(start_paused = true)]
async fn a_node_deleted_during_its_drain_needs_no_condition() {
    let stage = Stage::new(1, 1);
    let (replica, _) = blocked(&stage, &[]).await;
    sleep(s(8)).await;
    stage.world.kube.remove_node("node-0");
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert_eq!(written(&stage), [2, 1, 1], "{}", stage.story());
    assert_eq!(text(event_about(&stage, "Node").type_.as_ref()), "Normal");
}

#[tokio::test(start_paused = true)]
async fn a_new_node_of_the_same_name_gets_no_condition() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("create events", Fault::Slow(s(3))));
    let (replica, _) = blocked(&stage, &[]).await;
    sleep(s(7)).await;
    assert_eq!(written(&stage), [1, 0, 0], "about to set the condition");
    stage.world.kube.remove_node("node-0");
    stage.world.kube.add_node("node-0", &instance(9));
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert_eq!(written(&stage), [2, 1, 1], "{}", stage.story());
    assert_eq!(says(&stage, 0), None);
}

#[tokio::test(start_paused = true)]
async fn many_blocked_nodes_are_written_a_few_at_a_time() {
    const NODES: usize = 100;
    let stage = Stage::new(NODES, 1);
    (0..NODES).for_each(|n| stage.block(n));
    stage.world.faults.add(Rule::on("create events", Fault::Slow(Duration::from_millis(250))));
    let replica = stage.start(&[]).await;
    (0..NODES).for_each(|n| drop(stage.spot(n)));
    stage.until("all are told", s(60), || stage.calls("patch nodes/status") == NODES).await;
    // A node's two Events are written one after the other, and for three nodes at once.
    let mut begun: Vec<_> = stage.world.calls.of("create events").iter().map(|call| call.at).collect();
    begun.sort_unstable();
    let few = begun.windows(4).all(|four| four[3] - four[0] >= Duration::from_millis(250));
    assert!(few, "more than three at once: {begun:?}");
    (0..NODES).for_each(|n| stage.unblock(n));
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    for n in 0..NODES {
        assert_eq!(says(&stage, n).as_deref(), Some("False Drained"), "{n}");
    }
    assert_eq!(written(&stage), [2 * NODES, NODES, 2 * NODES]);
}

/// The condition of an abandoned drain becomes False, although `ebbtide/ignore` was set on the Node meanwhile.
#[tokio::test(start_paused = true)]
async fn the_condition_is_settled_when_the_node_is_excluded_after_a_restart() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let first = stage.start(&[]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(30)).await;
    first.stop().await;
    let draining = || stage.condition(0).map(|condition| condition.status);
    assert_eq!(draining().as_deref(), Some("True"));
    stage.world.kube.update_node(&node(0), |node| {
        node.metadata.annotations.get_or_insert_default().insert("ebbtide/ignore".into(), "true".into());
        node.spec.get_or_insert_default().unschedulable = None;
    });
    let second = stage.start(&[]).await;
    stage.until_handled(s(60)).await;
    stage.until("the condition is settled", s(5), || draining().as_deref() == Some("False")).await;
    stage.rest(&[&second]).await;
}

/// Returns the statuses of `DrainInProgress` and `Drained` of the n-th node; `-` for none.
fn stages(stage: &Stage, n: usize) -> [String; 2] {
    let conditions = stage.world.kube.node(&node(n)).unwrap().status.unwrap().conditions.unwrap_or_default();
    ["DrainInProgress", "Drained"].map(|kind| {
        let found = conditions.iter().find(|condition| condition.type_ == kind);
        found.map_or_else(|| "-".to_owned(), |condition| condition.status.clone())
    })
}

#[tokio::test(start_paused = true)]
async fn conditions_of_the_kep_follow_a_node_from_its_drain_to_its_return() {
    let stage = Stage::new(2, 1);
    (0..2).for_each(|n| stage.block(n));
    let replica = stage.start(&["--events", "lifecycle", "--drain-timeout", "2m", "--at-deadline", "leave"]).await;
    stage.schedule_reboot(0);
    stage.terminate(1, s(60), Wrapping::Event);
    sleep(s(3)).await;
    assert_eq!([stages(&stage, 0), stages(&stage, 1)], [["True", "False"], ["True", "False"]]);
    stage.unblock(0);
    stage.until_handled(s(180)).await;
    sleep(s(1)).await;
    assert_eq!(stages(&stage, 0), ["False", "True"], "drained");
    assert_eq!(stages(&stage, 1), ["False", "False"], "its drain has failed");
    stage.reboot(0).await;
    stage.until("the node is in use again", s(5), || stages(&stage, 0) == ["False", "False"]).await;
    assert!(!stage.cordoned(0));
    assert_eq!(says(&stage, 0).as_deref(), Some("False Returned"));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn conditions_of_the_kep_are_written_only_when_asked_for() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--events", "all"]).await;
    stage.schedule_reboot(0);
    stage.until_handled(s(60)).await;
    stage.reboot(0).await;
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    sleep(s(5)).await;
    assert_eq!(stages(&stage, 0), ["-", "-"]);
    assert_eq!(says(&stage, 0).as_deref(), Some("False Drained"));
    stage.rest(&[&replica]).await;
}
