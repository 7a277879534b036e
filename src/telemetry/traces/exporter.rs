//! The task that posts traces, one batch after the other.

use super::recorder::FinishedTraces;
use super::span::Trace;
use super::{TraceSettings, otlp};
use crate::clients::gate::Backoff;
use crate::fact::{Fact, Facts};
use crate::runtime::clock::Clock;
use crate::runtime::duration::Words;
use crate::telemetry::outbound::{NoReply, Outbound, Reply, Scrubber};
use aws_smithy_runtime_api::client::http::SharedHttpConnector;
use http::{HeaderName, HeaderValue, header};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// Maximum number of traces in a request: half a megabyte.
const MAX_BATCH: usize = 64;

/// Maximum time that a trace waits for others.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Timeout of one try, as OpenTelemetry's own exporters have it.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of tries of one batch.
const MAX_TRIES: u32 = 4;

/// Bounds of the pause between two tries.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Interval between reports of lost traces.
const REPORT_INTERVAL: Duration = Duration::from_mins(10);

/// Posts finished traces to the collector, for as long as the service lives.
pub struct TraceExporter {
    settings: TraceSettings,
    finished: FinishedTraces,
    outbound: Outbound,
    facts: Facts,
    reported_at: Option<Instant>,
}

/// The reason why the collector has not taken traces. No text has a secret or the URL.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("they came faster than the collector takes them")]
    TooMany,
    #[error("no answer within {}; check the collector", Words(*.0))]
    TimedOut(Duration),
    #[error("no connection: {0}; check the host of --otlp-endpoint and network policies")]
    Unreachable(String),
    #[error("answered {status}{}{body}; {}", if .body.is_empty() { "" } else { ": " }, advice(*.status))]
    Refused { status: u16, body: String, retry_after: Option<Duration> },
}

const fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 => "check --otlp-header",
        429 | 502..=504 => "the collector is overloaded or failing",
        _ => "check that --otlp-endpoint takes OTLP over HTTP, usually on port 4318",
    }
}

impl ExportError {
    /// Whether a later try may succeed: the statuses are OTLP's.
    const fn is_retried(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Unreachable(_) | Self::Refused { status: 429 | 502..=504, .. })
    }

    const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl TraceExporter {
    /// An exporter of `finished` traces.
    #[must_use]
    pub fn new(
        settings: TraceSettings,
        finished: FinishedTraces,
        connector: SharedHttpConnector,
        clock: Clock,
        facts: Facts,
    ) -> Self {
        let TraceSettings { collector, headers, .. } = &settings;
        let scrubber = Scrubber::new(collector, headers.iter().map(|(_, value)| value), [].into_iter(), None);
        let outbound = Outbound::new(connector, clock, scrubber, TRY_TIMEOUT);
        Self { settings, finished, outbound, facts, reported_at: None }
    }

    /// Posts until there is no subscriber any more or, once `stop` is cancelled, until everything was tried once.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let batch = self.batch(&stop).await;
            let lost = self.finished.take_dropped();
            if lost > 0 {
                self.report(lost, &ExportError::TooMany);
            }
            if batch.is_empty() {
                return;
            }
            self.export(&batch, &stop).await;
        }
    }

    /// Returns the next traces; none at the end.
    async fn batch(&mut self, stop: &CancellationToken) -> Vec<Trace> {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            Some(first) = self.finished.receiver.recv() => batch.push(first),
            () = stop.cancelled() => {}
        }
        let until = Instant::now() + MAX_DELAY;
        while batch.len() < MAX_BATCH && !batch.is_empty() {
            tokio::select! {
                biased;
                next = timeout_at(until, self.finished.receiver.recv()) => match next {
                    Ok(Some(next)) => batch.push(next),
                    _ => break,
                },
                () = stop.cancelled() => break,
            }
        }
        batch
    }

    async fn export(&mut self, batch: &[Trace], stop: &CancellationToken) {
        let body = serde_json::to_vec(&otlp::request(&self.settings, batch)).unwrap_or_default();
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        for tries in 1.. {
            let Err(error) = self.post(body.clone()).await else {
                return self.facts.emit(&Fact::TracesSent { count: batch.len() });
            };
            if !error.is_retried() || tries >= MAX_TRIES || stop.is_cancelled() {
                return self.report(batch.len(), &error);
            }
            let pause = backoff.step().max(error.retry_after().unwrap_or_default());
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn post(&self, body: Vec<u8>) -> Result<(), ExportError> {
        let ours: (HeaderName, HeaderValue) = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let headers = self.settings.headers.iter().cloned().chain([ours]);
        match self.outbound.post(&self.settings.collector, headers, body).await {
            Ok(Reply { status, .. }) if (200..300).contains(&status) => Ok(()),
            Ok(Reply { status, body, retry_after }) => Err(ExportError::Refused { status, body, retry_after }),
            Err(NoReply::TimedOut(limit)) => Err(ExportError::TimedOut(limit)),
            Err(NoReply::Unreachable(why)) => Err(ExportError::Unreachable(why)),
        }
    }

    fn report(&mut self, count: usize, error: &ExportError) {
        let now = Instant::now();
        let repeated = self.reported_at.is_some_and(|at| at + REPORT_INTERVAL > now);
        if !repeated {
            self.reported_at = Some(now);
        }
        let host = self.settings.collector.host();
        self.facts.emit(&Fact::TracesLost { host, count, error, repeated });
    }
}
