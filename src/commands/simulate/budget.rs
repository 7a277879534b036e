//! The disruption budgets that hold a pod back now, by the API server's own rules for evictions. Pure.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::{Selector, SelectorExt};

/// A disruption budget, with its present status.
#[derive(Debug)]
pub(super) struct Budget {
    pub namespace: String,
    pub name: String,
    /// Number of pods that may go now.
    pub allows: i32,
    selector: Option<Selector>,
    /// Whether it has as many healthy pods as it wants.
    met: bool,
    /// Whether pods that are not Ready may always go.
    spares_unready: bool,
    /// Whether its status is out of date: then it refuses every eviction.
    behind: bool,
}

impl Budget {
    pub fn of(object: PodDisruptionBudget) -> Self {
        let spec = object.spec.unwrap_or_default();
        let status = object.status.unwrap_or_default();
        let generation = object.metadata.generation.unwrap_or_default();
        Self {
            namespace: object.metadata.namespace.unwrap_or_default(),
            name: object.metadata.name.unwrap_or_default(),
            allows: status.disruptions_allowed,
            // A budget without a selector covers no pod; Kubernetes itself refuses an invalid selector.
            selector: spec.selector.and_then(|selector| selector.try_into().ok()),
            met: status.current_healthy >= status.desired_healthy && status.desired_healthy > 0,
            spares_unready: spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow"),
            behind: status.observed_generation.unwrap_or_default() < generation,
        }
    }

    /// Whether the budget covers the pod.
    pub fn covers(&self, pod: &Pod) -> bool {
        let none = std::collections::BTreeMap::new();
        let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
        pod.metadata.namespace.as_deref() == Some(&self.namespace)
            && self.selector.as_ref().is_some_and(|selector| selector.matches(labels))
    }

    fn refuses(&self, pod: &Pod) -> bool {
        let spared = !is_ready(pod) && (self.spares_unready || self.met);
        !spared && (self.behind || self.allows <= 0)
    }
}

/// Returns the budgets that would refuse the pod's eviction now.
pub(super) fn holding<'a>(pod: &Pod, budgets: &'a [Budget]) -> Vec<&'a Budget> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    // Budgets do not count pods that do not run, or that are on their way already.
    if matches!(phase, Some("Pending" | "Succeeded" | "Failed")) || pod.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let covering: Vec<_> = budgets.iter().filter(|budget| budget.covers(pod)).collect();
    match covering.as_slice() {
        [one] if !one.refuses(pod) => Vec::new(),
        // The API server can't charge two budgets for one pod, and always refuses.
        _ => covering,
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(ready: bool, phase: &str) -> Pod {
        let status = if ready { "True" } else { "False" };
        serde_json::from_value(json!({
            "metadata": { "namespace": "shop", "name": "web", "labels": { "app": "web", "tier": "front" } },
            "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": status }] },
        }))
        .unwrap()
    }

    fn budget(spec: &Value, allowed: i32, healthy: i32) -> Budget {
        Budget::of(
            serde_json::from_value(json!({
                "metadata": { "namespace": "shop", "name": "web", "generation": 2 },
                "spec": spec,
                "status": {
                    "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 2, "expectedPods": 3,
                    "observedGeneration": 2,
                },
            }))
            .unwrap(),
        )
    }

    fn by_app(app: &str) -> Value {
        json!({ "selector": { "matchLabels": { "app": app } } })
    }

    #[test]
    fn a_budget_holds_what_the_api_server_would_refuse() {
        let mut spares = by_app("web");
        spares["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
        let all = json!({ "selector": {} });
        let expression =
            json!({ "selector": { "matchExpressions": [{ "key": "tier", "operator": "NotIn", "values": ["back"] }] } });
        for (spec, allowed, healthy, pod, holds, why) in vec![
            (by_app("web"), 0, 2, pod(true, "Running"), true, "exhausted"),
            (by_app("web"), 1, 3, pod(true, "Running"), false, "it allows one"),
            (by_app("db"), 0, 2, pod(true, "Running"), false, "another's"),
            (all, 0, 2, pod(true, "Running"), true, "an empty selector is for all of the namespace"),
            (json!({}), 0, 2, pod(true, "Running"), false, "no selector is for none"),
            (expression, 0, 2, pod(true, "Running"), true, "expressions count"),
            (by_app("web"), 0, 2, pod(false, "Running"), false, "not Ready, and the others are enough"),
            (by_app("web"), 0, 1, pod(false, "Running"), true, "not Ready, and the others are too few"),
            (spares, 0, 1, pod(false, "Running"), false, "not Ready, and the budget says that this is no matter"),
            (by_app("web"), 0, 2, pod(false, "Pending"), false, "it does not run"),
        ] {
            assert_eq!(!holding(&pod, &[budget(&spec, allowed, healthy)]).is_empty(), holds, "{why}");
        }
    }

    #[test]
    fn two_budgets_for_one_pod_hold_it_for_ever() {
        let both = [budget(&by_app("web"), 5, 3), budget(&json!({ "selector": {} }), 5, 3)];
        assert_eq!(holding(&pod(true, "Running"), &both).len(), 2);
    }

    #[test]
    fn a_budget_that_is_behind_lets_nobody_go() {
        let mut behind = budget(&by_app("web"), 1, 3);
        behind.behind = true;
        assert_eq!(holding(&pod(true, "Running"), &[behind]).len(), 1);
    }
}
