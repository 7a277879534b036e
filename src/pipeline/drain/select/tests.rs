//! The selection of pods, compared with `kubectl drain`.

use super::*;
use serde_json::{Value, json};

fn names(pods: &[Departure]) -> Vec<&str> {
    pods.iter().map(|departure| &*departure.pod.name).collect()
}

fn left_alone(selection: &Selection) -> Vec<(&str, StayReason)> {
    selection.left_alone.iter().map(|(pod, reason)| (&*pod.name, *reason)).collect()
}

fn object(name: &str, metadata: Value, phase: &str) -> TrimmedPod {
    with(name, metadata, phase, json!({}))
}

fn with(name: &str, metadata: Value, phase: &str, spec: Value) -> TrimmedPod {
    let mut all = json!({ "namespace": "default", "name": name, "uid": format!("uid-{name}") });
    let Value::Object(metadata) = metadata else { panic!("metadata is an object") };
    all.as_object_mut().unwrap().extend(metadata);
    let mut full = json!({ "terminationGracePeriodSeconds": 30, "containers": [] });
    let Value::Object(spec) = spec else { panic!("a spec is an object") };
    full.as_object_mut().unwrap().extend(spec);
    serde_json::from_value(json!({ "metadata": all, "spec": full, "status": { "phase": phase } })).unwrap()
}

fn owned(kind: &str, api: &str) -> Value {
    json!({ "ownerReferences": [{ "apiVersion": api, "kind": kind, "name": "x", "uid": "o", "controller": true }] })
}

fn all_kinds() -> Vec<TrimmedPod> {
    let scratch = json!({ "volumes": [{ "name": "config", "configMap": {} }, { "name": "tmp", "emptyDir": {} }] });
    vec![
        object("web", owned("ReplicaSet", "apps/v1"), "Running"),
        object("bare", json!({}), "Pending"),
        with("scratch", owned("StatefulSet", "apps/v1"), "Running", scratch.clone()),
        object("agent", owned("DaemonSet", "apps/v1"), "Running"),
        object("agent-crashed", owned("DaemonSet", "apps/v1"), "Failed"),
        object("kruise", owned("DaemonSet", "apps.kruise.io/v1alpha1"), "Running"),
        object("marked", json!({ "annotations": { DAEMON_ANNOTATION: "true" } }), "Running"),
        object("unmarked", json!({ "annotations": { DAEMON_ANNOTATION: "false" } }), "Running"),
        object("static", json!({ "annotations": { MIRROR_ANNOTATION: "hash" } }), "Running"),
        object("terminating", json!({ "deletionTimestamp": "2026-11-21T12:00:00Z" }), "Running"),
        object("job", owned("Job", "batch/v1"), "Succeeded"),
        with("crashed", json!({}), "Failed", scratch),
        object("ebbtide-1", json!({}), "Running"),
    ]
}

#[test]
fn each_kind_of_pod_has_its_place() {
    let own_pod = Some(("default".to_owned(), "ebbtide-1".to_owned()));
    let selection = select(all_kinds(), &SelectionRules { own_pod, ..SelectionRules::default() });
    assert_eq!(names(&selection.evict), ["web", "bare", "scratch", "unmarked"]);
    assert_eq!(names(&selection.terminating), ["terminating"]);
    assert_eq!(names(&selection.finished), ["agent-crashed", "job", "crashed"]);
    let daemons = ["agent", "kruise", "marked"].map(|name| (name, StayReason::DaemonSet));
    assert_eq!(left_alone(&selection), [&daemons[..], &[("static", StayReason::Mirror)]].concat());
    assert_eq!(selection.own_pod.as_ref().map(|departure| &*departure.pod.name), Some("ebbtide-1"));
    assert_eq!(selection.evict[0].grace, Some(30));
    assert_eq!(selection.terminating[0].ends, "2026-11-21T12:00:00Z".parse().ok());
    assert!(!selection.is_drained());
}

#[test]
fn the_own_pod_leaves_last_also_when_it_terminates_already() {
    let own_pod = Some(("default".to_owned(), "ebbtide-1".to_owned()));
    let rules = SelectionRules { own_pod, ..SelectionRules::default() };
    let terminating = json!({ "deletionTimestamp": "2026-11-21T12:00:00Z" });
    for metadata in [json!({}), terminating] {
        let selection = select([object("ebbtide-1", metadata, "Running")], &rules);
        assert!(selection.is_drained() && selection.own_pod.is_some());
    }
}

#[test]
fn pods_that_the_settings_keep_stay() {
    let keep = SelectionRules { keep_empty_dir: true, keep_unmanaged: true, ..SelectionRules::default() };
    let selection = select(all_kinds(), &keep);
    assert_eq!(names(&selection.evict), ["web"]);
    assert_eq!(names(&selection.finished), ["agent-crashed", "job", "crashed"]);
    let expected = [
        ("bare", StayReason::Unmanaged),
        ("scratch", StayReason::EmptyDir),
        ("agent", StayReason::DaemonSet),
        ("kruise", StayReason::DaemonSet),
        ("marked", StayReason::DaemonSet),
        ("unmarked", StayReason::Unmanaged),
        ("static", StayReason::Mirror),
        ("terminating", StayReason::Unmanaged),
        ("ebbtide-1", StayReason::Unmanaged),
    ];
    assert_eq!(left_alone(&selection), expected);
}

#[test]
fn tiers_by_priority_and_daemonsets_last_and_once() {
    let pods = [
        with("dns", json!({}), "Running", json!({ "priority": 2_000_000_000 })),
        with("proxy", owned("DaemonSet", "apps/v1"), "Running", json!({ "priority": 2_000_001_000 })),
        with("web", json!({}), "Running", json!({ "priority": 1_999_999_999 })),
        with(
            "ebs",
            owned("DaemonSet", "apps/v1"),
            "Running",
            json!({ "volumes": [{ "name": "registration", "hostPath": { "path": "/var/lib/kubelet/plugins_registry/" } }] }),
        ),
    ];
    let mut selection = select(pods, &SelectionRules { evict_daemonsets: true, ..SelectionRules::default() });
    let tiers: Vec<_> = selection.evict.iter().map(|departure| (&*departure.pod.name, departure.tier)).collect();
    assert_eq!(tiers, [("dns", Tier::CRITICAL), ("proxy", Tier::Daemon), ("web", Tier::ORDINARY)]);
    let mut first = FirstDaemons::from([("another".into(), HashSet::new())]);
    selection.keep_new_daemons(&mut first);
    assert_eq!((selection.evict.len(), first.len()), (3, 2));
    assert_eq!(left_alone(&selection), [("ebs", StayReason::CsiDriver)]);
    first.values_mut().for_each(HashSet::clear);
    selection.keep_new_daemons(&mut first);
    assert_eq!(left_alone(&selection), [("ebs", StayReason::CsiDriver), ("proxy", StayReason::DaemonSet)]);
}

#[test]
fn annotations_ask_not_to_be_disturbed() {
    let annotated = |name, key: &str, value: &str| object(name, json!({ "annotations": { key: value } }), "Running");
    let pods = || {
        [
            annotated("ours", "ebbtide/ignore", "true"),
            annotated("not", "ebbtide/ignore", "false"),
            annotated("karpenter", "karpenter.sh/do-not-disrupt", "true"),
            annotated("autoscaler", "cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ]
    };
    let asks = |respect_do_not_disrupt| {
        let selection = select(pods(), &SelectionRules { respect_do_not_disrupt, ..SelectionRules::default() });
        selection.evict.iter().map(|departure| departure.protection.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(asks(false), [true, false, false, false]);
    assert_eq!(asks(true), [true, false, true, true]);
}

#[test]
fn a_node_with_only_kept_and_finished_pods_is_drained() {
    let pods = [object("agent", owned("DaemonSet", "apps/v1"), "Running"), object("job", json!({}), "Succeeded")];
    assert!(select(pods, &SelectionRules::default()).is_drained());
}
