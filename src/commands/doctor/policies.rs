//! Whether the chart's admission policies keep others from what Ebbtide keeps on Nodes, and let Ebbtide itself write it. Pure.

use super::check::{Area, Check};
use super::permissions::WRITE_MARKS;
use super::readings::{Policies, Policy, Readings};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicySpec;
use std::collections::{BTreeMap, BTreeSet};

/// The policies of the chart as it renders them, by the value of their label. A test of the chart compares them with its output.
const SPECS: &str = include_str!("policies.json");

/// User that the agent's policy is about in `SPECS`.
const AGENT: &str = "system:serviceaccount:ebbtide:ebbtide-agent";

impl Policies {
    /// Returns the policies of this kind.
    fn of(&self, kind: &str) -> impl Iterator<Item = &Policy> {
        self.policies.iter().filter(move |policy| policy.kind == kind)
    }

    fn enforces(&self, policy: &Policy) -> bool {
        self.enforced.contains(&policy.name)
    }

    /// Returns why no policy of this kind is in force, if none is. In the agent's policy the namespace is that of the agents.
    fn fault(&self, kind: &str, namespace: &str) -> Option<String> {
        let right = |policy: &Policy| spec(policy, namespace).as_ref() == Some(&policy.spec);
        if self.of(kind).any(|policy| right(policy) && self.enforces(policy)) {
            return None;
        }
        // One that is right, but not enforced, is the nearest.
        let nearest = self.of(kind).max_by_key(|policy| (right(policy), self.enforces(policy)));
        Some(match nearest {
            None => format!("NAME-{kind} does not exist"),
            Some(policy) if right(policy) => format!("no binding with the action Deny enforces {}", policy.name),
            Some(policy) => format!("{} is not the policy of this version's chart", policy.name),
        })
    }
}

/// Returns the chart's policy of this kind and name for agents in this namespace; `None` for a kind that this version does not know.
fn spec(policy: &Policy, namespace: &str) -> Option<ValidatingAdmissionPolicySpec> {
    let text = SPECS.replace(AGENT, &format!("system:serviceaccount:{namespace}:{}", policy.name));
    let mut specs: BTreeMap<String, ValidatingAdmissionPolicySpec> = serde_json::from_str(&text).ok()?;
    specs.remove(&policy.kind)
}

/// Judges the admission policies.
#[must_use]
pub fn judge(readings: &Readings) -> Check {
    let (area, name) = (Area::Cluster, "policies");
    let policies = match &readings.policies {
        Err(error) => {
            let lists = "list of validatingadmissionpolicies and validatingadmissionpolicybindings in admissionregistration.k8s.io";
            return area.unread(name, error, lists);
        }
        Ok(None) => {
            return area.warning(
                name,
                "This API server has no ValidatingAdmissionPolicy: kubelets, and pods that may patch Nodes, can write what Ebbtide keeps there.",
                "Kubernetes has it from 1.30 on: after the upgrade of the cluster run helm upgrade once more. See docs/security.md.",
            );
        }
        Ok(Some(policies)) => policies,
    };
    let agents = readings.agents.iter().flatten().flat_map(|agents| agents.by_node.values());
    let namespaces: BTreeSet<&str> = agents.map(|agent| &*agent.namespace).collect();
    let agents = namespaces.into_iter().filter_map(|namespace| {
        let fault = policies.fault("agent", namespace)?;
        Some(format!("{fault}, for the agents in {namespace}"))
    });
    let own = ["kubelets", "marks"].into_iter().filter_map(|kind| policies.fault(kind, ""));
    let faults: Vec<String> = own.chain(agents).collect();
    let refused = policies.policies.iter().any(|policy| policy.kind == "marks" && policies.enforces(policy))
        && readings.reviews.iter().any(|review| review.permission == WRITE_MARKS && review.allowed == Ok(false));
    if refused {
        return area.failure(
            name,
            "An admission policy refuses what Ebbtide writes on Nodes: it may not write marks of the API group ebbtide, so no Node is cordoned.",
            "Add to the ClusterRole:\n  - apiGroups: [\"ebbtide\"]\n    resources: [\"marks\"]\n    verbs: [\"write\"]",
        );
    }
    if !faults.is_empty() {
        return area.warning(
            name,
            format!(
                "Not all admission policies of the chart are in force: {}. An attacker who takes over a node can have others drained.",
                faults.join("; ")
            ),
            "NAME-kubelets needs kubeletPolicy: true in the chart, NAME-marks also rbac.create: true, NAME-agent agent.admissionPolicy: true.\n\
             They are not rendered for Kubernetes before 1.30: after an upgrade of the cluster run helm upgrade once more.\n\
             Tools that render by helm template need the version:\n  \
             helm template … --kube-version 1.30\n\
             A policy that was edited, or that another version of the chart made, is written by helm upgrade to this version.",
        );
    }
    area.ok(name, "only Ebbtide writes what it keeps on Nodes")
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::super::readings::{AccessReview, AgentPod, Agents, ReadError};
    use super::super::tests::{chart_policies, found, one};
    use super::*;
    use crate::clients::gate::{Category, MARKS_REFUSAL};
    use k8s_openapi::api::admissionregistration::v1::MatchResources;

    fn change(change: impl FnOnce(&mut Policies)) -> impl FnOnce(&mut Readings) {
        |readings| change(readings.policies.as_mut().unwrap().as_mut().unwrap())
    }

    fn warned(by: impl FnOnce(&mut Policies), expected: &str) {
        let (name, status, text) = one(&[], change(by));
        assert_eq!((name, status), ("policies", Status::Warning), "{text}");
        assert!(text.contains(expected), "{expected}: {text}");
        for cause in ["kubeletPolicy: true", "rbac.create: true", "--kube-version", "once more", "edited"] {
            assert!(text.contains(cause), "{cause}: {text}");
        }
    }

    #[test]
    fn each_policy_of_the_chart_must_be_in_force() {
        assert_eq!(found(&[], |_| {}), Vec::new());
        warned(|all| *all = Policies::default(), "NAME-kubelets does not exist; NAME-marks does not exist");
        for kind in ["kubelets", "marks"] {
            let name = format!("ebbtide-{kind}");
            warned(|all| all.policies.retain(|policy| policy.kind != kind), &format!("NAME-{kind} does not exist"));
            let unbound = format!("no binding with the action Deny enforces {name}");
            warned(|all| all.enforced.retain(|enforced| *enforced != name), &unbound);
            let edits: [fn(&mut ValidatingAdmissionPolicySpec); 4] = [
                |spec| spec.validations.as_mut().unwrap()[0].expression = "true".to_owned(),
                |spec| spec.variables.as_mut().unwrap()[0].expression = "[]".to_owned(),
                |spec| spec.match_conditions = Some(Vec::new()),
                |spec| spec.match_constraints = Some(MatchResources::default()),
            ];
            for (n, edit) in edits.into_iter().enumerate() {
                if kind == "marks" && n == 2 {
                    continue;
                }
                let edited = |all: &mut Policies| {
                    all.policies
                        .iter_mut()
                        .filter(|policy| policy.kind == kind)
                        .for_each(|policy| edit(&mut policy.spec));
                };
                warned(edited, &format!("{name} is not the policy of this version's chart"));
            }
        }
        // An older version's label.
        warned(|all| all.policies.iter_mut().for_each(|policy| policy.kind = "true".to_owned()), "NAME-marks does not");
        // Another release's policies count as well as ours.
        let other = change(|all| {
            for policy in all.policies.clone() {
                let name = format!("other-{}", policy.kind);
                all.policies.push(Policy { name, spec: ValidatingAdmissionPolicySpec::default(), ..policy });
            }
        });
        assert_eq!(found(&[], other), Vec::new());
    }

    #[test]
    fn agents_need_their_policy() {
        let flags = ["--source", "queue,nodes", "--pod-namespace", "ebbtide", "--pod-name", "a"];
        let with = |namespace: &str, kept: &str| {
            let agent = AgentPod { namespace: namespace.to_owned(), name: "agent-1".to_owned(), ready: true };
            let kept = kept.to_owned();
            move |readings: &mut Readings| {
                let names = readings.nodes.as_ref().unwrap().names.clone();
                let by_node = names.into_iter().map(|node| (node, agent.clone())).collect();
                readings.agents = Some(Ok(Agents { by_node, complete: true }));
                change(|all| all.policies.retain(|policy| kept.contains(&policy.kind)))(readings);
            }
        };
        assert_eq!(found(&flags, with("ebbtide", "kubelets marks agent")), Vec::new());
        for (namespace, kept, expected) in [
            ("ebbtide", "kubelets marks", "NAME-agent does not exist, for the agents in ebbtide"),
            (
                "other",
                "kubelets marks agent",
                "ebbtide-agent is not the policy of this version's chart, for the agents in other",
            ),
        ] {
            let (name, status, text) = one(&flags, with(namespace, kept));
            assert_eq!((name, status), ("policies", Status::Warning));
            assert!(text.contains(expected) && text.contains("agent.admissionPolicy: true"), "{text}");
        }
    }

    #[test]
    fn a_policy_that_refuses_ebbtide_is_a_failure() {
        let refuses = |readings: &mut Readings| {
            readings.reviews.push(AccessReview { permission: WRITE_MARKS, allowed: Ok(false) });
        };
        let (name, status, text) = one(&[], refuses);
        assert_eq!((name, status), ("policies", Status::Failure));
        assert!(text.contains("resources: [\"marks\"]"), "{text}");
        // Without a policy the right is not needed.
        let (_, status, text) = one(&[], |readings| {
            change(|all| all.policies.retain(|policy| policy.kind != "marks"))(readings);
            refuses(readings);
        });
        assert!(status == Status::Warning && text.contains("NAME-marks does not exist"), "{text}");
        let marks = chart_policies().policies.into_iter().find(|policy| policy.kind == "marks").unwrap();
        let message = marks.spec.validations.unwrap()[0].message.clone().unwrap();
        assert!(message.starts_with(MARKS_REFUSAL), "{message}");
    }

    #[test]
    fn what_can_not_be_read_is_not_judged() {
        let (name, status, text) = one(&[], |readings| readings.policies = Ok(None));
        assert_eq!((name, status), ("policies", Status::Warning));
        assert!(text.contains("1.30"), "{text}");
        let (name, status, text) = one(&[], |readings| readings.policies = Err(ReadError::new(Category::Denied, "no")));
        assert_eq!((name, status), ("policies", Status::Skipped));
        assert!(text.contains("allow list of validatingadmissionpolicies"), "{text}");
    }
}
