//! Every permission in the cluster: which the settings need, and whether we have it. Pure.

use super::check::{Area, Check, Failed, Read};
use super::read::Seen;
use crate::drain::AtDeadline;
use crate::event::Kind;
use crate::interruption::Action;
use crate::settings::Settings;

/// One permission, and what needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// The API group; empty for the core's.
    pub group: &'static str,
    /// The resource, with its subresource: `pods/eviction`.
    pub resource: &'static str,
    /// The verb.
    pub verb: &'static str,
    /// What does not work without.
    pub without: &'static str,
}

const fn need(group: &'static str, resource: &'static str, verb: &'static str, without: &'static str) -> Need {
    Need { group, resource, verb, without }
}

/// What the service may have to do in the cluster with these settings, in an order in which a role is written.
#[must_use]
pub fn needs(settings: &Settings) -> Vec<Need> {
    let policy = &settings.policy;
    let any = |wanted: &[Action]| Kind::ALL.into_iter().any(|kind| wanted.contains(&policy.actions.of(kind)));
    // Which Node an instance is.
    let mut needs =
        vec![need("", "nodes", "list", "no node is ever found"), need("", "nodes", "watch", "no node is ever found")];
    if any(&[Action::Drain, Action::Cordon]) {
        needs.push(need("", "nodes", "get", "a cordon that met another writer is not tried again"));
        needs.push(need("", "nodes", "patch", "no node is cordoned, and none drained"));
    }
    if any(&[Action::Drain]) {
        needs.push(need("", "pods", "list", "no node is drained"));
        needs.push(need("", "pods", "watch", "the end of pods is not seen"));
        needs.push(need("", "pods/eviction", "create", "no pod is evicted"));
        if settings.at_deadline == AtDeadline::Delete {
            needs.push(need("", "pods", "delete", "pods that a budget holds die with their node, without their grace"));
        }
    }
    if settings.events.is_some() && !policy.dry_run && any(&[Action::Drain]) {
        needs.push(need("", "nodes/status", "patch", "the condition EbbtideDraining is not written"));
        needs.push(need("", "events", "create", "no Event is written"));
        needs.push(need("", "events", "patch", "Events of drains are not updated at their end"));
    }
    // A feature that needs more adds its lines here.
    needs
}

/// What the doctor asks for beside that; without it a check is left out.
pub const BUDGETS: Need = need("policy", "poddisruptionbudgets", "list", "budgets are not checked");

/// What is found of them.
#[must_use]
pub fn judge(settings: &Settings, seen: &Seen) -> Vec<Check> {
    let area = Area::Permissions;
    let mut checks = Vec::new();
    match (&seen.server, &seen.who) {
        (Ok(server), Some(who)) => checks.push(area.ok("api-server", format!("{}, as {who}", server.version))),
        (Ok(server), None) => checks.push(area.ok("api-server", &server.version)),
        (Err(failed), _) if failed.denied() => checks.push(area.failure(
            "api-server",
            &failed.what,
            "Correct the credentials: those of KUBECONFIG, or the pod's service account token.",
        )),
        (Err(failed), _) => {
            let remedy = "Check KUBECONFIG, or in a pod that the network lets it reach the API server; a kubectl with the same \
                          KUBECONFIG answers at once:\n  kubectl get --raw /version";
            checks.push(area.failure("api-server", &failed.what, remedy).unreached());
            // What else could be said would say the same.
            return checks;
        }
    }
    let mut resources: Vec<(&str, &str)> = Vec::new();
    for need in needs(settings) {
        if !resources.contains(&(need.group, need.resource)) {
            resources.push((need.group, need.resource));
        }
    }
    checks.extend(resources.into_iter().map(|about| judge_resource(about, &seen.reviews)));
    checks
}

fn judge_resource((group, resource): (&str, &'static str), reviews: &[(Need, Read<bool>)]) -> Check {
    let area = Area::Permissions;
    let mine: Vec<_> = reviews
        .iter()
        .filter(|(need, _)| (need.group, need.resource) == (group, resource) && *need != BUDGETS)
        .collect();
    let verbs = |wanted: bool| mine.iter().filter(move |(_, may)| *may == Ok(wanted)).map(|(need, _)| need.verb);
    let lacking: Vec<&str> = verbs(false).collect();
    if let Some((first, _)) = mine.iter().find(|(_, may)| *may == Ok(false)) {
        let quoted: Vec<String> = lacking.iter().map(|verb| format!("\"{verb}\"")).collect();
        return area.failure(
            resource,
            format!("Not allowed to {} {resource}: {}.", lacking.join(", "), first.without),
            format!(
                "Add to the ClusterRole:\n  - apiGroups: [\"{group}\"]\n    resources: [\"{resource}\"]\n    verbs: [{}]",
                quoted.join(", ")
            ),
        );
    }
    match mine.iter().find_map(|(_, may)| may.as_ref().err()) {
        Some(Failed { what, .. }) => area.skipped(resource, what),
        None if mine.is_empty() => area.skipped(resource, "It was not asked in time."),
        None => area.ok(resource, verbs(true).collect::<Vec<_>>().join(", ")),
    }
}

/// Whether this was allowed, as far as is known.
#[must_use]
pub fn allowed(reviews: &[(Need, Read<bool>)], need: Need) -> bool {
    reviews.iter().any(|(asked, may)| *asked == need && *may == Ok(true))
}

#[cfg(test)]
mod tests;
