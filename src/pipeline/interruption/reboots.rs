//! Calls to EC2 that reboot instances.

use crate::clients::gate::{AwsClass, AwsError, Backoff, CALL_TIMEOUT, Category, Gate, Operation};
use crate::fact::Facts;
use aws_sdk_ec2::Client;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of attempts of a call that may succeed later. EC2 queues a request, and a second one within moments changes nothing.
const ATTEMPTS: usize = 3;

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
        let mut retries = 1..ATTEMPTS;
        let passes = |error: &AwsError| {
            (error.category.is_away() || error.category == Category::Expired) && retries.next().is_some()
        };
        Backoff::new(Duration::from_secs(1), Duration::from_secs(5)).retry(None, call, passes).await.map(drop)
    }
}
