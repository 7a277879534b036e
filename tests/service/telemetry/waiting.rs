//! Kubernetes Events and the Node's condition while an interruption waits, and the report of how its waits ended.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{Wrapping, lifecycle};
use std::time::Duration;
use tokio::time::sleep;

const RETIREMENT: (&str, &str) = ("h", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED");

/// Returns a world of one node with a pod that has a volume, which is detached this long after the pod is gone.
fn with_volume(detached_after: Option<Duration>) -> Stage {
    let stage = Stage::new(1, 0);
    stage.world.kube.detach_after(detached_after);
    stage.world.kube.add_pod(Pod::on(&node(0)).statefulset("db").named("db-0").claim("data-db-0").stops_in(s(2)));
    stage
}

/// Returns reason, count and text of each Event.
fn told(stage: &Stage) -> Vec<(String, i32, String)> {
    let events = stage.world.kube.events().into_iter();
    let words = |event: k8s_openapi::api::core::v1::Event| {
        (event.reason.unwrap_or_default(), event.count.unwrap_or_default(), event.message.unwrap_or_default())
    };
    events.map(words).collect()
}

#[tokio::test(start_paused = true)]
async fn waits_that_last_are_told_once_with_their_reasons() {
    let stage = with_volume(Some(s(40)));
    let replica = stage.start(&["--complete-after", "20s"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(7)).await;
    assert_eq!((stage.condition_text(0), told(&stage)), (String::new(), Vec::new()), "not before 5 s are over");
    sleep(s(5)).await;
    let said = stage.condition_text(0);
    for part in
        ["True Waiting: complete-after (until ", "; volumes (until ", "Z at the latest): attached: pv-data-db-0"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    sleep(s(20)).await;
    assert_eq!(told(&stage).len(), 1, "the end of one of two waits says nothing");
    stage.until_handled(s(30)).await;
    stage.completed_once(&token);
    let text = "complete-after: met; volumes: met";
    assert_eq!(stage.condition_text(0), format!("False WaitEnded: {text}"));
    assert_eq!(told(&stage), [("WaitEnded".to_owned(), 2, text.to_owned())]);
    assert_eq!(stage.world.kube.events()[0].type_.as_deref(), Some("Normal"));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_wait_leaves_undone_is_told() {
    let stage = with_volume(None);
    let replica = stage.start(&["--wait-for-volumes", "20s"]).await;
    stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert_eq!(stage.condition_text(0), "False WaitEnded: volumes: time-over (attached: pv-data-db-0)");
    let kinds: Vec<_> = stage.world.kube.events().into_iter().map(|event| event.type_.unwrap_or_default()).collect();
    assert_eq!(kinds, ["Warning"]);
}

#[tokio::test(start_paused = true)]
async fn a_short_wait_writes_nothing() {
    let stage = with_volume(Some(s(4)));
    let replica = stage.start(&[]).await;
    stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert_eq!((stage.condition_text(0), told(&stage)), (String::new(), Vec::new()));
}

/// The first replica has told of the wait; it ends soon after the second has taken over.
#[tokio::test(start_paused = true)]
async fn a_takeover_leaves_no_condition_behind() {
    for graceful in [true, false] {
        let stage = with_volume(Some(s(60)));
        let first = stage.start(&[]).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        sleep(s(57)).await;
        assert!(stage.condition_text(0).starts_with("True Waiting: "), "{}", stage.condition_text(0));
        let second = stage.start(&[]).await;
        if graceful {
            first.stop().await;
        } else {
            first.kill().await;
        }
        stage.until_handled(s(100)).await;
        stage.completed_once(&token);
        stage.rest(&[&second]).await;
        assert!(stage.condition_text(0).starts_with("False "), "{graceful}: {}", stage.condition_text(0));
    }
}

/// A hold, then the drain: with an Event for each drain, the hold's is not the drain's.
#[tokio::test(start_paused = true)]
async fn a_wait_before_a_drain_is_over_before_the_drain_is_told() {
    let stage = Stage::new(1, 2);
    let replica = stage.start(&["--events", "all", "--hold", "before-drain"]).await;
    stage.terminate(0, s(900), Wrapping::Event);
    stage.until_handled(s(450)).await;
    stage.rest(&[&replica]).await;
    let mut told: Vec<_> = told(&stage).into_iter().map(|(reason, count, _)| (reason, count)).collect();
    told.sort();
    assert_eq!(told, [("DrainEnded".to_owned(), 2), ("WaitEnded".to_owned(), 2)]);
    assert!(stage.condition_text(0).starts_with("False Drained: "), "{}", stage.condition_text(0));
}

/// What was waited for happens while no replica runs.
#[tokio::test(start_paused = true)]
async fn a_successor_without_a_wait_leaves_no_condition_behind() {
    let stage = with_volume(Some(s(60)));
    let first = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(50)).await;
    first.kill().await;
    assert!(stage.condition_text(0).starts_with("True Waiting: "), "{}", stage.condition_text(0));
    sleep(s(20)).await;
    let second = stage.start(&[]).await;
    stage.until_handled(s(100)).await;
    stage.completed_once(&token);
    stage.rest(&[&second]).await;
    assert!(stage.condition_text(0).starts_with("False "), "{}", stage.condition_text(0));
}

/// Two hooks of one instance wait for the same.
#[tokio::test(start_paused = true)]
async fn the_end_of_one_of_two_equal_waits_leaves_the_other() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--hold", "before-completion"]).await;
    stage.terminate(0, s(900), Wrapping::Event);
    stage.world.aws.autoscaling.add_hook("group", "other", HookSpec::terminating(s(1800)));
    let long = stage.world.aws.autoscaling.begin("group", "other", &instance(0));
    let hook = ("group", "other", &*long);
    stage.world.aws.sqs.send(lifecycle(Wrapping::Event, true, hook, &instance(0), stage.world.clock.now()));
    sleep(s(1000)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 1, "the first hold is over");
    assert!(stage.condition_text(0).starts_with("True Waiting: "), "{}", stage.condition_text(0));
    stage.until_handled(s(800)).await;
    stage.completed_once(&long);
    stage.rest(&[&replica]).await;
    assert!(stage.condition_text(0).starts_with("False WaitEnded: "), "{}", stage.condition_text(0));
    assert!(told(&stage).iter().all(|(reason, ..)| reason == "WaitEnded"), "{:?}", told(&stage));
}

/// A tool that waits for the end of the drain must not see one between the hold and the drain.
#[tokio::test(start_paused = true)]
async fn the_condition_stays_true_from_a_hold_to_the_end_of_the_drain() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").stops_in(s(20)));
    let replica = stage.start(&["--hold", "before-drain"]).await;
    stage.terminate(0, s(900), Wrapping::Event);
    sleep(s(20)).await;
    assert!(stage.condition_text(0).starts_with("True Waiting: "), "{}", stage.condition_text(0));
    stage.until("the eviction", s(450), || !stage.world.kube.evictions().is_empty()).await;
    sleep(s(10)).await;
    assert!(stage.condition_text(0).starts_with("True Draining: "), "{}", stage.condition_text(0));
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert!(stage.condition_text(0).starts_with("False Drained: "), "{}", stage.condition_text(0));
}

/// AWS withdraws the notice while its hold is told.
#[tokio::test(start_paused = true)]
async fn a_withdrawn_notice_ends_what_was_told_of_its_wait() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--hold", "before-drain"]).await;
    let start = stage.world.clock.now() + s(3000);
    stage.health(0, RETIREMENT, start, "upcoming");
    sleep(s(30)).await;
    assert!(stage.condition_text(0).starts_with("True Waiting: "), "{}", stage.condition_text(0));
    stage.health(0, RETIREMENT, start, "closed");
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert!(stage.condition_text(0).starts_with("False "), "{}", stage.condition_text(0));
    let ended = replica.metric("ebbtide_waits_seconds_count{outcome=\"called-off\",wait=\"hold-before-drain\"}");
    assert!((ended - 1.0).abs() < 0.5, "{ended} ends of the hold");
    assert!(stage.world.kube.evictions().is_empty());
}
