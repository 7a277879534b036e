//! Parses requests to SQS (AWS JSON 1.0), and makes the checks that AWS makes on the request as a whole.

use super::queue::{LONGEST_HOLD, Queue};
use crate::aws::refusal::Refusal;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::time::Duration;

/// A parsed request.
#[derive(Debug)]
pub(super) enum Call {
    /// A receive, which may have to wait.
    Receive(Receive),
    /// Any other operation, which completes at once.
    Act(Act),
}

#[derive(Debug)]
pub(super) enum Act {
    DeleteMessage(Single),
    DeleteMessageBatch(Batch),
    ChangeMessageVisibility(Single),
    ChangeMessageVisibilityBatch(Batch),
    GetQueueAttributes(Attributes),
    GetQueueUrl(Name),
    SendMessage(Send),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Receive {
    queue_url: String,
    max_number_of_messages: Option<i64>,
    wait_time_seconds: Option<i64>,
    visibility_timeout: Option<i64>,
    /// Older spelling of the next field.
    #[serde(default)]
    attribute_names: Vec<String>,
    #[serde(default)]
    message_system_attribute_names: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Single {
    pub queue_url: String,
    pub receipt_handle: String,
    pub visibility_timeout: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Batch {
    pub queue_url: String,
    pub entries: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Entry {
    pub id: String,
    pub receipt_handle: String,
    pub visibility_timeout: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Attributes {
    pub queue_url: String,
    #[serde(default)]
    pub attribute_names: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Name {
    pub queue_name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Send {
    pub queue_url: String,
    pub message_body: String,
    pub delay_seconds: Option<i64>,
}

/// Checked parameters of a receive.
#[derive(Debug)]
pub(super) struct Order {
    pub max: usize,
    pub wait: Duration,
    pub visibility: Option<Duration>,
    /// Message attributes to return.
    pub attributes: BTreeSet<String>,
}

impl Call {
    pub fn parse(operation: &str, body: &[u8]) -> Result<Self, Refusal> {
        Ok(Self::Act(match operation {
            "ReceiveMessage" => return Ok(Self::Receive(read(body)?)),
            "DeleteMessage" => Act::DeleteMessage(read(body)?),
            "DeleteMessageBatch" => Act::DeleteMessageBatch(read(body)?),
            "ChangeMessageVisibility" => Act::ChangeMessageVisibility(read(body)?),
            "ChangeMessageVisibilityBatch" => Act::ChangeMessageVisibilityBatch(read(body)?),
            "GetQueueAttributes" => Act::GetQueueAttributes(read(body)?),
            "GetQueueUrl" => Act::GetQueueUrl(read(body)?),
            "SendMessage" => Act::SendMessage(read(body)?),
            other => {
                let message = format!("The simulated queue has no operation {other}.");
                return Err(Refusal::new("UnknownOperationException", message));
            }
        }))
    }

    /// Returns the subject of the call: a message's ID if the call names one, else the queue's name.
    pub fn subject(&self, queue: &Queue) -> String {
        let message = |receipt: &str| queue.message_of(receipt).unwrap_or_else(|| receipt.to_owned());
        match self {
            Self::Receive(call) => last_part(&call.queue_url).to_owned(),
            Self::Act(Act::DeleteMessage(call) | Act::ChangeMessageVisibility(call)) => message(&call.receipt_handle),
            Self::Act(Act::DeleteMessageBatch(call) | Act::ChangeMessageVisibilityBatch(call)) => {
                call.entries.first().map(|entry| message(&entry.receipt_handle)).unwrap_or_default()
            }
            Self::Act(Act::GetQueueAttributes(call)) => last_part(&call.queue_url).to_owned(),
            Self::Act(Act::SendMessage(call)) => last_part(&call.queue_url).to_owned(),
            Self::Act(Act::GetQueueUrl(call)) => call.queue_name.clone(),
        }
    }
}

impl Receive {
    pub fn order(self) -> Result<Order, Refusal> {
        check_url(&self.queue_url)?;
        let max = match self.max_number_of_messages.unwrap_or(1) {
            max @ 1..=10 => usize::try_from(max).unwrap_or(1),
            max => {
                return Err(out_of_range("MaxNumberOfMessages", max, "Must be between 1 and 10, if provided."));
            }
        };
        Ok(Order {
            max,
            wait: seconds("WaitTimeSeconds", self.wait_time_seconds.unwrap_or(0), 20)?,
            visibility: self
                .visibility_timeout
                .map(|timeout| seconds("VisibilityTimeout", timeout, LONGEST_HOLD.as_secs()))
                .transpose()?,
            attributes: self.attribute_names.into_iter().chain(self.message_system_attribute_names).collect(),
        })
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::new("SerializationException", error.to_string()))
}

pub(super) fn seconds(parameter: &str, value: i64, max: u64) -> Result<Duration, Refusal> {
    u64::try_from(value)
        .ok()
        .filter(|&value| value <= max)
        .map(Duration::from_secs)
        .ok_or_else(|| out_of_range(parameter, value, &format!("Must be >= 0 and <= {max}, if provided.")))
}

fn out_of_range(parameter: &str, value: i64, reason: &str) -> Refusal {
    let message = format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}");
    Refusal::new("InvalidParameterValue", message)
}

/// Compares only the end of a queue's URL, whatever the host.
fn last_part(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

pub(super) fn check_url(url: &str) -> Result<(), Refusal> {
    check_name(last_part(url))
}

pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    if name == super::NAME {
        return Ok(());
    }
    Err(Refusal::new("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist."))
}
