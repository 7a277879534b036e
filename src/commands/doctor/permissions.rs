//! Every permission in the cluster: which the settings need, and whether we have it. Pure.

use super::check::{Area, Check, Failed, Read};
use super::read::Seen;
use crate::cli::settings::Settings;
use crate::leases::collector::NODE_LEASES;
use crate::leases::turn::NAME as TURN;
use crate::pipeline::drain::AtDeadline;
use crate::pipeline::event::Kind;
use crate::pipeline::interruption::Action;

/// One permission, and what needs it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// The API group; empty for the core's.
    pub group: &'static str,
    /// The resource, with its subresource: `pods/eviction`.
    pub resource: &'static str,
    /// The verb.
    pub verb: &'static str,
    /// The namespace; empty where it is needed in all of them, or there is none.
    pub namespace: String,
    /// The one object that it is needed of; empty for all.
    pub name: &'static str,
    /// What does not work without.
    pub without: &'static str,
}

impl Need {
    /// Whether one rule of a role can give both.
    fn goes_with(&self, other: &Self) -> bool {
        let rule = |need: &Self| (need.group, need.resource, need.name);
        rule(self) == rule(other) && self.namespace == other.namespace
    }
}

const fn need(group: &'static str, resource: &'static str, verb: &'static str, without: &'static str) -> Need {
    Need { group, resource, verb, namespace: String::new(), name: "", without }
}

/// The kinds whose deadline is the end of the node's capacity: only then are pods deleted.
const HARD: [Kind; 4] = [Kind::AsgTerminate, Kind::Spot, Kind::ScheduledChange, Kind::CapacityReservation];

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
        if settings.at_deadline == AtDeadline::Delete
            && HARD.iter().any(|kind| policy.actions.of(*kind) == Action::Drain)
        {
            needs.push(need("", "pods", "delete", "pods that a budget holds die with their node, without their grace"));
        }
    }
    if settings.events.is_some() && !policy.dry_run && any(&[Action::Drain]) {
        needs.push(need("", "nodes/status", "patch", "the condition EbbtideDraining is not written"));
        needs.push(need("", "events", "create", "no Event is written"));
        needs.push(need("", "events", "patch", "Events of drains are not updated at their end"));
    }
    if settings.collect_leases {
        needs.extend(collector(settings));
    }
    // A feature that needs more adds its lines here.
    needs
}

/// What the collector needs: nodes' Leases in their one namespace, and the Lease of its turn in that of its pod.
fn collector(settings: &Settings) -> Vec<Need> {
    let lease = |verb, namespace: &str, name, without| Need {
        namespace: namespace.to_owned(),
        name,
        ..need("coordination.k8s.io", "leases", verb, without)
    };
    let mut needs = vec![
        lease("list", NODE_LEASES, "", "no leaked Lease is found"),
        lease("delete", NODE_LEASES, "", "leaked Leases stay"),
    ];
    // In a dry run all look, and none takes its turn.
    if let Some((namespace, _)) = settings.choice.own_pod.as_ref().filter(|_| !settings.policy.dry_run) {
        let without = "no replica takes its turn, and leaked Leases stay";
        needs.push(lease("create", namespace, "", without));
        needs.push(lease("get", namespace, TURN, without));
        needs.push(lease("update", namespace, TURN, without));
    }
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
    let mut rules: Vec<Need> = Vec::new();
    for need in needs(settings) {
        if !rules.iter().any(|rule| rule.goes_with(&need)) {
            rules.push(need);
        }
    }
    checks.extend(rules.iter().map(|rule| judge_rule(rule, &seen.reviews)));
    checks
}

/// What is found of all that one rule of a role would give.
fn judge_rule(rule: &Need, reviews: &[(Need, Read<bool>)]) -> Check {
    let area = Area::Permissions;
    let Need { group, resource, namespace, name, .. } = rule;
    let mine: Vec<_> = reviews.iter().filter(|(need, _)| need.goes_with(rule) && *need != BUDGETS).collect();
    let verbs = |wanted: bool| mine.iter().filter(move |(_, may)| *may == Ok(wanted)).map(|(need, _)| need.verb);
    let lacking: Vec<&str> = verbs(false).collect();
    let of_it = if name.is_empty() { String::new() } else { format!(" {name}") };
    let there = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
    if let Some((first, _)) = mine.iter().find(|(_, may)| *may == Ok(false)) {
        let quoted: Vec<String> = lacking.iter().map(|verb| format!("\"{verb}\"")).collect();
        let role = if namespace.is_empty() { "the ClusterRole".to_owned() } else { format!("a Role{there}") };
        let only = if name.is_empty() { String::new() } else { format!("\n    resourceNames: [\"{name}\"]") };
        return area.failure(
            resource,
            format!("Not allowed to {} {resource}{of_it}{there}: {}.", lacking.join(", "), first.without),
            format!(
                "Add to {role}:\n  - apiGroups: [\"{group}\"]\n    resources: [\"{resource}\"]{only}\n    verbs: [{}]",
                quoted.join(", ")
            ),
        );
    }
    match mine.iter().find_map(|(_, may)| may.as_ref().err()) {
        Some(Failed { what, .. }) => area.skipped(resource, what),
        None if mine.is_empty() => area.skipped(resource, "It was not asked in time."),
        None => area.ok(resource, format!("{}{of_it}{there}", verbs(true).collect::<Vec<_>>().join(", "))),
    }
}

/// Whether this was allowed, as far as is known.
#[must_use]
pub fn allowed(reviews: &[(Need, Read<bool>)], need: &Need) -> bool {
    reviews.iter().any(|(asked, may)| asked == need && *may == Ok(true))
}

/// Whether pods may be listed, which a service needs that drains; one that did not answer about it is asked.
#[must_use]
pub fn lists_pods(reviews: &[(Need, Read<bool>)]) -> bool {
    reviews.iter().any(|(need, may)| (need.resource, need.verb) == ("pods", "list") && *may != Ok(false))
}

#[cfg(test)]
mod tests;
