#![allow(clippy::needless_pass_by_value, reason = "json! makes values")]

use super::*;
use serde_json::{Value, json};

const NOW: &str = "2026-11-23T11:20:00Z";

fn form() -> Form {
    Form { width: 100, colours: false, all: false }
}

/// Returns a report with these parts.
fn report(health: (&str, &str), interruptions: Value, storms: Value, replicas: Value) -> Report {
    let day = json!({ "since": NOW, "minutesPerSlot": 10, "notices": [], "failed": [] });
    let report = json!({
        "version": 1, "time": NOW, "program": "0.1.0", "dryRun": false,
        "health": { "state": health.0, "text": health.1 },
        "replicas": replicas, "interruptions": interruptions, "storms": storms, "day": day, "pools": [],
        "ofANewerVersion": true,
    });
    serde_json::from_value(report).unwrap()
}

fn row(node: &str, changed: Value) -> Value {
    let mut row = json!({
        "id": format!("a/{node}"), "replica": "a", "message": "m", "kind": "spot", "action": "drain", "instance": "i-1",
        "node": node, "copies": 0, "since": "2026-11-23T11:19:00Z", "deadline": "2026-11-23T11:21:26Z", "hard": true,
        "phase": "draining", "drains": [], "waits": [], "heartbeats": null, "hook": null, "problem": null, "ended": null,
    });
    row.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
    row
}

fn drain(gone: usize, pods: usize, blocked: Value) -> Value {
    json!([{
        "node": "n", "since": NOW, "deadline": "2026-11-23T11:21:00Z", "hard": true, "pods": pods, "gone": gone, "leftAlone": 1,
        "blocked": blocked, "blockedMore": 0, "outcome": null,
    }])
}

#[test]
fn a_calm_night_is_two_lines() {
    let replica = json!([{ "name": "a", "here": true, "ready": true, "started": NOW, "nodes": 1,
        "queue": { "held": 0, "oldestSeconds": 9.1, "failing": null }, "silent": null }]);
    let calm = report(("ok", "All is well. Nothing is being drained."), json!([]), json!([]), replica);
    let shown = "ok: All is well. Nothing is being drained.\n1 replica, 1 node; 0 messages held\n";
    assert_eq!(of(&calm, form()), shown);
    assert_eq!(headline(&calm, true), "\x1b[1;32mok\x1b[0m: All is well. Nothing is being drained.");
}

fn two_replicas() -> Value {
    json!([
        { "name": "a", "here": true, "ready": true, "started": "2026-11-23T09:20:00Z", "nodes": 12,
          "queue": { "held": 3, "oldestSeconds": 4.7, "failing": null }, "silent": null },
        { "name": "b", "here": false, "ready": null, "started": null, "nodes": null, "queue": null, "silent": "no answer within 2s" },
    ])
}

#[test]
fn the_blocked_drain_comes_first_with_who_blocks_it() {
    let by = "The disruption budget db needs 2 healthy pods and has 2 currently";
    let blocked = json!([{ "pod": "default/db-0", "by": by, "since": "2026-11-23T11:19:50Z", "advice": "Make another pod Ready." }]);
    let wait = json!([{ "wait": "volumes", "reason": "attached: pv-1", "since": NOW, "until": NOW }]);
    let rows = json!([
        row("node-1", json!({ "drains": drain(1, 4, json!([])) })),
        row("node-2", json!({ "drains": drain(1, 2, blocked) })),
        row("node-3", json!({ "phase": "waiting", "waits": wait, "deadline": null })),
        row("node-4", json!({ "phase": "received", "problem": "the cordon fails: denied", "deadline": NOW })),
    ]);
    let shown = report(("blocked", "The drain of node-2 is blocked."), rows, json!([]), json!([two_replicas()[0]]));
    assert_eq!(
        of(&shown, form()),
        "blocked: The drain of node-2 is blocked.\n\
         1 replica, 12 nodes; 3 messages held, received 4s after they were sent at most\n\
         \n\
         NODE    KIND  LEFT  PODS  STATE     WHY\n\
         node-2  spot  1m    1/2   blocked   default/db-0: The disruption budget db needs 2 healthy pods and…\n\
         node-3  spot              waiting   volumes: attached: pv-1\n\
         node-4  spot  over        received  the cordon fails: denied\n\
         node-1  spot  1m    1/4   draining\n\
         \n\
         blocked\n\
         node-2: default/db-0 is held back: The disruption budget db needs 2 healthy pods and has 2 currently\n\
         \x20 Make another pod Ready.\n"
    );
}

#[test]
fn ended_ones_storms_and_replicas_follow() {
    let end = |at: &str, outcome: &str| json!({ "at": at, "outcome": outcome, "failed": false, "report": "3 of 3 pods gone", "waited": "" });
    let ended = |node, at| row(node, json!({ "phase": "ended", "ended": end(at, "drained") }));
    let rows = json!([ended("node-1", "2026-11-23T11:19:30Z"), ended("node-2", "2026-11-23T09:00:00Z")]);
    let storms = json!([{
        "id": "a/s", "replica": "a", "since": "2026-11-23T10:00:00Z", "until": "2026-11-23T10:02:00Z", "notices": 1000, "running": 0,
        "ended": 1000, "inTime": 998, "failed": 2, "kinds": { "spot": 1000 }, "slowest": null,
        "failures": [{ "node": "node-7", "kind": "spot", "outcome": "blocked" }], "failuresMore": 1,
    }]);
    let shown = report(("ok", "All is well."), rows, storms, two_replicas());
    assert_eq!(
        of(&shown, form()),
        "ok: All is well.\n\
         2 replicas, 12 nodes; 3 messages held, received 4s after they were sent at most\n\
         \n\
         ended in the last hour\n\
         NODE    KIND  AGO  TOOK  OUTCOME  REPORT\n\
         node-1  spot  30s  30s   drained  3 of 3 pods gone\n\
         \n\
         storms\n\
         AGO     STATE  NOTICES  IN TIME  FAILED  FAILURES\n\
         1h 20m  ended  1000     998      2       node-7 (blocked) and 1 more\n\
         \n\
         replicas\n\
         REPLICA  STATE   AGE  NODES  MESSAGES  WHY\n\
         a        ready   2h   12     3\n\
         b        silent                        no answer within 2s\n"
    );
    let all = of(&shown, Form { all: true, ..form() });
    assert!(all.contains("\nended\n") && all.contains("node-2"), "{all}");
}

#[test]
fn hostile_names_steer_no_terminal_and_no_line_is_too_long() {
    let name = format!("\x1b[2J\u{202e}evil\r\n{}", "x".repeat(300));
    let rows = json!([row(&name, json!({ "problem": "\x1b]0;title\x07".repeat(50) }))]);
    let shown = of(&report(("ok", "\x1b[31mred"), rows, json!([]), json!([])), form());
    assert!(!shown.contains(['\x1b', '\r', '\x07', '\u{202e}']), "{shown:?}");
    assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    assert!(shown.contains("\n?[2J?evil"), "{shown}");
}

#[test]
fn a_storm_of_a_thousand_names_twenty_ended_ones() {
    let end = json!({ "at": NOW, "outcome": "drained", "failed": false, "report": "", "waited": "" });
    let rows: Vec<Value> = (0..1000).map(|n| row(&format!("node-{n}"), json!({ "ended": end }))).collect();
    let shown = of(&report(("ok", ""), json!(rows), json!([]), json!([])), form());
    assert!(shown.ends_with("and 980 more; --all shows them\n") && shown.lines().count() < 30, "{shown}");
}
