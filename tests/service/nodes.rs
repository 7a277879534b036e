//! Helpers for Nodes and hooks: the acts of humans, controllers and kubelets, and reads of marks and actions.

use crate::harness::{Replica, Stage, instance, metric, node, s};
use ebbtide_sim::World;
use ebbtide_sim::aws::{Action, GroupSpec, HookSpec};
use ebbtide_sim::messages::{self, Wrapping};
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The label that keeps load balancers away.
pub const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The tag that makes an instance without a Node ours.
pub const TAG: &str = "aws-node-termination-handler/managed";

/// The annotation that tells a controller that a node is held.
pub const HOLD: &str = "ebbtide/hold";

/// The way of an instance from its group to the warm pool, from which it returns.
pub const TO_POOL: (&str, &str) = ("AutoScalingGroup", "WarmPool");

/// Groups of Nodes.
impl Stage {
    /// A world of so many nodes of a group that launches first, each with two pods.
    pub fn with_group(nodes: usize) -> Self {
        let stage = Self::new(nodes, 2);
        (0..nodes).for_each(|n| tag(&stage.world, n));
        let spec = GroupSpec {
            instances: (0..nodes).map(instance).collect(),
            desired: nodes,
            max: nodes * 2,
            maintenance: Some((100, 110)),
            ..GroupSpec::default()
        };
        stage.world.aws.autoscaling.put_group("group", spec);
        stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(600)));
        stage
    }
}

/// Changes of Nodes by others.
impl Stage {
    fn change(&self, n: usize, change: impl FnOnce(&mut Node)) {
        self.world.kube.update_node(&node(n), change);
    }

    fn change_spec(&self, n: usize, change: impl FnOnce(&mut NodeSpec)) {
        self.change(n, |node| change(node.spec.get_or_insert_default()));
    }

    /// Cordons or uncordons the n-th node, as a human does.
    pub fn set_cordon(&self, n: usize, on: bool) {
        self.change_spec(n, |spec| spec.unschedulable = on.then_some(true));
    }

    /// Adds a taint to the n-th node.
    pub fn taint(&self, n: usize, key: &str, value: &str, effect: &str) {
        let value = (!value.is_empty()).then(|| value.to_owned());
        let taint = Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None };
        self.change_spec(n, |spec| spec.taints.get_or_insert_default().push(taint));
    }

    /// Removes the taints with this key from the n-th node.
    pub fn untaint(&self, n: usize, key: &str) {
        self.change_spec(n, |spec| spec.taints.get_or_insert_default().retain(|taint| taint.key != key));
    }

    /// Sets a label of the n-th node.
    pub fn label(&self, n: usize, key: &str, value: &str) {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.change(n, |node| drop(node.metadata.labels.get_or_insert_default().insert(key, value)));
    }

    /// Sets an annotation of the n-th node.
    pub fn annotate(&self, n: usize, key: &str, value: &str) {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.change(n, |node| drop(node.metadata.annotations.get_or_insert_default().insert(key, value)));
    }

    /// Sets a condition of the n-th node. Its transition was so many seconds ago, by the clock of whoever writes it.
    pub fn set_condition(&self, n: usize, kind: &str, status: &str, ago: i64) {
        let at = jiff::Timestamp::from_second(self.world.clock.now().as_second() - ago).expect("a time of our days");
        self.change(n, |node| {
            let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
            conditions.retain(|condition| condition.type_ != kind);
            conditions.push(NodeCondition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                last_transition_time: Some(Time(at)),
                ..NodeCondition::default()
            });
        });
    }

    /// Sets the reason of a condition of the n-th node.
    pub fn set_reason(&self, n: usize, kind: &str, reason: &str) {
        self.change(n, |node| {
            let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
            for condition in conditions.iter_mut().filter(|condition| condition.type_ == kind) {
                condition.reason = Some(reason.to_owned());
            }
        });
    }

    /// Sets the condition Ready of the n-th node.
    pub fn set_ready(&self, n: usize, ready: bool) {
        self.world.kube.set_ready(&node(n), ready);
    }

    /// Has the kubelet of the n-th node be missed for ten seconds, without a restart.
    pub async fn flap(&self, n: usize) {
        self.set_ready(n, false);
        tokio::time::sleep(s(10)).await;
        self.set_ready(n, true);
    }

    /// Reboots the n-th node so fast that its kubelet is hardly missed.
    pub fn reboot_fast(&self, n: usize) {
        self.set_ready(n, false);
        self.world.kube.reboot(&node(n));
        self.set_ready(n, true);
    }

    /// Reboots the n-th node: it is not Ready for a minute, and comes back with a new boot id.
    pub async fn reboot(&self, n: usize) {
        self.set_ready(n, false);
        tokio::time::sleep(s(60)).await;
        self.world.kube.reboot(&node(n));
        self.set_ready(n, true);
    }
}

/// Reads of Nodes and actions.
impl Stage {
    fn node(&self, n: usize) -> Node {
        self.world.kube.node(&node(n)).expect("the node must be there")
    }

    /// The n-th node's taints as `key=value:Effect`, sorted.
    pub fn taints(&self, n: usize) -> Vec<String> {
        let taints = self.node(n).spec.and_then(|spec| spec.taints).unwrap_or_default();
        let write = |taint: Taint| match taint.value {
            Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
            None => format!("{}:{}", taint.key, taint.effect),
        };
        let mut taints: Vec<_> = taints.into_iter().map(write).collect();
        taints.sort();
        taints
    }

    /// A label of the n-th node.
    pub fn labelled(&self, n: usize, key: &str) -> Option<String> {
        self.node(n).metadata.labels.unwrap_or_default().remove(key)
    }

    /// The n-th node's annotations under `ebbtide/`.
    pub fn annotations(&self, n: usize) -> BTreeMap<String, String> {
        let mut annotations = self.node(n).metadata.annotations.unwrap_or_default();
        annotations.retain(|key, _| key.starts_with("ebbtide/"));
        annotations
    }

    /// Returns the point at which the n-th node is held, if it is.
    pub fn held(&self, n: usize) -> Option<String> {
        self.annotations(n).remove(HOLD)
    }

    /// Returns the condition `EbbtideDraining` of the n-th node.
    pub fn condition(&self, n: usize) -> Option<NodeCondition> {
        let conditions = self.world.kube.node(&node(n))?.status?.conditions?;
        conditions.into_iter().find(|condition| condition.type_ == "EbbtideDraining")
    }

    /// Returns status, reason and message of that condition; nothing without one.
    pub fn condition_text(&self, n: usize) -> String {
        let Some(condition) = self.condition(n) else { return String::new() };
        let (reason, message) = (condition.reason.unwrap_or_default(), condition.message.unwrap_or_default());
        format!("{} {reason}: {message}", condition.status)
    }

    /// Returns the contents of the n-th node's annotations of notices that hold it.
    pub fn notices(&self, n: usize) -> Vec<Value> {
        let holds = |record: &Value| record["work"].is_null() || record["work"] == "ended";
        self.records(n).map(|(_, record)| record).filter(holds).collect()
    }

    /// Returns the number of the n-th node's notices that need nothing more.
    pub fn handled(&self, n: usize) -> usize {
        self.records(n).filter(|(_, record)| record["work"] == "ended" || record["work"] == "handled").count()
    }

    /// Returns the number of sources that have joined the n-th node's records.
    pub fn joined(&self, n: usize) -> usize {
        self.records(n).filter_map(|(_, record)| Some(record["also"].as_array()?.len())).sum()
    }

    /// Returns the names of the n-th node's annotations but those of cancelled notices.
    pub fn left(&self, n: usize) -> BTreeSet<String> {
        let withdrawn = self.records(n).filter(|(_, record)| record["work"] == "withdrawn").map(|(name, _)| name);
        let withdrawn: BTreeSet<String> = withdrawn.collect();
        self.annotations(n).into_keys().filter(|name| !withdrawn.contains(name)).collect()
    }

    /// Returns the names of the n-th node's annotations that keep planned changes.
    pub fn plans(&self, n: usize) -> Vec<String> {
        self.records(n).filter(|(_, record)| record["kept"].is_object()).map(|(name, _)| name).collect()
    }

    fn records(&self, n: usize) -> impl Iterator<Item = (String, Value)> + use<> {
        let annotations = self.annotations(n).into_iter().filter(|(key, _)| key.starts_with("ebbtide/notice."));
        annotations.map(|(name, text)| (name, serde_json::from_str(&text).expect("a record must be JSON")))
    }

    /// Asserts that no mark of ours is left on the n-th node. A cordon may be somebody else's.
    pub fn no_trace(&self, n: usize) {
        // An older copy of a withdrawn notice may come for two weeks, and one from before a restart.
        let mut left = self.left(n);
        left.remove("ebbtide/booted");
        assert_eq!(left, BTreeSet::new(), "{}", self.story());
        assert_eq!(self.labelled(n, "ebbtide/kind"), None);
    }

    /// Returns the time of the first eviction from the n-th node, since the world began.
    pub fn first_eviction(&self, n: usize) -> Option<Duration> {
        self.world.kube.evictions().iter().find(|evicted| evicted.node == node(n)).map(|evicted| evicted.at)
    }

    /// Returns the state of an action.
    pub fn action(&self, token: &str) -> Action {
        self.world.aws.autoscaling.action(token).expect("the action must be known")
    }

    /// Returns the results of all completions of an action.
    pub fn results(&self, token: &str) -> Vec<String> {
        self.action(token).completions.into_iter().map(|(_, result)| result).collect()
    }
}

/// Notices.
impl Stage {
    /// Sends a rebalance recommendation for the n-th node.
    pub fn rebalance(&self, n: usize) -> String {
        let at = self.world.clock.now();
        self.world.aws.sqs.send(messages::rebalance(&format!("rebalance-{n}-{at}"), &instance(n), at))
    }

    /// Sends a Health event of this code about the n-th node, with this ARN's end, start and status.
    pub fn health(&self, n: usize, (id, code): (&str, &str), start: jiff::Timestamp, status: &str) {
        let body = messages::scheduled_change(id, code, &[&instance(n)], self.world.clock.now(), start);
        self.world.aws.sqs.send(body.replace("\"upcoming\"", &format!("\"{status}\"")));
    }

    /// Sends a Health event of this code about a fault of the n-th node, with this status.
    pub fn fault(&self, n: usize, code: &str, status: &str) {
        let now = self.world.clock.now();
        let body = messages::scheduled_change("f", code, &[&instance(n)], now, now - s(600));
        let body = body.replace("\"scheduledChange\"", "\"issue\"");
        self.world.aws.sqs.send(body.replace("\"upcoming\"", &format!("\"{status}\"")));
    }

    /// Sends the notice of a reboot of the n-th node in a minute and a half: a restart from half a minute on is the return.
    pub fn schedule_reboot(&self, n: usize) -> String {
        let at = self.world.clock.now();
        let code = "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED";
        let id = format!("reboot-{n}-{}", at.as_second());
        self.world.aws.sqs.send(messages::scheduled_change(&id, code, &[&instance(n)], at, at + s(90)))
    }

    /// Begins to launch the n-th node's instance under a hook with this timeout, and sends its notice. Returns the token.
    pub fn launch(&self, n: usize, timeout: Duration, wrapping: Wrapping) -> String {
        self.launch_between(n, timeout, wrapping, ("EC2", "AutoScalingGroup"))
    }

    /// Does the same for an instance on its way from an origin to a destination.
    pub fn launch_between(&self, n: usize, timeout: Duration, wrapping: Wrapping, way: (&str, &str)) -> String {
        self.begin(n, HookSpec::launching(timeout), wrapping, way)
    }

    /// Begins to terminate the n-th node's instance, on its way from an origin to a destination.
    pub fn terminate_between(&self, n: usize, timeout: Duration, wrapping: Wrapping, way: (&str, &str)) -> String {
        self.begin(n, HookSpec::terminating(timeout), wrapping, way)
    }

    /// Begins an action of an instance refresh that replaces the root volume of the n-th node's instance: before it, or after it.
    pub fn replace_root_volume(&self, n: usize, before: bool) -> String {
        let (spec, hook) =
            if before { (HookSpec::terminating(s(600)), "hook") } else { (HookSpec::launching(s(600)), "launch-hook") };
        self.world.aws.autoscaling.add_hook("group", hook, spec);
        let token = self.world.aws.autoscaling.begin("group", hook, &instance(n));
        let (names, at) = (("group", hook, token.as_str()), self.world.clock.now());
        self.world.aws.sqs.send(messages::root_volume(before, names, &instance(n), at));
        token
    }

    fn begin(&self, n: usize, spec: HookSpec, wrapping: Wrapping, way: (&str, &str)) -> String {
        let hook = if spec.terminating { "hook" } else { "launch-hook" };
        self.world.aws.autoscaling.add_hook("group", hook, spec);
        let token = self.world.aws.autoscaling.begin("group", hook, &instance(n));
        let names = ("group", hook, token.as_str());
        let at = self.world.clock.now();
        let body = messages::lifecycle_between(wrapping, spec.terminating, names, &instance(n), at, way);
        self.world.aws.sqs.send(body);
        token
    }
}

impl Replica {
    /// Asserts the number of notices of a kind that have ended with this outcome.
    pub fn ended_as(&self, kind: &str, outcome: &str, times: u32) {
        let line = format!("ebbtide_notices_total{{kind=\"{kind}\",outcome=\"{outcome}\"}}");
        let found = self.metric(&line);
        let told = self.metrics.render(&self.tasks);
        let notices: Vec<_> = told.lines().filter(|line| line.starts_with("ebbtide_notices_total")).collect();
        assert!((found - f64::from(times)).abs() < f64::EPSILON, "{line} {found}\n{}", notices.join("\n"));
    }

    /// Returns the value of a line of `/metrics`, or 0 if there is none.
    pub fn metric(&self, line: &str) -> f64 {
        metric(&self.metrics.render(&self.tasks), line)
    }

    /// Returns the number of Nodes that this replica has released for this reason.
    pub fn released(&self, why: &str) -> f64 {
        self.metric(&format!("ebbtide_releases_total{{why=\"{why}\"}}"))
    }
}

impl Replica {
    /// Returns the number of times that this replica has refused something that a Node carries.
    pub fn refused(&self, what: &str) -> f64 {
        self.metric(&format!("ebbtide_node_refusals_total{{what=\"{what}\"}}"))
    }
}

/// Returns the n-th node's annotations under `ebbtide/`, as `key=value`.
pub fn marks(stage: &Stage, n: usize) -> Vec<String> {
    stage.annotations(n).into_iter().map(|(key, value)| format!("{key}={value}")).collect()
}

/// Returns the annotation that plans a retirement of the n-th node's instance, which was announced now.
pub fn plan(now: jiff::Timestamp, n: usize, event: &str) -> (String, String) {
    let hash: [u8; 32] = Sha256::digest(format!("{event}/{}", instance(n))).into();
    let id: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let (since, start) = (now.to_string(), (now + s(30 * 24 * 3600)).to_string());
    let code = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED";
    let kept = json!({ "code": code, "event": event });
    let kind = "scheduled-change";
    let plan = json!({ "v": 1, "kind": kind, "since": since, "start": start, "hard": true, "message": event, "work": "planned", "kept": kept });
    (format!("ebbtide/notice.{id}"), plan.to_string())
}

/// Gives the n-th node's instance the tags of an instance of the group that is ours.
pub fn tag(world: &World, n: usize) {
    world.aws.ec2.put(&instance(n), &[(TAG, "true"), ("aws:autoscaling:groupName", "group")]);
}
