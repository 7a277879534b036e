//! Looks up the Auto Scaling groups and lifecycle states of instances. Hook searches, confirmations of notices and searches for target
//! groups share the calls.

use crate::clients::batch::Batcher;
use crate::clients::gate::{AwsClass, AwsError, CALL_TIMEOUT, Gate, Operation};
use crate::fact::Facts;
use crate::pipeline::event::InstanceId;
use crate::pipeline::node::subject_of;
use crate::runtime::task::Tasks;
use aws_sdk_autoscaling::Client;
use aws_sdk_autoscaling::types::AutoScalingInstanceDetails;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of instances in a call.
const MAX_INSTANCES: usize = 50;

/// Time for which a question waits for others to share its call.
const BATCH_WAIT: Duration = Duration::from_millis(100);

const DESCRIBE: Operation = Operation::new("autoscaling", "DescribeAutoScalingInstances");

/// Where an instance is in its Auto Scaling group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InGroup {
    /// The group's name.
    pub group: String,
    /// The lifecycle state, such as `Terminating:Wait`:
    /// <https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html>. That of an instance in a warm pool begins
    /// with `Warmed:`.
    pub state: String,
}

impl InGroup {
    /// Whether the instance waits at a hook for its termination.
    #[must_use]
    pub fn waits_to_terminate(&self) -> bool {
        self.state.ends_with("Terminating:Wait")
    }

    /// Whether the instance will wait at the hooks for its termination, if there are any, or is there already.
    #[must_use]
    pub fn begins_to_terminate(&self) -> bool {
        self.waits_to_terminate() || self.state.ends_with("Terminating")
    }

    /// Whether all hooks for the termination are over.
    #[must_use]
    pub fn is_past_hooks(&self) -> bool {
        self.state.ends_with("Terminating:Proceed") || self.state.ends_with("Terminated") || self.is_retained()
    }

    /// Whether the hooks for its departure are over, and the instance comes back: after the replacement of its root volume, or from its warm pool.
    #[must_use]
    pub fn is_returning(&self) -> bool {
        const IN_POOL: [&str; 4] = ["Stopped", "Running", "Hibernated", "Pending:Proceed"];
        matches!(&*self.state, "ReplacingRootVolume:Proceed" | "RootVolumeReplaced")
            || self.state.strip_prefix("Warmed:").is_some_and(|state| IN_POOL.contains(&state))
    }

    /// Whether an instance lifecycle policy keeps the instance after a failed termination.
    fn is_retained(&self) -> bool {
        self.state.ends_with("Terminating:Retained")
    }

    /// Whether the group terminates the instance, returns it to its warm pool, or holds it at a hook for either.
    #[must_use]
    pub fn leaves(&self) -> bool {
        // A launching instance waits too.
        let waits = self.state.ends_with(":Wait") && self.state != "Pending:Wait";
        waits || self.state.contains("Terminat") && !self.is_retained()
    }

    fn of(found: AutoScalingInstanceDetails) -> Option<(String, Self)> {
        Some((found.instance_id?, Self { group: found.auto_scaling_group_name?, state: found.lifecycle_state? }))
    }
}

/// Asks Auto Scaling about instances. Clones share their calls.
#[derive(Clone, Debug)]
pub struct GroupLookup(Arc<Batcher<InstanceId, Option<InGroup>>>);

impl GroupLookup {
    /// Asks with `client`, through a gate of its own, so that lifecycle calls don't wait for look-ups.
    #[must_use]
    pub fn new(client: Client, tasks: &Tasks, facts: Facts) -> Self {
        let gate = Gate::new(facts);
        let call = move |instances| look_up(client.clone(), gate.clone(), instances);
        Self(Arc::new(Batcher::start(tasks, DESCRIBE, MAX_INSTANCES, BATCH_WAIT, call)))
    }

    /// Returns where the instance is now, as far as Auto Scaling shows; `None` if it is in no group.
    ///
    /// # Errors
    /// AWS did not answer. The caller retries.
    pub async fn find(&self, instance: &InstanceId) -> Result<Option<InGroup>, AwsError> {
        self.0.ask(instance.clone()).await
    }
}

/// Returns where each instance is, in their order.
async fn look_up(
    client: Client,
    gate: Gate<AwsClass>,
    instances: Vec<InstanceId>,
) -> Vec<Result<Option<InGroup>, AwsError>> {
    let subject = subject_of(&instances);
    let ids: BTreeSet<&str> = instances.iter().map(InstanceId::as_str).collect();
    let ids = ids.into_iter().map(str::to_owned).collect();
    let request = client.describe_auto_scaling_instances().set_instance_ids(Some(ids));
    let by = Instant::now() + CALL_TIMEOUT;
    let answer = match gate.aws(DESCRIBE, &subject, AwsClass::Describe, by, || request.send()).await {
        Ok(answer) => answer,
        Err(error) => return vec![Err(error); instances.len()],
    };
    let found: HashMap<String, InGroup> =
        answer.auto_scaling_instances.unwrap_or_default().into_iter().filter_map(InGroup::of).collect();
    instances.iter().map(|instance| Ok(found.get(instance.as_str()).cloned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lifecycle_state_says_whether_the_instance_leaves_and_whether_a_hook_may_wait() {
        // Whether it begins to terminate, whether its hooks are over, and whether it leaves.
        for (state, expected) in [
            ("Pending:Wait", [false, false, false]),
            ("InService", [false, false, false]),
            ("Standby", [false, false, false]),
            ("Terminating", [true, false, true]),
            ("Terminating:Wait", [true, false, true]),
            ("Terminating:Proceed", [false, true, true]),
            ("Terminated", [false, true, true]),
            ("Terminating:Retained", [false, true, false]),
            ("Warmed:Pending:Wait", [false, false, true]),
            ("Warmed:Terminating:Wait", [true, false, true]),
            ("Warmed:Terminating:Retained", [false, true, false]),
        ] {
            let found = InGroup { group: "g".to_owned(), state: state.to_owned() };
            assert_eq!([found.begins_to_terminate(), found.is_past_hooks(), found.leaves()], expected, "{state}");
        }
    }
}
