//! The simulated services under the real SDK clients, on a paused clock.

use super::Aws;
use crate::calls::Calls;
use crate::clock::Clock;
use crate::fault::{Edge, Faults};
use aws_credential_types::Credentials;
use aws_sdk_sqs::config::{BehaviorVersion, Region};
use aws_sdk_sqs::error::ProvideErrorMetadata;
use aws_sdk_sqs::error::SdkError;
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_types::retry::RetryConfig;
use std::time::Duration;

mod autoscaling;
mod ec2;
mod elb;
mod faults;
mod sqs;

/// Smallest step of tokio's timers: tests check this long before and after a boundary.
const TICK: Duration = Duration::from_millis(1);

struct Stage {
    clock: Clock,
    calls: Calls,
    faults: Faults,
    aws: Aws,
}

/// Builds the configuration of any SDK client.
macro_rules! client {
    ($sdk:ident, $stage:expr, $host:literal) => {
        $sdk::Client::from_conf(
            $sdk::Config::builder()
                .behavior_version(BehaviorVersion::latest())
                .region(Region::new(crate::aws::REGION))
                .credentials_provider(Credentials::new("key", "secret", None, None, "simulation"))
                .http_client($stage.aws.http_client())
                .sleep_impl(TokioSleep::new())
                .retry_config(RetryConfig::disabled())
                .endpoint_url($host)
                .build(),
        )
    };
}

impl Stage {
    fn new() -> Self {
        let clock = Clock::new();
        let calls = Calls::new(clock);
        let faults = Faults::new(7);
        let aws = Aws::new(clock, Edge::new(calls.clone(), faults.clone()), 7);
        Self { clock, calls, faults, aws }
    }

    fn sqs(&self) -> aws_sdk_sqs::Client {
        client!(aws_sdk_sqs, self, "http://sqs.sim")
    }

    fn autoscaling(&self) -> aws_sdk_autoscaling::Client {
        client!(aws_sdk_autoscaling, self, "http://autoscaling.sim")
    }

    fn elb(&self) -> aws_sdk_elasticloadbalancingv2::Client {
        client!(aws_sdk_elasticloadbalancingv2, self, "http://elb.sim")
    }

    fn ec2(&self) -> aws_sdk_ec2::Client {
        client!(aws_sdk_ec2, self, "http://ec2.sim")
    }

    /// Sleeps until this long after the world's start.
    async fn reach(&self, at: Duration) {
        tokio::time::sleep(at.saturating_sub(self.clock.elapsed())).await;
    }
}

/// Returns an error's code and HTTP status.
fn refused<T, E>(result: Result<T, SdkError<E>>) -> (String, u16)
where
    T: std::fmt::Debug,
    E: ProvideErrorMetadata + std::fmt::Debug,
{
    let error = result.expect_err("the call must be refused");
    let status = error.raw_response().expect("the service must have answered").status().as_u16();
    (error.code().expect("the answer must have a code").to_owned(), status)
}

/// Returns an error's message.
fn words<T, E>(result: Result<T, SdkError<E>>) -> String
where
    T: std::fmt::Debug,
    E: ProvideErrorMetadata + std::fmt::Debug,
{
    result.err().and_then(|error| error.message().map(str::to_owned)).expect("the call must be refused with a message")
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
