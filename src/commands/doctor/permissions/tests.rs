use super::*;
use crate::commands::doctor::tests::{found, one, settings, silent};

fn named(flags: &[&str]) -> Vec<String> {
    needed(&settings(flags)).iter().map(|need| format!("{} {}", need.verb, need.resource)).collect()
}

#[test]
fn what_is_needed_follows_the_settings() {
    let all = named(&[]);
    assert_eq!(
        all,
        [
            "list nodes",
            "watch nodes",
            "get nodes",
            "patch nodes",
            "list pods",
            "watch pods",
            "create pods/eviction",
            "delete pods",
            "patch pods/status",
            "list volumeattachments",
            "watch volumeattachments",
            "get persistentvolumeclaims",
            "patch nodes/status",
            "create events",
            "patch events",
        ]
    );
    let without = |flags: &[&str], left_out: &[&str]| {
        let expected: Vec<_> = all.iter().filter(|need| !left_out.contains(&need.as_str())).cloned().collect();
        assert_eq!(named(flags), expected, "{flags:?}");
    };
    // Volumes are waited for where a terminating hook is kept.
    let volumes = ["list volumeattachments", "watch volumeattachments", "get persistentvolumeclaims"];
    without(&["--wait-for-volumes", "0s"], &volumes);
    // Pods are deleted where the node's capacity is about to go, and nowhere else.
    let soft =
        ["asg-terminate", "spot", "scheduled-change", "capacity-reservation"].map(|kind| format!("--on={kind}=cordon"));
    let mut flags: Vec<&str> = soft.iter().map(String::as_str).collect();
    let deletes = ["delete pods", "patch pods/status"];
    let neither = [&deletes[..], &volumes].concat();
    without(&flags, &neither);
    flags.push("--on=rebalance=drain");
    without(&flags, &neither);
    flags.retain(|flag| !flag.contains("=spot="));
    without(&flags, &volumes);
    let telling = ["patch nodes/status", "create events", "patch events"];
    without(&["--at-deadline", "leave"], &deletes);
    without(&["--events", "none"], &telling);
    without(&["--dry-run"], &[&deletes[1..], &volumes, &telling].concat());
    let kinds = ["asg-terminate", "spot", "rebalance", "state-change", "scheduled-change", "capacity-reservation"];
    let every = |action: &str| kinds.map(|kind| format!("--on={kind}={action}"));
    let pods = ["list pods", "watch pods", "create pods/eviction", "delete pods", "patch pods/status"];
    let flags = every("cordon");
    let drains = [&pods[..], &volumes, &telling].concat();
    without(&flags.each_ref().map(String::as_str), &drains);
    let flags = every("report");
    without(&flags.each_ref().map(String::as_str), &[&["get nodes", "patch nodes"], &drains[..]].concat());
}

#[test]
fn target_groups_need_rights_where_they_are_waited_for() {
    let needs = |flags: &[&str]| named(flags).contains(&"list targetgroupbindings".to_owned());
    let (wait, deregister) = ("--wait-for-load-balancers=wait", "--wait-for-load-balancers=deregister");
    assert!(!needs(&[]) && needs(&[wait]) && needs(&[deregister]));
    assert!(!needs(&[wait, "--dry-run"]) && !needs(&[deregister, "--dry-run"]));
    // Only a hook is waited for, and any instance is deregistered.
    let no_hooks = "--on=asg-terminate=cordon";
    assert!(needs(&[deregister, no_hooks]));
}

const COLLECT: [&str; 5] = ["--collect-leases", "--pod-namespace", "ops", "--pod-name", "ebbtide-1"];

#[test]
fn what_the_collector_needs_is_in_two_namespaces() {
    let leases = |more: &[&str]| {
        let flags: Vec<&str> = COLLECT.iter().chain(more).copied().collect();
        let leases = needed(&settings(&flags)).into_iter().filter(|need| need.resource == "leases");
        leases.map(|need| format!("{} {} {}", need.namespace, need.verb, need.name)).collect::<Vec<_>>()
    };
    let nodes = ["kube-node-lease list ", "kube-node-lease delete "];
    let turn = ["ops create ", "ops get ebbtide-collector", "ops update ebbtide-collector"];
    assert_eq!(leases(&[]), [&nodes[..], &turn].concat());
    assert_eq!(leases(&["--dry-run"]), nodes);
    assert_eq!(found(&COLLECT, |_| {}), Vec::new());
    let refused = |wanted: fn(&Permission) -> bool| {
        let (name, status, text) = one(&COLLECT, |readings| {
            let leases = |it: &Permission| it.resource == "leases" && wanted(it);
            for review in readings.reviews.iter_mut().filter(|review| leases(&review.permission)) {
                review.allowed = Ok(false);
            }
        });
        assert_eq!((name, status.as_str()), ("leases", "failure"));
        text
    };
    let text = refused(|need| need.verb == "delete");
    assert!(text.contains("Not allowed to delete leases in kube-node-lease: leaked Leases stay."), "{text}");
    assert!(text.contains("Add to a Role in kube-node-lease:"), "{text}");
    let text = refused(|need| !need.name.is_empty());
    assert!(text.contains("Not allowed to get, update leases ebbtide-collector in ops: "), "{text}");
    assert!(text.contains("resourceNames: [\"ebbtide-collector\"]\n    verbs: [\"get\", \"update\"]"), "{text}");
}

#[test]
fn nodes_are_deleted_on_request_only() {
    let all = |more: &[&str]| {
        let flags: Vec<&str> = ["--collect-nodes"].iter().chain(&COLLECT[1..]).chain(more).copied().collect();
        needed(&settings(&flags))
    };
    let names = |more: &[&str]| {
        let added = all(more).into_iter().filter(|need| !needed(&settings(more)).contains(need));
        added.map(|need| format!("{} {} {}", need.verb, need.resource, need.name)).collect::<Vec<_>>()
    };
    let turn = ["create leases ", "get leases ebbtide-collector", "update leases ebbtide-collector"];
    assert_eq!(names(&[]), [&["delete nodes "][..], &turn].concat());
    let volumes = ["list volumeattachments ", "watch volumeattachments "];
    assert_eq!(names(&["--wait-for-volumes", "0s"]), [&["delete nodes "][..], &volumes, &turn].concat());
    assert_eq!(names(&["--dry-run"]), ["delete nodes "]);
}

#[test]
fn a_verb_that_is_not_allowed_is_named_with_its_rule() {
    let lacking = |verb: &'static str, resource: &'static str| {
        move |readings: &mut Readings| {
            for review in &mut readings.reviews {
                if (review.permission.verb, review.permission.resource) == (verb, resource) {
                    review.allowed = Ok(false);
                }
            }
        }
    };
    let (name, status, text) = one(&[], lacking("create", "pods/eviction"));
    assert_eq!((name, status.as_str()), ("pods/eviction", "failure"));
    assert!(text.contains("Not allowed to create pods/eviction: no pod is evicted."), "{text}");
    assert!(text.contains("resources: [\"pods/eviction\"]\n    verbs: [\"create\"]"), "{text}");
    let (_, _, text) = one(&[], |readings| {
        lacking("list", "nodes")(readings);
        lacking("patch", "nodes")(readings);
    });
    assert!(text.contains("verbs: [\"list\", \"patch\"]"), "{text}");
    // The doctor's own permission is no need of the service.
    assert_eq!(
        found(&[], |readings| readings.reviews.push(AccessReview { permission: LIST_BUDGETS, allowed: Ok(false) })),
        Vec::new()
    );
    let (name, status, _) = one(&[], |readings| readings.reviews[4].allowed = silent());
    assert_eq!((name, status.as_str()), ("pods", "skipped"));
}
