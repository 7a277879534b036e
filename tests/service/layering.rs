//! Imports follow the picture in `src/lib.rs` and never go back. Read from the `use` lines.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What each module may import of its siblings.
const ALLOWED: [(&str, &[&str]); 27] = [
    ("clock", &[]),
    ("fact", &["clock", "gate", "task"]),
    ("task", &["fact"]),
    ("gate", &["fact"]),
    ("batch", &["task", "fact"]),
    ("event", &[]),
    ("queue", &["batch", "clock", "fact", "gate", "task"]),
    ("node", &["batch", "clock", "event", "fact", "gate", "object", "task", "watch"]),
    ("drain", &["clock", "fact", "gate", "node", "object", "task", "watch"]),
    ("object", &[]),
    ("watch", &["gate"]),
    ("interruption", &["clock", "drain", "event", "fact", "gate", "node", "task"]),
    ("ack", &["event", "fact", "interruption", "queue", "task"]),
    ("admin", &["fact", "task"]),
    ("collect", &["clock", "fact", "gate", "object"]),
    ("answer", &[]),
    ("input", &[]),
    ("cli", &[]),
    ("migrate", &["answer", "input", "settings"]),
    ("settings", &["cli", "drain", "event", "fact", "interruption", "node"]),
    ("trial", &["connect", "event", "fact", "gate", "interruption", "node", "queue"]),
    (
        "explain",
        &[
            "answer",
            "cli",
            "clock",
            "connect",
            "drain",
            "event",
            "fact",
            "gate",
            "input",
            "interruption",
            "node",
            "queue",
            "settings",
            "task",
            "trial",
        ],
    ),
    ("send", &["answer", "cli", "clock", "connect", "event", "fact", "gate", "node", "queue", "settings", "trial"]),
    (
        "doctor",
        &[
            "clock",
            "collect",
            "connect",
            "drain",
            "event",
            "fact",
            "gate",
            "interruption",
            "node",
            "object",
            "queue",
            "settings",
        ],
    ),
    ("signals", &["service"]),
    ("connect", &["clock"]),
    (
        "service",
        &[
            "ack",
            "admin",
            "clock",
            "collect",
            "connect",
            "doctor",
            "drain",
            "fact",
            "gate",
            "interruption",
            "node",
            "queue",
            "settings",
            "task",
        ],
    ),
];

/// Crates that may be named only in some modules.
const CRATES: [(&str, &[&str]); 10] = [
    ("serde_saphyr", &["connect", "migrate"]),
    ("aws_sdk_sqs", &["queue", "gate", "service", "connect", "doctor"]),
    ("aws_sdk_autoscaling", &["interruption", "service", "connect", "doctor"]),
    ("aws_sdk_ec2", &["node", "service", "connect", "doctor"]),
    ("aws_sdk_cloudwatch", &["connect", "doctor"]),
    ("aws_sdk_eventbridge", &["connect", "doctor"]),
    ("aws_sdk_sts", &["connect", "doctor"]),
    (
        "kube",
        &["object", "watch", "collect", "node", "drain", "fact", "gate", "service", "connect", "explain", "doctor"],
    ),
    (
        "tokio",
        &[
            "clock",
            "watch",
            "fact",
            "task",
            "gate",
            "batch",
            "queue",
            "node",
            "drain",
            "interruption",
            "ack",
            "collect",
            "admin",
            "signals",
            "service",
            "explain",
            "trial",
            "connect",
            "doctor",
        ],
    ),
    ("tracing", &["fact"]),
];

#[test]
fn imports_never_go_back() {
    let mut wrong = Vec::new();
    for (module, path, text) in sources() {
        let allowed = ALLOWED.iter().find(|(name, _)| *name == module).map(|(_, allowed)| *allowed);
        let allowed = allowed.unwrap_or_else(|| panic!("{module} has no place in the picture: give it one"));
        for imported in siblings(&text) {
            if imported != module && !allowed.contains(&imported.as_str()) {
                wrong.push(format!("{path} imports {imported}"));
            }
        }
        for (name, places) in CRATES {
            let named = text.lines().any(|line| {
                code(line)
                    .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .collect::<Vec<_>>()
                    .windows(2)
                    .any(|pair| pair[0] == name && line.contains(&format!("{name}::")))
            });
            if named && !places.contains(&module.as_str()) {
                wrong.push(format!("{path} names the crate {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_file_is_too_long_to_be_read_in_one_go() {
    let long: Vec<_> = sources()
        .into_iter()
        .map(|(_, path, text)| (path, text.lines().take_while(|line| *line != "#[cfg(test)]").count()))
        .filter(|(_, lines)| *lines > 400)
        .collect();
    assert!(long.is_empty(), "{long:?}");
}

/// Every source file below `src/` but the crate roots: its module, its path, its text without tests.
fn sources() -> Vec<(String, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("src must be readable") {
            let path = entry.expect("an entry must be readable").path();
            let inside = path.strip_prefix(&root).expect("it must lie in src").to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !matches!(inside.as_str(), "lib.rs" | "main.rs") && !inside.contains("tests") {
                let module = inside.split(['/', '.']).next().expect("a path must begin").to_owned();
                let text = fs::read_to_string(&path).expect("a source must be text");
                let text = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
                found.push((module, inside, text));
            }
        }
    }
    assert!(found.len() > 25, "the sources were found");
    found
}

/// The siblings that a text names as `crate::NAME`.
fn siblings(text: &str) -> BTreeSet<String> {
    let names = text.lines().flat_map(|line| {
        let after = code(line).split("crate::").skip(1).map(str::to_owned).collect::<Vec<_>>();
        after.into_iter().map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>())
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}
