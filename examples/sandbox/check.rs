//! Checks the results against the plan.

use crate::paint::{Paint, Tone};
use crate::plan::{DETACHED, DRAINING, Member, NEW, OTHER, Part, Plan, STORE};
use crate::storm::at_rest;
use crate::summary::Undisturbed;
use crate::tally::{Table, Tally};
use crate::without_queue::Scene;
use ebbtide::fact::TaskKind;
use ebbtide::runtime::Tasks;
use ebbtide::service::Exit;
use ebbtide_sim::World;
use ebbtide_sim::aws::{Action, ActionState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Grace period for a heartbeat that was in flight when its hook was completed. Sized for a busy machine.
const UNDER_WAY: Duration = Duration::from_millis(1_500);

/// Minimum time between two heartbeats of one hook. One heartbeat task sends every 5 s, or up to a tenth earlier. Two tasks for one
/// hook would send some heartbeats half of that apart, or less.
const APART: Duration = Duration::from_secs(3);

/// Number of comparisons that passed, and the deviations from the plan.
#[derive(Debug, Default)]
pub struct Checks {
    held: usize,
    deviations: Vec<String>,
}

/// Counts the heartbeats sent for a hook after its completion.
pub fn leaked(world: &World) -> usize {
    let ended: BTreeMap<String, Duration> = world.aws.autoscaling.actions().into_iter().filter_map(completed).collect();
    let beats = world.calls.of("RecordLifecycleActionHeartbeat");
    beats.iter().filter(|beat| ended.get(&beat.subject).is_some_and(|ended| beat.at > *ended + UNDER_WAY)).count()
}

fn completed(action: Action) -> Option<(String, Duration)> {
    match action.state {
        ActionState::Completed { at, .. } => Some((action.token, at)),
        ActionState::Waiting { .. } | ActionState::Expired { .. } => None,
    }
}

impl Checks {
    /// Compares the results with the plan after the end of all work.
    pub fn after(plan: &Plan, world: &World, tally: &Tally, tasks: &Tasks, sent: usize) -> Self {
        let mut checks = Self::default();
        checks.that(sent > 0, || "the service did not begin to receive within a minute".to_owned());
        for member in &plan.nodes {
            checks.node(member, world);
            checks.hook(member, world);
        }
        for (name, instance) in [OTHER, NEW] {
            let actions = actions_of(instance, world);
            let untouched = actions.iter().all(|action| action.beats.is_empty() && action.completions.is_empty());
            checks.that(untouched && actions.len() == 1, || format!("{name}: its hook was touched: {actions:?}"));
        }
        checks.counts(plan, world, tally);
        checks.queue(world, sent);
        let leaked = leaked(world);
        checks.that(leaked == 0, || format!("{leaked} heartbeats were sent after their hooks had been completed"));
        checks.that(at_rest(tasks), || {
            let alive = TaskKind::ALL.into_iter().filter(|kind| kind.transient() && tasks.alive(*kind) > 0);
            let alive: Vec<_> = alive.map(|kind| format!("{} {}", tasks.alive(kind), kind.as_str())).collect();
            format!("tasks still live: {}", alive.join(", "))
        });
        checks
    }

    /// Adds the checks of the scene without a queue.
    pub fn without_queue(&mut self, scene: &Scene) {
        for member in &scene.plan.nodes {
            self.node(member, &scene.world);
        }
        self.equal("without a queue: notices", scene.tally.notices(), Table::from([(("spot", "drained"), 1)]));
        self.equal("without a queue: drains", scene.tally.drains(), BTreeMap::from([("drained", 1)]));
        self.equal("without a queue: trouble", scene.tally.troubles(), Vec::new());
        self.equal("without a queue: calls to AWS", scene.calls_to_aws(), Vec::new());
        for (exit, tasks) in &scene.replicas {
            self.shutdown(*exit, tasks);
        }
    }

    /// Adds the checks of the shutdown.
    pub fn shutdown(&mut self, exit: Exit, tasks: &Tasks) {
        self.that(exit == Exit::Clean, || "the shutdown aborted work".to_owned());
        let left: i64 = TaskKind::ALL.into_iter().map(|kind| tasks.alive(kind)).sum();
        self.that(left == 0, || format!("{left} tasks outlived the service"));
    }

    /// Returns whether there is no deviation.
    pub fn all_held(&self) -> bool {
        self.deviations.is_empty()
    }

    /// Returns the result in words.
    pub fn report(&self, paint: Paint) -> String {
        if self.all_held() {
            return paint
                .tone(Tone::Good, &format!("✓ All {} checks passed; the drain that must fail has failed.", self.held));
        }
        let (differ, all) = (self.deviations.len(), self.held + self.deviations.len());
        let head = paint.tone(Tone::Bad, &format!("✗ {differ} of {all} checks failed:"));
        let lines = self.deviations.iter().map(|deviation| format!("  {deviation}"));
        std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n")
    }

    fn that(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if holds {
            self.held += 1;
        } else {
            self.deviations.push(otherwise());
        }
    }

    fn equal<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, is: T, should: T) {
        self.that(is == should, || format!("{what}: found {is:?}, expected {should:?}"));
    }

    fn node(&mut self, Member { name, pods, part, .. }: &Member, world: &World) {
        let (agents, left): (Vec<_>, Vec<_>) = world
            .kube
            .pods_on(name)
            .into_iter()
            .filter_map(|pod| pod.metadata.name)
            .partition(|pod| pod.starts_with("agent-"));
        self.equal(&format!("{name}: evictable pods left"), left.len(), part.pods_left(pods.len()));
        if *part == Part::Stuck {
            self.equal(&format!("{name}: pods that its budget keeps"), left, vec!["ledger-0".to_owned()]);
        }
        self.equal(&format!("{name}: pods of the DaemonSet"), agents.len(), 1);
        if *part == Part::Stopping {
            let annotation = |key: &str| world.kube.node(name)?.metadata.annotations?.remove(key);
            let released = annotation("ebbtide/release").is_some() && annotation("ebbtide/hold").is_none();
            self.that(released, || format!("{name}: was not held, or not released"));
        }
        if *part == Part::Announced {
            let annotations = world.kube.node(name).and_then(|node| node.metadata.annotations).unwrap_or_default();
            let ended = annotations.values().filter(|text| text.contains("\"work\":\"ended\"")).count();
            self.equal(&format!("{name}: agent notices that were acted on"), ended, 1);
        }
        let cordoned = world.kube.node(name).and_then(|node| node.spec?.unschedulable).unwrap_or(false);
        self.equal(&format!("{name}: cordoned"), cordoned, *part != Part::Spared);
    }

    fn hook(&mut self, Member { name, instance, part, .. }: &Member, world: &World) {
        let actions = actions_of(instance, world);
        self.equal(&format!("{name}: lifecycle actions"), actions.len(), usize::from(part.has_hook()));
        for Action { state, completions, beats, .. } in actions {
            let results: Vec<_> = completions.iter().map(|(_, result)| result.as_str()).collect();
            let well = results == ["CONTINUE"] && matches!(state, ActionState::Completed { .. });
            self.that(well, || {
                format!("{name}: its hook was not completed once, with CONTINUE: {state:?}, {completions:?}")
            });
            let close = beats.windows(2).filter(|pair| pair[1] - pair[0] < APART).count();
            self.that(close == 0, || format!("{name}: two heartbeats in one interval, at {beats:?}"));
            if *part == Part::Attached {
                let evicted = world.kube.evictions().into_iter().find(|evicted| evicted.name == STORE);
                let detached = evicted.map(|evicted| evicted.at + DETACHED);
                let waited = completions.first().is_some_and(|(at, _)| Some(*at) >= detached);
                self.that(waited && world.kube.attachments().is_empty(), || {
                    format!("{name}: its hook was completed before its volume was detached: {completions:?}")
                });
            }
            if *part == Part::Balanced {
                let deregistered = world.calls.of("DeregisterTargets");
                let left = deregistered.first().map(|call| call.at + DRAINING);
                let waited = completions.first().is_some_and(|(at, _)| Some(*at) >= left);
                self.that(waited && deregistered.len() == 1, || {
                    format!("{name}: its hook was completed before its connections had ended: {completions:?}")
                });
            }
            if *part == Part::Stuck {
                self.that(beats.len() >= 2, || format!("{name}: its hook was not kept alive: heartbeats at {beats:?}"));
            }
        }
    }

    fn counts(&mut self, plan: &Plan, world: &World, tally: &Tally) {
        let mut notices = Table::from([(("asg-terminate", "not-ours"), 1), (("asg-launch", "ignored"), 1)]);
        let mut drains = BTreeMap::new();
        for part in plan.nodes.iter().map(|node| node.part) {
            for notice in part.notices() {
                *notices.entry(*notice).or_default() += 1;
            }
            if let Some(outcome) = part.drain() {
                *drains.entry(outcome).or_default() += 1;
            }
        }
        self.equal("notices by kind and outcome", tally.notices(), notices);
        self.equal("drains by outcome", tally.drains(), drains);
        self.equal("messages that can't be read", tally.malformed(), 1);
        self.equal("trouble", tally.troubles(), Vec::new());

        let evictions = world.kube.evictions();
        let pods: BTreeSet<_> = evictions.iter().map(|evicted| &evicted.uid).collect();
        self.equal("pods evicted, and evictions of them", pods.len(), evictions.len());
        let Undisturbed { nodes, patches, lists, evictions, pods } = Undisturbed::of(plan, world);
        let should = (nodes, 2 * nodes, pods);
        self.equal("patches, lists and evictions for undisturbed drains", (patches, lists, evictions), should);
    }

    fn queue(&mut self, world: &World, sent: usize) {
        let sqs = &world.aws.sqs;
        self.equal("messages left", (sqs.visible(), sqs.in_flight()), (0, 0));
        let deleted: BTreeSet<_> = sqs.deleted().into_iter().collect();
        self.equal("messages deleted", deleted.len(), sent);
        self.equal("deliveries", sqs.receive_log().len(), sent);
    }
}

fn actions_of(instance: &str, world: &World) -> Vec<Action> {
    world.aws.autoscaling.actions().into_iter().filter(|action| action.instance == instance).collect()
}
