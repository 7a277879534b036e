//! One replica at a time collects what is left of Nodes that are gone, elected by a Kubernetes Lease ([`election`](crate::leases::election)):
//! one loop for all kinds of leftovers, each scanned at its own interval.

use crate::clients::gate::{AwsError, Backoff, Category, KubeError};
use crate::fact::{Fact, Facts};
use crate::leases::election::{Election, Turn};
use crate::runtime::random;
use futures_util::future::BoxFuture;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

/// Maximum interval between checks of the turn.
const TURN_INTERVAL: Duration = Duration::from_mins(10);

/// Maximum delay of the first scan, so that replicas that start together do not scan together.
const FIRST_SCAN_DELAY: Duration = Duration::from_secs(5);

/// Delay of the first retry after a failure.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Maximum delay of a retry after a failure.
const MAX_RETRY_DELAY: Duration = Duration::from_mins(5);

/// One kind of leftovers.
pub trait Leftovers: Send {
    /// Returns the interval between scans.
    fn interval(&self) -> Duration;

    /// Finds leftovers, and collects them.
    fn scan(&mut self) -> BoxFuture<'_, Result<(), CollectError>>;

    /// Forgets what was found so far: another replica may have collected since.
    fn forget(&mut self) {}
}

/// Why a scan failed.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// By the API server.
    #[error(transparent)]
    Kube(#[from] KubeError),
    /// By AWS.
    #[error(transparent)]
    Aws(#[from] AwsError),
}

impl CollectError {
    const fn category(&self) -> Category {
        match self {
            Self::Kube(error) => error.category,
            Self::Aws(error) => error.category,
        }
    }
}

/// Collects leftovers.
pub struct Collector {
    jobs: Vec<Job>,
    facts: Facts,
    /// The election of the collector; `None` in a dry run, which writes nothing.
    election: Option<Election>,
    /// The term of our turn, while we have it.
    term: Option<i32>,
}

/// A kind of leftovers, and when it is scanned next.
struct Job {
    leftovers: Box<dyn Leftovers>,
    due: Instant,
    backoff: Backoff,
}

impl Collector {
    /// Returns the collector of these leftovers. Without an election every replica collects, for a dry run.
    #[must_use]
    pub fn new(all: Vec<Box<dyn Leftovers>>, facts: Facts, election: Option<Election>) -> Self {
        let due = Instant::now();
        let backoff = || Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
        let jobs = all.into_iter().map(|leftovers| Job { leftovers, due, backoff: backoff() }).collect();
        Self { jobs, facts, election, term: None }
    }

    /// Runs until `stop`, then gives the turn back.
    pub async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.work() => {}
        }
        if let Some(election) = self.election {
            // A failure does not matter: the turn expires by itself.
            let _ = election.give_back().await;
        }
    }

    async fn work(&mut self) {
        sleep(random::jittered(FIRST_SCAN_DELAY, 0.0..1.0)).await;
        let mut backoff = Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
        loop {
            let begun = Instant::now();
            let next = match self.take_turn().await {
                Ok(turn) => {
                    backoff.reset();
                    match turn {
                        Turn::Ours { until, .. } => self.scan(until).await,
                        Turn::Theirs { until } => until.min(begun + random::jittered(TURN_INTERVAL, 0.9..1.0)),
                    }
                }
                Err(error) => {
                    self.facts.emit(&Fact::CollectFailed { category: error.category, error: &error });
                    Instant::now() + backoff.step()
                }
            };
            sleep_until(next).await;
        }
    }

    /// Takes or keeps the turn.
    async fn take_turn(&mut self) -> Result<Turn, KubeError> {
        let Some(election) = &mut self.election else {
            return Ok(Turn::Ours { until: Instant::now() + TURN_INTERVAL, term: 0 });
        };
        let had = election.is_ours();
        let turn = election.take_turn().await?;
        let ours = matches!(turn, Turn::Ours { .. });
        if ours != had {
            self.facts.emit(&Fact::CollectorTurn { ours });
        }
        let term = if let Turn::Ours { term, .. } = turn { Some(term) } else { None };
        if self.term != term {
            self.term = term;
            for job in &mut self.jobs {
                job.leftovers.forget();
                job.due = Instant::now();
            }
        }
        Ok(turn)
    }

    /// Scans what is due, while the turn is ours. Returns when the next scan is.
    async fn scan(&mut self, until: Instant) -> Instant {
        for Job { leftovers, due, backoff } in &mut self.jobs {
            let begun = Instant::now();
            if begun < *due {
                continue;
            }
            // The next scan does the rest if the turn ends.
            *due = match timeout_at(until, leftovers.scan()).await.unwrap_or(Ok(())) {
                Ok(()) => {
                    backoff.reset();
                    begun + random::jittered(leftovers.interval(), 0.9..1.0)
                }
                Err(error) => {
                    self.facts.emit(&Fact::CollectFailed { category: error.category(), error: &error });
                    Instant::now() + backoff.step()
                }
            };
        }
        self.jobs.iter().map(|job| job.due).fold(Instant::now() + TURN_INTERVAL, Instant::min)
    }
}
