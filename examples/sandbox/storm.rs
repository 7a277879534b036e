//! The storm: sends the notices, writes an agent notice, opens a budget, and waits for the end of all work.

use crate::plan;
use crate::plan::{GROUP, LAUNCHING, Member, OTHER_GROUP, Part, Plan, TERMINATING};
use crate::printer::Printer;
use crate::tally::Tally;
use ebbtide::fact::TaskKind;
use ebbtide::runtime::Tasks;
use ebbtide_sim::World;
use ebbtide_sim::kube::Limit;
use ebbtide_sim::messages::{self, Wrapping};
use futures_util::future::join_all;
use serde_json::json;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, interval, sleep, timeout};

/// Period in which all notices are sent.
const SPREAD: Duration = Duration::from_secs(2);

/// Time from the start of the storm until the budget of the held-back pod is opened.
pub const OPENED: Duration = Duration::from_secs(6);

/// Time for which a controller holds a node.
pub const RELEASED: Duration = Duration::from_secs(4);

/// Time left of a spot instance's two minutes when the late warning is sent.
pub const LEFT: Duration = Duration::from_secs(20);

/// Annotation of an agent's spot notice.
const SPOT_NOTICE: &str = "ebbtide/says.spot";

/// Timeout of the storm: longer than all planned work. Work that has not ended then is a deviation.
const LONGEST: Duration = Duration::from_mins(1);

/// Period of the watch for leaked heartbeats after the storm: longer than the heartbeat interval and the duration of a call.
pub const LISTENED: Duration = Duration::from_secs(7);

/// The storm's inputs and observers.
pub struct Storm<'a> {
    pub world: &'a World,
    pub plan: &'a Plan,
    pub printer: &'a Printer,
    pub tally: &'a Tally,
    pub tasks: &'a Tasks,
    /// Time to wait before the storm.
    pub calm: Duration,
}

impl Storm<'_> {
    /// Runs the storm. Returns the number of messages sent.
    pub async fn rage(&self) -> usize {
        if timeout(LONGEST, self.tally.begun()).await.is_err() {
            return 0;
        }
        sleep(self.calm).await;
        let begun = Instant::now();
        let course = async {
            let (sent, (), ()) = tokio::join!(self.send(), self.lift(), self.release());
            (sent, timeout(LONGEST.saturating_sub(begun.elapsed()), self.quiet()).await.is_ok())
        };
        let (sent, quiet) = tokio::select! {
            biased;
            ended = course => ended,
            never = self.report_progress(), if self.plan.is_large() => match never {},
        };
        self.printer.announce(if quiet {
            "all work has ended; checks that no heartbeat follows"
        } else {
            "some work has not ended after a minute"
        });
        sent
    }

    /// Sends everything in a seeded order, keeping each burst's messages together.
    async fn send(&self) -> usize {
        let mut bursts = self.bursts();
        fastrand::Rng::with_seed(self.plan.seed).shuffle(&mut bursts);
        let count = u32::try_from(bursts.len()).expect("a storm must be countable");
        let mut pace = interval(SPREAD / count.max(1));
        let mut sent = 0;
        for burst in bursts {
            pace.tick().await;
            for body in self.bodies(burst) {
                self.world.aws.sqs.send(body);
                sent += 1;
            }
        }
        self.printer.announce(&format!("{sent} messages sent"));
        sent
    }

    fn bursts(&self) -> Vec<Burst<'_>> {
        let alone = |member: &&Member| !matches!(member.part, Part::Maintained | Part::Spared);
        let maintained: Vec<_> = self.plan.with(Part::Maintained).collect();
        let events = maintained.chunks(3).map(|members| Burst::Health(members.to_vec()));
        let others = [Burst::Elsewhere, Burst::Newcomer, Burst::Poison, Burst::Test];
        self.plan.nodes.iter().filter(alone).map(Burst::Node).chain(events).chain(others).collect()
    }

    /// Returns the messages of one burst. A lifecycle action's timeout starts when its message is made.
    fn bodies(&self, burst: Burst<'_>) -> Vec<String> {
        let (now, ec2) = (self.world.clock.now(), &self.world.aws.ec2);
        let member = match burst {
            Burst::Node(member) => member,
            Burst::Health(members) => {
                let ids: Vec<&str> = members.iter().map(|member| member.instance.as_str()).collect();
                let code = "AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED";
                let in_a_week = now + Duration::from_hours(7 * 24);
                let id = format!("maintenance-{}", members[0].name);
                for (n, instance) in ids.iter().enumerate() {
                    ec2.schedule(instance, (&format!("{id}-{n}"), "system-maintenance"), in_a_week);
                }
                return vec![messages::scheduled_change(&id, code, &ids, now, in_a_week)];
            }
            Burst::Elsewhere => return vec![self.hook(Wrapping::Event, (OTHER_GROUP, TERMINATING), plan::OTHER.1)],
            Burst::Newcomer => return vec![self.hook(Wrapping::Event, (GROUP, LAUNCHING), plan::NEW.1)],
            Burst::Poison => return vec!["{\"source\": \"aws.ec2\", \"detail-type\": \"EC2 Spot Inst".to_owned()],
            Burst::Test => {
                let test = json!({ "Service": "AWS Auto Scaling", "Event": "autoscaling:TEST_NOTIFICATION", "AutoScalingGroupName": GROUP });
                return vec![test.to_string()];
            }
        };
        let Member { name, instance, part, .. } = member;
        let id = format!("event-{name}");
        let terminated = |wrapping| self.hook(wrapping, (GROUP, TERMINATING), instance);
        // Beyond a quarter of the nodes Ebbtide asks AWS whether the messages are true.
        let doomed = now - (Duration::from_mins(2) - LEFT);
        match part {
            Part::Redelivered | Part::Twofold | Part::Spot | Part::Announced => ec2.interrupt(instance, now),
            Part::Doomed => ec2.interrupt(instance, doomed),
            Part::Stopping => ec2.set_state(instance, "stopping"),
            _ => {}
        }
        match part {
            Part::Terminated(wrapping) => vec![terminated(*wrapping)],
            Part::Attached | Part::Balanced => vec![terminated(Wrapping::Event)],
            Part::HeldBack => vec![terminated(Wrapping::Sns)],
            Part::Stuck => vec![terminated(Wrapping::Bare)],
            Part::Redelivered => vec![messages::spot(&id, instance, now); 2],
            Part::Twofold => vec![messages::spot(&id, instance, now), terminated(Wrapping::Event)],
            Part::Spot => vec![messages::spot(&id, instance, now)],
            Part::Doomed => vec![messages::spot(&id, instance, doomed)],
            Part::Rebalanced => vec![messages::rebalance(&id, instance, now)],
            Part::Stopping => vec![messages::state_change(&id, instance, "stopping", now)],
            Part::Reclaimed => {
                vec![messages::capacity_reservation(&id, instance, now, now + Duration::from_mins(2))]
            }
            Part::Announced => {
                announce_spot(self.world, name);
                Vec::new()
            }
            Part::Maintained | Part::Spared => Vec::new(),
        }
    }

    fn hook(&self, wrapping: Wrapping, (group, hook): (&str, &str), instance: &str) -> String {
        let token = self.world.aws.autoscaling.begin(group, hook, instance);
        let terminating = hook == TERMINATING;
        messages::lifecycle(wrapping, terminating, (group, hook, &token), instance, self.world.clock.now())
    }

    async fn lift(&self) {
        sleep(OPENED).await;
        for member in self.plan.with(Part::HeldBack) {
            let budget = member.part.budget().expect("a pod that is held back must have a budget");
            self.world.kube.set_budget("default", budget, Limit::MinAvailable(0));
            self.printer.announce(&format!("opens the budget \"{budget}\": {} can be drained", member.name));
        }
    }

    /// Releases each node that is held after a while, as a controller does.
    async fn release(&self) {
        let held = |name: &str| {
            let annotations = self.world.kube.node(name).and_then(|node| node.metadata.annotations);
            annotations.is_some_and(|annotations| annotations.contains_key("ebbtide/hold"))
        };
        let release = |member: &'_ Member| {
            let name = member.name.clone();
            async move {
                let mut poll = interval(Duration::from_millis(200));
                while !held(&name) {
                    poll.tick().await;
                }
                sleep(RELEASED).await;
                self.printer.announce(&format!("a controller releases {name}"));
                self.world.kube.update_node(&name, |node| {
                    let annotations = node.metadata.annotations.get_or_insert_default();
                    annotations.insert("ebbtide/release".to_owned(), "before-drain".to_owned());
                });
            }
        };
        let all = join_all(self.plan.with(Part::Stopping).map(release));
        // The checks report a node that was never held.
        let _ = timeout(LONGEST, all).await;
    }

    /// Waits until no message is left and all work has ended.
    async fn quiet(&self) {
        let mut poll = interval(Duration::from_millis(100));
        while !(self.world.aws.sqs.is_empty() && at_rest(self.tasks)) {
            poll.tick().await;
        }
    }

    async fn report_progress(&self) -> Infallible {
        let drains = self.plan.nodes.iter().filter(|node| node.part.drain().is_some()).count();
        let mut every = interval(Duration::from_secs(1));
        let mut before = 0;
        loop {
            every.tick().await;
            let ended = self.tally.drains_ended();
            if ended != before {
                let evicted = self.tally.evicted();
                self.printer.announce(&format!("{ended} of {drains} drains have ended, {evicted} pods were evicted"));
            }
            before = ended;
        }
    }
}

/// Messages sent together.
enum Burst<'a> {
    Node(&'a Member),
    Health(Vec<&'a Member>),
    Elsewhere,
    Newcomer,
    Poison,
    Test,
}

/// Annotates the Node with a spot interruption in two minutes, as its agent does.
pub fn announce_spot(world: &World, name: &str) {
    let notice = json!({ "what": "terminate", "at": (world.clock.now() + Duration::from_mins(2)).to_string() });
    world.kube.update_node(name, |node| {
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert(SPOT_NOTICE.to_owned(), notice.to_string());
    });
}

/// Returns whether all work has ended. Readers of /metrics do not count.
pub fn at_rest(tasks: &Tasks) -> bool {
    let works = |kind: &TaskKind| kind.transient() && *kind != TaskKind::AdminConnection;
    TaskKind::ALL.into_iter().filter(works).all(|kind| tasks.alive(kind) == 0)
}
