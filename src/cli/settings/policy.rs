//! Validation of the policy, for all Nodes and for those of each pool.

use super::Sources;
use super::problems::Problems;
use crate::cli::Cli;
use crate::cli::flags::Run;
use crate::pipeline::drain::DrainTerms;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, ForLoadBalancers, Policy, QUIET_TIME};
use crate::pipeline::node::mark::MarkSettings;
use crate::pipeline::node::{NodeScope, PerPool, WorkSign};
use std::sync::Arc;

impl Problems {
    /// Reads the pools, and the policy of each.
    pub(super) fn policies(&mut self, flags: &Run, sources: Sources) -> (NodeScope, PerPool<Policy>) {
        let mut policies = PerPool::all(self.policy(flags, sources, None));
        let pools: Arc<[_]> = flags.pool.iter().map(|flag| flag.pool.clone()).collect();
        for (n, (flag, of_pool)) in flags.pools().enumerate() {
            let name = &flag.pool.name;
            if pools[..n].iter().any(|known| known.name == *name) {
                self.add("--pool", format!("{name}: is given twice; give one another name, or remove it"));
            }
            match of_pool {
                Err(error) => self.add("--pool", format!("{name}: {}", Cli::problems(&error))),
                Ok(of_pool) => {
                    let mut problems = Self::default();
                    problems.of_other_sources(&of_pool, sources);
                    problems.without_aws(&of_pool, sources);
                    let mut policy = problems.policy(&of_pool, sources, Some(Arc::clone(name)));
                    policy.waits.own_waves = flag.has("--wave");
                    self.forget_idle(flag, &problems);
                    self.take_of_pool(flag, problems);
                    policies = policies.with(Arc::clone(name), policy);
                }
            }
        }
        (NodeScope { selector: flags.node_selector.clone().unwrap_or_default(), pools }, policies)
    }

    /// Reads the policy for the Nodes of a pool, or for those in none.
    fn policy(&mut self, flags: &Run, sources: Sources, pool: Option<Arc<str>>) -> Policy {
        let (actions, conditions) = self.actions_and_conditions(flags, sources);
        let health_issues = self.health_issues(&flags.health_issue);
        let drain_timeout = self.drain_timeouts(&flags.drain_timeout);
        let at_timeout = self.at_timeouts(&flags.at_timeout, actions, flags.at_deadline);
        let lead = self.lead(&flags.when);
        let admission = self.admission(&flags.admission, (actions, sources), &health_issues);
        let waits = self.waits(&flags.waits, (actions, sources), &health_issues, &drain_timeout, lead);
        self.same_taints(&flags.taint);
        // These two have defaults, which an empty value takes away.
        let hooks = flags.ignore_hook.iter().map(|hook| hook.trim().to_owned()).filter(|hook| !hook.is_empty());
        let signs = flags.keep_cordon_while.iter().map(|sign| sign.trim()).filter(|sign| !sign.is_empty());
        let work_signs: Vec<_> =
            signs.filter_map(|sign| self.read("--keep-cordon-while", WorkSign::read(sign))).collect();
        self.idle_launches(&flags.startup_taint, flags.on_failed_launch, actions);
        let drains = |kind| actions.of(kind).drains();
        let idle_taint = flags.out_of_service_taint
            && !matches!(actions.of(NoticeKind::StateChange), Action::Drain | Action::Cordon);
        self.idle("--out-of-service-taint", idle_taint, "--on state-change=drain");
        let acts = drains(NoticeKind::ScheduledChange) || actions.of(NoticeKind::ScheduledChange) == Action::Cordon;
        self.idle("--when", lead.is_some() && !acts, "--on scheduled-change=drain");
        self.idle("--node-hook", sources.hooks && !drains(NoticeKind::AsgTerminate), "--on asg-terminate=drain");
        // Their controllers would register again what is waited for.
        let exclude = flags.exclude_from_load_balancers || waits.load_balancers != ForLoadBalancers::Nothing;
        Policy {
            pool,
            actions,
            conditions,
            health_issues,
            lead,
            drain_timeout,
            at_timeout,
            admission,
            waits,
            settle: QUIET_TIME,
            heartbeats: flags.heartbeat,
            registration_grace: flags.registration_grace,
            require_tag: flags.require_tag,
            ignored_hooks: hooks.collect(),
            hooks: sources.hook_source(flags.sources.node_hook.clone()),
            uncordon_after: flags.uncordon_after,
            work_signs: work_signs.into(),
            mark_settings: MarkSettings {
                taints: flags.taint.clone(),
                former_taints: flags.former_taint.clone(),
                exclude_from_load_balancers: exclude,
            },
            out_of_service_taint: flags.out_of_service_taint,
            on_failed_drain: flags.on_failed_drain,
            on_uncordon: flags.on_uncordon,
            on_failed_launch: flags.on_failed_launch,
            startup_taints: flags.startup_taint.clone(),
            drain: DrainTerms { at_deadline: flags.at_deadline, pod_grace: flags.pod_grace },
            dry_run: flags.dry_run,
        }
    }
}
