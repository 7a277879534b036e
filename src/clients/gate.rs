//! The one gate for outgoing calls: how many at once, which first, for how long, and what became of them.
//!
//! Calls to the API server take their turn at one [`Gate`], Auto Scaling's lifecycle calls at another; the in-flight limit of
//! each adapts to what the other side bears. A turn is had before the call's timeout begins. There is one layer of retries, the
//! callers', who know their deadline; nothing here retries. But a call that is throttled waits here for the time that it was
//! asked to, in bounds, so its caller need not know how long that is.

mod admit;
mod backoff;
mod error;

pub use crate::fact::Category;
pub use admit::{Classes, Limits};
pub use backoff::Backoff;
pub use error::{AwsError, KubeError, NO_CREDENTIALS, category_of_code};

use crate::fact::{Fact, Facts};
use admit::{Admission, Turn};
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::marker::PhantomData;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The longest any call but a watch and a long poll may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// What a call is given whose deadline is now or has passed.
pub const LAST_CALL: Duration = Duration::from_secs(2);

/// What a call to the API server is for, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Deletes, and evictions with less than 15 s left.
    Urgent,
    /// Patches that cordon: in a storm they come before any eviction, or pods land on the next victim.
    Cordon,
    /// Lists and reads.
    List,
    /// Evictions, by deadline.
    Evict,
    /// Events and conditions, which tell people, and Leases to be collected: nothing waits for them.
    Tell,
}

impl Class {
    /// With less than this left, an eviction is urgent.
    const URGENT: Duration = Duration::from_secs(15);

    /// The class of an eviction that must be done by `deadline`.
    #[must_use]
    pub fn of_eviction(deadline: Instant) -> Self {
        if deadline.saturating_duration_since(Instant::now()) < Self::URGENT { Self::Urgent } else { Self::Evict }
    }
}

impl Classes for Class {
    const COUNT: usize = 5;
    /// From what one API server with default priority-and-fairness takes without queueing.
    const LIMITS: Limits = Limits { first: 64, least: 4, most: 512 };
    /// Deletes and late evictions, and cordons.
    const PRESSING: usize = 2;

    fn rank(self) -> usize {
        self as usize
    }

    /// Precedence alone lets an eviction go as soon as there is room, beside cordons that are on their way.
    fn lets_first(self) -> Option<Self> {
        (self == Self::Evict).then_some(Self::Cordon)
    }
}

/// What a call about a lifecycle hook is for, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifecycle {
    /// Looking a hook's times up: one call for each hook in some minutes, for which all of its drains wait, and without which
    /// their heartbeats are more than they need be.
    Look,
    /// Completions: each ends the heartbeats of its hook.
    Complete,
    /// Heartbeats, by the time at which the hook expires.
    Beat,
}

impl Classes for Lifecycle {
    const COUNT: usize = 3;
    /// Auto Scaling shares its rate with all of the account, and says nothing of how large it is.
    const LIMITS: Limits = Limits { first: 16, least: 1, most: 64 };
    /// The rate is the account's, whoever of us calls.
    const KEEPS_PLACE: bool = true;
    /// A beat that is the last before its hook expires goes out 3 s before that, and may find the only place kept.
    const KEEPS_MOST: Duration = Duration::from_secs(2);

    fn rank(self) -> usize {
        self as usize
    }
}

/// A call to the API server: what it does, and to what.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The verb, as RBAC names it.
    pub verb: &'static str,
    /// The resource, as RBAC names it.
    pub resource: &'static str,
    /// The object's name.
    pub subject: &'a str,
}

/// Admits calls by their class: to the API server, where nothing else is said. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate<C: Classes = Class> {
    admission: Admission,
    facts: Facts,
    classes: PhantomData<C>,
}

impl<C: Classes> Gate<C> {
    /// An open gate.
    #[must_use]
    pub fn new(facts: Facts) -> Self {
        Self { admission: Admission::new::<C>(), facts, classes: PhantomData }
    }

    async fn turn(&self, class: C, by: Instant) -> Turn {
        self.admission.turn(class, by).await
    }

    /// Makes one call to AWS: waits for its turn, then at most until `by` and never longer than [`CALL_TIMEOUT`].
    ///
    /// A call whose time has come already is given [`LAST_CALL`]: something is better than nothing. One that is throttled
    /// returns only when its caller may try again.
    ///
    /// # Errors
    /// What AWS or the transport said, classified; or that no answer came in time.
    pub async fn aws<T, E, F>(
        &self,
        operation: (&'static str, &'static str),
        subject: &str,
        class: C,
        by: Instant,
        request: impl FnOnce() -> F,
    ) -> Result<T, AwsError>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let turn = self.turn(class, by).await;
        let result = aws(&self.facts, operation, subject, turn.limit(), request).await;
        let failed = result.as_ref().err().map(|error| error.category);
        turn.answered(failed, None).await;
        result
    }
}

impl Gate {
    /// Makes one call to the API server: waits for its turn, then at most until `by` and never longer than [`CALL_TIMEOUT`].
    ///
    /// A call whose time has come already is given [`LAST_CALL`]: something is better than nothing. One that is throttled
    /// returns only when its caller may try again; what the server asked for is not in the error any more. Where it asked for time for
    /// another reason, the error says for how long, in bounds: a part of the time that is left.
    ///
    /// # Errors
    /// What the server or the transport said, classified; or that no answer came in time.
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
        let turn = self.turn(class, by).await;
        let limit = turn.limit();
        // Made and boxed only now: a thousand calls that queue, and the drains around them, don't hold room for a thousand requests.
        let mut result = match timeout(limit, Box::pin(request())).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(KubeError::new(verb, resource, subject, &error)),
            Err(_) => Err(KubeError::timed_out(verb, resource, subject, limit)),
        };
        let answer = result.as_ref().map(drop).map_err(|error| error.category);
        self.facts.emit(&Fact::KubeCall { verb, resource, result: answer, took: turn.took() });
        let (mut failed, mut asked) = (None, None);
        if let Err(error) = &mut result {
            failed = Some(error.category);
            error.retry_after = error.retry_after.map(|asked| turn.bounded(asked));
            if error.category == Category::Throttled {
                asked = error.retry_after.take();
            }
        }
        let answered = Instant::now();
        turn.answered(failed, asked).await;
        if let Err(error) = &mut result {
            error.waited = answered.elapsed();
        }
        result
    }
}

/// Makes one call to AWS, in at most `limit`, and tells what became of it.
///
/// # Errors
/// What AWS or the transport said, classified; or that no answer came in time.
pub async fn aws<T, E, F>(
    facts: &Facts,
    (service, operation): (&'static str, &'static str),
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
        Ok(Err(error)) => Err(AwsError::from_sdk(service, operation, subject, &error)),
        Err(_) => Err(AwsError::timed_out(service, operation, subject, limit)),
    };
    let answer = result.as_ref().map(drop).map_err(|error| error.category);
    facts.emit(&Fact::AwsCall { service, operation, result: answer, took: begun.elapsed() });
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
        // What its caller would have waited anyway is over.
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
}
