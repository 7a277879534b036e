//! What can be known before the first interruption: whether all that the service needs is there, and what to do where it is not.
//!
//! ```text
//!  read  ──▶ Seen ──▶ judge, one small module for each area ──▶ Checks ──▶ text | JSON | facts
//!  (calls)   (values)  (pure)
//! ```
//!
//! Nothing is changed: what can't be asked for is tried in a form that can't succeed. Every call has a timeout, all of them together
//! a few seconds, and what could not be read costs its own line alone.

mod aws_calls;
mod check;
mod clock_skew;
mod cluster;
mod credentials;
mod event_pattern;
mod glob;
mod groups;
mod permissions;
mod queue;
mod queue_policy;
mod read;
mod report;
mod rules;
#[cfg(test)]
mod tests;

pub use check::{Area, Check, Failed, Read, Status};
pub use permissions::{Need, needs};
pub use read::{Ask, Extent, Seen, see};
pub use report::Report;

use crate::cli::settings::Settings;
use crate::clients::connect::{Clients, Ways};
use crate::clients::gate::Gate;
use crate::fact::{Fact, Facts};
use crate::runtime::clock::Clock;

/// Looks at everything once.
pub async fn examine(settings: &Settings, ask: &Ask) -> Report {
    let seen = Box::pin(see(settings, ask)).await;
    judge(settings, &seen)
}

/// What all that was read says. Pure.
#[must_use]
pub fn judge(settings: &Settings, seen: &Seen) -> Report {
    let mut checks = seen.no_aws.clone().map_or_else(|| at_aws(settings, seen), |line| vec![line]);
    checks.extend(seen.no_cluster.clone().map_or_else(|| in_cluster(settings, seen), |line| vec![line]));
    Report::new(checks)
}

fn at_aws(settings: &Settings, seen: &Seen) -> Vec<Check> {
    let mut checks = credentials::judge(&seen.identity, &settings.queue_url);
    checks.extend(queue::judge(settings, seen));
    // Without credentials they would all say the same.
    if !seen.identity.as_ref().is_err_and(credentials::useless) {
        checks.extend(rules::judge(settings, seen));
        checks.extend(groups::judge(settings, seen));
        checks.extend(aws_calls::judge(settings, seen));
    }
    checks
}

fn in_cluster(settings: &Settings, seen: &Seen) -> Vec<Check> {
    let mut checks = permissions::judge(settings, seen);
    checks.extend(cluster::judge(seen));
    checks.push(clock_skew::judge(&seen.server));
    checks
}

/// What `ebbtide doctor` finds, by the ways that there are.
pub async fn consult(settings: &Settings, ways: Ways, clock: Clock) -> Report {
    let nobody = Facts::to(Vec::new());
    examine(settings, &Ask::new(ways, Gate::new(nobody), clock, Extent::WHOLE)).await
}

/// The same at the start of the service, by the way, and told as facts. Calls to the API server take their turn at the service's own
/// gate, after all others.
pub async fn check_at_start(settings: Settings, clients: Clients, gate: Gate, clock: Clock, facts: Facts) {
    let report = examine(&settings, &Ask::new(clients.into(), gate, clock, Extent::START)).await;
    for check in report.checks() {
        facts.emit(&Fact::Checked {
            area: check.area.as_str(),
            check: check.name,
            status: check.status_at_start(),
            found: &check.found,
            remedy: check.remedy.as_deref(),
        });
    }
    let count = |status| report.checks().iter().filter(|check| check.status_at_start() == status).count();
    facts.emit(&Fact::ChecksEnded { counts: Status::ALL.map(|status| (status, count(status))) });
}
