//! The text of Events and of the condition. Pure.

use super::BlockedPod;
use crate::telemetry::bounded::bounded;
use std::fmt::Write;

/// Maximum length of an Event's note that the API accepts, in bytes.
pub(super) const MAX_NOTE_LENGTH: usize = 1024;

/// Maximum number of pods named; the others are counted.
const MAX_PODS_NAMED: usize = 3;

/// Maximum length of an object's name, in bytes.
const MAX_NAME_LENGTH: usize = 253;

/// Returns which pods are blocked, why, and until when: one sentence of at most [`MAX_NOTE_LENGTH`] bytes. `until` is never cut.
pub(super) fn blocked(pods: &[BlockedPod], until: &str) -> String {
    let mut text = String::new();
    for (place, BlockedPod { pod, reason }) in pods.iter().take(MAX_PODS_NAMED).enumerate() {
        let verb = if place == 0 { " is held back by: " } else { " by: " };
        let between = if place == 0 { "" } else { "; " };
        // Writing to a String can't fail.
        let _ = write!(text, "{between}{}/{}{verb}{}", pod.namespace, pod.name, reason.trim_end_matches('.'));
    }
    if pods.len() > MAX_PODS_NAMED {
        let _ = write!(text, "; and {} more", pods.len() - MAX_PODS_NAMED);
    }
    format!("{}; {until}", bounded(&text, MAX_NOTE_LENGTH.saturating_sub(until.len() + 2)))
}

/// Returns why one pod is blocked, for an Event of the pod: at most [`MAX_NOTE_LENGTH`] bytes.
pub(super) fn eviction_blocked(node: &str, reason: &str, until: &str) -> String {
    let reason = reason.trim_end_matches('.');
    bounded(&format!("node {node} is being drained, and this pod is held back by: {reason}; {until}"), MAX_NOTE_LENGTH)
}

/// Returns the deadline `at`, and what happens then to pods that are still blocked.
pub(super) fn until(at: jiff::Timestamp, hard: bool) -> String {
    let at = at.strftime("%Y-%m-%dT%H:%M:%SZ");
    if hard {
        format!("the node goes at {at}; pods that are left are deleted before, or with --at-deadline=leave end with it")
    } else {
        format!("evictions are tried until {at}; pods that are still held back then stay")
    }
}

/// Returns what a drain does that begins.
pub(super) fn begun(pods: usize, until: jiff::Timestamp) -> String {
    let (pods, are) = match pods {
        1 => ("1 pod".to_owned(), "is"),
        pods => (format!("{pods} pods"), "are"),
    };
    format!("{pods} {are} being evicted; until {} at the latest", until.strftime("%Y-%m-%dT%H:%M:%SZ"))
}

/// Returns the parts as one text of at most [`MAX_NOTE_LENGTH`] bytes.
pub(super) fn joined(parts: impl IntoIterator<Item = String>) -> String {
    bounded(&parts.into_iter().collect::<Vec<_>>().join("; "), MAX_NOTE_LENGTH)
}

/// Returns a fixed word in the form of a Kubernetes reason: `timed-out` becomes `TimedOut`.
pub(super) fn reason(word: &str) -> String {
    word.split('-')
        .filter_map(|part| {
            let first = part.chars().next()?;
            Some(format!("{}{}", first.to_ascii_uppercase(), &part[first.len_utf8()..]))
        })
        .collect()
}

/// Returns a name for an Event about the object of this name: `unique` makes it differ from all others.
pub(super) fn event_name(about: &str, unique: u64) -> String {
    let about = &about[..about.floor_char_boundary(MAX_NAME_LENGTH - ".0123456789abcdef".len())];
    format!("{}.{unique:016x}", about.trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::super::ObjectRef;
    use super::*;

    fn pods(names: &[&str]) -> Vec<BlockedPod> {
        let pod = |name: &&str| ObjectRef {
            kind: "Pod",
            namespace: "default".into(),
            name: (*name).into(),
            uid: (*name).into(),
        };
        names.iter().map(|name| BlockedPod { pod: pod(name), reason: format!("budget of {name}.").into() }).collect()
    }

    #[test]
    fn three_pods_are_named_and_the_others_counted() {
        assert_eq!(blocked(&pods(&["a"]), "until noon"), "default/a is held back by: budget of a; until noon");
        let text = blocked(&pods(&["a", "b", "c", "d", "e", "f", "g"]), "until noon");
        let expected = "default/a is held back by: budget of a; default/b by: budget of b; default/c by: budget of c; \
                        and 4 more; until noon";
        assert_eq!(text, expected);
    }

    #[test]
    fn however_long_the_names_the_deadline_is_said() {
        let long = "ä".repeat(700);
        let text = blocked(&pods(&[&long, "b"]), "until noon");
        assert!(
            text.ends_with("…; until noon") && text.len() <= MAX_NOTE_LENGTH && text.len() > MAX_NOTE_LENGTH - 3,
            "{text}"
        );
    }

    #[test]
    fn the_deadline_says_what_happens_to_the_pods() {
        let at = "2026-11-21T12:02:00.7Z".parse().unwrap();
        assert_eq!(
            until(at, true),
            "the node goes at 2026-11-21T12:02:00Z; pods that are left are deleted before, or with --at-deadline=leave end with it"
        );
        assert!(until(at, false).starts_with("evictions are tried until 2026-11-21T12:02:00Z; "));
        assert_eq!(begun(1, at), "1 pod is being evicted; until 2026-11-21T12:02:00Z at the latest");
        assert!(begun(0, at).starts_with("0 pods are "));
    }

    #[test]
    fn reasons_are_words_of_kubernetes() {
        assert_eq!(["drained", "timed-out", "node-gone"].map(reason), ["Drained", "TimedOut", "NodeGone"]);
    }

    #[test]
    fn names_of_events_are_valid_whatever_the_node_is_called() {
        assert_eq!(event_name("ip-10-0-0-1.ec2.internal", 255), "ip-10-0-0-1.ec2.internal.00000000000000ff");
        let name = event_name(&format!("{}.{}", "a".repeat(235), "b".repeat(17)), 1);
        assert_eq!(name, format!("{}.0000000000000001", "a".repeat(235)));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for (text, most, expected) in [("abc", 3, "abc"), ("abcd", 3, "…"), ("aääb", 5, "a…"), ("", 0, "")] {
            assert_eq!(bounded(&text, most), expected);
        }
    }
}
