//! Auto Scaling's lifecycle hooks, and the actions that wait for them to be completed.

use super::refusal::{Refusal, Words};
use crate::clock::Clock;
use crate::fault::{Disconnected, Edge};
use bytes::Bytes;
use state::State;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

mod state;
mod wire;

const WORDS: Words = Words {
    throttled_status: 400,
    throttled: "Throttling",
    denied: "AccessDenied",
    invalid: "ValidationError",
    internal: "InternalFailure",
    unavailable: "ServiceUnavailable",
};

/// Simulated Auto Scaling. Copies share one state.
#[derive(Clone, Debug)]
pub struct AutoScaling {
    clock: Clock,
    edge: Edge,
    state: Arc<Mutex<State>>,
}

/// A lifecycle hook's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookSpec {
    /// For instances that are to go, or (`false`) for those that come.
    pub terminating: bool,
    /// An action expires when so long there was no heartbeat.
    pub heartbeat_timeout: Duration,
    /// What an action ends with when it expires.
    pub default_result: HookResult,
}

impl HookSpec {
    /// A hook for instances that are to go.
    #[must_use]
    pub fn terminating(heartbeat_timeout: Duration) -> Self {
        Self { terminating: true, heartbeat_timeout, default_result: HookResult::Continue }
    }

    /// A hook for instances that come.
    #[must_use]
    pub fn launching(heartbeat_timeout: Duration) -> Self {
        Self { terminating: false, heartbeat_timeout, default_result: HookResult::Abandon }
    }
}

/// A group's settings, as far as they are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSpec {
    /// The ids of its instances.
    pub instances: Vec<String>,
    /// Whether it replaces spot instances that are at risk.
    pub capacity_rebalance: bool,
    /// Whether an instance whose terminating hook is abandoned is kept.
    pub retains: bool,
    /// Its tags.
    pub tags: Vec<(String, String)>,
}

/// How an action ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookResult {
    /// `CONTINUE`
    Continue,
    /// `ABANDON`
    Abandon,
}

impl HookResult {
    /// As AWS spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Continue => "CONTINUE",
            Self::Abandon => "ABANDON",
        }
    }
}

/// One instance waiting for one hook. All times are since the world began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// What identifies it.
    pub token: String,
    /// The Auto Scaling group's name.
    pub group: String,
    /// The hook's name.
    pub hook: String,
    /// The instance's id.
    pub instance: String,
    /// The hook's settings as they were when it began.
    pub spec: HookSpec,
    /// When it began.
    pub begun: Duration,
    /// No heartbeat keeps it beyond this.
    pub limit: Duration,
    /// What became of it.
    pub state: ActionState,
    /// When it had a heartbeat that counted.
    pub beats: Vec<Duration>,
    /// Every attempt to complete it, with its result, in order: the first that came in time counted.
    pub completions: Vec<(Duration, String)>,
}

/// What became of an [`Action`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionState {
    /// It waits to be completed.
    Waiting {
        /// When it expires if nothing happens.
        expires: Duration,
    },
    /// It was completed.
    Completed {
        /// `CONTINUE` or `ABANDON`.
        result: String,
        /// When.
        at: Duration,
    },
    /// Nobody completed it in time: it ended with the hook's default result.
    Expired {
        /// When.
        at: Duration,
    },
}

impl AutoScaling {
    pub(super) fn new(clock: Clock, edge: Edge, seed: u64) -> Self {
        Self { clock, edge, state: Arc::new(Mutex::new(State::new(seed))) }
    }

    /// Adds a hook to a group, or replaces it; the group comes to be with its first hook.
    pub fn add_hook(&self, group: &str, hook: &str, spec: HookSpec) {
        self.state().add_hook(group, hook, spec);
    }

    /// Puts an instance into a group.
    pub fn join(&self, group: &str, instance: &str) {
        self.state().members.insert(instance.to_owned(), group.to_owned());
    }

    /// Adds a group, or changes it; its hooks stay.
    pub fn put_group(&self, group: &str, spec: GroupSpec) {
        self.state().put_group(group, spec);
    }

    /// Takes a hook away.
    pub fn remove_hook(&self, group: &str, hook: &str) {
        self.state().remove_hook(group, hook);
    }

    /// Whom all hooks notify: the queue at first, nobody for `None`.
    pub fn notify(&self, target: Option<&str>) {
        self.state().target = target.map(str::to_owned);
    }

    /// At most so many groups in an answer from now on.
    pub fn set_page_size(&self, groups: usize) {
        self.state().page = groups;
    }

    /// Starts an action, as when AWS terminates or launches an instance. Its time begins now. Answers its token.
    ///
    /// # Panics
    ///
    /// When there is no such hook.
    pub fn begin(&self, group: &str, hook: &str, instance: &str) -> String {
        self.state().begin(group, hook, instance)
    }

    /// Completes an action that waits, as somebody else does: it is no attempt of the service's, and is not among them.
    pub fn complete(&self, token: &str, result: HookResult) {
        let mut state = self.state();
        let at = state.now;
        if let Some(action) = state.action(token)
            && matches!(action.state, ActionState::Waiting { .. })
        {
            action.state = ActionState::Completed { result: result.as_str().to_owned(), at };
        }
    }

    /// An action as it is now.
    #[must_use]
    pub fn action(&self, token: &str) -> Option<Action> {
        self.state().action(token).map(|action| action.clone())
    }

    /// All actions as they are now, in the order in which they began.
    #[must_use]
    pub fn actions(&self) -> Vec<Action> {
        self.state().actions()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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
