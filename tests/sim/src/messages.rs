//! Bodies of messages as AWS writes them, following its documented schemas.

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde_json::{Value, json};

const ACCOUNT: &str = crate::aws::ACCOUNT;
const REGION: &str = crate::aws::REGION;

/// Wrapping of a lifecycle hook's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    /// An EventBridge event.
    Event,
    /// An EventBridge event in an SNS notification.
    Sns,
    /// No wrapping: the hook notifies the queue itself.
    Bare,
}

/// Returns the message of a lifecycle hook for a terminating (or launching) instance.
#[must_use]
pub fn lifecycle(
    wrapping: Wrapping,
    terminating: bool,
    names: (&str, &str, &str),
    instance: &str,
    at: Timestamp,
) -> String {
    let way = if terminating { ("AutoScalingGroup", "EC2") } else { ("EC2", "AutoScalingGroup") };
    lifecycle_between(wrapping, terminating, names, instance, at, way)
}

/// Returns the same for an instance that moves from an origin to a destination: `EC2`, `AutoScalingGroup` or `WarmPool`.
#[must_use]
pub fn lifecycle_between(
    wrapping: Wrapping,
    terminating: bool,
    (group, hook, token): (&str, &str, &str),
    instance: &str,
    at: Timestamp,
    (origin, destination): (&str, &str),
) -> String {
    let (transition, kind) = if terminating {
        ("autoscaling:EC2_INSTANCE_TERMINATING", "EC2 Instance-terminate Lifecycle Action")
    } else {
        ("autoscaling:EC2_INSTANCE_LAUNCHING", "EC2 Instance-launch Lifecycle Action")
    };
    let mut detail = json!({
        "LifecycleActionToken": token,
        "AutoScalingGroupName": group,
        "LifecycleHookName": hook,
        "EC2InstanceId": instance,
        "LifecycleTransition": transition,
        "Origin": origin,
        "Destination": destination,
    });
    match wrapping {
        Wrapping::Event => event("aws.autoscaling", kind, token, at, &detail),
        Wrapping::Sns => sns(&event("aws.autoscaling", kind, token, at, &detail)),
        Wrapping::Bare => {
            detail["Service"] = json!("AWS Auto Scaling");
            detail["Time"] = json!(at.to_string());
            detail["AccountId"] = json!(ACCOUNT);
            detail["RequestId"] = json!(token);
            detail.to_string()
        }
    }
}

/// Returns the message of a lifecycle hook before (or after) an instance refresh replaces the instance's root volume.
#[must_use]
pub fn root_volume(before: bool, names: (&str, &str, &str), instance: &str, at: Timestamp) -> String {
    let way = ("AutoScalingGroup", "AutoScalingGroup");
    let body = lifecycle_between(Wrapping::Event, before, names, instance, at, way);
    let mut event: Value = serde_json::from_str(&body).expect("a message must be JSON");
    event["detail"]["Action"] = json!("ReplaceRootVolume");
    event.to_string()
}

/// Returns a spot interruption warning. `id` is the event's.
#[must_use]
pub fn spot(id: &str, instance: &str, at: Timestamp) -> String {
    let detail = json!({ "instance-id": instance, "instance-action": "terminate" });
    event("aws.ec2", "EC2 Spot Instance Interruption Warning", id, at, &detail)
}

/// Returns a rebalance recommendation.
#[must_use]
pub fn rebalance(id: &str, instance: &str, at: Timestamp) -> String {
    event("aws.ec2", "EC2 Instance Rebalance Recommendation", id, at, &json!({ "instance-id": instance }))
}

/// Returns a state-change notification.
#[must_use]
pub fn state_change(id: &str, instance: &str, state: &str, at: Timestamp) -> String {
    let detail = json!({ "instance-id": instance, "state": state });
    event("aws.ec2", "EC2 Instance State-change Notification", id, at, &detail)
}

/// Returns the notification that a capacity reservation reclaims an instance at `until`.
#[must_use]
pub fn capacity_reservation(id: &str, instance: &str, at: Timestamp, until: Timestamp) -> String {
    let detail = json!({
        "instance-id": instance,
        "instance-action": "terminate",
        "instance-termination-time": until.to_string(),
    });
    event("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning", id, at, &detail)
}

/// Returns the warning that a Capacity Block ends at `end`.
#[must_use]
pub fn capacity_block(id: &str, reservation: &str, at: Timestamp, end: Timestamp) -> String {
    let detail = json!({ "capacity-reservation-id": reservation, "end-date": end.to_string() });
    event("aws.ec2", "Capacity Block Expiration Warning", id, at, &detail)
}

/// Returns a Health event about several instances, which begins at `start`. `code` is such as `AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED`.
#[must_use]
pub fn scheduled_change(id: &str, code: &str, instances: &[&str], at: Timestamp, start: Timestamp) -> String {
    let start = rfc2822::to_string(&start.to_zoned(jiff::tz::TimeZone::UTC)).expect("a test's time must have a year");
    let affected: Vec<Value> = instances.iter().map(|id| json!({ "entityValue": id, "status": "IMPAIRED" })).collect();
    let detail = json!({
        "eventArn": format!("arn:aws:health:{REGION}::event/EC2/{code}/{code}_{id}"),
        "service": "EC2",
        "eventTypeCode": code,
        "eventTypeCategory": "scheduledChange",
        "startTime": start.replace("+0000", "GMT"),
        "statusCode": "upcoming",
        "affectedEntities": affected,
    });
    event("aws.health", "AWS Health Event", id, at, &detail)
}

/// Returns an EventBridge event.
#[must_use]
pub fn event(source: &str, kind: &str, id: &str, at: Timestamp, detail: &Value) -> String {
    json!({
        "version": "0",
        "id": id,
        "detail-type": kind,
        "source": source,
        "account": ACCOUNT,
        "time": at.to_string(),
        "region": REGION,
        "resources": [],
        "detail": detail,
    })
    .to_string()
}

/// Returns the event of a zonal shift: `kind` is its detail-type, and `resource` what is shifted; empty for an observer's notification.
#[must_use]
pub fn zonal_shift(kind: &str, resource: &str, away_from: &str, at: Timestamp) -> String {
    let detail = json!({ "version": "0.0.1", "data": "", "metadata": { "awayFrom": away_from, "notes": "" } });
    let mut event: Value =
        serde_json::from_str(&event("aws.arc-zonal-shift", kind, "shift", at, &detail)).unwrap_or_default();
    event["resources"] = if resource.is_empty() { json!([]) } else { json!([resource]) };
    event.to_string()
}

/// Returns an SNS notification around `message`.
#[must_use]
pub fn sns(message: &str) -> String {
    json!({
        "Type": "Notification",
        "MessageId": "9f1c0d6e-52a4-5d0b-8e77-5a3f6c1b2d48",
        "TopicArn": format!("arn:aws:sns:{REGION}:{ACCOUNT}:interruptions"),
        "Message": message,
        "Timestamp": "2026-11-21T12:00:00.000Z",
    })
    .to_string()
}
