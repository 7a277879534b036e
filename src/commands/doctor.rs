//! `ebbtide doctor`: checks everything that the service needs, with a remedy for each problem.
//!
//! ```text
//!  read ───▶ Readings ──▶ judges, a module for each area ──▶ Checks ──▶ text | JSON | facts
//!  (calls)   (values)     (pure)
//! ```
//!
//! Nothing is changed: a call that would have an effect is made in a form that cannot succeed. Every call has a timeout, and a failed read
//! only affects its own lines.

mod arn;
mod aws_calls;
mod check;
mod clock_skew;
mod cluster;
mod credentials;
mod diagnosis;
mod event_pattern;
mod glob;
mod groups;
mod permissions;
mod policies;
mod queue;
mod queue_policy;
mod read;
mod readings;
mod replacements;
mod rules;
#[cfg(test)]
mod tests;

pub use check::{Area, Check, Status};
pub use diagnosis::Diagnosis;

use crate::cli::settings::Settings;
use crate::clients::connect::{AvailableClients, Clients, ConnectError};
use crate::clients::gate::Gate;
use crate::fact::{Fact, Facts};
use crate::runtime::clock::Clock;
use read::{Extent, Probe};
use readings::Readings;

/// Judges all readings. Pure.
fn judge(settings: &Settings, readings: &Readings) -> Diagnosis {
    let mut checks = match &readings.no_aws {
        _ if !settings.sources.call_aws() => {
            vec![
                Area::Queue
                    .ok("source", "Notices come from the Nodes alone: there is no queue, and AWS is not called."),
            ]
        }
        Some(error) => vec![Area::Credentials.unconnected(error)],
        None => at_aws(settings, readings),
    };
    match &readings.no_cluster {
        Some(error) => checks.push(Area::Permissions.unconnected(error)),
        None => checks.extend(in_cluster(settings, readings)),
    }
    Diagnosis::new(checks)
}

fn at_aws(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let mut checks = credentials::judge(&readings.identity, &settings.queue_url);
    if settings.sources.queue {
        checks.extend(queue::judge(settings, readings));
    }
    // Without credentials all other checks would report the same.
    if !readings.identity.as_ref().is_err_and(credentials::unusable) {
        if settings.sources.queue {
            checks.extend(rules::judge(settings, readings));
        }
        checks.extend(groups::judge(settings, readings));
        checks.extend(replacements::judge(settings, readings));
        checks.extend(aws_calls::judge(settings, readings));
    }
    checks
}

fn in_cluster(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let mut checks = permissions::judge(settings, readings);
    checks.extend(cluster::judge(settings, readings));
    checks.push(clock_skew::judge(&readings.server));
    checks
}

async fn diagnose(settings: &Settings, probe: &Probe) -> Diagnosis {
    let readings = Box::pin(read::read(settings, probe)).await;
    judge(settings, &readings)
}

/// Returns the diagnosis of `ebbtide doctor`, made with the clients that there are.
pub async fn consult(settings: &Settings, clients: AvailableClients, clock: Clock) -> Diagnosis {
    let no_facts = Facts::to(Vec::new());
    diagnose(settings, &Probe::new(clients, Gate::new(no_facts), clock, Extent::WHOLE)).await
}

/// Makes the same checks at the start of the service and emits them as facts. Calls to the API server go through the service's own gate,
/// with the lowest priority.
pub async fn check_at_start(settings: Settings, clients: Clients, gate: Gate, clock: Clock, facts: Facts) {
    let clients = if settings.sources.call_aws() {
        clients.into()
    } else {
        AvailableClients { aws: Err(ConnectError::NotCalled), kube: Ok(clients.kube) }
    };
    let diagnosis = diagnose(&settings, &Probe::new(clients, gate, clock, Extent::START)).await;
    for check in diagnosis.checks() {
        facts.emit(&Fact::Checked {
            area: check.area.as_str(),
            check: check.name,
            status: check.status_at_start(),
            found: &check.found,
            remedy: check.remedy.as_deref(),
        });
    }
    let count = |status| diagnosis.checks().iter().filter(|check| check.status_at_start() == status).count();
    facts.emit(&Fact::ChecksEnded { counts: Status::ALL.map(|status| (status, count(status))) });
}
