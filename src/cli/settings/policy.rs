//! Validation of the policy, for all Nodes and for those of each pool.

use super::Sources;
use super::problems::{Problems, take_of_pool};
use crate::cli::Cli;
use crate::cli::flags::Run;
use crate::pipeline::drain::{AtDeadline, DrainTerms, Tiers};
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, Actions, ForLoadBalancers, PerKind, Policy, QUIET_TIME};
use crate::pipeline::node::mark::MarkSettings;
use crate::pipeline::node::{NodeScope, PerPool, WorkSign};
use clap::ValueEnum;
use std::sync::Arc;

/// Reads the pools, and the policy of each.
pub(super) fn policies(problems: &mut Problems, flags: &Run, sources: Sources) -> (NodeScope, PerPool<Policy>) {
    let mut policies = PerPool::all(policy(problems, flags, sources, None));
    let pools: Arc<[_]> = flags.pool.iter().map(|flag| flag.pool.clone()).collect();
    for (n, flag) in flags.pool.iter().enumerate() {
        let name = &flag.pool.name;
        if pools[..n].iter().any(|known| known.name == *name) {
            problems.add("--pool", format!("{name}: is given twice; give one another name, or remove it"));
        }
        match flags.of_pool(flag) {
            Err(error) => problems.add("--pool", format!("{name}: {}", Cli::problems(&error))),
            Ok(of_pool) => {
                let mut own = Problems::default();
                own.of_other_sources(&of_pool, sources);
                own.without_aws(&of_pool, sources);
                let mut policy = policy(&mut own, &of_pool, sources, Some(Arc::clone(name)));
                policy.waits.own_waves = flag.has("--wave");
                take_of_pool(problems, flag, own);
                policies = policies.with(Arc::clone(name), policy);
            }
        }
    }
    (NodeScope { selector: flags.node_selector.clone().unwrap_or_default(), pools }, policies)
}

/// Reads the policy for the Nodes of a pool, or for those in none.
fn policy(problems: &mut Problems, flags: &Run, sources: Sources, pool: Option<Arc<str>>) -> Policy {
    let (actions, conditions) = problems.actions_and_conditions(flags, sources);
    let health_issues = problems.health_issues(&flags.health_issue);
    let drain_timeout = problems.drain_timeouts(&flags.drain_timeout);
    let at_timeout = at_timeouts(problems, &flags.at_timeout, actions, flags.at_deadline);
    let lead = problems.lead(&flags.when);
    let admission = problems.admission(&flags.admission, (actions, sources), &health_issues);
    let waits = problems.waits(&flags.waits, (actions, sources), &health_issues, &drain_timeout, lead);
    problems.same_taints(&flags.taint);
    // These two have defaults, which an empty value takes away.
    let hooks = flags.ignore_hook.iter().map(|hook| hook.trim().to_owned()).filter(|hook| !hook.is_empty());
    let signs = flags.keep_cordon_while.iter().map(|sign| sign.trim()).filter(|sign| !sign.is_empty());
    let work_signs: Vec<_> =
        signs.filter_map(|sign| problems.read("--keep-cordon-while", WorkSign::read(sign))).collect();
    problems.idle_launches(&flags.startup_taint, flags.on_failed_launch, actions);
    let drains = |kind| actions.of(kind).drains();
    let idle_taint =
        flags.out_of_service_taint && !matches!(actions.of(NoticeKind::StateChange), Action::Drain | Action::Cordon);
    problems.idle("--out-of-service-taint", idle_taint, "--on state-change=drain");
    let acts = drains(NoticeKind::ScheduledChange) || actions.of(NoticeKind::ScheduledChange) == Action::Cordon;
    problems.idle("--when", lead.is_some() && !acts, "--on scheduled-change=drain");
    problems.idle("--node-hook", sources.hooks && !drains(NoticeKind::AsgTerminate), "--on asg-terminate=drain");
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
        ec2_poll_interval: flags.ec2_poll_interval,
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
        drain: DrainTerms { at_deadline: flags.at_deadline, pod_grace: flags.pod_grace, surge: flags.surge },
        dry_run: flags.dry_run,
    }
}

/// Reads the treatment of pods when the time of a drain ends but the capacity does not.
fn at_timeouts(
    problems: &mut Problems,
    flags: &[String],
    actions: Actions,
    at_deadline: AtDeadline,
) -> PerKind<AtDeadline> {
    let flag = "--at-timeout";
    let (some, all) = problems.one_for_all(flag, flags);
    let mut treatments = PerKind::all(AtDeadline::Leave);
    if let Some(treatment) = all.and_then(|text| treatment(problems, flag, &text)) {
        treatments = PerKind::all(treatment);
    }
    for (kind, text) in problems.by_kind(flag, &some, "node-condition=delete") {
        let Some(treatment) = treatment(problems, flag, text) else { continue };
        problems.idle(
            flag,
            treatment == AtDeadline::Delete && !actions.of(kind).drains(),
            &format!("--on {kind}=drain"),
        );
        treatments.set(kind, treatment);
    }
    let deletes = NoticeKind::ALL.into_iter().any(|kind| treatments.of(kind) == AtDeadline::Delete);
    problems.idle(flag, deletes && at_deadline == AtDeadline::Leave, "--at-deadline delete");
    treatments
}

fn treatment(problems: &mut Problems, flag: &'static str, text: &str) -> Option<AtDeadline> {
    let found = AtDeadline::from_str(text, false).ok();
    if found.is_none() {
        problems.add(flag, format!("\"{text}\" is not possible; write leave or delete, or KIND=delete"));
    }
    found
}

/// Reads the priorities from which tiers of pods begin.
pub(super) fn tiers(problems: &mut Problems, priorities: Vec<i32>) -> Tiers {
    for (n, priority) in priorities.iter().enumerate() {
        if priorities[..n].contains(priority) {
            problems.add("--priority-tier", format!("{priority} is given twice; remove one"));
        }
    }
    Tiers::from(priorities)
}
