use super::*;
use serde_json::{Value, json};

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// Returns a Deployment with this number of pods, all available, and with these changes.
fn deployment(pods: i32, changes: &[(&str, Value)]) -> Deployment {
    let mut wire = json!({
        "metadata": { "name": "web", "generation": 3 },
        "spec": {
            "replicas": pods, "paused": false, "selector": { "matchLabels": { "app": "web" } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "25%", "maxUnavailable": "25%" } },
            "template": { "metadata": { "annotations": {} }, "spec": {} },
        },
        "status": {
            "observedGeneration": 3, "replicas": pods, "updatedReplicas": pods, "readyReplicas": pods, "availableReplicas": pods,
        },
    });
    for (path, value) in changes {
        let (parent, field) = path.rsplit_once('/').unwrap();
        wire.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    serde_json::from_value(wire).unwrap()
}

fn first(deployment: &Deployment, pods: ReadyPods) -> Step {
    deployment.next(pods, false, false, now())
}

const SURGE: &str = "/spec/strategy/rollingUpdate/maxSurge";
const UNAVAILABLE: &str = "/spec/strategy/rollingUpdate/maxUnavailable";
const PODS: &str = "/spec/template/spec";

/// Returns the spec of pods that use a volume by its claim.
fn claim() -> Value {
    json!({ "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }] })
}

#[test]
fn a_single_ready_pod_is_restarted_where_the_strategy_has_room() {
    let gap = Step::Impossible("its maxUnavailable allows a gap");
    for (changes, expected) in [
        (vec![], Step::Restart),
        (vec![("/spec/strategy", json!({}))], Step::Restart),
        (vec![("/spec/strategy", json!({ "type": "RollingUpdate" }))], Step::Restart),
        (vec![("/spec/strategy", json!({ "type": "Recreate" }))], Step::Impossible("its strategy is Recreate")),
        (vec![("/spec/paused", json!(true))], Step::Impossible("it is paused")),
        (vec![(SURGE, json!(0)), (UNAVAILABLE, json!(1))], Step::Impossible("its maxSurge is 0")),
        (vec![(SURGE, json!("1%"))], Step::Restart),
        (vec![(SURGE, json!("0%"))], Step::Impossible("its maxSurge is 0")),
        // The controller would remove the old pod at once.
        (vec![(SURGE, json!(1)), (UNAVAILABLE, json!(1))], gap),
        (vec![(SURGE, json!(1)), (UNAVAILABLE, json!("100%"))], gap),
        (vec![(SURGE, json!(1)), (UNAVAILABLE, json!("99%"))], Step::Restart),
        (vec![("/metadata/deletionTimestamp", json!("2027-01-15T08:00:00Z"))], Step::Impossible("it is being deleted")),
        (vec![(PODS, claim())], Step::Impossible("its volume may be attached to one node only")),
        (vec![(PODS, json!({ "volumes": [{ "name": "data", "ephemeral": {} }] }))], Step::Restart),
    ] {
        assert_eq!(first(&deployment(1, &changes), ReadyPods::Unlisted), expected, "{changes:?}");
    }
    assert_eq!(first(&deployment(2, &[(PODS, claim())]), ReadyPods::Draining), Step::Restart, "they share it");
}

#[test]
fn what_is_on_its_way_is_waited_for_without_a_restart() {
    let restarted = |at: &str| ("/spec/template/metadata/annotations", json!({ RESTART_ANNOTATION: at }));
    for (changes, expected) in [
        (vec![("/metadata/generation", json!(4))], Step::Wait),
        (vec![("/status/replicas", json!(2)), ("/status/updatedReplicas", json!(1))], Step::Wait),
        (vec![("/status/updatedReplicas", json!(0))], Step::Wait),
        (vec![("/spec/replicas", json!(2))], Step::Wait),
        (vec![("/status/availableReplicas", json!(0))], Step::Wait),
        (vec![restarted("2027-01-15T07:59:45Z")], Step::Wait),
        (vec![restarted("2027-01-15T09:59:45+02:00")], Step::Wait),
        (vec![restarted("2027-01-15T07:59:30Z")], Step::Restart),
        (vec![restarted("yesterday")], Step::Restart),
        (vec![("/spec/template", json!({}))], Step::Restart),
        (vec![("/spec/template/metadata", json!({ "annotations": null }))], Step::Restart),
    ] {
        assert_eq!(first(&deployment(1, &changes), ReadyPods::Unlisted), expected, "{changes:?}");
    }
}

#[test]
fn of_several_ready_pods_the_list_shows_whether_all_are_on_draining_nodes() {
    let three = deployment(3, &[]);
    assert!(three.needs_list(false));
    assert_eq!(first(&three, ReadyPods::Draining), Step::Restart);
    assert_eq!(first(&three, ReadyPods::Elsewhere), Step::NotNeeded);
    let one = deployment(1, &[]);
    assert!(!one.needs_list(false), "it is the one that asks");
    let one_of_two = deployment(2, &[("/status/readyReplicas", json!(1)), ("/status/availableReplicas", json!(1))]);
    assert_eq!(first(&one_of_two, ReadyPods::Unlisted), Step::Wait, "the other is on its way");
    let none = deployment(1, &[("/status/readyReplicas", json!(0))]);
    assert_eq!(first(&none, ReadyPods::Unlisted), Step::NotNeeded, "there is nothing to keep");
    let many = deployment(11, &[]);
    assert!(!many.needs_list(false) && deployment(10, &[]).needs_list(false));
    assert_eq!(first(&many, ReadyPods::Unlisted), Step::NotNeeded);
    let recreated = deployment(3, &[("/spec/strategy", json!({ "type": "Recreate" }))]);
    assert!(!recreated.needs_list(false));
    assert_eq!(first(&recreated, ReadyPods::Unlisted), Step::NotNeeded);
}

#[test]
fn a_ready_pod_that_asks_not_to_be_disturbed_does_not_leave() {
    let pod = |node: &str, protection| ReadyPod { node: node.into(), protection };
    let of = |pods: &[ReadyPod]| ReadyPods::of(pods, |node| node == "drained", now());
    let asks = |ends| Some(Protection { annotation: "ebbtide/ignore", ends });
    assert_eq!(of(&[pod("drained", None), pod("drained", None)]), ReadyPods::Draining);
    assert_eq!(of(&[pod("drained", None), pod("other", None)]), ReadyPods::Elsewhere);
    assert_eq!(of(&[pod("drained", None), pod("drained", asks(None))]), ReadyPods::Elsewhere);
    let over = asks(Some(now() - SignedDuration::from_secs(1)));
    assert_eq!(of(&[pod("drained", None), pod("drained", over)]), ReadyPods::Draining);
    assert_eq!(of(&[]), ReadyPods::Elsewhere);
}

#[test]
fn pods_wait_until_all_new_ones_are_available_elsewhere() {
    let status = |replicas: i32, updated: i32, available: i32| {
        [
            ("/status/replicas", json!(replicas)),
            ("/status/updatedReplicas", json!(updated)),
            ("/status/readyReplicas", json!(available)),
            ("/status/availableReplicas", json!(available)),
        ]
    };
    let next = |deployment: &Deployment, elsewhere: bool| {
        let pods = match (deployment.needs_list(true), elsewhere) {
            (false, _) => ReadyPods::Unlisted,
            (true, true) => ReadyPods::Elsewhere,
            (true, false) => ReadyPods::Draining,
        };
        deployment.next(pods, true, true, now())
    };
    let unseen = deployment(1, &[("/metadata/generation", json!(4))]);
    assert_eq!(next(&unseen, true), Step::Wait, "its controller has not seen the restart");
    for (desired, (replicas, updated, available), expected) in [
        (1, (2, 1, 1), Step::Wait),
        (1, (2, 1, 2), Step::Ready),
        (1, (1, 1, 1), Step::Ready),
        (3, (4, 1, 4), Step::Wait),
        (3, (4, 3, 3), Step::Wait),
        (3, (4, 3, 4), Step::Ready),
        (3, (3, 3, 3), Step::Ready),
    ] {
        let rolling = deployment(desired, &status(replicas, updated, available));
        assert_eq!(next(&rolling, true), expected, "{desired} {replicas} {updated} {available}");
        assert_eq!(next(&rolling, false), Step::Wait, "a GitOps tool has undone the restart, or the new nodes go, too");
    }
    let crashing = deployment(2, &status(2, 2, 1));
    assert_eq!(crashing.next(ReadyPods::Elsewhere, true, false, now()), Step::Ready, "one elsewhere is enough");
    assert_eq!(crashing.next(ReadyPods::Draining, true, false, now()), Step::Wait);
    let replaced = deployment(2, &[]);
    assert_eq!(replaced.next(ReadyPods::Draining, true, false, now()), Step::Restart, "its node goes, too");
    assert_eq!(replaced.next(ReadyPods::Draining, true, true, now()), Step::Wait, "once");
}
