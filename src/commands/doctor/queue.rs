//! The queue: is it the one, can EventBridge send to it, does it keep messages for as long as they are worked on. Pure.

use super::check::{Area, Check, Failed, Status, count};
use super::queue_policy::{Admission, Shut, admission};
use super::read::Seen;
use super::{credentials, groups};
use crate::cli::settings::Settings;
use crate::clients::gate::Category;
use crate::pipeline::event::Kind;
use crate::pipeline::interruption::Action;
use crate::pipeline::queue::Place;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The queue's attributes, as SQS names them.
pub type Attributes = BTreeMap<String, String>;

/// What EventBridge is called in policies.
pub const EVENTS: &str = "events.amazonaws.com";

/// Messages that outlive an outage of a weekend: what is asked for.
const DAYS: u64 = 345_600;

/// A queue that keeps messages for less loses them in an outage that lasts a night.
const DAY: Duration = Duration::from_hours(24);

/// Each rollout of Ebbtide releases what it holds, and so does SQS's 12 h.
const RECEIVES: u32 = 10;

/// More than this waits only where nobody receives.
const MANY: u64 = 1000;

/// The queue's ARN: as SQS says, or else as its URL does.
#[must_use]
pub fn arn(attributes: Option<&Attributes>, url: &str) -> Option<String> {
    let told = attributes.and_then(|attributes| attributes.get("QueueArn").cloned());
    told.or_else(|| Place::of(url)?.arn())
}

/// Partition, region and account of an ARN.
#[must_use]
pub fn parts(arn: &str) -> [&str; 3] {
    let mut parts = arn.split(':').skip(1);
    let partition = parts.next().unwrap_or("aws");
    let region = parts.nth(1).unwrap_or_default();
    [partition, region, parts.next().unwrap_or_default()]
}

/// What is found of it.
#[must_use]
pub fn judge(settings: &Settings, seen: &Seen) -> Vec<Check> {
    let area = Area::Queue;
    let url = &settings.queue_url;
    let mut checks = vec![region(url, seen.region.as_deref())];
    let attributes = match &seen.queue {
        Ok(attributes) => attributes,
        Err(failed) => {
            // In another region a queue is not there, and without credentials nobody says so; that was said.
            if checks[0].status != Status::Failure && !seen.identity.as_ref().is_err_and(credentials::useless) {
                checks.push(missing(failed, seen.region.as_deref()));
            }
            return checks;
        }
    };
    let known = arn(Some(attributes), url).unwrap_or_default();
    checks.push(area.ok("exists", &known));
    checks.push(admits(settings, seen, attributes, &known));
    checks.push(encryption(url, attributes));
    checks.push(retention(settings, seen, attributes));
    checks.push(visibility(url, attributes));
    checks.push(dead_letters(url, attributes));
    checks.push(waiting(attributes));
    checks
}

fn region(url: &str, ours: Option<&str>) -> Check {
    let (area, name) = (Area::Queue, "region");
    match (Place::of(url).and_then(|place| place.region), ours) {
        (Some(queue), Some(ours)) if queue != ours => area.failure(
            name,
            format!("The queue is in {queue}, and AWS is asked in {ours}: every receive fails."),
            format!("Set AWS_REGION={queue}, if the cluster is there; else give the queue of {ours}. An EventBridge rule sends to queues of its own region."),
        ),
        (Some(queue), _) => area.ok(name, queue),
        (None, Some(ours)) => area.skipped(name, format!("The queue's URL names no region of AWS's; we ask in {ours}.")),
        (None, None) => area.skipped(name, "The queue's URL names no region of AWS's."),
    }
}

fn missing(failed: &Failed, region: Option<&str>) -> Check {
    let (area, name) = (Area::Queue, "exists");
    let region = region.unwrap_or("this region");
    match failed.category {
        Category::NotFound => area.failure(
            name,
            format!("There is no such queue in {region}: {}", failed.what),
            "Correct --queue-url, or AWS_REGION. This lists the queues there are:\n  aws sqs list-queues",
        ),
        Category::Denied => area.unread(name, failed, "sqs:GetQueueAttributes"),
        Category::Invalid => area.failure(
            name,
            &failed.what,
            "Correct --queue-url: it is https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.",
        ),
        _ => area
            .failure(
                name,
                &failed.what,
                "Let this process reach SQS: by a NAT gateway, by a VPC endpoint whose security group lets it in, or by the proxy of HTTPS_PROXY.",
            )
            .unreached(),
    }
}

/// A command that sets one attribute.
fn set(url: &str, attribute: &str) -> String {
    format!("  aws sqs set-queue-attributes --queue-url {url} \\\n    --attributes {attribute}")
}

fn admits(settings: &Settings, seen: &Seen, attributes: &Attributes, arn: &str) -> Check {
    let (area, name) = (Area::Queue, "policy");
    // Lifecycle hooks may notify the queue directly, by a role of their own. Nothing else comes without EventBridge.
    let needed = Kind::ALL.into_iter().any(|kind| {
        settings.policy.actions.of(kind) != Action::Ignore && !matches!(kind, Kind::AsgTerminate | Kind::AsgLaunch)
    });
    let [partition, region, account] = parts(arn);
    let statement = format!(
        "Add this statement to the queue's policy; the SQS console shows it under Access policy:\n  \
         {{\"Effect\": \"Allow\", \"Principal\": {{\"Service\": \"{EVENTS}\"}},\n   \
         \"Action\": \"sqs:SendMessage\", \"Resource\": \"{arn}\",\n   \
         \"Condition\": {{\"ArnLike\": {{\n     \"aws:SourceArn\": \"arn:{partition}:events:{region}:{account}:rule/*\"}}}}}}"
    );
    let policy = attributes.get("Policy").map(String::as_str).filter(|policy| !policy.is_empty());
    let shut = match policy.map(|policy| admission(policy, EVENTS, arn)) {
        Some(Ok(admission)) => return admitted(seen, &admission, &statement),
        Some(Err(shut)) => shut,
        None => Shut::Principal,
    };
    let through_sns = policy.is_some_and(|policy| admission(policy, "sns.amazonaws.com", arn).is_ok());
    if through_sns && shut == Shut::Principal {
        return area.ok(name, "SNS may send; EventBridge itself may not.");
    }
    let (found, remedy) = match shut {
        Shut::Principal if policy.is_none() => {
            ("The queue has no policy: EventBridge can't send to it.".to_owned(), statement)
        }
        Shut::Principal => (format!("No statement names {EVENTS}: EventBridge can't send to the queue."), statement),
        Shut::Action => (format!("{EVENTS} is named, but sqs:SendMessage is not allowed to it."), statement),
        Shut::Resource => (format!("{EVENTS} may send to another queue: Resource is not {arn}."), statement),
        Shut::Denied(sid) => (
            format!("A Deny statement without a condition keeps EventBridge out{}.", named(&sid)),
            "Take that statement away, or except EventBridge from it.".to_owned(),
        ),
        Shut::Unclear(condition) => {
            return area.warning(
                name,
                format!("EventBridge may send under a condition that is not judged here: {condition}."),
                "Check that EventBridge meets it; the condition it does meet is aws:SourceArn, the rule's ARN.",
            );
        }
        Shut::Unreadable => {
            return area.skipped(name, "The policy can't be read as one.");
        }
    };
    if needed { area.failure(name, found, remedy) } else { area.warning(name, found, remedy) }
}

fn named(sid: &str) -> String {
    if sid.is_empty() { String::new() } else { format!(": \"{sid}\"") }
}

fn admitted(seen: &Seen, admission: &Admission, statement: &str) -> Check {
    let (area, name) = (Area::Queue, "policy");
    if let Some(unclear) = admission.unclear.first() {
        return area.warning(
            name,
            format!("EventBridge may send, but for {unclear}, which is not judged here."),
            "Check that it does not catch EventBridge.",
        );
    }
    let mut rules = seen.rules.iter().flat_map(|rules| &rules.rules);
    let kept_out = rules.find_map(|rule| Some((rule, admission.keeps_out(&rule.arn, parts(&rule.arn)[2])?)));
    if let Some((rule, condition)) = kept_out {
        let value: &str = if condition == "aws:SourceArn" { &rule.arn } else { parts(&rule.arn)[2] };
        return area.failure(
            name,
            format!("EventBridge may send, but not for rule {}: {condition} is another.", rule.name),
            format!(
                "Name the rule's in {condition}: {value}\nOr let all rules in:\n{}",
                statement.split_once('\n').map_or(statement, |(_, json)| json)
            ),
        );
    }
    if admission.is_open() {
        return area.warning(
            name,
            "EventBridge may send, for whoever has a rule: aws:SourceArn is missing, so another account's rule may, too.",
            format!("Narrow it. {statement}"),
        );
    }
    let whom: Vec<String> = admission.grants.iter().map(ToString::to_string).collect();
    area.ok(name, format!("EventBridge may send, for {}", whom.join(", ")))
}

fn encryption(url: &str, attributes: &Attributes) -> Check {
    let (area, name) = (Area::Queue, "encryption");
    match attributes.get("KmsMasterKeyId").map(String::as_str).filter(|key| !key.is_empty()) {
        None if attributes.get("SqsManagedSseEnabled").is_some_and(|on| on == "true") => area.ok(name, "SSE-SQS"),
        None => area.ok(name, "none"),
        Some(key) if key.ends_with("alias/aws/sqs") => area.failure(
            name,
            "The key is alias/aws/sqs, AWS's own, whose policy EventBridge is not in and can't be put in: its messages are lost.",
            format!(
                "Use SSE-SQS, which needs no key:\n{}\nOr a key of your own, whose policy allows {EVENTS} kms:GenerateDataKey and kms:Decrypt.",
                set(url, "'{\"KmsMasterKeyId\": \"\", \"SqsManagedSseEnabled\": \"true\"}'")
            ),
        ),
        Some(key) => area.warning(
            name,
            format!("Encrypted with {key}, whose policy can't be read from here."),
            format!(
                "Check that the key's policy lets EventBridge in, and our role decrypt:\n  {{\"Effect\": \"Allow\", \
                 \"Principal\": {{\"Service\": \"{EVENTS}\"}},\n   \"Action\": [\"kms:GenerateDataKey\", \"kms:Decrypt\"], \
                 \"Resource\": \"*\"}}\nOr use SSE-SQS, which needs no key."
            ),
        ),
    }
}

fn seconds(attributes: &Attributes, name: &str) -> Option<Duration> {
    attributes.get(name)?.parse().ok().map(Duration::from_secs)
}

fn retention(settings: &Settings, seen: &Seen, attributes: &Attributes) -> Check {
    let (area, name) = (Area::Queue, "retention");
    let Some(kept) = seconds(attributes, "MessageRetentionPeriod") else {
        return area.skipped(name, "SQS does not say how long it keeps messages.");
    };
    let longest = groups::longest_drain(settings, seen);
    let shown = humantime::format_duration(kept);
    let remedy =
        format!("Keep messages for days:\n{}", set(&settings.queue_url, &format!("MessageRetentionPeriod={DAYS}")));
    if kept < longest {
        let longest = humantime::format_duration(longest);
        return area.warning(
            name,
            format!("Messages are kept for {shown}, and a drain may take {longest}: its message vanishes meanwhile, and nobody takes over from a replica that dies."),
            remedy,
        );
    }
    if kept < DAY {
        return area.warning(
            name,
            format!("Messages are kept for {shown}: an outage that lasts longer loses them."),
            remedy,
        );
    }
    area.ok(name, shown.to_string())
}

fn visibility(url: &str, attributes: &Attributes) -> Check {
    let (area, name) = (Area::Queue, "visibility");
    if let Some(delay) = seconds(attributes, "DelaySeconds").filter(|delay| !delay.is_zero()) {
        return area.warning(
            name,
            format!("Every message is delayed by {} s, of the 120 that a spot instance has.", delay.as_secs()),
            format!("Take the delay away:\n{}", set(url, "DelaySeconds=0")),
        );
    }
    let timeout = seconds(attributes, "VisibilityTimeout").unwrap_or_default().as_secs();
    area.ok(name, format!("{timeout} s, which does not matter: each receive asks for its own"))
}

fn dead_letters(url: &str, attributes: &Attributes) -> Check {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Redrive {
        dead_letter_target_arn: String,
        // Written as a number and, of old, as a text.
        max_receive_count: serde_json::Value,
    }
    let (area, name) = (Area::Queue, "dead-letters");
    let redrive: Option<Redrive> = attributes.get("RedrivePolicy").and_then(|policy| serde_json::from_str(policy).ok());
    let most = redrive.as_ref().and_then(|redrive| {
        let count = &redrive.max_receive_count;
        count.as_u64().or_else(|| count.as_str()?.parse().ok())
    });
    let example = |target: &str| {
        let policy = format!("{{\\\"deadLetterTargetArn\\\":\\\"{target}\\\",\\\"maxReceiveCount\\\":{RECEIVES}}}");
        set(url, &format!("'{{\"RedrivePolicy\": \"{policy}\"}}'"))
    };
    match (redrive, most) {
        (Some(redrive), Some(most)) if most < u64::from(RECEIVES) => area.warning(
            name,
            format!("maxReceiveCount is {most}: each rollout, and each 12 h of a long hook, receives a message anew, and then it is lost to the dead letters."),
            format!("Choose {RECEIVES}:\n{}", example(&redrive.dead_letter_target_arn)),
        ),
        (Some(redrive), Some(most)) => area.ok(name, format!("after {most} receives, to {}", redrive.dead_letter_target_arn)),
        _ => area.warning(
            name,
            "There is no dead-letter queue: a message that nobody can finish comes back until it expires.",
            format!("Make one, and name it:\n{}", example("ARN-OF-THE-OTHER-QUEUE")),
        ),
    }
}

fn number(attributes: &Attributes, name: &str) -> u64 {
    attributes.get(name).and_then(|number| number.parse().ok()).unwrap_or_default()
}

fn waiting(attributes: &Attributes) -> Check {
    let (area, name) = (Area::Queue, "waiting");
    let [waiting, held] =
        ["", "NotVisible"].map(|which| number(attributes, &format!("ApproximateNumberOfMessages{which}")));
    let messages = count(usize::try_from(waiting).unwrap_or(usize::MAX), "message waits", "messages wait");
    if waiting > MANY {
        return area.warning(
            name,
            format!("{messages}, and {held} are being worked on: nobody receives, or not fast enough."),
            "See that the service runs and is ready. What is waiting may be old: a notice whose time has passed is only deleted.",
        );
    }
    area.ok(name, format!("{messages}, {held} are being worked on"))
}

#[cfg(test)]
mod tests;
