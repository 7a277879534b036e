//! Credentials that AWS calls expired before their time: they are loaded anew, and the call is tried again at once.
//!
//! The SDK keeps credentials until their own end. A role's session can end before, and then every call of every client is refused.

use aws_config::identity::IdentityCache;
use aws_smithy_runtime_api::client::identity::{
    IdentityFuture, ResolveCachedIdentity, SharedIdentityCache, SharedIdentityResolver,
};
use aws_smithy_runtime_api::client::interceptors::context::InterceptorContext;
use aws_smithy_runtime_api::client::retries::classifiers::{ClassifyRetry, RetryAction, RetryClassifierPriority};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;
use aws_smithy_types::retry::ErrorKind;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Number of attempts of a call: the second one is for credentials that have expired.
pub(super) const ATTEMPTS: u32 = 2;

/// Minimum interval between two renewals. The calls that were in flight share one, and a source that gives the expired credentials
/// again is not asked by each call.
const MIN_INTERVAL: Duration = Duration::from_secs(5);

/// Timeout of loading credentials: shorter than that of a call, so that the call's error names what failed.
const LOAD_TIMEOUT: Duration = Duration::from_secs(6);

/// Parts of the error codes for expired credentials. EC2 has its own code.
const CODES: [&[u8]; 2] = [b"ExpiredToken", b"RequestExpired"];

/// The credentials of all AWS clients, which are renewed when AWS calls them expired. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Renewal(Arc<Mutex<CredentialCache>>);

#[derive(Debug)]
struct CredentialCache {
    identities: SharedIdentityCache,
    renewed_at: Option<Instant>,
}

impl Renewal {
    /// Credentials that are loaded by the first call.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(CredentialCache { identities: empty(), renewed_at: None })))
    }

    /// Forgets the credentials, so that the next attempt loads them.
    fn renew(&self) {
        let mut cached = self.0.lock();
        if cached.renewed_at.is_none_or(|at| at.elapsed() >= MIN_INTERVAL) {
            *cached = CredentialCache { identities: empty(), renewed_at: Some(Instant::now()) };
        }
    }
}

fn empty() -> SharedIdentityCache {
    IdentityCache::lazy().load_timeout(LOAD_TIMEOUT).build()
}

impl ResolveCachedIdentity for Renewal {
    fn resolve_cached_identity<'a>(
        &'a self,
        resolver: SharedIdentityResolver,
        components: &'a RuntimeComponents,
        config: &'a ConfigBag,
    ) -> IdentityFuture<'a> {
        let identities = self.0.lock().identities.clone();
        IdentityFuture::new(async move { identities.resolve_cached_identity(resolver, components, config).await })
    }
}

/// No other failure is retried by the SDK.
impl ClassifyRetry for Renewal {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        if !is_expiry(context) {
            return RetryAction::RetryForbidden;
        }
        self.renew();
        RetryAction::retryable_error_with_explicit_delay(ErrorKind::ClientError, Duration::ZERO)
    }

    fn name(&self) -> &'static str {
        "Renewal"
    }

    /// Before all others, which end with a retry that is forbidden.
    fn priority(&self) -> RetryClassifierPriority {
        RetryClassifierPriority::run_before(RetryClassifierPriority::http_status_code_classifier())
    }
}

/// Whether the answer calls the credentials expired. Each service has its own type of errors; the text of the answer serves all.
fn is_expiry(context: &InterceptorContext) -> bool {
    let Some(response) = context.response().filter(|response| response.status().is_client_error()) else {
        return false;
    };
    let text = response.body().bytes().unwrap_or_default();
    CODES.iter().any(|code| text.windows(code.len()).any(|part| part == *code))
}
