//! The other replicas, whose work the page shows, too. A headless service names them; they are asked while a viewer is connected.

use crate::clients::get::get;
use crate::telemetry::history::report::{Interruption, Report, VERSION};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// Time in which a replica must answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum length of a report: a full history of 4 MiB is 4 MB as JSON.
const MAX_REPORT: usize = 6 << 20;

/// Maximum length of all reports together.
const MAX_REPORTS: usize = 16 << 20;

/// Number of replicas that are asked at the same time.
const AT_ONCE: usize = 4;

/// Maximum number of replicas that are asked.
const MAX_PEERS: usize = 16;

/// The last reports of the other replicas.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// The reports, or why there is none, by address.
    answers: Vec<(String, Result<Report, String>)>,
    /// The ids of interruptions that have changed since [`Peers::take_changes`].
    changed: BTreeSet<String>,
    removed: BTreeSet<String>,
    /// Whether something else has changed, such as the set of answering replicas.
    others: bool,
}

/// Asks all replicas behind `names` but `own`.
pub(super) async fn ask(names: &[String], own: &str) -> Vec<(String, Result<Report, String>)> {
    let resolved = join_all(names.iter().map(async |name| {
        let found = match timeout(TIMEOUT, lookup_host(name)).await {
            Ok(found) => found.map_err(|error| format!("the name can't be resolved: {error}")),
            Err(_) => Err(format!("the name was not resolved within {TIMEOUT:?}")),
        };
        found.map(Vec::from_iter).map_err(|why| (name.clone(), Err(why)))
    }));
    let (mut addresses, mut unknown) = (BTreeSet::<SocketAddr>::new(), Vec::new());
    for found in resolved.await {
        match found {
            Ok(found) => addresses.extend(found),
            Err(failed) => unknown.push(failed),
        }
    }
    let room = AtomicUsize::new(MAX_REPORTS);
    let answers = stream::iter(addresses.into_iter().take(MAX_PEERS)).map(async |address| {
        let limit = MAX_REPORT.min(room.load(Ordering::Relaxed));
        let report = match get(address, "/api/status?scope=replica", limit, TIMEOUT).await {
            Ok(body) => {
                let left = room.load(Ordering::Relaxed).saturating_sub(body.len());
                room.store(left, Ordering::Relaxed);
                serde_json::from_slice::<Report>(&body).map_err(|error| format!("not a status report: {error}"))
            }
            Err(error) => Err(error.to_string()),
        };
        let known = report.and_then(|report| match report.version {
            VERSION => Ok(report),
            other => Err(format!("its report has version {other}, and this replica reads {VERSION}")),
        });
        (address.to_string(), known)
    });
    let answers: Vec<_> = answers.buffered(AT_ONCE).collect().await;
    let is_other = |(_, report): &(String, Result<Report, String>)| {
        report.as_ref().is_ok_and(|report| report.replicas.first().is_none_or(|replica| replica.name != own))
            || report.is_err()
    };
    unknown.extend(answers.into_iter().filter(is_other));
    unknown
}

impl Peers {
    /// Takes new answers, and notes which interruptions have changed.
    pub(super) fn take(&mut self, answers: Vec<(String, Result<Report, String>)>) {
        let before = rows(&self.answers);
        let now = rows(&answers);
        let changed = now.iter().filter(|(id, row)| before.get(*id) != Some(row)).map(|(id, _)| (*id).to_owned());
        let removed = before.keys().filter(|id| !now.contains_key(*id)).map(|id| (*id).to_owned());
        let (changed, removed): (Vec<_>, Vec<_>) = (changed.collect(), removed.collect());
        let seen = |answers: &[(String, Result<Report, String>)]| -> Vec<Result<String, String>> {
            answers
                .iter()
                .map(|(_, answer)| answer.as_ref().map(|it| it.health.text.clone()).map_err(Clone::clone))
                .collect()
        };
        self.others |= seen(&self.answers) != seen(&answers);
        self.changed.extend(changed);
        self.removed.extend(removed);
        self.answers = answers;
    }

    /// Whether something has changed since [`Peers::take_changes`].
    pub(super) fn has_changes(&self) -> bool {
        self.others || !self.changed.is_empty() || !self.removed.is_empty()
    }

    /// Forgets which interruptions have changed, and returns them and those that are gone.
    pub(super) fn take_changes(&mut self) -> (BTreeSet<String>, BTreeSet<String>) {
        self.others = false;
        (std::mem::take(&mut self.changed), std::mem::take(&mut self.removed))
    }

    /// Makes the report of this replica one of all, with their interruptions: those with these ids, or all.
    pub(super) fn add_to(&self, report: &mut Report, only: Option<&BTreeSet<String>>) {
        for (address, answer) in &self.answers {
            match answer {
                Ok(other) => {
                    let mut other = other.clone();
                    other.interruptions.retain(|row| only.is_none_or(|ids| ids.contains(&row.id)));
                    report.add(other);
                }
                Err(why) => report.add_silent(address, why),
            }
        }
        report.is_of_all();
    }
}

fn rows(answers: &[(String, Result<Report, String>)]) -> BTreeMap<&str, &Interruption> {
    let reports = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let rows = reports.flat_map(|report| &report.interruptions).filter(|row| !row.is_recorded());
    rows.map(|row| (&*row.id, row)).collect()
}
