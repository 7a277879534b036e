//! Auto Scaling's lifecycle hooks, and the lifecycle actions that wait for completion.

use super::refusal::{Refusal, Words};
use crate::clock::Clock;
use crate::fault::{Disconnected, Edge};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use state::State;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

mod state;
mod wire;

const WORDS: Words = Words {
    throttled_status: 400,
    throttled: "Throttling",
    denied: "AccessDenied",
    expired: (403, "ExpiredToken"),
    invalid: "ValidationError",
    internal: "InternalFailure",
    unavailable: "ServiceUnavailable",
};

/// Simulated Auto Scaling. Clones share one state.
#[derive(Clone, Debug)]
pub struct AutoScaling {
    clock: Clock,
    edge: Edge,
    state: Arc<Mutex<State>>,
}

/// A lifecycle hook's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookSpec {
    /// Whether the hook is for terminating instances; `false` for launching instances.
    pub terminating: bool,
    /// Time without a heartbeat after which an action expires.
    pub heartbeat_timeout: Duration,
    /// Result of an action that expires.
    pub default_result: HookResult,
}

impl HookSpec {
    /// Returns a hook for terminating instances.
    #[must_use]
    pub fn terminating(heartbeat_timeout: Duration) -> Self {
        Self { terminating: true, heartbeat_timeout, default_result: HookResult::Continue }
    }

    /// Returns a hook for launching instances.
    #[must_use]
    pub fn launching(heartbeat_timeout: Duration) -> Self {
        Self { terminating: false, heartbeat_timeout, default_result: HookResult::Abandon }
    }
}

/// Settings of a group, as far as the simulation has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSpec {
    /// IDs of its instances.
    pub instances: Vec<String>,
    /// Whether the group replaces spot instances at risk (capacity rebalancing).
    pub capacity_rebalance: bool,
    /// Whether the group keeps an instance whose terminating hook is abandoned.
    pub retains: bool,
    /// Its tags.
    pub tags: Vec<(String, String)>,
    /// Its desired capacity.
    pub desired: usize,
    /// Its maximum size.
    pub max: usize,
    /// The minimum and the maximum percentage of its instance maintenance policy, if it has one.
    pub maintenance: Option<(i32, i32)>,
    /// Maximum lifetime of its instances in seconds, if it has one.
    pub max_lifetime: Option<u32>,
    /// Its suspended processes.
    pub suspended: Vec<String>,
    /// IDs of its instances that are protected from scale-in.
    pub protected: Vec<String>,
    /// The lifecycle states of its instances that are not in service.
    pub states: BTreeMap<String, String>,
    /// ARNs of the target groups that its instances are registered with.
    pub target_groups: Vec<String>,
}

/// Result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookResult {
    /// `CONTINUE`
    Continue,
    /// `ABANDON`
    Abandon,
}

impl HookResult {
    /// Returns the result as AWS spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Continue => "CONTINUE",
            Self::Abandon => "ABANDON",
        }
    }
}

/// One lifecycle action: an instance waiting at a hook. All times are since the world's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Token that identifies the action.
    pub token: String,
    /// The Auto Scaling group's name.
    pub group: String,
    /// The hook's name.
    pub hook: String,
    /// The instance's id.
    pub instance: String,
    /// Settings of the hook when the action began.
    pub spec: HookSpec,
    /// Time at which the action began.
    pub begun: Duration,
    /// Time beyond which no heartbeat keeps the action alive.
    pub limit: Duration,
    /// State of the action.
    pub state: ActionState,
    /// Times of the heartbeats that had an effect.
    pub beats: Vec<Duration>,
    /// All attempts to complete the action, with their results, in order: the first one in time took effect.
    pub completions: Vec<(Duration, String)>,
}

/// State of an [`Action`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionState {
    /// Waiting for completion.
    Waiting {
        /// Time at which the action expires without another heartbeat.
        expires: Duration,
    },
    /// Completed.
    Completed {
        /// `CONTINUE` or `ABANDON`.
        result: String,
        /// Time of completion.
        at: Duration,
    },
    /// Expired: the action ended with the hook's default result.
    Expired {
        /// Time of expiry.
        at: Duration,
    },
}

impl AutoScaling {
    pub(super) fn new(clock: Clock, edge: Edge, seed: u64) -> Self {
        Self { clock, edge, state: Arc::new(Mutex::new(State::new(seed))) }
    }

    /// Adds a hook to a group, or replaces it; creates the group if needed.
    pub fn add_hook(&self, group: &str, hook: &str, spec: HookSpec) {
        self.state().add_hook(group, hook, spec);
    }

    /// Adds an instance to a group.
    pub fn join(&self, group: &str, instance: &str) {
        self.state().members.insert(instance.to_owned(), group.to_owned());
    }

    /// Adds an instance to a group that terminates it: it waits at no hook yet.
    pub fn leave(&self, group: &str, instance: &str) {
        self.join(group, instance);
        self.state().leaving.insert(instance.to_owned());
    }

    /// Has an instance come back to its group from the action for which it left.
    pub fn come_back(&self, group: &str, instance: &str) {
        self.join(group, instance);
        self.state().returned.insert(instance.to_owned());
    }

    /// Adds a group, or changes it; its hooks stay.
    pub fn put_group(&self, group: &str, spec: GroupSpec) {
        self.state().put_group(group, spec);
    }

    /// Changes a group, which must have been put.
    ///
    /// # Panics
    ///
    /// Panics if there is no such group.
    pub fn change_group(&self, group: &str, change: impl FnOnce(&mut GroupSpec)) {
        change(self.state().specs.get_mut(group).expect("the group must have been put"));
    }

    /// Deletes a group with its hooks.
    pub fn delete_group(&self, group: &str) {
        self.state().delete_group(group);
    }

    /// Fails the group's own health check of an instance.
    pub fn fail_health_check(&self, instance: &str) {
        self.state().unhealthy.push(instance.to_owned());
    }

    /// Returns the instances that are unhealthy, in order.
    #[must_use]
    pub fn unhealthy(&self) -> Vec<String> {
        self.state().unhealthy.clone()
    }

    /// Removes a hook.
    pub fn remove_hook(&self, group: &str, hook: &str) {
        self.state().remove_hook(group, hook);
    }

    /// Sets the target that all hooks notify: the queue at first, none for `None`.
    pub fn notify(&self, target: Option<&str>) {
        self.state().target = target.map(str::to_owned);
    }

    /// Sets the maximum number of groups in an answer.
    pub fn set_page_size(&self, groups: usize) {
        self.state().page = groups;
    }

    /// Starts an action, as AWS does when it terminates or launches an instance. Its timeout starts now. Returns its token.
    ///
    /// # Panics
    ///
    /// Panics if there is no such hook.
    pub fn begin(&self, group: &str, hook: &str, instance: &str) -> String {
        self.state().begin(group, hook, instance)
    }

    /// Completes a waiting action on behalf of another client. The attempt is not recorded among the service's.
    pub fn complete(&self, token: &str, result: HookResult) {
        let mut state = self.state();
        let at = state.now;
        if let Some(action) = state.action(token)
            && matches!(action.state, ActionState::Waiting { .. })
        {
            action.state = ActionState::Completed { result: result.as_str().to_owned(), at };
        }
    }

    /// Returns an action as it is now.
    #[must_use]
    pub fn action(&self, token: &str) -> Option<Action> {
        self.state().action(token).map(|action| action.clone())
    }

    /// Returns all actions as they are now, in the order in which they began.
    #[must_use]
    pub fn actions(&self) -> Vec<Action> {
        self.state().actions()
    }

    /// Returns the longest heartbeat timeout of all hooks that were ever added; zero without hooks.
    #[must_use]
    pub fn longest_timeout(&self) -> Duration {
        self.state().longest_timeout
    }

    pub(crate) fn forget_before(&self, time: Duration) {
        self.state().forget_before(time);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.now = self.clock.elapsed();
        state
    }

    pub(super) async fn serve(&self, form: &super::query::Form) -> Result<http::Response<Bytes>, Disconnected> {
        let operation = form.get("Action").unwrap_or_default();
        let refuse = |fault| Refusal::planned(fault, &WORDS).map(|refusal| super::query::refuse_wrapped(&refusal));
        let serve = async {
            let answer = wire::perform(&mut self.state(), operation, form);
            answer.unwrap_or_else(|refusal| super::query::refuse_wrapped(&refusal))
        };
        self.edge.pass("autoscaling", operation, wire::subject(form), refuse, serve).await
    }
}
