//! What happens in a world, at its time.

mod told;

use super::{Oracle, Plan, Stage};
use crate::harness::{instance, node, s};
use crate::plan::{Budget, DeploymentPlan, Kind, NodePlan, Notice, PodKind, PodPlan, SQS, Target, Teller, Trouble};
use ebbtide_sim::aws::{ActionState, HookResult, HookSpec};
use ebbtide_sim::fault::Rule;
use ebbtide_sim::kube::{Deployment, Interrupt, Limit, Pod};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep_until;

/// What is going to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Join(usize),
    /// The kubelet of a node falls silent.
    Lose(usize),
    /// EC2 shows what has become of a lost instance.
    End(usize),
    /// The kubelet is back.
    Return(usize),
    Open(usize, usize),
    Come(usize, usize),
    LetGo(usize, bool),
    Send(usize),
    Copy(usize),
    Tell(usize),
    CallOff(usize),
    ShiftEnds(usize),
    TakeBack(usize),
    /// The group begins to terminate the instance of a notice.
    Leave(usize),
    /// The instance of a notice begins to wait at a hook.
    Wait(usize),
    /// AWS shows what a notice says.
    Show(usize),
    Faults,
    Complete(usize),
    Gone(usize),
    Boot(usize),
    /// The work on a notice that waits must have begun.
    Begin(usize),
}

/// A world that lives.
pub(super) struct Live<'a> {
    plan: &'a Plan,
    stage: &'a Arc<Stage>,
    oracle: &'a Arc<Oracle>,
    due: BTreeSet<(Duration, Event)>,
    bodies: BTreeMap<usize, String>,
    /// Since when AWS calls the credentials expired.
    expired: Option<Expired>,
}

/// The begin of the time in which credentials count as expired.
#[derive(Clone, Copy, Debug)]
struct Expired {
    at: Duration,
    /// Number of times that credentials had been given out.
    loads: usize,
    /// Number of processes that had been started.
    starts: u32,
}

impl<'a> Live<'a> {
    /// Returns a world in which all is prepared, and nothing has happened yet.
    pub(super) fn new(plan: &'a Plan, stage: &'a Arc<Stage>, oracle: &'a Arc<Oracle>) -> Self {
        let mut live = Self { plan, stage, oracle, due: BTreeSet::new(), bodies: BTreeMap::new(), expired: None };
        live.prepare();
        live
    }

    fn prepare(&mut self) {
        let aws = &self.stage.world.aws;
        if let Some(timeout) = self.plan.flags.node_hook {
            for name in ["drain", "other"] {
                aws.autoscaling.add_hook("group", name, HookSpec::terminating(s(timeout)));
            }
            (0..self.plan.nodes.len()).for_each(|n| aws.autoscaling.join("group", &instance(n)));
        }
        let cluster = |name| format!("kubernetes.io/cluster/{name}");
        let (blue, green, tag) = (cluster("blue"), cluster("green"), "aws-node-termination-handler/managed");
        let ours = [(tag, "true"), (blue.as_str(), "owned")];
        aws.ec2.put(&Self::id(Target::Unregistered), &ours);
        aws.ec2.put(&Self::id(Target::OtherCluster), &[(tag, "true"), (green.as_str(), "owned")]);
        aws.ec2.put(&Self::id(Target::Untagged), &[]);
        // The node of the replicas' own pods: its instance tells the cluster's name.
        aws.ec2.put(&instance(9003), &ours);
        self.stage.world.kube.add_node("home", &instance(9003));
        self.stage.world.kube.add_budget("default", "shared", [("budget", "shared")], Limit::MaxUnavailable(1));
        for (n, plan) in self.plan.nodes.iter().enumerate() {
            aws.ec2.put(&instance(n), &ours);
            match plan.joins {
                Some(at) => drop(self.due.insert((s(at), Event::Join(n)))),
                None => self.join(n, plan),
            }
            if let Some((at, ignored)) = plan.uncordoned {
                self.due.insert((s(at), Event::LetGo(n, ignored)));
            }
            if let Some(loss) = plan.lost {
                self.due.extend([(s(loss.at), Event::Lose(n)), (s(loss.at + loss.shown), Event::End(n))]);
                self.due.extend(loss.returns.map(|after| (s(loss.at + after), Event::Return(n))));
            }
            for (number, pod) in plan.pods.iter().enumerate() {
                if let Budget::Opens(at) = pod.budget {
                    self.due.insert((s(at), Event::Open(n, number)));
                }
                if let Some(at) = pod.comes {
                    self.due.insert((s(at), Event::Come(n, number)));
                }
            }
        }
        for (number, plan) in self.plan.deployments.iter().enumerate() {
            self.add_deployment(&Plan::deployment(number), plan);
        }
        for (n, notice) in self.plan.notices.iter().enumerate() {
            self.due.insert((s(notice.at), Event::Send(n)));
            if let Some(hook) = notice.hook {
                self.due.insert((s(notice.at + hook.shown), Event::Leave(n)));
                self.due.extend(hook.waits.map(|after| (s(notice.at.saturating_add_signed(after)), Event::Wait(n))));
            }
            self.due.extend(notice.copies.iter().map(|after| (s(notice.at + notice.lag + after), Event::Copy(n))));
        }
        self.due.extend(self.plan.faults.iter().flat_map(|span| [span.from, span.to]).map(|at| (s(at), Event::Faults)));
    }

    /// Lets everything happen, until every message has been deleted.
    pub(super) async fn happen(&mut self, bound: Duration) {
        let step = s(5);
        let origin = tokio::time::Instant::now();
        let calm = s(self.plan.calm_from());
        let mut looked = Duration::ZERO;
        loop {
            let next = self.due.first().map_or(looked + step, |(at, _)| (*at).min(looked + step));
            sleep_until(origin + next).await;
            let now = self.stage.world.clock.elapsed();
            while let Some(&(at, event)) = self.due.first()
                && at <= now
            {
                self.due.pop_first();
                self.happens(event);
            }
            if self.oracle.seen().broken.is_some() {
                return;
            }
            if now >= looked + step {
                looked = now;
                self.terminate_the_completed();
                self.oracle.judge_waits();
            }
            let left = || self.oracle.left_to_do();
            if now > calm && self.due.is_empty() && self.stage.world.aws.sqs.is_empty() && left().is_empty() {
                return;
            }
            if now > bound {
                let open = self.oracle.seen().sent.iter().filter(|sent| !sent.open.is_empty()).count();
                let text = format!("{open} notices have messages, and of what Nodes say is left: {:?}", left());
                return self.oracle.breaks("the world comes to rest", text);
            }
        }
    }

    fn id(target: Target) -> String {
        match target {
            Target::Node(n) => instance(n),
            Target::Unregistered => instance(9000),
            Target::OtherCluster => instance(9001),
            Target::Untagged => instance(9002),
        }
    }

    fn join(&self, n: usize, plan: &NodePlan) {
        let kube = &self.stage.world.kube;
        kube.add_node(&node(n), &instance(n));
        let ((zone, group), mut labels) = (Plan::place(n), Vec::new());
        if self.plan.flags.shift {
            labels.push(("topology.k8s.aws/zone-id", told::zone_id(zone)));
        }
        if self.plan.has_groups() {
            labels.push(("topology.kubernetes.io/zone", format!("eu-west-1{}", ["a", "b", "c"][zone])));
            labels.push(("eks.amazonaws.com/nodegroup", format!("group-{group}")));
        }
        if n.is_multiple_of(2) && self.plan.flags.others.contains(&"--pool") {
            labels.push(("explorer/even", String::new()));
        }
        if !labels.is_empty() {
            let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value));
            kube.update_node(&node(n), |node| node.metadata.labels.get_or_insert_default().extend(labels));
        }
        if plan.ignored {
            self.stage.world.kube.update_node(&node(n), |node| {
                node.metadata.annotations.get_or_insert_default().insert("ebbtide/ignore".into(), "true".into());
            });
        }
        if plan.cordoned {
            kube.update_node(&node(n), |node| node.spec.get_or_insert_default().unschedulable = Some(true));
        }
        for (number, pod) in plan.pods.iter().enumerate().filter(|(_, pod)| pod.comes.is_none()) {
            self.add_pod(n, number, pod);
        }
    }

    fn add_pod(&self, n: usize, number: usize, plan: &PodPlan) {
        let name = format!("pod-{n}-{number}");
        let pod = Self::like(plan, Pod::on(&node(n))).named(&name).labels([("app", name.as_str())]);
        let pod = match plan.kind {
            PodKind::Web => pod,
            PodKind::Bare => pod.bare(),
            PodKind::Daemon => pod.owner("DaemonSet", &name),
            PodKind::Mirror => pod.mirror(),
            PodKind::EmptyDir => pod.emptydir(),
            PodKind::Finished => pod.phase("Succeeded"),
            PodKind::Claim => pod.claim(&name),
        };
        let pod = if plan.budget == Budget::Shared { pod.labels([("budget", "shared")]) } else { pod };
        let pod = match plan.returns {
            // Its successors have its name and five characters.
            Some((placement, after)) => {
                pod.owner("ReplicaSet", &name).placement(placement).replaced_after(Duration::from_millis(after))
            }
            None => pod,
        };
        let kube = &self.stage.world.kube;
        kube.add_pod(pod);
        if plan.budget == Budget::Several {
            for budget in [name.clone(), format!("{name}-too")] {
                kube.add_budget("default", &budget, [("app", name.as_str())], Limit::MaxUnavailable(1));
            }
        }
        let is_held = match plan.budget {
            Budget::Never => true,
            Budget::Opens(at) => s(at) > self.stage.world.clock.elapsed(),
            _ => false,
        };
        if is_held {
            kube.add_budget("default", &name, [("app", name.as_str())], Limit::MaxUnavailable(0));
        }
    }

    /// Returns the pod with what the plan says of any.
    fn like(plan: &PodPlan, pod: Pod) -> Pod {
        pod.grace(s(plan.grace)).stops_in(plan.takes.map(s)).annotations(plan.asks).priority(plan.priority)
    }

    fn add_deployment(&self, name: &str, plan: &DeploymentPlan) {
        let DeploymentPlan { nodes, pod, starts, rolling } = plan;
        let kube = &self.stage.world.kube;
        let of = Deployment::of(name, Self::like(pod, Pod::on(""))).rolling(*rolling).starts_in(starts.map(s));
        let named: Vec<String> = nodes.iter().map(|n| node(*n)).collect();
        let pods = kube.add_deployment(of, &named.iter().map(String::as_str).collect::<Vec<_>>());
        self.oracle.placed.lock().extend(pods.into_iter().zip(nodes.iter().copied()));
        if pod.budget == Budget::Never {
            let all = Limit::MinAvailable(i32::try_from(nodes.len()).unwrap_or(i32::MAX));
            kube.add_budget("default", name, [("app", name)], all);
        }
    }

    fn happens(&mut self, event: Event) {
        let (world, now) = (&self.stage.world, self.stage.world.clock.elapsed());
        let at = i64::try_from(now.as_millis()).unwrap_or_default();
        if !matches!(event, Event::Send(_) | Event::Begin(_) | Event::Faults) {
            self.oracle.note(format!("{event:?}"));
        }
        match event {
            // An instance that is terminated never joins.
            Event::Join(n) if self.oracle.seen().gone.contains_key(&n) => {}
            Event::Join(n) => {
                self.oracle.seen().started.insert(n, at);
                self.join(n, &self.plan.nodes[n]);
            }
            Event::Lose(n) => world.kube.set_ready(&node(n), false),
            // It may be back already, and what is terminated stays so.
            Event::End(n) if self.oracle.silent_for(n).is_some() && self.oracle.stands(Target::Node(n)) => {
                match self.plan.nodes[n].lost.and_then(|loss| loss.state) {
                    Some(state) => world.aws.ec2.set_state(&instance(n), state),
                    None => world.aws.ec2.remove(&instance(n)),
                }
            }
            Event::Return(n) if self.oracle.stands(Target::Node(n)) => {
                self.oracle.seen().started.insert(n, at);
                world.aws.ec2.set_state(&instance(n), "running");
                world.kube.set_ready(&node(n), true);
            }
            Event::End(_) | Event::Return(_) => {}
            Event::Open(n, number) => world.kube.remove_budget("default", &format!("pod-{n}-{number}")),
            Event::Come(n, number) => {
                let fits = |node: k8s_openapi::api::core::v1::Node| {
                    node.spec.and_then(|spec| spec.unschedulable) != Some(true)
                };
                if world.kube.node(&node(n)).is_some_and(fits) {
                    self.add_pod(n, number, &self.plan.nodes[n].pods[number]);
                }
            }
            Event::LetGo(n, ignored) => {
                self.oracle.seen().let_go.insert(n, at);
                world.kube.update_node(&node(n), |node| {
                    node.spec.get_or_insert_default().unschedulable = None;
                    if ignored {
                        node.metadata
                            .annotations
                            .get_or_insert_default()
                            .insert("ebbtide/ignore".into(), "true".into());
                    }
                });
            }
            Event::Send(n) => self.send(n),
            Event::Copy(n) => {
                if let Some(body) = self.bodies.get(&n) {
                    self.send_more(n, body.clone());
                }
            }
            Event::Tell(n) => self.tell(n),
            Event::CallOff(n) => self.call_off(n),
            Event::ShiftEnds(n) => self.end_shift(n),
            Event::Begin(n) => self.oracle.judge_begun(n),
            Event::TakeBack(n) => self.take_back(n),
            Event::Leave(n) => self.leave(n),
            Event::Wait(n) => self.wait(n),
            Event::Show(n) => self.show(n),
            Event::Faults => self.set_faults(now),
            Event::Complete(n) => {
                let token =
                    self.oracle.seen().sent.iter().find(|sent| sent.notice == n).and_then(|it| it.token.clone());
                world.aws.autoscaling.complete(&token.unwrap_or_default(), HookResult::Continue);
            }
            Event::Gone(n) => {
                world.aws.ec2.set_state(&instance(n), "terminated");
                for action in world.aws.autoscaling.actions().iter().filter(|action| action.instance == instance(n)) {
                    world.aws.autoscaling.complete(&action.token, HookResult::Abandon);
                }
                world.kube.remove_node(&node(n));
                self.oracle.seen().gone.insert(n, at);
            }
            Event::Boot(n) => {
                self.oracle.seen().started.insert(n, at);
                self.oracle.seen().booted.insert(n, at);
                world.kube.reboot(&node(n));
                // The agent starts, too, and the metadata no longer tell of what is over.
                let is_over = |&sent: &usize| {
                    let Notice { at, kind, target, teller, .. } = self.plan.notices[sent];
                    let over = match kind {
                        Kind::Spot(_) => at + 120,
                        Kind::Change(code, after) if code.contains("REBOOT") => at.saturating_add_signed(after),
                        _ => u64::MAX,
                    };
                    target == Target::Node(n) && teller != Teller::Queue && s(over) <= now
                };
                (0..self.plan.notices.len()).filter(is_over).for_each(|sent| self.take_back(sent));
            }
        }
    }

    fn set_faults(&mut self, now: Duration) {
        let world = &self.stage.world;
        world.faults.clear();
        let spans = self.plan.faults.iter().filter(|span| s(span.from) <= now && now < s(span.to));
        // The first rule that applies wins, and nothing gets past an outage.
        let mut spans: Vec<_> = spans.collect();
        spans.sort_by_key(|span| !matches!(span.trouble, Trouble::Sqs(_) | Trouble::Away(..)));
        let (mut stale, mut behind, mut expired, mut duplicates) = (false, false, false, 0.0);
        for span in spans {
            self.oracle.note(format!("{:?} until {} s", span.trouble, span.to));
            match span.trouble {
                Trouble::Calls(operation, fault, percent) => {
                    world.faults.add(Rule::on(operation, fault).chance(f64::from(percent) / 100.0));
                }
                Trouble::StaleCache => stale = true,
                Trouble::Overload => behind = true,
                Trouble::BrokenWatches => world.kube.interrupt_watches(Interrupt::Close),
                Trouble::Duplicates => duplicates = 0.5,
                Trouble::Sqs(fault) => SQS.iter().for_each(|operation| world.faults.add(Rule::on(*operation, fault))),
                Trouble::Away(fault, breaks) => {
                    world.faults.add(Rule::on(Rule::API_SERVER, fault));
                    if breaks {
                        world.kube.interrupt_watches(Interrupt::Break);
                    }
                }
                Trouble::Expired => expired = true,
            }
        }
        self.set_expired(expired, now);
        let world = &self.stage.world;
        world.kube.stop_caches(stale);
        world.kube.fall_behind(behind);
        world.aws.sqs.duplicate_chance(duplicates);
    }

    /// Makes the credentials expire, or lets the caller's role give out new ones.
    fn set_expired(&mut self, expired: bool, now: Duration) {
        let aws = &self.stage.world.aws;
        match self.expired {
            None if expired => {
                self.expired = Some(Expired { at: now, loads: aws.key_loads(), starts: self.oracle.seen().starts });
                aws.expire_keys();
            }
            Some(since) if !expired => {
                self.expired = None;
                self.oracle.judge_loads(aws.key_loads() - since.loads, now.saturating_sub(since.at), since.starts);
                aws.renew_key();
            }
            _ => {}
        }
    }

    /// Lets the capacity go as the notice says.
    fn follow(&mut self, n: usize) {
        let (notice, elapsed) = (&self.plan.notices[n], self.stage.world.clock.elapsed());
        if let (Target::Node(node), true) = (notice.target, notice.real) {
            let gone = |after: u64| (elapsed + s(after.saturating_sub(notice.age)), Event::Gone(node));
            match notice.kind {
                Kind::Change(_, after) if notice.called_off.is_some_and(|off| s(off) < s(after.unsigned_abs())) => {}
                Kind::Spot("terminate") => drop(self.due.insert(gone(125))),
                Kind::Reservation(after) => drop(self.due.insert(gone(after + 5))),
                Kind::State("shutting-down" | "stopping") => drop(self.due.insert(gone(130))),
                Kind::Spot(_) => drop(self.due.insert((gone(200).0, Event::Boot(node)))),
                Kind::Change(code, after) => {
                    let after = u64::try_from(after).unwrap_or_default() + 5;
                    let boot = (gone(after).0, Event::Boot(node));
                    self.due.insert(if code.contains("REBOOT") { boot } else { gone(after) });
                }
                // Nobody keeps the hook that the metadata tell of.
                Kind::Terminate(timeout, ..)
                    if notice.teller == Teller::Node && notice.hook.is_none_or(|hook| hook.waits.is_none()) =>
                {
                    self.due.insert(gone(timeout));
                }
                _ => {}
            }
        }
    }

    /// Removes the Nodes of instances whose terminating hook has ended, some time later.
    fn terminate_the_completed(&mut self) {
        let now = self.stage.world.clock.elapsed();
        for action in self.stage.world.aws.autoscaling.actions() {
            let (ActionState::Completed { at, .. } | ActionState::Expired { at }) = action.state else { continue };
            let of = (0..self.plan.nodes.len()).find(|n| instance(*n) == action.instance);
            if let (true, true, Some(n)) = (action.spec.terminating, now >= at + s(20), of)
                && self.stage.world.kube.node(&node(n)).is_some()
            {
                self.due.insert((now, Event::Gone(n)));
            }
        }
    }
}
