//! The load balancers of an instance that goes. Connections reach a node as long as a target group lists it, whether it has pods or not.
//!
//! The instance is deregistered where the user wants that and where nobody would miss it: its own targets only. The addresses of pods
//! are the AWS Load Balancer Controller's.

use super::target_groups::{Source, TargetGroup, TargetGroups, name_of};
use super::targets::{Denied, LookShare, Targets};
use super::waiting::Waiting;
use crate::clients::gate::Gate;
use crate::fact::{Facts, TaskKind, WaitOutcome};
use crate::pipeline::drain::PodAddresses;
use crate::pipeline::interruption::policy::ForLoadBalancers;
use crate::pipeline::interruption::step::Finding;
use crate::pipeline::interruption::{Case, NoticeOutcome};
use crate::runtime::task::{Handle, Tasks};
use futures_util::future::{join_all, select_all};
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Maximum time after a drain for the deregistration that began with it. A hook waits for its end in any case.
const LATE_DEREGISTRATION: Duration = Duration::from_secs(30);

/// Finds the target groups of instances, and knows their targets.
pub struct LoadBalancers {
    groups: TargetGroups,
    targets: Targets,
}

impl LoadBalancers {
    /// Works with these clients. Nothing is asked before somebody needs it. `None` if nobody ever does.
    #[must_use]
    pub fn new(
        wanted: ForLoadBalancers,
        kube: (kube::Client, Gate),
        autoscaling: aws_sdk_autoscaling::Client,
        elb: aws_sdk_elasticloadbalancingv2::Client,
        tasks: &Tasks,
        facts: &Facts,
    ) -> Option<Self> {
        let groups = TargetGroups::new(kube.0, kube.1, autoscaling, facts.clone());
        let targets = Targets::new(elb, tasks.clone(), facts.clone());
        match wanted {
            ForLoadBalancers::Nothing => None,
            ForLoadBalancers::Wait => Some(Self { groups, targets }),
            ForLoadBalancers::Deregister => {
                Some(Self { groups: groups.with_members(tasks), targets: targets.with_deregistration(tasks) })
            }
        }
    }
}

impl Case {
    /// Waits until no target group lists the instance or an address of its drained pods.
    pub(super) async fn targets_gone(&self, waiting: &Waiting<'_>) -> WaitOutcome {
        self.try_targets_gone(waiting).await.unwrap_or(WaitOutcome::Denied)
    }

    async fn try_targets_gone(&self, waiting: &Waiting<'_>) -> Result<WaitOutcome, Denied> {
        let Some(balancers) = &self.interrupter.load_balancers else { return Ok(WaitOutcome::NotNeeded) };
        let addresses = self.addresses();
        let mut shares = self.look(balancers, &addresses).await?;
        if self.interrupter.policy.deregisters(&self.notice) {
            self.deregister_from(balancers, &mut shares).await?;
        }
        let mut otherwise = WaitOutcome::NotNeeded;
        loop {
            let left = self.listed(&mut shares, &addresses).await?;
            if left.is_empty() {
                return Ok(otherwise);
            }
            waiting.says(left.join(", "));
            otherwise = WaitOutcome::Met;
            select_all(shares.iter_mut().map(|share| Box::pin(share.changed()))).await;
        }
    }

    /// Starts the deregistration of an instance that goes for good, beside its drain. Dropping the handle aborts it.
    pub(in crate::pipeline::interruption) fn start_deregistration(&self) -> Option<Handle<()>> {
        let case = self.interrupter.policy.deregisters(&self.notice).then(|| self.clone())?;
        Some(self.interrupter.tasks.spawn(TaskKind::Deregistration, async move {
            if let Some(balancers) = &case.interrupter.load_balancers
                && let Ok(mut shares) = case.look(balancers, &PodAddresses::new()).await
            {
                // A denial was told where it was met.
                let _ = case.deregister_from(balancers, &mut shares).await;
            }
        }))
    }

    /// Ends the deregistration after the drain. A hook's own wait goes on with it; without one, a drain that has succeeded leaves it some
    /// time.
    pub(in crate::pipeline::interruption) async fn end_deregistration(
        &self,
        deregistration: Handle<()>,
        drained: &Finding,
        deadline: Instant,
    ) {
        if drained.is_success() && self.notice.hook().is_none() {
            let _ = timeout_at(deadline.min(Instant::now() + LATE_DEREGISTRATION), deregistration).await;
        }
    }

    /// Returns shares in the looks at all target groups that may list the instance, or one of these addresses.
    async fn look(&self, balancers: &LoadBalancers, addresses: &PodAddresses) -> Result<Vec<LookShare>, Denied> {
        let Self { notice, .. } = self;
        let hook_group = notice.hook().map(|hook| &*hook.group);
        let groups = balancers.groups.of(&notice.instance, hook_group).await;
        let may_list = |group: &&TargetGroup| match &group.from {
            // The pods behind a Service are in its namespace.
            Source::Binding { namespace, pods: true, .. } => addresses.iter().any(|(of, _)| **of == **namespace),
            Source::Binding { .. } | Source::Group(_) => true,
        };
        groups.iter().filter(may_list).map(|group| balancers.targets.join(group)).collect()
    }

    /// Deregisters the instance wherever it is registered.
    async fn deregister_from(&self, balancers: &LoadBalancers, shares: &mut [LookShare]) -> Result<(), Denied> {
        let instance = self.notice.instance.as_str();
        let mut calls = Vec::new();
        for share in shares {
            let mut targets = share.of(|id| id == instance).await?;
            targets.retain(|target| !target.draining);
            if !targets.is_empty() {
                calls.push(async {
                    let deregistered = balancers.targets.deregister(&share.group.arn, instance, targets).await;
                    // Its controller does the same, because the node is excluded from load balancers.
                    let is_bound = matches!(share.group.from, Source::Binding { .. });
                    if is_bound { Ok(()) } else { deregistered }
                });
            }
        }
        // All, even if the right to one is missing.
        join_all(calls).await.into_iter().collect()
    }

    /// Returns the groups that list the instance or one of the addresses, with the state of its targets there, for people. Nobody looks
    /// at the others any more.
    async fn listed(&self, shares: &mut Vec<LookShare>, addresses: &PodAddresses) -> Result<Vec<String>, Denied> {
        let mut listed = Vec::new();
        for mut share in std::mem::take(shares) {
            let targets = share.of(|id| self.is_target(id, addresses)).await?;
            let state = if targets.iter().all(|target| target.draining) { "draining" } else { "registered" };
            if !targets.is_empty() {
                listed.push(format!("target group {}: {state}", name_of(&share.group.arn)));
                shares.push(share);
            }
        }
        Ok(listed)
    }

    fn is_target(&self, id: &str, addresses: &PodAddresses) -> bool {
        id == self.notice.instance.as_str() || addresses.iter().any(|(_, address)| **address == *id)
    }

    /// Returns the addresses of the pods that were drained here.
    fn addresses(&self) -> PodAddresses {
        self.drained_addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Finding {
    /// Whether the drain has found no pod that must leave.
    const fn is_success(&self) -> bool {
        matches!(self, Self::Ended(NoticeOutcome::Drained | NoticeOutcome::NodeDead) | Self::NodeGone(..))
    }
}
