//! Single attributes of the queue, each with what is judged of it and the command that sets it.

use super::EVENTS;
use crate::commands::doctor::check::{Area, Check, count, few};
use crate::commands::doctor::readings::QueueAttributes;
use crate::runtime::duration::Words;
use serde::Deserialize;
use std::time::Duration;

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

/// Judges the attributes, for drains of at most this duration.
pub(super) fn judge(url: &str, attributes: &QueueAttributes, longest_drain: Duration) -> Vec<Check> {
    let queue = Queue { url, attributes, longest_drain };
    ATTRIBUTES.iter().map(|(name, judge)| judge(&queue).check(name)).collect()
}

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
            "Every queue of this account and region may send its dead letters here, and SQS asks no queue policy then: all that may create a queue may drain nodes.".to_owned(),
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
