//! Lifecycle actions in each of the wrappings they come in, and the messages that ask nothing of us.

use super::super::{Detail, Hook, Identity, IgnoreReason, Notice, NoticeKind, NoticeTime, WarmPool};
use super::fixtures::*;
use super::{hook_id, ignored, instance, one, time, with};

fn hook(group: &str, name: &str, token: &str) -> Hook {
    Hook {
        group: group.to_owned(),
        name: name.to_owned(),
        token: Some(token.to_owned()),
        pool: None,
        replaces_root_volume: false,
        direct: false,
    }
}

fn drain_hook() -> Hook {
    hook("workers-a", "drain-before-termination", "3d6a7c5e-1f42-4b89-9c07-e8b2f1a4d650")
}

fn launch_hook() -> Hook {
    hook("workers-b", "wait-until-ready", "e0d1c2b3-a495-4867-9780-a1b2c3d4e5f6")
}

#[test]
fn a_termination_as_an_event_plain_and_through_sns() {
    let expected = Notice::new(
        Identity::Hook {
            group: "workers-a".to_owned(),
            hook: "drain-before-termination".to_owned(),
            token: "3d6a7c5e-1f42-4b89-9c07-e8b2f1a4d650".to_owned(),
        },
        instance("i-0a1b2c3d4e5f60718"),
        NoticeTime::Announced(time("2026-11-21T09:30:04Z")),
        Detail::AsgTerminate(drain_hook()),
    );
    assert_eq!(one(ASG_TERMINATE), expected);
    assert_eq!(one(ASG_TERMINATE_SNS), expected);
    assert_eq!(expected.kind(), NoticeKind::AsgTerminate);
}

#[test]
fn a_termination_as_a_bare_message_is_direct_and_keeps_its_fraction_of_a_second() {
    let direct = Hook { direct: true, ..drain_hook() };
    let expected = Notice::new(
        hook_id(&direct),
        instance("i-0a1b2c3d4e5f60718"),
        NoticeTime::Announced(time("2026-11-21T09:30:03.871Z")),
        Detail::AsgTerminate(direct),
    );
    assert_eq!(one(ASG_TERMINATE_DIRECT), expected);
}

#[test]
fn a_bare_message_through_a_topic_is_not_direct() {
    let expected = Notice::new(
        hook_id(&drain_hook()),
        instance("i-0a1b2c3d4e5f60718"),
        NoticeTime::Announced(time("2026-11-21T09:30:03.871Z")),
        Detail::AsgTerminate(drain_hook()),
    );
    assert_eq!(one(ASG_TERMINATE_DIRECT_SNS), expected);
}

#[test]
fn one_action_has_one_identity_in_every_wrapping() {
    let event = one(ASG_TERMINATE).identity;
    assert_eq!(one(ASG_TERMINATE_SNS).identity, event);
    assert_eq!(one(ASG_TERMINATE_DIRECT).identity, event);
    assert_eq!(one(ASG_TERMINATE_DIRECT_SNS).identity, event);
    assert_eq!(event.to_string(), "workers-a/drain-before-termination/3d6a7c5e-1f42-4b89-9c07-e8b2f1a4d650");
    assert_eq!(one(ASG_LAUNCH).identity, one(ASG_LAUNCH_DIRECT).identity);
}

#[test]
fn each_part_of_a_hooks_identity_tells_actions_apart() {
    let original = one(ASG_TERMINATE_DIRECT).identity;
    for (old, new) in [
        ("workers-a", "workers-c"),
        ("drain-before-termination", "drain-again"),
        ("3d6a7c5e-1f42-4b89-9c07-e8b2f1a4d650", "00000000-0000-4000-8000-000000000000"),
    ] {
        assert_ne!(one(&with(ASG_TERMINATE_DIRECT, old, new)).identity, original, "{old}");
    }
}

#[test]
fn a_launch_as_an_event_and_as_a_bare_message() {
    let mut expected = Notice::new(
        hook_id(&launch_hook()),
        instance("i-0d4e5f60718293a4b"),
        NoticeTime::Announced(time("2026-11-21T11:15:00Z")),
        Detail::AsgLaunch(launch_hook()),
    );
    assert_eq!(one(ASG_LAUNCH), expected);
    expected.time = NoticeTime::Announced(time("2026-11-21T11:14:59.02Z"));
    expected.detail = Detail::AsgLaunch(Hook { direct: true, ..launch_hook() });
    assert_eq!(one(ASG_LAUNCH_DIRECT), expected);
    assert_eq!(expected.kind(), NoticeKind::AsgLaunch);
}

#[test]
fn a_warm_pool_on_either_side_is_seen() {
    let warm = |pool, name, token| Hook { pool: Some(pool), ..hook("workers-warm", name, token) };
    let to = warm(WarmPool::To, "drain-before-termination", "8f2e1d0c-b9a8-4765-a432-10fedcba9876");
    assert_eq!(one(ASG_TERMINATE_TO_WARM_POOL).detail, Detail::AsgTerminate(to));
    let from = warm(WarmPool::From, "drain-before-termination", "6b5a4938-2716-4504-b3c2-d1e0f9a8b7c6");
    assert_eq!(one(ASG_TERMINATE_FROM_WARM_POOL).detail, Detail::AsgTerminate(from));
    let launched = warm(WarmPool::From, "wait-until-ready", "1a2b3c4d-5e6f-4071-8293-a4b5c6d7e8f9");
    assert_eq!(one(ASG_LAUNCH_FROM_WARM_POOL).detail, Detail::AsgLaunch(launched));
}

#[test]
fn the_replacement_of_a_root_volume_is_seen() {
    for (body, hook) in [
        (
            ASG_TERMINATE_ROOT_VOLUME,
            hook("workers-a", "drain-before-termination", "71c2d3e4-f506-4817-a928-3b4c5d6e7f80"),
        ),
        (ASG_LAUNCH_ROOT_VOLUME, hook("workers-b", "wait-until-ready", "82d3e4f5-0617-4928-ba39-4c5d6e7f8091")),
    ] {
        assert_eq!(one(body).hook(), Some(&Hook { replaces_root_volume: true, ..hook.clone() }));
        let other = with(body, "ReplaceRootVolume", "SomethingElse");
        assert_eq!(one(&other).hook(), Some(&hook), "an unknown action changes nothing");
    }
}

#[test]
fn what_no_one_needs_may_be_anything() {
    for (old, new) in [
        (r#""Origin": "AutoScalingGroup""#, r#""Origin": ["WarmPool"]"#),
        (r#""region": "eu-central-1""#, r#""region": 7"#),
        (r#""version": "0""#, r#""version": {"a": [null, {"b": 1e400}]}"#),
        (r#""account": "123456789012""#, r#""account": null, "account": false"#),
        (r#""id": "c1f0a2de-7b64-4f0e-9a55-0d1b3c5e7f91","#, ""),
    ] {
        assert_eq!(one(&with(ASG_TERMINATE, old, new)), one(ASG_TERMINATE), "{new}");
    }
}

#[test]
fn escapes_and_surrounding_space_are_read() {
    let escaped = with(ASG_TERMINATE_DIRECT, "workers-a", r"workers\u002da \u00e9\ud83d\ude00");
    assert_eq!(
        one(&format!("\n\t {escaped} \r\n")).identity.to_string(),
        "workers-a é😀/drain-before-termination/3d6a7c5e-1f42-4b89-9c07-e8b2f1a4d650"
    );
}

#[test]
fn messages_that_ask_nothing_are_ignored_each_for_its_reason() {
    for (body, why) in [
        (TEST_NOTIFICATION, IgnoreReason::TestNotification),
        (TEST_NOTIFICATION_SNS, IgnoreReason::TestNotification),
        (SNS_SUBSCRIBE, IgnoreReason::SnsControl),
        (SNS_UNSUBSCRIBE, IgnoreReason::SnsControl),
        (UNKNOWN_TYPE, IgnoreReason::UnknownType),
        (ASG_NOTIFICATION, IgnoreReason::UnknownType),
        (STATE_RUNNING, IgnoreReason::HarmlessState),
        (HEALTH_NO_INSTANCE, IgnoreReason::NotScheduledChange),
        (HEALTH_OTHER_SERVICE, IgnoreReason::NotScheduledChange),
    ] {
        assert_eq!(ignored(body), why, "{body}");
    }
}

#[test]
fn a_known_detail_type_of_another_source_is_not_ours() {
    assert_eq!(ignored(&with(SPOT, "\"aws.ec2\"", "\"com.example\"")), IgnoreReason::UnknownType);
    assert_eq!(ignored(&with(SPOT, "\"aws.ec2\"", "\"aws.autoscaling\"")), IgnoreReason::UnknownType);
    assert_eq!(ignored(&with(HEALTH_STOP, "AWS Health Event", "AWS Health Abuse Event")), IgnoreReason::UnknownType);
    // Nothing in an event of an unknown type needs to be right.
    assert_eq!(ignored(r#"{"source": "", "detail-type": "x", "detail": 5}"#), IgnoreReason::UnknownType);
}
