//! Whether the chart's admission policies keep others from what Ebbtide keeps on Nodes, bound Ebbtide itself, and let it write that. Pure.

use super::check::{Area, Check, few};
use super::permissions::WRITE_MARKS;
use super::readings::{Policies, Policy, Readings};
use crate::cli::settings::Settings;
use crate::clients::gate::is_by_admission;
use crate::pipeline::node::mark::{out_of_service, written};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicySpec;
use std::collections::{BTreeMap, BTreeSet};

/// The policies of the chart as it renders them, by the value of their label. A test of the chart compares them with its output.
const SPECS: &str = include_str!("policies.json");

/// The beginning of the user name of a service account.
const ACCOUNT: &str = "system:serviceaccount:";

impl Policies {
    /// Returns why no policy of this kind is in force, if none is. `expected` returns what a policy must be.
    fn fault(
        &self,
        kind: &str,
        is_ours: impl Fn(&Policy) -> bool,
        expected: impl Fn(&Policy) -> Option<ValidatingAdmissionPolicySpec>,
    ) -> Option<String> {
        let enforces = |policy: &Policy| self.enforced.contains(&policy.name);
        let right = |policy: &Policy| expected(policy).as_ref() == Some(&policy.spec);
        let all = || self.policies.iter().filter(|policy| policy.kind == kind && is_ours(policy));
        if all().any(|policy| right(policy) && enforces(policy)) {
            return None;
        }
        // One that is right, but not enforced, is the nearest.
        Some(match all().max_by_key(|policy| (right(policy), enforces(policy))) {
            None => format!("NAME-{kind} does not exist"),
            Some(policy) if right(policy) => format!("no binding with the action Deny enforces {}", policy.name),
            Some(policy) => format!("{} is not the policy of this version's chart", policy.name),
        })
    }
}

/// Returns the chart's policy of this kind about this user; `None` for a kind that this version does not know.
fn spec(kind: &str, user: &str) -> Option<ValidatingAdmissionPolicySpec> {
    let mut specs: BTreeMap<String, ValidatingAdmissionPolicySpec> = serde_json::from_str(SPECS).ok()?;
    let mut spec = specs.remove(kind)?;
    for condition in spec.match_conditions.iter_mut().flatten() {
        if let Some(known) = account_in(&condition.expression) {
            condition.expression = condition.expression.replace(known, user);
        }
    }
    Some(spec)
}

/// Returns the user that a policy is about, if it is a service account.
fn user(policy: &Policy) -> Option<&str> {
    policy.spec.match_conditions.iter().flatten().find_map(|condition| account_in(&condition.expression))
}

/// Returns the service account that an expression names.
fn account_in(expression: &str) -> Option<&str> {
    expression.split('\'').find(|text| text.starts_with(ACCOUNT))
}

/// Returns a list of texts in CEL, as the chart writes it.
fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut quoted: Vec<String> = Vec::new();
    for text in texts {
        let text = format!("'{text}'");
        if !quoted.contains(&text) {
            quoted.push(text);
        }
    }
    format!("[{}]", quoted.join(", "))
}

/// Returns the chart's policy of this kind about the service with these settings.
fn service_spec(kind: &str, user: &str, settings: &Settings) -> Option<ValidatingAdmissionPolicySpec> {
    let mut spec = spec(kind, user)?;
    let (marks, gone) = (&settings.policy().mark_settings, out_of_service());
    let taints_gone = settings.policy().out_of_service_taint || settings.collect_nodes;
    let added = marks.taints.iter().chain(taints_gone.then_some(&gone)).map(written);
    let added: Vec<String> = added.collect();
    let values = [
        ("taints", list(added.iter().map(String::as_str))),
        ("keys", list([&*gone.key].into_iter().chain(marks.taint_keys()))),
        ("collects", settings.collect_nodes.to_string()),
    ];
    for variable in spec.variables.iter_mut().flatten() {
        if let Some((_, value)) = values.iter().find(|(name, _)| *name == variable.name) {
            variable.expression.clone_from(value);
        }
    }
    Some(spec)
}

/// Judges the admission policies.
#[must_use]
pub fn judge(settings: &Settings, readings: &Readings) -> Check {
    let (area, name) = (Area::Cluster, "policies");
    if let Some(denied) = judge_trials(readings) {
        return denied;
    }
    let policies = match &readings.policies {
        Err(error) => {
            let lists = "list of validatingadmissionpolicies and validatingadmissionpolicybindings in admissionregistration.k8s.io";
            return area.unread(name, error, lists);
        }
        Ok(None) => {
            return area.warning(
                name,
                "This API server has no ValidatingAdmissionPolicy: kubelets, and pods that may patch Nodes, can write what Ebbtide keeps there, and \
                 nothing bounds what Ebbtide's own token can write.",
                "Kubernetes has it from 1.30 on: after the upgrade of the cluster run helm upgrade once more. See docs/security.md.",
            );
        }
        Ok(Some(policies)) => policies,
    };
    let faults = faults(settings, readings, policies);
    if !faults.is_empty() {
        return area.warning(
            name,
            format!(
                "Not all admission policies of the chart are in force: {}. An attacker who takes over a node can have others drained, or with \
                 Ebbtide's token taint and label them.",
                faults.join("; ")
            ),
            "NAME-kubelets needs kubeletPolicy: true in the chart, NAME-marks also rbac.create: true, NAME-service, NAME-service-pods and\n\
             NAME-service-deployments servicePolicy: true, NAME-agent agent.admissionPolicy: true.\n\
             They are not rendered for Kubernetes before 1.30: after an upgrade of the cluster run helm upgrade once more.\n\
             Tools that render by helm template need the version:\n  \
             helm template … --kube-version 1.30\n\
             A policy that was edited, or that another version of the chart or other settings made, is written by helm upgrade to this version.\n\
             Taints belong in settings.taint and settings.formerTaint, not in extraArgs or extraEnv.",
        );
    }
    area.ok(name, "only Ebbtide writes what it keeps on Nodes, and its token nothing else")
}

/// Returns what is wrong with the policies.
fn faults(settings: &Settings, readings: &Readings, policies: &Policies) -> Vec<String> {
    let own = ["kubelets", "marks"].into_iter().filter_map(|kind| policies.fault(kind, |_| true, |_| spec(kind, "")));
    // A person's credentials don't show the ServiceAccount.
    let account = readings.username.as_deref().filter(|user| user.starts_with(ACCOUNT));
    let is_ours = |policy: &Policy| account.is_none_or(|account| user(policy).is_none_or(|user| user == account));
    let restarts = settings.selection_rules.surges.then_some("service-deployments");
    let bounds = ["service", "service-pods"].into_iter().chain(restarts).filter_map(|kind| {
        let expected = |policy: &Policy| service_spec(kind, account.or_else(|| user(policy))?, settings);
        policies.fault(kind, is_ours, expected)
    });
    let agents = readings.agents.iter().flatten().flat_map(|agents| agents.by_node.values());
    let namespaces: BTreeSet<&str> = agents.map(|agent| &*agent.namespace).collect();
    let agents = namespaces.into_iter().filter_map(|namespace| {
        let expected = |policy: &Policy| spec("agent", &format!("{ACCOUNT}{namespace}:{}", policy.name));
        let fault = policies.fault("agent", |_| true, expected)?;
        Some(format!("{fault}, for the agents in {namespace}"))
    });
    own.chain(bounds).chain(agents).collect()
}

/// Judges the dry runs of what Ebbtide puts on Nodes, if admission denies some of it.
fn judge_trials(readings: &Readings) -> Option<Check> {
    let (area, name) = (Area::Cluster, "policies");
    let is_enforced = |policies: &Policies| {
        policies.policies.iter().any(|policy| policy.kind == "marks" && policies.enforced.contains(&policy.name))
    };
    let has_right =
        readings.reviews.iter().all(|review| review.permission != WRITE_MARKS || review.allowed != Ok(false));
    if !has_right && readings.policies.iter().flatten().any(is_enforced) {
        return Some(area.failure(
            name,
            "An admission policy refuses what Ebbtide writes on Nodes: it may not write marks of the API group ebbtide, so no Node is cordoned.",
            "Add to the ClusterRole:\n  - apiGroups: [\"ebbtide\"]\n    resources: [\"marks\"]\n    verbs: [\"write\"]",
        ));
    }
    let denied = readings.marks.iter().filter_map(|trial| {
        let error = trial.answer.as_ref().err()?;
        is_by_admission(&error.message).then_some((&*trial.subject, &*error.message))
    });
    let (subjects, messages): (Vec<&str>, Vec<&str>) = denied.unzip();
    let (first, why) = (readings.marks.first()?, messages.first()?);
    let remedy = "Allow it. The chart's own policy knows the taints of settings.taint, settings.formerTaint and settings.outOfServiceTaint: name them\n\
                  there, and not in extraArgs or extraEnv. In other policies and webhooks make an exception for Ebbtide's ServiceAccount.";
    Some(if subjects.contains(&&*first.subject) {
        let found = format!("Admission denies the cordon of a node, so nodes are drained without: {why}");
        area.failure(name, found, remedy)
    } else {
        let found = format!("Admission denies {}, so nodes are cordoned and drained without: {why}", few(&subjects));
        area.warning(name, found, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::super::readings::{AccessReview, AgentPod, Agents, ReadError, TrialAnswer};
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
        for cause in
            ["kubeletPolicy: true", "servicePolicy: true", "rbac.create: true", "--kube-version", "once more", "edited"]
        {
            assert!(text.contains(cause), "{cause}: {text}");
        }
    }

    #[test]
    fn each_policy_of_the_chart_must_be_in_force() {
        assert_eq!(found(&[], |_| {}), Vec::new());
        warned(
            |all| *all = Policies::default(),
            "NAME-kubelets does not exist; NAME-marks does not exist; NAME-service does not exist; NAME-service-pods does not exist",
        );
        for kind in ["kubelets", "marks", "service", "service-pods"] {
            let name = format!("ebbtide-{kind}");
            warned(|all| all.policies.retain(|policy| policy.kind != kind), &format!("NAME-{kind} does not exist"));
            let unbound = format!("no binding with the action Deny enforces {name}");
            warned(|all| all.enforced.retain(|enforced| *enforced != name), &unbound);
            let edits: [fn(&mut ValidatingAdmissionPolicySpec); 4] = [
                |spec| spec.validations.as_mut().unwrap()[0].expression = "true".to_owned(),
                |spec| spec.variables.as_mut().unwrap().last_mut().unwrap().expression = "[]".to_owned(),
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
        // Another release's policies for other clients count as well as ours.
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
                change(|all| all.policies.retain(|policy| kept.split(' ').any(|kind| kind == policy.kind)))(readings);
            }
        };
        assert_eq!(found(&flags, with("ebbtide", "kubelets marks service service-pods agent")), Vec::new());
        for (namespace, kept, expected) in [
            ("ebbtide", "kubelets marks service service-pods", "NAME-agent does not exist, for the agents in ebbtide"),
            (
                "other",
                "kubelets marks service service-pods agent",
                "ebbtide-agent is not the policy of this version's chart, for the agents in other",
            ),
        ] {
            let (name, status, text) = one(&flags, with(namespace, kept));
            assert_eq!((name, status), ("policies", Status::Warning));
            assert!(text.contains(expected) && text.contains("agent.admissionPolicy: true"), "{text}");
        }
    }

    #[test]
    fn the_services_policy_is_that_of_its_account_and_its_settings() {
        let set = |name: &'static str, text: &'static str| {
            change(move |all| {
                let mut service = all.policies.iter_mut().filter(|policy| policy.kind == "service");
                let variables = service.next().unwrap().spec.variables.as_mut().unwrap();
                variables.iter_mut().find(|variable| variable.name == name).unwrap().expression = text.to_owned();
            })
        };
        let flags = ["--taint", "a=b:NoSchedule,a=c:NoExecute", "--former-taint", "old", "--out-of-service-taint"];
        let stopped = "node.kubernetes.io/out-of-service";
        let taints = "['a=b:NoSchedule', 'a=c:NoExecute', 'node.kubernetes.io/out-of-service=nodeshutdown:NoExecute']";
        let keys = "['node.kubernetes.io/out-of-service', 'a', 'old']";
        assert!(taints.contains(stopped) && keys.contains(stopped));
        let both = |readings: &mut Readings| {
            set("taints", taints)(readings);
            set("keys", keys)(readings);
        };
        assert_eq!(found(&flags, both), Vec::new());
        // Without the setting, no Node may be deleted.
        let collecting = ["--collect-nodes", "--pod-namespace", "ops", "--pod-name", "a"];
        let (_, _, text) = one(&collecting, |_| {});
        assert!(text.contains("ebbtide-service is not the policy of this version's chart"), "{text}");
        let collects = |readings: &mut Readings| {
            set("taints", "['node.kubernetes.io/out-of-service=nodeshutdown:NoExecute']")(readings);
            set("collects", "true")(readings);
        };
        assert_eq!(found(&collecting, collects), Vec::new());
        assert_eq!(one(&[], set("collects", "true")).1, Status::Warning);
        // Those of `extraArgs` are missing.
        let (_, status, text) = one(&flags, |_| {});
        assert_eq!(status, Status::Warning);
        assert!(text.contains("ebbtide-service is not the policy of this version's chart"), "{text}");
        assert!(text.contains("settings.formerTaint"), "{text}");

        let account =
            |user: Option<&'static str>| move |readings: &mut Readings| readings.username = user.map(str::to_owned);
        let (_, _, text) = one(&[], account(Some("system:serviceaccount:ebbtide:other")));
        assert!(text.contains("NAME-service does not exist; NAME-service-pods does not exist"), "{text}");
        for person in [None, Some("kubernetes-admin")] {
            assert_eq!(found(&[], account(person)), Vec::new(), "{person:?}");
        }
    }

    #[test]
    fn what_admission_denies_in_a_dry_run_is_reported() {
        let policy =
            "nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'ebbtide-service' with binding 'b' denied request: no";
        let trials = |denied: &'static [&'static str], message: &'static str| {
            move |readings: &mut Readings| {
                let subjects = ["the cordon and the record", "the taint a:NoSchedule", "the taint b:NoSchedule"];
                let error = ReadError::new(Category::Denied, message);
                let answer = |subject: &&str| if denied.contains(subject) { Err(error.clone()) } else { Ok(()) };
                readings.marks =
                    subjects.iter().map(|it| TrialAnswer { subject: (*it).to_owned(), answer: answer(it) }).collect();
            }
        };
        let (name, status, text) = one(&[], trials(&["the taint b:NoSchedule"], policy));
        assert_eq!((name, status), ("policies", Status::Warning));
        assert!(text.contains("denies the taint b:NoSchedule, so nodes are cordoned and drained without"), "{text}");
        assert!(text.contains("ebbtide-service") && text.contains("settings.taint"), "{text}");
        let all = &["the cordon and the record", "the taint a:NoSchedule", "the taint b:NoSchedule"];
        let (_, status, text) = one(&[], trials(all, policy));
        assert!(status == Status::Failure && text.contains("denies the cordon"), "{text}");
        // Of a missing right another check reports.
        assert_eq!(found(&[], trials(all, "User \"ebbtide\" cannot patch resource \"nodes\"")), Vec::new());
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
