//! Validation of what is waited for.

use super::Sources;
use super::problems::Problems;
use super::sources::HOOKS;
use crate::cli::flags::{MAX_DRAIN, Waits, at_most, up_to};
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{
    Action, Actions, ForLoadBalancers, Holds, PerKind, ShiftedResources, WaitPolicy, Wave,
};
use crate::pipeline::node::label::checked_key;
use std::collections::BTreeMap;
use std::time::Duration;

/// The default of `--wait-for-volumes`, which is no mistake where nothing is drained.
const DEFAULT_VOLUMES: Duration = Duration::from_mins(1);

impl Problems {
    /// Reads what is waited for.
    pub(super) fn waits(
        &mut self,
        flags: &Waits,
        (actions, sources): (Actions, Sources),
        health_issues: &BTreeMap<String, Action>,
        drain_timeout: &PerKind<Option<Duration>>,
        lead: Option<Duration>,
    ) -> WaitPolicy {
        let flag = "--complete-after";
        let is_drained = actions.of(NoticeKind::AsgTerminate).drains();
        let drains_hooks = is_drained && sources.complete_hooks();
        let hooks = if is_drained { HOOKS } else { "--on asg-terminate=drain" };
        self.idle(flag, flags.complete_after.is_some() && !drains_hooks, hooks);
        let flag = "--wait-for-volumes";
        let volumes = flags.wait_for_volumes;
        let is_set = !volumes.is_zero() && volumes != DEFAULT_VOLUMES;
        self.idle(flag, is_set && !drains_hooks, hooks);
        let flag = "--wait-for-load-balancers";
        match flags.wait_for_load_balancers {
            ForLoadBalancers::Nothing => {}
            ForLoadBalancers::Wait => self.idle(flag, !is_drained, "--on asg-terminate=drain"),
            ForLoadBalancers::Deregister => {
                let drains = NoticeKind::ALL.into_iter().any(|kind| actions.of(kind).drains());
                self.idle(flag, !drains, "--on KIND=drain");
            }
        }
        let is_end_known = sources.complete_hooks() || drain_timeout.of(NoticeKind::AsgTerminate).is_some();
        let replaced = |kind: NoticeKind| kind.is_repair() && actions.of(kind) == Action::Replace;
        let is_idle = flags.terminate_first && !NoticeKind::ALL.into_iter().any(replaced);
        self.idle("--terminate-first", is_idle, "--on-condition …=replace, or --on status-check=replace");
        self.too_short_for_replacements(actions, health_issues, drain_timeout, lead);
        WaitPolicy {
            max_replacements: self.replacements(actions, health_issues, flags.max_replacements),
            terminate_first: flags.terminate_first,
            delay: self.delays(&flags.delay, actions),
            waves: self.waves(&flags.wave, actions, is_end_known),
            own_waves: false,
            zonal_shift: self.shifted_resources(&flags.zonal_shift, actions),
            hold: self.holds(&flags.hold, actions, sources),
            complete_after: flags.complete_after.unwrap_or_default(),
            volumes,
            load_balancers: flags.wait_for_load_balancers,
        }
    }

    fn delays(&mut self, flags: &[String], actions: Actions) -> PerKind<Option<Duration>> {
        let flag = "--delay";
        let mut delays = PerKind::all(None);
        for (kind, text) in self.by_kind(flag, flags, "rebalance=2m") {
            self.undrained(flag, kind, actions);
            delays.set(kind, self.read(flag, up_to(MAX_DRAIN)(text)));
        }
        delays
    }

    /// Adds a problem if drains are to wait for others, and none has time for that.
    fn idle_for_others(&mut self, flag: &'static str, flags: &[String], actions: Actions, is_end_known: bool) {
        let waits = |kind: &NoticeKind| kind.waits_in_waves() && actions.of(*kind).drains();
        let waiting: Vec<_> = NoticeKind::ALL.into_iter().filter(waits).collect();
        let without = match *waiting {
            [] => "--on asg-terminate=drain",
            [NoticeKind::AsgTerminate] if !is_end_known => {
                "--drain-timeout asg-terminate=10m, or --node-hook: without them the end of the hook is unknown"
            }
            _ => return,
        };
        self.idle(flag, !flags.is_empty(), without);
    }

    /// Reads the waves, each with its label.
    fn waves(&mut self, flags: &[String], actions: Actions, is_end_known: bool) -> Vec<Wave> {
        let flag = "--wave";
        self.idle_for_others(flag, flags, actions, is_end_known);
        let mut waves: Vec<Wave> = Vec::new();
        for text in flags {
            let Some((label, share)) = text.split_once('=') else {
                self.add(flag, format!("\"{text}\" names no number; write it like topology.kubernetes.io/zone=1"));
                continue;
            };
            let Some(label) = self.read(flag, checked_key(label)) else { continue };
            if waves.iter().any(|wave| *wave.label == *label) {
                self.add(flag, format!("{label} is given twice; keep one"));
            }
            if let Some(at_most) = self.read(flag, at_most(share)) {
                waves.push(Wave { label: label.into(), at_most });
            }
        }
        waves
    }

    /// Reads the resources whose zonal shift counts.
    fn shifted_resources(&mut self, flags: &[String], actions: Actions) -> ShiftedResources {
        let flag = "--zonal-shift";
        self.idle_for_others(flag, flags, actions, true);
        for text in flags.iter().filter(|text| *text != "any" && !text.starts_with("arn:")) {
            self.add(flag, format!("\"{text}\" is no ARN; write that of an EKS cluster or of a load balancer, or any"));
        }
        match flags {
            [] => ShiftedResources::None,
            [word] if word == "any" => ShiftedResources::Any,
            names => {
                if names.iter().any(|name| name == "any") {
                    self.add(flag, "any has all resources; remove the others".to_owned());
                }
                ShiftedResources::Named(names.iter().map(|name| name.as_str().into()).collect())
            }
        }
    }

    /// Reports a value for a kind without a drain. Returns whether it is one.
    fn undrained(&mut self, flag: &'static str, kind: NoticeKind, actions: Actions) -> bool {
        let is_undrained = !actions.of(kind).drains();
        if kind == NoticeKind::AsgLaunch {
            self.add(flag, format!("{kind} is never drained; remove it"));
        } else {
            self.idle(flag, is_undrained, &format!("--on {kind}=drain"));
        }
        is_undrained
    }

    /// Reads the points at which others are waited for: one value for all kinds, and others for single kinds.
    fn holds(&mut self, flags: &[String], actions: Actions, sources: Sources) -> PerKind<Holds> {
        let flag = "--hold";
        let (some, all) = self.one_for_all(flag, flags);
        let mut holds = PerKind::all(Holds::default());
        let drained = |kind| actions.of(kind).drains();
        if let Some(text) = all {
            let wanted = self.holds_in(flag, &text);
            let completes = drained(NoticeKind::AsgTerminate) && wanted.before_completion;
            let has_effect = completes && sources.complete_hooks()
                || wanted.before_drain && NoticeKind::ALL.into_iter().any(drained);
            let without = if completes { HOOKS } else { "--on KIND=drain" };
            self.idle(flag, !has_effect && wanted != Holds::default(), without);
            for kind in NoticeKind::ALL {
                let before_completion = wanted.before_completion && kind == NoticeKind::AsgTerminate;
                holds.set(kind, Holds { before_completion, ..wanted });
            }
        }
        for (kind, text) in self.by_kind(flag, &some, "asg-terminate=before-drain") {
            let wanted = self.holds_in(flag, text);
            let is_undrained = wanted != Holds::default() && self.undrained(flag, kind, actions);
            if !is_undrained && wanted.before_completion && kind != NoticeKind::AsgTerminate {
                self.add(flag, format!("{kind}={text} has no effect: after its drain there is no hook to complete; write {kind}=before-drain, or remove it"));
            } else {
                self.idle(flag, !is_undrained && wanted.before_completion && !sources.complete_hooks(), HOOKS);
            }
            holds.set(kind, wanted);
        }
        holds
    }

    fn holds_in(&mut self, flag: &'static str, text: &str) -> Holds {
        let (before_drain, before_completion) = match text {
            "before-drain" => (true, false),
            "before-completion" => (false, true),
            "both" => (true, true),
            "none" => (false, false),
            _ => {
                self.add(
                    flag,
                    format!("\"{text}\" is not a point; write before-drain, before-completion, both or none"),
                );
                (false, false)
            }
        };
        Holds { before_drain, before_completion }
    }
}
