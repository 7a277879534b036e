//! Calls to EC2 that reboot instances.

use crate::clients::gate::{AwsClass, AwsError, CALL_TIMEOUT, Gate, Operation, few_tries};
use crate::fact::Facts;
use aws_sdk_ec2::Client;
use tokio::time::Instant;

const REBOOT: Operation = Operation::new("ec2", "RebootInstances");

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

    /// Asks EC2 to reboot the instance.
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
        few_tries(call).await.map(drop)
    }
}
