//! The kubeconfig's program that gives out credentials, such as `aws eks get-token`.
//!
//! The program runs once for all clients, and again before its credentials expire. kube's own client would run it three times for
//! each client, on the runtime's threads, and without a timeout.

mod run;
#[cfg(test)]
mod tests;

pub use run::BadProgram;

use crate::runtime::clock::Clock;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use http::{HeaderValue, Request, header};
use jiff::{SignedDuration, Timestamp};
use kube::config::ExecConfig;
use parking_lot::Mutex;
use run::run;
use std::sync::Arc;

/// Time before the expiry of credentials at which they are renewed, while calls still use the old ones.
const RENEW_AHEAD: SignedDuration = SignedDuration::from_secs(60);

/// A client certificate and its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ClientCertificate {
    pub certificate: String,
    pub key: String,
}

/// The credentials that the program gave. There is no `Debug`: they are secrets.
#[derive(Clone)]
struct ExecCredentials {
    bearer: Option<HeaderValue>,
    certificate: Option<ClientCertificate>,
    expiry: Option<Timestamp>,
}

impl ExecCredentials {
    /// Returns whether the credentials are valid at `now`, and for `longer` after it.
    fn last(&self, now: Timestamp, longer: SignedDuration) -> bool {
        self.expiry.is_none_or(|expiry| expiry.duration_since(now) > longer)
    }
}

/// A run of the program. Every call that needs a token drives it, and it outlives each of them.
type Run = Shared<BoxFuture<'static, Result<ExecCredentials, BadProgram>>>;

/// The program, with its last credentials.
pub(super) struct Program {
    exec: Arc<ExecConfig>,
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    credentials: ExecCredentials,
    run: Option<Run>,
}

impl Program {
    /// Runs the program for the first time. Its certificate is used as long as the clients live; its token is renewed.
    ///
    /// # Errors
    /// When the program gives no credentials.
    pub async fn start(exec: ExecConfig, clock: Clock) -> Result<(Self, Option<ClientCertificate>), BadProgram> {
        let exec = Arc::new(exec);
        let mut credentials = run(&exec).await?;
        let certificate = credentials.certificate.take();
        Ok((Self { exec, clock, state: Mutex::new(State { credentials, run: None }) }, certificate))
    }

    /// Adds the token to a request, if the program gives out tokens.
    pub async fn sign<B>(&self, mut request: Request<B>) -> Result<Request<B>, BadProgram> {
        if let Some(bearer) = self.bearer().await? {
            request.headers_mut().insert(header::AUTHORIZATION, bearer);
        }
        Ok(request)
    }

    async fn bearer(&self) -> Result<Option<HeaderValue>, BadProgram> {
        let (old, current) = {
            let mut state = self.state.lock();
            if state.credentials.bearer.is_none() || state.credentials.last(self.clock.now(), RENEW_AHEAD) {
                return Ok(state.credentials.bearer.clone());
            }
            let exec = Arc::clone(&self.exec);
            let begin = || async move { run(&exec).await }.boxed().shared();
            (state.credentials.clone(), state.run.get_or_insert_with(begin).clone())
        };
        // A drain does not wait for the new token while the old one is valid.
        let is_valid = old.last(self.clock.now(), SignedDuration::ZERO);
        let answer = if is_valid { current.clone().now_or_never() } else { Some(current.clone().await) };
        let Some(answer) = answer else { return Ok(old.bearer) };
        let mut state = self.state.lock();
        // Only the first of the calls that waited for this run finds it here.
        if state.run.as_ref().is_some_and(|run| run.ptr_eq(&current)) {
            state.run = None;
            if let Ok(credentials) = &answer {
                state.credentials = credentials.clone();
            }
        }
        match answer {
            Err(_) if is_valid => Ok(old.bearer),
            answer => answer.map(|credentials| credentials.bearer),
        }
    }
}
