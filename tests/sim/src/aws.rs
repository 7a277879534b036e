//! Simulated AWS: one region of one account, with one SQS queue, Auto Scaling, EC2 and target groups; and the
//! parts of EventBridge and STS that `ebbtide doctor` calls.
//!
//! ```text
//!  SDK client ─▶ connector ─┐                        ┌─▶ sqs          JSON 1.0, chosen by X-Amz-Target
//!                           ├─▶ Aws::serve ─▶ edge ─▶┼─▶ events       JSON 1.1, chosen by X-Amz-Target
//!  loopback server ─────────┘                        └─▶ autoscaling, ec2, elb, sts   query, chosen by Version
//! ```
//!
//! Each service keeps its state behind one lock, which is never held across an await and survives a planned panic.
//! Expiry is lazy: every look at the state first advances it to now.

use crate::clock::Clock;
use crate::fault::{Disconnected, EXPIRED, Edge};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use bytes::Bytes;
use jiff::fmt::rfc2822;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

mod autoscaling;
mod connector;
mod ec2;
mod elb;
mod events;
mod md5;
mod query;
mod refusal;
mod sqs;
mod sts;
#[cfg(test)]
mod tests;

pub use autoscaling::{Action, ActionState, AutoScaling, GroupSpec, HookResult, HookSpec};
pub use ec2::Ec2;
pub use elb::{Deregistration, Elb, TargetGroupSpec};
pub use events::{Events, matches};
pub use sqs::{Received, Sqs};

/// The simulated account.
pub const ACCOUNT: &str = "123456789012";
/// The simulated region.
pub const REGION: &str = "eu-west-1";

/// Beginning of the access keys that the simulation gives out.
const KEY: &str = "sim-";

const AUTO_SCALING_VERSION: &str = "2011-01-01";
const EC2_VERSION: &str = "2016-11-15";
const ELB_VERSION: &str = "2015-12-01";
const STS_VERSION: &str = "2011-06-15";

/// The simulated account's services. Clones share one state.
#[derive(Clone, Debug)]
pub struct Aws {
    /// The queue.
    pub sqs: Sqs,
    /// Lifecycle hooks and actions.
    pub autoscaling: AutoScaling,
    /// Instances.
    pub ec2: Ec2,
    /// Target groups.
    pub elb: Elb,
    /// EventBridge's rules.
    pub events: Events,
    sts: sts::Sts,
    clock: Clock,
    keys: Arc<Keys>,
}

/// The access keys of the caller: `sim-0`, `sim-1` and so on.
#[derive(Debug, Default)]
struct Keys {
    /// Number of the key that is given out.
    given: AtomicUsize,
    /// Number of the first key that has not expired.
    valid: AtomicUsize,
    /// Number of times that a key was given out.
    loads: AtomicUsize,
}

impl Aws {
    pub(crate) fn new(clock: Clock, edge: Edge, seed: u64) -> Self {
        Self {
            sqs: Sqs::new(clock, edge.clone(), seed),
            // A different seed: otherwise the first token would equal the first message ID.
            autoscaling: AutoScaling::new(clock, edge.clone(), !seed),
            ec2: Ec2::new(clock, edge.clone()),
            elb: Elb::new(clock, edge.clone()),
            events: Events::new(edge.clone()),
            sts: sts::Sts::new(edge),
            clock,
            keys: Arc::default(),
        }
    }

    /// Gives out the access key of the caller's role.
    #[must_use]
    pub fn load_key(&self) -> String {
        self.keys.loads.fetch_add(1, Ordering::Relaxed);
        format!("{KEY}{}", self.keys.given.load(Ordering::Relaxed))
    }

    /// Returns the number of times that an access key was given out.
    #[must_use]
    pub fn key_loads(&self) -> usize {
        self.keys.loads.load(Ordering::Relaxed)
    }

    /// Makes all access keys that were given out expire before their time.
    pub fn expire_keys(&self) {
        self.keys.valid.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives out an access key that has not expired from now on.
    pub fn renew_key(&self) {
        self.keys.given.store(self.keys.valid.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether the request is signed with a key that has expired. Keys of others don't expire.
    fn is_expired(&self, request: &http::Request<Bytes>) -> bool {
        let signature = request.headers().get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let key = signature.and_then(|value| value.split_once(KEY)?.1.split_once('/')?.0.parse::<usize>().ok());
        key.is_some_and(|key| key < self.keys.valid.load(Ordering::Relaxed))
    }

    /// Returns an HTTP client for the configuration of SDK clients: in memory, on tokio's clock.
    #[must_use]
    pub fn http_client(&self) -> SharedHttpClient {
        connector::http_client(self.clone())
    }

    /// Serves one HTTP request to any of the services, and dates the answer at its end. Dropping the future has the effect of a client that hangs up.
    ///
    /// # Errors
    ///
    /// Returns [`Disconnected`] if the fault plan breaks the connection.
    pub async fn serve(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, Disconnected> {
        let expired = self.is_expired(&request);
        let mut response = EXPIRED.scope(expired, self.answer(request)).await?;
        let date = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&self.clock.now());
        if let Some(date) = date.ok().and_then(|date| date.parse().ok()) {
            response.headers_mut().insert(http::header::DATE, date);
        }
        Ok(response)
    }

    async fn answer(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, Disconnected> {
        let (parts, body) = request.into_parts();
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(operation) = header("x-amz-target").and_then(|target| target.strip_prefix("AmazonSQS.")) {
            return self.sqs.serve(operation, header("host"), &body).await;
        }
        if let Some(operation) = header("x-amz-target").and_then(|target| target.strip_prefix("AWSEvents.")) {
            return self.events.serve(operation, &body).await;
        }
        let form = query::Form::parse(&body);
        match form.get("Version") {
            Some(AUTO_SCALING_VERSION) => self.autoscaling.serve(&form).await,
            Some(EC2_VERSION) => self.ec2.serve(&form).await,
            Some(ELB_VERSION) => self.elb.serve(&form).await,
            Some(STS_VERSION) => self.sts.serve(&form).await,
            _ => {
                let unknown = refusal::Refusal::new("InvalidAction", "No simulated service takes this request.");
                Ok(query::refuse_wrapped(&unknown))
            }
        }
    }
}
