//! Groups, hooks and actions: the state and its rules, without the wire format.

use super::{Action, ActionState, GroupSpec, HookSpec};
use crate::aws::refusal::Refusal;
use crate::aws::sqs::uuid;
use crate::aws::{ACCOUNT, REGION};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum duration of an action, whatever its heartbeats.
const LONGEST_WAIT: Duration = Duration::from_hours(48);
/// Maximum duration of an action, in heartbeat timeouts.
const MOST_TIMEOUTS: u32 = 100;

#[derive(Debug)]
pub(super) struct State {
    /// Time of the last look at the state.
    pub now: Duration,
    rng: fastrand::Rng,
    groups: BTreeMap<String, BTreeMap<String, HookSpec>>,
    /// Longest heartbeat timeout of all hooks that were ever added.
    pub longest_timeout: Duration,
    /// Group of each instance.
    pub members: BTreeMap<String, String>,
    /// Instances that their group terminates, and that wait at no hook yet.
    pub leaving: BTreeSet<String>,
    /// Instances that are back from their last action.
    pub returned: BTreeSet<String>,
    /// Settings of groups, besides their hooks.
    pub specs: BTreeMap<String, GroupSpec>,
    /// Instances that are unhealthy.
    pub unhealthy: Vec<String>,
    /// Target that hooks notify.
    pub target: Option<String>,
    /// Maximum number of groups in an answer.
    pub page: usize,
    /// Actions in the order in which they began.
    actions: Vec<Action>,
    by_token: BTreeMap<String, usize>,
    /// Newest action of each instance at each hook of a group.
    by_instance: BTreeMap<(String, String, String), usize>,
}

/// Names an action in a call: by token or, without one, by instance.
#[derive(Debug)]
pub(super) struct Which<'a> {
    pub group: &'a str,
    pub hook: &'a str,
    pub token: Option<&'a str>,
    pub instance: Option<&'a str>,
}

impl HookSpec {
    pub(super) fn global_timeout(&self) -> Duration {
        LONGEST_WAIT.min(self.heartbeat_timeout * MOST_TIMEOUTS)
    }
}

impl State {
    pub fn new(seed: u64) -> Self {
        Self {
            now: Duration::ZERO,
            rng: fastrand::Rng::with_seed(seed),
            groups: BTreeMap::new(),
            longest_timeout: Duration::ZERO,
            members: BTreeMap::new(),
            leaving: BTreeSet::new(),
            returned: BTreeSet::new(),
            specs: BTreeMap::new(),
            unhealthy: Vec::new(),
            target: Some(format!("arn:aws:sqs:{REGION}:{ACCOUNT}:ebbtide")),
            page: 100,
            actions: Vec::new(),
            by_token: BTreeMap::new(),
            by_instance: BTreeMap::new(),
        }
    }

    pub fn add_hook(&mut self, group: &str, hook: &str, spec: HookSpec) {
        self.longest_timeout = self.longest_timeout.max(spec.heartbeat_timeout);
        self.groups.entry(group.to_owned()).or_default().insert(hook.to_owned(), spec);
    }

    pub fn remove_hook(&mut self, group: &str, hook: &str) {
        if let Some(hooks) = self.groups.get_mut(group) {
            hooks.remove(hook);
        }
    }

    pub fn put_group(&mut self, group: &str, spec: GroupSpec) {
        self.groups.entry(group.to_owned()).or_default();
        self.specs.insert(group.to_owned(), spec);
    }

    pub fn delete_group(&mut self, group: &str) {
        self.groups.remove(group);
        self.specs.remove(group);
    }

    /// Sets the health of an instance, which must be in a group.
    pub fn set_health(&mut self, instance: &str, healthy: bool) -> Result<(), Refusal> {
        if !self.specs.values().any(|spec| spec.instances.iter().any(|id| id == instance)) {
            let message = format!("Instance Id not found - No managed instance found for instance ID {instance}");
            return Err(Refusal::new("ValidationError", message));
        }
        self.unhealthy.retain(|id| !healthy || id != instance);
        if !healthy && !self.unhealthy.iter().any(|id| id == instance) {
            self.unhealthy.push(instance.to_owned());
        }
        Ok(())
    }

    /// Returns the group that terminates the instance under a hook, and whether the instance waits at it still.
    pub fn terminated(&self, instance: &str) -> Option<(&str, bool)> {
        let mut of = self.actions.iter().rev().filter(|it| it.instance == instance && it.spec.terminating);
        let waits = |it: &Action| matches!(it.state, ActionState::Waiting { expires } if expires > self.now);
        let newest = of.next().filter(|_| !self.returned.contains(instance))?;
        Some((&newest.group, waits(newest) || of.any(waits)))
    }

    /// Returns a page of the names of groups after this one, of those asked for, and whether there are more.
    pub fn names_after(&self, last: &str, asked: &[&str]) -> (Vec<&str>, bool) {
        let wanted = |name: &&str| *name > last && (asked.is_empty() || asked.contains(name));
        let mut names = self.groups.keys().map(String::as_str).filter(wanted);
        let page: Vec<_> = names.by_ref().take(self.page).collect();
        (page, names.next().is_some())
    }

    pub fn begin(&mut self, group: &str, hook: &str, instance: &str) -> String {
        let spec = *self.groups.get(group).and_then(|hooks| hooks.get(hook)).expect("the hook must have been added");
        let token = uuid(&mut self.rng);
        let limit = self.now + spec.global_timeout();
        let action = Action {
            token: token.clone(),
            group: group.to_owned(),
            hook: hook.to_owned(),
            instance: instance.to_owned(),
            spec,
            begun: self.now,
            limit,
            state: ActionState::Waiting { expires: limit.min(self.now + spec.heartbeat_timeout) },
            beats: Vec::new(),
            completions: Vec::new(),
        };
        self.returned.remove(instance);
        self.keep(action);
        token
    }

    pub fn action(&mut self, token: &str) -> Option<&mut Action> {
        let index = *self.by_token.get(token)?;
        self.settled(index)
    }

    pub fn actions(&mut self) -> Vec<Action> {
        (0..self.actions.len()).filter_map(|index| self.settled(index).cloned()).collect()
    }

    /// Forgets the actions that ended before this time.
    pub fn forget_before(&mut self, time: Duration) {
        for index in 0..self.actions.len() {
            self.settled(index);
        }
        let actions = std::mem::take(&mut self.actions);
        self.by_token.clear();
        self.by_instance.clear();
        for action in actions {
            if let ActionState::Completed { at, .. } | ActionState::Expired { at } = action.state
                && at < time
            {
                continue;
            }
            self.keep(action);
        }
    }

    fn keep(&mut self, action: Action) {
        let place = (action.group.clone(), action.hook.clone(), action.instance.clone());
        self.by_token.insert(action.token.clone(), self.actions.len());
        self.by_instance.insert(place, self.actions.len());
        self.actions.push(action);
    }

    /// Returns a group's hooks by name.
    pub fn hooks(&self, group: &str) -> Result<&BTreeMap<String, HookSpec>, Refusal> {
        self.groups.get(group).ok_or_else(|| {
            let message = format!("AutoScalingGroup name not found - AutoScalingGroup: {group} not found");
            Refusal::new("ValidationError", message)
        })
    }

    pub fn beat(&mut self, which: &Which<'_>) -> Result<(), Refusal> {
        let now = self.now;
        let action = self.find(which)?;
        let ActionState::Waiting { expires } = &mut action.state else {
            return Err(which.not_active());
        };
        *expires = action.limit.min(now + action.spec.heartbeat_timeout);
        action.beats.push(now);
        Ok(())
    }

    pub fn complete(&mut self, which: &Which<'_>, result: &str) -> Result<(), Refusal> {
        let now = self.now;
        let action = self.find(which)?;
        action.completions.push((now, result.to_owned()));
        if !matches!(action.state, ActionState::Waiting { .. }) {
            return Err(which.not_active());
        }
        action.state = ActionState::Completed { result: result.to_owned(), at: now };
        Ok(())
    }

    fn find(&mut self, which: &Which<'_>) -> Result<&mut Action, Refusal> {
        if !self.hooks(which.group)?.contains_key(which.hook) {
            let message = format!("No Lifecycle Hook found with name {} in group {}", which.hook, which.group);
            return Err(Refusal::new("ValidationError", message));
        }
        let index = match (which.token, which.instance) {
            (Some(token), _) => self.by_token.get(token),
            (None, Some(instance)) => {
                self.by_instance.get(&(which.group.to_owned(), which.hook.to_owned(), instance.to_owned()))
            }
            (None, None) => None,
        };
        // A token is valid only for its own hook.
        index
            .copied()
            .and_then(|index| self.settled(index))
            .filter(|action| action.group == which.group && action.hook == which.hook)
            .ok_or_else(|| which.not_active())
    }

    /// Returns an action, expired if it is due.
    fn settled(&mut self, index: usize) -> Option<&mut Action> {
        let action = self.actions.get_mut(index)?;
        if let ActionState::Waiting { expires } = action.state
            && expires <= self.now
        {
            action.state = ActionState::Expired { at: expires };
        }
        Some(action)
    }
}

impl Which<'_> {
    fn not_active(&self) -> Refusal {
        let named = match (self.token, self.instance) {
            (Some(token), _) => format!("token {token}"),
            (None, instance) => format!("instance ID {}", instance.unwrap_or("null")),
        };
        Refusal::new("ValidationError", format!("No active Lifecycle Action found with {named}"))
    }
}
