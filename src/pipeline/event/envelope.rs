//! The wrapping of a body, and the parser for the message in it.
//!
//! Three wrappings reach the queue: EventBridge's event, SNS's notification with one of the others as a string in it, and
//! the bare lifecycle message that a hook sends to the queue itself. SNS with raw delivery adds nothing.

use super::wire::{At, Head, Text, quote, root};
use super::{IgnoreReason, Malformed, MalformedReason, Parsed, autoscaling, ec2, health, zonal};
use serde::Deserialize;

/// The fields that distinguish the wrappings. `version`, `region`, `account` and `resources` are not read: they aren't needed, and AWS
/// documents `resources` as a list in one event and as a string in another.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Envelope<'a> {
    #[serde(borrow)]
    source: Text<'a>,
    #[serde(borrow, rename = "detail-type")]
    detail_type: Text<'a>,
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    time: Text<'a>,

    #[serde(borrow, rename = "Type")]
    sns_type: Text<'a>,
    #[serde(borrow, rename = "Message")]
    message: Text<'a>,

    #[serde(borrow, rename = "LifecycleTransition")]
    transition: Text<'a>,
    #[serde(borrow, rename = "LifecycleActionToken")]
    token: Text<'a>,
    #[serde(borrow, rename = "LifecycleHookName")]
    hook: Text<'a>,
    #[serde(borrow, rename = "Event")]
    event: Text<'a>,
}

/// Whether a body came by itself or inside an SNS notification.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrapping {
    No,
    InSns,
}

type Reader = fn(&str, &Head<'_>) -> Result<Parsed, Malformed>;

/// See [`super::parse`].
pub(super) fn parse(body: &str) -> Parsed {
    read(body, Wrapping::No).unwrap_or_else(Parsed::Malformed)
}

fn read(body: &str, wrapped: Wrapping) -> Result<Parsed, Malformed> {
    let envelope: Envelope<'_> = root(body)?;
    // An event always has both fields; with only one of them it is a damaged event, not an unknown shape.
    if envelope.source.is_present() || envelope.detail_type.is_present() {
        event(body, &envelope)
    } else if envelope.sns_type.is_present() {
        sns(&envelope, wrapped)
    // Any field that only a lifecycle message has, so that the error names the missing one.
    } else if envelope.transition.is_present() || envelope.token.is_present() || envelope.hook.is_present() {
        // A topic may send it to the queues of several clusters, so the message may be for another one.
        autoscaling::bare(body, wrapped == Wrapping::No)
    } else if envelope.event.is_present() {
        notification(envelope.event.text(At("", "Event"))?)
    } else {
        Err(unknown("neither an event, nor a notification, nor a lifecycle message".to_owned()))
    }
}

/// EventBridge's event.
fn event(body: &str, envelope: &Envelope<'_>) -> Result<Parsed, Malformed> {
    let source = envelope.source.text(At("", "source"))?;
    let detail_type = envelope.detail_type.text(At("", "detail-type"))?;
    let Some(reader) = reader(source, detail_type) else {
        return Ok(Parsed::Ignored(IgnoreReason::UnknownType));
    };
    reader(body, &Head { id: &envelope.id, at: envelope.time.time(At("", "time"))? })
}

/// The events that Ebbtide acts on.
fn reader(source: &str, detail_type: &str) -> Option<Reader> {
    Some(match (source, detail_type) {
        ("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action") => autoscaling::terminate,
        ("aws.autoscaling", "EC2 Instance-launch Lifecycle Action") => autoscaling::launch,
        ("aws.ec2", "EC2 Spot Instance Interruption Warning") => ec2::spot,
        // EventBridge lists both names for the same event.
        ("aws.ec2", "EC2 Instance Rebalance Recommendation" | "EC2 Spot Instance Rebalance Recommended") => {
            ec2::rebalance
        }
        ("aws.ec2fleet", "EC2 Fleet Instance Change") | ("aws.ec2spotfleet", "EC2 Spot Fleet Instance Change") => {
            ec2::fleet
        }
        ("aws.ec2", "EC2 Instance State-change Notification") => ec2::state_change,
        (
            "aws.ec2",
            "EC2 Capacity Reservation Instance Interruption Warning"
            // The same event under the name that some of AWS's pages still use.
            | "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
        ) => ec2::capacity_reservation,
        // The second name is that of the event's example in the documentation.
        ("aws.ec2", "Capacity Block Expiration Warning" | "Capacity Block Reservation Expiration Warning") => {
            ec2::capacity_block
        }
        ("aws.health", "AWS Health Event") => health::event,
        (zonal::SHIFT_SOURCE, kind) if zonal::SHIFT_BEGINS.contains(&kind) => zonal::begins,
        (zonal::SHIFT_SOURCE, kind) if zonal::SHIFT_ENDS.contains(&kind) => zonal::ends,
        _ => return None,
    })
}

/// SNS's own message. Only one notification is unwrapped, so that the depth of a body is bounded.
fn sns(envelope: &Envelope<'_>, wrapped: Wrapping) -> Result<Parsed, Malformed> {
    if wrapped == Wrapping::InSns {
        return Err(unknown("an SNS message inside an SNS notification".to_owned()));
    }
    match envelope.sns_type.text(At("", "Type"))? {
        "Notification" => read(envelope.message.text(At("", "Message"))?, Wrapping::InSns).map_err(in_message),
        "SubscriptionConfirmation" | "UnsubscribeConfirmation" => Ok(Parsed::Ignored(IgnoreReason::SnsControl)),
        other => Err(unknown(format!("the type {} is none of SNS's", quote(other)))),
    }
}

/// Auto Scaling's notifications that aren't lifecycle actions: the test, and reports of past events.
fn notification(event: &str) -> Result<Parsed, Malformed> {
    match event {
        "autoscaling:TEST_NOTIFICATION" => Ok(Parsed::Ignored(IgnoreReason::TestNotification)),
        _ if event.starts_with("autoscaling:") => Ok(Parsed::Ignored(IgnoreReason::UnknownType)),
        _ => Err(unknown(format!("the event {} is none of Auto Scaling's", quote(event)))),
    }
}

fn unknown(what: String) -> Malformed {
    At("", "body").malformed(MalformedReason::UnknownShape, what)
}

/// Prefixes the path of a fault with `Message`, for a message inside an SNS notification.
fn in_message(inner: Malformed) -> Malformed {
    let at = if inner.at == "body" { "Message".to_owned() } else { format!("Message.{}", inner.at) };
    Malformed { at, ..inner }
}
