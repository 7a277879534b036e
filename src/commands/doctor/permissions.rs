//! Every permission in the cluster that the settings need, and whether it is granted. Pure.

use super::check::{Area, Check};
use super::readings::{AccessReview, Permission, Readings};
use crate::cli::settings::Settings;
use crate::leases::election::Office;
use crate::leftovers::leases::NODE_LEASES;
use crate::pipeline::drain::AtDeadline;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, ForLoadBalancers, Policy};
use crate::telemetry::kube_events::Scope;

impl Permission {
    const fn all(group: &'static str, resource: &'static str, verb: &'static str, without: &'static str) -> Self {
        Self { group, resource, verb, namespace: String::new(), name: "", without }
    }

    /// Whether one rule of a role can grant both.
    fn shares_rule(&self, other: &Self) -> bool {
        let rule = |it: &Self| (it.group, it.resource, it.name);
        rule(self) == rule(other) && self.namespace == other.namespace
    }
}

/// The kinds whose deadline is the end of the node's capacity. Only there are pods deleted.
const HARD_KINDS: [NoticeKind; 4] =
    [NoticeKind::AsgTerminate, NoticeKind::Spot, NoticeKind::ScheduledChange, NoticeKind::CapacityReservation];

const NO_NODE: &str = "no Node is ever found";
const NO_GRACE: &str = "pods that a budget protects die with their node, without their grace period";
const FAILED_JOBS: &str = "a Job counts a failure for a pod that Ebbtide deletes before a hard deadline";
const VOLUMES_MISSED: &str =
    "hooks are completed while volumes are still attached, which their pods miss for 6 minutes";
const ALL_VOLUMES: &str = "after a drain Ebbtide waits for the volumes of pods that stay, too";
const VOLUMES_KEPT: &str =
    "Nodes are deleted before their volumes are detached, which their pods then miss for 6 minutes";
const BINDINGS_MISSED: &str = "target groups of TargetGroupBindings are not waited for";

const NO_SURGE: &str = "no Deployment is restarted before its last ready pods leave";

/// Returns the permissions that the service needs with these settings, in the order of the chart's roles.
#[must_use]
pub fn needed(settings: &Settings) -> Vec<Permission> {
    let policy = settings.policy();
    let drains = settings.has_any(&Action::DRAINS);
    let cordons = drains || settings.has_any(&[Action::Cordon]);
    let drains_before_end = |policy: &Policy| {
        let mut kinds = NoticeKind::ALL.into_iter().filter(|kind| policy.actions.of(*kind).drains());
        kinds.any(|kind| HARD_KINDS.contains(&kind) || policy.at_timeout.of(kind) == AtDeadline::Delete)
    };
    let deletes = settings
        .all_policies()
        .any(|policy| drains_before_end(policy) && policy.drain.at_deadline == AtDeadline::Delete);
    let writes = !policy.dry_run;
    let waits = writes && settings.acts_on(NoticeKind::AsgTerminate, Action::drains);
    let volumes = waits && !policy.waits.volumes.is_zero();
    let detaches = writes && settings.collect_nodes;
    let missed = if volumes { VOLUMES_MISSED } else { VOLUMES_KEPT };
    let balanced = match policy.waits.load_balancers {
        ForLoadBalancers::Nothing => false,
        ForLoadBalancers::Wait => waits,
        // A deregistration is for notices without a hook, too.
        ForLoadBalancers::Deregister => writes && drains,
    };
    let surges = drains && settings.selection_rules.surges;
    let reports = writes && drains && settings.reported != Scope::None;
    let needs = [
        (true, "", "nodes", "list", NO_NODE),
        (true, "", "nodes", "watch", NO_NODE),
        (cordons, "", "nodes", "get", "a cordon that conflicts with another writer is not repeated"),
        (cordons, "", "nodes", "patch", "no Node is cordoned, and none drained"),
        (settings.collect_nodes, "", "nodes", "delete", "Nodes of terminated instances stay"),
        (drains, "", "pods", "list", "no Node is drained"),
        (drains, "", "pods", "watch", "Ebbtide does not see the end of pods"),
        (drains, "", "pods/eviction", "create", "no pod is evicted"),
        (deletes, "", "pods", "delete", NO_GRACE),
        (deletes && writes, "", "pods/status", "patch", FAILED_JOBS),
        (volumes || detaches, "storage.k8s.io", "volumeattachments", "list", missed),
        (volumes || detaches, "storage.k8s.io", "volumeattachments", "watch", missed),
        (volumes, "", "persistentvolumeclaims", "get", ALL_VOLUMES),
        (balanced, "elbv2.k8s.aws", "targetgroupbindings", "list", BINDINGS_MISSED),
        (surges, "apps", "replicasets", "get", NO_SURGE),
        (surges, "apps", "deployments", "get", NO_SURGE),
        (surges, "apps", "deployments", "patch", NO_SURGE),
        (reports, "", "nodes/status", "patch", "the condition EbbtideDraining is not written"),
        (reports, "", "events", "create", "no Event is written"),
        (reports, "", "events", "patch", "Events of drains are not updated at their end"),
    ];
    let needs = needs.into_iter().filter(|(is_needed, ..)| *is_needed);
    let mut needed: Vec<Permission> =
        needs.map(|(_, group, resource, verb, without)| Permission::all(group, resource, verb, without)).collect();
    if settings.sources.nodes {
        needed.extend(office(settings, Office::nodes(settings.nodes_lease), "no replica handles notices from Nodes"));
    }
    if settings.collect_leases {
        needed.push(lease("list", NODE_LEASES, "", "no leaked Lease is found"));
        needed.push(lease("delete", NODE_LEASES, "", "leaked Leases stay"));
    }
    if settings.collect_leases || settings.collect_nodes {
        needed.extend(office(settings, Office::COLLECTOR, "no replica becomes the collector, and all leftovers stay"));
    }
    needed
}

fn lease(verb: &'static str, namespace: &str, name: &'static str, without: &'static str) -> Permission {
    let namespace = namespace.to_owned();
    Permission { namespace, name, ..Permission::all("coordination.k8s.io", "leases", verb, without) }
}

/// Returns the permissions of an office, by its Lease in the pod's namespace. In a dry run every replica has it, without a Lease.
fn office(settings: &Settings, office: Office, without: &'static str) -> Vec<Permission> {
    let own_pod = settings.selection_rules.own_pod.as_ref().filter(|_| !settings.policy().dry_run);
    let Some((namespace, _)) = own_pod else { return Vec::new() };
    let named = ["get", "update"].map(|verb| lease(verb, namespace, office.name, without));
    [lease("create", namespace, "", without)].into_iter().chain(named).collect()
}

/// The doctor's own permission, without which it skips a check.
pub const LIST_BUDGETS: Permission =
    Permission::all("policy", "poddisruptionbudgets", "list", "budgets are not checked");

/// The doctor's own permission to see the chart's admission policies, without which it skips a check.
pub const LIST_POLICIES: Permission = Permission::all(
    "admissionregistration.k8s.io",
    "validatingadmissionpolicies",
    "list",
    "admission policies are not checked",
);

/// The doctor's own permission to see whether those policies are in force, without which it skips the check.
pub const LIST_BINDINGS: Permission = Permission::all(
    "admissionregistration.k8s.io",
    "validatingadmissionpolicybindings",
    "list",
    "admission policies are not checked",
);

/// The permission that identifies Ebbtide to the chart's admission policy. No API serves the resource.
pub const WRITE_MARKS: Permission = Permission::all("ebbtide", "marks", "write", "the policy refuses its marks");

/// The permissions that are reviewed although the service does not need them.
pub const OF_DOCTOR: [Permission; 4] = [LIST_BUDGETS, WRITE_MARKS, LIST_POLICIES, LIST_BINDINGS];

/// Judges the permissions.
#[must_use]
pub fn judge(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let area = Area::Permissions;
    let mut checks = Vec::new();
    match (&readings.server, &readings.username) {
        (Ok(server), Some(user)) => checks.push(area.ok("api-server", format!("{}, as {user}", server.version))),
        (Ok(server), None) => checks.push(area.ok("api-server", &server.version)),
        (Err(error), _) if error.denied() => checks.push(area.failure(
            "api-server",
            &error.message,
            "Correct the credentials: those of KUBECONFIG, or the pod's service account token.",
        )),
        (Err(error), _) => {
            let remedy = "Check KUBECONFIG, or in a pod that the network lets it reach the API server. A kubectl with the same \
                          KUBECONFIG shows whether the API server answers:\n  kubectl get --raw /version";
            checks.push(area.failure("api-server", &error.message, remedy).unreached());
            // The other checks would report the same.
            return checks;
        }
    }
    let mut rules: Vec<Permission> = Vec::new();
    for permission in needed(settings) {
        if !rules.iter().any(|rule| rule.shares_rule(&permission)) {
            rules.push(permission);
        }
    }
    checks.extend(rules.iter().map(|rule| judge_rule(rule, &readings.reviews)));
    checks
}

/// Judges all permissions that one rule of a role would grant.
fn judge_rule(rule: &Permission, reviews: &[AccessReview]) -> Check {
    let area = Area::Permissions;
    let Permission { group, resource, namespace, name, .. } = rule;
    let reviews: Vec<&AccessReview> = reviews
        .iter()
        .filter(|AccessReview { permission, .. }| permission.shares_rule(rule) && *permission != LIST_BUDGETS)
        .collect();
    let of = |wanted: bool| reviews.iter().filter(move |review| review.allowed == Ok(wanted));
    let verbs = |wanted: bool| of(wanted).map(|review| review.permission.verb).collect::<Vec<_>>();
    let of_it = if name.is_empty() { String::new() } else { format!(" {name}") };
    let there = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
    if let Some(first) = of(false).next() {
        let lacking = verbs(false);
        let quoted: Vec<String> = lacking.iter().map(|verb| format!("\"{verb}\"")).collect();
        let role = if namespace.is_empty() { "the ClusterRole".to_owned() } else { format!("a Role{there}") };
        let only = if name.is_empty() { String::new() } else { format!("\n    resourceNames: [\"{name}\"]") };
        return area.failure(
            resource,
            format!("Not allowed to {} {resource}{of_it}{there}: {}.", lacking.join(", "), first.permission.without),
            format!(
                "Add to {role}:\n  - apiGroups: [\"{group}\"]\n    resources: [\"{resource}\"]{only}\n    verbs: [{}]",
                quoted.join(", ")
            ),
        );
    }
    match reviews.iter().find_map(|review| review.allowed.as_ref().err()) {
        Some(error) => area.skipped(resource, &error.message),
        None if reviews.is_empty() => area.skipped(resource, "The API server was not asked in time."),
        None => area.ok(resource, format!("{}{of_it}{there}", verbs(true).join(", "))),
    }
}

/// Whether the API server grants a permission.
#[must_use]
pub fn allowed(reviews: &[AccessReview], permission: &Permission) -> bool {
    reviews.iter().any(|review| review.permission == *permission && review.allowed == Ok(true))
}

/// Whether pods are worth listing: the settings need them, and the API server does not forbid the list.
#[must_use]
pub fn lists_pods(reviews: &[AccessReview]) -> bool {
    let lists = |permission: &Permission| (permission.resource, permission.verb) == ("pods", "list");
    reviews.iter().any(|review| lists(&review.permission) && review.allowed != Ok(false))
}

/// Whether the API server lets what marks write be tried on a Node.
#[must_use]
pub fn patches_nodes(reviews: &[AccessReview]) -> bool {
    let allows = |verb| {
        let is_it = |permission: &Permission| (permission.resource, permission.verb) == ("nodes", verb);
        reviews.iter().any(|review| is_it(&review.permission) && review.allowed == Ok(true))
    };
    allows("list") && allows("patch")
}

#[cfg(test)]
mod tests;
