//! The wait for the load balancers of an interrupted instance. Connections reach a node while a target group lists it, with or without pods.
//!
//! If the settings ask for it, the instance is deregistered: its own targets only. The AWS Load Balancer Controller manages the addresses
//! of pods.

use super::active_wait::ActiveWait;
use super::target_group::{Source, TargetGroup, name_of};
use super::target_groups::{FoundGroups, TargetGroups};
use super::targets::{MissingPermission, PollShare, Targets};
use crate::clients::gate::{Backoff, Gate};
use crate::fact::{Facts, TaskKind, WaitOutcome};
use crate::pipeline::drain::PodAddresses;
use crate::pipeline::interruption::group_lookup::GroupLookup;
use crate::pipeline::interruption::known::Progress;
use crate::pipeline::interruption::policy::ForLoadBalancers;
use crate::pipeline::interruption::{Case, NoticeOutcome};
use crate::pipeline::node::OwnerLookup;
use crate::runtime::task::{Handle, Tasks};
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Maximum time after a drain for the deregistration that started with it. A hook's completion waits for its end in any case.
const LATE_DEREGISTRATION: Duration = Duration::from_secs(30);

/// Time for the first poll before the group is reported as not seen.
const FIRST_POLL: Duration = Duration::from_secs(10);

/// Intervals between failed searches for target groups.
const SEARCHES: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));

/// Finds the target groups of instances, and knows their targets.
pub struct LoadBalancers {
    groups: TargetGroups,
    targets: Targets,
}

impl LoadBalancers {
    /// Works with these clients. Makes no call before an interruption needs one. `None` if the settings need none.
    #[must_use]
    pub fn new(
        wanted: ForLoadBalancers,
        kube: (kube::Client, Gate),
        (autoscaling, elb): (aws_sdk_autoscaling::Client, aws_sdk_elasticloadbalancingv2::Client),
        (owner, group_lookup): (OwnerLookup, GroupLookup),
        tasks: &Tasks,
        facts: &Facts,
    ) -> Option<Self> {
        let groups = TargetGroups::new(kube, autoscaling, elb.clone(), owner, facts.clone());
        let targets = Targets::new(elb, tasks.clone(), facts.clone());
        match wanted {
            ForLoadBalancers::Nothing => None,
            ForLoadBalancers::Wait => Some(Self { groups, targets }),
            ForLoadBalancers::Deregister => Some(Self {
                groups: groups.with_group_lookup(group_lookup),
                targets: targets.with_deregistration(tasks),
            }),
        }
    }
}

impl Case {
    /// Waits until no target group lists the instance or an address of its drained pods.
    pub(super) async fn targets_gone(&self, waiting: &ActiveWait<'_>) -> WaitOutcome {
        let Some(balancers) = &self.interrupter.load_balancers else { return WaitOutcome::NotNeeded };
        let addresses = self.addresses();
        let mut searches = SEARCHES;
        let mut waited = WaitOutcome::NotNeeded;
        loop {
            let (shares, may_be_more) = self.look(balancers, &addresses).await;
            let states = States::default();
            let ends = shares.into_iter().map(async |mut share| {
                let name = Arc::clone(&share.group.arn);
                let set_reason = |state| waiting.set_reason(states.set(&name, state));
                let outcome = self.gone_from(balancers, &mut share, &addresses, set_reason).await;
                states.forget(&name);
                outcome
            });
            let ends = join_all(ends).await;
            // Groups that can't be read are left out if others can.
            let seen = ends.iter().copied().filter(|end| *end != WaitOutcome::Denied).max();
            waited = waited.max(seen.or(ends.first().copied()).unwrap_or(WaitOutcome::NotNeeded));
            if !may_be_more {
                return waited;
            }
            waiting.set_reason("some target groups are not known yet");
            waited = WaitOutcome::Met;
            sleep(searches.step()).await;
        }
    }

    /// Waits until one target group no longer lists any of them.
    async fn gone_from(
        &self,
        balancers: &LoadBalancers,
        share: &mut PollShare,
        addresses: &PodAddresses,
        set_reason: impl Fn(&'static str),
    ) -> WaitOutcome {
        if timeout(FIRST_POLL, share.polled()).await.is_err() {
            set_reason("not seen yet");
        }
        if self.policy.deregisters(&self.notice) && self.deregister_from(balancers, share).await.is_err() {
            return WaitOutcome::Denied;
        }
        let mut outcome = WaitOutcome::NotNeeded;
        loop {
            let Ok(targets) = share.of(|id| self.is_target(id, addresses)).await else { return WaitOutcome::Denied };
            if targets.is_empty() {
                return outcome;
            }
            set_reason(if targets.iter().all(|target| target.draining) { "draining" } else { "registered" });
            outcome = WaitOutcome::Met;
            share.changed().await;
        }
    }

    /// Starts the deregistration of an instance that is terminated, at the same time as its drain. Dropping the handle aborts it.
    pub(in crate::pipeline::interruption) fn start_deregistration(&self) -> Option<Handle<()>> {
        let case = self.policy.deregisters(&self.notice).then(|| self.clone())?;
        Some(self.interrupter.tasks.spawn(TaskKind::Deregistration, async move {
            let Some(balancers) = &case.interrupter.load_balancers else { return };
            let mut searches = SEARCHES;
            loop {
                let (shares, may_be_more) = case.look(balancers, &PodAddresses::new()).await;
                // A denial has been reported already.
                let from = async |mut share| case.deregister_from(balancers, &mut share).await;
                join_all(shares.into_iter().map(from)).await;
                if !may_be_more {
                    return;
                }
                sleep(searches.step()).await;
            }
        }))
    }

    /// Ends the deregistration after the drain. A hook's own wait continues it; without a hook, it gets some time after a successful drain.
    pub(in crate::pipeline::interruption) async fn end_deregistration(
        &self,
        deregistration: Handle<()>,
        drained: &Progress,
        deadline: Instant,
    ) {
        if drained.is_success() && self.notice.hook().is_none() {
            let _ = timeout_at(deadline.min(Instant::now() + LATE_DEREGISTRATION), deregistration).await;
        }
    }

    /// Returns shares in the polls of all target groups that may list the instance or one of these addresses, and whether there may be more
    /// groups.
    async fn look(&self, balancers: &LoadBalancers, addresses: &PodAddresses) -> (Vec<PollShare>, bool) {
        let Self { notice, .. } = self;
        let hook_group = notice.hook().map(|hook| &*hook.group);
        let FoundGroups { groups, may_be_more } = balancers.groups.of(&notice.instance, hook_group).await;
        let may_list = |group: &&TargetGroup| match &group.from {
            // The pods behind a Service are in its namespace.
            Source::Binding { namespace, pods: true, .. } => addresses.iter().any(|(of, _)| **of == **namespace),
            Source::Binding { .. } | Source::Service(_) | Source::Group(_) => true,
        };
        (groups.iter().filter(may_list).map(|group| balancers.targets.join(group)).collect(), may_be_more)
    }

    /// Deregisters the instance from one target group, if it is registered there.
    async fn deregister_from(&self, balancers: &LoadBalancers, share: &mut PollShare) -> Result<(), MissingPermission> {
        let instance = self.notice.instance.as_str();
        let mut targets = share.of(|id| id == instance).await?;
        targets.retain(|target| !target.draining);
        if targets.is_empty() {
            return Ok(());
        }
        let deregistered = balancers.targets.deregister(&share.group.arn, instance, targets).await;
        if share.group.from.has_controller() { Ok(()) } else { deregistered }
    }

    fn is_target(&self, id: &str, addresses: &PodAddresses) -> bool {
        id == self.notice.instance.as_str() || addresses.iter().any(|(_, address)| **address == *id)
    }

    /// Returns the addresses of the pods that this process drained.
    fn addresses(&self) -> PodAddresses {
        self.drained_addresses.lock().clone()
    }
}

/// The target groups of the wait, by ARN, each with its state in words.
#[derive(Default)]
struct States(Mutex<BTreeMap<Arc<str>, &'static str>>);

impl States {
    /// Sets one state, and returns all states in words.
    fn set(&self, arn: &Arc<str>, state: &'static str) -> String {
        let mut known = self.0.lock();
        known.insert(Arc::clone(arn), state);
        let all = known.iter().map(|(arn, state)| format!("target group {}: {state}", name_of(arn)));
        all.collect::<Vec<_>>().join(", ")
    }

    fn forget(&self, arn: &Arc<str>) {
        self.0.lock().remove(arn);
    }
}

impl Progress {
    /// Whether no pod is left that must leave.
    const fn is_success(&self) -> bool {
        matches!(self, Self::Ended(NoticeOutcome::Drained | NoticeOutcome::NodeDead) | Self::Gone(..))
    }
}
