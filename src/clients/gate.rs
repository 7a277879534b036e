//! The gate of outgoing calls: how many at once, in which order, with which timeout, and with which result.
//!
//! Calls to the API server pass one [`Gate`], except those about the turn of a replica; each kind of calls to AWS has its own, except
//! SQS. The number of calls in flight adapts to what the server bears. A call waits for its admission before its timeout begins. Only
//! callers retry, because they know their deadline. But a throttled call waits in the gate for the time that the server asks for, in
//! bounds, so that its caller may try again at once.

mod absence;
mod admit;
mod backoff;
mod class;
mod error;

pub use crate::fact::Category;
pub use absence::{Absence, AbsenceSince};
pub use backoff::{Backoff, Failure, few_tries};
pub use class::{AwsClass, CallClass, Class, Limits};
#[cfg(test)]
pub use error::MARKS_REFUSAL;
pub use error::{AwsError, Blocker, KubeError, Operation, SigningFailure, category_of_code, is_by_admission};

use crate::fact::{Fact, Facts};
use admit::{Admission, Admitter};
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::marker::PhantomData;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Maximum timeout of a call, except watches and long polls.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a call whose deadline is near or has passed: a late call is better than none.
pub const LAST_CALL: Duration = Duration::from_secs(2);

/// A call to the API server.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The verb, as RBAC names it.
    pub verb: &'static str,
    /// The resource, as RBAC names it.
    pub resource: &'static str,
    /// The object's name.
    pub subject: &'a str,
}

/// Admits calls by their class, and makes them. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate<C: CallClass = Class> {
    admitter: Admitter,
    absence: Absence,
    facts: Facts,
    classes: PhantomData<C>,
}

impl<C: CallClass> Gate<C> {
    /// An open gate.
    #[must_use]
    pub fn new(facts: Facts) -> Self {
        Self { admitter: Admitter::new::<C>(), absence: Absence::default(), facts, classes: PhantomData }
    }

    async fn admit(&self, class: C, by: Instant) -> Admission {
        self.admitter.admit(class, by).await
    }

    /// Makes one call to AWS: waits for its admission, then at most until `by` and never longer than [`CALL_TIMEOUT`]. A call whose
    /// deadline is near or has passed is given [`LAST_CALL`]. A throttled call returns only when its caller may try again.
    ///
    /// # Errors
    /// The error of AWS or the transport, classified; or a timeout.
    pub async fn aws<T, E, F>(
        &self,
        operation: Operation,
        subject: &str,
        class: C,
        by: Instant,
        request: impl FnOnce() -> F,
    ) -> Result<T, AwsError>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let admission = self.admit(class, by).await;
        let result = aws(&self.facts, operation, subject, admission.timeout(), request).await;
        let failed = result.as_ref().err().map(|error| error.category);
        admission.finish(failed, None).await;
        result
    }
}

impl Gate {
    /// Returns how long the API server was away.
    #[must_use]
    pub const fn absence(&self) -> &Absence {
        &self.absence
    }

    /// Makes one call to the API server: waits for its admission, then at most until `by` and never longer than [`CALL_TIMEOUT`]. A
    /// call whose deadline is near or has passed is given [`LAST_CALL`].
    ///
    /// A throttled call returns only when its caller may try again, and its error has no `retry_after` any more. If the server asks
    /// for time for another reason, the error's `retry_after` is that time, bounded by a part of the time left.
    ///
    /// # Errors
    /// The error of the server or the transport, classified; or a timeout.
    pub async fn kube<T, F>(
        &self,
        call: Call<'_>,
        class: Class,
        by: Instant,
        request: impl FnOnce() -> F,
    ) -> Result<T, KubeError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let Call { verb, resource, subject } = call;
        let admission = self.admit(class, by).await;
        let limit = admission.timeout();
        // Made and boxed only now: a thousand queued calls, and the drains around them, hold no room for a thousand requests.
        let mut result = match timeout(limit, Box::pin(request())).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(KubeError::new(verb, resource, subject, &error)),
            Err(_) => Err(KubeError::timed_out(verb, resource, subject, limit)),
        };
        let answer = result.as_ref().map(drop).map_err(|error| error.category);
        self.facts.emit(&Fact::KubeCall { verb, resource, result: answer, took: admission.took() });
        // The server itself reports a failing admission webhook.
        let failed = result.as_ref().err().filter(|error| error.blocker.is_none()).map(|error| error.category);
        self.absence.note(Instant::now() - admission.took(), matches!(verb, "get" | "list"), failed);
        let (mut failed, mut retry_after) = (None, None);
        if let Err(error) = &mut result {
            failed = Some(error.category);
            error.retry_after = error.retry_after.map(|wait| admission.bounded(wait));
            if error.category == Category::Throttled {
                retry_after = error.retry_after.take();
            }
        }
        let answered = Instant::now();
        admission.finish(failed, retry_after).await;
        if let Err(error) = &mut result {
            error.waited = answered.elapsed();
        }
        result
    }
}

/// Makes one call to AWS with the timeout `limit`, and reports its result as a fact.
///
/// # Errors
/// The error of AWS or the transport, classified; or a timeout.
pub async fn aws<T, E, F>(
    facts: &Facts,
    operation: Operation,
    subject: &str,
    limit: Duration,
    request: impl FnOnce() -> F,
) -> Result<T, AwsError>
where
    F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let begun = Instant::now();
    let result = match timeout(limit, Box::pin(request())).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(AwsError::from_sdk(operation, subject, &error)),
        Err(_) => Err(AwsError::timed_out(operation, subject, limit)),
    };
    let answer = result.as_ref().map(drop).map_err(|error| error.category);
    facts.emit(&Fact::AwsCall {
        service: operation.service,
        operation: operation.name,
        result: answer,
        took: begun.elapsed(),
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use serde_json::json;

    fn says(status: serde_json::Value) -> Result<(), kube::Error> {
        let status: Status = serde_json::from_value(status).expect("a test's status must be one");
        Err(kube::Error::Api(Box::new(status)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttled_caller_has_waited_already_and_a_refused_one_has_not() {
        let gate = Gate::new(Facts::to(Vec::new()));
        let call = Call { verb: "create", resource: "pods/eviction", subject: "default/web-1" };
        let by = Instant::now() + Duration::from_mins(1);
        let begun = Instant::now();
        let throttled = json!({ "code": 429, "message": "later", "details": { "retryAfterSeconds": 7 } });
        let error = gate.kube(call, Class::Evict, by, || async { says(throttled) }).await.unwrap_err();
        assert_eq!((error.category, error.retry_after), (Category::Throttled, None));
        // The gate has waited for the caller.
        let waits = [Duration::from_secs(5), Duration::from_secs(8)].map(|ours| error.wait(ours));
        assert_eq!(waits, [Duration::ZERO, Duration::from_secs(1)]);
        assert_eq!(begun.elapsed(), Duration::from_secs(7));
        let refused = json!({ "code": 429, "message": "no", "details": {
            "retryAfterSeconds": 10, "causes": [{ "reason": "DisruptionBudget", "message": "web has none left" }],
        } });
        let error = gate.kube(call, Class::Evict, by, || async { says(refused) }).await.unwrap_err();
        assert_eq!((error.category, error.retry_after), (Category::Refused, Some(Duration::from_secs(10))));
        assert_eq!(begun.elapsed(), Duration::from_secs(7));
    }

    /// A webhook that hangs and then fails: the API server says so after ten seconds.
    #[tokio::test(start_paused = true)]
    async fn a_broken_webhook_is_no_absence() {
        let gate = Gate::new(Facts::to(Vec::new()));
        let by = Instant::now() + Duration::from_mins(1);
        let fails = || async {
            tokio::time::sleep(Duration::from_secs(9)).await;
            let message = "Internal error occurred: failed calling webhook \"keep.svc\": context deadline exceeded";
            says(json!({ "code": 500, "message": message }))
        };
        let evict = Call { verb: "create", resource: "pods/eviction", subject: "default/web-1" };
        let error = gate.kube(evict, Class::Evict, by, fails).await.unwrap_err();
        assert_eq!((error.category, error.blocker), (Category::Unavailable, Some(Blocker::FailingWebhook)));
        let read = Call { verb: "get", resource: "nodes", subject: "node-1" };
        let away = || async { says(json!({ "code": 503, "message": "away" })) };
        gate.kube(read, Class::List, by, away).await.unwrap_err();
        assert_eq!(gate.absence().total(), Duration::ZERO, "an eviction's failure is an answer");
        gate.kube(read, Class::List, by, || async { Ok(()) }).await.unwrap();
        let cordon = Call { verb: "patch", resource: "nodes", subject: "node-1" };
        gate.kube(cordon, Class::Cordon, by, fails).await.unwrap_err();
        gate.kube(read, Class::List, by, || async { Ok(()) }).await.unwrap();
        assert_eq!(gate.absence().total(), Duration::ZERO, "other calls are answered");
    }
}
