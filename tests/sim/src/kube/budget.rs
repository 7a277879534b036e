//! The disruption controller: each budget's counts, updated with every change of a pod.

use super::object::Object;
use super::pod::Owner;
use super::refusal::Refusal;
use super::route::Resource;
use super::select::Selector;
use super::state::State;
use super::store::Key;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Period for which a pod that was to be evicted, but did not terminate, counts as disrupted.
const STALE: Duration = Duration::from_secs(120);

/// Limit of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Minimum number of healthy pods.
    MinAvailable(i32),
    /// Maximum number of missing pods, of those that the controllers should have.
    MaxUnavailable(i32),
}

/// One budget and its counts.
#[derive(Debug)]
pub(super) struct Budget {
    labels: BTreeMap<String, String>,
    selector: Selector,
    limit: Limit,
    generation: i64,
    /// Whether its status lags behind.
    stalled: bool,
    pods: i32,
    healthy: i32,
    owners: BTreeMap<Owner, i32>,
    /// Pods whose eviction was charged and that do not terminate yet, with the time of the charge.
    disrupted: BTreeMap<String, (Instant, Timestamp)>,
}

/// Status of a budget as it is now.
#[derive(Clone, Copy, Debug)]
struct Status {
    expected: i32,
    desired: i32,
    current: i32,
    allowed: i32,
}

fn is_healthy(pod: &Object) -> bool {
    pod.facts.ready && !pod.is_terminating()
}

fn owner(pod: &Object) -> Option<Owner> {
    let owner = pod.meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some(Owner { kind: owner.kind.clone(), name: owner.name.clone() })
}

impl Budget {
    fn new(labels: BTreeMap<String, String>, limit: Limit) -> Self {
        Self {
            selector: Selector::all_of(&labels),
            labels,
            limit,
            generation: 1,
            stalled: false,
            pods: 0,
            healthy: 0,
            owners: BTreeMap::new(),
            disrupted: BTreeMap::new(),
        }
    }

    /// Adds a pod to the counts (`1`) or removes it (`-1`), if the budget selects it.
    fn count(&mut self, pod: &Object, by: i32) -> bool {
        if !self.selector.holds_for_labels(pod) {
            return false;
        }
        self.pods += by;
        self.healthy += if is_healthy(pod) { by } else { 0 };
        if let Some(owner) = owner(pod) {
            let pods = self.owners.entry(owner).or_default();
            *pods += by;
        }
        self.owners.retain(|_, pods| *pods > 0);
        true
    }

    fn spec(&self) -> Value {
        let (kind, number) = match self.limit {
            Limit::MinAvailable(number) => ("minAvailable", number),
            Limit::MaxUnavailable(number) => ("maxUnavailable", number),
        };
        json!({ "selector": { "matchLabels": self.labels }, kind: number })
    }
}

impl State {
    pub fn add_budget(&mut self, key: &Key, labels: BTreeMap<String, String>, limit: Limit) {
        let mut budget = Budget::new(labels, limit);
        for pod in self.store.in_namespace(Resource::Pods, &key.namespace) {
            budget.count(pod, 1);
        }
        self.budgets.insert(key.clone(), budget);
        self.write_budget(key);
    }

    pub fn set_budget(&mut self, key: &Key, limit: Limit) {
        if let Some(budget) = self.budgets.get_mut(key) {
            budget.limit = limit;
            budget.generation += 1;
            self.write_budget(key);
        }
    }

    pub fn remove_budget(&mut self, key: &Key) {
        self.budgets.remove(key);
        self.remove(Resource::Budgets, key);
    }

    pub fn stall_budget(&mut self, key: &Key, stalled: bool) {
        if let Some(budget) = self.budgets.get_mut(key) {
            budget.stalled = stalled;
            budget.generation += i64::from(stalled);
            self.write_budget(key);
        }
    }

    pub fn disruptions_allowed(&self, key: &Key) -> Option<i32> {
        Some(self.budget_status(key)?.allowed)
    }

    /// Drops charged pods that did not terminate in time.
    pub fn recount(&mut self, key: &Key) {
        let now = Instant::now();
        if let Some(budget) = self.budgets.get_mut(key) {
            budget.disrupted.retain(|_, (since, _)| now < *since + STALE);
            self.write_budget(key);
        }
    }

    /// Charges an eviction to the pod's budget, if it has one.
    pub fn charge_budget(&mut self, pod: &Object, dry_run: bool) -> Result<(), Refusal> {
        let namespace = pod.meta.namespace.as_deref().unwrap_or_default();
        let from = Key::new(namespace, "");
        let all = self.budgets.range(from..).take_while(|(key, _)| key.namespace == namespace);
        let mut covering = all.filter(|(_, budget)| budget.selector.holds_for_labels(pod));
        let Some((key, budget)) = covering.next() else {
            return Ok(());
        };
        if covering.next().is_some() {
            return Err(Refusal::several_budgets());
        }
        let key = key.clone();
        let Some(status) = self.budget_status(&key) else {
            return Ok(());
        };
        // An unhealthy pod may be evicted while enough others are healthy.
        if !pod.facts.ready && status.current >= status.desired && status.desired > 0 {
            return Ok(());
        }
        if budget.stalled {
            return Err(Refusal::budget_stalled(&key.name));
        }
        if status.allowed == 0 {
            return Err(Refusal::budget_exhausted(&key.name, status.desired, status.current));
        }
        if !dry_run && let Some(budget) = self.budgets.get_mut(&key) {
            let now = Instant::now();
            budget.disrupted.insert(pod.name().to_owned(), (now, self.clock.now()));
            self.at(now + STALE, super::kubelet::Due::Recount { budget: key });
        }
        Ok(())
    }

    /// Updates the counts of all budgets that select, or selected, a pod.
    pub fn pod_changed(&mut self, before: Option<&Object>, after: Option<&Object>) {
        let Some(pod) = after.or(before) else { return };
        let key = pod.key();
        let from = Key::new(&key.namespace, "");
        let mut touched = Vec::new();
        for (name, budget) in self.budgets.range_mut(from..).take_while(|(name, _)| name.namespace == key.namespace) {
            let saw = before.is_some_and(|before| budget.count(before, -1));
            let sees = after.is_some_and(|after| budget.count(after, 1));
            if saw || sees {
                if after.is_none_or(Object::is_terminating) {
                    budget.disrupted.remove(&key.name);
                }
                touched.push(name.clone());
            }
        }
        for name in touched {
            self.write_budget(&name);
        }
    }

    fn budget_status(&self, key: &Key) -> Option<Status> {
        let budget = self.budgets.get(key)?;
        let charged = |name: &String| {
            let pod = self.store.get(Resource::Pods, &Key::new(&key.namespace, name));
            pod.is_some_and(|pod| is_healthy(pod))
        };
        let missing = budget.disrupted.keys().filter(|name| charged(name)).count();
        let current = budget.healthy - i32::try_from(missing).unwrap_or(i32::MAX);
        let (expected, desired) = match budget.limit {
            Limit::MinAvailable(least) => (budget.pods, least),
            Limit::MaxUnavailable(most) => {
                let replicas = |owner: &Owner| self.replicas.get(&(key.namespace.clone(), owner.clone())).copied();
                let expected = budget.owners.keys().filter_map(replicas).sum::<i32>();
                (expected, (expected - most).max(0))
            }
        };
        let allowed = if expected > 0 { (current - desired).max(0) } else { 0 };
        Some(Status { expected, desired, current, allowed })
    }

    /// Writes the budget's object if its published status is out of date.
    fn write_budget(&mut self, key: &Key) {
        let uid = self.uuid();
        let Some((status, budget)) = self.budget_status(key).zip(self.budgets.get(key)) else {
            return;
        };
        let old = self.store.get(Resource::Budgets, key);
        let disrupted: BTreeMap<&String, String> = budget
            .disrupted
            .iter()
            .map(|(pod, (_, at))| (pod, at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()))
            .collect();
        let mut shown = json!({
            "observedGeneration": budget.generation, "expectedPods": status.expected, "desiredHealthy": status.desired,
            "currentHealthy": status.current, "disruptionsAllowed": status.allowed, "disruptedPods": disrupted,
        });
        if budget.stalled {
            shown = old.map(|old| old.field("status")).unwrap_or(shown);
        }
        let object = if let Some(old) = old {
            old.with_meta(|meta| meta.generation = Some(budget.generation))
                .with_field("spec", &budget.spec())
                .with_field("status", &shown)
        } else {
            let mut object = Map::new();
            let (spec, generation) = (budget.spec(), budget.generation);
            let created = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let metadata = json!({
                "name": key.name, "namespace": key.namespace, "uid": uid, "generation": generation,
                "creationTimestamp": created,
            });
            object.insert("metadata".to_owned(), metadata);
            object.insert("spec".to_owned(), spec);
            object.insert("status".to_owned(), shown);
            Object::from_value(Resource::Budgets, object).expect("a budget of the simulation must be valid")
        };
        self.put(Resource::Budgets, object);
    }
}
