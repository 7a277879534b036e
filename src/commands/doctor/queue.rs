//! The queue: whether it exists, EventBridge may send to it, and it keeps messages for long enough. Pure.

use super::arn::{ArnParts, queue_arn};
use super::check::{Area, Check, Status, count, few};
use super::queue_policy::{RoleRefusal, SendAccess, SendRefusal, access, refuses_others};
use super::readings::{QueueAttributes, ReadError, Readings};
use super::{credentials, groups};
use crate::cli::settings::Settings;
use crate::clients::gate::Category;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::Action;
use crate::pipeline::queue::QueueUrl;
use crate::runtime::duration::Words;
use serde::Deserialize;
use std::time::Duration;

/// EventBridge's principal in policies.
pub const EVENTS: &str = "events.amazonaws.com";

/// SNS's principal in policies.
pub const SNS: &str = "sns.amazonaws.com";

/// Recommended retention of messages in seconds: 4 days, so that messages outlive an outage of a weekend.
const RECOMMENDED_RETENTION: u64 = 345_600;

/// Minimum retention of messages without a warning: less does not outlive an outage of a night.
const MIN_RETENTION: Duration = Duration::from_hours(24);

/// Minimum number of receives before a message becomes a dead letter: each rollout of Ebbtide releases its messages, and SQS does
/// after 12 h.
const MIN_RECEIVES: u64 = 10;

/// Maximum number of waiting messages without a warning: more wait only if no replica receives.
const MAX_WAITING: u64 = 1000;

/// The attribute that lets no other queue send its dead letters to the queue.
const DENY_ALL: &str = r#"'{"RedriveAllowPolicy": "{\"redrivePermission\":\"denyAll\"}"}'"#;

/// Judges the queue.
#[must_use]
pub fn judge(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let area = Area::Queue;
    let url = &settings.queue_url;
    let mut checks = vec![region(url, readings.region.as_deref())];
    let attributes = match &readings.queue {
        Ok(attributes) => attributes,
        Err(error) => {
            // A wrong region and missing credentials have been reported already.
            if checks[0].status != Status::Failure && !readings.identity.as_ref().is_err_and(credentials::unusable) {
                checks.push(missing(error, readings.region.as_deref()));
            }
            return checks;
        }
    };
    let known = queue_arn(Some(attributes), url).unwrap_or_default();
    checks.push(area.ok("exists", &known));
    checks.push(judge_policy(settings, readings, attributes, &known));
    checks.extend(senders(readings, attributes, &known));
    let queue = Queue { url, attributes, longest_drain: groups::longest_drain(settings, readings) };
    checks.extend(ATTRIBUTES.iter().map(|(name, judge)| judge(&queue).check(name)));
    checks
}

fn region(url: &str, ours: Option<&str>) -> Check {
    let (area, name) = (Area::Queue, "region");
    match (QueueUrl::parse(url).and_then(|url| url.region), ours) {
        (Some(queue), Some(ours)) if queue != ours => area.failure(
            name,
            format!("The queue is in {queue}, and calls to AWS go to {ours}: every receive fails."),
            format!("Set AWS_REGION={queue}, if the cluster is there. Otherwise give the queue of {ours}: an EventBridge rule sends to queues of its own region."),
        ),
        (Some(queue), _) => area.ok(name, queue),
        (None, Some(ours)) => area.skipped(name, format!("The queue's URL names no AWS region; calls go to {ours}.")),
        (None, None) => area.skipped(name, "The queue's URL names no AWS region."),
    }
}

fn missing(error: &ReadError, region: Option<&str>) -> Check {
    let (area, name) = (Area::Queue, "exists");
    let region = region.unwrap_or("this region");
    match error.category {
        Category::NotFound => area.failure(
            name,
            format!("There is no such queue in {region}: {}", error.message),
            "Correct --queue-url or AWS_REGION. This command lists the queues:\n  aws sqs list-queues",
        ),
        Category::Denied => area.unread(name, error, "sqs:GetQueueAttributes"),
        Category::Invalid => area.failure(
            name,
            &error.message,
            "Correct --queue-url: its form is https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.",
        ),
        _ => area
            .failure(
                name,
                &error.message,
                "Let this process reach SQS: by a NAT gateway, by a VPC endpoint whose security group allows it, or by the proxy of HTTPS_PROXY.",
            )
            .unreached(),
    }
}

fn judge_policy(settings: &Settings, readings: &Readings, attributes: &QueueAttributes, arn: &str) -> Check {
    let (area, name) = (Area::Queue, "policy");
    // Lifecycle hooks may notify the queue directly, with a role of their own. All other notices come from EventBridge.
    let needed = !settings.policy.health_issues.is_empty()
        || NoticeKind::ALL.into_iter().any(|kind| {
            settings.policy.actions.of(kind) != Action::Ignore
                && !kind.is_repair()
                && !matches!(kind, NoticeKind::AsgTerminate | NoticeKind::AsgLaunch)
        });
    let ArnParts { partition, region, account } = ArnParts::of(arn);
    let statement = format!(
        "Add this statement to the queue's policy; the SQS console shows it under Access policy:\n  \
         {{\"Effect\": \"Allow\", \"Principal\": {{\"Service\": \"{EVENTS}\"}},\n   \
         \"Action\": \"sqs:SendMessage\", \"Resource\": \"{arn}\",\n   \
         \"Condition\": {{\"ArnLike\": {{\n     \"aws:SourceArn\": \"arn:{partition}:events:{region}:{account}:rule/*\"}}}}}}"
    );
    let policy = attributes.get("Policy").map(String::as_str).filter(|policy| !policy.is_empty());
    let refusal = match policy.map(|policy| access(policy, EVENTS, arn)) {
        Some(Ok(access)) => return judge_access(readings, &access, &statement),
        Some(Err(refusal)) => refusal,
        None => SendRefusal::Principal,
    };
    let refusal = match (refusal, policy.map(|policy| access(policy, SNS, arn))) {
        (SendRefusal::Principal, Some(Ok(sns))) => return judge_topics(&sns),
        (SendRefusal::Principal, Some(Err(custom @ SendRefusal::Custom(_)))) => custom,
        (refusal, _) => refusal,
    };
    let (found, remedy) = match refusal {
        SendRefusal::Principal if policy.is_none() => {
            ("The queue has no policy: EventBridge can't send to it.".to_owned(), statement)
        }
        SendRefusal::Principal => {
            (format!("No statement names {EVENTS}: EventBridge can't send to the queue."), statement)
        }
        SendRefusal::Action => (format!("{EVENTS} is named, but sqs:SendMessage is not allowed."), statement),
        SendRefusal::Resource => (format!("{EVENTS} may send to another queue: Resource is not {arn}."), statement),
        SendRefusal::Denied(sid) => (
            format!("A Deny statement refuses EventBridge itself{}: no condition leaves the rules out.", named(&sid)),
            format!(
                "Remove that statement, or leave the rules out by this condition on top of its own:\n  {}",
                sources(readings, arn)
            ),
        ),
        SendRefusal::Custom(sid) => {
            return custom(name, &sid).remedied(
                "Check that it lets EventBridge send. The requests have aws:SourceArn, which is the rule's ARN, and aws:SourceAccount.",
            );
        }
        SendRefusal::Unreadable => {
            return area.skipped(name, "The attribute Policy is not a policy.");
        }
    };
    if needed { area.failure(name, found, remedy) } else { area.warning(name, found, remedy) }
}

/// Judges whether the topics that a policy names may send, where only SNS may.
fn judge_topics(sns: &SendAccess) -> Check {
    let (area, name) = (Area::Queue, "policy");
    let mut topics = sns.grants.iter().flat_map(|grant| &grant.sources).filter(|topic| !topic.contains(['*', '?']));
    match topics.find_map(|topic| Some((topic, sns.denial_of(topic, ArnParts::of(topic).account)?))) {
        None => area.ok(name, "SNS may send; EventBridge itself may not."),
        Some((topic, denial)) => area.failure(
            name,
            format!("A Deny statement refuses the SNS topic {topic}{}.", named(&denial.sid)),
            "Add the topic's ARN to aws:SourceArn in that statement's ArnNotEquals.",
        ),
    }
}

/// Returns the note about a statement whose form is neither the templates' nor that of AWS's documentation.
fn custom(name: &'static str, sid: &str) -> Check {
    Area::Queue.skipped(name, format!("Custom policy, not judged: a statement has a form of its own{}.", named(sid)))
}

fn named(sid: &str) -> String {
    if sid.is_empty() { String::new() } else { format!(": \"{sid}\"") }
}

fn judge_access(readings: &Readings, access: &SendAccess, statement: &str) -> Check {
    let (area, name) = (Area::Queue, "policy");
    if access.to_everybody && access.denials.is_empty() {
        return area.failure(
            name,
            "Everybody may send, from any account, and so may have all nodes drained: a statement allows it without a condition.",
            format!("Replace that statement. {statement}"),
        );
    }
    let rules = || readings.rules.iter().flat_map(|rules| &rules.rules);
    let denied = rules().find_map(|rule| Some((rule, access.denial_of(&rule.arn, ArnParts::of(&rule.arn).account)?)));
    if let Some((rule, denial)) = denied {
        return area.failure(
            name,
            format!("A Deny statement refuses EventBridge's rule {}{}.", rule.name, named(&denial.sid)),
            format!("Add the rule's ARN to aws:SourceArn in that statement's ArnNotEquals: {}", rule.arn),
        );
    }
    let mut rules = rules();
    let excluded =
        rules.find_map(|rule| Some((rule, access.excluding_condition(&rule.arn, ArnParts::of(&rule.arn).account)?)));
    if let Some((rule, condition)) = excluded {
        let value: &str = if condition == "aws:SourceArn" { &rule.arn } else { ArnParts::of(&rule.arn).account };
        return area.failure(
            name,
            format!("EventBridge may send, but not for rule {}: {condition} has another value.", rule.name),
            format!(
                "Add the rule's value to {condition}: {value}\nOr allow all rules:\n{}",
                statement.split_once('\n').map_or(statement, |(_, json)| json)
            ),
        );
    }
    if access.is_open() {
        return area.warning(
            name,
            "EventBridge may send for any rule of any account: aws:SourceArn is missing.",
            format!("Narrow it. {statement}"),
        );
    }
    let sources: Vec<String> = access.grants.iter().map(ToString::to_string).collect();
    area.ok(name, format!("EventBridge may send, for {}", sources.join(", ")))
}

/// Returns a condition that holds for all senders but the rules of the queue, or without known ones all rules of the account.
fn sources(readings: &Readings, arn: &str) -> String {
    let ArnParts { partition, region, account } = ArnParts::of(arn);
    let known = readings.rules.iter().flat_map(|rules| &rules.rules).map(|rule| format!("\"{}\"", rule.arn));
    let mut arns: Vec<String> = known.collect();
    if arns.is_empty() {
        arns.push(format!("\"arn:{partition}:events:{region}:{account}:rule/*\""));
    }
    format!("{{\"ArnNotEquals\": {{\"aws:SourceArn\": [\n     {}]}}}}", arns.join(",\n     "))
}

/// Judges the other senders. An IAM policy alone is enough for a role or user of the queue's account, unless the queue's policy denies it.
fn senders(readings: &Readings, attributes: &QueueAttributes, arn: &str) -> Option<Check> {
    let (area, name) = (Area::Queue, "senders");
    let policy = attributes.get("Policy").filter(|policy| !policy.is_empty())?;
    let statement = format!(
        "Add this statement to the queue's policy:\n  \
         {{\"Effect\": \"Deny\", \"Principal\": \"*\", \"Action\": \"sqs:SendMessage\",\n   \"Resource\": \"{arn}\",\n   \
         \"Condition\": {}}}\n\
         Add an SNS topic that sends to the list, and to \"aws:PrincipalArn\" in the same ArnNotEquals the role with which hooks \
         notify the queue directly, and who uses ebbtide send or redrives. Ebbtide's CloudFormation template and Terraform \
         module of this version have the statement.",
        sources(readings, arn)
    );
    Some(match refuses_others(policy, arn) {
        RoleRefusal::Refused => area.ok(name, "A Deny statement refuses all senders that it does not name."),
        RoleRefusal::Custom(sid) => custom(name, &sid).remedied(format!(
            "Check that it refuses the roles and users of this account that have sqs:SendMessage by IAM alone. If it does not:\n{statement}"
        )),
        RoleRefusal::Admitted => area.warning(
            name,
            "Every role and user of this account with sqs:SendMessage by IAM may send, and so may have all nodes drained.",
            statement,
        ),
    })
}

/// The checks of single attributes, in the order of the output.
const ATTRIBUTES: [(&str, Judge); 6] = [
    ("other-queues", other_queues),
    ("encryption", encryption),
    ("retention", retention),
    ("visibility", visibility),
    ("dead-letters", dead_letters),
    ("waiting", waiting),
];

type Judge = fn(&Queue<'_>) -> Finding;

/// The queue, as far as its attributes are judged.
struct Queue<'a> {
    url: &'a str,
    attributes: &'a QueueAttributes,
    longest_drain: Duration,
}

impl Queue<'_> {
    /// Returns an attribute that is not empty.
    fn text(&self, attribute: &str) -> Option<&str> {
        self.attributes.get(attribute).map(String::as_str).filter(|text| !text.is_empty())
    }

    fn number(&self, attribute: &str) -> Option<u64> {
        self.text(attribute)?.parse().ok()
    }

    /// Returns advice with the command that sets attributes.
    fn set(&self, advice: &str, attributes: &str) -> String {
        format!("{advice}:\n  aws sqs set-queue-attributes --queue-url {} \\\n    --attributes {attributes}", self.url)
    }

    /// Returns an attribute that is a policy in JSON.
    fn policy<'de, T: Deserialize<'de>>(&'de self, attribute: &str) -> Option<T> {
        serde_json::from_str(self.text(attribute)?).ok()
    }
}
/// The meaning of an attribute's value. A problem has a remedy.
enum Finding {
    Fine(String),
    Unknown(&'static str),
    Warning(String, String),
    Failure(String, String),
}

impl Finding {
    fn check(self, name: &'static str) -> Check {
        match self {
            Self::Fine(found) => Area::Queue.ok(name, found),
            Self::Unknown(why) => Area::Queue.skipped(name, why),
            Self::Warning(found, remedy) => Area::Queue.warning(name, found, remedy),
            Self::Failure(found, remedy) => Area::Queue.failure(name, found, remedy),
        }
    }
}

/// Judges whether other queues may send their dead letters here: SQS moves them without asking the queue's policy.
fn other_queues(queue: &Queue<'_>) -> Finding {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct RedriveAllow {
        redrive_permission: String,
        #[serde(default)]
        source_queue_arns: Vec<String>,
    }
    let policy: Option<RedriveAllow> = queue.policy("RedriveAllowPolicy");
    match policy.as_ref().map(|policy| &*policy.redrive_permission) {
        Some("denyAll") => Finding::Fine("none may send its dead letters here".to_owned()),
        Some("byQueue") => {
            let sources = few(&policy.map(|policy| policy.source_queue_arns).unwrap_or_default());
            Finding::Warning(
                format!("All that may send to {sources} may send here by its dead letters."),
                queue.set("If this is not wanted", DENY_ALL),
            )
        }
        _ => Finding::Warning(
            "Every queue of this account and region may send its dead letters here, and SQS asks no queue policy then: all that may create a queue may have all nodes drained.".to_owned(),
            queue.set("Forbid it", DENY_ALL),
        ),
    }
}

fn encryption(queue: &Queue<'_>) -> Finding {
    match queue.text("KmsMasterKeyId") {
        None if queue.text("SqsManagedSseEnabled") == Some("true") => Finding::Fine("SSE-SQS".to_owned()),
        None => Finding::Fine("none".to_owned()),
        Some(key) if key.ends_with("alias/aws/sqs") => Finding::Failure(
            "The key is the AWS managed key alias/aws/sqs. Its policy does not allow EventBridge and can't be changed, so EventBridge's messages are lost.".to_owned(),
            format!(
                "{}\nOr use a key of your own, whose policy allows {EVENTS} kms:GenerateDataKey and kms:Decrypt.",
                queue.set("Use SSE-SQS, which needs no key", "'{\"KmsMasterKeyId\": \"\", \"SqsManagedSseEnabled\": \"true\"}'")
            ),
        ),
        Some(key) => Finding::Warning(
            format!("Encrypted with {key}, whose policy can't be read from here."),
            format!(
                "Check that the key's policy allows EventBridge, and our role to decrypt:\n  {{\"Effect\": \"Allow\", \
                 \"Principal\": {{\"Service\": \"{EVENTS}\"}},\n   \"Action\": [\"kms:GenerateDataKey\", \"kms:Decrypt\"], \
                 \"Resource\": \"*\"}}\nOr use SSE-SQS, which needs no key."
            ),
        ),
    }
}

fn retention(queue: &Queue<'_>) -> Finding {
    let Some(kept) = queue.number("MessageRetentionPeriod").map(Duration::from_secs) else {
        return Finding::Unknown("The attribute MessageRetentionPeriod is missing.");
    };
    let longest = queue.longest_drain;
    let found = if kept < longest {
        format!(
            "Messages are kept for {}, and a drain may take {}: its message expires during the drain, and no replica takes over if this one dies.",
            Words(kept),
            Words(longest)
        )
    } else if kept < MIN_RETENTION {
        format!("Messages are kept for {}: a longer outage loses them.", Words(kept))
    } else {
        return Finding::Fine(Words(kept).to_string());
    };
    Finding::Warning(
        found,
        queue.set("Keep messages for days", &format!("MessageRetentionPeriod={RECOMMENDED_RETENTION}")),
    )
}

fn visibility(queue: &Queue<'_>) -> Finding {
    match queue.number("DelaySeconds") {
        None | Some(0) => {
            let timeout = queue.number("VisibilityTimeout").unwrap_or_default();
            Finding::Fine(format!("{timeout} s, which has no effect: each receive sets its own"))
        }
        Some(delay) => Finding::Warning(
            format!("Every message is delayed by {delay} s, and a spot instance has 120 s."),
            queue.set("Remove the delay", "DelaySeconds=0"),
        ),
    }
}

fn dead_letters(queue: &Queue<'_>) -> Finding {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Redrive {
        dead_letter_target_arn: String,
        // A number, or a text in old policies.
        max_receive_count: serde_json::Value,
    }
    let set = |advice: &str, target: &str| {
        let policy = format!("{{\\\"deadLetterTargetArn\\\":\\\"{target}\\\",\\\"maxReceiveCount\\\":{MIN_RECEIVES}}}");
        queue.set(advice, &format!("'{{\"RedrivePolicy\": \"{policy}\"}}'"))
    };
    let redrive =
        queue.policy("RedrivePolicy").and_then(|Redrive { dead_letter_target_arn, max_receive_count: most }| {
            Some((dead_letter_target_arn, most.as_u64().or_else(|| most.as_str()?.parse().ok())?))
        });
    match redrive {
        Some((target, most)) if most < MIN_RECEIVES => Finding::Warning(
            format!(
                "maxReceiveCount is {most}. Each rollout, and each 12 h of a long hook, receives a message again, so notices that are still being worked on become dead letters."
            ),
            set(&format!("Choose {MIN_RECEIVES}"), &target),
        ),
        Some((target, most)) => Finding::Fine(format!("after {most} receives, to {target}")),
        None => Finding::Warning(
            "There is no dead-letter queue: a message that can't be handled comes back until it expires.".to_owned(),
            set("Create one, and set it", "ARN-OF-THE-OTHER-QUEUE"),
        ),
    }
}

fn waiting(queue: &Queue<'_>) -> Finding {
    let [waiting, held] = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        .map(|attribute| queue.number(attribute).unwrap_or_default());
    let messages = count(usize::try_from(waiting).unwrap_or(usize::MAX), "message waits", "messages wait");
    if waiting <= MAX_WAITING {
        return Finding::Fine(format!("{messages}, {held} are being worked on"));
    }
    Finding::Warning(
        format!("{messages}, and {held} are being worked on: no replica receives, or not fast enough."),
        "Check that the service runs and is ready. Waiting notices may be old: a notice whose time has passed is only deleted.".to_owned(),
    )
}

#[cfg(test)]
mod tests;
