//! The error of a failed call: one type for AWS and one for the API server, with one set of categories.

use crate::fact::Category;
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use kube::core::Status;
use std::fmt;
use std::time::Duration;

/// Returns the category of an HTTP status.
const fn category_of_status(status: u16) -> Category {
    match status {
        401 | 403 => Category::Denied,
        404 => Category::NotFound,
        409 => Category::Conflict,
        429 => Category::Throttled,
        400..=499 => Category::Invalid,
        _ => Category::Unavailable,
    }
}

/// Message of a call to AWS that could not be signed; the reason follows, if it is known.
const NO_CREDENTIALS: &str = "no AWS credentials";

/// Why a call to AWS could not be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigningFailure {
    /// There are no credentials.
    NoneFound,
    /// The source of the credentials failed, for the reason in the message.
    SourceFailed,
}

/// An operation of AWS, shown as IAM writes it: `sqs:ReceiveMessage`.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The service's prefix in IAM.
    pub service: &'static str,
    /// The operation's name.
    pub name: &'static str,
}

impl Operation {
    /// The operation `name` of `service`.
    #[must_use]
    pub const fn new(service: &'static str, name: &'static str) -> Self {
        Self { service, name }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.service, self.name)
    }
}

/// A call to AWS that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{operation} for {subject}: {}{}", self.answer(), self.advice())]
pub struct AwsError {
    /// The operation.
    pub operation: Operation,
    /// The object of the call.
    pub subject: String,
    /// Its category.
    pub category: Category,
    /// AWS's error code, if its answer has one.
    pub code: Option<String>,
    /// The message of AWS or of the transport.
    pub message: String,
    /// Set if the call could not be signed. It counts as unreachable then: the source of credentials may be unreachable.
    pub unsigned: Option<SigningFailure>,
}

impl AwsError {
    /// Returns the error of an operation on `subject`, without an error code of AWS.
    #[must_use]
    pub fn new(operation: Operation, subject: &str, category: Category, message: String) -> Self {
        Self { operation, subject: subject.to_owned(), category, code: None, message, unsigned: None }
    }

    pub(super) fn timed_out(operation: Operation, subject: &str, after: Duration) -> Self {
        Self::new(operation, subject, Category::TimedOut, format!("no answer within {} s", after.as_secs_f32()))
    }

    pub(super) fn from_sdk<E>(operation: Operation, subject: &str, error: &SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let code = error.as_service_error().and_then(ProvideErrorMetadata::code).map(str::to_owned);
        let status = error.raw_response().map_or(0, |response| response.status().as_u16());
        let category = match (error, code.as_deref()) {
            (SdkError::TimeoutError(_), _) => Category::TimedOut,
            (SdkError::DispatchFailure(failure), _) if failure.is_timeout() => Category::TimedOut,
            (SdkError::DispatchFailure(_), _) => Category::Unreachable,
            (SdkError::ConstructionFailure(_), _) => Category::Denied,
            (SdkError::ServiceError(_), Some(code)) => category_of_code(code, status),
            _ => category_of_status(status),
        };
        let (message, unsigned) = match error.as_service_error().and_then(ProvideErrorMetadata::message) {
            Some(message) => (message.to_owned(), None),
            None => match unsigned(error) {
                Some((message, why)) => (message, Some(why)),
                None => (chain(error), None),
            },
        };
        Self { operation, subject: subject.to_owned(), category, code, message, unsigned }
    }

    /// Whether AWS may have taken the request all the same, because its answer was lost.
    #[must_use]
    pub const fn may_be_taken(&self) -> bool {
        matches!(self.category, Category::Unavailable | Category::TimedOut | Category::Unreachable)
            && self.unsigned.is_none()
    }

    fn answer(&self) -> String {
        match &self.code {
            Some(code) => format!("{code}: {}", self.message),
            None => self.message.clone(),
        }
    }

    fn advice(&self) -> String {
        match self.category {
            Category::Denied => format!(
                " (check that the role's credentials reach this pod, and that its policy allows {})",
                self.operation
            ),
            Category::Expired => {
                " (check that the source of the role's credentials renews them, and the machine's clock)".to_owned()
            }
            Category::NotFound => " (check the name, the account and AWS_REGION)".to_owned(),
            Category::Unreachable if self.unsigned.is_some() => {
                " (check the role that this process is given, or AWS_PROFILE)".to_owned()
            }
            Category::Unreachable => {
                " (check AWS_REGION, the endpoint, and that the network lets this pod reach it)".to_owned()
            }
            _ => String::new(),
        }
    }
}

/// Returns the category of an AWS error code, or else of the HTTP status.
#[must_use]
pub fn category_of_code(code: &str, status: u16) -> Category {
    let code = code.rsplit(['#', '.']).next().unwrap_or(code);
    match code {
        "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "RequestLimitExceeded"
        | "TooManyRequestsException"
        | "SlowDown"
        | "KmsThrottled" => Category::Throttled,
        "AccessDenied"
        | "AccessDeniedException"
        | "UnauthorizedOperation"
        | "AuthFailure"
        | "InvalidClientTokenId"
        | "UnrecognizedClientException"
        | "SignatureDoesNotMatch"
        | "OptInRequired" => Category::Denied,
        "ExpiredToken" | "ExpiredTokenException" | "RequestExpired" => Category::Expired,
        "NonExistentQueue" | "QueueDoesNotExist" | "TargetGroupNotFound" => Category::NotFound,
        "InternalFailure" | "InternalError" | "ServiceUnavailable" | "Unavailable" => Category::Unavailable,
        _ => category_of_status(status),
    }
}

/// What keeps a pod from being evicted, from the API server's answer to the eviction. The status code is ambiguous: webhooks choose
/// theirs, policies answer 422, and several budgets 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// A disruption budget.
    Budget,
    /// Several budgets select the pod, and the API server obeys none.
    SeveralBudgets,
    /// An admission webhook or an admission policy denies the eviction.
    Admission,
    /// An admission webhook does not answer, and the API server denies without it.
    FailingWebhook,
}

impl Blocker {
    /// Returns the blocker of the eviction that the API server answered with this status.
    fn of(status: &Status) -> Option<Self> {
        let message = &status.message;
        let mut causes = status.details.iter().flat_map(|details| &details.causes);
        if status.code == 429 && causes.any(|cause| cause.reason == "DisruptionBudget") {
            Some(Self::Budget)
        } else if is_by_admission(message) {
            Some(Self::Admission)
        } else if message.contains("failed calling webhook \"") {
            Some(Self::FailingWebhook)
        } else {
            message.contains("more than one PodDisruptionBudget").then_some(Self::SeveralBudgets)
        }
    }
}

/// Whether this message of the API server is of an admission webhook or an admission policy that denies a call.
#[must_use]
pub fn is_by_admission(message: &str) -> bool {
    message.starts_with("admission webhook \"")
        || message.contains("ValidatingAdmissionPolicy '") && message.contains(" denied request")
}

/// Beginning of the message with which the chart's admission policy refuses a client that has no right to write marks.
pub const MARKS_REFUSAL: &str = "only Ebbtide may change its annotations under ebbtide/";

/// A call to the API server that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{verb} {resource}{}: {message}{}", self.named(), self.advice())]
pub struct KubeError {
    /// The verb, as RBAC names it.
    pub verb: &'static str,
    /// The resource, as RBAC names it (`pods/eviction`).
    pub resource: &'static str,
    /// The object's name.
    pub subject: String,
    /// Its category.
    pub category: Category,
    /// The HTTP status, or 0 without an answer.
    pub status: u16,
    /// The wait that the server asks for. The gate takes it from a throttled call, and waits.
    pub retry_after: Option<Duration>,
    /// Time that the gate has waited since the answer.
    pub waited: Duration,
    /// The blocker of an eviction, if the call is a blocked one.
    pub blocker: Option<Blocker>,
    /// The message of the server or of the transport.
    pub message: String,
}

impl KubeError {
    /// The error of a call without an answer in time.
    #[must_use]
    pub fn timed_out(verb: &'static str, resource: &'static str, subject: &str, after: Duration) -> Self {
        Self {
            verb,
            resource,
            subject: subject.to_owned(),
            category: Category::TimedOut,
            status: 0,
            retry_after: None,
            waited: Duration::ZERO,
            blocker: None,
            message: format!("no answer within {} s", after.as_secs_f32()),
        }
    }

    /// The error of an answer that ended regularly, but too soon.
    #[must_use]
    pub fn cut_short(verb: &'static str, resource: &'static str) -> Self {
        Self {
            verb,
            resource,
            subject: String::new(),
            category: Category::Unavailable,
            status: 0,
            retry_after: None,
            waited: Duration::ZERO,
            blocker: None,
            message: "the answer ended before it was complete; something between here and the API server may cut it"
                .to_owned(),
        }
    }

    /// Returns the wait before another try: the caller's own `delay`, less what the gate has waited, and at least what the server asks
    /// for.
    #[must_use]
    pub fn wait(&self, delay: Duration) -> Duration {
        let delay = delay.saturating_sub(self.waited);
        self.retry_after.map_or(delay, |asked| asked.max(delay))
    }

    /// Whether an admission webhook or an admission policy has denied the call.
    #[must_use]
    pub fn is_by_admission(&self) -> bool {
        is_by_admission(&self.message)
    }

    /// Classifies an error of kube's client.
    #[must_use]
    pub fn new(verb: &'static str, resource: &'static str, subject: &str, error: &kube::Error) -> Self {
        let mut failed = Self {
            verb,
            resource,
            subject: subject.to_owned(),
            category: Category::Unreachable,
            status: 0,
            retry_after: None,
            waited: Duration::ZERO,
            blocker: None,
            message: String::new(),
        };
        match error {
            kube::Error::Api(status) => {
                let details = status.details.as_ref();
                // Others than evictions are refused with 429 only: an admission webhook's is no overload of the server.
                failed.blocker = Blocker::of(status).filter(|_| resource == "pods/eviction" || status.code == 429);
                failed.status = status.code;
                failed.category = match failed.blocker {
                    Some(Blocker::Budget | Blocker::SeveralBudgets | Blocker::Admission) => Category::Refused,
                    Some(Blocker::FailingWebhook) | None => category_of_status(status.code),
                };
                failed.retry_after = details
                    .map(|d| u64::from(d.retry_after_seconds))
                    .filter(|seconds| *seconds > 0)
                    .map(Duration::from_secs);
                // The cause names the budget; the message alone does not.
                let cause = details.and_then(|d| d.causes.iter().find(|cause| !cause.message.is_empty()));
                failed.message = match cause {
                    Some(cause) if failed.blocker == Some(Blocker::Budget) => cause.message.clone(),
                    _ => status.message.clone(),
                };
            }
            kube::Error::Auth(_) => {
                failed.category = Category::Denied;
                failed.message = chain(error);
            }
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => {
                failed.category = Category::Invalid;
                failed.message = chain(error);
            }
            // The text of this error is generic; its source has the reason.
            kube::Error::Service(below) => failed.message = chain(below.as_ref()),
            _ => failed.message = chain(error),
        }
        failed
    }

    fn named(&self) -> String {
        if self.subject.is_empty() { String::new() } else { format!(" {}", self.subject) }
    }

    fn advice(&self) -> String {
        match self.category {
            Category::Denied if self.message.contains(MARKS_REFUSAL) => {
                " (check that a role of the service account allows \"write\" on \"marks\" of the API group \"ebbtide\": docs/security.md)"
                    .to_owned()
            }
            Category::Denied => format!(
                " (check that a role of the service account allows \"{}\" on \"{}\", and that no admission policy forbids it)",
                self.verb, self.resource
            ),
            Category::Unreachable => " (check KUBECONFIG or the pod's service account, and the network)".to_owned(),
            _ => String::new(),
        }
    }
}

/// Returns why a call could not be signed, if that is what failed. The SDK reports it as a request that could not be sent. For a chain of
/// providers without credentials it lists the error of each, which is no help.
fn unsigned(error: &(dyn std::error::Error + 'static)) -> Option<(String, SigningFailure)> {
    let mut failed = error;
    while !failed.is::<CredentialsError>() {
        failed = failed.source()?;
    }
    let why = chain(failed.source().unwrap_or(failed));
    // The SDK's own words, which it does not give a type.
    Some(if why.starts_with("no credentials found in chain") {
        (NO_CREDENTIALS.to_owned(), SigningFailure::NoneFound)
    } else {
        (format!("{NO_CREDENTIALS}: {why}"), SigningFailure::SourceFailed)
    })
}

/// Returns an error with its sources, each once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn api(status: serde_json::Value) -> KubeError {
        let status = serde_json::from_value(status).unwrap();
        KubeError::new("create", "pods/eviction", "default/web-1", &kube::Error::Api(status))
    }

    #[test]
    fn a_budgets_refusal_names_the_budget() {
        let refused = api(json!({
            "status": "Failure", "code": 429, "reason": "TooManyRequests",
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "details": { "causes": [{
                "reason": "DisruptionBudget",
                "message": "The disruption budget web needs 2 healthy pods and has 2 currently",
            }] },
        }));
        assert_eq!((refused.category, refused.retry_after), (Category::Refused, None));
        assert_eq!(
            refused.to_string(),
            "create pods/eviction default/web-1: The disruption budget web needs 2 healthy pods and has 2 currently"
        );
    }

    #[test]
    fn a_refusal_of_marks_names_their_right() {
        let by = |reason: &str| {
            let message = format!("nodes \"a\" is forbidden: {reason}");
            let status = serde_json::from_value(json!({ "code": 403, "reason": "Forbidden", "message": message }));
            KubeError::new("patch", "nodes", "a", &kube::Error::Api(status.unwrap()))
        };
        let policy = "ValidatingAdmissionPolicy 'ebbtide-marks' with binding 'ebbtide-marks' denied request";
        let refused = by(&format!("{policy}: {MARKS_REFUSAL}, or any"));
        assert_eq!(refused.category, Category::Denied);
        let (marks, nodes) = ("\"write\" on \"marks\" of the API group \"ebbtide\"", "\"patch\" on \"nodes\"");
        let has = |error: &KubeError, text| error.to_string().contains(text);
        assert!(has(&refused, marks) && has(&refused, "docs/security.md") && !has(&refused, nodes), "{refused}");
        for other in [by("User \"ebbtide\" cannot patch resource \"nodes\""), by(&format!("{policy}: no"))] {
            assert!(has(&other, nodes) && !has(&other, marks), "{other}");
        }
    }

    #[test]
    fn an_overloaded_server_is_something_else() {
        // What kube makes of a proxy's plain text.
        let overloaded =
            api(json!({ "code": 429, "message": "Too many requests", "reason": "Failed to parse error data" }));
        assert_eq!((overloaded.category, overloaded.retry_after), (Category::Throttled, None));
        let webhook =
            api(json!({ "code": 429, "message": "admission webhook \"virt\" denied the request: migrating" }));
        assert_eq!((webhook.category, webhook.message.contains("migrating")), (Category::Refused, true));
        let told = api(json!({ "code": 429, "message": "later", "details": { "retryAfterSeconds": 7 } }));
        assert_eq!((told.category, told.retry_after), (Category::Throttled, Some(Duration::from_secs(7))));
    }

    #[test]
    fn whoever_blocks_an_eviction_is_told_by_the_words_and_not_by_the_code() {
        let webhook = "admission webhook \"drainer.strimzi.io\" denied the request: the pod will be rolled";
        let silent = "admission webhook \"drainer.strimzi.io\" denied the request without explanation";
        let policy =
            "pods \"web-1\" is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'all' denied request: no";
        let budgets =
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        let broken = "Internal error occurred: failed calling webhook \"kyverno.svc\": failed to call webhook: EOF";
        let nested = "admission webhook \"a\" denied the request: failed calling webhook \"b\"";
        let denied = "pods \"web-1\" is forbidden: User \"ebbtide\" cannot create resource \"pods/eviction\"";
        for (code, message, category, blocker) in [
            (400, webhook, Category::Refused, Some(Blocker::Admission)),
            (403, webhook, Category::Refused, Some(Blocker::Admission)),
            (500, silent, Category::Refused, Some(Blocker::Admission)),
            (422, policy, Category::Refused, Some(Blocker::Admission)),
            (403, policy, Category::Refused, Some(Blocker::Admission)),
            (500, nested, Category::Refused, Some(Blocker::Admission)),
            (500, budgets, Category::Refused, Some(Blocker::SeveralBudgets)),
            (500, broken, Category::Unavailable, Some(Blocker::FailingWebhook)),
            (403, denied, Category::Denied, None),
            (500, "etcdserver: request timed out", Category::Unavailable, None),
        ] {
            let status = json!({ "code": code, "message": message });
            let error = api(status.clone());
            assert_eq!((error.category, error.blocker, &*error.message), (category, blocker, message), "{code}");
            let status = kube::Error::Api(serde_json::from_value(status).unwrap());
            let cordon = KubeError::new("patch", "nodes", "node-1", &status);
            assert_eq!((cordon.category, cordon.blocker), (category_of_status(code), None), "{code} {message}");
        }
    }

    #[test]
    fn a_denial_says_which_permission_is_missing() {
        let denied = KubeError::new(
            "list",
            "nodes",
            "",
            &kube::Error::Api(Box::new(Status {
                code: 403,
                message: "nodes is forbidden".to_owned(),
                ..Status::default()
            })),
        );
        let text = denied.to_string();
        assert!(text.starts_with("list nodes: nodes is forbidden (check that"), "{text}");
        assert!(text.contains("\"list\" on \"nodes\""), "{text}");
    }

    #[test]
    fn a_call_that_could_not_be_signed_says_why_and_no_more() {
        use aws_sdk_sqs::operation::send_message::SendMessageError;
        use aws_smithy_runtime_api::client::result::ConnectorError;

        let said = |why: ConnectorError| {
            AwsError::from_sdk(
                Operation::new("sqs", "SendMessage"),
                "q",
                &SdkError::<SendMessageError, _>::dispatch_failure(why),
            )
        };
        let other = |why: CredentialsError| said(ConnectorError::other(why.into(), None));
        for (why, message) in [
            (CredentialsError::not_loaded("AWS_PROFILE is \"nope\""), "no AWS credentials: AWS_PROFILE is \"nope\""),
            (CredentialsError::not_loaded("no credentials found in chain. Attempted: …"), "no AWS credentials"),
            (
                CredentialsError::provider_timed_out(Duration::from_secs(5)),
                "no AWS credentials: credentials provider timed out after 5 seconds",
            ),
        ] {
            let error = other(why);
            assert_eq!((error.message.as_str(), error.unsigned.is_some()), (message, true));
            assert!(error.to_string().ends_with("(check the role that this process is given, or AWS_PROFILE)"));
        }
        let refused = said(ConnectorError::io("connection refused".into()));
        assert!(refused.category == Category::Unreachable && refused.unsigned.is_none(), "{refused}");
        assert!(refused.to_string().contains("connection refused"), "{refused}");
    }

    #[test]
    fn aws_codes_have_their_category_in_each_spelling() {
        for (code, category) in [
            ("Throttling", Category::Throttled),
            ("com.amazonaws.sqs#RequestThrottled", Category::Throttled),
            ("RequestLimitExceeded", Category::Throttled),
            ("AccessDenied", Category::Denied),
            ("RequestExpired", Category::Expired),
            ("com.amazon.coral.service#ExpiredTokenException", Category::Expired),
            ("AWS.SimpleQueueService.NonExistentQueue", Category::NotFound),
            ("ValidationError", Category::Invalid),
        ] {
            assert_eq!(category_of_code(code, 400), category, "{code}");
        }
        assert_eq!(category_of_code("Whatever", 503), Category::Unavailable);
    }
}
