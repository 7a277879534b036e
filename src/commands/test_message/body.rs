//! Bodies of test messages, as AWS documents them. Pure.

use crate::pipeline::event::{InstanceId, NoticeKind, TEST};
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Time between the announcement of a retirement by AWS Health and its start.
const RETIREMENT_NOTICE: SignedDuration = SignedDuration::from_hours(14 * 24);

/// Time between the warning and the interruption of an instance of a capacity reservation.
const INTERRUPTION_NOTICE: SignedDuration = SignedDuration::from_mins(2);

/// Event type code of a retirement.
const RETIREMENT: &str = "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED";

/// The subject of a test message.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The instance.
    pub instance: &'a InstanceId,
    /// The instance's region.
    pub region: &'a str,
    /// The instance's account.
    pub account: &'a str,
    /// The names of group and hook, for lifecycle actions.
    pub hook: (&'a str, &'a str),
}

/// Returns the identity of a test message for a random number. It has 36 characters like those of AWS: Auto Scaling rejects a lifecycle
/// action token of any other length.
#[must_use]
pub fn identity(random: u128) -> String {
    let digits = format!("{random:032x}");
    format!("{TEST}{}", &digits[..36 - TEST.len()])
}

/// Returns the body of a message of this kind, as AWS would send it at the time `at`; empty for a kind without messages.
#[must_use]
pub fn message(kind: NoticeKind, about: &Subject<'_>, identity: &str, at: Timestamp) -> String {
    let Subject { instance, region, account, .. } = *about;
    let (instance, at) = (instance.as_str(), whole_seconds(at));
    let arn = format!("arn:aws:ec2:{region}:{account}:instance/{instance}");
    let later = |by| at.checked_add(by).unwrap_or(at);
    let (source, detail_type, resource, detail) = match kind {
        NoticeKind::AsgTerminate => {
            lifecycle(about, identity, "terminate", "EC2_INSTANCE_TERMINATING", ("AutoScalingGroup", "EC2"))
        }
        NoticeKind::AsgLaunch => {
            lifecycle(about, identity, "launch", "EC2_INSTANCE_LAUNCHING", ("EC2", "AutoScalingGroup"))
        }
        NoticeKind::Spot => {
            let detail = json!({ "instance-id": instance, "instance-action": "terminate" });
            ("aws.ec2", "EC2 Spot Instance Interruption Warning".to_owned(), arn, detail)
        }
        NoticeKind::Rebalance => {
            let detail = json!({ "instance-id": instance });
            ("aws.ec2", "EC2 Instance Rebalance Recommendation".to_owned(), arn, detail)
        }
        NoticeKind::StateChange => {
            let detail = json!({ "instance-id": instance, "state": "stopping" });
            ("aws.ec2", "EC2 Instance State-change Notification".to_owned(), arn, detail)
        }
        NoticeKind::ScheduledChange => {
            let detail = retirement(about, identity, (at, later(RETIREMENT_NOTICE)));
            ("aws.health", "AWS Health Event".to_owned(), instance.to_owned(), detail)
        }
        NoticeKind::CapacityReservation => {
            let detail = json!({
                "instance-id": instance,
                "instance-action": "terminate",
                "instance-termination-time": later(INTERRUPTION_NOTICE).to_string(),
            });
            ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning".to_owned(), arn, detail)
        }
        NoticeKind::NodeCondition | NoticeKind::StatusCheck => return String::new(),
    };
    json!({
        "version": "0",
        "id": identity,
        "detail-type": detail_type,
        "source": source,
        "account": account,
        "time": at.to_string(),
        "region": region,
        "resources": [resource],
        "detail": detail,
    })
    .to_string()
}

type Event = (&'static str, String, String, Value);

fn lifecycle(
    about: &Subject<'_>,
    token: &str,
    word: &str,
    transition: &str,
    (origin, destination): (&str, &str),
) -> Event {
    let Subject { region, account, hook: (group, hook), .. } = *about;
    let resource =
        format!("arn:aws:autoscaling:{region}:{account}:autoScalingGroup:{token}:autoScalingGroupName/{group}");
    let detail = json!({
        "LifecycleActionToken": token,
        "AutoScalingGroupName": group,
        "LifecycleHookName": hook,
        "EC2InstanceId": about.instance.as_str(),
        "LifecycleTransition": format!("autoscaling:{transition}"),
        "Origin": origin,
        "Destination": destination,
    });
    ("aws.autoscaling", format!("EC2 Instance-{word} Lifecycle Action"), resource, detail)
}

fn retirement(about: &Subject<'_>, identity: &str, (now, start): (Timestamp, Timestamp)) -> Value {
    let Subject { instance, region, account, .. } = *about;
    let written = |at: Timestamp| rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).unwrap_or_default();
    json!({
        "eventArn": format!("arn:aws:health:{region}::event/EC2/{RETIREMENT}/{RETIREMENT}_{identity}"),
        "service": "EC2",
        "eventScopeCode": "ACCOUNT_SPECIFIC",
        "communicationId": identity,
        "startTime": written(start),
        "endTime": written(start),
        "lastUpdatedTime": written(now),
        "statusCode": "upcoming",
        "eventRegion": region,
        "eventTypeCode": RETIREMENT,
        "eventTypeCategory": "scheduledChange",
        "eventDescription": [{ "language": "en_US", "latestDescription": "A test message of Ebbtide. AWS plans nothing." }],
        "affectedEntities": [{ "entityValue": instance.as_str(), "status": "IMPAIRED", "lastUpdatedTime": written(now) }],
        "affectedAccount": account,
        "page": "1",
        "totalPages": "1",
    })
}

/// Removes the fraction of a second, because AWS sends none.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::event::{Detail, Hook, InstanceAction, InstanceState, Parsed, ScheduledChange, parse};

    fn noon() -> Timestamp {
        "2026-11-21T12:00:00.5Z".parse().unwrap()
    }

    fn made(kind: NoticeKind) -> String {
        let instance = InstanceId::new("i-0123456789abcdef0").unwrap();
        let about = Subject { instance: &instance, region: "eu-west-1", account: "123456789012", hook: ("g", "h") };
        message(kind, &about, &identity(u128::MAX / 3), noon())
    }

    #[test]
    fn each_kind_is_parsed_as_that_kind() {
        let hook = Hook {
            group: "g".into(),
            name: "h".into(),
            token: Some(identity(u128::MAX / 3)),
            pool: None,
            replaces_root_volume: false,
            direct: false,
        };
        let start = "2026-12-05T12:00:00Z".parse().ok();
        let details = [
            Detail::AsgTerminate(hook.clone()),
            Detail::AsgLaunch(hook),
            Detail::Spot { action: InstanceAction::Terminate },
            Detail::Rebalance,
            Detail::StateChange { state: InstanceState::Stopping },
            Detail::ScheduledChange(ScheduledChange {
                code: RETIREMENT.into(),
                start,
                hard: true,
                withdrawn: false,
                is_issue: false,
            }),
            Detail::CapacityReservation { terminates_at: "2026-11-21T12:02:00Z".parse().ok() },
        ];
        for (kind, detail) in NoticeKind::ALL.into_iter().zip(details) {
            let Parsed::Notices(notices) = parse(&made(kind)) else { panic!("{kind}: {:?}", parse(&made(kind))) };
            let notices: Vec<_> = notices.collect();
            let [notice] = notices.as_slice() else { panic!("{kind}: {notices:?}") };
            assert_eq!((notice.kind(), &notice.detail), (kind, &detail));
            assert_eq!(notice.instance.as_str(), "i-0123456789abcdef0");
            assert_eq!(notice.at().to_string(), "2026-11-21T12:00:00Z");
            assert!(notice.is_test(), "{kind}: {}", notice.identity);
        }
    }

    /// Test messages lack only fields that do not describe the instance.
    #[test]
    fn each_kind_has_the_fields_that_aws_documents() {
        let documented = [
            include_str!("../../../tests/fixtures/events/asg-terminate.json"),
            include_str!("../../../tests/fixtures/events/asg-launch.json"),
            include_str!("../../../tests/fixtures/events/spot.json"),
            include_str!("../../../tests/fixtures/events/rebalance.json"),
            include_str!("../../../tests/fixtures/events/state-stopping.json"),
            include_str!("../../../tests/fixtures/events/health-retirement.json"),
            include_str!("../../../tests/fixtures/events/capacity-reservation.json"),
        ];
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        for (kind, documented) in NoticeKind::ALL.into_iter().zip(documented) {
            let theirs: Value = serde_json::from_str(documented).unwrap();
            let ours: Value = serde_json::from_str(&made(kind)).unwrap();
            assert_eq!(keys(&ours), keys(&theirs), "{kind}");
            let left_out = |key: &String| matches!(key.as_str(), "NotificationMetadata" | "azId");
            let mut expected = keys(&theirs["detail"]);
            expected.retain(|key| !left_out(key));
            assert_eq!(keys(&ours["detail"]), expected, "{kind}");
            for field in ["source", "detail-type"] {
                assert_eq!(ours[field], theirs[field], "{kind}");
            }
        }
    }

    #[test]
    fn an_identity_has_the_length_that_auto_scaling_wants() {
        assert_eq!([identity(0), identity(u128::MAX)].map(|made| made.len()), [36, 36]);
        assert_ne!(identity(u128::MAX), identity(u128::MAX / 2));
    }

    #[test]
    fn messages_of_aws_are_no_tests() {
        for body in [
            include_str!("../../../tests/fixtures/events/spot.json"),
            include_str!("../../../tests/fixtures/events/asg-terminate.json"),
            include_str!("../../../tests/fixtures/events/health-retirement.json"),
        ] {
            let Parsed::Notices(mut notices) = parse(body) else { panic!("{body}") };
            assert!(notices.all(|notice| !notice.is_test()), "{body}");
        }
    }
}
