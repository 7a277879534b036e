//! What Events and the condition say. Pure.

use super::Held;
use std::fmt::{Display, Write};

/// The longest note that the API takes of an Event, in bytes.
pub(super) const LONGEST: usize = 1024;

/// So many pods are named; the others are counted.
const NAMED: usize = 3;

/// An object's name has at most so many bytes.
const LONGEST_NAME: usize = 253;

/// Who is held back by what, and until when: one sentence of at most [`LONGEST`] bytes. `until` is always said whole.
pub(super) fn held_back(held: &[Held], until: &str) -> String {
    let mut text = String::new();
    for (place, Held { pod, by }) in held.iter().take(NAMED).enumerate() {
        let verb = if place == 0 { " is held back by: " } else { " by: " };
        let between = if place == 0 { "" } else { "; " };
        // Writing to a String can't fail.
        let _ = write!(text, "{between}{}/{}{verb}{}", pod.namespace, pod.name, by.trim_end_matches('.'));
    }
    if held.len() > NAMED {
        let _ = write!(text, "; and {} more", held.len() - NAMED);
    }
    format!("{}; {until}", bounded(&text, LONGEST.saturating_sub(until.len() + 2)))
}

/// What holds one pod back, for those who look at the pod: at most [`LONGEST`] bytes.
pub(super) fn eviction_blocked(node: &str, by: &str, until: &str) -> String {
    let by = by.trim_end_matches('.');
    bounded(&format!("node {node} is being drained, and this pod is held back by: {by}; {until}"), LONGEST)
}

/// What becomes of pods that are held back: `at` is the deadline in wall time.
pub(super) fn until(at: jiff::Timestamp, hard: bool) -> String {
    let at = at.strftime("%Y-%m-%dT%H:%M:%SZ");
    if hard {
        format!("at {at} the node goes, and what is still on it then ends with it")
    } else {
        format!("evictions are tried until {at}, and what is still held back then stays")
    }
}

/// What a drain does that has begun.
pub(super) fn begun(pods: usize, until: jiff::Timestamp) -> String {
    let (pods, are) = match pods {
        1 => ("1 pod".to_owned(), "is"),
        pods => (format!("{pods} pods"), "are"),
    };
    format!("{pods} {are} being evicted; until {} at the latest", until.strftime("%Y-%m-%dT%H:%M:%SZ"))
}

/// A fixed word as Kubernetes writes reasons: `timed-out` becomes `TimedOut`.
pub(super) fn reason(word: &str) -> String {
    word.split('-')
        .filter_map(|part| {
            let first = part.chars().next()?;
            Some(format!("{}{}", first.to_ascii_uppercase(), &part[first.len_utf8()..]))
        })
        .collect()
}

/// A name for an Event about the object of this name: `unique` keeps it apart from all others.
pub(super) fn event_name(about: &str, unique: u64) -> String {
    let about = &about[..about.floor_char_boundary(LONGEST_NAME - ".0123456789abcdef".len())];
    format!("{}.{unique:016x}", about.trim_end_matches(['.', '-']))
}

/// The text, in at most `most` bytes; what is too long ends in "…". No more of it is written than has room.
pub(super) fn bounded(text: &dyn Display, most: usize) -> String {
    const MORE: &str = "…";
    let mut room = Room { text: String::new(), most };
    if write!(room, "{text}").is_err() {
        room.text.truncate(room.text.floor_char_boundary(most.saturating_sub(MORE.len())));
        room.text.push_str(MORE);
    }
    room.text
}

/// A text that refuses what has no room.
struct Room {
    text: String,
    most: usize,
}

impl Write for Room {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let left = self.most.saturating_sub(self.text.len());
        self.text.push_str(&part[..part.floor_char_boundary(left)]);
        if part.len() > left { Err(std::fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Subject;
    use super::*;

    fn held(names: &[&str]) -> Vec<Held> {
        let pod = |name: &&str| Subject {
            kind: "Pod",
            namespace: "default".into(),
            name: (*name).into(),
            uid: (*name).into(),
        };
        names.iter().map(|name| Held { pod: pod(name), by: format!("budget of {name}.").into() }).collect()
    }

    #[test]
    fn three_pods_are_named_and_the_others_counted() {
        assert_eq!(held_back(&held(&["a"]), "until noon"), "default/a is held back by: budget of a; until noon");
        let text = held_back(&held(&["a", "b", "c", "d", "e", "f", "g"]), "until noon");
        let expected = "default/a is held back by: budget of a; default/b by: budget of b; default/c by: budget of c; \
                        and 4 more; until noon";
        assert_eq!(text, expected);
    }

    #[test]
    fn however_long_the_names_the_deadline_is_said() {
        let long = "ä".repeat(700);
        let text = held_back(&held(&[&long, "b"]), "until noon");
        assert!(text.ends_with("…; until noon") && text.len() <= LONGEST && text.len() > LONGEST - 3, "{text}");
    }

    #[test]
    fn the_deadline_says_what_becomes_of_the_pods() {
        let at = "2026-11-21T12:02:00.7Z".parse().unwrap();
        assert_eq!(until(at, true), "at 2026-11-21T12:02:00Z the node goes, and what is still on it then ends with it");
        assert!(until(at, false).starts_with("evictions are tried until 2026-11-21T12:02:00Z, "));
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
