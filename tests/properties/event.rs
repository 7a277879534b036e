//! Properties for any body: parsing does not panic, and a notice contains only what the message contains.

use crate::fixtures::{BAD, GOOD};
use ebbtide::pipeline::{Detail, Identity, Parsed, parse};
use jiff::Timestamp;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

/// Parses the body, and checks that every value in a notice is in the message.
fn sound(body: &str) -> Parsed {
    let parsed = parse(body);
    match &parsed {
        Parsed::Notices(notices) => {
            assert_ne!(notices.size_hint().0, 0);
            for notice in notices.clone() {
                let mut said = vec![notice.instance.to_string(), notice.at().to_string()];
                match &notice.identity {
                    Identity::Hook { group, hook, token } => said.extend([group.clone(), hook.clone(), token.clone()]),
                    Identity::HealthEvent { arn, .. } | Identity::HealthIssue { arn, .. } => said.push(arn.clone()),
                    Identity::Block { reservation, .. } => said.push(reservation.clone()),
                    Identity::Ec2Event { .. }
                    | Identity::StatusCheck { .. }
                    | Identity::Agent { .. }
                    | Identity::Condition { .. } => {
                        panic!("no message is what a Node says or has: {notice:?}")
                    }
                    Identity::Event { id, .. } => said.push(id.clone()),
                }
                if let Detail::ScheduledChange(change) = &notice.detail {
                    said.push(change.code.clone());
                    // AWS Health writes the time in the format of e-mail; RFC 3339 is accepted, too.
                    let forms =
                        |start: Timestamp| [start.strftime("%a, %d %b %Y %T GMT").to_string(), start.to_string()];
                    let said_so =
                        |forms: [String; 2]| forms.into_iter().max_by_key(|form| body.contains(form.as_str()));
                    said.extend(change.start.map(forms).and_then(said_so));
                }
                if let Detail::CapacityReservation { terminates_at: Some(end) } = &notice.detail {
                    said.push(end.to_string());
                }
                for said in said {
                    assert!(!said.is_empty(), "{notice:?}");
                    let in_json = escaped(&said);
                    let found = [escaped(&in_json), in_json, said].iter().any(|form| body.contains(form));
                    assert!(found, "{notice:?} is not in {body}");
                }
            }
        }
        Parsed::Block(block) => assert!(body.contains(&escaped(&block.reservation)), "{block:?} is not in {body}"),
        Parsed::Shift(shift) => assert!(body.contains(&shift.away_from), "{shift:?} is not in {body}"),
        Parsed::Ignored(_) => {}
        Parsed::Malformed(fault) => {
            assert!(!fault.at.is_empty() && fault.at.len() < 64, "{fault}");
            assert!(!fault.what.is_empty() && fault.what.chars().count() < 110, "{fault}");
        }
    }
    parsed
}

/// Returns text as it is inside a JSON string, and as it is when SNS embeds that JSON in a string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Returns a fixture as JSON, with an SNS notification's message parsed, so that its fields are included.
fn open(body: &str) -> Value {
    let mut value: Value = serde_json::from_str(body).unwrap();
    if let Some(Ok(inner)) = value["Message"].as_str().map(serde_json::from_str) {
        value["Message"] = inner;
    }
    value
}

/// The reverse of [`open`].
fn close(value: &Value) -> String {
    let mut value = value.clone();
    if value["Message"].is_object() {
        value["Message"] = Value::String(value["Message"].to_string());
    }
    value.to_string()
}

/// Returns the path of every field outside lists, such as `detail.instance-id`.
fn paths(value: &Value) -> Vec<String> {
    let Value::Object(fields) = value else {
        return Vec::new();
    };
    let mut found = Vec::new();
    // A generated name may contain the dot that joins paths.
    for (name, inner) in fields.iter().filter(|(name, _)| !name.is_empty() && !name.contains('.')) {
        found.push(name.clone());
        found.extend(paths(inner).into_iter().map(|path| format!("{name}.{path}")));
    }
    found
}

/// Returns the object that contains a path's last name, and that name.
fn place<'v, 'p>(value: &'v mut Value, path: &'p str) -> (&'v mut Map<String, Value>, &'p str) {
    let (parents, name) = path.rsplit_once('.').unwrap_or(("", path));
    let parent = parents.split('.').filter(|step| !step.is_empty()).fold(value, |value, step| &mut value[step]);
    (parent.as_object_mut().unwrap(), name)
}

/// Fields that a notice requires. All other fields may be absent.
fn required(name: &str) -> &'static [&'static str] {
    const EVENT: &[&str] = &["detail", "detail-type", "detail.instance-id", "id", "source", "time"];
    const LIFECYCLE: &[&str] = &[
        "detail",
        "detail-type",
        "detail.AutoScalingGroupName",
        "detail.EC2InstanceId",
        "detail.LifecycleActionToken",
        "detail.LifecycleHookName",
        "detail.LifecycleTransition",
        "source",
        "time",
    ];
    match name {
        "asg-terminate-sns" => &[
            "Message",
            "Message.detail",
            "Message.detail-type",
            "Message.detail.AutoScalingGroupName",
            "Message.detail.EC2InstanceId",
            "Message.detail.LifecycleActionToken",
            "Message.detail.LifecycleHookName",
            "Message.detail.LifecycleTransition",
            "Message.source",
            "Message.time",
            "Type",
        ],
        "asg-terminate-direct-sns" => &[
            "Message",
            "Message.AutoScalingGroupName",
            "Message.EC2InstanceId",
            "Message.LifecycleActionToken",
            "Message.LifecycleHookName",
            "Message.LifecycleTransition",
            "Message.Time",
            "Type",
        ],
        "asg-terminate-direct" | "asg-launch-direct" => &[
            "AutoScalingGroupName",
            "EC2InstanceId",
            "LifecycleActionToken",
            "LifecycleHookName",
            "LifecycleTransition",
            "Time",
        ],
        "spot-sns" => &[
            "Message",
            "Message.detail",
            "Message.detail-type",
            "Message.detail.instance-id",
            "Message.id",
            "Message.source",
            "Message.time",
            "Type",
        ],
        "state-stopping" => &["detail", "detail-type", "detail.instance-id", "detail.state", "id", "source", "time"],
        "fleet-termination" | "spot-fleet-termination" => {
            &["detail", "detail-type", "detail.instance-id", "detail.sub-type", "id", "source", "time"]
        }
        "spot"
        | "spot-hibernate"
        | "rebalance"
        | "rebalance-recommended"
        | "capacity-reservation"
        | "capacity-block" => EVENT,
        _ if name.starts_with("asg-") => LIFECYCLE,
        _ => &[
            "detail",
            "detail-type",
            "detail.affectedEntities",
            "detail.eventArn",
            "detail.eventTypeCategory",
            "detail.eventTypeCode",
            "detail.service",
            "source",
            "time",
        ],
    }
}

/// Fields that a notice can lack, though it then has less information.
const TELLING: [&str; 7] = [
    "detail.instance-action",
    "detail.instance-termination-time",
    "detail.startTime",
    "detail.Origin",
    "detail.Destination",
    "detail.Action",
    "detail.statusCode",
];

#[test]
fn without_a_required_field_there_is_no_notice_and_without_another_the_same() {
    let mut notices = 0;
    for (name, body) in GOOD.iter() {
        let Parsed::Notices(original) = parse(body) else {
            continue;
        };
        notices += 1;
        let mut missed = Vec::new();
        let opened = open(body);
        for path in paths(&opened) {
            let mut damaged = opened.clone();
            let (fields, field) = place(&mut damaged, &path);
            fields.remove(field);
            match sound(&close(&damaged)) {
                Parsed::Notices(left) if left == original || TELLING.contains(&path.as_str()) => {}
                Parsed::Notices(left) => panic!("{name} without {path}: {left:?}"),
                Parsed::Block(_) | Parsed::Shift(_) | Parsed::Ignored(_) | Parsed::Malformed(_) => missed.push(path),
            }
        }
        missed.sort();
        assert_eq!(missed, required(name), "{name}");
    }
    assert_eq!(notices, 30);
}

#[test]
fn any_field_of_another_type_or_empty_never_makes_a_notice_of_nothing() {
    let others =
        [json!(null), json!(true), json!(7), json!(-1.5), json!(""), json!("x"), json!([]), json!([[{}]]), json!({})];
    for (name, body) in GOOD.iter() {
        let opened = open(body);
        for path in paths(&opened) {
            for other in &others {
                let mut damaged = opened.clone();
                let (fields, field) = place(&mut damaged, &path);
                fields.insert(field.to_owned(), other.clone());
                let parsed = sound(&close(&damaged));
                // A name may be any text; no other required field may.
                let a_name = ["Name", "Token", "id", "eventArn", "eventTypeCode"].iter().any(|end| path.ends_with(end));
                if required(name).contains(&path.as_str()) && !(a_name && *other == json!("x")) {
                    assert!(!matches!(parsed, Parsed::Notices(_)), "{name} with {path} {other}: {parsed:?}");
                }
            }
        }
    }
}

#[test]
fn a_message_cut_short_anywhere_is_malformed() {
    for (name, body) in GOOD.iter() {
        let body = body.trim_end();
        for end in (0..body.len()).filter(|end| body.is_char_boundary(*end)) {
            assert!(matches!(sound(&body[..end]), Parsed::Malformed(_)), "{name} at {end}");
        }
    }
}

fn any_fixture() -> impl Strategy<Value = String> {
    select(GOOD.iter().chain(BAD.iter()).map(|(_, body)| body.clone()).collect::<Vec<_>>())
}

/// Generates any JSON, made from the messages' words and others.
fn any_json() -> impl Strategy<Value = Value> {
    let words = select(vec![
        "aws.ec2",
        "aws.autoscaling",
        "aws.health",
        "EC2 Spot Instance Interruption Warning",
        "EC2 Instance-terminate Lifecycle Action",
        "AWS Health Event",
        "Notification",
        "autoscaling:EC2_INSTANCE_LAUNCHING",
        "autoscaling:TEST_NOTIFICATION",
        "EC2",
        "scheduledChange",
        "2026-11-21T12:00:00Z",
        "i-0a1b2c3d4e5f60718",
        "{\"source\":\"aws.ec2\"}",
    ]);
    let leaf = prop_oneof![
        4 => words.prop_map(|word| json!(word)),
        1 => any::<String>().prop_map(Value::String),
        1 => any::<i64>().prop_map(|number| json!(number)),
        1 => any::<f64>().prop_map(|number| json!(number)),
        1 => any::<Option<bool>>().prop_map(|flag| json!(flag)),
    ];
    let names = || {
        let known: Vec<String> = GOOD.iter().flat_map(|(_, body)| paths(&open(body))).collect();
        let last = |path: String| path.rsplit('.').next().unwrap_or_default().to_owned();
        prop_oneof![8 => select(known).prop_map(last), 1 => any::<String>()]
    };
    leaf.prop_recursive(4, 48, 8, move |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            3 => prop::collection::vec((names(), inner), 0..8).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_do_not_panic(
        body in any_fixture(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = body.into_bytes();
        for (index, byte) in flips {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        let _ = parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_text_does_not_panic(body in any::<String>()) {
        prop_assert!(matches!(parse(&body), Parsed::Malformed(_)));
    }

    #[test]
    fn any_json_is_parsed_soundly(value in any_json()) {
        sound(&value.to_string());
    }

    #[test]
    fn any_json_anywhere_in_a_message_is_parsed_soundly(
        body in select(GOOD.clone()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_json()), 1..4),
    ) {
        let mut value = open(&body.1);
        for (index, new) in changes {
            let paths = paths(&value);
            if paths.is_empty() {
                continue;
            }
            let (fields, field) = place(&mut value, &paths[index.index(paths.len())]);
            fields.insert(field.to_owned(), new);
        }
        sound(&close(&value));
    }
}
