//! The fleet: nodes come and go, and AWS tells of it in every way that it has.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::aws::{ActionState, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Limit, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::collections::BTreeSet;
use std::time::Duration;

/// Number of nodes that no notice has named yet.
const NODES: usize = 100;

/// Number of the first node: names of one length, so that no growth is theirs.
const FIRST: usize = 1_000_000;

/// Latency of each call.
const LATENCY: Duration = Duration::from_millis(10);

/// Shortest time that a node has: a spot warning's.
const SHORT: Duration = s(120);

/// Time of a node whose notice does not take it away itself.
const LONG: Duration = s(300);

/// A fleet of constant size.
pub struct Fleet {
    pub stage: Stage,
    /// Number of notices so far; each takes the next node.
    pub notices: usize,
    /// Nodes that go, and when.
    going: BTreeSet<(Duration, usize)>,
    /// Tokens of lifecycle actions that must be completed.
    tokens: Vec<(usize, String)>,
}

/// A message that a fleet gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Spot,
    SpotTwice,
    /// A spot warning for a node with a pod that a budget protects.
    Blocked,
    Hook(Wrapping),
    Rebalance,
    Stopping,
    Retirement,
    Reservation,
}

impl Kind {
    fn of(n: usize) -> Self {
        match n % 20 {
            0..=7 => Self::Spot,
            8 => Self::SpotTwice,
            9 => Self::Blocked,
            10..=13 => Self::Hook(Wrapping::Event),
            14 => Self::Hook(Wrapping::Sns),
            15 => Self::Hook(Wrapping::Bare),
            16 => Self::Rebalance,
            17 => Self::Stopping,
            18 => Self::Retirement,
            _ => Self::Reservation,
        }
    }
}

impl Fleet {
    pub fn new() -> Self {
        let stage = Stage::new(0, 0);
        stage.world.faults.add(Rule::on("*", Fault::Slow(LATENCY)));
        stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(300)));
        stage.world.kube.add_budget("default", "held", [("app", "held")], Limit::MaxUnavailable(0));
        // Messages that nobody can read go there.
        stage.world.aws.sqs.set_dead_letter(3);
        let fleet = Self { stage, notices: 0, going: BTreeSet::new(), tokens: Vec::new() };
        (0..NODES).for_each(|n| fleet.join(n));
        fleet
    }

    /// Number of nodes that are there, those that go included.
    pub fn len(&self) -> usize {
        NODES + self.going.len()
    }

    fn join(&self, n: usize) {
        let (name, id) = (node(FIRST + n), instance(FIRST + n));
        let world = &self.stage.world;
        world.kube.add_node(&name, &id);
        world.aws.ec2.put(&id, &[("aws-node-termination-handler/managed", "true")]);
        for pod in 0..2 {
            let held = pod == 0 && Kind::of(n) == Kind::Blocked;
            let pod = Pod::on(&name).named(&format!("web-{}-{pod}", FIRST + n)).stops_in(s(2));
            world.kube.add_pod(if held { pod.labels([("app", "held")]) } else { pod });
        }
    }

    /// Sends the next notice: its node goes, and a new one joins.
    pub fn next(&mut self) {
        let n = self.notices;
        self.notices += 1;
        let (world, id) = (&self.stage.world, instance(FIRST + n));
        let (now, event, kind) = (world.clock.now(), format!("event-{}", FIRST + n), Kind::of(n));
        let send = |body: String| _ = world.aws.sqs.send(body);
        match kind {
            Kind::Spot | Kind::SpotTwice | Kind::Blocked => {
                let copies = if kind == Kind::SpotTwice { 2 } else { 1 };
                world.aws.ec2.interrupt(&id, now);
                (0..copies).for_each(|_| send(messages::spot(&event, &id, now)));
            }
            Kind::Hook(wrapping) => {
                let token = world.aws.autoscaling.begin("group", "hook", &id);
                send(messages::lifecycle(wrapping, true, ("group", "hook", &token), &id, now));
                self.tokens.push((n, token));
            }
            Kind::Rebalance => send(messages::rebalance(&event, &id, now)),
            Kind::Stopping => {
                world.aws.ec2.set_state(&id, "stopping");
                send(messages::state_change(&event, &id, "stopping", now));
            }
            Kind::Retirement => {
                let (code, start) = ("AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", now + s(7 * 24 * 3600));
                world.aws.ec2.schedule(&id, (&event, "instance-retirement"), start);
                send(messages::scheduled_change(&event, code, &[&id], now, start));
            }
            Kind::Reservation => send(messages::capacity_reservation(&event, &id, now, now + SHORT)),
        }
        // Besides: an instance of somebody else, and a message that is none. Each is new to the service.
        if n.is_multiple_of(50) {
            send(messages::spot(&format!("foreign-{n}"), &instance(2 * FIRST + n), now));
            send(format!(r#"{{"source": "aws.ec2", "poison": {n}"#));
        }
        let stays = if matches!(kind, Kind::Rebalance | Kind::Retirement) { LONG } else { SHORT };
        self.going.insert((world.clock.elapsed() + stays, n));
        self.join(n + NODES);
    }

    /// Removes the nodes whose time is over, and checks that they were drained.
    pub fn settle(&mut self) {
        let now = self.stage.world.clock.elapsed();
        while self.going.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, n)) = self.going.pop_first()
        {
            let (world, name) = (&self.stage.world, node(FIRST + n));
            let left = world.kube.pods_on(&name).len();
            let wanted = if Kind::of(n) == Kind::Rebalance { 2 } else { 0 };
            assert_eq!(left, wanted, "pods on {name}, {:?}\n{}", Kind::of(n), self.stage.story());
            world.kube.remove_node(&name);
            world.aws.ec2.remove(&instance(FIRST + n));
        }
        let world = &self.stage.world;
        self.tokens.retain(|(n, token)| {
            let action = world.aws.autoscaling.action(token).expect("the action must be known");
            match &action.state {
                ActionState::Completed { result, .. } => {
                    assert_eq!(result, "CONTINUE", "{action:?}");
                    false
                }
                ActionState::Expired { .. } => panic!("node {n}: {action:?}\n{}", self.stage.story()),
                ActionState::Waiting { .. } => true,
            }
        });
    }

    /// Returns whether everything that was sent has been handled and has its end.
    pub fn is_at_rest(&self) -> bool {
        self.going.is_empty() && self.tokens.is_empty() && self.stage.world.aws.sqs.is_empty()
    }
}
