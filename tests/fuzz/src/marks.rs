//! Annotations of Nodes, which anybody with the right to edit Nodes can write: what is written is read again, every mark can be undone,
//! and what was not Ebbtide's stays.

use ebbtide::fact::UndoReason;
use ebbtide::pipeline::{
    AskedReplacement, HookState, Mark, MarkSettings, Node, NodeRelease, NodeScope, NoticeKey, NoticeRecord, ReturnSign,
    plan, taint,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// Identity of the notice whose mark is written.
const IDENTITY: &str = "event-1";

/// Annotations that a full release removes or leaves, besides marks: notes of holds, replacements, restarts.
const NOTES: [&str; 7] = [
    "ebbtide/undo",
    "ebbtide/hold",
    "ebbtide/release",
    "ebbtide/held",
    "ebbtide/replacement",
    "ebbtide/booted",
    "ebbtide/replaces",
];

/// Rounds after which nothing is due any more: one for each reason.
const MAX_ROUNDS: usize = 3;

/// Reads the first line as properties of a Node and of a mark, each other line as an annotation: a letter, and its value.
pub fn check(text: &str) {
    let (options, lines) = text.split_once('\n').unwrap_or((text, ""));
    let has = |option: char| options.contains(option);
    let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).expect("the time must be one");
    let now = at(options.len() as i64 * 600);

    let mut sign = None;
    if has('b') {
        sign = Some(ReturnSign::Boot);
    }
    if has('B') {
        sign = Some(ReturnSign::Ready);
    }
    let mut mark = Mark::new(NoticeKey::of(IDENTITY), "spot", at(0), "message-1")
        .with_deadline(has('d').then(|| at(120)))
        .with_start(has('s').then(|| at(600)), has('t'))
        .with_hook(if has('h') { HookState::None } else { HookState::Waits })
        .with_expiry(has('e').then(|| at(1200)))
        .with_return_sign(sign);
    if has('o') {
        mark = mark.with_out_of_service_taint();
    }
    let taints =
        if has('t') { vec![taint("ebbtide/going=now:NoSchedule").expect("the taint must be one")] } else { Vec::new() };
    let rules = MarkSettings { taints, exclude_from_load_balancers: has('x'), ..MarkSettings::default() };

    let wire = node(options, lines, &mark);
    let read_node = read(&wire);
    write_and_undo(&mark, &rules, &wire, lines.is_empty());
    let size = 8 * text.len() + 4096;
    let mut left = wire.clone();
    for round in 0.. {
        let Some(release) = NodeRelease::schedule(&read(&left), now).due else { break };
        assert!(round < MAX_ROUNDS && release.has_marks(), "{release:?} of {left}");
        let patch = release.patch(&read(&left), &rules).body;
        assert!(patch.to_string().len() <= size, "{patch}");
        let after = merged(&left, &patch);
        assert!(marks(&after) < marks(&left), "{patch} removes no mark from {left}");
        left = after;
    }
    if let Some(release) = NodeRelease::after_uncordon(&read_node) {
        let after = merged(&wire, &release.patch(&read_node, &rules).body);
        assert_eq!((marks(&after), NodeRelease::after_uncordon(&read(&after))), (0, None), "{after}");
    }
    plans(&wire);
    replacement(&wire);
}

/// Writes a mark: once is enough; and undoes it, which restores a Node that had none.
fn write_and_undo(mark: &Mark, rules: &MarkSettings, wire: &Value, is_bare: bool) {
    let before = read(wire);
    let Some(patch) = mark.patch(&before, rules) else { return };
    let marked = merged(wire, &patch);
    let node = read(&marked);
    assert!(node.cordoned && marks(&marked) > 0, "{marked}");
    assert_eq!(mark.patch(&node, rules), None, "{patch} on {wire}");
    let key = NoticeKey::of(IDENTITY);
    if before.record.notice(key).is_some_and(NoticeRecord::is_unreadable) {
        let name = format!("ebbtide/notice.{key}");
        assert_eq!(node.record.text(&name), before.record.text(&name), "a record of another version is not rewritten");
        return;
    }
    let release =
        NodeRelease::of_kind(&node, "spot", Timestamp::MAX, UndoReason::Expired).expect("the mark must be there");
    let undone = merged(&marked, &release.patch(&node, rules).body);
    assert_eq!(NodeRelease::of_kind(&read(&undone), "spot", Timestamp::MAX, UndoReason::Expired), None, "{undone}");
    let others = |node: &Node| {
        let mut taints: Vec<_> = node.taints.iter().map(|taint| (taint.key.clone(), taint.effect.clone())).collect();
        taints.sort();
        (node.name.clone(), node.instance.clone(), taints, node.cordoned)
    };
    if is_bare {
        let mut expected = wire.clone();
        let labels = expected["metadata"]["labels"].as_object_mut().expect("a Node must have labels");
        labels.remove("ebbtide/kind");
        assert_eq!(plain(&undone), plain(&expected), "by way of {marked}");
        assert_eq!(others(&read(&undone)), others(&before));
    }
}

/// Writes each plan of the Node: it is read as it was written, makes the notice that it was made of, and can be removed.
fn plans(wire: &Value) {
    let node = read(wire);
    for kept in node.record.kept().cloned().collect::<Vec<_>>() {
        let Some(notice) = plan::notice(&kept, &node.instance) else { continue };
        let own = plan::of(&notice, "message-1").expect("a change that is kept has a start");
        assert_eq!(plan::notice(&own, &node.instance), Some(notice));
        let Some(patch) = plan::patch(&own, &node) else { continue };
        let written = merged(wire, &patch);
        let node = read(&written);
        if patch.to_string().contains("also") {
            // It has joined the record of another source.
            assert_eq!(plan::patch(&own, &node), None, "{written}");
            continue;
        }
        assert!(node.record.kept().any(|read| *read == own), "{own:?} in {written}");
        assert_eq!(plan::patch(&own, &node), None, "{written}");
        let removal = plan::removal(&own, &node).expect("the plan must be there");
        assert_eq!(plan::removal(&own, &read(&merged(&written, &removal))), None);
    }
}

/// Notes a replacement, that it is late, and forgets it.
fn replacement(wire: &Value) {
    let node = read(wire);
    let asked = AskedReplacement::of(&node).unwrap_or_else(|| AskedReplacement::new("workers", Timestamp::UNIX_EPOCH));
    let noted = asked.patch(&node).map_or_else(|| wire.clone(), |patch| merged(wire, &patch));
    assert_eq!(AskedReplacement::of(&read(&noted)).as_ref(), Some(&asked), "{noted}");
    let late = merged(&noted, &AskedReplacement::late(&read(&noted)).expect("the note must be there"));
    assert_eq!(AskedReplacement::of(&read(&late)), Some(AskedReplacement { late: true, ..asked }));
    let removal = AskedReplacement::removal(&read(&late)).expect("the note must be there");
    assert_eq!(AskedReplacement::of(&read(&merged(&late, &removal))), None);
}

/// Returns a Node on the wire.
fn node(options: &str, lines: &str, mark: &Mark) -> Value {
    let has = |option: char| options.contains(option);
    let mut annotations = json!({ "other/owner": "stays" });
    let mut wire = json!({
        "metadata": {
            "name": "node-1", "uid": "u-1", "resourceVersion": "7", "creationTimestamp": "2026-11-21T10:00:00Z",
            "labels": { "kubernetes.io/hostname": "node-1" },
        },
        "spec": { "providerID": "aws:///eu-west-1a/i-0123456789abcdef0" },
        "status": {
            "conditions": [{
                "type": "Ready", "status": if has('R') { "False" } else { "True" }, "lastTransitionTime": "2027-01-15T08:10:00Z",
            }],
            "nodeInfo": { "bootID": if has('2') { "boot-2" } else { "boot-1" } },
        },
    });
    if has('c') {
        wire["spec"]["unschedulable"] = json!(true);
    }
    if has('i') {
        annotations["ebbtide/ignore"] = json!("true");
    }
    if has('T') {
        wire["spec"]["taints"] = json!([{ "key": "ebbtide/going", "value": "theirs", "effect": "NoSchedule" }, { "key": "a", "effect": "NoExecute" }]);
    }
    if has('X') {
        wire["metadata"]["labels"]["node.kubernetes.io/exclude-from-external-load-balancers"] = json!("theirs");
    }
    let own = mark.patch(&read(&wire), &MarkSettings::default()).expect("a Node without a mark must get one");
    let own = own["metadata"]["annotations"]
        .as_object()
        .and_then(|all| all.keys().find(|key| key.contains("/notice.")))
        .cloned();
    for line in lines.split('\n').filter(|line| !line.is_empty()) {
        let kind = line.chars().next().expect("a line must not be empty");
        let value = &line[kind.len_utf8()..];
        let name = match kind {
            'n' => own.clone().expect("a mark must have a name"),
            'N' => "ebbtide/notice.0123456789abcdef".to_owned(),
            'w' => "ebbtide/notice.1123456789abcdef".to_owned(),
            'h' => "ebbtide/notice.2123456789abcdef".to_owned(),
            'p' | 'P' => "ebbtide/notice.fedcba9876543210".to_owned(),
            digit @ '0'..='6' => NOTES[digit as usize - '0' as usize].to_owned(),
            _ => continue,
        };
        // Of this version, unless it names another.
        let is_record = name.contains("/notice.") && !value.contains("\"v\":");
        let value = if is_record { value.replacen('{', "{\"v\":1,", 1) } else { value.to_owned() };
        annotations[name] = json!(value);
    }
    wire["metadata"]["annotations"] = annotations;
    wire
}

fn read(wire: &Value) -> Node {
    let object = serde_json::from_value(wire.clone()).expect("the API server must send Nodes");
    Node::from_wire(object, &NodeScope::default(), |_| false, &[], &[]).expect("it must be an EC2 instance")
}

fn marks(wire: &Value) -> usize {
    read(wire).record.notices().count()
}

/// Returns an object after a merge patch, as the API server applies it.
fn merged(object: &Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut fields: Map<String, Value> = object.as_object().cloned().unwrap_or_default();
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            let old = fields.get(name).cloned().unwrap_or_default();
            fields.insert(name.clone(), merged(&old, change));
        }
    }
    fields.into()
}

/// Returns a Node without what is empty, and without its version.
fn plain(wire: &Value) -> Value {
    match wire {
        Value::Object(fields) => {
            let kept = fields.iter().map(|(name, field)| (name.clone(), plain(field)));
            let is_empty = |field: &Value| match field {
                Value::Array(list) => list.is_empty(),
                Value::Object(fields) => fields.is_empty(),
                _ => false,
            };
            kept.filter(|(_, field)| !is_empty(field)).collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}
