//! Literal expectations for every fixture, and properties that hold for any body.

mod fixtures;
mod kinds;
mod malformed;
mod wrappings;

use super::{Hook, Identity, IgnoreReason, InstanceId, Notice, NoticeKind, Parsed, parse};
use jiff::Timestamp;

/// The one notice of a body that must have just one.
fn one(body: &str) -> Notice {
    let mut notices = all(body);
    assert_eq!(notices.len(), 1, "{notices:?}");
    notices.remove(0)
}

fn all(body: &str) -> Vec<Notice> {
    match parse(body) {
        Parsed::Notices(notices) => notices.collect(),
        other => panic!("no notices: {other:?}"),
    }
}

fn ignored(body: &str) -> IgnoreReason {
    match parse(body) {
        Parsed::Ignored(why) => why,
        other => panic!("not ignored: {other:?}"),
    }
}

/// The reason and the place of a malformed body's fault, and what it says.
fn fault(body: &str) -> (&'static str, String, String) {
    match parse(body) {
        Parsed::Malformed(fault) => (fault.reason.as_str(), fault.at, fault.what),
        other => panic!("not malformed: {other:?}"),
    }
}

fn instance(id: &str) -> InstanceId {
    InstanceId::new(id).unwrap()
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn event_id(kind: NoticeKind, id: &str) -> Identity {
    Identity::Event { kind, id: id.to_owned() }
}

fn hook_id(hook: &Hook) -> Identity {
    Identity::Hook { group: hook.group.clone(), hook: hook.name.clone(), token: hook.token.clone().unwrap() }
}

/// The fixture with one piece of its text replaced; the piece must be there just once.
fn with(fixture: &str, old: &str, new: &str) -> String {
    assert_eq!(fixture.matches(old).count(), 1, "`{old}` must be in the fixture once");
    fixture.replace(old, new)
}
