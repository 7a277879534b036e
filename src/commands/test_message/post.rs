//! Sending a message to the queue, which the service itself never does and has no permission for.

use crate::clients::gate;
use crate::clients::gate::{AwsError, CALL_TIMEOUT, Operation};
use crate::fact::Facts;
use aws_sdk_sqs::Client;

/// Sends `body` and returns the message's ID.
///
/// # Errors
/// The error of the call.
pub async fn send(client: &Client, facts: &Facts, url: &str, body: &str) -> Result<String, AwsError> {
    let request = client.send_message().queue_url(url).message_body(body);
    let answer = gate::aws(facts, Operation::new("sqs", "SendMessage"), url, CALL_TIMEOUT, || request.send()).await?;
    Ok(answer.message_id.unwrap_or_default())
}
