//! Marks: the patch that writes them, and the patch that removes them.

use super::*;
use crate::fact::UndoReason;
use crate::pipeline::node::label::taint;
use crate::pipeline::node::record::{NOTICE_PREFIX, Withdrawal, name};
use crate::pipeline::node::release::{NodeRelease, ReleaseSchedule, awaits_boot, restarted_after};
use serde_json::Map;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn withdrawal(text: &str) -> Withdrawal {
    Withdrawal { at: at(text), start: None }
}

fn mark(identity: &str, kind: &str) -> Mark {
    Mark::new(NoticeKey::of(identity), kind, at("2026-11-21T12:00:00Z"), "m-1")
}

/// Returns the Node after a patch, as an API server would merge it.
fn patched(node: &Node, patch: &Value) -> Node {
    let mut node = node.clone();
    let entries = |field: &str| patch["metadata"][field].as_object().cloned().unwrap_or_default();
    let merge = |into: &mut std::collections::BTreeMap<String, String>, from: Map<String, Value>| {
        for (key, value) in from {
            match value.as_str() {
                Some(text) => into.insert(key, text.to_owned()),
                None => into.remove(&key),
            };
        }
    };
    node.record.edit(|texts| merge(texts, entries("annotations")));
    merge(&mut node.labels, entries("labels"));
    if let Some(unschedulable) = patch["spec"].get("unschedulable") {
        node.cordoned = unschedulable == true;
    }
    if let Some(taints) = patch["spec"].get("taints") {
        node.taints = serde_json::from_value(taints.clone()).unwrap();
    }
    node
}

fn keys(node: &Node) -> impl Iterator<Item = NoticeKey> {
    node.record.notices().map(|(key, _)| key)
}

/// The schedule of a Node without a mark that is due, or ever will be by itself.
const NOTHING: ReleaseSchedule = ReleaseSchedule { due: None, next: None, is_kept: false };

fn schedule(node: &Node, now: &str) -> ReleaseSchedule {
    NodeRelease::schedule(node, at(now))
}

fn due(node: &Node, now: &str) -> Option<NodeRelease> {
    schedule(node, now).due
}

#[test]
fn one_patch_writes_cordon_label_and_annotations() {
    let mark = mark("12345678-1234", "spot").with_deadline(Some(at("2026-11-21T12:02:00Z")));
    assert_eq!(
        mark.patch(&Node::for_tests("node-1"), &MarkSettings::default()),
        Some(json!({
            "metadata": {
                "uid": "u-1",
                "resourceVersion": "7",
                "annotations": {
                    "ebbtide/notice.c4587662074a6477": "{\"v\":1,\"kind\":\"spot\",\"since\":\"2026-11-21T12:00:00Z\",\
                        \"deadline\":\"2026-11-21T12:02:00Z\",\"message\":\"m-1\",\"boot\":\"boot-1\"}",
                    "ebbtide/undo": "{\"cordon\":true}",
                },
                "labels": { "ebbtide/kind": "spot" },
            },
            "spec": { "unschedulable": true },
        }))
    );
}

#[test]
fn what_was_there_before_is_never_removed() {
    let mut node = Node::for_tests("node-1");
    node.cordoned = true;
    node.labels.insert(EXCLUDE_LABEL.to_owned(), String::new());
    let rival = taint("going=theirs:NoSchedule").unwrap();
    node.taints = Box::new([rival.clone()]);
    let taints = vec![taint("going=ours:NoSchedule").unwrap(), taint("going=ours:NoExecute").unwrap()];
    let settings = MarkSettings { taints, exclude_from_load_balancers: true, ..MarkSettings::default() };
    let mark = mark("a", "rebalance").with_expiry(Some(at("2026-11-21T12:20:00Z")));
    let marked = patched(&node, &mark.patch(&node, &settings).unwrap());
    let named: Vec<_> = marked.taints.iter().map(|taint| (taint.value.as_deref(), &*taint.effect)).collect();
    assert_eq!(named, [(Some("theirs"), "NoSchedule"), (Some("ours"), "NoExecute")]);
    assert_eq!(marked.record.texts()[UNDO_ANNOTATION], "{\"taints\":[\"going=ours:NoExecute\"]}");
    assert_eq!(mark.patch(&marked, &settings), None, "nothing is written twice");
    let rebooted = Node { boot: "boot-2".into(), ..marked.clone() };
    assert!(mark.patch(&rebooted, &settings).is_some(), "a mark that is about to be removed is written again");

    let release = due(&marked, "2026-11-21T12:20:00Z").unwrap();
    let patch = release.patch(&marked, &settings);
    let released = patched(&marked, &patch.body);
    assert!(!patch.uncordons && released.cordoned);
    assert_eq!(*released.taints, [rival]);
    assert_eq!((released.record.texts(), released.labels), (node.record.texts(), node.labels));
}

#[test]
fn only_what_a_mark_can_have_put_there_is_removed() {
    let mut node = Node::for_tests("node-1");
    let texts = ["going=soon:NoExecute", "once:NoSchedule", "quarantine=ir:NoSchedule", "goings:NoSchedule"];
    node.taints = texts.iter().map(|text| taint(text).unwrap()).chain([out_of_service()]).collect();
    node.labels.insert(EXCLUDE_LABEL.to_owned(), "true".to_owned());
    let listed = json!({
        "taints": node.taints.iter().map(written).collect::<Vec<_>>(),
        "labels": [EXCLUDE_LABEL, "node-restriction.kubernetes.io/tier", "ebbtide/x"],
    });
    node.record.insert(UNDO_ANNOTATION, listed.to_string());
    node.record.insert("ebbtide/notice.0123456789abcdef", r#"{"v":1,"until":"2020-01-01T00:00:00Z"}"#.to_owned());
    let release = due(&node, "2026-11-21T12:00:00Z").unwrap();
    let taints = vec![taint("going=now:NoSchedule").unwrap()];
    let settings = MarkSettings { taints, former_taints: vec!["once".to_owned()], ..MarkSettings::default() };
    let patch = release.patch(&node, &settings);
    assert_eq!(patch.left, ["quarantine=ir:NoSchedule", "goings:NoSchedule", "node-restriction.kubernetes.io/tier"]);
    let labels = json!({ EXCLUDE_LABEL: null, "ebbtide/x": null, KIND_LABEL: null });
    assert_eq!(patch.body["metadata"]["labels"], labels);
    let released = patched(&node, &patch.body);
    assert_eq!(released.taints.iter().map(written).collect::<Vec<_>>(), texts[2..]);
    assert!(released.record.texts().is_empty());
    // Without such settings, only the taint that Kubernetes defines can be Ebbtide's.
    let released = patched(&node, &release.patch(&node, &MarkSettings::default()).body);
    assert_eq!(released.taints.iter().map(written).collect::<Vec<_>>(), texts);
}

#[test]
fn a_node_is_released_when_its_last_mark_is_due() {
    let node = Node::for_tests("node-1");
    let taints = vec![taint("a:NoSchedule").unwrap()];
    let settings = MarkSettings { taints, exclude_from_load_balancers: true, ..MarkSettings::default() };
    let hint = mark("a", "rebalance").with_expiry(Some(at("2026-11-21T12:20:00Z")));
    let marked = patched(&node, &hint.patch(&node, &settings).unwrap());
    let waiting = schedule(&marked, "2026-11-21T12:19:59Z");
    assert_eq!(waiting, ReleaseSchedule { due: None, next: Some(at("2026-11-21T12:20:00Z")), is_kept: false });
    let both = patched(
        &marked,
        &mark("b", "spot").with_return_sign(Some(ReturnSign::Boot)).patch(&marked, &settings).unwrap(),
    );

    let release = due(&both, "2026-11-21T12:20:00Z").unwrap();
    assert_eq!(release.reason, UndoReason::Expired);
    let patch = release.patch(&both, &settings);
    let mut held = patched(&both, &patch.body);
    assert!(!patch.uncordons && held.cordoned && held.labels[KIND_LABEL] == "spot", "the other notice holds it");

    held.boot = "boot-2".into();
    held.ready = false;
    assert_eq!(schedule(&held, "2026-11-21T13:00:00Z"), NOTHING, "not Ready yet");
    held.ready = true;
    let unseen = due(&held, "2026-11-21T13:00:00Z").unwrap().patch(&held, &settings);
    let unseen = patched(&held, &unseen.body);
    assert_eq!(
        unseen.record.texts(),
        &[("ebbtide/booted".to_owned(), "2026-11-21T13:00:00Z".to_owned())].into(),
        "the Ready condition does not show the restart"
    );
    assert!(
        restarted_after(&unseen, at("2026-11-21T12:59:59Z")) && !restarted_after(&unseen, at("2026-11-21T13:00:00Z"))
    );
    let again = Node { boot: "boot-3".into(), ..unseen };
    assert!(restarted_after(&again, at("2026-11-21T12:59:59Z")), "one more restart, which nobody noted");
    held.ready_since = Some(at("2026-11-21T12:50:00Z"));
    let release = due(&held, "2026-11-21T13:00:00Z").unwrap();
    assert_eq!(release.reason, UndoReason::Rebooted);
    let patch = release.patch(&held, &settings);
    let released = patched(&held, &patch.body);
    assert!(patch.uncordons && !released.cordoned && released.taints.is_empty());
    assert!(released.record.texts().is_empty() && released.labels.is_empty());

    held.ready_since = None;
    held.boot = "boot-1".into();
    assert_eq!(schedule(&held, "2026-11-21T13:00:00Z"), NOTHING);
    let frozen = patched(
        &node,
        &mark("h", "spot")
            .with_return_sign(Some(ReturnSign::Ready))
            .with_deadline(Some(at("2026-11-21T12:00:00Z")))
            .patch(&node, &settings)
            .unwrap(),
    );
    let resumed = Node { ready_since: Some(at("2026-11-21T12:30:00Z")), ..frozen.clone() };
    assert_eq!(schedule(&frozen, "2026-11-21T13:00:00Z"), NOTHING);
    assert_eq!(due(&resumed, "2026-11-21T13:00:00Z").unwrap().reason, UndoReason::Rebooted);

    assert_eq!(NodeRelease::after_uncordon(&held), None);
    held.cordoned = false;
    assert_eq!(NodeRelease::after_uncordon(&held).unwrap().reason, UndoReason::Uncordoned);

    held.boot = "boot-2".into();
    held.ignored = true;
    assert_eq!(schedule(&held, "2026-11-21T13:00:00Z"), NOTHING, "left to its owner");
    assert_eq!(NodeRelease::after_uncordon(&held), None);
}

#[test]
fn a_mark_that_was_edited_holds_its_node() {
    let mut node = Node::for_tests("node-1");
    node.record.insert(format!("{NOTICE_PREFIX}x"), "{ not JSON".to_owned());
    node.boot = "boot-2".into();
    assert_eq!(schedule(&node, "2026-11-21T12:00:00Z"), NOTHING);
}

#[test]
fn the_out_of_service_taint_comes_with_its_mark() {
    let node = Node::for_tests("node-1");
    let mark = mark("a", "state-change").with_out_of_service_taint();
    let marked = patched(&node, &mark.patch(&node, &MarkSettings::default()).unwrap());
    let named: Vec<_> =
        marked.taints.iter().map(|taint| (&*taint.key, taint.value.as_deref(), &*taint.effect)).collect();
    assert_eq!(named, [("node.kubernetes.io/out-of-service", Some("nodeshutdown"), "NoExecute")]);
}

#[test]
fn a_change_that_is_put_off_rewrites_its_mark() {
    let (node, settings) = (Node::for_tests("node-1"), MarkSettings::default());
    let starting = |start| mark("h", "scheduled-change").with_start(Some(at(start)), false);
    let marked = patched(&node, &starting("2026-12-05T02:00:00.5Z").patch(&node, &settings).unwrap());
    assert_eq!(starting("2026-12-05T02:00:00Z").patch(&marked, &settings), None);
    let put_off = patched(&marked, &starting("2026-12-12T02:00:00Z").patch(&marked, &settings).unwrap());
    assert_eq!(put_off.record.notices().next().unwrap().1.start, Some(at("2026-12-12T02:00:00Z")));
}

#[test]
fn a_withdrawal_removes_its_own_mark_unless_that_is_newer() {
    let (node, settings) = (Node::for_tests("node-1"), MarkSettings::default());
    let marked = patched(&node, &mark("h", "scheduled-change").patch(&node, &settings).unwrap());
    let of = |name: &str, when| NodeRelease::of_withdrawn(&marked, NoticeKey::of(name), withdrawal(when), false);
    assert_eq!(of("h", "2026-11-21T12:00:00Z").unwrap().reason, UndoReason::Withdrawn);
    assert_eq!((of("other", "2026-11-21T13:00:00Z"), of("h", "2026-11-21T11:59:59Z")), (None, None));
    let mut planned = Node::for_tests("node-1");
    let plan = r#"{"v":1,"since":"2026-11-21T12:00:00Z","start":"2026-12-21T12:00:00Z","work":"planned","kept":{}}"#;
    planned.record.insert(name(NOTICE_PREFIX, NoticeKey::of("h")), plan.to_owned());
    let of = |when| NodeRelease::of_withdrawn(&planned, NoticeKey::of("h"), withdrawal(when), false).is_some();
    assert_eq!((of("2026-11-21T12:00:00Z"), of("2026-11-21T11:59:59Z")), (true, false));
}

#[test]
fn a_withdrawal_leaves_a_note_for_two_weeks() {
    let node = Node::for_tests("node-1");
    let withdraw = |node: &Node, name: &str, when| {
        let release = NodeRelease::of_withdrawn(node, NoticeKey::of(name), withdrawal(when), true)?;
        assert!(!release.has_marks());
        Some(patched(node, &release.patch(node, &MarkSettings::default()).body))
    };
    let noted = withdraw(&node, "h", "2026-11-21T12:00:00.5Z").unwrap();
    let since = |node: &Node, name: &str| node.record.get(NoticeKey::of(name))?.since;
    assert_eq!(since(&noted, "h"), Some(at("2026-11-21T12:00:00Z")));
    assert!(!noted.cordoned && withdraw(&noted, "h", "2026-11-21T12:00:00Z").is_none(), "it is known");
    let later = withdraw(&noted, "i", "2026-12-06T12:00:00Z").unwrap();
    assert_eq!((since(&later, "h"), since(&later, "i").is_some()), (None, true));
}

/// docs/agent.md: a hook's message goes on where the Node's hint has come to.
#[test]
fn the_mark_of_a_hooks_message_takes_the_place_of_the_nodes_word_and_not_the_other_way() {
    let (node, settings) = (Node::for_tests("node-1"), MarkSettings::default());
    let at = at("2026-11-21T12:00:00Z");
    let hint = Mark::new(NoticeKey::of("node/asg-terminate/i-1"), "asg-terminate", at, "node/asg-terminate");
    let spot = Mark::new(NoticeKey::of("spot:1"), "spot", at, "node/spot");
    let own = Mark::new(NoticeKey::of("group/hook/token"), "asg-terminate", at, "m-1");
    let said = patched(&node, &hint.patch(&node, &settings).unwrap());
    let said = patched(&said, &spot.patch(&said, &settings).unwrap());
    assert!(!said.record.is_termination_announced());
    let told = patched(&said, &own.patch(&said, &settings).unwrap());
    let (mut keys, mut left): (Vec<_>, _) = (keys(&told).collect(), [own.key, spot.key]);
    keys.sort();
    left.sort();
    assert_eq!((keys, told.record.is_termination_announced()), (left.to_vec(), true), "the other marks stay");
    assert_eq!(hint.patch(&told, &settings), None);
}

#[test]
fn a_full_node_carries_a_drain_in_place_of_its_oldest_cordon() {
    let (mut node, settings) = (Node::for_tests("node-1"), MarkSettings::default());
    let time = |minute: u32| at(&format!("2026-11-21T12:{minute:02}:00Z"));
    for n in 0..64_u32 {
        assert!(!node.record.is_full_of(Work::Ended), "{n} marks leave room");
        let cordon = Mark::new(NoticeKey::of(&format!("r-{n}")), "rebalance", time((n + 7) % 60), "m");
        node = patched(&node, &cordon.patch(&node, &settings).unwrap());
    }
    assert!(node.record.is_full_of(Work::Open) && !node.record.is_full_of(Work::Handled));
    let cordon = Mark::new(NoticeKey::of("another"), "rebalance", time(59), "m");
    assert_eq!(cordon.patch(&node, &settings), None, "a cordon gives way to none");
    let drain = Mark::new(NoticeKey::of("drain"), "spot", time(59), "m").with_deadline(Some(time(59)));
    let drained = patched(&node, &drain.patch(&node, &settings).unwrap());
    let has = |name: &str| drained.record.notice(NoticeKey::of(name)).is_some();
    assert_eq!((keys(&drained).count(), has("drain"), has("r-53")), (64, true, false), "r-53 is the oldest");
}

#[test]
fn only_a_kind_that_waits_for_a_restart_awaits_one() {
    let (node, settings) = (Node::for_tests("node-1"), MarkSettings::default());
    let rebalance = mark("r", "rebalance");
    let change = mark("c", "scheduled-change").with_return_sign(Some(ReturnSign::Boot));
    let mut marked = patched(&node, &rebalance.patch(&node, &settings).unwrap());
    marked = patched(&marked, &change.patch(&marked, &settings).unwrap());
    let awaits = |node: &Node| ["rebalance", "scheduled-change", "spot"].map(|kind| awaits_boot(node, kind));
    assert_eq!(awaits(&marked), [false, true, false]);
    marked.boot = "another".into();
    assert_eq!(awaits(&marked), [false; 3]);
}

#[test]
fn evictions_that_have_begun_go_on_when_the_mark_is_written_again() {
    let (mut node, settings) = (Node::for_tests("node-1"), MarkSettings::default());
    let key = NoticeKey::of("a");
    let write = |node: &mut Node, start: &str| {
        let mark = mark("a", "rebalance").with_deadline(Some(at("2026-11-21T12:50:00Z")));
        let patch = mark.with_start(Some(at(start)), false).in_wave().patch(node, &settings).unwrap();
        *node = patched(node, &patch);
        node.record.notice(key).and_then(|known| known.place)
    };
    assert_eq!(write(&mut node, "2026-11-21T12:30:00Z"), Some(Place::Waits));
    assert_eq!(write(&mut node, "2026-11-21T12:31:00Z"), Some(Place::Waits), "AWS has revised the notice");
    let evicts = Place::Evicts(at("2026-11-21T12:10:00Z"));
    node.record.revise(key, |record| record.placed(evicts, None));
    assert_eq!(write(&mut node, "2026-11-21T12:32:00Z"), Some(evicts));
    node.boot = "another".into();
    assert_eq!(write(&mut node, "2026-11-21T12:32:00Z"), Some(Place::Waits), "the node has restarted");
}

/// docs/draining.md: a record of another version is held.
#[test]
fn a_record_of_another_version_holds_the_node_and_is_never_rewritten() {
    let settings = MarkSettings::default();
    let own = mark("a", "spot").with_deadline(Some(at("2026-11-21T12:02:00Z")));
    let key = name(NOTICE_PREFIX, NoticeKey::of("a"));
    let written = patched(&Node::for_tests("node-1"), &own.patch(&Node::for_tests("node-1"), &settings).unwrap());
    for text in ["{", r#"{"v":1,"back":"sleep"}"#, &written.record.text(&key).unwrap().replace("\"v\":1", "\"v\":2")] {
        let mut node = written.clone();
        node.record.insert(key.clone(), text);
        assert_eq!((node.record.is_held(), node.record.is_drained()), (true, false), "{text}");
        assert_eq!((own.patch(&node, &settings), schedule(&node, "2999-01-01T00:00:00Z")), (None, NOTHING), "{text}");
        node.cordoned = false;
        let cordoned = patched(&node, &own.patch(&node, &settings).unwrap());
        assert_eq!((cordoned.cordoned, cordoned.record.text(&key)), (true, Some(text)));
        let release = NodeRelease::after_uncordon(&node).unwrap();
        assert!(patched(&node, &release.patch(&node, &settings).body).record.texts().is_empty(), "{text}");
    }
}

/// docs/marks.md shows the two annotations as the code writes them.
#[test]
fn the_documented_annotations_are_those_that_are_written() {
    let page = include_str!("../../../../docs/marks.md");
    let shown = |name: &str| {
        let line = page.lines().find_map(|line| line.trim().strip_prefix(name)).expect("the page must show it");
        line.split('\'').nth(1).expect("the value must be quoted").to_owned()
    };
    let notice = shown("ebbtide/notice.");
    assert_eq!(text(&serde_json::from_str::<NoticeRecord>(&notice).unwrap()), notice);
    let undo = shown("ebbtide/undo: ");
    let known: Undo = serde_json::from_str(&undo).expect("the code must read what the page shows");
    assert_eq!(text(&known), undo);
    assert!(known.taints.len() == 1 && taint(&known.taints[0]).is_ok(), "{undo}");
}
