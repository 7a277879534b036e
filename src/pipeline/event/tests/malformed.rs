//! What is wrong with a damaged message, and where.

use super::super::{InstanceId, Parsed, parse};
use super::fixtures::*;
use super::{fault, with};

/// A fault's parts as literals.
fn assert_fault(body: &str, reason: &str, at: &str, what: &str) {
    let found = fault(body);
    assert_eq!((found.0, found.1.as_str(), found.2.as_str()), (reason, at, what), "{body}");
}

#[test]
fn each_damaged_fixture_says_what_is_wrong_where() {
    let table = [
        (BAD_ARRAY, "not-json", "body", "a list where an object is expected"),
        (BAD_DETAIL_STRING, "bad-value", "detail", "a string where an object is expected"),
        (BAD_DUPLICATE_KEY, "bad-value", "body", "duplicate field `instance-id` at line 14 column 17"),
        (BAD_ENTITIES, "bad-value", "detail.affectedEntities", "a string where a list is expected"),
        (BAD_INSTANCE_ID, "bad-value", "detail.instance-id", "`i-0F60718293A4B5C6D` is not an instance id"),
        (BAD_NO_INSTANCE, "missing-field", "detail.instance-id", "missing"),
        (BAD_NO_TOKEN, "missing-field", "LifecycleActionToken", "missing"),
        (BAD_NULL_ID, "missing-field", "id", "missing"),
        (BAD_SHAPE, "unknown-shape", "body", "neither an event, nor a notification, nor a lifecycle message"),
        (BAD_SNS_IN_SNS, "unknown-shape", "Message", "an SNS message inside an SNS notification"),
        (BAD_SNS_TEXT, "not-json", "Message", "expected value at line 1 column 1"),
        (BAD_STATE, "bad-value", "detail.state", "`rebooting` is not an instance state"),
        (BAD_TIME, "bad-value", "time", "`21/11/2026 12:00` is not an RFC 3339 time"),
        (BAD_TRANSITION, "bad-value", "detail.LifecycleTransition", "contradicts the detail-type"),
        (BAD_TRUNCATED, "not-json", "body", "EOF while parsing a value at line 14 column 0"),
    ];
    for (body, reason, at, what) in table {
        assert_fault(body, reason, at, what);
    }
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/events")).unwrap();
    let damaged = folder.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("bad-"));
    assert_eq!(table.len(), damaged.count(), "each damaged fixture has its row");
}

#[test]
fn a_fault_is_told_in_one_line() {
    let Parsed::Malformed(fault) = parse(BAD_NO_INSTANCE) else { panic!("not malformed") };
    assert_eq!(fault.to_string(), "detail.instance-id: missing");
}

#[test]
fn bodies_that_are_no_objects() {
    for (body, what) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("null", "null where an object is expected"),
        ("true", "a boolean where an object is expected"),
        ("-1", "a number where an object is expected"),
        ("1.5", "a number where an object is expected"),
        ("\"text\"", "a string where an object is expected"),
        ("[]", "a list where an object is expected"),
        ("{} {}", "trailing characters at line 1 column 4"),
        ("{\"Type\": \"\\ud800\"}", "unexpected end of hex escape at line 1 column 17"),
        ("{\"Type\": \"\\x\"}", "invalid escape at line 1 column 12"),
        ("{\"Type\": 1e999}", "number out of range at line 1 column 14"),
    ] {
        assert_fault(body, "not-json", "body", what);
    }
}

#[test]
fn half_an_envelope_is_named_by_what_it_lacks() {
    assert_fault(r#"{"source": "aws.ec2"}"#, "missing-field", "detail-type", "missing");
    assert_fault(r#"{"detail-type": "x"}"#, "missing-field", "source", "missing");
    assert_fault(r#"{"source": 5}"#, "bad-value", "source", "a number where a string is expected");
    assert_fault(r#"{"Type": "Notification"}"#, "missing-field", "Message", "missing");
    assert_fault(r#"{"Type": []}"#, "bad-value", "Type", "a list where a string is expected");
    assert_fault(r#"{"Type": "Letter"}"#, "unknown-shape", "body", "the type `Letter` is none of SNS's");
    assert_fault(
        r#"{"Event": "s3:TestEvent"}"#,
        "unknown-shape",
        "body",
        "the event `s3:TestEvent` is none of Auto Scaling's",
    );
    assert_fault(r#"{"Event": {}}"#, "bad-value", "Event", "an object where a string is expected");
    assert_fault(r#"{"LifecycleHookName": "h"}"#, "missing-field", "LifecycleTransition", "missing");
    assert_fault(r#"{"LifecycleActionToken": "t"}"#, "missing-field", "LifecycleTransition", "missing");
    assert_fault("{}", "unknown-shape", "body", "neither an event, nor a notification, nor a lifecycle message");
}

#[test]
fn what_is_inside_a_notification_is_placed_there() {
    let body = r#"{"Type": "Notification", "Message": "{\"source\": \"aws.ec2\"}"}"#;
    assert_fault(body, "missing-field", "Message.detail-type", "missing");
    let body = with(SPOT_SNS, r#"\"instance-id\":\"i-0f60718293a4b5c6d\","#, "");
    assert_fault(&body, "missing-field", "Message.detail.instance-id", "missing");
}

#[test]
fn transitions_that_are_none() {
    let launching = with(ASG_TERMINATE, "EC2_INSTANCE_TERMINATING", "EC2_INSTANCE_LAUNCHING");
    assert_fault(&launching, "bad-value", "detail.LifecycleTransition", "contradicts the detail-type");
    let terminating = with(ASG_LAUNCH, "EC2_INSTANCE_LAUNCHING", "EC2_INSTANCE_TERMINATING");
    assert_fault(&terminating, "bad-value", "detail.LifecycleTransition", "contradicts the detail-type");
    let neither = with(ASG_LAUNCH_DIRECT, "autoscaling:EC2_INSTANCE_LAUNCHING", "launching");
    assert_fault(&neither, "bad-value", "LifecycleTransition", "`launching` is not a lifecycle transition");
}

#[test]
fn names_are_neither_empty_nor_endless() {
    let named = |name: &str| with(ASG_TERMINATE_DIRECT, "workers-a", name);
    assert_fault(&named(""), "bad-value", "AutoScalingGroupName", "empty");
    assert!(matches!(parse(&named(&"é".repeat(255))), Parsed::Notices(_)));
    let what = "256 bytes, too long for a name";
    assert_fault(&named(&"g".repeat(256)), "bad-value", "AutoScalingGroupName", what);
}

#[test]
fn instance_ids_have_a_form() {
    for id in ["i-01234567", "i-0123456789abcdef0"] {
        assert_eq!(InstanceId::new(id).map(|id| id.to_string()).as_deref(), Some(id));
    }
    for id in [
        "",
        "i-",
        "i-0123456",
        "i-012345678",
        "i-0123456789abcdef01",
        "I-01234567",
        "i-0123456g",
        "mi-01234567",
        "01234567",
    ] {
        assert_eq!(InstanceId::new(id), None, "{id}");
    }
}

#[test]
fn a_fault_quotes_little_and_nothing_that_a_terminal_obeys() {
    let at_most = with(SPOT, "2026-11-21T12:00:00Z", &"9".repeat(60));
    assert_fault(&at_most, "bad-value", "time", &format!("`{}` is not an RFC 3339 time", "9".repeat(60)));
    let longer = with(SPOT, "2026-11-21T12:00:00Z", &"é".repeat(200_000));
    assert_fault(&longer, "bad-value", "time", &format!("`{}…` is not an RFC 3339 time", "é".repeat(60)));
    let escape = with(SPOT, "2026-11-21T12:00:00Z", r"\u001b[2J\n");
    assert_fault(&escape, "bad-value", "time", "`\u{fffd}[2J\u{fffd}` is not an RFC 3339 time");
}

#[test]
fn depth_and_size_do_no_harm() {
    let deep = 128 * 1024;
    let nested = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
    assert_fault(&format!("{{\"source\": {nested}}}"), "bad-value", "source", "a list where a string is expected");
    let resources = r#""arn:aws:ec2:eu-central-1:123456789012:instance/i-0f60718293a4b5c6d""#;
    assert_eq!(parse(&with(SPOT, resources, &nested)), parse(SPOT));
    let entities = format!(
        "{{\"source\": \"aws.health\", \"detail-type\": \"AWS Health Event\", \
        \"time\": \"2026-11-21T12:00:00Z\", \"detail\": {{\"affectedEntities\": {nested}}}}}"
    );
    assert_fault(&entities, "missing-field", "detail.service", "missing");
    for open in ["[", "{\"detail\":", "{\"a\":", "{\"Message\":["] {
        assert_eq!(fault(&open.repeat(256 * 1024 / open.len())).0, "not-json", "{open}");
    }
    // SNS in SNS in SNS …, as deep as a message's size allows: each level doubles the backslashes.
    let mut body = SPOT.to_owned();
    while body.len() < 256 * 1024 {
        body = format!("{{\"Type\": \"Notification\", \"Message\": {}}}", serde_json::to_string(&body).unwrap());
        if body.len() > 2 * SPOT_SNS.len() {
            assert_eq!(fault(&body).0, "unknown-shape");
        }
    }
}
