//! Reads an instance's metadata into agent notices. Pure.

use crate::fact::AgentNoticeKind;
use crate::pipeline::node::AgentNotice;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde::Deserialize;
use serde_json::Value;

/// Parser of the times of scheduled events, such as `21 Jan 2019 09:00:43 GMT`.
const RFC_2822: rfc2822::DateTimeParser = rfc2822::DateTimeParser::new().relaxed_weekday(true);

/// Returns the path of the metadata about this kind.
pub(super) const fn path(kind: AgentNoticeKind) -> &'static str {
    match kind {
        AgentNoticeKind::Spot => "/latest/meta-data/spot/instance-action",
        AgentNoticeKind::Rebalance => "/latest/meta-data/events/recommendations/rebalance",
        AgentNoticeKind::Maintenance => "/latest/meta-data/events/maintenance/scheduled",
        AgentNoticeKind::Termination => "/latest/meta-data/autoscaling/target-lifecycle-state",
    }
}

#[derive(Deserialize)]
struct InstanceAction {
    action: String,
    time: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Recommendation {
    notice_time: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event {
    code: String,
    event_id: String,
    not_before: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    description: String,
}

impl Event {
    /// Reads an event and its start. `None` if it is nonsense, which hides no other event.
    fn read(event: Value) -> Option<(Timestamp, Self)> {
        let event: Self = serde_json::from_value(event).ok()?;
        Some((RFC_2822.parse_timestamp(&event.not_before).ok()?, event))
    }

    /// Whether it is still to come: EC2 lists what is over for up to a week.
    fn is_ahead(&self) -> bool {
        let is_over = ["[Completed]", "[Canceled]"].iter().any(|prefix| self.description.starts_with(prefix));
        matches!(&*self.state, "active" | "") && !is_over
    }
}

/// Whether a group has the instance in service, by the answer about [`AgentNoticeKind::Termination`].
pub(super) fn is_in_service(text: &str) -> bool {
    text.trim() == "InService"
}

/// Reads the answer about this kind, which may announce several events: the first to start comes first. `None` if the answer is
/// inconclusive, and `Err(())` if it is nonsense. `was_in_service`: an answer before this one was [`is_in_service`]. A group writes
/// `Warmed:…` for an instance that returns to its warm pool, and for one that is launched into it.
pub(super) fn read(kind: AgentNoticeKind, text: &str, was_in_service: bool) -> Result<Option<Vec<AgentNotice>>, ()> {
    let notice = |what: String, at, id| AgentNotice { what, at, id };
    let notice = match kind {
        AgentNoticeKind::Spot => {
            let InstanceAction { action, time } = serde_json::from_str(text).map_err(drop)?;
            notice(action, Some(time), String::new())
        }
        AgentNoticeKind::Rebalance => {
            let Recommendation { notice_time } = serde_json::from_str(text).map_err(drop)?;
            notice("rebalance".to_owned(), Some(notice_time), String::new())
        }
        AgentNoticeKind::Maintenance => {
            let events: Vec<Value> = serde_json::from_str(text).map_err(drop)?;
            let (mut ahead, mut nonsense) = (Vec::new(), false);
            for event in events {
                match Event::read(event) {
                    Some((at, event)) if event.is_ahead() => {
                        match notice(event.code, Some(at), event.event_id).checked(kind) {
                            Ok(notice) => ahead.push(notice),
                            Err(_) => nonsense = true,
                        }
                    }
                    Some(_) => {}
                    None => nonsense = true,
                }
            }
            ahead.sort_by(|one, other| (one.at, &one.id).cmp(&(other.at, &other.id)));
            return if nonsense && ahead.is_empty() { Err(()) } else { Ok(Some(ahead)) };
        }
        AgentNoticeKind::Termination => match text.trim() {
            state if state.len() >= 64 || !state.bytes().all(|b| b.is_ascii_alphanumeric() || b == b':') => {
                return Err(());
            }
            state if state.starts_with("Warmed:") && !was_in_service => return Ok(None),
            state if state == "Terminated" || state.starts_with("Warmed:") => {
                notice("terminate".to_owned(), None, String::new())
            }
            _ => return Ok(Some(Vec::new())),
        },
    };
    notice.checked(kind).map(|notice| Some(vec![notice])).map_err(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: AgentNoticeKind, text: &str) -> Result<Option<String>, ()> {
        let notice = read(kind, text, true)?.expect("it tells, after InService");
        Ok((!notice.is_empty()).then(|| AgentNotice::text(&notice)))
    }

    #[test]
    fn a_warm_pool_is_left_or_entered() {
        let kind = AgentNoticeKind::Termination;
        for state in ["Warmed:Stopped", "Warmed:Running\n", "Warmed:Hibernated", "Warmed:Terminated"] {
            assert_eq!(text(kind, state), Ok(Some(r#"{"what":"terminate"}"#.to_owned())), "{state}");
            assert_eq!(read(kind, state, false), Ok(None), "{state}");
            assert!(!is_in_service(state));
        }
        assert!(is_in_service("InService\n"));
        assert_eq!(read(kind, "InService", false), Ok(Some(Vec::new())));
    }

    #[test]
    fn what_the_metadata_say_is_said() {
        use AgentNoticeKind::{Maintenance, Rebalance, Spot, Termination};
        let events = r#"[
            {"NotBefore": "21 Jan 2029 09:00:43 GMT", "Code": "system-reboot", "Description": "scheduled reboot",
             "EventId": "instance-event-2", "NotAfter": "21 Jan 2029 09:17:23 GMT", "State": "active"},
            {"NotBefore": "5 Jan 2029 09:00:43 GMT", "Code": "instance-stop", "Description": "[Canceled] stop",
             "EventId": "instance-event-1", "State": "active"},
            {"NotBefore": "20 Jan 2029 09:00:43 GMT", "Code": "instance-retirement", "EventId": "instance-event-3"},
            {"NotBefore": "1 Jan 2029 09:00:43 GMT", "Code": "instance-stop", "EventId": "instance-event-4", "State": "completed"}
        ]"#;
        for (kind, answer, expected) in [
            (
                Spot,
                r#"{"action": "stop", "time": "2029-09-18T08:22:00Z"}"#,
                r#"{"what":"stop","at":"2029-09-18T08:22:00Z"}"#,
            ),
            (
                Rebalance,
                r#"{"noticeTime": "2029-10-27T08:22:00Z"}"#,
                r#"{"what":"rebalance","at":"2029-10-27T08:22:00Z"}"#,
            ),
            (
                Maintenance,
                events,
                r#"[{"what":"instance-retirement","at":"2029-01-20T09:00:43Z","id":"instance-event-3"},{"what":"system-reboot","at":"2029-01-21T09:00:43Z","id":"instance-event-2"}]"#,
            ),
            (Termination, "Terminated", r#"{"what":"terminate"}"#),
        ] {
            assert_eq!(text(kind, answer), Ok(Some(expected.to_owned())));
            assert!(AgentNotice::parse(kind, expected).is_ok());
        }
        for (kind, answer) in
            [(Maintenance, "[]"), (Termination, "InService"), (Termination, "Standby\n"), (Termination, "")]
        {
            assert_eq!(text(kind, answer), Ok(None), "{answer}");
        }
        // What can't be said hides none that can.
        let odd = events.replacen("instance-event-2", "no word", 1).replacen('[', r#"[{"Code": "x"},"#, 1);
        let notice = read(Maintenance, &odd, false).unwrap().unwrap();
        assert_eq!(notice.iter().map(|notice| &*notice.id).collect::<Vec<_>>(), ["instance-event-3"]);
    }

    #[test]
    fn nonsense_is_nothing_that_can_be_said() {
        for kind in AgentNoticeKind::ALL {
            for answer in ["<html>Not Found</html>", "{", "{\"action\":1}", "[{}]", "\u{0}"] {
                assert_eq!(text(kind, answer), Err(()), "{kind}: {answer}");
            }
        }
        assert_eq!(text(AgentNoticeKind::Spot, r#"{"action":"explode","time":"2029-09-18T08:22:00Z"}"#), Err(()));
        let event = r#"[{"NotBefore":"soon","Code":"a","EventId":"b","State":"active"}]"#;
        assert_eq!(text(AgentNoticeKind::Maintenance, event), Err(()));
    }
}
