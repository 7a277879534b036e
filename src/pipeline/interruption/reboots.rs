//! Calls to EC2 that reboot instances.

use crate::clients::gate::{AwsClass, AwsError, Backoff, CALL_TIMEOUT, Gate, Operation, few_tries};
use crate::fact::Facts;
use aws_sdk_ec2::Client;
use std::time::Duration;
use tokio::time::Instant;

const REBOOT: Operation = Operation::new("ec2", "RebootInstances");

/// Time for which a request is repeated that EC2 has not taken. It is a part of the time within which the node must be healthy.
const REPEATED_FOR: Duration = Duration::from_mins(2);

/// Pauses between tries.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(30));

/// Reboots instances.
pub struct Reboots {
    client: Client,
    gate: Gate<AwsClass>,
}

impl Reboots {
    /// Makes calls with `client`, through a gate of their own.
    #[must_use]
    pub fn new(client: Client, facts: Facts) -> Self {
        Self { client, gate: Gate::new(facts) }
    }

    /// Asks EC2 to reboot the instance. While EC2 is too busy to take the request, or the credentials have expired, asks again for a time.
    ///
    /// # Errors
    /// EC2 did not take the request, or its answer was lost.
    pub(super) async fn ask(&self, instance: &str) -> Result<(), AwsError> {
        let call = || async {
            let by = Instant::now() + CALL_TIMEOUT;
            let request = self.client.reboot_instances().instance_ids(instance);
            self.gate.aws(REBOOT, instance, AwsClass::Replace, by, || request.send()).await
        };
        // EC2 queues a request, and a second one within moments changes nothing.
        let ask = || few_tries(call);
        let passes = |error: &AwsError| error.category.may_pass() && !error.may_be_taken();
        PAUSES.retry(Some(Instant::now() + REPEATED_FOR), ask, passes).await.map(drop)
    }
}
