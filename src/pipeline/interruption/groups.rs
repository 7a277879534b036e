//! Calls to Auto Scaling about groups: their state, and requests for a replacement.

use super::replaceable::{Group, Member, MemberState};
use crate::clients::answers::{Answers, DENIAL_KEPT, Denials, FAILURE_KEPT, sweep};
use crate::clients::gate::{AwsClass, AwsError, CALL_TIMEOUT, Category, Gate, Operation, few_tries};
use crate::fact::{Fact, Facts, Replacement};
use aws_sdk_autoscaling::Client;
use aws_sdk_autoscaling::types::{AutoScalingGroup, Instance, LifecycleState};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

const DESCRIBE_GROUPS: Operation = Operation::new("autoscaling", "DescribeAutoScalingGroups");
const DESCRIBE_HOOKS: Operation = Operation::new("autoscaling", "DescribeLifecycleHooks");
const SET_HEALTH: Operation = Operation::new("autoscaling", "SetInstanceHealth");

/// Makes calls about groups.
pub struct Groups {
    client: Client,
    gate: Gate<AwsClass>,
    facts: Facts,
    /// Last answers, by group.
    known: Answers<String, Result<Arc<Group>, Replacement>>,
    /// Locks by group, held by the caller that decides whether one more of its instances may be replaced.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Denied requests for a replacement, by group. The permission may exist for other groups.
    denials: Denials<String>,
    /// Last failure that was reported.
    reported: Mutex<Option<(Category, Instant)>>,
}

impl Groups {
    /// Makes calls with `client` through `gate`.
    #[must_use]
    pub fn new(client: Client, gate: Gate<AwsClass>, facts: Facts) -> Self {
        let (known, turns, denials) = (Answers::default(), Mutex::default(), Denials::default());
        Self { client, gate, facts, known, turns, denials, reported: Mutex::default() }
    }

    /// Waits for the turn to decide about the group.
    pub(super) async fn turn(&self, group: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock();
            sweep(&mut turns, |turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(group.to_owned()).or_default())
        };
        turn.lock_owned().await
    }

    /// Returns the group as it was at most `max_age` ago. Only the first of several callers asks AWS; the others wait for its reply.
    ///
    /// # Errors
    /// There is no such group, or AWS did not answer. A failure is cached for a while, and reported once in some minutes.
    pub async fn get(&self, group: &str, max_age: Duration) -> Result<Arc<Group>, Replacement> {
        let max_age = |answer: &Result<_, _>| match answer {
            Ok(_) => max_age,
            Err(Replacement::Denied) => DENIAL_KEPT,
            Err(_) => FAILURE_KEPT,
        };
        let ask = || async {
            let found = self.look_up(group).await.map_err(|error| self.failed(group, &error, Replacement::Unknown))?;
            found.map(Arc::new).ok_or(Replacement::NoGroup)
        };
        self.known.get(group.to_owned(), max_age, ask).await
    }

    async fn look_up(&self, group: &str) -> Result<Option<Group>, AwsError> {
        let by = Instant::now() + CALL_TIMEOUT;
        let request = self.client.describe_auto_scaling_groups().auto_scaling_group_names(group);
        let class = AwsClass::Replace;
        let answer = self.gate.aws(DESCRIBE_GROUPS, group, class, by, || request.send()).await?;
        let mut groups = answer.auto_scaling_groups.unwrap_or_default().into_iter();
        let Some(found) = groups.find(|found| found.auto_scaling_group_name() == Some(group)) else { return Ok(None) };
        let request = self.client.describe_lifecycle_hooks().auto_scaling_group_name(group);
        let answer = match self.gate.aws(DESCRIBE_HOOKS, group, class, by, || request.send()).await {
            // The group was deleted between the two calls.
            Err(error) if matches!(error.category, Category::Invalid | Category::NotFound) => return Ok(None),
            answer => answer?,
        };
        let terminating = answer
            .lifecycle_hooks()
            .iter()
            .filter(|hook| hook.lifecycle_transition() == Some("autoscaling:EC2_INSTANCE_TERMINATING"));
        let hooks = terminating.filter_map(|hook| hook.lifecycle_hook_name().map(str::to_owned)).collect();
        Ok(Some(Group { hooks, ..read(&found) }))
    }

    /// Marks the instance as unhealthy in Auto Scaling, so that its group replaces it.
    ///
    /// # Errors
    /// Auto Scaling did not accept it.
    pub(super) async fn set_unhealthy(&self, group: &str, instance: &str) -> Result<(), Replacement> {
        let group_name = group.to_owned();
        if self.denials.is_recent(&group_name) {
            return Err(Replacement::Denied);
        }
        let call = || async {
            let by = Instant::now() + CALL_TIMEOUT;
            let request = self.client.set_instance_health().instance_id(instance).health_status("Unhealthy");
            let request = request.should_respect_grace_period(false);
            self.gate.aws(SET_HEALTH, instance, AwsClass::Replace, by, || request.send()).await
        };
        if let Err(error) = few_tries(call).await {
            let reason = self.failed(group, &error, Replacement::Refused);
            if reason == Replacement::Denied {
                self.denials.note(group_name);
            }
            return Err(reason);
        }
        let note_unhealthy = |known: &mut Result<Arc<Group>, _>| {
            if let Ok(known) = known
                && let Some(member) = Arc::make_mut(known).members.get_mut(instance)
            {
                member.healthy = false;
            }
        };
        self.known.update(&group_name, note_unhealthy).await;
        Ok(())
    }

    /// Reports a failure, once for a series of the same category.
    fn failed(&self, group: &str, error: &AwsError, otherwise: Replacement) -> Replacement {
        let mut reported = self.reported.lock();
        if reported.is_none_or(|(category, at)| category != error.category || at.elapsed() >= DENIAL_KEPT) {
            *reported = Some((error.category, Instant::now()));
            self.facts.emit(&Fact::ReplacementFailed { group, error });
        }
        if error.category == Category::Denied { Replacement::Denied } else { otherwise }
    }
}

/// Reads a group, without its hooks.
pub fn read(group: &AutoScalingGroup) -> Group {
    let size = |size: Option<i32>| size.and_then(|size| usize::try_from(size).ok()).unwrap_or_default();
    let launches_first = group.instance_maintenance_policy().is_some_and(|policy| {
        // A cleared value is -1.
        policy.min_healthy_percentage() >= Some(100) && policy.max_healthy_percentage() > Some(100)
    });
    let suspended = group.suspended_processes().iter().filter_map(|process| process.process_name());
    let members = group.instances().iter().filter_map(|found| Some((found.instance_id()?.to_owned(), member(found))));
    Group {
        desired: size(group.desired_capacity()),
        max: size(group.max_size()),
        launches_first,
        max_lifetime: group.max_instance_lifetime().is_some_and(|seconds| seconds > 0),
        suspended: suspended.map(str::to_owned).collect(),
        members: members.collect(),
        hooks: Vec::new(),
    }
}

fn member(instance: &Instance) -> Member {
    Member {
        state: match instance.lifecycle_state() {
            Some(LifecycleState::InService) => MemberState::InService,
            Some(LifecycleState::Pending | LifecycleState::PendingWait | LifecycleState::PendingProceed) => {
                MemberState::Joins
            }
            _ => MemberState::Leaves,
        },
        healthy: instance.health_status().is_none_or(|status| status.eq_ignore_ascii_case("healthy")),
        protected: instance.protected_from_scale_in().unwrap_or_default(),
    }
}
