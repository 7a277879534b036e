//! SQS's operations and their answers: JSON, with the query protocol's error codes in a header.

use super::ROLE_SESSION;
use super::queue::{Delivery, LONGEST_HOLD, Queue};
use super::request::{Act, Attributes, Batch, Entry, Order, check_name, check_url, seconds};
use crate::aws::query;
use crate::aws::refusal::Refusal;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const CONTENT_TYPE: &str = "application/x-amz-json-1.0";

impl Act {
    /// Applies the call and returns the answer.
    pub fn perform(self, queue: &mut Queue, wall: Timestamp, host: Option<&str>) -> Result<Value, Refusal> {
        match self {
            Self::DeleteMessage(call) => {
                check_url(&call.queue_url)?;
                queue.delete(&call.receipt_handle)?;
                Ok(json!({}))
            }
            Self::ChangeMessageVisibility(call) => {
                check_url(&call.queue_url)?;
                change(queue, &call.receipt_handle, call.visibility_timeout)?;
                Ok(json!({}))
            }
            Self::DeleteMessageBatch(call) => call.perform(queue, |queue, entry| queue.delete(&entry.receipt_handle)),
            Self::ChangeMessageVisibilityBatch(call) => {
                call.perform(queue, |queue, entry| change(queue, &entry.receipt_handle, entry.visibility_timeout))
            }
            Self::GetQueueAttributes(call) => call.perform(queue),
            Self::GetQueueUrl(call) => {
                check_name(&call.queue_name)?;
                Ok(json!({ "QueueUrl": super::url(host.unwrap_or("sqs.sim")) }))
            }
            Self::SendMessage(call) => {
                check_url(&call.queue_url)?;
                let delay = seconds("DelaySeconds", call.delay_seconds.unwrap_or(0), 900)?;
                let md5 = crate::aws::md5::hex(&call.message_body);
                let id = queue.send(wall, ROLE_SESSION, call.message_body, delay);
                Ok(json!({ "MessageId": id, "MD5OfMessageBody": md5 }))
            }
        }
    }
}

impl Order {
    pub fn answer(&self, deliveries: &[Delivery]) -> Value {
        // An empty answer has no list at all.
        if deliveries.is_empty() {
            return json!({});
        }
        json!({ "Messages": deliveries.iter().map(|delivery| self.message(delivery)).collect::<Vec<_>>() })
    }

    fn message(&self, delivery: &Delivery) -> Value {
        let mut message = json!({
            "MessageId": delivery.id,
            "ReceiptHandle": delivery.receipt,
            "MD5OfBody": delivery.md5,
            "Body": delivery.body,
        });
        let known = [
            ("SenderId", delivery.sender.clone()),
            ("SentTimestamp", delivery.sent.as_millisecond().to_string()),
            ("ApproximateFirstReceiveTimestamp", delivery.first_received.as_millisecond().to_string()),
            ("ApproximateReceiveCount", delivery.receives.to_string()),
        ];
        let asked = known
            .into_iter()
            .filter(|(name, _)| self.attributes.contains(*name) || self.attributes.contains("All"))
            .map(|(name, value)| (name.to_owned(), Value::String(value)))
            .collect::<Map<_, _>>();
        if !asked.is_empty() {
            message["Attributes"] = Value::Object(asked);
        }
        message
    }
}

impl Batch {
    fn perform(
        self,
        queue: &mut Queue,
        each: impl Fn(&mut Queue, &Entry) -> Result<(), Refusal>,
    ) -> Result<Value, Refusal> {
        check_url(&self.queue_url)?;
        let refuse = |code, message: String| Err(Refusal::new(code, message));
        match self.entries.len() {
            0 => {
                let message = "There should be at least one entry in the request.".to_owned();
                return refuse("AWS.SimpleQueueService.EmptyBatchRequest", message);
            }
            1..=10 => {}
            many => {
                let message = format!("Maximum number of entries per request are 10. You have sent {many}.");
                return refuse("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", message);
            }
        }
        let mut ids = BTreeSet::new();
        if let Some(twice) = self.entries.iter().find(|entry| !ids.insert(&entry.id)) {
            let message = format!("Id {} repeated.", twice.id);
            return refuse("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", message);
        }

        let (mut successful, mut failed) = (Vec::new(), Vec::new());
        for entry in &self.entries {
            let result = if queue.failing_entries > 0 {
                queue.failing_entries -= 1;
                let message = "This entry fails alone, as planned.".to_owned();
                Err(Refusal { status: 500, code: "InternalError".into(), message })
            } else {
                each(queue, entry)
            };
            match result {
                Ok(()) => successful.push(json!({ "Id": entry.id })),
                Err(refusal) => failed.push(json!({
                    "Id": entry.id,
                    "SenderFault": refusal.sender_fault(),
                    "Code": refusal.code,
                    "Message": refusal.message,
                })),
            }
        }
        Ok(json!({ "Successful": successful, "Failed": failed }))
    }
}

impl Attributes {
    fn perform(self, queue: &Queue) -> Result<Value, Refusal> {
        check_url(&self.queue_url)?;
        let counts = queue.counts();
        let mut known = Map::new();
        let mut add = |name: &str, value: String| known.insert(name.to_owned(), Value::String(value));
        add("QueueArn", super::arn(super::NAME));
        add("VisibilityTimeout", queue.visibility_timeout.as_secs().to_string());
        add("MessageRetentionPeriod", queue.retention.as_secs().to_string());
        add("DelaySeconds", "0".to_owned());
        for (name, value) in &queue.attributes {
            add(name, value.clone());
        }
        add("ReceiveMessageWaitTimeSeconds", "0".to_owned());
        add("ApproximateNumberOfMessages", counts.visible.to_string());
        add("ApproximateNumberOfMessagesNotVisible", counts.in_flight.to_string());
        add("ApproximateNumberOfMessagesDelayed", counts.delayed.to_string());
        let redrive = queue.max_receives.map(|max| {
            let target = super::arn(&format!("{}-dead-letters", super::NAME));
            json!({ "deadLetterTargetArn": target, "maxReceiveCount": max }).to_string()
        });
        if let Some(redrive) = redrive {
            add("RedrivePolicy", redrive);
        }

        let all = self.attribute_names.iter().any(|name| name == "All");
        let unset = |name: &str| matches!(name, "RedrivePolicy" | "Policy" | "KmsMasterKeyId" | "SqsManagedSseEnabled");
        if let Some(unknown) =
            self.attribute_names.iter().find(|name| *name != "All" && !known.contains_key(*name) && !unset(name))
        {
            return Err(Refusal::new("InvalidAttributeName", format!("Unknown Attribute {unknown}.")));
        }
        known.retain(|name, _| all || self.attribute_names.contains(name));
        Ok(if known.is_empty() { json!({}) } else { json!({ "Attributes": known }) })
    }
}

pub(super) fn answer(value: &Value) -> http::Response<Bytes> {
    query::respond(200, CONTENT_TYPE, value.to_string())
}

pub(super) fn refuse(refusal: &Refusal) -> http::Response<Bytes> {
    let shape = match refusal.code.rsplit('.').next() {
        Some("NonExistentQueue") => "QueueDoesNotExist",
        Some(last) => last,
        None => &refusal.code,
    };
    let body = json!({ "__type": format!("com.amazonaws.sqs#{shape}"), "message": refusal.message });
    let mut response = query::respond(refusal.status, CONTENT_TYPE, body.to_string());
    let side = if refusal.sender_fault() { "Sender" } else { "Receiver" };
    let header = format!("{};{side}", refusal.code).parse().expect("an error code must be a valid header");
    response.headers_mut().insert("x-amzn-query-error", header);
    response
}

fn change(queue: &mut Queue, receipt: &str, timeout: Option<i64>) -> Result<(), Refusal> {
    let missing = || Refusal::new("MissingParameter", "The request must contain the parameter VisibilityTimeout.");
    let timeout = seconds("VisibilityTimeout", timeout.ok_or_else(missing)?, LONGEST_HOLD.as_secs())?;
    queue.change(receipt, timeout)
}
