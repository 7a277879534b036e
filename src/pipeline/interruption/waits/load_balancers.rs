//! The load balancers of an instance that goes. Connections reach a node as long as a target group lists it, whether it has pods or not.
//!
//! The instance is deregistered where the user wants that and where nobody would miss it: its own targets only. The addresses of pods
//! are the AWS Load Balancer Controller's.

use super::target_groups::{Found, Source, TargetGroup, TargetGroups, name_of};
use super::targets::{Denied, LookShare, Targets};
use super::waiting::Waiting;
use crate::clients::gate::{Backoff, Gate};
use crate::fact::{Facts, TaskKind, WaitOutcome};
use crate::pipeline::drain::PodAddresses;
use crate::pipeline::interruption::group_lookup::GroupLookup;
use crate::pipeline::interruption::policy::ForLoadBalancers;
use crate::pipeline::interruption::step::Finding;
use crate::pipeline::interruption::{Case, NoticeOutcome};
use crate::runtime::task::{Handle, Tasks};
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Maximum time after a drain for the deregistration that began with it. A hook waits for its end in any case.
const LATE_DEREGISTRATION: Duration = Duration::from_secs(30);

/// Time of a first look after which it is told that there was none.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// Intervals between searches for target groups that fail.
const SEARCHES: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));

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
        group_lookup: GroupLookup,
        tasks: &Tasks,
        facts: &Facts,
    ) -> Option<Self> {
        let groups = TargetGroups::new(kube.0, kube.1, autoscaling, facts.clone());
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
    pub(super) async fn targets_gone(&self, waiting: &Waiting<'_>) -> WaitOutcome {
        let Some(balancers) = &self.interrupter.load_balancers else { return WaitOutcome::NotNeeded };
        let addresses = self.addresses();
        let mut searches = SEARCHES;
        let mut waited = WaitOutcome::NotNeeded;
        loop {
            let (shares, may_be_more) = self.look(balancers, &addresses).await;
            let states = States::default();
            let ends = shares.into_iter().map(async |mut share| {
                let name = Arc::clone(&share.group.arn);
                let says = |state| waiting.says(states.set(&name, state));
                let outcome = self.gone_from(balancers, &mut share, &addresses, says).await;
                states.forget(&name);
                outcome
            });
            let ends = join_all(ends).await;
            // What can't be seen is left out, as long as there are others.
            let seen = ends.iter().copied().filter(|end| *end != WaitOutcome::Denied).max();
            waited = waited.max(seen.or(ends.first().copied()).unwrap_or(WaitOutcome::NotNeeded));
            if !may_be_more {
                return waited;
            }
            waiting.says("some target groups are not known yet");
            waited = WaitOutcome::Met;
            sleep(searches.step()).await;
        }
    }

    /// Waits until one target group lists none of them any more.
    async fn gone_from(
        &self,
        balancers: &LoadBalancers,
        share: &mut LookShare,
        addresses: &PodAddresses,
        says: impl Fn(&'static str),
    ) -> WaitOutcome {
        if timeout(FIRST_LOOK, share.looked_at()).await.is_err() {
            says("not seen yet");
        }
        if self.interrupter.policy.deregisters(&self.notice) && self.deregister_from(balancers, share).await.is_err() {
            return WaitOutcome::Denied;
        }
        let mut outcome = WaitOutcome::NotNeeded;
        loop {
            let Ok(targets) = share.of(|id| self.is_target(id, addresses)).await else { return WaitOutcome::Denied };
            if targets.is_empty() {
                return outcome;
            }
            says(if targets.iter().all(|target| target.draining) { "draining" } else { "registered" });
            outcome = WaitOutcome::Met;
            share.changed().await;
        }
    }

    /// Starts the deregistration of an instance that goes for good, beside its drain. Dropping the handle aborts it.
    pub(in crate::pipeline::interruption) fn start_deregistration(&self) -> Option<Handle<()>> {
        let case = self.interrupter.policy.deregisters(&self.notice).then(|| self.clone())?;
        Some(self.interrupter.tasks.spawn(TaskKind::Deregistration, async move {
            let Some(balancers) = &case.interrupter.load_balancers else { return };
            let mut searches = SEARCHES;
            loop {
                let (shares, may_be_more) = case.look(balancers, &PodAddresses::new()).await;
                // A denial was told where it was met.
                let from = async |mut share| case.deregister_from(balancers, &mut share).await;
                join_all(shares.into_iter().map(from)).await;
                if !may_be_more {
                    return;
                }
                sleep(searches.step()).await;
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

    /// Returns shares in the looks at all target groups that may list the instance, or one of these addresses; and whether there may be
    /// more groups.
    async fn look(&self, balancers: &LoadBalancers, addresses: &PodAddresses) -> (Vec<LookShare>, bool) {
        let Self { notice, .. } = self;
        let hook_group = notice.hook().map(|hook| &*hook.group);
        let Found { groups, may_be_more } = balancers.groups.of(&notice.instance, hook_group).await;
        let may_list = |group: &&TargetGroup| match &group.from {
            // The pods behind a Service are in its namespace.
            Source::Binding { namespace, pods: true, .. } => addresses.iter().any(|(of, _)| **of == **namespace),
            Source::Binding { .. } | Source::Group(_) => true,
        };
        (groups.iter().filter(may_list).map(|group| balancers.targets.join(group)).collect(), may_be_more)
    }

    /// Deregisters the instance from one target group, if it is registered there.
    async fn deregister_from(&self, balancers: &LoadBalancers, share: &mut LookShare) -> Result<(), Denied> {
        let instance = self.notice.instance.as_str();
        let mut targets = share.of(|id| id == instance).await?;
        targets.retain(|target| !target.draining);
        if targets.is_empty() {
            return Ok(());
        }
        let deregistered = balancers.targets.deregister(&share.group.arn, instance, targets).await;
        // Its controller does the same, because the node is excluded from load balancers.
        let is_bound = matches!(share.group.from, Source::Binding { .. });
        if is_bound { Ok(()) } else { deregistered }
    }

    fn is_target(&self, id: &str, addresses: &PodAddresses) -> bool {
        id == self.notice.instance.as_str() || addresses.iter().any(|(_, address)| **address == *id)
    }

    /// Returns the addresses of the pods that were drained here.
    fn addresses(&self) -> PodAddresses {
        self.drained_addresses.lock().clone()
    }
}

/// The target groups that are waited for, by their ARNs, each with a word for people.
#[derive(Default)]
struct States(Mutex<BTreeMap<Arc<str>, &'static str>>);

impl States {
    /// Returns all of them, one of which has changed.
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

impl Finding {
    /// Whether the drain has found no pod that must leave.
    const fn is_success(&self) -> bool {
        matches!(self, Self::Ended(NoticeOutcome::Drained | NoticeOutcome::NodeDead) | Self::NodeGone(..))
    }
}
