//! Bodies of messages: a notice has only what the message says, and a malformed message says where.

use ebbtide::pipeline::{Detail, Hook, Identity, Parsed, parse};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use serde_json::Value;

/// Maximum length in characters of what is said about a malformed message: a log line.
const MAX_FAULT: usize = 110;

/// Parses a body.
pub fn check(body: &str) {
    let parsed = parse(body);
    match &parsed {
        Parsed::Notices(notices) => {
            let value: Value = serde_json::from_str(body).expect("what has notices must be JSON");
            let mut said = Vec::new();
            strings(&value, &mut said);
            let count = notices.clone().count();
            assert!((1..=said.len()).contains(&count), "{count} notices of {} strings", said.len());
            for notice in notices.clone() {
                // AWS Health names an instance by its id or its ARN.
                let id = notice.instance.to_string();
                let named = |text: &String| text.rsplit('/').next() == Some(id.as_str());
                assert!(said.iter().any(named), "{id} is not in the message: {notice:?}");
                let mut texts = Vec::new();
                match &notice.identity {
                    Identity::Hook { group, hook, token } => texts.extend([group.clone(), hook.clone(), token.clone()]),
                    Identity::HealthEvent { arn, .. } | Identity::HealthIssue { arn, .. } => texts.push(arn.clone()),
                    Identity::Block { reservation, .. } => texts.push(reservation.clone()),
                    Identity::Ec2Event { .. }
                    | Identity::StatusCheck { .. }
                    | Identity::Agent { .. }
                    | Identity::Condition { .. } => {
                        panic!("no message is what a Node says: {notice:?}")
                    }
                    Identity::Event { id, .. } => texts.push(id.clone()),
                }
                let mut times = vec![notice.at()];
                match &notice.detail {
                    Detail::ScheduledChange(change) => {
                        texts.push(change.code.clone());
                        times.extend(change.start);
                    }
                    Detail::CapacityReservation { terminates_at } => times.extend(*terminates_at),
                    Detail::AsgTerminate(hook) | Detail::AsgLaunch(hook) => {
                        let Hook { group, name, token, .. } = hook;
                        texts.extend([group.clone(), name.clone()]);
                        texts.extend(token.clone());
                    }
                    _ => {}
                }
                for text in texts {
                    assert!(!text.is_empty() && said.contains(&text), "{text:?} is not in the message: {notice:?}");
                }
                for time in times {
                    assert!(said.iter().any(|said| is_time(said, time)), "{time} is not in the message: {notice:?}");
                }
            }
            // The layout of JSON means nothing.
            assert_eq!(parse(&value.to_string()), parsed, "the same message without spaces");
        }
        Parsed::Block(block) => assert!(!block.reservation.is_empty(), "{block:?}"),
        Parsed::Shift(shift) => assert!(!shift.resources.is_empty() && !shift.away_from.is_empty(), "{shift:?}"),
        Parsed::Ignored(_) => {}
        Parsed::Malformed(fault) => {
            assert!(!fault.at.is_empty() && fault.at.len() < 64, "{fault}");
            assert!(!fault.what.is_empty() && fault.what.chars().count() < MAX_FAULT, "{fault}");
            assert!(!fault.what.chars().any(char::is_control), "a log line: {:?}", fault.what);
        }
    }
}

/// Collects all strings of a message, and those of the JSON that an SNS notification has in a string.
fn strings(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            into.push(text.clone());
            if let Ok(inner @ Value::Object(_)) = serde_json::from_str(text) {
                strings(&inner, into);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| strings(value, into)),
        Value::Object(map) => map.values().for_each(|value| strings(value, into)),
        _ => {}
    }
}

/// Whether a text is this time, as events or as AWS Health write it.
fn is_time(text: &str, time: Timestamp) -> bool {
    // AWS has sent a wrong day of the week.
    let health = DateTimeParser::new().relaxed_weekday(true);
    text.parse().is_ok_and(|at: Timestamp| at == time) || health.parse_timestamp(text).is_ok_and(|at| at == time)
}
