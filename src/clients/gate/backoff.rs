//! Waits between tries: exponential, with jitter, bounded.

use super::error::{AwsError, KubeError};
use crate::runtime::random;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The waits of one sequence of tries.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    first: Duration,
    max: Duration,
}

impl Backoff {
    /// Waits that double from `first` to `max`.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { next: first, first, max }
    }

    /// Returns the next wait: between half and all of the step.
    pub fn step(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.max);
        jittered(step)
    }

    /// Starts over from the first wait, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Calls until the first success. Gives up when `passes` rules out another try, or when that would come at `by` or later.
    ///
    /// # Errors
    /// The failure of the last call.
    pub async fn retry<T, E: Failure, F: Future<Output = Result<T, E>>>(
        mut self,
        by: Option<Instant>,
        mut call: impl FnMut() -> F,
        mut passes: impl FnMut(&E) -> bool,
    ) -> Result<T, E> {
        loop {
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let wait = error.wait(self.step());
            if !passes(&error) || by.is_some_and(|by| Instant::now() + wait >= by) {
                return Err(error);
            }
            sleep(wait).await;
        }
    }
}

/// Maximum number of tries of [`few_tries`].
const TRIES: usize = 3;

/// Calls AWS up to three times, while a later call may succeed. An answer may have been lost: only for calls that may be repeated.
///
/// # Errors
/// The failure of the last call.
pub async fn few_tries<T, F: Future<Output = Result<T, AwsError>>>(call: impl FnMut() -> F) -> Result<T, AwsError> {
    let mut retries = 1..TRIES;
    let passes = |error: &AwsError| error.category.may_pass() && retries.next().is_some();
    Backoff::new(Duration::from_secs(1), Duration::from_secs(5)).retry(None, call, passes).await
}

/// The failure of a call that may be tried again.
pub trait Failure {
    /// Returns the wait before another try; `delay` is the caller's own.
    fn wait(&self, delay: Duration) -> Duration;
}

impl Failure for KubeError {
    fn wait(&self, delay: Duration) -> Duration {
        // The server may ask for more.
        self.wait(delay)
    }
}

impl Failure for AwsError {
    fn wait(&self, delay: Duration) -> Duration {
        delay
    }
}

/// Returns between half and all of `step`, so that callers that fail together don't retry together.
pub(super) fn jittered(step: Duration) -> Duration {
    random::jittered(step, 0.5..1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_bound_and_starts_over() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(4));
        for step in [1, 2, 4, 4] {
            let wait = backoff.step();
            assert!(wait >= Duration::from_secs(step) / 2 && wait <= Duration::from_secs(step), "{wait:?} for {step}");
        }
        backoff.reset();
        assert!(backoff.step() <= Duration::from_secs(1));
    }
}
