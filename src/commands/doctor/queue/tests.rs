use super::*;
use crate::commands::doctor::Status;
use crate::commands::doctor::readings::Reading;
use crate::commands::doctor::tests::{found, one, policy, rule};
use serde_json::json;

fn set(name: &str, value: &str) -> impl FnOnce(&mut Readings) {
    move |readings: &mut Readings| {
        readings.queue.as_mut().unwrap().insert(name.to_owned(), value.to_owned());
    }
}

fn without(name: &str) -> impl FnOnce(&mut Readings) {
    move |readings: &mut Readings| drop(readings.queue.as_mut().unwrap().remove(name))
}

#[test]
fn another_region_is_said_once() {
    let (name, status, text) = one(&[], |readings| {
        readings.region = Some("us-east-1".to_owned());
        readings.queue = Err(ReadError::new(Category::NotFound, "no"));
        readings.nodes.as_mut().unwrap().regions = vec!["us-east-1".to_owned()];
    });
    assert_eq!((name, status), ("region", Status::Failure));
    assert!(text.contains("Set AWS_REGION=eu-west-1"), "{text}");
}

#[test]
fn a_queue_that_is_not_there_says_how_to_find_it() {
    let lost = |category| -> Reading<QueueAttributes> { Err(ReadError::new(category, "QueueDoesNotExist")) };
    let (name, status, text) = one(&[], |readings| readings.queue = lost(Category::NotFound));
    assert_eq!((name, status), ("exists", Status::Failure));
    assert!(text.contains("aws sqs list-queues"), "{text}");
    assert_eq!(one(&[], |readings| readings.queue = lost(Category::Denied)).1, Status::Skipped);
    assert_eq!(one(&[], |readings| readings.queue = lost(Category::Unreachable)).1, Status::Failure);
}

#[test]
fn the_reason_why_eventbridge_may_not_send_is_named() {
    let statement = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut policy: serde_json::Value = serde_json::from_str(&policy()).unwrap();
        change(&mut policy["Statement"][0]);
        policy.to_string()
    };
    for (policy, said) in [
        (String::new(), "The queue has no policy"),
        (
            statement(&|s| s["Principal"] = json!({ "Service": "s3.amazonaws.com" })),
            "No statement names events.amazonaws.com",
        ),
        (statement(&|s| s["Action"] = json!("sqs:GetQueueUrl")), "sqs:SendMessage is not allowed"),
        (
            statement(&|s| s["Resource"] = json!("arn:aws:sqs:eu-west-1:123456789012:other")),
            "Resource is not arn:aws:sqs",
        ),
        (
            statement(&|s| s["Condition"]["ArnLike"]["aws:SourceArn"] = json!("arn:aws:events:*:*:rule/other")),
            "not for rule all-ec2",
        ),
    ] {
        let (name, status, text) = one(&[], set("Policy", &policy));
        assert_eq!((name, status), ("policy", Status::Failure), "{text}");
        assert!(text.contains(said), "{text}");
        assert!(text.contains("arn:aws:events:eu-west-1:123456789012:rule/*"), "{text}");
    }
    let open = statement(&|s| drop(s.as_object_mut().unwrap().remove("Condition")));
    let (name, status, text) = one(&[], set("Policy", &open));
    assert_eq!((name, status), ("policy", Status::Warning));
    assert!(text.contains("aws:SourceArn is missing"), "{text}");
    let everybody = json!({ "Statement": { "Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*" } });
    let checks = found(&[], set("Policy", &everybody.to_string()));
    assert_eq!((checks[0].name, checks[0].status), ("policy", Status::Failure), "{checks:?}");
    assert!(checks[0].found.starts_with("Everybody may send, from any account"), "{checks:?}");
    // Where only hooks are acted on, which may notify the queue by a role, the policy is not needed.
    let only_hooks = ["spot", "rebalance", "state-change", "scheduled-change", "capacity-reservation"]
        .map(|kind| format!("--on={kind}=ignore"));
    let flags: Vec<&str> = only_hooks.iter().map(String::as_str).collect();
    assert_eq!(one(&flags, without("Policy")).1, Status::Warning);
}

#[test]
fn keys_that_eventbridge_can_not_use() {
    for key in ["alias/aws/sqs", "arn:aws:kms:eu-west-1:123456789012:alias/aws/sqs"] {
        let (name, status, text) = one(&[], set("KmsMasterKeyId", key));
        assert_eq!((name, status), ("encryption", Status::Failure));
        assert!(text.contains("SqsManagedSseEnabled"), "{text}");
    }
    let (name, status, text) = one(&[], set("KmsMasterKeyId", "alias/mine"));
    assert_eq!((name, status), ("encryption", Status::Warning));
    assert!(text.contains("kms:GenerateDataKey"), "{text}");
}

#[test]
fn messages_outlive_drains_and_outages() {
    for (kept, said) in [("300", "a drain may take 5m:"), ("3600", "a longer outage"), ("86399", "a longer outage")] {
        let (name, status, text) = one(&["--on", "scheduled-change=cordon"], set("MessageRetentionPeriod", kept));
        assert_eq!((name, status), ("retention", Status::Warning), "{kept}");
        assert!(text.contains(said) || kept == "300", "{text}");
    }
    let (_, _, text) = one(&[], set("MessageRetentionPeriod", "300"));
    assert!(text.contains("a drain may take 1h"), "{text}");
    let (_, _, text) = one(&["--drain-timeout", "asg-terminate=5h"], set("MessageRetentionPeriod", "7200"));
    assert!(text.contains("a drain may take 5h"), "{text}");
    assert!(text.contains("MessageRetentionPeriod=345600"), "{text}");
}

#[test]
fn delays_dead_letters_and_what_waits() {
    let (name, _, text) = one(&[], set("DelaySeconds", "60"));
    assert_eq!(name, "visibility");
    assert!(text.contains("delayed by 60 s"), "{text}");
    let (name, status, text) = one(&[], without("RedrivePolicy"));
    assert_eq!((name, status), ("dead-letters", Status::Warning));
    assert!(text.contains("maxReceiveCount\\\":10"), "{text}");
    for few in [json!(3), json!("9")] {
        let redrive = json!({ "deadLetterTargetArn": "arn:dead", "maxReceiveCount": few }).to_string();
        let (name, _, text) = one(&[], set("RedrivePolicy", &redrive));
        assert_eq!(name, "dead-letters");
        assert!(text.contains("arn:dead"), "{text}");
    }
    assert_eq!(one(&[], set("ApproximateNumberOfMessages", "1001")).0, "waiting");
}

#[test]
fn rules_that_are_allowed_by_account_or_through_sns() {
    let by_account = policy().replace("ArnLike", "StringEquals").replace("aws:SourceArn", "aws:SourceAccount");
    let by_account = by_account.replace("arn:aws:events:eu-west-1:123456789012:rule/*", "123456789012");
    let none = found(&[], |readings| {
        readings.rules.as_mut().unwrap().rules.push(rule("other", "{}"));
        set("Policy", &by_account)(readings);
    });
    assert_eq!(none, Vec::new());
}

#[test]
fn other_queues_with_dead_letters_are_told() {
    let (name, status, text) = one(&[], without("RedriveAllowPolicy"));
    assert_eq!((name, status), ("other-queues", Status::Warning));
    assert!(text.contains(r#"--attributes '{"RedriveAllowPolicy": "{\"redrivePermission\":\"denyAll\"}"}'"#), "{text}");
    for (policy, said) in [
        ("no policy", "Every queue of this account"),
        (r#"{"redrivePermission":"allowAll"}"#, "Every queue of this account"),
        (
            r#"{"redrivePermission":"byQueue","sourceQueueArns":["arn:aws:sqs:eu-west-1:1:a"]}"#,
            "send to arn:aws:sqs:eu-west-1:1:a may",
        ),
    ] {
        let (name, status, text) = one(&[], set("RedriveAllowPolicy", policy));
        assert_eq!((name, status), ("other-queues", Status::Warning));
        assert!(text.contains(said) && text.contains("denyAll"), "{text}");
    }
}

#[test]
fn who_else_may_send_is_told() {
    let policy = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut policy: serde_json::Value = serde_json::from_str(&policy()).unwrap();
        change(&mut policy["Statement"]);
        policy.to_string()
    };
    let open = policy(&|all| drop(all.as_array_mut().unwrap().pop()));
    let (name, status, text) = one(&[], set("Policy", &open));
    assert_eq!((name, status), ("senders", Status::Warning));
    for part in ["\"Effect\": \"Deny\"", "\"ArnNotEquals\"", ":rule/all-ec2\"", "aws:PrincipalArn", "ebbtide send"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A statement of another form is noted: it may refuse EventBridge, too.
    let organization = json!({ "StringNotEquals": { "aws:PrincipalOrgID": "o-1" } });
    let notes = found(&[], set("Policy", &policy(&|all| all[1]["Condition"] = organization.clone())));
    for (check, (name, remedy)) in notes.iter().zip([("policy", "aws:SourceArn"), ("senders", "If it does not:\n")]) {
        assert_eq!((check.name, check.status), (name, Status::Skipped), "{check:?}");
        assert_eq!(check.found, "Custom policy, not judged: a statement has a form of its own: \"Only\".");
        assert!(check.remedy.as_deref().is_some_and(|text| text.contains(remedy)), "{check:?}");
    }
    assert_eq!(notes.len(), 2);
    // A statement that leaves out people alone, or one rule of several, stops AWS's own messages.
    let people = json!({ "ArnNotEquals": { "aws:PrincipalArn": "arn:aws:iam::123456789012:role/on-call" } });
    let few = json!({ "ArnNotEquals": { "aws:SourceArn": "arn:aws:events:eu-west-1:123456789012:rule/few" } });
    for (condition, said) in [
        (people, "A Deny statement refuses EventBridge itself: \"Only\""),
        (few, "A Deny statement refuses EventBridge's rule all-ec2: \"Only\""),
    ] {
        let (name, status, text) = one(&[], set("Policy", &policy(&|all| all[1]["Condition"] = condition.clone())));
        assert_eq!((name, status), ("policy", Status::Failure), "{text}");
        assert!(text.contains(said) && text.contains(":rule/all-ec2"), "{text}");
    }
    // By way of SNS it is the topic.
    let topic = "arn:aws:sns:eu-west-1:123456789012:interruptions";
    let by_sns = |denied: &str| {
        policy(&|all| {
            all[0]["Principal"] = json!({ "Service": "sns.amazonaws.com" });
            all[0]["Condition"] = json!({ "ArnEquals": { "aws:SourceArn": topic } });
            all[1]["Condition"] = json!({ "ArnNotEquals": { "aws:SourceArn": denied } });
        })
    };
    assert_eq!(found(&[], set("Policy", &by_sns(topic))), Vec::new());
    let own = by_sns(topic).replace("\"ArnEquals\"", "\"ArnEqualsIfExists\"");
    let checks = found(&["--on=spot=drain"], |readings| {
        readings.rules.as_mut().unwrap().rules.clear();
        set("Policy", &own)(readings);
    });
    assert_eq!((checks[0].name, checks[0].status), ("policy", Status::Skipped), "{checks:?}");
    assert!(checks.iter().all(|check| check.status == Status::Skipped), "SNS may send the events: {checks:?}");
    let (name, status, text) = one(&[], set("Policy", &by_sns("arn:aws:sns:eu-west-1:123456789012:other")));
    assert_eq!((name, status), ("policy", Status::Failure));
    assert!(text.contains(topic), "{text}");
}
